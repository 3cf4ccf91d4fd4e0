//! The seam between the state machine and the disk: bytes by key, as they were last committed.
//!
//! The machine keeps live state in memory and asks the archive only for what is cold (finished
//! workflows, histories, remembered replies). Tests use [`MemoryArchive`]; a node uses sled.

use std::collections::BTreeMap;

/// Why a stored row could not be read. It is fatal: a node that cannot read its own state must stop
/// rather than answer from what is left.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the state could not be read: {0}")]
pub struct ArchiveError(pub String);

/// The result of every archive read.
pub type ArchiveResult<T> = Result<T, ArchiveError>;

/// One stored pair of key and value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Writes that a machine made and that storage has yet to commit; `None` deletes the key.
pub type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Read access to the committed rows of the replicated state, ordered by key.
pub trait Archive: Send + Sync {
    /// The value of `key`, or `None`.
    fn get(&self, key: &[u8]) -> ArchiveResult<Option<Vec<u8>>>;
    /// Up to `limit` pairs with `from <= key < to`, ascending.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>>;
    /// The last `limit` pairs with `from <= key < to`, descending.
    fn scan_back(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>>;
}

/// An archive in memory, for tests, models and simulation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryArchive(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl MemoryArchive {
    /// Commits what [`crate::Machine::take_writes`] returned.
    pub fn commit(&mut self, writes: Writes) {
        for (key, value) in writes {
            match value {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
    }
}

impl Archive for MemoryArchive {
    fn get(&self, key: &[u8]) -> ArchiveResult<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
        let range = self.0.range(from.to_vec()..to.to_vec());
        Ok(range.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn scan_back(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
        let range = self.0.range(from.to_vec()..to.to_vec()).rev();
        Ok(range.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_in_memory_does_as_it_promises() {
        let mut archive = MemoryArchive::default();
        let pair = |n: u8| (vec![n], vec![n]);
        archive.commit((0..5).map(|n| (vec![n], Some(vec![n]))).collect());
        archive.commit(Writes::from([(vec![3], None)]));
        assert_eq!(archive.get(&[2]).unwrap(), Some(vec![2]));
        assert_eq!(archive.get(&[3]).unwrap(), None);
        assert_eq!(archive.scan(&[1], &[4], 9).unwrap(), [pair(1), pair(2)]);
        assert_eq!(archive.scan(&[0], &[9], 2).unwrap(), [pair(0), pair(1)]);
        assert_eq!(archive.scan(&[4], &[4], 9).unwrap(), []);
        assert_eq!(archive.scan_back(&[1], &[4], 9).unwrap(), [pair(2), pair(1)]);
        assert_eq!(archive.scan_back(&[0], &[9], 2).unwrap(), [pair(4), pair(2)]);
    }
}
