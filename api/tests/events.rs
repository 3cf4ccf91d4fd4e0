//! The event stream over HTTP: a snapshot, then deltas; resume; lagged.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use futures::StreamExt;
use holdfast_api::{EventId, EventMessage, Write};
use holdfast_client::{EventStream, Topology};
use holdfast_machine::{ClusterEvent, Epoch, ShardId};
use support::{DEADLINE, SHARDS, Served, node, serve, serve_with};
use tokio::time::timeout;

/// Makes one committed event and returns the index of its entry.
async fn happen(served: &Served) -> u64 {
    // Every adoption that comes too late is an event.
    let node = node();
    served.store.adopt(ShardId(0), &node, &node, Epoch(99), Write::default()).await.unwrap().index
}

async fn next(stream: &mut EventStream) -> EventMessage {
    timeout(DEADLINE, stream.next()).await.expect("no message in time").unwrap().unwrap()
}

async fn snapshot(stream: &mut EventStream) -> Topology {
    match next(stream).await {
        EventMessage::Snapshot(topology) => topology,
        other => panic!("no snapshot: {other:?}"),
    }
}

/// The number of the next committed event.
async fn committed(stream: &mut EventStream) -> EventId {
    loop {
        match next(stream).await {
            EventMessage::Event { id: Some(id), event } => {
                assert!(matches!(event, ClusterEvent::ShardAdoptionSkipped { .. }), "{event:?}");
                return id;
            }
            EventMessage::Event { id: None, .. } => {}
            other => panic!("no event: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_the_topology_and_resumes_where_it_ended() {
    let served = serve().await;
    let mut stream = served.client.events(None);
    let topology = snapshot(&mut stream).await;
    assert_eq!((topology.shard_count, topology.shards.len()), (SHARDS, SHARDS as usize));
    assert_eq!(topology.leader, Some(node()));

    let indexes = [happen(&served).await, happen(&served).await, happen(&served).await];
    let first = committed(&mut stream).await;
    assert_eq!(first.index, indexes[0]);
    drop(stream);
    let mut resumed = served.client.events(Some(first));
    assert_eq!(committed(&mut resumed).await.index, indexes[1]);
    assert_eq!(committed(&mut resumed).await.index, indexes[2]);
    let mut from_snapshot = served.client.events(EventMessage::Snapshot(topology).id());
    for index in indexes {
        assert_eq!(committed(&mut from_snapshot).await.index, index);
    }
}

/// Case 21: a reader that asks for what is no longer kept is told so and gets a fresh snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_too_far_behind_is_told() {
    let served = serve_with(|options| options.feed_capacity = 4).await;
    let first = EventId { index: happen(&served).await, position: 0 };
    let mut sleeper = served.store.events(Some(first));
    for _ in 0..20 {
        happen(&served).await;
    }
    assert_eq!(sleeper.next().await, Some(EventMessage::Lagged { after: Some(first) }));
    let Some(EventMessage::Snapshot(topology)) = sleeper.next().await else { panic!("no snapshot") };
    let index = happen(&served).await;
    assert!(topology.index < index);
    let mut after = sleeper.next().await.unwrap();
    while after.id().is_none() {
        // Something that this node alone knows.
        after = sleeper.next().await.unwrap();
    }
    assert_eq!(after.id(), Some(EventId { index, position: 0 }));

    let mut over_http = served.client.events(Some(first));
    assert_eq!(next(&mut over_http).await, EventMessage::Lagged { after: Some(first) });
    let topology = snapshot(&mut over_http).await;
    let index = happen(&served).await;
    assert!(topology.index < index);
    assert_eq!(committed(&mut over_http).await.index, index);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_another_life_is_no_silent_gap() {
    let served = serve().await;
    let future = EventId { index: 1_000_000_000, position: 0 };
    let mut stream = served.client.events(Some(future));
    assert_eq!(next(&mut stream).await, EventMessage::Lagged { after: Some(future) });
    snapshot(&mut stream).await;
    let index = happen(&served).await;
    assert_eq!(committed(&mut stream).await.index, index);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_store_is_closed() {
    let served = serve().await;
    let mut stream = served.store.events(None);
    assert!(matches!(stream.next().await, Some(EventMessage::Snapshot(_))));
    served.store.close();
    while timeout(DEADLINE, stream.next()).await.unwrap().is_some() {}
}
