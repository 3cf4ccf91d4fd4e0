//! Any text as the body of any call, and of any message of a worker's stream: an error, or a value that is written as
//! what reads the same.

#![no_main]

use holdfast_client::wire;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn reads_back<T: Serialize + DeserializeOwned>(text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(text) else { return };
    let written = serde_json::to_string(&value).unwrap();
    let again: T = serde_json::from_str(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
    assert_eq!(serde_json::to_string(&again).unwrap(), written, "it reads as something else");
}

macro_rules! each {
    ($text:expr, $($body:ident),+ $(,)?) => { $(reads_back::<wire::$body>($text);)+ };
}

fuzz_target!(|text: &[u8]| {
    each!(
        text,
        TransferBody,
        AdoptBody,
        ReplaceBody,
        ClaimCall,
        HeartbeatBody,
        CompleteBody,
        FailBody,
        RetryBody,
        ReconcileBody,
        StageBody,
        FailureDeliveredBody,
        RedriveBody,
        ListCall,
        AppendBody,
        CommitBody,
        RearmBody,
        SettleBody,
        WorkerMessage,
        NodeMessage,
        EventBody,
        HeadGrew,
        SessionView,
        RowView,
        HistoryPage,
        WorkflowView,
    );
});
