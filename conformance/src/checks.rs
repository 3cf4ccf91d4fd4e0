//! The registry: every check with the promise that it checks, by topic. A topic is one file.

mod attributes;
mod by_key;
mod claims;
mod commits;
mod dead_letters;
mod deletion;
mod ends;
mod explain;
mod growth;
mod histories;
mod http;
mod idempotency;
mod leases;
mod limits;
mod listings;
mod namespaces;
mod odd_inputs;
mod pausing;
mod reads;
mod runs;
mod sessions;
mod shards;
mod staging;
mod timeouts;
mod timers;
mod visibility;

use anyhow::Result;
use futures::future::BoxFuture;

use crate::trial::Trial;

/// One promise, and how it is checked.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it is about.
    pub topic: &'static str,
    /// The promise, as a sentence. Unique within its topic.
    pub promise: &'static str,
    /// True if it changes what others may be using (ownership of shards, claims of others): it runs alone, and
    /// only if asked for.
    pub disturbs: bool,
    pub(crate) run: for<'a> fn(&'a Trial) -> BoxFuture<'a, Result<()>>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("topic", &self.topic).field("promise", &self.promise).finish_non_exhaustive()
    }
}

/// A topic's list of checks: the name of each function and its promise.
macro_rules! checks {
    ($topic:literal: $($check:ident = $promise:literal,)+ $([disturbing] $($rough:ident = $rough_promise:literal,)+)?) => {
        pub(super) const CHECKS: &[$crate::checks::Check] = &[
            $($crate::checks::Check {
                topic: $topic, promise: $promise, disturbs: false, run: |trial| Box::pin($check(trial)),
            },)+
            $($($crate::checks::Check {
                topic: $topic, promise: $rough_promise, disturbs: true, run: |trial| Box::pin($rough(trial)),
            },)+)?
        ];
    };
}
pub(crate) use checks;

/// Every check, topic by topic.
pub fn all() -> impl Iterator<Item = Check> {
    let topics = [
        histories::CHECKS,
        runs::CHECKS,
        claims::CHECKS,
        leases::CHECKS,
        sessions::CHECKS,
        by_key::CHECKS,
        commits::CHECKS,
        ends::CHECKS,
        pausing::CHECKS,
        idempotency::CHECKS,
        reads::CHECKS,
        growth::CHECKS,
        limits::CHECKS,
        odd_inputs::CHECKS,
        visibility::CHECKS,
        attributes::CHECKS,
        staging::CHECKS,
        dead_letters::CHECKS,
        listings::CHECKS,
        timeouts::CHECKS,
        timers::CHECKS,
        namespaces::CHECKS,
        deletion::CHECKS,
        shards::CHECKS,
        explain::CHECKS,
        http::CHECKS,
    ];
    topics.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_promise_is_there_once() {
        let names: Vec<(&str, &str)> = all().map(|check| (check.topic, check.promise)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }
}
