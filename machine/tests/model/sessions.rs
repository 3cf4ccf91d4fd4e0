//! What a random run may do to workers' sessions.

use holdfast_machine::{Attached, Command, SessionChange, SessionId, Worker};
use proptest::prelude::*;
use proptest::sample::select;

use crate::drive::{boot, namespace, node};
use holdfast_checkers::oracle::Oracle;

#[derive(Debug, Clone)]
pub enum Change {
    Attach {
        /// The node, and whether under its current boot.
        to: (u8, bool),
        /// Namespaces and task queue.
        serves: (u8, u8),
        kinds: u8,
        pin: u8,
        most: u32,
        lease: u64,
    },
    /// Each for the attachment so many before the current one.
    Extend(u64),
    Detach(u64),
    Drain(u64),
    Close(u64),
}

pub fn change() -> impl Strategy<Value = (u8, Change)> {
    let off = || select(vec![0u64, 0, 0, 0, 0, 0, 0, 1]);
    let lease = prop_oneof![8 => 300u64..5_000, 3 => 1u64..300, 1 => Just(0u64), 1 => Just(u64::MAX)];
    let serves = (select(vec![0u8, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 5]), select(vec![0u8, 0, 0, 0, 0, 1]));
    let most = prop_oneof![16 => 1u32..4, 1 => Just(0u32), 1 => Just(1_000u32), 1 => Just(1_001u32)];
    let node = select(vec![0u8, 0, 0, 1, 1, 1, 2, 2, 2, 3]);
    let attach = ((node, prop::bool::weighted(0.9)), serves, select(vec![0u8, 0, 0, 0, 0, 1, 2]), 0u8..4, most, lease);
    let change = prop_oneof![
        10 => attach.prop_map(|(to, serves, kinds, pin, most, lease)| {
            Change::Attach { to, serves, kinds, pin, most, lease }
        }),
        4 => off().prop_map(Change::Extend),
        2 => off().prop_map(Change::Detach),
        1 => off().prop_map(Change::Drain),
        1 => off().prop_map(Change::Close),
    ];
    (0u8..3, change)
}

/// A worker that is there from the beginning.
pub fn first() -> Command {
    let to = Attached { node: node(0), boot: boot(0, 0) };
    let change = SessionChange::Attach { worker: worker((1, 0), 0, 0, 2, 2_000), to };
    Command::Session { session: "s0".parse().unwrap(), change }
}

pub fn command(number: u8, change: &Change, oracle: &Oracle) -> Command {
    let session: SessionId = format!("s{number}").parse().unwrap();
    let current = oracle.sessions.iter().find(|(id, _)| *id == session).map_or(7, |(_, session)| session.attachment);
    let change = match *change {
        Change::Attach { to: (of, is_current), serves, kinds, pin, most, lease } => {
            let known = oracle.members.iter().find(|(member, _)| member.name == node(of));
            let known = known.and_then(|(_, boot)| boot.clone()).filter(|_| is_current);
            let to = Attached { node: node(of), boot: known.unwrap_or_else(|| boot(of, 9)) };
            SessionChange::Attach { worker: worker(serves, kinds, pin, most, lease), to }
        }
        Change::Extend(off) => SessionChange::Extend { attachment: current - off },
        Change::Detach(off) => SessionChange::Detach { attachment: current - off },
        Change::Drain(off) => SessionChange::Drain { attachment: current - off },
        Change::Close(off) => SessionChange::Close { attachment: current - off },
    };
    Command::Session { session, change }
}

fn worker((namespaces, queue): (u8, u8), kinds: u8, pin: u8, most: u32, lease: u64) -> Worker {
    let namespaces: &[u8] = [&[0][..], &[0, 1], &[1, 0, 2], &[1], &[], &[0, 0]][usize::from(namespaces)];
    let kinds: &[&str] = [&[][..], &["kind-0"], &["kind-1", "kind-9"]][usize::from(kinds)];
    Worker {
        identity: "worker".parse().unwrap(),
        namespaces: namespaces.iter().map(|number| namespace(*number)).collect(),
        task_queue: ["default", "mail"][usize::from(queue)].parse().unwrap(),
        activity_types: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
        max_concurrency: most,
        node: pin.checked_sub(1).map(node),
        lease_ms: lease,
    }
}
