# The commands of everyday work. `just` is a convenience: each recipe is one plain command, and CI uses those.

# list the recipes
default:
    @just --list

# format, lints and docs; changes nothing, says all that is wrong
verify:
    scripts/verify.sh

# mend what verify complains about, where a tool can
fix:
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all
    cargo fmt --manifest-path fuzz/Cargo.toml
    cargo fmt --manifest-path bench/peers/Cargo.toml

# unit, property and integration tests
test:
    cargo test --workspace

# whole clusters on a simulated network, clock and disk, from seeds: `just simulate --seeds 1..50 --minutes 2`
simulate *ARGS:
    cargo run -p holdfast-simulation -- {{ ARGS }}

# faults dealt out by a seed under load, on three processes: `just chaos 200`, and again with `just chaos 200 SEED`
chaos steps="100" seed=`date +%s`:
    HOLDFAST_CHAOS_STEPS={{ steps }} HOLDFAST_CHAOS_SEED={{ seed }} \
      cargo test -p holdfast-tests --test promises chaos::nothing_acknowledged -- --nocapture

# the same on three containers (needs a Docker engine)
chaos-containers steps="50" seed=`date +%s`: image
    HOLDFAST_COMPOSE_TEST=1 HOLDFAST_CHAOS_STEPS={{ steps }} HOLDFAST_CHAOS_SEED={{ seed }} \
      cargo test -p holdfast-tests --test compose nothing_acknowledged -- --nocapture

# snapshots and purges under a history of so many bytes; needs about twelve times the space on the disk
big-history bytes="5000000000":
    cargo build --release --workspace --bin holdfast
    HOLDFAST_TEST_PROGRAMS="$PWD/target/release" HOLDFAST_HISTORY_BYTES={{ bytes }} \
      cargo test --release --workspace --test promises big_history -- --nocapture

# three containers, the owner killed while its rows are claimed (needs a Docker engine)
test-compose: image
    HOLDFAST_COMPOSE_TEST=1 cargo test -p holdfast-tests --test compose -- --nocapture

# three nodes in one go, with a failover, on this machine
demo *ARGS:
    cargo run --release -- demo {{ ARGS }}

# properties of the HTTP interface against a running node: schemathesis from PyPI, 120 s or as many as are said
api-fuzz *ARGS:
    scripts/api-fuzz.sh {{ ARGS }}

# any bytes against everything that decodes some, 12 s a target or as many as are said (needs a nightly toolchain)
fuzz *ARGS:
    scripts/fuzz.sh {{ ARGS }}

# Holdfast and what a user would pick instead under the same load; without arguments into docs/benchmarks.md as well
bench-peers *ARGS:
    scripts/bench-peers.sh {{ ARGS }}

# lints and tests of bench/peers, which is outside of the workspace; needs protoc, as `bench-peers` does
verify-peers:
    cargo clippy --manifest-path bench/peers/Cargo.toml --all-targets --locked -- -D warnings
    cargo test --manifest-path bench/peers/Cargo.toml --release --locked

# a cluster rolled from the version before to this one under load; builds that version first
mixed-version *ARGS:
    scripts/mixed-version.sh {{ ARGS }}

# an engine and a worker in Python over HTTP, against nodes that it starts; the engine and a node are killed
python-example *ARGS:
    scripts/python-example.sh {{ ARGS }}

# the image `holdfast:dev` without a container registry; with one, `docker build -t holdfast:dev .` does
image:
    scripts/image-offline.sh

# three nodes as containers, on 127.0.0.1:7601 to :7603
up: image
    docker-compose up

# plants one bug at a time and shows which layer of tests sees it
planted-bugs *ARGS:
    scripts/planted-bugs.sh {{ ARGS }}

# everything that CI runs
ci:
    .ci/run
