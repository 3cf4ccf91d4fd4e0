//! Clients: they call over the network, lose replies, try again under the same key, and remember what they were told.

mod appender;
mod engine;
mod operator;
mod session;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use holdfast_checkers::history::{self, Asked, Outcome};
use holdfast_machine::{
    Command, Epoch, Fence, HistoryEvent, IdempotencyKey, Millis, Reject, Reply, Request, WorkflowId,
};
use turmoil::net::TcpStream;

pub use appender::appender;
pub use engine::engine;
pub use operator::operator;
pub use session::session;
pub use worker::worker;

use crate::draw::{Draw, Random};
use crate::rpc::{Answer, Ask, PATIENCE, PORT, Talk};
use crate::watch::Acknowledged;
use crate::world::World;

/// Pause before another try.
const PAUSE_MS: (u64, u64) = (20, 200);

/// One client's way to the nodes.
pub struct Caller {
    /// The client's name.
    pub name: String,
    /// What all share.
    pub world: Arc<World>,
    /// The client's own chance.
    pub random: Random,
    number: u64,
    talk: Option<(String, Talk)>,
    keys: u64,
}

/// A write that came to an end.
pub struct Settled {
    /// Log time of its entry.
    pub at: Millis,
    /// What the state machine said.
    pub reply: Result<Reply, Reject>,
    /// True if it was tried more than once.
    pub retried: bool,
}

impl Caller {
    /// A client that has called nobody yet.
    pub fn new(name: String, number: u64, world: Arc<World>, random: Random) -> Self {
        Self { name, world, random, number, talk: None, keys: 0 }
    }

    /// Sleeps for a drawn time.
    pub async fn pause(&mut self, low_ms: u64, high_ms: u64) {
        let ms = self.random.between(low_ms, high_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Writes under a key of its own until it is known what came of it.
    pub async fn settle(&mut self, command: Command, fence: Option<Fence>) -> Settled {
        self.keys += 1;
        let key = IdempotencyKey::new(format!("{}/{}", self.name, self.keys)).ok();
        let request = Request { idempotency_key: key, fence, command };
        let made = self.world.calls.invoke(self.number, Asked::Write(request.clone()));
        let mut tries = 0;
        loop {
            tries += 1;
            if let Some(Answer::Committed { index, at, reply }) = self.ask(&Ask::Propose(request.clone())).await {
                self.world.calls.returned(made, outcome(index, &reply));
                self.world.watch.acknowledged(Acknowledged { index, request: request.clone(), reply: reply.clone() });
                self.world.record.count(if reply.is_ok() { "call ok" } else { "call rejected" });
                if tries == 1 {
                    self.check_first(index, &request, &reply).await;
                }
                return Settled { at, reply, retried: tries > 1 };
            }
            self.world.record.count("call tried again");
            self.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        }
    }

    /// What can be said of a write that was sent once: its fence was the owner's, and if it is sent again, now that it has
    /// its answer, it gets the same one.
    async fn check_first(&mut self, index: u64, request: &Request, reply: &Result<Reply, Reject>) {
        if let (Some(fence), Some(workflow), Ok(_)) = (&request.fence, request.command.workflow(), reply) {
            self.world.watch.fenced(self.world.shard_of(workflow), index, fence);
            self.world.record.count("fenced write accepted");
        }
        // What changed nothing is not remembered: another try may do better.
        let changed = reply.is_ok() && !matches!(reply, Ok(Reply::Claimed { claims }) if claims.is_empty());
        if !changed || self.world.leaps() || !self.random.chance(4) {
            return;
        }
        if let Some(Answer::Committed { reply: again, .. }) = self.ask(&Ask::Propose(request.clone())).await {
            self.world.record.count("call repeated");
            if again != *reply {
                self.world.record.broken(format_args!("{request:?} was told {reply:?}, and when repeated {again:?}"));
            }
        }
    }

    /// A fence for a write to this workflow: of the owner as somebody knows it, and now and then of a former one.
    pub fn fence(&mut self, workflow: &WorkflowId) -> Option<Fence> {
        let mut fence = self.world.owner_of(workflow).filter(|_| !self.world.leaps())?;
        match self.random.below(10) {
            0..5 => return None,
            5 => fence.epoch = Epoch(fence.epoch.0.saturating_sub(1)),
            6 => fence.owner = self.random.pick(&self.world.hosts).name.clone(),
            _ => {}
        }
        Some(fence)
    }

    /// A history as it is now, read at a random node; asks until there is an answer.
    pub async fn history(&mut self, workflow: &WorkflowId) -> Vec<HistoryEvent> {
        let made = self.world.calls.invoke(self.number, Asked::History(workflow.clone()));
        loop {
            if let Some(Answer::History(index, events)) = self.ask(&Ask::History(workflow.clone())).await {
                let answer = history::Answer::History { head: events.len() as u64, digest: history::digest(&events) };
                self.world.calls.returned(made, Outcome::Ok { index, answer });
                self.world.record.count("strong read");
                return events;
            }
            self.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        }
    }

    /// Asks once, at a node that is kept for a while. None if there was no answer.
    pub async fn ask(&mut self, ask: &Ask) -> Option<Answer> {
        if self.random.chance(10) {
            self.talk = None;
        }
        let answer = match tokio::time::timeout(PATIENCE, self.exchange(ask)).await {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(_) => {
                self.talk = None;
                self.world.record.count("call without a reply");
                return None;
            }
        };
        let said = match &answer {
            Answer::Committed { index, reply, .. } => format!("{index} {reply:?}"),
            Answer::History(index, events) => format!("{} events at {index}", events.len()),
            Answer::Refused(reason) => reason.clone(),
            other => format!("{other:?}"),
        };
        self.world.record.note(format_args!("{} is told {said}", self.name));
        match answer {
            Answer::Refused(_) => self.world.record.count("call refused"),
            Answer::Unknown => self.world.record.count("call unknown"),
            _ => return Some(answer),
        }
        self.talk = None;
        Some(answer)
    }

    /// A connection to a node that chance picks, and its name.
    async fn connect(&mut self) -> Option<(String, Talk)> {
        let node = self.random.pick(&self.world.hosts).name.to_string();
        let stream = TcpStream::connect((node.as_str(), PORT)).await.ok()?;
        Some((node, Talk::over(stream)))
    }

    async fn exchange(&mut self, ask: &Ask) -> Option<Answer> {
        if self.talk.is_none() {
            self.talk = Some(self.connect().await?);
        }
        let (_, talk) = self.talk.as_mut()?;
        if !talk.say(ask).await {
            return None;
        }
        talk.hear().await
    }
}

fn outcome(index: u64, reply: &Result<Reply, Reject>) -> Outcome {
    match reply {
        Ok(reply) => Outcome::Ok { index, answer: history::Answer::Reply(reply.clone()) },
        Err(reject) => Outcome::Refused { index: Some(index), reject: reject.clone() },
    }
}
