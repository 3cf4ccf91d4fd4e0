//! Namespaces: tenants with a ceiling of claimed rows and a retention of finished workflows.
//!
//! A namespace comes about by its first workflow, with every setting at its default, or by an operator's hand.
//! There are at most [`NAMESPACES_MAX`] of them, because they are all in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::event::{ClusterEvent, Effect};
use crate::id::{Millis, Namespace, WorkflowType};
use crate::keys;
use crate::limits::NAMESPACES_MAX;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::{Apply, Machine};

/// How long finished workflows are kept where nothing else is set: 7 days, in milliseconds.
pub const RETENTION_MS_DEFAULT: u64 = 7 * 24 * 60 * 60 * 1_000;

/// What an operator sets for a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceSettings {
    /// For people.
    pub description: String,
    /// True: no new workflows; those that are there go on.
    pub deprecated: bool,
    /// Most rows claimed at a time, over the whole cluster; none for no ceiling, 0 stops delivery.
    pub claimed_max: Option<u32>,
    /// How long a finished workflow is kept, in milliseconds of log time; none keeps it for ever.
    pub retention_ms: Option<u64>,
    /// The same for single workflow types; goes before `retention_ms`. Null keeps that type for ever.
    pub retention_ms_by_type: BTreeMap<WorkflowType, Option<u64>>,
}

impl Default for NamespaceSettings {
    fn default() -> Self {
        Self {
            description: String::new(),
            deprecated: false,
            claimed_max: None,
            retention_ms: Some(RETENTION_MS_DEFAULT),
            retention_ms_by_type: BTreeMap::new(),
        }
    }
}

/// A namespace as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NamespaceState {
    /// Log time of its first use or creation.
    pub created_at: Millis,
    /// Its settings.
    pub settings: NamespaceSettings,
}

impl NamespaceSettings {
    /// How long a finished workflow of this type is kept, in milliseconds; none for ever.
    pub fn retention_of(&self, workflow_type: Option<&WorkflowType>) -> Option<u64> {
        let of_type = workflow_type.and_then(|of_type| self.retention_ms_by_type.get(of_type));
        of_type.copied().unwrap_or(self.retention_ms)
    }
}

impl Machine {
    /// One namespace.
    pub fn namespace(&self, namespace: &Namespace) -> Option<&NamespaceState> {
        self.namespaces.get(namespace)
    }

    /// The namespaces behind `after`, by name; all of them without one.
    pub fn namespaces_after(&self, after: Option<&Namespace>) -> impl Iterator<Item = (&Namespace, &NamespaceState)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.namespaces.range::<Namespace, _>((from, Bound::Unbounded))
    }

    /// How many more rows of a namespace may be claimed; none if it has no ceiling.
    pub fn room_for_claims(&self, namespace: &Namespace) -> Option<u64> {
        let claimed_max = self.namespaces.get(namespace)?.settings.claimed_max?;
        Some(u64::from(claimed_max).saturating_sub(self.counts_of(namespace).claimed))
    }
}

impl Apply<'_> {
    /// Refuses a new workflow in a namespace that takes none, or in one more than there may be.
    pub fn check_namespace(&self, namespace: &Namespace) -> Result<(), Reject> {
        match self.state.namespaces.get(namespace) {
            Some(state) if state.settings.deprecated => {
                Err(Reject::NamespaceDeprecated { namespace: namespace.clone() })
            }
            Some(_) => Ok(()),
            None => self.check_namespaces_max(),
        }
    }

    fn check_namespaces_max(&self) -> Result<(), Reject> {
        let (limit, actual) = (NAMESPACES_MAX as u64, self.state.namespaces.len() as u64 + 1);
        if actual <= limit {
            return Ok(());
        }
        Err(Reject::LimitExceeded { what: "the number of namespaces".to_owned(), limit, actual })
    }

    /// Makes a namespace of a name that is used for the first time. [`Apply::check_namespace`] comes before it.
    pub fn mint_namespace(&mut self, namespace: &Namespace) {
        if !self.state.namespaces.contains_key(namespace) {
            self.write_namespace(namespace.clone(), NamespaceSettings::default());
        }
    }

    pub fn put_namespace(&mut self, namespace: Namespace, settings: NamespaceSettings) -> Result<Reply, Reject> {
        if !self.state.namespaces.contains_key(&namespace) {
            self.check_namespaces_max()?;
        }
        let had_room = self.has_room(&namespace);
        let state = self.write_namespace(namespace.clone(), settings);
        self.tell_of_room(&namespace, had_room);
        Ok(Reply::NamespacePut(state))
    }

    fn write_namespace(&mut self, namespace: Namespace, settings: NamespaceSettings) -> NamespaceState {
        let before = self.state.namespaces.get(&namespace);
        let created_at = before.map_or(self.now(), |before| before.created_at);
        let claimed_max = settings.claimed_max;
        if before.is_none() {
            self.events.push(ClusterEvent::NamespaceCreated { namespace: namespace.clone() });
        }
        if before.and_then(|before| before.settings.claimed_max) != claimed_max {
            self.events.push(ClusterEvent::NamespaceQuotaChanged { namespace: namespace.clone(), claimed_max });
        }
        let state = NamespaceState { created_at, settings };
        self.state.put(keys::namespace(&namespace), &state);
        self.state.namespaces.insert(namespace, state.clone());
        state
    }

    /// True if a claim could take a row of the namespace.
    pub fn has_room(&self, namespace: &Namespace) -> bool {
        self.state.room_for_claims(namespace) != Some(0)
    }

    /// Calls the claims that wait, if the namespace has room for them since `had_room`.
    pub fn tell_of_room(&mut self, namespace: &Namespace, had_room: bool) {
        if !had_room && self.has_room(namespace) {
            self.effects.push(Effect::RoomForClaims { namespace: namespace.clone() });
            self.stir_namespace(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::trial::{Trial, id};

    fn put(name: &str, settings: NamespaceSettings) -> Command {
        Command::PutNamespace { namespace: id(name), settings }
    }

    #[test]
    fn there_are_only_so_many_namespaces() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let names = (1..NAMESPACES_MAX).map(|number| put(&format!("n{number}"), Default::default()).into());
        trial.apply(names.collect());
        let (limit, actual) = (NAMESPACES_MAX as u64, NAMESPACES_MAX as u64 + 1);
        let refused = Err(Reject::LimitExceeded { what: "the number of namespaces".to_owned(), limit, actual });
        assert_eq!(trial.ask(put("one more", Default::default())), refused);
        let mut start = crate::trial::started();
        start.start.iter_mut().for_each(|start| start.namespace = id("one more"));
        assert_eq!(trial.append("order-2", start), refused);
        trial.ask(put("n1", Default::default())).unwrap();
        trial.start("order-2", [1]);
    }

    #[test]
    fn a_retention_of_a_type_goes_before_the_namespaces_own() {
        let mut settings = NamespaceSettings { retention_ms: Some(5), ..Default::default() };
        settings.retention_ms_by_type = BTreeMap::from([(id("short"), Some(1)), (id("kept"), None)]);
        let retention = |of_type: &str| settings.retention_of(Some(&id(of_type)));
        assert_eq!((retention("short"), retention("kept"), retention("other")), (Some(1), None, Some(5)));
        assert_eq!(settings.retention_of(None), Some(5));
    }

    #[test]
    fn what_is_not_said_is_as_by_default() {
        let settings: NamespaceSettings = serde_json::from_str(r#"{"claimed_max":3}"#).unwrap();
        assert_eq!(settings, NamespaceSettings { claimed_max: Some(3), ..Default::default() });
        let settings: NamespaceSettings = serde_json::from_str(r#"{"retention_ms":null}"#).unwrap();
        assert_eq!(settings, NamespaceSettings { retention_ms: None, ..Default::default() });
        assert!(serde_json::from_str::<NamespaceSettings>(r#"{"ceiling":3}"#).is_err());
    }
}
