//! Section 9: committed facts are events under the same numbers on all nodes, with no gap and no double over
//! reconnects and failovers.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use holdfast_client::{Client, EventId, EventMessage, EventStream};
use holdfast_machine::{ClusterEvent, ShardId};
use holdfast_tests::cluster::Setup;
use holdfast_tests::wait::LONG;

/// Reads committed events until one satisfies `last`.
async fn read_until(
    events: &mut EventStream,
    mut last: impl FnMut(&ClusterEvent) -> bool,
) -> Result<Vec<(EventId, ClusterEvent)>> {
    let mut read = Vec::new();
    let all = async {
        while let Some(message) = events.next().await {
            match message {
                Ok(EventMessage::Event { id: Some(id), event }) => {
                    read.push((id, event));
                    if last(&read[read.len() - 1].1) {
                        return Ok(());
                    }
                }
                Ok(EventMessage::Lagged { after }) => bail!("lagged after {after:?}"),
                Ok(_) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => bail!(error),
            }
        }
        bail!("the stream has ended")
    };
    tokio::time::timeout(LONG, all).await.context("the last event never came")??;
    Ok(read)
}

/// True once every shard of `wanted` was adopted.
fn adoptions_of(wanted: Vec<ShardId>) -> impl FnMut(&ClusterEvent) -> bool {
    let mut missing = wanted;
    move |event| {
        if let ClusterEvent::ShardAdopted { shard, .. } = event {
            missing.retain(|other| other != shard);
        }
        missing.is_empty()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_numbered_without_gap_or_double_over_reconnect_and_failover() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let leader = cluster.leader().await?;
    let followers: Vec<usize> = cluster.running().into_iter().filter(|node| *node != leader).collect();

    // A subscriber begins at the node that is going to die.
    let urls = [leader, followers[0], followers[1]].map(|node| &cluster.nodes[node].url);
    let mut stream = Client::new(urls)?.events(None);
    let Some(Ok(EventMessage::Snapshot(topology))) = stream.next().await else { bail!("no snapshot came first") };
    ensure!(topology.members.len() == 3 && topology.shards.len() == topology.shard_count as usize, "{topology:?}");

    let owned = |node: usize| -> Vec<ShardId> {
        let name = &cluster.nodes[node].name;
        topology.shards.iter().filter(|entry| entry.owner == *name).map(|entry| entry.shard).collect()
    };
    cluster.nodes[leader].kill()?;
    let name = cluster.nodes[leader].name.clone();
    let mut told = read_until(&mut stream, adoptions_of(owned(leader))).await?;
    cluster.nodes[leader].start()?;
    told.extend(
        read_until(&mut stream, |event| matches!(event, ClusterEvent::PeerBooted { node, .. } if *node == name))
            .await?,
    );

    // Each survivor, asked afterwards for all since the snapshot, tells the very same.
    let since = EventId { index: topology.index, position: u32::MAX };
    let last = told.last().context("events")?.0;
    for survivor in &followers {
        let mut again = cluster.client(*survivor).events(Some(since));
        let mut seen = 0;
        let again = read_until(&mut again, |_| {
            seen += 1;
            seen == told.len()
        })
        .await?;
        ensure!(again == told, "{} tells another story:\n{again:#?}\n{told:#?}", cluster.nodes[*survivor].name);
    }
    ensure!(told.iter().all(|(id, _)| id.index > topology.index && *id <= last), "a number is out of range");
    ensure!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "numbers do not grow: {told:#?}");

    // The positions inside one entry leave nothing out.
    let mut positions: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    told.iter().for_each(|(id, _)| positions.entry(id.index).or_default().push(id.position));
    for (index, positions) in positions {
        ensure!(positions.iter().copied().eq(0..positions.len() as u32), "entry {index}: {positions:?}");
    }

    // From in the middle, the rest and nothing else.
    let (half, rest) = told.split_at(told.len() / 2);
    let from = half.last().context("a first half")?.0;
    let mut resumed = cluster.client(followers[0]).events(Some(from));
    let mut seen = 0;
    let resumed = read_until(&mut resumed, |_| {
        seen += 1;
        seen == rest.len()
    })
    .await?;
    ensure!(resumed == rest, "{resumed:#?}\n{rest:#?}");
    cluster.finish().await
}
