//! A power loss after every single change on disk, with unsynced bytes lost and torn: what was acknowledged is
//! there, what was not is there or not, and nothing else is.

use super::*;
use crate::fault::{Fault, Random};

/// What a run may leave behind.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// Entries by index, acknowledged.
    acknowledged: Vec<LogRecord>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    /// The operation that was cut off.
    cut_off: Option<Operation>,
}

#[derive(Debug, Clone)]
enum Operation {
    Append(Vec<LogRecord>),
    Truncate(Option<LogId>),
    Purge(LogId),
    Vote(Vote),
}

impl Operation {
    fn perform(&self, log: &Log) -> io::Result<()> {
        match self {
            Operation::Append(records) => append(log, records.clone()),
            Operation::Truncate(after) => log.truncate_after(*after),
            Operation::Purge(upto) => log.purge(*upto),
            Operation::Vote(vote) => log.save_vote(*vote),
        }
    }
}

impl Outcome {
    fn last(&self) -> Option<LogId> {
        self.acknowledged.last().map(|entry| entry.id).or(self.purged)
    }

    fn next(&self) -> u64 {
        self.last().map_or(FIRST_INDEX, |last| last.index + 1)
    }

    fn took_effect(&mut self, operation: Operation) {
        match operation {
            Operation::Append(records) => self.acknowledged.extend(records),
            Operation::Truncate(after) => {
                let next = after.map_or(FIRST_INDEX, |after| after.index + 1);
                self.acknowledged.retain(|entry| entry.id.index < next);
            }
            Operation::Purge(upto) => {
                self.acknowledged.retain(|entry| entry.id.index > upto.index);
                self.purged = Some(upto);
            }
            Operation::Vote(vote) => self.vote = Some(vote),
        }
    }

    fn check(&self, log: &Log, what: &str) {
        let mut with = self.clone();
        if let Some(operation) = self.cut_off.clone() {
            with.took_effect(operation);
        }
        assert!([self.vote, with.vote].contains(&log.vote()), "{what}: vote {:?}", log.vote());
        assert!([self.purged, with.purged].contains(&log.purged()), "{what}: purged {:?}", log.purged());
        let found = all(log);
        let known = |entry: &LogRecord| self.acknowledged.contains(entry) || with.acknowledged.contains(entry);
        assert!(found.iter().all(known), "{what}: an entry that nobody wrote");
        let purged = log.purged();
        for entry in self.acknowledged.iter().filter(|entry| with.acknowledged.contains(entry)) {
            let is_purged = purged.is_some_and(|purged| entry.id.index <= purged.index);
            assert!(is_purged || found.contains(entry), "{what}: {} was acknowledged and is lost", entry.id);
        }
    }
}

fn next_operation(random: &mut Random, term: u64, outcome: &Outcome) -> Operation {
    match random.below(12) {
        0 => Operation::Vote(Vote { term, node: random.below(3), committed: false }),
        1 => {
            let keep = outcome.acknowledged.len().saturating_sub(random.below(6) as usize);
            Operation::Truncate(keep.checked_sub(1).map(|at| outcome.acknowledged[at].id).or(outcome.purged))
        }
        2 if !outcome.acknowledged.is_empty() => {
            let at = random.below(outcome.acknowledged.len() as u64 / 2 + 1) as usize;
            Operation::Purge(outcome.acknowledged[at].id)
        }
        _ => {
            let next = outcome.next();
            Operation::Append(entries(term, next..next + 1 + random.below(4), random.below(1200) as usize))
        }
    }
}

/// Runs a fixed sequence until it ends or the disk stops.
fn run(disk: &FaultDisk, seed: u64) -> Outcome {
    let mut random = Random(seed);
    let mut outcome = Outcome::default();
    let Ok(log) = open(disk) else { return outcome };
    for step in 0..40 {
        let operation = next_operation(&mut random, step / 5, &outcome);
        match operation.perform(&log) {
            Ok(()) => outcome.took_effect(operation),
            Err(_) => {
                outcome.cut_off = Some(operation);
                break;
            }
        }
    }
    outcome
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_goes() {
    let mut cuts = 0;
    for seed in 0..6 {
        let whole = FaultDisk::default();
        create(&whole);
        let before = whole.changes();
        run(&whole, seed);
        let changes = whole.changes() - before;
        for cut in 0..changes {
            let disk = FaultDisk::default();
            create(&disk);
            disk.fail_after(cut, Fault::Stop);
            let outcome = run(&disk, seed);
            for crash in 0..6 {
                let what = format!("seed {seed}, cut after {cut}, crash {crash}");
                let after = if crash == 0 { disk.kill() } else { disk.power_loss(crash * 1000 + cut) };
                let log = open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
                outcome.check(&log, &what);
                // What was found is durable: a second crash right away loses none of it.
                let found = all(&log);
                let again = after.power_loss(cut);
                assert_eq!(all(&open(&again).unwrap()), found, "{what}, twice");
                cuts += 1;
            }
        }
    }
    assert!(cuts > 1000, "only {cuts} crashes were tried");
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let whole = FaultDisk::default();
    create(&whole);
    run(&whole, 1);
    let changes = whole.changes();
    for cut in 0..changes {
        let disk = FaultDisk::default();
        create(&disk);
        let Ok(log) = open(&disk) else { continue };
        disk.fail_after(cut, Fault::Once(io::ErrorKind::Other));
        let mut failed = false;
        let mut random = Random(1);
        let mut outcome = Outcome::default();
        for step in 0..40 {
            let operation = next_operation(&mut random, step / 5, &outcome);
            match operation.perform(&log) {
                Ok(()) => {
                    assert!(!failed, "cut {cut}: acknowledged after a failure");
                    outcome.took_effect(operation);
                }
                Err(_) => failed = true,
            }
        }
    }
}
