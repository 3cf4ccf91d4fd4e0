//! A node with the engine inside, which takes orders. The README says what to do with it.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use holdfast_engine::{Engine, LocalActivities, Programs, Workflow, WorkflowError};
use holdfast_machine::TaskQueue;
use holdfast_node::api::Failure;
use holdfast_node::{Config, Node, ShardChange};

async fn order(workflow: Workflow, items: Vec<String>) -> Result<u64, WorkflowError> {
    let prices = items.iter().map(|item| workflow.activity::<u64>("price", item));
    let total: u64 = try_join_all(prices).await?.iter().sum();
    workflow.signal::<bool>("approve").await?;
    workflow.sleep(Duration::from_secs(5)).await;
    workflow.activity::<()>("charge", &total).await?;
    Ok(total)
}

async fn price(item: String) -> Result<u64, Failure> {
    println!("the price of {item} is looked up");
    Ok(100 * item.len() as u64)
}

async fn charge(total: u64) -> Result<(), Failure> {
    println!("{total} is charged");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let data_dir = std::env::args().nth(1).context("which folder? cargo run ... --example orders -- data/orders")?;
    // By its environment it becomes one of three nodes as well, as `holdfast serve` does.
    let config = holdfast_node::config::load(None, Default::default())?;
    holdfast_node::telemetry::log_to_stderr(&config.log);
    let node = Node::start(Config { data_dir: data_dir.into(), ..config }).await?;
    node.ready().await;
    println!("orders are taken at http://{}", node.http_addr());

    let engine = Engine::new(node.store(), Programs::new().with("order", order)?);
    let activities = LocalActivities::new(node.store(), TaskQueue::default())
        .with("price", |_, item| price(item))?
        .with("charge", |_, total| charge(total))?;
    tokio::spawn(activities.run());
    let mut shards = node.shards();
    loop {
        tokio::select! {
            _ = holdfast_node::signalled() => break,
            change = shards.next() => match change {
                Some(ShardChange::Acquired { shard, epoch, .. }) => engine.acquire(shard, epoch),
                Some(ShardChange::Lost { shard, .. }) => engine.lose(shard),
                None => break,
            },
        }
    }
    node.shutdown().await;
    Ok(())
}
