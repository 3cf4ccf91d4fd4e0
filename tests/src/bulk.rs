//! History by the gigabyte: writers that append large events to workflows of their own, and a reader that knows every byte
//! of what was acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, HistoryEvent, NewEvent, Payload, WorkflowId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::work;

/// Writers, and the readers at the end.
const HANDS: usize = 8;
/// Bytes of an event's payload.
const EVENT_BYTES: usize = 16 * 1024;
/// The part of them that does not become less by compression; the rest does, as most of a text does.
const NOISE_BYTES: usize = EVENT_BYTES / 4;
/// Events of one call.
const EVENTS: u64 = 4;
/// Calls that one workflow grows by, the one that opens it left out.
const CALLS: u64 = 16;
/// Between two calls of a writer that walks.
const STEP: Duration = Duration::from_millis(200);
/// Payloads are cut out of this much noise.
const POOL_BYTES: usize = 1 << 20;

static POOL: LazyLock<Bytes> = LazyLock::new(|| {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    std::iter::repeat_with(next).take(POOL_BYTES).collect()
});

/// What every event of one workflow carries: bytes that hardly any other has, made at no cost.
fn payload(id: &WorkflowId, seq: u64) -> Payload {
    let mark = format!("{id} {seq} ");
    let place = mark
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let from = place as usize % (POOL_BYTES - NOISE_BYTES);
    let mut data = Vec::with_capacity(EVENT_BYTES + mark.len());
    data.extend_from_slice(mark.as_bytes());
    data.extend_from_slice(&POOL[from..from + NOISE_BYTES]);
    data.resize(EVENT_BYTES, b'.');
    Payload::octets(data)
}

/// What is known of the writing so far.
#[derive(Debug, Default)]
struct Ledger {
    /// The last event of each workflow that was acknowledged.
    heads: BTreeMap<WorkflowId, u64>,
    bytes: u64,
    acknowledged: Option<Instant>,
    /// The longest time between two acknowledgements since it was last asked for.
    pause: Duration,
}

impl Ledger {
    fn note(&mut self, id: &WorkflowId, head: u64, events: u64) {
        self.heads.insert(id.clone(), head);
        self.bytes += events * EVENT_BYTES as u64;
        let before = self.acknowledged.replace(Instant::now());
        self.pause = self.pause.max(before.map_or(Duration::ZERO, |at| at.elapsed()));
    }
}

/// How the writers go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as they get their answers.
    Run,
    /// With a pause behind each call.
    Walk,
    /// Not at all.
    Rest,
}

/// Writers and what they have written.
#[derive(Debug)]
pub struct Bulk {
    ledger: Arc<Mutex<Ledger>>,
    pace: watch::Sender<Pace>,
    writers: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Writer {
    number: usize,
    client: Client,
    ledger: Arc<Mutex<Ledger>>,
    pace: watch::Receiver<Pace>,
}

impl Bulk {
    /// Sets writers to work; each begins at another of these nodes.
    ///
    /// # Errors
    /// When a URL is none.
    pub fn start(urls: &[&str]) -> Result<Self> {
        let (pace, ledger) = (watch::Sender::new(Pace::Run), Arc::<Mutex<Ledger>>::default());
        let mut writers = Vec::new();
        for number in 0..HANDS {
            let mut urls = urls.to_vec();
            let places = urls.len();
            urls.rotate_left(number % places);
            let (client, ledger, pace) = (Client::new(urls)?, Arc::clone(&ledger), pace.subscribe());
            writers.push(tokio::spawn(Writer { number, client, ledger, pace }.write()));
        }
        Ok(Self { ledger, pace, writers })
    }

    /// Bytes of payload that were acknowledged so far.
    pub fn bytes(&self) -> u64 {
        self.ledger.lock().bytes
    }

    /// The same while the writers write as fast as they can.
    pub fn running(&self) -> Option<u64> {
        (*self.pace.borrow() == Pace::Run).then(|| self.bytes())
    }

    /// The longest time between two acknowledged writes since this was last asked, the one that has not ended included.
    pub fn longest_pause(&self) -> Duration {
        let mut ledger = self.ledger.lock();
        let since = ledger.acknowledged.map_or(Duration::ZERO, |at| at.elapsed());
        std::mem::take(&mut ledger.pause).max(since)
    }

    /// Has the writers go on in another way.
    pub fn go(&self, pace: Pace) {
        self.pace.send_replace(pace);
        self.ledger.lock().acknowledged = None;
    }

    /// An error if a writer has ended, which it does only when something is wrong.
    ///
    /// # Errors
    /// That.
    pub fn goes_on(&self) -> Result<()> {
        ensure!(!self.writers.iter().any(JoinHandle::is_finished), "a writer has given up");
        Ok(())
    }

    /// Ends the writing; gives the last acknowledged event of each workflow.
    ///
    /// # Errors
    /// When a writer met an answer that should not be possible.
    pub async fn stop(self) -> Result<BTreeMap<WorkflowId, u64>> {
        drop(self.pace);
        for writer in self.writers {
            writer.await??;
        }
        Ok(std::mem::take(&mut self.ledger.lock().heads))
    }
}

impl Writer {
    /// Waits as the pace asks for; false at the end.
    async fn may_go_on(&mut self) -> bool {
        let Ok(pace) = self.pace.wait_for(|pace| *pace != Pace::Rest).await.map(|pace| *pace) else { return false };
        if pace == Pace::Walk {
            tokio::time::sleep(STEP).await;
        }
        self.pace.has_changed().is_ok()
    }

    async fn write(mut self) -> Result<()> {
        for workflow in 0u64.. {
            let id = work::id(&format!("bulk-{}-{workflow}", self.number))?;
            let mut head = 0;
            for _ in 0..=CALLS {
                if !self.may_go_on().await {
                    return Ok(());
                }
                head = self.append(&id, head).await?;
            }
        }
        Ok(())
    }

    /// Appends some events behind `head`; gives the new one. A call without an answer may have done it or not.
    async fn append(&self, id: &WorkflowId, head: u64) -> Result<u64> {
        let mut call = Commit::new(id.clone(), head);
        for seq in head + 1..=head + EVENTS {
            let kind = EventKind::Other("Grown".to_owned());
            let event = if seq == 1 { work::started()? } else { NewEvent::of(kind) };
            call = call.event(event.with(payload(id, seq)));
        }
        match self.client.commit(call, Write::default()).await {
            Ok(committed) => {
                let now = head + EVENTS;
                ensure!(committed.value.head == now, "{id} is at {} and not at {now}", committed.value.head);
                self.ledger.lock().note(id, now, EVENTS);
                Ok(now)
            }
            Err(error) if error.is_retryable() => {
                // Whether it was done is seen from the head; a second one under another key must not be made of it.
                let view = self.client.workflow(id, ReadMode::Linearizable).await;
                let found = view.map(|view| view.value.workflow.map_or(0, |workflow| workflow.head)).unwrap_or(head);
                ensure!(found == head || found == head + EVENTS, "{id} is at {found}, it was at {head}");
                if found > head {
                    self.ledger.lock().note(id, found, EVENTS);
                }
                Ok(found)
            }
            Err(error) => Err(anyhow::Error::new(error).context(format!("{id} behind {head}"))),
        }
    }
}

/// Reads all that was acknowledged from one node, as of `index` or later, and holds it against what was written. Gives the
/// bytes.
///
/// # Errors
/// When an event is not there, or is another one.
pub async fn all_there(client: &Client, heads: &BTreeMap<WorkflowId, u64>, index: u64) -> Result<u64> {
    let heads: Vec<(&WorkflowId, u64)> = heads.iter().map(|(id, head)| (id, *head)).collect();
    let part = async |first: usize| {
        let mut bytes = 0;
        for (id, head) in heads.iter().skip(first).step_by(HANDS) {
            let mut from = 1;
            while from <= *head {
                let page = client.history(id, from, 100, ReadMode::AtLeast(index)).await?.value;
                ensure!(!page.is_empty(), "{id} ends before {from}; {head} events were acknowledged");
                for event in &page {
                    bytes += is_as_written(id, from, event)?;
                    from += 1;
                }
            }
        }
        anyhow::Ok(bytes)
    };
    Ok(try_join_all((0..HANDS).map(part)).await?.into_iter().sum())
}

fn is_as_written(id: &WorkflowId, seq: u64, event: &HistoryEvent) -> Result<u64> {
    ensure!(event.seq == seq, "{id} has event {} in place of {seq}", event.seq);
    ensure!(event.payload == payload(id, seq), "event {seq} of {id} is not what was written");
    Ok(event.payload.data.len() as u64)
}
