//! What the tests share: options, a way to stop a session, and reading a recording back.
use kymo_data::abi;
use kymo_data::{Recording, Sample};
use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};
use kymo_record::{CallGraph, Options, Output, TargetSpec};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The events of a selector.
pub(crate) fn events(text: &str) -> Vec<Selected> {
    let groups = selector::parse(text).expect("a selector");
    selector::resolve(&groups, &Machine::here()).expect("software events are everywhere")
}

/// Options to record `selector` into a file, without build IDs.
pub(crate) fn options(selector: &str, targets: TargetSpec, output: &Path) -> Options {
    Options {
        call_graph: CallGraph::None,
        build_ids: false,
        cmdline: vec!["test".into()],
        version: "test".into(),
        ..Options::new(events(selector), targets, Output::File(output.to_owned()))
    }
}

/// A descriptor that ends a session when it is written to.
pub(crate) fn stop_sign() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
}

/// Makes a stop sign readable.
pub(crate) fn raise(sign: &OwnedFd) {
    rustix::io::write(sign, &1u64.to_ne_bytes()).expect("an eventfd takes a number");
}

/// Opens a recording that must open.
pub(crate) fn open(path: &Path) -> Recording {
    let file = File::open(path).expect("the recording is there");
    Recording::open(Arc::new(file), Vec::new()).expect("the recording opens")
}

/// Calls back for each record, kind and whole bytes; the recording must be whole.
pub(crate) fn each_record(recording: &Recording, mut each: impl FnMut(u32, &[u8])) {
    let mut reader = recording.records();
    while let Some(record) = reader.next_record().expect("readable") {
        each(record.header.kind, record.body);
    }
    assert!(reader.problems().is_empty(), "{:?}", reader.problems());
}

/// Calls back for each sample.
pub(crate) fn each_sample(recording: &Recording, mut each: impl FnMut(&Sample<'_>)) {
    let mut reader = recording.records();
    while let Some(record) = reader.next_record().expect("readable") {
        if record.header.kind == abi::PERF_RECORD_SAMPLE {
            let event = recording.events.event_of(&record).expect("a known event");
            let layout = &recording.events.list[event].layout;
            each(&layout.parse(record.header.misc, record.body).expect("a sample"));
        }
    }
}
