#!/usr/bin/env bash
# Properties of the HTTP interface against a running node: schemathesis makes calls out of /openapi.json, sound ones and
# broken ones, and holds each answer against the document. No 500, no hang, no status that is not documented.
#
#   scripts/api-fuzz.sh [SECONDS] [schemathesis options...]      120 s if nothing is said
#
# needs: cargo, python3 with venv. As root on Debian python3-venv is installed when it is missing.
# env:   HOLDFAST_BIN           a binary to test, instead of one built here
#        HOLDFAST_SCHEMATHESIS  a schemathesis to run, instead of a fresh one from PyPI
set -euo pipefail
cd "$(dirname "$0")/.."

readonly version=4.32.5
readonly seconds=${1:-120}
shift || true

folder=$(mktemp -d)
node=
finish() {
  # By its id, and only this one.
  [[ -n $node ]] && kill "$node" 2>/dev/null && wait "$node" 2>/dev/null
  rm -rf "$folder"
}
trap finish EXIT

binary=${HOLDFAST_BIN:-}
if [[ -z $binary ]]; then
  cargo build --quiet --locked --package holdfast-node --bin holdfast
  binary=${CARGO_TARGET_DIR:-target}/debug/holdfast
fi

schemathesis=${HOLDFAST_SCHEMATHESIS:-}
if [[ -z $schemathesis ]]; then
  if ! python3 -m venv "$folder/venv" 2>/dev/null; then
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
      echo "python3 cannot make a venv here, and this is not root on Debian to install python3-venv"
      exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
    python3 -m venv --clear "$folder/venv"
  fi
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
  schemathesis=$folder/venv/bin/schemathesis
fi

# Two ports that are free now; whoever takes one in between makes the start fail, and that is said.
read -r http peer < <(python3 - <<'PORTS'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))
PORTS
)
url=http://127.0.0.1:$http
"$binary" serve --node-name node-a --cluster-id fuzz --members "node-a=127.0.0.1:$peer" --peer-listen "127.0.0.1:$peer" \
  --http-listen "127.0.0.1:$http" --data-dir "$folder/data" --log-level warn >"$folder/log" 2>&1 &
node=$!
for ((tries = 0; ; tries++)); do
  "$binary" healthcheck --url "$url/readyz" >/dev/null 2>&1 && break
  if ((tries >= 300)) || ! kill -0 "$node" 2>/dev/null; then
    echo "the node did not come up:"
    cat "$folder/log"
    exit 1
  fi
  sleep 0.1
done

# Streams have no end. Beyond the time of a long poll, no answer is a hang.
failed=0
"$schemathesis" --config-file scripts/api-fuzz.toml run "$url/openapi.json" --max-time "$seconds" "$@" || failed=$?

if ! kill -0 "$node" 2>/dev/null; then
  echo "the node did not survive:"
  tail -50 "$folder/log"
  failed=1
fi
if grep -E "ERROR|panicked" "$folder/log"; then
  echo "the node logged errors (above)"
  failed=1
fi
exit "$failed"
