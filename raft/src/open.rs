//! Opens the data directory of a node, and loads the machine from it.

use std::time::Duration;

use holdfast_machine::Machine;
use holdfast_storage::{Expected, LogWriter, Storage, StorageError};
use tokio::time::Instant;

use crate::log_store::blocking;
use crate::options::Options;
use crate::start::{StartError, refused};

/// How long a data directory may still be held by a process that is stopping.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Pause before a disk without room is tried again.
pub(crate) const SPACE_PAUSE: Duration = Duration::from_secs(1);

/// Opens the data directory and loads the machine from its rows.
pub(crate) async fn open(options: &Options) -> Result<(Storage, Machine), StartError> {
    let mut mended = false;
    loop {
        let storage = open_storage(options).await?;
        let load = move || Ok((Machine::load(&*storage.state), storage));
        let (loaded, storage) = blocking(load).await.map_err(refused)?;
        match loaded {
            Ok(machine) => return Ok((storage, machine)),
            Err(error) if storage.dir.failure().is_some() && !mended => {
                tracing::error!(%error, "rows that a start needs are damaged; opening once more makes the state anew");
                mended = true;
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

/// Opens the data directory; waits a little for a process that is just leaving it.
async fn open_storage(options: &Options) -> Result<Storage, StartError> {
    let begun = Instant::now();
    loop {
        let path = options.data_dir.clone();
        let expected = Expected { cluster: options.cluster.clone(), name: options.name()?.to_string() };
        let settings = storage_options(options);
        let open = move || Ok(Storage::open(&path, &expected, &settings));
        let opened = blocking(open).await.map_err(refused)?;
        match opened {
            Err(StorageError::InUse { .. }) if begun.elapsed() < LOCK_LIMIT => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            // Where there is nothing to be done but to wait, a restart would do no more.
            Err(error) if error.is_full() => {
                tracing::error!(%error, "no space on the disk; waiting for it");
                tokio::time::sleep(SPACE_PAUSE).await;
            }
            opened => return Ok(opened?),
        }
    }
}

fn storage_options(options: &Options) -> holdfast_storage::Options {
    let environment = &options.environment;
    let mut storage = environment.storage.clone();
    storage.reserve_bytes = options.disk_reserve_bytes;
    storage.state.machine_version = holdfast_machine::STATE_VERSION.into();
    if environment.write_pause.is_some() {
        storage.log.writer = LogWriter::Driven;
    }
    storage
}
