//! One run: a cluster is formed, goes through faults with safety held against it all along, is healed, and must then
//! finish everything within a bound.

use std::sync::Arc;
use std::time::Duration;

use holdfast_checkers::history::Asked;
use holdfast_checkers::{linearizability, witness};
use holdfast_machine::NodeName;
use holdfast_storage::fault::Random;
use serde::{Deserialize, Serialize};
use turmoil::{Builder, Sim};

use crate::clients::{self, Caller};
use crate::draw::Draw;
use crate::faults::Faults;
use crate::host::Host;
use crate::process;
use crate::record::Record;
use crate::world::{Settings, World};

/// How long a cluster may take to form.
const FORM_MS: u64 = 30_000;
/// How long a healed cluster may take to finish everything.
const FINISH_MS: u64 = 90_000;
/// Nodes are looked at this often.
const LOOK_MS: u64 = 5;

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Everything follows from this.
    pub seed: u64,
    /// How long there are faults, in simulated milliseconds.
    pub faults_ms: u64,
    /// Shows each event.
    pub aloud: bool,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What does not hold, if something does not.
    pub broken: Option<String>,
    /// The digest over all events, and how many there were.
    pub digest: String,
    /// How many events there were.
    pub events: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// What was covered.
    pub counts: std::collections::BTreeMap<String, u64>,
    /// The last events of a red run.
    pub tail: Vec<String>,
}

/// Runs a plan. The caller has seen to it that this thread's chance and time are the plan's own.
///
/// # Errors
/// When the world cannot be set up.
pub fn run(plan: Plan) -> anyhow::Result<Report> {
    let record = Record::new(plan.aloud);
    let mut random = Random(plan.seed);
    let settings = Settings::draw(&mut random);
    record.note(format_args!("{settings:?}"));
    let world = Arc::new(World::new(settings, random.fork(), record.clone())?);
    let mut stage = Stage::set(world.clone(), &mut random);
    let mut faults = Faults::new(world.clone(), random.fork());

    stage.until(FORM_MS, |stage| stage.is_formed(), "the cluster was not formed");
    stage.for_a_while(plan.faults_ms, |stage| faults.step(&mut stage.sim, stage.now_ms));
    if !stage.is_red() {
        record.note("healed");
        faults.heal(&mut stage.sim, stage.now_ms);
        world.faults_are_over();
        let begun = stage.now_ms;
        stage.until(
            FINISH_MS,
            |stage| stage.clients_are_done && stage.is_at_rest(),
            "the cluster did not come to rest",
        );
        record.note(format_args!("at rest after {} ms", stage.now_ms - begun));
    }
    if !stage.is_red() {
        stage.check_the_whole();
    }
    if !record.counts().keys().any(|what| what.starts_with("fault")) || record.counted("call ok") == 0 {
        record.broken("this run has shown nothing");
    }
    Ok(stage.report(plan.seed))
}

/// The simulation, and what moves it on.
struct Stage {
    sim: Sim<'static>,
    world: Arc<World>,
    now_ms: u64,
    clients_are_done: bool,
}

impl Stage {
    fn set(world: Arc<World>, random: &mut Random) -> Self {
        let millis = Duration::from_millis;
        let (low, high) = world.settings.message_ms;
        let mut sim = Builder::new()
            .tick_duration(millis(1))
            .simulation_duration(Duration::MAX)
            .min_message_latency(millis(low))
            .max_message_latency(millis(high))
            .tcp_capacity(64 * 1024)
            .rng_seed(random.next_number())
            .enable_random_order()
            .build();
        for host in &world.hosts {
            let (name, host, world) = (host.name.to_string(), host.clone(), world.clone());
            sim.host(name, move || process::run(host.clone(), world.clone()));
        }
        let mut number = 0;
        let mut caller = |name: String| {
            number += 1;
            Caller::new(name, number, world.clone(), random.fork())
        };
        for name in world.settings.client_names() {
            let caller = caller(name.clone());
            match name.split('-').next() {
                Some("engine") => sim.client(name, clients::engine(caller)),
                Some("worker") => sim.client(name, clients::worker(caller)),
                Some("session") => sim.client(name, clients::session(caller)),
                Some("appender") => sim.client(name, clients::appender(caller)),
                _ => sim.client(name, clients::operator(caller)),
            }
        }
        Self { sim, world, now_ms: 0, clients_are_done: false }
    }

    fn is_red(&self) -> bool {
        self.world.record.first_broken().is_some()
    }

    fn step(&mut self) {
        self.now_ms += 1;
        self.world.now_is(self.now_ms);
        match self.sim.step() {
            Ok(done) => self.clients_are_done = done,
            Err(error) => self.world.record.broken(error),
        }
        if self.now_ms.is_multiple_of(LOOK_MS) {
            for host in &self.world.hosts {
                if let Some(node) = host.node() {
                    self.world.watch.look(host, &node);
                }
            }
            self.notice_replacements();
        }
    }

    /// Once all nodes run and have the same members, each under one id and each of them voting, nobody is being replaced.
    fn notice_replacements(&self) {
        let hosts = &self.world.hosts;
        let settled = |host: &Arc<Host>| {
            host.node().is_some_and(|node| {
                let status = node.status();
                let votes = status.members.len() == hosts.len() && status.members.iter().all(|member| member.voter);
                votes && status.replacements.is_empty() && status.members.iter().any(|member| member.id == status.node)
            })
        };
        if !hosts.iter().any(|host| host.is_lost()) || !hosts.iter().all(settled) {
            return;
        }
        for host in hosts.iter().filter(|host| host.is_let_in()) {
            self.world.record.count("member replaced");
            self.world.record.note(format_args!("{} is a member with all data again", host.name));
        }
    }

    fn for_a_while(&mut self, ms: u64, mut each: impl FnMut(&mut Self)) {
        let until = self.now_ms + ms;
        while self.now_ms < until && !self.is_red() {
            each(self);
            self.step();
        }
    }

    fn until(&mut self, limit_ms: u64, is_so: impl Fn(&Self) -> bool, or_else: &str) {
        let until = self.now_ms + limit_ms;
        while !self.is_red() && !is_so(self) {
            if self.now_ms >= until {
                self.world.record.broken(format_args!("{or_else} within {limit_ms} ms: {}", self.state()));
            }
            self.step();
        }
    }

    /// Every node knows that all have booted, and each shard has an owner.
    fn is_formed(&self) -> bool {
        self.world.hosts.iter().all(|host| {
            host.node().is_some_and(|node| {
                node.view(|machine, _| {
                    machine.shards().count() == self.world.settings.shards as usize
                        && machine.members().filter(|member| member.serves()).count() == self.world.hosts.len()
                })
            })
        })
    }

    /// One leader, equal states, no shard without a living owner, no row that is not finished.
    fn is_at_rest(&self) -> bool {
        let nodes: Vec<_> = self.world.hosts.iter().filter_map(|host| host.node()).collect();
        if nodes.len() < self.world.hosts.len() {
            return false;
        }
        let same =
            |of: &dyn Fn(&holdfast_raft::Handle) -> (u64, u64)| nodes.iter().all(|node| of(node) == of(&nodes[0]));
        let leader = |node: &holdfast_raft::Handle| {
            let status = node.status();
            (status.leader.unwrap_or(0), status.term)
        };
        let state = |node: &holdfast_raft::Handle| node.view(|machine, _| (machine.applied(), machine.state_hash()));
        let settled = nodes[0].view(|machine, _| {
            let serves = |name: &NodeName| machine.member(name).is_some_and(|member| member.serves());
            let rows = machine.row_counts();
            rows.pending == 0 && rows.claimed == 0 && machine.shards().all(|entry| serves(&entry.owner))
        });
        leader(&nodes[0]).0 != 0 && same(&leader) && same(&state) && settled
    }

    /// What one sees of the nodes, for whoever has to find out why they do not get on.
    fn state(&self) -> String {
        let of = |host: &Arc<Host>| match host.node() {
            None => format!("{}: off", host.name),
            Some(node) => {
                let status = node.status();
                let (hash, rows) = node.view(|machine, _| (machine.state_hash(), machine.row_counts()));
                let (leader, term, last) = (status.leader, status.term, status.last);
                let (committed, applied) = (status.committed, status.applied);
                let lives: Vec<_> =
                    status.members.iter().map(|member| (member.id, member.liveness, &member.link_problem)).collect();
                format!(
                    "{}: leader {leader:?} term {term} last {last:?} committed {committed:?} applied {applied:?} \
                     hash {hash:016x} rows {rows:?} members {lives:?}",
                    host.name
                )
            }
        };
        let nodes: Vec<String> = self.world.hosts.iter().map(of).collect();
        format!("clients done: {}; {}", self.clients_are_done, nodes.join("; "))
    }

    /// What can be said once all is over: by the log, and by what clients were told.
    fn check_the_whole(&mut self) {
        let (world, record) = (&self.world, &self.world.record);
        let Some(node) = world.hosts[0].node() else { return };
        let entries = world.watch.replay(node.view(|machine, _| machine.state_hash()));
        record.note(format_args!("{entries} entries played again"));
        let has_leapt = world.leaps() && record.counted("fault: clock stepped") > 0;
        if has_leapt || record.first_broken().is_some() {
            return;
        }
        let calls = world.calls.history();
        let mut histories = witness::Histories::new();
        let written = calls.iter().filter_map(|call| match &call.asked {
            Asked::Write(request) => request.command.workflow(),
            _ => None,
        });
        for workflow in written {
            if !histories.contains_key(workflow) {
                match node.view(|machine, archive| machine.history(archive, workflow, 1, usize::MAX)) {
                    Ok(events) => _ = histories.insert(workflow.clone(), events),
                    Err(error) => record.broken(error),
                }
            }
        }
        match witness::judge(&calls, &histories) {
            Ok(report) => record.note(format_args!("{report:?}")),
            Err(broken) => record.broken(broken),
        }
        match linearizability::judge(&calls).passed() {
            Ok(()) => record.count("run judged by its calls"),
            Err(why) => record.broken(why),
        }
    }

    fn report(self, seed: u64) -> Report {
        let record = &self.world.record;
        let (digest, events) = record.digest();
        let mut counts = record.counts();
        let watch = &self.world.watch;
        counts.insert("terms with a leader".to_owned(), watch.elections() as u64);
        counts.insert("states compared".to_owned(), watch.compared());
        counts.insert("epochs of shards".to_owned(), watch.owners() as u64);
        let broken = record.first_broken();
        let tail = if broken.is_some() { record.tail() } else { Vec::new() };
        Report { seed, broken, digest: format!("{digest:016x}"), events, simulated_ms: self.now_ms, counts, tail }
    }
}
