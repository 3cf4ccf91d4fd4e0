//! Stores that are wrong in one way each, and the checks that must find it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_client::wire::{CountPage, DueTimers, ExpiredCall, HeadPage, PageCall, RedriveMode, Runs, UnsettledPage};
use holdfast_client::{Answer, ClaimCall, Delivery, ListCall, ReadMode, WorkflowList, Write};
use holdfast_conformance::{Backend, Called, Failure, Layer, Layered, Options, Verdict, run};
use holdfast_machine::{
    Arming, ClaimToken, Commit, Committed, DispatchKey, HistoryEvent, Millis, Namespace, NamespaceSettings,
    NamespaceState, NewEvent, NewRow, Payload, Reject, Retirement, RowAction, ShardId, Staged, TimerChange, Transition,
    WorkflowFilter, WorkflowId,
};
use holdfast_tests::embedded::Embedded;
use parking_lot::Mutex;

/// A layer with one fault: the calls that it gets wrong.
macro_rules! fault {
    ($name:ident { $($call:item)+ }) => {
        pub(super) struct $name(pub(super) Arc<dyn Backend>);
        #[async_trait]
        impl Layer for $name {
            fn below(&self) -> &dyn Backend {
                &*self.0
            }
            $($call)+
        }
    };
}

mod histories;
mod listings;
mod rows;
mod timers;

use histories::*;
use listings::*;
use rows::*;
use timers::*;

type Sabotage = (&'static str, fn(Arc<dyn Backend>) -> Arc<dyn Backend>);

/// Each sabotage with the promise that it breaks, as the registry has it.
fn table() -> Vec<(Sabotage, &'static str)> {
    macro_rules! caught {
        ($($fault:ident($($state:expr)?) by $promise:literal,)+) => {
            vec![$((
                (stringify!($fault), |store| -> Arc<dyn Backend> { Arc::new(Layered($fault(store $(, $state)?))) }),
                $promise,
            ),)+]
        };
    }
    caught![
        DropsAnEvent() by "an append at 0 creates the workflow, and its events are numbered from 1",
        IgnoresTheExpectedSequence() by "an append at another place than the head is refused with what was expected and what was found",
        TellsNoConflictFigures() by "an append at another place than the head is refused with what was expected and what was found",
        TakesNothingForADuplicate() by "an append sent again with the same bytes is a duplicate; with other bytes it is a conflict",
        ReadsOneEventTooFew() by "a read gives the range that was asked for, and nothing beyond the head",
        LosesContentTypes() by "payloads are kept to the byte, with their content type",
        StagesNoRows() by "a commit writes events and rows together, and a row reads back as it was staged",
        ForgetsRuns() by "continue-as-new opens the next run in the same history, with the last one as its parent",
        ReturnsRowsTwice(Mutex::default()) by "no two claims return the same live row, however many there are",
        ReversesTheOrder() by "rows are taken oldest visible_after first, then by workflow and by number",
        IgnoresActivityTypes() by "a claim with activity types takes rows of these types only",
        IgnoresHolds() by "the rows of held workflows are passed over and stay pending",
        NeverWaits() by "a claim that waits wakes when a row becomes due",
        ClaimsForgetTheirKey() by "a claim sent again under its key returns the same rows and tokens",
        IgnoresIdempotencyKeys() by "every mutating call sent again under its key gets the first answer and changes nothing",
        IgnoresIdempotencyKeys() by "one call sent many times at once has one effect and one answer",
        IgnoresFences() by "a write under another owner or epoch is refused with those that hold, whatever the write",
        IgnoresTokens() by "a completion under an old token is absorbed: one outcome, the second claimant's",
        IgnoresTokens() by "a token that was never issued moves nothing",
        SaysYesToEveryHeartbeat() by "a heartbeat under a claim that is over is refused",
        KeepsNoDetails() by "a heartbeat extends the lease and replaces the details that are shown",
        TakesPausesForNotes() by "nobody gets the rows of a paused workflow; after it is resumed all of them are due",
        SettlesSilently() by "settling cancels a workflow's live rows and names them; repeating it changes nothing",
        ReadsTheWholePageForNone() by "a page or a claim of nothing makes no sense; one over the limit is refused with both figures",
        TellsNoIndex() by "the index of a write is greater than that of the write before it",
        LosesTimers() by "a commit arms and retires timers, and says what came of each retirement",
        MovesRowsBesideTheCommit() by "a transition that is refused takes the whole commit with it",
        NeverWaitsForEvents() by "a reader that waits wakes when its history grows, whoever makes it grow",
        IgnoresCursorsOfOthers() by "a cursor goes on with its own filter, sort and order, and is refused with any other",
        SkipsBetweenPages() by "a listing is read in pages that have each workflow once, and ends with a null cursor",
        CountsRoughly() by "a count is exactly as many as the listing of its filter has",
        IgnoresAttributes() by "a workflow is found by a search attribute of each type, and by each text of several",
        ListsTheOldStatus() by "a workflow is listed as its last run makes it, as soon as that is acknowledged",
        AlwaysForces() by "a dead letter whose failure was delivered is redriven only if it is forced",
        ForgetsToMark() by "the mark that a failure was delivered is set once and for all, on dead letters only",
        SaysThatAllIsStaged() by "a key that has a row is left as it is, whether live or finished, and the reply says so",
        ForgetsWhatIsClaimed() by "unsettled workflows are those with live rows, by shard and id, with how many wait and are held",
        CountsWhatWaitsOnly() by "rows are counted by namespace, and in flight is pending and claimed together",
        ListsFinishedHeadsAsOpen() by "heads say where histories end, of open workflows or of all, by id",
        SetsNoCeiling() by "no more rows are claimed than the ceiling of the namespace, however many claim at once",
        ClosesWhatItDeletes() by "an open workflow is not deleted, nor one that is not there",
        DeletesNothing() by "a deleted workflow is out of sight at once, with its history, runs, rows and listing",
        RetiresByName() by "a late retirement of an earlier arming leaves the new one alone, which still fires",
        FiresEarly() by "a timer is not due before its time",
        LosesATimer() by "timers that are due come by time, then by workflow, then by name",
        ReadsWhatItReadBefore(Mutex::default()) by "a linearizable read sees every write that was acknowledged before it",
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sabotage_is_caught_by_name() {
    let nodes = Embedded::start(1).await.unwrap();
    let mut missed = Vec::new();
    for ((name, sabotaged), promise) in table() {
        let store = sabotaged(Arc::new(nodes.node(0).store()));
        let patience = Duration::from_secs(2);
        let options = Options { filter: Some(promise.to_owned()), disturbing: true, patience, ..Options::default() };
        let report = run(store, &options, |_| {}).await;
        assert_eq!(report.findings.len(), 1, "no check, or several, with the promise {promise:?}");
        match &report.findings[0].verdict {
            Verdict::Broken(reason) => println!("{name}: {reason}"),
            verdict => missed.push(format!("{name}: {promise}: {verdict:?}")),
        }
    }
    nodes.stop().await;
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}
