//! What is refused for want of space, before a disk is full.
//!
//! Every node looks at its disk and tells its peers, in its answers to their pings, how much room it has. An entry has to
//! go to a quorum's disks, so what a leader may take in is bounded by its own level and by that of the best quorum that
//! it is connected to. With only the reserve left, work is brought to its end and none is begun; with only the log's part
//! left, nothing but what keeps the cluster going or frees space is taken. Reads are never refused.
//!
//! A leader that is low hands over to a voter with plenty of room, if it knows one: then nothing need be refused at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use holdfast_machine::Need;
use holdfast_storage::{Room, RoomLevel};
use openraft::async_runtime::WatchReceiver;

use crate::peers::Links;
use crate::types::Core;
use crate::wire::RoomRecord;

/// How often a node looks at its disk. In this time a node writes less than any sensible reserve.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after an attempt to hand over leadership.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(2);

/// What a leader may take in at the moment; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Admission(Arc<AtomicU8>);

impl Admission {
    /// False if this has to be refused for want of space.
    pub fn admits(&self, need: Need) -> bool {
        match self.level() {
            RoomLevel::Plenty => true,
            RoomLevel::Low => need <= Need::Finish,
            RoomLevel::Out => need <= Need::Keep,
        }
    }

    /// True if everything is taken in.
    pub fn admits_all(&self) -> bool {
        self.level() == RoomLevel::Plenty
    }

    fn level(&self) -> RoomLevel {
        RoomRecord::from_byte(self.0.load(Ordering::Relaxed)).into()
    }

    /// Gives the level before.
    fn set(&self, level: RoomLevel) -> RoomLevel {
        RoomRecord::from_byte(self.0.swap(RoomRecord::from(level) as u8, Ordering::Relaxed)).into()
    }
}

/// The task that looks at the disk and works out what may be taken in.
pub(crate) struct RoomWatch {
    pub room: Room,
    pub core: Core,
    pub links: Links,
    pub admission: Admission,
}

impl RoomWatch {
    /// Runs until the node stops.
    pub async fn run(self) {
        let mut before = RoomLevel::Plenty;
        loop {
            // A file system that does not say keeps its last level.
            if let Ok(own) = self.room.look() {
                self.tell(before, own);
                before = own;
            }
            let voters = self.voters();
            let admitted = admitted(before, &voters);
            if self.admission.set(admitted) != admitted {
                tracing::info!(?admitted, own = ?before, "room for writes, if this node leads");
            }
            if before != RoomLevel::Plenty && self.hand_over(&voters).await {
                tokio::time::sleep(HAND_OVER_PAUSE).await;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn tell(&self, before: RoomLevel, now: RoomLevel) {
        let free = self.room.free();
        match now {
            _ if now == before => {}
            RoomLevel::Plenty => tracing::info!(free, "the disk has room again"),
            RoomLevel::Low => tracing::warn!(free, "the disk is low on space: no new work should be begun"),
            RoomLevel::Out => tracing::error!(free, "the disk is nearly full: what is left is for the log alone"),
        }
    }

    /// The other voters, and their room as far as it is known; those without a connection are left out.
    fn voters(&self) -> Voters {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        let mut voters = Voters { leads: metrics.state.is_leader(), count: 0, others: Vec::new() };
        for voter in metrics.membership_config.voter_ids() {
            voters.count += 1;
            let link = self.links.get(voter).filter(|link| link.state().borrow().is_connected());
            voters.others.extend(link.map(|link| (voter, link.room())));
        }
        voters
    }

    /// Offers the leadership to a voter that says it has room; true if there is one.
    async fn hand_over(&self, voters: &Voters) -> bool {
        let roomy = |(_, room): &&(u64, Option<RoomLevel>)| *room == Some(RoomLevel::Plenty);
        let Some((to, _)) = voters.others.iter().filter(|_| voters.leads).find(roomy) else { return false };
        tracing::warn!(to, "low on space: handing the leadership over");
        // It is tried again while this node leads.
        let _ = self.core.trigger().transfer_leader(*to).await;
        true
    }
}

struct Voters {
    leads: bool,
    count: usize,
    others: Vec<(u64, Option<RoomLevel>)>,
}

/// The level that bounds what a leader with this room may take in. A peer that does not say counts as one with room.
fn admitted(own: RoomLevel, voters: &Voters) -> RoomLevel {
    let mut levels: Vec<_> = voters.others.iter().map(|(_, room)| room.unwrap_or_default()).collect();
    levels.push(own);
    levels.sort_unstable();
    // Without a quorum nothing is committed anyway, and the disks are not to blame.
    let quorum = voters.count / 2;
    levels.get(quorum).map_or(own, |of_quorum| own.max(*of_quorum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_with_room_is_needed_and_the_leader_is_in_it() {
        use RoomLevel::{Low, Out, Plenty};
        let voters = |others: &[Option<RoomLevel>]| Voters {
            leads: true,
            count: 3,
            others: others.iter().map(|room| (0, *room)).collect(),
        };
        let cases: [(RoomLevel, &[Option<RoomLevel>], RoomLevel); 9] = [
            (Plenty, &[Some(Plenty), Some(Plenty)], Plenty),
            (Plenty, &[Some(Out), Some(Plenty)], Plenty),
            (Plenty, &[Some(Low), Some(Low)], Low),
            (Plenty, &[Some(Low), Some(Out)], Low),
            (Plenty, &[Some(Out), Some(Out)], Out),
            (Low, &[Some(Plenty), Some(Plenty)], Low),
            (Plenty, &[None, Some(Out)], Plenty),
            (Plenty, &[Some(Low)], Low),
            (Plenty, &[], Plenty),
        ];
        for (own, others, expected) in cases {
            assert_eq!(admitted(own, &voters(others)), expected, "{own:?} with {others:?}");
        }
    }

    #[test]
    fn what_is_admitted_narrows_with_the_room() {
        let admission = Admission::default();
        let admitted = |level| {
            admission.set(level);
            [Need::Keep, Need::Finish, Need::Begin].map(|need| admission.admits(need))
        };
        assert_eq!(admitted(RoomLevel::Plenty), [true, true, true]);
        assert_eq!(admitted(RoomLevel::Low), [true, true, false]);
        assert_eq!(admitted(RoomLevel::Out), [true, false, false]);
        assert!(!admission.admits_all());
    }
}
