//! Section 4: of all proposals to adopt a shard, one wins. Case 6.

use anyhow::{Result, bail, ensure};
use holdfast_machine::{Command, Epoch, NodeName, Reply, ShardId};
use holdfast_tests::bare::Bare;
use holdfast_tests::cluster::NAMES;

#[tokio::test(flavor = "multi_thread")]
async fn of_two_adoptions_at_the_same_moment_one_wins() -> Result<()> {
    const SHARDS: u32 = 200;
    let mut bare = Bare::start(SHARDS).await?;
    let dead = 2;
    bare.assign(0..SHARDS, dead).await?;
    bare.stop(dead).await?;
    bare.committed_as(dead, false).await?;

    let (mut won, from) = ([0, 0], NodeName::new(NAMES[dead])?);
    for shard in (0..SHARDS).map(ShardId) {
        if shard.0 % 20 == 0 {
            // Who leads has the shorter way.
            bare.lead(shard.0 as usize / 20 % 2).await?;
        }
        let adopt = |by: usize| -> Result<Command> {
            Ok(Command::Adopt { shard, from: from.clone(), by: NodeName::new(NAMES[by])?, expected_epoch: Epoch(1) })
        };
        // Each survivor proposes itself, through itself, at the same time.
        let (first, second) = tokio::join!(bare.ask(0, adopt(0)?), bare.ask(1, adopt(1)?));
        let (winner, moved, loser) = match (first?, second?) {
            (Reply::Adopted(moved), loser) => (0, moved, loser),
            (loser, Reply::Adopted(moved)) => (1, moved, loser),
            both => bail!("nobody won: {both:?}"),
        };
        won[winner] += 1;
        ensure!(moved.shard == shard && moved.epoch == Epoch(2), "{moved:?}");
        let told = Reply::AlreadyAdopted { shard, held_by: NodeName::new(NAMES[winner])?, epoch: Epoch(2) };
        ensure!(loser == told, "{loser:?}, not {told:?}");

        // Asking again after success is harmless.
        let again = bare.ask(winner, adopt(winner)?).await?;
        ensure!(again == told, "{again:?}");
    }
    println!("of {SHARDS} shards, {} went to {} and {} to {}", won[0], NAMES[0], won[1], NAMES[1]);
    bare.same_state().await?;
    bare.finish().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_node_that_is_committed_as_down_can_be_adopted_from_and_only_by_one_that_is_up() -> Result<()> {
    let mut bare = Bare::start(2).await?;
    let node = |number: usize| NodeName::new(NAMES[number]);
    bare.assign([0, 1], 2).await?;
    let adopt = |by: usize, epoch| -> Result<Command> {
        Ok(Command::Adopt { shard: ShardId(0), from: node(2)?, by: node(by)?, expected_epoch: Epoch(epoch) })
    };

    // It lives: no.
    let refused = bare.propose(0, adopt(0, 1)?).await?;
    ensure!(refused.as_ref().is_err_and(|reject| reject.code() == "node_state"), "{refused:?}");

    // It is dead, but the one who is to take over is the dead one, a stranger, or has the wrong epoch.
    bare.stop(2).await?;
    bare.committed_as(2, false).await?;
    let refused = bare.propose(0, adopt(2, 1)?).await?;
    ensure!(refused.as_ref().is_err_and(|reject| reject.code() == "node_state"), "{refused:?}");
    let stranger = NodeName::new("node-z")?;
    let by_stranger = Command::Adopt { shard: ShardId(0), from: node(2)?, by: stranger, expected_epoch: Epoch(1) };
    let refused = bare.propose(0, by_stranger).await?;
    ensure!(refused.as_ref().is_err_and(|reject| reject.code() == "node_state"), "{refused:?}");
    let late = bare.ask(0, adopt(0, 7)?).await?;
    ensure!(matches!(&late, Reply::AlreadyAdopted { epoch: Epoch(1), .. }), "{late:?}");

    // And then: yes.
    let adopted = bare.ask(1, adopt(1, 1)?).await?;
    ensure!(matches!(&adopted, Reply::Adopted(moved) if moved.epoch == Epoch(2)), "{adopted:?}");
    bare.same_state().await?;
    bare.finish().await;
    Ok(())
}
