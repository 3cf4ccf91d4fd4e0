//! Namespaces: what they are set to, how many rows may be claimed in them, and how long finished workflows stay.
//! A namespace cannot be removed, so checks that need one to themselves count as disturbing.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use futures::future::join_all;
use holdfast_client::wire::{NamespaceView, PageCall};
use holdfast_client::{ClaimCall, Delivery, ReadMode, Write};
use holdfast_machine::{
    EventKind, Namespace, NamespaceSettings, NewEvent, NewRow, Reject, RowStatus, Scope, WorkflowId, WorkflowStart,
    WorkflowType,
};

use crate::checks::checks;
use crate::trial::{Trial, all_pages, keys, over_limit, refused, refused_as, row_key, row_keys, same};

checks! {
    "namespaces":
    listed = "namespaces are listed by name, in pages with a cursor of their own",
    unknown = "a namespace that nobody has used is refused with its name",
    [disturbing]
    minted = "a namespace comes about by its first workflow, with every setting at its default",
    settings = "settings read back as they were put, all at once, and stay when they are put again",
    deprecated = "a deprecated namespace takes no new workflows; those that are there go on",
    ceiling = "no more rows are claimed than the ceiling of the namespace, however many claim at once",
    room = "a claim that waits at the ceiling wakes when a claim ends, or the ceiling is raised",
    closed = "a ceiling of 0 stops delivery, and rows wait",
    counted = "a namespace shows how many of its rows wait and how many are claimed, and they are counted so too",
    retention = "a finished workflow is removed when its retention has run out; an open one never is",
    retention_by_type = "the retention of a type goes before that of its namespace",
}

const MODE: ReadMode = ReadMode::Linearizable;

/// A namespace of the check's own, with these settings.
async fn put(trial: &Trial, settings: NamespaceSettings) -> Result<Namespace> {
    let namespace = Namespace::new(trial.name("conformance"))?;
    trial.store.put_namespace(&namespace, &settings, Write::default()).await?;
    Ok(namespace)
}

async fn view(trial: &Trial, namespace: &Namespace) -> Result<NamespaceView> {
    Ok(trial.store.namespace(namespace, MODE).await?.value)
}

fn started(namespace: &Namespace, of_type: &str) -> Result<NewEvent> {
    let workflow_type = WorkflowType::new(of_type)?;
    let start = WorkflowStart { namespace: namespace.clone(), workflow_type, run_id: None };
    Ok(NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) })
}

/// Opens a workflow in a namespace with these rows.
async fn open(trial: &Trial, namespace: &Namespace, text: &str, rows: Vec<NewRow>) -> Result<WorkflowId> {
    let workflow = trial.id(text)?;
    let opening = holdfast_machine::Commit::new(workflow.clone(), 0).event(started(namespace, "conformance")?);
    let commit = rows.into_iter().fold(opening, holdfast_machine::Commit::activity);
    trial.store.commit(commit, Write::default()).await?;
    Ok(workflow)
}

async fn claim_in(trial: &Trial, namespace: &Namespace, limit: u32, wait_ms: u64) -> Result<Vec<Delivery>> {
    let scope = Scope { namespace: namespace.clone(), ..trial.claiming(1)?.scope };
    let call = ClaimCall { scope, wait_ms, ..trial.claiming(limit)? };
    Ok(trial.store.claim(call, Write::default()).await?.value)
}

fn ceiling_of(claimed_max: u32) -> NamespaceSettings {
    NamespaceSettings { claimed_max: Some(claimed_max), ..NamespaceSettings::default() }
}

async fn listed(trial: &Trial) -> Result<()> {
    trial.open("minting", []).await?;
    let namespace = trial.namespace()?;
    let views: Vec<NamespaceView> = all_pages(20, |page| async move {
        let page = trial.store.namespaces(&page, MODE).await?.value;
        Ok((page.namespaces, page.next_cursor))
    })
    .await?;
    let names: Vec<Namespace> = views.into_iter().map(|view| view.namespace).collect();
    let found = names.contains(&namespace);
    ensure!(found, "{namespace} is not listed");
    ensure!(names.is_sorted(), "not by name: {names:?}");
    let made_up = trial.store.namespaces(&PageCall::after(1, "made up"), MODE).await;
    refused_as("a made-up cursor", made_up, &["invalid_argument"])?;
    refused_as("a page of nothing", trial.store.namespaces(&PageCall::first(0), MODE).await, &["invalid_argument"])?;
    let most = trial.limits.page_max as u64;
    over_limit("a page", trial.store.namespaces(&PageCall::first(most as u32 + 1), MODE).await, most, most + 1)
}

async fn unknown(trial: &Trial) -> Result<()> {
    let namespace = Namespace::new(trial.name("nobody"))?;
    let looked = trial.store.namespace(&namespace, MODE).await;
    refused("a namespace of nobody", looked, Reject::NamespaceNotFound { namespace })
}

async fn minted(trial: &Trial) -> Result<()> {
    let namespace = Namespace::new(trial.name("conformance"))?;
    let workflow = open(trial, &namespace, "first", Vec::new()).await?;
    let NamespaceView { created_at, settings, .. } = view(trial, &namespace).await?;
    same("its settings", settings, NamespaceSettings::default())?;
    same("when it came about", created_at, trial.history(&workflow).await?[0].at)
}

async fn settings(trial: &Trial) -> Result<()> {
    let types = BTreeMap::from([(WorkflowType::new("short")?, Some(1)), (WorkflowType::new("kept")?, None)]);
    let first = NamespaceSettings {
        description: "é 🎉".to_owned(),
        deprecated: false,
        claimed_max: Some(7),
        retention_ms: None,
        retention_ms_by_type: types,
    };
    let namespace = put(trial, first.clone()).await?;
    let created_at = view(trial, &namespace).await?.created_at;
    same("its settings", view(trial, &namespace).await?.settings, first)?;
    let second = NamespaceSettings { deprecated: true, ..NamespaceSettings::default() };
    let put_again = async || {
        let write = trial.keyed("put")?;
        anyhow::Ok(trial.store.put_namespace(&namespace, &second, write).await?.value)
    };
    let answer = put_again().await?;
    same("what was put", (answer.created_at, &answer.settings), (created_at, &second))?;
    same("its new settings", &view(trial, &namespace).await?.settings, &second)?;
    trial.store.put_namespace(&namespace, &NamespaceSettings::default(), Write::default()).await?;
    same("the same call again", put_again().await?, answer)?;
    same("what stands", view(trial, &namespace).await?.settings, NamespaceSettings::default())
}

async fn deprecated(trial: &Trial) -> Result<()> {
    let namespace = put(trial, NamespaceSettings::default()).await?;
    let there = open(trial, &namespace, "there", trial.rows([1])?).await?;
    let settings = NamespaceSettings { deprecated: true, ..NamespaceSettings::default() };
    trial.store.put_namespace(&namespace, &settings, Write::default()).await?;
    let late = trial.id("late")?;
    let opened = trial.store.append(&late, 0, vec![started(&namespace, "conformance")?], Write::default()).await;
    refused("a new workflow", opened, Reject::NamespaceDeprecated { namespace: namespace.clone() })?;
    let staged = trial.store.stage(&late, namespace.clone(), trial.rows([1])?, Write::default()).await;
    refused("a row of a new workflow", staged, Reject::NamespaceDeprecated { namespace: namespace.clone() })?;
    let commit = holdfast_machine::Commit::new(there.clone(), 3).activity(trial.row(2)?);
    trial.store.commit(commit, Write::default()).await?;
    let taken = claim_in(trial, &namespace, 10, 0).await?;
    same("what is due", keys(&taken), row_keys(&there, [1, 2]))?;
    trial.complete(&taken[0], "ok").await?;
    Ok(())
}

async fn ceiling(trial: &Trial) -> Result<()> {
    let namespace = put(trial, ceiling_of(5)).await?;
    open(trial, &namespace, "one", trial.rows(1..=10)?).await?;
    open(trial, &namespace, "two", trial.rows(1..=10)?).await?;
    let mut taken = Vec::new();
    for claim in join_all((0..8).map(|_| claim_in(trial, &namespace, 3, 0))).await {
        taken.extend(claim?);
    }
    same("the rows claimed at once", taken.len(), 5)?;
    same("one more", claim_in(trial, &namespace, 1, 0).await?, vec![])?;
    same("as the namespace shows it", view(trial, &namespace).await?.claimed, 5)?;
    let Some(done) = taken.pop() else { bail!("nothing was claimed") };
    trial.complete(&done, "ok").await?;
    let Some(back) = taken.pop() else { bail!("only one was claimed") };
    trial.store.retry(&back.key, Some(back.token), 0, Write::default()).await?;
    same("after one is done and one is back", claim_in(trial, &namespace, 10, 0).await?.len(), 2)
}

async fn room(trial: &Trial) -> Result<()> {
    let namespace = put(trial, ceiling_of(1)).await?;
    open(trial, &namespace, "room", trial.rows(1..=4)?).await?;
    let first = claim_in(trial, &namespace, 1, 0).await?;
    same("the first one", first.len(), 1)?;
    let ending = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        trial.complete(&first[0], "ok").await
    };
    let (second, ended) = tokio::join!(claim_in(trial, &namespace, 1, 30_000), ending);
    ended?;
    same("after a claim has ended", second?.len(), 1)?;
    let raising = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        trial.store.put_namespace(&namespace, &ceiling_of(2), Write::default()).await
    };
    let (third, raised) = tokio::join!(claim_in(trial, &namespace, 1, 30_000), raising);
    raised?;
    same("after the ceiling was raised", third?.len(), 1)
}

async fn closed(trial: &Trial) -> Result<()> {
    let namespace = put(trial, ceiling_of(0)).await?;
    let workflow = open(trial, &namespace, "closed", trial.rows([1])?).await?;
    same("what is taken", claim_in(trial, &namespace, 10, 0).await?, vec![])?;
    same("the row", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Pending)?;
    trial.store.put_namespace(&namespace, &NamespaceSettings::default(), Write::default()).await?;
    same("without a ceiling", claim_in(trial, &namespace, 10, 0).await?.len(), 1)
}

async fn counted(trial: &Trial) -> Result<()> {
    let namespace = put(trial, NamespaceSettings::default()).await?;
    let look = async || -> Result<(u64, u64)> {
        let NamespaceView { pending, claimed, .. } = view(trial, &namespace).await?;
        let all = all_pages(1_000, |page| async move {
            let page = trial.store.row_counts(&page, MODE).await?.value;
            Ok((page.namespaces, page.next_cursor))
        })
        .await?;
        let own = all.iter().find(|counts| counts.namespace == namespace);
        let own = own.map_or((0, 0, 0), |counts| (counts.pending, counts.claimed, counts.in_flight));
        same("the counts by namespace", own, (pending, claimed, pending + claimed))?;
        Ok((pending, claimed))
    };
    same("an empty namespace", look().await?, (0, 0))?;
    let workflow = open(trial, &namespace, "counted", trial.rows(1..=5)?).await?;
    same("five rows", look().await?, (5, 0))?;
    let taken = claim_in(trial, &namespace, 3, 0).await?;
    same("three are claimed", look().await?, (2, 3))?;
    trial.complete(&taken[0], "ok").await?;
    same("one is done", look().await?, (2, 2))?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    same("while it is paused", look().await?, (2, 2))?;
    trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    same("after the end", look().await?, (0, 0))
}

async fn gone(trial: &Trial, workflow: &WorkflowId) -> Result<()> {
    trial
        .eventually("the workflow is removed", || async {
            let view = trial.store.workflow(workflow, MODE).await?.value;
            same("the workflow", view.workflow, None)
        })
        .await
}

async fn retention(trial: &Trial) -> Result<()> {
    let namespace = put(trial, NamespaceSettings { retention_ms: Some(1), ..NamespaceSettings::default() }).await?;
    let (open_one, ended) = (
        open(trial, &namespace, "open", trial.rows([1])?).await?,
        open(trial, &namespace, "ended", trial.rows([1])?).await?,
    );
    trial.then(&ended, &[EventKind::WorkflowCompleted]).await?;
    gone(trial, &ended).await?;
    same("its history", trial.history(&ended).await?, vec![])?;
    let key = row_key(&ended, 1);
    refused("its row", trial.store.row(&key, MODE).await, Reject::RowNotFound { key })?;
    same("the head of the open one", trial.head(&open_one).await?, 3)?;
    same("its row", trial.status(&row_key(&open_one, 1)).await?, RowStatus::Pending)
}

async fn retention_by_type(trial: &Trial) -> Result<()> {
    let types = BTreeMap::from([(WorkflowType::new("short")?, Some(1)), (WorkflowType::new("kept")?, None)]);
    let settings =
        NamespaceSettings { retention_ms: Some(1), retention_ms_by_type: types, ..NamespaceSettings::default() };
    let namespace = put(trial, settings).await?;
    let mut ended = Vec::new();
    for of_type in ["kept", "short", "other"] {
        let workflow = trial.id(of_type)?;
        let events = vec![started(&namespace, of_type)?, NewEvent::of(EventKind::WorkflowCompleted)];
        trial.store.append(&workflow, 0, events, Write::default()).await?;
        ended.push(workflow);
    }
    gone(trial, &ended[1]).await?;
    gone(trial, &ended[2]).await?;
    same("the head of the one that is kept", trial.head(&ended[0]).await?, 2)
}
