use super::*;
use crate::attributes::AttributeValue;
use crate::command::{Command, Commit};
use crate::history::{EventKind, NewEvent, WorkflowStart};
use crate::reply::Reply;
use crate::trial::{Trial, id};

fn start_of(workflow_type: &str, namespace: &str) -> NewEvent {
    let start = WorkflowStart { namespace: id(namespace), workflow_type: id(workflow_type), run_id: None };
    NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) }
}

fn search(pairs: &[(&str, Option<AttributeValue>)]) -> NewEvent {
    let update = pairs.iter().map(|(name, value)| (id(name), value.clone())).collect();
    NewEvent { search_attributes: Some(update), ..NewEvent::of(EventKind::SearchAttributesUpdated) }
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.to_owned())
}

fn equals(name: &str, value: AttributeValue) -> AttributeFilter {
    AttributeFilter { name: id(name), equals: Some(value), range: None }
}

fn between(name: &str, from: i64, to: i64) -> AttributeFilter {
    let range = AttributeRange::Integer { from: Some(from), to: Some(to) };
    AttributeFilter { name: id(name), equals: None, range: Some(range) }
}

fn times(from: u64, to: u64) -> TimeRange {
    TimeRange { from: Some(Millis(from)), to: Some(Millis(to)) }
}

impl Trial {
    fn begin(&mut self, at: u64, workflow: &str, events: Vec<NewEvent>) {
        self.at = at;
        self.ask(Command::Commit(Commit { events, ..Commit::new(id(workflow), 0) })).unwrap();
    }

    fn end(&mut self, at: u64, workflow: &str, kind: EventKind) {
        self.at = at;
        self.append(workflow, NewEvent::of(kind)).unwrap();
    }

    fn pages(&self, query: &WorkflowQuery, limit: usize, rows_max: usize) -> Vec<ListedWorkflow> {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = self.machine.list_workflows(&self.archive, query, after.as_ref(), limit, rows_max).unwrap();
            assert!(page.workflows.len() <= limit && page.rows <= rows_max);
            listed.extend(page.workflows);
            after = page.next;
            if after.is_none() {
                return listed;
            }
        }
    }

    fn ids(&self, filter: WorkflowFilter, sort: WorkflowSort, order: SortOrder) -> Vec<String> {
        let query = WorkflowQuery { filter, sort, order };
        let all = self.pages(&query, 100, 1_000);
        for (limit, rows_max) in [(1, 1), (2, 3), (3, 1_000)] {
            assert_eq!(self.pages(&query, limit, rows_max), all, "in other pages");
        }
        all.into_iter().map(|listed| listed.workflow.to_string()).collect()
    }

    fn found(&self, filter: WorkflowFilter) -> Vec<String> {
        let found = self.ids(filter.clone(), WorkflowSort::Started, SortOrder::Oldest);
        let backwards = self.ids(filter.clone(), WorkflowSort::Started, SortOrder::Newest);
        assert!(backwards.iter().rev().eq(&found));
        for rows_max in [1, 1_000] {
            assert_eq!(self.counted(&filter, rows_max), found.len() as u64, "{filter:?}");
        }
        found
    }

    fn counted(&self, filter: &WorkflowFilter, rows_max: usize) -> u64 {
        let (mut sum, mut after) = (0, None);
        loop {
            let part = self.machine.count_workflows(&self.archive, filter, after.as_ref(), rows_max).unwrap();
            sum += part.count;
            after = part.next;
            if after.is_none() {
                return sum;
            }
        }
    }

    /// The keys in the tables of listings.
    fn rows_of_indexes(&self) -> usize {
        self.archive.0.keys().filter(|key| b"UVZPYX".contains(&key[0])).count()
    }
}

/// Four workflows of two types, one of another namespace, and one without a type.
fn some() -> Trial {
    let mut trial = Trial::new();
    let amount = |amount| Some(AttributeValue::Integer(amount));
    trial.begin(
        1_000,
        "a",
        vec![start_of("order", "default"), search(&[("amount", amount(5)), ("to", Some(text("x")))])],
    );
    trial.begin(1_000, "b", vec![start_of("mail", "default"), search(&[("amount", amount(-5))])]);
    trial.begin(2_000, "c", vec![start_of("order", "default"), search(&[("to", Some(text("x")))])]);
    trial.begin(2_500, "elsewhere", vec![start_of("order", "other"), search(&[("to", Some(text("x")))])]);
    trial.begin(3_000, "d", vec![NewEvent::of(EventKind::SignalReceived)]);
    trial.end(4_000, "c", EventKind::WorkflowCompleted);
    trial.end(4_000, "a", EventKind::WorkflowFailed);
    trial.end(5_000, "d", EventKind::WorkflowCompleted);
    trial
}

#[test]
fn workflows_are_found_by_what_they_are() {
    let trial = some();
    let all = WorkflowFilter::default();
    assert_eq!(trial.found(all.clone()), ["a", "b", "c", "d"]);
    assert_eq!(trial.found(WorkflowFilter { namespace: id("other"), ..all.clone() }), ["elsewhere"]);
    assert!(trial.found(WorkflowFilter { namespace: id("othe"), ..all.clone() }).is_empty());
    assert_eq!(trial.found(WorkflowFilter { workflow_types: vec![id("order")], ..all.clone() }), ["a", "c"]);
    let ended = vec![WorkflowStatus::Completed, WorkflowStatus::Failed];
    assert_eq!(trial.found(WorkflowFilter { statuses: ended, ..all.clone() }), ["a", "c", "d"]);
    assert_eq!(trial.found(WorkflowFilter { started: times(1_000, 2_000), ..all.clone() }), ["a", "b"]);
    assert_eq!(trial.found(WorkflowFilter { started: times(1_001, 2_001), ..all.clone() }), ["c"]);
    assert!(trial.found(WorkflowFilter { started: times(1_000, 1_000), ..all.clone() }).is_empty());
    let open = TimeRange { from: Some(Millis(0)), to: None };
    assert_eq!(trial.found(WorkflowFilter { closed: open, ..all.clone() }), ["a", "c", "d"]);
    assert_eq!(trial.found(WorkflowFilter { closed: times(0, 5_000), started: times(2_000, 9_000), ..all }), ["c"]);
}

#[test]
fn the_order_is_by_time_and_then_by_id() {
    let trial = some();
    let ids = |sort, order| trial.ids(WorkflowFilter::default(), sort, order);
    assert_eq!(ids(WorkflowSort::Started, SortOrder::Newest), ["d", "c", "b", "a"]);
    assert_eq!(ids(WorkflowSort::Closed, SortOrder::Newest), ["d", "c", "a"]);
    assert_eq!(ids(WorkflowSort::Closed, SortOrder::Oldest), ["a", "c", "d"]);
}

#[test]
fn attributes_are_found_by_value_and_by_range() {
    let trial = some();
    let with = |attributes| WorkflowFilter { attributes, ..WorkflowFilter::default() };
    assert_eq!(trial.found(with(vec![equals("to", text("x"))])), ["a", "c"]);
    assert!(trial.found(with(vec![equals("to", text(""))])).is_empty());
    assert!(trial.found(with(vec![equals("to", AttributeValue::Integer(5))])).is_empty());
    assert_eq!(trial.found(with(vec![between("amount", -5, 5)])), ["b"]);
    assert_eq!(trial.found(with(vec![between("amount", -5, 6)])), ["a", "b"]);
    assert_eq!(trial.found(with(vec![between("amount", -5, 6), equals("to", text("x"))])), ["a"]);
    let ranged = with(vec![between("amount", -9, 9)]);
    assert_eq!(trial.found(WorkflowFilter { started: times(0, 1_001), ..ranged.clone() }), ["a", "b"]);
    assert!(trial.found(WorkflowFilter { started: times(1_001, 9_000), ..ranged }).is_empty());
    let filter = with(vec![equals("to", text("x"))]);
    assert_eq!(trial.found(WorkflowFilter { statuses: vec![WorkflowStatus::Failed], ..filter.clone() }), ["a"]);
    assert_eq!(trial.found(WorkflowFilter { closed: times(0, 9_000), started: times(1_500, 9_000), ..filter }), ["c"]);
    let closed = trial.ids(with(vec![equals("to", text("x"))]), WorkflowSort::Closed, SortOrder::Newest);
    assert_eq!(closed, ["c", "a"]);
}

/// What has too many rows to be gathered is found all the same.
#[test]
fn a_wide_range_is_walked_over() {
    let mut trial = Trial::new();
    let ids: Vec<String> = (0..2_010).map(|number| format!("w{number:04}")).collect();
    for (at, workflow) in ids.iter().enumerate() {
        let event = search(&[("n", Some(AttributeValue::Integer(-(at as i64))))]);
        trial.begin(at as u64, workflow, vec![start_of("order", "default"), event]);
    }
    let found = |from, to| {
        let filter = WorkflowFilter { attributes: vec![between("n", from, to)], ..WorkflowFilter::default() };
        let query = WorkflowQuery { filter, order: SortOrder::Oldest, ..WorkflowQuery::default() };
        let listed: Vec<String> = trial.pages(&query, 700, 900).iter().map(|w| w.workflow.to_string()).collect();
        assert_eq!(trial.counted(&query.filter, 900), listed.len() as u64);
        listed
    };
    assert_eq!(found(-2_004, 1), ids[..2_005]);
    assert_eq!(found(-1_999, 1), ids[..2_000]);
}

#[test]
fn an_item_is_the_workflow_as_its_last_run_makes_it() {
    let mut trial = some();
    let continued = vec![NewEvent::of(EventKind::WorkflowContinuedAsNew), start_of("mail", "ignored")];
    trial.at = 6_000;
    trial.ask(Command::Commit(Commit { events: continued, ..Commit::new(id("b"), 2) })).unwrap();
    let all = trial.pages(&WorkflowQuery::default(), 9, 99);
    let listed = &all[0];
    assert_eq!((listed.workflow.as_str(), listed.started_at, listed.closed_at), ("b", Millis(6_000), None));
    assert_eq!((listed.run_id.as_str(), listed.head), ("run-2", 4));
    assert_eq!((listed.namespace.as_str(), listed.workflow_type.clone()), ("default", Some(id("mail"))));
    let attributes = Attributes::from([(id("amount"), AttributeValue::Integer(-5))]);
    assert_eq!(listed.search_attributes, attributes, "they go over to the next run");
    assert_eq!(all[1].closed_at, Some(Millis(5_000)));
}

#[test]
fn attributes_come_and_go() {
    let mut trial = some();
    let filter = |name: &str, value| WorkflowFilter { attributes: vec![equals(name, value)], ..Default::default() };
    let several = AttributeValue::Texts(vec!["x".into(), "y".into(), "x".into()]);
    trial.append("a", search(&[("to", Some(several.clone())), ("amount", None)])).unwrap();
    assert_eq!(trial.found(filter("to", text("x"))), ["a", "c"]);
    assert_eq!(trial.found(filter("to", text("y"))), ["a"]);
    assert!(trial.found(filter("amount", AttributeValue::Integer(5))).is_empty());
    let attributes = trial.machine.search_attributes(&trial.archive, &id("a")).unwrap();
    assert_eq!(attributes, Attributes::from([(id("to"), several)]));
    trial.append("a", search(&[("to", None)])).unwrap();
    assert_eq!(trial.found(filter("to", text("x"))), ["c"]);
    assert!(!trial.archive.0.contains_key(&b"Pa"[..]));
    assert_eq!(trial.workflow("a").unwrap().attribute_count, 0);
}

#[test]
fn attributes_belong_to_two_kinds_of_events() {
    let mut trial = some();
    let event = NewEvent { kind: EventKind::SignalReceived, ..search(&[("to", None)]) };
    assert!(matches!(trial.append("b", event), Err(Reject::InvalidArgument { .. })));
    let event = search(&[("to", Some(text(&"x".repeat(1_025))))]);
    assert!(matches!(trial.append("b", event), Err(Reject::LimitExceeded { limit: 1_024, actual: 1_025, .. })));
    assert_eq!(trial.workflow("b").unwrap().head, 2);
}

/// Most commits only move the head.
#[test]
fn a_commit_that_changes_nothing_that_is_listed_writes_no_index() {
    let mut trial = some();
    let written = |trial: &mut Trial, event: NewEvent| {
        let commit = Commit { events: vec![event], ..Commit::new(id("b"), trial.workflow("b").unwrap().head) };
        let entry = crate::Entry { at: Millis(9_000), requests: vec![Command::Commit(commit).into()] };
        let applied = trial.machine.applied() + 1;
        let replies = trial.machine.apply(applied, entry, &trial.archive).unwrap().replies;
        assert!(matches!(replies[0], Ok(Reply::Committed(_))), "{replies:?}");
        let writes = trial.machine.take_writes();
        let tables: String = writes.keys().map(|key| char::from(key[0])).collect();
        trial.archive.commit(writes);
        tables
    };
    assert_eq!(written(&mut trial, NewEvent::of(EventKind::SignalReceived)), "AEM");
    let same = search(&[("amount", Some(AttributeValue::Integer(-5)))]);
    assert_eq!(written(&mut trial, same), "AEM");
    assert_eq!(written(&mut trial, NewEvent::of(EventKind::WorkflowPaused)), "AEMRUUVV");
    assert_eq!(written(&mut trial, NewEvent::of(EventKind::WorkflowCompleted)), "AEMRUUVVWXZ");
}

#[test]
fn what_is_removed_leaves_nothing_in_the_indexes() {
    let mut trial = some();
    let before = trial.rows_of_indexes();
    trial.begin(7_000, "e", vec![start_of("rare", "default"), search(&[("to", Some(text("x")))])]);
    trial.end(8_000, "e", EventKind::WorkflowTimedOut);
    assert_eq!(trial.rows_of_indexes(), before + 6);
    let workflow = trial.workflow("e").unwrap();
    trial.force(|apply| apply.remove_from_visibility(&id("e"), &workflow)).unwrap();
    assert_eq!(trial.rows_of_indexes(), before);
    assert_eq!(trial.found(WorkflowFilter::default()), ["a", "b", "c", "d"]);
}

#[test]
fn a_loaded_machine_lists_and_counts_alike() {
    let mut trial = some();
    let before = trial.found(WorkflowFilter::default());
    let lanes = std::mem::take(&mut trial.machine.lanes).0;
    trial.machine = Machine::load(&trial.archive).unwrap();
    assert_eq!(trial.machine.lanes.0, lanes);
    assert_eq!(trial.found(WorkflowFilter::default()), before);
}

#[test]
fn filters_that_make_no_sense_are_refused() {
    let all = WorkflowFilter::default();
    let with = |attribute| WorkflowFilter { attributes: vec![attribute], ..all.clone() };
    let (name, range) = (id("n"), AttributeRange::Time { from: Some(Millis(2)), to: Some(Millis(1)) });
    let neither = AttributeFilter { name, equals: None, range: None };
    let both = AttributeFilter { equals: Some(text("x")), range: Some(range.clone()), ..neither.clone() };
    for bad in [
        WorkflowFilter { started: times(2, 1), ..all.clone() },
        WorkflowFilter { closed: times(2, 1), ..all.clone() },
        with(between("n", 2, 1)),
        with(AttributeFilter { range: Some(range), ..neither.clone() }),
        with(neither),
        with(both),
        with(equals("n", AttributeValue::Texts(vec!["x".into()]))),
    ] {
        assert!(matches!(bad.check(), Err(Reject::InvalidArgument { .. })), "{bad:?}");
    }
    for large in [
        WorkflowFilter { workflow_types: vec![id("x"); 101], ..all.clone() },
        WorkflowFilter { statuses: vec![WorkflowStatus::Failed; 8], ..all.clone() },
        WorkflowFilter { attributes: vec![between("n", 1, 2); 11], ..all.clone() },
        with(equals("n", text(&"x".repeat(1_025)))),
    ] {
        assert!(matches!(large.check(), Err(Reject::LimitExceeded { .. })), "{large:?}");
    }
    assert_eq!(with(between("n", 1, 1)).check(), Ok(()));
    assert_eq!(all.check(), Ok(()));
}
