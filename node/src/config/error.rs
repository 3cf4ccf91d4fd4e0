//! Why a configuration is refused: one sentence each that names the key and says what to do.

use std::net::SocketAddr;
use std::path::PathBuf;

/// A configuration that a node does not start with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read ({source}); check the path given with --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is no TOML, or a value is of the wrong kind.
    #[error("{place}: {problem}; `holdfast config example` shows every key and its form")]
    Invalid {
        /// The file and line, the flag, or the environment.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// A key that no node knows.
    #[error("{place}: there is no key `{key}`{}; `holdfast config example` lists all keys",
        nearest.as_ref().map_or(String::new(), |nearest| format!(", did you mean `{nearest}`?")))]
    UnknownKey {
        /// The file or the flag.
        place: String,
        /// The key, with the names of its tables.
        key: String,
        /// The known key that looks most like it, if one does.
        nearest: Option<String>,
    },
    /// A number for which the node cannot work.
    #[error("`{key}` is {found}, but {rule}; set it accordingly, or remove it to get the default")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it has to be, as the end of a sentence.
        rule: String,
    },
    /// A text for which the node cannot work.
    #[error("`{key}`: {problem}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The node has no place among the members.
    #[error("`node_name` is {}, which is not among the `members` ({members}); name this node after one of them",
        found.as_ref().map_or("not set".to_owned(), |name| format!("{name:?}")))]
    NotAMember {
        /// The configured name.
        found: Option<String>,
        /// The members' names.
        members: String,
    },
    /// An address that others can reach, and nothing to keep them out.
    #[error(
        "`{key}` is {addr}, which is beyond loopback, and there is no authentication yet: listen on 127.0.0.1, or \
         set `insecure_allow_remote = true` if only trusted hosts can reach that address"
    )]
    Exposed {
        /// The key.
        key: &'static str,
        /// The address.
        addr: SocketAddr,
    },
}
