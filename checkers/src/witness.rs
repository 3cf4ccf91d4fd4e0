//! The witness: judges calls by the evidence in their answers (log indexes, numbers of events, claim tokens, log times)
//! and by what is there at the end. Its cost is near-linear, so that it can judge all calls of a long run.
//!
//! - `order`: if one call returned before another was made, its log index is the smaller one, and a linearizable read
//!   sees every write that was acknowledged before it began (invariant 18);
//! - `effects`: every acknowledged write stands where its answer said, once, and every event that stands is of a call
//!   that was acknowledged, or of one whose outcome was unknown (invariants 5, 6 and 9);
//! - `claims`: no token twice, no row under two claims at a time, and nothing done under a claim that another one has
//!   replaced (invariants 11, 12 and 13);
//! - [`log`]: where a whole log is at hand, every answer is the one that follows from it (all of them at once).

mod claims;
mod effects;
pub mod log;
mod order;

use std::collections::BTreeMap;

use holdfast_machine::{HistoryEvent, WorkflowId};

use crate::Broken;
use crate::history::{Call, Outcome};

/// The histories of all workflows that were written to, as they are at the end.
pub type Histories = BTreeMap<WorkflowId, Vec<HistoryEvent>>;

/// What was judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Calls with a good answer.
    pub ok: usize,
    /// Calls that were refused.
    pub refused: usize,
    /// Calls that were not done.
    pub not_done: usize,
    /// Calls of unknown outcome whose effect was found.
    pub unknown_found: usize,
    /// Calls of unknown outcome without an effect to be found.
    pub unknown_absent: usize,
    /// Events that were traced to a call.
    pub events: usize,
    /// Claims of rows that were followed.
    pub claims: usize,
}

/// Judges the calls of a run whose workflows were written to by nobody else.
///
/// # Errors
/// The first piece of evidence that contradicts the promises.
pub fn judge(calls: &[Call], histories: &Histories) -> Result<Report, Broken> {
    order::check(calls)?;
    let effects = effects::check(calls, histories)?;
    let claims = claims::check(calls)?;
    let count = |of: fn(&Outcome) -> bool| calls.iter().filter(|call| of(&call.outcome)).count();
    let unknown = count(|outcome| matches!(outcome, Outcome::Unknown));
    Ok(Report {
        ok: count(|outcome| matches!(outcome, Outcome::Ok { .. })),
        refused: count(|outcome| matches!(outcome, Outcome::Refused { .. })),
        not_done: count(|outcome| matches!(outcome, Outcome::NotDone)),
        unknown_found: effects.unknown_found,
        unknown_absent: unknown - effects.unknown_found,
        events: effects.events,
        claims,
    })
}

/// Holds the acknowledged writes of these calls against histories, and says nothing of what else stands there. Gives how
/// many events they wrote.
///
/// # Errors
/// The first acknowledged write that is not there, or not where its answer said.
pub fn acknowledged(calls: &[Call], histories: &Histories) -> Result<usize, Broken> {
    effects::all_acknowledged(calls, histories).map(|owners| owners.len())
}
