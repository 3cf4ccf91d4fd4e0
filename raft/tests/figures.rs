//! Figures rather than verdicts: run with `--ignored --nocapture`, in a release build for numbers that
//! mean something.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use holdfast_machine::{Liveness, ReadMode};
use support::{TestCluster, eventually, propose_tick};

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |q: usize| times[(times.len() - 1) * q / 100];
    format!("p50 {:?}, p99 {:?}, max {:?} of {}", at(50), at(99), at(100), times.len())
}

/// Processor time that this process has used.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks = |field: usize| after_name.split_whitespace().nth(field).unwrap().parse::<u64>().unwrap();
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn idle() {
    let cluster = TestCluster::start(3, |_| {}).await;
    let before = processor_time();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let used = processor_time() - before;
    println!("idle: {:.2} % of a core for each node", used.as_secs_f64() * 100.0 / 10.0 / 3.0);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn latency_of_one_caller() {
    let cluster = TestCluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    for id in [leader, cluster.follower().await] {
        let node = cluster.node(id);
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            let begun = Instant::now();
            propose_tick(node).await;
            writes.push(begun.elapsed());
            let begun = Instant::now();
            node.read_index(ReadMode::Linearizable).await.unwrap();
            reads.push(begun.elapsed());
        }
        let role = if id == leader { "leader" } else { "follower" };
        println!("{role}: writes {}; reads {}", quantiles(writes), quantiles(reads));
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput_of_many_callers() {
    let cluster = TestCluster::start(3, |_| {}).await;
    for callers in [16, 64, 256] {
        let end = Instant::now() + Duration::from_secs(3);
        let before = cluster.node(1).status().last.unwrap();
        let calls = (0..callers).map(|caller| {
            let node = cluster.node(caller % 3 + 1).clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < end {
                    let begun = Instant::now();
                    propose_tick(&node).await;
                    times.push(begun.elapsed());
                }
                times
            })
        });
        let mut times = Vec::new();
        for call in futures::future::join_all(calls).await {
            times.extend(call.unwrap());
        }
        let entries = cluster.node(1).status().last.unwrap() - before;
        println!("{callers} callers: {}/s in {entries} entries, {}", times.len() / 3, quantiles(times));
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn deaths() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let is_down = |l: Option<Liveness>| matches!(l, Some(Liveness::Down { .. }));
    for leads in [false, true] {
        let (mut down, mut written) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let leader = cluster.leader().await;
            let victim = if leads { leader } else { cluster.follower().await };
            let witness = (1..=3).find(|id| *id != leader && *id != victim).unwrap();
            let node = cluster.node(witness).clone();
            let begun = Instant::now();
            let killed = cluster.take(victim);
            let stopping = tokio::spawn(async move { killed.shutdown().await });
            if leads {
                eventually("another leader", || node.status().leader != Some(leader)).await;
            }
            propose_tick(&node).await;
            written.push(begun.elapsed());
            eventually("down", || is_down(cluster.liveness(witness, victim))).await;
            down.push(begun.elapsed());
            stopping.await.unwrap();
            cluster.start_node(victim).await;
            cluster.all_up().await;
        }
        let victim = if leads { "leader" } else { "follower" };
        println!("{victim} killed: down committed {}; write {}", quantiles(down), quantiles(written));
    }
    cluster.shutdown().await;
}
