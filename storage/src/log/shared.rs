//! What the log and its writer share: the tail, the queue of operations, and the writer's thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::tail::Tail;
use super::writer::{Completion, Full, Op, Writer};
use super::{LogStats, lock};

/// How long the log must be idle before the durable mark is brought up to date.
const IDLE_BEFORE_MARK: Duration = Duration::from_secs(1);

/// How often a full disk is tried again.
const FULL_DISK_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Shared {
    tail: Mutex<Tail>,
    queue: Mutex<Queue>,
    wake: Condvar,
    full: AtomicBool,
    groups: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    closing: bool,
    /// Nobody takes operations from here any more.
    abandoned: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} operations", self.ops.len())
    }
}

/// What the writer's thread found when it asked for work.
enum Next {
    Work(VecDeque<Op>),
    Idle,
    Closed,
}

impl Shared {
    pub(super) fn new(tail: Tail) -> Shared {
        Shared {
            tail: Mutex::new(tail),
            queue: Mutex::default(),
            wake: Condvar::new(),
            full: AtomicBool::new(false),
            groups: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        lock(&self.tail)
    }

    pub(super) fn enqueue(&self, op: Op) {
        let mut queue = lock(&self.queue);
        if queue.abandoned {
            drop(queue);
            return op.refuse();
        }
        queue.ops.push_back(op);
        drop(queue);
        self.wake.notify_one();
    }

    /// All that waits, to be written now.
    pub(super) fn take(&self) -> VecDeque<Op> {
        std::mem::take(&mut lock(&self.queue).ops)
    }

    /// Lets operations wait again, in front of those that have come meanwhile.
    pub(super) fn put_back(&self, mut ops: VecDeque<Op>) {
        let mut queue = lock(&self.queue);
        ops.append(&mut queue.ops);
        queue.ops = ops;
    }

    /// Takes the newest operation back; what it is of is the caller's business.
    pub(super) fn withdraw(&self) {
        lock(&self.queue).ops.pop_back();
    }

    /// Refuses what waits and all that comes: the writer's thread is gone.
    pub(super) fn abandon(&self) {
        let ops = {
            let mut queue = lock(&self.queue);
            queue.abandoned = true;
            std::mem::take(&mut queue.ops)
        };
        ops.into_iter().for_each(Op::refuse);
    }

    /// Lets the writer's thread end, when the queue is empty.
    pub(super) fn close(&self) {
        lock(&self.queue).closing = true;
        self.wake.notify_all();
    }

    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> LogStats {
        LogStats {
            groups: self.groups.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    /// The writer's thread: until the log is closed and the queue is empty.
    pub(super) fn run(&self, mut writer: Writer) {
        loop {
            match self.next(writer.mark_is_behind()) {
                Next::Work(mut ops) => {
                    let mut left = true;
                    while left {
                        let mut completions = Vec::new();
                        left = self.work(&mut writer, &mut ops, &mut completions);
                        report(completions);
                        if self.is_full() && !self.wait_for_space() {
                            report(writer.abandon());
                            return ops.into_iter().for_each(Op::refuse);
                        }
                    }
                }
                Next::Idle => writer.refresh_mark(),
                Next::Closed => return writer.refresh_mark(),
            }
        }
    }

    /// Performs operations to the end of a group; true if any are left.
    pub(super) fn work(&self, writer: &mut Writer, ops: &mut VecDeque<Op>, ended: &mut Vec<Completion>) -> bool {
        let performed = writer.perform(ops, ended);
        self.note_space(performed.is_ok());
        !ops.is_empty() || matches!(performed, Err(Full))
    }

    fn next(&self, mark_is_behind: bool) -> Next {
        let mut queue = lock(&self.queue);
        loop {
            if !queue.ops.is_empty() {
                return Next::Work(std::mem::take(&mut queue.ops));
            }
            if queue.closing {
                return Next::Closed;
            }
            if mark_is_behind {
                let waited = self.wake.wait_timeout(queue, IDLE_BEFORE_MARK).unwrap_or_else(PoisonError::into_inner);
                if waited.1.timed_out() && waited.0.ops.is_empty() {
                    return Next::Idle;
                }
                queue = waited.0;
            } else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits a little for a full disk to get space; false when the log is being closed.
    fn wait_for_space(&self) -> bool {
        thread::sleep(FULL_DISK_RETRY);
        !lock(&self.queue).closing
    }

    fn note_space(&self, has_space: bool) {
        match (self.full.swap(!has_space, Ordering::Relaxed), has_space) {
            (false, false) => tracing::error!("the disk is full: the log waits for space"),
            (true, true) => tracing::info!("the log no longer waits for space"),
            _ => {}
        }
    }

    pub(super) fn count_group(&self, records: usize, bytes: usize) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Calls back whoever waits, in order.
pub(super) fn report(completions: Vec<Completion>) {
    for (done, result) in completions {
        done(result);
    }
}
