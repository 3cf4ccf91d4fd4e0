#![allow(clippy::unwrap_used)]

use holdfast_client::wire::{HeldRow, WithdrawnRow};
use holdfast_client::{Delivery, Problem};
use holdfast_machine::{ClaimToken, Millis, NodeName, RowStatus};

use super::*;
use crate::activity::Standing;
use crate::rows::Step;
use crate::rows::tests::token;

fn fresh() -> SessionId {
    SessionId::new(uuid::Uuid::new_v4().to_string()).unwrap()
}

fn delivery(index: u64) -> Delivery {
    crate::rows::tests::delivery(index, &format!("w:{index}"))
}

fn attached(number: u64, resumed: bool) -> NodeMessage {
    let node = NodeName::new("node-a").unwrap();
    NodeMessage::Attached { number, node, deadline: Millis(9), heartbeat_ms: 250, resumed }
}

fn ended(reason: Ended) -> NodeMessage {
    NodeMessage::Ended { reason, problem: None }
}

/// A session with the rows 1 and 2 at work.
fn at_work() -> Session {
    let mut session = Session::new(8, fresh);
    session.connecting();
    assert!(matches!(session.hear(attached(1, false)), Turn::Stay));
    session.hear(NodeMessage::Deliveries { number: 2, deliveries: vec![delivery(1), delivery(2)] });
    assert_eq!(session.rows.take_steps().len(), 2);
    session
}

fn cancelled(session: &mut Session) -> Vec<(ClaimToken, Cancelled)> {
    let steps = session.rows.take_steps().into_iter();
    steps
        .filter_map(|step| match step {
            Step::Tell(token, Standing { cancelled: Some(why), .. }) => Some((token, why)),
            _ => None,
        })
        .collect()
}

#[test]
fn the_node_says_how_often_it_wants_to_hear_and_when_nothing_more_comes() {
    let mut session = at_work();
    assert_eq!(session.heartbeat(), Duration::from_millis(250));
    session.hear(NodeMessage::Draining { number: 3 });
    assert!(session.is_drained());
    session.connecting();
    assert!(!session.is_drained(), "the next connection may bring what the last one did not");
}

#[test]
fn a_lost_connection_leaves_the_rows_at_work_under_the_same_session() {
    let mut session = at_work();
    let id = session.id.clone();
    let lost = [Ended::NodeStopping, Ended::StreamDead].map(ended);
    for message in lost {
        assert!(matches!(session.hear(message), Turn::Attach));
    }
    for failures in 3..=5 {
        assert!(matches!(session.lose(ClientError::Unreachable("gone".into())), Turn::Attach));
        assert_eq!(session.failures(), failures);
    }
    assert_eq!(session.rows.holding().len(), 2);
    session.connecting();
    session.hear(attached(1, true));
    session.hear(NodeMessage::Extended { number: 2, deadline: Millis(20) });
    assert_eq!(session.failures(), 0);
    assert!(session.id == id && session.rows.holding().len() == 2 && session.rows.take_steps().is_empty());
}

#[test]
fn a_session_that_is_over_takes_its_rows_with_it() {
    let refusal = |session: &Session| Reject::SessionNotFound { session: session.id.clone() };
    let over: [fn(&mut Session, Reject) -> Turn; 3] = [
        |session, _| session.hear(ended(Ended::SessionOver)),
        |session, _| session.hear(ended(Ended::Closed)),
        |session, refusal| session.lose(ClientError::Reject(refusal)),
    ];
    for end in over {
        let mut session = at_work();
        let (id, refusal) = (session.id.clone(), refusal(&session));
        assert!(matches!(end(&mut session, refusal), Turn::Attach));
        assert!(session.id != id, "a session has to have a name of its own");
        let why = Cancelled::SessionOver;
        assert_eq!(cancelled(&mut session), [(token(1), why), (token(2), why)]);
        assert!(session.rows.holding().is_empty() && !session.rows.is_empty(), "the handlers still wind up");
    }
}

#[test]
fn a_session_that_was_opened_anew_has_none_of_the_rows() {
    let mut session = at_work();
    session.connecting();
    session.hear(attached(1, false));
    assert_eq!(cancelled(&mut session).len(), 2);
}

#[test]
fn what_is_withdrawn_is_cancelled_and_the_rest_goes_on() {
    let mut session = at_work();
    let key = "w:1".parse().unwrap();
    let row = WithdrawnRow { key, token: token(1), status: Some(RowStatus::Cancelled) };
    session.hear(NodeMessage::Withdrawn { number: 3, rows: vec![row] });
    let why = Cancelled::Withdrawn(Some(RowStatus::Cancelled));
    assert_eq!(cancelled(&mut session), [(token(1), why)]);
    assert_eq!(session.rows.holding(), [HeldRow { key: "w:2".parse().unwrap(), token: token(2) }]);
}

#[test]
fn a_pause_reaches_those_whom_it_concerns() {
    let mut session = at_work();
    let rows = vec![HeldRow { key: "w:2".parse().unwrap(), token: token(2) }];
    session.hear(NodeMessage::Paused { number: 3, rows: rows.clone() });
    session.hear(NodeMessage::Resumed { number: 4, rows });
    let told = |paused| Step::Tell(token(2), Standing { cancelled: None, paused });
    assert_eq!(session.rows.take_steps(), [told(true), told(false)]);
}

#[test]
fn a_session_that_others_take_again_and_again_is_given_up() {
    let mut session = at_work();
    assert!(matches!(session.hear(ended(Ended::Moved)), Turn::Attach), "this may have been an own late attachment");
    session.hear(NodeMessage::Extended { number: 3, deadline: Millis(20) });
    for _ in 1..MOVES_MAX {
        assert!(matches!(session.hear(ended(Ended::Moved)), Turn::Attach));
    }
    let moved = Reject::SessionMoved { session: session.id.clone() };
    assert!(matches!(session.lose(ClientError::Reject(moved)), Turn::Stop(WorkerError::Moved)));
}

#[test]
fn a_refusal_ends_the_worker_and_a_node_that_cannot_does_not() {
    let refused = |problem| NodeMessage::Ended { reason: Ended::Refused, problem: Some(problem) };
    let mut session = at_work();
    assert!(matches!(session.hear(refused(Problem::new(503, "no_quorum", "two are gone"))), Turn::Attach));
    // A node whose start is not committed yet.
    let (node, problem) = (NodeName::new("node-a").unwrap(), "has started again since".to_owned());
    assert!(matches!(session.lose(ClientError::Reject(Reject::NodeState { node, problem })), Turn::Attach));
    let turn = session.hear(refused(Problem::new(400, "invalid_argument", "no namespaces")));
    assert!(matches!(turn, Turn::Stop(WorkerError::Refused(_))), "{turn:?}");
}

#[test]
fn a_worker_that_ends_opens_no_other_session() {
    for reason in [Ended::Closed, Ended::SessionOver] {
        let mut session = at_work();
        session.end();
        assert!(matches!(session.hear(ended(reason)), Turn::Finished));
    }
}

#[test]
fn a_pause_that_was_lifted_while_there_was_no_connection_is_over() {
    let mut session = at_work();
    let held = |index: u64| HeldRow { key: format!("w:{index}").parse().unwrap(), token: token(index) };
    session.hear(NodeMessage::Paused { number: 3, rows: vec![held(1), held(2)] });
    session.rows.take_steps();
    session.hear(ended(Ended::StreamDead));
    session.connecting();
    session.hear(attached(1, true));
    session.hear(NodeMessage::Paused { number: 2, rows: vec![held(2)] });
    let paused = |session: &mut Session| -> Vec<(ClaimToken, bool)> {
        let steps = session.rows.take_steps().into_iter();
        let told = steps.map(|step| match step {
            Step::Tell(token, standing) => (token, standing.paused),
            Step::Start(..) => panic!("nothing was delivered"),
        });
        told.collect()
    };
    assert_eq!(paused(&mut session), [(token(2), true)], "nobody is woken before the node has said all");
    session.hear(NodeMessage::Extended { number: 3, deadline: Millis(9) });
    assert_eq!(paused(&mut session), [(token(1), false)]);
    session.hear(NodeMessage::Extended { number: 4, deadline: Millis(9) });
    assert_eq!(paused(&mut session), []);
}
