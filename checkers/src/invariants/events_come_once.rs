//! Invariant 17: the event stream is the applied events in order, no gap and no double, across reconnects and failovers.
//! A subscriber that goes on behind the last event that it has had sees what any other one sees: the same events under
//! the same numbers.

use std::collections::BTreeMap;

use crate::{Check, ensure, ensure_eq};

/// What a subscriber was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// An event: log index and place within the entry, and what it says.
    Event((u64, u32), String),
    /// A first snapshot, or one because it fell behind: everything up to this log index is in it.
    Snapshot(u64),
}

/// What one subscriber was sent so far, on whichever connections.
#[derive(Debug, Default)]
pub struct EventsComeOnce {
    last: Option<(u64, u32)>,
    events: BTreeMap<(u64, u32), String>,
    /// Where it had no events but a snapshot: behind the first, up to and with the second.
    skipped: Vec<(u64, u64)>,
}

impl EventsComeOnce {
    /// Takes in the next thing that it was sent.
    ///
    /// # Errors
    /// When it is an event that it has had, or that belongs before one.
    pub fn see(&mut self, seen: Seen) -> Check {
        match seen {
            Seen::Event(id, what) => {
                ensure!(self.last.is_none_or(|last| last < id), "event {id:?} came behind {:?}", self.last);
                self.events.insert(id, what);
                self.last = Some(id);
            }
            Seen::Snapshot(index) => {
                let before = self.last.map_or(0, |(last, _)| last);
                ensure!(before <= index, "a snapshot of {index} came behind {:?}", self.last);
                self.skipped.push((before, index));
                self.last = Some((index, u32::MAX));
            }
        }
        Ok(())
    }

    /// Where the subscriber goes on.
    pub fn last(&self) -> Option<(u64, u32)> {
        self.last
    }

    /// Holds it against another subscriber (or against what the log says): where both had events, they are the same.
    ///
    /// # Errors
    /// The first event that one has and the other lacks.
    pub fn same_as(&self, other: &Self) -> Check {
        let end = self.last.min(other.last);
        let had = |one: &Self, id: (u64, u32)| {
            Some(id) <= end && !one.skipped.iter().any(|(from, to)| (*from < id.0 || *from == 0) && id.0 <= *to)
        };
        for (one, another) in [(self, other), (other, self)] {
            for (id, what) in one.events.iter().filter(|(id, _)| had(another, **id)) {
                ensure_eq!(another.events.get(id), Some(what), "event {id:?} of another subscriber");
            }
        }
        Ok(())
    }

    /// How many events it has had.
    pub fn count(&self) -> usize {
        self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(seen: &[(u64, u32)], snapshot: Option<u64>) -> EventsComeOnce {
        let mut stream = EventsComeOnce::default();
        snapshot.into_iter().for_each(|index| stream.see(Seen::Snapshot(index)).unwrap());
        seen.iter().for_each(|id| stream.see(Seen::Event(*id, format!("{id:?}"))).unwrap());
        stream
    }

    #[test]
    fn gaps_doubles_and_other_events_are_noticed() {
        let whole = stream(&[(1, 0), (1, 1), (4, 0), (7, 0)], None);
        whole.same_as(&stream(&[(1, 0), (1, 1), (4, 0)], None)).unwrap();
        whole.same_as(&stream(&[(7, 0)], Some(4))).unwrap();
        assert!(whole.same_as(&stream(&[(1, 0), (4, 0), (7, 0)], None)).is_err(), "a gap");
        assert!(stream(&[(7, 0)], Some(3)).same_as(&whole).is_err(), "a gap behind a snapshot");
        let mut other = stream(&[(1, 0), (1, 1)], None);
        assert!(other.see(Seen::Event((1, 1), String::new())).is_err(), "a double");
        assert!(other.see(Seen::Snapshot(0)).is_err(), "back in time");
        other.see(Seen::Event((4, 0), "another".to_owned())).unwrap();
        assert!(whole.same_as(&other).is_err(), "another event");
    }
}
