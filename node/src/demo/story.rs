//! The demo from its first line to its last, and what is left of it: a table, an exit code, no process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use holdfast_client::{Client, ReadMode};
use holdfast_machine::NodeName;
use tempfile::TempDir;

use super::failover::Failover;
use super::ledger::Ledger;
use super::nodes::Nodes;
use super::plan::workflow_ids;
use super::report::Report;
use super::screen::Screen;
use super::watch::{Watch, is_up};
use super::worker_death::WorkerDeath;
use super::workers::Workers;

/// How long the nodes may take to form a cluster.
const FORMED_WITHIN: Duration = Duration::from_secs(30);

/// What the demo may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// How many workflows are staged, half of them before the kill of each node.
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u64).range(12..=1_000))]
    workflows: u64,
    /// How many activities each has, one half for the engines, the other for the workers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(4..=100))]
    activities: u64,
    /// Keep the folder with the nodes' configuration, data and logs.
    #[arg(long)]
    keep: bool,
    /// Print one JSON object on standard output and nothing else there.
    #[arg(long)]
    json: bool,
}

/// Everything that takes part. Dropping it ends all processes.
#[derive(Debug)]
pub(crate) struct Demo {
    pub nodes: Nodes,
    pub names_of_nodes: Vec<NodeName>,
    pub workers: Workers,
    /// A client that knows all nodes.
    pub client: Client,
    pub watch: Watch,
    pub ledger: Ledger,
    pub screen: Arc<Screen>,
    pub folder: PathBuf,
    pub activities: u64,
    pub next_workflow: u64,
    pub began: Instant,
}

/// Runs the demo and prints its result. Succeeds if every promise was kept.
///
/// # Errors
/// When a promise was broken, which the result tells, or there is no temporary folder.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("holdfast-demo-").tempdir()?;
    let screen = Arc::new(Screen::new(args.json));
    let began = Instant::now();
    let result = tokio::select! {
        result = story(&args, &folder, &screen) => result,
        _ = tokio::signal::ctrl_c() => {
            bail!("interrupted; all nodes and workers are ended")
        }
    };
    screen.clear();
    let mut report =
        result.unwrap_or_else(|error| Report { problems: vec![format!("{error:#}")], ..Report::default() });
    report.seconds = began.elapsed().as_secs_f64();
    report.ok = report.problems.is_empty();
    print(&args, &screen, &report)?;
    if args.keep || !report.ok {
        let kept = folder.keep();
        screen.step(format!("The nodes' configuration, data and logs are in {}", kept.display()));
    }
    if !report.ok {
        bail!("not every promise was kept");
    }
    Ok(())
}

async fn story(args: &DemoArgs, folder: &TempDir, screen: &Arc<Screen>) -> anyhow::Result<Report> {
    screen.chapter("Three nodes, each a process with an engine inside, and workers, processes of their own");
    let mut demo = Demo::start(args, folder.path().to_path_buf(), Arc::clone(screen)).await?;

    screen.chapter("Work on all shards, and an owner that follows is killed in the middle of it");
    demo.stage(args.workflows / 2).await?;
    let follower = demo.fail_over(false).await?;

    screen.chapter("More work, and the owner that leads the cluster is killed");
    demo.stage(args.workflows - args.workflows / 2).await?;
    let leader = demo.fail_over(true).await?;

    screen.chapter("A worker is killed with rows in its hands");
    let worker = demo.lose_worker().await?;

    screen.chapter("The rest of the work, and the reckoning");
    demo.drain().await?;
    let kills = [&follower.kill, &leader.kill, &worker.kill].map(Clone::clone);
    let mut report = demo.reckon(kills.to_vec()).await?;
    add_times(&mut report, [follower, leader], &worker);
    demo.workers.stop().await;
    demo.nodes.stop().await;
    Ok(report)
}

fn add_times(report: &mut Report, failovers: [Failover; 2], worker: &WorkerDeath) {
    report.worker_kill_to_given_on_ms = worker.to_given_on_ms;
    for failover in failovers {
        report.adoptions += failover.adoptions;
        report.kill_to_down_ms.push(failover.to_down);
        report.kill_to_adopted_ms.push(failover.to_adopted);
        report.kill_to_redelivered_ms.push(failover.to_redelivered);
        report.restart_to_caught_up_ms.push(failover.to_caught_up);
    }
}

fn print(args: &DemoArgs, screen: &Screen, report: &Report) -> anyhow::Result<()> {
    if args.json {
        println!("{}", report.json()?);
        return Ok(());
    }
    if !report.kill_to_down_ms.is_empty() {
        screen.step(format!("\n{}\n{}", report.table(), report.times()));
    }
    for node in &report.taken_for_dead {
        screen.step(format!(
            "{node} was taken for dead although it lived: this machine is busy. It was adopted like the others."
        ));
    }
    for problem in &report.problems {
        screen.step(format!("BROKEN: {problem}"));
    }
    let Report { workflows, ordinals, executions, acked, seconds, .. } = report;
    screen.step(format!(
        "{workflows} workflows, {ordinals} activities, {executions} executions, {acked} acknowledged writes in {seconds:.0} s: {}",
        if report.ok { "every promise was kept" } else { "FAILED" }
    ));
    Ok(())
}

impl Demo {
    async fn start(args: &DemoArgs, folder: PathBuf, screen: Arc<Screen>) -> anyhow::Result<Self> {
        let ledger = Ledger::default();
        let mut nodes = Nodes::prepare(&folder, ledger.clone())?;
        let began = Instant::now();
        let (names_of_nodes, urls) = (nodes.names(), nodes.urls());
        for position in 0..urls.len() {
            nodes.start(position)?;
        }
        let mut watch = Watch::start(names_of_nodes.clone(), &urls)?;
        if screen.is_live() {
            watch.draw(Arc::clone(&screen), ledger.clone(), args.activities);
        }
        let client = Client::new(&urls)?;
        let workers = Workers::start(&urls, &folder, &ledger)?;
        let activities = args.activities;
        let mut demo = Self {
            nodes,
            names_of_nodes,
            workers,
            client,
            watch,
            ledger,
            screen,
            folder,
            activities,
            next_workflow: 1,
            began,
        };
        demo.wait_until_formed().await?;
        demo.screen.step(format!(
            "  {:>6.0} ms  until all nodes were up and all shards had owners",
            began.elapsed().as_secs_f64() * 1e3
        ));
        Ok(demo)
    }

    /// Waits until all nodes are committed as up, know their leader, and all of them own shards.
    async fn wait_until_formed(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + FORMED_WITHIN;
        loop {
            let views = self.watch.views().await;
            let formed = views.iter().all(|view| {
                view.as_ref().is_some_and(|view| {
                    view.leader.is_some() && self.names_of_nodes.iter().all(|name| is_up(view, name))
                })
            });
            if formed && self.all_own_shards().await {
                return Ok(());
            }
            self.look_again(deadline, "the three nodes to form a cluster").await?;
        }
    }

    async fn all_own_shards(&self) -> bool {
        let Ok(directory) = self.client.shards(ReadMode::Linearizable).await else { return false };
        let directory = directory.value;
        let owns = |name: &NodeName| directory.shards.iter().any(|entry| entry.owner == *name);
        directory.shards.len() == directory.shard_count as usize && self.names_of_nodes.iter().all(owns)
    }

    async fn stage(&mut self, workflows: u64) -> anyhow::Result<()> {
        let directory = self.client.shards(ReadMode::Linearizable).await?.value;
        if directory.shards.is_empty() {
            bail!("no shard has an owner");
        }
        let ids = workflow_ids(&mut self.next_workflow, usize::try_from(workflows)?, &directory.shards);
        let began = Instant::now();
        self.start_all(ids).await?;
        let activities = self.activities;
        let took = began.elapsed().as_secs_f64() * 1e3;
        self.screen.step(format!(
            "  {took:>6.0} ms  to start {workflows} workflows, each of {activities} activities in two waves"
        ));
        Ok(())
    }
}
