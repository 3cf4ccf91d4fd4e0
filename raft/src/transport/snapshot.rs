//! Sends a snapshot's file to a peer, over a connection of its own so that heartbeats do not wait behind
//! it, and receives one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use holdfast_storage::{SnapshotFile, Snapshots};

use super::frame::{Frame, Kind};
use super::handshake::{Connection, Purpose, connect, receive, send as send_frame};
use super::link::AddressBook;
use super::registry::Registry;
use crate::log_store::blocking;
use crate::snapshot::load;
use crate::types::{Core, Snapshot, Vote};
use crate::wire::{SnapshotAnswer, SnapshotHead, decode, encode};

const CHUNK_BYTES: usize = 256 * 1024;
/// How long one chunk may take to get on its way.
const CHUNK_LIMIT: Duration = Duration::from_secs(10);
/// How long the receiver may take to check and install what it received.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// Sends `snapshot` to `peer` and waits until it is installed there; gives the peer's vote.
pub(crate) async fn send(
    registry: &Registry,
    peer: u64,
    addresses: &AddressBook,
    vote: &Vote,
    snapshot: &Snapshot,
) -> Result<Vote, String> {
    let text = |error: &dyn std::fmt::Display| format!("snapshot to node {peer}: {error}");
    let mut connection = connect(registry, peer, addresses, Purpose::Snapshot).await.map_err(|e| text(&e))?;
    let head = SnapshotHead { vote: vote.into(), length: snapshot.snapshot.length };
    send_frame(&mut connection, Kind::SnapshotHead, encode(&head)).await.map_err(|e| text(&e))?;
    send_file(&mut connection, &snapshot.snapshot).await.map_err(|e| text(&e))?;
    let answer = tokio::time::timeout(INSTALL_LIMIT, receive(&mut connection)).await;
    let frame = answer.map_err(|e| text(&e))?.map_err(|e| text(&e))?;
    match decode(&frame.body).map_err(|e| text(&e))? {
        SnapshotAnswer::Vote(vote) => Ok(vote.into()),
        SnapshotAnswer::Failed(error) => Err(text(&error)),
    }
}

async fn send_file(connection: &mut Connection, file: &SnapshotFile) -> io::Result<()> {
    let mut offset = 0;
    while offset < file.length {
        let source = file.clone();
        let chunk = blocking(move || source.read(offset, CHUNK_BYTES)).await?;
        offset += chunk.len() as u64;
        tokio::time::timeout(CHUNK_LIMIT, send_frame(connection, Kind::SnapshotChunk, chunk))
            .await?
            .map_err(io::Error::other)?;
    }
    Ok(())
}

/// Receives a snapshot, has it installed, and answers.
pub(crate) async fn serve(mut connection: Connection, core: &Core, snapshots: Arc<Snapshots>) {
    let answer = match receive_and_install(&mut connection, core, snapshots).await {
        Ok(vote) => SnapshotAnswer::Vote((&vote).into()),
        Err(error) => {
            tracing::warn!(%error, "a snapshot could not be received");
            SnapshotAnswer::Failed(error.to_string())
        }
    };
    // A sender that is gone will start over.
    let _ = send_frame(&mut connection, Kind::Answer, encode(&answer)).await;
}

async fn receive_and_install(connection: &mut Connection, core: &Core, snapshots: Arc<Snapshots>) -> io::Result<Vote> {
    let frame = receive(connection).await.map_err(io::Error::other)?;
    if frame.kind != Kind::SnapshotHead {
        return Err(io::Error::other("a snapshot has to begin with its head"));
    }
    let head: SnapshotHead = decode(&frame.body).map_err(io::Error::other)?;
    tracing::info!(bytes = head.length, "a snapshot comes");
    let stored = receive_file(connection, head.length, snapshots).await?;
    let snapshot = load(stored)?;
    let installed = core.install_full_snapshot(head.vote.into(), snapshot).await;
    installed.map(|response| response.vote).map_err(io::Error::other)
}

/// Takes the file in. It gets a snapshot's name only when all of it has come and was checked.
async fn receive_file(connection: &mut Connection, length: u64, snapshots: Arc<Snapshots>) -> io::Result<SnapshotFile> {
    let mut receiver = blocking(move || Ok(snapshots.receive()?)).await?;
    while receiver.received() < length {
        let chunk = next_chunk(connection).await?;
        receiver = blocking(move || {
            receiver.write(&chunk)?;
            Ok(receiver)
        })
        .await?;
    }
    if receiver.received() != length {
        let what = format!("{} bytes came; {length} were announced", receiver.received());
        return Err(io::Error::other(what));
    }
    blocking(move || Ok(receiver.finish()?)).await
}

async fn next_chunk(connection: &mut Connection) -> io::Result<Bytes> {
    let next = tokio::time::timeout(CHUNK_LIMIT, connection.next());
    let bytes = next.await?.ok_or(io::ErrorKind::UnexpectedEof)??;
    let frame = Frame::from_bytes(bytes.freeze()).map_err(io::Error::other)?;
    if frame.kind != Kind::SnapshotChunk {
        return Err(io::Error::other("a snapshot's file was broken off"));
    }
    Ok(frame.body)
}
