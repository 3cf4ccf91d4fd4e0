//! Section 10: a running node that hears nothing falls behind until no log reaches it, and takes in a snapshot while it
//! serves. The effects of the entries that it jumps over never reach it, and yet whoever waits there is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use holdfast_client::{Client, ExpiredCall, HeadMessage, HeadScope, HeadStream, NodeMessage, ReadMode, Write};
use holdfast_machine::{Arming, RowStatus, WorkflowId};
use holdfast_tests::check::events::{Subscriber, all_had_the_same};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::crew::Crew;
use holdfast_tests::engine::HOLD;
use holdfast_tests::links::Flow;
use holdfast_tests::stream::{self, delivered, next};
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{check, work};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Large events, so that the log is purged by its bytes after a few.
const EVENT_BYTES: usize = 1_900_000;
/// Longer than it takes to leave a node behind, and the most that a node allows.
const WAIT_MS: u64 = 60_000;
/// Detectors of this patience hold nobody for dead in a story.
const UNSHAKEN: (&str, u64) = ("HOLDFAST_DETECTOR_CONFIRMATIONS", 100_000);

fn with_a_short_log() -> Setup {
    let bytes = [("HOLDFAST_RAFT_SNAPSHOT_AFTER_BYTES", 4 << 20), ("HOLDFAST_RAFT_LOGS_KEPT_BYTES", 1 << 20)];
    bytes.into_iter().fold(Setup::plain().with_links(), |setup, (name, value)| setup.set(name, value))
}

/// A node that hears nothing, and a client of the leader.
struct Deaf<'a> {
    cluster: &'a Cluster,
    node: usize,
    leader: usize,
    left_at: u64,
}

impl<'a> Deaf<'a> {
    /// A follower hears nothing from now on; what it says is heard.
    async fn from_now_on(cluster: &'a Cluster, node: usize) -> Result<Self> {
        let leader = cluster.leader().await?;
        ensure!(leader != node, "the leader cannot fall behind");
        let left_at = cluster.view(node).await?.applied;
        cluster.links()?.set_into(node, Flow::Silent);
        Ok(Self { cluster, node, leader, left_at })
    }

    fn leader(&self) -> &Client {
        self.cluster.client(self.leader)
    }

    fn installed(&self) -> bool {
        self.cluster.nodes[self.node].log_text().contains("a snapshot was installed")
    }

    /// Writes until no log reaches it any more; a history gets one small event with each large one that another gets. Gives
    /// how many.
    async fn is_left_behind(&self, long: &WorkflowId) -> Result<u64> {
        let (begun, bulk, text) = (Instant::now(), work::id("bulk")?, "x".repeat(EVENT_BYTES));
        work::open(self.leader(), &bulk, 0, "work", "default").await?;
        let mut purged = 0;
        for head in 1.. {
            if purged > self.left_at {
                return Ok(head - 1);
            }
            ensure!(begun.elapsed() < LONG, "purged up to {purged} only, deaf since {}", self.left_at);
            for (id, text) in [(&bulk, text.as_str()), (long, "small")] {
                self.leader().append(id, head, vec![work::note(text)], Write::default()).await?;
            }
            purged = self.cluster.log_purged(self.leader).await?;
        }
        bail!("it is never left behind")
    }

    /// It hears again, and nothing of what was said meanwhile; waits until it has all that is committed.
    async fn hears_again(&self) -> Result<()> {
        ensure!(!self.installed(), "it has taken in a snapshot before");
        self.cluster.links()?.break_around(self.node);
        self.cluster.links()?.mend();
        let committed = self.cluster.view(self.leader).await?.committed;
        wait_until("it has caught up", LONG, async || {
            let applied = self.cluster.view(self.node).await?.applied;
            ensure!(applied >= committed, "it is at {applied}, {committed} is committed");
            Ok(())
        })
        .await?;
        ensure!(self.installed(), "it came by the log:\n{}", self.cluster.nodes[self.node].last_words());
        Ok(())
    }
}

/// Reads all the time what one node knows, and never sees anything that is older than what it saw before.
struct Reader {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<u64>>,
}

impl Reader {
    fn start(client: Client, id: WorkflowId) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let (mut applied, mut head, mut looks) = (0, 0, 0);
            while !*stopped.borrow() {
                let now = client.cluster().await?.value.applied;
                ensure!(now >= applied, "the node is at {now}, it was at {applied}");
                let view = client.workflow(&id, ReadMode::Stale).await?;
                let seen = view.value.workflow.with_context(|| format!("{id} is gone"))?.head;
                ensure!(view.index >= now && seen >= head, "head {seen} of {} after {head} of {now}", view.index);
                let from = seen.saturating_sub(2).max(1);
                let page = client.history(&id, from, 10, ReadMode::Stale).await?;
                let last = page.value.last().map_or(0, |event| event.seq);
                ensure!(page.index >= view.index && last >= seen.min(from + 9), "{last} in place of {seen}");
                (applied, head, looks) = (page.index, seen, looks + 1);
            }
            Ok(looks)
        });
        Self { stop, task }
    }

    async fn stop(self) -> Result<u64> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

/// Heads that a watcher is told of until `last`, those behind the last resync only; and that resync's index.
async fn heads_until(stream: &mut HeadStream, last: &WorkflowId) -> Result<(u64, BTreeMap<WorkflowId, u64>)> {
    let (mut index, mut heads) = (0, BTreeMap::new());
    loop {
        match timeout(LONG, stream.next()).await?.context("the stream has ended")?? {
            HeadMessage::Resync { index: at } => {
                ensure!(at >= index, "a resync at {at} after one at {index}");
                (index, heads) = (at, BTreeMap::new());
            }
            HeadMessage::Grew(grew) => {
                let is_last = grew.workflow == *last;
                heads.insert(grew.workflow, grew.head);
                if is_last {
                    return Ok((index, heads));
                }
            }
            HeadMessage::DeadLetter(letter) => bail!("nothing was given up: {letter:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_at_a_node_that_takes_in_a_snapshot_is_told() -> Result<()> {
    let cluster =
        with_a_short_log().set(UNSHAKEN.0, UNSHAKEN.1).set("HOLDFAST_DETECTOR_SILENCE_MS", WAIT_MS).start().await?;
    let node = cluster.follower().await?;
    let here = cluster.client(node).clone();
    let [held, settled, long] = ["held", "settled", "long"].map(work::id);
    let (held, settled, long) = (held?, settled?, long?);
    for id in [&held, &settled] {
        work::open(&here, id, 1, "work", "orders").await?;
    }
    work::open(&here, &long, 0, "work", "orders").await?;
    let session = "a worker's session".parse()?;
    let (mut stream, _) = stream::attach(&here, &session, &stream::worker("orders")?, Vec::new()).await?;
    let rows = delivered(&mut stream, 2).await?;

    // Everything that can wait, waits here.
    let reader = Reader::start(here.clone(), long.clone());
    let urls = cluster.nodes.iter().map(|node| node.url.as_str()).collect::<Vec<_>>();
    let elsewhere = (node + 1) % 3;
    let subscribers = vec![Subscriber::start(&[urls[node]])?, Subscriber::start(&[urls[elsewhere]])?];
    let mut watcher = here.watch_heads(HeadScope::default());
    let first = timeout(LONG, watcher.next()).await?.context("a message")??;
    ensure!(matches!(first, HeadMessage::Resync { .. }), "{first:?}");
    let waiting = here.clone();
    let claim = tokio::spawn(async move {
        let call = work::lease("poll", 5, "a poller", work::LONG_LEASE_MS)?;
        let call = holdfast_client::ClaimCall { wait_ms: WAIT_MS, ..call };
        anyhow::Ok(waiting.claim(call, Write::default()).await?.value)
    });
    let (waiting, id) = (here.clone(), settled.clone());
    let growth = tokio::spawn(async move {
        let wait = Duration::from_millis(WAIT_MS);
        anyhow::Ok(waiting.next_events(&id, 4, 10, wait, ReadMode::Stale).await?.value)
    });
    let waiting = here.clone();
    let timers = tokio::spawn(async move {
        let call = ExpiredCall { owner: None, namespace: None, as_of: None, limit: 5, wait_ms: WAIT_MS };
        anyhow::Ok(waiting.expired_timers(call, ReadMode::Stale).await?.value)
    });
    wait_until("all of them wait", LONG, async || {
        let waiting = cluster.figure(node, &["holdfast_claims_waiting"]).await?;
        ensure!(waiting == 1.0, "{waiting} claims wait");
        Ok(())
    })
    .await?;

    // The node hears nothing of all this.
    let deaf = Deaf::from_now_on(&cluster, node).await?;
    let (there, polled, given) = (deaf.leader(), work::id("polled")?, work::id("given")?);
    work::open(there, &polled, 1, "work", "poll").await?;
    work::open(there, &given, 1, "work", "orders").await?;
    there.settle(&settled, Write::default()).await?;
    there.append(&settled, 3, vec![work::note("news")], Write::default()).await?;
    let now = there.cluster().await?.value.now;
    let arming = Arming { timer: "alarm".parse()?, fire_at: now, armed_seq: 1 };
    there.schedule_timer(&long, arming.clone(), Write::default()).await?;
    there.put_namespace(&"new".parse()?, &Default::default(), Write::default()).await?;
    let written = deaf.is_left_behind(&long).await?;
    ensure!(!claim.is_finished() && !growth.is_finished() && !timers.is_finished(), "it has heard of it");
    let before = there.cluster().await?.value.committed;
    deaf.hears_again().await?;

    // And then everybody is told.
    let polled_row = timeout(LONG, claim).await.context("the claim sleeps on")???;
    ensure!(polled_row.len() == 1 && polled_row[0].key.workflow == polled, "{polled_row:?}");
    let news = timeout(LONG, growth).await.context("nobody says that the history grew")???;
    ensure!(news.len() == 1 && news[0].seq == 4, "{news:?}");
    let due = timeout(LONG, timers).await.context("nobody says that a timer is due")???;
    ensure!(due.timers.iter().any(|timer| timer.workflow == long), "{due:?}");
    let (mut withdrawn, mut deliveries) = (Vec::new(), Vec::new());
    while withdrawn.is_empty() || deliveries.is_empty() {
        match next(&mut stream).await? {
            NodeMessage::Deliveries { deliveries: some, .. } => deliveries.extend(some),
            NodeMessage::Withdrawn { rows, .. } => withdrawn.extend(rows),
            other => bail!("{other:?}"),
        }
    }
    ensure!(withdrawn.len() == 1 && withdrawn[0].key.workflow == settled, "{withdrawn:?}");
    ensure!(deliveries.len() == 1 && deliveries[0].key.workflow == given, "{deliveries:?}");

    // It is the same session, with what it held.
    let kept = rows.iter().find(|row| row.key.workflow == held).context("the row that it holds")?;
    for row in [kept, &deliveries[0], &polled_row[0]] {
        work::complete(&here, row, "once").await?;
        ensure!(work::status(&here, &row.key).await? == RowStatus::Done, "{}", row.key);
    }
    let last = work::id("last")?;
    work::open(there, &last, 0, "work", "orders").await?;
    let (index, heads) = heads_until(&mut watcher, &last).await?;
    ensure!(
        index > deaf.left_at && index <= before + 10,
        "a resync at {index}, deaf from {} to {before}",
        deaf.left_at
    );
    for id in [&held, &given, &polled] {
        ensure!(heads.contains_key(id), "the completion of {id} was not told: {heads:?}");
    }
    let (events, lagged) = all_had_the_same(&cluster.any()?, subscribers).await?;
    ensure!(lagged == 1, "{lagged} subscribers were told that they lag");
    let looks = reader.stop().await?;
    println!("{events} events, {looks} looks of a reader that never went back");
    let history = check::workflow(&here, &long).await?;
    ensure!(history.len() as u64 == written + 1, "{} events", history.len());
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_node_that_was_taken_for_dead_and_takes_in_a_snapshot_goes_on_with_its_rows() -> Result<()> {
    const ROWS: u64 = 4;
    let cluster = with_a_short_log().start().await?;
    let node = cluster.follower().await?;
    let nodes = (0..3).map(|place| &cluster.nodes[(node + place) % 3].url);
    let (client, crew) = (Client::new(nodes)?, Crew::default());
    let (id, long) = (work::id("order-1")?, work::id("long")?);
    let hand = crew.hire(&client, "steady", "orders", |worker| worker.lease(Duration::from_secs(20)));
    work::open(&client, &id, ROWS, HOLD, "orders").await?;
    work::open(&client, &long, 0, HOLD, "orders").await?;
    wait_until("it has begun with its rows", LONG, async || {
        ensure!(crew.executions(&id).len() == ROWS as usize, "{:?}", crew.executions(&id));
        Ok(())
    })
    .await?;
    let reader = Reader::start(cluster.client(node).clone(), long.clone());
    let subscribers = vec![
        Subscriber::start(&[&cluster.nodes[node].url])?,
        Subscriber::start(&[&cluster.nodes[(node + 1) % 3].url])?,
    ];

    let deaf = Deaf::from_now_on(&cluster, node).await?;
    cluster.committed_as(false, node, deaf.leader).await?;
    deaf.is_left_behind(&long).await?;
    deaf.hears_again().await?;
    cluster.whole().await?;
    for execution in crew.executions(&id) {
        let row = cluster.client(node).row(&execution.key, ReadMode::Linearizable).await?.value.row;
        ensure!(
            row.status == RowStatus::Claimed && row.deliveries == 0,
            "it was taken from a worker that lives: {row:?}"
        );
    }
    hand.let_go();
    work::all_done(cluster.client(node), &id, ROWS).await?;
    let tally = hand.end().await?;
    ensure!((tally.sessions, tally.started, tally.completed) == (1, ROWS, ROWS), "{tally:?}");
    let (events, lagged) = all_had_the_same(&cluster.any()?, subscribers).await?;
    ensure!(lagged >= 1, "a subscriber of the node was not told that it lags");
    println!("{events} events; attached {} times; {} looks of a reader", tally.attached, reader.stop().await?);
    cluster.finish().await
}
