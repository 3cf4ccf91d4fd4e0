//! A worker: it claims rows under a lease, and completes, fails, hands back, or forgets them.

use holdfast_machine::{Claim, Claimant, Claimed, Command, NewHolder, Payload, Reply, Scope};

use super::Caller;
use crate::draw::Draw;

/// Works until there is no more work.
pub async fn worker(mut caller: Caller) -> turmoil::Result {
    let claimant = Claimant::new(&caller.name)?;
    while !caller.world.is_without_work() {
        let lease_ms = caller.random.between(500, 4_000);
        let claim = Claim {
            scope: Scope::default(),
            limit: caller.random.between(1, 4) as u32,
            holder: NewHolder::Lease { claimant: claimant.clone(), lease_ms },
            hold: Vec::new(),
        };
        let settled = caller.settle(Command::Claim(claim), None).await;
        let Ok(Reply::Claimed { claims }) = settled.reply else {
            caller.world.record.broken(format_args!("a claim was answered {:?}", settled.reply));
            return Ok(());
        };
        if claims.is_empty() {
            caller.pause(50, 300).await;
        }
        for claimed in claims {
            work(&mut caller, claimed, lease_ms).await;
        }
    }
    Ok(())
}

async fn work(caller: &mut Caller, claimed: Claimed, lease_ms: u64) {
    let Claimed { key, token, .. } = claimed;
    caller.pause(0, 150).await;
    if caller.random.chance(20) {
        let details = Payload::text("half way");
        caller.settle(Command::Heartbeat { key: key.clone(), token, lease_ms, details }, None).await;
    }
    let (token, text) = (Some(token), Payload::text(&caller.name));
    // When the run ends, everything is to be finished.
    let fate = if caller.world.is_ending() { 99 } else { caller.random.below(100) };
    let command = match fate {
        0..10 => return,
        10..20 => Command::Fail { key, token, error: text, error_type: None, retryable: true },
        20..25 => Command::Fail { key, token, error: text, error_type: None, retryable: false },
        25..30 => Command::Retry { key, token, delay_ms: 100 },
        _ => Command::Complete { key, token, result: text },
    };
    if caller.settle(command, None).await.reply.is_ok() {
        caller.world.record.count("row worked on");
    }
}
