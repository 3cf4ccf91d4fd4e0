//! Fills a state with closed workflows and finds some of them: what pages and counts cost, and what the indexes add to
//! the bytes that a workflow's life writes.
//!
//! `listings <directory> <workflows> <types>`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_machine::{
    AttributeFilter, AttributeRange, AttributeValue, Command, Commit, Entry, EventKind, Machine, Millis, NewEvent,
    Payload, Request, TimeRange, WorkflowFilter, WorkflowQuery, WorkflowSort, WorkflowStatus,
};
use holdfast_storage::disk::{Poison, RealDisk};
use holdfast_storage::{LogId, State, StateConfig};

/// Commands in one entry.
const BATCH: u64 = 500;
/// As many rows as the store walks over under one look.
const ROWS_PER_LOOK: usize = 500;
const CUSTOMERS: u64 = 1_000;
const ROUNDS: usize = 21;

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, workflows, types] = &arguments[..] else {
        return Err("listings <directory> <workflows> <types>".into());
    };
    let (dir, workflows, types) = (Path::new(dir), workflows.parse()?, types.parse()?);
    State::create(&RealDisk, dir)?;
    let state = State::open(Arc::new(RealDisk), dir, StateConfig::default(), Poison::default())?;
    let mut machine = Machine::default();
    fill(&mut machine, &state, workflows, types)?;
    state.sync()?;
    let began = Instant::now();
    let machine = Machine::load(&state)?;
    println!("loaded in {:?}", began.elapsed());
    ask(&machine, &state, workflows)
}

/// Three commits for each workflow: its start, a step, its end. Every other one has two attributes.
fn fill(machine: &mut Machine, state: &State, workflows: u64, types: u64) -> Result<(), Failure> {
    let began = Instant::now();
    let (mut index, mut all, mut listings, mut attributes) = (0, 0, 0, 0);
    let mut first = 0;
    while first < workflows {
        let batch = first..(first + BATCH).min(workflows);
        for step in 0..3 {
            index += 1;
            let requests = batch.clone().map(|number| commit(number, step, types)).collect::<Result<_, _>>()?;
            machine.apply(index, Entry { at: Millis(1_000 + index * 10), requests }, state)?;
            let writes = machine.take_writes();
            for (key, value) in &writes {
                let bytes = (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
                all += bytes;
                match key[0] {
                    b'V' | b'Z' | b'U' => listings += bytes,
                    b'P' | b'X' | b'Y' => attributes += bytes,
                    _ => {}
                }
            }
            state.commit(writes, LogId { term: 1, index }, None)?;
        }
        first += BATCH;
    }
    let (took, each) = (began.elapsed(), |bytes: u64| bytes / workflows.max(1));
    println!("{workflows} workflows in {took:?}; bytes for each: {} in all", each(all));
    println!("  {} of them for lanes, {} for two attributes", each(listings), each(attributes) * 2);
    Ok(())
}

fn commit(number: u64, step: u64, types: u64) -> Result<Request, Failure> {
    // Ids in no order, as they are in life.
    let workflow = format!("order-{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).parse()?;
    let started = || -> Result<NewEvent, Failure> {
        let mut event =
            NewEvent::started(format!("type-{}", number % types).parse()?).with(Payload::octets(vec![7; 200]));
        if number.is_multiple_of(2) {
            let customer = AttributeValue::Text(format!("customer-{}", number / 2 % CUSTOMERS));
            let amount = AttributeValue::Integer(number.cast_signed());
            event.search_attributes =
                Some([("customer".parse()?, Some(customer)), ("amount".parse()?, Some(amount))].into());
        }
        Ok(event)
    };
    let event = match step {
        0 => started()?,
        1 => NewEvent::of(EventKind::SignalReceived).with(Payload::octets(vec![7; 200])),
        _ if number.is_multiple_of(100) => NewEvent::of(EventKind::WorkflowFailed),
        _ => NewEvent::of(EventKind::WorkflowCompleted),
    };
    Ok(Command::Commit(Commit::new(workflow, step).event(event)).into())
}

fn ask(machine: &Machine, state: &State, workflows: u64) -> Result<(), Failure> {
    let all = WorkflowFilter::default();
    let attribute = |name: &str, equals, range| -> Result<WorkflowFilter, Failure> {
        let attributes = vec![AttributeFilter { name: name.parse()?, equals, range }];
        Ok(WorkflowFilter { attributes, ..WorkflowFilter::default() })
    };
    let customer = attribute("customer", Some(AttributeValue::Text("customer-7".to_owned())), None)?;
    let amounts = |count: u64| {
        let (from, to) = (Some(0), Some(count.cast_signed()));
        attribute("amount", None, Some(AttributeRange::Integer { from, to }))
    };
    let failed = vec![WorkflowStatus::Failed];
    let since = TimeRange { from: Some(Millis(0)), to: None };
    let filters = [
        ("all", all.clone()),
        (
            "one type, failed",
            WorkflowFilter { workflow_types: vec!["type-0".parse()?], statuses: failed.clone(), ..all.clone() },
        ),
        ("started since", WorkflowFilter { started: since, ..all.clone() }),
        ("closed since", WorkflowFilter { closed: since, ..all }),
        ("customer", customer.clone()),
        ("customer, failed", WorkflowFilter { statuses: failed, ..customer }),
        ("narrow range", amounts(2_000)?),
        ("wide range", amounts(workflows)?),
    ];
    println!("{:<18} {:>22} {:>22} {:>22}", "", "page of 100 by start", "by close", "count");
    for (name, filter) in filters {
        let mut cells = Vec::new();
        for sort in [WorkflowSort::Started, WorkflowSort::Closed] {
            let query = WorkflowQuery { filter: filter.clone(), sort, ..WorkflowQuery::default() };
            let (took, found) = median(|| {
                let page = machine.list_workflows(state, &query, None, 100, ROWS_PER_LOOK)?;
                Ok(page.workflows.len() as u64)
            })?;
            cells.push(format!("{found} in {took:.1?}"));
        }
        let (took, count) = median(|| count(machine, state, &filter))?;
        cells.push(format!("{count} in {took:.1?}"));
        println!("{name:<18} {:>22} {:>22} {:>22}", cells[0], cells[1], cells[2]);
    }
    Ok(())
}

/// The whole count, look by look.
fn count(machine: &Machine, state: &State, filter: &WorkflowFilter) -> Result<u64, Failure> {
    let (mut count, mut after) = (0, None);
    loop {
        let part = machine.count_workflows(state, filter, after.as_ref(), ROWS_PER_LOOK)?;
        count += part.count;
        after = part.next;
        if after.is_none() {
            return Ok(count);
        }
    }
}

fn median(mut ask: impl FnMut() -> Result<u64, Failure>) -> Result<(Duration, u64), Failure> {
    let (mut times, mut answer) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        answer = ask()?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok((times[ROUNDS / 2], answer))
}
