//! Finding workflows: pages of listings, and counts.
//!
//! Both are read in looks that are short, so that apply does not wait for long. A workflow has one place in an order,
//! its time and id, and a look goes on behind the last place of the look before. So a workflow that stays in its
//! place is seen exactly once, as of some moment of the call, whatever becomes of it and of others meanwhile.

use holdfast_client::wire::{ListCall, WorkflowList};
use holdfast_machine::{Archive, Machine, Position, Reject, WorkflowFilter, read_cursor, write_cursor};

use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode};

/// Workflows that are read under one look.
const WORKFLOWS_PER_LOOK: usize = 64;
/// Index rows that are walked over under one look.
const ROWS_PER_LOOK: usize = 500;
/// Index rows that are walked over for one page; it ends early then.
const ROWS_PER_PAGE: usize = 10_000;

impl Store {
    /// A page of a listing. It holds fewer workflows than asked for where few of those that were looked at are
    /// wanted; the listing is at its end only when there is no `next_cursor`.
    ///
    /// # Errors
    /// `invalid_argument` for a filter that makes no sense, a limit of 0, and a cursor of another listing.
    pub async fn list_workflows(&self, call: &ListCall, mode: ReadMode) -> StoreResult<WorkflowList> {
        self.limits().check_page(call.limit)?;
        let query = call.query();
        query.filter.check()?;
        let cursor = call.cursor.as_ref().map(|cursor| read_cursor::<_, Position>(&query, cursor)).transpose()?;
        let limit = call.limit as usize;
        let look = |after: Option<Position>, taken: usize| {
            let (query, wanted) = (&query, (limit - taken).min(WORKFLOWS_PER_LOOK));
            move |machine: &Machine, archive: &dyn Archive| {
                machine.list_workflows(archive, query, after.as_ref(), wanted, ROWS_PER_LOOK)
            }
        };
        let Answer { index, value: mut page } = self.read(mode, look(cursor, 0)).await?;
        while page.next.is_some() && page.workflows.len() < limit && page.rows < ROWS_PER_PAGE {
            tokio::task::yield_now().await;
            let more = self.shared.raft.view(look(page.next.take(), page.workflows.len()))?;
            page.workflows.extend(more.workflows);
            page.rows += more.rows;
            page.next = more.next;
        }
        let next_cursor = page.next.map(|position| write_cursor(&query, &position));
        Ok(Answer { index, value: WorkflowList { workflows: page.workflows, next_cursor } })
    }

    /// How many workflows a filter takes. By namespace, type and status it is known at once; with times or attributes
    /// the index is walked over.
    ///
    /// # Errors
    /// `invalid_argument` for a filter that makes no sense, `limit_exceeded` if there is too much to look at.
    pub async fn count_workflows(&self, filter: &WorkflowFilter, mode: ReadMode) -> StoreResult<u64> {
        filter.check()?;
        let rows_max = self.shared.options.count_rows_max;
        let look = |after: Option<Position>, walked: usize| {
            let rows = (rows_max - walked).min(ROWS_PER_LOOK);
            move |machine: &Machine, archive: &dyn Archive| {
                machine.count_workflows(archive, filter, after.as_ref(), rows)
            }
        };
        let Answer { index, value: mut sum } = self.read(mode, look(None, 0)).await?;
        while sum.next.is_some() {
            if sum.rows >= rows_max {
                let what = "the number of workflows to look at (ask for a shorter time or fewer types)".to_owned();
                let (limit, actual) = (rows_max as u64, sum.rows as u64 + 1);
                return Err(Reject::LimitExceeded { what, limit, actual }.into());
            }
            tokio::task::yield_now().await;
            let more = self.shared.raft.view(look(sum.next.take(), sum.rows))?;
            sum.count += more.count;
            sum.rows += more.rows;
            sum.next = more.next;
        }
        Ok(Answer { index, value: sum.count })
    }
}
