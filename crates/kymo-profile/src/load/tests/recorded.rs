//! The same comparison on real recordings.
use super::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings")
}

fn open(path: &Path) -> Recording {
    let file = |path: &Path| -> Arc<dyn kymo_data::ReadAt> {
        Arc::new(std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    };
    if !path.is_dir() {
        return Recording::open(file(path), Vec::new()).expect("a recording");
    }
    let parts = (0..)
        .map(|n| path.join(format!("data.{n}")))
        .take_while(|part| part.exists())
        .map(|part| (part.display().to_string(), file(&part)))
        .collect();
    Recording::open(file(&path.join("data")), parts).expect("a recording")
}

/// Checks that engine and model count every real recording alike: chains, stacks to unwind, groups,
/// tracepoints, compressed, pipe and directory form.
#[test]
fn real_recordings_count_alike() {
    let mut seen = 0;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory())
        .expect("fixtures")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    for path in paths {
        if !path.extension().is_some_and(|e| e == "data" || e == "dir") {
            continue;
        }
        let recording = open(&path);
        let dims = Dims { pid: true, tid: true, cpu: true, ..Dims::default() };
        for (dims, callchains, workers) in [(dims, true, 2), (Dims::default(), false, 3)] {
            let options = LoadOptions { dims, callchains, columns: true, ..LoadOptions::default() };
            eprintln!("{}", path.display());
            check(&recording, &options, 127, workers);
        }
        seen += 1;
    }
    assert!(seen >= 10, "{seen} recordings");
}

/// Checks that the rows of real recordings have the model's counts, with the symbols of this
/// machine's files.
#[test]
fn rows_of_real_recordings() {
    for name in ["callgraph.data", "forkexec.data", "group.data"] {
        let recording = open(&directory().join(name));
        for children in [false, true] {
            let keys = HistOptions::DEFAULT_KEYS.to_vec();
            let hist = HistOptions { keys, children, ..HistOptions::default() };
            let load = LoadOptions { callchains: true, ..LoadOptions::default() };
            for event in 0..recording.events.list.len() {
                let (found, expected) = (
                    rows_by_engine(&recording, event, &load, &hist),
                    rows_by_model(&recording, event, &load, &hist),
                );
                let total = |r: &(Count, Count)| if children { *r } else { (r.0, r.0) };
                let expected: RowCounts = expected.iter().map(|(k, r)| (k.clone(), total(r))).collect();
                assert_eq!(found, expected, "{name}");
            }
        }
    }
}
