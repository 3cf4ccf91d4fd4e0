//! What is stored in the log and sent between peers: postcard inside, enums that grow at the end.
//!
//! A log payload is one byte for its kind and then its body. The batcher builds these bytes once; they
//! go to the log and to the peers as they are. A struct here that has shipped is never edited; a new
//! version is a new variant.

use bytes::{BufMut, Bytes, BytesMut};
use holdfast_machine::{Entry, Liveness, Millis, NodeName, Reject, Reply};
use holdfast_storage::RoomLevel;
use holdfast_storage::SnapshotId;
use postcard::ser_flavors::Size;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::replacement::{ReplaceError, Replacement};
use crate::types::Incarnation;

/// Bytes that do not stand for what they should.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot be decoded: {0}")]
pub(crate) struct WireError(pub String);

/// Encodes a value.
pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    // postcard into memory fails only for types without a known length, and none of ours is one.
    postcard::to_stdvec(value).map(Bytes::from).unwrap_or_else(|error| {
        unreachable!("wire types always encode: {error}");
    })
}

/// The number of bytes that [`encode`] makes of a value.
pub(crate) fn encoded_size<T: Serialize>(value: &T) -> usize {
    // As above.
    postcard::serialize_with_flavor(value, Size::default()).unwrap_or_else(|error| {
        unreachable!("wire types always encode: {error}");
    })
}

/// Decodes a value; all bytes must be used.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|e| WireError(e.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(WireError(format!("{} bytes too many", rest.len()))) }
}

/// A log id: (term, index).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct WireLogId {
    pub term: u64,
    pub index: u64,
}

/// A vote; committed when it is a leader's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVote {
    pub term: u64,
    pub node: u64,
    pub committed: bool,
}

/// One node's record in a membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeRecord {
    /// Since 0.1.
    V1 {
        name: NodeName,
        peer_addr: String,
        http_addr: String,
        liveness: Liveness,
        incarnation: Option<Incarnation>,
        replaces: Option<u64>,
    },
}

/// A membership: one set of voters, or two while voters change, and a record for each node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MembershipRecord {
    /// Since 0.1.
    V1 { configs: Vec<Vec<u64>>, nodes: Vec<(u64, NodeRecord)> },
}

/// A membership together with the log id that brought it, as it is stored with the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StoredMembershipRecord {
    /// Since 0.1.
    V1 { log_id: Option<WireLogId>, membership: MembershipRecord },
}

/// What a log payload holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadKind {
    Blank,
    Normal,
    Membership,
}

const KIND_BLANK: u8 = 0;
const KIND_NORMAL: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

/// A log payload, encoded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct LogPayload(Bytes);

impl LogPayload {
    /// The entry that opens a leader's term.
    pub fn blank() -> Self {
        Self(Bytes::from_static(&[KIND_BLANK]))
    }

    /// A membership entry.
    pub fn membership(record: &MembershipRecord) -> Self {
        let mut bytes = BytesMut::new();
        bytes.put_u8(KIND_MEMBERSHIP);
        bytes.put(encode(record));
        Self(bytes.freeze())
    }

    /// An entry of requests that are encoded already. The result is what encoding an
    /// [`Entry`] gives; a test holds the two together.
    pub fn entry<'a>(at: Millis, requests: impl ExactSizeIterator<Item = &'a Bytes> + Clone) -> Self {
        let size: usize = requests.clone().map(|request| request.len()).sum();
        let mut bytes = BytesMut::with_capacity(size + 32);
        bytes.put_u8(KIND_NORMAL);
        bytes.put(encode(&at));
        bytes.put(encode(&requests.len()));
        for request in requests {
            bytes.put_slice(request);
        }
        Self(bytes.freeze())
    }

    /// Takes stored or received bytes; checks the kind only.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, WireError> {
        let payload = Self(bytes);
        payload.kind()?;
        Ok(payload)
    }

    /// The bytes to store and to send.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// What the payload holds.
    pub fn kind(&self) -> Result<PayloadKind, WireError> {
        match self.0.first() {
            Some(&KIND_BLANK) => Ok(PayloadKind::Blank),
            Some(&KIND_NORMAL) => Ok(PayloadKind::Normal),
            Some(&KIND_MEMBERSHIP) => Ok(PayloadKind::Membership),
            Some(other) => Err(WireError(format!("unknown kind of log payload: {other}"))),
            None => Err(WireError("empty log payload".to_owned())),
        }
    }

    /// The requests of a normal payload.
    pub fn as_entry(&self) -> Result<Entry, WireError> {
        decode(&self.0[1..])
    }

    /// The membership of a membership payload.
    pub fn as_membership(&self) -> Result<MembershipRecord, WireError> {
        decode(&self.0[1..])
    }
}

/// The head of an append request; the payloads follow it, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppendHead {
    pub vote: WireVote,
    pub prev: Option<WireLogId>,
    pub commit: Option<WireLogId>,
    /// Log id and payload length of each entry.
    pub entries: Vec<(WireLogId, u32)>,
}

/// The answer to an append request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AppendAnswer {
    Success,
    Partial(Option<WireLogId>),
    Conflict,
    HigherVote(WireVote),
}

/// A request for a vote, or for the promise of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteAsk {
    pub vote: WireVote,
    pub last: Option<WireLogId>,
    pub leadership_transfer: bool,
}

/// The answer to a request for a vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteAnswer {
    pub vote: WireVote,
    pub granted: bool,
    pub last: Option<WireLogId>,
}

/// A leader hands over to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferAsk {
    pub from: WireVote,
    pub to: u64,
    pub last: Option<WireLogId>,
}

/// The answer to [`TransferAsk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TransferAnswer {
    Accepted,
    VoteChanged { expected: WireVote, actual: WireVote },
    LogNotFlushed { expected: Option<WireLogId>, actual: Option<WireLogId> },
}

/// "I take the leader of this term for dead. Do you?"
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaderGoneAsk {
    pub term: u64,
    pub leader: u64,
}

/// The answer to [`LeaderGoneAsk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaderGoneAnswer {
    /// True if the peer follows the same leader in the same term and takes it for dead as well.
    pub agreed: bool,
    /// How far the peer's log reaches.
    pub last: Option<WireLogId>,
}

/// A request passed on to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProposeAsk {
    /// How long the caller will wait, in milliseconds.
    pub wait_ms: u64,
    /// The encoded request.
    pub request: Bytes,
}

impl ProposeAsk {
    /// As [`decode`], but without a copy: the request shares the body's memory.
    pub fn within(body: &Bytes) -> Result<Self, WireError> {
        let ((wait_ms, length), request): ((u64, u64), _) =
            postcard::take_from_bytes(body).map_err(|error| WireError(error.to_string()))?;
        if request.len() as u64 != length {
            return Err(WireError(format!("a request of {length} bytes has {}", request.len())));
        }
        Ok(Self { wait_ms, request: body.slice_ref(request) })
    }
}

/// The leader's answer to a request that was passed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProposeAnswer {
    Committed {
        index: u64,
        at: Millis,
        reply: Result<Reply, Reject>,
    },
    /// Never appended: the node does not lead, or cannot reach a quorum.
    NotAppended,
    Unknown,
    Overloaded,
    StorageFull,
    TooLarge {
        limit: u64,
        actual: u64,
    },
    Stopped,
}

/// The leader's answer to a request for an index to read at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReadAnswer {
    At(u64),
    NotLeading,
}

/// "What was the hash of your state as of this index?"
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateHashAsk {
    pub index: u64,
}

/// The answer to [`StateHashAsk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateHashAnswer {
    /// None if the peer is not as far, or does not remember.
    pub hash: Option<u64>,
}

/// The room on a node's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(crate) enum RoomRecord {
    Plenty = 0,
    Low = 1,
    Out = 2,
}

impl RoomRecord {
    /// The record of this number; of one that is not known, the worst.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Plenty,
            1 => Self::Low,
            _ => Self::Out,
        }
    }
}

impl From<RoomLevel> for RoomRecord {
    fn from(level: RoomLevel) -> Self {
        match level {
            RoomLevel::Plenty => Self::Plenty,
            RoomLevel::Low => Self::Low,
            RoomLevel::Out => Self::Out,
        }
    }
}

impl From<RoomRecord> for RoomLevel {
    fn from(record: RoomRecord) -> Self {
        match record {
            RoomRecord::Plenty => Self::Plenty,
            RoomRecord::Low => Self::Low,
            RoomRecord::Out => Self::Out,
        }
    }
}

/// The answer to a ping. An empty one is from a node that tells nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PingAnswer {
    /// Since 0.2.
    V1 { room: RoomRecord },
}

/// Offers a snapshot; the answer is where its transfer is to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotOffer {
    pub vote: WireVote,
    pub id: SnapshotId,
}

/// Opens a snapshot's transfer to a node of 0.1, which takes no offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotHead {
    pub vote: WireVote,
    /// Length of the file in bytes.
    pub length: u64,
}

/// Answers an offer, and closes a snapshot's transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SnapshotAnswer {
    /// The receiver's vote; a higher one than the sender's means that the snapshot was refused.
    Vote(WireVote),
    Failed(String),
    /// Since 0.2, as the answer to an offer: the bytes that the receiver has already.
    From(u64),
    /// Since 0.2, instead of it.
    Refused(String),
}

/// A request to replace a member, passed on to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplaceAsk {
    pub name: NodeName,
    pub dry_run: bool,
}

/// The leader's answer to [`ReplaceAsk`].
pub(crate) type ReplaceAnswer = Result<Replacement, ReplaceError>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{Command, Request};

    use super::*;

    fn request(shard_count: u32) -> Request {
        Command::Create { shard_count }.into()
    }

    #[test]
    fn requests_encoded_one_by_one_make_an_entry() {
        for count in [0u32, 1, 3, 200] {
            let requests: Vec<Request> = (0..count).map(request).collect();
            let encoded: Vec<Bytes> = requests.iter().map(encode).collect();
            let payload = LogPayload::entry(Millis(1_700_000_000_123), encoded.iter());
            let entry = Entry { at: Millis(1_700_000_000_123), requests };
            assert_eq!(payload.as_bytes()[1..], encode(&entry)[..]);
            assert_eq!(payload.as_entry().unwrap(), entry);
            assert_eq!(payload.kind().unwrap(), PayloadKind::Normal);
        }
    }

    #[test]
    fn requests_that_are_passed_on_read_back_without_a_copy() {
        for size in [0, 1, 200, 70_000] {
            let ask = ProposeAsk { wait_ms: 1 << 20, request: vec![3; size].into() };
            let body = encode(&ask);
            assert_eq!(encoded_size(&ask), body.len());
            let within = ProposeAsk::within(&body).unwrap();
            assert_eq!(within, ask);
            assert!(size == 0 || body.as_ptr_range().contains(&within.request.as_ptr()));
            let longer = Bytes::from([&body[..], &[0]].concat());
            assert!(ProposeAsk::within(&body.slice(..body.len() - 1)).is_err() && ProposeAsk::within(&longer).is_err());
        }
    }

    #[test]
    fn memberships_read_back() {
        let record = MembershipRecord::V1 {
            configs: vec![vec![1, 2, 3]],
            nodes: vec![(
                1,
                NodeRecord::V1 {
                    name: NodeName::new("node-a").unwrap(),
                    peer_addr: "a:1".to_owned(),
                    http_addr: String::new(),
                    liveness: Liveness::Joining,
                    incarnation: Some(u128::MAX),
                    replaces: Some(9),
                },
            )],
        };
        let payload = LogPayload::membership(&record);
        let again = LogPayload::from_bytes(payload.as_bytes().clone()).unwrap();
        assert_eq!(again.as_membership().unwrap(), record);
    }

    #[test]
    fn damaged_bytes_are_errors() {
        assert!(LogPayload::from_bytes(Bytes::new()).is_err());
        assert!(LogPayload::from_bytes(Bytes::from_static(&[9])).is_err());
        let mut bytes = encode(&WireLogId { term: 1, index: 2 }).to_vec();
        bytes.push(0);
        assert!(decode::<WireLogId>(&bytes).is_err());
        assert!(decode::<WireVote>(&[1]).is_err());
    }
}
