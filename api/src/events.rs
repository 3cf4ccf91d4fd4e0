//! The stream of cluster events: a picture of the topology, then what changes, without a silent gap.
//!
//! The feed is subscribed to before the picture is taken, and committed events that the picture already
//! holds are left out by their numbers. So there is neither a gap nor a double between the two.

use std::collections::VecDeque;

use futures::stream::{self, BoxStream, StreamExt};
use holdfast_client::wire::{EventId, EventMessage};
use holdfast_machine::ReadMode;
use holdfast_raft::{FeedItem, Since, Subscription};
use tokio::sync::watch;

use crate::store::Store;

impl Store {
    /// Cluster events: first a snapshot of the topology, then facts; or, from a number, the facts above it.
    /// Ends when the node stops or the store is closed.
    pub fn events(&self, from: Option<EventId>) -> BoxStream<'static, EventMessage> {
        let follower = Follower::new(self.clone(), from);
        let messages = stream::unfold(follower, |mut follower| async move {
            let message = follower.next().await?;
            Some((message, follower))
        });
        messages.boxed()
    }
}

struct Follower {
    store: Store,
    subscription: Subscription,
    closed: watch::Receiver<bool>,
    /// The last number that the subscriber has.
    last: Option<EventId>,
    /// Messages that come before what the feed has.
    ready: VecDeque<EventMessage>,
    /// True until it is known that a number to resume from is one of this cluster's.
    resumes: bool,
}

impl Follower {
    fn new(store: Store, from: Option<EventId>) -> Self {
        let feed = store.shared.raft.feed();
        let since = from.map_or(Since::Now, Since::After);
        let subscription = feed.subscribe(since);
        let closed = store.shared.closed.subscribe();
        let resumes = from.is_some();
        let mut follower = Self { store, subscription, closed, last: from, ready: VecDeque::new(), resumes };
        if !resumes {
            follower.snapshot();
        }
        follower
    }

    async fn next(&mut self) -> Option<EventMessage> {
        if std::mem::take(&mut self.resumes) {
            self.check_number().await;
        }
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let item = tokio::select! {
                item = self.subscription.next() => item?,
                _ = self.closed.wait_for(|closed| *closed) => return None,
            };
            self.take(item);
        }
    }

    fn take(&mut self, item: FeedItem) {
        match item {
            FeedItem::Lagged { .. } => self.lagged(),
            FeedItem::Event { local: true, event, .. } => {
                self.ready.push_back(EventMessage::Event { id: None, event });
            }
            FeedItem::Event { id, event, .. } => {
                if self.last.is_none_or(|last| id > last) {
                    self.last = Some(id);
                    self.ready.push_back(EventMessage::Event { id: Some(id), event });
                }
            }
        }
    }

    /// A number above everything that is committed comes from another life of the cluster, and nothing would
    /// ever follow it. Without a quorum this cannot be told; the stream then simply waits.
    async fn check_number(&mut self) {
        let Some(last) = self.last else { return };
        if let Ok(index) = self.store.shared.raft.read_index(ReadMode::Linearizable).await
            && last.index > index
        {
            self.lagged();
        }
    }

    fn lagged(&mut self) {
        // What is still kept is in the picture; left there, it would overrun again at the next event.
        while self.subscription.try_next().is_some() {}
        self.ready.push_back(EventMessage::Lagged { after: self.last });
        self.snapshot();
    }

    fn snapshot(&mut self) {
        let snapshot = EventMessage::Snapshot(self.store.topology());
        self.last = snapshot.id();
        self.ready.push_back(snapshot);
    }
}
