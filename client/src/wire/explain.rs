//! Answers of the explain routes. They are JSON whatever is asked for: people read them.

use holdfast_machine::{Census, Millis, NextTimeout, NodeName, Outlook};
use serde::{Deserialize, Serialize};

/// Why a row, a workflow or a shard is where it is; `R` is a [`holdfast_machine::RowReason`],
/// [`holdfast_machine::WorkflowReason`] or [`holdfast_machine::ShardReason`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation<R> {
    /// What was asked about: a row's key, a workflow's id or a shard's number.
    pub subject: String,
    /// The first reason that holds, with its figures.
    pub reason: R,
    /// Whether somebody has to do something.
    pub outlook: Outlook,
    /// The reason in a sentence.
    pub sentence: String,
    /// What to do.
    pub advice: String,
    /// The workers that there are, where the reason is that none takes the row.
    pub census: Option<Census>,
    /// The timeout of the row that passes first, if log time moves it and it has one.
    pub timeout: Option<NextTimeout>,
    /// The node that answers.
    pub node: NodeName,
    /// False if the node does not reach a majority, so that what it knows may be old.
    pub fresh: bool,
    /// Log time as the node estimates it; lengths are counted from it.
    pub at: Millis,
}
