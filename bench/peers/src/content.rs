//! What a workflow is made of that other systems store: the events and rows of the same number and size as Holdfast's.

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes};
use holdfast_bench::work::{ROWS, STAGED_EVENTS, Work};

/// The kinds of events that the load makes.
pub const STARTED: u8 = 1;
pub const SCHEDULED: u8 = 2;
pub const STAGED: u8 = 3;
pub const COMPLETED: u8 = 4;

/// An event of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: u8,
    /// The row that it is about, from 1; 0 for the workflow itself.
    pub ordinal: u8,
    pub payload: Bytes,
}

/// The events that a workflow starts with.
pub fn staged_events(work: &Work) -> Vec<Event> {
    let mut events = vec![Event { kind: STARTED, ordinal: 0, payload: work.payload().data }];
    for ordinal in 1..=ROWS as u8 {
        let of_row = |kind| Event { kind, ordinal, payload: Bytes::new() };
        events.extend([SCHEDULED, STAGED].map(of_row));
    }
    debug_assert_eq!(events.len() as u64, STAGED_EVENTS);
    events
}

/// Events that are stored as one value.
pub fn encode(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Event { kind, ordinal, payload } in events {
        bytes.put_u8(*kind);
        bytes.put_u8(*ordinal);
        bytes.put_u32(payload.len() as u32);
        bytes.put_slice(payload);
    }
    bytes
}

/// The events of such a value.
pub fn decode(value: &[u8]) -> Result<Vec<Event>> {
    let mut rest = Bytes::copy_from_slice(value);
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (kind, ordinal) = (rest.try_get_u8()?, rest.try_get_u8()?);
        let length = usize::try_from(rest.try_get_u32()?).context("a length")?;
        ensure!(rest.len() >= length, "an event that is cut off");
        events.push(Event { kind, ordinal, payload: rest.split_to(length) });
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn events_come_back_as_they_were() {
        let events = staged_events(&Work::new(128).unwrap());
        let value = encode(&events);
        assert_eq!(decode(&value).unwrap(), events);
        assert!(decode(&value[..value.len() - 1]).is_err() && decode(&[]).unwrap().is_empty());
    }
}
