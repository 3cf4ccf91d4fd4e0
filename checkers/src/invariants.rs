//! The invariants, one file each: the property, where it comes from, the check. Those of one state and of one step look
//! at what anybody can see (queries, replies, stored keys), so that any layer that can fill a [`Snapshot`] can use
//! them; those of several nodes look at [`Observation`]s. Numbers are those of the table in docs/testing.md.

mod acknowledged_stays;
mod ceilings_hold;
mod claims_are_exclusive;
mod dead_letters_are_indexed;
mod deadlines_pass_on_time;
mod due_rows_are_indexed;
mod due_timers_are_told_of;
mod ended_workflows_own_nothing;
mod epochs_have_one_owner;
mod epochs_only_grow;
mod events_come_once;
mod free_workers_are_fed;
mod histories_are_dense;
mod listings_are_walks;
mod old_tokens_change_nothing;
mod one_effect_per_key;
mod one_entry_per_index;
mod one_leader_per_term;
mod one_outcome;
mod only_the_finished_are_removed;
mod paused_rows_wait;
mod positions_only_grow;
mod rows_are_counted;
mod sessions_end_on_time;
mod sessions_hold_what_they_may;
mod shards_are_adopted_from_the_dead;
mod states_are_equal;
mod things_are_stored_once;
mod timers_are_indexed;
mod timers_belong_to_open_workflows;
mod workflows_are_listed;

pub use acknowledged_stays::AcknowledgedStays;
pub use epochs_have_one_owner::EpochsHaveOneOwner;
pub use events_come_once::{EventsComeOnce, Seen};
pub use one_entry_per_index::OneEntryPerIndex;
pub use one_leader_per_term::OneLeaderPerTerm;
pub use positions_only_grow::PositionsOnlyGrow;
pub use states_are_equal::StatesAreEqual;

use crate::{Check, Observation, Snapshot, Step};

/// A property of states and of the steps between them.
pub struct Property {
    /// The name of its file.
    pub name: &'static str,
    /// Its number in the table of invariants, if it is one of them.
    pub number: Option<u8>,
    /// What a state by itself can show.
    pub of_state: Option<fn(&Snapshot) -> Check>,
    /// What it takes two states in a row, and what was said between them, to show.
    pub of_step: Option<fn(&Step<'_>) -> Check>,
}

macro_rules! property {
    ($file:ident, $number:expr, state) => {
        Property { name: stringify!($file), number: $number, of_state: Some($file::of_state), of_step: None }
    };
    ($file:ident, $number:expr, step) => {
        Property { name: stringify!($file), number: $number, of_state: None, of_step: Some($file::of_step) }
    };
    ($file:ident, $number:expr, both) => {
        Property {
            name: stringify!($file),
            number: $number,
            of_state: Some($file::of_state),
            of_step: Some($file::of_step),
        }
    };
}

/// All of them, in the order in which a broken one says most.
pub const PROPERTIES: &[Property] = &[
    property!(one_effect_per_key, Some(6), step),
    property!(ceilings_hold, None, step),
    property!(epochs_only_grow, Some(7), step),
    property!(shards_are_adopted_from_the_dead, Some(8), step),
    property!(only_the_finished_are_removed, None, step),
    property!(histories_are_dense, Some(9), both),
    property!(one_outcome, Some(10), both),
    property!(claims_are_exclusive, Some(11), both),
    property!(old_tokens_change_nothing, Some(12), step),
    property!(deadlines_pass_on_time, Some(13), both),
    property!(sessions_end_on_time, None, both),
    property!(sessions_hold_what_they_may, None, both),
    property!(free_workers_are_fed, None, state),
    property!(rows_are_counted, Some(14), both),
    property!(ended_workflows_own_nothing, Some(15), state),
    property!(paused_rows_wait, Some(16), both),
    property!(due_rows_are_indexed, None, state),
    property!(things_are_stored_once, None, state),
    property!(dead_letters_are_indexed, None, state),
    property!(listings_are_walks, None, state),
    property!(workflows_are_listed, None, state),
    property!(timers_belong_to_open_workflows, None, state),
    property!(timers_are_indexed, None, state),
    property!(due_timers_are_told_of, None, step),
];

/// Holds a state by itself against all properties that it can show.
///
/// # Errors
/// The first that does not hold.
pub fn check_state(state: &Snapshot) -> Check {
    PROPERTIES.iter().filter_map(|property| property.of_state).try_for_each(|check| check(state))
}

/// Holds a step, and the state that it leads to, against all properties.
///
/// # Errors
/// The first that does not hold.
pub fn check_step(step: &Step<'_>) -> Check {
    for property in PROPERTIES {
        property.of_step.map_or(Ok(()), |check| check(step))?;
        property.of_state.map_or(Ok(()), |check| check(step.after))?;
    }
    Ok(())
}

/// The properties of several nodes that observations alone can show (1, 3 and 4).
#[derive(Debug, Default)]
pub struct Watch {
    /// Invariant 1.
    pub leaders: OneLeaderPerTerm,
    /// Invariant 3.
    pub positions: PositionsOnlyGrow,
    /// Invariant 4.
    pub states: StatesAreEqual,
}

impl Watch {
    /// Takes in what was seen of a node; observations of one node come in the order in which they were made.
    ///
    /// # Errors
    /// The first property that does not hold.
    pub fn observe(&mut self, seen: &Observation) -> Check {
        self.leaders.observe(seen)?;
        self.positions.observe(seen)?;
        self.states.observe(seen)
    }
}
