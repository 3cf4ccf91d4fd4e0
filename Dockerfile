# The image of one Holdfast node.
#
#   docker build -t holdfast:dev .      builds from source; needs a container registry and crates.io
#   scripts/image-offline.sh            the same image with no registry: own base, binary built on this machine
#
# Stages: `runtime` is everything but the binary (the offline script stops there and adds a binary of its own),
# `build` compiles it, the last one joins them. Nothing here needs BuildKit.

ARG BUILDER_BASE=rust:1.95-bookworm
ARG RUNTIME_BASE=debian:bookworm-slim

FROM ${RUNTIME_BASE} AS runtime
# A fixed numeric id, so that a volume keeps its owner across images and `runAsNonRoot` can be checked. The folder is
# made here so that a new named volume starts out owned by it.
RUN groupadd --system --gid 10001 holdfast \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin holdfast \
 && install --directory --owner=10001 --group=10001 --mode=0700 /data
ENV HOLDFAST_DATA_DIR=/data
VOLUME /data
# 7600: HTTP API. 7700: the other nodes.
EXPOSE 7600 7700
USER 10001:10001
WORKDIR /data
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
  CMD ["holdfast", "healthcheck", "--url", "http://127.0.0.1:7600/readyz"]
# SIGTERM drains the node: it hands over leadership and syncs before it exits.
STOPSIGNAL SIGTERM
ENTRYPOINT ["holdfast"]
CMD ["serve"]

FROM ${BUILDER_BASE} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package holdfast-node --bin holdfast \
 && mkdir /out \
 && strip --strip-debug -o /out/holdfast target/release/holdfast

FROM runtime
COPY --from=build /out/holdfast /usr/local/bin/holdfast
