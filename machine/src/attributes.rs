//! Search attributes: typed facts about a workflow that an engine sets and that listings filter by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{AttributeName, Millis};

/// The value of a search attribute. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// Yes or no.
    Bool(bool),
    /// A time, in unix milliseconds.
    Time(Millis),
    /// Several texts; a filter matches any of them.
    Texts(Vec<String>),
}

/// A workflow's search attributes.
pub type Attributes = BTreeMap<AttributeName, AttributeValue>;

/// A change of search attributes: the named ones are set, or removed if they are null; the others stay.
pub type AttributesUpdate = BTreeMap<AttributeName, Option<AttributeValue>>;
