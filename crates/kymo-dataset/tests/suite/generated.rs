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
