#!/usr/bin/env bash
# Holdfast, and what a user would pick instead, under the same load: PostgreSQL with and without standbys, etcd, NATS
# JetStream, and bare synced files. Writes the tables into docs/benchmarks.md too, unless something is said.
#
#   scripts/bench-peers.sh                          what docs/benchmarks.md shows, in a quarter of an hour
#   scripts/bench-peers.sh --systems floor,etcd --clients 64 --rounds 1
#                                                   anything else that `bench-peers run --help` knows
#
# needs: the pinned Rust toolchain, protoc, and the servers. As root on Debian what is missing is installed, and none of
#        it is started by that.
# env:   HOLDFAST_BIN            a release build of `holdfast`, instead of one that is built
#        HOLDFAST_PEERS_JSON     where the figures go; target/bench-peers.json unless set
set -euo pipefail
cd "$(dirname "$0")/.."

readonly postgres=/usr/lib/postgresql/15/bin/postgres
readonly json=${HOLDFAST_PEERS_JSON:-target/bench-peers.json}

install_missing() {
  local missing=()
  [[ -x $postgres ]] || missing+=(postgresql-15)
  command -v etcd >/dev/null || missing+=(etcd-server)
  command -v nats-server >/dev/null || missing+=(nats-server)
  # The types that every .proto may use are in a package of their own.
  command -v protoc >/dev/null || missing+=(protobuf-compiler)
  [[ -e /usr/include/google/protobuf/descriptor.proto ]] || missing+=(libprotobuf-dev)
  command -v setpriv >/dev/null || missing+=(util-linux)
  ((${#missing[@]} == 0)) && return
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    echo "not installed, and not root on Debian to install it: ${missing[*]}"
    exit 1
  fi
  # Services ask this file whether they may start when their package is installed; one that is there stays as it is.
  local policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  # No cluster of Debian's own either.
  mkdir -p /etc/postgresql-common
  [[ -e /etc/postgresql-common/createcluster.conf ]] ||
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

install_missing
export CARGO_INCREMENTAL=0
if [[ -z ${HOLDFAST_BIN:-} ]]; then
  cargo build --release --locked --package holdfast-node --bin holdfast
  HOLDFAST_BIN=target/release/holdfast
fi
cargo build --release --locked --manifest-path bench/peers/Cargo.toml
mkdir -p "$(dirname "$json")"
readonly program=bench/peers/target/release/bench-peers
"$program" run --holdfast "$HOLDFAST_BIN" --seconds 5 --rounds 3 --json "$json" "$@"
if (($# == 0)); then
  "$program" document "$json" docs/benchmarks.md
fi
