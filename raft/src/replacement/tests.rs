#![allow(clippy::unwrap_used)]

use holdfast_machine::Evidence;

use super::*;

fn name(number: u64) -> NodeName {
    NodeName::new(format!("node-{number}")).unwrap()
}

fn node(number: u64, down: bool, disk: u128, replaces: Option<u64>) -> PeerNode {
    let liveness = if down { Liveness::Down { evidence: Evidence::LinkClosed } } else { Liveness::Up };
    let (peer_addr, http_addr) = (String::new(), String::new());
    PeerNode { name: name(number), peer_addr, http_addr, liveness, incarnation: Some(disk), replaces }
}

/// Voters 1 to 3, of which 3 is down, and what is added.
fn membership(configs: &[&[u64]], others: &[(u64, PeerNode)]) -> Membership {
    let voters = [(1, node(1, false, 11, None)), (2, node(2, false, 22, None)), (3, node(3, true, 33, None))];
    let nodes: BTreeMap<u64, PeerNode> = voters.into_iter().chain(others.iter().cloned()).collect();
    Membership::new(configs.iter().map(|ids| ids.iter().copied().collect()).collect(), nodes).unwrap()
}

/// Node 1 leads, node 2 follows closely.
fn situation(membership: &Membership) -> Situation<'_> {
    let (reached, matched) = (BTreeSet::from([2]), BTreeMap::from([(2, 9_900)]));
    Situation { node: 1, membership, settled: true, reached, matched, last: 10_000 }
}

#[test]
fn a_member_without_its_data_gets_an_id_that_nobody_had() {
    let members = membership(&[&[1, 2, 3]], &[]);
    let (replacement, step) = situation(&members).plan(&name(3), Some(34)).unwrap();
    assert_eq!((replacement.old, replacement.new, replacement.stage), (3, Some(4), ReplacementStage::Waiting));
    assert_eq!(replacement.others, [name(1), name(2)]);
    let Step::Admit { dropped: None, new: 4, node } = step else { panic!("{step:?}") };
    assert_eq!((node.name, node.incarnation, node.replaces), (name(3), Some(34), Some(3)));
    assert_eq!(node.liveness, Liveness::Joining);
}

#[test]
fn who_is_alive_or_does_not_wait_is_not_replaced() {
    let members = membership(&[&[1, 2, 3]], &[]);
    let refused = |number, guest| situation(&members).plan(&name(number), guest).unwrap_err();
    assert_eq!(refused(1, Some(12)), ReplaceError::Alive, "the leader");
    assert_eq!(refused(2, Some(23)), ReplaceError::Alive);
    assert_eq!(refused(3, None), ReplaceError::NotWaiting);
    assert_eq!(refused(3, Some(33)), ReplaceError::NotWaiting, "it has its data");
    assert_eq!(refused(9, Some(1)), ReplaceError::NoMember);
    let mut back = situation(&members);
    back.reached.insert(3);
    assert_eq!(back.plan(&name(3), Some(34)).unwrap_err(), ReplaceError::Alive);
    let nodes = members.nodes().map(|(id, node)| (*id, PeerNode { liveness: Liveness::Up, ..node.clone() }));
    let not_down = Membership::new(members.get_joint_config().clone(), nodes.collect::<BTreeMap<_, _>>()).unwrap();
    assert_eq!(situation(&not_down).plan(&name(3), Some(34)).unwrap_err(), ReplaceError::NotDown);
}

#[test]
fn the_others_have_to_be_a_majority_by_themselves() {
    let members = membership(&[&[1, 2, 3]], &[]);
    let too_few = Err(ReplaceError::TooFew { needed: 2, found: 1, missing: vec![name(2)] });
    let mut gone = situation(&members);
    gone.reached.clear();
    assert_eq!(gone.plan(&name(3), Some(34)).map(drop), too_few);
    let mut behind = situation(&members);
    behind.matched.insert(2, 8_999);
    assert_eq!(behind.plan(&name(3), Some(34)).map(drop), too_few);
    behind.matched.insert(2, 9_000);
    behind.plan(&name(3), Some(34)).unwrap();
}

#[test]
fn one_change_at_a_time() {
    let members = membership(&[&[1, 2, 3]], &[]);
    let mut unsettled = situation(&members);
    unsettled.settled = false;
    assert!(matches!(unsettled.plan(&name(3), Some(34)), Err(ReplaceError::Busy(_))));
    // Of five, two lost their data: one after the other.
    let fellows = [(4, node(4, true, 44, None)), (5, node(5, false, 55, None)), (6, node(3, false, 34, Some(3)))];
    let members = membership(&[&[1, 2, 3, 4, 5]], &fellows);
    let mut five = situation(&members);
    five.reached.insert(5);
    five.matched.insert(5, 10_000);
    assert!(matches!(five.plan(&name(4), Some(45)), Err(ReplaceError::Busy(_))));
    // Unless the first one is back with its data after all.
    five.reached.insert(3);
    let (replacement, step) = five.plan(&name(4), Some(45)).unwrap();
    assert_eq!((replacement.old, replacement.new), (4, Some(7)));
    assert!(matches!(step, Step::Admit { dropped: None, .. }));
}

#[test]
fn what_is_under_way_is_not_begun_again_unless_the_data_is_lost_once_more() {
    let members = membership(&[&[1, 2, 3]], &[(4, node(3, false, 34, Some(3)))]);
    for guest in [None, Some(34)] {
        let (replacement, step) = situation(&members).plan(&name(3), guest).unwrap();
        assert_eq!((replacement.new, step), (Some(4), Step::UnderWay));
    }
    let (replacement, step) = situation(&members).plan(&name(3), Some(35)).unwrap();
    assert_eq!(replacement.new, Some(5));
    let Step::Admit { dropped: Some(4), new: 5, node } = step else { panic!("{step:?}") };
    assert_eq!((node.incarnation, node.replaces), (Some(35), Some(3)));
    let ChangeMembers::Batch(changes) = change_of(5, Some(4), node) else { panic!() };
    assert_eq!(changes.len(), 2);
}

#[test]
fn a_learner_votes_once_it_has_caught_up() {
    let members = membership(&[&[1, 2, 3]], &[(4, node(3, false, 34, Some(3)))]);
    let mut now = situation(&members);
    assert_eq!(now.next_voters(), None, "nothing is known of it");
    now.matched.insert(4, 10_000);
    assert_eq!(now.next_voters(), None, "it is not reached: what it had may be lost again");
    now.reached.insert(4);
    now.matched.insert(4, 9_799);
    assert_eq!(now.next_voters(), None);
    now.matched.insert(4, 9_800);
    assert_eq!(now.next_voters(), Some(BTreeSet::from([1, 2, 4])));
    now.reached.remove(&2);
    assert_eq!(now.next_voters(), None, "the change would not be committed");
    now.reached.extend([2, 3]);
    assert_eq!(now.next_voters(), None, "the one that it replaces is back");
}

#[test]
fn stages_are_read_off_the_membership() {
    let learner = (4, node(3, false, 34, Some(3)));
    let stage = |configs: &[&[u64]]| {
        let members = membership(configs, std::slice::from_ref(&learner));
        under_way(&members).map(|replacement| replacement.stage).collect::<Vec<_>>()
    };
    assert_eq!(stage(&[&[1, 2, 3]]), [ReplacementStage::CatchingUp]);
    assert_eq!(stage(&[&[1, 2, 3], &[1, 2, 4]]), [ReplacementStage::TakingOver]);
    assert_eq!(stage(&[&[1, 2, 4]]), []);
}

#[test]
fn a_name_stands_for_the_one_that_votes() {
    let learner = (4, node(3, false, 34, Some(3)));
    let counts = |configs: &[&[u64]]| {
        let members = crate::types::members(&membership(configs, std::slice::from_ref(&learner)));
        members.into_iter().map(|member| (member.id, member.liveness == Liveness::Up)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&[&[1, 2, 3]]), [(1, true), (2, true), (3, false)]);
    assert_eq!(counts(&[&[1, 2, 3], &[1, 2, 4]]), [(1, true), (2, true), (4, true)]);
    assert_eq!(counts(&[&[1, 2, 4]]), [(1, true), (2, true), (4, true)]);
}
