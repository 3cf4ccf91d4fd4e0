//! What is on the disks of nodes that have stopped: every state by itself holds what a state can hold, states at the same
//! index are the same, and so are the entries of the logs (invariants 2, 3, 4 and all those of one state).

use anyhow::{Context, Result, ensure};
use holdfast_checkers::invariants::{OneEntryPerIndex, Watch, check_state};
use holdfast_checkers::{Observation, Snapshot};
use holdfast_machine::Machine;
use holdfast_storage::{Expected, FIRST_INDEX, LogId, Options, Storage};

use crate::process::NodeProcess;

/// How many entries of a log are read at a time.
const PORTION: u64 = 256;

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Workflows, over all nodes.
    pub workflows: usize,
    /// Rows, over all nodes.
    pub rows: usize,
    /// Entries, over all nodes.
    pub entries: u64,
    /// Pairs of states at one index.
    pub states_compared: u64,
}

/// Opens the data directories of nodes that have stopped and holds them against each other.
///
/// # Errors
/// The first property that does not hold.
pub fn sound(nodes: &[NodeProcess], cluster: &str) -> Result<Looked> {
    let (mut watch, mut log, mut looked) = (Watch::default(), OneEntryPerIndex::default(), Looked::default());
    for node in nodes {
        let expected = Expected { cluster: cluster.to_owned(), name: node.name.to_string() };
        let storage = Storage::open(&node.data(), &expected, &Options::default())
            .with_context(|| format!("the data directory of {}", node.name))?;
        let machine = Machine::load(&*storage.state)?;
        let state = Snapshot::of(&machine, &*storage.state)?;
        check_state(&state).with_context(|| format!("the state of {}", node.name))?;
        looked.workflows += state.workflows.len();
        looked.rows += state.rows.len();
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let applied = index(storage.state.applied());
        let (purged, last) = (index(storage.log.purged()), index(storage.log.last()));
        // What was applied was committed, even if that was not noted.
        let committed = index(storage.log.committed()).max(applied);
        let snapshot = index(storage.snapshots.newest()?.map(|snapshot| snapshot.header.applied));
        watch.observe(&Observation {
            node: node.name.clone(),
            disk: 1,
            boot: 1,
            term: 0,
            leader: None,
            purged,
            snapshot,
            applied,
            committed,
            last,
            hash: Some(machine.state_hash()),
        })?;
        let mut from = storage.log.purged().map_or(FIRST_INDEX, |id| id.index + 1);
        while from <= committed {
            let to = committed.min(from + PORTION - 1) + 1;
            for record in storage.log.read(from..to)? {
                let digest = record.payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
                });
                log.applied(&node.name, record.id.index, record.id.term, digest)?;
                looked.entries += 1;
            }
            from = to;
        }
    }
    looked.states_compared = watch.states.compared();
    ensure!(looked.workflows > 0 && looked.entries > 0, "nothing was there to look at: {looked:?}");
    Ok(looked)
}
