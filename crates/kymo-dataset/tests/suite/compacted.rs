//! A dataset in fewer files.
use crate::arguments::Arguments;
use crate::query::{fixture, queried, rows};
use kymo_dataset::{CompactOptions, DatasetError, DatasetFolder, Table, compact};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// A dataset of three hosts and two days, with a set of files for each of them.
fn fleet() -> (TempDir, DatasetFolder) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("fleet");
    let recordings = ["callgraph.data", "forkexec.data", "group.data", "kymo/waits.data"];
    let recordings = recordings.map(|name| fixture(name).to_str().expect("a plain name").to_owned());
    let options = ["--hosts", "3", "--days", "2", "--samples", "40000", "--out"];
    let words = recordings.into_iter().chain(options.map(str::to_owned));
    let words = words.chain([out.to_str().expect("a plain name").to_owned()]);
    crate::fleet::make(&Arguments::parse(words).expect("words")).expect("made");
    let dataset = DatasetFolder::open(&out).expect("a dataset");
    (folder, dataset)
}

const SAMPLES: [&str; 16] = [
    "time",
    "host_id",
    "pid",
    "tid",
    "command",
    "container",
    "pod",
    "systemd_unit",
    "event",
    "value_unit",
    "state",
    "stack_id",
    "value",
    "samples",
    "leaf_location_id",
    "waker",
];

fn sorted(dataset: &DatasetFolder, table: Table, columns: &[&str]) -> Vec<Vec<Option<String>>> {
    let mut rows = rows(dataset, table, columns);
    rows.sort();
    rows
}

/// The names of a folder, hidden ones too.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Checks that the new dataset has all rows of samples and the distinct rows of the other tables,
/// in a file for each day and service; and that the old one is as it was.
#[test]
fn the_same_rows_in_fewer_files() {
    let (folder, old) = fleet();
    let before = sorted(&old, Table::Samples, &SAMPLES);
    let sums = queried(&old);
    let new = folder.path().join("compact");
    let done = compact(&old, &new, &CompactOptions::default()).expect("compacted");
    assert_eq!(names(folder.path()), ["compact", "fleet"].map(str::to_owned).into());

    let compacted = DatasetFolder::open(&new).expect("a dataset");
    assert!(sorted(&compacted, Table::Samples, &SAMPLES) == before, "the rows differ");
    assert!(sorted(&old, Table::Samples, &SAMPLES) == before, "the old rows have changed");
    assert_eq!(queried(&compacted), sums);
    assert_eq!(done.rows as usize, before.len());
    assert!(before.iter().any(|row| row[15].as_deref() == Some("sort")), "there are wakers");
    for (table, columns) in [
        (Table::Stacks, &["stack_id", "depth", "location_id"][..]),
        (
            Table::Frames,
            &["location_id", "inline_depth", "function", "file", "line", "module", "address", "kind"],
        ),
        (Table::Builds, &["build_id", "path", "module", "arch", "code_bias"]),
        (Table::Hosts, &["host_id", "host", "kernel", "arch", "cpus"]),
    ] {
        let mut distinct = sorted(&old, table, columns);
        distinct.dedup();
        let found = sorted(&compacted, table, columns);
        let days = if table == Table::Stacks { 2 } else { 1 };
        assert!(found.len() <= days * distinct.len(), "{}: {} rows", table.name(), found.len());
        let found: BTreeSet<_> = found.into_iter().collect();
        assert!(found == distinct.into_iter().collect(), "{} differ", table.name());
    }
    let partitions = |dataset: &DatasetFolder| -> BTreeMap<String, usize> {
        let mut files = BTreeMap::new();
        for file in dataset.files(Table::Samples).expect("a list") {
            let (folder, _) = file.rsplit_once('/').expect("a partition");
            *files.entry(folder.to_owned()).or_default() += 1;
        }
        files
    };
    let (of_old, of_new) = (partitions(&old), partitions(&compacted));
    assert!(of_old.keys().eq(of_new.keys()) && of_old.values().any(|files| *files > 1), "{of_old:?}");
    assert!(of_new.values().all(|files| *files == 1), "{of_new:?}");
    assert!(done.new_files < done.old_files && done.new_bytes < done.old_bytes, "{done:?}");

    // Again, of what is compact already.
    let again = folder.path().join("again");
    let twice = compact(&compacted, &again, &CompactOptions::default()).expect("compacted");
    assert_eq!((twice.rows, twice.new_files), (done.rows, done.new_files));
    assert!(sorted(&DatasetFolder::open(&again).expect("a dataset"), Table::Samples, &SAMPLES) == before);
}

/// Checks that a day's rows are taken alone, and that a day without rows is said.
#[test]
fn one_day_alone() {
    let (folder, old) = fleet();
    let days: BTreeSet<String> = (old.files(Table::Stacks).expect("a list").iter())
        .filter_map(|file| Some(file.split('/').nth(1)?.strip_prefix("day=")?.to_owned()))
        .collect();
    let day = days.first().expect("a day").clone();
    let of_day = |days| CompactOptions { days: BTreeSet::from([days]), ..CompactOptions::default() };
    let new = folder.path().join("compact");
    compact(&old, &new, &of_day(day.clone())).expect("compacted");
    let compacted = DatasetFolder::open(&new).expect("a dataset");
    let files = compacted.files(Table::Samples).expect("a list");
    assert!(!files.is_empty() && files.iter().all(|file| file.contains(&format!("day={day}/"))), "{files:?}");
    let refused = compact(&old, &folder.path().join("no"), &of_day("1999-01-01".to_owned()));
    assert!(refused.expect_err("no such day").to_string().ends_with("has no samples of the day 1999-01-01"));
    assert!(!folder.path().join("no").exists());
}

/// Checks that nothing is left of what could not be done: of a file that is cut, of an
/// interruption, and where there is something already.
#[test]
fn failures_leave_nothing() {
    let (folder, old) = fleet();
    let new = folder.path().join("compact");
    let refused = |options: &CompactOptions<'_>| -> DatasetError {
        let error = compact(&old, &new, options).expect_err("refused");
        assert_eq!(names(folder.path()), BTreeSet::from(["fleet".to_owned()]));
        error
    };
    let cancel = AtomicBool::new(true);
    let interrupted = CompactOptions { cancel: Some(&cancel), ..CompactOptions::default() };
    assert_eq!(refused(&interrupted).to_string(), "it was interrupted");
    let last = old.files(Table::Samples).expect("a list").pop().expect("a file");
    let path = old.path().join(last);
    let whole = fs::read(&path).expect("a file");
    fs::write(&path, &whole[..whole.len() / 2]).expect("cut");
    assert!(refused(&CompactOptions::default()).to_string().contains("is no whole Parquet file"));
    fs::write(&path, &whole).expect("whole again");
    fs::create_dir(&new).expect("a folder");
    fs::write(new.join("mine"), "of the user").expect("a file");
    let exists = compact(&old, &new, &CompactOptions::default()).expect_err("it exists").to_string();
    assert!(exists.contains("exists already"), "{exists}");
    assert_eq!(names(&new), BTreeSet::from(["mine".to_owned()]));
}
