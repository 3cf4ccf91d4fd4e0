//! The frame around everything that is stored: any bytes are one frame, to the last byte, or an error; a frame gives
//! back what it was put around, no other kind takes it, and no kind takes it with a byte changed.

#![no_main]

use holdfast_storage::frame::{FRAME_HEADER, FrameKind, decode, encode};
use libfuzzer_sys::fuzz_target;

const KINDS: [FrameKind; 3] = [FrameKind::Identity, FrameKind::Row, FrameKind::BackupManifest];

fuzz_target!(|bytes: &[u8]| {
    for kind in KINDS {
        if let Ok(contents) = decode(kind, bytes) {
            assert_eq!(bytes.len(), FRAME_HEADER + contents.len());
            assert_eq!(encode(kind, contents), bytes, "two frames around the same contents");
        }
        let frame = encode(kind, bytes);
        assert_eq!(decode(kind, &frame), Ok(bytes));
        let mistaken = KINDS.iter().filter(|other| **other != kind && decode(**other, &frame).is_ok()).count();
        assert_eq!(mistaken, 0, "a frame of one kind was taken for another");
        let [at, change, ..] = bytes else { continue };
        let mut changed = frame;
        let at = usize::from(*at) % changed.len();
        changed[at] ^= (*change).max(1);
        assert!(KINDS.iter().all(|kind| decode(*kind, &changed).is_err()), "a changed byte was not noticed");
    }
});
