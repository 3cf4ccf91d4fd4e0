#!/usr/bin/env bash
# Runs the engine and the worker of examples/python against real nodes: one node, and then three of which the one that
# the engine talks to is killed in the middle of the work. The example checks by itself that all came out right.
#
# usage: scripts/python-example.sh [BINARY]         (BINARY: a `holdfast` that is built already)
# needs: Python 3.11 or later with venv (python3-venv on Debian), and access to PyPI or a mirror of it
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'python-example: %s\n' "$*" >&2; }

binary=${1:-}
if [[ -z $binary ]]; then
  cargo build --locked --package holdfast-node --bin holdfast
  binary=target/debug/holdfast
fi

work=$(mktemp -d)
pids=()
clean_up() {
  local status=$? pid
  for pid in "${pids[@]}"; do
    # One of them was killed on purpose.
    kill "$pid" 2>/dev/null || continue
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
  done
  if ((status != 0)); then
    tail -n 20 "$work"/*.log >&2 || true
  fi
  rm -rf "$work"
}
trap clean_up EXIT

# Ports that nobody listens on.
free_ports() {
  python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in sockets))
PYTHON
}

# Starts a cluster of so many nodes: their URLs are in `urls`, their processes in `nodes`.
start_cluster() {
  local count=$1 cluster=cluster-$1 ports names=(node-a node-b node-c) members='' number tries
  read -ra ports <<<"$(free_ports $((2 * count)))"
  for ((number = 0; number < count; number++)); do
    members+="${members:+,}${names[number]}=127.0.0.1:${ports[2 * number]}"
  done
  urls=() nodes=()
  for ((number = 0; number < count; number++)); do
    "$binary" serve --cluster-id "$cluster" --node-name "${names[number]}" --members "$members" \
      --peer-listen "127.0.0.1:${ports[2 * number]}" --http-listen "127.0.0.1:${ports[2 * number + 1]}" \
      --data-dir "$work/$cluster-${names[number]}" 2>"$work/$cluster-${names[number]}.log" &
    nodes+=($!)
    # The shell need not say that a node was killed.
    disown
    urls+=("http://127.0.0.1:${ports[2 * number + 1]}")
  done
  pids+=("${nodes[@]}")
  for number in "${!urls[@]}"; do
    for tries in {1..300}; do
      "$binary" healthcheck --url "${urls[number]}" 2>/dev/null && continue 2
      sleep 0.1
    done
    say "${urls[number]} is not ready after $tries tries"
    return 1
  done
}

# A demo that hangs must not hold up whoever waits for it.
demo() {
  timeout 180 "$work/venv/bin/python" examples/python/demo.py "$@"
}

export PYTHONDONTWRITEBYTECODE=1
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --requirement examples/python/requirements.txt

say "one node"
start_cluster 1
demo "${urls[@]}"

say "three nodes, the first one killed in the middle"
start_cluster 3
demo --when-half "kill -9 ${nodes[0]}" "${urls[@]}"
say "done"
