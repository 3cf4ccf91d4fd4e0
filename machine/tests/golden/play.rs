//! Plays the lines of a script on a machine and gathers what is to be seen.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_machine::{
    Applied, ClaimToken, Command, DispatchKey, Entry, Evidence, Liveness, Machine, Member, MemoryArchive, Millis,
    NodeName, Reply, Request, WorkflowId,
};

use crate::{find, parse, show};

/// A machine, its archive, and what a script has done to them so far.
#[derive(Default)]
pub struct Player {
    machine: Machine,
    archive: MemoryArchive,
    index: u64,
    at: Millis,
    tokens: BTreeMap<DispatchKey, Vec<ClaimToken>>,
    workflows: BTreeSet<WorkflowId>,
    rows: BTreeSet<DispatchKey>,
    seen: BTreeSet<String>,
}

impl Player {
    /// Plays a paragraph and returns what follows from it, line by line.
    pub fn paragraph(&mut self, lines: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for line in lines {
            self.line(line, &mut out);
        }
        let state = self.state();
        out.extend(state.iter().filter(|line| !self.seen.contains(*line)).map(|line| format!("  {line}")));
        self.seen = state;
        out
    }

    fn line(&mut self, line: &str, out: &mut Vec<String>) {
        let (at, rest) = match line.strip_prefix('@') {
            Some(timed) => timed.split_once(' ').map(|(at, rest)| (at.parse().ok(), rest)).unwrap(),
            None => (None, line),
        };
        self.at = at.map_or(self.at, Millis);
        let (word, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "members" => {
                let members: Vec<Member> = arguments.split_whitespace().enumerate().map(member).collect();
                self.index += 1;
                let applied = self.machine.apply_members(self.index, &members, &self.archive).unwrap();
                self.finish(&applied, out);
            }
            "reload" => {
                let hash = self.machine.state_hash();
                self.machine = Machine::load(&self.archive).unwrap();
                let same = if self.machine.state_hash() == hash { "the same state" } else { "ANOTHER STATE" };
                out.push(format!("reloaded: {same}"));
            }
            "now" => out.push(format!("log time {}", self.machine.now())),
            "history" => {
                let events = self.machine.history(&self.archive, &arguments.parse().unwrap(), 1, 100).unwrap();
                out.extend(events.iter().map(show::event));
            }
            "runs" => {
                let runs = self.machine.runs(&self.archive, &arguments.parse().unwrap(), 0, 100).unwrap();
                out.extend(runs.iter().map(show::run));
            }
            "expired" => {
                let value = |name: &str| arguments.split_whitespace().find_map(|word| word.strip_prefix(name));
                let owner: Option<NodeName> = value("owner=").map(|owner| owner.parse().unwrap());
                let as_of = value("as_of=").map_or(self.machine.now(), |at| Millis(at.parse().unwrap()));
                let limit = value("limit=").map_or(100, |limit| limit.parse().unwrap());
                let timers = self.machine.expired_timers(owner.as_ref(), None, as_of, limit);
                out.extend(timers.iter().map(|(workflow, arming)| show::timer(workflow, arming)));
                let next = self.machine.next_timer_due(owner.as_ref(), as_of);
                out.push(format!("next due {}", next.map_or("never".to_owned(), |at| at.to_string())));
            }
            "namespaces" => {
                let counts = |name| self.machine.counts_of(name);
                let all = self.machine.namespaces_after(None);
                out.extend(all.map(|(name, state)| show::namespace(name, state, counts(name))));
            }
            "due" => {
                let due = self.machine.due_purge(&self.archive, Millis(arguments.parse().unwrap()), 0).unwrap();
                let Some(Command::Purge { workflows }) = due.command else { return out.push("nothing is due".into()) };
                let ids: Vec<String> = workflows.iter().map(ToString::to_string).collect();
                out.push(format!("due: {}", if ids.is_empty() { "what is left".to_owned() } else { ids.join(" ") }));
            }
            "input" => {
                let key: DispatchKey = arguments.parse().unwrap();
                let input = self.machine.input(&self.archive, &key).unwrap().unwrap_or_default();
                let details = self.machine.details(&self.archive, &key).unwrap().unwrap_or_default();
                out.push(format!("{key} input {}; details {}", show::payload(&input), show::payload(&details)));
            }
            "letters" | "unsettled" | "routes" | "heads" => out.push(self.listing(word, arguments)),
            "list" | "count" => out.extend(find::ask(&self.machine, &self.archive, word, arguments)),
            _ => self.entry(rest, out),
        }
    }

    /// `letters workflow`, `letters ns=namespace`, `unsettled`, `routes`, `heads`.
    fn listing(&self, word: &str, of: &str) -> String {
        let (machine, archive) = (&self.machine, &self.archive);
        let lines: Vec<String> = match (word, of.strip_prefix("ns=")) {
            ("letters", Some(namespace)) => {
                let letters = machine.dead_letters_in(archive, &namespace.parse().unwrap(), None, 100).unwrap();
                letters.rows.into_iter().map(|(key, _)| key.to_string()).collect()
            }
            ("letters", None) => {
                let letters = machine.dead_letters_of(archive, &of.parse().unwrap(), None, 100).unwrap();
                letters.rows.into_iter().map(|(key, _)| key.to_string()).collect()
            }
            ("unsettled", _) => machine.unsettled(None, None, 100).iter().map(show::unsettled).collect(),
            ("routes", _) => machine.pending_routes(None, 100).iter().map(show::route).collect(),
            _ => {
                let heads = machine.heads(archive, None, false, None, 100).unwrap().workflows;
                heads.iter().map(|(id, workflow)| format!("{id} {} at {}", workflow.status, workflow.head)).collect()
            }
        };
        format!("{word} {of}: {}", if lines.is_empty() { "none".to_owned() } else { lines.join(", ") })
    }

    fn entry(&mut self, line: &str, out: &mut Vec<String>) {
        let tokens = &self.tokens;
        let token = |key: &DispatchKey, number: usize| match tokens.get(key).and_then(|all| all.get(number - 1)) {
            Some(token) => *token,
            None => ClaimToken { index: 0, number: 0 },
        };
        let requests: Vec<Request> = line.split(" ; ").map(|command| parse::request(command, &token)).collect();
        for request in &requests {
            self.note(&request.command);
        }
        self.index += 1;
        let entry = Entry { at: self.at, requests };
        let applied = self.machine.apply(self.index, entry, &self.archive).unwrap();
        for reply in &applied.replies {
            out.push(show::reply(reply));
            let Ok(Reply::Claimed { claims }) = reply else { continue };
            claims.iter().for_each(|claim| note(&mut self.tokens, &claim.key, claim.token));
        }
        for (key, row) in self.machine.live_rows() {
            row.claim.iter().for_each(|claim| note(&mut self.tokens, key, claim.token));
        }
        self.finish(&applied, out);
    }

    /// Remembers which workflows and rows a script is about, so that they are shown, finished ones too.
    fn note(&mut self, command: &Command) {
        let (workflow, rows) = match command {
            Command::Commit(commit) => (&commit.workflow, &commit.rows),
            Command::Rearm { workflow, rows } | Command::Stage { workflow, rows, .. } => (workflow, rows),
            Command::Timer { workflow, .. } => (workflow, &Vec::new()),
            _ => return,
        };
        self.workflows.insert(workflow.clone());
        let key = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
        self.rows.extend(rows.iter().map(|row| key(row.ordinal)));
    }

    fn finish(&mut self, applied: &Applied, out: &mut Vec<String>) {
        out.extend(applied.events.iter().map(|event| format!("! {}", show::cluster_event(event))));
        out.extend(applied.effects.iter().filter_map(show::effect).map(|effect| format!("* {effect}")));
        self.archive.commit(self.machine.take_writes());
    }

    fn state(&self) -> BTreeSet<String> {
        let mut lines: BTreeSet<String> = self.machine.shards().map(show::shard).collect();
        for id in &self.workflows {
            if let Some(workflow) = self.machine.workflow(&self.archive, id).unwrap() {
                lines.insert(show::workflow(id, &workflow));
            }
            lines.extend(self.machine.timers_of(id, None, 100).iter().map(|arming| show::timer(id, arming)));
        }
        for (id, session) in self.machine.sessions_after(None) {
            lines.insert(show::session(id, session, self.machine.session_row_count(id)));
        }
        for key in &self.rows {
            if let Some(row) = self.machine.row(&self.archive, key).unwrap() {
                lines.insert(show::row(key, &row));
            }
        }
        lines
    }
}

/// Remembers a token that was given out, whether by a claim or to a session.
pub fn note(tokens: &mut BTreeMap<DispatchKey, Vec<ClaimToken>>, key: &DispatchKey, token: ClaimToken) {
    let known = tokens.entry(key.clone()).or_default();
    if !known.contains(&token) {
        known.push(token);
    }
}

/// `name`, `name=down`, `name=silent` or `name=joining`.
pub fn member((number, word): (usize, &str)) -> Member {
    let (name, state) = word.split_once('=').unwrap_or((word, "up"));
    let liveness = match state {
        "up" => Liveness::Up,
        "down" => Liveness::Down { evidence: Evidence::LinkClosed },
        "silent" => Liveness::Down { evidence: Evidence::Silent },
        "joining" => Liveness::Joining,
        _ => panic!("no such liveness: {state}"),
    };
    let (peer_addr, http_addr) = (format!("{name}:1"), String::new());
    Member { id: number as u64 + 1, name: name.parse().unwrap(), peer_addr, http_addr, liveness }
}
