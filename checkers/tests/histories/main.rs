//! Both judges of calls believe what a sequential run with overlapping calls was told, and do not believe what cannot be.

#![allow(clippy::unwrap_used)]

mod script;

use holdfast_checkers::history::{Answer, Asked, Call, Outcome};
use holdfast_checkers::linearizability::{Row, RowCall, judge};
use holdfast_checkers::linearizability::{Timed, Verdict, check};
use holdfast_checkers::witness;
use holdfast_machine::{
    Claim, ClaimToken, Claimed, Command, Millis, NewHolder, Reject, Reply, Returned, RowStatus, Scope,
};
use proptest::prelude::*;
use script::{Run, acts, play};

/// What both judges say.
fn verdicts(run: &Run) -> (Result<(), String>, Result<(), String>) {
    let by_witness = witness::judge(&run.calls, &run.histories).map(drop).map_err(|broken| broken.to_string());
    (by_witness, judge(&run.calls).passed())
}

fn head_of(call: &Call) -> Option<u64> {
    match &call.outcome {
        Outcome::Ok { answer: Answer::Reply(Reply::Committed(committed)), .. } => Some(committed.head),
        _ => None,
    }
}

/// Makes a read stale: what it would have seen before a write that had returned when it began.
fn made_stale(run: &Run) -> Option<Run> {
    let mut run = run.clone();
    let reads = |call: &Call| matches!((&call.asked, &call.outcome), (Asked::History(_), Outcome::Ok { .. }));
    let position = run.calls.iter().rposition(reads)?;
    let Asked::History(workflow) = run.calls[position].asked.clone() else { return None };
    let invoked = run.calls[position].invoked;
    let of_it =
        |call: &&Call| matches!(&call.asked, Asked::Write(request) if request.command.workflow() == Some(&workflow));
    let earlier = run.calls.iter().filter(of_it).filter(|call| call.returned.is_some_and(|at| at < invoked));
    let head = earlier.filter_map(head_of).max()?.checked_sub(1)?;
    let digest = holdfast_checkers::history::digest(&run.histories[&workflow][..head as usize]);
    if let Outcome::Ok { answer, .. } = &mut run.calls[position].outcome {
        *answer = Answer::History { head, digest };
    }
    Some(run)
}

/// Acknowledges a commit that was refused because the history had grown by one that was acknowledged.
fn made_lost_update(run: &Run) -> Option<Run> {
    let mut run = run.clone();
    let expected = |call: &Call| match &call.asked {
        Asked::Write(request) => match &request.command {
            Command::Commit(commit) => Some((commit.workflow.clone(), commit.expected_seq)),
            _ => None,
        },
        _ => None,
    };
    let acknowledged: Vec<_> = run.calls.iter().filter(|call| head_of(call).is_some()).filter_map(expected).collect();
    let refused =
        |call: &&mut Call| matches!(call.outcome, Outcome::Refused { reject: Reject::SequenceConflict { .. }, .. });
    let overtaken = |call: &&mut Call| expected(call).is_some_and(|expected| acknowledged.contains(&expected));
    let call = run.calls.iter_mut().filter(refused).find(overtaken)?;
    let Asked::Write(request) = &call.asked else { return None };
    let Command::Commit(commit) = &request.command else { return None };
    let head = commit.expected_seq + commit.events.len() as u64;
    let committed = holdfast_machine::Committed { head, ..Default::default() };
    call.outcome = Outcome::Ok { index: 1_000_000, answer: Answer::Reply(Reply::Committed(committed)) };
    Some(run)
}

/// Lets an outcome be acknowledged once more, as another event.
fn made_double(run: &Run) -> Option<Run> {
    let mut run = run.clone();
    let completed =
        |call: &&Call| matches!(call.outcome, Outcome::Ok { answer: Answer::Reply(Reply::Completed { .. }), .. });
    let mut again = run.calls.iter().find(completed)?.clone();
    let end = run.calls.iter().filter_map(|call| call.returned).max()?;
    (again.invoked, again.returned) = (end + 1, Some(end + 2));
    if let Outcome::Ok { index, .. } = &mut again.outcome {
        *index = 2_000_000;
    }
    run.calls.push(again);
    Some(run)
}

/// Forgets an acknowledged event at the end of a history.
fn made_forgotten(run: &Run) -> Option<Run> {
    let mut run = run.clone();
    let acknowledged = run.calls.iter().rev().find(|call| head_of(call).is_some())?;
    let Asked::Write(request) = &acknowledged.asked else { return None };
    let head = head_of(acknowledged)?;
    run.histories.get_mut(request.command.workflow()?)?.truncate(head as usize - 1);
    Some(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_was_true_is_believed(acts in acts(60)) {
        let run = play(&acts);
        prop_assert_eq!(verdicts(&run), (Ok(()), Ok(())));
        let resolved = witness::log::judge(&run.calls, run.log.clone());
        prop_assert!(resolved.is_ok(), "{:?}", resolved);
    }

    #[test]
    fn what_cannot_be_is_not_believed(acts in acts(60)) {
        let run = play(&acts);
        type Change = fn(&Run) -> Option<Run>;
        let changes: [(&str, Change); 3] =
            [("stale", made_stale), ("lost update", made_lost_update), ("double", made_double)];
        for (what, changed) in changes {
            let Some(changed) = changed(&run) else { continue };
            let (by_witness, by_order) = verdicts(&changed);
            prop_assert!(by_witness.is_err(), "{what}: the witness believes it");
            prop_assert!(by_order.is_err(), "{what}: there is an order for it");
            if what != "stale" {
                let by_log = witness::log::judge(&changed.calls, changed.log);
                prop_assert!(by_log.is_err(), "{what}: the log confirms it: {by_log:?}");
            }
        }
        if let Some(forgotten) = made_forgotten(&run) {
            prop_assert!(verdicts(&forgotten).0.is_err(), "forgotten: the witness believes it");
            // The same of the log: what was acknowledged at an index is missed there.
            let written = |call: &&Call| matches!(call.asked, Asked::Write(_));
            let told = run.calls.iter().filter(written).filter_map(|call| match call.outcome {
                Outcome::Ok { index, .. } => Some(index),
                _ => None,
            });
            let lost = told.max().unwrap_or_default();
            let log = run.log.iter().filter(|(index, _)| *index != lost).cloned();
            prop_assert!(witness::log::judge(&run.calls, log).is_err(), "{lost} is not missed");
        }
    }
}

/// Random runs that never meet a case would prove nothing about it.
#[test]
fn random_runs_meet_every_case() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut met = std::collections::BTreeMap::<&str, u32>::new();
    for _ in 0..100 {
        let run = play(&acts(60).new_tree(&mut runner).unwrap().current());
        let mut meet = |what, is_met: bool| *met.entry(what).or_default() += u32::from(is_met);
        meet("stale", made_stale(&run).is_some());
        meet("lost update", made_lost_update(&run).is_some());
        meet("double", made_double(&run).is_some());
        meet("forgotten", made_forgotten(&run).is_some());
        let report = witness::judge(&run.calls, &run.histories).unwrap();
        meet("unknown found", report.unknown_found > 0);
        meet("unknown absent", report.unknown_absent > 0);
        let lost = |call: &Call| matches!(call.outcome, Outcome::Refused { reject: Reject::ClaimLost { .. }, .. });
        meet("claim lost", run.calls.iter().any(lost));
    }
    assert!(met.len() == 7 && met.values().all(|times| *times > 5), "{met:?}");
}

fn row(calls: &[(u64, Option<u64>, RowCall)]) -> Verdict {
    let timed = |(invoked, returned, call): &(u64, Option<u64>, RowCall)| Timed {
        invoked: *invoked,
        returned: *returned,
        call: call.clone(),
    };
    check(Row::default(), &calls.iter().map(timed).collect::<Vec<_>>())
}

fn token(number: u32) -> ClaimToken {
    ClaimToken { index: 1, number }
}

fn take(number: u32, at: u64, until: u64) -> RowCall {
    RowCall::Take { token: token(number), at: Some(Millis(at)), until: Millis(until) }
}

#[test]
fn a_row_is_held_by_one_claim_at_a_time_and_done_once() {
    let staged = (0, Some(1), RowCall::Stage(Some(true)));
    let finish = |number| RowCall::Finish(Some(token(number)));
    let good = [
        vec![(2, Some(3), take(1, 10, 20)), (4, Some(5), take(2, 20, 30)), (6, Some(7), finish(2))],
        // A lost answer may be the cause of what comes later, even if it comes much later.
        vec![(2, Some(3), take(1, 10, 20)), (4, None, finish(1)), (8, Some(9), RowCall::AlreadyFinished)],
        vec![(2, Some(9), take(1, 10, 20)), (3, Some(8), finish(1))],
        vec![(2, Some(3), RowCall::Read(Some(RowStatus::Pending))), (4, Some(5), take(1, 10, 20))],
    ];
    for rest in good {
        let calls = [vec![staged.clone()], rest].concat();
        assert_eq!(row(&calls), Verdict::Linearizable, "{calls:?}");
    }
    let bad = [
        vec![(2, Some(3), take(1, 10, 20)), (4, Some(5), take(2, 19, 30))],
        vec![(2, Some(3), take(1, 10, 20)), (4, Some(5), take(2, 20, 30)), (6, Some(7), finish(1))],
        vec![(2, Some(3), take(1, 10, 20)), (4, Some(5), finish(1)), (6, Some(7), take(2, 30, 40))],
        vec![(2, Some(3), take(1, 10, 20)), (4, Some(5), finish(1)), (6, Some(7), RowCall::Lost)],
        vec![(2, Some(3), RowCall::AlreadyFinished)],
        vec![(2, Some(3), RowCall::Stage(Some(true)))],
        vec![(2, Some(3), RowCall::Read(None))],
    ];
    for rest in bad {
        let calls = [vec![staged.clone()], rest].concat();
        assert!(matches!(row(&calls), Verdict::Impossible(_)), "{calls:?}");
    }
}

/// The search is bounded, and says so instead of passing.
#[test]
fn too_many_possibilities_are_given_up_and_that_is_no_pass() {
    use holdfast_checkers::linearizability::{History, HistoryCall};
    use holdfast_machine::{EventKind, NewEvent};
    let lost = |number: u64| Timed {
        invoked: number,
        returned: None,
        call: HistoryCall::Outcome { event: NewEvent::activity(EventKind::ActivityCompleted, number), seq: None },
    };
    let mut calls: Vec<_> = (0..12).map(lost).collect();
    calls.push(Timed { invoked: 20, returned: Some(21), call: HistoryCall::Read { head: 12, digest: 0 } });
    assert_eq!(check(History::default(), &calls), Verdict::GaveUp);
    let judgement = judge(&[]);
    assert_eq!(judgement.passed(), Ok(()));
    let given_up = holdfast_checkers::linearizability::Judgement { gave_up: vec!["order-1".to_owned()], ..judgement };
    assert!(given_up.passed().is_err());
}

fn write(invoked: u64, returned: u64, command: Command, index: u64, reply: Reply) -> Call {
    let outcome = Outcome::Ok { index, answer: Answer::Reply(reply) };
    Call { client: 0, invoked, returned: Some(returned), asked: Asked::Write(command.into()), outcome }
}

fn judged(calls: &[Call]) -> Result<(), String> {
    witness::judge(calls, &Default::default()).map(drop).map_err(|broken| broken.to_string())
}

#[test]
fn the_log_is_in_the_order_of_time() {
    let tick =
        |invoked, returned, index| write(invoked, returned, Command::Tick, index, Reply::Ticked { at: Millis(index) });
    judged(&[tick(0, 5, 8), tick(1, 9, 3), tick(6, 8, 9)]).unwrap();
    assert!(judged(&[tick(0, 5, 8), tick(6, 9, 7)]).is_err());
    assert!(judged(&[tick(0, 5, 8), tick(6, 9, 8)]).is_err(), "two writes that did not overlap share an entry");
    let read = |index| {
        let answer = Answer::History { head: 0, digest: 0 };
        let asked = Asked::History("order-1".parse().unwrap());
        Call { client: 1, invoked: 6, returned: Some(7), asked, outcome: Outcome::Ok { index, answer } }
    };
    judged(&[tick(0, 5, 8), read(8)]).unwrap();
    assert!(judged(&[tick(0, 5, 8), read(7)]).is_err(), "a stale read");
}

#[test]
fn the_witness_follows_claims_by_their_tokens_and_leases() {
    let claim = |invoked, token: ClaimToken, deadline| {
        let holder = NewHolder::Lease { claimant: "worker".parse().unwrap(), lease_ms: 10 };
        let command = Command::Claim(Claim { scope: Scope::default(), limit: 1, holder, hold: Vec::new() });
        let claimed = Claimed { key: "order-1:1".parse().unwrap(), token, deadline: Some(Millis(deadline)) };
        write(invoked, invoked + 1, command, token.index, Reply::Claimed { claims: vec![claimed] })
    };
    let at = |index| ClaimToken { index, number: 1 };
    judged(&[claim(0, at(1), 20), claim(2, at(2), 30)]).unwrap();
    assert!(judged(&[claim(0, at(1), 20), claim(2, at(2), 29)]).is_err(), "a lease had not ended");
    assert!(judged(&[claim(0, at(1), 20), claim(2, at(1), 40)]).is_err(), "a token twice");
    let retry = |outcome: Option<Reply>| {
        let key = "order-1:1".parse().unwrap();
        let command = Command::Retry { key, token: Some(at(1)), delay_ms: 0 };
        let mut call = write(2, 3, command, 2, Reply::NoSuchRow);
        call.outcome = match outcome {
            Some(reply) => Outcome::Ok { index: 2, answer: Answer::Reply(reply) },
            None => Outcome::Unknown,
        };
        call
    };
    let returned =
        |status| Reply::Returned(Returned { status, deliveries: 1, visible_after: Millis(0), failed_seq: None });
    judged(&[claim(0, at(1), 20), retry(Some(returned(RowStatus::Pending))), claim(4, at(3), 25)]).unwrap();
    judged(&[claim(0, at(1), 20), retry(None), claim(4, at(3), 25)]).unwrap();
    let dead = retry(Some(returned(RowStatus::Failed)));
    assert!(judged(&[claim(0, at(1), 20), dead, claim(4, at(3), 40)]).is_err(), "claimed after its end");
}
