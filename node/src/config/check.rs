//! Refuses configurations that cannot work, before a port is bound or a file is made.

use std::net::SocketAddr;

use holdfast_machine::NodeName;
use holdfast_machine::limits::SHARDS_MAX;

use super::{Config, ConfigError};

/// Who a node is, as its configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The stable name.
    pub name: NodeName,
    /// The numeric Raft id.
    pub id: u64,
    /// All members, this one among them: id, name, and peer address (`host:port`).
    pub members: Vec<(u64, NodeName, String)>,
}

impl Identity {
    /// Says so when the other nodes are told another port than the one that this node listens on. That is right
    /// behind a port mapping, and a slip otherwise.
    pub(crate) fn warn_of_another_port(&self, listens: SocketAddr) {
        let own = self.members.iter().find(|(id, ..)| *id == self.id);
        let Some((_, name, addr)) = own else { return };
        if addr.rsplit_once(':').is_some_and(|(_, port)| port != listens.port().to_string()) {
            tracing::warn!(%name, members = %addr, peer_listen = %listens,
                "`members` gives this node another port than `peer_listen`; its peers will not find it there unless \
                 the port is mapped");
        }
    }
}

impl Config {
    /// Checks everything that can be checked without touching the machine.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<Identity, ConfigError> {
        self.check_numbers()?;
        self.check_elections()?;
        self.check_exposure()?;
        if self.cluster_id.is_empty() || self.cluster_id.len() > 255 || self.cluster_id.contains(char::is_control) {
            let problem = "must be 1 to 255 bytes without control characters; choose another name".to_owned();
            return Err(ConfigError::BadValue { key: "cluster_id", problem });
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log.level) {
            let problem = format!("{:?} is no log filter ({error}); use a level such as `info`", self.log.level);
            return Err(ConfigError::BadValue { key: "log.level", problem });
        }
        self.identity()
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let positive = [
            ("shard_count", u64::from(self.shard_count)),
            ("shutdown_timeout_ms", self.shutdown_timeout_ms),
            ("parked_after_ms", self.parked_after_ms),
            ("detector.poll_interval_ms", self.detector.poll_interval_ms),
            ("detector.confirmations", u64::from(self.detector.confirmations)),
            ("detector.silence_ms", self.detector.silence_ms),
            ("raft.heartbeat_ms", self.raft.heartbeat_ms),
            ("raft.election_min_ms", self.raft.election_min_ms),
            ("raft.election_max_ms", self.raft.election_max_ms),
            ("raft.answer_ms", self.raft.answer_ms),
            ("raft.checkpoint_ms", self.raft.checkpoint_ms),
            ("raft.snapshot_after", self.raft.snapshot_after),
            ("raft.snapshot_after_bytes", self.raft.snapshot_after_bytes),
            ("raft.logs_kept", self.raft.logs_kept),
            ("reconcile.interval_ms", self.reconcile.interval_ms),
            ("reconcile.older_than_ms", self.reconcile.older_than_ms),
            ("limits.payload_bytes_max", self.limits.payload_bytes_max as u64),
            ("limits.batch_max", self.limits.batch_max as u64),
            ("limits.page_max", self.limits.page_max as u64),
            ("limits.lease_ms_max", self.limits.lease_ms_max),
        ];
        if let Some((key, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(out_of_range(key, 0, "it must be at least 1"));
        }
        if self.shard_count > SHARDS_MAX {
            return Err(out_of_range("shard_count", self.shard_count, format!("it must be at most {SHARDS_MAX}")));
        }
        Ok(())
    }

    fn check_elections(&self) -> Result<(), ConfigError> {
        let raft = &self.raft;
        if raft.election_min_ms < raft.heartbeat_ms.saturating_mul(2) {
            let rule = format!(
                "it must be at least twice `raft.heartbeat_ms` ({}), or followers take a living leader for dead",
                raft.heartbeat_ms
            );
            return Err(out_of_range("raft.election_min_ms", raft.election_min_ms, rule));
        }
        if raft.election_max_ms <= raft.election_min_ms {
            let rule = format!(
                "it must be more than `raft.election_min_ms` ({}), or nodes stand for election at the same time",
                raft.election_min_ms
            );
            return Err(out_of_range("raft.election_max_ms", raft.election_max_ms, rule));
        }
        if self.detector.silence_ms < raft.heartbeat_ms.saturating_mul(2) {
            let rule = format!(
                "it must be at least twice `raft.heartbeat_ms` ({}), or living peers are taken for dead",
                raft.heartbeat_ms
            );
            return Err(out_of_range("detector.silence_ms", self.detector.silence_ms, rule));
        }
        Ok(())
    }

    fn check_exposure(&self) -> Result<(), ConfigError> {
        let listens = [("http_listen", self.http_listen), ("peer_listen", self.peer_listen)];
        match listens.into_iter().find(|(_, addr)| !addr.ip().is_loopback()) {
            Some((key, addr)) if !self.insecure_allow_remote => Err(ConfigError::Exposed { key, addr }),
            _ => Ok(()),
        }
    }

    fn identity(&self) -> Result<Identity, ConfigError> {
        if self.members.is_empty() {
            let name = match &self.node_name {
                Some(name) => name.clone(),
                None => NodeName::new("node-a")
                    .map_err(|error| ConfigError::BadValue { key: "node_name", problem: error.to_string() })?,
            };
            let members = vec![(1, name.clone(), self.peer_listen.to_string())];
            return Ok(Identity { name, id: 1, members });
        }
        let members = self
            .members
            .numbered()
            .map_err(|error| ConfigError::BadValue { key: "members", problem: error.to_string() })?;
        let found = members.iter().find(|(_, name, _)| self.node_name.as_ref() == Some(name));
        match found {
            Some((id, name, _)) => Ok(Identity { name: name.clone(), id: *id, members: members.clone() }),
            None => Err(ConfigError::NotAMember {
                found: self.node_name.as_ref().map(ToString::to_string),
                members: self.members.names().map(NodeName::as_str).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

fn out_of_range(key: &'static str, found: impl ToString, rule: impl Into<String>) -> ConfigError {
    ConfigError::OutOfRange { key, found: found.to_string(), rule: rule.into() }
}
