//! The rows that a worker has: which wait for room, which are executed, and of which the outcome is being told.
//!
//! The store hands out no more rows than the worker has room for. Still one may have to wait here: when a row was taken
//! away, the store gives the room to the next one at once, while the handler of the first one may need a moment to
//! notice.

use std::collections::{BTreeMap, VecDeque};

use holdfast_client::Delivery;
use holdfast_client::wire::HeldRow;
use holdfast_machine::{ClaimToken, DispatchKey};

use crate::activity::{Cancelled, Standing};

/// What is to be done with an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Begin it.
    Start(Box<Delivery>, Standing),
    /// Tell it where it stands now.
    Tell(ClaimToken, Standing),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rows {
    room: usize,
    rows: BTreeMap<ClaimToken, Row>,
    /// In the order in which they came.
    waiting: VecDeque<Delivery>,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Row {
    key: DispatchKey,
    phase: Phase,
    standing: Standing,
    /// It was paused when the last connection was lost, and the next one has not said yet whether it still is.
    pause_is_old: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Executing,
    /// The handler has ended.
    Telling,
}

impl Row {
    /// False once the row was taken away, as far as the worker knows.
    fn is_held(&self) -> bool {
        matches!(self.standing.cancelled, None | Some(Cancelled::Stopping))
    }
}

impl Rows {
    pub fn new(room: usize) -> Self {
        Self { room, rows: BTreeMap::new(), waiting: VecDeque::new(), steps: Vec::new() }
    }

    /// A row arrives. One that is here already under the same token came twice.
    pub fn deliver(&mut self, delivery: Delivery) {
        if self.rows.contains_key(&delivery.token) {
            return;
        }
        // A row that is given again has been taken away before, whether or not the word of it has arrived.
        let older = self.rows.iter().filter(|(_, row)| row.key == delivery.key && row.is_held());
        let older: Vec<ClaimToken> = older.map(|(token, _)| *token).collect();
        for token in older {
            self.cancel(token, Cancelled::Withdrawn(None));
        }
        let row = Row {
            key: delivery.key.clone(),
            phase: Phase::Waiting,
            standing: Standing::default(),
            pause_is_old: false,
        };
        self.rows.insert(delivery.token, row);
        self.waiting.push_back(delivery);
        self.start_waiting();
    }

    /// A row was taken away, or is to be given up.
    pub fn cancel(&mut self, token: ClaimToken, why: Cancelled) {
        let Some(row) = self.rows.get_mut(&token) else { return };
        match row.phase {
            Phase::Waiting => {
                self.rows.remove(&token);
                self.waiting.retain(|delivery| delivery.token != token);
            }
            // What is told may be the very reason why the row is no longer the worker's.
            Phase::Executing | Phase::Telling if row.is_held() => {
                row.standing.cancelled = Some(why);
                self.steps.push(Step::Tell(token, row.standing));
            }
            Phase::Executing | Phase::Telling => {}
        }
    }

    /// All rows are to be given up.
    pub fn cancel_all(&mut self, why: Cancelled) {
        let all: Vec<ClaimToken> = self.rows.keys().copied().collect();
        for token in all {
            self.cancel(token, why);
        }
    }

    /// A row's workflow was paused, or goes on.
    pub fn pause(&mut self, token: ClaimToken, paused: bool) {
        let Some(row) = self.rows.get_mut(&token) else { return };
        row.pause_is_old = false;
        row.standing.paused = paused;
        if row.phase == Phase::Executing {
            self.steps.push(Step::Tell(token, row.standing));
        }
    }

    /// A connection begins, which will say what is paused now.
    pub fn doubt_pauses(&mut self) {
        self.rows.values_mut().for_each(|row| row.pause_is_old = row.standing.paused);
    }

    /// The connection has said what is paused; the rest goes on.
    pub fn settle_pauses(&mut self) {
        let old = self.rows.iter().filter(|(_, row)| row.pause_is_old);
        let old: Vec<ClaimToken> = old.map(|(token, _)| *token).collect();
        for token in old {
            self.pause(token, false);
        }
    }

    /// A handler has ended; its outcome is being told.
    pub fn ended(&mut self, token: ClaimToken) {
        if let Some(row) = self.rows.get_mut(&token) {
            row.phase = Phase::Telling;
        }
        self.start_waiting();
    }

    /// All has been said about a row.
    pub fn gone(&mut self, token: ClaimToken) {
        self.rows.remove(&token);
        self.start_waiting();
    }

    /// The rows that the worker counts as its own.
    pub fn holding(&self) -> Vec<HeldRow> {
        let held = self.rows.iter().filter(|(_, row)| row.is_held());
        held.map(|(token, row)| HeldRow { key: row.key.clone(), token: *token }).collect()
    }

    /// True if nothing waits, nothing is executed and nothing is left to be told.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is to be done since the last call.
    pub fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    fn start_waiting(&mut self) {
        let mut executing = self.rows.values().filter(|row| row.phase == Phase::Executing).count();
        let mut place = 0;
        while executing < self.room && place < self.waiting.len() {
            let key = &self.waiting[place].key;
            // One execution of an activity at a time; the older one has been told to stop.
            let is_busy = self.rows.values().any(|row| row.phase == Phase::Executing && row.key == *key);
            if is_busy {
                place += 1;
            } else if let Some(delivery) = self.waiting.remove(place)
                && let Some(row) = self.rows.get_mut(&delivery.token)
            {
                row.phase = Phase::Executing;
                executing += 1;
                self.steps.push(Step::Start(Box::new(delivery), row.standing));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
