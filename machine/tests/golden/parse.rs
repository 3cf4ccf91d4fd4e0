//! The words of a script. A line is `[@time] [key=k] [fence=node/epoch] command [; command …]`.
//!
//! | command | arguments |
//! |---|---|
//! | `create` | shard count |
//! | `boot` | node, boot id |
//! | `assign` | `shard=node` … |
//! | `adopt` | shard, `from=` `by=` `epoch=` |
//! | `transfer` | shard, `to=` `epoch=` |
//! | `commit` | workflow, expected seq, events, `settle=ordinal`, transitions, timers |
//! | `claim` | `limit=` `lease=name/ms` or `holder=node/boot`, `queue=` `ns=` `types=a,b` `node=` `hold=w,w` |
//! | `heartbeat` | row, `#claim`, ms, details |
//! | `complete`, `fail`, `final` | row, `#claim` or nothing, `!error type`, text; `final` is not retried |
//! | `retry` | row, `#claim` or nothing, ms |
//! | `settle` | workflow |
//! | `rearm` | workflow, ordinals |
//! | `stage` | workflow, `ns=`, rows as in `act:` |
//! | `mark`, `redrive`, `force` | row; `force` is a forced redrive |
//! | `reconcile` | `older=` `limit=` `except=row,row` |
//! | `arm`, `retire` | workflow, `name@time/armed seq` |
//! | `namespace` | name, `ceiling=` `keep=ms` `keep:type=ms` `deprecated`; `keep=ever` for ever |
//! | `purge` | workflows |
//! | `delete` | workflow |
//! | `attach` | session, `node/boot`, `max=` `lease=ms` `ns=a,b` `queue=` `types=a,b` `node=` |
//! | `extend`, `detach`, `drain`, `close` | session, attachment |
//! | `tick` | |
//!
//! Events: `started[/run id][@namespace]`, `run:type`, `search`, any of them with `?attribute=value,…`,
//! `completed`, `failed`, `cancelled`, `timedout`, `continued`, `reopened`, `paused`,
//! `resumed`, `signal[/text]`, `scheduled:n`, `begun:n`, `done:n`, `lost:n`, `dropped:n`, and `act:n[,queue=][,node=]
//! [,type=][,at=][,max=][,never=error+error][,wait=][,attempt=][,all=][,beat=][,input=]`, which is the two events of an
//! activity together with its row; `wait` and the three behind it are its timeouts, schedule-to-start, start-to-close,
//! schedule-to-close and heartbeat. `#2` is the second token that was given out for the row.
//!
//! In a commit, transitions are `complete=n[#claim][/text]`, `fail=n[#claim][!error type][/text]`, `final=` and
//! `retry=n[#claim]/ms`, timers
//! `arm=name@time/seq` and `retire=name@time/seq`.

use holdfast_machine::{
    ActivityType, Arming, Attached, Claim, ClaimToken, Command, Commit, DispatchKey, Epoch, EventKind, Fence,
    IdempotencyKey, Millis, NamespaceSettings, NewEvent, NewHolder, NewRow, NodeName, Payload, Request, RetryPolicy,
    RowAction, RunId, Scope, SessionChange, ShardId, TaskQueue, Timeouts, TimerChange, Transition, Worker, WorkflowId,
    WorkflowStart, WorkflowType,
};

/// Looks up the n-th token of a row, from 1.
pub type Tokens<'a> = &'a dyn Fn(&DispatchKey, usize) -> ClaimToken;

fn id<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("not valid: {text}"))
}

fn number(text: &str) -> u64 {
    if text == "max" { u64::MAX } else { id(text) }
}

fn value<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn must<'a>(words: &[&'a str], name: &str) -> &'a str {
    value(words, name).unwrap_or_else(|| panic!("{words:?} needs {name}="))
}

/// One command with its guards.
pub fn request(line: &str, tokens: Tokens<'_>) -> Request {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let (mut idempotency_key, mut fence) = (None, None);
    while let Some((name, value)) = words[0].split_once('=') {
        match name {
            "key" => idempotency_key = Some(id::<IdempotencyKey>(value)),
            "fence" => {
                let (owner, epoch) = value.split_once('/').unwrap();
                fence = Some(Fence { owner: id(owner), epoch: Epoch(id(epoch)) });
            }
            _ => panic!("no such guard: {name}"),
        }
        words.remove(0);
    }
    Request { idempotency_key, fence, command: command(words[0], &words[1..], tokens) }
}

fn command(name: &str, words: &[&str], tokens: Tokens<'_>) -> Command {
    let shard = || ShardId(id(words[0]));
    match name {
        "create" => Command::Create { shard_count: id(words[0]) },
        "boot" => Command::Boot { node: id(words[0]), boot: id(words[1]) },
        "assign" => {
            let pair = |word: &&str| word.split_once('=').map(|(shard, node)| (ShardId(id(shard)), id(node))).unwrap();
            Command::Assign { owners: words.iter().map(pair).collect() }
        }
        "adopt" => {
            let expected_epoch = Epoch(id(must(words, "epoch")));
            Command::Adopt { shard: shard(), from: id(must(words, "from")), by: id(must(words, "by")), expected_epoch }
        }
        "transfer" => {
            let expected_epoch = Epoch(id(must(words, "epoch")));
            Command::Transfer { shard: shard(), to: id(must(words, "to")), expected_epoch }
        }
        "commit" => Command::Commit(commit(words, tokens)),
        "claim" => Command::Claim(claim(words)),
        "settle" => Command::Settle { workflow: id(words[0]) },
        "rearm" => {
            let rows = words[1..].iter().map(|word| row(word)).collect();
            Command::Rearm { workflow: id(words[0]), rows }
        }
        "stage" => {
            let namespace = value(words, "ns").map(id).unwrap_or_default();
            let rows = words[1..].iter().filter(|word| !word.starts_with("ns=")).map(|word| row(word)).collect();
            Command::Stage { workflow: id(words[0]), namespace, rows }
        }
        "mark" => Command::MarkFailureDelivered { key: id(words[0]) },
        "redrive" | "force" => Command::Redrive { key: id(words[0]), forced: name == "force" },
        "reconcile" => Command::Reconcile {
            older_than_ms: number(must(words, "older")),
            limit: value(words, "limit").map_or(u32::MAX, id),
            excluded: value(words, "except").map_or(Vec::new(), |rows| rows.split(',').map(id).collect()),
        },
        "arm" => Command::Timer { workflow: id(words[0]), change: TimerChange::Schedule(arming(words[1])) },
        "retire" => Command::Timer { workflow: id(words[0]), change: TimerChange::Retire(arming(words[1])) },
        "namespace" => Command::PutNamespace { namespace: id(words[0]), settings: settings(&words[1..]) },
        "purge" => Command::Purge { workflows: words.iter().map(|word| id(word)).collect() },
        "delete" => Command::Delete { workflow: id(words[0]) },
        "attach" | "extend" | "detach" | "drain" | "close" => {
            Command::Session { session: id(words[0]), change: session(name, &words[1..]) }
        }
        "tick" => Command::Tick,
        "checkpoint" => Command::Checkpoint { index: number(words[0]), hash: number(words[1]) },
        _ => transition(name, words, tokens),
    }
}

fn transition(name: &str, words: &[&str], tokens: Tokens<'_>) -> Command {
    let key: DispatchKey = id(words[0]);
    let token = words.get(1).and_then(|word| word.strip_prefix('#')).map(|n| tokens(&key, id(n)));
    let mut rest = &words[if token.is_some() { 2 } else { 1 }..];
    let error_type = rest.first().and_then(|word| word.strip_prefix('!')).map(id);
    rest = &rest[usize::from(error_type.is_some())..];
    let body = |words: &[&str]| if words.is_empty() { Payload::default() } else { Payload::text(words.join(" ")) };
    match name {
        "heartbeat" => {
            Command::Heartbeat { key, token: token.unwrap(), lease_ms: number(rest[0]), details: body(&rest[1..]) }
        }
        "complete" => Command::Complete { key, token, result: body(rest) },
        "fail" => Command::Fail { key, token, error: body(rest), error_type, retryable: true },
        "final" => Command::Fail { key, token, error: body(rest), error_type, retryable: false },
        "retry" => Command::Retry { key, token, delay_ms: number(rest[0]) },
        _ => panic!("no such command: {name}"),
    }
}

fn claim(words: &[&str]) -> Claim {
    let holder = match (value(words, "lease"), value(words, "holder")) {
        (Some(lease), None) => {
            let (claimant, ms) = lease.split_once('/').unwrap();
            NewHolder::Lease { claimant: id(claimant), lease_ms: number(ms) }
        }
        (None, Some(holder)) => {
            let (node, boot) = holder.split_once('/').unwrap();
            NewHolder::Node { node: id(node), boot: id(boot) }
        }
        _ => panic!("a claim needs lease= or holder="),
    };
    let list = |name: &str| value(words, name).map_or(Vec::new(), |list| list.split(',').collect::<Vec<_>>());
    let scope = Scope {
        namespace: value(words, "ns").map(id).unwrap_or_default(),
        task_queue: value(words, "queue").map(id::<TaskQueue>).unwrap_or_default(),
        activity_types: list("types").into_iter().map(id::<ActivityType>).collect(),
        node: value(words, "node").map(id::<NodeName>),
    };
    let limit = value(words, "limit").map_or(100, id);
    Claim { scope, limit, holder, hold: list("hold").into_iter().map(id::<WorkflowId>).collect() }
}

fn session(name: &str, words: &[&str]) -> SessionChange {
    if name == "attach" {
        let (node, boot) = words[0].split_once('/').unwrap();
        let list = |name: &str| value(words, name).map_or(Vec::new(), |list| list.split(',').collect::<Vec<_>>());
        let worker = Worker {
            identity: id("bob"),
            namespaces: value(words, "ns").unwrap_or("default").split(',').map(id).collect(),
            task_queue: value(words, "queue").map(id).unwrap_or_default(),
            activity_types: list("types").into_iter().map(id).collect(),
            max_concurrency: value(words, "max").map_or(1, id),
            node: value(words, "node").map(id),
            lease_ms: value(words, "lease").map_or(1_000, number),
        };
        return SessionChange::Attach { worker, to: Attached { node: id(node), boot: id(boot) } };
    }
    let attachment = number(words[0]);
    match name {
        "extend" => SessionChange::Extend { attachment },
        "detach" => SessionChange::Detach { attachment },
        "drain" => SessionChange::Drain { attachment },
        _ => SessionChange::Close { attachment },
    }
}

fn settings(words: &[&str]) -> NamespaceSettings {
    let keep = |text: &str| if text == "ever" { None } else { Some(number(text)) };
    let mut settings = NamespaceSettings::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("deprecated", _) => settings.deprecated = true,
            ("ceiling", most) => settings.claimed_max = Some(id(most)),
            ("keep", ms) => settings.retention_ms = keep(ms),
            (name, ms) => {
                let of_type = name.strip_prefix("keep:").unwrap_or_else(|| panic!("no such setting: {word}"));
                settings.retention_ms_by_type.insert(id(of_type), keep(ms));
            }
        }
    }
    settings
}

fn commit(words: &[&str], tokens: Tokens<'_>) -> Commit {
    let workflow: WorkflowId = id(words[0]);
    let (mut events, mut rows, mut settle) = (Vec::new(), Vec::new(), Vec::new());
    let (mut transitions, mut timers) = (Vec::new(), Vec::new());
    for word in &words[2..] {
        if let Some((action @ ("complete" | "fail" | "final" | "retry"), rest)) = word.split_once('=') {
            transitions.push(part(&workflow, action, rest, tokens));
            continue;
        }
        if let Some((change @ ("arm" | "retire"), timer)) = word.split_once('=') {
            let change = if change == "arm" { TimerChange::Schedule } else { TimerChange::Retire };
            timers.push(change(arming(timer)));
            continue;
        }
        if let Some(ordinal) = word.strip_prefix("settle=") {
            settle.push(number(ordinal));
        } else if let Some(activity) = word.strip_prefix("act:") {
            let row = row(activity);
            events.push(NewEvent::activity(EventKind::ActivityScheduled, row.ordinal).with(row.input.clone()));
            events.push(NewEvent::activity(EventKind::ActivityStarted, row.ordinal));
            rows.push(row);
        } else if let Some(ordinal) = word.strip_prefix("row:") {
            rows.push(row(ordinal));
        } else {
            events.push(event(word));
        }
    }
    Commit { events, rows, settle, transitions, timers, ..Commit::new(workflow, number(words[1])) }
}

/// A transition as part of a commit.
fn part(workflow: &WorkflowId, action: &str, text: &str, tokens: Tokens<'_>) -> Transition {
    let (row, detail) = text.split_once('/').unwrap_or((text, ""));
    let (row, error_type) = row.split_once('!').map_or((row, None), |(row, error_type)| (row, Some(id(error_type))));
    let (ordinal, claim) = row.split_once('#').map_or((row, None), |(ordinal, claim)| (ordinal, Some(claim)));
    let ordinal = number(ordinal);
    let key = DispatchKey { workflow: workflow.clone(), ordinal };
    let body = if detail.is_empty() { Payload::default() } else { Payload::text(detail) };
    let action = match action {
        "complete" => RowAction::Complete { result: body },
        "retry" => RowAction::Retry { delay_ms: number(detail) },
        action => RowAction::Fail { error: body, error_type, retryable: action == "fail" },
    };
    Transition { ordinal, token: claim.map(|number| tokens(&key, id(number))), action }
}

fn arming(text: &str) -> Arming {
    let (timer, rest) = text.split_once('@').unwrap();
    let (fire_at, armed_seq) = rest.split_once('/').unwrap();
    Arming { timer: id(timer), fire_at: Millis(number(fire_at)), armed_seq: number(armed_seq) }
}

fn row(text: &str) -> NewRow {
    let mut words: Vec<&str> = text.split(',').collect();
    let ordinal = number(words.remove(0));
    let deliveries_max = value(&words, "max").map_or(3, id);
    NewRow {
        ordinal,
        task_queue: value(&words, "queue").map(id).unwrap_or_default(),
        node: value(&words, "node").map(id),
        activity_type: id(value(&words, "type").unwrap_or("charge")),
        input: value(&words, "input").map(Payload::text).unwrap_or_default(),
        visible_after: Millis(value(&words, "at").map_or(0, number)),
        retry: RetryPolicy {
            initial_ms: 9,
            multiplier_percent: 200,
            maximum_ms: 9,
            deliveries_max,
            non_retryable: value(&words, "never").map_or(Vec::new(), |all| all.split('+').map(id).collect()),
        },
        timeouts: Timeouts {
            schedule_to_start_ms: value(&words, "wait").map(number),
            start_to_close_ms: value(&words, "attempt").map(number),
            schedule_to_close_ms: value(&words, "all").map(number),
            heartbeat_ms: value(&words, "beat").map(number),
        },
    }
}

fn event(word: &str) -> NewEvent {
    if let Some((word, attributes)) = word.split_once('?') {
        return NewEvent { search_attributes: Some(crate::find::update(attributes)), ..event(word) };
    }
    if let Some(workflow_type) = word.strip_prefix("run:") {
        return NewEvent::started(id(workflow_type));
    }
    if let Some((name, ordinal)) = word.split_once(':') {
        let kind = match name {
            "scheduled" => EventKind::ActivityScheduled,
            "begun" => EventKind::ActivityStarted,
            "done" => EventKind::ActivityCompleted,
            "lost" => EventKind::ActivityFailed,
            "dropped" => EventKind::ActivityCancelled,
            _ => panic!("no such event: {word}"),
        };
        return NewEvent::activity(kind, number(ordinal));
    }
    let (word, namespace) = word.split_once('@').map_or((word, None), |(word, namespace)| (word, Some(namespace)));
    let (name, detail) = word.split_once('/').map_or((word, None), |(name, detail)| (name, Some(detail)));
    let kind = match name {
        "started" => {
            let start = WorkflowStart {
                namespace: namespace.map(id).unwrap_or_default(),
                workflow_type: WorkflowType::new("order").unwrap(),
                run_id: detail.map(id::<RunId>),
            };
            return NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) };
        }
        "completed" => EventKind::WorkflowCompleted,
        "failed" => EventKind::WorkflowFailed,
        "cancelled" => EventKind::WorkflowCancelled,
        "timedout" => EventKind::WorkflowTimedOut,
        "continued" => EventKind::WorkflowContinuedAsNew,
        "reopened" => EventKind::WorkflowReopened,
        "paused" => EventKind::WorkflowPaused,
        "resumed" => EventKind::WorkflowResumed,
        "signal" => EventKind::SignalReceived,
        "search" => EventKind::SearchAttributesUpdated,
        _ => EventKind::from_name(name),
    };
    NewEvent::of(kind).with(detail.map(Payload::text).unwrap_or_default())
}
