//! Reads: how fresh they are, and the index by which a reader asks for what was written.

use anyhow::{Result, ensure};
use holdfast_client::{PageCall, ReadMode, Write};
use holdfast_machine::{Reject, ShardId};

use crate::checks::checks;
use crate::trial::{Trial, note, refused, row_key, same};

checks! {
    "reads":
    own_writes = "a linearizable read sees every write that was acknowledged before it",
    at_least = "a read from a write's index on sees the write",
    indexes = "the index of a write is greater than that of the write before it",
    indexed_reads = "a read tells the index that it reflects, which includes the write before it",
    stale_reads = "a stale read answers, with some prefix of the history",
    places = "a workflow's view names its shard, and the shard's owner and epoch",
    missing_row = "a row that is not there is refused with its key",
}

async fn own_writes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("own", []).await?;
    for head in 1..=20 {
        trial.store.append(&workflow, head, vec![note(&head.to_string())], Write::default()).await?;
        same("the head", trial.head(&workflow).await?, head + 1)?;
        let events = trial.store.history(&workflow, 1, 100, ReadMode::Linearizable).await?.value;
        same("the events", events.len() as u64, head + 1)?;
    }
    Ok(())
}

async fn at_least(trial: &Trial) -> Result<()> {
    let workflow = trial.open("index", []).await?;
    for head in 1..=20 {
        let written = trial.store.append(&workflow, head, vec![note("x")], Write::default()).await?;
        let read = trial.store.workflow(&workflow, ReadMode::AtLeast(written.index)).await?;
        ensure!(read.index >= written.index, "index {} instead of {} or later", read.index, written.index);
        same("the head", read.value.workflow.map(|workflow| workflow.head), Some(head + 1))?;
    }
    Ok(())
}

async fn indexes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("indexes", []).await?;
    let mut last = 0;
    for head in 1..=10 {
        let index = trial.store.append(&workflow, head, vec![note("x")], Write::default()).await?.index;
        ensure!(index > last, "index {index} after {last}");
        last = index;
    }
    Ok(())
}

async fn indexed_reads(trial: &Trial) -> Result<()> {
    let workflow = trial.id("indexed")?;
    let commit = trial.opening(&workflow, trial.rows([1])?)?;
    let index = trial.store.commit(commit, Write::default()).await?.index;
    let mode = ReadMode::Linearizable;
    let indexes = [
        trial.store.workflow(&workflow, mode).await?.index,
        trial.store.history(&workflow, 1, 10, mode).await?.index,
        trial.store.runs(&workflow, &PageCall::first(10), mode).await?.index,
        trial.store.row(&row_key(&workflow, 1), mode).await?.index,
        trial.store.stale(0, &PageCall::first(10), mode).await?.index,
        trial.store.shards(mode).await?.index,
    ];
    ensure!(indexes.iter().all(|read| *read >= index), "reads of {indexes:?} after a write at {index}");
    Ok(())
}

async fn stale_reads(trial: &Trial) -> Result<()> {
    let workflow = trial.open("stale", []).await?;
    trial.store.append(&workflow, 1, vec![note("a"), note("b")], Write::default()).await?;
    let read = trial.store.history(&workflow, 1, 10, ReadMode::Stale).await?.value;
    let whole = trial.history(&workflow).await?;
    ensure!(whole.starts_with(&read), "{read:?} is no part of {whole:?}");
    Ok(())
}

async fn places(trial: &Trial) -> Result<()> {
    let directory = trial.store.shards(ReadMode::Linearizable).await?.value;
    for number in 0..20 {
        let workflow = trial.id(&format!("place-{number}"))?;
        let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
        same("its shard", view.shard, ShardId::of(&workflow, directory.shard_count))?;
        let entry = directory.shards.iter().find(|entry| entry.shard == view.shard);
        // The directory may have changed since it was read; an epoch never goes back.
        let known = entry.map(|entry| entry.epoch);
        ensure!(view.fence.as_ref().map(|fence| fence.epoch) >= known, "{:?} after {known:?}", view.fence);
    }
    Ok(())
}

async fn missing_row(trial: &Trial) -> Result<()> {
    let workflow = trial.open("missing", [1]).await?;
    for key in [row_key(&workflow, 2), row_key(&trial.id("nobody")?, 1)] {
        let row = trial.store.row(&key, ReadMode::Linearizable).await;
        refused("a row that is not there", row, Reject::RowNotFound { key })?;
    }
    Ok(())
}
