#!/usr/bin/env bash
# Checks everything that can be checked without running the product, changes nothing, and says all that is wrong
# rather than only the first thing. `just fix` mends what it can.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

failed=()
check() {
  local name=$1
  shift
  printf -- '-- %s\n' "$name"
  "$@" || failed+=("$name")
}

scripts_parse() {
  local file bad=0
  for file in scripts/*.sh .ci/run; do
    bash -n "$file" || bad=1
  done
  if command -v shellcheck >/dev/null; then
    shellcheck scripts/*.sh .ci/run || bad=1
  fi
  return "$bad"
}

check "scripts" scripts_parse
check "format" cargo fmt --all --check
check "format of fuzz" cargo fmt --manifest-path fuzz/Cargo.toml --check
check "format of bench/peers" cargo fmt --manifest-path bench/peers/Cargo.toml --check
check "lints" cargo clippy --workspace --all-targets --locked --quiet --keep-going -- -D warnings
check "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet --keep-going

if ((${#failed[@]})); then
  printf 'verify: failed:'
  printf ' %s' "${failed[@]}"
  printf '\n'
  exit 1
fi
echo "verify: clean"
