//! What the log and its writer share: the tail, the queue of operations, and the writer's thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::tail::Tail;
use super::writer::{Completion, Op, Writer};
use super::{LogStats, lock};

/// How long the log must be idle before the durable mark is brought up to date.
const IDLE_BEFORE_MARK: Duration = Duration::from_secs(1);

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
                    while !ops.is_empty() {
                        report(writer.perform(&mut ops));
                    }
                }
                Next::Idle => writer.refresh_mark(),
                Next::Closed => return writer.refresh_mark(),
            }
        }
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
    pub(super) fn wait_for_space(&self, pause: Duration) -> bool {
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::error!("the disk is full: the log waits for space");
        }
        thread::sleep(pause);
        !lock(&self.queue).closing
    }

    pub(super) fn has_space(&self) {
        if self.full.load(Ordering::Relaxed) {
            self.full.store(false, Ordering::Relaxed);
            tracing::info!("the log no longer waits for space");
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
