//! What goes over the wire, to the letter. A change here is a change for every user of the HTTP interface.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;

use holdfast_client::wire::*;
use holdfast_machine::{
    Arming, AttributeFilter, AttributeRange, AttributeValue, Attributes, ClaimToken, ClusterEvent, Commit, Epoch,
    EventKind, Evidence, Fence, Holder, ListedWorkflow, Millis, Namespace, NamespaceSettings, NamespaceState, NewEvent,
    NewRow, NodeName, Payload, Retirement, RetryPolicy, Returned, RowAction, RowStatus, Scope, ShardId, SortOrder,
    TimeRange, Timeouts, TimerChange, Transition, WorkflowFilter, WorkflowId, WorkflowQuery, WorkflowSort,
    WorkflowStatus, WorkflowType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Holds a value and its text together, in both directions, and takes it through postcard and back.
fn shape<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, text: &str) {
    assert_eq!(serde_json::to_string(&value).unwrap(), text);
    assert_eq!(serde_json::from_str::<T>(text).unwrap(), value);
    let bytes = Encoding::Postcard.write(&value).unwrap();
    assert_eq!(Encoding::Postcard.read::<T>(&bytes).unwrap(), value, "{text}");
}

fn node() -> NodeName {
    NodeName::new("node-a").unwrap()
}

#[test]
fn a_commit() {
    let event = NewEvent::activity(EventKind::ActivityScheduled, 1).with(Payload::json(&[1, 2]).unwrap());
    let row = NewRow {
        ordinal: 1,
        task_queue: Default::default(),
        node: None,
        activity_type: "charge".parse().unwrap(),
        input: Payload::text("in"),
        visible_after: Millis(5),
        retry: RetryPolicy::default(),
        timeouts: Default::default(),
    };
    let (settle, transitions, timers) = (vec![9], Vec::new(), Vec::new());
    let body = CommitBody { expected_seq: 3, events: vec![event], rows: vec![row], settle, transitions, timers };
    shape(
        body.clone(),
        concat!(
            r#"{"expected_seq":3,"#,
            r#""events":[{"kind":"ActivityScheduled","ordinal":1,"start":null,"search_attributes":null,"#,
            r#""payload":{"content_type":"application/json","json":[1,2]}}],"#,
            r#""rows":[{"ordinal":1,"task_queue":"default","node":null,"activity_type":"charge","#,
            r#""input":{"content_type":"text/plain","text":"in"},"visible_after":5,"#,
            r#""retry":{"initial_ms":1000,"multiplier_percent":200,"maximum_ms":60000,"deliveries_max":10,"#,
            r#""non_retryable":[]},"timeouts":{"schedule_to_start_ms":null,"start_to_close_ms":null,"#,
            r#""schedule_to_close_ms":null,"heartbeat_ms":null}}],"#,
            r#""settle":[9],"transitions":[],"timers":[]}"#,
        ),
    );
    let workflow = WorkflowId::new("w").unwrap();
    let Commit { expected_seq, settle, .. } = body.into_commit(workflow);
    assert_eq!((expected_seq, settle), (3, vec![9]));
}

#[test]
fn the_least_that_has_to_be_said() {
    let body: CommitBody = serde_json::from_str(
        r#"{"expected_seq":0,"events":[{"kind":"WorkflowStarted","start":{"workflow_type":"order"}}],
            "rows":[{"ordinal":1,"activity_type":"charge"}]}"#,
    )
    .unwrap();
    assert_eq!(body.events, [NewEvent::started(WorkflowType::new("order").unwrap())]);
    assert_eq!((body.rows[0].retry.clone(), body.rows[0].input.clone()), Default::default());
    let call: ClaimCall =
        serde_json::from_str(r#"{"limit":1,"holder":{"lease":{"claimant":"me","lease_ms":5}}}"#).unwrap();
    assert_eq!((call.scope, call.wait_ms, call.hold), (Scope::default(), 0, vec![]));
}

#[test]
fn a_claim_and_what_it_brings() {
    let holder = ClaimHolder::Lease { claimant: "me".parse().unwrap(), lease_ms: 30_000 };
    let scope = Scope { activity_types: vec!["charge".parse().unwrap()], ..Scope::default() };
    shape(
        ClaimCall { scope, limit: 10, holder, hold: vec!["w".parse().unwrap()], wait_ms: 20_000 },
        concat!(
            r#"{"scope":{"namespace":"default","task_queue":"default","activity_types":["charge"],"node":null},"#,
            r#""limit":10,"holder":{"lease":{"claimant":"me","lease_ms":30000}},"hold":["w"],"wait_ms":20000}"#,
        ),
    );
    let delivery = Delivery {
        key: "w:1".parse().unwrap(),
        token: ClaimToken { index: 7, number: 1 },
        deadline: Some(Millis(9)),
        run_id: "run-1".parse().unwrap(),
        namespace: Default::default(),
        task_queue: Default::default(),
        activity_type: "charge".parse().unwrap(),
        attempt: 1,
        deliveries: 0,
        scheduled_at: Millis(3),
        timeouts: Timeouts { start_to_close_ms: Some(20), ..Timeouts::default() },
        finish_by: Some(Millis(25)),
        input: Payload::default(),
    };
    shape(
        Deliveries { deliveries: vec![delivery] },
        concat!(
            r#"{"deliveries":[{"key":"w:1","token":"7-1","deadline":9,"run_id":"run-1","namespace":"default","#,
            r#""task_queue":"default","activity_type":"charge","attempt":1,"deliveries":0,"scheduled_at":3,"#,
            r#""timeouts":{"schedule_to_start_ms":null,"start_to_close_ms":20,"schedule_to_close_ms":null,"#,
            r#""heartbeat_ms":null},"finish_by":25,"input":null}]}"#,
        ),
    );
}

#[test]
fn who_holds_a_row() {
    shape(Holder::Lease { claimant: "me".parse().unwrap() }, r#"{"lease":{"claimant":"me"}}"#);
    shape(
        Holder::Node { node: node(), boot: "boot-1".parse().unwrap() },
        r#"{"node":{"node":"node-a","boot":"boot-1"}}"#,
    );
}

#[test]
fn transitions() {
    let token = Some(ClaimToken { index: 7, number: 1 });
    shape(CompleteBody { token, result: Payload::default() }, r#"{"token":"7-1","result":null}"#);
    shape(Completed { seq: Some(6) }, r#"{"seq":6}"#);
    shape(Completed { seq: None }, r#"{"seq":null}"#);
    shape(
        FailBody {
            token: None,
            error: Payload::octets(vec![0]),
            error_type: Some("card.declined".parse().unwrap()),
            retryable: true,
        },
        concat!(
            r#"{"token":null,"error":{"content_type":"application/octet-stream","base64":"AA=="},"#,
            r#""error_type":"card.declined","retryable":true}"#,
        ),
    );
    let returned = Returned { status: RowStatus::Pending, deliveries: 1, visible_after: Millis(3), failed_seq: None };
    shape(
        ReturnedRow { returned: Some(returned) },
        r#"{"returned":{"status":"pending","deliveries":1,"visible_after":3,"failed_seq":null}}"#,
    );
    shape(
        HeartbeatBody { token: ClaimToken { index: 7, number: 1 }, lease_ms: 5, details: Payload::text("half") },
        r#"{"token":"7-1","lease_ms":5,"details":{"content_type":"text/plain","text":"half"}}"#,
    );
}

#[test]
fn rows_by_themselves_and_dead_letters() {
    let staged = holdfast_machine::Staged { key: "w:1".parse().unwrap(), written: false };
    shape(StagedRows { staged: vec![staged] }, r#"{"staged":[{"key":"w:1","written":false}]}"#);
    let body: StageBody = serde_json::from_str(r#"{"rows":[{"ordinal":1,"activity_type":"charge"}]}"#).unwrap();
    assert_eq!((body.namespace, body.rows.len()), (Default::default(), 1));
    shape(RedriveBody { mode: RedriveMode::Forced }, r#"{"mode":"forced"}"#);
    assert_eq!(serde_json::from_str::<RedriveBody>("{}").unwrap().mode, RedriveMode::Eligible);
    shape(FailureDelivered { found: true }, r#"{"found":true}"#);
    shape(DeadLetterPage { rows: Vec::new(), next_cursor: Some("c".into()) }, r#"{"rows":[],"next_cursor":"c"}"#);
}

#[test]
fn listings() {
    let unsettled = UnsettledWorkflow { workflow: "w".parse().unwrap(), pending: 2, claimed: 1 };
    shape(
        UnsettledPage { workflows: vec![unsettled], next_cursor: None },
        r#"{"workflows":[{"workflow":"w","pending":2,"claimed":1}],"next_cursor":null}"#,
    );
    let route = WaitingRoute {
        namespace: Default::default(),
        task_queue: Default::default(),
        node: Some(node()),
        activity_type: "charge".parse().unwrap(),
        pending: 3,
        next_due: Millis(5),
    };
    shape(
        RoutePage { routes: vec![route], next_cursor: None },
        concat!(
            r#"{"routes":[{"namespace":"default","task_queue":"default","node":"node-a","activity_type":"charge","#,
            r#""pending":3,"next_due":5}],"next_cursor":null}"#,
        ),
    );
    let counts = RowsInNamespace { namespace: Default::default(), pending: 2, claimed: 1, in_flight: 3 };
    shape(
        CountPage { namespaces: vec![counts], next_cursor: None },
        r#"{"namespaces":[{"namespace":"default","pending":2,"claimed":1,"in_flight":3}],"next_cursor":null}"#,
    );
    let status = holdfast_machine::WorkflowStatus::Running;
    let (workflow, run_id) = ("w".parse().unwrap(), "run-1".parse().unwrap());
    let namespace = Namespace::default();
    let head = Head { workflow, shard: ShardId(2), head: 7, namespace, status, run_id, workflow_type: None };
    shape(
        HeadPage { heads: vec![head], next_cursor: None },
        concat!(
            r#"{"heads":[{"workflow":"w","shard":2,"head":7,"namespace":"default","status":"running","#,
            r#""run_id":"run-1","workflow_type":null}],"next_cursor":null}"#,
        ),
    );
}

#[test]
fn timers() {
    let arming = || Arming { timer: "wake".parse().unwrap(), fire_at: Millis(5), armed_seq: 2 };
    shape(arming(), r#"{"timer":"wake","fire_at":5,"armed_seq":2}"#);
    shape(TimerChange::Schedule(arming()), r#"{"schedule":{"timer":"wake","fire_at":5,"armed_seq":2}}"#);
    shape(TimerChange::Retire(arming()), r#"{"retire":{"timer":"wake","fire_at":5,"armed_seq":2}}"#);
    shape(Scheduled {}, "{}");
    shape(RetiredTimer { retirement: Retirement::Superseded }, r#"{"retirement":"superseded"}"#);
    shape(RetiredTimer { retirement: Retirement::Retired }, r#"{"retirement":"retired"}"#);
    shape(
        TimerPage { timers: vec![arming()], next_cursor: None },
        r#"{"timers":[{"timer":"wake","fire_at":5,"armed_seq":2}],"next_cursor":null}"#,
    );
    let due = DueTimer::new("w".parse().unwrap(), arming());
    assert_eq!(due.arming(), arming());
    shape(
        DueTimers { timers: vec![due], next_due: Some(Millis(9)) },
        r#"{"timers":[{"workflow":"w","timer":"wake","fire_at":5,"armed_seq":2}],"next_due":9}"#,
    );
}

#[test]
fn what_a_commit_does_to_rows() {
    let token = Some(ClaimToken { index: 7, number: 1 });
    shape(
        Transition { ordinal: 1, token, action: RowAction::Complete { result: Payload::text("ok") } },
        r#"{"ordinal":1,"token":"7-1","action":{"complete":{"result":{"content_type":"text/plain","text":"ok"}}}}"#,
    );
    shape(
        Transition { ordinal: 1, token: None, action: RowAction::Retry { delay_ms: 5 } },
        r#"{"ordinal":1,"token":null,"action":{"retry":{"delay_ms":5}}}"#,
    );
    let least: Transition = serde_json::from_str(r#"{"ordinal":1,"action":{"fail":{"retryable":true}}}"#).unwrap();
    let action = RowAction::Fail { error: Payload::default(), error_type: None, retryable: true };
    assert_eq!(least, Transition { ordinal: 1, token: None, action });
    for text in [
        r#"{"ordinal":1,"action":{"fail":{}}}"#,
        r#"{"ordinal":1,"action":{"retry":{}}}"#,
        r#"{"ordinal":1,"action":{"complete":{"outcome":null}}}"#,
        r#"{"ordinal":1,"action":{"complete":{},"retry":{"delay_ms":5}}}"#,
    ] {
        assert!(serde_json::from_str::<Transition>(text).is_err(), "{text}");
    }
}

#[test]
fn ownership() {
    let fence = Some(Fence { owner: node(), epoch: Epoch(4) });
    shape(
        WorkflowView {
            id: "w".parse().unwrap(),
            shard: ShardId(2),
            fence,
            workflow: None,
            search_attributes: Attributes::new(),
        },
        r#"{"id":"w","shard":2,"fence":{"owner":"node-a","epoch":4},"workflow":null,"search_attributes":{}}"#,
    );
    shape(TransferBody { to: node(), expected_epoch: Epoch(4) }, r#"{"to":"node-a","expected_epoch":4}"#);
    shape(
        Adoption::AlreadyAdopted { held_by: node(), epoch: Epoch(5) },
        r#"{"already_adopted":{"held_by":"node-a","epoch":5}}"#,
    );
}

#[test]
fn events() {
    let id = EventId { index: 12, position: 0 };
    let event = ClusterEvent::PeerDown { node: node(), evidence: Evidence::LinkClosed };
    let topology =
        Topology { index: 12, leader: Some(node()), term: 2, shard_count: 4, members: Vec::new(), shards: Vec::new() };
    for (message, name, data) in [
        (
            EventMessage::Event { id: Some(id), event },
            "event",
            r#"{"id":"12-0","event":{"PeerDown":{"node":"node-a","evidence":"link_closed"}}}"#,
        ),
        (EventMessage::Lagged { after: Some(id) }, "lagged", r#"{"after":"12-0"}"#),
        (
            EventMessage::Snapshot(topology),
            "snapshot",
            r#"{"index":12,"leader":"node-a","term":2,"shard_count":4,"members":[],"shards":[]}"#,
        ),
    ] {
        assert_eq!(message.clone().encode().unwrap(), (name, data.to_owned()));
        assert_eq!(EventMessage::decode(name, data).unwrap(), Some(message));
    }
    assert_eq!(EventMessage::decode("of the future", "{}").unwrap(), None);
}

#[test]
fn the_stream_of_heads_reads_back_what_it_says() {
    let grew = HeadGrew {
        workflow: WorkflowId::new("w").unwrap(),
        shard: ShardId(3),
        head: 7,
        namespace: Namespace::default(),
    };
    let letter = DeadLetter { key: "w:1".parse().unwrap(), shard: ShardId(3), namespace: Namespace::default() };
    for (message, name, data) in [
        (HeadMessage::Resync { index: 12 }, "resync", r#"{"index":12}"#),
        (HeadMessage::Grew(grew), "grew", r#"{"workflow":"w","shard":3,"head":7,"namespace":"default"}"#),
        (HeadMessage::DeadLetter(letter), "dead_letter", r#"{"key":"w:1","shard":3,"namespace":"default"}"#),
    ] {
        assert_eq!(message.encode().unwrap(), (name, data.to_owned()));
        assert_eq!(HeadMessage::decode(name, data).unwrap(), Some(message));
    }
    assert_eq!(HeadMessage::decode("of the future", "{}").unwrap(), None);
}

#[test]
fn a_listing() {
    let call: ListCall = serde_json::from_str("{}").unwrap();
    assert_eq!((call.clone(), call.limit), (ListCall::default(), 100));
    let attributes = vec![
        AttributeFilter { name: "a".parse().unwrap(), equals: Some(AttributeValue::Text("x".into())), range: None },
        AttributeFilter {
            name: "b".parse().unwrap(),
            equals: None,
            range: Some(AttributeRange::Time { from: Some(Millis(1)), to: None }),
        },
    ];
    let filter = WorkflowFilter {
        statuses: vec![WorkflowStatus::TimedOut],
        closed: TimeRange { from: Some(Millis(5)), to: None },
        attributes,
        ..WorkflowFilter::default()
    };
    let query = WorkflowQuery { filter: filter.clone(), sort: WorkflowSort::Closed, order: SortOrder::Oldest };
    let said = concat!(
        r#"{"namespace":"default","workflow_types":[],"statuses":["timed_out"],"#,
        r#""started":{"from":null,"to":null},"closed":{"from":5,"to":null},"#,
        r#""attributes":[{"name":"a","equals":{"text":"x"},"range":null},"#,
        r#"{"name":"b","equals":null,"range":{"time":{"from":1,"to":null}}}]"#,
    );
    shape(filter, &format!("{said}}}"));
    let call = ListCall { cursor: Some("c".into()), ..ListCall::new(query.clone()) };
    assert_eq!(call.query(), query);
    shape(call, &format!(r#"{said},"sort":"closed","order":"oldest","limit":100,"cursor":"c"}}"#));
    let listed = ListedWorkflow {
        workflow: "w".parse().unwrap(),
        namespace: Default::default(),
        workflow_type: None,
        status: WorkflowStatus::Running,
        run_id: "run-1".parse().unwrap(),
        started_at: Millis(3),
        closed_at: None,
        head: 2,
        search_attributes: [("n".parse().unwrap(), AttributeValue::Integer(-1))].into(),
    };
    shape(
        WorkflowList { workflows: vec![listed], next_cursor: None },
        concat!(
            r#"{"workflows":[{"workflow":"w","namespace":"default","workflow_type":null,"status":"running","#,
            r#""run_id":"run-1","started_at":3,"closed_at":null,"head":2,"#,
            r#""search_attributes":{"n":{"integer":-1}}}],"next_cursor":null}"#,
        ),
    );
    shape(Counted { count: 7 }, r#"{"count":7}"#);
}

#[test]
fn unknown_members_are_refused() {
    for text in [r#"{"status":["failed"]}"#, r#"{"started":{"since":1}}"#, r#"{"attributes":[{"name":"a","eq":1}]}"#] {
        assert!(serde_json::from_str::<ListCall>(text).is_err(), "{text}");
        assert!(serde_json::from_str::<WorkflowFilter>(text).is_err(), "{text}");
    }

    for text in [
        r#"{"expected_seq":0,"events":[],"expected_sequence":1}"#,
        r#"{"expected_seq":0,"events":[{"kind":"X","ordnal":1}]}"#,
    ] {
        assert!(serde_json::from_str::<AppendBody>(text).is_err());
        assert!(serde_json::from_str::<CommitBody>(text).is_err());
    }
}

#[test]
fn namespaces() {
    let settings = NamespaceSettings {
        description: "invoices".into(),
        claimed_max: Some(5),
        retention_ms: None,
        retention_ms_by_type: [("audit".parse().unwrap(), Some(1))].into(),
        ..NamespaceSettings::default()
    };
    let text = r#"{"description":"invoices","deprecated":false,"claimed_max":5,"retention_ms":null,"retention_ms_by_type":{"audit":1}}"#;
    shape(settings.clone(), text);
    shape(
        NamespaceState { created_at: Millis(7), settings: settings.clone() },
        &format!(r#"{{"created_at":7,"settings":{text}}}"#),
    );
    let namespace = "acme".parse().unwrap();
    let view = NamespaceView { namespace, created_at: Millis(7), settings, pending: 1, claimed: 2 };
    shape(
        NamespacePage { namespaces: vec![view], next_cursor: Some("c".into()) },
        &format!(
            r#"{{"namespaces":[{{"namespace":"acme","created_at":7,"settings":{text},"pending":1,"claimed":2}}],"next_cursor":"c"}}"#
        ),
    );
    shape(Deleted {}, "{}");
}
