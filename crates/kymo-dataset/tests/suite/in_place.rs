//! A dataset that is compacted in place, while it is written and read.
use crate::memory_store::{MemoryStore, State};
use kymo_dataset::rows::ON_CPU;
use kymo_dataset::{
    CompactOptions, Compacted, DatasetError, DatasetFolder, DatasetStore, DatasetWriter, EventRow, FrameKind,
    FrameRow, HostRow, LocationRow, ProcessRow, SampleValue, Table, TableReader, compact, compact_in_place,
    is_merged, live_files,
};
use std::collections::{BTreeMap, BTreeSet};

/// 2026-11-26 08:00 UTC.
const START_NS: i64 = 1_795_680_000_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;

/// Sums of values by minute and service: what a reader counts.
type Sums = BTreeMap<(i64, String), i64>;

/// Puts what a daemon writes in a minute: samples last.
fn put_minute(store: &dyn DatasetStore, host: &str, minute: i64) {
    for file in minute_files(host, minute) {
        store.put(&file).expect("put");
    }
}

fn minute_files(host: &str, minute: i64) -> Vec<kymo_dataset::DatasetFile> {
    let start_ns = START_NS + minute * MINUTE_NS;
    let row = HostRow { host: host.to_owned(), first_seen_ns: start_ns, ..HostRow::default() };
    let mut writer = DatasetWriter::new(row, start_ns, 0);
    let frames = [FrameRow { function: Some("main"), file: None, line: None }];
    let (build_id, kind) = (Some("ab"), FrameKind::User);
    let main = writer.location(&LocationRow { module: "web", build_id, address: 16, kind, frames: &frames });
    let stack = writer.stack(&[main]);
    let event = EventRow { event: "cpu-clock", value_unit: "ns", state: ON_CPU, waker: None };
    let event = writer.event(&event);
    for (pid, command) in [(1, "web"), (2, "db")] {
        let process = writer.process(&ProcessRow { pid, command, ..ProcessRow::default() });
        let value = 1000 + minute * 7 + i64::from(pid) + host.len() as i64;
        let value = SampleValue { time_ns: start_ns, value, samples: 1 };
        writer.sample(process, event, stack, value).expect("a sample");
    }
    writer.finish().expect("files")
}

fn add(sums: &mut Sums, path: &str, bytes: bytes::Bytes) {
    let reader = TableReader::of_bytes(path, bytes, Table::Samples).expect("samples");
    let service = path.split('/').nth(2).expect("a service").to_owned();
    let (time, value) = (reader.int64("time").expect("times"), reader.int64("value").expect("values"));
    for (time, value) in time.into_iter().flatten().zip(value.into_iter().flatten()) {
        *sums.entry((time, service.clone())).or_default() += value;
    }
}

/// What a reader counts, or that a file went away while it read.
fn read(store: &dyn DatasetStore) -> Result<Sums, DatasetError> {
    let mut sums = Sums::new();
    for file in live_files(store, Table::Samples)? {
        add(&mut sums, &file.path, store.read(&file.path, 0..file.bytes)?);
    }
    Ok(sums)
}

/// A dataset of some minutes of two hosts, and its sums.
fn dataset(minutes: std::ops::Range<i64>) -> (MemoryStore, Sums) {
    let store = MemoryStore::default();
    for minute in minutes {
        put_minute(&store, "a", minute);
        put_minute(&store, "host-b", minute);
    }
    let sums = read(&store).expect("sums");
    assert!(!sums.is_empty());
    (store, sums)
}

fn run(store: &dyn DatasetStore) -> Result<Compacted, DatasetError> {
    compact_in_place(store, &CompactOptions::default())
}

/// One file in each folder, and all rows counted once.
fn assert_compact(store: &MemoryStore, sums: &Sums) {
    assert_eq!(&read(store).expect("sums"), sums);
    let folders: Vec<String> =
        (store.state().keys()).map(|path| path.rsplit_once('/').expect("a folder").0.to_owned()).collect();
    assert_eq!(folders.len(), folders.iter().collect::<BTreeSet<_>>().len(), "{folders:?}");
}

/// Checks that each folder has one file afterwards, that a second run changes nothing, and that new
/// minutes are taken in.
#[test]
fn in_place_many_files_become_one() {
    let (store, sums) = dataset(0..5);
    let done = run(&store).expect("compacted");
    assert_eq!((done.rows, done.new_files), (20, 6));
    assert_compact(&store, &sums);
    assert!(store.state().keys().all(|path| is_merged(path.rsplit('/').next().expect("a name"))));
    let before = store.state();
    assert_eq!(run(&store).expect("compacted").new_files, 0);
    assert_eq!(store.state(), before);
    put_minute(&store, "a", 7);
    let sums = read(&store).expect("sums");
    run(&store).expect("compacted");
    assert_compact(&store, &sums);
    assert_eq!(run(&store).expect("compacted").new_files, 0);
}

/// Checks every point at which a compactor can be killed: readers count each row once then, and
/// after the next run, which finishes it.
#[test]
fn in_place_a_kill_at_any_step_loses_nothing() {
    let (whole, sums) = dataset(0..3);
    run(&whole).expect("compacted");
    let steps = whole.steps();
    let (mut killed, mut with_replaced) = (0, 0);
    for step in 0..steps {
        let (store, _) = dataset(0..3);
        store.kill_at(store.steps() + step);
        if run(&store).is_err() {
            killed += 1;
        }
        store.revive();
        assert_eq!(read(&store).expect("sums"), sums, "killed at step {step}");
        with_replaced += usize::from(store.state().keys().any(|path| {
            let live = live_files(&store, Table::Samples).expect("files");
            path.starts_with("samples") && live.iter().all(|file| file.path != *path)
        }));
        run(&store).expect("the next one");
        assert_compact(&store, &sums);
    }
    assert!(killed > 30 && with_replaced > 5, "{killed} kills, {with_replaced} between PUT and DELETE");
}

/// Checks readers that list page by page while a compactor works: whatever the moments of the
/// pages, they count each row once or miss a file that they wanted to read.
#[test]
fn in_place_lists_that_take_long_are_right() {
    let (store, mut sums) = dataset(0..3);
    store.record();
    run(&store).expect("compacted");
    put_minute(&store, "a", 9);
    run(&store).expect("compacted");
    let states = store.recorded();
    let names: BTreeSet<String> = states.iter().flat_map(State::keys).cloned().collect();
    let samples: Vec<&String> = names.iter().filter(|name| name.starts_with("samples")).collect();
    let last = read(&store).expect("sums");
    let new: Sums =
        last.iter().filter(|(key, _)| !sums.contains_key(key)).map(|(k, v)| (k.clone(), *v)).collect();
    assert_eq!(new.len(), 2);
    let mut counted = 0;
    for first in 0..states.len() {
        for second in first..states.len() {
            for pivot in &samples {
                let early = states[first].range(..(*pivot).clone());
                let late = states[second].range((*pivot).clone()..);
                let list = early.chain(late).map(|(path, bytes)| (path.clone(), bytes.clone())).collect();
                // Files are read after the list was made.
                let reader = MemoryStore::of(states[second].clone()).with_list(list);
                match read(&reader) {
                    Ok(mut found) => {
                        new.keys().for_each(|key| _ = found.remove(key));
                        assert_eq!(found, sums, "{first} {second} {pivot}");
                        counted += 1;
                    }
                    Err(error) => assert!(error.is_not_found(), "{error}"),
                }
            }
        }
    }
    assert!(counted > 1000, "{counted}");
    sums.extend(new);
    assert_eq!(last, sums);
}

/// Checks two and three compactors: one stops at any step, others work meanwhile on what it has
/// seen and on new files, and it goes on.
#[test]
fn in_place_compactors_do_not_count_twice() {
    for others in 1..=3 {
        for stop in 0.. {
            let (store, mut sums) = dataset(0..3);
            let met = store.stop_at(store.steps() + stop, move |store| {
                for other in 0..others {
                    put_minute(store, "late", 20 + other);
                    run(store).expect("another compactor");
                }
            });
            run(&store).expect("compacted");
            if !met.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(stop > 50, "{stop} steps");
                break;
            }
            let (late, _) = (MemoryStore::default(), ());
            (0..others).for_each(|other| put_minute(&late, "late", 20 + other));
            sums.extend(read(&late).expect("sums"));
            assert_eq!(read(&store).expect("sums"), sums, "{others} others at step {stop}");
            run(&store).expect("the last one");
            assert_compact(&store, &sums);
        }
    }
}

/// Checks that files which a daemon puts again, because it did not hear that they were taken, are
/// not counted again, and go.
#[test]
fn in_place_files_that_come_again_do_not_count() {
    let (store, sums) = dataset(0..4);
    for _ in 0..3 {
        run(&store).expect("compacted");
        put_minute(&store, "a", 2);
        assert_eq!(read(&store).expect("sums"), sums);
        put_minute(&store, "later", 9);
        run(&store).expect("compacted");
        put_minute(&store, "later", 9);
        let both = read(&store).expect("sums");
        assert_eq!(both.len(), sums.len() + 2);
        run(&store).expect("compacted");
        assert_compact(&store, &both);
        let (again, _) = dataset(0..4);
        store.replace_all(again.state());
    }
}

/// Checks that a folder is compacted in place as a store is, that readers of it list each row once,
/// and that a new dataset can be made of it while files wait to be removed.
#[test]
fn in_place_folders_are_stores() {
    let (store, sums) = dataset(0..4);
    let target = tempfile::tempdir().expect("a folder");
    let folder = DatasetFolder::open_or_create(&target.path().join("d")).expect("a dataset");
    for file in store.state() {
        let table = Table::ALL.into_iter().find(|table| file.0.starts_with(table.name())).expect("a table");
        let file = kymo_dataset::DatasetFile { table, path: file.0, bytes: file.1.to_vec() };
        DatasetStore::put(&folder, &file).expect("put");
    }
    assert_eq!(read(&folder).expect("sums"), sums);
    assert_eq!(run(&folder).expect("compacted").new_files, 6);
    assert_eq!(DatasetStore::files(&folder, "samples").expect("files").len(), 2);
    put_minute(&folder, "a", 1);
    assert_eq!(read(&folder).expect("sums"), sums);
    let new = target.path().join("new");
    compact(&folder, &new, &CompactOptions::default()).expect("a new one");
    assert_eq!(read(&DatasetFolder::open(&new).expect("a dataset")).expect("sums"), sums);
    let file = minute_files("a", 1).remove(0);
    assert!(!folder.create(&file).expect("a list"), "it is there");
}
