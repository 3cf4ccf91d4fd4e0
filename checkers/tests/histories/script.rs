//! Random calls on a machine, one after the other in its log and overlapping in the eyes of those who made them. Some
//! answers are lost, with the call done or not.

use std::collections::BTreeMap;

use holdfast_checkers::history::{Answer, Asked, Call, Outcome, digest};
use holdfast_checkers::witness::Histories;
use holdfast_checkers::witness::log::Logged;
use holdfast_machine::{
    Claim, Command, Commit, DispatchKey, Entry, Machine, MemoryArchive, Millis, NewEvent, NewHolder, NewRow, Payload,
    Reject, Reply, Request, RetryPolicy, Scope, Timeouts, WorkflowId,
};
use proptest::prelude::*;

const LEASE_MS: u64 = 50;

/// One call, or a while in which nothing happens.
#[derive(Debug, Clone)]
pub struct Act {
    what: What,
    workflow: usize,
    /// Milliseconds of log time before it.
    wait: u64,
    /// How long before and behind the moment of its effect it was made and answered.
    around: (u64, u64),
    /// Its answer is lost: done, or not done.
    lost: Option<bool>,
}

#[derive(Debug, Clone)]
enum What {
    Quiet,
    Append { behind: u64 },
    Claim { limit: u32 },
    Complete { claim: usize },
    Retry { claim: usize },
    Heartbeat { claim: usize },
    Read,
    Row { ordinal: u64 },
}

pub fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    let what = prop_oneof![
        1 => Just(What::Quiet),
        4 => prop_oneof![4 => Just(0u64), 1 => 1u64..3].prop_map(|behind| What::Append { behind }),
        3 => (1u32..4).prop_map(|limit| What::Claim { limit }),
        4 => (0usize..4).prop_map(|claim| What::Complete { claim }),
        1 => (0usize..3).prop_map(|claim| What::Retry { claim }),
        1 => (0usize..3).prop_map(|claim| What::Heartbeat { claim }),
        3 => Just(What::Read),
        1 => (1u64..4).prop_map(|ordinal| What::Row { ordinal }),
    ];
    let lost = prop_oneof![8 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let wait = prop_oneof![3 => 0u64..10, 1 => 30u64..80];
    let act = (what, 0usize..2, wait, (0u64..2_500, 0u64..2_500), lost);
    let act = act.prop_map(|(what, workflow, wait, around, lost)| Act { what, workflow, wait, around, lost });
    proptest::collection::vec(act, 1..most)
}

/// What came of a script.
#[derive(Debug, Clone)]
pub struct Run {
    pub calls: Vec<Call>,
    pub histories: Histories,
    pub log: Vec<(u64, Logged)>,
}

struct Player {
    machine: Machine,
    archive: MemoryArchive,
    index: u64,
    now: u64,
    claims: Vec<(DispatchKey, holdfast_machine::ClaimToken)>,
    heads: BTreeMap<WorkflowId, u64>,
    log: Vec<(u64, Logged)>,
}

fn workflow(number: usize) -> WorkflowId {
    format!("order-{number}").parse().unwrap()
}

pub fn play(acts: &[Act]) -> Run {
    let (machine, archive) = (Machine::default(), MemoryArchive::default());
    let (claims, heads, log) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut player = Player { machine, archive, index: 0, now: 1_000, claims, heads, log };
    player.apply(Request::from(Command::Create { shard_count: 2 })).unwrap();
    let mut calls = Vec::new();
    for (act, moment) in acts.iter().zip((10_000..).step_by(1_000)) {
        player.now += act.wait;
        let Some(asked) = player.asked(act, moment) else { continue };
        let is_write = matches!(asked, Asked::Write(_));
        let answered = if act.lost == Some(false) { None } else { Some(player.answer(&asked)) };
        let outcome = answered.filter(|_| act.lost.is_none()).unwrap_or(Outcome::Unknown);
        if !is_write && act.lost.is_some() {
            continue;
        }
        let (before, behind) = act.around;
        let returned = Some(moment + behind).filter(|_| act.lost.is_none());
        calls.push(Call { client: moment, invoked: moment - before, returned, asked, outcome });
    }
    let histories = [0, 1].map(workflow).into_iter().map(|id| {
        let events = player.machine.history(&player.archive, &id, 1, usize::MAX).unwrap();
        (id, events)
    });
    let histories = histories.filter(|(_, events)| !events.is_empty()).collect();
    Run { calls, histories, log: player.log }
}

impl Player {
    fn apply(&mut self, request: Request) -> Result<Reply, Reject> {
        self.index += 1;
        let entry = Entry { at: Millis(self.now), requests: vec![request] };
        self.log.push((self.index, Logged::Entry(entry.clone())));
        let mut applied = self.machine.apply(self.index, entry, &self.archive).unwrap();
        self.archive.commit(self.machine.take_writes());
        applied.replies.remove(0)
    }

    fn asked(&self, act: &Act, moment: u64) -> Option<Asked> {
        let id = workflow(act.workflow);
        let claim = |ago: usize| self.claims.iter().rev().nth(ago).cloned();
        let command = match act.what {
            What::Quiet => return None,
            What::Read => return Some(Asked::History(id)),
            What::Row { ordinal } => return Some(Asked::Row(DispatchKey { workflow: id, ordinal })),
            What::Append { behind } => {
                let head = self.heads.get(&id).copied().unwrap_or_default();
                let note = || NewEvent::of(holdfast_machine::EventKind::SignalReceived);
                let commit = Commit::new(id, head.saturating_sub(behind));
                if head == 0 {
                    let start = NewEvent::started("order".parse().unwrap()).with(Payload::text(moment.to_string()));
                    let rows = (1..4).map(row);
                    Command::Commit(rows.fold(commit.event(start), Commit::activity))
                } else {
                    Command::Commit(commit.event(note().with(Payload::text(moment.to_string()))))
                }
            }
            What::Claim { limit } => {
                let holder = NewHolder::Lease { claimant: "worker".parse().unwrap(), lease_ms: LEASE_MS };
                Command::Claim(Claim { scope: Scope::default(), limit, holder, hold: Vec::new() })
            }
            What::Complete { claim: ago } => {
                let (key, token) = claim(ago)?;
                Command::Complete { key, token: Some(token), result: Payload::text(moment.to_string()) }
            }
            What::Retry { claim: ago } => {
                let (key, token) = claim(ago)?;
                Command::Retry { key, token: Some(token), delay_ms: 0 }
            }
            What::Heartbeat { claim: ago } => {
                let (key, token) = claim(ago)?;
                Command::Heartbeat { key, token, lease_ms: LEASE_MS, details: Payload::default() }
            }
        };
        // Half of the calls have a key of their own.
        let key = (moment / 1_000).is_multiple_of(2).then(|| moment.to_string().parse().unwrap());
        Some(Asked::Write(Request { idempotency_key: key, ..Request::from(command) }))
    }

    fn answer(&mut self, asked: &Asked) -> Outcome {
        let answer = match asked {
            Asked::History(id) => {
                let events = self.machine.history(&self.archive, id, 1, usize::MAX).unwrap();
                Answer::History { head: events.len() as u64, digest: digest(&events) }
            }
            Asked::Row(key) => Answer::Row(self.machine.row(&self.archive, key).unwrap().map(|row| row.status)),
            Asked::Write(request) => match self.apply(request.clone()) {
                Err(reject) => return Outcome::Refused { index: Some(self.index), reject },
                Ok(reply) => {
                    if let Reply::Claimed { claims } = &reply {
                        self.claims.extend(claims.iter().map(|claim| (claim.key.clone(), claim.token)));
                    }
                    Answer::Reply(reply)
                }
            },
        };
        for id in [0, 1].map(workflow) {
            let head = self.machine.workflow(&self.archive, &id).unwrap().map_or(0, |workflow| workflow.head);
            self.heads.insert(id, head);
        }
        Outcome::Ok { index: self.index, answer }
    }
}

fn row(ordinal: u64) -> NewRow {
    NewRow {
        ordinal,
        task_queue: Default::default(),
        node: None,
        activity_type: "work".parse().unwrap(),
        input: Payload::default(),
        visible_after: Millis(0),
        retry: RetryPolicy { deliveries_max: 100, ..RetryPolicy::default() },
        timeouts: Timeouts::default(),
    }
}
