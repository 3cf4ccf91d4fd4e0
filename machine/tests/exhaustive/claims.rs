//! Who may settle a row: two claimants with leases, and a worker's session that attaches anew, take rows, go on with
//! them, finish them, fail, hand them back and fall silent, while time passes and rows are re-armed. Invariants 10, 11 and 12.
//!
//! The world knows every token that was ever given, and every attachment: whoever has one may say anything under it at
//! any later time, as often as it likes. After each step the machine itself is asked which tokens it would honour: one
//! entry on a copy, with a heartbeat under each. At most one for each row may live, and one that is void stays so.

use std::collections::BTreeMap;
use std::sync::Mutex;

use holdfast_checkers::coverage::Coverage;
use holdfast_machine::{
    Attached, Claim, ClaimToken, Command, Commit, DispatchKey, Entry, Machine, Millis, NewEvent, NewHolder, NewRow,
    NodeName, Payload, Reject, Reply, Request, RetryPolicy, Scope, SessionChange, SessionId, SessionReply, ShardId,
    Worker, WorkflowId, WorkflowType,
};
use stateright::{Model, Property};

use crate::{Came, State, Stored, is_right, member, node, search};

const START: u64 = 1_000;
const LEASE_MS: u64 = 2;
const NOBODYS: ClaimToken = ClaimToken { index: 0, number: 0 };

/// The bounds of a search.
struct Claims {
    rows: u64,
    claimants: u8,
    /// Whether there is a worker with a session, which is given rows.
    worker: bool,
    /// How far log time goes.
    ms: u64,
    /// How many claims there are, at most.
    claims_max: usize,
    /// Whether rows may be put back to pending whatever their status; once.
    rearm: bool,
    met: Mutex<Coverage>,
}

/// What somebody outside knows.
#[derive(Clone, Debug, Default)]
struct World {
    /// Every claim that was ever given, in order, and whether the machine would honour it now.
    given: Vec<(DispatchKey, ClaimToken, bool)>,
    /// Every attachment that was ever made, in order.
    attachments: Vec<u64>,
    rearmed: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Act {
    Time,
    Claim { by: u8 },
    Heartbeat { claim: usize },
    Complete { claim: usize },
    Fail { claim: usize },
    HandBack { claim: usize },
    CompleteByKey { row: u64 },
    Rearm,
    Attach,
    Extend { attachment: usize },
    Detach { attachment: usize },
    Close { attachment: usize },
}

fn workflow() -> WorkflowId {
    "order-1".parse().unwrap()
}

fn row(ordinal: u64) -> NewRow {
    let retry =
        RetryPolicy { initial_ms: 1, multiplier_percent: 100, maximum_ms: 1, deliveries_max: 2, ..Default::default() };
    NewRow { retry, ..NewRow::new(ordinal, "charge".parse().unwrap()) }
}

fn heartbeat((key, token, _): &(DispatchKey, ClaimToken, bool)) -> Command {
    Command::Heartbeat { key: key.clone(), token: *token, lease_ms: LEASE_MS, details: Payload::default() }
}

/// Asks a copy of the machine which claims it honours.
fn ask(stored: &Stored, world: &mut World) {
    let mut machine = Machine::load(&*stored.archive).unwrap();
    let requests = world.given.iter().map(|given| Request::from(heartbeat(given))).collect();
    let entry = Entry { at: stored.seen.now, requests };
    let replies = machine.apply(stored.next(), entry, &*stored.archive).unwrap().replies;
    for (given, reply) in world.given.iter_mut().zip(replies) {
        given.2 = reply.is_ok();
    }
}

impl Claims {
    fn session(change: SessionChange) -> Command {
        Command::Session { session: SessionId::new("worker").unwrap(), change }
    }

    fn command(&self, act: &Act, world: &World) -> Command {
        let of = |claim: usize| (world.given[claim].0.clone(), world.given[claim].1);
        match *act {
            Act::Time => Command::Tick,
            Act::Claim { by } => {
                let claimant = format!("claimant-{by}").parse().unwrap();
                let holder = NewHolder::Lease { claimant, lease_ms: LEASE_MS };
                Command::Claim(Claim { scope: Scope::default(), limit: 1, holder, hold: Vec::new() })
            }
            Act::Heartbeat { claim } => heartbeat(&world.given[claim]),
            Act::Complete { claim } => {
                let (key, token) = of(claim);
                Command::Complete { key, token: Some(token), result: Payload::default() }
            }
            Act::Fail { claim } => {
                let ((key, token), error) = (of(claim), Payload::default());
                Command::Fail { key, token: Some(token), error, error_type: None, retryable: true }
            }
            Act::HandBack { claim } => {
                let (key, token) = of(claim);
                Command::Retry { key, token: Some(token), delay_ms: 0 }
            }
            Act::CompleteByKey { row } => {
                let key = DispatchKey { workflow: workflow(), ordinal: row };
                Command::Complete { key, token: None, result: Payload::default() }
            }
            Act::Rearm => Command::Rearm { workflow: workflow(), rows: vec![row(1)] },
            Act::Attach => {
                let worker = Worker {
                    identity: "worker".parse().unwrap(),
                    namespaces: vec![Default::default()],
                    task_queue: Default::default(),
                    activity_types: Vec::new(),
                    max_concurrency: 1,
                    node: None,
                    lease_ms: LEASE_MS,
                };
                let to = Attached { node: node(0), boot: "a-0".parse().unwrap() };
                Self::session(SessionChange::Attach { worker, to })
            }
            Act::Extend { attachment } => {
                Self::session(SessionChange::Extend { attachment: world.attachments[attachment] })
            }
            Act::Detach { attachment } => {
                Self::session(SessionChange::Detach { attachment: world.attachments[attachment] })
            }
            Act::Close { attachment } => {
                Self::session(SessionChange::Close { attachment: world.attachments[attachment] })
            }
        }
    }

    /// What the world hears of a step, and what is wrong about it.
    fn learn(&self, before: &State<World>, act: &Act, came: &Came) -> (World, Option<String>) {
        let mut world = before.world.clone();
        world.rearmed |= *act == Act::Rearm;
        if let Some(Ok(Reply::Session(SessionReply::Attached { attachment, .. }))) = came.reply {
            world.attachments.push(attachment);
        }
        for (key, row) in &came.after.seen.rows {
            let Some(claim) = row.claim.as_ref().filter(|claim| claim.token.index == before.stored.next()) else {
                continue;
            };
            world.given.push((key.clone(), claim.token, true));
        }
        ask(&came.after, &mut world);
        let mut lives = BTreeMap::new();
        for (key, token, _) in world.given.iter().filter(|(_, _, lives)| *lives) {
            if let Some(other) = lives.insert(key, token) {
                return (world.clone(), Some(format!("{key} is held under both {other} and {token}")));
            }
        }
        for ((key, token, lived), (.., lives)) in before.world.given.iter().zip(&world.given) {
            if *lives && !lived {
                return (world.clone(), Some(format!("token {token} of {key} was void, and is not any more")));
            }
        }
        (world, None)
    }

    /// What is wrong about the answer to something that was said under a token.
    fn of_claim(&self, before: &State<World>, act: &Act, came: &Came) -> Option<String> {
        let (Act::Heartbeat { claim } | Act::Complete { claim } | Act::Fail { claim } | Act::HandBack { claim }) = *act
        else {
            return None;
        };
        let (key, token, lives) = &before.world.given[claim];
        let reply = came.reply.as_ref()?;
        if !lives && (reply.is_ok() || !came.is_as_before) {
            return Some(format!("token {token} of {key} was void, and {act:?} was answered {reply:?}"));
        }
        // Of a row that was re-armed behind its outcome, that outcome stands.
        let stands = matches!(reply, Err(Reject::AlreadyTerminal { .. })) && before.world.rearmed;
        (*lives && reply.is_err() && !stands)
            .then(|| format!("token {token} of {key} was good, and was told {reply:?}"))
    }

    fn count(&self, before: &State<World>, act: &Act, came: &Came) {
        let claimed = |stored: &Stored| stored.seen.counts.claimed;
        let (had, has) = (claimed(&before.stored), claimed(&came.after));
        let Some(reply) = &came.reply else { return };
        let what = match (act, reply) {
            (Act::Time, _) if has < had => "leases ended",
            (Act::Time, _) => "steps of time",
            (_, Ok(Reply::Claimed { claims })) if claims.is_empty() => "claims of nothing",
            (_, Ok(Reply::Claimed { .. })) if !before.world.given.is_empty() => "claims of what was held before",
            (_, Ok(Reply::Claimed { .. })) => "claims",
            (Act::Heartbeat { .. }, Ok(_)) => "heartbeats",
            (Act::CompleteByKey { .. }, Ok(_)) => "outcomes by key",
            (_, Ok(Reply::Completed { .. })) => "outcomes",
            (_, Ok(Reply::Returned(returned))) if returned.failed_seq.is_some() => "failures for good",
            (Act::Fail { .. }, Ok(_)) => "failed attempts",
            (Act::HandBack { .. }, Ok(_)) => "rows handed back",
            (_, Ok(Reply::Rearmed { .. })) => "rows re-armed",
            (_, Ok(Reply::Session(SessionReply::Attached { resumed: true, .. }))) => "sessions attached again",
            (_, Ok(Reply::Session(SessionReply::Attached { .. }))) if has > had => "sessions that were given rows",
            (_, Ok(Reply::Session(SessionReply::Attached { .. }))) => "sessions",
            (_, Ok(Reply::Session(SessionReply::Closed { rearmed: 1.. }))) => "sessions closed with rows",
            (_, Ok(Reply::Session(_))) => "changes of sessions",
            (_, Err(reject)) => reject.code(),
            _ => "others",
        };
        self.met.lock().unwrap().add(what, 1);
    }

    fn state(&self, stored: Stored, world: World, wrong: String) -> State<World> {
        let place = |token: ClaimToken| world.given.iter().position(|(_, given, _)| *given == token);
        let rows = stored.seen.rows.iter().map(|(key, row)| {
            let mut row = row.clone();
            let token = row.claim.as_mut().map(|claim| std::mem::replace(&mut claim.token, NOBODYS));
            (key.clone(), row, token.map(&place))
        });
        let sessions = stored.seen.sessions.iter().map(|(id, session)| {
            let mut session = session.clone();
            let attachment = std::mem::take(&mut session.attachment);
            (id.clone(), session, world.attachments.iter().position(|of| *of == attachment))
        });
        let given: Vec<_> = world.given.iter().map(|(key, _, lives)| (key, lives)).collect();
        let world_is = (given, world.attachments.len(), world.rearmed);
        let (rows, sessions): (Vec<_>, Vec<_>) = (rows.collect(), sessions.collect());
        let identity = (stored.seen.now, stored.without(b"MLOCc"), rows, sessions, world_is);
        State { identity: postcard::to_stdvec(&identity).unwrap(), stored, world, wrong }
    }
}

impl Model for Claims {
    type State = State<World>;
    type Action = Act;

    fn init_states(&self) -> Vec<Self::State> {
        let mut stored = Stored::nothing().members(&[member(0, true)]).after;
        let first: NodeName = node(0);
        let history = (1..=self.rows).map(row).fold(
            Commit::new(workflow(), 0).event(NewEvent::started(WorkflowType::new("order").unwrap())),
            Commit::activity,
        );
        for command in [
            Command::Create { shard_count: 1 },
            Command::Boot { node: first.clone(), boot: "a-0".parse().unwrap() },
            Command::Assign { owners: vec![(ShardId(0), first)] },
            Command::Commit(history),
        ] {
            let came = stored.ask(Millis(START), command);
            assert!(matches!(came.reply, Some(Ok(_))), "{:?}", came.reply);
            stored = came.after;
        }
        vec![self.state(stored, World::default(), String::new())]
    }

    fn actions(&self, state: &Self::State, acts: &mut Vec<Act>) {
        acts.extend((state.stored.seen.now < Millis(START + self.ms)).then_some(Act::Time));
        acts.extend((0..self.claimants).map(|by| Act::Claim { by }));
        for claim in 0..state.world.given.len() {
            acts.extend([
                Act::Heartbeat { claim },
                Act::Complete { claim },
                Act::Fail { claim },
                Act::HandBack { claim },
            ]);
        }
        acts.extend((1..=self.rows).map(|row| Act::CompleteByKey { row }));
        acts.extend((self.rearm && !state.world.rearmed).then_some(Act::Rearm));
        if self.worker {
            acts.push(Act::Attach);
            for attachment in 0..state.world.attachments.len() {
                acts.extend([Act::Extend { attachment }, Act::Detach { attachment }, Act::Close { attachment }]);
            }
        }
    }

    fn next_state(&self, before: &Self::State, act: Act) -> Option<Self::State> {
        let at = before.stored.seen.now.plus(u64::from(act == Act::Time));
        let came = before.stored.ask(at, self.command(&act, &before.world));
        self.count(before, &act, &came);
        let wrong = self.of_claim(before, &act, &came);
        if came.is_as_before && came.wrong.is_empty() && wrong.is_none() && act != Act::Rearm {
            return None;
        }
        let (world, learnt) = self.learn(before, &act, &came);
        let wrong = wrong.or(learnt);
        Some(self.state(came.after, world, wrong.unwrap_or(came.wrong)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("rows have one holder, and activities one outcome", is_right)]
    }

    fn within_boundary(&self, state: &Self::State) -> bool {
        let world = &state.world;
        let is_small = world.given.len() <= self.claims_max && world.attachments.len() <= 2;
        !state.wrong.is_empty() || is_small
    }
}

const ALWAYS_MET: &[&str] = &[
    "claims of what was held before",
    "heartbeats",
    "outcomes",
    "outcomes by key",
    "failed attempts",
    "rows handed back",
    "leases ended",
    "claim_lost",
    "already_terminal",
];

#[test]
fn two_claimants_and_one_row() {
    let bounds =
        Claims { rows: 1, claimants: 2, worker: false, ms: 3, claims_max: 3, rearm: true, met: Mutex::default() };
    let wanted = [ALWAYS_MET, &["claims", "claims of nothing", "failures for good", "rows re-armed"]].concat();
    search("two claimants, one row", bounds, |model| &model.met, &wanted);
}

#[test]
fn a_claimant_and_two_rows() {
    let bounds =
        Claims { rows: 2, claimants: 1, worker: false, ms: 2, claims_max: 2, rearm: false, met: Mutex::default() };
    search("a claimant, two rows", bounds, |model| &model.met, ALWAYS_MET);
}

#[test]
fn a_claimant_a_session_and_one_row() {
    let bounds =
        Claims { rows: 1, claimants: 1, worker: true, ms: 2, claims_max: 2, rearm: false, met: Mutex::default() };
    let sessions = [
        "sessions attached again",
        "sessions that were given rows",
        "sessions closed with rows",
        "session_not_found",
        "session_moved",
    ];
    search("a claimant, a session, one row", bounds, |model| &model.met, &[ALWAYS_MET, &sessions].concat());
}
