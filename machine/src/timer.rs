//! Timers: armed by an engine, listed once log time has passed them, retired by what they were armed as.

use serde::{Deserialize, Serialize};

use crate::id::{Millis, TimerId};

/// One arming of a timer. A timer is retired by its whole arming, so a late retirement never takes a newer one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arming {
    /// The timer's name in its workflow.
    pub timer: TimerId,
    /// When it is due, in log time.
    pub fire_at: Millis,
    /// The number of the event that armed it.
    pub armed_seq: u64,
}

/// What is done to a timer. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerChange {
    /// Arms it; an arming that stands under the same name is overwritten.
    Schedule(Arming),
    /// Removes this very arming; another one of the same name is left alone.
    Retire(Arming),
}

/// What came of a retirement. Variants are only added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retirement {
    /// The arming is gone, now or since before.
    Retired,
    /// Another arming holds the name; it stands.
    Superseded,
}
