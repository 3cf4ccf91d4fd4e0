//! Who owns a shard, and why nobody does.

use serde::{Deserialize, Serialize};

use super::{NoQuorum, Outlook, Vantage};
use crate::id::{Epoch, Millis, NodeName, ShardId};
use crate::rendezvous::ranked;
use crate::state::Machine;

/// How a shard stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum ShardReason {
    /// The node that answers does not reach a majority, so no shard changes its owner.
    NoQuorum(NoQuorum),
    /// The cluster has not been created: not enough of its members have ever met.
    ClusterNotCreated {
        /// Members that have started.
        started: u64,
        /// Members.
        members: u64,
    },
    /// The cluster has fewer shards.
    NoSuchShard {
        /// How many it has.
        shard_count: u32,
    },
    /// Nobody has owned it yet.
    NeverOwned {
        /// Members that have started.
        started: u64,
        /// Members.
        members: u64,
    },
    /// Its owner is down, or is no member any more; it is to be adopted.
    OwnerDown {
        /// The owner.
        owner: NodeName,
        /// The epoch of its ownership.
        epoch: Epoch,
        /// Since when the owner is committed as down; none if it is no member.
        down_since: Option<Millis>,
        /// Who is to adopt it; none if no member can.
        adopter: Option<NodeName>,
    },
    /// Its owner serves it.
    Owned {
        /// The owner.
        owner: NodeName,
        /// The epoch of the ownership.
        epoch: Epoch,
        /// Since when.
        since: Millis,
        /// Who owned it before.
        previous: Option<NodeName>,
    },
}

impl ShardReason {
    /// Whether somebody has to do something.
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::NoSuchShard { .. } => Outlook::Unknown,
            Self::Owned { .. } => Outlook::Moving,
            Self::NoQuorum(_) | Self::ClusterNotCreated { .. } | Self::NeverOwned { .. } | Self::OwnerDown { .. } => {
                Outlook::HeldUp
            }
        }
    }
}

impl Machine {
    /// How a shard stands: the first reason that holds.
    pub fn explain_shard(&self, shard: ShardId, vantage: &Vantage) -> ShardReason {
        if let Some(no_quorum) = &vantage.no_quorum {
            return ShardReason::NoQuorum(no_quorum.clone());
        }
        let (members, started) = (self.members().count() as u64, self.serving().len() as u64);
        let shard_count = self.shard_count();
        if shard_count == 0 {
            return ShardReason::ClusterNotCreated { started, members };
        }
        if shard.0 >= shard_count {
            return ShardReason::NoSuchShard { shard_count };
        }
        let Some(entry) = self.shard(shard) else { return ShardReason::NeverOwned { started, members } };
        let (owner, epoch) = (entry.owner.clone(), entry.epoch);
        match self.member(&entry.owner) {
            Some(member) if !member.is_down() => {
                ShardReason::Owned { owner, epoch, since: entry.since, previous: entry.previous.clone() }
            }
            member => {
                let (down_since, adopter) = (member.map(|member| member.since), self.adopter(shard));
                ShardReason::OwnerDown { owner, epoch, down_since, adopter }
            }
        }
    }

    /// The member that comes first among those who may adopt a shard.
    pub(super) fn adopter(&self, shard: ShardId) -> Option<NodeName> {
        ranked(shard, &self.serving()).first().map(|name| (*name).clone())
    }

    /// The members that may take shards.
    fn serving(&self) -> Vec<&NodeName> {
        self.members().filter(|state| state.serves()).map(|state| &state.member.name).collect()
    }
}
