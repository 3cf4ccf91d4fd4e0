//! Visibility: finding workflows by what they are, without opening histories.
//!
//! A workflow is listed as its last run makes it: namespace, type, status, start, close, search attributes. The
//! indexes are rows of the state like any other, written in the same entry as what they speak of:
//!
//! - a lane for each namespace, type and status, in the order of starts and, for closed workflows, of closes. The
//!   time that a lane is not ordered by is in the row's value, so a filter on both reads nothing else;
//! - for each value of each search attribute the same two orders, so that an equality is streamed in either;
//! - how many workflows each lane has. These numbers are in memory too: there are as many as types and statuses.
//!
//! A listing merges the lanes that its filter names. `filter.rs` is what can be asked, `walk.rs` the merge,
//! `find.rs` the answers.

mod filter;
mod find;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeMap;

use crate::archive::{Archive, ArchiveResult};
use crate::attributes::{Attributes, forms, updated};
use crate::history::{NewEvent, Workflow, WorkflowStatus};
use crate::id::{Millis, Namespace, WorkflowId, WorkflowType};
use crate::keys::{self, Key};
use crate::reject::Reject;
use crate::state::{Apply, Machine};

pub use filter::{
    AttributeFilter, AttributeRange, Position, SortOrder, TimeRange, WorkflowFilter, WorkflowQuery, WorkflowSort,
};
pub use find::{ListedWorkflow, WorkflowCount, WorkflowPage};

/// Workflows that stand together in the indexes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub namespace: Namespace,
    /// None for a history that does not open with WorkflowStarted.
    pub workflow_type: Option<WorkflowType>,
    pub status: WorkflowStatus,
}

/// What the indexes say of a workflow, besides its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    lane: Lane,
    started_at: Millis,
    closed_at: Option<Millis>,
    attribute_count: u32,
}

impl Facts {
    pub fn status(&self) -> WorkflowStatus {
        self.lane.status
    }
}

impl From<&Workflow> for Facts {
    fn from(workflow: &Workflow) -> Self {
        let Workflow { namespace, status, head: _, run, attribute_count } = workflow;
        let lane = Lane { namespace: namespace.clone(), workflow_type: run.workflow_type.clone(), status: *status };
        Self { lane, started_at: run.started_at, closed_at: run.closed_at, attribute_count: *attribute_count }
    }
}

/// How many workflows each lane has; an empty lane is not there.
#[derive(Debug, Default)]
pub(crate) struct Lanes(pub BTreeMap<Lane, u64>);

impl Lanes {
    /// The lanes of a namespace.
    pub fn of<'a>(&'a self, namespace: &'a Namespace) -> impl Iterator<Item = (&'a Lane, u64)> {
        let first = Lane { namespace: namespace.clone(), workflow_type: None, status: WorkflowStatus::Running };
        self.0.range(first..).take_while(move |(lane, _)| lane.namespace == *namespace).map(|(lane, n)| (lane, *n))
    }
}

impl Machine {
    /// A workflow's search attributes.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn search_attributes(&self, archive: &dyn Archive, id: &WorkflowId) -> ArchiveResult<Attributes> {
        Ok(self.get(archive, &keys::attributes(id))?.unwrap_or_default())
    }
}

/// The rows of the indexes that speak of a workflow, with what stands in them.
fn entries(id: &WorkflowId, facts: Option<&Facts>, attributes: &Attributes) -> BTreeMap<Key, Option<Millis>> {
    let mut entries = BTreeMap::new();
    let Some(Facts { lane, started_at, closed_at, .. }) = facts else { return entries };
    let closed = closed_at.map(|at| (WorkflowSort::Closed, at, Some(*started_at)));
    for (sort, at, other) in [(WorkflowSort::Started, *started_at, *closed_at)].into_iter().chain(closed) {
        entries.insert(keys::timed(keys::lane_by(sort, lane), at, id), other);
        for (name, value) in attributes {
            for form in forms(value) {
                let start = keys::attribute_by(sort, &lane.namespace, name, &form);
                entries.insert(keys::timed(start, at, id), None);
            }
        }
    }
    entries
}

impl Apply<'_> {
    /// What the events of a commit make of a workflow's attributes; none if they do not touch them.
    pub fn attributes_after(
        &self,
        id: &WorkflowId,
        before: Option<&Facts>,
        events: &[NewEvent],
    ) -> ArchiveResult<Result<Option<Attributes>, Reject>> {
        let mut updates = events.iter().filter_map(|event| event.search_attributes.as_ref()).peekable();
        if updates.peek().is_none() {
            return Ok(Ok(None));
        }
        let before = self.attributes_of(id, before)?;
        Ok(updates.try_fold(before, updated).map(Some))
    }

    fn attributes_of(&self, id: &WorkflowId, facts: Option<&Facts>) -> ArchiveResult<Attributes> {
        match facts {
            Some(facts) if facts.attribute_count > 0 => self.state.search_attributes(self.archive, id),
            _ => Ok(Attributes::new()),
        }
    }

    /// Brings the indexes from what a workflow was to what it is. Most commits change nothing that listings know
    /// of, and write nothing here.
    pub fn relist(
        &mut self,
        id: &WorkflowId,
        before: Option<&Facts>,
        after: Option<&Facts>,
        attributes: Option<Attributes>,
    ) -> ArchiveResult<()> {
        if attributes.is_none() && before == after {
            return Ok(());
        }
        let attributes_before = self.attributes_of(id, before)?;
        let attributes = attributes.unwrap_or_else(|| attributes_before.clone());
        if attributes.is_empty() && !attributes_before.is_empty() {
            self.state.delete(keys::attributes(id));
        } else if attributes != attributes_before {
            self.state.put(keys::attributes(id), &attributes);
        }
        let mut stale = entries(id, before, &attributes_before);
        for (key, value) in entries(id, after, &attributes) {
            if stale.remove(&key) != Some(value) {
                self.state.put(key, &value);
            }
        }
        stale.into_keys().for_each(|key| self.state.delete(key));
        let (before, after) = (before.map(|facts| &facts.lane), after.map(|facts| &facts.lane));
        if before != after {
            before.into_iter().for_each(|lane| self.count(lane, |count| count.saturating_sub(1)));
            after.into_iter().for_each(|lane| self.count(lane, |count| count.saturating_add(1)));
        }
        Ok(())
    }

    /// Takes a workflow that is removed out of all listings and counts, with its attributes.
    pub fn remove_from_visibility(&mut self, id: &WorkflowId, workflow: &Workflow) -> ArchiveResult<()> {
        self.relist(id, Some(&Facts::from(workflow)), None, Some(Attributes::new()))
    }

    fn count(&mut self, lane: &Lane, change: impl FnOnce(u64) -> u64) {
        let count = change(self.state.lanes.0.get(lane).copied().unwrap_or(0));
        if count == 0 {
            self.state.lanes.0.remove(lane);
            self.state.delete(keys::lane(lane));
        } else {
            self.state.lanes.0.insert(lane.clone(), count);
            self.state.put(keys::lane(lane), &count);
        }
    }
}
