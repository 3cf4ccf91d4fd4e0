//! An owner dies, is paused, or dies right after it has adopted.

use anyhow::{Context, Result, bail, ensure};
use holdfast_machine::{Epoch, EventKind, ShardId, WorkflowId};
use holdfast_tests::check;
use holdfast_tests::cluster::{Cluster, SHARDS};
use holdfast_tests::engine::{Order, Record};
use holdfast_tests::programs::{ENOUGH, STEADY};
use holdfast_tests::troupe::{self, LEASE_FOR_EVER};
use holdfast_tests::wait::{LONG, wait_until};

use super::{PART, brought_back, held_by_engines, in_hand, plan, ran_again, stage, times};

/// Waits until another node has adopted a workflow's shard, as `seen_by` has it.
async fn adopted(cluster: &Cluster, id: &WorkflowId, from: usize, epoch: Epoch, seen_by: usize) -> Result<usize> {
    wait_until("a survivor has adopted the shard", LONG, async || {
        let (adopter, now) = cluster.owner_as_known_by(seen_by, id).await?;
        ensure!(adopter != from && now > epoch, "not yet");
        Ok(adopter)
    })
    .await
}

/// A workflow of another owner, whose small steps go on whatever happens to its neighbours.
struct Witness {
    id: WorkflowId,
    epoch: Epoch,
    owner: usize,
}

impl Witness {
    async fn begins(cluster: &Cluster, owner: usize, name: &str) -> Result<Self> {
        let (id, fence) = cluster.workflow_of(owner, name).await?;
        troupe::start(&cluster.any()?, STEADY, &id, &()).await?;
        let witness = Self { id, epoch: fence.epoch, owner };
        witness.goes_on(cluster).await?;
        Ok(witness)
    }

    /// Waits for a few more of its steps.
    async fn goes_on(&self, cluster: &Cluster) -> Result<()> {
        let begun = cluster.executions(&self.id)?.len();
        cluster.begun(&self.id, begun + 6).await.map(drop)
    }

    /// It ends, with nothing run twice, under one owner.
    async fn ends(self, cluster: &Cluster) -> Result<()> {
        let Self { id, epoch, owner } = self;
        let client = cluster.any()?;
        troupe::signal(&client, &id, ENOUGH).await?;
        troupe::ended(&client, &id).await?;
        let history = check::workflow(&client, &id).await?;
        let ordinals = history.iter().filter(|event| event.kind == EventKind::ActivityScheduled).count();
        check::outcomes::exactly_one(&id, &history, 1..=ordinals as u64)?;
        ensure!(cluster.owner_of(&id).await? == (owner, epoch), "the shard of the witness has moved");
        let executions = cluster.executions(&id)?;
        ensure!(executions.len() == ordinals, "{} executions of {ordinals} rows of the witness", executions.len());
        // How long it stood still is for people to read: machines are slow.
        let gaps = history.windows(2).map(|pair| pair[1].at.0 - pair[0].at.0);
        println!("the witness took {ordinals} steps; its longest pause was {} ms", gaps.max().unwrap_or_default());
        Ok(())
    }
}

async fn an_owner_dies(leads: bool) -> Result<()> {
    let cluster = stage(LEASE_FOR_EVER).await?;
    let client = cluster.any()?;
    let owner = if leads { cluster.leader().await? } else { cluster.follower().await? };
    let witness = Witness::begins(&cluster, (owner + 1) % 3, "witness").await?;
    let (id, fence) = cluster.workflow_of(owner, "order").await?;
    let plan = plan();
    cluster.fan_out(&id, &plan).await?;
    in_hand(&cluster, &id, owner).await?;

    // The owner dies with its part of the wave in hand, and one of the workers was attached to it.
    cluster.nodes[owner].kill()?;
    let survivor = (owner + 1) % 3;
    let adopter = adopted(&cluster, &id, owner, fence.epoch, survivor).await?;
    witness.goes_on(&cluster).await?;
    let begun = cluster.begun(&id, 3 * PART as usize).await?;
    let label = &cluster.nodes[adopter].label;
    let again = held_by_engines(&begun).into_iter().filter(|execution| execution.by == *label).count();
    ensure!(again == PART as usize, "{again} rows were handed to the adopter: {begun:?}");

    // The death was not the rows' fault.
    for execution in held_by_engines(&begun) {
        let row = client.row(&execution.key, holdfast_client::ReadMode::Linearizable).await?.value.row;
        ensure!(row.deliveries == 0 && row.attempt == 1, "a row pays for its owner's death: {row:?}");
    }
    cluster.tell_all(&Order::Release)?;
    troupe::ended(&client, &id).await?;
    witness.goes_on(&cluster).await?;
    witness.ends(&cluster).await?;

    // With the dead node back, all three have the same, once.
    brought_back(&cluster, owner).await?;
    cluster.completed(&id, &plan).await?;
    ran_again(&id, &plan, &cluster.executions(&id)?)?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_follows_dies_in_the_middle_of_a_fan_out() -> Result<()> {
    an_owner_dies(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_leads_dies_in_the_middle_of_a_fan_out() -> Result<()> {
    an_owner_dies(true).await
}

/// What came of a late write, once it was answered: the epoch it was made under, and the refusal.
fn answer(records: &[Record], note: &str) -> Option<(Epoch, Option<(String, String)>)> {
    records.iter().find_map(|record| match record {
        Record::Appended { text, epoch, refused } if text == note => Some((*epoch, refused.clone())),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_owner_returns_to_find_that_the_fan_out_is_over() -> Result<()> {
    // Workers move on from a node that is silent for half of their lease.
    let cluster = stage(std::time::Duration::from_secs(10)).await?;
    let owner = cluster.leader().await?;
    let (id, fence) = cluster.workflow_of(owner, "order").await?;
    let plan = plan();
    cluster.fan_out(&id, &plan).await?;
    in_hand(&cluster, &id, owner).await?;

    // A survivor adopts and goes all the way.
    cluster.nodes[owner].pause()?;
    let survivors = [(owner + 1) % 3, (owner + 2) % 3];
    adopted(&cluster, &id, owner, fence.epoch, survivors[0]).await?;
    let others = |puppet: &&holdfast_tests::process::Process| puppet.label != cluster.nodes[owner].label;
    cluster.puppets().filter(others).try_for_each(|puppet| puppet.tell(&Order::Release))?;
    let survivor = cluster.client(survivors[0]);
    troupe::ended(survivor, &id).await?;
    let history = check::workflow(survivor, &id).await?;

    // What waits for the owner when it goes on: a write under its old epoch, and the outcomes of the rows that it held.
    let note = "from the past";
    let head = history.len() as u64;
    let late = Order::Append { workflow: id.clone(), expected_seq: head, text: note.to_owned() };
    cluster.nodes[owner].tell(&late)?;
    cluster.nodes[owner].tell(&Order::Release)?;
    cluster.nodes[owner].go_on()?;
    let shard = ShardId::of(&id, SHARDS);
    let (epoch, refused) = wait_until("the loss is heard, and the late write is answered", LONG, async || {
        let records = cluster.nodes[owner].records()?;
        let lost = |record: &Record| matches!(record, Record::Lost { shard: of, .. } if *of == shard);
        ensure!(records.iter().any(lost), "no word of the loss");
        answer(&records, note).context("no answer")
    })
    .await?;
    ensure!(epoch == fence.epoch, "the late write was made under {epoch}");
    let Some((code, sentence)) = refused else { bail!("a write under an old epoch has landed") };
    ensure!(code == "not_owner", "{code}: {sentence}");

    // Its outcomes are refused and counted, and nothing of it is in the history.
    wait_until("the late outcomes are refused", LONG, async || {
        let mut refused = 0.0;
        for outcome in ["outcome=\"already_terminal\"", "outcome=\"claim_lost\""] {
            refused += cluster.figure(owner, &["holdfast_commands_total", "command=\"complete\"", outcome]).await?;
        }
        ensure!(refused >= PART as f64, "{refused} so far");
        Ok(())
    })
    .await?;
    cluster.whole().await?;
    ensure!(cluster.completed(&id, &plan).await? == history, "something landed late");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopter_dies_before_its_engine_has_done_anything() -> Result<()> {
    let cluster = stage(LEASE_FOR_EVER).await?;
    let owner = cluster.follower().await?;
    let (id, fence) = cluster.workflow_of(owner, "order").await?;
    let plan = plan();
    cluster.fan_out(&id, &plan).await?;
    in_hand(&cluster, &id, owner).await?;

    // The survivors' engines hear nothing, so that whoever adopts does no more than that before it dies.
    let survivors = [(owner + 1) % 3, (owner + 2) % 3];
    survivors.iter().try_for_each(|node| cluster.nodes[*node].tell(&Order::Deaf))?;
    wait_until("the survivors' engines are deaf", LONG, async || {
        for node in survivors {
            ensure!(cluster.nodes[node].records()?.contains(&Record::Deafened), "{node} is not");
        }
        Ok(())
    })
    .await?;
    cluster.nodes[owner].kill()?;
    let adopter = adopted(&cluster, &id, owner, fence.epoch, survivors[0]).await?;
    let (_, adopted_under) = cluster.owner_as_known_by(survivors[0], &id).await?;
    cluster.nodes[adopter].kill()?;
    ensure!(cluster.executions(&id)?.len() == 2 * PART as usize, "the adopter's engine has done something");

    // The first owner comes back, so that there is a quorum; the shard moves on, and the wave is handed out again.
    cluster.nodes[owner].start()?;
    cluster.tell_all(&Order::Hear)?;
    let last = *survivors.iter().find(|node| **node != adopter).context("two survivors")?;
    let next = adopted(&cluster, &id, adopter, adopted_under, last).await?;
    let begun = wait_until("the wave is in the hands of the last owner", LONG, async || {
        let begun = cluster.executions(&id)?;
        let label = &cluster.nodes[next].label;
        let held = held_by_engines(&begun).into_iter().filter(|held| held.by == *label).count();
        // The first owner has had them before.
        let wanted = if next == owner { 2 * PART } else { PART };
        ensure!(held == wanted as usize, "{held} of {wanted}");
        Ok(begun)
    })
    .await?;
    ensure!(begun.len() == 3 * PART as usize, "{:?}", times(&begun));
    cluster.tell_all(&Order::Release)?;
    troupe::ended(&cluster.any()?, &id).await?;
    brought_back(&cluster, adopter).await?;
    cluster.completed(&id, &plan).await?;
    ran_again(&id, &plan, &cluster.executions(&id)?)?;
    cluster.finish().await
}
