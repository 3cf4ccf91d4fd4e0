//! What the writer promises: order, one write and one sync for all that waits, refusals, a full disk.

use super::*;
use crate::disk::RealDisk;
use crate::fault::{Change, Fault};

fn threaded(disk: Arc<dyn Disk>, dir: &Path) -> Log {
    Log::open(disk, dir, LogConfig { writer: LogWriter::Thread, ..config() }, Poison::default()).unwrap()
}

#[test]
fn entries_can_be_read_at_once_and_are_reported_in_order() {
    let root = tempfile::tempdir().unwrap();
    Log::create(&RealDisk, root.path()).unwrap();
    let log = threaded(Arc::new(RealDisk), root.path());
    let order = Arc::new(Mutex::new(Vec::new()));
    for index in 0..500 {
        let order = Arc::clone(&order);
        let done = move |result: io::Result<()>| order.lock().unwrap().push((index, result.is_ok()));
        log.append(vec![entry(1, index, 100)], Box::new(done));
        assert_eq!(log.read(index..index + 1).unwrap(), [entry(1, index, 100)]);
    }
    log.save_vote(Vote { term: 1, node: 1, committed: false }).unwrap();
    let expected: Vec<_> = (0..500).map(|index| (index, true)).collect();
    assert_eq!(*order.lock().unwrap(), expected, "the vote came after all of them");
    let stats = log.stats();
    assert_eq!(stats.records, 500);
    assert!(stats.groups <= 500);
    drop(log);
    let log = threaded(Arc::new(RealDisk), root.path());
    assert_eq!(all(&log), entries(1, 0..500, 100));
}

#[test]
fn what_waits_together_is_one_write_and_one_sync() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    append(&log, entries(1, 0..1, 10)).unwrap();
    let (changes, syncs) = (disk.changes(), disk.count(Change::Sync));
    append(&log, entries(1, 1..21, 10)).unwrap();
    assert_eq!((disk.changes() - changes, disk.count(Change::Sync) - syncs), (2, 1));
    append(&log, Vec::new()).unwrap();
    assert_eq!(disk.count(Change::Sync) - syncs, 1, "nothing to write, nothing to sync");
}

#[test]
fn gaps_and_backward_terms_are_refused_as_a_whole() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    append(&log, entries(2, 0..3, 10)).unwrap();
    for wrong in [entries(2, 4..6, 10), entries(2, 2..4, 10), entries(1, 3..4, 10)] {
        assert_eq!(append(&log, wrong).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    let hole = vec![entry(2, 3, 10), entry(2, 5, 10)];
    assert_eq!(append(&log, hole).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(all(&log), entries(2, 0..3, 10));
    append(&log, entries(2, 3..4, 10)).unwrap();
}

#[test]
fn purged_entries_cannot_be_read_or_truncated() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    append(&log, entries(1, 0..50, 300)).unwrap();
    let files = disk.image().len();
    log.purge(id(1, 40)).unwrap();
    assert!(disk.image().len() < files, "segments were removed");
    assert_eq!(log.read(40..45).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(log.truncate_after(Some(id(1, 30))).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(all(&log), entries(1, 41..50, 300));
    log.purge(id(2, 90)).unwrap();
    assert_eq!((log.last(), log.purged()), (Some(id(2, 90)), Some(id(2, 90))));
    append(&log, entries(2, 91..93, 10)).unwrap();
    drop(log);
    assert_eq!(all(&open(&disk).unwrap()), entries(2, 91..93, 10));
}

#[test]
fn an_entry_larger_than_a_segment_has_one_of_its_own() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    let records = vec![entry(1, 0, 10), entry(1, 1, 3 * SEGMENT as usize), entry(1, 2, 10)];
    append(&log, records.clone()).unwrap();
    drop(log);
    assert_eq!(all(&open(&disk).unwrap()), records);
}

#[test]
fn a_full_disk_stalls_the_log_and_poisons_nothing() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = threaded(Arc::new(disk.clone()), &dir());
    // The first change of the next append is the creation of a segment.
    disk.fail_after(0, Fault::Once(io::ErrorKind::StorageFull));
    append(&log, entries(1, 0..1, 10)).unwrap();
    append(&log, entries(1, 1..2, 10)).unwrap();
    assert!(!log.is_full());
}

#[test]
fn a_log_on_a_full_disk_goes_on_or_is_closed_and_leaves_nobody_waiting() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = threaded(Arc::new(disk.clone()), &dir());
    disk.set_capacity(Some(disk.used()));
    let (sender, receiver) = mpsc::channel();
    for index in 0..2 {
        let sender = sender.clone();
        log.append(entries(1, index..index + 1, 10), Box::new(move |result| sender.send(result).unwrap()));
    }
    let begun = std::time::Instant::now();
    while !log.is_full() {
        assert!(begun.elapsed().as_secs() < 30, "the log does not notice that the disk is full");
        std::thread::yield_now();
    }
    assert!(receiver.try_recv().is_err(), "nothing is acknowledged");
    disk.set_capacity(None);
    receiver.recv().unwrap().unwrap();
    receiver.recv().unwrap().unwrap();
    disk.set_capacity(Some(disk.used()));
    let failed = mpsc::channel();
    log.append(entries(1, 2..9, 900), Box::new(move |result| failed.0.send(result).unwrap()));
    drop(log);
    failed.1.recv().unwrap().unwrap_err();
    assert_eq!(all(&open(&disk.kill()).unwrap())[..2], entries(1, 0..2, 10));
}

#[test]
fn the_log_says_where_its_bytes_are() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    assert_eq!((log.bytes_after(None), log.before_last(0)), (0, None), "an empty log");
    // Three of these fill a segment.
    append(&log, entries(1, 0..9, SEGMENT as usize / 4)).unwrap();
    let all = log.bytes_after(None);
    assert!(all > 9 * SEGMENT / 4, "{all} bytes");
    let newest = log.bytes_after(Some(7));
    assert_eq!((log.bytes_after(Some(5)), log.bytes_after(Some(8))), (newest, 0));
    assert_eq!(log.before_last(all), None, "all of it may stay");
    assert_eq!(log.before_last(all - 1), Some(2));
    assert_eq!(log.before_last(newest), Some(5));
    assert_eq!(log.before_last(0), Some(5), "what is written to stays");
    log.purge(id(1, 5)).unwrap();
    assert_eq!((log.bytes_after(None), log.before_last(newest)), (newest, Some(5)));
}

#[test]
fn the_committed_id_is_kept_and_never_beyond_the_end() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = open(&disk).unwrap();
    append(&log, entries(1, 0..5, 10)).unwrap();
    log.save_committed(Some(id(1, 3))).unwrap();
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(log.committed(), Some(id(1, 3)));
    log.save_committed(Some(id(1, 9))).unwrap();
    assert_eq!(log.committed(), None);
    disk.damage(&dir().join("committed"), |bytes| bytes[12] ^= 1);
    assert_eq!(open(&disk).unwrap().committed(), None, "a torn id counts as none");
}

#[test]
fn a_callback_that_panics_stops_the_log_and_leaves_nobody_waiting() {
    let disk = FaultDisk::default();
    create(&disk);
    let log = threaded(Arc::new(disk.clone()), &dir());
    log.append(entries(1, 0..1, 10), Box::new(|_| panic!("on purpose")));
    log.save_vote(Vote { term: 1, node: 1, committed: false }).unwrap_err();
    append(&log, entries(1, 1..2, 10)).unwrap_err();
    drop(log);
    assert_eq!(all(&open(&disk).unwrap()), entries(1, 0..1, 10));
}
