//! The log against a plain vector, through any sequence of operations and reopenings.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Append { count: u64, length: usize, new_term: bool },
    Truncate { back: u64 },
    Purge { forward: u64 },
    Vote { node: u64 },
    Reopen,
    Kill,
    Crash { seed: u64 },
}

#[derive(Debug, Default)]
struct Model {
    entries: Vec<LogRecord>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    term: u64,
}

impl Model {
    fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.id).or(self.purged)
    }

    fn next(&self) -> u64 {
        self.last().map_or(FIRST_INDEX, |last| last.index + 1)
    }

    fn check(&self, log: &Log) {
        assert_eq!(log.last(), self.last());
        assert_eq!(log.purged(), self.purged);
        assert_eq!(log.vote(), self.vote);
        assert_eq!(all(log), self.entries);
        if let Some(middle) = self.entries.get(self.entries.len() / 2) {
            assert_eq!(log.read(middle.id.index..middle.id.index + 1).unwrap(), std::slice::from_ref(middle));
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..8_u64, 0..900_usize, any::<bool>())
            .prop_map(|(count, length, new_term)| Step::Append { count, length, new_term }),
        1 => (0..20_u64).prop_map(|back| Step::Truncate { back }),
        1 => (0..20_u64).prop_map(|forward| Step::Purge { forward }),
        1 => (0..3_u64).prop_map(|node| Step::Vote { node }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
    ];
    prop::collection::vec(step, 1..60)
}

fn perform(step: &Step, model: &mut Model, log: Log, disk: FaultDisk) -> (Log, FaultDisk) {
    match *step {
        Step::Append { count, length, new_term } => {
            model.term += u64::from(new_term);
            let next = model.next();
            let records = entries(model.term, next..next + count, length);
            model.entries.extend(records.clone());
            append(&log, records).unwrap();
        }
        Step::Truncate { back } => {
            let keep = model.entries.len().saturating_sub(back as usize);
            model.entries.truncate(keep);
            log.truncate_after(model.last()).unwrap();
        }
        Step::Purge { forward } => {
            let first = model.purged.map_or(FIRST_INDEX, |purged| purged.index + 1);
            // Beyond the end, as after a snapshot was installed, when forward is longer than the log.
            let upto = id(model.term, first + forward);
            model.entries.retain(|entry| entry.id.index > upto.index);
            model.purged = Some(upto);
            log.purge(upto).unwrap();
        }
        Step::Vote { node } => {
            let vote = Vote { term: model.term, node, committed: node == 0 };
            model.vote = Some(vote);
            log.save_vote(vote).unwrap();
        }
        Step::Reopen => {
            drop(log);
            return (open(&disk).unwrap(), disk);
        }
        Step::Kill => {
            let disk = disk.kill();
            return (open(&disk).unwrap(), disk);
        }
        Step::Crash { seed } => {
            let disk = disk.power_loss(seed);
            return (open(&disk).unwrap(), disk);
        }
    }
    (log, disk)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_log_is_a_vector(steps in steps()) {
        let mut disk = FaultDisk::default();
        create(&disk);
        let mut log = open(&disk).unwrap();
        let mut model = Model::default();
        for step in &steps {
            (log, disk) = perform(step, &mut model, log, disk);
            model.check(&log);
        }
    }
}
