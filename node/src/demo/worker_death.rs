//! A worker is killed with rows in hand: no node can know what became of it, so they are given to others once its
//! session's lease has ended.

use anyhow::Context as _;
use holdfast_client::ReadMode;
use holdfast_machine::{DispatchKey, RowStatus, ShardId};

use super::audit::Kill;
use super::failover::{PATIENCE, ms};
use super::ledger::Executor;
use super::story::Demo;

/// What came of it.
#[derive(Debug)]
pub(crate) struct WorkerDeath {
    pub kill: Kill,
    /// Kill to the first of its rows in another worker's hands.
    pub to_given_on_ms: f64,
}

impl Demo {
    /// Kills a worker that holds rows of a gated fan-out, and waits until others have all that it held.
    ///
    /// # Errors
    /// When a step does not come in time.
    pub async fn lose_worker(&mut self) -> anyhow::Result<WorkerDeath> {
        let gated = self.stage_gated(ShardId(0)).await?;
        self.wait_until_in_hand(&gated, |_| true).await?;
        let holders = gated.rows.iter().filter_map(|key| self.ledger.holder(key));
        let dead = holders.into_iter().find(Executor::is_worker).context("no worker holds a row")?;
        let Executor::Worker(number) = dead else { anyhow::bail!("{dead} is no worker") };
        let held_by_workers = self.ledger.in_hand(|by| by.is_worker() && *by != dead);
        let killed_at = self.workers.kill(number).await?;
        let held = self.ledger.killed(&dead);
        self.screen.step(format!("       0 ms  SIGKILL to {dead}: {} rows in its hands", held.len()));
        let kill = Kill { dead, at: killed_at, back: killed_at, held, held_by_workers };
        self.wait_until_given_on(&kill).await?;
        let again = self.ledger.again(&kill.held, &kill.dead, kill.at);
        let first = again.first().context("no row of the killed worker is executed again")?.1.began;
        let to_given_on_ms = ms(first.duration_since(kill.at));
        let others = again.len();
        self.screen.step(format!(
            "  {to_given_on_ms:>6.0} ms  its session's lease has ended, and {others} rows are with other workers"
        ));
        self.open(&gated).await?;
        self.screen.step(format!("             {} has gone on and ended", gated.workflow));
        Ok(WorkerDeath { kill, to_given_on_ms })
    }

    /// Waits until each row of the killed worker is executed again, or has an outcome: the last thing that it did may
    /// have been recorded without its knowing.
    async fn wait_until_given_on(&mut self, kill: &Kill) -> anyhow::Result<()> {
        let deadline = kill.at + PATIENCE;
        let mut left: Vec<DispatchKey> = kill.held.clone();
        loop {
            let again = self.ledger.again(&left, &kill.dead, kill.at);
            left.retain(|key| again.iter().all(|(given_on, _)| given_on != key));
            let Some(key) = left.last() else { return Ok(()) };
            if self.client.row(key, ReadMode::Stale).await?.value.row.status == RowStatus::Done {
                left.pop();
                continue;
            }
            self.look_again(deadline, &format!("{} rows of {} to be given to others", left.len(), kill.dead)).await?;
        }
    }
}
