//! The sessions that are attached to this node, and who is woken when there may be something to tell them.
//!
//! An effect only wakes; what is told comes from the state. So nothing is lost where effects are, and a session that is
//! woken in vain costs one look.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use holdfast_machine::{Effect, SessionId};
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};

use crate::store::Shared;

/// All attachments of one node.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    seats: Mutex<Seats>,
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Seats {
    next_number: u64,
    /// A session that was attached anew while its old connection is not quite gone has more than one.
    by_session: BTreeMap<SessionId, BTreeMap<u64, Arc<Wake>>>,
}

/// How one attachment is woken.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    woken: Notify,
    /// True if more may have changed than that rows were given.
    changed: AtomicBool,
}

impl Wake {
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    fn changed(&self) {
        self.changed.store(true, Ordering::Release);
        self.wake();
    }

    /// True if there was a change since this was asked last. Ask before looking at the state.
    pub fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// Waits to be woken. A wake that came before is not lost.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}

/// An attachment's place among those that are woken; given up by dropping it.
#[derive(Debug)]
pub(crate) struct Seat {
    attachments: Arc<Attachments>,
    session: SessionId,
    number: u64,
    pub wake: Arc<Wake>,
}

impl Attachments {
    pub fn sit(self: &Arc<Self>, session: SessionId) -> Seat {
        let wake = Arc::new(Wake::default());
        let mut seats = self.seats.lock();
        let number = seats.next_number;
        seats.next_number += 1;
        seats.by_session.entry(session.clone()).or_default().insert(number, Arc::clone(&wake));
        self.count.send_modify(|count| *count += 1);
        Seat { attachments: Arc::clone(self), session, number, wake }
    }

    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until there is none.
    pub async fn empty(&self) {
        // The sender is `self`, so the wait ends with the condition only.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn note(&self, effect: &Effect) {
        match effect {
            Effect::RowsGiven { session } => self.each(session, Wake::wake),
            Effect::SessionChanged { session } => self.each(session, Wake::changed),
            // A state that jumped to a snapshot says no more than this.
            Effect::TopologyChanged => self.everybody(),
            _ => {}
        }
    }

    fn each(&self, session: &SessionId, wake: impl Fn(&Wake)) {
        if let Some(seats) = self.seats.lock().by_session.get(session) {
            seats.values().for_each(|seat| wake(seat));
        }
    }

    fn everybody(&self) {
        self.seats.lock().by_session.values().flat_map(BTreeMap::values).for_each(|seat| seat.changed());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.attachments.seats.lock();
        if let Some(of_session) = seats.by_session.get_mut(&self.session) {
            of_session.remove(&self.number);
            if of_session.is_empty() {
                seats.by_session.remove(&self.session);
            }
        }
        self.attachments.count.send_modify(|count| *count -= 1);
    }
}

/// Wakes attachments, until the store is gone.
pub(crate) async fn watch_sessions(store: Weak<Shared>, mut effects: Receiver<(u64, Effect)>) {
    let Some(attachments) = store.upgrade().map(|shared| Arc::clone(&shared.attachments)) else { return };
    loop {
        match effects.recv().await {
            Ok((_, effect)) => attachments.note(&effect),
            Err(RecvError::Lagged(_)) => attachments.everybody(),
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::FutureExt;

    use super::*;

    fn session(name: &str) -> SessionId {
        name.parse().unwrap()
    }

    #[test]
    fn effects_wake_the_session_that_they_are_about() {
        let attachments = Arc::new(Attachments::default());
        let (one, other) = (attachments.sit(session("one")), attachments.sit(session("other")));
        let woken = |seat: &Seat| (seat.wake.woken().now_or_never().is_some(), seat.wake.take_changed());
        attachments.note(&Effect::RowsGiven { session: session("one") });
        assert_eq!((woken(&one), woken(&other)), ((true, false), (false, false)));
        attachments.note(&Effect::SessionChanged { session: session("other") });
        assert_eq!((woken(&one), woken(&other)), ((false, false), (true, true)));
        attachments.note(&Effect::TopologyChanged);
        assert_eq!((woken(&one), woken(&other)), ((true, true), (true, true)));
    }

    #[test]
    fn a_session_may_be_attached_twice_for_a_while() {
        let attachments = Arc::new(Attachments::default());
        let (old, new) = (attachments.sit(session("s")), attachments.sit(session("s")));
        assert_eq!(attachments.count(), 2);
        drop(old);
        attachments.note(&Effect::RowsGiven { session: session("s") });
        assert!(new.wake.woken().now_or_never().is_some());
        assert!(attachments.empty().now_or_never().is_none());
        drop(new);
        assert!(attachments.empty().now_or_never().is_some());
    }
}
