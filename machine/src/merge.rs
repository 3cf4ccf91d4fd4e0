//! Several ordered sets as one: walks over lanes and shards that cost what they return.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// The items of all sets, in order.
pub(crate) fn merged<'a, T: Ord + 'a>(sets: impl Iterator<Item = &'a BTreeSet<T>>) -> impl Iterator<Item = &'a T> {
    let mut walks: Vec<_> = sets.map(BTreeSet::iter).collect();
    let firsts = walks.iter_mut().enumerate().filter_map(|(number, walk)| Some(Reverse((walk.next()?, number))));
    let mut heads: BinaryHeap<_> = firsts.collect();
    std::iter::from_fn(move || {
        let Reverse((item, number)) = heads.pop()?;
        if let Some(next) = walks[number].next() {
            heads.push(Reverse((next, number)));
        }
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_walked_as_one() {
        let sets = [BTreeSet::from([2, 5, 9]), BTreeSet::new(), BTreeSet::from([1, 5]), BTreeSet::from([3])];
        assert_eq!(merged(sets.iter()).copied().collect::<Vec<_>>(), [1, 2, 3, 5, 5, 9]);
    }
}
