//! Section 2: log time never decreases, whatever the leaders' clocks do. Case 10.

use anyhow::{Result, bail, ensure};
use holdfast_machine::{
    ActivityType, Arming, Claim, Claimant, Claimed, Command, Commit, Millis, NewHolder, NewRow, Payload, Reply, Scope,
    TaskQueue, TimerChange, TimerId,
};
use holdfast_tests::bare::Bare;
use holdfast_tests::work;

const HOUR: i64 = 3_600_000;
const MINUTE: u64 = 60_000;

async fn now(bare: &Bare, node: usize) -> Result<Millis> {
    match bare.ask(node, Command::Tick).await? {
        Reply::Ticked { at } => Ok(at),
        other => bail!("{other:?}"),
    }
}

async fn claim(bare: &Bare, node: usize, lease_ms: u64) -> Result<Vec<Claimed>> {
    let scope = Scope {
        namespace: Default::default(),
        task_queue: TaskQueue::new("orders")?,
        activity_types: Vec::new(),
        node: None,
    };
    let holder = NewHolder::Lease { claimant: Claimant::new("a worker")?, lease_ms };
    match bare.ask(node, Command::Claim(Claim { scope, limit: 10, holder, hold: Vec::new() })).await? {
        Reply::Claimed { claims } => Ok(claims),
        other => bail!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_due_times_survive_clocks_that_jump() -> Result<()> {
    let bare = Bare::start(4).await?;
    let (right, ahead) = (0, 1);
    bare.lead(right).await?;
    let start = now(&bare, right).await?;

    // A row that is due at once, and one that is due in two minutes; the first is claimed for a minute.
    let id = work::id("order-1")?;
    let later = start.plus(2 * MINUTE);
    let row = |ordinal, visible_after| {
        anyhow::Ok(NewRow {
            ordinal,
            task_queue: TaskQueue::new("orders")?,
            node: None,
            activity_type: ActivityType::new("work")?,
            input: Payload::default(),
            visible_after,
            retry: Default::default(),
            timeouts: Default::default(),
        })
    };
    let rows = vec![row(1, Millis(0))?, row(2, later)?];
    // So is a timer, which falls due with the second row.
    let arming = Arming { timer: TimerId::new("wake")?, fire_at: later, armed_seq: 1 };
    let timers = vec![TimerChange::Schedule(arming.clone())];
    bare.ask(right, Command::Commit(Commit { timers, ..work::opening(&id, rows)? })).await?;
    let due = |node| {
        let handle = bare.handle(node)?;
        anyhow::Ok(handle.view(|machine, _| machine.expired_timers(None, None, machine.now(), 10)))
    };
    let held = claim(&bare, right, MINUTE).await?;
    ensure!(held.len() == 1 && held[0].key == work::key(&id, 1), "{held:?}");

    // The leader's clock is stepped back an hour: time stands still, and nothing ends or falls due.
    bare.clock(right).set_ahead(-HOUR);
    let stood = now(&bare, right).await?;
    ensure!(stood >= start, "log time went back from {start} to {stood}");
    ensure!(now(&bare, right).await? == stood, "log time moves by a clock that is behind it");
    ensure!(claim(&bare, right, MINUTE).await?.is_empty(), "something fell due by a clock that went back");
    ensure!(due(right)?.is_empty(), "a timer fell due by a clock that went back");

    // Leadership moves to a node that is an hour ahead: the lease ends, and both rows are due, in order.
    bare.clock(ahead).set_ahead(HOUR);
    bare.lead(ahead).await?;
    let jumped = now(&bare, ahead).await?;
    ensure!(jumped.0 >= start.0 + HOUR as u64, "{jumped}");
    let fired = vec![(id.clone(), arming.clone())];
    ensure!(due(ahead)? == fired, "{:?}", due(ahead)?);
    let both = claim(&bare, ahead, MINUTE).await?;
    let keys: Vec<u64> = both.iter().map(|claim| claim.key.ordinal).collect();
    ensure!(keys.len() == 2, "{both:?}");
    ensure!(both.iter().all(|claim| claim.token != held[0].token), "an ended claim lives on");
    let late = Command::Heartbeat {
        key: held[0].key.clone(),
        token: held[0].token,
        lease_ms: MINUTE,
        details: Payload::default(),
    };
    let late = bare.propose(ahead, late).await?;
    ensure!(late.as_ref().is_err_and(|reject| reject.code() == "claim_lost"), "{late:?}");

    // And back to the node whose clock is two hours behind by now: leases taken meanwhile still hold.
    bare.lead(right).await?;
    let back = now(&bare, right).await?;
    ensure!(back >= jumped, "log time went back from {jumped} to {back}");
    ensure!(due(right)? == fired, "a timer was lost, or came twice: {:?}", due(right)?);
    ensure!(claim(&bare, right, MINUTE).await?.is_empty(), "a lease ended by a clock that is behind");

    // Once that clock is set right and beyond, they end.
    bare.clock(right).set_ahead(HOUR + 5 * MINUTE as i64);
    now(&bare, right).await?;
    ensure!(claim(&bare, right, MINUTE).await?.len() == 2, "a lease was lost");
    bare.same_state().await?;
    bare.finish().await;
    Ok(())
}
