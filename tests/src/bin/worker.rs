//! A worker as a process of its own, over the worker library. Set up by its environment; told what to do on stdin; what
//! it does is on stdout.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_client::Client;
use holdfast_machine::Payload;
use holdfast_node::config::{LogConfig, LogFormat};
use holdfast_tests::engine::{Gate, HOLD, NAP, Order, STUBBORN, WORK, WORKERS, read_orders, tell_stubbornly};
use holdfast_worker::{Activity, ActivityError, Worker};

/// A handler goes on for as long as a story wants.
const GRACE: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> Result<()> {
    holdfast_node::telemetry::log_to_stderr(&LogConfig { format: LogFormat::Text, level: "info".to_owned() });
    let client = Client::new(setting("URLS")?.split(','))?;
    let gate = Gate::default();
    let mut worker = Worker::new(client.clone())
        .identity(&setting("NAME")?)
        .task_queue(WORKERS)
        .max_concurrency(setting("ROOM")?.parse()?)
        .lease(Duration::from_millis(setting("LEASE_MS")?.parse()?))
        .cancel_grace(GRACE);
    for activity_type in [HOLD, WORK, NAP, STUBBORN] {
        let (gate, client) = (gate.clone(), client.clone());
        worker = worker.raw_activity(activity_type, move |activity: Activity| {
            let (gate, client) = (gate.clone(), client.clone());
            async move {
                let (key, token, input) = (activity.key().clone(), activity.token(), activity.input().clone());
                let result: Payload = gate.run(activity_type, &key, token, input).await;
                if activity_type == STUBBORN {
                    tell_stubbornly(&client, &key, token, result.clone()).await;
                }
                Ok::<_, ActivityError>(result)
            }
        });
    }
    let mut orders = read_orders();
    tokio::spawn(async move {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Release => gate.set(true),
                Order::Hold => gate.set(false),
                order => tracing::error!(?order, "this is for engines"),
            }
        }
    });
    let tally = worker.run().await?;
    tracing::info!(?tally, "the worker has ended");
    Ok(())
}

fn setting(name: &str) -> Result<String> {
    let variable = format!("HOLDFAST_TEST_WORKER_{name}");
    std::env::var(&variable).with_context(|| format!("{variable} is not set"))
}
