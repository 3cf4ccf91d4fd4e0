//! Activities in the engine's process, without workflows that wait for them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use holdfast_engine::LocalActivities;
use holdfast_machine::{Commit, EventKind, NewEvent, NewRow, Reject, RowStatus, WorkflowId};
use holdfast_node::api::{Failure, ReadMode, Store, StoreError, Write};
use holdfast_node::{Config, Node};
use tokio::sync::Semaphore;

async fn stage(store: &Store, workflow: &str) -> WorkflowId {
    let id: WorkflowId = workflow.parse().unwrap();
    let opening = Commit::new(id.clone(), 0).event(NewEvent::started("order".parse().unwrap()));
    let commit = opening.activity(NewRow::new(1, "hold".parse().unwrap()));
    store.commit(commit, Write::default()).await.unwrap();
    id
}

/// None once the row has been removed.
async fn status(store: &Store, id: &WorkflowId) -> Option<RowStatus> {
    let key = holdfast_machine::DispatchKey { workflow: id.clone(), ordinal: 1 };
    match store.row(&key, ReadMode::Linearizable).await {
        Ok(view) => Some(view.value.row.status),
        Err(StoreError::Reject(Reject::RowNotFound { .. })) => None,
        Err(error) => panic!("{error}"),
    }
}

async fn until(store: &Store, id: &WorkflowId, wanted: Option<RowStatus>) {
    for _ in 0..3_000 {
        if status(store, id).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{id} is {:?} and not {wanted:?}", status(store, id).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_removed_while_it_is_executed_is_no_reason_to_stop() {
    let (folder, listen) = (tempfile::tempdir().unwrap(), ([127, 0, 0, 1], 0).into());
    let data_dir = folder.path().to_owned();
    let node = Node::start(Config { data_dir, http_listen: listen, peer_listen: listen, ..Config::default() });
    let node = node.await.unwrap();
    assert!(node.ready().await);
    let (store, gate) = (node.store(), Arc::new(Semaphore::new(0)));
    let held = Arc::clone(&gate);
    let activities =
        LocalActivities::new(store.clone(), Default::default()).at_most(1).with("hold", move |_, (): ()| {
            let held = Arc::clone(&held);
            async move {
                held.acquire().await.unwrap().forget();
                Ok::<_, Failure>(())
            }
        });
    let running = tokio::spawn(activities.unwrap().run());

    let gone = stage(&store, "gone").await;
    until(&store, &gone, Some(RowStatus::Claimed)).await;
    let ended = NewEvent::of(EventKind::WorkflowCancelled);
    store.append(&gone, 3, vec![ended], Write::default()).await.unwrap();
    store.delete(&gone, Write::default()).await.unwrap();
    until(&store, &gone, None).await;

    gate.add_permits(2);
    let next = stage(&store, "next").await;
    until(&store, &next, Some(RowStatus::Done)).await;
    running.abort();
    node.shutdown().await;
}
