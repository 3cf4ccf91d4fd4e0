//! Decides when a peer is dead. The core is fed with observations and knows no clock and no network.
//!
//! A blip is not a death: it takes `confirmations` bad observations in a row, and one good observation
//! starts the count anew. A verdict is given once, when it changes.

use std::collections::BTreeMap;

use holdfast_machine::{Evidence, is_planted};

/// One look at one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// The peer answers.
    Good,
    /// It does not.
    Bad(Evidence),
}

/// What a detector holds of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Alive.
    Up,
    /// Dead.
    Down(Evidence),
}

/// What an observation changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing that anybody has to know.
    None,
    /// One more bad observation in a row, this many now; not enough yet.
    Suspected(u32),
    /// The verdict is another one from now on.
    Judged(Verdict),
}

#[derive(Debug, Clone, Copy, Default)]
struct Watched {
    bad: u32,
    verdict: Option<Verdict>,
}

/// The detector of one node, over all its peers.
#[derive(Debug, Clone)]
pub struct Detector {
    confirmations: u32,
    peers: BTreeMap<u64, Watched>,
}

impl Detector {
    /// A detector that wants `confirmations` (at least one) bad observations in a row.
    pub fn new(confirmations: u32) -> Self {
        Self { confirmations: confirmations.max(1), peers: BTreeMap::new() }
    }

    /// Takes one observation of one peer.
    pub fn observe(&mut self, peer: u64, observation: Observation) -> Change {
        let watched = self.peers.entry(peer).or_default();
        match observation {
            Observation::Good => {
                watched.bad = 0;
                if watched.verdict == Some(Verdict::Up) {
                    return Change::None;
                }
                watched.verdict = Some(Verdict::Up);
                Change::Judged(Verdict::Up)
            }
            Observation::Bad(evidence) => {
                if matches!(watched.verdict, Some(Verdict::Down(_))) {
                    return Change::None;
                }
                watched.bad += 1;
                if watched.bad < self.confirmations && !is_planted("hasty-detector") {
                    return Change::Suspected(watched.bad);
                }
                watched.verdict = Some(Verdict::Down(evidence));
                Change::Judged(Verdict::Down(evidence))
            }
        }
    }

    /// What is held of a peer; none before the first verdict.
    #[cfg(test)]
    fn verdict(&self, peer: u64) -> Option<Verdict> {
        self.peers.get(&peer).and_then(|watched| watched.verdict)
    }

    /// Bad observations of a peer in a row.
    pub fn consecutive(&self, peer: u64) -> u32 {
        self.peers.get(&peer).map_or(0, |watched| watched.bad)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_machine::Evidence::{LinkClosed, Silent};
    use proptest::prelude::*;

    use super::Change::{Judged, None as Nothing, Suspected};
    use super::Observation::{Bad, Good};
    use super::Verdict::{Down, Up};
    use super::*;

    #[test]
    fn a_verdict_takes_confirmations_and_is_given_once() {
        let mut detector = Detector::new(3);
        assert_eq!(detector.observe(2, Good), Judged(Up));
        assert_eq!(detector.observe(2, Good), Nothing);
        assert_eq!(detector.observe(2, Bad(LinkClosed)), Suspected(1));
        assert_eq!(detector.observe(2, Bad(LinkClosed)), Suspected(2));
        assert_eq!(detector.observe(2, Bad(Silent)), Judged(Down(Silent)));
        assert_eq!(detector.observe(2, Bad(LinkClosed)), Nothing);
        assert_eq!(detector.verdict(2), Some(Down(Silent)));
        assert_eq!(detector.observe(2, Good), Judged(Up));
        assert_eq!(detector.observe(2, Bad(LinkClosed)), Suspected(1));
        assert_eq!(detector.verdict(2), Some(Up));
    }

    #[test]
    fn a_hundred_blips_are_no_death() {
        let mut detector = Detector::new(3);
        detector.observe(2, Good);
        for _ in 0..100 {
            assert_eq!(detector.observe(2, Bad(LinkClosed)), Suspected(1));
            assert_eq!(detector.observe(2, Bad(LinkClosed)), Suspected(2));
            assert_eq!(detector.observe(2, Good), Nothing);
        }
        assert_eq!(detector.verdict(2), Some(Up));
    }

    #[test]
    fn peers_are_judged_apart() {
        let mut detector = Detector::new(2);
        detector.observe(2, Bad(LinkClosed));
        assert_eq!(detector.observe(3, Bad(LinkClosed)), Suspected(1));
        assert_eq!(detector.consecutive(2), 1);
        assert_eq!(detector.verdict(2), None);
        assert_eq!(detector.verdict(9), None);
    }

    proptest! {
        /// Against the plain definition: down exactly when the last `confirmations` looks since the
        /// last good one were bad.
        #[test]
        fn agrees_with_the_definition(
            confirmations in 1u32..5,
            looks in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let mut detector = Detector::new(confirmations);
            let mut verdict = None;
            for (i, good) in looks.iter().enumerate() {
                let run = looks[..=i].iter().rev().take_while(|good| !**good).count();
                let look = if *good { Good } else { Bad(LinkClosed) };
                let change = detector.observe(2, look);
                let expected = match (good, run >= confirmations as usize) {
                    (true, _) => Some(Up),
                    (false, true) => Some(Down(LinkClosed)),
                    (false, false) => verdict,
                };
                prop_assert_eq!(matches!(change, Judged(_)), expected != verdict);
                verdict = expected;
                prop_assert_eq!(detector.verdict(2), verdict);
            }
        }
    }
}
