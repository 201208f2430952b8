//! Names that are found after samples were written.
use crate::query::{dataset_of, fixture, queried, rows};
use kymo_dataset::{RecordingOptions, Table, symbolize};
use kymo_symbols::SymbolOptions;

const LATER: RecordingOptions<'_> =
    RecordingOptions { host_identity: None, service: None, without_symbols: true };

/// Checks that files that are not here leave functions without names, and that the dataset stays
/// as it is.
#[test]
fn files_that_are_gone_leave_no_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dataset = dataset_of(&fixture("callgraph.data"), &folder.path().join("data"), LATER);
    let before = rows(&dataset, Table::Frames, &["location_id", "function"]);
    let options = SymbolOptions {
        symfs: Some(folder.path().join("no such folder")),
        buildid_dir: Some(folder.path().join("none")),
        ..SymbolOptions::default()
    };
    let done = symbolize(&dataset, options).expect("symbolized");
    assert!(done.unnamed > 0 && done.builds > 0);
    assert_eq!(done.files_replaced > 0, done.named > 0);
    if done.named == 0 {
        assert_eq!(rows(&dataset, Table::Frames, &["location_id", "function"]), before);
    }
    assert!(!queried(&dataset).is_empty());
}
