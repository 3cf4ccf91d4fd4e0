//! Random questions for workflows: what the machine lists and counts, in pages of all sizes, is what the oracle finds
//! by reading every history.

use holdfast_machine::{
    AttributeFilter, AttributeRange, AttributeValue, Millis, SortOrder, TimeRange, WorkflowFilter, WorkflowQuery,
    WorkflowSort, WorkflowStatus,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::Run;

/// A question in words. Times are so many milliseconds before log time.
#[derive(Debug, Clone)]
pub struct Find {
    elsewhere: bool,
    workflow_type: Option<u8>,
    statuses: Vec<u8>,
    started: (Option<u64>, Option<u64>),
    closed: (Option<u64>, Option<u64>),
    attributes: Vec<(u8, Wanted)>,
    by_close: bool,
    oldest: bool,
    limit: usize,
    rows_max: usize,
}

#[derive(Debug, Clone, Copy)]
enum Wanted {
    Value(u8),
    Integers(Option<i64>, Option<i64>),
    Times(Option<u64>, Option<u64>),
}

/// The names of attributes.
pub fn name(number: u8) -> holdfast_machine::AttributeName {
    ["n0", "n1"][usize::from(number % 2)].parse().unwrap()
}

/// The values of attributes; the last one is too long.
pub fn value(number: u8) -> AttributeValue {
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    match number {
        0 => AttributeValue::Integer(-1),
        1 => AttributeValue::Integer(7),
        2 => text("x"),
        3 => AttributeValue::Texts(vec!["y".to_owned(), "x".to_owned(), "y".to_owned()]),
        4 => AttributeValue::Bool(true),
        5 => AttributeValue::Time(Millis(500)),
        6 => text("y"),
        _ => text(&"z".repeat(1_025)),
    }
}

pub fn find() -> impl Strategy<Value = Find> {
    let ago = || prop::option::weighted(0.3, 0u64..400);
    let wanted = prop_oneof![
        4 => select(vec![0u8, 1, 2, 4, 5, 6]).prop_map(Wanted::Value),
        1 => (prop::option::of(-2i64..9), prop::option::of(-2i64..9)).prop_map(|(from, to)| Wanted::Integers(from, to)),
        1 => (prop::option::of(499u64..502), prop::option::of(499u64..502)).prop_map(|(from, to)| Wanted::Times(from, to)),
    ];
    let attributes = prop_oneof![Just(Vec::new()), prop::collection::vec((0u8..2, wanted), 1..3),];
    let filter = (
        prop::option::weighted(0.3, 0u8..2),
        prop_oneof![Just(Vec::new()), prop::collection::vec(0u8..7, 1..5)],
        (ago(), ago()),
        (ago(), ago()),
        attributes,
    );
    (filter, prop::bool::weighted(0.1), any::<bool>(), any::<bool>(), 1usize..4, 1usize..6).prop_map(
        |(filter, elsewhere, by_close, oldest, limit, rows_max)| {
            let (workflow_type, statuses, started, closed, attributes) = filter;
            Find { elsewhere, workflow_type, statuses, started, closed, attributes, by_close, oldest, limit, rows_max }
        },
    )
}

impl Find {
    fn query(&self, now: Millis) -> WorkflowQuery {
        let at = |ago: u64| Millis(now.0.saturating_sub(ago));
        let times = |(from, to): (Option<u64>, Option<u64>)| TimeRange { from: from.map(at), to: to.map(at) };
        let attribute = |(number, wanted): &(u8, Wanted)| {
            let (equals, range) = match *wanted {
                Wanted::Value(number) => (Some(value(number)), None),
                Wanted::Integers(from, to) => (None, Some(AttributeRange::Integer { from, to })),
                Wanted::Times(from, to) => {
                    (None, Some(AttributeRange::Time { from: from.map(Millis), to: to.map(Millis) }))
                }
            };
            AttributeFilter { name: name(*number), equals, range }
        };
        let filter = WorkflowFilter {
            namespace: if self.elsewhere { "other".parse().unwrap() } else { Default::default() },
            workflow_types: self
                .workflow_type
                .map(|of| ["order", "next"][usize::from(of)].parse().unwrap())
                .into_iter()
                .collect(),
            statuses: self.statuses.iter().map(|number| STATUSES[usize::from(*number)]).collect(),
            started: times(self.started),
            closed: times(self.closed),
            attributes: self.attributes.iter().map(attribute).collect(),
        };
        let sort = if self.by_close { WorkflowSort::Closed } else { WorkflowSort::Started };
        WorkflowQuery { filter, sort, order: if self.oldest { SortOrder::Oldest } else { SortOrder::Newest } }
    }
}

pub const STATUSES: [WorkflowStatus; 7] = [
    WorkflowStatus::Running,
    WorkflowStatus::Paused,
    WorkflowStatus::Completed,
    WorkflowStatus::Failed,
    WorkflowStatus::Cancelled,
    WorkflowStatus::TimedOut,
    WorkflowStatus::ContinuedAsNew,
];

impl Run {
    /// The question to both, and to a machine that has not handed out its writes.
    pub fn find(&mut self, find: &Find) {
        let query = find.query(self.oracle.now);
        let expected = self.oracle.found(&query);
        *self.answers.entry(if expected.is_empty() { "Found none" } else { "Found some" }.to_owned()).or_default() += 1;
        let nothing = holdfast_machine::MemoryArchive::default();
        for (machine, archive) in [(&self.machine, &self.archive), (&self.twin, &nothing)] {
            let (mut listed, mut after) = (Vec::new(), None);
            loop {
                let page = machine.list_workflows(archive, &query, after.as_ref(), find.limit, find.rows_max).unwrap();
                listed.extend(page.workflows);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(listed, expected, "{query:?}");
            let by_start = WorkflowQuery { sort: WorkflowSort::Started, ..query.clone() };
            let (mut count, mut after) = (0, None);
            loop {
                let part = machine.count_workflows(archive, &query.filter, after.as_ref(), find.rows_max).unwrap();
                count += part.count;
                after = part.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(count, self.oracle.found(&by_start).len() as u64, "{:?}", query.filter);
        }
    }
}
