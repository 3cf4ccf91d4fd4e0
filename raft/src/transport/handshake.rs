//! Who may talk to whom. Both ends say who they are before anything else, and either may refuse.
//! A node that has no data yet has no id to give either: it knocks, and hears what the other knows of it.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use holdfast_machine::NodeName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::frame::{Frame, Kind, admit_large_frames, codec};
use super::link::AddressBook;
use super::registry::{Reception, Refusal, Registry, check_cluster};
use crate::environment::{PeerNetwork, PeerStream};
use crate::types::Incarnation;
use crate::wire::{decode, encode};

/// The version of this protocol.
pub(crate) const PROTOCOL: u32 = 1;
const MAGIC: u64 = u64::from_be_bytes(*b"holdfast");
/// How long either side waits for the other's first frame.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);
/// How long the answer to a knock may take; the leader asks a majority meanwhile.
const KNOCK_LIMIT: Duration = Duration::from_secs(2);

pub(crate) type Connection = Framed<Box<dyn PeerStream>, LengthDelimitedCodec>;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    Requests,
    Snapshot,
}

/// The first frame, from whoever connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    magic: u64,
    protocol: u32,
    cluster: String,
    from: u64,
    name: NodeName,
    to: u64,
    incarnation: Incarnation,
    base: Option<u128>,
    purpose: Purpose,
}

/// The answer to the first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Welcome {
    Accepted { cluster: String, node: u64, name: NodeName, incarnation: Incarnation, base: Option<u128> },
    Refused(Refusal),
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

/// "I have no data. Am I a member?", from a node in front of whose Raft id the cluster's word stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Knock {
    magic: u64,
    protocol: u32,
    cluster: String,
    pub from: NodeName,
    to: NodeName,
    pub incarnation: Incarnation,
}

/// Who has connected.
pub(crate) enum Arrival {
    /// A member that was admitted.
    Peer { node: u64, purpose: Purpose, connection: Connection },
    /// A node that asks for its place, and waits for the [`Reception`].
    Guest { knock: Knock, connection: Connection },
}

fn check_hello(registry: &Registry, hello: &Hello) -> Result<(), Refusal> {
    registry.check_cluster(&hello.cluster)?;
    if hello.to != registry.node {
        let (ours, meant) = (format!("node {}", registry.node), format!("node {}", hello.to));
        return Err(Refusal::WrongNode { ours, meant });
    }
    registry.admit(hello.from, &hello.name, hello.incarnation, hello.base)
}

impl Knock {
    /// Refuses a knock that was meant for another node or cluster.
    pub fn check(&self, cluster: &str, name: &NodeName) -> Result<(), Refusal> {
        check_cluster(cluster, &self.cluster)?;
        if self.to == *name {
            return Ok(());
        }
        Err(Refusal::WrongNode { ours: name.to_string(), meant: self.to.to_string() })
    }
}

/// Magic and version come first in every version, so that they can be judged before the rest is read.
fn read_first<T: DeserializeOwned>(frame: &Frame) -> Result<T, Refusal> {
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
        name: registry.name.clone(),
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
        Welcome::Accepted { cluster, node, name, incarnation, base } => {
            registry.check_cluster(&cluster).map_err(HandshakeError::WeRefused)?;
            if node != peer {
                let (ours, meant) = (format!("node {node}"), format!("node {peer}"));
                return Err(HandshakeError::WeRefused(Refusal::WrongNode { ours, meant }));
            }
            registry.admit(node, &name, incarnation, base).map_err(HandshakeError::WeRefused)
        }
    }
}

/// Waits for whoever has connected to introduce itself. A member is answered; a guest is the caller's to answer.
pub(crate) async fn accept(registry: &Registry, stream: Box<dyn PeerStream>) -> Result<Arrival, HandshakeError> {
    let limit = tokio::time::timeout(HANDSHAKE_LIMIT, async {
        let (frame, mut connection) = first_frame(stream).await?;
        if frame.kind == Kind::Knock {
            let (knock, connection) = read_guest(&frame, connection).await?;
            return Ok(Arrival::Guest { knock, connection });
        }
        let checked = read_hello(&frame).and_then(|hello| check_hello(registry, &hello).map(|()| hello));
        let welcome = match &checked {
            Err(refusal) => Welcome::Refused(refusal.clone()),
            Ok(_) => Welcome::Accepted {
                cluster: registry.cluster.to_string(),
                node: registry.node,
                name: registry.name.clone(),
                incarnation: registry.incarnation,
                base: registry.base,
            },
        };
        send(&mut connection, Kind::Answer, encode(&welcome)).await?;
        let hello = checked.map_err(HandshakeError::WeRefused)?;
        admit_large_frames(connection.codec_mut());
        Ok(Arrival::Peer { node: hello.from, purpose: hello.purpose, connection })
    });
    limit.await.unwrap_or_else(|_| Err(HandshakeError::Broken("no introduction".to_owned())))
}

/// As [`accept`], on a node that is no member yet: members are turned away.
pub(crate) async fn accept_guests(
    name: &NodeName,
    stream: Box<dyn PeerStream>,
) -> Result<(Knock, Connection), HandshakeError> {
    let limit = tokio::time::timeout(HANDSHAKE_LIMIT, async {
        let (frame, mut connection) = first_frame(stream).await?;
        if frame.kind == Kind::Knock {
            return read_guest(&frame, connection).await;
        }
        let refusal = Refusal::NotSeated { name: name.clone() };
        send(&mut connection, Kind::Answer, encode(&Welcome::Refused(refusal.clone()))).await?;
        Err(HandshakeError::WeRefused(refusal))
    });
    limit.await.unwrap_or_else(|_| Err(HandshakeError::Broken("no introduction".to_owned())))
}

async fn first_frame(stream: Box<dyn PeerStream>) -> Result<(Frame, Connection), HandshakeError> {
    let mut connection = Framed::new(stream, codec());
    let frame = receive(&mut connection).await?;
    Ok((frame, connection))
}

fn read_hello(frame: &Frame) -> Result<Hello, Refusal> {
    if frame.kind == Kind::Hello { read_first(frame) } else { Err(Refusal::NotHoldfast) }
}

async fn read_guest(frame: &Frame, mut connection: Connection) -> Result<(Knock, Connection), HandshakeError> {
    match read_first(frame) {
        Ok(knock) => Ok((knock, connection)),
        Err(refusal) => {
            answer_guest(&mut connection, &Reception::Refused(refusal.clone())).await?;
            Err(HandshakeError::WeRefused(refusal))
        }
    }
}

/// Tells a guest what is known of it.
pub(crate) async fn answer_guest(connection: &mut Connection, reception: &Reception) -> Result<(), HandshakeError> {
    send(connection, Kind::Answer, encode(reception)).await
}

/// Asks the member `to`, which listens at `address`, whether this node is a member.
pub(crate) async fn knock(
    network: &dyn PeerNetwork,
    cluster: &str,
    (from, incarnation): (&NodeName, Incarnation),
    (to, address): (&NodeName, &str),
) -> Result<Reception, HandshakeError> {
    let broken = |error: std::io::Error| HandshakeError::Broken(format!("{address}: {error}"));
    let knock = Knock {
        magic: MAGIC,
        protocol: PROTOCOL,
        cluster: cluster.to_owned(),
        from: from.clone(),
        to: to.clone(),
        incarnation,
    };
    let limit = tokio::time::timeout(KNOCK_LIMIT, async {
        let stream = network.connect(address).await.map_err(broken)?;
        let mut connection = Framed::new(stream, codec());
        send(&mut connection, Kind::Knock, encode(&knock)).await?;
        let frame = receive(&mut connection).await?;
        match decode(&frame.body).map_err(|error| HandshakeError::Broken(error.to_string()))? {
            Reception::Refused(refusal) => Err(HandshakeError::TheyRefused(refusal)),
            reception => Ok(reception),
        }
    });
    limit.await.unwrap_or_else(|_| Err(HandshakeError::Broken(format!("{address}: no answer"))))
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

    fn name(id: u64) -> NodeName {
        NodeName::new(format!("node-{id}")).unwrap()
    }

    fn registry(cluster: &str, node: u64, incarnation: Incarnation) -> Registry {
        let names = [name(1), name(2)];
        Registry::new(cluster, (node, &name(node)), incarnation, (1..).zip(&names))
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
            match accept(to, stream).await? {
                Arrival::Peer { node, .. } => Ok(node),
                Arrival::Guest { .. } => panic!("nobody knocked"),
            }
        };
        let addresses = AddressBook::new(network.clone());
        addresses.note(meant, address);
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
            (registry("c", 1, 22), 2, Refusal::WrongNode { ours: "node 1".to_owned(), meant: "node 2".to_owned() }),
        ];
        for (other, meant, expected) in cases {
            let (connected, accepted) = meet(&one, &other, meant).await;
            assert_eq!(refusal(connected), expected);
            assert_eq!(refusal(accepted), expected);
        }
        let stranger = registry("c", 9, 99);
        let (connected, accepted) = meet(&stranger, &one, 1).await;
        assert_eq!(refusal(connected), Refusal::UnknownNode { node: 9, name: name(9) });
        assert_eq!(refusal(accepted), Refusal::UnknownNode { node: 9, name: name(9) });
    }

    #[tokio::test]
    async fn another_data_directory_is_refused_by_either_end() {
        let (one, two) = (registry("c", 1, 11), registry("c", 2, 22));
        meet(&one, &two, 2).await.0.unwrap();
        let wiped = registry("c", 2, 23);
        let changed = Refusal::IncarnationChanged { node: 2, name: name(2), known: 22, found: 23 };
        let (_, accepted) = meet(&wiped, &one, 1).await;
        assert_eq!(refusal(accepted), changed);
        let (connected, _) = meet(&one, &wiped, 2).await;
        assert_eq!(refusal(connected), changed);
    }

    #[tokio::test]
    async fn nodes_that_were_restored_from_other_backups_refuse_each_other() {
        let restored = |node, incarnation, base| registry("c", node, incarnation).with_base(Some(base));
        let one = restored(1, 11, 7);
        let (connected, accepted) = meet(&one, &restored(2, 22, 8), 2).await;
        let seven = format!("{:032x}", 7);
        assert!(matches!(refusal(connected), Refusal::OtherBase { node: 1, .. }));
        assert!(matches!(refusal(accepted), Refusal::OtherBase { node: 1, found, .. } if found == seven));
        // One that was not restored is refused as well.
        let empty = registry("c", 2, 23);
        let (connected, _) = meet(&one, &empty, 2).await;
        assert!(matches!(refusal(connected), Refusal::OtherBase { node: 2, found, .. } if found == "nothing"));
        let (_, accepted) = meet(&empty, &one, 1).await;
        assert!(matches!(refusal(accepted), Refusal::OtherBase { node: 2, .. }));
        meet(&one, &restored(2, 24, 7), 2).await.0.unwrap();
    }

    #[tokio::test]
    async fn a_node_without_data_is_answered_by_either_kind_of_node() {
        let network = Environment::default().network;
        let listen = || {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            (socket.local_addr().unwrap().to_string(), PeerListen::Bound(socket))
        };
        let (one, other) = (registry("c", 1, 11), name(2));
        let ask = async |meant: &str| {
            let (address, socket) = listen();
            let mut listener = network.listen(&socket).await.unwrap();
            let meant = NodeName::new(meant).unwrap();
            let knocking = knock(&*network, "c", (&other, 22), (&meant, &address));
            let answering = async {
                let stream = listener.accept().await.unwrap();
                let Arrival::Guest { knock, mut connection } = accept(&one, stream).await.unwrap() else { panic!() };
                let reception = match knock.check(&one.cluster, &one.name) {
                    Ok(()) => one.receive(&knock.from, knock.incarnation),
                    Err(refusal) => Reception::Refused(refusal),
                };
                answer_guest(&mut connection, &reception).await.unwrap();
            };
            tokio::join!(knocking, answering).0
        };
        assert_eq!(ask("node-1").await.unwrap(), Reception::Unformed);
        let wrong = Refusal::WrongNode { ours: "node-1".to_owned(), meant: "node-9".to_owned() };
        assert_eq!(refusal(ask("node-9").await), wrong);

        // One that is no member itself turns members away.
        let (address, socket) = listen();
        let mut listener = network.listen(&socket).await.unwrap();
        let accepting = async { accept_guests(&other, listener.accept().await.unwrap()).await.map(drop) };
        let addresses = AddressBook::new(network.clone());
        addresses.note(2, address);
        let connecting = async { connect(&one, 2, &addresses, Purpose::Requests).await.map(drop) };
        let (connected, accepted) = tokio::join!(connecting, accepting);
        assert_eq!(refusal(connected), Refusal::NotSeated { name: name(2) });
        assert_eq!(refusal(accepted), Refusal::NotSeated { name: name(2) });
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
