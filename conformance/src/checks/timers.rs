//! Timers: armed, due in order, and retired by what they were armed as. Their times lie in the first seconds of
//! 1970, so that they stand before whatever else is due in a store.

use anyhow::{Result, ensure};
use holdfast_client::wire::{DueTimer, ExpiredCall};
use holdfast_client::{PageCall, ReadMode, Write};
use holdfast_machine::{
    Arming, EventKind, Fence, Millis, NodeName, Reject, Retirement, TimerId, WorkflowId, WorkflowStatus,
};

use crate::checks::checks;
use crate::trial::{Trial, over_limit, refused, refused_as, same};

checks! {
    "timers":
    armed = "a timer that is armed reads back as it was, and one under the same name is overwritten",
    due_order = "timers that are due come by time, then by workflow, then by name",
    not_yet = "a timer is not due before its time",
    until_retired = "a timer that is due is handed out until it is retired, and not after that",
    late_retirement = "a late retirement of an earlier arming leaves the new one alone, which still fires",
    gone = "retiring what is gone already is no error",
    ends = "the end of a workflow takes its timers away, and no timer is armed for it",
    paused = "the timers of a paused workflow wait until it is resumed",
    nobody = "a timer is armed only for a workflow that is there",
    owners = "the timers of an owner are those of the shards that it owns",
    wakes = "a reader that waits for timers gets one as it becomes due",
    pages = "a workflow's timers are listed by name, in pages with a cursor of their own",
    limits = "a page of nothing makes no sense; one over the limit is refused with both figures",
    idempotent = "arming and retiring again under a key gets the first answer",
    fenced = "timers are fenced like every write to a workflow",
}

fn arming(timer: &str, fire_at: u64, armed_seq: u64) -> Result<Arming> {
    Ok(Arming { timer: TimerId::new(timer)?, fire_at: Millis(fire_at), armed_seq })
}

async fn arm(trial: &Trial, workflow: &WorkflowId, arming: &Arming) -> Result<()> {
    trial.store.schedule_timer(workflow, arming.clone(), Write::default()).await?;
    Ok(())
}

async fn retire(trial: &Trial, workflow: &WorkflowId, arming: &Arming) -> Result<Retirement> {
    Ok(trial.store.retire_timer(workflow, arming.clone(), Write::default()).await?.value)
}

async fn armed_now(trial: &Trial, workflow: &WorkflowId) -> Result<Vec<Arming>> {
    Ok(trial.store.timers(workflow, &PageCall::first(1_000), ReadMode::Linearizable).await?.value.timers)
}

fn expired(limit: u32) -> ExpiredCall {
    ExpiredCall { owner: None, namespace: None, as_of: None, limit, wait_ms: 0 }
}

/// The timers of these workflows that are due, in order.
async fn due(trial: &Trial, workflows: &[&WorkflowId], call: ExpiredCall) -> Result<Vec<DueTimer>> {
    let due = trial.store.expired_timers(call, ReadMode::Linearizable).await?.value.timers;
    let place = |timer: &DueTimer| (timer.fire_at, timer.workflow.clone(), timer.timer.clone());
    ensure!(due.is_sorted_by_key(place), "not by time, workflow and name: {due:?}");
    Ok(due.into_iter().filter(|timer| workflows.contains(&&timer.workflow)).collect())
}

async fn armed(trial: &Trial) -> Result<()> {
    let workflow = trial.open("armed", []).await?;
    let (first, other) = (arming("t", u64::MAX, 7)?, arming("/u %é🎉", 0, u64::MAX)?);
    arm(trial, &workflow, &first).await?;
    arm(trial, &workflow, &other).await?;
    same("the timers", armed_now(trial, &workflow).await?, vec![other.clone(), first])?;
    let again = arming("t", 1_000, 9)?;
    arm(trial, &workflow, &again).await?;
    same("after another arming", armed_now(trial, &workflow).await?, vec![other, again])
}

async fn due_order(trial: &Trial) -> Result<()> {
    let (first, second) = (trial.open("a", []).await?, trial.open("b", []).await?);
    for (workflow, timer, at) in
        [(&second, "y", 5), (&second, "x", 5), (&first, "z", 5), (&second, "early", 1), (&first, "late", 9)]
    {
        arm(trial, workflow, &arming(timer, at, 1)?).await?;
    }
    let timers = due(trial, &[&first, &second], expired(1_000)).await?;
    let found: Vec<_> = timers.iter().map(|due| (&due.workflow, due.timer.as_str(), due.fire_at.0)).collect();
    let expected =
        vec![(&second, "early", 1), (&first, "z", 5), (&second, "x", 5), (&second, "y", 5), (&first, "late", 9)];
    same("the timers that are due", found, expected)?;
    let few = trial.store.expired_timers(expired(2), ReadMode::Linearizable).await?.value.timers;
    same("at most two", few.len(), 2)
}

async fn not_yet(trial: &Trial) -> Result<()> {
    let workflow = trial.open("later", []).await?;
    let hour = trial.store.cluster().await?.value.now.plus(3_600_000);
    let later = arming("t", hour.0, 2)?;
    arm(trial, &workflow, &later).await?;
    let as_of = |as_of| ExpiredCall { as_of, ..expired(1_000) };
    same("now", due(trial, &[&workflow], as_of(None)).await?, vec![])?;
    same("just before", due(trial, &[&workflow], as_of(Some(Millis(hour.0 - 1)))).await?, vec![])?;
    let then = trial.store.expired_timers(as_of(Some(hour)), ReadMode::Linearizable).await?.value.timers;
    // Where a thousand others are due before it, it is on a later page.
    if then.len() < 1_000 {
        ensure!(then.contains(&DueTimer::new(workflow, later)), "not due at its time");
    }
    Ok(())
}

async fn until_retired(trial: &Trial) -> Result<()> {
    let workflow = trial.open("retired", []).await?;
    let timer = arming("t", 3, 2)?;
    arm(trial, &workflow, &timer).await?;
    for _ in 0..2 {
        let found = due(trial, &[&workflow], expired(1_000)).await?;
        same("what is due", found, vec![DueTimer::new(workflow.clone(), timer.clone())])?;
    }
    same("its retirement", retire(trial, &workflow, &timer).await?, Retirement::Retired)?;
    same("what is due afterwards", due(trial, &[&workflow], expired(1_000)).await?, vec![])?;
    same("the timers", armed_now(trial, &workflow).await?, vec![])
}

async fn late_retirement(trial: &Trial) -> Result<()> {
    let workflow = trial.open("late", []).await?;
    let (first, second) = (arming("t", 4, 5)?, arming("t", 4, 9)?);
    arm(trial, &workflow, &first).await?;
    same("it fires", due(trial, &[&workflow], expired(1_000)).await?.len(), 1)?;
    arm(trial, &workflow, &second).await?;
    same("the late retirement", retire(trial, &workflow, &first).await?, Retirement::Superseded)?;
    let other_time = retire(trial, &workflow, &arming("t", 5, 9)?).await?;
    same("a retirement of another time", other_time, Retirement::Superseded)?;
    let still = due(trial, &[&workflow], expired(1_000)).await?;
    same("what is due", still, vec![DueTimer::new(workflow.clone(), second.clone())])?;
    same("its own retirement", retire(trial, &workflow, &second).await?, Retirement::Retired)
}

async fn gone(trial: &Trial) -> Result<()> {
    let workflow = trial.open("gone", []).await?;
    let timer = arming("t", u64::MAX, 2)?;
    same("one that never was", retire(trial, &workflow, &timer).await?, Retirement::Retired)?;
    arm(trial, &workflow, &timer).await?;
    for _ in 0..2 {
        same("twice", retire(trial, &workflow, &timer).await?, Retirement::Retired)?;
    }
    let nobody = trial.id("nobody")?;
    same("one of nobody", retire(trial, &nobody, &timer).await?, Retirement::Retired)
}

async fn ends(trial: &Trial) -> Result<()> {
    let workflow = trial.open("ends", []).await?;
    let timer = arming("t", 2, 2)?;
    arm(trial, &workflow, &timer).await?;
    trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    same("the timers", armed_now(trial, &workflow).await?, vec![])?;
    same("what is due", due(trial, &[&workflow], expired(1_000)).await?, vec![])?;
    let late = trial.store.schedule_timer(&workflow, timer.clone(), Write::default()).await;
    let ended = Reject::WorkflowEnded { workflow: workflow.clone(), status: WorkflowStatus::Failed };
    refused("arming", late, ended)?;
    same("a late retirement", retire(trial, &workflow, &timer).await?, Retirement::Retired)
}

async fn paused(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", []).await?;
    let before = arming("before", 2, 2)?;
    arm(trial, &workflow, &before).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    let meanwhile = arming("meanwhile", 3, 3)?;
    arm(trial, &workflow, &meanwhile).await?;
    same("while it is paused", due(trial, &[&workflow], expired(1_000)).await?, vec![])?;
    same("the timers", armed_now(trial, &workflow).await?, vec![before.clone(), meanwhile.clone()])?;
    trial.then(&workflow, &[EventKind::WorkflowResumed]).await?;
    let expected = [before, meanwhile].map(|timer| DueTimer::new(workflow.clone(), timer)).to_vec();
    same("after it was resumed", due(trial, &[&workflow], expired(1_000)).await?, expected)
}

async fn nobody(trial: &Trial) -> Result<()> {
    let workflow = trial.id("nobody")?;
    let result = trial.store.schedule_timer(&workflow, arming("t", 1, 1)?, Write::default()).await;
    refused("a timer of nobody", result, Reject::WorkflowNotFound { workflow: workflow.clone() })?;
    same("its timers", armed_now(trial, &workflow).await?, vec![])
}

async fn owners(trial: &Trial) -> Result<()> {
    let workflow = trial.open("owned", []).await?;
    arm(trial, &workflow, &arming("t", 1, 2)?).await?;
    let stranger = ExpiredCall { owner: Some(NodeName::new(trial.name("stranger"))?), ..expired(1_000) };
    let timers = trial.store.expired_timers(stranger, ReadMode::Linearizable).await?.value;
    same("those of a stranger", (timers.timers, timers.next_due), (vec![], None))?;
    let mut seen = 0;
    for view in trial.store.cluster().await?.value.members {
        let owned = ExpiredCall { owner: Some(view.member.name), ..expired(1_000) };
        seen += due(trial, &[&workflow], owned).await?.len();
    }
    same("how many owners have it", seen, 1)
}

async fn wakes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("wakes", []).await?;
    let soon = trial.store.cluster().await?.value.now.plus(300);
    let timer = arming("t", soon.0, 2)?;
    arm(trial, &workflow, &timer).await?;
    let expected = DueTimer::new(workflow.clone(), timer);
    trial
        .eventually("the timer is due", || async {
            // Others may be due already, and then there is no wait.
            let call = ExpiredCall { wait_ms: 10_000, ..expired(1_000) };
            same("what is due", due(trial, &[&workflow], call).await?, vec![expected.clone()])
        })
        .await
}

async fn pages(trial: &Trial) -> Result<()> {
    let workflow = trial.open("pages", []).await?;
    let names = ["e", "a", "c", "b", "d"];
    for name in names {
        arm(trial, &workflow, &arming(name, u64::MAX, 2)?).await?;
    }
    let whole = armed_now(trial, &workflow).await?;
    let found: Vec<&str> = whole.iter().map(|timer| timer.timer.as_str()).collect();
    same("the names", found, vec!["a", "b", "c", "d", "e"])?;
    let (mut listed, mut call) = (Vec::new(), PageCall::first(2));
    loop {
        let page = trial.store.timers(&workflow, &call, ReadMode::Linearizable).await?.value;
        ensure!(page.timers.len() <= 2, "a page of {} where 2 were asked for", page.timers.len());
        listed.extend(page.timers);
        let Some(next) = page.next_cursor else { break };
        let other = trial.id("other")?;
        call = PageCall::after(2, next);
        let foreign = trial.store.timers(&other, &call, ReadMode::Linearizable).await;
        refused_as("the cursor of another workflow", foreign, &["invalid_argument"])?;
    }
    same("the pages", listed, whole)?;
    let made_up = trial.store.timers(&workflow, &PageCall::after(2, "made up"), ReadMode::Linearizable).await;
    refused_as("a made-up cursor", made_up, &["invalid_argument"])
}

async fn limits(trial: &Trial) -> Result<()> {
    let workflow = trial.id("nobody")?;
    let most = trial.limits.page_max as u64;
    let mode = ReadMode::Linearizable;
    refused_as("timers", trial.store.timers(&workflow, &PageCall::first(0), mode).await, &["invalid_argument"])?;
    refused_as("due timers", trial.store.expired_timers(expired(0), mode).await, &["invalid_argument"])?;
    let over = most as u32 + 1;
    over_limit("timers", trial.store.timers(&workflow, &PageCall::first(over), mode).await, most, most + 1)?;
    over_limit("due timers", trial.store.expired_timers(expired(over), mode).await, most, most + 1)
}

async fn idempotent(trial: &Trial) -> Result<()> {
    let workflow = trial.open("again", []).await?;
    let (first, second) = (arming("t", u64::MAX, 2)?, arming("t", u64::MAX, 3)?);
    let arm_first = async || {
        trial.store.schedule_timer(&workflow, first.clone(), trial.keyed("arm")?).await.map_err(anyhow::Error::from)
    };
    arm_first().await?;
    arm(trial, &workflow, &second).await?;
    arm_first().await?;
    same("the timers", armed_now(trial, &workflow).await?, vec![second.clone()])?;
    let retire_second =
        async || anyhow::Ok(trial.store.retire_timer(&workflow, second.clone(), trial.keyed("retire")?).await?.value);
    same("a retirement", retire_second().await?, Retirement::Retired)?;
    arm(trial, &workflow, &second).await?;
    same("the same one again", retire_second().await?, Retirement::Retired)?;
    same("the timers afterwards", armed_now(trial, &workflow).await?, vec![second.clone()])?;
    let other = trial.store.schedule_timer(&workflow, second, trial.keyed("arm")?).await;
    refused("another arming under the key", other, Reject::IdempotencyConflict)
}

async fn fenced(trial: &Trial) -> Result<()> {
    let workflow = trial.open("fenced", []).await?;
    let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
    let Some(Fence { owner, epoch }) = view.fence else { anyhow::bail!("shard {} has no owner", view.shard) };
    let not_owner = || Reject::NotOwner { shard: view.shard, owner: Some(owner.clone()), epoch };
    let wrong = Fence { owner: NodeName::new(trial.name("stranger"))?, epoch };
    let write = || Write { fence: Some(wrong.clone()), idempotency_key: None };
    let timer = arming("t", u64::MAX, 2)?;
    let armed = trial.store.schedule_timer(&workflow, timer.clone(), write()).await;
    refused("arming", armed, not_owner())?;
    refused("retiring", trial.store.retire_timer(&workflow, timer, write()).await, not_owner())
}
