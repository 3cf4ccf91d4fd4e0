//! Names, numbers and times of the contract as types, checked where they enter.
//!
//! A text id is 1..=255 bytes of UTF-8 without control characters. The check runs when a value is
//! built or deserialized, so an id inside the state is always valid, and keys can end on a NUL byte.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use crate::limits::ID_BYTES_MAX;

/// Why a text is no valid id, key or token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}")]
pub struct InvalidId {
    /// Which kind of id, in words ("workflow id").
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

fn check_text(what: &'static str, text: &str) -> Result<(), InvalidId> {
    let problem = if text.is_empty() {
        "must not be empty".to_owned()
    } else if text.len() > ID_BYTES_MAX {
        format!("has {} bytes; at most {ID_BYTES_MAX} are allowed", text.len())
    } else if text.chars().any(char::is_control) {
        "must not contain control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(InvalidId { what, problem })
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = r"^[^\x00-\x1f\x7f-\x9f]{1,255}$"))]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and makes it an id.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
                check_text($what, text.as_ref())?;
                Ok(Self(Arc::from(text.as_ref())))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(/// The name of one workflow; it decides the shard.
    WorkflowId, "workflow id");
text_id!(/// The name of one run inside a history.
    RunId, "run id");
text_id!(/// A workflow's type, given by the engine.
    WorkflowType, "workflow type");
text_id!(/// A tenant's name; `default` if nothing is said.
    Namespace, "namespace");
text_id!(/// The pool of workers that a row is meant for; `default` if nothing is said.
    TaskQueue, "task queue");
text_id!(/// What a worker has to run for a row.
    ActivityType, "activity type");
text_id!(/// The stable name of a node (`node-a`).
    NodeName, "node name");
text_id!(/// Who took a plain lease, in its own words; shown to people, never compared.
    Claimant, "claimant");
text_id!(/// A caller's key for one mutating call; a retry under it gets the first reply.
    IdempotencyKey, "idempotency key");
text_id!(/// The name of one timer of a workflow.
    TimerId, "timer id");
text_id!(/// The name of a search attribute.
    AttributeName, "attribute name");
text_id!(/// One start of one node's process; fresh at each start.
    BootId, "boot id");
text_id!(/// One start of one worker; fresh at each start. Whoever knows it can go on with the session.
    SessionId, "session id");
text_id!(/// The kind of an activity's error, in the worker's words (`card_declined`).
    ErrorType, "error type");

impl RunId {
    /// The name of a run that nobody named: `run-1`, `run-2`, …
    pub fn numbered(number: u32) -> Self {
        Self(Arc::from(format!("run-{number}")))
    }
}

impl ErrorType {
    /// The type of the errors that the store itself makes: `timeout`.
    pub fn timeout() -> Self {
        Self(Arc::from("timeout"))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Arc::from("default"))
    }
}

impl Default for TaskQueue {
    fn default() -> Self {
        Self(Arc::from("default"))
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(/// A slice of the workflows, `0..shard_count`.
    ShardId, u32);
number!(/// The fencing number of a shard; it grows by one at every change of owner.
    Epoch, u64);
number!(/// Unix time in milliseconds; inside the machine always log time.
    Millis, u64);

impl Millis {
    /// `self + ms`, ending at the largest time rather than wrapping.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl ShardId {
    /// The shard of a workflow: `xxh3_64(id) % shard_count`. Never changes once a cluster exists.
    pub fn of(workflow: &WorkflowId, shard_count: u32) -> Self {
        let count = u64::from(shard_count.max(1));
        // The remainder is below a u32, so the conversion keeps the value.
        Self((xxh3_64(workflow.as_str().as_bytes()) % count) as u32)
    }
}

/// The key of one outbox row: `"{workflow_id}:{ordinal}"`. Ordered by workflow id, then by number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DispatchKey {
    /// The workflow that staged the row.
    pub workflow: WorkflowId,
    /// The activity's number in its workflow.
    pub ordinal: u64,
}

impl fmt::Display for DispatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.workflow, self.ordinal)
    }
}

impl FromStr for DispatchKey {
    type Err = InvalidId;

    /// Splits at the last colon, since a workflow id may contain colons of its own.
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = |problem: &str| InvalidId { what: "dispatch key", problem: problem.to_owned() };
        let (workflow, ordinal) =
            text.rsplit_once(':').ok_or_else(|| invalid("must have the form workflow_id:ordinal"))?;
        let ordinal = canonical(ordinal).ok_or_else(|| invalid("must end in a number of 64 bits"))?;
        Ok(Self { workflow: WorkflowId::new(workflow)?, ordinal })
    }
}

/// A number in the only spelling that it is printed in: no sign, no leading zeros.
fn canonical<T: FromStr + fmt::Display>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

/// Proof of one claim, minted in apply: log index, then a number inside that entry. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimToken {
    /// The log index of the claim.
    pub index: u64,
    /// The claim's number inside its log entry.
    pub number: u32,
}

impl fmt::Display for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.number)
    }
}

impl FromStr for ClaimToken {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let parse = || {
            let (index, number) = text.split_once('-')?;
            Some(Self { index: canonical(index)?, number: canonical(number)? })
        };
        parse().ok_or_else(|| InvalidId {
            what: "claim token",
            problem: "must be the token that the claim returned".to_owned(),
        })
    }
}

/// The number of a committed cluster event: log index, then position among the events of that entry. In text
/// `index-position`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    /// The log index.
    pub index: u64,
    /// Counts from 0 inside the entry.
    pub position: u32,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.position)
    }
}

impl FromStr for EventId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let parse = || {
            let (index, position) = text.split_once('-')?;
            Some(Self { index: index.parse().ok()?, position: position.parse().ok()? })
        };
        let problem = "must be an id that the event stream gave: index-position";
        parse().ok_or_else(|| InvalidId { what: "event id", problem: problem.to_owned() })
    }
}

/// Text in JSON, so that people can read and type it; the plain fields in the log, so that it is small.
macro_rules! text_in_json {
    ($name:ident { $($field:ident: $kind:ty),+ }) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    return serializer.collect_str(self);
                }
                ($(&self.$field),+).serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = String::deserialize(deserializer)?;
                    return text.parse().map_err(serde::de::Error::custom);
                }
                let ($($field),+): ($($kind),+) = Deserialize::deserialize(deserializer)?;
                Ok(Self { $($field),+ })
            }
        }
    };
}

text_in_json!(DispatchKey { workflow: WorkflowId, ordinal: u64 });
text_in_json!(ClaimToken { index: u64, number: u32 });
text_in_json!(EventId { index: u64, position: u32 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked_at_their_edges() {
        assert!(WorkflowId::new("a".repeat(255)).is_ok());
        assert!(WorkflowId::new("a".repeat(256)).is_err());
        assert!(WorkflowId::new("").is_err());
        assert!(WorkflowId::new("a\0b").is_err());
        assert!(WorkflowId::new("order/1:é 🎉").is_ok());
        assert!(serde_json::from_str::<WorkflowId>("\"\"").is_err());
    }

    #[test]
    fn a_dispatch_key_splits_at_the_last_colon() {
        let key: DispatchKey = "a:b:18446744073709551615".parse().unwrap();
        assert_eq!((key.workflow.as_str(), key.ordinal), ("a:b", u64::MAX));
        assert_eq!(key.to_string(), "a:b:18446744073709551615");
        for bad in ["a", ":1", "a:", "a:-1", "a:+1", "a:01", "a: 1", "a:18446744073709551616"] {
            assert!(bad.parse::<DispatchKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_has_one_spelling() {
        assert_eq!("9-2".parse::<ClaimToken>().unwrap(), ClaimToken { index: 9, number: 2 });
        for bad in ["", "9", "9-", "-2", "09-2", "9-+2", "9-4294967296", "9-2-1"] {
            assert!(bad.parse::<ClaimToken>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_and_tokens_read_back_in_both_encodings() {
        let key: DispatchKey = "w:7".parse().unwrap();
        let token = ClaimToken { index: 9, number: 2 };
        let value = (key, token);
        assert_eq!(serde_json::to_string(&value).unwrap(), "[\"w:7\",\"9-2\"]");
        let bytes = postcard::to_stdvec(&value).unwrap();
        assert_eq!(postcard::from_bytes::<(DispatchKey, ClaimToken)>(&bytes).unwrap(), value);
        let text = serde_json::to_string(&value).unwrap();
        assert_eq!(serde_json::from_str::<(DispatchKey, ClaimToken)>(&text).unwrap(), value);
    }

    #[test]
    fn shards_are_stable() {
        // A change of these figures would orphan every existing cluster's directory.
        let shard = |id: &str| ShardId::of(&WorkflowId::new(id).unwrap(), 64).0;
        assert_eq!([shard("order-1"), shard("order-2"), shard("a")], [54, 28, 31]);
    }
}
