//! Members that have lost their data, and their replacement.

use holdfast_client::wire::{Replacement, ReplacementStage};
use holdfast_machine::{NodeName, Reject};
use holdfast_raft::{ReplaceError, ReplacementStage as Stage, Standing, Status};
use tokio::time::Instant;

use crate::Answer;
use crate::error::StoreError;
use crate::store::{Store, StoreResult};

impl Store {
    /// Has a member replaced that has lost its data and waits for that: it gets the data, under its name and a Raft
    /// id that nobody had before. With `dry_run`, says what would happen. Returns as soon as it has begun; the rest
    /// happens by itself, and [`Store::cluster`] tells how far it is. The same call again is answered with that too.
    ///
    /// # Errors
    /// `node_state` with the reason; nothing was changed then. [`StoreError::NoQuorum`] if no leader answers.
    pub async fn replace_member(&self, name: &NodeName, dry_run: bool) -> StoreResult<Replacement> {
        let begun = Instant::now();
        let replaced = self.shared.raft.replace_member(name, dry_run).await;
        let replacement = replaced.map_err(|error| match error {
            ReplaceError::NoLeader => StoreError::NoQuorum { waited_ms: begun.elapsed().as_millis() as u64 },
            refusal => Reject::NodeState { node: name.clone(), problem: refusal.to_string() }.into(),
        })?;
        let index = self.shared.raft.view(|machine, _| machine.applied());
        Ok(Answer { index, value: shown(replacement, &self.shared.raft.status()) })
    }
}

impl Store {
    /// Why this node takes no part in the cluster, if so.
    pub(crate) fn outside(&self) -> Option<String> {
        outside(&self.shared.raft.status())
    }
}

/// The replacements that a node knows of.
pub(crate) fn replacements(status: &Status) -> Vec<Replacement> {
    status.replacements.iter().map(|replacement| shown(replacement.clone(), status)).collect()
}

/// Why a node takes no part in the cluster, if so.
pub(crate) fn outside(status: &Status) -> Option<String> {
    (status.standing != Standing::Member).then(|| status.standing.to_string())
}

fn shown(replacement: holdfast_raft::Replacement, status: &Status) -> Replacement {
    let holdfast_raft::Replacement { name, old, new, stage, others } = replacement;
    let new_id = new.filter(|_| stage != Stage::Waiting || !others.is_empty());
    let member = status.members.iter().find(|member| Some(member.id) == new_id);
    let stage = match stage {
        Stage::Waiting => ReplacementStage::Waiting,
        Stage::CatchingUp => ReplacementStage::CatchingUp,
        Stage::TakingOver => ReplacementStage::TakingOver,
    };
    Replacement { name, old_id: old, new_id, stage, matched: member.and_then(|member| member.matched), others }
}
