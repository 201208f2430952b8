//! Snapshots that are read one after the other: recordings of `fixtures/`, with a window.
use super::*;
use crate::query::{Body, GroupBy, Weight};
use kymo_symbols::SymbolOptions;
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAME: &str = "callgraph.data";

fn source() -> Arc<dyn ReadAt> {
    let path = format!("{}/../../fixtures/recordings/{NAME}", env!("CARGO_MANIFEST_DIR"));
    Arc::new(File::open(path).expect("a fixture"))
}

fn reader(window: Duration, began_ns: u64) -> LiveReader {
    let options = LiveOptions { window, callchains: true, resolve: ResolveOptions::default() };
    LiveReader::new(options, began_ns, |_| SymbolStore::new(SymbolOptions::default()))
}

fn read(reader: &mut LiveReader, taken_ns: u64, complete_since_ns: u64) -> LiveData {
    reader.read(SnapshotInput { source: source(), taken_ns, complete_since_ns }).expect("readable")
}

/// The first and the last time of a sample.
fn times() -> (u64, u64) {
    let live = read(&mut reader(Duration::MAX, 0), 0, 0);
    let times = live.data.columns().time();
    (times[0], times[times.len() - 1])
}

fn samples(live: &LiveData) -> u64 {
    let verb = Verb::Top { group: GroupBy::Functions, count: 3, by: Weight::Own };
    let answers = live.ask_of_each(&verb, &AtomicBool::new(false)).expect("answers");
    let Body::Top(top) = &answers[0].body else { panic!("another answer") };
    assert_eq!((answers.len(), top.period > 0), (1, top.samples > 0));
    top.samples
}

/// Checks L1: a window has the samples of its part of the time, those that come while the snapshot
/// is taken among them; it begins where the recording did, or where the last ring still has all.
#[test]
fn windows() {
    let (first, last) = times();
    let length = last - first;
    let all = samples(&read(&mut reader(Duration::MAX, 0), last, 0));
    let half = Duration::from_nanos(length / 2);
    let live = read(&mut reader(half, 0), last, 0);
    let expected = live.data.columns().time().iter().filter(|time| **time >= last - length / 2).count();
    assert_eq!(samples(&live), expected as u64);
    assert!(samples(&live) > 0 && samples(&live) < all);
    assert_eq!(live.window_ns, (last - length / 2, last));
    assert_eq!(samples(&read(&mut reader(half, 0), last, last - length / 4)), {
        samples(&read(&mut reader(half / 2, 0), last, 0))
    });
    let begun = read(&mut reader(half, last - length / 4), last, 0);
    assert_eq!((begun.window_ns.0, begun.elapsed_ns), (last - length / 4, length / 4));
    // Taken before the end: what comes later counts.
    assert_eq!(samples(&read(&mut reader(Duration::MAX, 0), first, 0)), all);
    // Nothing was sampled for a long time: the events are there, without samples.
    let idle = read(&mut reader(half, 0), last + 10 * length, 0);
    assert_eq!((samples(&idle), idle.events().len()), (0, 1));
}

/// Checks L2 and L3: the store is made once and keeps its modules, but for those that no process
/// maps and files that have changed.
#[test]
fn symbols_are_kept() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let options = LiveOptions { window: Duration::MAX, callchains: true, resolve: ResolveOptions::default() };
    let mut reader = LiveReader::new(options, 0, |_| {
        MADE.fetch_add(1, Ordering::Relaxed);
        SymbolStore::new(SymbolOptions::default())
    });
    let first = read(&mut reader, 0, 0);
    let other = ModuleKey::PerfMap { pid: 1 };
    let (mine, gone) = (first.store.get(&other), ModuleKey::file("/gone".into(), None));
    first.store.get(&gone);
    let kept: Vec<ModuleKey> = reader.files.keys().cloned().collect();
    assert!(!kept.is_empty());
    let before = first.store.get(&kept[0]);
    let second = read(&mut reader, 0, 0);
    assert_eq!(MADE.load(Ordering::Relaxed), 1);
    assert!(Arc::ptr_eq(&first.store, &second.store) && Arc::ptr_eq(&before, &second.store.get(&kept[0])));
    assert!(!Arc::ptr_eq(&mine, &second.store.get(&other)), "names of generated code are read anew");
    assert!(!reader.files.contains_key(&gone));
    // As if it had been written.
    reader.files.insert(kept[0].clone(), (Some((0, 0, 0, 0, 0)), false));
    let third = read(&mut reader, 0, 0);
    assert!(!Arc::ptr_eq(&before, &third.store.get(&kept[0])), "a file that has changed is read anew");
}

/// Checks the table and the line of JSON: hostile names act on no terminal, and a line is one line.
#[test]
fn outputs() {
    let live = read(&mut reader(Duration::MAX, 0), 0, 0);
    let verb = Verb::Top { group: GroupBy::Functions, count: 3, by: Weight::Own };
    let answers = live.ask_of_each(&verb, &AtomicBool::new(false)).expect("answers");
    let (mut text, mut line) = (Vec::new(), Vec::new());
    write_text(&mut text, &live, "\x1b[2J", &answers).expect("written");
    write_json_line(&mut line, &live, 7, &answers).expect("written");
    let (text, line) = (String::from_utf8_lossy(&text), String::from_utf8_lossy(&line));
    assert!(text.contains(" of \\x1b[2J\n") && text.ends_with("\n\n"), "{text}");
    assert_eq!(line.lines().count(), 1);
    let document: serde_json::Value = serde_json::from_str(&line).expect("a document");
    assert_eq!((&document["schema"], &document["unix_ns"]), (&"kymo-top".into(), &7.into()));
}
