//! Reads a log directory and decides what it means. Changes nothing.
//!
//! What a crash can leave behind is accepted: temporary files, segments that were purged but not yet
//! removed, and a torn write at the very end. All else is damage:
//!
//! - a record that does not check out, with a record of a later write behind it,
//! - a segment that is missing, or does not continue the one before it,
//! - an end before the durable mark.
//!
//! One thing cannot be told from a crash: a bit that rots in the very last write, when the process had no time to bring
//! the durable mark up to it (which it does when the log is idle for a second, and when it is closed). That write is then
//! taken for a torn one and cut off, and this node has lost what it has acknowledged. To know better would take a
//! second sync for each write; the entries are on a quorum of other disks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mark::Mark;
use super::record::{self, ALIGNMENT, Header};
use super::segment::{HeaderFlaw, SEGMENT_HEADER, SEGMENT_VERSION, Segment, SegmentHeader, parse_name};
use crate::disk::{Disk, DiskFile, TEMPORARY_SUFFIX};
use crate::error::StorageError;
use crate::ids::{FIRST_INDEX, LogId};

/// What a log directory holds.
#[derive(Debug)]
pub(crate) struct Scan {
    pub mark: Mark,
    /// Segments with entries after the purged id (the last one may be empty), in order.
    pub segments: Vec<Segment>,
    /// The last entry, or the purged id when there is none.
    pub last: Option<LogId>,
    /// Crc of the last record of the last segment: what the next record is chained to.
    pub chain: u32,
    /// Bytes of a torn write behind the end of the last segment, to be cut off.
    pub torn_bytes: u64,
    /// Files that an interrupted operation left, to be removed.
    pub leftovers: Vec<PathBuf>,
}

/// Scans `dir`; an error names the file and place of the damage.
pub(crate) fn scan(disk: &dyn Disk, dir: &Path) -> Result<Scan, StorageError> {
    let names = disk.list(dir).map_err(|e| StorageError::io("listing", dir, e))?;
    let mark = Mark::load(disk, dir)?
        .ok_or_else(|| StorageError::damaged(dir, 0, "the file `vote` is missing from the log"))?;
    let mut scan =
        Scan { mark, segments: Vec::new(), last: mark.purged, chain: 0, torn_bytes: 0, leftovers: Vec::new() };
    scan.leftovers.extend(names.iter().filter(|name| name.ends_with(TEMPORARY_SUFFIX)).map(|name| dir.join(name)));

    let mut firsts: Vec<u64> = names.iter().filter_map(|name| parse_name(name)).collect();
    firsts.sort_unstable();
    let wanted = mark.purged.map_or(FIRST_INDEX, |id| id.index + 1);
    // All entries of a segment are purged when the next segment begins no later than the first wanted entry.
    let purged = firsts.windows(2).take_while(|pair| pair[1] <= wanted).count();
    scan.leftovers.extend(firsts.drain(..purged).map(|first| dir.join(super::segment::file_name(first))));

    check_presence(dir, &mark, &firsts, wanted)?;
    for (position, first) in firsts.iter().enumerate() {
        let next = firsts.get(position + 1).copied();
        scan.read_segment(disk, dir, *first, next)?;
    }
    scan.drop_purged_tail(wanted);
    scan.check_end(dir)?;
    Ok(scan)
}

fn check_presence(dir: &Path, mark: &Mark, firsts: &[u64], wanted: u64) -> Result<(), StorageError> {
    match (mark.newest, firsts.last()) {
        (Some(newest), None) => {
            return Err(StorageError::damaged(dir, 0, format!("the segment that begins at entry {newest} is missing")));
        }
        (Some(newest), Some(last)) if *last < newest => {
            return Err(StorageError::damaged(dir, 0, format!("the segment that begins at entry {newest} is missing")));
        }
        _ => {}
    }
    match firsts.first() {
        Some(first) if *first > wanted => Err(StorageError::damaged(
            dir,
            0,
            format!("the log begins at entry {first}, but entry {wanted} was never purged: a segment is missing"),
        )),
        _ => Ok(()),
    }
}

impl Scan {
    fn read_segment(&mut self, disk: &dyn Disk, dir: &Path, first: u64, next: Option<u64>) -> Result<(), StorageError> {
        let path = dir.join(super::segment::file_name(first));
        let file = disk.open(&path).map_err(|e| StorageError::io("opening", &path, e))?;
        let bytes = read_all(&*file, &path)?;
        let header = read_header(&bytes, &path, first)?;
        if !self.segments.is_empty() && header.chain != self.chain {
            return Err(StorageError::damaged(&path, 0, "the segment does not continue the one before it"));
        }
        let segment =
            Segment { header, path, file: Arc::clone(&file), offsets: Vec::new(), end: SEGMENT_HEADER as u64 };
        self.chain = header.chain;
        self.segments.push(segment);
        self.read_records(&bytes, next)
    }

    /// Reads records from the start of the newest segment; `next` is where the segment behind it begins.
    fn read_records(&mut self, bytes: &[u8], next: Option<u64>) -> Result<(), StorageError> {
        // `read_segment` has just pushed one.
        let Some(segment) = self.segments.last_mut() else { return Ok(()) };
        let mut at = SEGMENT_HEADER;
        let (mut last, mut chain) = (None, self.chain);
        while next != Some(segment.next_index()) {
            let index = segment.next_index();
            let found = bytes.get(at..).and_then(|rest| record::decode(rest, segment.header.salt));
            match found {
                Some(header) if header.id.index == index && header.previous == chain => {
                    segment.offsets.push(at as u32);
                    at += record::size(header.length);
                    chain = header.crc;
                    last = Some(header.id);
                }
                Some(_) => {
                    return Err(StorageError::damaged(
                        &segment.path,
                        at as u64,
                        format!("entry {index} does not continue the entry before it"),
                    ));
                }
                None if next.is_some() => {
                    return Err(StorageError::damaged(
                        &segment.path,
                        at as u64,
                        format!("entry {index} does not match its checksum, and the log goes on behind it"),
                    ));
                }
                None => break,
            }
        }
        segment.end = at as u64;
        self.chain = chain;
        self.last = last.or(self.last);
        if next.is_none() { self.check_tail(bytes, at) } else { Ok(()) }
    }

    /// Looks behind the last good record of the last segment: reserved space, a torn write, or damage.
    fn check_tail(&mut self, bytes: &[u8], end: usize) -> Result<(), StorageError> {
        let Some(segment) = self.segments.last() else { return Ok(()) };
        let rest = bytes.get(end..).unwrap_or_default();
        let Some(used) = rest.iter().rposition(|byte| *byte != 0) else { return Ok(()) };
        let index = segment.next_index();
        let behind = records_behind(rest, used, segment.header.salt, index);
        if let Some(later) = behind.into_iter().find(|header| header.group_start() > index) {
            return Err(StorageError::damaged(
                &segment.path,
                end as u64,
                format!("entry {index} does not match its checksum, but entry {}, written later, does", later.id.index),
            ));
        }
        self.torn_bytes = used as u64 + 1;
        Ok(())
    }

    /// A last segment that ends before the first wanted entry is a leftover too.
    fn drop_purged_tail(&mut self, wanted: u64) {
        if self.segments.last().is_some_and(|segment| segment.next_index() < wanted) {
            self.leftovers.extend(self.segments.drain(..).map(|segment| segment.path));
            self.torn_bytes = 0;
        }
        if self.last.is_none_or(|last| last.index < wanted) {
            self.last = self.mark.purged;
        }
    }

    fn check_end(&self, dir: &Path) -> Result<(), StorageError> {
        let Some(durable) = self.mark.durable else { return Ok(()) };
        if self.last.is_some_and(|last| last.index >= durable) {
            return Ok(());
        }
        let what = format!("entry {durable} was synced once, but the log ends before it");
        match self.segments.last() {
            Some(segment) => Err(StorageError::damaged(&segment.path, segment.end, what)),
            None => Err(StorageError::damaged(dir, 0, what)),
        }
    }
}

fn read_all(file: &dyn DiskFile, path: &Path) -> Result<Vec<u8>, StorageError> {
    let reading = |error| StorageError::io("reading", path, error);
    let length = usize::try_from(file.len().map_err(reading)?)
        .map_err(|_| StorageError::damaged(path, 0, "the file is impossibly long"))?;
    let mut bytes = vec![0; length];
    let count = file.read_at(0, &mut bytes).map_err(reading)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn read_header(bytes: &[u8], path: &Path, first: u64) -> Result<SegmentHeader, StorageError> {
    match SegmentHeader::decode(bytes) {
        Ok(header) if header.first == first => Ok(header),
        Ok(header) => {
            let what = format!("its name says that it begins at entry {first}, its header says {}", header.first);
            Err(StorageError::damaged(path, 0, what))
        }
        Err(HeaderFlaw::Damaged) => Err(StorageError::damaged(path, 0, "the segment's header is not whole")),
        Err(HeaderFlaw::Version(found)) => {
            Err(StorageError::NewerFormat { file: path.to_path_buf(), found, supported: SEGMENT_VERSION })
        }
    }
}

/// All records with an index after `index` that check out in `rest`, up to its last used byte.
fn records_behind(rest: &[u8], used: usize, salt: u64, index: u64) -> Vec<Header> {
    let mut found = Vec::new();
    let mut at = ALIGNMENT;
    while at <= used {
        // Cheap tests first: nearly every position fails one of them.
        let plausible = Header::parse(&rest[at..])
            .is_some_and(|header| header.id.index > index && header.length <= rest.len() - at);
        match plausible.then(|| record::decode(&rest[at..], salt)).flatten() {
            Some(header) => {
                at += record::size(header.length);
                found.push(header);
            }
            None => at += ALIGNMENT,
        }
    }
    found
}
