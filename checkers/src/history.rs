//! Recorded calls: who called, when, what, and what the answer was. A run records them, the [`crate::witness`] and
//! [`crate::linearizability`] judge them, and a file of them can be judged again.
//!
//! Times are ticks of a counter that every invocation and every return moves on, so that "returned before the other
//! began" is never a matter of clocks.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_machine::{DispatchKey, HistoryEvent, Reject, Reply, Request, RowStatus, WorkflowId};
use serde::{Deserialize, Serialize};

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Who called.
    pub client: u64,
    /// The tick at which the call was made.
    pub invoked: u64,
    /// The tick at which its answer was there; none if it never was.
    pub returned: Option<u64>,
    /// What was asked.
    pub asked: Asked,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// A command. Under an idempotency key the call may have been sent several times.
    Write(Request),
    /// A linearizable read of a whole history.
    History(WorkflowId),
    /// A linearizable read of a row.
    Row(DispatchKey),
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// An answer that reflects the log up to `index`; that of a write is at this index, or before it if it was sent
    /// more than once.
    Ok {
        /// The log index.
        index: u64,
        /// The answer.
        answer: Answer,
    },
    /// Refused by the state machine; nothing changed.
    Refused {
        /// The log index, if it was told.
        index: Option<u64>,
        /// Why.
        reject: Reject,
    },
    /// Not done, for sure: nobody took it, or it never left.
    NotDone,
    /// Done or not.
    Unknown,
}

/// A good answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Of a command.
    Reply(Reply),
    /// Of a read of a history: its head, and a digest of its events.
    History {
        /// The number of the last event.
        head: u64,
        /// See [`digest`].
        digest: u64,
    },
    /// Of a read of a row; none if there is no such row.
    Row(Option<RowStatus>),
}

/// A history's digest with one more event: what it says, not when.
pub fn digest_with(digest: u64, kind: &str, ordinal: Option<u64>, payload: &[u8]) -> u64 {
    // FNV-1a; the parts are set apart by a byte that no kind holds.
    let ordinal = ordinal.map_or(0, |ordinal| ordinal.wrapping_add(1)).to_be_bytes();
    let parts = [kind.as_bytes(), &[0], &ordinal, payload];
    let bytes = parts.into_iter().flatten();
    bytes.fold(digest ^ 0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The digest of a whole history.
pub fn digest(events: &[HistoryEvent]) -> u64 {
    let with =
        |digest, event: &HistoryEvent| digest_with(digest, event.kind.name(), event.ordinal, &event.payload.data);
    events.iter().fold(0, with)
}

/// Takes calls down while they are made, from any thread.
#[derive(Debug, Default)]
pub struct Recorder {
    ticks: AtomicU64,
    calls: Mutex<Vec<Call>>,
}

/// A call that was made and has no answer yet.
#[derive(Debug)]
#[must_use = "a call without an answer is one whose outcome is unknown"]
pub struct Made(usize);

impl Recorder {
    /// Takes down that a call is made now.
    pub fn invoke(&self, client: u64, asked: Asked) -> Made {
        let mut calls = self.calls();
        // Under the lock, so that calls stand in the order of their ticks.
        let invoked = self.tick();
        calls.push(Call { client, invoked, returned: None, asked, outcome: Outcome::Unknown });
        Made(calls.len() - 1)
    }

    /// Takes down that its answer is there now.
    pub fn returned(&self, made: Made, outcome: Outcome) {
        let mut calls = self.calls();
        let returned = self.tick();
        if let Some(call) = calls.get_mut(made.0) {
            (call.returned, call.outcome) = (Some(returned), outcome);
        }
    }

    /// What was taken down so far.
    pub fn history(&self) -> Vec<Call> {
        self.calls().clone()
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        // A thread that panicked here left whole calls behind.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes calls as lines of JSON.
///
/// # Errors
/// When they cannot be written.
pub fn save(calls: &[Call], mut to: impl Write) -> io::Result<()> {
    for call in calls {
        serde_json::to_writer(&mut to, call)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// When it cannot be read, or a line is none.
pub fn load(from: impl BufRead) -> io::Result<Vec<Call>> {
    from.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_machine::Command;

    #[test]
    fn what_was_recorded_reads_back_and_ticks_go_on() {
        let recorder = Recorder::default();
        let write = recorder.invoke(1, Asked::Write(Request::from(Command::Tick)));
        let read = recorder.invoke(2, Asked::History("order-1".parse().unwrap()));
        let _lost = recorder.invoke(3, Asked::Row("order-1:1".parse().unwrap()));
        let answer = Answer::History { head: 3, digest: u64::MAX };
        recorder.returned(read, Outcome::Ok { index: 7, answer });
        recorder.returned(write, Outcome::Refused { index: None, reject: Reject::IdempotencyConflict });
        let calls = recorder.history();
        assert_eq!(
            calls.iter().map(|call| (call.invoked, call.returned)).collect::<Vec<_>>(),
            [(0, Some(4)), (1, Some(3)), (2, None)]
        );
        let mut file = Vec::new();
        save(&calls, &mut file).unwrap();
        assert_eq!(load(file.as_slice()).unwrap(), calls);
        assert!(load(&b"{}\n"[..]).is_err());
    }

    #[test]
    fn digests_tell_kinds_ordinals_payloads_and_order_apart() {
        let one = |kind: &str, ordinal, payload: &[u8]| digest_with(0, kind, ordinal, payload);
        let all = [one("A", None, b""), one("B", None, b""), one("A", Some(0), b""), one("A", None, b"x")];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_ne!(digest_with(all[0], "B", None, b""), digest_with(all[1], "A", None, b""));
    }
}
