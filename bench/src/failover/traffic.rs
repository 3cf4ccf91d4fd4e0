//! The writes that go on while a node dies. Each call is followed to its answer; one whose outcome is unknown is made
//! again under the same key, until the truth is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_client::{Client, ClientError, Write};
use holdfast_machine::{IdempotencyKey, TaskQueue};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

use crate::work::{ROWS, Work};

/// How long the truth about one call may take.
const TRUTH_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// How a call was answered at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was not done, and may be tried again.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// A call that has its first answer.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// When it was begun.
    pub begun: Instant,
    /// When it was answered at first.
    pub ended: Instant,
    /// How.
    pub outcome: Outcome,
}

/// Writers, and what they have seen.
#[derive(Debug)]
pub struct Traffic {
    pub work: Arc<Work>,
    calls: Arc<Calls>,
    tasks: JoinSet<Result<()>>,
}

#[derive(Debug, Default)]
struct Calls {
    next: AtomicU64,
    over: AtomicBool,
    /// Writes that are known to have been done.
    done: AtomicU64,
    under_way: Mutex<BTreeSet<u64>>,
    ended: Mutex<BTreeMap<u64, Call>>,
}

impl Traffic {
    /// So many writers, spread over these clients.
    pub fn start(work: Arc<Work>, pool: &[Client], writers: usize) -> Self {
        let calls = Arc::new(Calls::default());
        let mut tasks = JoinSet::new();
        for number in 0..writers {
            let client = pool[number % pool.len()].clone();
            tasks.spawn(write(Arc::clone(&work), Arc::clone(&calls), client, number));
        }
        Self { work, calls, tasks }
    }

    /// The calls that have no answer at this moment.
    pub fn under_way(&self) -> BTreeSet<u64> {
        self.calls.under_way.lock().clone()
    }

    /// The first answers of these calls, if all of them have one.
    pub fn answers(&self, calls: &BTreeSet<u64>) -> Option<Vec<Call>> {
        let ended = self.calls.ended.lock();
        calls.iter().map(|call| ended.get(call).copied()).collect()
    }

    /// The longest time without an acknowledged write from then on; none while none has come since `until`.
    pub fn longest_gap(&self, since: Instant, until: Instant) -> Option<Duration> {
        let ended = self.calls.ended.lock();
        let done = ended.values().filter(|call| call.outcome == Outcome::Done && call.ended > since);
        let mut at: Vec<Instant> = done.map(|call| call.ended).collect();
        at.sort();
        at.last().filter(|last| **last > until)?;
        let before = std::iter::once(since).chain(at.iter().copied());
        before.zip(&at).map(|(before, at)| at.saturating_duration_since(before)).max()
    }

    /// Forgets the calls that have been looked at.
    pub fn forget(&self) {
        self.calls.ended.lock().clear();
    }

    /// Fails if a writer has ended by itself.
    ///
    /// # Errors
    /// What it met.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            Some(ended) => ended?,
            None => Ok(()),
        }
    }

    /// Ends the writers; returns how many writes were done.
    ///
    /// # Errors
    /// What a writer met that should not have been.
    pub async fn stop(mut self) -> Result<u64> {
        self.calls.over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(self.calls.done.load(Ordering::SeqCst))
    }
}

async fn write(work: Arc<Work>, calls: Arc<Calls>, client: Client, number: usize) -> Result<()> {
    let queue = TaskQueue::default();
    for workflow in 0.. {
        if calls.over.load(Ordering::SeqCst) {
            break;
        }
        let opening = work.opening(work.id(number, workflow)?, ROWS, &queue)?;
        let key = IdempotencyKey::new(Uuid::now_v7().to_string())?;
        let call = calls.next.fetch_add(1, Ordering::SeqCst);
        calls.under_way.lock().insert(call);
        let begun = Instant::now();
        let mut result = client.commit(opening.clone(), Write::keyed(key.clone())).await.map(drop);
        let (ended, outcome) = (Instant::now(), outcome(&result));
        calls.ended.lock().insert(call, Call { begun, ended, outcome });
        calls.under_way.lock().remove(&call);
        while let Err(error) = result {
            if !error.is_retryable() {
                return Err(error).context("a write under a failover was refused for good");
            }
            if begun.elapsed() > TRUTH_WITHIN {
                bail!("a write is still undecided after {TRUTH_WITHIN:?}: {error}");
            }
            sleep(PAUSE).await;
            result = client.commit(opening.clone(), Write::keyed(key.clone())).await.map(drop);
        }
        calls.done.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

fn outcome(result: &Result<(), ClientError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(ClientError::Unknown(_)) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}
