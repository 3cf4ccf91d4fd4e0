//! Questions for workflows: `list` and `count`, with `ns=` `types=a,b` `statuses=a,b` `started=from..to` `closed=from..to`,
//! `attribute=value` or `attribute=from..to`, and for `list` also `sort=closed` `order=oldest` `limit=` and `rows=`, the most
//! index rows for a page. Values: `5`, `@5` for a time, `yes` and `no`, `a+b` for several texts, anything else is a text.

use holdfast_machine::{
    Archive, AttributeFilter, AttributeRange, AttributeValue, Attributes, AttributesUpdate, ListedWorkflow, Machine,
    Millis, SortOrder, TimeRange, WorkflowQuery, WorkflowSort, WorkflowStatus, read_cursor, write_cursor,
};

/// `name=value,name=` as a change of attributes; nothing removes.
pub fn update(text: &str) -> AttributesUpdate {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.parse().unwrap(), (!value.is_empty()).then(|| self::value(value)))
    };
    text.split(',').map(pair).collect()
}

fn value(text: &str) -> AttributeValue {
    match text {
        "yes" => AttributeValue::Bool(true),
        "no" => AttributeValue::Bool(false),
        _ if text.contains('+') => AttributeValue::Texts(text.split('+').map(str::to_owned).collect()),
        _ if text.starts_with('@') => AttributeValue::Time(Millis(text[1..].parse().unwrap())),
        _ => text.parse().map_or_else(|_| AttributeValue::Text(text.to_owned()), AttributeValue::Integer),
    }
}

fn bounds<T: std::str::FromStr>(text: &str) -> Option<(Option<T>, Option<T>)> {
    let (from, to) = text.split_once("..")?;
    Some((from.parse().ok(), to.parse().ok()))
}

fn times(text: &str) -> TimeRange {
    let (from, to) = bounds::<u64>(text).unwrap();
    TimeRange { from: from.map(Millis), to: to.map(Millis) }
}

fn attribute(name: &str, text: &str) -> AttributeFilter {
    let (equals, range) = match bounds::<i64>(text) {
        Some((from, to)) => (None, Some(AttributeRange::Integer { from, to })),
        None => (Some(value(text)), None),
    };
    AttributeFilter { name: name.parse().unwrap(), equals, range }
}

/// Answers a question, as it says what is asked.
pub fn ask(machine: &Machine, archive: &dyn Archive, what: &str, arguments: &str) -> Vec<String> {
    let mut query = WorkflowQuery::default();
    let (mut limit, mut rows_max) = (100, 1_000);
    for (name, text) in arguments.split_whitespace().map(|word| word.split_once('=').unwrap()) {
        let filter = &mut query.filter;
        match name {
            "ns" => filter.namespace = text.parse().unwrap(),
            "types" => filter.workflow_types = text.split(',').map(|name| name.parse().unwrap()).collect(),
            "statuses" => filter.statuses = text.split(',').map(status).collect(),
            "started" => filter.started = times(text),
            "closed" => filter.closed = times(text),
            "sort" => query.sort = WorkflowSort::Closed,
            "order" => query.order = SortOrder::Oldest,
            "limit" => limit = text.parse().unwrap(),
            "rows" => rows_max = text.parse().unwrap(),
            name => filter.attributes.push(attribute(name, text)),
        }
    }
    if let Err(reject) = query.filter.check() {
        return vec![format!("refused, {}: {reject}", reject.code())];
    }
    if what == "count" {
        let count = machine.count_workflows(archive, &query.filter, None, rows_max).unwrap();
        return vec![format!("{} workflows, {} rows", count.count, count.rows)];
    }
    let (mut lines, mut after) = (Vec::new(), None);
    loop {
        let page = machine.list_workflows(archive, &query, after.as_ref(), limit, rows_max).unwrap();
        lines.extend(page.workflows.iter().map(listed));
        let Some(next) = page.next else { break };
        after = Some(read_cursor(&query, &write_cursor(&query, &next)).unwrap());
        lines.push(format!("after {} rows: on from {} at {}", page.rows, next.workflow, next.at));
    }
    if lines.is_empty() { vec!["none".to_owned()] } else { lines }
}

fn status(text: &str) -> WorkflowStatus {
    serde_json::from_value(text.into()).unwrap()
}

fn listed(listed: &ListedWorkflow) -> String {
    let ListedWorkflow { workflow, workflow_type, status, run_id, started_at, head, .. } = listed;
    let of = workflow_type.as_ref().map_or("no type".to_owned(), ToString::to_string);
    let closed = listed.closed_at.map_or(String::new(), |at| format!(" to {at}"));
    let shown = attributes(&listed.search_attributes);
    format!("{workflow}: {of}, {status}, {run_id} from {started_at}{closed}, head {head}{shown}")
}

/// Attributes in the words of a script.
fn attributes(attributes: &Attributes) -> String {
    let value = |value: &AttributeValue| match value {
        AttributeValue::Text(text) => text.clone(),
        AttributeValue::Integer(number) => number.to_string(),
        AttributeValue::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        AttributeValue::Time(at) => format!("@{at}"),
        AttributeValue::Texts(texts) => texts.join("+"),
    };
    attributes.iter().map(|(name, of)| format!(", {name}={}", value(of))).collect()
}
