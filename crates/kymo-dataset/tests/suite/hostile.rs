//! Files that are damaged, or that other programs wrote.
use crate::query::{files_of, fixture, with_samples};
use kymo_dataset::{DatasetError, DatasetFile, DatasetFolder, RecordingOptions, Table, TableReader};
use proptest::prelude::*;
use std::sync::LazyLock;

static FILES: LazyLock<Vec<DatasetFile>> = LazyLock::new(|| {
    with_samples(&fixture("callgraph.data"), |samples| files_of(samples, RecordingOptions::default()))
});

fn file(table: Table) -> &'static DatasetFile {
    FILES.iter().find(|file| file.table == table).expect("a file of each table")
}

/// Reads all columns of all types of a file.
fn read_all(bytes: Vec<u8>, table: Table) -> Result<usize, DatasetError> {
    let reader = TableReader::of_bytes("x.parquet", bytes.into(), table)?;
    let mut values = 0;
    for column in ["location_id", "stack_id", "address", "time", "value"] {
        values += reader.int64(column).map_or(0, |values| values.len());
    }
    for column in ["inline_depth", "depth", "line", "pid", "tid"] {
        values += reader.int32(column).map_or(0, |values| values.len());
    }
    for column in ["function", "file", "module", "build_id", "kind", "command", "event"] {
        values += reader.text(column).map_or(0, |values| values.len());
    }
    Ok(values)
}

/// Checks that each file, cut anywhere, is one sentence.
#[test]
fn truncated_files_are_refused() {
    let whole = &file(Table::Frames).bytes;
    assert!(read_all(whole.clone(), Table::Frames).expect("readable") > 0);
    for length in (0..whole.len()).step_by(whole.len() / 50 + 1).chain([whole.len() - 1]) {
        let error = read_all(whole[..length].to_vec(), Table::Frames).expect_err("it is cut");
        let sentence = error.to_string();
        assert!(sentence.starts_with("x.parquet is no whole Parquet file"), "{sentence}");
    }
}

/// Checks that files of other tables, and columns of other types, are refused by name.
#[test]
fn other_tables_and_types_are_refused() {
    let hosts = file(Table::Hosts);
    let error = read_all(hosts.bytes.clone(), Table::Frames).expect_err("another table").to_string();
    assert_eq!(error, "x.parquet lies in frames/ and is a file of `hosts`");
    let frames = file(Table::Frames).bytes.clone();
    let reader = TableReader::of_bytes("x.parquet", frames.into(), Table::Frames).expect("readable");
    for error in [reader.int32("location_id").err(), reader.int64("no_such").err(), reader.text("line").err()]
    {
        let sentence = error.expect("another type").to_string();
        assert!(sentence.starts_with("x.parquet has no column `"), "{sentence}");
    }
}

/// Checks that a dataset of another version, and a folder of other files, are refused.
#[test]
fn other_versions_and_folders_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("notes.txt"), "mine").expect("written");
    let error = DatasetFolder::open_or_create(folder.path()).expect_err("other files").to_string();
    assert!(error.ends_with("is no dataset of kymo: it has no files in hosts/"), "{error}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dataset = DatasetFolder::open_or_create(folder.path()).expect("an empty folder");
    let mut hosts = file(Table::Hosts).clone();
    // The version is a text of one digit behind its key.
    let key = b"kymo.schema";
    let at = hosts.bytes.windows(key.len()).position(|bytes| bytes == key).expect("the key");
    let digit = at + key.len() + hosts.bytes[at + key.len()..].iter().position(|b| *b == b'1').expect("1");
    hosts.bytes[digit] = b'7';
    dataset.put(&hosts).expect("put");
    let error = DatasetFolder::open_or_create(folder.path()).expect_err("another version").to_string();
    assert!(error.contains("has version 7 of the dataset's layout"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that bytes changed anywhere give values or a sentence.
    #[test]
    fn changed_bytes_never_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), any::<bool>()), 1..8),
        table in 0..5_usize,
    ) {
        let table = Table::ALL[table];
        let mut bytes = file(table).bytes.clone();
        for (index, value, at_end) in changes {
            // Most of what the library believes is in the last part.
            let tail = bytes.len().min(2000);
            let place = if at_end { bytes.len() - 1 - index.index(tail) } else { index.index(bytes.len()) };
            bytes[place] = value;
        }
        if let Err(error) = read_all(bytes, table) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
