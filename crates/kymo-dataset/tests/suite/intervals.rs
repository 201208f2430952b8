//! Rows of a daemon: the sums of an interval.
use crate::query::{RECORDINGS, fixture, queried, reported, rows, with_samples, with_waits};
use kymo_dataset::{DatasetFolder, ProcessNames, RecordingOptions, RecordingRows, SummedFiles, Table};
use kymo_profile::export::ExportSamples;
use kymo_profile::wall::State;
use kymo_symbols::SymbolOptions;
use std::collections::BTreeMap;
use std::path::Path;

const START_NS: i64 = 1_795_737_600_000_000_000;

fn summed(samples: &ExportSamples<'_>, names: &ProcessNames) -> SummedFiles {
    let rows = RecordingRows::new(samples, RecordingOptions::default(), &SymbolOptions::default());
    rows.into_sums(START_NS, &|_, _| names.clone()).expect("files")
}

fn put(files: &SummedFiles, folder: &Path) -> DatasetFolder {
    let dataset = DatasetFolder::open_or_create(folder).expect("a folder");
    files.files.iter().for_each(|file| dataset.put(file).expect("put"));
    dataset
}

/// Checks that rows sum to what the report of the same recording says of each function, in samples
/// and in values, and that samples which differ in moment and thread only are one row.
#[test]
fn sums_of_an_interval_are_those_of_the_report() {
    let (mut all_rows, mut all_samples) = (0, 0);
    for name in RECORDINGS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        with_samples(&fixture(name), |samples| {
            let files = summed(samples, &ProcessNames::default());
            let dataset = put(&files, &folder.path().join("data"));
            assert_eq!(queried(&dataset), reported(samples), "{name}");
            assert_eq!(files.samples, samples.by_time().count() as u64, "{name}");
            let rows = rows(&dataset, Table::Samples, &["time", "tid"]);
            assert_eq!(rows.len() as u64, files.rows, "{name}");
            all_rows += files.rows;
            all_samples += files.samples;
            let start_us = (START_NS / 1000).to_string();
            assert!(rows.iter().all(|row| row[0].as_ref() == Some(&start_us) && row[1].is_none()), "{name}");
        });
    }
    assert!(all_rows < all_samples, "{all_rows} rows of {all_samples} samples");
}

/// Checks that the time off the CPU has its states and wakers: by state it is that of the threads,
/// to the nanosecond; and that the time on a CPU is there once, as the samples have it.
#[test]
fn waits_have_states_and_wakers() {
    const COLUMNS: [&str; 6] = ["event", "state", "command", "waker", "value", "samples"];
    let folder = tempfile::tempdir().expect("a temporary folder");
    with_waits(&fixture("kymo/waits.data"), |profile, wall, [samples, spans]| {
        let (options, symbols) = (RecordingOptions::default(), SymbolOptions::default());
        let all = || RecordingRows::new(samples, options, &symbols).with_waits(spans, &symbols);
        let files = all().into_sums(START_NS, &|_, _| ProcessNames::default()).expect("files");
        let summed = put(&files, &folder.path().join("sums"));
        let single = all().into_files().expect("files");
        let single = put(&SummedFiles { files: single, ..files.clone() }, &folder.path().join("single"));
        for dataset in [summed, single] {
            let (mut on_cpu, mut waits, mut count) = (0, BTreeMap::new(), 0);
            let mut wakers: BTreeMap<(String, Option<String>), u64> = BTreeMap::new();
            for row in rows(&dataset, Table::Samples, &COLUMNS) {
                let [event, state, command, waker, value, samples] = row.try_into().expect("six columns");
                let value: u64 = value.expect("a value").parse().expect("a number");
                count += samples.expect("a count").parse::<u64>().expect("a number");
                match (event.expect("an event").as_str(), state.expect("a state")) {
                    ("cpu-clock", state) => {
                        assert_eq!((state.as_str(), waker), ("on-cpu", None));
                        on_cpu += value;
                    }
                    ("offcpu-time", state) => {
                        let state = state.strip_prefix("idle: ").unwrap_or(&state).to_owned();
                        *waits.entry(state).or_default() += value;
                        *wakers.entry((command.expect("a command"), waker)).or_default() += value;
                    }
                    (event, _) => panic!("a row of {event}"),
                }
            }
            assert_eq!(on_cpu, profile.loaded.totals[0].period);
            let mut expected: BTreeMap<String, u64> = BTreeMap::new();
            for (thread, state) in
                wall.threads().iter().flat_map(|thread| State::ALL.map(|state| (thread, state)))
            {
                if state != State::Running && thread.in_state(state) > 0 {
                    *expected.entry(state.name().to_owned()).or_default() += thread.in_state(state);
                }
            }
            assert_eq!(waits, expected);
            assert_eq!(count, files.samples);
            let most = |of: &str| {
                let of_command =
                    wakers.iter().filter(|((command, waker), _)| command == of && waker.is_some());
                of_command.max_by_key(|(_, time)| **time).and_then(|((_, waker), _)| waker.clone())
            };
            assert_eq!(most("sort").as_deref(), Some("sh"), "{wakers:?}");
            assert_eq!(most("cat").as_deref(), Some("sort"), "{wakers:?}");
        }
    });
}

/// Checks that the names of a process reach its rows and the place of its file, hostile ones as
/// plain text.
#[test]
fn hostile_names_of_units_are_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let hostile = "../../etc'; DROP TABLE samples; --\n";
    let names = ProcessNames { systemd_unit: Some(hostile.into()), ..ProcessNames::default() };
    let files = with_samples(&fixture("callgraph.data"), |samples| summed(samples, &names));
    let dataset = put(&files, &folder.path().join("data"));
    let paths = dataset.files(Table::Samples).expect("a list");
    let service = paths[0].split('/').nth(2).expect("three names");
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "=._-@".contains(c);
    assert!(service.starts_with("service=") && service.chars().all(is_safe), "{service}");
    let units = rows(&dataset, Table::Samples, &["systemd_unit"]);
    assert!(units.iter().all(|row| row[0].as_deref() == Some(hostile)));
}

/// Checks that an identity makes another id of the host, and leaves its name.
#[test]
fn an_identity_tells_hosts_of_one_name_apart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for identity in [Some("machine-id 1"), Some("machine-id 2"), None] {
        with_samples(&fixture("callgraph.data"), |samples| {
            let options = RecordingOptions { host_identity: identity, ..RecordingOptions::default() };
            let rows = RecordingRows::new(samples, options, &SymbolOptions::default());
            let files = rows.into_sums(START_NS, &|_, _| ProcessNames::default()).expect("files");
            put(&files, folder.path());
        });
    }
    let dataset = DatasetFolder::open(folder.path()).expect("a dataset");
    let mut hosts = rows(&dataset, Table::Hosts, &["host_id", "host"]);
    hosts.sort();
    hosts.dedup();
    assert_eq!(hosts.len(), 3);
    assert!(hosts.iter().all(|row| row[1] == hosts[0][1]));
}
