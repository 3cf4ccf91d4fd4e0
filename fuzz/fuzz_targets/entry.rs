//! Any bytes as what a log entry says: an error, or an entry that every machine applies alike. A machine that is loaded
//! from what one left behind has the same hash, and goes on in the same way.

#![no_main]

use holdfast_machine::{
    Claim, Command, Commit, Entry, Limits, Liveness, Machine, Member, MemoryArchive, Millis, NewEvent, NewHolder,
    NewRow, Request, Scope, ShardId, WorkflowType,
};
use libfuzzer_sys::fuzz_target;

/// A cluster of one node, a workflow, a claimed row and a pending one.
fn machine(archive: &mut MemoryArchive) -> Machine {
    let mut machine = Machine::default();
    let member = Member {
        id: 1,
        name: "a".parse().unwrap(),
        peer_addr: String::new(),
        http_addr: String::new(),
        liveness: Liveness::Up,
    };
    machine.apply_members(1, &[member], archive).unwrap();
    let row = |ordinal| NewRow::new(ordinal, "charge".parse().unwrap());
    let commit = Commit::new("w".parse().unwrap(), 0).event(NewEvent::started(WorkflowType::new("order").unwrap()));
    let holder = NewHolder::Lease { claimant: "bob".parse().unwrap(), lease_ms: 100 };
    let commands = [
        Command::Create { shard_count: 2 },
        Command::Boot { node: "a".parse().unwrap(), boot: "a1".parse().unwrap() },
        Command::Assign { owners: [0, 1].map(|shard| (ShardId(shard), "a".parse().unwrap())).to_vec() },
        Command::Commit(commit.activity(row(1)).activity(row(2))),
        Command::Claim(Claim { scope: Scope::default(), limit: 1, holder, hold: Vec::new() }),
    ];
    let requests = commands.into_iter().map(Request::from).collect();
    machine.apply(2, Entry { at: Millis(1_000), requests }, archive).unwrap();
    archive.commit(machine.take_writes());
    machine
}

/// An entry, or one request of one.
fn entry(bytes: &[u8]) -> Option<Entry> {
    let of_one = |request| Entry { at: Millis(1_000), requests: vec![request] };
    postcard::from_bytes(bytes).ok().or_else(|| postcard::from_bytes(bytes).ok().map(of_one))
}

fuzz_target!(|bytes: &[u8]| {
    let Some(entry) = entry(bytes) else { return };
    let again: Entry = postcard::from_bytes(&postcard::to_stdvec(&entry).unwrap()).unwrap();
    assert_eq!(again, entry, "what was decoded is encoded as something else");
    for request in &entry.requests {
        // What the entrance refuses is applied all the same, as an old log might hold it.
        let _ = Limits::default().check(&request.command);
    }
    let mut archive = MemoryArchive::default();
    let mut kept = machine(&mut archive);
    let mut loaded = Machine::load(&archive).unwrap();
    for (index, entry) in [(3, entry), (4, Entry { at: Millis(u64::MAX), requests: Vec::new() })] {
        let one = kept.apply(index, entry.clone(), &archive).unwrap();
        let other = loaded.apply(index, entry, &archive).unwrap();
        assert_eq!(one.replies, other.replies);
        assert_eq!(kept.state_hash(), loaded.state_hash(), "a loaded machine did something else");
        archive.commit(kept.take_writes());
        loaded = Machine::load(&archive).unwrap();
        assert_eq!(kept.state_hash(), loaded.state_hash(), "a loaded machine has another hash");
    }
});
