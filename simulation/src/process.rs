//! What runs on a machine: the node, as the `holdfast` program would run it, started again whenever it has ended.

use std::sync::Arc;
use std::time::Duration;

use holdfast_node::{Config, Node};
use holdfast_raft::Environment;
use holdfast_storage::state::StateKind;

use crate::host::Host;
use crate::network::SimNetwork;
use crate::rpc;
use crate::watch::Inside;
use crate::world::World;

/// Where nodes listen to their peers.
const PEER_PORT: u16 = 7700;
/// Pause before a process that has ended is started again.
const RESTART: Duration = Duration::from_millis(300);
/// How long a node may take to stop in good order: what its configuration allows, and a moment to close.
const STOP: Duration = Duration::from_secs(17);
/// How long a node that has failed may take to let go.
const LET_GO: Duration = Duration::from_secs(5);

/// Runs the node for as long as the machine has power.
pub async fn run(host: Arc<Host>, world: Arc<World>) -> turmoil::Result {
    loop {
        let environment = environment(&host, &world);
        match Node::start_in(config(&host, &world), environment).await {
            Ok(node) => live(node, &host, &world).await?,
            Err(error) => world.did_not_start(&host, &error.to_string()),
        }
        host.process_ends();
        tokio::time::sleep(RESTART).await;
    }
}

async fn live(node: Node, host: &Arc<Host>, world: &Arc<World>) -> std::io::Result<()> {
    world.record.note(format_args!("{} started", host.name));
    world.record.count("node started");
    host.runs(Some(node.raft().clone()));
    let served = rpc::serve(node.store(), node.raft().clone(), host.clone(), world.clone());
    let reason = tokio::select! {
        reason = node.failed() => reason,
        served = served => return served,
        () = host.stop.notified() => {
            let stopped = tokio::time::timeout(STOP, node.shutdown()).await.is_ok();
            world.record.note(format_args!("{} has stopped in good order: {stopped}", host.name));
            if !stopped {
                world.record.broken(format_args!("{} does not stop within {STOP:?}", host.name));
            }
            return Ok(());
        }
    };
    world.node_failed(host, &reason);
    host.runs(None);
    if tokio::time::timeout(LET_GO, node.abort()).await.is_err() {
        world.record.broken(format_args!("{} has failed and does not let go", host.name));
    }
    Ok(())
}

fn environment(host: &Arc<Host>, world: &Arc<World>) -> Environment {
    let pace = host.pace.clone();
    let mut storage = holdfast_storage::Options { disk: Arc::new(host.boot()), ..Default::default() };
    storage.state.kind = StateKind::Plain;
    storage.log.segment_bytes = world.settings.segment_bytes;
    storage.log.cache_bytes = 1 << 20;
    Environment {
        clock: host.clock.clone(),
        network: Arc::new(SimNetwork { node: host.name.to_string(), wires: world.wires.clone() }),
        storage,
        write_pause: Some(Arc::new(move || pace.next())),
        observer: Some(Arc::new(Inside { node: host.name.clone(), watch: world.watch.clone() })),
    }
}

fn config(host: &Host, world: &World) -> Config {
    let mut config = Config {
        node_name: Some(host.name.clone()),
        cluster_id: "simulation".to_owned(),
        // All of this is on the simulated network.
        insecure_allow_remote: true,
        http_listen: ([0, 0, 0, 0], rpc::PORT).into(),
        peer_listen: ([0, 0, 0, 0], PEER_PORT).into(),
        data_dir: "/data".into(),
        shard_count: world.settings.shards,
        ..Config::default()
    };
    for host in &world.hosts {
        config.members = config.members.with(host.name.clone(), format!("{}:{PEER_PORT}", host.name));
    }
    config.raft.snapshot_after = world.settings.snapshot_after;
    config.raft.logs_kept = world.settings.logs_kept;
    config.raft.heartbeat_ms = world.settings.heartbeat_ms;
    config.raft.election_min_ms = world.settings.heartbeat_ms * 4;
    config.raft.election_max_ms = world.settings.heartbeat_ms * 8;
    config.detector.silence_ms = world.settings.heartbeat_ms * 12;
    config.raft.checkpoint_ms = 2_000;
    config.auto_replace = world.settings.auto_replace;
    config.reconcile.interval_ms = 1_000;
    config.reconcile.older_than_ms = 5_000;
    config.adoption.first_assignment_grace_ms = 2_000;
    config
}
