//! `restart`: how long a node with a long history takes to serve again, stopped in good order and killed, and the memory
//! that it has then.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::args::BenchArgs;
use crate::history;
use crate::meter::Times;
use crate::nodes::Nodes;
use crate::report::Case;

/// Writes a history and restarts the nodes in turn.
///
/// # Errors
/// When a node does not come back.
pub async fn measure(args: &BenchArgs, nodes: &mut Nodes, run: u32) -> Result<Case> {
    let mut case = Case::new("restart", run);
    case.count("history_bytes", history::write(args, nodes).await?);
    let (mut stopped, mut killed, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds as usize {
        let number = round % nodes.len();
        for (kill, times) in [(false, &mut stopped), (true, &mut killed)] {
            if kill {
                nodes.kill(number).await?;
            } else {
                nodes.stop(number).await?;
            }
            let begun = Instant::now();
            nodes.start(number)?;
            nodes.wait_until_serving(number).await?;
            times.push(begun.elapsed());
            memory.extend(nodes.spent_each().await?[number].memory_mib());
            // All of them, before the next one is taken away.
            nodes.wait_until_formed().await?;
        }
    }
    case.count("restarts", (stopped.len() + killed.len()) as u64);
    case.times_ms.insert("serving_after_stop".to_owned(), Times::of_each(stopped));
    case.times_ms.insert("serving_after_kill".to_owned(), Times::of_each(killed));
    let most = memory.into_iter().reduce(f64::max).context("no memory was read")?;
    case.figure("node_memory_mib_max", Some(most));
    Ok(case)
}
