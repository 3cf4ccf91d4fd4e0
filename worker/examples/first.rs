//! The first worker of docs/workers.md, to be run against any cluster: `first URL...`; by default the three nodes of the
//! compose file. Ctrl-C lets it finish what it has; a second one does not.

use holdfast_client::Client;
use holdfast_worker::{ActivityError, Worker};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Charge {
    amount: u64,
}

#[derive(Serialize)]
struct Receipt {
    number: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = [7601, 7602, 7603].map(|port| format!("http://127.0.0.1:{port}")).to_vec();
    }
    let tally = Worker::new(Client::new(urls)?)
        .identity("w-1")
        .task_queue("default")
        .max_concurrency(8)
        .activity("charge", |activity, input: Charge| async move {
            if input.amount == 0 {
                return Err(ActivityError::for_good("there is nothing to charge").of_type("no_amount"));
            }
            Ok(Receipt { number: format!("receipt of {}", activity.key()) })
        })
        .run()
        .await?;
    println!("{tally:?}");
    Ok(())
}
