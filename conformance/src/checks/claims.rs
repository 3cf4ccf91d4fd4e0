//! Claims: who gets which rows, in which order, and that nobody gets what another one holds.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use futures::future::join_all;
use holdfast_client::{ClaimCall, ClaimHolder, Delivery, Write};
use holdfast_machine::{
    DispatchKey, Holder, Millis, Namespace, NewRow, NodeName, Payload, RowStatus, Scope, TaskQueue, Timeouts,
};

use crate::checks::checks;
use crate::trial::{LONG_LEASE_MS, Skip, Trial, activity_type, claimant, keys, row_key, row_keys, same};

checks! {
    "claims":
    delivered = "a delivery has everything that its executor needs, and its row is claimed under its token",
    due_order = "rows are taken oldest visible_after first, then by workflow and by number",
    at_most = "a claim takes no more than its limit, and the next one takes the rest",
    exclusive = "no two claims return the same live row, however many there are",
    pools = "a claim takes rows of its namespace and task queue only",
    types = "a claim with activity types takes rows of these types only",
    pins = "a pinned row goes to its node only, an unpinned one to anyone in the pool",
    holds = "the rows of held workflows are passed over and stay pending",
    not_yet = "a row is not taken before its time",
    wakes_when_due = "a claim that waits wakes when a row becomes due",
    wakes_when_staged = "a claim that waits wakes when a row is staged",
    in_vain = "a claim that waits in vain ends empty",
    abandoned = "a claim whose caller is gone takes nothing that comes later",
    finished = "done, failed and cancelled rows are never taken",
    own_node = "an embedded engine claims rows of its node's own shards, without a deadline",
}

async fn delivered(trial: &Trial) -> Result<()> {
    let workflow = trial.open("delivered", [7]).await?;
    let Delivery {
        key,
        token,
        deadline,
        run_id,
        namespace,
        task_queue,
        activity_type: kind,
        attempt,
        deliveries,
        scheduled_at,
        timeouts,
        finish_by,
        input,
    } = trial.claim_one().await?;
    same("the key", &key, &row_key(&workflow, 7))?;
    same("the pool", (namespace, task_queue), (trial.namespace()?, trial.queue()?))?;
    same("type and run", (kind, run_id.as_str()), (activity_type("work")?, "run-1"))?;
    same("attempt and deliveries", (attempt, deliveries), (1, 0))?;
    same("timeouts", (timeouts, finish_by), (Timeouts::default(), None))?;
    same("the input", input, Payload::text("input 7"))?;
    let row = trial.view(&key).await?.row;
    same("the status", row.status, RowStatus::Claimed)?;
    same("the time of its staging", scheduled_at, row.scheduled_at)?;
    let Some(claim) = row.claim else { anyhow::bail!("a claimed row shows no claim") };
    same("token and deadline", (claim.token, claim.deadline), (token, deadline))?;
    same("the length of the lease", deadline, Some(claim.claimed_at.plus(LONG_LEASE_MS)))?;
    same("the holder", claim.holder, Holder::Lease { claimant: claimant()? })
}

async fn due_order(trial: &Trial) -> Result<()> {
    let (first, second) = (trial.id("a")?, trial.id("b")?);
    let at = |ordinal, visible_after| -> Result<NewRow> {
        Ok(NewRow { visible_after: Millis(visible_after), ..trial.row(ordinal)? })
    };
    // Staged against the order: the later workflow first, and times and numbers mixed.
    trial.open_with(&second, vec![at(1, 20)?, at(2, 10)?, at(3, 30)?]).await?;
    trial.open_with(&first, vec![at(10, 20)?, at(9, 20)?, at(u64::MAX, 1)?, at(0, 30)?, at(100, 20)?]).await?;
    let key = |workflow, ordinal| row_key(workflow, ordinal);
    let expected = vec![
        key(&first, u64::MAX),
        key(&second, 2),
        key(&first, 9),
        key(&first, 10),
        key(&first, 100),
        key(&second, 1),
        key(&first, 0),
        key(&second, 3),
    ];
    let mut taken = keys(&trial.claim(3).await?);
    taken.extend(keys(&trial.claim(1).await?));
    taken.extend(keys(&trial.claim(10).await?));
    same("the order", taken, expected)
}

async fn at_most(trial: &Trial) -> Result<()> {
    let workflow = trial.open("most", 1..=7).await?;
    same("three", keys(&trial.claim(3).await?), row_keys(&workflow, 1..=3))?;
    same("one", keys(&trial.claim(1).await?), row_keys(&workflow, [4]))?;
    same("the rest", keys(&trial.claim(1_000).await?), row_keys(&workflow, 5..=7))?;
    same("nothing", keys(&trial.claim(10).await?), Vec::new())
}

async fn exclusive(trial: &Trial) -> Result<()> {
    const ROWS: u64 = 30;
    let one = trial.open("one", 1..=ROWS).await?;
    let two = trial.open("two", 1..=ROWS).await?;
    let claims = join_all((0..16).map(|number| trial.claim(1 + number % 5))).await;
    let mut taken: Vec<Delivery> = Vec::new();
    for claim in claims {
        taken.extend(claim?);
    }
    taken.extend(trial.claim(1_000).await?);
    let distinct: BTreeSet<DispatchKey> = keys(&taken).into_iter().collect();
    same("rows that were returned twice", taken.len() - distinct.len(), 0)?;
    let all = row_keys(&one, 1..=ROWS).into_iter().chain(row_keys(&two, 1..=ROWS)).collect();
    same("the rows taken", distinct, all)?;
    let tokens: BTreeSet<_> = taken.iter().map(|delivery| delivery.token).collect();
    same("the number of tokens", tokens.len(), taken.len())
}

async fn pools(trial: &Trial) -> Result<()> {
    let (here, there) = (trial.id("here")?, trial.id("there")?);
    let other = TaskQueue::new(trial.name("other"))?;
    trial.open_with(&here, trial.rows([1])?).await?;
    trial.open_with(&there, vec![NewRow { task_queue: other.clone(), ..trial.row(1)? }]).await?;
    let foreign = ClaimCall {
        scope: Scope { namespace: Namespace::new(trial.name("elsewhere"))?, ..trial.claiming(1)?.scope },
        ..trial.claiming(10)?
    };
    let from_other_namespace = trial.store.claim(foreign, Write::default()).await?.value;
    same("from another namespace", keys(&from_other_namespace), Vec::new())?;
    same("from this queue", keys(&trial.claim(10).await?), row_keys(&here, [1]))?;
    let scope = Scope { task_queue: other, ..trial.claiming(1)?.scope };
    let taken = trial.store.claim(ClaimCall { scope, ..trial.claiming(10)? }, Write::default()).await?.value;
    same("from the other queue", keys(&taken), row_keys(&there, [1]))
}

async fn types(trial: &Trial) -> Result<()> {
    let workflow = trial.id("types")?;
    let of = |ordinal, kind: &str| -> Result<NewRow> {
        Ok(NewRow { activity_type: activity_type(kind)?, ..trial.row(ordinal)? })
    };
    trial.open_with(&workflow, vec![of(1, "a")?, of(2, "b")?, of(3, "c")?, of(4, "a")?]).await?;
    let claim = async |kinds: &[&str]| -> Result<Vec<DispatchKey>> {
        let activity_types = kinds.iter().map(|kind| activity_type(kind)).collect::<Result<_>>()?;
        let scope = Scope { activity_types, ..trial.claiming(1)?.scope };
        let call = ClaimCall { scope, ..trial.claiming(10)? };
        Ok(keys(&trial.store.claim(call, Write::default()).await?.value))
    };
    same("a type that nobody staged", claim(&["z"]).await?, Vec::new())?;
    same("two types", claim(&["c", "a"]).await?, row_keys(&workflow, [1, 3, 4]))?;
    same("all that are left", claim(&[]).await?, row_keys(&workflow, [2]))
}

async fn pins(trial: &Trial) -> Result<()> {
    let workflow = trial.id("pins")?;
    let (mine, other) = (NodeName::new(trial.name("mine"))?, NodeName::new(trial.name("other"))?);
    let pinned =
        |ordinal, node: &NodeName| -> Result<NewRow> { Ok(NewRow { node: Some(node.clone()), ..trial.row(ordinal)? }) };
    trial.open_with(&workflow, vec![pinned(1, &mine)?, pinned(2, &other)?, trial.row(3)?, trial.row(4)?]).await?;
    same("without a node", keys(&trial.claim(1).await?), row_keys(&workflow, [3]))?;
    let scope = Scope { node: Some(mine), ..trial.claiming(1)?.scope };
    let call = ClaimCall { scope, ..trial.claiming(10)? };
    let taken = trial.store.claim(call, Write::default()).await?.value;
    same("with its node", keys(&taken), row_keys(&workflow, [1, 4]))?;
    same("without a node, again", keys(&trial.claim(10).await?), Vec::new())?;
    same("the row of another node", trial.status(&row_key(&workflow, 2)).await?, RowStatus::Pending)
}

async fn holds(trial: &Trial) -> Result<()> {
    let (held, free) = (trial.open("held", [1, 2]).await?, trial.open("free", [1]).await?);
    let call = ClaimCall { hold: vec![held.clone()], ..trial.claiming(10)? };
    let taken = trial.store.claim(call, Write::default()).await?.value;
    same("beside the held one", keys(&taken), row_keys(&free, [1]))?;
    same("a held row", trial.status(&row_key(&held, 1)).await?, RowStatus::Pending)?;
    same("without a hold", keys(&trial.claim(10).await?), row_keys(&held, [1, 2]))
}

async fn not_yet(trial: &Trial) -> Result<()> {
    let workflow = trial.id("later")?;
    let hour = trial.store.cluster().await?.value.now.plus(3_600_000);
    trial.open_with(&workflow, vec![NewRow { visible_after: hour, ..trial.row(1)? }, trial.row(2)?]).await?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [2]))?;
    let row = trial.view(&row_key(&workflow, 1)).await?.row;
    same("the row of later", (row.status, row.visible_after), (RowStatus::Pending, hour))
}

async fn wakes_when_due(trial: &Trial) -> Result<()> {
    let workflow = trial.id("due")?;
    let soon = trial.store.cluster().await?.value.now.plus(500);
    trial.open_with(&workflow, vec![NewRow { visible_after: soon, ..trial.row(1)? }]).await?;
    let call = ClaimCall { wait_ms: 30_000, ..trial.claiming(1)? };
    let taken = trial.store.claim(call, Write::default()).await?.value;
    same("the row that became due", keys(&taken), row_keys(&workflow, [1]))?;
    let claim = trial.view(&row_key(&workflow, 1)).await?.row.claim;
    ensure!(claim.as_ref().is_some_and(|claim| claim.claimed_at >= soon), "taken before its time: {claim:?}");
    Ok(())
}

async fn wakes_when_staged(trial: &Trial) -> Result<()> {
    let workflow = trial.id("staged")?;
    let call = ClaimCall { wait_ms: 30_000, ..trial.claiming(5)? };
    let waiting = trial.store.claim(call, Write::default());
    let staging = async {
        // The claim is on its way before the row is there, or it finds it: either way it must end with the row.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        trial.open_with(&workflow, trial.rows([1])?).await
    };
    let (taken, staged) = tokio::join!(waiting, staging);
    staged?;
    same("the row that was staged", keys(&taken?.value), row_keys(&workflow, [1]))
}

async fn in_vain(trial: &Trial) -> Result<()> {
    let call = ClaimCall { wait_ms: 50, ..trial.claiming(5)? };
    same("nothing", trial.store.claim(call, Write::default()).await?.value, Vec::new())
}

async fn abandoned(trial: &Trial) -> Result<()> {
    if !trial.store.is_embedded() {
        return Err(Skip("when a server notices that a caller is gone cannot be seen from outside").into());
    }
    let workflow = trial.id("abandoned")?;
    let call = ClaimCall { wait_ms: 30_000, ..trial.claiming(1)? };
    let waiting = trial.store.claim(call, Write::default());
    // Whether it came as far as waiting or not: it is gone before there is a row.
    if let Ok(answer) = tokio::time::timeout(std::time::Duration::from_millis(50), waiting).await {
        anyhow::bail!("a claim of nothing did not wait: {answer:?}");
    }
    trial.open_with(&workflow, trial.rows([1])?).await?;
    same("the row", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Pending)?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [1]))
}

async fn finished(trial: &Trial) -> Result<()> {
    let workflow = trial.open("finished", [1, 2, 3]).await?;
    let taken = trial.claim(2).await?;
    trial.complete(&taken[0], "ok").await?;
    trial.fail(&taken[1], false).await?;
    trial.store.settle(&workflow, Write::default()).await?;
    let mut statuses = Vec::new();
    for key in row_keys(&workflow, [1, 2, 3]) {
        statuses.push(trial.status(&key).await?);
    }
    same("the statuses", statuses, vec![RowStatus::Done, RowStatus::Failed, RowStatus::Cancelled])?;
    same("what is due", keys(&trial.claim(10).await?), Vec::new())
}

async fn own_node(trial: &Trial) -> Result<()> {
    if !trial.store.is_embedded() {
        return Err(Skip("over HTTP nobody is a node's own engine").into());
    }
    let (own, foreign) = trial.own_and_foreign().await?;
    trial.open_with(&own, trial.rows([1, 2])?).await?;
    if let Some(foreign) = &foreign {
        trial.open_with(foreign, trial.rows([1])?).await?;
    }
    let call = ClaimCall { holder: ClaimHolder::Node, ..trial.claiming(10)? };
    let taken = trial.store.claim(call, Write::default()).await?.value;
    same("rows of its own shards", keys(&taken), row_keys(&own, [1, 2]))?;
    ensure!(taken.iter().all(|delivery| delivery.deadline.is_none()), "a node's own claim has a deadline");
    let Some(Holder::Node { node, .. }) = trial.view(&row_key(&own, 1)).await?.row.claim.map(|claim| claim.holder)
    else {
        anyhow::bail!("the holder is not the node");
    };
    same("the holder", node, trial.store.cluster().await?.value.node)?;
    if let Some(foreign) = &foreign {
        same("a row of another node's shard", trial.status(&row_key(foreign, 1)).await?, RowStatus::Pending)?;
    }
    Ok(())
}
