#!/usr/bin/env bash
# Bytes from anywhere against everything that decodes some: builds the targets of fuzz/ and runs one after the other.
# What they find worth keeping stays in fuzz/corpus for the next run, what fails in fuzz/artifacts.
#
#   scripts/fuzz.sh [SECONDS]      for each target; 12 s if nothing is said
#
# needs: a nightly toolchain (without one it says so and leaves everything out), a C++ compiler, python3. cargo-fuzz
#        is installed when it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly version=0.13.2
readonly seconds=${1:-12}

if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "fuzzing SKIPPED: there is no nightly toolchain here (rustup toolchain install nightly --profile minimal)"
  exit 0
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
  cargo +nightly install --quiet --locked cargo-fuzz --version "$version"
fi

python3 scripts/fuzz_seeds.py fuzz/corpus

# No sanitizer: nothing here is unsafe, so what it looks for cannot be written, and without it the build is far shorter.
readonly how=(--release --sanitizer none)
cargo +nightly fuzz build "${how[@]}"

failed=()
for target in $(cargo +nightly fuzz list); do
  printf -- '-- %s, %s s\n' "$target" "$seconds"
  log=$(mktemp)
  # An input that takes 10 s, or more memory than 1 GiB, is a finding like a panic.
  if cargo +nightly fuzz run "${how[@]}" "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
    -print_final_stats=1 >"$log" 2>&1; then
    grep -E '^Done|number_of_executed_units|peak_rss_mb' "$log"
  else
    cat "$log"
    failed+=("$target")
  fi
  rm -f "$log"
done
if ((${#failed[@]} > 0)); then
  echo "fuzzing found something in: ${failed[*]}"
  exit 1
fi
