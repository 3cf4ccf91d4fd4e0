//! The connection to a node: made, kept alive, lost and made again.

use std::time::Duration;

use futures::future::BoxFuture;
use holdfast_client::wire::{HeldRow, NodeMessage};
use holdfast_client::{Client, ClientError, WorkerStream};
use holdfast_machine::{SessionId, Worker};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

/// The pause after all nodes have been asked once; it doubles from round to round.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Heartbeats without an answer after which a connection is given up, while there is still some of the lease left.
const UNANSWERED_MAX: u32 = 2;

/// The longest silence before the first heartbeat, which is due at once.
const SILENCE_FIRST: Duration = Duration::from_secs(10);

/// What there is to be done about the connection.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// It is time to attach.
    Attach,
    /// A connection is there; its first message comes next.
    Connected,
    /// The node says something.
    Message(NodeMessage),
    /// A heartbeat is due.
    Heartbeat,
    /// The connection is gone, or there was none to be had.
    Lost(ClientError),
}

/// See the module.
pub(crate) struct Link {
    client: Client,
    state: State,
    /// The node to ask first, once there was one.
    next_node: Option<usize>,
}

enum State {
    Waiting(Instant),
    Attaching(BoxFuture<'static, Result<WorkerStream, ClientError>>),
    Attached(Box<Attached>),
}

struct Attached {
    stream: WorkerStream,
    heartbeat_at: Instant,
    /// When the node was heard last.
    heard: Instant,
    silence_max: Duration,
}

impl Link {
    pub fn new(client: Client) -> Self {
        Self { client, state: State::Waiting(Instant::now()), next_node: None }
    }

    /// What comes next. May be dropped while it waits.
    pub async fn next(&mut self) -> LinkEvent {
        match &mut self.state {
            State::Waiting(until) => {
                sleep_until(*until).await;
                LinkEvent::Attach
            }
            State::Attaching(attaching) => match attaching.await {
                Ok(stream) => {
                    self.next_node = Some(stream.node_number() + 1);
                    let now = Instant::now();
                    let attached = Attached { stream, heartbeat_at: now, heard: now, silence_max: SILENCE_FIRST };
                    self.state = State::Attached(Box::new(attached));
                    LinkEvent::Connected
                }
                // Until it is said how long to wait.
                Err(error) => {
                    self.wait(Duration::ZERO);
                    LinkEvent::Lost(error)
                }
            },
            State::Attached(attached) => {
                let event = attached.next().await;
                if let LinkEvent::Lost(_) = event {
                    self.wait(Duration::ZERO);
                }
                event
            }
        }
    }

    /// Begins to attach.
    pub fn attach(&mut self, session: SessionId, worker: Worker, holding: Vec<HeldRow>) {
        let (client, first) = (self.client.clone(), self.next_node);
        self.state = State::Attaching(Box::pin(async move {
            match first {
                Some(first) => client.attach_from(first, session, worker, holding).await,
                None => client.attach(session, worker, holding).await,
            }
        }));
    }

    /// Drops the connection; the next one is made after `pause`.
    pub fn wait(&mut self, pause: Duration) {
        self.state = State::Waiting(Instant::now() + pause);
    }

    /// Says that the worker lives, and how much of what was sent has come; the next time is `interval` from now.
    pub async fn heartbeat(&mut self, interval: Duration) -> Result<(), ClientError> {
        let Some(attached) = self.attached() else { return Ok(()) };
        attached.heartbeat_at = Instant::now() + interval;
        attached.silence_max = interval * UNANSWERED_MAX;
        attached.stream.heartbeat(attached.stream.received()).await
    }

    /// Asks for nothing new, if there is a connection.
    pub async fn drain(&mut self) -> Result<(), ClientError> {
        match self.attached() {
            Some(attached) => attached.stream.drain().await,
            None => Ok(()),
        }
    }

    /// Ends the session, if there is a connection.
    pub async fn close(&mut self) -> Result<(), ClientError> {
        match self.attached() {
            Some(attached) => attached.stream.close().await,
            None => Ok(()),
        }
    }

    /// True while there is a connection.
    pub fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached(_))
    }

    fn attached(&mut self) -> Option<&mut Attached> {
        match &mut self.state {
            State::Attached(attached) => Some(attached),
            _ => None,
        }
    }
}

impl Attached {
    async fn next(&mut self) -> LinkEvent {
        tokio::select! {
            // What has arrived is read before silence is called silence.
            biased;
            message = self.stream.next() => {
                self.heard = Instant::now();
                match message {
                    Some(Ok(message)) => LinkEvent::Message(message),
                    Some(Err(error)) => LinkEvent::Lost(error),
                    None => LinkEvent::Lost(ClientError::Unreachable("the stream has ended".to_owned())),
                }
            }
            () = sleep_until(self.heartbeat_at) => LinkEvent::Heartbeat,
            () = sleep_until(self.heard + self.silence_max) => {
                LinkEvent::Lost(ClientError::Unreachable(format!("{} does not answer", self.stream.url())))
            }
        }
    }
}

/// The pause after the `failures`-th failure in a row: none after the first, then at least half of one that doubles,
/// the rest by chance.
pub(crate) fn pause_after(failures: u32) -> Duration {
    if failures <= 1 {
        return Duration::ZERO;
    }
    let whole = PAUSE_MIN.saturating_mul(1 << (failures - 2).min(16)).min(PAUSE_MAX);
    let half = whole / 2;
    half + half.mul_f64(f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_is_made_at_once_and_later_ones_ever_more_rarely() {
        assert_eq!(pause_after(1), Duration::ZERO);
        for failures in [2, 3, 10, u32::MAX] {
            let whole = PAUSE_MIN.saturating_mul(1 << (failures - 2).min(16)).min(PAUSE_MAX);
            let pause = pause_after(failures);
            assert!(pause >= whole / 2 && pause <= whole, "{failures}: {pause:?}");
        }
    }
}
