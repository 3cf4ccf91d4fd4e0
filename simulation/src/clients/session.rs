//! A worker with a session: it is given rows as long as it has room for them, and keeps them while it moves from node to
//! node. It completes, fails or hands back each, closes its session now and then, and now and then forgets everything.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_checkers::history::{Answer, Asked, Outcome};
use holdfast_machine::{
    Claim, ClaimToken, Claimant, Claimed, Command, DispatchKey, Namespace, NewHolder, Payload, Reply, Request, Scope,
    SessionId, Worker,
};
use tokio::time::{Instant, timeout};

use super::Caller;
use crate::draw::Draw;
use crate::rpc::{Ask, PATIENCE, Talk};
use crate::sessions::{Attach, Said, Told};

/// What a worker has.
struct Hands {
    session: SessionId,
    worker: Worker,
    /// Rows that it holds.
    held: BTreeMap<ClaimToken, DispatchKey>,
    /// All rows that it was ever given.
    given: BTreeMap<ClaimToken, DispatchKey>,
}

/// How a worker leaves a row, and what becomes of its connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Close,
    Forget,
}

/// Works until there is no more work.
pub async fn session(mut caller: Caller) -> turmoil::Result {
    let worker = Worker {
        identity: Claimant::new(&caller.name)?,
        namespaces: vec![Namespace::default()],
        task_queue: Default::default(),
        activity_types: Vec::new(),
        max_concurrency: caller.random.between(1, 4) as u32,
        node: None,
        lease_ms: caller.random.between(1_500, 6_000),
    };
    let mut hands =
        Hands { session: SessionId::new(&caller.name)?, worker, held: BTreeMap::new(), given: BTreeMap::new() };
    // Nobody tells it when it was given a row. So all of them are taken down as one claim, under way for as long as it works.
    let holder = NewHolder::Lease { claimant: hands.worker.identity.clone(), lease_ms: 0 };
    let claim = Claim { scope: Scope::default(), limit: u32::MAX, holder, hold: Vec::new() };
    let made = caller.world.calls.invoke(caller.number, Asked::Write(Request::from(Command::Claim(claim))));
    while !caller.world.is_without_work() {
        attend(&mut caller, &mut hands).await;
        caller.pause(20, 300).await;
    }
    if let Some(index) = hands.given.keys().map(|token| token.index).max() {
        let claims = hands.given.into_iter().map(|(token, key)| Claimed { key, token, deadline: None }).collect();
        let answer = Answer::Reply(Reply::Claimed { claims });
        caller.world.calls.returned(made, Outcome::Ok { index, answer });
    }
    Ok(())
}

/// Works over one connection, for as long as it holds.
async fn attend(caller: &mut Caller, hands: &mut Hands) {
    let Ok(Some((node, mut talk))) = timeout(PATIENCE, caller.connect()).await else { return };
    let holding = hands.held.clone().into_iter().collect();
    let attach = Attach { session: hands.session.clone(), worker: hands.worker.clone(), holding };
    if !talk.say(&Ask::Attach(attach)).await {
        return;
    }
    let lease = Duration::from_millis(hands.worker.lease_ms);
    let (mut heard, mut beaten, mut received) = (Instant::now(), Instant::now(), 0);
    while heard.elapsed() < lease {
        let wait = if hands.held.is_empty() { lease / 8 } else { Duration::from_millis(1) };
        match timeout(wait, talk.hear()).await {
            Ok(None) => return,
            Ok(Some(told)) => {
                caller.world.record.note(format_args!("{} is told by {node}: {told:?}", caller.name));
                heard = Instant::now();
                match take(caller, hands, told) {
                    Some(number) => received = number,
                    None => return,
                }
            }
            Err(_) => {}
        }
        let next = match hands.held.pop_first() {
            Some((token, key)) => work(caller, token, key).await,
            None if caller.world.is_without_work() => Next::Close,
            None => Next::GoOn,
        };
        match next {
            Next::GoOn => {}
            Next::Close => return close(caller, hands, talk).await,
            Next::Forget => {
                hands.held.clear();
                caller.world.record.count("session's rows forgotten");
                return;
            }
        }
        if beaten.elapsed() >= lease / 4 {
            beaten = Instant::now();
            if !talk.say(&Said::Heartbeat { received }).await {
                return;
            }
        }
    }
}

/// Takes in what a node has told; gives the message's number, or none behind the last one.
fn take(caller: &Caller, hands: &mut Hands, told: Told) -> Option<u64> {
    match told {
        Told::Given(number, rows) => {
            for (token, key) in rows {
                caller.world.record.count("row given to a session");
                hands.given.insert(token, key.clone());
                hands.held.insert(token, key);
            }
            Some(number)
        }
        Told::Withdrawn(number, tokens) => {
            for token in tokens {
                if hands.held.remove(&token).is_some() {
                    caller.world.record.count("row taken from a session");
                }
            }
            Some(number)
        }
        Told::Nothing(number) => Some(number),
        Told::Ended(_) => None,
    }
}

async fn close(caller: &Caller, hands: &mut Hands, mut talk: Talk) {
    hands.held.clear();
    talk.say(&Said::Close).await;
    let ended = async { while !matches!(talk.hear().await, None | Some(Told::Ended(_))) {} };
    // If it is not told in time, the session ends with its lease.
    if timeout(PATIENCE, ended).await.is_ok() {
        caller.world.record.count("session closed");
    }
}

async fn work(caller: &mut Caller, token: ClaimToken, key: DispatchKey) -> Next {
    caller.pause(0, 150).await;
    let (token, text) = (Some(token), Payload::text(&caller.name));
    // When the run ends, everything is to be finished.
    let fate = if caller.world.is_ending() { 99 } else { caller.random.below(100) };
    let command = match fate {
        0..4 => return Next::Forget,
        4..8 => return Next::Close,
        8..16 => Command::Fail { key, token, error: text, error_type: None, retryable: true },
        16..20 => Command::Retry { key, token, delay_ms: 100 },
        _ => Command::Complete { key, token, result: text },
    };
    if caller.settle(command, None).await.reply.is_ok() {
        caller.world.record.count("row worked on in a session");
    }
    Next::GoOn
}
