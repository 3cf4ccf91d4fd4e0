//! Reads: from this node's own state, once that is as fresh as the caller asks.

use holdfast_client::wire::{
    ClusterView, Directory, DiskSpace, ListedRow, MemberView, PageCall, RowView, Runs, StaleRows, Topology,
    WorkflowView,
};
use holdfast_machine::{
    Archive, ArchiveResult, Attributes, DispatchKey, Fence, HistoryEvent, Machine, MemberState, Millis, NodeName,
    Reject, Row, WorkflowId,
};
use holdfast_raft::{MemberStatus, RoomLevel, Status};

use crate::error::StoreError;
use crate::listings::{cut, one_more};
use crate::members::{outside, replacements};
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode};

/// A page of history ends early once its payloads have this many bytes.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Most events that are read under one look at the state, so that apply does not wait for long; the first look, and
/// those among large payloads, take fewer.
const EVENTS_PER_LOOK: usize = 64;
const LARGE_EVENTS_PER_LOOK: usize = 4;

impl Store {
    /// A workflow's projection, its shard, and the shard's owner.
    ///
    /// # Errors
    /// [`StoreError::NoQuorum`] if the state does not get fresh enough in time, [`StoreError::Read`] if it
    /// cannot be read; so with all reads here.
    pub async fn workflow(&self, workflow: &WorkflowId, mode: ReadMode) -> StoreResult<WorkflowView> {
        self.read(mode, |machine, archive| {
            let shard = machine.shard_of(workflow);
            let fence = machine.shard(shard).map(|entry| Fence { owner: entry.owner.clone(), epoch: entry.epoch });
            let projection = machine.workflow(archive, workflow)?;
            let search_attributes = match &projection {
                Some(workflow_of) if workflow_of.attribute_count > 0 => machine.search_attributes(archive, workflow)?,
                _ => Attributes::new(),
            };
            Ok(WorkflowView { id: workflow.clone(), shard, fence, workflow: projection, search_attributes })
        })
        .await
    }

    /// Events from number `from_seq` on, at most `limit`; fewer if the page would grow too large, but none
    /// only at the end of the history. Empty for an unknown workflow.
    ///
    /// # Errors
    /// `invalid_argument` for a limit of 0, `limit_exceeded` for one too large.
    pub async fn history(
        &self,
        workflow: &WorkflowId,
        from_seq: u64,
        limit: u32,
        mode: ReadMode,
    ) -> StoreResult<Vec<HistoryEvent>> {
        self.limits().check_page(limit)?;
        let first = from_seq.max(1);
        let look = |behind: usize, most: usize| {
            let (next, most) = (first.saturating_add(behind as u64), most.min(limit as usize - behind));
            move |machine: &Machine, archive: &dyn Archive| machine.history(archive, workflow, next, most)
        };
        let mut most = LARGE_EVENTS_PER_LOOK;
        let Answer { index, mut value } = self.read(mode, look(0, most)).await?;
        let (mut last_look, mut bytes) = (value.len(), bytes_in(&value));
        // A history only grows at its end, so what is read in pieces is what one look would have shown.
        while last_look == most && value.len() < limit as usize && bytes < PAGE_BYTES {
            let are_large = bytes / value.len() > PAGE_BYTES / EVENTS_PER_LOOK;
            most = if are_large { LARGE_EVENTS_PER_LOOK } else { (2 * most).min(EVENTS_PER_LOOK) };
            let more = self.shared.raft.view(look(value.len(), most))?;
            last_look = more.len();
            bytes += bytes_in(&more);
            value.extend(more);
        }
        Ok(Answer { index, value })
    }

    /// Runs of a workflow, oldest first.
    ///
    /// # Errors
    /// As [`Store::history`]; `invalid_argument` for a cursor of another listing.
    pub async fn runs(&self, workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> StoreResult<Runs> {
        let query = ("runs", workflow);
        let after: Option<u32> = self.place(&query, page)?;
        let runs = self
            .read(mode, |machine, archive| machine.runs(archive, workflow, after.unwrap_or(0), one_more(page)))
            .await?;
        Ok(runs.map(|mut runs| {
            let next_cursor = cut(&query, page, &mut runs, |run| &run.number);
            Runs { runs, next_cursor }
        }))
    }

    /// One row, live or finished, with its input and what its last heartbeat or failed attempt said.
    ///
    /// # Errors
    /// `row_not_found`.
    pub async fn row(&self, key: &DispatchKey, mode: ReadMode) -> StoreResult<RowView> {
        let Answer { index, value } = self
            .read(mode, |machine, archive| {
                let Some(row) = machine.row(archive, key)? else { return Ok(None) };
                let input = machine.input(archive, key)?.unwrap_or_default();
                let details = machine.details(archive, key)?.unwrap_or_default();
                Ok(Some(RowView { key: key.clone(), row, input, details }))
            })
            .await?;
        let value = value.ok_or_else(|| Reject::RowNotFound { key: key.clone() })?;
        Ok(Answer { index, value })
    }

    /// Rows that have been claimed for `older_than_ms` of log time, by time of claim, then key.
    ///
    /// # Errors
    /// As [`Store::history`].
    pub async fn stale(&self, older_than_ms: u64, page: &PageCall, mode: ReadMode) -> StoreResult<StaleRows> {
        let query = ("stale", older_than_ms);
        let after: Option<(Millis, DispatchKey)> = self.place(&query, page)?;
        let rows = self
            .read(mode, |machine, _| {
                Ok(machine.stale_rows(machine.now(), older_than_ms, after.as_ref(), one_more(page)))
            })
            .await?;
        Ok(rows.map(|rows| {
            let place = |(key, row): &(DispatchKey, Row)| {
                (row.claim.as_ref().map_or(Millis(0), |claim| claim.claimed_at), key.clone())
            };
            let mut placed: Vec<_> = rows.into_iter().map(|found| (place(&found), found)).collect();
            let next_cursor = cut(&query, page, &mut placed, |(place, _)| place);
            let rows = placed.into_iter().map(|(_, (key, row))| ListedRow { key, row }).collect();
            StaleRows { rows, next_cursor }
        }))
    }

    /// Who owns which shard.
    ///
    /// # Errors
    /// As [`Store::workflow`].
    pub async fn shards(&self, mode: ReadMode) -> StoreResult<Directory> {
        self.read(mode, |machine, _| {
            Ok(Directory { shard_count: machine.shard_count(), shards: machine.shards().cloned().collect() })
        })
        .await
    }

    /// The cluster as this node sees it now. Always answers.
    ///
    /// # Errors
    /// None at present; the signature is that of the client.
    pub async fn cluster(&self) -> StoreResult<ClusterView> {
        let view = self.cluster_now();
        Ok(Answer { index: view.applied, value: view })
    }

    /// The space on this node's own disk.
    pub(crate) fn disk_space(&self) -> DiskSpace {
        let status = self.shared.raft.status();
        let own = status.members.iter().find(|member| member.id == status.node);
        disk_space(own.and_then(|own| own.room).unwrap_or_default())
    }

    /// Why the node cannot go on, if so.
    pub(crate) fn fatal(&self) -> Option<String> {
        self.shared.raft.fatal().borrow().as_ref().map(ToString::to_string)
    }

    /// [`Store::cluster`] without a wait.
    pub(crate) fn cluster_now(&self) -> ClusterView {
        let status = self.shared.raft.status();
        self.shared.raft.view(|machine, _| ClusterView {
            node: self.node().clone(),
            leader: leader(&status),
            term: status.term,
            last: status.last.unwrap_or(0),
            committed: status.committed.unwrap_or(0),
            applied: machine.applied(),
            state_hash: format!("{:016x}", machine.state_hash()),
            now: machine.now(),
            shard_count: machine.shard_count(),
            rows: machine.row_counts(),
            members: machine.members().map(|member| member_view(member, &status)).collect(),
            replacements: replacements(&status),
            outside: outside(&status),
        })
    }

    /// Who is there and who owns what, now.
    pub(crate) fn topology(&self) -> Topology {
        let status = self.shared.raft.status();
        self.shared.raft.view(|machine, _| Topology {
            index: machine.applied(),
            leader: leader(&status),
            term: status.term,
            shard_count: machine.shard_count(),
            members: machine.members().cloned().collect(),
            shards: machine.shards().cloned().collect(),
        })
    }

    pub(crate) async fn read<T>(
        &self,
        mode: ReadMode,
        look: impl FnOnce(&Machine, &dyn Archive) -> ArchiveResult<T>,
    ) -> StoreResult<T> {
        let applied = self.shared.raft.read_index(mode).await?;
        let (seen, value) = self.shared.raft.view(|machine, archive| (machine.applied(), look(machine, archive)));
        Ok(Answer { index: applied.max(seen), value: value.map_err(StoreError::Read)? })
    }
}

fn bytes_in(events: &[HistoryEvent]) -> usize {
    events.iter().map(|event| event.payload.data.len()).sum()
}

pub(crate) fn leader(status: &Status) -> Option<NodeName> {
    let leader = status.leader?;
    status.members.iter().find(|member| member.id == leader).map(|member| member.name.clone())
}

fn disk_space(room: RoomLevel) -> DiskSpace {
    match room {
        RoomLevel::Plenty => DiskSpace::Plenty,
        RoomLevel::Low => DiskSpace::Low,
        RoomLevel::Out => DiskSpace::Out,
    }
}

fn member_view(state: &MemberState, status: &Status) -> MemberView {
    let MemberState { member, boot, since } = state.clone();
    let seen: Option<&MemberStatus> = status.members.iter().find(|seen| seen.id == member.id);
    let is_self = member.id == status.node;
    MemberView {
        boot,
        since,
        connected: seen.filter(|_| !is_self).map(|seen| seen.linked),
        link_problem: seen.and_then(|seen| seen.link_problem.clone()),
        matched: seen.and_then(|seen| seen.matched),
        disk: seen.and_then(|seen| seen.room).map(disk_space),
        member,
    }
}
