//! perf itself as the judge of what is in its recordings.

use crate::fixtures::{FILES, folder, open, read, run};
use kymo_data::abi::*;
use kymo_testing::perf;
use std::collections::BTreeMap;

/// Checks that `perf report --stats` counts the same records of every type as this library.
#[test]
fn same_counts_as_perf() {
    for name in FILES.into_iter().filter(|name| *name != "threads.dir/data").chain(["threads.dir"]) {
        // The statistics of perf 6.1 stop at tracing data in a pipe; see the next test.
        if name == "pipe-tracepoint.data" {
            continue;
        }
        let Some(mut command) = perf("external::same_counts_as_perf") else { return };
        command.args(["report", "--stats", "-i"]).arg(folder().join(name));
        let (said, error) = run(command);
        let mut theirs = BTreeMap::new();
        for line in said.lines().skip_while(|line| !line.contains("Aggregated")).skip(1) {
            let Some((kind, count)) = line.split_once(" events:") else { break };
            let count: u64 = count.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
            theirs.insert(kind.trim().to_owned(), count);
        }
        assert!(!theirs.is_empty(), "{name}: {error}");
        let mut ours: BTreeMap<String, u64> = BTreeMap::new();
        for (_, (kind, _, _)) in read(&open(name), 2).0 {
            let name = match kind {
                PERF_RECORD_HEADER_ATTR => "ATTR",
                PERF_RECORD_HEADER_FEATURE => "FEATURE",
                PERF_RECORD_HEADER_TRACING_DATA => "TRACING_DATA",
                kind => record_name(kind),
            };
            *ours.entry(name.to_owned()).or_default() += 1;
        }
        // Compressed records are counted by perf and not delivered here; their number is not told
        // otherwise.
        let compressed = theirs.remove("COMPRESSED").unwrap_or(0);
        assert_eq!(compressed > 0, name == "compressed.data");
        let total: u64 = ours.values().sum();
        ours.insert("TOTAL".to_owned(), total + compressed);
        assert_eq!(ours, theirs, "{name}");
    }
}

/// Checks that perf script prints as many samples of a pipe with tracing data as this library
/// finds.
#[test]
fn same_samples_as_perf_script_of_a_pipe() {
    let Some(mut command) = perf("external::same_samples_as_perf_script_of_a_pipe") else { return };
    let file = std::fs::File::open(folder().join("pipe-tracepoint.data")).expect("opens");
    command.args(["script", "-i", "-", "-F", "comm,tid,time,event"]).stdin(file);
    let output = command.output().expect("perf runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let ours = read(&open("pipe-tracepoint.data"), 2).0;
    let samples = ours.iter().filter(|(_, record)| record.0 == PERF_RECORD_SAMPLE).count();
    assert_eq!(said.lines().count(), samples, "{said}");
}
