//! Who may talk to whom. Both ends say who they are before anything else, and either may refuse.
//!
//! The rule that matters most: a member that comes with another data directory than the one it was
//! first seen with has lost its disk. It may have voted before and does not know it any more, so it must
//! not vote again; it is refused until it is re-joined as a new member.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::frame::{Frame, Kind, admit_large_frames, codec};
use super::link::AddressBook;
use crate::environment::PeerStream;
use crate::types::Incarnation;
use crate::wire::{decode, encode};

/// The version of this protocol.
pub(crate) const PROTOCOL: u32 = 1;
const MAGIC: u64 = u64::from_be_bytes(*b"holdfast");
/// How long either side waits for the other's first frame.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);

pub(crate) type Connection = Framed<Box<dyn PeerStream>, LengthDelimitedCodec>;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    Requests,
    Snapshot,
}

/// The first frame, from whoever connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    magic: u64,
    protocol: u32,
    cluster: String,
    from: u64,
    to: u64,
    incarnation: Incarnation,
    base: Option<u128>,
    purpose: Purpose,
}

/// The answer to the first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Welcome {
    Accepted { cluster: String, node: u64, incarnation: Incarnation, base: Option<u128> },
    Refused(Refusal),
}

/// Why two nodes do not talk to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The other end is not a Holdfast node.
    #[error("the other end does not speak Holdfast's peer protocol")]
    NotHoldfast,
    /// The two speak different versions.
    #[error("peer protocol {theirs} is not spoken here; this node speaks {ours}")]
    WrongVersion {
        /// The refusing node's version.
        ours: u32,
        /// The refused node's version.
        theirs: u32,
    },
    /// The two belong to different clusters.
    #[error("this is cluster {ours:?}, not {theirs:?}")]
    WrongCluster {
        /// The refusing node's cluster.
        ours: String,
        /// The refused node's cluster.
        theirs: String,
    },
    /// The address leads to another node than was meant.
    #[error("this is node {ours}, not {meant}; check the peer addresses")]
    WrongNode {
        /// The node that answered.
        ours: u64,
        /// The node that was meant.
        meant: u64,
    },
    /// The node is in no membership that this one knows.
    #[error("node {node} is not a member")]
    UnknownNode {
        /// The node.
        node: u64,
    },
    /// The member's data directory is not the one that it was first seen with.
    #[error(
        "node {node} came with another data directory ({found:032x}) than it was first seen with \
         ({known:032x}); a member that lost its disk must not vote. Put that data directory back; without it the \
         node can only re-join as a new member, and members cannot be added in this version yet"
    )]
    IncarnationChanged {
        /// The member.
        node: u64,
        /// The data directory it was first seen with.
        known: Incarnation,
        /// The one it came with.
        found: Incarnation,
    },
    /// The cluster was restored from a backup, and the node was not, or from another one.
    #[error(
        "node {node} began with another state ({found}) than the cluster, which was restored as {known}; restore it \
         from the same backup with the same members"
    )]
    OtherBase {
        /// The member.
        node: u64,
        /// What the refusing node began with.
        known: String,
        /// What the refused one began with.
        found: String,
    },
}

/// Why no connection came about.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// This node refused the other.
    #[error("refused: {0}")]
    WeRefused(Refusal),
    /// The other node refused this one.
    #[error("refused by the peer: {0}")]
    TheyRefused(Refusal),
    /// The connection broke or made no sense.
    #[error("{0}")]
    Broken(String),
}

/// The members that may talk to this node, with the data directories they were first seen with.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    pub cluster: Arc<str>,
    pub node: u64,
    pub incarnation: Incarnation,
    /// What this node's data directory began with, if not empty.
    base: Option<u128>,
    known: Arc<RwLock<BTreeMap<u64, Option<Incarnation>>>>,
}

impl Registry {
    /// Starts with the configured members, none of them seen.
    pub fn new(cluster: &str, node: u64, incarnation: Incarnation, members: impl Iterator<Item = u64>) -> Self {
        let known = members.map(|id| (id, None)).collect();
        Self { cluster: cluster.into(), node, incarnation, base: None, known: Arc::new(RwLock::new(known)) }
    }

    /// The same for a node whose data directory was made with something in it.
    pub fn with_base(self, base: Option<u128>) -> Self {
        Self { base, ..self }
    }

    /// The data directory that a member was first seen with, if it was seen.
    pub fn incarnation_of(&self, node: u64) -> Option<Incarnation> {
        self.known.read().get(&node).copied().flatten()
    }

    /// Takes over what is committed. It outranks what was only seen here.
    pub fn learn_committed(&self, members: impl Iterator<Item = (u64, Option<Incarnation>)>) {
        let mut known = self.known.write();
        for (id, incarnation) in members {
            let seen = known.entry(id).or_default();
            *seen = incarnation.or(*seen);
        }
    }

    /// Checks a member's data directory, and remembers it at first sight. Where the cluster was restored, the first sight
    /// must be of one that was restored as this node was; one that is known already may have joined later, empty.
    fn admit(&self, node: u64, found: Incarnation, base: Option<u128>) -> Result<(), Refusal> {
        let mut members = self.known.write();
        match members.get_mut(&node) {
            None => Err(Refusal::UnknownNode { node }),
            Some(Some(known)) if *known != found => Err(Refusal::IncarnationChanged { node, known: *known, found }),
            Some(None) if self.base.is_some() && base != self.base => {
                let shown = |base: Option<u128>| base.map_or("nothing".to_owned(), |base| format!("{base:032x}"));
                Err(Refusal::OtherBase { node, known: shown(self.base), found: shown(base) })
            }
            Some(seen) => {
                *seen = Some(found);
                Ok(())
            }
        }
    }

    fn check_cluster(&self, theirs: &str) -> Result<(), Refusal> {
        if theirs == &*self.cluster {
            return Ok(());
        }
        Err(Refusal::WrongCluster { ours: self.cluster.to_string(), theirs: theirs.to_owned() })
    }

    fn check_hello(&self, hello: &Hello) -> Result<(), Refusal> {
        self.check_cluster(&hello.cluster)?;
        if hello.to != self.node {
            return Err(Refusal::WrongNode { ours: self.node, meant: hello.to });
        }
        self.admit(hello.from, hello.incarnation, hello.base)
    }
}

/// Magic and version come first in every version, so that they can be judged before the rest is read.
fn read_hello(frame: &Frame) -> Result<Hello, Refusal> {
    if frame.kind != Kind::Hello {
        return Err(Refusal::NotHoldfast);
    }
    let ((magic, theirs), _): ((u64, u32), _) =
        postcard::take_from_bytes(&frame.body).map_err(|_| Refusal::NotHoldfast)?;
    if magic != MAGIC {
        return Err(Refusal::NotHoldfast);
    }
    if theirs != PROTOCOL {
        return Err(Refusal::WrongVersion { ours: PROTOCOL, theirs });
    }
    decode(&frame.body).map_err(|_| Refusal::NotHoldfast)
}

/// Connects to where `peer` listens, looked up anew, and introduces this node to it.
pub(crate) async fn connect(
    registry: &Registry,
    peer: u64,
    addresses: &AddressBook,
    purpose: Purpose,
) -> Result<Connection, HandshakeError> {
    let address = addresses.address(peer);
    let limit = tokio::time::timeout(HANDSHAKE_LIMIT, async {
        let dialled = addresses.dial(&address).await;
        let stream = dialled.map_err(|error| HandshakeError::Broken(format!("{address}: {error}")))?;
        let mut connection = Framed::new(stream, codec());
        introduce(registry, peer, purpose, &mut connection).await?;
        admit_large_frames(connection.codec_mut());
        Ok(connection)
    });
    limit.await.unwrap_or_else(|_| Err(HandshakeError::Broken(format!("{address}: no answer"))))
}

async fn introduce(
    registry: &Registry,
    peer: u64,
    purpose: Purpose,
    connection: &mut Connection,
) -> Result<(), HandshakeError> {
    let hello = Hello {
        magic: MAGIC,
        protocol: PROTOCOL,
        cluster: registry.cluster.to_string(),
        from: registry.node,
        to: peer,
        incarnation: registry.incarnation,
        base: registry.base,
        purpose,
    };
    send(connection, Kind::Hello, encode(&hello)).await?;
    let frame = receive(connection).await?;
    let welcome: Welcome = match frame.kind {
        Kind::Answer => decode(&frame.body).map_err(|e| HandshakeError::Broken(e.to_string()))?,
        _ => return Err(HandshakeError::WeRefused(Refusal::NotHoldfast)),
    };
    match welcome {
        Welcome::Refused(refusal) => Err(HandshakeError::TheyRefused(refusal)),
        Welcome::Accepted { cluster, node, incarnation, base } => {
            registry.check_cluster(&cluster).map_err(HandshakeError::WeRefused)?;
            if node != peer {
                let refusal = Refusal::WrongNode { ours: node, meant: peer };
                return Err(HandshakeError::WeRefused(refusal));
            }
            registry.admit(node, incarnation, base).map_err(HandshakeError::WeRefused)
        }
    }
}

/// Waits for whoever has connected to introduce itself, and answers. Gives the peer's id.
pub(crate) async fn accept(
    registry: &Registry,
    stream: Box<dyn PeerStream>,
) -> Result<(u64, Purpose, Connection), HandshakeError> {
    let limit = tokio::time::timeout(HANDSHAKE_LIMIT, async {
        let mut connection = Framed::new(stream, codec());
        let frame = receive(&mut connection).await?;
        let checked = read_hello(&frame).and_then(|hello| registry.check_hello(&hello).map(|()| hello));
        let welcome = match &checked {
            Err(refusal) => Welcome::Refused(refusal.clone()),
            Ok(_) => Welcome::Accepted {
                cluster: registry.cluster.to_string(),
                node: registry.node,
                incarnation: registry.incarnation,
                base: registry.base,
            },
        };
        send(&mut connection, Kind::Answer, encode(&welcome)).await?;
        let hello = checked.map_err(HandshakeError::WeRefused)?;
        admit_large_frames(connection.codec_mut());
        Ok((hello.from, hello.purpose, connection))
    });
    limit.await.unwrap_or_else(|_| Err(HandshakeError::Broken("no introduction".to_owned())))
}

/// Sends one frame outside of any request.
pub(crate) async fn send(connection: &mut Connection, kind: Kind, body: bytes::Bytes) -> Result<(), HandshakeError> {
    connection
        .send(Frame::new(0, kind, body).into_bytes())
        .await
        .map_err(|error| HandshakeError::Broken(error.to_string()))
}

/// Receives one frame outside of any request.
pub(crate) async fn receive(connection: &mut Connection) -> Result<Frame, HandshakeError> {
    match connection.next().await {
        None => Err(HandshakeError::Broken("the connection was closed".to_owned())),
        Some(Err(error)) => Err(HandshakeError::Broken(error.to_string())),
        Some(Ok(bytes)) => Frame::from_bytes(bytes.freeze()).map_err(|error| HandshakeError::Broken(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::environment::Environment;
    use crate::options::PeerListen;

    fn registry(cluster: &str, node: u64, incarnation: Incarnation) -> Registry {
        Registry::new(cluster, node, incarnation, [1, 2].into_iter())
    }

    /// Connects `from` to `to`, as to node `meant`: what each of the two came to.
    async fn meet(
        from: &Registry,
        to: &Registry,
        meant: u64,
    ) -> (Result<(), HandshakeError>, Result<u64, HandshakeError>) {
        let network = Environment::default().network;
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let mut listener = network.listen(&PeerListen::Bound(socket)).await.unwrap();
        let accepting = async {
            let stream = listener.accept().await.unwrap();
            accept(to, stream).await.map(|(peer, ..)| peer)
        };
        let addresses = AddressBook::new(network.clone(), [(meant, address)].into());
        let connecting = async { connect(from, meant, &addresses, Purpose::Requests).await.map(drop) };
        tokio::join!(connecting, accepting)
    }

    fn refusal<T: std::fmt::Debug>(outcome: Result<T, HandshakeError>) -> Refusal {
        match outcome.unwrap_err() {
            HandshakeError::WeRefused(refusal) | HandshakeError::TheyRefused(refusal) => refusal,
            HandshakeError::Broken(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn members_of_one_cluster_meet_and_remember_each_other() {
        let (one, two) = (registry("c", 1, 11), registry("c", 2, 22));
        let (connected, accepted) = meet(&one, &two, 2).await;
        connected.unwrap();
        assert_eq!(accepted.unwrap(), 1);
        assert_eq!(one.incarnation_of(2), Some(22));
        assert_eq!(two.incarnation_of(1), Some(11));
    }

    #[tokio::test]
    async fn both_ends_hear_why_they_do_not_talk() {
        let one = registry("c", 1, 11);
        let cases = [
            (registry("d", 2, 22), 2, Refusal::WrongCluster { ours: "d".to_owned(), theirs: "c".to_owned() }),
            (registry("c", 1, 22), 2, Refusal::WrongNode { ours: 1, meant: 2 }),
        ];
        for (other, meant, expected) in cases {
            let (connected, accepted) = meet(&one, &other, meant).await;
            assert_eq!(refusal(connected), expected);
            assert_eq!(refusal(accepted), expected);
        }
        let stranger = registry("c", 9, 99);
        let (connected, accepted) = meet(&stranger, &one, 1).await;
        assert_eq!(refusal(connected), Refusal::UnknownNode { node: 9 });
        assert_eq!(refusal(accepted), Refusal::UnknownNode { node: 9 });
    }

    #[tokio::test]
    async fn another_data_directory_is_refused_by_either_end() {
        let (one, two) = (registry("c", 1, 11), registry("c", 2, 22));
        meet(&one, &two, 2).await.0.unwrap();
        let wiped = registry("c", 2, 23);
        let changed = Refusal::IncarnationChanged { node: 2, known: 22, found: 23 };
        let (_, accepted) = meet(&wiped, &one, 1).await;
        assert_eq!(refusal(accepted), changed);
        let (connected, _) = meet(&one, &wiped, 2).await;
        assert_eq!(refusal(connected), changed);
        // What is committed outranks what was seen, and a member without a record stays as it was seen.
        one.learn_committed([(1, None), (2, Some(23))].into_iter());
        meet(&one, &wiped, 2).await.0.unwrap();
        one.learn_committed([(2, None)].into_iter());
        assert_eq!(one.incarnation_of(2), Some(23));
    }

    #[tokio::test]
    async fn nodes_that_were_restored_from_other_backups_refuse_each_other() {
        let restored = |node, incarnation, base| registry("c", node, incarnation).with_base(Some(base));
        let one = restored(1, 11, 7);
        let (connected, accepted) = meet(&one, &restored(2, 22, 8), 2).await;
        let seven = format!("{:032x}", 7);
        assert!(matches!(refusal(connected), Refusal::OtherBase { node: 1, .. }));
        assert!(matches!(refusal(accepted), Refusal::OtherBase { node: 1, found, .. } if found == seven));
        // One that was not restored is refused as well, unless the cluster has taken it in as it is.
        let empty = registry("c", 2, 23);
        let (connected, _) = meet(&one, &empty, 2).await;
        assert!(matches!(refusal(connected), Refusal::OtherBase { node: 2, found, .. } if found == "nothing"));
        let (_, accepted) = meet(&empty, &one, 1).await;
        assert!(matches!(refusal(accepted), Refusal::OtherBase { node: 2, .. }));
        one.learn_committed([(2, Some(23))].into_iter());
        meet(&empty, &one, 1).await.0.unwrap();
        meet(&one, &restored(2, 23, 7), 2).await.0.unwrap();
    }

    #[test]
    fn other_versions_and_other_programs_are_told_apart() {
        let hello = |magic: u64, protocol: u32| {
            // A later version may say more than this one understands.
            Frame::new(0, Kind::Hello, encode(&(magic, protocol, "something else")))
        };
        let newer = Refusal::WrongVersion { ours: PROTOCOL, theirs: PROTOCOL + 1 };
        assert_eq!(read_hello(&hello(MAGIC, PROTOCOL + 1)).unwrap_err(), newer);
        assert_eq!(read_hello(&hello(MAGIC + 1, PROTOCOL)).unwrap_err(), Refusal::NotHoldfast);
        assert_eq!(read_hello(&hello(MAGIC, PROTOCOL)).unwrap_err(), Refusal::NotHoldfast);
        let ping = Frame::new(0, Kind::Ping, bytes::Bytes::new());
        assert_eq!(read_hello(&ping).unwrap_err(), Refusal::NotHoldfast);
    }
}
