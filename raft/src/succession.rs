//! A new leader soon after the old one has died, instead of after a whole election timeout.
//!
//! Raft's followers refuse every vote while the lease of the last leader runs, 400 ms by default; that is
//! what keeps a node with a bad link from deposing a healthy leader. When a leader's process is killed its
//! connections close at once, and each follower's detector knows after a few looks. So a follower that
//! takes the leader for dead asks the others whether they do as well. If a quorum of voters does, the
//! lease protects nobody any more, and the follower campaigns in the manner of a leadership transfer,
//! which the lease does not hold up. Votes are granted by Raft's rules all the same, so what is committed
//! stays safe even if all of them were wrong.

use std::time::Duration;

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;

use crate::peers::{Links, Lookout};
use crate::transport::frame::Kind;
use crate::types::{Core, TransferRequest, Vote};
use crate::wire::{LeaderGoneAnswer, LeaderGoneAsk, WireLogId, decode, encode};

/// How long the others may take to answer.
const ASK_LIMIT: Duration = Duration::from_millis(100);
/// Pause before asking again, while the others are not convinced: short at first, since they may be about
/// to come to the same verdict, and longer when they stay with another.
const ASK_PAUSE_MIN: Duration = Duration::from_millis(15);
const ASK_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a better candidate is given before this node stands itself. Longer than a slow disk takes to sync the
/// candidate's own vote, which comes before it asks for any other: two candidates in one term split the votes, and
/// that costs a whole election timeout. Where the better candidate wins, nobody notices the wait.
const DEFER: Duration = Duration::from_millis(200);
/// How long an election may take before everything is looked at anew.
const ELECTION_PAUSE: Duration = Duration::from_millis(150);

/// The task that steps in for a dead leader.
pub(crate) struct Successor {
    pub core: Core,
    pub node: u64,
    pub links: Links,
    pub lookout: Lookout,
}

/// A leader that this node takes for dead, and what it was elected by.
struct Vacancy {
    leader: u64,
    term: u64,
    vote: Vote,
    voters: Vec<u64>,
}

/// What the others said.
struct Poll {
    quorum: bool,
    /// True if one of those who agree should stand rather than this node.
    better: bool,
}

impl Successor {
    /// Runs until the node stops.
    pub async fn run(self) {
        let (mut metrics, mut verdicts) = (self.core.server_metrics(), self.lookout.verdicts());
        let mut pause = ASK_PAUSE_MIN;
        loop {
            if let Some(vacancy) = self.vacancy() {
                if !self.step_in(&vacancy).await {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ASK_PAUSE_MAX);
                }
                continue;
            }
            pause = ASK_PAUSE_MIN;
            tokio::select! {
                changed = verdicts.changed() => if changed.is_err() { return },
                changed = metrics.changed() => if changed.is_err() { return },
            }
        }
    }

    /// The leader that this node follows, if it takes it for dead and may stand itself.
    fn vacancy(&self) -> Option<Vacancy> {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader.filter(|leader| *leader != self.node)?;
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        let (vote, term) = (metrics.vote, metrics.vote.leader_id().term);
        let vacant = self.lookout.has_lost(leader, term) && voters.contains(&self.node);
        vacant.then_some(Vacancy { leader, term, vote, voters })
    }

    /// Stands, or leaves it to a better candidate. False if the others see no vacancy.
    async fn step_in(&self, vacancy: &Vacancy) -> bool {
        let poll = self.poll(vacancy).await;
        if !poll.quorum {
            return false;
        }
        if poll.better {
            tokio::time::sleep(DEFER).await;
            if self.vacancy().is_none_or(|now| now.term != vacancy.term) {
                return true;
            }
        }
        tracing::info!(leader = vacancy.leader, term = vacancy.term, "standing for a dead leader");
        let request = TransferRequest::new(vacancy.vote, self.node, None);
        match self.core.handle_transfer_leader(request).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "this node may not stand now"),
            Err(fatal) => tracing::debug!(%fatal, "this node may not stand any more"),
        }
        tokio::time::sleep(ELECTION_PAUSE).await;
        true
    }

    async fn poll(&self, vacancy: &Vacancy) -> Poll {
        let ask = encode(&LeaderGoneAsk { term: vacancy.term, leader: vacancy.leader });
        let others = vacancy.voters.iter().copied().filter(|id| *id != self.node);
        let answers = join_all(others.filter(|id| *id != vacancy.leader).map(|id| {
            let (link, ask) = (self.links.get(id), ask.clone());
            async move {
                let bytes = link?.call(Kind::LeaderGone, ask, ASK_LIMIT).await.ok()?;
                let answer: LeaderGoneAnswer = decode(&bytes).ok()?;
                answer.agreed.then_some((id, answer.last))
            }
        }));
        let agreed: Vec<_> = answers.await.into_iter().flatten().collect();
        let mine = last_log(&self.core);
        let better = |(id, last): &(u64, Option<WireLogId>)| *last > mine || (*last == mine && *id < self.node);
        Poll { quorum: (agreed.len() + 1) * 2 > vacancy.voters.len(), better: agreed.iter().any(better) }
    }
}

fn last_log(core: &Core) -> Option<WireLogId> {
    let metrics = core.data_metrics();
    let last = metrics.borrow_watched().last_log;
    last.map(WireLogId::from)
}

/// Whether this node takes the same leader for dead.
pub(crate) fn answer(core: &Core, lookout: &Lookout, ask: &LeaderGoneAsk) -> LeaderGoneAnswer {
    let metrics = core.server_metrics();
    let metrics = metrics.borrow_watched();
    let same = metrics.current_leader == Some(ask.leader) && metrics.vote.leader_id().term == ask.term;
    LeaderGoneAnswer { agreed: same && lookout.has_lost(ask.leader, ask.term), last: last_log(core) }
}
