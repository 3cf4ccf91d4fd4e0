//! A fan-out whose first wave is gated: its activities end only once the demo opens the gate. So whoever is killed
//! before that is killed in the middle of it, on a machine of any speed.

use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use holdfast_client::ReadMode;
use holdfast_machine::{DispatchKey, EventKind, ShardId, WorkflowId};

use super::failover::PATIENCE;
use super::fan_out::{first_wave, is_for_engines};
use super::ledger::Executor;
use super::plan::next_id_in;
use super::story::Demo;

/// The fan-out and its gate.
#[derive(Debug)]
pub(crate) struct Gated {
    pub workflow: WorkflowId,
    /// The first wave.
    pub rows: Vec<DispatchKey>,
    gate: PathBuf,
}

impl Gated {
    /// Lets the first wave end.
    ///
    /// # Errors
    /// When the demo's folder cannot be written.
    pub fn open(&self) -> std::io::Result<()> {
        File::create(&self.gate).map(drop)
    }
}

impl Demo {
    /// Starts a gated fan-out on this shard.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn stage_gated(&mut self, shard: ShardId) -> anyhow::Result<Gated> {
        let shard_count = self.client.shards(ReadMode::Stale).await?.value.shard_count;
        let workflow = next_id_in(&mut self.next_workflow, shard, shard_count);
        let gate = self.folder.join(format!("{workflow}.gate"));
        self.start_workflow(workflow.clone(), Some(gate.clone())).await?;
        let row = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
        Ok(Gated { rows: (1..=first_wave(self.activities)).map(row).collect(), workflow, gate })
    }

    /// Waits until the whole first wave is in hand: in workers', and in the hands of an engine that `engine` knows.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn wait_until_in_hand(
        &mut self,
        gated: &Gated,
        engine: impl Fn(&Executor) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let in_hand = |key: &DispatchKey, by: Option<Executor>| match by {
            Some(Executor::Worker(_)) => !is_for_engines(key.ordinal),
            Some(by) => is_for_engines(key.ordinal) && engine(&by),
            None => false,
        };
        while !gated.rows.iter().all(|key| in_hand(key, self.ledger.holder(key))) {
            self.look_again(deadline, &format!("the first wave of {} to be in hand", gated.workflow)).await?;
        }
        Ok(())
    }

    /// Opens the gate and waits until the fan-out has ended. Nothing of its second wave may have been decided before.
    ///
    /// # Errors
    /// When the second wave came too early, or the end does not come in time.
    pub async fn open(&mut self, gated: &Gated) -> anyhow::Result<()> {
        let history = self.client.history(&gated.workflow, 1, 1_000, ReadMode::Linearizable).await?.value;
        let decided = history.iter().filter(|event| event.kind == EventKind::ActivityScheduled).count();
        let ended = history.iter().filter(|event| event.kind.is_outcome()).count();
        anyhow::ensure!(
            (decided, ended) == (gated.rows.len(), 0),
            "{} has {decided} activities decided and {ended} ended behind its gate",
            gated.workflow
        );
        gated.open()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.client.workflow(&gated.workflow, ReadMode::Stale).await?.value;
            if view.workflow.is_some_and(|workflow| workflow.status.is_terminal()) {
                return Ok(());
            }
            self.look_again(deadline, &format!("{} to end behind its open gate", gated.workflow)).await?;
        }
    }
}
