//! What goes wrong, drawn from the seed, each for a while. Which kinds a run has at all is drawn too: a few kinds at a time
//! go deeper than all at once.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

use holdfast_storage::fault::{Change, Fault};
use turmoil::Sim;

use crate::draw::{Draw, Random};
use crate::host::Host;
use crate::world::World;

/// The kinds of faults.
const KINDS: [Kind; 16] = [
    Kind::Partition,
    Kind::OneWay,
    Kind::Isolate,
    Kind::Delay,
    Kind::Blink,
    Kind::Restart,
    Kind::Crash,
    Kind::CrashAll,
    Kind::CrashInWrite,
    Kind::FailedSync,
    Kind::Wipe,
    Kind::Lose,
    Kind::Clock,
    Kind::SlowDisk,
    Kind::FullDisk,
    Kind::Stall,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Partition,
    OneWay,
    Isolate,
    Delay,
    Blink,
    Restart,
    Crash,
    CrashAll,
    CrashInWrite,
    FailedSync,
    /// An empty disk is in the machine for a while.
    Wipe,
    /// It stays, and the node is replaced.
    Lose,
    Clock,
    SlowDisk,
    FullDisk,
    /// Nothing comes in or goes out, from clients neither, and the disk hardly moves; then all of it comes at once.
    Stall,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Partition => "fault: partition",
            Self::OneWay => "fault: one-way partition",
            Self::Isolate => "fault: node cut off",
            Self::Delay => "fault: messages delayed",
            Self::Blink => "fault: link blinks",
            Self::Restart => "fault: stopped in good order",
            Self::Crash => "fault: crash",
            Self::CrashAll => "fault: crash of all",
            Self::CrashInWrite => "fault: crash in a write",
            Self::FailedSync => "fault: failed sync",
            Self::Wipe => "fault: wiped disk",
            Self::Lose => "fault: lost disk",
            Self::Clock => "fault: clock stepped",
            Self::SlowDisk => "fault: slow disk",
            Self::FullDisk => "fault: full disk",
            Self::Stall => "fault: node stalled",
        }
    }
}

/// How a fault ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Mend(usize, usize),
    Start(usize),
    /// The disk that was taken out comes back, and the machine starts.
    PutBack(usize),
    CrashIfStopped(usize),
    UsualPace(usize),
    /// What was held comes.
    GoOn(usize),
    Space(usize),
    RightClock,
}

/// The faults of a run.
pub struct Faults {
    world: Arc<World>,
    random: Random,
    kinds: Vec<Kind>,
    mean_ms: u64,
    next_ms: u64,
    ends: BTreeMap<(u64, u64), End>,
    number: u64,
    /// How far ahead any clock ever was.
    ahead_ms: i64,
}

impl Faults {
    /// Draws which kinds there will be; the first comes a little later.
    pub fn new(world: Arc<World>, mut random: Random) -> Self {
        let all = random.chance(25);
        let kinds: Vec<Kind> = KINDS.into_iter().filter(|_| all || random.chance(45)).collect();
        let kinds = if kinds.is_empty() { vec![Kind::Crash] } else { kinds };
        let mean_ms = *random.pick(&[300, 700, 1_500, 3_000]);
        world.record.note(format_args!("faults about every {mean_ms} ms: {kinds:?}"));
        Self { world, random, kinds, mean_ms, next_ms: 0, ends: BTreeMap::new(), number: 0, ahead_ms: 0 }
    }

    /// Ends what is over, and begins what is due.
    pub fn step(&mut self, sim: &mut Sim<'_>, now_ms: u64) {
        while let Some(entry) = self.ends.first_entry() {
            if entry.key().0 > now_ms {
                break;
            }
            let end = entry.remove();
            self.end(sim, end, now_ms);
        }
        if now_ms >= self.next_ms {
            self.next_ms = now_ms + self.random.between(self.mean_ms / 4, self.mean_ms * 2);
            let kind = *self.random.pick(&self.kinds);
            self.begin(sim, kind, now_ms);
        }
    }

    /// Ends all that goes wrong, and lets every machine run.
    pub fn heal(&mut self, sim: &mut Sim<'_>, now_ms: u64) {
        for (_, end) in std::mem::take(&mut self.ends) {
            self.end(sim, end, now_ms);
        }
        for a in 0..self.world.hosts.len() {
            self.end(sim, End::UsualPace(a), now_ms);
            self.end(sim, End::Space(a), now_ms);
            if self.host(a).is_wiped() && !self.host(a).is_lost() {
                self.end(sim, End::PutBack(a), now_ms);
            }
            self.start(sim, a);
        }
        sim.set_max_message_latency(std::time::Duration::from_millis(self.world.settings.message_ms.1));
        self.end(sim, End::RightClock, now_ms);
    }

    fn host(&self, node: usize) -> Arc<Host> {
        self.world.hosts[node].clone()
    }

    fn name(&self, node: usize) -> String {
        self.world.hosts[node].name.to_string()
    }

    /// All that a node talks to: the others, and the clients.
    fn neighbours(&self, node: usize) -> Vec<String> {
        let others = (0..self.world.hosts.len()).filter(|other| *other != node).map(|other| self.name(other));
        others.chain(self.world.settings.client_names()).collect()
    }

    fn some_node(&mut self) -> usize {
        self.random.below(self.world.hosts.len() as u64) as usize
    }

    fn some_pair(&mut self) -> (usize, usize) {
        let (a, step) = (self.some_node(), self.random.between(1, self.world.hosts.len() as u64 - 1));
        (a, (a + step as usize) % self.world.hosts.len())
    }

    fn later(&mut self, now_ms: u64, low_ms: u64, high_ms: u64, end: End) {
        let at = now_ms + self.random.between(low_ms, high_ms);
        self.number += 1;
        self.ends.insert((at, self.number), end);
    }

    fn begin(&mut self, sim: &mut Sim<'_>, kind: Kind, now_ms: u64) {
        let (a, b) = self.some_pair();
        self.world.record.count(kind.name());
        self.world.record.note(format_args!("{} {} {}", kind.name(), self.name(a), self.name(b)));
        match kind {
            Kind::Partition => self.part(sim, a, b, now_ms),
            Kind::OneWay => {
                sim.partition_oneway(self.name(a), self.name(b));
                self.later(now_ms, 200, 8_000, End::Mend(a, b));
            }
            Kind::Isolate => {
                for other in (0..self.world.hosts.len()).filter(|other| *other != a) {
                    self.part(sim, a, other, now_ms);
                }
            }
            Kind::Delay => {
                sim.hold(self.name(a), self.name(b));
                self.later(now_ms, 20, 1_500, End::Mend(a, b));
            }
            Kind::Blink => _ = self.world.wires.cut(&self.name(a), &self.name(b)),
            Kind::Restart => self.host(a).stop.notify_one(),
            Kind::Crash => self.crash(sim, a, now_ms),
            Kind::CrashAll => (0..self.world.hosts.len()).for_each(|node| self.crash(sim, node, now_ms)),
            Kind::CrashInWrite => {
                let most = *self.random.pick(&[10, 40, 400]);
                let changes = self.random.below(most);
                self.host(a).disk().fail_after(changes, Fault::Stop);
                self.later(now_ms, 50, 1_000, End::CrashIfStopped(a));
            }
            Kind::FailedSync => self.host(a).disk().fail_after_some(Change::Sync, 0, Fault::Once(ErrorKind::Other)),
            Kind::Wipe => self.wipe(sim, a, now_ms),
            Kind::Lose => self.lose(sim, a, now_ms),
            Kind::Clock => self.step_clock(a, now_ms),
            Kind::SlowDisk => {
                let slow_ms = *self.random.pick(&[50, 200, 1_500]);
                self.host(a).pace.slow_down(slow_ms);
                self.later(now_ms, 500, 6_000, End::UsualPace(a));
            }
            Kind::FullDisk => {
                let disk = self.host(a).disk();
                disk.set_capacity(Some(disk.used() + self.random.below(20_000)));
                self.later(now_ms, 500, 8_000, End::Space(a));
            }
            Kind::Stall => {
                let longest_ms = *self.random.pick(&[200, 1_000, 6_000]);
                self.host(a).pace.slow_down(longest_ms);
                self.neighbours(a).iter().for_each(|other| sim.hold(self.name(a), other.as_str()));
                self.later(now_ms, longest_ms / 4, longest_ms, End::GoOn(a));
            }
        }
    }

    /// Nothing gets through between two; what is sent is lost, or comes late.
    fn part(&mut self, sim: &mut Sim<'_>, a: usize, b: usize, now_ms: u64) {
        let (one, other) = (self.name(a), self.name(b));
        if self.random.chance(50) {
            sim.partition(one, other)
        } else {
            sim.hold(one, other)
        }
        self.later(now_ms, 200, 10_000, End::Mend(a, b));
    }

    fn crash(&mut self, sim: &mut Sim<'_>, node: usize, now_ms: u64) {
        let down_ms = *self.random.pick(&[50, 400, 3_000, 12_000]);
        self.stop(sim, node);
        self.later(now_ms, down_ms / 2, down_ms, End::Start(node));
    }

    /// The power goes, or the process is killed; its peers hear of it, or do not.
    fn stop(&mut self, sim: &mut Sim<'_>, node: usize) {
        let (name, seed) = (self.name(node), self.random.next_number());
        if !sim.is_host_running(name.as_str()) {
            return;
        }
        let (power, silent) = (self.random.chance(70), self.random.chance(30));
        let others: Vec<String> = (0..self.world.hosts.len()).filter(|n| *n != node).map(|n| self.name(n)).collect();
        if silent {
            others.iter().for_each(|other| sim.partition(name.as_str(), other.as_str()));
        }
        let host = self.host(node);
        if power {
            host.power_is_lost(seed)
        } else {
            host.process_ends()
        }
        sim.crash(name.as_str());
        if silent {
            others.iter().for_each(|other| sim.release(name.as_str(), other.as_str()));
        }
        self.world.record.note(format_args!("{name} is off, power lost: {power}, silently: {silent}"));
    }

    fn start(&mut self, sim: &mut Sim<'_>, node: usize) {
        let name = self.name(node);
        if !sim.is_host_running(name.as_str()) {
            self.world.record.note(format_args!("{name} is on"));
            sim.bounce(name.as_str());
        }
    }

    /// A minority at most, and only once the cluster knows the disk that is taken away. Where leaders replace by themselves
    /// no disk comes back: it would be one that was replaced.
    fn wipe(&mut self, sim: &mut Sim<'_>, node: usize, now_ms: u64) {
        if self.world.settings.auto_replace {
            return self.lose(sim, node, now_ms);
        }
        if self.world.hosts.iter().any(|host| host.is_wiped()) {
            return;
        }
        self.stop(sim, node);
        self.host(node).wipe();
        self.later(now_ms, 100, 2_000, End::Start(node));
        self.later(now_ms, 4_000, 15_000, End::PutBack(node));
    }

    /// The same without a way back. It may happen once more to the one that is being replaced.
    fn lose(&mut self, sim: &mut Sim<'_>, node: usize, now_ms: u64) {
        let wiped = |(other, host): (usize, &Arc<Host>)| host.is_wiped() && (other != node || !host.is_lost());
        if self.world.hosts.iter().enumerate().any(wiped) {
            return;
        }
        self.stop(sim, node);
        let again = self.host(node).is_lost();
        self.host(node).lose_disk();
        self.world.record.count(if again { "disk lost during a replacement" } else { "disk lost" });
        self.later(now_ms, 100, 2_000, End::Start(node));
    }

    fn step_clock(&mut self, node: usize, now_ms: u64) {
        let step = self.world.settings.clock_step_ms;
        let offset = match self.random.below(4) {
            0 => step,
            1 => -step,
            _ => self.random.between(0, 10_000) as i64 - 5_000,
        };
        self.ahead_ms = self.ahead_ms.max(offset + 1_000);
        let host = self.host(node);
        host.clock.set_offset(offset);
        host.clock.set_drift(self.random.between(0, 2_000) as i64 - 1_000);
        self.world.record.note(format_args!("{} is {offset} ms ahead", host.name));
        self.later(now_ms, 3_000, 15_000, End::RightClock);
    }

    fn end(&mut self, sim: &mut Sim<'_>, end: End, now_ms: u64) {
        match end {
            End::Mend(a, b) => {
                sim.release(self.name(a), self.name(b));
                // What was lost on the way is not sent again here, as TCP would; so connections often end with it.
                if self.random.chance(60) {
                    self.world.wires.cut(&self.name(a), &self.name(b));
                }
                self.world.record.note(format_args!("mended: {} {}", self.name(a), self.name(b)));
            }
            End::Start(node) => self.start(sim, node),
            End::PutBack(node) => {
                self.stop(sim, node);
                let back = self.host(node).put_back();
                self.world.record.note(format_args!("{} has its disk back: {back}", self.name(node)));
                self.start(sim, node);
            }
            End::CrashIfStopped(node) => {
                if self.host(node).disk().has_stopped() {
                    self.crash(sim, node, now_ms);
                }
            }
            End::UsualPace(node) => self.host(node).pace.slow_down(0),
            End::GoOn(node) => {
                self.host(node).pace.slow_down(0);
                self.neighbours(node).iter().for_each(|other| sim.release(self.name(node), other.as_str()));
                self.world.record.note(format_args!("{} goes on", self.name(node)));
            }
            End::Space(node) => self.host(node).disk().set_capacity(None),
            // Log time never goes back, so clocks are right again once all have come to the foremost.
            End::RightClock => {
                for host in &self.world.hosts {
                    host.clock.set_drift(0);
                    host.clock.set_offset(self.ahead_ms);
                }
            }
        }
    }
}
