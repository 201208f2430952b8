//! The recordings under fixtures/recordings, and what perf needs to read them on any machine.

use kymo_data::{Attr, Chunk, OpenError, Problem, RawRecord, ReadAt, ReadSummary, Recording, build};
use std::fmt::Write as _;
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

/// The start of a pipe recording with one event, whose samples have this type.
pub(crate) fn pipe_of(sample_type: u64) -> Vec<u8> {
    let attr = Attr { sample_type, ..Attr::default() };
    [b"PERFILE2".as_slice(), &16u64.to_le_bytes(), &build::header_attr(&attr, &[])].concat()
}

/// The word at a place of a file, as an offset or a size.
pub(crate) fn word(file: &[u8], at: usize) -> usize {
    u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes")) as usize
}

/// A record as a test compares it.
pub(crate) type Owned = (u32, u16, Vec<u8>);

fn owned(record: &RawRecord<'_>) -> (u64, Owned) {
    (record.position, (record.header.kind, record.header.misc, record.body.to_vec()))
}

/// Calls `each` with every record, one by one; returns the damage that was found.
pub(crate) fn each_record(recording: &Recording, mut each: impl FnMut(&RawRecord<'_>)) -> Vec<Problem> {
    let mut reader = recording.records();
    while let Some(record) = reader.next_record().expect("memory can be read") {
        each(&record);
    }
    reader.problems().to_vec()
}

/// All records, one by one, and the damage that was found.
pub(crate) fn one_by_one(recording: &Recording) -> (Vec<(u64, Owned)>, Vec<Problem>) {
    let mut records = Vec::new();
    let problems = each_record(recording, |record| records.push(owned(record)));
    (records, problems)
}

/// All records by `read_parallel`, ordered by position.
pub(crate) fn read(recording: &Recording, threads: usize) -> (Vec<(u64, Owned)>, ReadSummary) {
    let (parts, summary) = recording
        .read_parallel(
            threads,
            Vec::new,
            |out: &mut Vec<(u64, Owned)>, chunk: &Chunk| {
                out.extend(chunk.records().map(|record| owned(&record.expect("chunks hold whole records"))));
            },
            &|_, _| {},
        )
        .expect("memory can be read");
    let mut all: Vec<_> = parts.into_iter().flatten().collect();
    all.sort();
    (all, summary)
}

/// Names of the kernel's functions that belong to no kernel: one every 4 KiB, from where x86-64
/// kernels are linked to where the fixtures' kernel ends.
///
/// perf takes the running kernel's names for a recording, and complains where that is another build
/// than the recording's. With a list of its own it says the same on every machine.
pub(crate) fn kernel_names() -> tempfile::NamedTempFile {
    const TEXT: u64 = 0xffff_ffff_8100_0000;
    const BYTES: u64 = 32 << 20;
    let mut list = format!("{TEXT:016x} T _text\n{TEXT:016x} T _stext\n");
    for offset in (0..BYTES).step_by(4096) {
        writeln!(list, "{:016x} T page_{offset:x}", TEXT + offset).expect("a String takes everything");
    }
    writeln!(list, "{:016x} T _etext", TEXT + BYTES).expect("a String takes everything");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), list).expect("the file is ours");
    file
}

/// Runs perf and returns what it says on stdout and on stderr.
pub(crate) fn run(mut command: Command) -> (String, String) {
    let output = command.output().expect("perf runs");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
