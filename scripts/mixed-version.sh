#!/usr/bin/env bash
# Rolls a cluster under load from the program of an older commit to this one; the older one then refuses the data.
#
#   scripts/mixed-version.sh [COMMIT]    the commit in tests/fixtures/previous-version if none is named
#
# The older program is built once, under target/previous. A clone that does not have the commit (a shallow one) cannot.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-$(grep -v '^#' tests/fixtures/previous-version | head -n 1)}
if ! commit=$(git rev-parse --verify --quiet "$commit^{commit}"); then
  echo "skipped: this clone does not have the commit of the version before; fetch the whole history"
  exit 0
fi
folder=$PWD/target/previous/$commit
program=$folder/build/debug/holdfast
if [[ ! -x $program ]]; then
  mkdir -p "$folder/source"
  git archive "$commit" | tar -x -C "$folder/source"
  (cd "$folder/source" && CARGO_TARGET_DIR=$folder/build cargo build --locked --package holdfast-node --bin holdfast)
  rm -rf "$folder/source"
fi
HOLDFAST_PREVIOUS_PROGRAM=$program cargo test -p holdfast-tests --test upgrades rolled -- --nocapture
