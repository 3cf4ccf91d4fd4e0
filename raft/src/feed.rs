//! Cluster events for subscribers: numbered by log index and position, kept for a while, never with a
//! silent gap.
//!
//! Committed events come from apply, the same on every node under the same numbers. Local ones (a
//! suspicion, a change of leader) are known to this node only and stand between the committed ones under
//! the number of the last committed event before them. A subscriber that was too slow, or asks for what is
//! no longer kept, is told so and goes on with what follows.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_machine::{ClusterEvent, EventId, is_planted};
use parking_lot::Mutex;
use tokio::sync::watch;

/// What a subscriber gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedItem {
    /// An event.
    Event {
        /// Its number; for a local event the number of the last committed one before it.
        id: EventId,
        /// True if only this node knows it.
        local: bool,
        /// What happened.
        event: ClusterEvent,
    },
    /// Events are missing here. What follows is complete again; take a fresh picture of the topology.
    Lagged {
        /// The first number that may be missing is above this one, if the subscriber had one.
        after: Option<EventId>,
    },
}

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// With what comes from now on.
    Now,
    /// With the first event above this number.
    After(EventId),
}

#[derive(Debug)]
struct Kept {
    id: EventId,
    local: bool,
    event: ClusterEvent,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Kept>,
    capacity: usize,
    /// The running number of the first event that is kept.
    first: u64,
    /// Events above this number are all kept; none when nothing is missing at all.
    complete_after: Option<EventId>,
    /// The number of the last committed event.
    last: EventId,
}

/// The events of this node; cheap to clone.
#[derive(Debug, Clone)]
pub struct Feed {
    ring: Arc<Mutex<Ring>>,
    /// The running number that the next event will get.
    next: Arc<watch::Sender<u64>>,
}

/// One subscriber's place in the feed.
#[derive(Debug)]
pub struct Subscription {
    feed: Feed,
    changed: watch::Receiver<u64>,
    cursor: u64,
    last_seen: Option<EventId>,
    lagged: bool,
}

impl Feed {
    /// A feed that keeps `capacity` events and knows none up to log index `applied`.
    pub(crate) fn new(capacity: usize, applied: Option<u64>) -> Self {
        let start = applied.map(|index| EventId { index, position: u32::MAX });
        let ring = Ring {
            events: VecDeque::new(),
            capacity: capacity.max(1),
            first: 0,
            complete_after: start,
            last: start.unwrap_or_default(),
        };
        Self { ring: Arc::new(Mutex::new(ring)), next: Arc::new(watch::Sender::new(0)) }
    }

    /// Adds the committed events of one or more entries, in order.
    pub(crate) fn push_committed(&self, events: impl IntoIterator<Item = (EventId, ClusterEvent)>) {
        self.push(|ring| {
            for (id, event) in events {
                if is_planted("drop-second-events") && id.position > 0 {
                    continue;
                }
                ring.last = id;
                ring.keep(Kept { id, local: event.is_local(), event });
            }
        });
    }

    /// Adds an event that only this node knows.
    pub fn push_local(&self, event: ClusterEvent) {
        self.push(|ring| {
            let id = ring.last;
            ring.keep(Kept { id, local: true, event });
        });
    }

    /// The state has jumped to a snapshot at log index `applied`: the events in between are not known.
    pub(crate) fn jumped(&self, applied: u64) {
        self.push(|ring| {
            ring.first += ring.events.len() as u64 + 1;
            ring.events.clear();
            ring.last = EventId { index: applied, position: u32::MAX };
            ring.complete_after = Some(ring.last);
        });
    }

    fn push(&self, change: impl FnOnce(&mut Ring)) {
        let mut ring = self.ring.lock();
        change(&mut ring);
        let next = ring.first + ring.events.len() as u64;
        // Sent under the lock, so that the number never goes back.
        self.next.send_if_modified(|old| std::mem::replace(old, next) != next);
    }

    /// The number of the last committed event on this node.
    pub fn last(&self) -> EventId {
        self.ring.lock().last
    }

    /// A subscription that begins where `since` says.
    pub fn subscribe(&self, since: Since) -> Subscription {
        let changed = self.next.subscribe();
        let ring = self.ring.lock();
        let end = ring.first + ring.events.len() as u64;
        let (cursor, last_seen, lagged) = match since {
            Since::Now => (end, None, false),
            Since::After(id) => {
                let skipped = ring.events.partition_point(|kept| kept.id <= id);
                (ring.first + skipped as u64, Some(id), ring.complete_after.is_some_and(|complete| id < complete))
            }
        };
        drop(ring);
        Subscription { feed: self.clone(), changed, cursor, last_seen, lagged }
    }
}

impl Ring {
    fn keep(&mut self, kept: Kept) {
        if self.events.len() == self.capacity
            && let Some(dropped) = self.events.pop_front()
        {
            self.first += 1;
            self.complete_after = self.complete_after.max(Some(dropped.id));
        }
        self.events.push_back(kept);
    }
}

impl Subscription {
    /// The next item; waits for it. None when the node has stopped and all was delivered.
    pub async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if let Some(item) = self.try_next() {
                return Some(item);
            }
            self.changed.changed().await.ok()?;
        }
    }

    /// The next item if there is one.
    pub fn try_next(&mut self) -> Option<FeedItem> {
        self.changed.mark_unchanged();
        let ring = self.feed.ring.lock();
        if self.cursor < ring.first {
            self.cursor = ring.first;
            self.lagged = true;
        }
        if std::mem::take(&mut self.lagged) {
            return Some(FeedItem::Lagged { after: self.last_seen });
        }
        let kept = ring.events.get((self.cursor - ring.first) as usize)?;
        self.cursor += 1;
        self.last_seen = Some(kept.id);
        Some(FeedItem::Event { id: kept.id, local: kept.local, event: kept.event.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::NodeName;

    use super::*;

    fn up(name: &str) -> ClusterEvent {
        ClusterEvent::PeerUp { node: NodeName::new(name).unwrap() }
    }

    fn id(index: u64, position: u32) -> EventId {
        EventId { index, position }
    }

    fn committed(id: EventId, name: &str) -> FeedItem {
        FeedItem::Event { id, local: false, event: up(name) }
    }

    #[tokio::test]
    async fn events_come_in_order_and_can_be_resumed() {
        let feed = Feed::new(10, Some(4));
        let mut live = feed.subscribe(Since::Now);
        feed.push_committed([(id(5, 0), up("a")), (id(5, 1), up("b"))]);
        feed.push_committed([(id(6, 0), up("c"))]);
        assert_eq!(live.next().await.unwrap(), committed(id(5, 0), "a"));
        let mut resumed = feed.subscribe(Since::After(id(5, 0)));
        for subscription in [&mut live, &mut resumed] {
            assert_eq!(subscription.next().await.unwrap(), committed(id(5, 1), "b"));
            assert_eq!(subscription.next().await.unwrap(), committed(id(6, 0), "c"));
            assert_eq!(subscription.try_next(), None);
        }
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_and_goes_on_without_a_gap() {
        let feed = Feed::new(2, None);
        let mut slow = feed.subscribe(Since::Now);
        feed.push_committed((1..=5).map(|index| (id(index, 0), up("a"))));
        assert_eq!(slow.next().await.unwrap(), FeedItem::Lagged { after: None });
        assert_eq!(slow.next().await.unwrap(), committed(id(4, 0), "a"));
        assert_eq!(slow.next().await.unwrap(), committed(id(5, 0), "a"));
        let mut old = feed.subscribe(Since::After(id(2, 0)));
        assert_eq!(old.next().await.unwrap(), FeedItem::Lagged { after: Some(id(2, 0)) });
        assert_eq!(old.next().await.unwrap(), committed(id(4, 0), "a"));
        let mut exact = feed.subscribe(Since::After(id(3, 0)));
        assert_eq!(exact.next().await.unwrap(), committed(id(4, 0), "a"));
    }

    #[tokio::test]
    async fn before_the_start_and_across_a_snapshot_there_is_a_gap() {
        let feed = Feed::new(10, Some(7));
        let mut old = feed.subscribe(Since::After(id(3, 0)));
        assert_eq!(old.next().await.unwrap(), FeedItem::Lagged { after: Some(id(3, 0)) });
        feed.push_committed([(id(8, 0), up("a"))]);
        assert_eq!(old.next().await.unwrap(), committed(id(8, 0), "a"));
        feed.jumped(20);
        assert_eq!(old.next().await.unwrap(), FeedItem::Lagged { after: Some(id(8, 0)) });
        feed.push_local(up("b"));
        let local = FeedItem::Event { id: id(20, u32::MAX), local: true, event: up("b") };
        assert_eq!(old.next().await.unwrap(), local);
    }
}
