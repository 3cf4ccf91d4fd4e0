//! A worker's session on this node: what it is told, and what it says.
//!
//! The truth is the applied state. An attachment knows what it has sent, and [`Attachment::next`] makes the next message
//! from the difference, at the moment at which it can be sent: what was taken from the session before is never sent, and
//! nothing waits in a queue. `look.rs` finds the difference.
//!
//! An attachment that ends, whatever the reason, takes itself from the session ([`SessionChange::Detach`]), so that the
//! session is given nothing while nobody is there to take it. Its rows stay until its lease ends.

mod confirmation;
mod look;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use holdfast_client::Problem;
use holdfast_client::wire::{Ended, HeldRow, NodeMessage};
use holdfast_machine::{
    Attached, ClaimToken, Command, DispatchKey, Millis, Reject, Reply, SessionChange, SessionId, SessionReply, Worker,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::attachments::Seat;
use crate::error::StoreError;
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode, Write, metrics};
use confirmation::Unconfirmed;

/// The pauses before each try to tell the cluster that an attachment is gone. The last one repeats until it is told.
const DETACH_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3)];
/// A worker is asked for this many heartbeats in a lease.
const HEARTBEATS_PER_LEASE: u64 = 4;

/// A session that is attached to this node. Its methods may be called from several tasks; `next` from one at a time.
/// Dropping it without [`Attachment::close`] leaves the session to be attached again.
#[derive(Debug)]
pub struct Attachment {
    store: Store,
    session: SessionId,
    /// Which attachment of the session this is.
    number: u64,
    lease: Duration,
    wake: std::sync::Arc<crate::attachments::Wake>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Gone once the attachment has ended.
    seat: Option<Seat>,
    /// The number of the last message.
    said: u64,
    /// Messages that one look brought; sent before there is another look.
    ready: VecDeque<NodeMessage>,
    unconfirmed: Unconfirmed,
    /// When the worker was heard last.
    heard: Instant,
    /// When the session was extended last.
    extended: Instant,
    /// The answer to a heartbeat.
    extension: Option<Millis>,
    draining: bool,
    /// True once the worker has asked for the end of its session.
    closing: bool,
    /// What the worker has: rows that were sent, or that it brought along.
    sent: BTreeMap<ClaimToken, Sent>,
    /// Rows up to this one were looked at.
    looked: Option<ClaimToken>,
    /// True if `sent` has to be compared with the state.
    compare: bool,
    ended: Option<(Ended, Option<Problem>)>,
    /// True once nothing more is to be said.
    silent: bool,
}

#[derive(Debug)]
struct Sent {
    key: DispatchKey,
    /// What the worker was told of its workflow.
    paused: bool,
}

impl Store {
    /// Attaches a worker's session to this node: opens it, or goes on with it. `holding` are the rows that the worker is
    /// at work on; rows of the session that are not among them are delivered (again). A newer attachment of the same
    /// session, at whichever node, ends this one.
    ///
    /// # Errors
    /// A [`StoreError`]; `stopped` while this node cannot push work, `invalid_argument` for a registration that makes no
    /// sense.
    pub async fn attach(
        &self,
        session: SessionId,
        worker: Worker,
        holding: Vec<HeldRow>,
    ) -> Result<Attachment, StoreError> {
        let store = self.clone();
        // In a task of its own: if the caller is gone meanwhile, what comes of it is dropped, and so detached.
        let attaching = tokio::spawn(async move { store.attach_now(session, worker, holding).await });
        attaching.await.map_err(|_| StoreError::Unknown)?
    }

    async fn attach_now(
        self,
        session: SessionId,
        worker: Worker,
        holding: Vec<HeldRow>,
    ) -> Result<Attachment, StoreError> {
        if *self.shared.closed.borrow() {
            return Err(StoreError::Stopped);
        }
        let lease = Duration::from_millis(worker.lease_ms);
        let heartbeat_ms = (worker.lease_ms / HEARTBEATS_PER_LEASE).max(1);
        let to = Attached { node: self.shared.options.node.clone(), boot: self.shared.options.boot.clone() };
        // Before the proposal, so that no wake is missed.
        let seat = self.shared.attachments.sit(session.clone());
        let asked = Instant::now();
        let attached = match self.change_session(&session, SessionChange::Attach { worker, to }).await {
            // The node's start is not in the log yet, this process of it is over, or it is taken for dead. It is no fault of
            // the worker's: it goes to another node, or comes back.
            Err(StoreError::Reject(Reject::NodeState { .. })) => return Err(StoreError::Stopped),
            attached => attached?,
        };
        let SessionReply::Attached { attachment: number, deadline, resumed } = attached.value else {
            return Err(StoreError::WrongReply { command: "session" });
        };
        let node = self.shared.options.node.clone();
        let first = NodeMessage::Attached { number: 1, node, deadline, heartbeat_ms, resumed };
        let sent = holding.into_iter().map(|row| (row.token, Sent { key: row.key, paused: false })).collect();
        let attachment = Attachment {
            store: self,
            session,
            number,
            lease,
            wake: seat.wake.clone(),
            state: Mutex::new(State {
                seat: Some(seat),
                said: 1,
                ready: VecDeque::from([first]),
                unconfirmed: Unconfirmed::new(lease),
                heard: Instant::now(),
                extended: asked,
                extension: None,
                draining: false,
                closing: false,
                sent,
                looked: None,
                compare: true,
                ended: None,
                silent: false,
            }),
        };
        attachment.store.shared.raft.read_index(ReadMode::AtLeast(attached.index)).await?;
        Ok(attachment)
    }

    async fn change_session(&self, session: &SessionId, change: SessionChange) -> StoreResult<SessionReply> {
        let command = Command::Session { session: session.clone(), change };
        self.propose(command, Write::default()).await?.answer("session", |reply| match reply {
            Reply::Session(reply) => Some(reply),
            _ => None,
        })
    }

    /// How many sessions are attached to this node.
    pub fn sessions_attached(&self) -> usize {
        self.shared.attachments.count()
    }

    /// Waits until no session is attached to this node any more. A node that stops waits for this once it has closed
    /// its store, so that the sessions are free for other nodes before it is gone.
    pub async fn detached(&self) {
        self.shared.attachments.empty().await;
    }
}

impl Attachment {
    /// The next message for the worker; waits for it. None behind [`NodeMessage::Ended`]. May be dropped while it
    /// waits; nothing is lost.
    pub async fn next(&self) -> Option<NodeMessage> {
        let mut closed = self.store.shared.closed.subscribe();
        loop {
            let silence_ends = {
                let mut state = self.state.lock();
                if *closed.borrow() {
                    self.end(&mut state, Ended::NodeStopping, None);
                }
                if let Some(message) = self.message(&mut state) {
                    metrics::session_message(&message);
                    return Some(message);
                }
                if state.silent {
                    return None;
                }
                state.heard + self.lease
            };
            tokio::select! {
                () = self.wake.woken() => {}
                _ = closed.wait_for(|closed| *closed) => {}
                () = sleep_until(silence_ends) => {
                    let mut state = self.state.lock();
                    if state.heard.elapsed() >= self.lease {
                        self.end(&mut state, Ended::StreamDead, None);
                    }
                }
            }
        }
    }

    /// The worker lives, and has what was sent up to message `received`. Extends the session, unless a message that was
    /// sent long ago is still not confirmed: such a connection carries heartbeats and nothing else, so it ends, and the
    /// session's lease runs on.
    ///
    /// # Errors
    /// `invalid_argument` for a number that no message had; or why the session was not extended this time.
    pub async fn heartbeat(&self, received: u64) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            if state.ended.is_some() {
                return Ok(());
            }
            if received > state.said {
                let what = format!("no message had the number {received}; the last one was {}", state.said);
                return Err(Reject::InvalidArgument { what }.into());
            }
            state.heard = Instant::now();
            state.unconfirmed.confirm(received);
            if state.unconfirmed.is_overdue(state.heard) {
                self.end(&mut state, Ended::StreamDead, None);
                return Ok(());
            }
        }
        let asked = Instant::now();
        let extended = self.change(SessionChange::Extend { attachment: self.number }).await;
        let mut state = self.state.lock();
        match extended {
            Ok(Answer { value: SessionReply::Extended { deadline }, .. }) => {
                state.extended = state.extended.max(asked);
                state.extension = Some(deadline);
                self.wake.wake();
                Ok(())
            }
            Ok(_) => Err(StoreError::WrongReply { command: "session" }),
            Err(error) => {
                // One try that failed is no reason to move. When the half of the lease is over, another node may do.
                if state.extended.elapsed() >= self.lease / 2 {
                    self.end(&mut state, Ended::NodeStopping, Some(error.problem()));
                }
                Err(error)
            }
        }
    }

    /// Nothing new is given to the session from now on. [`NodeMessage::Draining`] comes behind the last of the work.
    ///
    /// # Errors
    /// Why it could not be agreed on; the attachment has ended then, and the worker asks at another node.
    pub async fn drain(&self) -> Result<(), StoreError> {
        let drained = self.change(SessionChange::Drain { attachment: self.number }).await;
        let index = self.or_end(drained)?.index;
        let applied = self.store.shared.raft.read_index(ReadMode::AtLeast(index)).await;
        self.or_end(applied.map_err(StoreError::from))?;
        self.state.lock().draining = true;
        self.wake.wake();
        Ok(())
    }

    /// The session ends; rows that it still holds are pending at once.
    ///
    /// # Errors
    /// As [`Attachment::drain`].
    pub async fn close(&self) -> Result<(), StoreError> {
        self.state.lock().closing = true;
        let closed = self.change(SessionChange::Close { attachment: self.number }).await;
        self.or_end(closed)?;
        self.end(&mut self.state.lock(), Ended::Closed, None);
        Ok(())
    }

    /// The worker said something that makes no sense; nothing more is to be expected of this connection.
    pub(crate) fn refuse(&self, problem: Problem) {
        self.end(&mut self.state.lock(), Ended::Refused, Some(problem));
    }

    /// True once nothing but [`NodeMessage::Ended`] is to be said.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// How often the worker is to be heard.
    pub(crate) fn heartbeat_every(&self) -> Duration {
        self.lease / HEARTBEATS_PER_LEASE as u32
    }

    /// How long the session lasts without a heartbeat.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// The same result; an error ends the attachment.
    fn or_end<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.inspect_err(|error| self.end(&mut self.state.lock(), Ended::NodeStopping, Some(error.problem())))
    }

    /// Proposes a change; ends the attachment if it is the session's no more.
    async fn change(&self, change: SessionChange) -> StoreResult<SessionReply> {
        let changed = self.store.change_session(&self.session, change).await;
        match changed.as_ref().err().and_then(StoreError::reject) {
            Some(Reject::SessionNotFound { .. }) => self.end(&mut self.state.lock(), Ended::SessionOver, None),
            Some(Reject::SessionMoved { .. }) => self.end(&mut self.state.lock(), Ended::Moved, None),
            _ => {}
        }
        changed
    }

    /// What is to be said now, if there is something.
    fn message(&self, state: &mut State) -> Option<NodeMessage> {
        // What became of rows that the worker brought along is the first thing to say, so that it knows when all is said.
        if state.ended.is_none() && state.ready.is_empty() && state.compare {
            self.look(state);
        }
        if state.ended.is_none() && state.ready.is_empty() {
            if let Some(deadline) = state.extension.take() {
                let number = state.number();
                state.ready.push_back(NodeMessage::Extended { number, deadline });
            } else {
                self.look(state);
            }
        }
        if let Some((reason, problem)) = state.ended.clone() {
            return (!std::mem::replace(&mut state.silent, true)).then_some(NodeMessage::Ended { reason, problem });
        }
        if state.ready.is_empty() && std::mem::take(&mut state.draining) {
            let number = state.number();
            state.ready.push_back(NodeMessage::Draining { number });
        }
        let message = state.ready.pop_front()?;
        state.unconfirmed.sent(message.number()?, Instant::now());
        Some(message)
    }

    /// Ends the attachment, unless it has ended, and gives the session back.
    fn end(&self, state: &mut State, reason: Ended, problem: Option<Problem>) {
        if state.ended.is_some() {
            return;
        }
        // The state may say so before the reply does.
        let reason = if reason == Ended::SessionOver && state.closing { Ended::Closed } else { reason };
        metrics::session_ended(Some(reason));
        state.ended = Some((reason, problem));
        let seat = state.seat.take();
        // In these cases there is nothing to give back.
        if !matches!(reason, Ended::Closed | Ended::SessionOver | Ended::Moved) {
            detach(self.store.clone(), self.session.clone(), self.number, seat);
        }
        self.wake.wake();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.ended.is_none() {
            metrics::session_ended(None);
            detach(self.store.clone(), self.session.clone(), self.number, state.seat.take());
        }
    }
}

impl State {
    /// The number of a further message.
    fn number(&mut self) -> u64 {
        self.said += 1;
        self.said
    }
}

/// Tells the cluster that an attachment is gone, however long it takes until it can be told: until then the session is
/// given rows that nobody takes. Its seat is taken until then.
pub(crate) fn detach(store: Store, session: SessionId, attachment: u64, seat: Option<Seat>) {
    // Without a runtime the node has stopped.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let [.., last] = DETACH_AFTER;
        for pause in DETACH_AFTER.into_iter().chain(std::iter::repeat(last)) {
            sleep(pause).await;
            let detached = store.change_session(&session, SessionChange::Detach { attachment }).await;
            match detached {
                Err(error) if error.is_retryable() && !matches!(error, StoreError::Stopped) => {}
                _ => break,
            }
        }
        drop(seat);
    });
}
