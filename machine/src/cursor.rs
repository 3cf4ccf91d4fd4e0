//! Cursors: where a listing goes on. A cursor is bound to what was asked, so that one page is never continued
//! by a page of something else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::keys;
use crate::reject::Reject;

/// The cursor of a page of `query` whose last item is told apart by `last`.
pub fn write_cursor<Q: Serialize + ?Sized, T: Serialize + ?Sized>(query: &Q, last: &T) -> String {
    URL_SAFE_NO_PAD.encode(keys::encode(&(fingerprint(query), keys::encode(last))))
}

/// What [`write_cursor`] was given as `last`.
///
/// # Errors
/// [`Reject::InvalidArgument`] if the text is no cursor, or one of another query.
pub fn read_cursor<Q: Serialize + ?Sized, T: DeserializeOwned>(query: &Q, cursor: &str) -> Result<T, Reject> {
    let unreadable = || Reject::invalid("cursor: not one that this cluster gave out");
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| unreadable())?;
    let (of, last): (u64, Vec<u8>) = keys::decode(&[], &bytes).map_err(|_| unreadable())?;
    if of != fingerprint(query) {
        return Err(Reject::invalid("cursor: it belongs to another filter or order than this one"));
    }
    keys::decode(&[], &last).map_err(|_| unreadable())
}

fn fingerprint<Q: Serialize + ?Sized>(query: &Q) -> u64 {
    xxh3_64(&keys::encode(query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_on_with_its_own_query_only() {
        let cursor = write_cursor("status=failed", &(7u64, "order-1"));
        assert_eq!(read_cursor("status=failed", &cursor), Ok((7u64, "order-1".to_owned())));
        for (query, cursor) in [("status=running", cursor.as_str()), ("status=failed", "no cursor"), ("", "")] {
            let read: Result<(u64, String), Reject> = read_cursor(query, cursor);
            assert!(matches!(read, Err(Reject::InvalidArgument { .. })), "{query} {cursor}: {read:?}");
        }
    }
}
