//! What every run of the tests simulates: seeds that are the same each time, seeds that nobody has chosen, and a few that
//! are run twice. The program prints what it covered, and for each red run the command that repeats it.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::Mutex;

/// One batch at a time: each takes the whole machine.
static MACHINE: Mutex<()> = Mutex::new(());

fn simulate(arguments: &str) {
    let _machine = MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-simulation"));
    let output = command.args(arguments.split(' ')).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_seed_run_twice_is_the_same_run() {
    simulate("--seeds 1..3 --minutes 0.1 --twice");
}

/// Seeds that were red once: 4185656030 brings a snapshot to a node whose disk is full.
#[test]
fn fixed_seeds_and_fresh_ones_keep_every_promise() {
    simulate("--seeds 1..12,4185656030 --fresh 7 --minutes 0.25");
}
