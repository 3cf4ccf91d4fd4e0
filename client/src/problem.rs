//! RFC 9457 problem documents: what every error answer holds.

use holdfast_machine::Reject;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Where the kind of error is explained, on any node: `/errors/` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of error in a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable name to program against.
    pub code: String,
    /// A sentence about this very error.
    pub detail: String,
    /// What the sentence is made of (expected and found, owner and epoch, limit and actual).
    #[serde(default, with = "details")]
    pub details: Map<String, Value>,
}

/// Postcard cannot read a value of any kind: there the details are JSON in a text.
mod details {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::{Map, Value};

    pub fn serialize<S: Serializer>(details: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return details.serialize(serializer);
        }
        serde_json::to_string(details).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
        if deserializer.is_human_readable() {
            return Map::deserialize(deserializer);
        }
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Problem {
    /// The content type of problem documents.
    pub const CONTENT_TYPE: &str = "application/problem+json";

    /// A problem without details. Its title is the code in words.
    pub fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/errors/{code}"),
            title: code.replace('_', " "),
            status,
            code: code.to_owned(),
            detail: detail.into(),
            details: Map::new(),
        }
    }

    /// The same problem with figures.
    pub fn with<const N: usize>(mut self, details: [(&str, u64); N]) -> Self {
        self.details.extend(details.map(|(name, figure)| (name.to_owned(), figure.into())));
        self
    }

    /// The problem that tells of a refusal.
    pub fn of_reject(status: u16, reject: &Reject) -> Self {
        let details = match serde_json::to_value(reject) {
            Ok(Value::Object(variant)) => variant.into_iter().next().map(|(_, fields)| fields),
            _ => None,
        };
        let mut problem = Self::new(status, reject.code(), reject.to_string());
        if let Some(Value::Object(details)) = details {
            problem.details = details;
        }
        problem
    }

    /// The refusal that the problem tells of, if it is one that this version knows.
    pub fn reject(&self) -> Option<Reject> {
        let variant = variant_name(&self.code);
        let fields = Map::from_iter([(variant.clone(), Value::Object(self.details.clone()))]);
        let with_fields = serde_json::from_value(Value::Object(fields));
        with_fields.or_else(|_| serde_json::from_value(Value::String(variant))).ok()
    }
}

/// `sequence_conflict` is the code of `SequenceConflict`.
fn variant_name(code: &str) -> String {
    let mut name = String::with_capacity(code.len());
    for word in code.split('_') {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{DispatchKey, Epoch, EventKind, NodeName, RowStatus, ShardId, WorkflowId, WorkflowStatus};

    use super::*;

    fn all() -> Vec<Reject> {
        let key: DispatchKey = "w:1".parse().unwrap();
        let node = NodeName::new("node-a").unwrap();
        let (shard, epoch) = (ShardId(3), Epoch(7));
        vec![
            Reject::SequenceConflict { workflow: WorkflowId::new("w").unwrap(), expected: 0, found: u64::MAX },
            Reject::NotOwner { shard, owner: Some(node.clone()), epoch },
            Reject::NotOwner { shard, owner: None, epoch },
            Reject::AlreadyTerminal { key: key.clone(), status: Some(RowStatus::Done) },
            Reject::AlreadyTerminal { key: key.clone(), status: None },
            Reject::ClaimLost { key: key.clone() },
            Reject::RowNotFound { key: key.clone() },
            Reject::RowNotClaimed { key, status: RowStatus::Failed },
            Reject::WorkflowStatus { kind: EventKind::WorkflowResumed, status: WorkflowStatus::Completed },
            Reject::InvalidArgument { what: "limit must be at least 1".into() },
            Reject::LimitExceeded { what: "limit".into(), limit: 1_000, actual: 1_001 },
            Reject::IdempotencyConflict,
            Reject::NoSuchShard { shard, shard_count: 2 },
            Reject::NodeState { node: node.clone(), problem: "is not up".into() },
            Reject::EpochConflict { shard, owner: Some(node), epoch },
            Reject::WorkflowNotFound { workflow: WorkflowId::new("w").unwrap() },
            Reject::NotDeadLetter { key: "w:1".parse().unwrap(), status: RowStatus::Pending },
            Reject::AlreadyJudged { key: "w:1".parse().unwrap() },
            Reject::WorkflowOpen { workflow: WorkflowId::new("w").unwrap(), status: WorkflowStatus::Paused },
            Reject::BeingRemoved { workflow: WorkflowId::new("w").unwrap() },
            Reject::NamespaceNotFound { namespace: "acme".parse().unwrap() },
            Reject::NamespaceDeprecated { namespace: "acme".parse().unwrap() },
            Reject::SessionNotFound { session: "s".parse().unwrap() },
            Reject::SessionMoved { session: "s".parse().unwrap() },
            Reject::WorkflowEnded { workflow: WorkflowId::new("w").unwrap(), status: WorkflowStatus::TimedOut },
        ]
    }

    #[test]
    fn every_refusal_reads_back_from_its_problem() {
        for reject in all() {
            let problem = Problem::of_reject(409, &reject);
            let text = serde_json::to_string(&problem).unwrap();
            let back: Problem = serde_json::from_str(&text).unwrap();
            assert_eq!(back, problem);
            assert_eq!(back.reject(), Some(reject), "{text}");
        }
        assert_eq!(Problem::new(503, "no_quorum", "").reject(), None);
        assert_eq!(Problem::new(400, "made_up", "").reject(), None);
    }

    #[test]
    fn a_problem_looks_like_this() {
        let reject = Reject::SequenceConflict { workflow: WorkflowId::new("order-1").unwrap(), expected: 2, found: 5 };
        let text = serde_json::to_string_pretty(&Problem::of_reject(409, &reject)).unwrap();
        assert_eq!(
            text,
            r#"{
  "type": "/errors/sequence_conflict",
  "title": "sequence conflict",
  "status": 409,
  "code": "sequence_conflict",
  "detail": "the history of order-1 ends at 5, not at 2",
  "details": {
    "expected": 2,
    "found": 5,
    "workflow": "order-1"
  }
}"#
        );
    }
}
