//! Many calls in one request: each has its own guard and its own outcome, over HTTP as in the process.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_api::{RowResult, StoreError};
use holdfast_client::wire::{Batch, BatchedResult, Outcome, Outcomes};
use holdfast_client::{Client, ClientError, Problem, ReadMode, Write};
use holdfast_machine::{Commit, Committed, Epoch, Fence, NodeName, Payload, Reject, RowStatus};
use support::{Served, claim, id, serve, signal, staged, started};

fn keyed(key: &str) -> Write {
    Write::keyed(key.parse().unwrap())
}

/// JSON, and the binary form, in which a problem has to find its way too.
fn clients(served: &Served) -> [Client; 2] {
    [served.client.clone(), Client::new([&served.url]).unwrap()]
}

/// Opens two workflows, with one between them that cannot be.
fn two_and_one_that_cannot_be(name: &str) -> Vec<(Commit, Write)> {
    let opening = |which: &str| staged(&format!("{name}-{which}"), [1, 2]);
    let late = Commit::new(id(&format!("{name}-late")), 7).event(started());
    vec![
        (opening("a"), keyed(&format!("{name}/a"))),
        (late, keyed(&format!("{name}/late"))),
        (opening("b"), keyed(&format!("{name}/b"))),
    ]
}

fn heads(results: &[Result<holdfast_client::Answer<Committed>, ClientError>]) -> Vec<Option<u64>> {
    results.iter().map(|result| result.as_ref().ok().map(|answer| answer.value.head)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_commit_of_a_batch_stands_or_falls_by_itself_and_a_retry_gets_the_first_answers() {
    let served = serve().await;
    for (number, client) in clients(&served).into_iter().enumerate() {
        let calls = two_and_one_that_cannot_be(&format!("w{number}"));
        let first = client.commit_all(calls.clone()).await;
        assert_eq!(heads(&first), [Some(5), None, Some(5)]);
        let refused = first[1].as_ref().unwrap_err();
        assert!(matches!(refused, ClientError::Reject(Reject::SequenceConflict { expected: 7, found: 0, .. })));
        // Each has the index of its own entry.
        for (call, answer) in calls.iter().zip(&first).filter_map(|(call, result)| Some((call, result.as_ref().ok()?)))
        {
            let history = client.history(&call.0.workflow, 1, 9, ReadMode::AtLeast(answer.index)).await.unwrap();
            assert_eq!(history.value.len() as u64, answer.value.head);
        }
        let last = served.last();
        let again = client.commit_all(calls).await;
        assert_eq!(heads(&again), heads(&first));
        assert_eq!(again[1], first[1]);
        assert!(served.last() > last, "to be answered it had to be agreed on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_many_rows_are_recorded_once_each() {
    let served = serve().await;
    for (number, client) in clients(&served).into_iter().enumerate() {
        let workflow = format!("w{number}");
        served.stage(&workflow, 1..=20).await;
        let taken = client.claim(claim(20, 0), Write::default()).await.unwrap().value;
        assert_eq!(taken.len(), 20);
        let results = || {
            let result = Payload::text("done");
            taken.iter().map(move |row| {
                (RowResult { key: row.key.clone(), token: Some(row.token), result: result.clone() }, Write::default())
            })
        };
        let completed = client.complete_all(results().collect()).await;
        let mut seqs: Vec<u64> = completed.into_iter().map(|result| result.unwrap().value.unwrap()).collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (42..62).collect::<Vec<_>>(), "one event for each, behind the 41 of the beginning");
        for again in client.complete_all(results().collect()).await {
            let refused = again.unwrap_err();
            assert!(matches!(refused.reject(), Some(Reject::AlreadyTerminal { .. })), "{refused}");
        }
        let row = client.row(&taken[0].key, ReadMode::Linearizable).await.unwrap().value;
        assert_eq!(row.row.status, RowStatus::Done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_the_process_takes_the_same_batches() {
    let served = serve().await;
    let results = served.store.commit_all(two_and_one_that_cannot_be("w")).await;
    let heads: Vec<_> = results.iter().map(|result| result.as_ref().ok().map(|answer| answer.value.head)).collect();
    assert_eq!(heads, [Some(5), None, Some(5)]);
    assert!(matches!(results[1], Err(StoreError::Reject(Reject::SequenceConflict { .. }))));
    let nobody = RowResult { key: "nobody:1".parse().unwrap(), token: None, result: Payload::default() };
    let completed = served.store.complete_all(vec![(nobody, Write::default())]).await;
    assert_eq!(completed[0].as_ref().unwrap().value, None, "a key that nobody knows is no error without a token");
    assert!(served.store.commit_all(Vec::new()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_of_one_call_is_not_that_of_the_others() {
    let served = serve().await;
    served.stage("w", [1]).await;
    let fence = Fence { owner: NodeName::new("node-2").unwrap(), epoch: Epoch(9) };
    let old = Write { fence: Some(fence), ..Write::default() };
    let signals = vec![
        (Commit::new(id("w"), 3).event(signal("too late")), old),
        (Commit::new(id("v"), 0).event(started()), Write::default()),
    ];
    let results = served.client.commit_all(signals).await;
    assert!(matches!(results[0].as_ref().unwrap_err().reject(), Some(Reject::NotOwner { .. })));
    assert_eq!(results[1].as_ref().unwrap().value.head, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_long_or_guarded_as_a_whole_is_refused_whole() {
    let served = serve().await;
    let last = served.last();
    let call = BatchedResult::new(
        RowResult { key: "w:1".parse().unwrap(), token: None, result: Payload::default() },
        Write::default(),
    );
    let post = async |calls: usize, key: Option<&str>| {
        let request = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = request.post(format!("{}/v1/batch/complete", served.url));
        let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
        request.json(&Batch { calls: vec![call.clone(); calls] }).send().await.unwrap()
    };
    let refused = post(1_001, None).await.json::<Problem>().await.unwrap().reject();
    assert!(matches!(refused, Some(Reject::LimitExceeded { limit: 1_000, actual: 1_001, .. })), "{refused:?}");
    let guarded = post(1, Some("one for all")).await;
    assert_eq!(guarded.json::<Problem>().await.unwrap().code, "invalid_argument");
    assert_eq!(served.last(), last, "nothing was written");
    let empty = post(0, None).await;
    assert_eq!(empty.status(), 200);
    assert!(empty.json::<Outcomes<()>>().await.unwrap().outcomes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_be_read_is_answered_by_itself_beside_the_others() {
    let served = serve().await;
    served.stage("w", [1, 2]).await;
    let post = async |path: &str, body: String| {
        let request = reqwest::Client::builder().no_proxy().build().unwrap().post(format!("{}{path}", served.url));
        request.header("content-type", "application/json").body(body).send().await.unwrap()
    };
    let done = r#"{"key": "w:1", "result": {"json": {"amount": 1.50}}}"#;
    let unreadable = [
        r#"{"key": ""}"#,
        r#"{"key": "w:2", "token": "none"}"#,
        r#"{"key": "w:2", "outcome": null}"#,
        r#"["w:2"]"#,
        "7",
        "{}",
    ];
    let calls = [&unreadable[..3], &[done], &unreadable[3..]].concat();
    let answer = post("/v1/batch/complete", format!(r#"{{"calls": [{}]}}"#, calls.join(", "))).await;
    assert_eq!(answer.status(), 200);
    let outcomes = answer.json::<Outcomes<serde_json::Value>>().await.unwrap().outcomes;
    assert_eq!(outcomes.len(), calls.len());
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Outcome::Answer { value, .. } => assert_eq!((number, value["seq"].as_u64()), (3, Some(6))),
            Outcome::Problem(problem) => {
                assert_eq!((problem.status, problem.code.as_str()), (400, "invalid_argument"), "{number}");
                assert!(problem.detail.starts_with(&format!("calls[{number}]: ")), "{}", problem.detail);
                assert!(number != 3, "{}", problem.detail);
            }
        }
    }
    let row = served.client.row(&"w:2".parse().unwrap(), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(row.row.status, RowStatus::Pending, "nothing was done to it");
    let history = served.client.history(&id("w"), 6, 1, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(&history[0].payload.data[..], br#"{"amount": 1.50}"#, "payloads are kept to the letter");

    // One commit of two, and what is no batch at all.
    let start = r#"{"workflow": "v", "commit": {"expected_seq": 0, "events": [{"kind": "WorkflowStarted", "start": {"workflow_type": "order"}}]}}"#;
    let answer = post("/v1/batch/commit", format!(r#"{{"calls": [{{"workflow": ""}}, {start}]}}"#)).await;
    let outcomes = answer.json::<Outcomes<Committed>>().await.unwrap().outcomes;
    assert!(
        matches!(&outcomes[0], Outcome::Problem(problem) if problem.detail.starts_with("calls[0]: ")),
        "{outcomes:?}"
    );
    assert!(matches!(&outcomes[1], Outcome::Answer { value, .. } if value.head == 1), "{outcomes:?}");
    let last = served.last();
    for no_batch in ["", "[]", "[[]]", r#"{"calls": {}}"#, r#"{"calls": [}"#, r#"{"calls": [], "more": 1}"#] {
        let refused = post("/v1/batch/commit", no_batch.to_owned()).await;
        assert_eq!(refused.json::<Problem>().await.unwrap().code, "invalid_argument", "{no_batch}");
    }
    // Too many to be kept in memory as problems.
    let many = format!(r#"{{"calls": [{}1]}}"#, "1,".repeat(1_000_000));
    let refused = post("/v1/batch/commit", many).await.json::<Problem>().await.unwrap().reject();
    assert!(matches!(refused, Some(Reject::LimitExceeded { actual: 1_000_001, .. })), "{refused:?}");
    assert_eq!(served.last(), last, "nothing was written");
}
