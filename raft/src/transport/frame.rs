//! Frames between peers: a length, the Raft group, a request id, a kind, and a body.
//!
//! The group is always 0 today. It is in the frame from the first version on, so that several groups
//! can share these connections later without a new protocol.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio_util::codec::LengthDelimitedCodec;

use crate::types::{AppendRequest, LogEntry, decode_payload, encode_payload};
use crate::wire::{AppendHead, WireError, WireLogId, WireVote, decode, encode};

/// The only Raft group so far.
pub(crate) const GROUP: u32 = 0;
/// Largest frame, in bytes. An entry holds at most one oversized request, which the batcher bounds well
/// below this.
pub(crate) const FRAME_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Largest frame before a peer has introduced itself, in bytes.
const FIRST_FRAME_BYTES_MAX: usize = 64 * 1024;

const HEADER_BYTES: usize = 4 + 8 + 1;
/// What is written of a large frame at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 0,
    Append = 1,
    Vote = 2,
    PreVote = 3,
    TransferLeader = 4,
    Propose = 5,
    ReadIndex = 6,
    LeaderGone = 7,
    Ping = 8,
    SnapshotHead = 9,
    SnapshotChunk = 10,
    StateHash = 11,
    /// From a node that has no data, instead of a hello.
    Knock = 12,
    /// A member's replacement, for the leader.
    Replace = 13,
    SnapshotOffer = 14,
    /// The answer to a request, under the request's id.
    Answer = 128,
    /// The peer could not work on the request; the body is a sentence.
    Failed = 129,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Hello,
            1 => Self::Append,
            2 => Self::Vote,
            3 => Self::PreVote,
            4 => Self::TransferLeader,
            5 => Self::Propose,
            6 => Self::ReadIndex,
            7 => Self::LeaderGone,
            8 => Self::Ping,
            9 => Self::SnapshotHead,
            10 => Self::SnapshotChunk,
            11 => Self::StateHash,
            12 => Self::Knock,
            13 => Self::Replace,
            14 => Self::SnapshotOffer,
            128 => Self::Answer,
            129 => Self::Failed,
            _ => return None,
        })
    }
}

/// One frame without its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub group: u32,
    pub id: u64,
    pub kind: Kind,
    pub body: Bytes,
}

impl Frame {
    /// A frame of the only group.
    pub fn new(id: u64, kind: Kind, body: Bytes) -> Self {
        Self { group: GROUP, id, kind, body }
    }

    /// The bytes for the codec, which adds the length.
    pub fn into_bytes(self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + self.body.len());
        self.put_header(&mut bytes);
        bytes.put(self.body);
        bytes.freeze()
    }

    /// Writes the frame as the codec would, but without a copy of its body: piece by piece, each within `limit`. Calls
    /// `moved` after each piece of a large one.
    pub async fn write<W>(self, to: &mut W, limit: Duration, moved: impl Fn()) -> io::Result<()>
    where
        W: AsyncWrite + Unpin,
    {
        let length = HEADER_BYTES + self.body.len();
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a frame of {length} bytes is too large")));
        }
        let mut head = BytesMut::with_capacity(4 + HEADER_BYTES);
        head.put_u32(length as u32);
        self.put_header(&mut head);
        tokio::time::timeout(limit, to.write_all(&head)).await??;
        for piece in self.body.chunks(PIECE_BYTES) {
            tokio::time::timeout(limit, to.write_all(piece)).await??;
            if piece.len() == PIECE_BYTES {
                moved();
            }
        }
        Ok(())
    }

    fn put_header(&self, to: &mut BytesMut) {
        to.put_u32(self.group);
        to.put_u64(self.id);
        to.put_u8(self.kind as u8);
    }

    /// Reads what the codec delivers.
    pub fn from_bytes(mut bytes: Bytes) -> Result<Self, WireError> {
        if bytes.len() < HEADER_BYTES {
            return Err(WireError(format!("a frame of {} bytes is too short", bytes.len())));
        }
        let group = bytes.get_u32();
        let id = bytes.get_u64();
        let byte = bytes.get_u8();
        let kind = Kind::from_byte(byte).ok_or_else(|| WireError(format!("unknown kind of frame: {byte}")))?;
        Ok(Self { group, id, kind, body: bytes })
    }
}

/// The codec of every peer connection; [`admit_large_frames`] follows when the peer is known.
pub(crate) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(FIRST_FRAME_BYTES_MAX).new_codec()
}

/// Lets a peer that is known send frames of any size.
pub(crate) fn admit_large_frames(codec: &mut LengthDelimitedCodec) {
    codec.set_max_frame_length(FRAME_BYTES_MAX);
}

/// The body of an append request: a length, the head, then the payloads as they are in the log.
pub(crate) fn encode_append(request: &AppendRequest) -> Bytes {
    let payloads: Vec<_> = request.entries.iter().map(|e| encode_payload(&e.payload)).collect();
    let head = encode(&AppendHead {
        vote: WireVote::from(&request.vote),
        prev: request.prev_log_id.map(WireLogId::from),
        commit: request.leader_commit.map(WireLogId::from),
        entries: request
            .entries
            .iter()
            .zip(&payloads)
            .map(|(entry, payload)| (entry.log_id.into(), payload.as_bytes().len() as u32))
            .collect(),
    });
    let size: usize = payloads.iter().map(|payload| payload.as_bytes().len()).sum();
    let mut body = BytesMut::with_capacity(4 + head.len() + size);
    body.put_u32(head.len() as u32);
    body.put(head);
    for payload in payloads {
        body.put_slice(payload.as_bytes());
    }
    body.freeze()
}

/// Reads an append request; the payloads share the frame's memory.
pub(crate) fn decode_append(mut body: Bytes) -> Result<AppendRequest, WireError> {
    let short = || WireError("an append request ends too early".to_owned());
    let length = body.try_get_u32().map_err(|_| short())? as usize;
    if body.len() < length {
        return Err(short());
    }
    let head: AppendHead = decode(&body.split_to(length))?;
    let mut entries = Vec::with_capacity(head.entries.len());
    for (id, length) in head.entries {
        if body.len() < length as usize {
            return Err(short());
        }
        let payload = decode_payload(body.split_to(length as usize))?;
        entries.push(LogEntry { log_id: id.into(), payload });
    }
    if !body.is_empty() {
        return Err(WireError(format!("an append request has {} bytes too many", body.len())));
    }
    Ok(AppendRequest {
        vote: head.vote.into(),
        prev_log_id: head.prev.map(Into::into),
        leader_commit: head.commit.map(Into::into),
        entries,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::Millis;

    use super::*;
    use crate::types::{LogId, Payload, Proposal, Vote};
    use crate::wire::LogPayload;

    fn request() -> AppendRequest {
        let entry = LogPayload::entry(Millis(5), [Bytes::from_static(b"request")].iter());
        AppendRequest {
            vote: Vote::new_committed(3, 1),
            prev_log_id: Some(LogId::new_term_index(2, 8)),
            leader_commit: None,
            entries: vec![
                LogEntry { log_id: LogId::new_term_index(3, 9), payload: Payload::Blank },
                LogEntry { log_id: LogId::new_term_index(3, 10), payload: Payload::Normal(Proposal(entry)) },
            ],
        }
    }

    #[test]
    fn append_requests_read_back() {
        let request = request();
        let again = decode_append(encode_append(&request)).unwrap();
        assert_eq!(format!("{again:?}"), format!("{request:?}"));
        assert_eq!(again.entries, request.entries);
    }

    #[test]
    fn cut_append_requests_are_errors() {
        let body = encode_append(&request());
        for length in 0..body.len() {
            assert!(decode_append(body.slice(..length)).is_err(), "cut at {length}");
        }
    }

    #[tokio::test]
    async fn what_is_written_in_pieces_is_what_the_codec_reads() {
        use futures::StreamExt;
        let frames = [PIECE_BYTES * 2 + 1, 3, 0].map(|size| Frame::new(7, Kind::Append, vec![1; size].into()));
        let mut written = Vec::new();
        for frame in frames.clone() {
            frame.write(&mut written, Duration::from_secs(9), || {}).await.unwrap();
        }
        let mut codec = codec();
        admit_large_frames(&mut codec);
        let mut read = tokio_util::codec::FramedRead::new(&written[..], codec);
        for frame in frames {
            assert_eq!(Frame::from_bytes(read.next().await.unwrap().unwrap().freeze()).unwrap(), frame);
        }
        assert!(read.next().await.is_none());
    }

    #[test]
    fn frames_read_back_and_unknown_kinds_are_errors() {
        let frame = Frame::new(7, Kind::Vote, Bytes::from_static(b"body"));
        assert_eq!(Frame::from_bytes(frame.clone().into_bytes()).unwrap(), frame);
        let mut bytes = frame.into_bytes().to_vec();
        bytes[12] = 77;
        assert!(Frame::from_bytes(Bytes::from(bytes)).is_err());
        assert!(Frame::from_bytes(Bytes::from_static(b"short")).is_err());
    }
}
