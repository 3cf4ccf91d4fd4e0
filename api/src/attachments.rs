//! The sessions that are attached to this node, and who is woken when there may be something to tell them.
//!
//! An effect only wakes; what is told comes from the state. So nothing is lost where effects are, and a session that is
//! woken in vain costs one look.
//!
//! A session that the state calls attached to this process and that has no attachment here (the answer to `Attach` was
//! lost, and it was committed all the same) is given back: it would be given rows that nobody takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use holdfast_machine::{Effect, Machine, SessionId};
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, watch};

use crate::attachment::detach;
use crate::store::{Shared, Store};

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

    /// Wakes whom an effect concerns, and adds the session to `absent` if nobody sits here for it.
    fn note(&self, effect: &Effect, absent: &mut Absent) {
        match effect {
            Effect::RowsGiven { session } => self.each(session, Wake::wake, absent),
            Effect::SessionChanged { session } => self.each(session, Wake::changed, absent),
            // A state that jumped to a snapshot says no more than this.
            Effect::TopologyChanged => self.everybody(absent),
            _ => {}
        }
    }

    fn each(&self, session: &SessionId, wake: impl Fn(&Wake), absent: &mut Absent) {
        match self.seats.lock().by_session.get(session) {
            Some(seats) => seats.values().for_each(|seat| wake(seat)),
            None => {
                absent.sessions.insert(session.clone());
            }
        }
    }

    fn has_seat(&self, session: &SessionId) -> bool {
        self.seats.lock().by_session.contains_key(session)
    }

    fn everybody(&self, absent: &mut Absent) {
        absent.perhaps_all = true;
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

/// Sessions that nobody sits here for; most are attached elsewhere.
#[derive(Debug, Default)]
struct Absent {
    sessions: BTreeSet<SessionId>,
    /// True if there may be others.
    perhaps_all: bool,
}

/// Wakes attachments, until the store is gone.
pub(crate) async fn watch_sessions(store: Weak<Shared>, mut effects: Receiver<(u64, Effect)>) {
    let Some(attachments) = store.upgrade().map(|shared| Arc::clone(&shared.attachments)) else { return };
    loop {
        let mut absent = Absent::default();
        match effects.recv().await {
            Ok((_, effect)) => attachments.note(&effect, &mut absent),
            Err(RecvError::Lagged(_)) => attachments.everybody(&mut absent),
            Err(RecvError::Closed) => return,
        }
        loop {
            match effects.try_recv() {
                Ok((_, effect)) => attachments.note(&effect, &mut absent),
                Err(TryRecvError::Lagged(_)) => attachments.everybody(&mut absent),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        let Some(shared) = store.upgrade() else { return };
        give_back(&shared, &absent);
    }
}

/// Takes those of the sessions off this process that the state calls attached to it.
fn give_back(shared: &Arc<Shared>, absent: &Absent) {
    if absent.sessions.is_empty() && !absent.perhaps_all {
        return;
    }
    let attachment = |machine: &Machine, id: &SessionId| {
        let session = machine.session(id)?;
        let attached = session.attached.as_ref()?;
        let is_here = attached.node == shared.options.node && attached.boot == shared.options.boot;
        (is_here && !shared.attachments.has_seat(id)).then(|| (id.clone(), session.attachment))
    };
    let orphans: Vec<(SessionId, u64)> = shared.raft.view(|machine, _| match absent.perhaps_all {
        true => machine.sessions_after(None).filter_map(|(id, _)| attachment(machine, id)).collect(),
        false => absent.sessions.iter().filter_map(|id| attachment(machine, id)).collect(),
    });
    for (session, attachment) in orphans {
        tracing::info!(%session, "a session is attached to this node and has no connection to it");
        let seat = shared.attachments.sit(session.clone());
        detach(Store::of(Arc::clone(shared)), session, attachment, Some(seat));
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
        let mut absent = Absent::default();
        let mut note = |effect: Effect| attachments.note(&effect, &mut absent);
        note(Effect::RowsGiven { session: session("one") });
        assert_eq!((woken(&one), woken(&other)), ((true, false), (false, false)));
        note(Effect::SessionChanged { session: session("other") });
        assert_eq!((woken(&one), woken(&other)), ((false, false), (true, true)));
        note(Effect::SessionChanged { session: session("third") });
        assert_eq!((woken(&one), woken(&other)), ((false, false), (false, false)));
        note(Effect::TopologyChanged);
        assert_eq!((woken(&one), woken(&other)), ((true, true), (true, true)));
        assert_eq!((absent.sessions, absent.perhaps_all), (BTreeSet::from([session("third")]), true));
    }

    #[test]
    fn a_session_may_be_attached_twice_for_a_while() {
        let attachments = Arc::new(Attachments::default());
        let (old, new) = (attachments.sit(session("s")), attachments.sit(session("s")));
        assert_eq!(attachments.count(), 2);
        drop(old);
        attachments.note(&Effect::RowsGiven { session: session("s") }, &mut Absent::default());
        assert!(new.wake.woken().now_or_never().is_some());
        assert!(attachments.empty().now_or_never().is_none());
        drop(new);
        assert!(attachments.empty().now_or_never().is_some());
    }
}
