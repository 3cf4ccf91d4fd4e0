//! Remembered replies: a retry under the same idempotency key gets the first reply and changes nothing.
//!
//! The replies are on disk; memory holds only their keys and times. They are forgotten after
//! [`REPLY_REMEMBERED_MS`] of log time, or when there are more than [`REPLIES_REMEMBERED_MAX`], oldest first. Answers that
//! changed nothing and that another try may improve are not remembered: see `apply.rs`.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::archive::ArchiveResult;
use crate::command::Command;
use crate::id::{IdempotencyKey, Millis};
use crate::keys;
use crate::limits::{REPLIES_FORGOTTEN_PER_ENTRY_MAX, REPLIES_REMEMBERED_MAX, REPLY_REMEMBERED_MS};
use crate::planted::is_planted;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::Apply;

/// What a reply answered, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// Log time of the first call.
    pub at: Millis,
    /// A hash of the command.
    pub request: u128,
    /// The first reply.
    pub reply: Result<Reply, Reject>,
}

/// A fingerprint of what was asked, to tell a retry from another request under the same key. The fence is no part of
/// it: an engine whose reply was lost with its node sends its retry under the epoch of the adopter.
pub(crate) fn fingerprint(command: &Command) -> u128 {
    xxh3_128(&keys::encode(command))
}

impl Apply<'_> {
    /// The first reply under this key, if it is remembered.
    pub fn recall(&self, key: &IdempotencyKey, request: u128) -> ArchiveResult<Option<Result<Reply, Reject>>> {
        if !self.state.remembered.contains_key(key) || is_planted("forget-replies") {
            return Ok(None);
        }
        let stored: Option<Remembered> = self.get(&keys::reply(key))?;
        Ok(stored.map(|stored| if stored.request == request { stored.reply } else { Err(Reject::IdempotencyConflict) }))
    }

    /// Remembers a reply.
    pub fn remember(&mut self, key: IdempotencyKey, request: u128, reply: Result<Reply, Reject>) {
        let at = self.now();
        self.state.put(keys::reply(&key), &Remembered { at, request, reply });
        self.state.replies.insert((at, key.clone()));
        self.state.remembered.insert(key, at);
    }

    /// Forgets replies that are too old or too many. Runs before the commands of each entry.
    pub fn forget_replies(&mut self) {
        self.forget_beyond(REPLIES_REMEMBERED_MAX);
    }

    fn forget_beyond(&mut self, remembered_max: usize) {
        let until = Millis(self.now().0.saturating_sub(REPLY_REMEMBERED_MS));
        for _ in 0..REPLIES_FORGOTTEN_PER_ENTRY_MAX {
            match self.state.replies.first() {
                Some((at, _)) if *at < until || self.state.replies.len() > remembered_max => {}
                _ => return,
            }
            let Some((_, key)) = self.state.replies.pop_first() else { return };
            self.state.remembered.remove(&key);
            self.state.delete(keys::reply(&key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Fence, Request};
    use crate::id::{Epoch, ShardId};
    use crate::trial::{Trial, id};

    fn keyed(number: usize) -> Request {
        Request { idempotency_key: Some(id(&format!("k{number}"))), fence: None, command: Command::Tick }
    }

    #[test]
    fn replies_are_remembered_for_their_time_and_forgotten_in_portions() {
        let mut trial = Trial::new();
        let most = REPLIES_FORGOTTEN_PER_ENTRY_MAX;
        trial.apply((0..=most).map(keyed).collect());
        let known = |trial: &Trial| (0..=most).filter(|n| trial.machine.remembers(&id(&format!("k{n}")))).count();
        trial.at += REPLY_REMEMBERED_MS;
        trial.ask(Command::Tick).unwrap();
        assert_eq!(known(&trial), most + 1, "not before its time");
        trial.at += 1;
        trial.ask(Command::Tick).unwrap();
        assert_eq!(known(&trial), 1);
        trial.ask(Command::Tick).unwrap();
        assert_eq!(known(&trial), 0);
    }

    #[test]
    fn the_oldest_replies_make_room() {
        let mut trial = Trial::new();
        for number in 0..5 {
            trial.at += 1;
            trial.apply(vec![keyed(number)]);
        }
        trial.force(|apply| apply.forget_beyond(2));
        let known: Vec<usize> = (0..5).filter(|n| trial.machine.remembers(&id(&format!("k{n}")))).collect();
        assert_eq!(known, [3, 4]);
    }

    #[test]
    fn what_only_tells_of_the_moment_is_not_remembered() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        trial.start("order-2", [1]);
        let settle = |epoch| Request {
            idempotency_key: Some(id("k")),
            fence: Some(Fence { owner: id("a"), epoch: crate::Epoch(epoch) }),
            command: Command::Settle { workflow: id("order-1") },
        };
        let code = |reply: &Result<Reply, Reject>| reply.as_ref().err().map(Reject::code);
        // An engine that was not the owner learns the epoch and asks again under its key.
        assert_eq!(code(&trial.apply(vec![settle(7)]).replies[0]), Some("not_owner"));
        assert_eq!(code(&trial.apply(vec![settle(1)]).replies[0]), None);
        assert_eq!(code(&trial.apply(vec![settle(7)]).replies[0]), None, "the first reply, whatever the fence");
        let boot = || Request {
            idempotency_key: Some(id("b")),
            fence: None,
            command: Command::Boot { node: id("d"), boot: id("1") },
        };
        assert_eq!(code(&trial.apply(vec![boot()]).replies[0]), Some("node_state"));
        trial.members(&["a", "b", "c", "d"].map(|name| crate::trial::member(name, crate::Liveness::Up)));
        assert_eq!(code(&trial.apply(vec![boot()]).replies[0]), None);
        // A refusal of what was asked stays.
        let redrive = || Request {
            idempotency_key: Some(id("c")),
            fence: None,
            command: Command::Redrive { key: id("order-2:1"), forced: false },
        };
        let first = trial.apply(vec![redrive()]).replies;
        assert_eq!(code(&first[0]), Some("not_dead_letter"));
        trial.bury("order-2:1");
        assert_eq!(trial.apply(vec![redrive()]).replies, first);
    }

    #[test]
    fn a_key_belongs_to_one_request() {
        let mut trial = Trial::new();
        let first = trial.apply(vec![keyed(1)]).replies;
        trial.at += 5;
        assert_eq!(trial.apply(vec![keyed(1)]).replies, first, "the first reply, with its time");
        let other = Request { command: Command::Create { shard_count: 2 }, ..keyed(1) };
        assert_eq!(trial.apply(vec![other]).replies, [Err(Reject::IdempotencyConflict)]);
        assert_eq!(trial.apply(vec![keyed(1)]).replies, first, "a conflict does not take its place");
    }

    #[test]
    fn a_retry_under_another_epoch_gets_the_first_reply() {
        let mut trial = Trial::new();
        let settle = |owner: &str, epoch| Request {
            idempotency_key: Some(id("k")),
            fence: Some(Fence { owner: id(owner), epoch: Epoch(epoch) }),
            command: Command::Settle { workflow: id("order-1") },
        };
        let first = trial.apply(vec![settle("a", 1)]).replies;
        assert!(first[0].is_ok(), "{first:?}");
        let transfer = Command::Transfer { shard: ShardId(0), to: id("c"), expected_epoch: Epoch(1) };
        trial.ask(transfer).unwrap();
        assert_eq!(trial.apply(vec![settle("c", 2)]).replies, first);
    }
}
