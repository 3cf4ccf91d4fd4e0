//! A flipped bit anywhere in a log: an error that changes nothing, or a log that is as it was. Never other data.

use super::*;

/// Several segments, several groups in each, an entry purged; and the log as it is when closed.
fn sound() -> (FaultDisk, Vec<LogRecord>) {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    for group in 0..12 {
        append(&log, entries(1 + group / 4, group * 3..group * 3 + 3, 200 + group as usize)).unwrap();
    }
    log.purge(id(1, 4)).unwrap();
    log.save_vote(Vote { term: 3, node: 1, committed: true }).unwrap();
    log.save_committed(Some(id(3, 30))).unwrap();
    let kept = all(&log);
    (disk, kept)
}

fn segments(disk: &FaultDisk) -> Vec<PathBuf> {
    disk.image().into_keys().filter(|path| path.extension().is_some_and(|end| end == "log")).collect()
}

/// Opens a damaged copy: the entries found, or `None` after an error that must be about damage and change nothing.
fn outcome(disk: &FaultDisk, what: &str) -> Option<Vec<LogRecord>> {
    let before = disk.image();
    match open(disk) {
        Ok(log) => Some(all(&log)),
        Err(error) => {
            assert!(error.is_damage() || matches!(error, StorageError::NewerFormat { .. }), "{what}: {error}");
            assert_eq!(disk.image(), before, "{what}: changed although it was refused");
            None
        }
    }
}

#[test]
fn a_flipped_bit_in_a_closed_log_is_seen_or_harmless() {
    let (disk, kept) = sound();
    let disk = disk.copy();
    let mut refused = 0;
    for (path, bytes) in disk.image() {
        for at in 0..bytes.len() {
            let copy = disk.copy();
            copy.damage(&path, |bytes| bytes[at] ^= 1 << (at % 8));
            let what = format!("{} byte {at}", path.display());
            match outcome(&copy, &what) {
                Some(found) => assert_eq!(found, kept, "{what}"),
                None => refused += 1,
            }
        }
    }
    assert!(refused > 5000, "{refused} flips were refused");
}

#[test]
fn a_flipped_bit_in_a_log_that_was_not_closed_costs_at_most_the_last_write() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    append(&log, entries(1, 0..9, 200)).unwrap();
    append(&log, entries(1, 9..12, 200)).unwrap();
    let kept = all(&log);
    let disk = disk.kill();
    let last_write = segments(&disk).pop().unwrap();
    let used = disk.bytes(&last_write).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    let mut cut = 0;
    for at in 0..=used {
        let copy = disk.copy();
        copy.damage(&last_write, |bytes| bytes[at] ^= 0x10);
        if let Some(found) = outcome(&copy, &format!("byte {at}")) {
            assert!(found.len() >= 9, "byte {at}: entries of an earlier write are lost");
            assert_eq!(found, kept[..found.len()], "byte {at}");
            cut += 1;
        }
    }
    assert!(cut > 0);
}

#[test]
fn a_lost_segment_is_damage() {
    let (disk, _) = sound();
    for path in segments(&disk) {
        let copy = disk.copy();
        copy.remove(&path).unwrap();
        assert_eq!(outcome(&copy, "a segment was removed"), None, "{}", path.display());
    }
}

#[test]
fn a_lost_vote_is_damage() {
    let (disk, _) = sound();
    disk.remove(&dir().join(VOTE_FILE)).unwrap();
    assert_eq!(outcome(&disk, "the vote was removed"), None);
}

#[test]
fn zeroed_sectors_and_cut_files_are_seen() {
    let (disk, kept) = sound();
    for path in segments(&disk) {
        let length = disk.bytes(&path).unwrap().len();
        for at in (0..length).step_by(256) {
            let zeroed = disk.copy();
            zeroed.damage(&path, |bytes| bytes[at..(at + 512).min(length)].fill(0));
            let cut = disk.copy();
            cut.damage(&path, |bytes| bytes.truncate(at));
            for (copy, what) in [(zeroed, "zeroed"), (cut, "cut")] {
                let what = format!("{} {what} at {at}", path.display());
                if let Some(found) = outcome(&copy, &what) {
                    assert_eq!(found, kept, "{what}");
                }
            }
        }
    }
}

#[test]
fn the_error_says_where_and_what_to_do() {
    let (disk, _) = sound();
    let first = segments(&disk).remove(0);
    disk.damage(&first, |bytes| bytes[2000] ^= 1);
    let text = open(&disk).unwrap_err().to_string();
    for part in [first.to_str().unwrap(), "at byte", "checksum", "Nothing on disk was changed", "from its peers"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn a_file_that_rots_while_the_log_is_open_gives_an_error() {
    let (disk, _) = sound();
    let log = open(&disk).unwrap();
    let first = segments(&disk).remove(0);
    disk.damage(&first, |bytes| bytes.iter_mut().skip(64).for_each(|byte| *byte ^= 0xff));
    assert_eq!(log.read(5..6).unwrap_err().kind(), io::ErrorKind::InvalidData);
}
