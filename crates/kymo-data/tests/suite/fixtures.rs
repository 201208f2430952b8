//! The recordings under fixtures/recordings, and the perf program if there is one.

use kymo_data::{Chunk, OpenError, ReadAt, ReadSummary, Recording};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Single-file recordings.
pub(crate) const FILES: [&str; 12] = [
    "plain.data",
    "callgraph.data",
    "dwarf.data",
    "compressed.data",
    "group.data",
    "tracepoint.data",
    "switch.data",
    "forkexec.data",
    "clock.data",
    "pipe.data",
    "pipe-tracepoint.data",
    "threads.dir/data",
];

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings")
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn open_bytes(bytes: Vec<u8>) -> Result<Recording, OpenError> {
    Recording::open(Arc::new(bytes), Vec::new())
}

/// Opens a fixture by name; `threads.dir` is a directory.
pub(crate) fn open(name: &str) -> Recording {
    if name != "threads.dir" {
        return open_bytes(bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let parts = ["data.0", "data.1"].map(|part| {
        let source: Arc<dyn ReadAt> = Arc::new(bytes(&format!("threads.dir/{part}")));
        (part.to_owned(), source)
    });
    Recording::open(Arc::new(bytes("threads.dir/data")), parts.into()).expect("the directory opens")
}

/// A record as a test compares it.
pub(crate) type Owned = (u32, u16, Vec<u8>);

/// All records by `read_parallel`, ordered by position.
pub(crate) fn read(recording: &Recording, threads: usize) -> (Vec<(u64, Owned)>, ReadSummary) {
    let (parts, summary) = recording
        .read_parallel(
            threads,
            Vec::new,
            |out: &mut Vec<(u64, Owned)>, chunk: &Chunk| {
                for record in chunk.records() {
                    let record = record.expect("chunks hold whole records");
                    let header = record.header;
                    out.push((record.position, (header.kind, header.misc, record.body.to_vec())));
                }
            },
            &|_, _| {},
        )
        .expect("memory can be read");
    let mut all: Vec<_> = parts.into_iter().flatten().collect();
    all.sort();
    (all, summary)
}

/// The perf program; `None`, said loudly, where there is none.
pub(crate) fn perf(test: &str) -> Option<Command> {
    let works = Command::new("perf").arg("--version").output().is_ok_and(|output| output.status.success());
    if !works {
        kymo_testing::skip(test, "no perf program; install linux-perf");
        return None;
    }
    Some(Command::new("perf"))
}

/// Runs perf and returns what it says on stdout and on stderr.
pub(crate) fn run(mut command: Command) -> (String, String) {
    // Standard input is no terminal and no pipe: perf would read a pipe as a recording.
    let output = command.stdin(std::process::Stdio::null()).output().expect("perf runs");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
