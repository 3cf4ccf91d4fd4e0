//! What a node does that starts without any data: it finds out whether it may take part.
//!
//! An empty disk under a known name is a new member of a new cluster, or one that has lost what it voted for. Only the
//! others can tell. So the node asks each of them, and takes its place, under a Raft id that is written down, only when
//!
//! - somebody says that this very data directory is committed as a member: it was let in as a replacement; or
//! - a leader with a majority says that the member was never seen; or
//! - all others say that they know of no cluster, or that the member was never seen there: nobody is left who could
//!   know better. A new cluster therefore begins when all its members have been started.
//!
//! In all other cases it waits and asks again. It runs no Raft meanwhile, so that it cannot vote.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_machine::NodeName;
use holdfast_storage::{DataDir, StorageError};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::environment::{PeerListener, PeerNetwork};
use crate::open::SPACE_PAUSE;
use crate::options::MemberConfig;
use crate::status::Standing;
use crate::transport::handshake::{HandshakeError, accept_guests, answer_guest, knock};
use crate::transport::registry::Reception;
use crate::types::Incarnation;

/// Between two rounds of questions.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// The same for a node that has lost its data and waits for an operator.
const LOST_PAUSE: Duration = Duration::from_millis(500);

/// A place in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The Raft id.
    pub node: u64,
    /// There is no cluster yet, as far as the others know.
    pub founds: bool,
}

impl Place {
    /// Has the data directory know it; waits where there is no space for that, since a restart would do no more.
    pub async fn write_down(self, dir: &DataDir) -> Result<(), StorageError> {
        loop {
            match dir.assign(self.node) {
                Err(error) if error.is_full() => {
                    tracing::error!(%error, "no space on the disk; waiting for it");
                    tokio::time::sleep(SPACE_PAUSE).await;
                }
                assigned => return assigned,
            }
        }
    }
}

/// A node that asks for its place.
#[derive(Clone)]
pub(crate) struct Applicant {
    pub cluster: Arc<str>,
    pub name: NodeName,
    /// The id that the configuration gives it.
    pub configured: u64,
    pub incarnation: Incarnation,
    pub others: Vec<MemberConfig>,
    pub network: Arc<dyn PeerNetwork>,
    pub standing: Arc<watch::Sender<Standing>>,
    pub tasks: TaskTracker,
}

type Said = (NodeName, Result<Reception, HandshakeError>);

impl Applicant {
    /// Asks until there is a place, and answers others that ask.
    pub async fn place(&self, listener: &mut dyn PeerListener) -> Place {
        tokio::select! {
            place = self.ask() => place,
            never = self.answer(listener) => match never {},
        }
    }

    async fn ask(&self) -> Place {
        loop {
            let ask = |other: &MemberConfig| {
                let (name, address) = (other.name.clone(), other.peer_addr.clone());
                async move {
                    let said =
                        knock(&*self.network, &self.cluster, (&self.name, self.incarnation), (&name, &address)).await;
                    (name, said)
                }
            };
            let said = join_all(self.others.iter().map(ask)).await;
            let standing = match self.judge(&said) {
                Ok(place) => return place,
                Err(standing) => standing,
            };
            let pause = if matches!(standing, Standing::Lost { .. }) { LOST_PAUSE } else { ASK_PAUSE };
            self.tell(standing);
            tokio::time::sleep(pause).await;
        }
    }

    fn judge(&self, said: &[Said]) -> Result<Place, Standing> {
        let heard = || said.iter().filter_map(|(name, said)| Some((name, said.as_ref().ok()?)));
        if let Some(node) = heard().find_map(|(_, said)| match said {
            Reception::Member { node } | Reception::Expected { node, confirmed: true } => Some(*node),
            _ => None,
        }) {
            return Ok(Place { node, founds: false });
        }
        if let Some((by, node)) = heard().find_map(|(name, said)| match said {
            Reception::Lost { node, .. } => Some((name.clone(), *node)),
            _ => None,
        }) {
            return Err(Standing::Lost { node, by });
        }
        if let Some((by, _)) = heard().find(|(_, said)| matches!(said, Reception::Stranger)) {
            return Err(Standing::Stranger { by: by.clone() });
        }
        let expected: Vec<u64> = heard()
            .filter_map(|(_, said)| match said {
                Reception::Expected { node, .. } => Some(*node),
                _ => None,
            })
            .collect();
        let missing: Vec<(NodeName, String)> = said
            .iter()
            .filter_map(|(name, said)| match said {
                Ok(Reception::Unformed | Reception::Expected { .. }) => None,
                Ok(_) => Some((name.clone(), "it is being decided on".to_owned())),
                Err(error) => Some((name.clone(), error.to_string())),
            })
            .collect();
        let node = expected.first().copied().unwrap_or(self.configured);
        if !missing.is_empty() || expected.iter().any(|other| *other != node) {
            return Err(Standing::Asking { missing });
        }
        Ok(Place { node, founds: expected.is_empty() })
    }

    /// Says once what the node waits for.
    fn tell(&self, standing: Standing) {
        self.standing.send_if_modified(|told| {
            let changed = *told != standing;
            if changed {
                match &standing {
                    Standing::Lost { .. } | Standing::Stranger { .. } => tracing::error!("{standing}"),
                    _ => tracing::info!("{standing}"),
                }
            }
            *told = standing;
            changed
        });
    }

    /// Others that ask hear that this one knows of nothing either.
    async fn answer(&self, listener: &mut dyn PeerListener) -> std::convert::Infallible {
        loop {
            let Ok(stream) = listener.accept().await else {
                tokio::time::sleep(ASK_PAUSE).await;
                continue;
            };
            let (cluster, name) = (self.cluster.clone(), self.name.clone());
            self.tasks.spawn(async move {
                match accept_guests(&name, stream).await {
                    Err(error) => tracing::debug!(%error, "a connection was turned away"),
                    Ok((knock, mut connection)) => {
                        let checked = knock.check(&cluster, &name);
                        let reception = checked.map_or_else(Reception::Refused, |()| Reception::Unformed);
                        // It asks again.
                        let _ = answer_guest(&mut connection, &reception).await;
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn name(id: u64) -> NodeName {
        NodeName::new(format!("node-{id}")).unwrap()
    }

    fn judged(said: [Option<Reception>; 2]) -> Result<Place, Standing> {
        let applicant = Applicant {
            cluster: "c".into(),
            name: name(3),
            configured: 3,
            incarnation: 33,
            others: Vec::new(),
            network: crate::environment::Environment::default().network,
            standing: Arc::new(watch::Sender::new(Standing::Member)),
            tasks: TaskTracker::new(),
        };
        let said = (1..)
            .zip(said)
            .map(|(id, said)| (name(id), said.ok_or_else(|| HandshakeError::Broken("connection refused".to_owned()))));
        applicant.judge(&said.collect::<Vec<_>>())
    }

    #[test]
    fn a_place_is_taken_only_when_nobody_could_know_better() {
        use Reception::{Expected, Lost, Member, Stranger, Unformed, Wait};
        let expected = |confirmed| Expected { node: 3, confirmed };
        let founder = Ok(Place { node: 3, founds: true });
        let late = Ok(Place { node: 3, founds: false });
        assert_eq!(judged([Some(Unformed), Some(Unformed)]), founder);
        assert_eq!(judged([Some(Unformed), Some(expected(false))]), late);
        assert_eq!(judged([None, Some(expected(true))]), late);
        assert_eq!(judged([None, Some(Member { node: 7 })]), Ok(Place { node: 7, founds: false }));
        assert_eq!(judged([Some(Lost { node: 3, known: 1 }), Some(Member { node: 7 })]).unwrap().node, 7);

        let missing = |said| match judged(said).unwrap_err() {
            Standing::Asking { missing } => missing.len(),
            other => panic!("{other}"),
        };
        assert_eq!(missing([None, Some(Unformed)]), 1, "the one that is away may know of a cluster");
        assert_eq!(missing([None, Some(expected(false))]), 1, "it may have seen this node");
        assert_eq!(missing([Some(Wait), Some(expected(false))]), 1);
        let lost = Standing::Lost { node: 3, by: name(1) };
        assert_eq!(judged([Some(Lost { node: 3, known: 1 }), Some(Unformed)]), Err(lost.clone()));
        assert_eq!(judged([Some(Lost { node: 3, known: 1 }), Some(expected(false))]), Err(lost));
        assert_eq!(judged([Some(Stranger), Some(Unformed)]), Err(Standing::Stranger { by: name(1) }));
    }
}
