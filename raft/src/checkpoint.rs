//! Notices a node whose state has come apart from the others'.
//!
//! Equal logs make equal states only if apply does the same on every node and no memory or disk has lied. So the leader
//! asks now and then what each voter's rolling hash was as of one index, and commits the one that a majority of them
//! had. Each node compares it with its own as that entry is applied: before anything after it is answered. The odd one
//! out stops, be it the leader, and stays stopped: its data directory says so (see [`holdfast_storage::DataDir::condemn`]).
//!
//! The majority is asked for first, because a leader's hash by itself would let one damaged leader stop all the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_machine::{Command, Request, is_planted};
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;

use crate::leader::LeaderDesk;
use crate::peers::Links;
use crate::progress::Progress;
use crate::state_machine::Replica;
use crate::transport::frame::Kind;
use crate::types::Core;
use crate::wire::{StateHashAnswer, StateHashAsk, decode, encode};

/// Entries whose hashes are remembered: more than are applied while a checkpoint is on its way.
const REMEMBERED: usize = 64 * 1024;
/// How long a peer may take to get as far as the leader was.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// How long the checkpoint itself may take.
const PROPOSE_LIMIT: Duration = Duration::from_secs(5);

/// The rolling hash after each of the last entries, by log index.
#[derive(Debug, Default)]
pub(crate) struct Hashes(Mutex<VecDeque<(u64, u64)>>);

/// Two hashes for one index.
#[derive(Debug, thiserror::Error)]
#[error("the state as of log entry {index} has the hash {ours:016x} here and {theirs:016x} on a majority of the nodes")]
pub(crate) struct Diverged {
    pub index: u64,
    pub ours: u64,
    pub theirs: u64,
}

impl Hashes {
    /// Remembers the hash as of `index`, which is above all that came before.
    pub fn push(&self, index: u64, hash: u64) {
        let mut hashes = self.0.lock();
        if hashes.len() == REMEMBERED {
            hashes.pop_front();
        }
        hashes.push_back((index, hash));
    }

    /// The hash as of `index`, if it is remembered.
    pub fn at(&self, index: u64) -> Option<u64> {
        let hashes = self.0.lock();
        let found = hashes.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        hashes.get(found).map(|(_, hash)| *hash)
    }

    /// The last entry's index and hash.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.0.lock().back().copied()
    }

    /// An error if the hash as of `index` was another one here. What is not remembered cannot be compared: a node that
    /// has just started, or got a snapshot from beyond `index`, waits for the next checkpoint.
    pub fn compare(&self, index: u64, theirs: u64) -> Result<(), Diverged> {
        match self.at(index) {
            Some(ours) if ours != theirs && !is_planted("ignore-divergence") => Err(Diverged { index, ours, theirs }),
            _ => Ok(()),
        }
    }
}

/// The hash that a majority of `voters` has, if there is one.
fn majority(hashes: impl Iterator<Item = u64>, voters: usize) -> Option<u64> {
    let mut counts = BTreeMap::new();
    hashes.for_each(|hash| *counts.entry(hash).or_insert(0) += 1);
    counts.into_iter().find(|(_, count)| count * 2 > voters).map(|(hash, _)| hash)
}

/// The task that proposes checkpoints while its node leads.
pub(crate) struct Checkpoints {
    pub core: Core,
    pub node: u64,
    pub desk: LeaderDesk,
    pub links: Links,
    pub replica: Arc<Replica>,
    pub interval: Duration,
}

impl Checkpoints {
    /// Runs until the node stops.
    pub async fn run(self) {
        let mut newest = None;
        loop {
            tokio::time::sleep(self.interval).await;
            let last = self.replica.hashes().last();
            // A checkpoint is an entry itself: an idle cluster writes no second one after it.
            let moved = last.map(|(index, _)| index) > newest;
            if let Some((index, hash)) = last.filter(|_| moved && self.desk.leads()) {
                match self.take(index, hash).await {
                    Ok(taken) => newest = Some(taken),
                    Err(error) => tracing::warn!(index, error, "no checkpoint of the state could be taken"),
                }
            }
        }
    }

    /// Gives the index of the checkpoint's own entry.
    async fn take(&self, index: u64, ours: u64) -> Result<u64, String> {
        let voters: Vec<u64> = self.core.server_metrics().borrow_watched().membership_config.voter_ids().collect();
        let ask = encode(&StateHashAsk { index });
        let others = join_all(voters.iter().filter(|id| **id != self.node).map(|id| {
            let (link, ask) = (self.links.get(*id), ask.clone());
            async move {
                let bytes = link?.call(Kind::StateHash, ask, ASK_LIMIT).await.ok()?;
                decode::<StateHashAnswer>(&bytes).ok()?.hash
            }
        }));
        let known: Vec<u64> = others.await.into_iter().flatten().chain([ours]).collect();
        let Some(hash) = majority(known.iter().copied(), voters.len()) else {
            let equal = known.iter().all(|hash| *hash == ours);
            return Err(match equal {
                true => "too few voters are as far".to_owned(),
                false => format!("the voters differ and none of their states has a majority: {known:016x?}"),
            });
        };
        let request = encode(&Request::from(Command::Checkpoint { index, hash }));
        let proposed = self.desk.propose(request, PROPOSE_LIMIT).await;
        proposed.map(|committed| committed.index).map_err(|error| format!("it was not committed: {error:?}"))
    }
}

/// What this node's hash was, once it is as far as asked.
pub(crate) async fn answer(hashes: &Hashes, progress: &Progress, ask: &StateHashAsk) -> StateHashAnswer {
    let mut applied = progress.applied();
    let reached = applied.wait_for(|applied| *applied >= Some(ask.index));
    // Whoever is not there in time has no hash to tell.
    let _ = tokio::time::timeout(ASK_LIMIT, reached).await.is_ok();
    StateHashAnswer { hash: hashes.at(ask.index) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn hashes_are_found_by_index_and_the_oldest_are_forgotten() {
        let hashes = Hashes::default();
        assert_eq!((hashes.last(), hashes.at(0)), (None, None));
        // Indexes have gaps where a snapshot jumped.
        for index in (0..=REMEMBERED as u64).map(|number| number * 2) {
            hashes.push(index, index + 7);
        }
        assert_eq!((hashes.at(0), hashes.at(2), hashes.at(3)), (None, Some(9), None));
        assert_eq!(hashes.last(), Some((REMEMBERED as u64 * 2, REMEMBERED as u64 * 2 + 7)));
        hashes.compare(2, 9).unwrap();
        hashes.compare(3, 1).unwrap();
        let diverged = hashes.compare(2, 8).unwrap_err();
        assert_eq!((diverged.index, diverged.ours, diverged.theirs), (2, 9, 8));
    }

    #[test]
    fn a_majority_is_one_of_all_voters() {
        assert_eq!(majority([5, 5].into_iter(), 3), Some(5));
        assert_eq!(majority([5, 6, 5].into_iter(), 3), Some(5));
        assert_eq!(majority([5, 6].into_iter(), 3), None);
        assert_eq!(majority([5].into_iter(), 1), Some(5));
        assert_eq!(majority([5, 5].into_iter(), 4), None);
    }
}
