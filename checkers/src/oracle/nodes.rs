//! The oracle's view of nodes and shards: boots, first owners, adoption, transfer.

use holdfast_machine::{
    BootId, DispatchKey, Epoch, Holder, Liveness, Moved, NodeName, Reject, Reply, RowStatus, ShardEntry, ShardId,
};

use crate::oracle::{Answer, Oracle};

fn bad_node<T>(node: &NodeName) -> Result<T, Reject> {
    Err(Reject::NodeState { node: node.clone(), problem: String::new() })
}

impl Oracle {
    pub fn create(&mut self, shard_count: u32) -> Answer {
        match shard_count {
            0 => return crate::oracle::invalid(),
            1..=4096 => {}
            _ => {
                let actual = u64::from(shard_count);
                return Err(Reject::LimitExceeded { what: String::new(), limit: 4096, actual });
            }
        }
        if self.shard_count == 0 {
            self.shard_count = shard_count;
        }
        Ok(Reply::Created { shard_count: self.shard_count })
    }

    pub fn boot(&mut self, node: &NodeName, boot: &BootId) -> Answer {
        let Some((_, current)) = self.members.iter_mut().find(|(member, _)| member.name == *node) else {
            return bad_node(node);
        };
        if current.as_ref() == Some(boot) {
            let mut owned: Vec<&ShardEntry> = self.shards.iter().filter(|entry| entry.owner == *node).collect();
            owned.sort_by_key(|entry| entry.shard);
            let shards = owned.iter().map(|entry| (entry.shard, entry.epoch)).collect();
            return Ok(Reply::Booted { shards, rearmed: Vec::new() });
        }
        if self.boots.contains(&(node.clone(), boot.clone())) {
            return bad_node(node);
        }
        *current = Some(boot.clone());
        self.boots.push((node.clone(), boot.clone()));
        self.detach_from_the_gone();
        let rearmed = self.rearm_held(node, None);
        let now = self.now;
        let mut shards = Vec::new();
        for entry in self.shards.iter_mut().filter(|entry| entry.owner == *node) {
            entry.epoch.0 += 1;
            entry.since = now;
            shards.push((entry.shard, entry.epoch));
        }
        shards.sort();
        Ok(Reply::Booted { shards, rearmed })
    }

    pub fn assign(&mut self, owners: &[(ShardId, NodeName)]) -> Answer {
        for (shard, node) in owners {
            self.known_shard(*shard)?;
            self.can_serve(node)?;
        }
        let mut shards = Vec::new();
        for (shard, node) in owners {
            if self.owner(*shard).is_none() {
                let entry =
                    ShardEntry { shard: *shard, owner: node.clone(), epoch: Epoch(1), since: self.now, previous: None };
                self.shards.push(entry);
                shards.push(*shard);
            }
        }
        Ok(Reply::Assigned { shards })
    }

    pub fn adopt(&mut self, shard: ShardId, from: &NodeName, by: &NodeName, expected: Epoch) -> Answer {
        self.known_shard(shard)?;
        let Some(entry) = self.shards.iter().find(|entry| entry.shard == shard).cloned() else {
            return Err(Reject::EpochConflict { shard, owner: None, epoch: Epoch(0) });
        };
        if entry.owner != *from || entry.epoch != expected {
            return Ok(Reply::AlreadyAdopted { shard, held_by: entry.owner, epoch: entry.epoch });
        }
        if !self.is_down(from) {
            return bad_node(from);
        }
        self.can_serve(by)?;
        Ok(Reply::Adopted(self.hand_over(shard, from, by)))
    }

    pub fn transfer(&mut self, shard: ShardId, to: &NodeName, expected: Epoch) -> Answer {
        self.known_shard(shard)?;
        self.can_serve(to)?;
        let entry = self.shards.iter().find(|entry| entry.shard == shard).cloned();
        let Some(entry) = entry.clone().filter(|entry| entry.epoch == expected) else {
            let epoch = entry.as_ref().map(|entry| entry.epoch).unwrap_or_default();
            return Err(Reject::EpochConflict { shard, owner: entry.map(|entry| entry.owner), epoch });
        };
        if entry.owner == *to {
            return bad_node(to);
        }
        if self.is_down(&entry.owner) {
            return bad_node(&entry.owner);
        }
        Ok(Reply::Transferred(self.hand_over(shard, &entry.owner, to)))
    }

    fn hand_over(&mut self, shard: ShardId, from: &NodeName, to: &NodeName) -> Moved {
        // No row of a finished workflow is live at any index (invariant 15), so there is nothing to settle.
        let rearmed = self.rearm_held(from, Some(shard));
        let now = self.now;
        let mut epoch = Epoch(0);
        for entry in self.shards.iter_mut().filter(|entry| entry.shard == shard) {
            epoch = Epoch(entry.epoch.0 + 1);
            *entry = ShardEntry { shard, owner: to.clone(), epoch, since: now, previous: Some(from.clone()) };
        }
        Moved { shard, epoch, settled: Vec::new(), rearmed }
    }

    /// Puts what a node itself holds back to pending, in its old place, in one shard or in all; keys by shard, then by key.
    fn rearm_held(&mut self, node: &NodeName, shard: Option<ShardId>) -> Vec<DispatchKey> {
        let shard_count = self.shard_count;
        let mut keys = Vec::new();
        for (key, row) in &mut self.rows {
            let of = ShardId::of(&key.workflow, shard_count);
            let holder = row.claim.as_ref().map(|claim| &claim.holder);
            let held = matches!(holder, Some(Holder::Node { node: holder, .. }) if holder == node);
            if held && shard.is_none_or(|shard| shard == of) {
                (row.status, row.claim) = (RowStatus::Pending, None);
                keys.push((of, key.clone()));
            }
        }
        keys.sort();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    fn known_shard(&self, shard: ShardId) -> Result<(), Reject> {
        let shard_count = self.shard_count;
        if shard.0 < shard_count { Ok(()) } else { Err(Reject::NoSuchShard { shard, shard_count }) }
    }

    fn can_serve(&self, node: &NodeName) -> Result<(), Reject> {
        let serves = |(member, boot): &(holdfast_machine::Member, Option<BootId>)| {
            member.name == *node && member.liveness == Liveness::Up && boot.is_some()
        };
        if self.members.iter().any(serves) { Ok(()) } else { bad_node(node) }
    }
}
