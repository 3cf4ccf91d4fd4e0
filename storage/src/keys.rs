//! The keys of the tree, in one place.
//!
//! | key | value |
//! |---|---|
//! | `b/` + row key | nothing: the row is large (so that only such rows are read before they are replaced) |
//! | `c/` + row key + piece number (u32, big endian) | one piece of a large row |
//! | `d/` + row key | the row, or the head of a large one; or several rows, see `rows/bundle.rs` |
//! | `m/bundled` | nothing: rows that belong into bundles are in them |
//! | `m/applied` | id of the last applied entry |
//! | `m/installed` | applied id of the snapshot that the state began with |
//! | `m/membership` | the membership as of the applied entry |

pub(crate) const APPLIED: &[u8] = b"m/applied";
pub(crate) const BUNDLED: &[u8] = b"m/bundled";
pub(crate) const INSTALLED: &[u8] = b"m/installed";
pub(crate) const MEMBERSHIP: &[u8] = b"m/membership";

const ROW: &[u8] = b"d/";
const PIECE: &[u8] = b"c/";
pub(crate) const LARGE: &[u8] = b"b/";
/// All marks of large rows are below this.
pub(crate) const LARGE_END: &[u8] = b"b0";

/// All row keys are below this.
pub(crate) const ROWS_END: &[u8] = b"d0";

pub(crate) fn row(key: &[u8]) -> Vec<u8> {
    [ROW, key].concat()
}

/// The row key in a key made by [`row`].
pub(crate) fn row_key(stored: &[u8]) -> &[u8] {
    stored.strip_prefix(ROW).unwrap_or(stored)
}

pub(crate) fn piece(key: &[u8], number: u32) -> Vec<u8> {
    [PIECE, key, &number.to_be_bytes()].concat()
}

pub(crate) fn large(key: &[u8]) -> Vec<u8> {
    [LARGE, key].concat()
}
