//! Sums of a fleet that was generated.
use crate::arguments::Arguments;
use crate::query::{Functions, fixture, queried, reported, rows, with_samples};
use kymo_dataset::{DatasetFolder, Table};
use std::collections::BTreeSet;

/// Checks that a fleet has the sums of its recordings, as often as they were repeated; that rows
/// are sums of a minute; and that hosts and days are several.
#[test]
fn a_fleet_sums_to_its_recordings() {
    const TIMES: u64 = 20;
    let names = ["callgraph.data", "forkexec.data", "group.data"];
    let (mut expected, mut samples) = (Functions::new(), 0);
    for name in names {
        with_samples(&fixture(name), |of| {
            samples += of.profile.events.iter().map(|event| event.total_samples).sum::<u64>();
            for (key, sums) in reported(of) {
                let all = expected.entry(key).or_default();
                (0..4).for_each(|at| all[at] += TIMES * sums[at]);
            }
        });
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("fleet");
    let recordings = names.map(|name| fixture(name).to_str().expect("a plain name").to_owned());
    let options = ["--hosts", "3", "--days", "2", "--out", out.to_str().expect("a plain name"), "--samples"];
    let words =
        recordings.into_iter().chain(options.map(str::to_owned)).chain([(TIMES * samples).to_string()]);
    let arguments = Arguments::parse(words).expect("words");
    crate::fleet::make(&arguments).expect("made");
    let dataset = DatasetFolder::open(&out).expect("a dataset");
    assert_eq!(queried(&dataset), expected);
    let rows = rows(&dataset, Table::Samples, &["host_id", "tid", "time", "samples"]);
    assert!((rows.len() as u64) < TIMES * samples, "{} rows", rows.len());
    let minute = |text: &Option<String>| text.as_deref().expect("a time").parse::<i64>().expect("a number");
    assert!(rows.iter().all(|row| row[1].is_none() && minute(&row[2]) % 60_000_000 == 0));
    let hosts: BTreeSet<_> = rows.iter().map(|row| row[0].clone()).collect();
    assert_eq!(hosts.len(), 3);
    let days: BTreeSet<i64> = rows.iter().map(|row| minute(&row[2]) / 86_400_000_000).collect();
    assert_eq!(days.len(), 2);
}

/// Checks that a sample of a fleet takes at most twelve bytes, all tables together. What is the
/// same in each sample is paid for once: a short recording of many stacks takes several times as
/// much.
#[test]
fn samples_of_a_fleet_take_twelve_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("fleet");
    let recordings = ["callgraph.data", "forkexec.data", "group.data", "plain.data"];
    let recordings = recordings.map(|name| fixture(name).to_str().expect("a plain name").to_owned());
    let out_path = out.to_str().expect("a plain name");
    let options = ["--hosts", "4", "--days", "1", "--out", out_path, "--samples", "400000"];
    let words = recordings.into_iter().chain(options.map(str::to_owned));
    crate::fleet::make(&Arguments::parse(words).expect("words")).expect("made");
    let dataset = DatasetFolder::open(&out).expect("a dataset");
    let samples: u64 = (rows(&dataset, Table::Samples, &["samples"]).iter())
        .map(|row| row[0].as_deref().expect("a count").parse::<u64>().expect("a number"))
        .sum();
    let files = Table::ALL.iter().flat_map(|table| dataset.files(*table).expect("a list"));
    let size = |path| std::fs::metadata(dataset.path().join(path)).expect("a file").len();
    let bytes: u64 = files.map(size).sum();
    assert!(samples >= 390_000, "{samples} samples");
    assert!(bytes <= 12 * samples, "{bytes} bytes of {samples} samples");
}
