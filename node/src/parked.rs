//! Parked dispatches: rows of this node's shards that are due and that nobody takes, told once for each change of the
//! reason, and counted.
//!
//! The reasons are those of `holdfast explain`. A route is looked at once its first row has been due for a while; as long
//! as something is parked, looks come at short intervals, because claims that begin to wait are told by no effect. With
//! nothing parked the task sleeps until a row has been due for that long, and with no rows waiting until there are some.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::Store;
use holdfast_machine::{ClusterEvent, Effect, NodeName, Parked, ParkedRoute, Route};
use holdfast_raft::Handle;
use metrics::gauge;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

/// Between two looks while something is parked, at most.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Routes that are looked at in one go, so that apply does not wait for long.
const ROUTES_PER_LOOK: usize = 128;
/// Sleep while no time is known at which there is something to look at.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);

/// The watch over one node's parked dispatches.
pub(crate) struct ParkedWatch {
    pub store: Store,
    pub handle: Handle,
    pub node: NodeName,
    /// How long a row has to be due.
    pub after: Duration,
}

impl ParkedWatch {
    /// Watches until the node stops.
    pub async fn run(self) {
        let mut known = BTreeMap::new();
        loop {
            // Whatever comes after the look is heard.
            let effects = self.handle.effects();
            let found = self.look().await;
            self.count(&found);
            self.tell(&mut known, found);
            if self.wait(effects, known.is_empty()).await.is_none() {
                return;
            }
        }
    }

    /// All parked routes by now.
    async fn look(&self) -> Vec<ParkedRoute> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (more, next) = self.store.parked_routes(self.after, after.as_ref(), ROUTES_PER_LOOK);
            found.extend(more);
            if next.is_none() {
                return found;
            }
            after = next;
            tokio::task::yield_now().await;
        }
    }

    fn count(&self, found: &[ParkedRoute]) {
        for (reason, name) in REASONS {
            let rows: u64 = found.iter().filter(|parked| parked.reason == reason).map(|parked| parked.rows).sum();
            // Exact up to 2^53.
            gauge!("holdfast_parked_rows", "node" => self.node.to_string(), "reason" => name).set(rows as f64);
        }
    }

    fn tell(&self, known: &mut BTreeMap<Route, Parked>, found: Vec<ParkedRoute>) {
        for event in changes(known, found) {
            self.handle.feed().push_local(event);
        }
    }

    /// Waits until there may be something to look at; none when the node stops.
    async fn wait(
        &self,
        mut effects: tokio::sync::broadcast::Receiver<(u64, Effect)>,
        nothing_parked: bool,
    ) -> Option<()> {
        let pause = match self.store.next_due_in() {
            _ if !nothing_parked => LOOK_AGAIN.min(self.after),
            Some(due_in) => due_in.saturating_add(self.after).min(SLEEP_MAX),
            None => SLEEP_MAX,
        };
        let mut wake = Instant::now() + pause;
        // No effect leads to a look before `after` is over, so within that time there is nothing to listen for.
        while wake.saturating_duration_since(Instant::now()) > self.after {
            let due_in = tokio::select! {
                () = sleep_until(wake) => return Some(()),
                effect = effects.recv() => match effect {
                    Ok((_, Effect::RowsDue { at, .. })) => at.0.saturating_sub(self.handle.clock().now_ms()),
                    Ok((_, Effect::ShardAcquired { .. } | Effect::TopologyChanged)) | Err(RecvError::Lagged(_)) => 0,
                    Ok(_) => continue,
                    Err(RecvError::Closed) => return None,
                },
            };
            let due_in = Duration::from_millis(due_in).min(SLEEP_MAX);
            wake = wake.min(Instant::now() + due_in + self.after);
        }
        sleep_until(wake).await;
        Some(())
    }
}

const REASONS: [(Parked, &str); 5] = [
    (Parked::NoWorker, "no_worker"),
    (Parked::NoWorkerForActivity, "no_worker_for_activity"),
    (Parked::WorkersFull, "workers_full"),
    (Parked::PinnedNodeMissing, "pinned_node_missing"),
    (Parked::NamespaceFull, "namespace_full"),
];

/// What is to be told of what was found, by route; `known` is what was told before, and becomes what is now.
fn changes(known: &mut BTreeMap<Route, Parked>, found: Vec<ParkedRoute>) -> Vec<ClusterEvent> {
    let before = std::mem::take(known);
    let mut events = Vec::new();
    for ParkedRoute { route, rows, reason } in found {
        if before.get(&route) != Some(&reason) {
            events.push(ClusterEvent::DispatchParked { route: route.clone(), reason, rows });
        }
        known.insert(route, reason);
    }
    let moving = before.into_keys().filter(|route| !known.contains_key(route));
    events.extend(moving.map(|route| ClusterEvent::DispatchUnparked { route }));
    events
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parked(queue: &str, rows: u64, reason: Parked) -> ParkedRoute {
        let activity_type = "charge".parse().unwrap();
        let task_queue = queue.parse().unwrap();
        ParkedRoute {
            route: Route { namespace: Default::default(), task_queue, node: None, activity_type },
            rows,
            reason,
        }
    }

    #[test]
    fn each_change_of_a_reason_is_told_once() {
        let mut known = BTreeMap::new();
        let (a, b) = (parked("a", 5, Parked::NoWorker), parked("b", 1, Parked::NoWorker));
        let told = |found: &ParkedRoute| {
            let ParkedRoute { route, rows, reason } = found.clone();
            ClusterEvent::DispatchParked { route, reason, rows }
        };
        assert_eq!(changes(&mut known, vec![a.clone(), b.clone()]), [told(&a), told(&b)]);
        let more = parked("a", 9, Parked::NoWorker);
        assert_eq!(changes(&mut known, vec![more, b.clone()]), [], "more rows are no other reason");
        let full = parked("a", 9, Parked::WorkersFull);
        let unparked = ClusterEvent::DispatchUnparked { route: b.route };
        assert_eq!(changes(&mut known, vec![full.clone()]), [told(&full), unparked]);
        assert_eq!(changes(&mut known, vec![full]), []);
        assert_eq!(changes(&mut known, vec![a.clone()]), [told(&a)]);
    }
}
