//! Sends a snapshot's file to a peer, over a connection of its own so that heartbeats do not wait behind it, and receives
//! one. A transfer that was broken off goes on where it was: the receiver keeps what has come, and says how much.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use holdfast_storage::{SnapshotFile, SnapshotId, Snapshots};
use serde::Serialize;

use super::frame::{Frame, Kind};
use super::handshake::{Connection, Purpose, connect, receive, send as send_frame};
use super::link::AddressBook;
use super::registry::Registry;
use crate::log_store::blocking;
use crate::snapshot::load;
use crate::transfers::Attempt;
use crate::types::{Core, Snapshot, Vote};
use crate::wire::{SnapshotAnswer, SnapshotHead, SnapshotOffer, decode, encode};

const CHUNK_BYTES: usize = 256 * 1024;
/// How long one chunk may take to get on its way.
const CHUNK_LIMIT: Duration = Duration::from_secs(10);
/// How long the receiver may take to look at what it has.
const OFFER_LIMIT: Duration = Duration::from_secs(60);
/// How long the receiver may take to check and install what it received.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// Where and how a peer is reached.
pub(crate) struct Target<'a> {
    pub registry: &'a Registry,
    pub peer: u64,
    pub addresses: &'a AddressBook,
}

/// Sends `snapshot` and waits until it is installed at the target; gives the target's vote.
pub(crate) async fn send(
    target: &Target<'_>,
    vote: &Vote,
    snapshot: &Snapshot,
    attempt: &Attempt,
) -> Result<Vote, String> {
    let sent = try_send(target, vote, &snapshot.snapshot, attempt).await;
    sent.map_err(|error| format!("snapshot to node {}: {error}", target.peer))
}

async fn try_send(target: &Target<'_>, vote: &Vote, file: &SnapshotFile, attempt: &Attempt) -> io::Result<Vote> {
    let source = file.clone();
    let id = blocking(move || source.id()).await?;
    let offer = SnapshotOffer { vote: vote.into(), id };
    let mut connection = open(target, Kind::SnapshotOffer, &offer).await?;
    let from = match answer(&mut connection, OFFER_LIMIT).await? {
        SnapshotAnswer::From(from) => from,
        SnapshotAnswer::Vote(vote) => return Ok(vote.into()),
        SnapshotAnswer::Refused(error) => return Err(io::Error::other(error)),
        // It does not know what an offer is.
        SnapshotAnswer::Failed(_) => {
            let head = SnapshotHead { vote: vote.into(), length: file.length };
            connection = open(target, Kind::SnapshotHead, &head).await?;
            0
        }
    };
    attempt.reached();
    if from > 0 {
        tracing::info!(peer = target.peer, from, length = file.length, "a snapshot's transfer goes on where it was");
    }
    send_file(&mut connection, file, from).await?;
    match answer(&mut connection, INSTALL_LIMIT).await? {
        SnapshotAnswer::Vote(vote) => Ok(vote.into()),
        SnapshotAnswer::Failed(error) | SnapshotAnswer::Refused(error) => Err(io::Error::other(error)),
        SnapshotAnswer::From(_) => Err(io::Error::other("an answer out of turn")),
    }
}

async fn open(target: &Target<'_>, kind: Kind, first: &impl Serialize) -> io::Result<Connection> {
    let connected = connect(target.registry, target.peer, target.addresses, Purpose::Snapshot).await;
    let mut connection = connected.map_err(io::Error::other)?;
    send_frame(&mut connection, kind, encode(first)).await.map_err(io::Error::other)?;
    Ok(connection)
}

async fn answer(connection: &mut Connection, limit: Duration) -> io::Result<SnapshotAnswer> {
    let frame = tokio::time::timeout(limit, receive(connection)).await?.map_err(io::Error::other)?;
    decode(&frame.body).map_err(io::Error::other)
}

async fn send_file(connection: &mut Connection, file: &SnapshotFile, mut offset: u64) -> io::Result<()> {
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
            SnapshotAnswer::Refused(error.to_string())
        }
    };
    // A sender that is gone will come again.
    let _ = send_frame(&mut connection, Kind::Answer, encode(&answer)).await;
}

async fn receive_and_install(connection: &mut Connection, core: &Core, snapshots: Arc<Snapshots>) -> io::Result<Vote> {
    let frame = receive(connection).await.map_err(io::Error::other)?;
    let (vote, stored) = match frame.kind {
        Kind::SnapshotOffer => {
            let SnapshotOffer { vote, id } = decode(&frame.body).map_err(io::Error::other)?;
            tracing::info!(bytes = id.length, "a snapshot comes");
            (vote, receive_file(connection, id, true, snapshots).await?)
        }
        Kind::SnapshotHead => {
            let SnapshotHead { vote, length } = decode(&frame.body).map_err(io::Error::other)?;
            (vote, receive_file(connection, SnapshotId::unknown(length), false, snapshots).await?)
        }
        _ => return Err(io::Error::other("a snapshot has to begin with its head")),
    };
    let snapshot = load(stored)?;
    let installed = core.install_full_snapshot(vote.into(), snapshot).await;
    installed.map(|response| response.vote).map_err(io::Error::other)
}

/// Takes the file in. It gets a snapshot's name only when all of it has come and was checked.
async fn receive_file(
    connection: &mut Connection,
    id: SnapshotId,
    offered: bool,
    snapshots: Arc<Snapshots>,
) -> io::Result<SnapshotFile> {
    let mut receiver = blocking(move || Ok(snapshots.receive(&id)?)).await?;
    if offered {
        let from = SnapshotAnswer::From(receiver.received());
        send_frame(connection, Kind::Answer, encode(&from)).await.map_err(io::Error::other)?;
    }
    while receiver.received() < id.length {
        let chunk = next_chunk(connection).await?;
        receiver = blocking(move || {
            receiver.write(&chunk)?;
            Ok(receiver)
        })
        .await?;
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
