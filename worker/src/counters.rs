//! What a worker has done so far, in figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The figures of one worker, while it runs and afterwards. Clones are the same figures.
#[derive(Debug, Clone, Default)]
pub struct Counters(Arc<Figures>);

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        #[derive(Debug, Default)]
        struct Figures { $($name: AtomicU64),+ }

        /// The figures of a worker at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Tally { $($(#[$doc])* pub $name: u64),+ }

        impl Counters {
            /// The figures now.
            pub fn tally(&self) -> Tally {
                Tally { $($name: self.0.$name.load(Ordering::Relaxed)),+ }
            }

            $(pub(crate) fn $name(&self) {
                self.0.$name.fetch_add(1, Ordering::Relaxed);
            })+
        }
    };
}

figures! {
    /// Sessions that were opened: 1, and one more for each that ended under the worker.
    sessions,
    /// Times that it was attached to a node.
    attached,
    /// Executions that began.
    started,
    /// Results that were recorded.
    completed,
    /// Failed attempts that were recorded.
    failed,
    /// Handlers that panicked; each counts as a failed attempt as well.
    panicked,
    /// Executions whose row was taken away while they were at work, or that the worker had to stop for.
    cancelled,
    /// Outcomes that counted for nothing: the row had an outcome, or was somebody else's, by then.
    absorbed,
    /// Rows that were handed back unexecuted.
    handed_back,
}
