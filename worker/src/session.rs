//! A worker's session: what each message of the node means for it, and what a lost connection does.
//!
//! A session outlives its connections. As long as nobody says that it is over, the worker keeps its rows at work and
//! attaches again; only a node's word, or an attachment that found the session gone, takes them from it.

use std::time::Duration;

use holdfast_client::ClientError;
use holdfast_client::wire::{Ended, NodeMessage};
use holdfast_machine::{Reject, SessionId};

use crate::activity::Cancelled;
use crate::error::WorkerError;
use crate::rows::Rows;

/// Times in a row that another connection may take the session. One of them is this worker's own: an attachment whose
/// answer came too late. After that somebody else has it, and the two must not go on for ever.
const MOVES_MAX: u32 = 3;
/// How often a session is extended before a node has said how often it wants that.
const HEARTBEAT_FIRST: Duration = Duration::from_secs(1);

/// What is to become of the connection.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is in use.
    Stay,
    /// It is over; attach again.
    Attach,
    /// It is over, and so is the session, and nobody wants another one.
    Finished,
    /// The worker cannot go on.
    Stop(WorkerError),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: SessionId,
    pub rows: Rows,
    fresh: fn() -> SessionId,
    heartbeat: Duration,
    /// Connections that were lost, or not to be had, since a node last heard a heartbeat.
    failures: u32,
    moves: u32,
    /// The node has said that there is nothing more to come.
    drained: bool,
    ending: bool,
}

impl Session {
    /// A session for `room` rows; `fresh` makes names that nobody has used.
    pub fn new(room: usize, fresh: fn() -> SessionId) -> Self {
        Self {
            id: fresh(),
            rows: Rows::new(room),
            fresh,
            heartbeat: HEARTBEAT_FIRST,
            failures: 0,
            moves: 0,
            drained: false,
            ending: false,
        }
    }

    /// How often the node wants to hear a heartbeat.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// Connections that were lost, or not to be had, since a node last heard a heartbeat.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// True if there is nothing more to come.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// From now on there is no need for another session when this one is over.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// A connection begins; what was said on the last one has to be said again.
    pub fn connecting(&mut self) {
        self.drained = false;
    }

    /// The node says something.
    pub fn hear(&mut self, message: NodeMessage) -> Turn {
        // What is to be said of the rows that were brought along is said before anything of these.
        if let NodeMessage::Deliveries { .. } | NodeMessage::Extended { .. } | NodeMessage::Draining { .. } = message {
            self.rows.settle_pauses();
        }
        match message {
            NodeMessage::Attached { heartbeat_ms, resumed, .. } => {
                self.heartbeat = Duration::from_millis(heartbeat_ms.max(1));
                self.rows.doubt_pauses();
                // The session that had the rows is gone, and this is another one under its name.
                if !resumed {
                    self.rows.cancel_all(Cancelled::SessionOver);
                }
            }
            NodeMessage::Deliveries { deliveries, .. } => {
                deliveries.into_iter().for_each(|delivery| self.rows.deliver(delivery))
            }
            NodeMessage::Withdrawn { rows, .. } => {
                for row in rows {
                    self.rows.cancel(row.token, Cancelled::Withdrawn(row.status));
                }
            }
            NodeMessage::Paused { rows, .. } => rows.iter().for_each(|row| self.rows.pause(row.token, true)),
            NodeMessage::Resumed { rows, .. } => rows.iter().for_each(|row| self.rows.pause(row.token, false)),
            NodeMessage::Extended { .. } => {
                self.moves = 0;
                self.failures = 0;
            }
            NodeMessage::Draining { .. } => self.drained = true,
            NodeMessage::Ended { reason, problem } => return self.ended(reason, problem.map(ClientError::from)),
        }
        Turn::Stay
    }

    /// The connection is gone without a word, or there was none to be had.
    pub fn lose(&mut self, error: ClientError) -> Turn {
        match error.reject() {
            Some(Reject::SessionNotFound { .. }) => self.over(),
            Some(Reject::SessionMoved { .. }) => self.moved(),
            // The start of that node is not committed yet, or the cluster takes it for dead; another one may do.
            Some(Reject::NodeState { .. }) => self.again(),
            // What cannot be read may have been said by somebody in between.
            _ if error.is_retryable() || matches!(error, ClientError::Protocol(_)) => self.again(),
            _ => Turn::Stop(WorkerError::Refused(error)),
        }
    }

    fn ended(&mut self, reason: Ended, problem: Option<ClientError>) -> Turn {
        match reason {
            // Whoever closed it, its rows are pending again.
            Ended::Closed | Ended::SessionOver => self.over(),
            Ended::NodeStopping | Ended::StreamDead => self.again(),
            Ended::Moved => self.moved(),
            Ended::Refused => {
                self.lose(problem.unwrap_or_else(|| {
                    ClientError::Protocol("the node refused the worker without saying why".to_owned())
                }))
            }
        }
    }

    fn over(&mut self) -> Turn {
        self.rows.cancel_all(Cancelled::SessionOver);
        if self.ending {
            return Turn::Finished;
        }
        self.id = (self.fresh)();
        self.again()
    }

    fn again(&mut self) -> Turn {
        self.failures = self.failures.saturating_add(1);
        Turn::Attach
    }

    fn moved(&mut self) -> Turn {
        self.moves += 1;
        if self.moves < MOVES_MAX { self.again() } else { Turn::Stop(WorkerError::Moved) }
    }
}

#[cfg(test)]
mod tests;
