#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use holdfast_machine::Liveness;

use super::*;
use crate::types::PeerNode;

fn name(id: u64) -> NodeName {
    NodeName::new(format!("node-{id}")).unwrap()
}

fn registry() -> Registry {
    let names = [name(1), name(2), name(3)];
    Registry::new("c", (1, &names[0]), 11, (1..).zip(&names))
}

/// Voters 1, 2 and 3, and what else is given: id, number in the name, data directory.
fn membership(others: &[(u64, u64, Option<u128>)]) -> Membership {
    let node = |number, incarnation| PeerNode {
        name: name(number),
        peer_addr: String::new(),
        http_addr: String::new(),
        liveness: Liveness::Joining,
        incarnation,
        replaces: None,
    };
    let voters = [(1, 1, Some(11)), (2, 2, Some(22)), (3, 3, None)];
    let all = voters.iter().chain(others).map(|(id, number, disk)| (*id, node(*number, *disk)));
    let nodes: BTreeMap<u64, PeerNode> = all.collect();
    Membership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap()
}

#[test]
fn without_a_membership_names_count_and_with_one_ids() {
    let registry = registry();
    assert_eq!(registry.receive(&name(2), 5), Reception::Unformed);
    registry.admit(7, &name(2), 77, None).unwrap();
    assert!(matches!(registry.admit(7, &name(9), 77, None), Err(Refusal::UnknownNode { .. })));
    registry.learn(&membership(&[]), &membership(&[]));
    assert!(matches!(registry.admit(7, &name(2), 77, None), Err(Refusal::UnknownNode { .. })), "not a member yet");
    registry.admit(2, &name(2), 22, None).unwrap();
    assert!(matches!(registry.admit(2, &name(2), 23, None), Err(Refusal::IncarnationChanged { known: 22, .. })));
}

#[test]
fn a_restored_cluster_takes_in_nobody_who_began_with_something_else() {
    let registry = registry().with_base(Some(7));
    let other = |refused| matches!(refused, Err(Refusal::OtherBase { .. }));
    assert!(other(registry.admit(2, &name(2), 22, Some(8))));
    registry.learn(&membership(&[]), &membership(&[]));
    assert!(other(registry.admit(3, &name(3), 33, Some(8))));
    assert!(other(registry.admit(3, &name(3), 33, None)));
    assert!(matches!(registry.receive(&name(3), 33), Reception::Refused(Refusal::OtherBase { .. })));
    // Node 2 is known as it is: it was let in later, empty.
    registry.admit(2, &name(2), 22, None).unwrap();
    assert_eq!(registry.receive(&name(2), 22), Reception::Member { node: 2 });
    registry.admit(3, &name(3), 33, Some(7)).unwrap();
}

#[test]
fn a_node_without_data_hears_what_is_known_of_it() {
    let registry = registry();
    registry.learn(&membership(&[]), &membership(&[]));
    assert_eq!(registry.receive(&name(2), 22), Reception::Member { node: 2 });
    assert_eq!(registry.receive(&name(3), 33), Reception::Expected { node: 3, confirmed: false });
    assert_eq!(registry.receive(&name(4), 44), Reception::Stranger);
    assert_eq!(registry.guest(&name(2)), None);
    assert_eq!(registry.receive(&name(2), 23), Reception::Lost { node: 2, known: 22 });
    assert_eq!(registry.guest(&name(2)), Some(23));

    // It is taken in under another id: it is told once that is committed.
    let with_learner = membership(&[(4, 2, Some(23))]);
    registry.learn(&with_learner, &membership(&[]));
    assert_eq!(registry.receive(&name(2), 23), Reception::Wait);
    registry.learn(&with_learner, &with_learner);
    assert_eq!(registry.receive(&name(2), 23), Reception::Member { node: 4 });
    assert_eq!(registry.receive(&name(2), 24), Reception::Lost { node: 4, known: 23 });
}

#[test]
fn what_was_replaced_is_told_so() {
    let registry = registry();
    let mut nodes: BTreeMap<u64, PeerNode> =
        membership(&[(4, 2, Some(23))]).nodes().map(|(id, node)| (*id, node.clone())).collect();
    nodes.remove(&2);
    let replaced = Membership::new(vec![BTreeSet::from([1, 3, 4])], nodes).unwrap();
    registry.learn(&replaced, &replaced);
    let refused = registry.admit(2, &name(2), 22, None).unwrap_err();
    assert_eq!(refused, Refusal::Replaced { node: 2, name: name(2), by: 4 });
    registry.admit(4, &name(2), 23, None).unwrap();
}

#[test]
fn what_is_committed_outranks_what_was_seen() {
    let registry = registry();
    registry.admit(3, &name(3), 33, None).unwrap();
    registry.learn(&membership(&[]), &membership(&[]));
    assert_eq!(registry.incarnation_of(3), Some(33), "a member without a record stays as it was seen");
    assert_eq!(registry.receive(&name(3), 33), Reception::Wait, "seen is not committed");
    let mut nodes: BTreeMap<u64, PeerNode> = membership(&[]).nodes().map(|(id, node)| (*id, node.clone())).collect();
    nodes.get_mut(&3).unwrap().incarnation = Some(34);
    let committed = Membership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap();
    registry.learn(&committed, &committed);
    assert!(matches!(registry.admit(3, &name(3), 33, None), Err(Refusal::IncarnationChanged { known: 34, .. })));
}
