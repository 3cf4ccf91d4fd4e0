//! What may be under way at a time: so many requests, and so many bytes of them. What does not fit is turned away at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in these, so that their number fits.
const UNIT: usize = 1024;

/// A bound on requests and their bytes; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    requests: Arc<Semaphore>,
    units: Arc<Semaphore>,
}

/// A place in a budget; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _request: OwnedSemaphorePermit,
    _units: OwnedSemaphorePermit,
}

impl Budget {
    /// A budget of so many requests and bytes.
    pub fn new(requests: usize, bytes: usize) -> Self {
        Self { requests: Arc::new(Semaphore::new(requests)), units: Arc::new(Semaphore::new(bytes / UNIT)) }
    }

    /// A place for a request of so many bytes, if there is one.
    pub fn take(&self, bytes: usize) -> Option<Place> {
        let units = u32::try_from(bytes / UNIT + 1).ok()?;
        let request = self.requests.clone().try_acquire_owned().ok()?;
        let units = self.units.clone().try_acquire_many_owned(units).ok()?;
        Some(Place { _request: request, _units: units })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_bytes_are_bounded_each_and_come_back() {
        let budget = Budget::new(2, 10 * UNIT);
        let first = budget.take(8 * UNIT);
        assert!(first.is_some() && budget.take(UNIT).is_none(), "too many bytes");
        let second = budget.take(0);
        assert!(second.is_some() && budget.take(0).is_none(), "too many requests, or bytes");
        drop((first, second));
        let small = [budget.take(1), budget.take(1)];
        assert!(small.iter().all(Option::is_some) && budget.take(1).is_none(), "too many requests");
        drop(small);
        assert!(budget.take(9 * UNIT).is_some());
    }
}
