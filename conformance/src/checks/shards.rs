//! Shards and fences: who owns what, and that a write under an old ownership does not land.

use anyhow::{Result, bail, ensure};
use holdfast_client::{Adoption, Failure, ReadMode, Write};
use holdfast_machine::{
    Commit, Epoch, Fence, IdempotencyKey, Liveness, NodeName, Payload, Reject, RowStatus, ShardEntry, ShardId,
    WorkflowId,
};

use crate::checks::checks;
use crate::trial::{Skip, Trial, note, refused, refused_as, row_key, same};

checks! {
    "shards":
    directory = "every shard has an owner among the members, and an epoch",
    right_fence = "a write under the fence of its shard lands",
    wrong_fences = "a write under another owner or epoch is refused with those that hold, whatever the write",
    remembered_fences = "a retry under another fence is the same call and gets the first answer",
    alive = "a shard is not adopted from a node that is not down",
    too_late = "an adoption under an old epoch is answered with who holds the shard",
    not_replaced = "a member that is alive, or none, is not replaced, and a dry run of that says the same",
    no_such_shard = "a shard beyond the count is refused with the count",
    [disturbing]
    transfer = "a transfer gives a shard another owner and the next epoch, and fences the last one off",
}

async fn entry(trial: &Trial, shard: ShardId) -> Result<ShardEntry> {
    let directory = trial.store.shards(ReadMode::Linearizable).await?.value;
    match directory.shards.into_iter().find(|entry| entry.shard == shard) {
        Some(entry) => Ok(entry),
        None => bail!("shard {shard} has no owner"),
    }
}

async fn fence(trial: &Trial, workflow: &WorkflowId) -> Result<(ShardId, Fence)> {
    let view = trial.store.workflow(workflow, ReadMode::Linearizable).await?.value;
    match view.fence {
        Some(fence) => Ok((view.shard, fence)),
        None => bail!("shard {} has no owner", view.shard),
    }
}

async fn directory(trial: &Trial) -> Result<()> {
    let directory = trial.store.shards(ReadMode::Linearizable).await?.value;
    ensure!(directory.shard_count > 0, "a cluster without shards");
    let members: Vec<NodeName> =
        trial.store.cluster().await?.value.members.into_iter().map(|view| view.member.name).collect();
    let numbers: Vec<u32> = directory.shards.iter().map(|entry| entry.shard.0).collect();
    same("the shards", numbers, (0..directory.shard_count).collect())?;
    for entry in directory.shards {
        ensure!(members.contains(&entry.owner), "shard {} is owned by a stranger, {}", entry.shard, entry.owner);
        ensure!(entry.epoch >= Epoch(1), "shard {} is at epoch {}", entry.shard, entry.epoch);
    }
    Ok(())
}

async fn right_fence(trial: &Trial) -> Result<()> {
    let workflow = trial.open("right", []).await?;
    let (_, fence) = fence(trial, &workflow).await?;
    let write = Write { fence: Some(fence), idempotency_key: None };
    let committed = trial.store.append(&workflow, 1, vec![note("fenced")], write).await?.value;
    same("the head", committed.head, 2)
}

async fn wrong_fences(trial: &Trial) -> Result<()> {
    let workflow = trial.open("wrong", [1]).await?;
    let delivery = trial.claim_one().await?;
    let (shard, right) = fence(trial, &workflow).await?;
    let Fence { owner, epoch } = right.clone();
    let not_owner = || Reject::NotOwner { shard, owner: Some(owner.clone()), epoch };
    for wrong in [
        Fence { epoch: Epoch(epoch.0 - 1), ..right.clone() },
        Fence { epoch: Epoch(epoch.0 + 1), ..right.clone() },
        Fence { owner: NodeName::new(trial.name("stranger"))?, ..right.clone() },
    ] {
        let write = || Write { fence: Some(wrong.clone()), idempotency_key: None };
        let (store, key, token) = (&trial.store, &delivery.key, Some(delivery.token));
        let payload = || Payload::text("fenced");
        refused("append", store.append(&workflow, 3, vec![note("x")], write()).await, not_owner())?;
        let commit = Commit::new(workflow.clone(), 3).activity(trial.row(2)?);
        refused("commit", store.commit(commit, write()).await, not_owner())?;
        refused("settle", store.settle(&workflow, write()).await, not_owner())?;
        refused("rearm", store.rearm(&workflow, trial.rows([2])?, write()).await, not_owner())?;
        refused("complete", store.complete(key, token, payload(), write()).await, not_owner())?;
        refused("complete by key", store.complete(key, None, payload(), write()).await, not_owner())?;
        refused("fail", store.fail(key, token, Failure::retryable(payload()), write()).await, not_owner())?;
        refused("retry", store.retry(key, token, 0, write()).await, not_owner())?;
        let beat = store.heartbeat(key, delivery.token, 1_000, payload(), write()).await;
        refused("heartbeat", beat, not_owner())?;
    }
    same("the head", trial.head(&workflow).await?, 3)?;
    same("the row", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Claimed)
}

async fn remembered_fences(trial: &Trial) -> Result<()> {
    let workflow = trial.open("remembered", []).await?;
    let (_, right) = fence(trial, &workflow).await?;
    let key: IdempotencyKey = trial.key("fenced")?;
    let append = async |fence| {
        let write = Write { fence, idempotency_key: Some(key.clone()) };
        trial.store.append(&workflow, 1, vec![note("x")], write).await
    };
    let first = append(Some(right)).await?.value;
    same("the same call without the fence", append(None).await?.value, first)
}

async fn alive(trial: &Trial) -> Result<()> {
    let workflow = trial.id("alive")?;
    let (shard, Fence { owner, epoch }) = fence(trial, &workflow).await?;
    let adopted = trial.store.adopt(shard, &owner, &owner, epoch, Write::default()).await;
    refused_as("an adoption from the living", adopted, &["node_state"])?;
    same("the epoch", entry(trial, shard).await?.epoch, epoch)
}

async fn too_late(trial: &Trial) -> Result<()> {
    let workflow = trial.id("late")?;
    let (shard, Fence { owner, epoch }) = fence(trial, &workflow).await?;
    let stranger = NodeName::new(trial.name("stranger"))?;
    let held = || Adoption::AlreadyAdopted { held_by: owner.clone(), epoch };
    let old = trial.store.adopt(shard, &owner, &owner, Epoch(epoch.0 - 1), Write::default()).await?.value;
    same("under an old epoch", old, held())?;
    let other = trial.store.adopt(shard, &stranger, &owner, epoch, Write::default()).await?.value;
    same("from another owner", other, held())
}

async fn no_such_shard(trial: &Trial) -> Result<()> {
    let directory = trial.store.shards(ReadMode::Linearizable).await?.value;
    let shard_count = directory.shard_count;
    let owner = directory.shards[0].owner.clone();
    for number in [shard_count, u32::MAX] {
        let shard = ShardId(number);
        let missing = || Reject::NoSuchShard { shard, shard_count };
        let transferred = trial.store.transfer(shard, &owner, Epoch(1), Write::default()).await;
        refused("a transfer", transferred, missing())?;
        refused("an adoption", trial.store.adopt(shard, &owner, &owner, Epoch(1), Write::default()).await, missing())?;
    }
    Ok(())
}

async fn not_replaced(trial: &Trial) -> Result<()> {
    let before = trial.store.cluster().await?.value;
    let stranger = NodeName::new(trial.name("stranger"))?;
    let members: Vec<NodeName> = before.members.into_iter().map(|view| view.member.name).collect();
    for name in members.iter().chain([&stranger]) {
        for dry_run in [true, false] {
            let result = trial.store.replace_member(name, dry_run).await;
            refused_as(&format!("the replacement of {name}"), result, &["node_state"])?;
        }
    }
    let after = trial.store.cluster().await?.value;
    ensure!(after.replacements.is_empty(), "{:?}", after.replacements);
    same("the members", after.members.into_iter().map(|view| view.member.name).collect(), members)
}

async fn transfer(trial: &Trial) -> Result<()> {
    let workflow = trial.open("moved", [1]).await?;
    let (shard, old) = fence(trial, &workflow).await?;
    let members = trial.store.cluster().await?.value.members;
    let up = members.iter().filter(|view| view.member.liveness == Liveness::Up && view.boot.is_some());
    let Some(to) = up.map(|view| view.member.name.clone()).find(|name| *name != old.owner) else {
        return Err(Skip("a shard moves only where there are two nodes").into());
    };
    let stranger = NodeName::new(trial.name("stranger"))?;
    let result = trial.store.transfer(shard, &stranger, old.epoch, Write::default()).await;
    refused_as("a transfer to a stranger", result, &["node_state"])?;
    let wrong = trial.store.transfer(shard, &to, Epoch(old.epoch.0 + 5), Write::default()).await;
    let conflict = Reject::EpochConflict { shard, owner: Some(old.owner.clone()), epoch: old.epoch };
    refused("a transfer under another epoch", wrong, conflict)?;

    let held = trial.claim_one().await?;
    let moved = trial.store.transfer(shard, &to, old.epoch, Write::default()).await?.value;
    same("shard and epoch", (moved.shard, moved.epoch), (shard, Epoch(old.epoch.0 + 1)))?;
    let now = entry(trial, shard).await?;
    same(
        "owner, epoch and the owner before",
        (now.owner, now.epoch, now.previous),
        (to.clone(), moved.epoch, Some(old.owner.clone())),
    )?;
    same("a row under a lease", trial.status(&held.key).await?, RowStatus::Claimed)?;
    let late = Write { fence: Some(old.clone()), idempotency_key: None };
    let late = trial.store.append(&workflow, 3, vec![note("late")], late).await;
    refused("the last owner's engine", late, Reject::NotOwner { shard, owner: Some(to), epoch: moved.epoch })?;
    trial.complete(&held, "ok").await?;
    // Back to where it was.
    trial.store.transfer(shard, &old.owner, moved.epoch, Write::default()).await?;
    Ok(())
}
