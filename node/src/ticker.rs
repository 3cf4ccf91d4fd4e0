//! Work that falls due by the clock alone, done by the leader: letting log time move on when leases have ended, or timers
//! or rows that a worker waits for are due, and nobody else writes; the safety net under rows whose holder is gone, and the removal of what
//! has been kept long enough.

use std::time::Duration;

use holdfast_machine::{Command, DispatchKey, Holder, Machine, Millis, Reply, Row};
use holdfast_raft::Handle;
use tokio::time::{Instant, sleep};

/// The longest pause between two looks at what is first; a lease that was just made, or a timer that was just
/// armed, may come before it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a proposal that did not get through.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Rows that one reconciliation looks at.
const ROWS_MAX: usize = 10_000;
/// Claims that are younger than the oldest stale one by this much are excluded as well, so that none becomes old
/// enough on the proposal's way into the log.
const MARGIN_MS: u64 = 15_000;

/// Pause between two looks for workflows whose retention has run out.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two parts of such a look.
const SEARCH_PAUSE: Duration = Duration::from_millis(50);
/// The shortest pause between two purges. It is longer if they take longer, so that they are under way for half of the
/// time at most.
const PURGE_PAUSE_MIN: Duration = Duration::from_millis(10);

/// When the leader looks for rows whose holder is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reconcile {
    pub interval: Duration,
    pub older_than_ms: u64,
}

/// Lets leases end and timers and rows fall due on time, until the node stops. A timer that log time has passed is no
/// reason for another entry, however long it stays armed.
pub(crate) async fn move_time(handle: Handle) {
    loop {
        let pause = match first_due(&handle) {
            None => LOOK_INTERVAL,
            Some(at) => match at.0.saturating_sub(handle.clock().now_ms()) {
                0 if handle.is_leader() => match handle.propose(Command::Tick.into()).await {
                    // There may be more of them than one entry ends or gives.
                    Ok(_) => Duration::from_millis(1),
                    Err(error) => {
                        tracing::debug!(%error, "log time does not move on; leases that have ended are still held");
                        RETRY_PAUSE
                    }
                },
                left => Duration::from_millis(left.max(1)).min(LOOK_INTERVAL),
            },
        };
        sleep(pause).await;
    }
}

fn first_due(handle: &Handle) -> Option<Millis> {
    if !handle.is_leader() {
        return None;
    }
    handle.view(|machine, _| next_due(machine))
}

fn next_due(machine: &Machine) -> Option<Millis> {
    let timer = machine.next_timer_due(None, machine.now());
    let rows = machine.next_deadline().into_iter().chain(machine.next_session_end());
    rows.chain(timer).chain(machine.next_dispatch_due()).min()
}

/// Removes finished workflows when their retention has run out, until the node stops. Nothing is written as long as
/// nothing is due.
pub(crate) async fn purge(handle: Handle) {
    let mut from = 0;
    loop {
        let pause = if handle.is_leader() { purge_next(&handle, &mut from).await } else { PURGE_INTERVAL };
        sleep(pause).await;
    }
}

/// Looks from where the last look ended, and removes a portion of what is due. Returns the pause after it.
async fn purge_next(handle: &Handle, from: &mut usize) -> Duration {
    let wall = Millis(handle.clock().now_ms());
    let found = match handle.view(|machine, archive| machine.due_purge(archive, wall.max(machine.now()), *from)) {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "finished workflows whose retention has run out could not be looked for");
            return PURGE_INTERVAL;
        }
    };
    *from = found.next;
    let Some(command) = found.command else {
        return if found.next == 0 { PURGE_INTERVAL } else { SEARCH_PAUSE };
    };
    let begun = Instant::now();
    match handle.propose(command.into()).await {
        Ok(committed) => tracing::debug!(reply = ?committed.reply, "finished workflows were removed"),
        Err(error) => tracing::debug!(%error, "a purge did not get through; it comes again"),
    }
    begun.elapsed().max(PURGE_PAUSE_MIN)
}

/// Looks for rows whose holder is gone at each interval, until the node stops.
pub(crate) async fn reconcile(handle: Handle, settings: Reconcile) {
    let mut next = Instant::now() + settings.interval;
    loop {
        tokio::time::sleep_until(next).await;
        next = Instant::now() + settings.interval;
        if !handle.is_leader() {
            continue;
        }
        let Some(command) = handle.view(|machine, _| plan(machine, settings.older_than_ms)) else { continue };
        match handle.propose(command.into()).await.map(|committed| committed.reply) {
            Ok(Ok(Reply::Reconciled { rearmed, settled, unknown })) => {
                let (rearmed, settled, unknown) = (rearmed.len(), settled.len(), unknown.len());
                tracing::warn!(rearmed, settled, unknown, "rows without a living holder were put right");
            }
            Ok(reply) => tracing::debug!(?reply, "reconciliation"),
            Err(error) => tracing::debug!(%error, "reconciliation did not get through; it comes again"),
        }
    }
}

/// A reconciliation that touches only rows whose holder is gone; none if there are no such rows.
fn plan(machine: &Machine, older_than_ms: u64) -> Option<Command> {
    let now = machine.now();
    let margin = MARGIN_MS.min(older_than_ms / 2);
    let rows = machine.stale_rows(now, older_than_ms - margin, None, ROWS_MAX);
    let until = if rows.len() < ROWS_MAX {
        now.0.checked_sub(older_than_ms)?
    } else {
        // What comes after the page is not known, so keep away from its end.
        claimed_at(&rows.last()?.1)?.0.saturating_sub(margin)
    };
    let is_gone = |(key, row): &&(DispatchKey, Row)| {
        claimed_at(row).is_some_and(|at| at.0 <= until) && is_abandoned(machine, key, row)
    };
    let (gone, held): (Vec<_>, Vec<_>) = rows.iter().partition(is_gone);
    let newest = claimed_at(&gone.last()?.1)?;
    let excluded = held.into_iter().filter(|(_, row)| !is_vouched_for(row, now.plus(margin)));
    Some(Command::Reconcile {
        older_than_ms: now.0.saturating_sub(newest.0),
        limit: u32::try_from(gone.len()).ok()?,
        excluded: excluded.map(|(key, _)| key.clone()).collect(),
    })
}

/// True if a reconciliation leaves the row alone by itself: its lease runs until `at`, or a worker's session holds it.
fn is_vouched_for(row: &Row, at: Millis) -> bool {
    row.claim.as_ref().is_some_and(|claim| {
        matches!(claim.holder, Holder::Session { .. }) || claim.deadline.is_some_and(|deadline| deadline > at)
    })
}

fn claimed_at(row: &Row) -> Option<Millis> {
    row.claim.as_ref().map(|claim| claim.claimed_at)
}

/// True if nobody will ever finish the row under its claim. Leases end by themselves, and the rows of a node that
/// is down wait for its shards' adoption.
fn is_abandoned(machine: &Machine, key: &DispatchKey, row: &Row) -> bool {
    let Some(Holder::Node { node, boot }) = row.claim.as_ref().map(|claim| &claim.holder) else { return false };
    let current = machine.member(node).is_some_and(|member| member.boot.as_ref() == Some(boot));
    let owner = machine.shard(machine.shard_of(&key.workflow)).is_some_and(|entry| entry.owner == *node);
    !(current && owner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{
        ActivityType, Attached, BootId, Claim, Claimant, Commit, Entry, Liveness, Member, MemoryArchive, NewEvent,
        NewHolder, NewRow, NodeName, Scope, SessionChange, SessionId, ShardId, Worker, WorkflowId, WorkflowType,
    };

    use super::*;

    /// A machine over a memory archive, one command an entry.
    struct Bench {
        machine: Machine,
        archive: MemoryArchive,
        index: u64,
        at: u64,
    }

    impl Bench {
        /// Shard 0 belongs to node-a, shard 1 to node-b, and each has a workflow with two rows.
        fn new() -> Self {
            let mut bench = Self { machine: Machine::default(), archive: MemoryArchive::default(), index: 0, at: 1 };
            bench.members(&["node-a", "node-b"]);
            bench.apply(Command::Create { shard_count: 2 });
            for (shard, node) in [(0, "node-a"), (1, "node-b")] {
                bench.apply(Command::Boot { node: name(node), boot: boot(node) });
                bench.apply(Command::Assign { owners: vec![(ShardId(shard), name(node))] });
                bench.stage(ShardId(shard), 2);
            }
            bench
        }

        fn members(&mut self, names: &[&str]) {
            let member = |(id, text): (u64, &&str)| Member {
                id,
                name: name(text),
                peer_addr: String::new(),
                http_addr: String::new(),
                liveness: Liveness::Up,
            };
            let members: Vec<Member> = (1..).zip(names).map(member).collect();
            self.index += 1;
            self.machine.apply_members(self.index, &members, &self.archive).unwrap();
        }

        fn apply(&mut self, command: Command) -> Reply {
            self.index += 1;
            let entry = Entry { at: Millis(self.at), requests: vec![command.into()] };
            let mut applied = self.machine.apply(self.index, entry, &self.archive).unwrap();
            applied.replies.remove(0).unwrap()
        }

        fn stage(&mut self, shard: ShardId, rows: u64) {
            let mut ids = (0..).map(|number| WorkflowId::new(format!("w-{number}")).unwrap());
            let workflow = ids.find(|id| ShardId::of(id, 2) == shard).unwrap();
            let opening = Commit::new(workflow, 0).event(NewEvent::started(WorkflowType::new("t").unwrap()));
            let row = |ordinal| NewRow::new(ordinal, ActivityType::new("a").unwrap());
            self.apply(Command::Commit((1..=rows).map(row).fold(opening, Commit::activity)));
        }

        /// A worker's session on node-a, which is given what is due.
        fn attach(&mut self, max_concurrency: u32, lease_ms: u64) {
            let worker = Worker {
                identity: Claimant::new("worker").unwrap(),
                namespaces: vec![Default::default()],
                task_queue: Default::default(),
                activity_types: Vec::new(),
                max_concurrency,
                node: None,
                lease_ms,
            };
            let to = Attached { node: name("node-a"), boot: boot("node-a") };
            let change = SessionChange::Attach { worker, to };
            self.apply(Command::Session { session: SessionId::new("s").unwrap(), change });
        }

        fn claim(&mut self, limit: u32, holder: NewHolder) {
            let scope = Scope {
                namespace: Default::default(),
                task_queue: Default::default(),
                activity_types: Vec::new(),
                node: None,
            };
            self.apply(Command::Claim(Claim { scope, limit, holder, hold: Vec::new() }));
        }
    }

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn boot(node: &str) -> BootId {
        BootId::new(format!("boot of {node}")).unwrap()
    }

    fn held_by(node: &str) -> NewHolder {
        NewHolder::Node { node: name(node), boot: boot(node) }
    }

    #[test]
    fn rows_of_the_living_are_left_alone_however_old() {
        let mut bench = Bench::new();
        bench.claim(1, held_by("node-a"));
        let claimant = Claimant::new("worker").unwrap();
        bench.claim(10, NewHolder::Lease { claimant, lease_ms: 1_000_000 });
        assert_eq!(plan(&bench.machine, 1), None);
        bench.at = 500_000;
        bench.apply(Command::Tick);
        assert_eq!(plan(&bench.machine, 30_000), None);
    }

    #[test]
    fn time_moves_for_sessions_and_for_rows_that_they_wait_for() {
        let mut bench = Bench::new();
        bench.attach(9, 1_000);
        assert_eq!(next_due(&bench.machine), Some(Millis(1_001)), "the session's end");
        let workflow = WorkflowId::new("later").unwrap();
        let row = NewRow { visible_after: Millis(500), ..NewRow::new(1, ActivityType::new("a").unwrap()) };
        bench.apply(Command::Stage { workflow, namespace: Default::default(), rows: vec![row] });
        assert_eq!(next_due(&bench.machine), Some(Millis(500)));
        bench.at = 500;
        bench.apply(Command::Tick);
        assert_eq!(bench.machine.row_counts().pending, 0);
        assert_eq!(next_due(&bench.machine), Some(Millis(1_001)));
    }

    #[test]
    fn rows_of_sessions_are_left_alone_and_need_no_mention() {
        let mut bench = Bench::new();
        bench.claim(1, held_by("node-b"));
        bench.attach(1, 1_000_000);
        assert_eq!(bench.machine.row_counts().claimed, 2);
        bench.at = 90_000;
        bench.apply(Command::Tick);
        assert_eq!(plan(&bench.machine, 30_000), None);
        bench.members(&["node-a"]);
        let command = plan(&bench.machine, 30_000).unwrap();
        assert!(matches!(&command, Command::Reconcile { excluded, .. } if excluded.is_empty()), "{command:?}");
        let Reply::Reconciled { rearmed, .. } = bench.apply(command) else { panic!() };
        assert_eq!(rearmed.len(), 1);
    }

    #[test]
    fn rows_of_a_node_that_is_no_member_any_more_are_put_right_and_no_others() {
        let mut bench = Bench::new();
        bench.claim(10, held_by("node-b"));
        bench.at = 20_000;
        bench.claim(10, held_by("node-a"));
        bench.members(&["node-b"]);
        assert_eq!(plan(&bench.machine, 30_000), None, "they are not old enough");
        bench.at = 90_000;
        bench.apply(Command::Tick);
        let command = plan(&bench.machine, 30_000).unwrap();
        let Reply::Reconciled { rearmed, settled, unknown } = bench.apply(command) else { panic!() };
        assert!(settled.is_empty() && unknown.is_empty());
        assert_eq!(rearmed.len(), 2);
        assert!(rearmed.iter().all(|key| bench.machine.shard_of(&key.workflow) == ShardId(0)), "{rearmed:?}");
        assert_eq!(plan(&bench.machine, 30_000), None);
    }
}
