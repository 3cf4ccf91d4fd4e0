//! Claims by their tokens: tokens are in the order of the log, and the leases that answers tell of show the log time at
//! which each was given.

use std::collections::BTreeMap;

use holdfast_machine::{ClaimToken, Command, DispatchKey, Millis, NewHolder, Reply};

use crate::history::{Answer, Asked, Call, Outcome};
use crate::{Broken, Check, broken, ensure};

/// What is known of one claim of a row.
#[derive(Debug, Default)]
struct Known {
    /// When it was given and when its lease ends at the latest, if it is one.
    lease: Option<(Millis, Millis)>,
    /// It was handed back, or a call of unknown outcome may have done so, or have extended it.
    may_have_ended: bool,
    /// The row was completed, or failed for good, under it.
    finished: bool,
    /// The row was put back by hand, so that another claim may follow.
    given: bool,
}

type Claims = BTreeMap<DispatchKey, BTreeMap<ClaimToken, Known>>;

/// Gives how many claims were followed.
pub fn check(calls: &[Call]) -> Result<usize, Broken> {
    let mut claims = Claims::new();
    // Those that can bring a finished row back; then its claims say nothing of each other.
    let mut brought_back: Vec<&Command> = Vec::new();
    for call in calls {
        let Asked::Write(request) = &call.asked else { continue };
        match &request.command {
            Command::Claim(claim) => {
                let lease_ms = match claim.holder {
                    NewHolder::Lease { lease_ms, .. } => Some(lease_ms),
                    NewHolder::Node { .. } => None,
                };
                given(call, lease_ms, &mut claims)?;
            }
            Command::Rearm { .. } | Command::Redrive { .. } | Command::Settle { .. } | Command::Commit(_) => {
                brought_back.push(&request.command);
            }
            _ => {}
        }
    }
    for call in calls {
        done(call, &mut claims);
    }
    for command in brought_back {
        let moves = |key: &DispatchKey| match command {
            Command::Redrive { key: of, .. } => key == of,
            Command::Commit(commit) => {
                let moved = commit.transitions.iter().any(|transition| transition.ordinal == key.ordinal);
                let staged_again = commit.expected_seq > 0 && commit.rows.iter().any(|row| row.ordinal == key.ordinal);
                commit.workflow == key.workflow && (moved || staged_again)
            }
            command => command.workflow() == Some(&key.workflow),
        };
        claims.retain(|key, _| !moves(key));
    }
    claims.iter().try_for_each(|(key, of)| one_at_a_time(key, of))?;
    log_time(&claims)?;
    Ok(claims.values().map(BTreeMap::len).sum())
}

fn given(call: &Call, lease_ms: Option<u64>, claims: &mut Claims) -> Check {
    let Outcome::Ok { index, answer: Answer::Reply(Reply::Claimed { claims: given }) } = &call.outcome else {
        return Ok(());
    };
    for claim in given {
        ensure!(claim.token.index <= *index, "token {} was given by index {index}", claim.token);
        let known = claims.entry(claim.key.clone()).or_default().entry(claim.token).or_default();
        ensure!(!known.given, "token {} was given twice for {}", claim.token, claim.key);
        known.given = true;
        known.lease = claim.deadline.zip(lease_ms).map(|(end, ms)| (Millis(end.0.saturating_sub(ms)), end));
    }
    Ok(())
}

/// What was done under tokens.
fn done(call: &Call, claims: &mut Claims) {
    let Asked::Write(request) = &call.asked else { return };
    let (key, token) = match &request.command {
        Command::Heartbeat { key, token, .. } => (key, *token),
        Command::Complete { key, token: Some(token), .. }
        | Command::Fail { key, token: Some(token), .. }
        | Command::Retry { key, token: Some(token), .. } => (key, *token),
        _ => return,
    };
    let known = claims.entry(key.clone()).or_default().entry(token).or_default();
    match &call.outcome {
        Outcome::Ok { answer: Answer::Reply(Reply::Extended { deadline }), .. } => {
            known.lease = known.lease.map(|(at, until)| (at, until.max(*deadline)));
        }
        Outcome::Ok { answer: Answer::Reply(Reply::Completed { .. }), .. } => known.finished = true,
        Outcome::Ok { answer: Answer::Reply(Reply::Returned(returned)), .. } => {
            known.finished |= !returned.status.is_live();
            known.may_have_ended = true;
        }
        Outcome::Unknown => known.may_have_ended = true,
        _ => {}
    }
}

/// A claim follows another when that was handed back or its lease had ended; none follows one under which the row was
/// finished.
fn one_at_a_time(key: &DispatchKey, claims: &BTreeMap<ClaimToken, Known>) -> Check {
    let mut before: Option<(&ClaimToken, &Known)> = None;
    for (token, known) in claims {
        if let Some((earlier, was)) = before {
            ensure!(!was.finished, "{key} was finished under {earlier}, and is held under {token}");
            if let (Some((_, end)), Some((at, _))) = (was.lease, known.lease) {
                let fits = at >= end || was.may_have_ended;
                ensure!(fits, "{key} was held under {earlier} until {end}, and given under {token} at {at}");
            }
        }
        before = Some((token, known));
    }
    Ok(())
}

/// The log times of claims do not go back.
fn log_time(claims: &Claims) -> Check {
    let mut times: Vec<(ClaimToken, Millis)> = Vec::new();
    for of in claims.values() {
        times.extend(of.iter().filter_map(|(token, known)| Some((*token, known.lease?.0))));
    }
    times.sort_unstable();
    for pair in times.windows(2) {
        let [(earlier, was), (later, is)] = pair else { continue };
        if is < was {
            broken!("{later} was given at {is}, and {earlier} before it at {was}");
        }
    }
    Ok(())
}
