//! The invariants of the state machine, one file each: the property, where it comes from, the check. They
//! look at what anybody can see (queries, replies), so that any layer that can fill a [`Snapshot`] can use
//! them. Numbers are those of the reliability notes.

mod ceilings_hold;
mod claims_are_exclusive;
mod dead_letters_are_indexed;
mod deadlines_pass_on_time;
mod due_rows_are_indexed;
mod due_timers_are_told_of;
mod ended_workflows_own_nothing;
mod epochs_only_grow;
mod free_workers_are_fed;
mod histories_are_dense;
mod listings_are_walks;
mod old_tokens_change_nothing;
mod one_effect_per_key;
mod one_outcome;
mod paused_rows_wait;
mod removal;
mod rows_are_counted;
mod sessions_end_on_time;
mod sessions_hold_what_they_may;
mod shards_are_adopted_from_the_dead;
mod snapshot;
mod things_are_stored_once;
mod timers_are_indexed;
mod timers_belong_to_open_workflows;
mod workflows_are_listed;

pub use removal::{nothing_is_left_behind, only_the_finished_are_removed};
pub use snapshot::{Snapshot, Step, Told};

/// Checks all invariants of one step; panics with the one that does not hold.
pub fn check(step: &Step<'_>) {
    one_effect_per_key::check(step);
    ceilings_hold::check(step);
    epochs_only_grow::check(step);
    shards_are_adopted_from_the_dead::check(step);
    histories_are_dense::check(step);
    one_outcome::check(step);
    claims_are_exclusive::check(step);
    old_tokens_change_nothing::check(step);
    deadlines_pass_on_time::check(step);
    sessions_end_on_time::check(step);
    sessions_hold_what_they_may::check(step);
    free_workers_are_fed::check(step);
    rows_are_counted::check(step);
    ended_workflows_own_nothing::check(step);
    paused_rows_wait::check(step);
    due_rows_are_indexed::check(step);
    things_are_stored_once::check(step);
    dead_letters_are_indexed::check(step);
    listings_are_walks::check(step);
    workflows_are_listed::check(step);
    timers_belong_to_open_workflows::check(step);
    timers_are_indexed::check(step);
    due_timers_are_told_of::check(step);
}
