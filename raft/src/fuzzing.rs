//! What a peer's bytes go through, for `fuzz/`: a crate of its own, which cannot see what is private here. Not for
//! anybody else, and only there with the feature `fuzzing` (and in tests, so that it is checked with everything else).

use std::fmt::Debug;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transport::frame::{Frame, Kind, decode_append, encode_append};
use crate::transport::handshake::{Hello, Knock, Welcome};
use crate::transport::registry::Reception;
use crate::types::Payload;
use crate::wire::{
    AppendAnswer, LeaderGoneAnswer, LeaderGoneAsk, PingAnswer, ProposeAnswer, ProposeAsk, ReadAnswer, ReplaceAnswer,
    ReplaceAsk, SnapshotAnswer, SnapshotHead, SnapshotOffer, StateHashAnswer, StateHashAsk, TransferAnswer,
    TransferAsk, VoteAnswer, VoteAsk, decode, encode,
};

/// Reads bytes as a frame and its body as what the frame's kind says.
///
/// # Panics
/// When something that was read is not written as what reads the same.
pub fn peer_frame(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(frame) = Frame::from_bytes(bytes.clone()) else { return };
    assert_eq!(frame.clone().into_bytes(), bytes, "a frame is written otherwise than it was read");
    let body = frame.body;
    match frame.kind {
        Kind::Hello => reads_back::<Hello>(&body),
        Kind::Knock => reads_back::<Knock>(&body),
        Kind::Append => append(body),
        Kind::Vote | Kind::PreVote => reads_back::<VoteAsk>(&body),
        Kind::TransferLeader => reads_back::<TransferAsk>(&body),
        Kind::Propose => reads_back::<ProposeAsk>(&body),
        Kind::LeaderGone => reads_back::<LeaderGoneAsk>(&body),
        Kind::SnapshotHead => reads_back::<SnapshotHead>(&body),
        Kind::SnapshotOffer => reads_back::<SnapshotOffer>(&body),
        Kind::StateHash => reads_back::<StateHashAsk>(&body),
        Kind::Replace => reads_back::<ReplaceAsk>(&body),
        // An answer does not say what it answers, so it is tried as each.
        Kind::Answer => {
            reads_back::<Welcome>(&body);
            reads_back::<Reception>(&body);
            reads_back::<PingAnswer>(&body);
            reads_back::<ReplaceAnswer>(&body);
            reads_back::<AppendAnswer>(&body);
            reads_back::<VoteAnswer>(&body);
            reads_back::<TransferAnswer>(&body);
            reads_back::<ProposeAnswer>(&body);
            reads_back::<ReadAnswer>(&body);
            reads_back::<LeaderGoneAnswer>(&body);
            reads_back::<StateHashAnswer>(&body);
            reads_back::<SnapshotAnswer>(&body);
        }
        Kind::ReadIndex | Kind::Ping | Kind::SnapshotChunk | Kind::Failed => {}
    }
}

fn append(body: Bytes) {
    let Ok(request) = decode_append(body) else { return };
    for entry in &request.entries {
        if let Payload::Normal(proposal) = &entry.payload {
            // Whether it is one is found out when it is applied; here only that asking is harmless.
            let _ = proposal.0.as_entry();
        }
    }
    let again = decode_append(encode_append(&request)).map(|again| format!("{again:?}"));
    assert_eq!(again.ok(), Some(format!("{request:?}")), "an append is written otherwise than it was read");
}

fn reads_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(body: &[u8]) {
    let Ok(value) = decode::<T>(body) else { return };
    assert_eq!(decode::<T>(&encode(&value)).ok(), Some(value), "a body is written otherwise than it was read");
}
