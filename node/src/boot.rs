//! The boot entry: before a node serves a shard, the log says that its process has started. Whatever its last
//! process had under way is fenced off by that entry, and rows that it held are pending again.

use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{
    BootId, Command, DispatchKey, Epoch, IdempotencyKey, NodeName, ReadMode, Reply, Request, ShardId,
};
use holdfast_raft::{Handle, ProposeError};
use tokio::sync::watch;
use tokio::time::sleep;

/// Pause before another attempt.
const PAUSE: Duration = Duration::from_millis(200);

/// What this process's boot entry did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Booted {
    /// The shards that the node still owned, with their new epochs.
    pub shards: Vec<(ShardId, Epoch)>,
    /// Rows of the last process that are pending again.
    pub rearmed: Vec<DispatchKey>,
}

/// Known once the boot entry is applied here.
pub(crate) type BootWatch = watch::Receiver<Option<Arc<Booted>>>;

/// Proposes the boot until it is committed and applied on this node, then tells `booted`.
pub(crate) async fn boot(handle: Handle, node: NodeName, boot: BootId, booted: watch::Sender<Option<Arc<Booted>>>) {
    let mut refusals = 0u32;
    loop {
        match propose(&handle, &node, &boot, refusals).await {
            Ok((index, Ok(reply))) => {
                if let Err(error) = handle.read_index(ReadMode::AtLeast(index)).await {
                    tracing::debug!(%error, "waiting for the boot entry to be applied");
                    continue;
                }
                tracing::info!(boot = %boot, shards = reply.shards.len(), rearmed = reply.rearmed.len(), "serving");
                booted.send_replace(Some(Arc::new(reply)));
                return;
            }
            Ok((_, Err(refusal))) => {
                refusals += 1;
                tracing::warn!(%refusal, "the cluster does not take this node's boot; trying again");
            }
            Err(ProposeError::Stopped) => return,
            Err(error) => tracing::info!(%error, "waiting for a quorum before this node serves"),
        }
        sleep(PAUSE).await;
    }
}

/// One attempt. Its key is the same until there is an answer, so that a boot whose reply was lost still says
/// what it re-armed; a refusal is remembered under its key, so the next attempt gets another.
async fn propose(
    handle: &Handle,
    node: &NodeName,
    boot: &BootId,
    refusals: u32,
) -> Result<(u64, Result<Booted, String>), ProposeError> {
    let command = Command::Boot { node: node.clone(), boot: boot.clone() };
    let idempotency_key = IdempotencyKey::new(format!("boot/{boot}/{refusals}")).ok();
    let committed = handle.propose(Request { idempotency_key, fence: None, command }).await?;
    let reply = match committed.reply {
        Ok(Reply::Booted { shards, rearmed }) => Ok(Booted { shards, rearmed }),
        Ok(other) => Err(format!("unexpected reply {other:?}")),
        Err(reject) => Err(reject.to_string()),
    };
    Ok((committed.index, reply))
}
