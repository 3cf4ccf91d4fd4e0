#!/usr/bin/env bash
# Are the tests any good? Plants one bug at a time, runs the layer of tests that has to see it, and prints the matrix. A
# layer has to pass without a bug, and to fail with it.
#
# usage: scripts/planted-bugs.sh [BUG...]      all of them, unless some are named
#
# A bug is one line of the product that asks `is_planted("name")`; only the feature `planted-bugs` makes it bite.
set -euo pipefail
cd "$(dirname "$0")/.."
# What is found here must not be kept as a case that once failed.
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1

# Bug, layer, package, and what narrows the layer down to a part that sees it.
readonly matrix='
skip-fence                      | model      | holdfast-machine | --test model
skip-fence                      | exhaustive | holdfast-machine | --test exhaustive ownership
adopt-from-the-living           | model      | holdfast-machine | --test model
adopt-from-the-living           | exhaustive | holdfast-machine | --test exhaustive ownership
accept-old-token                | model      | holdfast-machine | --test model
accept-old-token                | exhaustive | holdfast-machine | --test exhaustive claims
forget-replies                  | model      | holdfast-machine | --test model
time-moves-back                 | model      | holdfast-machine | --test model
leave-rows-of-the-ended         | model      | holdfast-machine | --test model
acknowledge-before-the-sync     | disk       | holdfast-storage | --lib log::
forgive-a-failed-sync           | disk       | holdfast-storage | --lib log::
keep-votes-in-memory            | disk       | holdfast-storage | --lib log::
believe-every-record            | disk       | holdfast-storage | --lib log::
snapshot-of-two-moments         | disk       | holdfast-storage | --lib state::
hasty-detector                  | consensus  | holdfast-raft    | --lib detector::
drop-second-events              | consensus  | holdfast-raft    | --lib feed::
ignore-divergence               | divergence | holdfast-raft    | --test divergence follower
order-of-a-hash-map             | simulation | holdfast-simulation | --seeds 1..4 --minutes 0.25
purge-too-far                   | simulation | holdfast-simulation | --seeds 1..4 --minutes 0.25
apply-before-the-log-is-on-disk | simulation | holdfast-simulation | --seeds 1..4 --minutes 0.25
read-what-is-here               | simulation | holdfast-simulation | --seeds 1..4 --minutes 0.25
'

run() { # bug package arguments...
  local bug=$1 package=$2 how=test
  shift 2
  if [[ $package == holdfast-simulation ]]; then
    how=run
    set -- -- "$@"
  fi
  HOLDFAST_PLANTED_BUG=$bug cargo "$how" --quiet --locked --package "$package" --features holdfast-machine/planted-bugs "$@"
}

readonly log=$(mktemp)
trap 'rm -f "$log"' EXIT
declare -A sound
caught=0 tried=0 missed=()
printf '%-32s %-11s %s\n' 'planted bug' 'layer' 'seen'
while IFS='|' read -r bug layer package arguments; do
  read -r bug <<<"$bug"
  read -r layer <<<"$layer"
  read -r package <<<"$package"
  read -ra arguments <<<"$arguments"
  [[ -n $bug ]] || continue
  if (($# > 0)) && [[ " $* " != *" $bug "* ]]; then
    continue
  fi
  part="$package ${arguments[*]}"
  if [[ -z ${sound[$part]:-} ]]; then
    if ! run none "$package" "${arguments[@]}" >"$log" 2>&1; then
      tail -n 40 "$log"
      echo "cargo test -p $part fails without a planted bug"
      exit 1
    fi
    sound[$part]=yes
  fi
  tried=$((tried + 1))
  if run "$bug" "$package" "${arguments[@]}" >"$log" 2>&1; then
    missed+=("$bug")
    printf '%-32s %-11s %s\n' "$bug" "$layer" 'MISSED'
  else
    caught=$((caught + 1))
    # The first test that failed; a build that failed would have failed without the bug as well.
    by=$(grep -m1 -oE '^(test .* FAILED|    [a-z_:]+|seed [0-9]+: RED .{0,60}.*)$' "$log" | sed -E 's/^test //; s/ (\.\.\.|-).*//; s/^ +//; s/^(seed [0-9]+).*/\1/' || true)
    printf '%-32s %-11s %s\n' "$bug" "$layer" "${by:-yes}"
  fi
done <<<"$matrix"
printf 'planted bugs caught: %d of %d\n' "$caught" "$tried"
((tried > 0 && ${#missed[@]} == 0))
