//! More than the cluster can do: what is accepted is answered, what is not is refused by name, nothing grows without end,
//! and as much gets done as before.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use holdfast_client::{Client, ClientError, ReadMode, Write};
use holdfast_machine::{NewRow, Payload, WorkflowId};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::wait::SOON;
use holdfast_tests::work;

const KIB: usize = 1024;
/// Clients that the cluster has room for.
const CLIENTS: usize = 6;
/// How long each crowd is at it.
const SPELL: Duration = Duration::from_secs(5);
/// What a row of theirs carries.
const INPUT: usize = 64 * KIB;
/// Far above what a node needs, and far below what it would have if it took in everything.
const MEMORY_MAX: u64 = 2 << 30;

/// What came of a crowd's calls.
#[derive(Debug, Default)]
struct Tally {
    done: Vec<(WorkflowId, Duration)>,
    refused: usize,
}

impl Tally {
    fn at(&self, percent: usize) -> Duration {
        let mut times: Vec<_> = self.done.iter().map(|(_, time)| *time).collect();
        times.sort_unstable();
        times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
    }
}

/// Nodes with patience, so that an election can only come from calls that hold heartbeats up.
async fn cluster() -> Result<Cluster> {
    let patient = [
        ("HOLDFAST_RAFT_ELECTION_MIN_MS", 3_000),
        ("HOLDFAST_RAFT_ELECTION_MAX_MS", 6_000),
        ("HOLDFAST_DETECTOR_SILENCE_MS", 6_000),
        ("HOLDFAST_RAFT_ANSWER_MS", 20_000),
    ];
    patient.into_iter().fold(Setup::plain(), |setup, (name, value)| setup.set(name, value)).alone().start().await
}

fn with_input() -> Result<NewRow> {
    Ok(NewRow { input: Payload::text("x".repeat(INPUT)), ..work::row(1, "work", "default")? })
}

/// One call; none if it was refused as it should be.
async fn open(client: &Client, id: &WorkflowId) -> Result<Option<Duration>> {
    let begun = Instant::now();
    match client.commit(work::opening(id, vec![with_input()?])?, Write::default()).await {
        Ok(_) => Ok(Some(begun.elapsed())),
        Err(ClientError::Overloaded(_)) => Ok(None),
        Err(error) => bail!("neither done nor refused by name: {error:?}"),
    }
}

async fn crowd(cluster: &Cluster, name: &str, clients: usize) -> Result<Tally> {
    let one = async |number: usize| {
        let client = cluster.impatient(number % 3, SOON)?;
        let (begun, mut tally) = (Instant::now(), Tally::default());
        while begun.elapsed() < SPELL {
            let id = work::id(&format!("{name}-{number}-{}", tally.done.len() + tally.refused))?;
            match open(&client, &id).await? {
                Some(time) => tally.done.push((id, time)),
                None => tally.refused += 1,
            }
        }
        anyhow::Ok(tally)
    };
    let tallies = try_join_all((0..clients).map(one)).await?;
    Ok(tallies.into_iter().fold(Tally::default(), |mut all, of| {
        all.done.extend(of.done);
        all.refused += of.refused;
        all
    }))
}

async fn all_there(cluster: &Cluster, ids: impl Iterator<Item = &WorkflowId>) -> Result<()> {
    let any = cluster.any()?;
    for id in ids {
        let view = any.workflow(id, ReadMode::Linearizable).await?.value;
        ensure!(view.workflow.is_some(), "{id} was acknowledged and is gone");
    }
    Ok(())
}

fn modest(cluster: &Cluster) -> Result<Vec<u64>> {
    let peaks = cluster.nodes.iter().map(|node| node.peak_memory()).collect::<Result<Vec<_>>>()?;
    ensure!(peaks.iter().all(|peak| *peak < MEMORY_MAX), "memory at its most: {peaks:?}");
    Ok(peaks.into_iter().map(|peak| peak >> 20).collect())
}

async fn same_term(cluster: &Cluster, before: u64) -> Result<()> {
    let term = cluster.view(cluster.leader().await?).await?.term;
    ensure!(term == before, "the leader of term {before} was given up; it is term {term}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_times_the_clients_get_no_less_done() -> Result<()> {
    let cluster = cluster().await?;
    let term = cluster.view(cluster.leader().await?).await?.term;
    let few = crowd(&cluster, "few", CLIENTS).await?;
    let many = crowd(&cluster, "many", CLIENTS * 10).await?;
    for (name, tally) in [("1x", &few), ("10x", &many)] {
        let (p50, p99) = (tally.at(50), tally.at(99));
        println!("{name}: {} done, {} refused, p50 {p50:?}, p99 {p99:?}", tally.done.len(), tally.refused);
    }
    println!("memory at its most, in MiB: {:?}", modest(&cluster)?);
    ensure!(many.done.len() * 4 > few.done.len(), "{} instead of {}", many.done.len(), few.done.len());
    same_term(&cluster, term).await?;
    all_there(&cluster, few.done.iter().chain(&many.done).map(|(id, _)| id)).await?;
    cluster.finish().await
}
