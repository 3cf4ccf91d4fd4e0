//! How due rows are dealt to the seats.
#![allow(clippy::unwrap_used)]

use holdfast_machine::{
    Command, Commit, Entry, EventKind, MemoryArchive, NamespaceSettings, NewEvent, NewRow, Payload, RetryPolicy,
    WorkflowType,
};

use holdfast_raft::SystemClock;

use super::*;

/// A machine whose log time is `1_000`, with one row for each time at which it becomes due.
fn machine(due_at: &[u64]) -> Machine {
    with_ceiling(None, due_at)
}

fn with_ceiling(claimed_max: Option<u32>, due_at: &[u64]) -> Machine {
    let mut machine = Machine::default();
    let mut events = vec![NewEvent::started(WorkflowType::new("t").unwrap())];
    let mut rows = Vec::new();
    for (ordinal, at) in (1..).zip(due_at) {
        events.push(NewEvent::activity(EventKind::ActivityScheduled, ordinal));
        events.push(NewEvent::activity(EventKind::ActivityStarted, ordinal));
        rows.push(NewRow {
            ordinal,
            task_queue: TaskQueue::default(),
            node: None,
            activity_type: if ordinal % 2 == 1 { "odd" } else { "even" }.parse().unwrap(),
            input: Payload::default(),
            visible_after: Millis(*at),
            retry: RetryPolicy::default(),
            timeouts: Default::default(),
        });
    }
    let commit = Commit { events, rows, ..Commit::new("w".parse().unwrap(), 0) };
    let settings = NamespaceSettings { claimed_max, ..Default::default() };
    let put = Command::PutNamespace { namespace: Namespace::default(), settings };
    let commands = [Command::Create { shard_count: 1 }, put, Command::Commit(commit)];
    let entry = Entry { at: Millis(1_000), requests: commands.into_iter().map(Into::into).collect() };
    let applied = machine.apply(1, entry, &MemoryArchive::default()).unwrap();
    assert!(applied.replies.iter().all(Result::is_ok), "{:?}", applied.replies);
    machine
}

fn want(limit: u32) -> Want {
    Want { scope: Scope::default(), owner: None, hold: Vec::new(), limit }
}

fn only(activity: &str, limit: u32) -> Want {
    let mut want = want(limit);
    want.scope.activity_types = vec![activity.parse().unwrap()];
    want
}

/// Deals at log time `now` and says who is called.
fn deal(waiting: &Waiting, machine: &Machine, now: u64) -> (Vec<bool>, Option<Millis>) {
    let mut hall = waiting.hall.lock();
    let line = hall.lines.values_mut().next().unwrap();
    let next = line.deal(machine, &Namespace::default(), Millis(now));
    (line.seats.values().map(|place| place.called).collect(), next)
}

#[test]
fn rows_go_to_the_first_that_can_take_them() {
    let machine = machine(&[0, 0, 0, 5_000]);
    let waiting = Arc::new(Waiting::new(Arc::new(SystemClock)));
    let seats = [want(1), only("even", 5), only("even", 5), want(1), want(1)].map(|want| waiting.sit(want));
    // Rows 1, 2 and 3 are due; 2 is the only even one.
    let (called, next) = deal(&waiting, &machine, 1_000);
    assert_eq!(called, [true, true, false, true, false]);
    assert_eq!(next, Some(Millis(5_000)));
    // Nobody else is called for shares that are still being fetched.
    assert_eq!(deal(&waiting, &machine, 1_000).0, called);
    assert!(seats[0].is_called() && !seats[4].is_called());
}

#[test]
fn nobody_is_called_for_rows_beyond_the_ceiling() {
    let machine = with_ceiling(Some(2), &[0, 0, 0, 5_000]);
    let waiting = Arc::new(Waiting::new(Arc::new(SystemClock)));
    let _seats = [want(1), only("odd", 5), want(5)].map(|want| waiting.sit(want));
    assert_eq!(deal(&waiting, &machine, 1_000), (vec![true, true, false], None), "row 2 is due, but there is no room");
    let machine = with_ceiling(Some(0), &[0, 5_000]);
    let waiting = Arc::new(Waiting::new(Arc::new(SystemClock)));
    let _seat = waiting.sit(want(1));
    assert_eq!(deal(&waiting, &machine, 1_000), (vec![false], None), "a time to wake at would be one to spin at");
    let machine = with_ceiling(Some(5), &[0, 5_000]);
    let waiting = Arc::new(Waiting::new(Arc::new(SystemClock)));
    let _seat = waiting.sit(want(2));
    assert_eq!(deal(&waiting, &machine, 1_000), (vec![true], Some(Millis(5_000))), "there is room for both");
}

#[test]
fn a_share_that_is_left_goes_to_the_next() {
    let machine = machine(&[0]);
    let waiting = Arc::new(Waiting::new(Arc::new(SystemClock)));
    let [first, second] = [want(1), want(1)].map(|want| waiting.sit(want));
    assert_eq!(deal(&waiting, &machine, 1_000).0, [true, false]);
    drop(first);
    assert_eq!(waiting.take_stirred(&machine).len(), 1);
    assert_eq!(deal(&waiting, &machine, 1_000).0, [true]);
    assert!(second.is_called());
    second.wait_on();
    assert!(!second.is_called());
    drop(second);
    assert_eq!((waiting.count(), waiting.take_stirred(&machine).len()), (0, 0));
}

#[test]
fn nobody_is_called_before_the_time_or_for_held_workflows() {
    let machine = machine(&[2_000, 3_000]);
    let waiting = Arc::new(Waiting::new(Arc::new(SystemClock)));
    let mut held = want(5);
    held.hold = vec!["w".parse().unwrap()];
    let mut elsewhere = want(5);
    elsewhere.owner = Some("nobody".parse().unwrap());
    let _seats = [held, elsewhere, want(5)].map(|want| waiting.sit(want));
    assert_eq!(deal(&waiting, &machine, 1_999), (vec![false, false, false], Some(Millis(2_000))));
    assert_eq!(deal(&waiting, &machine, 2_000), (vec![false, false, true], Some(Millis(3_000))));
}

#[test]
fn log_time_is_guessed_from_the_wall_clock_and_what_entries_show() {
    let mut clock = LogClock::default();
    assert_eq!(clock.now(Millis(0), Millis(100)), Millis(100));
    // The leader's clock is 50 ahead, as an entry shows; the guess goes on from there.
    assert_eq!(clock.now(Millis(150), Millis(100)), Millis(150));
    assert_eq!(clock.now(Millis(150), Millis(110)), Millis(160));
    // An entry was stamped earlier than guessed.
    clock.correct(Millis(120), Millis(110));
    assert_eq!(clock.now(Millis(120), Millis(115)), Millis(125));
    assert_eq!(clock.now(Millis(u64::MAX), Millis(0)), Millis(u64::MAX));
}

#[test]
fn a_state_that_jumped_to_a_snapshot_is_looked_at_everywhere() {
    let (_sender, mut effects) = tokio::sync::broadcast::channel(1);
    let due = drain(Ok((1, Effect::TopologyChanged)), &mut effects).unwrap();
    assert!(due.everywhere);
}
