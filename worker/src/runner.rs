//! A worker at work: brings the connection, the session and the executions together, in one task that waits for
//! whichever of them has something to say.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use holdfast_client::{Client, ClientError, Delivery};
use holdfast_machine::{ActivityType, ClaimToken, SessionId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;
use uuid::Uuid;

use crate::activity::{Activity, Cancelled, Standing};
use crate::counters::{Counters, Tally};
use crate::error::WorkerError;
use crate::execution::{Care, Handler, execute};
use crate::link::{Link, LinkEvent, pause_after};
use crate::outcome::tell;
use crate::rows::Step;
use crate::session::{Session, Turn};
use crate::worker::{HearResult, Worker};

/// How long a node may take to end a session; and how long an outcome may take that came at the last moment. After that
/// the lease ends it.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Runner {
    client: Client,
    registration: holdfast_machine::Worker,
    handlers: BTreeMap<ActivityType, Handler>,
    care: Care,
    drain_deadline: Duration,
    counters: Counters,
    hear_result: HearResult,
    session: Session,
    link: Link,
    /// How executions hear of what becomes of their rows.
    standings: BTreeMap<ClaimToken, watch::Sender<Standing>>,
    tasks: JoinSet<()>,
    reports: (mpsc::UnboundedSender<Report>, mpsc::UnboundedReceiver<Report>),
    phase: Phase,
}

/// What an execution says.
#[derive(Debug)]
enum Report {
    /// Its row is not the worker's any more.
    Lost(ClaimToken),
    /// The handler has ended.
    Ended(ClaimToken),
    /// All is said.
    Gone(ClaimToken),
}

/// How far the end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Working,
    /// Nothing new; what is there may finish until then.
    Draining(Instant),
    /// Handlers were told to stop.
    Stopping(Instant),
    /// The session is being ended.
    Closing(Instant),
}

enum Event {
    Link(LinkEvent),
    Report(Report),
    Shutdown,
    AtOnce,
    Deadline,
}

impl Runner {
    pub fn new(worker: Worker, registration: holdfast_machine::Worker) -> Self {
        let Worker {
            client, handlers, drain_deadline, cancel_grace, heartbeat_interval, counters, hear_result, ..
        } = worker;
        let room = usize::try_from(registration.max_concurrency).unwrap_or(usize::MAX);
        counters.sessions();
        Self {
            link: Link::new(client.clone()),
            client,
            handlers,
            care: Care { cancel_grace, heartbeat_interval, lease_ms: registration.lease_ms },
            registration,
            drain_deadline,
            counters,
            hear_result,
            session: Session::new(room, fresh_session),
            standings: BTreeMap::new(),
            tasks: JoinSet::new(),
            reports: mpsc::unbounded_channel(),
            phase: Phase::Working,
        }
    }

    pub async fn run(
        mut self,
        shutdown: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> Result<Tally, WorkerError> {
        tokio::pin!(shutdown, at_once);
        loop {
            let deadline = self.deadline();
            let event = tokio::select! {
                event = self.link.next() => Event::Link(event),
                Some(report) = self.reports.1.recv() => Event::Report(report),
                () = &mut shutdown, if self.phase == Phase::Working => Event::Shutdown,
                () = &mut at_once, if !matches!(self.phase, Phase::Closing(_)) => Event::AtOnce,
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Event::Deadline,
            };
            let session = self.session.id.clone();
            let turn = match event {
                Event::Link(event) => self.on_link(event).await,
                Event::Report(report) => self.on_report(report),
                Event::Shutdown => self.drain().await,
                Event::AtOnce => self.close().await,
                Event::Deadline => self.on_deadline().await,
            };
            if self.session.id != session {
                self.counters.sessions();
            }
            match turn {
                Turn::Stay => {}
                Turn::Attach => self.link.wait(pause_after(self.session.failures())),
                Turn::Finished => break,
                Turn::Stop(error) => {
                    self.tasks.shutdown().await;
                    return Err(error);
                }
            }
            self.take_steps();
            if self.has_finished_its_work()
                && let Turn::Finished = self.close().await
            {
                break;
            }
        }
        self.tasks.shutdown().await;
        Ok(self.counters.tally())
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Working => None,
            Phase::Draining(until) | Phase::Stopping(until) | Phase::Closing(until) => Some(until),
        }
    }

    /// True if nothing is in hand and nothing can come. What a node without a connection has for the worker goes back
    /// together with the session.
    fn has_finished_its_work(&self) -> bool {
        let nothing_comes = self.session.is_drained() || !self.link.is_attached();
        match self.phase {
            Phase::Draining(_) => self.session.rows.is_empty() && nothing_comes,
            Phase::Stopping(_) => self.session.rows.is_empty(),
            Phase::Working | Phase::Closing(_) => false,
        }
    }

    async fn on_link(&mut self, event: LinkEvent) -> Turn {
        let done = match event {
            LinkEvent::Attach => {
                self.session.connecting();
                let holding = self.session.rows.holding();
                self.link.attach(self.session.id.clone(), self.registration.clone(), holding);
                Ok(())
            }
            LinkEvent::Connected => {
                self.counters.attached();
                match self.phase {
                    Phase::Working => Ok(()),
                    Phase::Draining(_) | Phase::Stopping(_) => self.link.drain().await,
                    Phase::Closing(_) => self.link.close().await,
                }
            }
            LinkEvent::Message(message) => {
                tracing::trace!(?message, "the node says");
                return self.session.hear(message);
            }
            LinkEvent::Heartbeat => self.link.heartbeat(self.session.heartbeat()).await,
            LinkEvent::Lost(error) => Err(error),
        };
        self.after(done)
    }

    fn on_report(&mut self, report: Report) -> Turn {
        let rows = &mut self.session.rows;
        match report {
            Report::Lost(token) => rows.cancel(token, Cancelled::Withdrawn(None)),
            Report::Ended(token) => rows.ended(token),
            Report::Gone(token) => {
                rows.gone(token);
                self.standings.remove(&token);
            }
        }
        while self.tasks.try_join_next().is_some() {}
        Turn::Stay
    }

    async fn on_deadline(&mut self) -> Turn {
        match self.phase {
            Phase::Working => Turn::Stay,
            Phase::Draining(_) => {
                tracing::warn!(rows = self.session.rows.holding().len(), "not finished in time; stopping");
                self.session.rows.cancel_all(Cancelled::Stopping);
                self.phase = Phase::Stopping(Instant::now() + self.care.cancel_grace + LAST_PATIENCE);
                Turn::Stay
            }
            Phase::Stopping(_) => self.close().await,
            Phase::Closing(_) => {
                tracing::warn!("no node has ended the session in time; it ends with its lease");
                Turn::Finished
            }
        }
    }

    async fn drain(&mut self) -> Turn {
        tracing::info!(rows = self.session.rows.holding().len(), "taking nothing new");
        self.session.end();
        self.phase = Phase::Draining(Instant::now() + self.drain_deadline);
        let done = self.link.drain().await;
        self.after(done)
    }

    /// Ends the session; whatever is still at work is dropped, and its row goes back.
    async fn close(&mut self) -> Turn {
        self.session.end();
        self.session.rows.cancel_all(Cancelled::Stopping);
        self.tasks.abort_all();
        self.phase = Phase::Closing(Instant::now() + LAST_PATIENCE);
        let done = self.link.close().await;
        self.after(done)
    }

    fn after(&mut self, done: Result<(), ClientError>) -> Turn {
        match done {
            Ok(()) => Turn::Stay,
            Err(error) => {
                tracing::info!(%error, "no connection to a node; trying the next one");
                self.session.lose(error)
            }
        }
    }

    fn take_steps(&mut self) {
        loop {
            let steps = self.session.rows.take_steps();
            if steps.is_empty() {
                return;
            }
            for step in steps {
                match step {
                    // It came too late, and goes back together with the session.
                    Step::Start(delivery, _) if matches!(self.phase, Phase::Stopping(_) | Phase::Closing(_)) => {
                        self.session.rows.gone(delivery.token);
                    }
                    Step::Start(delivery, standing) => self.start(*delivery, standing),
                    Step::Tell(token, standing) => {
                        if let Some(told) = self.standings.get(&token) {
                            told.send_replace(standing);
                        }
                    }
                }
            }
        }
    }

    fn start(&mut self, delivery: Delivery, standing: Standing) {
        let token = delivery.token;
        let span = tracing::info_span!(
            "activity",
            activity = %delivery.activity_type,
            key = %delivery.key,
            attempt = delivery.attempt,
        );
        let (told, standing) = watch::channel(standing);
        self.standings.insert(token, told);
        let handler = self.handlers.get(&delivery.activity_type).cloned();
        let activity = Activity::new(delivery, self.client.clone(), standing.clone());
        let (client, counters, care) = (self.client.clone(), self.counters.clone(), self.care);
        let hear_result = Arc::clone(&self.hear_result);
        let reports = self.reports.0.clone();
        let work = async move {
            // Nobody hears reports once the worker has ended.
            let report = |report| drop(reports.send(report));
            let lost = || report(Report::Lost(token));
            let outcome = execute(handler, activity.clone(), &client, care, &counters, lost).await;
            report(Report::Ended(token));
            if let Some(outcome) = outcome {
                let seq = tell(&client, activity.delivery(), outcome, standing, &counters).await;
                hear_result(&activity, seq);
            }
            report(Report::Gone(token));
        };
        self.tasks.spawn(work.instrument(span));
    }
}

fn fresh_session() -> SessionId {
    // The text of a UUID has 36 letters, digits and dashes.
    #[allow(clippy::expect_used)]
    SessionId::new(Uuid::new_v4().to_string()).expect("a uuid is a valid id")
}
