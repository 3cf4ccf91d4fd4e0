//! The list of members: names, peer addresses and numeric Raft ids, from a table or from one line of text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use holdfast_machine::NodeName;
use serde::{Deserialize, Deserializer};

/// The configured members by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members(BTreeMap<NodeName, PeerAddress>);

/// One member's place: `host:port`, or `id@host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddress {
    /// The numeric Raft id, if it was given.
    pub id: Option<u64>,
    /// Where the other nodes reach it, `host:port`.
    pub addr: String,
}

/// Why a text is no list of members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMembers(String);

impl Members {
    /// Reads `node-a=host:7700,node-b=host:7700`.
    ///
    /// # Errors
    /// A sentence that names the part that is wrong.
    pub fn from_text(text: &str) -> Result<Self, InvalidMembers> {
        let mut members = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, address) = part.split_once('=').ok_or_else(|| {
                InvalidMembers(format!("member {part:?} is no `name=host:port`, such as `node-a=10.0.0.1:7700`"))
            })?;
            let name = NodeName::new(name.trim()).map_err(|error| InvalidMembers(error.to_string()))?;
            if members.insert(name.clone(), address.trim().parse()?).is_some() {
                return Err(InvalidMembers(format!("member {name} is named twice; name each member once")));
            }
        }
        Ok(Self(members))
    }

    /// Adds or replaces a member.
    #[must_use]
    pub fn with(mut self, name: NodeName, addr: impl Into<String>) -> Self {
        self.0.insert(name, PeerAddress { id: None, addr: addr.into() });
        self
    }

    /// True if no member is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names, ascending.
    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.0.keys()
    }

    /// The members with their numeric ids: those that were given, else the place in the list.
    ///
    /// # Errors
    /// When some members have an id and others have none, or two have the same.
    pub fn numbered(&self) -> Result<Vec<(u64, NodeName, String)>, InvalidMembers> {
        let given = self.0.values().filter(|peer| peer.id.is_some()).count();
        if given != 0 && given != self.0.len() {
            let without: Vec<&str> = self.0.iter().filter(|(_, p)| p.id.is_none()).map(|(n, _)| n.as_str()).collect();
            return Err(InvalidMembers(format!(
                "some members have a numeric id and {} has none; give ids to all members or to none",
                without.join(", ")
            )));
        }
        let mut taken = BTreeMap::new();
        let mut numbered = Vec::with_capacity(self.0.len());
        for (place, (name, peer)) in (1..).zip(&self.0) {
            let id = peer.id.unwrap_or(place);
            if let Some(other) = taken.insert(id, name) {
                return Err(InvalidMembers(format!("{other} and {name} both have the id {id}; give each its own")));
            }
            numbered.push((id, name.clone(), peer.addr.clone()));
        }
        Ok(numbered)
    }
}

impl FromStr for PeerAddress {
    type Err = InvalidMembers;

    fn from_str(text: &str) -> Result<Self, InvalidMembers> {
        let (id, addr) = match text.split_once('@') {
            Some((id, addr)) => {
                let number = id.parse::<u64>().ok().filter(|number| *number > 0);
                let number = number.ok_or_else(|| InvalidMembers(format!("{id:?} in {text:?} is no id from 1 on")))?;
                (Some(number), addr)
            }
            None => (None, text),
        };
        let valid = addr.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !valid {
            return Err(InvalidMembers(format!(
                "{addr:?} is no peer address; write host and port, such as `host:7700`"
            )));
        }
        Ok(Self { id, addr: addr.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of names and peer addresses, such as `node-a = \"host:7700\"`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Members, E> {
                Members::from_text(text).map_err(E::custom)
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, address)) = map.next_entry::<NodeName, String>()? {
                    members.insert(name, address.parse().map_err(serde::de::Error::custom)?);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ids_are_places_in_the_sorted_list_unless_given() {
        let members = Members::from_text("node-c=c:7700, node-a=a:7700,node-b=b:7700,").unwrap();
        let ids: Vec<_> = members.numbered().unwrap().into_iter().map(|(id, name, _)| (id, name.to_string())).collect();
        assert_eq!(ids, [(1, "node-a".to_owned()), (2, "node-b".to_owned()), (3, "node-c".to_owned())]);

        let members = Members::from_text("node-a=7@a:7700,node-b=4@[::1]:7700").unwrap();
        let ids: Vec<_> = members.numbered().unwrap().into_iter().map(|(id, _, addr)| (id, addr)).collect();
        assert_eq!(ids, [(7, "a:7700".to_owned()), (4, "[::1]:7700".to_owned())]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let refused = |text: &str| match Members::from_text(text).and_then(|members| members.numbered()) {
            Ok(members) => panic!("{text} was taken as {members:?}"),
            Err(error) => error.to_string(),
        };
        assert!(refused("node-a").contains("`name=host:port`"));
        assert!(refused("node-a=host").contains("\"host\" is no peer address"));
        assert!(refused("node-a=host:0").contains("no peer address"));
        assert!(refused("node-a=a:1,node-a=b:1").contains("named twice"));
        assert!(refused("node-a=0@a:1").contains("no id from 1 on"));
        assert!(refused("node-a=1@a:1,node-b=b:1").contains("node-b has none"));
        assert!(refused("node-a=1@a:1,node-b=1@b:1").contains("both have the id 1"));
    }
}
