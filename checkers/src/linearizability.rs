//! A general checker of linearizability that knows nothing of log indexes, so that the [`crate::witness`] is not believed
//! blindly: is there an order of the calls, with each between its invocation and its return, in which a simple
//! sequential thing gives the answers that were given?
//!
//! Each history of a workflow and each row is a thing by itself, checked by itself: a whole is linearizable only if each
//! of its parts is. The search goes along the calls in the order of time (just-in-time linearization, after Lowe): it
//! holds every state that the thing may be in together with what of the calls under way has taken effect, and decides
//! on a call when its answer is there at the latest. So the cost depends on how many calls are under way at a time, and not on
//! how many there are. Calls of unknown outcome are under way for ever. When there are too many possibilities, it
//! gives up, and a run whose checker gave up has failed.

mod history;
mod row;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};

use holdfast_machine::{Command, DispatchKey, Timeouts, WorkflowId};

use crate::history::{Asked, Call};

pub use history::{History, HistoryCall};
pub use row::{Row, RowCall};

/// States that are held at a time; at least as many orders of calls were found possible when it gives up.
const CONFIGURATIONS_MAX: usize = 20_000;

/// A sequential thing.
pub trait Sequential: Clone + Ord + Debug {
    /// A call on it, with its answer.
    type Call: Clone + Debug;

    /// What the thing may be after the call: nothing if it would not have given this answer. For a call whose answer was
    /// lost, what it may be if the call had its effect.
    fn after(&self, call: &Self::Call) -> Vec<Self>;
}

/// A call on a thing, between two ticks.
#[derive(Debug, Clone)]
pub struct Timed<C> {
    /// When it was made.
    pub invoked: u64,
    /// When its answer was there. None: its outcome is unknown; it may take effect at any time later, or never.
    pub returned: Option<u64>,
    /// The call with its answer.
    pub call: C,
}

/// What the checker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none. The words tell the first answer that fits nowhere, and what the thing may have been before it.
    Impossible(String),
    /// There are too many orders to look at. Not a pass.
    GaveUp,
}

/// Looks for an order of calls on a thing that begins as `start`.
pub fn check<S: Sequential>(start: S, calls: &[Timed<S::Call>]) -> Verdict {
    // Positions of calls by tick; an invocation comes before a return at the same tick, which only makes more possible.
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (position, call) in calls.iter().enumerate() {
        moments.push((call.invoked, false, position));
        moments.extend(call.returned.map(|returned| (returned, true, position)));
    }
    moments.sort_unstable();
    let mut under_way: BTreeSet<usize> = BTreeSet::new();
    let mut possible = BTreeSet::from([Configuration { state: start, done: BTreeSet::new() }]);
    for (_, is_return, position) in moments {
        if !is_return {
            under_way.insert(position);
            continue;
        }
        let Some(after) = settle(&possible, &under_way, calls, position) else { return Verdict::GaveUp };
        if after.is_empty() {
            let states: BTreeSet<&S> = possible.iter().map(|configuration| &configuration.state).collect();
            let shown: Vec<&S> = states.into_iter().take(3).collect();
            return Verdict::Impossible(format!("{:?} fits nowhere; before it: {shown:?}", calls[position]));
        }
        under_way.remove(&position);
        possible = after;
    }
    Verdict::Linearizable
}

/// What the thing may be, and which of the calls under way have taken effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration<S> {
    state: S,
    done: BTreeSet<usize>,
}

/// What is possible once the call at `position` has returned; none if that is too much.
fn settle<S: Sequential>(
    possible: &BTreeSet<Configuration<S>>,
    under_way: &BTreeSet<usize>,
    calls: &[Timed<S::Call>],
    position: usize,
) -> Option<BTreeSet<Configuration<S>>> {
    let (mut after, mut seen) = (BTreeSet::new(), possible.clone());
    let mut open: Vec<Configuration<S>> = possible.iter().cloned().collect();
    while let Some(mut configuration) = open.pop() {
        if configuration.done.remove(&position) {
            // It took effect already; what else might be before it is found when that returns.
            after.insert(configuration);
            continue;
        }
        for next in under_way.difference(&configuration.done) {
            for state in configuration.state.after(&calls[*next].call) {
                let mut further = Configuration { state, done: configuration.done.clone() };
                further.done.insert(*next);
                if seen.len() > CONFIGURATIONS_MAX {
                    return None;
                }
                if seen.insert(further.clone()) {
                    open.push(further);
                }
            }
        }
    }
    Some(after)
}

/// What became of a run's calls: one verdict for each thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Things whose calls have an order.
    pub linearizable: usize,
    /// Calls on them; a call that moves several things counts for each.
    pub calls: usize,
    /// Things whose calls have none, with what is wrong.
    pub impossible: Vec<String>,
    /// Things that were given up.
    pub gave_up: Vec<String>,
}

impl Judgement {
    fn enter(&mut self, thing: &dyn fmt::Display, calls: usize, verdict: Verdict) {
        self.calls += calls;
        match verdict {
            Verdict::Linearizable => self.linearizable += 1,
            Verdict::Impossible(why) => self.impossible.push(format!("{thing}: {why}")),
            Verdict::GaveUp => self.gave_up.push(thing.to_string()),
        }
    }

    /// Passes if every thing was found to be linearizable.
    ///
    /// # Errors
    /// What was not, and what was given up.
    pub fn passed(&self) -> Result<(), String> {
        if self.impossible.is_empty() && self.gave_up.is_empty() {
            return Ok(());
        }
        Err(format!("not linearizable: {:#?}; given up: {:?}", self.impossible, self.gave_up))
    }
}

/// Judges all calls of a run in which every history and every row began with nothing, and in which whoever wrote to
/// them was recorded. Workflows with rows that have timeouts are left out: those act by themselves.
pub fn judge(calls: &[Call]) -> Judgement {
    let by_themselves = by_themselves(calls);
    let mut histories: BTreeMap<WorkflowId, Vec<Timed<HistoryCall>>> = BTreeMap::new();
    let mut rows: BTreeMap<DispatchKey, Vec<Timed<RowCall>>> = BTreeMap::new();
    for call in calls {
        if let Some((workflow, timed)) = history::of(call) {
            histories.entry(workflow).or_default().push(timed);
        }
        for (key, timed) in row::of(call) {
            rows.entry(key).or_default().push(timed);
        }
    }
    let ends = calls.iter().filter_map(row::end_of_all);
    let ends: Vec<(&WorkflowId, Timed<RowCall>)> = ends.collect();
    let mut judgement = Judgement::default();
    for (workflow, calls) in histories.iter().filter(|(workflow, _)| !by_themselves.contains(workflow)) {
        judgement.enter(workflow, calls.len(), check(History::default(), calls));
    }
    for (key, mut calls) in rows.into_iter().filter(|(key, _)| !by_themselves.contains(&key.workflow)) {
        calls.extend(ends.iter().filter(|(of, _)| **of == key.workflow).map(|(_, end)| end.clone()));
        calls.extend(row::given_unseen(&calls));
        judgement.enter(&key, calls.len(), check(Row::default(), &calls));
    }
    judgement
}

fn by_themselves(calls: &[Call]) -> BTreeSet<&WorkflowId> {
    let mut found = BTreeSet::new();
    for call in calls {
        let Asked::Write(request) = &call.asked else { continue };
        let rows = match &request.command {
            Command::Commit(commit) => &commit.rows,
            Command::Stage { rows, .. } | Command::Rearm { rows, .. } => rows,
            _ => continue,
        };
        if rows.iter().any(|row| row.timeouts != Timeouts::default()) {
            found.extend(request.command.workflow());
        }
    }
    found
}
