#!/usr/bin/env bash
# Builds the image `holdfast:dev` with no container registry: the base comes from scripts/base-image.sh, the binary
# from `cargo build --release` on this machine. Afterwards `docker-compose up` finds the image and builds nothing.
#
# usage: scripts/image-offline.sh [BINARY]         (BINARY: one that is built already)
# env:   HOLDFAST_IMAGE        name of the image to make   (default holdfast:dev, which docker-compose.yml names)
#        HOLDFAST_BASE_IMAGE   base image                  (default holdfast-base:bookworm)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly image=${HOLDFAST_IMAGE:-holdfast:dev}
readonly base=${HOLDFAST_BASE_IMAGE:-holdfast-base:bookworm}
readonly runtime=$image-runtime

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

HOLDFAST_BASE_IMAGE=$base scripts/base-image.sh
binary=${1:-}
if [[ -z $binary ]]; then
  cargo build --release --locked --package holdfast-node --bin holdfast
  binary=target/release/holdfast
fi

# The runtime stage needs no files: an empty context instead of the whole source tree.
mkdir "$work/empty"
docker build --quiet --target runtime --build-arg "RUNTIME_BASE=$base" --tag "$runtime" \
  --file - "$work/empty" <Dockerfile

previous=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null || true)
mkdir "$work/binary"
# As the build stage does: without line tables, with the names of functions.
strip --strip-debug -o "$work/binary/holdfast" "$binary"
chmod 0755 "$work/binary/holdfast"
docker build --quiet --tag "$image" --file - "$work/binary" <<DOCKERFILE
FROM $runtime
COPY holdfast /usr/local/bin/holdfast
DOCKERFILE

# The image that had this name is nameless now. One that a container still runs stays.
if [[ -n $previous && $previous != $(docker image inspect --format '{{.Id}}' "$image") ]]; then
  docker image rm "$previous" >/dev/null 2>&1 || true
fi

# A binary linked against a newer libc than the base's fails here, and not when a cluster starts.
docker run --rm --network none "$image" --version
printf 'image-offline: made %s, %d MB\n' "$image" \
  "$(($(docker image inspect --format '{{.Size}}' "$image") / 1000000))" >&2
