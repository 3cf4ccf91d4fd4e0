//! Apply: one log entry against the state. The only way in which the state changes.

use std::collections::BTreeMap;

use crate::archive::{Archive, ArchiveResult};
use crate::command::{Command, Entry, Request, RowAction};
use crate::dedup;
use crate::dispatch::Stirred;
use crate::event::{ClusterEvent, Effect};
use crate::keys;
use crate::limits::{DEADLINES_PASSED_PER_ENTRY_MAX, KEYS_REMOVED_PER_ENTRY_MAX};
use crate::member::{Liveness, Member, MemberState};
use crate::planted::is_planted;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::{Apply, Machine};

/// What came of one log entry.
#[derive(Debug, Default)]
pub struct Applied {
    /// One for each request of the entry, in order.
    pub replies: Vec<Result<Reply, Reject>>,
    /// Facts for subscribers; their position in this list is part of their number.
    pub events: Vec<ClusterEvent>,
    /// Work for this node.
    pub effects: Vec<Effect>,
}

impl Machine {
    /// Applies the entry at log index `index`. Refusals are replies; the only error is an archive that
    /// cannot be read, and then the node must stop.
    ///
    /// # Errors
    /// [`crate::ArchiveError`]; the machine is unusable afterwards.
    pub fn apply(&mut self, index: u64, entry: Entry, archive: &dyn Archive) -> ArchiveResult<Applied> {
        let mut apply = Apply::begin(self, index, archive);
        let before = apply.now();
        apply.state.meta.now = if is_planted("time-moves-back") { entry.at } else { before.max(entry.at) };
        apply.pass_timers(before);
        apply.pass_rows();
        apply.end_sessions()?;
        apply.pass_deadlines(apply.now())?;
        apply.forget_replies();
        let mut replies = Vec::with_capacity(entry.requests.len());
        for request in entry.requests {
            replies.push(apply.request(request)?);
        }
        apply.pass_deadlines(apply.now())?;
        Ok(apply.end(replies))
    }

    /// Applies a committed membership entry: the members with what is committed about their life.
    ///
    /// # Errors
    /// As [`Machine::apply`].
    pub fn apply_members(&mut self, index: u64, members: &[Member], archive: &dyn Archive) -> ArchiveResult<Applied> {
        let mut apply = Apply::begin(self, index, archive);
        apply.members(members);
        Ok(apply.end(Vec::new()))
    }
}

/// True for an answer that another try may improve: a claim that took no row (its caller goes on waiting under the same
/// key), and a refusal that tells of the moment. It changed nothing, so nothing has to be remembered.
fn is_passing(reply: &Result<Reply, Reject>) -> bool {
    match reply {
        Ok(Reply::Claimed { claims }) => claims.is_empty(),
        Ok(_) => false,
        Err(reject) => reject.may_pass(),
    }
}

impl<'a> Apply<'a> {
    pub fn begin(state: &'a mut Machine, log_index: u64, archive: &'a dyn Archive) -> Self {
        let (events, effects) = (Vec::new(), Vec::new());
        let (passable, removable) = (DEADLINES_PASSED_PER_ENTRY_MAX, KEYS_REMOVED_PER_ENTRY_MAX);
        let stirred = Stirred::default();
        Self { state, archive, log_index, tokens: 0, passable, removable, events, effects, stirred }
    }

    fn end(mut self, replies: Vec<Result<Reply, Reject>>) -> Applied {
        self.dispatch();
        self.state.seal(self.log_index);
        Applied { replies, events: self.events, effects: self.effects }
    }

    fn request(&mut self, request: Request) -> ArchiveResult<Result<Reply, Reject>> {
        let Request { idempotency_key, fence, command } = request;
        let Some(key) = idempotency_key else { return self.fenced(fence, command) };
        let asked = dedup::fingerprint(&command);
        if let Some(reply) = self.recall(&key, asked)? {
            return Ok(reply);
        }
        let reply = self.fenced(fence, command)?;
        if !is_passing(&reply) {
            self.remember(key, asked, reply.clone());
        }
        Ok(reply)
    }

    fn fenced(
        &mut self,
        fence: Option<crate::command::Fence>,
        command: Command,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        if let Some(workflow) = command.workflow()
            && let Err(reject) = self.check_fence(fence.as_ref(), workflow)
        {
            return Ok(Err(reject));
        }
        if let Some(workflow) = command.workflow()
            && self.state.is_being_removed(workflow)
        {
            return Ok(Err(Reject::BeingRemoved { workflow: workflow.clone() }));
        }
        self.command(command)
    }

    fn command(&mut self, command: Command) -> ArchiveResult<Result<Reply, Reject>> {
        self.stirred.presented.clear();
        match command {
            Command::Create { shard_count } => Ok(self.create(shard_count)),
            Command::Boot { node, boot } => self.boot(node, boot),
            Command::Assign { owners } => Ok(self.assign(owners)),
            Command::Adopt { shard, from, by, expected_epoch } => self.adopt(shard, from, by, expected_epoch),
            Command::Transfer { shard, to, expected_epoch } => self.transfer(shard, to, expected_epoch),
            Command::Commit(commit) => self.commit(commit),
            Command::Claim(claim) => Ok(self.claim(claim)),
            Command::Heartbeat { key, token, lease_ms, details } => self.heartbeat(key, token, lease_ms, details),
            Command::Complete { key, token, result } => self.transition(key, token, RowAction::Complete { result }),
            Command::Fail { key, token, error, error_type, retryable } => {
                self.transition(key, token, RowAction::Fail { error, error_type, retryable })
            }
            Command::Retry { key, token, delay_ms } => self.transition(key, token, RowAction::Retry { delay_ms }),
            Command::Settle { workflow } => Ok(Ok(self.settle(&workflow))),
            Command::Rearm { workflow, rows } => self.rearm(workflow, rows),
            Command::Reconcile { older_than_ms, limit, excluded } => {
                self.reconcile(older_than_ms, limit, excluded).map(Ok)
            }
            Command::PutNamespace { namespace, settings } => Ok(self.put_namespace(namespace, settings)),
            Command::Tick => Ok(Ok(Reply::Ticked { at: self.now() })),
            Command::Timer { workflow, change } => self.timer(workflow, change),
            Command::Stage { workflow, namespace, rows } => self.stage_alone(workflow, namespace, rows),
            Command::MarkFailureDelivered { key } => self.mark_failure_delivered(key),
            Command::Redrive { key, forced } => self.redrive(key, forced),
            Command::Purge { workflows } => self.purge(workflows).map(Ok),
            Command::Delete { workflow } => self.delete_workflow(workflow),
            Command::Session { session, change } => Ok(self.session(session, change)),
            Command::Checkpoint { index, hash } => {
                self.effects.push(Effect::Checkpoint { index, hash });
                Ok(Ok(Reply::CheckpointTaken))
            }
        }
    }

    pub fn members(&mut self, members: &[Member]) {
        let named: BTreeMap<_, _> = members.iter().map(|member| (&member.name, member)).collect();
        let gone: Vec<_> = self.state.members.keys().filter(|name| !named.contains_key(name)).cloned().collect();
        for node in gone {
            self.state.members.remove(&node);
            self.state.delete(keys::member(&node));
            self.detach_from(&node, None);
            self.events.push(ClusterEvent::PeerRemoved { node });
        }
        for member in named.into_values() {
            self.member(member);
        }
        self.effects.push(Effect::TopologyChanged);
    }

    fn member(&mut self, member: &Member) {
        let node = member.name.clone();
        let before = self.state.members.get(&node);
        if before.is_some_and(|before| before.member == *member) {
            return;
        }
        let was = before.map(|before| before.member.liveness);
        let was_down = matches!(was, Some(Liveness::Down { .. }));
        let is_down = matches!(member.liveness, Liveness::Down { .. });
        let since = match before {
            Some(before) if was == Some(member.liveness) || (was_down && is_down) => before.since,
            _ => self.now(),
        };
        let boot = before.and_then(|before| before.boot.clone());
        if before.is_none() {
            self.events.push(ClusterEvent::PeerAdded { node: node.clone() });
        }
        match member.liveness {
            Liveness::Down { evidence } if !was_down => {
                self.events.push(ClusterEvent::PeerDown { node: node.clone(), evidence });
                self.detach_from(&node, None);
            }
            Liveness::Up if was != Some(Liveness::Up) => self.events.push(ClusterEvent::PeerUp { node: node.clone() }),
            _ => {}
        }
        let state = MemberState { member: member.clone(), boot, since };
        self.state.put(keys::member(&node), &state);
        self.state.members.insert(node, state);
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Command;
    use crate::event::ClusterEvent;
    use crate::id::{Millis, ShardId};
    use crate::member::{Evidence, Liveness};
    use crate::reply::Reply;
    use crate::trial::{DOWN, Trial, id, member};

    #[test]
    fn log_time_never_goes_back() {
        let mut trial = Trial::new();
        let mut tick = |at| {
            trial.at = at;
            trial.ask(Command::Tick).unwrap()
        };
        assert_eq!(tick(5_000), Reply::Ticked { at: Millis(5_000) });
        assert_eq!(tick(4_000), Reply::Ticked { at: Millis(5_000) });
        assert_eq!(tick(5_001), Reply::Ticked { at: Millis(5_001) });
    }

    #[test]
    fn a_refused_command_does_not_disturb_its_neighbours() {
        let mut trial = Trial::new();
        let adopt =
            Command::Adopt { shard: ShardId(9), from: id("a"), by: id("b"), expected_epoch: Default::default() };
        let replies = trial.apply(vec![Command::Tick.into(), adopt.into(), Command::Tick.into()]).replies;
        assert_eq!(replies.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn a_death_is_told_once_whatever_its_evidence() {
        let mut trial = Trial::new();
        let with = |liveness| [member("a", liveness), member("b", Liveness::Up), member("c", Liveness::Up)];
        let since = |trial: &Trial| trial.machine.member(&id("a")).unwrap().since;
        trial.at = 2_000;
        trial.ask(Command::Tick).unwrap();
        assert_eq!(trial.members(&with(DOWN)), [ClusterEvent::PeerDown { node: id("a"), evidence: Evidence::Silent }]);
        assert_eq!(since(&trial), Millis(2_000));
        trial.at = 3_000;
        trial.ask(Command::Tick).unwrap();
        assert_eq!(trial.members(&with(Liveness::Down { evidence: Evidence::LinkClosed })), []);
        assert_eq!(since(&trial), Millis(2_000));
        assert_eq!(trial.members(&with(Liveness::Up)), [ClusterEvent::PeerUp { node: id("a") }]);
        assert!(trial.machine.member(&id("a")).unwrap().serves(), "its boot is still on record");
    }
}
