//! A log directory in which bytes were written over: it opens or is refused, and what it has is what was appended, from
//! the first entry on. What is refused is left as it was. The input: which file, where, how many bytes, the bytes; and
//! so on. No byte at all cuts the file there.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use holdfast_storage::disk::Poison;
use holdfast_storage::fault::FaultDisk;
use holdfast_storage::{FIRST_INDEX, Log, LogConfig, LogId, LogRecord, LogWriter, StorageError, Vote};
use libfuzzer_sys::fuzz_target;

fn open(disk: &FaultDisk) -> Result<Log, StorageError> {
    let config = LogConfig { segment_bytes: 1024, cache_bytes: 500, writer: LogWriter::Inline };
    Log::open(Arc::new(disk.clone()), Path::new("/log"), config, Poison::default())
}

fn all(log: &Log) -> Vec<LogRecord> {
    let first = log.purged().map_or(FIRST_INDEX, |purged| purged.index + 1);
    log.read(first..u64::MAX).unwrap()
}

/// A log of a process that was killed, with what was in it.
static SOUND: LazyLock<(FaultDisk, Vec<LogRecord>)> = LazyLock::new(|| {
    let disk = FaultDisk::default();
    Log::create(&disk, Path::new("/log")).unwrap();
    let log = open(&disk).unwrap();
    for group in 0..8u64 {
        let records = (0..3).map(|number| {
            let index = FIRST_INDEX + group * 3 + number;
            LogRecord { id: LogId { term: 1 + group / 4, index }, payload: vec![index as u8; 40].into() }
        });
        log.append(records.collect(), Box::new(|result| result.unwrap()));
    }
    log.save_vote(Vote { term: 3, node: 1, committed: true }).unwrap();
    let kept = all(&log);
    assert_eq!(kept.len(), 24);
    (disk.kill(), kept)
});

fuzz_target!(|input: &[u8]| {
    let (sound, kept) = &*SOUND;
    let disk = sound.copy();
    let files: Vec<PathBuf> = disk.image().into_keys().collect();
    let mut rest = input;
    while let Some(([file, high, low, length], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        disk.damage(&files[usize::from(*file) % files.len()], |contents| {
            let at = usize::from(u16::from_be_bytes([*high, *low])) % (contents.len() + 1);
            if bytes.is_empty() {
                contents.truncate(at);
            }
            let end = contents.len().min(at + bytes.len());
            contents[at..end].copy_from_slice(&bytes[..end - at]);
        });
    }
    let before = disk.image();
    match open(&disk) {
        Ok(log) => {
            let found = all(&log);
            assert!(found.len() <= kept.len(), "entries that nobody appended");
            assert_eq!(found, kept[..found.len()]);
        }
        Err(_) => assert_eq!(disk.image(), before, "changed although it was refused"),
    }
});
