//! A worker's process dies with rows in hand, or replies after its rows were given to another.

use anyhow::{Result, ensure};
use holdfast_machine::{EventKind, WorkflowId};
use holdfast_tests::check;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::engine::{Execution, HOLD, Order, Record, STUBBORN, WORK, WORKERS};
use holdfast_tests::programs::{FanOut, Part};
use holdfast_tests::troupe::{self, LEASE_FOR_EVER, LEASE_SHORT};
use holdfast_tests::wait::{LONG, wait_until};

use super::{PART, ROOM, times};

/// A fan-out for workers alone.
fn plan(activity: &str) -> FanOut {
    let wave = |activity| vec![Part::of(PART, activity, WORKERS)];
    FanOut { waves: vec![wave(activity), wave(WORK)], pause_ms: 100 }
}

/// Waits until a worker has begun every row of the first wave.
async fn in_hand(cluster: &Cluster, id: &WorkflowId, worker: usize) -> Result<Vec<Execution>> {
    let label = &cluster.workers[worker].label;
    wait_until(&format!("{label} has the first wave in hand"), LONG, async || {
        let mut begun = cluster.executions(id)?;
        begun.retain(|execution| execution.by == *label);
        ensure!(times(&begun).len() as u64 >= PART, "{begun:?}");
        Ok(begun)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_worker_whose_process_dies_go_to_another_one() -> Result<()> {
    let mut cluster = Setup::with_engines().start().await?;
    let (client, id, plan) = (cluster.any()?, "order".parse()?, plan(HOLD));
    let first = cluster.add_worker(0, ROOM, LEASE_SHORT)?;
    cluster.fan_out(&id, &plan).await?;
    in_hand(&cluster, &id, first).await?;

    // It dies; its session lasts for the rest of its lease, and then the rows are another worker's.
    cluster.workers[first].kill()?;
    let second = cluster.add_worker(1, ROOM, LEASE_FOR_EVER)?;
    let again = in_hand(&cluster, &id, second).await?;
    ensure!(again.len() as u64 == PART, "{again:?}");
    for execution in &again {
        let row = client.row(&execution.key, holdfast_client::ReadMode::Linearizable).await?.value.row;
        ensure!(row.deliveries == 0 && row.attempt == 1, "a row pays for its worker's death: {row:?}");
    }
    let sessions = troupe::sessions(&client).await?;
    ensure!(sessions.len() == 1, "the session of the dead is not over: {sessions:?}");
    cluster.workers[second].tell(&Order::Release)?;
    cluster.completed(&id, &plan).await?;
    cluster.finish().await
}

/// The code with which each late reply of a worker was refused; none for one that was not.
fn told(cluster: &Cluster, worker: usize, id: &WorkflowId, of: &[Execution]) -> Result<Vec<Option<String>>> {
    let records = cluster.workers[worker].records()?;
    let answers = records.into_iter().filter_map(|record| match record {
        Record::Told { key, token, refused } if key.workflow == *id => {
            of.iter().any(|one| one.token == token).then_some(refused)
        }
        _ => None,
    });
    Ok(answers.collect())
}

/// Waits until a worker has sent its late replies, and checks that each was refused with this code.
async fn all_refused(cluster: &Cluster, worker: usize, id: &WorkflowId, of: &[Execution], code: &str) -> Result<()> {
    let answers = wait_until("the late replies are answered", LONG, async || {
        let answers = told(cluster, worker, id, of)?;
        ensure!(answers.len() == of.len(), "{answers:?}");
        Ok(answers)
    })
    .await?;
    ensure!(answers.iter().all(|refused| refused.as_deref() == Some(code)), "{answers:?} instead of {code}");
    Ok(())
}

/// Completions that were refused with a code, over all nodes.
async fn refusals(cluster: &Cluster, code: &str) -> Result<f64> {
    let mut all = 0.0;
    let outcome = format!("outcome=\"{code}\"");
    for node in cluster.running() {
        all += cluster.figure(node, &["holdfast_commands_total", "command=\"complete\"", &outcome]).await?;
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_replies_after_its_rows_were_given_to_another_changes_nothing() -> Result<()> {
    let mut cluster = Setup::with_engines().start().await?;
    let (client, plan) = (cluster.any()?, plan(STUBBORN));

    // It replies while another has the rows in hand, and after that one is done with them.
    for code in ["claim_lost", "already_terminal"] {
        let id = format!("order-{code}").parse()?;
        let late = cluster.add_worker(0, ROOM, LEASE_SHORT)?;
        cluster.fan_out(&id, &plan).await?;
        let held = in_hand(&cluster, &id, late).await?;
        cluster.workers[late].pause()?;
        let second = cluster.add_worker(1, ROOM, LEASE_FOR_EVER)?;
        in_hand(&cluster, &id, second).await?;
        if code == "already_terminal" {
            cluster.workers[second].tell(&Order::Release)?;
            troupe::ended(&client, &id).await?;
        }
        let (before, counted) = (check::workflow(&client, &id).await?, refusals(&cluster, code).await?);
        cluster.workers[late].tell(&Order::Release)?;
        cluster.workers[late].go_on()?;
        all_refused(&cluster, late, &id, &held, code).await?;
        ensure!(check::workflow(&client, &id).await? == before, "a late reply has changed the history");
        let counted = refusals(&cluster, code).await? - counted;
        ensure!(counted >= held.len() as f64, "{counted} refusals with {code} are counted, {} were sent", held.len());

        // The other's outcomes are the ones that count.
        cluster.workers[second].tell(&Order::Release)?;
        let history = cluster.completed(&id, &plan).await?;
        let outcomes = history.iter().filter(|event| event.kind == EventKind::ActivityCompleted).count() as u64;
        ensure!(outcomes == plan.ordinals(), "{outcomes} outcomes");
        for worker in [late, second] {
            let status = cluster.workers[worker].stop(LONG).await?;
            ensure!(status.success(), "{} ended with {status}", cluster.workers[worker].label);
        }
    }
    cluster.finish().await
}
