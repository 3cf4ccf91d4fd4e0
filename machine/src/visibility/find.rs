//! Answers: pages of listings, and counts.

use serde::{Deserialize, Serialize};

use super::walk::{Found, Walk};
use super::{Facts, Lane, Position, SortOrder, WorkflowFilter, WorkflowQuery, WorkflowSort};
use crate::archive::{Archive, ArchiveError, ArchiveResult};
use crate::attributes::Attributes;
use crate::history::{Workflow, WorkflowStatus};
use crate::id::{Millis, Namespace, RunId, WorkflowId, WorkflowType};
use crate::keys::{self, Key};
use crate::state::Machine;

/// Rows of an attribute's range that are gathered and sorted for a listing. A range with more is not worth it: the
/// lanes are walked over instead, and the attributes read.
const RANGE_GATHERED_MAX: usize = 2_000;

/// A workflow as it is listed: as its last run makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedWorkflow {
    /// The workflow.
    pub workflow: WorkflowId,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its type; none if the history does not open with WorkflowStarted.
    pub workflow_type: Option<WorkflowType>,
    /// Its status.
    pub status: WorkflowStatus,
    /// The run that is open, or was open last.
    pub run_id: RunId,
    /// When that run started.
    pub started_at: Millis,
    /// When it closed.
    pub closed_at: Option<Millis>,
    /// The number of the last event.
    pub head: u64,
    /// Its search attributes.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, crate::AttributeValue>))]
    pub search_attributes: Attributes,
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowPage {
    /// In the listing's order.
    pub workflows: Vec<ListedWorkflow>,
    /// Where the listing goes on; none at its end.
    pub next: Option<Position>,
    /// Index rows that were walked over.
    pub rows: usize,
}

/// A part of a count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowCount {
    /// Workflows up to there.
    pub count: u64,
    /// Where the count goes on; none at its end.
    pub next: Option<Position>,
    /// Index rows that were walked over.
    pub rows: usize,
}

/// A filter at work.
struct Search<'a> {
    machine: &'a Machine,
    archive: &'a dyn Archive,
    query: &'a WorkflowQuery,
    /// The condition on attributes whose rows are walked over; without one, those of lanes are.
    leading: Option<usize>,
}

impl Machine {
    /// Up to `limit` workflows (at least 1) from behind `after` on, found among at most `rows_max` index rows.
    ///
    /// # Errors
    /// When the archive cannot be read, as with all questions here.
    pub fn list_workflows(
        &self,
        archive: &dyn Archive,
        query: &WorkflowQuery,
        after: Option<&Position>,
        limit: usize,
        rows_max: usize,
    ) -> ArchiveResult<WorkflowPage> {
        // None would never come to an end.
        let (limit, rows_max) = (limit.max(1), rows_max.max(1));
        let (search, mut walk) = Search::begin(self, archive, query, after, limit)?;
        let mut page = WorkflowPage { workflows: Vec::new(), next: None, rows: 0 };
        while page.workflows.len() < limit && page.rows < rows_max {
            let Some(found) = walk.next()? else { break };
            page.rows += 1;
            page.workflows.extend(search.listed(&found)?);
            page.next = Some(found.position);
        }
        page.next.take_if(|_| walk.is_over());
        Ok(page)
    }

    /// How many workflows there are from behind `after` on, as far as `rows_max` index rows go. Each workflow has
    /// one place in the count, so parts add up to the whole whatever becomes of workflows that stay in their place.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn count_workflows(
        &self,
        archive: &dyn Archive,
        filter: &WorkflowFilter,
        after: Option<&Position>,
        rows_max: usize,
    ) -> ArchiveResult<WorkflowCount> {
        if filter.is_of_lanes() {
            let wanted = self.lanes.of(&filter.namespace).filter(|(lane, _)| filter.takes_lane(lane, false));
            return Ok(WorkflowCount { count: wanted.map(|(_, count)| count).sum(), next: None, rows: 0 });
        }
        let rows_max = rows_max.max(1);
        let sort = if filter.closed.is_all() { WorkflowSort::Started } else { WorkflowSort::Closed };
        let query = WorkflowQuery { filter: filter.clone(), sort, order: SortOrder::Oldest };
        let (search, mut walk) = Search::begin(self, archive, &query, after, rows_max)?;
        let mut count = WorkflowCount { count: 0, next: None, rows: 0 };
        while count.rows < rows_max {
            let Some(found) = walk.next()? else { break };
            count.rows += 1;
            count.count += u64::from(search.takes(&found)?);
            count.next = Some(found.position);
        }
        count.next.take_if(|_| walk.is_over());
        Ok(count)
    }
}

impl<'a> Search<'a> {
    fn begin(
        machine: &'a Machine,
        archive: &'a dyn Archive,
        query: &'a WorkflowQuery,
        after: Option<&Position>,
        wanted: usize,
    ) -> ArchiveResult<(Self, Walk<'a>)> {
        let WorkflowQuery { filter, sort, order } = query;
        let mut search = Self { machine, archive, query, leading: None };
        let times = match sort {
            WorkflowSort::Started => &filter.started,
            WorkflowSort::Closed => &filter.closed,
        };
        let mut equalities = filter.attributes.iter().enumerate();
        if let Some((number, form)) = equalities.find_map(|(number, attribute)| Some((number, attribute.form()?))) {
            search.leading = Some(number);
            let name = &filter.attributes[number].name;
            let starts = vec![keys::attribute_by(*sort, &filter.namespace, name, &form)];
            return Ok((search, Walk::over((machine, archive), starts, times, after, *order, wanted)?));
        }
        if !filter.attributes.is_empty()
            && let Some(mut rows) = search.gather(0)?
        {
            search.leading = Some(0);
            rows.retain(|found| times.takes(Some(found.position.at)) && search.is_behind(&found.position, after));
            rows.sort_by(|one, other| order.compare(&one.position, &other.position));
            return Ok((search, Walk::of(machine, archive, *order, rows)));
        }
        let starts = search.lanes().map(|lane| keys::lane_by(*sort, lane)).collect();
        Ok((search, Walk::over((machine, archive), starts, times, after, *order, wanted)?))
    }

    fn lanes(&self) -> impl Iterator<Item = &'a Lane> {
        let filter = &self.query.filter;
        let closed_only = self.query.sort == WorkflowSort::Closed || !filter.closed.is_all();
        let lanes = self.machine.lanes.of(&filter.namespace).map(|(lane, _)| lane);
        lanes.filter(move |lane| filter.takes_lane(lane, closed_only))
    }

    /// All rows of a condition's range; none if there are too many.
    fn gather(&self, condition: usize) -> ArchiveResult<Option<Vec<Found>>> {
        let WorkflowQuery { filter, sort, .. } = self.query;
        let attribute = &filter.attributes[condition];
        let (from, to) = attribute.forms();
        let key = |form: &[u8]| keys::attribute_by(*sort, &filter.namespace, &attribute.name, form);
        // Forms with a range are of one length: a type and eight bytes.
        let start = key(&[0; 9]).len();
        let (from, to) = (key(&from), key(&to));
        if from >= to {
            return Ok(Some(Vec::new()));
        }
        let pairs = self.machine.scan(self.archive, &from, &to, RANGE_GATHERED_MAX + 1)?;
        if pairs.len() > RANGE_GATHERED_MAX {
            return Ok(None);
        }
        let found = |(key, _): &(Key, Vec<u8>)| {
            let (at, workflow) = keys::parse_timed(key, start)?;
            Ok(Found { position: Position { at, workflow }, other: None })
        };
        Ok(Some(pairs.iter().map(found).collect::<ArchiveResult<_>>()?))
    }

    fn is_behind(&self, position: &Position, after: Option<&Position>) -> bool {
        after.is_none_or(|after| self.query.order.compare(after, position).is_lt())
    }

    /// The workflow of a row, if it is wanted.
    fn listed(&self, found: &Found) -> ArchiveResult<Option<ListedWorkflow>> {
        if !self.takes(found)? {
            return Ok(None);
        }
        let id = &found.position.workflow;
        let Workflow { namespace, status, head, run, attribute_count } = self.workflow(id)?;
        let search_attributes = match attribute_count {
            0 => Attributes::new(),
            _ => self.machine.search_attributes(self.archive, id)?,
        };
        Ok(Some(ListedWorkflow {
            workflow: id.clone(),
            namespace,
            workflow_type: run.workflow_type,
            status,
            run_id: run.run_id,
            started_at: run.started_at,
            closed_at: run.closed_at,
            head,
            search_attributes,
        }))
    }

    /// True if the workflow of a row is wanted, for which as little is read as can be.
    fn takes(&self, found: &Found) -> ArchiveResult<bool> {
        let filter = &self.query.filter;
        let id = &found.position.workflow;
        if self.leading.is_none() {
            // The lane fits already, and the row has both times.
            let at = Some(found.position.at);
            let (started, closed) = match self.query.sort {
                WorkflowSort::Started => (at, found.other),
                WorkflowSort::Closed => (found.other, at),
            };
            if !filter.started.takes(started) || !filter.closed.takes(closed) {
                return Ok(false);
            }
        } else if !self.row_tells_all() {
            let facts = Facts::from(&self.workflow(id)?);
            if !filter.takes_lane(&facts.lane, false)
                || !filter.started.takes(Some(facts.started_at))
                || !filter.closed.takes(facts.closed_at)
            {
                return Ok(false);
            }
        }
        let mut others = filter.attributes.iter().enumerate().filter(|(number, _)| Some(*number) != self.leading);
        let Some((_, first)) = others.next() else { return Ok(true) };
        let attributes = self.machine.search_attributes(self.archive, id)?;
        Ok(first.takes(&attributes) && others.all(|(_, other)| other.takes(&attributes)))
    }

    /// True if a row of the leading condition says that the workflow is wanted, but for its other attributes.
    fn row_tells_all(&self) -> bool {
        let WorkflowQuery { filter, sort, .. } = self.query;
        let other = match sort {
            WorkflowSort::Started => &filter.closed,
            WorkflowSort::Closed => &filter.started,
        };
        filter.workflow_types.is_empty() && filter.statuses.is_empty() && other.is_all()
    }

    fn workflow(&self, id: &WorkflowId) -> ArchiveResult<Workflow> {
        let workflow = self.machine.workflow(self.archive, id)?;
        workflow.ok_or_else(|| ArchiveError(format!("{id} is in an index, and there is no such workflow")))
    }
}
