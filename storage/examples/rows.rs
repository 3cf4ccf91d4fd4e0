//! Commits rows to a state, alone: a quick measure of what sled makes of them.
//!
//! `rows <directory> <commits> <rows per commit> <value bytes>`

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use holdfast_storage::disk::{Poison, RealDisk};
use holdfast_storage::{LogId, State, StateConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, commits, rows, bytes] = &arguments[..] else {
        return Err("rows <directory> <commits> <rows per commit> <value bytes>".into());
    };
    let (commits, rows, bytes): (u64, u64, usize) = (commits.parse()?, rows.parse()?, bytes.parse()?);
    let dir = Path::new(dir);
    State::create(&RealDisk, dir)?;
    let state = State::open(Arc::new(RealDisk), dir, StateConfig::default(), Poison::default())?;
    let began = Instant::now();
    for index in 0..commits {
        // Histories grow in many places at once: the first part of the key is spread, the rest ascends.
        let writes: BTreeMap<_, _> = (0..rows)
            .map(|row| {
                let workflow = (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50).to_be_bytes();
                let key = [&b"e/"[..], &workflow, &index.to_be_bytes(), &row.to_be_bytes()].concat();
                (key, Some(vec![index as u8; bytes]))
            })
            .collect();
        state.commit(writes, LogId { term: 1, index }, None)?;
        if index % 2000 == 1999 {
            state.sync()?;
        }
    }
    state.sync()?;
    let took = began.elapsed();
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap_or("?").to_owned();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("?").trim().to_owned();
    println!(
        "{:.0} rows/s, {} bytes on disk, {written} bytes written, peak memory {memory}",
        (commits * rows) as f64 / took.as_secs_f64(),
        state.size_on_disk()?,
    );
    Ok(())
}
