#!/usr/bin/env bash
# Keeps the data of this version for the tests of later ones (docs/upgrades.md).
#
#   scripts/keep-fixture.sh VERSION      makes tests/fixtures/data-VERSION anew
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: scripts/keep-fixture.sh VERSION}
folder=$PWD/tests/fixtures/data-$version
rm -rf "$folder"
HOLDFAST_KEEP_FIXTURE=$folder cargo test -p holdfast-tests --test upgrades keep -- --ignored
du -sh "$folder"
