//! Listings of what is under way: workflows with live rows, routes with rows waiting, rows by namespace, heads. They
//! are read from indexes; only the heads of finished workflows are on disk.

use holdfast_client::wire::{
    CountPage, Head, HeadPage, PageCall, RoutePage, RowsInNamespace, UnsettledPage, UnsettledWorkflow, WaitingRoute,
};
use holdfast_machine::{
    Archive, Heads, Machine, Namespace, PendingRoute, Reject, Route, ShardId, WorkflowId, read_cursor, write_cursor,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode};

/// Workflows that are looked at under one look, so that apply does not wait for long.
const WORKFLOWS_PER_LOOK: usize = 128;
/// Looks for one page of heads; it ends early then. Most of the finished workflows are of other shards than the one
/// that is asked for.
const LOOKS_PER_PAGE: usize = 80;

impl Store {
    /// Workflows that have pending or claimed rows, by shard, then by id; of one shard or of all.
    ///
    /// # Errors
    /// `invalid_argument` for a limit of 0 and for a cursor of another listing, `no_such_shard`; so with all
    /// listings here.
    pub async fn unsettled(
        &self,
        shard: Option<ShardId>,
        page: &PageCall,
        mode: ReadMode,
    ) -> StoreResult<UnsettledPage> {
        let query = ("unsettled", shard);
        let after: Option<WorkflowId> = self.place(&query, page)?;
        let look = |machine: &Machine| {
            check_shard(machine, shard).map(|()| machine.unsettled(shard, after.as_ref(), one_more(page)))
        };
        let Answer { index, value } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let mut found = value?;
        let next_cursor = cut(&query, page, &mut found, |(workflow, _)| workflow);
        let workflow = |(workflow, counts): (WorkflowId, holdfast_machine::RowCounts)| UnsettledWorkflow {
            workflow,
            pending: counts.pending,
            claimed: counts.claimed,
        };
        Ok(Answer { index, value: UnsettledPage { workflows: found.into_iter().map(workflow).collect(), next_cursor } })
    }

    /// Routes that have rows waiting, by namespace, task queue, node and activity type. Rows of paused workflows are
    /// on none until they are resumed.
    ///
    /// # Errors
    /// As [`Store::unsettled`].
    pub async fn pending_routes(&self, page: &PageCall, mode: ReadMode) -> StoreResult<RoutePage> {
        let query = "pending routes";
        let after: Option<Route> = self.place(query, page)?;
        let look = |machine: &Machine| machine.pending_routes(after.as_ref(), one_more(page));
        let Answer { index, value: mut found } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let next_cursor = cut(query, page, &mut found, |found| &found.route);
        let route = |PendingRoute { route, pending, next_due }| {
            let Route { namespace, task_queue, node, activity_type } = route;
            WaitingRoute { namespace, task_queue, node, activity_type, pending, next_due }
        };
        Ok(Answer { index, value: RoutePage { routes: found.into_iter().map(route).collect(), next_cursor } })
    }

    /// Live rows by namespace, with those of paused workflows.
    ///
    /// # Errors
    /// As [`Store::unsettled`].
    pub async fn row_counts(&self, page: &PageCall, mode: ReadMode) -> StoreResult<CountPage> {
        let query = "rows by namespace";
        let after: Option<Namespace> = self.place(query, page)?;
        let look = |machine: &Machine| {
            let counts = machine.namespace_counts(after.as_ref()).take(one_more(page));
            counts.map(|(namespace, counts)| (namespace.clone(), counts)).collect::<Vec<_>>()
        };
        let Answer { index, value: mut found } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let next_cursor = cut(query, page, &mut found, |(namespace, _)| namespace);
        let counted = |(namespace, counts): (Namespace, holdfast_machine::RowCounts)| {
            let (pending, claimed) = (counts.pending, counts.claimed);
            RowsInNamespace { namespace, pending, claimed, in_flight: pending + claimed }
        };
        Ok(Answer { index, value: CountPage { namespaces: found.into_iter().map(counted).collect(), next_cursor } })
    }

    /// Where histories end, by workflow; of one shard or of all, of open workflows or of all. A page may hold fewer
    /// than asked for; the listing is at its end only when there is no `next_cursor`.
    ///
    /// # Errors
    /// As [`Store::unsettled`].
    pub async fn heads(
        &self,
        shard: Option<ShardId>,
        open_only: bool,
        page: &PageCall,
        mode: ReadMode,
    ) -> StoreResult<HeadPage> {
        let query = ("heads", shard, open_only);
        let after: Option<WorkflowId> = self.place(&query, page)?;
        let look = |after: Option<WorkflowId>, found: usize| {
            let wanted = (one_more(page) - found).min(WORKFLOWS_PER_LOOK);
            move |machine: &Machine, archive: &dyn Archive| {
                let Heads { workflows, next } = machine.heads(archive, shard, open_only, after.as_ref(), wanted)?;
                let head = |(workflow, state): (WorkflowId, holdfast_machine::Workflow)| Head {
                    shard: machine.shard_of(&workflow),
                    workflow,
                    head: state.head,
                    namespace: state.namespace,
                    status: state.status,
                    run_id: state.run.run_id,
                    workflow_type: state.run.workflow_type,
                };
                Ok((workflows.into_iter().map(head).collect::<Vec<_>>(), next))
            }
        };
        let first = self.read(mode, |machine, archive| {
            let Err(reject) = check_shard(machine, shard) else { return look(after, 0)(machine, archive).map(Ok) };
            Ok(Err(reject))
        });
        let Answer { index, value } = first.await?;
        let (mut heads, mut next) = value?;
        for _ in 1..LOOKS_PER_PAGE {
            if next.is_none() || heads.len() >= one_more(page) {
                break;
            }
            tokio::task::yield_now().await;
            let (more, then) = self.shared.raft.view(look(next.take(), heads.len()))?;
            heads.extend(more);
            next = then;
        }
        let next_cursor = next.map(|workflow| write_cursor(&query, &workflow));
        let next_cursor = cut(&query, page, &mut heads, |head| &head.workflow).or(next_cursor);
        Ok(Answer { index, value: HeadPage { heads, next_cursor } })
    }

    /// Where a page of a listing begins, once its limit is checked.
    pub(crate) fn place<Q: Serialize + ?Sized, K: DeserializeOwned>(
        &self,
        query: &Q,
        page: &PageCall,
    ) -> Result<Option<K>, Reject> {
        self.limits().check_page(page.limit)?;
        page.cursor.as_ref().map(|cursor| read_cursor(query, cursor)).transpose()
    }
}

/// One more than the page tells whether there is another page.
pub(crate) fn one_more(page: &PageCall) -> usize {
    page.limit as usize + 1
}

/// Leaves a page of what was found, and says where the next one begins, if there is one.
pub(crate) fn cut<Q: Serialize + ?Sized, T, K: Serialize>(
    query: &Q,
    page: &PageCall,
    found: &mut Vec<T>,
    place: impl Fn(&T) -> &K,
) -> Option<String> {
    let more = found.len() > page.limit as usize;
    found.truncate(page.limit as usize);
    found.last().filter(|_| more).map(|last| write_cursor(query, place(last)))
}

fn check_shard(machine: &Machine, shard: Option<ShardId>) -> Result<(), Reject> {
    let shard_count = machine.shard_count();
    match shard {
        Some(shard) if shard.0 >= shard_count => Err(Reject::NoSuchShard { shard, shard_count }),
        _ => Ok(()),
    }
}
