//! What happens in a run: a digest over every event, so that two runs can be told apart; counts of what was covered; and
//! what was broken first.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

/// Events that are shown when a run is red.
const TAIL: usize = 60;

/// The record of one run; clones share it.
#[derive(Clone)]
pub struct Record(Arc<Mutex<Inner>>);

struct Inner {
    at_ms: u64,
    aloud: bool,
    digest: Xxh3,
    events: u64,
    tail: VecDeque<String>,
    counts: BTreeMap<&'static str, u64>,
    broken: Option<String>,
}

impl Record {
    /// An empty record. `aloud` shows each event on standard error.
    pub fn new(aloud: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            at_ms: 0,
            aloud,
            digest: Xxh3::new(),
            events: 0,
            tail: VecDeque::new(),
            counts: BTreeMap::new(),
            broken: None,
        })))
    }

    /// Simulated time has come to here.
    pub fn now_is(&self, at_ms: u64) {
        self.0.lock().at_ms = at_ms;
    }

    /// Something happened.
    pub fn note(&self, what: impl Display) {
        let mut inner = self.0.lock();
        let line = format!("{:>7} {what}", inner.at_ms);
        inner.digest.update(line.as_bytes());
        inner.events += 1;
        if inner.aloud {
            eprintln!("{line}");
        }
        if inner.tail.len() == TAIL {
            inner.tail.pop_front();
        }
        inner.tail.push_back(line);
    }

    /// One more of these was covered.
    pub fn count(&self, what: &'static str) {
        *self.0.lock().counts.entry(what).or_default() += 1;
    }

    /// Something that must hold does not. The first stays.
    pub fn broken(&self, what: impl Display) {
        self.note(format_args!("BROKEN {what}"));
        self.0.lock().broken.get_or_insert_with(|| what.to_string());
    }

    /// What was broken first.
    pub fn first_broken(&self) -> Option<String> {
        self.0.lock().broken.clone()
    }

    /// How often this was counted.
    pub fn counted(&self, what: &str) -> u64 {
        self.0.lock().counts.get(what).copied().unwrap_or(0)
    }

    /// All counts.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().counts.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect()
    }

    /// The digest over all events so far, and their number.
    pub fn digest(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.digest.digest(), inner.events)
    }

    /// The last events.
    pub fn tail(&self) -> Vec<String> {
        self.0.lock().tail.iter().cloned().collect()
    }
}
