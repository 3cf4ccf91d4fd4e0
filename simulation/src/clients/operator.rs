//! Somebody who moves things about: the leadership from node to node, and shards between owners; and who has nodes that
//! lost their disks replaced, unless leaders do that by themselves.

use holdfast_machine::{Command, ShardId};

use super::Caller;
use crate::draw::Draw;
use crate::rpc::{Answer, Ask};

/// Goes on until the run ends, and all nodes are members again.
pub async fn operator(mut caller: Caller) -> turmoil::Result {
    loop {
        caller.pause(1_000, 6_000).await;
        let lost = caller.world.hosts.iter().find(|host| host.is_lost()).map(|host| host.name.clone());
        if let Some(name) = lost {
            if !caller.world.settings.auto_replace
                && matches!(caller.ask(&Ask::Replace(name)).await, Some(Answer::Done))
            {
                caller.world.record.count("replacement begun");
            }
        } else if caller.world.is_ending() {
            return Ok(());
        } else if caller.random.chance(50) {
            // A few more ids than members: some are replaced, and then have others.
            let to = caller.random.between(1, caller.world.settings.nodes + 2);
            if let Some(Answer::Done) = caller.ask(&Ask::Transfer(to)).await {
                caller.world.record.count("leadership handed over");
            }
        } else {
            transfer(&mut caller).await;
        }
    }
}

/// Moves a shard, as it is where somebody looks first.
async fn transfer(caller: &mut Caller) {
    let shard = ShardId(caller.random.below(caller.world.settings.shards.into()) as u32);
    let to = caller.random.pick(&caller.world.hosts).name.clone();
    let epoch = caller.world.hosts.iter().find_map(|host| {
        let node = host.node()?;
        node.view(|machine, _| machine.shard(shard).map(|entry| entry.epoch))
    });
    let Some(expected_epoch) = epoch else { return };
    if caller.settle(Command::Transfer { shard, to, expected_epoch }, None).await.reply.is_ok() {
        caller.world.record.count("shard moved");
    }
}
