//! The frame around everything that is stored: version, kind, length, checksum.
//!
//! ```text
//! byte 0      version of the frame (1)
//! byte 1      kind of the contents
//! bytes 2-5   length of the contents, little endian
//! bytes 6-9   crc32c of bytes 0-5 and the contents, little endian
//! bytes 10-   contents
//! ```
//! A frame that does not check out is never interpreted, and a frame of one kind is never taken for another. A later version
//! keeps these ten bytes as they are, so that its frames can be told from damaged ones.

/// Bytes before the contents.
pub const FRAME_HEADER: usize = 10;

/// Newest version of frames that this program reads and writes.
pub const FRAME_VERSION: u8 = 1;

/// What a frame holds. Numbers are on disk: add at the end, change none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Who a data directory belongs to.
    Identity = 1,
    /// The log's vote, purged id and durable mark.
    LogMark = 2,
    /// The log's committed id.
    Committed = 3,
    /// A row that fits in one value.
    Row = 4,
    /// The head of a row whose value is stored in pieces.
    LargeRow = 5,
    /// One piece of a large row.
    Piece = 6,
    /// The state's applied id.
    Applied = 7,
    /// The cluster membership, opaque to storage.
    Membership = 8,
    /// The first frame of a snapshot file.
    SnapshotHeader = 9,
    /// Compressed rows of a snapshot file.
    SnapshotChunk = 10,
    /// The last frame of a snapshot file.
    SnapshotTrailer = 11,
    /// Which generation of the state is current.
    Generation = 12,
    /// Rows that are on their way into the state, in data directories of format 1.
    Layer = 13,
    /// All rows of a state that is not in sled.
    PlainRows = 14,
    /// What stands before the snapshot in a backup file.
    BackupManifest = 15,
    /// Several rows in one value.
    Bundle = 16,
    /// Rows that are on their way into the state, compressed.
    PackedLayer = 17,
}

/// Why bytes are not the frame that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the frame needs.
    #[error("the frame is cut short")]
    Short,
    /// More bytes than the frame has.
    #[error("there are bytes behind the frame")]
    Long,
    /// Not a frame at all.
    #[error("unknown frame version {0}")]
    Version(u8),
    /// A frame, whole and sound, that a later version of the program has written.
    #[error("frame version {0} is newer than this program")]
    Newer(u8),
    /// A frame, but of something else.
    #[error("a frame of kind {found} stands where kind {expected} belongs")]
    Kind {
        /// The kind that belongs here.
        expected: u8,
        /// The kind found.
        found: u8,
    },
    /// Header or contents were changed.
    #[error("the checksum does not match the contents")]
    Checksum,
    /// The frame is whole, but its contents make no sense.
    #[error("the contents cannot be decoded")]
    Contents,
}

/// The parsed first [`FRAME_HEADER`] bytes of a frame.
#[derive(Debug, Clone, Copy)]
pub struct FrameHeader {
    /// Length of the contents in bytes.
    pub length: usize,
    checksum: u32,
    prefix: [u8; 6],
}

/// Starts a frame in `buffer`; append the contents, then call [`finish`] with the returned position.
pub fn begin(buffer: &mut Vec<u8>, kind: FrameKind) -> usize {
    let start = buffer.len();
    buffer.extend_from_slice(&[FRAME_VERSION, kind as u8, 0, 0, 0, 0, 0, 0, 0, 0]);
    start
}

/// Ends the frame that began at `start`: all bytes after its header are its contents.
///
/// Contents are bounded by the caller to well under 4 GiB (rows, chunks and marks are all small).
pub fn finish(buffer: &mut [u8], start: usize) {
    let length = (buffer.len() - start - FRAME_HEADER) as u32;
    buffer[start + 2..start + 6].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&buffer[start..start + 6], &buffer[start + FRAME_HEADER..]);
    buffer[start + 6..start + FRAME_HEADER].copy_from_slice(&checksum.to_le_bytes());
}

/// A frame around `contents`.
pub fn encode(kind: FrameKind, contents: &[u8]) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(FRAME_HEADER + contents.len());
    let start = begin(&mut buffer, kind);
    buffer.extend_from_slice(contents);
    finish(&mut buffer, start);
    buffer
}

/// The contents of the one frame that `bytes` must be.
pub fn decode(kind: FrameKind, bytes: &[u8]) -> Result<&[u8], FrameError> {
    let header = header(kind, bytes)?;
    let contents = &bytes[FRAME_HEADER..];
    if contents.len() < header.length {
        return Err(FrameError::Short);
    }
    if contents.len() > header.length {
        return Err(FrameError::Long);
    }
    verify(&header, contents)?;
    Ok(contents)
}

/// The kind byte of a frame, unchecked: to choose what to decode it as.
pub fn kind_of(bytes: &[u8]) -> Option<u8> {
    bytes.get(1).copied()
}

/// Reads a frame's header, for contents that are read separately; check them with [`verify`], which also tells a frame of a
/// later version from a damaged one.
pub fn header(kind: FrameKind, bytes: &[u8]) -> Result<FrameHeader, FrameError> {
    let Some((head, _)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return Err(FrameError::Short);
    };
    let [version, found, l0, l1, l2, l3, c0, c1, c2, c3] = *head;
    if version < FRAME_VERSION {
        return Err(FrameError::Version(version));
    }
    if found != kind as u8 && version == FRAME_VERSION {
        return Err(FrameError::Kind { expected: kind as u8, found });
    }
    Ok(FrameHeader {
        length: u32::from_le_bytes([l0, l1, l2, l3]) as usize,
        checksum: u32::from_le_bytes([c0, c1, c2, c3]),
        prefix: [version, found, l0, l1, l2, l3],
    })
}

/// Checks a frame's contents against its header.
pub fn verify(header: &FrameHeader, contents: &[u8]) -> Result<(), FrameError> {
    let [version, ..] = header.prefix;
    match (checksum(&header.prefix, contents) == header.checksum, version > FRAME_VERSION) {
        (true, false) => Ok(()),
        (true, true) => Err(FrameError::Newer(version)),
        (false, false) => Err(FrameError::Checksum),
        (false, true) => Err(FrameError::Version(version)),
    }
}

/// A frame around a value in postcard encoding.
pub(crate) fn encode_value<T: serde::Serialize>(kind: FrameKind, value: &T) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(64);
    let start = begin(&mut buffer, kind);
    // Writing plain data to memory has no way to fail: postcard's errors are about full buffers and
    // sequences of unknown length, and the stored types have neither.
    #[allow(clippy::expect_used)]
    let mut buffer = postcard::to_extend(value, buffer).expect("plain data always encodes");
    finish(&mut buffer, start);
    buffer
}

/// The postcard value in the one frame that `bytes` must be.
pub(crate) fn decode_value<T: serde::de::DeserializeOwned>(kind: FrameKind, bytes: &[u8]) -> Result<T, FrameError> {
    postcard::from_bytes(decode(kind, bytes)?).map_err(|_| FrameError::Contents)
}

fn checksum(prefix: &[u8], contents: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(prefix), contents)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_frame_gives_back_its_contents() {
        for contents in [&b""[..], b"x", &[7; 70_000]] {
            let bytes = encode(FrameKind::Row, contents);
            assert_eq!(decode(FrameKind::Row, &bytes).unwrap(), contents);
        }
    }

    #[test]
    fn any_flipped_bit_is_seen_and_taken_for_damage() {
        let bytes = encode(FrameKind::Row, b"eleven rows");
        for position in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[position / 8] ^= 1 << (position % 8);
            let flaw = decode(FrameKind::Row, &bad).unwrap_err();
            assert!(!matches!(flaw, FrameError::Newer(_)), "bit {position}: {flaw}");
        }
    }

    #[test]
    fn a_frame_of_a_later_version_is_told_from_a_damaged_one() {
        let mut bytes = encode(FrameKind::Row, b"row");
        bytes[0] = FRAME_VERSION + 1;
        assert_eq!(decode(FrameKind::Row, &bytes), Err(FrameError::Version(FRAME_VERSION + 1)));
        finish(&mut bytes, 0);
        assert_eq!(decode(FrameKind::Row, &bytes), Err(FrameError::Newer(FRAME_VERSION + 1)));
    }

    #[test]
    fn cut_extended_and_misplaced_frames_are_refused() {
        let bytes = encode(FrameKind::Row, b"row");
        for length in 0..bytes.len() {
            assert_eq!(decode(FrameKind::Row, &bytes[..length]), Err(FrameError::Short));
        }
        let longer = [&bytes[..], b"!"].concat();
        assert_eq!(decode(FrameKind::Row, &longer), Err(FrameError::Long));
        assert!(matches!(decode(FrameKind::Piece, &bytes), Err(FrameError::Kind { .. })));
    }
}
