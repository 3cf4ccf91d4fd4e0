//! Bugs to be planted, one at a time, so that it can be seen whether the tests find them.
//!
//! Each place in the code where a promise hangs on one line asks [`is_planted`] whether to break it. That is false, and
//! costs nothing, in every build without the feature `planted-bugs`, which nothing but `scripts/planted-bugs.sh` turns
//! on. With it, `HOLDFAST_PLANTED_BUG` names the bug. The script has the list: which bug, and which layer must see it.

/// Whether this bug is to be there.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_bug: &str) -> bool {
    false
}

/// Whether this bug is to be there.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("HOLDFAST_PLANTED_BUG").ok()).as_deref() == Some(bug)
}

/// Another order on every node, if that bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn in_the_order_of_a_hash_map<T, K: std::hash::Hash>(mut items: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    use std::hash::{BuildHasher, RandomState};
    if is_planted("order-of-a-hash-map") {
        let order = RandomState::new();
        items.sort_by_cached_key(|item| order.hash_one(key(item)));
    }
    items
}
