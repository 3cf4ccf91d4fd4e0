//! A machine that a node runs on: its disk, its clock, and how long the disk takes. They outlive the node's process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_machine::NodeName;
use holdfast_raft::{Clock, Handle};
use holdfast_storage::fault::FaultDisk;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::draw::{Draw, Random};

/// When the simulated world begins, in unix milliseconds.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// One machine.
pub struct Host {
    /// The name of the machine and of its node.
    pub name: NodeName,
    /// Its wall clock.
    pub clock: Arc<SimClock>,
    /// How long its disk takes.
    pub pace: Arc<Pace>,
    /// Asks the process to stop in good order.
    pub stop: Notify,
    state: Mutex<State>,
}

struct State {
    disk: FaultDisk,
    /// Which disk it is: grows when an empty one is put in.
    disk_number: u64,
    /// The disk that was taken out, while an empty one is in its place.
    taken_out: Option<(FaultDisk, u64)>,
    /// Its disk is gone for good, and its node has not been let in with the empty one yet.
    lost: bool,
    boots: u64,
    running: Option<Handle>,
}

impl Host {
    /// A machine with an empty disk and a clock that is right.
    pub fn new(name: NodeName, elapsed: Arc<AtomicU64>, random: Random, sync_ms: (u64, u64)) -> Self {
        let clock = SimClock { elapsed, offset_ms: AtomicI64::new(0), drift_ppm: AtomicI64::new(0) };
        let pace = Pace { random: Mutex::new(random), usual_ms: sync_ms, slow_ms: AtomicU64::new(0) };
        let disk = FaultDisk::default();
        let state = State { disk, disk_number: 1, taken_out: None, lost: false, boots: 0, running: None };
        Self { name, clock: Arc::new(clock), pace: Arc::new(pace), stop: Notify::new(), state: Mutex::new(state) }
    }

    /// A process begins; gives the disk that it finds.
    pub fn boot(&self) -> FaultDisk {
        let mut state = self.state.lock();
        state.boots += 1;
        state.disk.clone()
    }

    /// The process runs a node now, or none any more.
    pub fn runs(&self, node: Option<Handle>) {
        self.state.lock().running = node;
    }

    /// The node, while it runs.
    pub fn node(&self) -> Option<Handle> {
        self.state.lock().running.clone()
    }

    /// Its disk as it is now.
    pub fn disk(&self) -> FaultDisk {
        self.state.lock().disk.clone()
    }

    /// Which disk and which process it has.
    pub fn numbers(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.disk_number, state.boots)
    }

    /// The process has ended; what it had written is there.
    pub fn process_ends(&self) {
        let mut state = self.state.lock();
        state.running = None;
        state.disk = state.disk.kill();
    }

    /// The power is lost; what was not synced may be.
    pub fn power_is_lost(&self, seed: u64) {
        let mut state = self.state.lock();
        state.running = None;
        state.disk = state.disk.power_loss(seed);
    }

    /// An empty disk is put in, under a machine that is off.
    pub fn wipe(&self) {
        let mut state = self.state.lock();
        let (disk, number) = (std::mem::take(&mut state.disk), state.disk_number);
        state.taken_out = Some((disk, number));
        state.disk_number = number + 1;
    }

    /// The same, and the disk that was in it is gone for good.
    pub fn lose_disk(&self) {
        let mut state = self.state.lock();
        state.disk = FaultDisk::default();
        state.disk_number += 1;
        state.lost = true;
    }

    /// Its node is a member with all data again, if its disk was lost. True if it was.
    pub fn is_let_in(&self) -> bool {
        std::mem::take(&mut self.state.lock().lost)
    }

    /// True while its node is not let in with the disk that it has in the place of the one that was lost.
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// The disk that was taken out comes back. False if none was.
    pub fn put_back(&self) -> bool {
        let mut state = self.state.lock();
        let Some((disk, number)) = state.taken_out.take() else { return false };
        // Numbers only grow, and what is on the old disk stands for itself.
        state.disk_number += number;
        state.disk = disk;
        true
    }

    /// True while another disk than its own is in the machine.
    pub fn is_wiped(&self) -> bool {
        let state = self.state.lock();
        state.taken_out.is_some() || state.lost
    }
}

/// A wall clock that can be wrong.
pub struct SimClock {
    elapsed: Arc<AtomicU64>,
    offset_ms: AtomicI64,
    drift_ppm: AtomicI64,
}

impl SimClock {
    /// Puts it so far from the right time.
    pub fn set_offset(&self, offset_ms: i64) {
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }

    /// Lets it run too fast or too slow, in millionths.
    pub fn set_drift(&self, ppm: i64) {
        self.drift_ppm.store(ppm, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        let elapsed = self.elapsed.load(Ordering::Relaxed);
        let drift = elapsed as i64 * self.drift_ppm.load(Ordering::Relaxed) / 1_000_000;
        (EPOCH_MS + elapsed).saturating_add_signed(drift + self.offset_ms.load(Ordering::Relaxed))
    }
}

/// How long a disk takes over a write of the log.
pub struct Pace {
    random: Mutex<Random>,
    usual_ms: (u64, u64),
    slow_ms: AtomicU64,
}

impl Pace {
    /// The next write's time.
    pub fn next(&self) -> Duration {
        let (low, high) = self.usual_ms;
        let slow = self.slow_ms.load(Ordering::Relaxed);
        let mut random = self.random.lock();
        let usual = random.between(low, high);
        Duration::from_millis(usual + random.below(slow + 1))
    }

    /// Makes each write take up to so much longer.
    pub fn slow_down(&self, ms: u64) {
        self.slow_ms.store(ms, Ordering::Relaxed);
    }
}
