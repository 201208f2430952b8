//! Recordings in memory, one after the other, as `kymo-daemon` makes and reads them.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kymo_data::Recording;
use kymo_perf::machine::Machine;
use kymo_perf::selector;
use kymo_profile::export::{ExportSamples, folded};
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_record::{LiveRecorder, Options, Output, Rate, RecordingPlan, Session, TargetSpec};
use kymo_symbols::{SymbolOptions, SymbolStore};

use super::{Place, right, started, unidentified, wrong};
use crate::tools::{Need, ready};

/// The functions of an interval as folded stacks.
fn names(file: fs::File, symbols: &SymbolStore) -> String {
    let recording = Recording::open(Arc::new(file), Vec::new()).expect("a recording");
    let load = LoadOptions { columns: true, ..LoadOptions::default() };
    let profile = Profile::open(&recording, &load, ResolveOptions::default(), symbols, &|_, _, _| {});
    let profile = profile.expect("it can be read");
    let samples = ExportSamples::of_profile(&recording, &profile, symbols, "test");
    let mut text = Vec::new();
    for event in &samples.profile.events {
        folded(&samples.profile, event, &mut text).expect("written");
    }
    String::from_utf8(text).expect("text")
}

/// Checks the names of intervals of a program that was replaced before the recording began, and has
/// ended when an interval is read.
#[test]
fn replaced_programs() {
    if !ready("mapped_files::intervals::replaced_programs", &[Need::Root, Need::Program("cc")]) {
        return;
    }
    for (name, program) in [("interval", right()), ("interval-unidentified", unidentified())] {
        let place = Place::new(name);
        let path = place.copy(&program, "prog");
        let running = started(&mut Command::new(&path));
        fs::rename(place.copy(&wrong(), "new"), &path).expect("replaced");
        let pid = running.pid().parse().expect("a number");
        let groups = selector::parse("cpu-clock:u").expect("an event");
        let events = selector::resolve(&groups, &Machine::here()).expect("every machine has it");
        let targets = TargetSpec { pids: vec![pid], ..TargetSpec::default() };
        let options = Options { rate: Rate::Frequency(499), ..Options::new(events, targets, Output::Memory) };
        let plan = RecordingPlan::resolve(LiveRecorder::prepare_complete(options)).expect("a plan");
        let session = Session::start(plan).expect("it is permitted");
        let (recorder, files) = LiveRecorder::start(session).expect("threads");
        std::thread::sleep(Duration::from_millis(600));
        recorder.ask();
        let first = files.recv().expect("the first interval").file;
        std::thread::sleep(Duration::from_millis(300));
        drop(running);
        recorder.stop().expect("it recorded");
        let last = files.recv().expect("the last interval").file;
        let symbols = SymbolStore::new(SymbolOptions::default());
        for found in [names(first, &symbols), names(last, &symbols)] {
            assert!(found.contains("work") && !found.contains("travail"), "{name}: {found}");
            assert!(!found.contains("oeuf"), "{name}: {found}");
        }
    }
}
