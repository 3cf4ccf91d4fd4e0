//! The oracle's view of namespaces.

use holdfast_machine::{Namespace, NamespaceSettings, NamespaceState, Reject, Reply, RowStatus};

use crate::oracle::Oracle;

impl Oracle {
    pub fn settings(&self, namespace: &Namespace) -> Option<&NamespaceSettings> {
        let known = self.namespaces.iter().find(|(name, _)| name == namespace);
        known.map(|(_, state)| &state.settings)
    }

    pub fn put_namespace(&mut self, namespace: &Namespace, settings: &NamespaceSettings) -> Reply {
        let known = self.namespaces.iter().find(|(name, _)| name == namespace);
        let created_at = known.map_or(self.now, |(_, state)| state.created_at);
        let state = NamespaceState { created_at, settings: settings.clone() };
        self.namespaces.retain(|(name, _)| name != namespace);
        self.namespaces.push((namespace.clone(), state.clone()));
        Reply::NamespacePut(state)
    }

    pub fn mint_namespace(&mut self, namespace: &Namespace) {
        if self.settings(namespace).is_none() {
            self.put_namespace(namespace, &NamespaceSettings::default());
        }
    }

    pub fn takes_new_workflows(&self, namespace: &Namespace) -> Result<(), Reject> {
        match self.settings(namespace) {
            Some(settings) if settings.deprecated => Err(Reject::NamespaceDeprecated { namespace: namespace.clone() }),
            _ => Ok(()),
        }
    }

    /// How many rows may be claimed besides those that are.
    pub fn room(&self, namespace: &Namespace) -> usize {
        let claimed =
            self.rows.iter().filter(|(_, row)| row.status == RowStatus::Claimed && row.namespace == *namespace);
        let ceiling = self.settings(namespace).and_then(|settings| settings.claimed_max);
        ceiling.map_or(usize::MAX, |most| (most as usize).saturating_sub(claimed.count()))
    }
}
