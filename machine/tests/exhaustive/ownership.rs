//! Who may write to a shard: three nodes die, come back and start again, adopt and hand over shards, and write, all with
//! whatever they once knew. Invariants 7 and 8.
//!
//! The world knows who has ever owned which shard under which epoch. Any node may at any time ask for a shard as the
//! adopter from any of those owners, whether it believes that one dead or not; any owner may write under any epoch; and
//! a start of a node may reach the log late, or once more after a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use holdfast_checkers::coverage::Coverage;
use holdfast_machine::{
    BootId, Claim, Command, Epoch, Fence, Holder, Millis, Namespace, NewHolder, NewRow, NodeName, Reject, Reply, Scope,
    ShardId, WorkflowId,
};
use stateright::{Model, Property};

use crate::{Came, State, Stored, is_right, member, node, search};

const NODES: u8 = 3;
const AT: Millis = Millis(1_000);

/// The bounds of a search.
struct Ownership {
    shards: u32,
    /// How often each node starts, at most.
    starts: [u8; NODES as usize],
    /// The last epoch of a shard that is looked at.
    epoch_max: u64,
    /// Whether nodes also take rows.
    claims: bool,
    met: Mutex<Coverage>,
}

/// What somebody outside knows.
#[derive(Clone, Debug, Default)]
struct World {
    /// Who owned a shard under an epoch.
    owned: BTreeMap<(ShardId, Epoch), NodeName>,
    down: BTreeSet<u8>,
}

impl World {
    fn current(&self, shard: ShardId) -> Option<(&Epoch, &NodeName)> {
        self.owned.range((shard, Epoch(0))..=(shard, Epoch(u64::MAX))).next_back().map(|((_, epoch), of)| (epoch, of))
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Act {
    Dies(u8),
    IsBack(u8),
    Boot { node: u8, start: u8 },
    Assign { shard: ShardId, to: u8 },
    Adopt { shard: ShardId, from: NodeName, epoch: Epoch, by: u8 },
    Transfer { shard: ShardId, epoch: Epoch, to: u8 },
    Write { shard: ShardId, owner: u8, epoch: Epoch },
    Claim { node: u8, start: u8 },
}

fn boot(node: u8, start: u8) -> BootId {
    BootId::new(format!("{node}-{start}")).unwrap()
}

/// A workflow of each shard.
fn workflow(shard: ShardId, shards: u32) -> WorkflowId {
    let ids = (0..).map(|number| WorkflowId::new(format!("w{number}")).unwrap());
    ids.into_iter().find(|id| ShardId::of(id, shards) == shard).unwrap()
}

/// A write that finds its row there and changes nothing.
fn write(workflow: WorkflowId) -> Command {
    let rows = vec![NewRow::new(1, "charge".parse().unwrap())];
    Command::Stage { workflow, namespace: Namespace::default(), rows }
}

impl Ownership {
    fn shards(&self) -> impl Iterator<Item = ShardId> {
        (0..self.shards).map(ShardId)
    }

    fn command(&self, act: &Act) -> (Option<Fence>, Command) {
        let command = match act {
            Act::Boot { node: of, start } => Command::Boot { node: node(*of), boot: boot(*of, *start) },
            Act::Assign { shard, to } => Command::Assign { owners: vec![(*shard, node(*to))] },
            Act::Adopt { shard, from, epoch, by } => {
                Command::Adopt { shard: *shard, from: from.clone(), by: node(*by), expected_epoch: *epoch }
            }
            Act::Transfer { shard, epoch, to } => {
                Command::Transfer { shard: *shard, to: node(*to), expected_epoch: *epoch }
            }
            Act::Write { shard, owner, epoch } => {
                let fence = Fence { owner: node(*owner), epoch: *epoch };
                return (Some(fence), write(workflow(*shard, self.shards)));
            }
            Act::Claim { node: of, start } => {
                let holder = NewHolder::Node { node: node(*of), boot: boot(*of, *start) };
                Command::Claim(Claim { scope: Scope::default(), limit: 1, holder, hold: Vec::new() })
            }
            Act::Dies(_) | Act::IsBack(_) => Command::Tick,
        };
        (None, command)
    }

    fn came(&self, before: &State<World>, act: &Act) -> (Came, World) {
        let mut world = before.world.clone();
        let came = match act {
            Act::Dies(of) | Act::IsBack(of) => {
                if matches!(act, Act::Dies(_)) {
                    world.down.insert(*of)
                } else {
                    world.down.remove(of)
                };
                let members: Vec<_> = (0..NODES).map(|of| member(of, !world.down.contains(&of))).collect();
                before.stored.members(&members)
            }
            _ => {
                let (fence, command) = self.command(act);
                before.stored.ask_under(AT, fence, command)
            }
        };
        (came, world)
    }

    /// What is wrong about an answer, by what the world knew before.
    fn wrong(&self, before: &World, act: &Act, came: &Came) -> Option<String> {
        match (act, came.reply.as_ref()?) {
            (Act::Adopt { from, by, .. }, Ok(Reply::Adopted(_))) => {
                let from_down = before.down.iter().any(|of| node(*of) == *from);
                (!from_down || before.down.contains(by)).then(|| format!("adopted, with {:?} down", before.down))
            }
            (Act::Write { shard, owner, epoch }, reply) => {
                let holds = before.current(*shard) == Some((epoch, &node(*owner)));
                (holds != reply.is_ok()).then(|| format!("{reply:?}; the owner is {:?}", before.current(*shard)))
            }
            _ => None,
        }
    }

    /// Takes in the directory, and says what is wrong about it.
    fn learn(&self, world: &mut World, stored: &Stored) -> Option<String> {
        for entry in stored.seen.shards.values() {
            let last = world.current(entry.shard).map(|(epoch, _)| *epoch);
            let place = (entry.shard, entry.epoch);
            let owner = world.owned.entry(place).or_insert_with(|| entry.owner.clone());
            if *owner != entry.owner || last.is_some_and(|last| last > entry.epoch) {
                return Some(format!("{entry:?} after epoch {last:?}, and the epoch was {owner}'s"));
            }
        }
        for (key, row) in &stored.seen.rows {
            let Some(Holder::Node { node, boot }) = row.claim.as_ref().map(|claim| &claim.holder) else { continue };
            let owner = world.current(ShardId::of(&key.workflow, self.shards)).map(|(_, owner)| owner);
            let runs = stored.seen.members.get(node).and_then(|member| member.boot.as_ref());
            if owner != Some(node) || runs != Some(boot) {
                return Some(format!("{key} is held by {node} {boot}; the owner is {owner:?}, its process {runs:?}"));
            }
        }
        None
    }

    fn count(&self, act: &Act, came: &Came) {
        let what = match (act, &came.reply) {
            (Act::Dies(_), _) => "deaths",
            (Act::IsBack(_), _) => "returns",
            (_, Some(Ok(Reply::Booted { shards, .. }))) if !shards.is_empty() => "boots of owners",
            (_, Some(Ok(Reply::Booted { .. }))) => "boots",
            (Act::Boot { .. }, _) => "boots refused",
            (_, Some(Ok(Reply::Assigned { shards }))) if !shards.is_empty() => "assignments",
            (_, Some(Ok(Reply::Adopted(moved)))) if !moved.rearmed.is_empty() => "adoptions with rows",
            (_, Some(Ok(Reply::Adopted(_)))) => "adoptions",
            (_, Some(Ok(Reply::AlreadyAdopted { .. }))) => "adoptions too late",
            (Act::Adopt { .. }, _) => "adoptions refused",
            (_, Some(Ok(Reply::Transferred(_)))) => "transfers",
            (Act::Transfer { .. }, _) => "transfers refused",
            (Act::Write { .. }, Some(Ok(_))) => "writes",
            (_, Some(Err(Reject::NotOwner { .. }))) => "writes under old fences",
            (_, Some(Ok(Reply::Claimed { claims }))) if !claims.is_empty() => "claims",
            _ => "others",
        };
        self.met.lock().unwrap().add(what, 1);
    }

    fn state(&self, stored: Stored, world: World, wrong: String) -> State<World> {
        // Rows are of nodes here, and each is known by its holder; the index in its token is of no further meaning.
        let rows = stored.seen.rows.iter().map(|(key, row)| (key, row.claim.as_ref().map(|claim| &claim.holder)));
        let rows: Vec<_> = rows.collect();
        let identity = (stored.without(b"ML"), rows, &world.owned, &world.down);
        State { identity: postcard::to_stdvec(&identity).unwrap(), stored, world, wrong }
    }
}

impl Model for Ownership {
    type State = State<World>;
    type Action = Act;

    fn init_states(&self) -> Vec<Self::State> {
        let members: Vec<_> = (0..NODES).map(|of| member(of, true)).collect();
        let mut stored = Stored::nothing().members(&members).after;
        stored = stored.ask(AT, Command::Create { shard_count: self.shards }).after;
        for shard in self.shards() {
            stored = stored.ask(AT, write(workflow(shard, self.shards))).after;
        }
        vec![self.state(stored, World::default(), String::new())]
    }

    fn actions(&self, state: &Self::State, acts: &mut Vec<Act>) {
        for of in 0..NODES {
            acts.push(if state.world.down.contains(&of) { Act::IsBack(of) } else { Act::Dies(of) });
            for start in 0..self.starts[usize::from(of)] {
                acts.push(Act::Boot { node: of, start });
                acts.extend(self.claims.then_some(Act::Claim { node: of, start }));
            }
            acts.extend(self.shards().map(|shard| Act::Assign { shard, to: of }));
        }
        for ((shard, epoch), owner) in &state.world.owned {
            for of in 0..NODES {
                acts.push(Act::Adopt { shard: *shard, from: owner.clone(), epoch: *epoch, by: of });
                acts.push(Act::Transfer { shard: *shard, epoch: *epoch, to: of });
                acts.push(Act::Write { shard: *shard, owner: of, epoch: *epoch });
            }
        }
    }

    fn next_state(&self, before: &Self::State, act: Act) -> Option<Self::State> {
        let (came, mut world) = self.came(before, &act);
        self.count(&act, &came);
        let mut wrong = self.wrong(&before.world, &act, &came);
        if came.is_as_before && came.wrong.is_empty() && wrong.is_none() {
            return None;
        }
        wrong = wrong.or_else(|| self.learn(&mut world, &came.after));
        Some(self.state(came.after, world, wrong.unwrap_or(came.wrong)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("shards have one owner, who alone may write", is_right)]
    }

    fn within_boundary(&self, state: &Self::State) -> bool {
        !state.wrong.is_empty() || state.world.owned.keys().all(|(_, epoch)| epoch.0 <= self.epoch_max)
    }
}

fn run(name: &str, starts: [u8; NODES as usize], epoch_max: u64, claims: bool, more: &[&str]) {
    let model = Ownership { shards: 1, starts, epoch_max, claims, met: Mutex::default() };
    let wanted = [
        "deaths",
        "returns",
        "boots",
        "boots of owners",
        "assignments",
        "adoptions",
        "adoptions too late",
        "adoptions refused",
        "transfers",
        "transfers refused",
        "writes",
        "writes under old fences",
    ];
    search(name, model, |model| &model.met, &[&wanted, more].concat());
}

#[test]
fn one_owner_writes_to_a_shard() {
    run("ownership, with a node that starts twice", [2, 1, 1], 2, false, &["boots refused"]);
}

#[test]
fn rows_are_held_by_the_owner_of_their_shard() {
    run("ownership, with rows of the owners", [1, 1, 1], 2, true, &["claims", "adoptions with rows"]);
}
