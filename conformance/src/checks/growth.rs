//! Histories that grow: a reader waits for the next event instead of asking again and again.

use std::time::Duration;

use anyhow::Result;
use holdfast_client::{ReadMode, Write};

use crate::checks::checks;
use crate::trial::{Trial, note, same};

checks! {
    "growth":
    at_once = "a reader that may wait gets events that are there at once",
    wakes = "a reader that waits wakes when its history grows, whoever makes it grow",
    born = "a reader may wait for the first event of a workflow that is not there yet",
    in_vain = "a reader that waits in vain gets an empty list",
}

const LONG: Duration = Duration::from_secs(30);

async fn at_once(trial: &Trial) -> Result<()> {
    let workflow = trial.open("there", []).await?;
    trial.store.append(&workflow, 1, vec![note("a"), note("b")], Write::default()).await?;
    let events = trial.store.next_events(&workflow, 2, 10, LONG, ReadMode::Linearizable).await?.value;
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    same("the events", numbers, vec![2, 3])
}

async fn wakes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("grows", [1]).await?;
    let delivery = trial.claim_one().await?;
    let waiting = trial.store.next_events(&workflow, 4, 10, LONG, ReadMode::Linearizable);
    let growing = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        trial.complete(&delivery, "ok").await
    };
    let (events, grown) = tokio::join!(waiting, growing);
    grown?;
    let found: Vec<_> = events?.value.into_iter().map(|event| (event.seq, event.ordinal)).collect();
    same("the event", found, vec![(4, Some(1))])
}

async fn born(trial: &Trial) -> Result<()> {
    let workflow = trial.id("born")?;
    let waiting = trial.store.next_events(&workflow, 1, 10, LONG, ReadMode::Linearizable);
    let growing = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        trial.open_with(&workflow, Vec::new()).await
    };
    let (events, grown) = tokio::join!(waiting, growing);
    grown?;
    same("the events", events?.value.len(), 1)
}

async fn in_vain(trial: &Trial) -> Result<()> {
    let workflow = trial.open("vain", []).await?;
    let wait = Duration::from_millis(30);
    let events = trial.store.next_events(&workflow, 2, 10, wait, ReadMode::Linearizable).await?.value;
    same("the events", events, Vec::new())
}
