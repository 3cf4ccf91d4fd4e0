//! What can be wrong with a node's data, said so that an operator knows what to do next.
//!
//! Damage is never repaired silently and never guessed around: the error names the file, the place and
//! the way out, and nothing on disk has been changed when it is returned.

use std::io;
use std::path::{Path, PathBuf};

use crate::frame::{self, FrameError};

/// How an operator gets a node back whose own data can no longer be trusted.
pub const REBUILD: &str = "Nothing on disk was changed. The other nodes still have the data: keep them running, and move \
     this node's data directory aside, start the node again, empty and under its name, and run `holdfast member replace \
     NAME` against any of the others. It then joins as a new member and receives everything from its peers.";

/// Everything that opening or using a data directory can end with.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused something.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "reading", "creating" ...
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Bytes on disk are not what was written.
    #[error("{} is damaged at byte {offset}: {what}. {REBUILD}", file.display())]
    Damaged {
        /// The damaged file, or the directory when a file is missing.
        file: PathBuf,
        /// Where the damage was found; 0 when the whole file is meant.
        offset: u64,
        /// What is damaged.
        what: String,
    },
    /// Rows of the state cannot be read. Unlike other damage it may be found at any time, and a start mends it where it can.
    #[error(
        "the state in {} is damaged: {what}. Nothing more is served of it, and the node has to stop. Start it again: it \
         makes the state anew from its newest snapshot and its log, or says what to do if these do not reach far enough.",
        file.display()
    )]
    StateDamaged {
        /// Where the state is.
        file: PathBuf,
        /// What could not be read.
        what: String,
    },
    /// Bytes of a backup are not what was written.
    #[error(
        "{} is damaged at byte {offset}: {what}. Nothing can be restored from it; use another backup.",
        file.display()
    )]
    DamagedBackup {
        /// The backup.
        file: PathBuf,
        /// Where the damage was found; 0 when its beginning is meant.
        offset: u64,
        /// What is damaged.
        what: String,
    },
    /// A new data directory was to be made where one is.
    #[error(
        "{} holds the data of node `{name}` of cluster `{cluster}`. Nothing was changed. Choose an empty directory, or \
         move this one aside.",
        dir.display()
    )]
    HasData {
        /// The data directory.
        dir: PathBuf,
        /// Whose it is.
        cluster: String,
        /// Whose it is.
        name: String,
    },
    /// The log and the state do not belong together.
    #[error("the state in {} does not fit the log: {what}. {REBUILD}", dir.display())]
    Mismatch {
        /// The data directory.
        dir: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The state had come apart from the other nodes', and the node was stopped for it.
    #[error("the data in {} must not be served: {reason}. {REBUILD}", dir.display())]
    Condemned {
        /// The data directory.
        dir: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The directory holds another cluster's data.
    #[error(
        "{} belongs to cluster `{found}`, but this node is configured for cluster `{expected}`. Nothing was changed. \
         Correct the configured cluster name, or point the data directory to another place.",
        dir.display()
    )]
    OtherCluster {
        /// The data directory.
        dir: PathBuf,
        /// What the configuration says.
        expected: String,
        /// What the directory says.
        found: String,
    },
    /// The directory holds another node's data.
    #[error(
        "{} belongs to node `{found}`, but this node is configured as node `{expected}`. Nothing was changed. Correct \
         the configured name, or point the data directory to this node's own place.",
        dir.display()
    )]
    OtherNode {
        /// The data directory.
        dir: PathBuf,
        /// What the configuration says.
        expected: String,
        /// What the directory says.
        found: String,
    },
    /// The directory's node has another Raft id already.
    #[error(
        "{} belongs to the member with Raft id {known}, and the cluster has this node as {found}. Nothing was changed. \
         Move the directory aside and start the node again, empty.",
        dir.display()
    )]
    OtherId {
        /// The data directory.
        dir: PathBuf,
        /// What the directory says.
        known: u64,
        /// What the cluster says.
        found: u64,
    },
    /// The files were written by a newer program.
    #[error(
        "{} has format version {found}, and this program reads up to version {supported}. Nothing was changed. Start \
         the newer version of the program again, or restore a copy made before the upgrade.",
        file.display()
    )]
    NewerFormat {
        /// The file that says so.
        file: PathBuf,
        /// The version on disk.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// A backup was made by a newer program.
    #[error(
        "{} is a backup of format version {found}, and this program reads up to version {supported}. Nothing was restored. \
         Use a program that is as new as the one that made it, or another backup.",
        file.display()
    )]
    NewerBackup {
        /// The backup.
        file: PathBuf,
        /// The version of the backup.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// A directory that is neither empty nor a data directory.
    #[error(
        "{} holds files ({example}, ...) but no identity of a Holdfast node. Nothing was changed. Choose an empty \
         directory, or restore the missing file `identity`.",
        dir.display()
    )]
    NotADataDirectory {
        /// The directory.
        dir: PathBuf,
        /// The name of one of the files found.
        example: String,
    },
    /// Nothing is there.
    #[error(
        "there is no data directory of a Holdfast node at {}: {what}. Look at the path; a node has its data where its setting \
         `data_dir` says.",
        dir.display()
    )]
    NoDataDirectory {
        /// Where it was looked for.
        dir: PathBuf,
        /// What is there instead.
        what: &'static str,
    },
    /// Another process has the directory open.
    #[error(
        "{} is in use by another process. Nothing was changed. Stop that process, or choose another data directory.",
        dir.display()
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
    },
    /// Nothing more may be acknowledged, for the reason that was given when it happened.
    #[error("{0}")]
    Poisoned(String),
    /// A snapshot is being built already.
    #[error("a snapshot is being built already; wait until it is finished")]
    SnapshotInProgress,
    /// A snapshot was asked for before anything was applied.
    #[error("there is nothing to take a snapshot of: no entry has been applied yet")]
    NothingApplied,
}

impl StorageError {
    /// An operating system error with what was being done and where.
    pub fn io(doing: &'static str, path: &Path, source: io::Error) -> StorageError {
        StorageError::Io { doing, path: path.to_path_buf(), source }
    }

    /// Damage in `file` at `offset`.
    pub fn damaged(file: &Path, offset: u64, what: impl Into<String>) -> StorageError {
        StorageError::Damaged { file: file.to_path_buf(), offset, what: what.into() }
    }

    /// What a frame that is all of `file` is not.
    pub(crate) fn flawed(file: &Path, flaw: &FrameError) -> StorageError {
        StorageError::flawed_at(file, 0, flaw)
    }

    /// What the frame at `offset` in `file` is not.
    pub(crate) fn flawed_at(file: &Path, offset: u64, flaw: &FrameError) -> StorageError {
        match flaw {
            FrameError::Newer(version) => {
                let (file, supported) = (file.to_path_buf(), frame::FRAME_VERSION.into());
                StorageError::NewerFormat { file, found: u32::from(*version), supported }
            }
            flaw => StorageError::damaged(file, offset, flaw.to_string()),
        }
    }

    /// The error without its advice, for where something can be done about it here.
    pub(crate) fn without_advice(&self) -> String {
        self.to_string().split(REBUILD).next().unwrap_or_default().trim_end().to_owned()
    }

    /// Whether the disk has no room, and nothing else is wrong.
    pub fn is_full(&self) -> bool {
        matches!(self, StorageError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }

    /// Whether bytes on disk are wrong or missing (as against a refusal or a failing device).
    pub fn is_damage(&self) -> bool {
        matches!(self, StorageError::Damaged { .. } | StorageError::Mismatch { .. } | StorageError::Condemned { .. })
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> io::Error {
        let kind = match &error {
            StorageError::Io { source, .. } => source.kind(),
            StorageError::Damaged { .. } | StorageError::Mismatch { .. } | StorageError::Condemned { .. } => {
                io::ErrorKind::InvalidData
            }
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
