//! Sums over the tables.
use crate::query::{RECORDINGS, dataset_of, files_of, fixture, queried, reported, rows, with_samples};
use kymo_dataset::{DatasetFolder, RecordingOptions, Table};
use std::os::unix::fs::PermissionsExt;

/// Checks that self and total of each function, summed over the tables, are those of the report, in
/// samples and in values, to the unit.
#[test]
fn tables_sum_to_the_report() {
    for name in RECORDINGS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dataset = dataset_of(&fixture(name), &folder.path().join("data"), RecordingOptions::default());
        let expected = with_samples(&fixture(name), reported);
        assert!(!expected.is_empty(), "{name}");
        assert_eq!(queried(&dataset), expected, "{name}");
    }
}

/// Checks that a recording makes the same bytes again, and that several recordings in one dataset
/// sum to their reports.
#[test]
fn recordings_add_up_in_one_dataset() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut expected = crate::query::Functions::new();
    for name in ["callgraph.data", "forkexec.data"] {
        with_samples(&fixture(name), |samples| {
            let options = RecordingOptions::default();
            assert_eq!(files_of(samples, options), files_of(samples, options), "{name}");
            for (key, sums) in reported(samples) {
                let all = expected.entry(key).or_default();
                (0..4).for_each(|at| all[at] += sums[at]);
            }
        });
        dataset_of(&fixture(name), folder.path(), RecordingOptions::default());
    }
    let dataset = DatasetFolder::open(folder.path()).expect("a dataset");
    assert_eq!(queried(&dataset), expected);
    assert_eq!(dataset.files(Table::Hosts).expect("a list").len(), 2);
}

/// Checks the columns that a sample has beside its stack, and that files and folders are for their
/// owner only.
#[test]
fn samples_have_their_process_and_service() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = RecordingOptions { service: Some("web/front"), ..RecordingOptions::default() };
    let dataset = dataset_of(&fixture("forkexec.data"), &folder.path().join("data"), options);
    with_samples(&fixture("forkexec.data"), |samples| {
        let threads = samples.profile.threads.iter().map(|thread| (thread.pid, thread.tid));
        let mut expected: Vec<(i32, i32)> = threads.collect();
        let columns = ["pid", "tid", "state", "container"];
        let rows = rows(&dataset, Table::Samples, &columns);
        assert!(rows.iter().all(|row| row[2].as_deref() == Some("on-cpu") && row[3].is_none()));
        let number =
            |text: &Option<String>| text.as_deref().expect("a value").parse::<i32>().expect("a number");
        let mut found: Vec<(i32, i32)> = rows.iter().map(|row| (number(&row[0]), number(&row[1]))).collect();
        expected.sort_unstable();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, expected);
    });
    let mode = |path: &str| {
        let metadata = std::fs::metadata(dataset.path().join(path)).expect("it is there");
        metadata.permissions().mode() & 0o777
    };
    for path in dataset.files(Table::Samples).expect("a list") {
        assert!(path.contains("/service=web_front/"), "{path}");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.rsplit_once('/').expect("a folder").0), 0o700);
    }
}
