//! Who should take which shard, decided by every node alike without talking to anybody.
//!
//! Rendezvous hashing (Thaler and Ravishankar, 1998): each pair of shard and node has a weight, and the node with
//! the highest weight is the shard's first choice. When a node goes, only its own shards get another first choice,
//! and they spread over all that are left.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::id::{NodeName, ShardId};

/// The nodes in a shard's order of preference. The order depends on the names alone.
pub fn ranked<'a>(shard: ShardId, nodes: &[&'a NodeName]) -> Vec<&'a NodeName> {
    let mut ranked: Vec<_> = nodes.iter().map(|node| (weight(shard, node), *node)).collect();
    ranked.sort_by(|a, b| b.cmp(a));
    ranked.into_iter().map(|(_, node)| node).collect()
}

/// First owners for shards that have none: each shard's first choice that is not full yet. No node gets more than
/// one shard above what another gets. Empty if there are no nodes.
pub fn spread(shards: &[ShardId], nodes: &[&NodeName]) -> Vec<(ShardId, NodeName)> {
    let Some(fair) = shards.len().checked_div(nodes.len()) else { return Vec::new() };
    // So many nodes get one more than that.
    let mut more = shards.len() % nodes.len();
    let mut taken: BTreeMap<&NodeName, usize> = BTreeMap::new();
    let mut owners = Vec::with_capacity(shards.len());
    for shard in shards {
        let choice = ranked(*shard, nodes).into_iter().find(|node| {
            let taken = taken.get(node).copied().unwrap_or(0);
            taken < fair || (taken == fair && more > 0)
        });
        let Some(node) = choice else { continue };
        let taken = taken.entry(node).or_insert(0);
        *taken += 1;
        more -= usize::from(*taken > fair);
        owners.push((*shard, node.clone()));
    }
    owners
}

fn weight(shard: ShardId, node: &NodeName) -> u64 {
    let mut pair = shard.0.to_le_bytes().to_vec();
    pair.extend_from_slice(node.as_str().as_bytes());
    xxh3_64(&pair)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn names(count: usize) -> Vec<NodeName> {
        (0..count).map(|n| NodeName::new(format!("node-{n}")).unwrap()).collect()
    }

    fn shards(count: u32) -> Vec<ShardId> {
        (0..count).map(ShardId).collect()
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let names = names(5);
        let forth: Vec<_> = names.iter().collect();
        let back: Vec<_> = names.iter().rev().collect();
        for shard in shards(64) {
            assert_eq!(ranked(shard, &forth), ranked(shard, &back));
        }
    }

    #[test]
    fn a_node_that_goes_moves_its_own_shards_only_and_to_several_others() {
        let names = names(4);
        let all: Vec<_> = names.iter().collect();
        let left: Vec<_> = names[1..].iter().collect();
        let mut heirs = BTreeMap::new();
        for shard in shards(256) {
            let (before, after) = (ranked(shard, &all)[0], ranked(shard, &left)[0]);
            if *before == names[0] {
                *heirs.entry(after).or_insert(0) += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        assert_eq!(heirs.len(), 3, "{heirs:?}");
        assert!(heirs.values().all(|count| *count > 5), "{heirs:?}");
    }

    #[test]
    fn first_owners_are_even() {
        for (count, nodes) in [(64, 3), (64, 1), (7, 3), (2, 5), (4096, 7)] {
            let names = names(nodes);
            let owners = spread(&shards(count), &names.iter().collect::<Vec<_>>());
            assert_eq!(owners.len(), count as usize);
            let mut by_node = BTreeMap::new();
            for (_, owner) in &owners {
                *by_node.entry(owner).or_insert(0usize) += 1;
            }
            let least = names.iter().map(|name| by_node.get(name).copied().unwrap_or(0)).min().unwrap();
            let most = by_node.values().max().copied().unwrap();
            assert!(most - least <= 1, "{by_node:?}");
        }
        assert!(spread(&shards(4), &[]).is_empty());
    }
}
