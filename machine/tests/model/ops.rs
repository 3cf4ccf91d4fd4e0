//! What a random run may do: steps in words that stay meaningful while proptest takes parts of them away. They
//! name things by small numbers; `drive.rs` makes requests of them.

use proptest::prelude::*;
use proptest::sample::select;

use crate::find::{Find, find};
use crate::sessions::{Change, change};

#[derive(Debug, Clone)]
pub enum Step {
    /// One log entry, stamped so many milliseconds after (or before) the last one.
    Entry(i64, Vec<Op>),
    /// A membership entry: the liveness of each node, 0 gone, 1 up, 2 down, 3 silent, 4 joining.
    Members([u8; 3]),
    /// The machine is dropped and loaded again from its archive.
    Reload,
    /// A question for workflows.
    Find(Find),
}

#[derive(Debug, Clone)]
pub struct Op {
    /// One of a few idempotency keys.
    pub key: Option<u8>,
    pub fence: Fencing,
    pub what: What,
}

#[derive(Debug, Clone, Copy)]
pub enum Fencing {
    None,
    Current,
    Old,
    Wrong,
}

#[derive(Debug, Clone, Copy)]
pub enum Seq {
    Head,
    Behind(u64),
    Ahead(u64),
}

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Plain(usize),
    /// The two events of an activity and its row.
    Activity {
        ordinal: u8,
        queue: u8,
        pin: u8,
        kind: u8,
        at: i64,
        budget: u32,
        limits: Limits,
    },
    /// An activity's two events without a row.
    Rowless(u8),
    Outcome(u8, u8),
    Signal(u8),
    /// An event that sets a search attribute, or removes it; not all kinds may.
    Search {
        kind: u8,
        name: u8,
        value: Option<u8>,
    },
}

/// The timeouts of a row, in the order of their names in the machine, and which error types end it: 1 `fatal`, 2 `timeout`,
/// 3 both.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    pub timeouts: [Option<u64>; 4],
    pub final_errors: u8,
}

#[derive(Debug, Clone, Copy)]
pub enum Token {
    /// The one given out so many claims ago, for its own row.
    Given(u8),
    /// The one given out so many claims ago, for the row named.
    OfAnother(u8),
    None,
    Never,
}

/// What a commit does to a row.
#[derive(Debug, Clone, Copy)]
pub enum Move {
    Complete,
    /// True if it may be repeated; true if it is `fatal`.
    Fail(bool, bool),
    Retry(u64),
}

/// A timer by number, when it is due from now on, and a number of its arming.
#[derive(Debug, Clone, Copy)]
pub enum Timer {
    Arm(u8, i64, u64),
    /// What is armed under the name.
    Retire(u8),
    RetireAnother(u8, i64, u64),
}

#[derive(Debug, Clone)]
pub enum What {
    Create(u32),
    Boot {
        node: u8,
        boot: u8,
    },
    Assign(Vec<(u32, u8)>),
    Adopt {
        shard: u32,
        by: u8,
        from: Option<u8>,
        off: u64,
    },
    Transfer {
        shard: u32,
        to: u8,
        off: u64,
    },
    Commit {
        workflow: u8,
        seq: Seq,
        events: Vec<Event>,
        settle: Vec<u8>,
        moves: Vec<(Token, u8, Move)>,
        timers: Vec<Timer>,
        twice: bool,
    },
    Timer(u8, Timer),
    Claim {
        by: Option<u8>,
        pin: u8,
        /// Namespace and task queue.
        queue: u8,
        kinds: u8,
        limit: u32,
        lease: u64,
        hold: Option<u8>,
    },
    Heartbeat {
        token: Token,
        row: (u8, u8),
        lease: u64,
    },
    Complete {
        token: Token,
        row: (u8, u8),
    },
    Fail {
        token: Token,
        row: (u8, u8),
        retryable: bool,
        /// 0 for an error without a type, 1 `fatal`, 2 `other`.
        error_type: u8,
    },
    Retry {
        token: Token,
        row: (u8, u8),
        delay: u64,
    },
    Settle(u8),
    /// Workflow, namespace, rows.
    Stage(u8, u8, Vec<(u8, Limits)>),
    Mark((u8, u8)),
    Redrive((u8, u8), bool),
    Rearm(u8, Vec<(u8, Limits)>),
    Reconcile {
        older: u64,
        limit: u32,
        except: Option<(u8, u8)>,
    },
    PutNamespace {
        namespace: u8,
        ceiling: Option<u32>,
        deprecated: bool,
        kept: Option<u64>,
        /// For runs that are not the first.
        next_kept: Option<Option<u64>>,
    },
    Purge(Vec<u8>),
    Session(u8, Change),
    Delete(u8),
    Tick,
    /// The request that was sent so many requests ago, once more.
    Again(u8),
}

pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..most)
}

fn step() -> impl Strategy<Value = Step> {
    let dt = prop_oneof![20 => 0i64..30, 4 => 30i64..300, 2 => -500i64..0, 1 => Just(600_001i64)];
    let liveness = select(vec![1u8, 1, 1, 1, 1, 1, 2, 2, 3, 0, 4]);
    prop_oneof![
        16 => (dt, prop::collection::vec(op(), 1..5)).prop_map(|(dt, ops)| Step::Entry(dt, ops)),
        2 => [liveness.clone(), liveness.clone(), liveness].prop_map(Step::Members),
        1 => Just(Step::Reload),
        6 => find().prop_map(Step::Find),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = prop::option::weighted(0.06, 0u8..6);
    let fence = prop_oneof![
        12 => Just(Fencing::None),
        6 => Just(Fencing::Current),
        1 => Just(Fencing::Old),
        1 => Just(Fencing::Wrong),
    ];
    (key, fence, what()).prop_map(|(key, fence, what)| Op { key, fence, what })
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        24 => work(),
        6 => change().prop_map(|(session, change)| What::Session(session, change)),
        5 => nodes(),
        1 => (0u8..6).prop_map(What::Again),
    ]
}

fn nodes() -> impl Strategy<Value = What> {
    let (shard, node, off) = (|| 0u32..3, || 0u8..3, || select(vec![0u64, 0, 0, 1]));
    prop_oneof![
        1 => select(vec![0u32, 1, 2, 5_000]).prop_map(What::Create),
        3 => (node(), 0u8..6).prop_map(|(node, boot)| What::Boot { node, boot }),
        1 => prop::collection::vec((shard(), 0u8..4), 1..3).prop_map(What::Assign),
        5 => (shard(), node(), prop::option::weighted(0.2, node()), off())
            .prop_map(|(shard, by, from, off)| What::Adopt { shard, by, from, off }),
        2 => (shard(), node(), off()).prop_map(|(shard, to, off)| What::Transfer { shard, to, off }),
    ]
}

fn work() -> impl Strategy<Value = What> {
    let row = || (0u8..4, 0u8..4);
    let lease = || prop_oneof![12 => 30u64..400, 1 => 0u64..3, 1 => Just(u64::MAX)];
    let claim = (
        (prop::option::weighted(0.4, 0u8..3), 0u8..4, select(vec![0u8, 0, 0, 0, 1, 2, 2])),
        (select(vec![0u8, 0, 0, 0, 1, 2]), prop_oneof![12 => 1u32..4, 1 => Just(0), 1 => Just(u32::MAX)]),
        (lease(), prop::option::weighted(0.1, 0u8..3)),
    );
    prop_oneof![
        8 => commit(),
        8 => claim.prop_map(|((by, pin, queue), (kinds, limit), (lease, hold))| {
            What::Claim { by, pin, queue, kinds, limit, lease, hold }
        }),
        3 => (token(), row(), lease()).prop_map(|(token, row, lease)| What::Heartbeat { token, row, lease }),
        5 => (token(), row()).prop_map(|(token, row)| What::Complete { token, row }),
        4 => (token(), row(), any::<bool>(), 0u8..3)
            .prop_map(|(token, row, retryable, error_type)| What::Fail { token, row, retryable, error_type }),
        2 => (token(), row(), 0u64..50).prop_map(|(token, row, delay)| What::Retry { token, row, delay }),
        1 => select(vec![0u8, 1, 2, 3, 4]).prop_map(What::Settle),
        2 => (select(vec![0u8, 1, 2, 3, 3, 3]), 0u8..2, prop::collection::vec((0u8..5, limits()), 0..4))
            .prop_map(|(workflow, namespace, rows)| What::Stage(workflow, namespace, rows)),
        2 => row().prop_map(What::Mark),
        6 => (row(), any::<bool>()).prop_map(|(row, forced)| What::Redrive(row, forced)),
        3 => (0u8..5, prop::collection::vec((0u8..5, limits()), 0..3)).prop_map(|(workflow, rows)| What::Rearm(workflow, rows)),
        1 => (select(vec![0u64, 0, 50, u64::MAX]), select(vec![0u32, 1, 9]), prop::option::of(row()))
            .prop_map(|(older, limit, except)| What::Reconcile { older, limit, except }),
        2 => (0u8..3, prop::option::weighted(0.6, 0u32..6), prop::bool::weighted(0.15), kept(), prop::option::of(kept()))
            .prop_map(|(namespace, ceiling, deprecated, kept, next_kept)| {
                What::PutNamespace { namespace, ceiling, deprecated, kept, next_kept }
            }),
        2 => prop::sample::subsequence(vec![0u8, 1, 2, 3], 1..=4).prop_map(What::Purge),
        5 => (0u8..5).prop_map(What::Delete),
        4 => (0u8..4, timer()).prop_map(|(workflow, timer)| What::Timer(workflow, timer)),
        1 => Just(What::Tick),
    ]
}

fn kept() -> impl Strategy<Value = Option<u64>> {
    select(vec![Some(0), Some(0), Some(40), Some(u64::MAX), None])
}

fn timer() -> impl Strategy<Value = Timer> {
    let (name, seq) = (|| 0u8..2, || 0u64..3);
    let at = || prop_oneof![8 => -20i64..60, 1 => Just(0i64), 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    prop_oneof![
        5 => (name(), at(), seq()).prop_map(|(name, at, seq)| Timer::Arm(name, at, seq)),
        3 => name().prop_map(Timer::Retire),
        1 => (name(), at(), seq()).prop_map(|(name, at, seq)| Timer::RetireAnother(name, at, seq)),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let ms =
        || prop_oneof![6 => Just(None), 4 => (20u64..400).prop_map(Some), 1 => select(vec![Some(0), Some(u64::MAX)])];
    let some =
        ([ms(), ms(), ms(), ms()], 0u8..4).prop_map(|(timeouts, final_errors)| Limits { timeouts, final_errors });
    prop_oneof![1 => Just(Limits::default()), 1 => some]
}

fn moves() -> impl Strategy<Value = (Token, u8, Move)> {
    let action = prop_oneof![
        3 => Just(Move::Complete),
        2 => any::<(bool, bool)>().prop_map(|(retryable, fatal)| Move::Fail(retryable, fatal)),
        1 => (0u64..50).prop_map(Move::Retry),
    ];
    (token(), 0u8..4, action)
}

fn token() -> impl Strategy<Value = Token> {
    prop_oneof![
        16 => (0u8..4).prop_map(Token::Given),
        2 => (3u8..12).prop_map(Token::Given),
        1 => (0u8..3).prop_map(Token::OfAnother),
        3 => Just(Token::None),
        1 => Just(Token::Never),
    ]
}

fn commit() -> impl Strategy<Value = What> {
    let seq =
        prop_oneof![8 => Just(Seq::Head), 1 => (1u64..4).prop_map(Seq::Behind), 1 => (1u64..3).prop_map(Seq::Ahead)];
    let settle = prop_oneof![6 => Just(Vec::new()), 1 => prop::collection::vec(0u8..4, 1..3)];
    let events = prop::collection::vec(event(), 0..4);
    let moves = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(moves(), 1..3)];
    let timers = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(timer(), 1..3)];
    let twice = prop::bool::weighted(0.1);
    let workflow = select(vec![0u8, 0, 0, 1, 1, 1, 2, 2, 2, 3]);
    let parts = (workflow, seq, events, settle, moves, timers, twice);
    parts.prop_map(|(workflow, seq, events, settle, moves, timers, twice)| What::Commit {
        workflow,
        seq,
        events,
        settle,
        moves,
        timers,
        twice,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let at = prop_oneof![8 => Just(0i64), 1 => -50i64..100, 1 => Just(i64::MAX)];
    let (queue, pin) = (select(vec![0u8, 0, 0, 0, 1]), select(vec![0u8, 0, 0, 0, 1, 2]));
    let value = prop_oneof![12 => (0u8..7).prop_map(Some), 3 => Just(None), 1 => Just(Some(7u8))];
    let search = (select(vec![0u8, 0, 0, 0, 0, 0, 1, 2]), 0u8..2, value)
        .prop_map(|(kind, name, value)| Event::Search { kind, name, value });
    let activity = (0u8..4, queue, pin, 0u8..2, at, 1u32..4, limits());
    prop_oneof![
        9 => activity.prop_map(|(ordinal, queue, pin, kind, at, budget, limits)| {
            Event::Activity { ordinal, queue, pin, kind, at, budget, limits }
        }),
        2 => (0usize..9).prop_map(Event::Plain),
        2 => (7usize..9).prop_map(Event::Plain),
        1 => (0u8..4).prop_map(Event::Rowless),
        2 => (0u8..3, 0u8..4).prop_map(|(kind, ordinal)| Event::Outcome(kind, ordinal)),
        1 => (0u8..2).prop_map(Event::Signal),
        3 => search,
    ]
}
