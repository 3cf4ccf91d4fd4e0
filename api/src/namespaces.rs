//! Namespaces, and the removal of workflows by an operator.

use holdfast_client::wire::{NamespacePage, NamespaceView, PageCall};
use holdfast_machine::{Command, Machine, Namespace, NamespaceSettings, NamespaceState, Reject, Reply, WorkflowId};

use crate::listings::{cut, one_more};
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode, Write};

/// What the cursors of the listing are bound to.
const LISTING: &str = "namespaces";

impl Store {
    /// Namespaces, by name.
    ///
    /// # Errors
    /// A [`crate::StoreError`]; so with all calls here. `invalid_argument` for a limit of 0 or a cursor of another
    /// listing.
    pub async fn namespaces(&self, page: &PageCall, mode: ReadMode) -> StoreResult<NamespacePage> {
        let after: Option<Namespace> = self.place(LISTING, page)?;
        let look = |machine: &Machine| -> Vec<NamespaceView> {
            let found = machine.namespaces_after(after.as_ref()).take(one_more(page));
            found.map(|(name, state)| view(machine, name, state)).collect()
        };
        let Answer { index, value: mut namespaces } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let next_cursor = cut(LISTING, page, &mut namespaces, |view| &view.namespace);
        Ok(Answer { index, value: NamespacePage { namespaces, next_cursor } })
    }

    /// One namespace, with what lives in it.
    ///
    /// # Errors
    /// `namespace_not_found`.
    pub async fn namespace(&self, namespace: &Namespace, mode: ReadMode) -> StoreResult<NamespaceView> {
        let look = |machine: &Machine| machine.namespace(namespace).map(|state| view(machine, namespace, state));
        let Answer { index, value } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let value = value.ok_or_else(|| Reject::NamespaceNotFound { namespace: namespace.clone() })?;
        Ok(Answer { index, value })
    }

    /// Creates a namespace or gives it other settings, all at once.
    ///
    /// # Errors
    /// `limit_exceeded` for one namespace too many, and for settings that are too long.
    pub async fn put_namespace(
        &self,
        namespace: &Namespace,
        settings: &NamespaceSettings,
        write: Write,
    ) -> StoreResult<NamespaceState> {
        let command = Command::PutNamespace { namespace: namespace.clone(), settings: settings.clone() };
        self.propose(command, write).await?.answer("put_namespace", |reply| match reply {
            Reply::NamespacePut(state) => Some(state),
            _ => None,
        })
    }

    /// Removes a finished workflow before its retention runs out. It is out of sight at once; its id is free again
    /// when all that it left is cleared away.
    ///
    /// # Errors
    /// `workflow_open`, `workflow_not_found`.
    pub async fn delete(&self, workflow: &WorkflowId, write: Write) -> StoreResult<()> {
        let command = Command::Delete { workflow: workflow.clone() };
        self.propose(command, write).await?.answer("delete", |reply| match reply {
            Reply::Deleted => Some(()),
            _ => None,
        })
    }
}

fn view(machine: &Machine, namespace: &Namespace, state: &NamespaceState) -> NamespaceView {
    let NamespaceState { created_at, settings } = state.clone();
    let counts = machine.counts_of(namespace);
    let (pending, claimed) = (counts.pending, counts.claimed);
    NamespaceView { namespace: namespace.clone(), created_at, settings, pending, claimed }
}
