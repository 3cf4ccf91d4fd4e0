//! How [`NodeMessage`] is read. What serde derives for a tagged enum keeps the members aside until it has seen the tag, and JSON
//! payloads, which are kept to the letter, cannot be read from there; so all members are read where they stand.

use holdfast_machine::{Millis, NodeName};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error};
use serde_json::value::RawValue;

use super::{Delivery, Ended, NodeMessage};
use crate::Problem;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Attached,
    Deliveries,
    Withdrawn,
    Paused,
    Resumed,
    Extended,
    Draining,
    Ended,
}

/// The members of all messages.
#[derive(Deserialize)]
pub(super) struct Members {
    #[serde(rename = "type")]
    kind: Kind,
    number: Option<u64>,
    node: Option<NodeName>,
    deadline: Option<Millis>,
    heartbeat_ms: Option<u64>,
    resumed: Option<bool>,
    deliveries: Option<Vec<Delivery>>,
    rows: Option<Box<RawValue>>,
    reason: Option<Ended>,
    problem: Option<Problem>,
}

impl TryFrom<Members> for NodeMessage {
    type Error = serde_json::Error;

    fn try_from(members: Members) -> Result<Self, Self::Error> {
        let Members { kind, number, node, deadline, heartbeat_ms, resumed, deliveries, rows, reason, problem } =
            members;
        let number = there("number", number);
        Ok(match kind {
            Kind::Attached => Self::Attached {
                number: number?,
                node: there("node", node)?,
                deadline: there("deadline", deadline)?,
                heartbeat_ms: there("heartbeat_ms", heartbeat_ms)?,
                resumed: there("resumed", resumed)?,
            },
            Kind::Deliveries => Self::Deliveries { number: number?, deliveries: there("deliveries", deliveries)? },
            Kind::Withdrawn => Self::Withdrawn { number: number?, rows: read(rows)? },
            Kind::Paused => Self::Paused { number: number?, rows: read(rows)? },
            Kind::Resumed => Self::Resumed { number: number?, rows: read(rows)? },
            Kind::Extended => Self::Extended { number: number?, deadline: there("deadline", deadline)? },
            Kind::Draining => Self::Draining { number: number? },
            Kind::Ended => Self::Ended { reason: there("reason", reason)?, problem },
        })
    }
}

fn there<T>(name: &'static str, member: Option<T>) -> Result<T, serde_json::Error> {
    member.ok_or_else(|| serde_json::Error::missing_field(name))
}

fn read<T: DeserializeOwned>(rows: Option<Box<RawValue>>) -> Result<Vec<T>, serde_json::Error> {
    serde_json::from_str(there("rows", rows)?.get())
}
