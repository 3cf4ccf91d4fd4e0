//! Any bytes as a frame from a peer: refused, or read, and then written as what reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| holdfast_raft::fuzzing::peer_frame(bytes));
