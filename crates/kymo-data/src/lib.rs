//! perf.data and jitdump: bytes in, structs out.
//!
//! *You give it* bytes that can be read at any offset ([`ReadAt`]: a file, a vector); *it gives
//! you* a [`Recording`]: its [`EventSet`], what it tells about the machine ([`Features`]), and its
//! records, in parallel or one by one. The other way round, *you give it* records and something
//! that takes bytes at any offset ([`WriteAt`]); *it gives you* a file that perf opens, valid after
//! every publication ([`FileWriter`]).
//!
//! # The file
//!
//! ```text
//!  +--------+-----------+---------------------+----------------------------------------+-----------------+
//!  | header | event ids | attr 0, attr 1, ... | records                                | features        |
//!  | 104    | u64 each  | 64..144 + 16 each   | rec | rec | COMPRESSED( rec | re | ...| table, payloads |
//!  +--------+-----------+---------------------+----------------------------------------+-----------------+
//!      |                                       ^ data offset                            ^ data offset + size
//!      +-- says where the attrs and the data are, and which features there are
//!
//!  pipe:       16 bytes of header, then records; attrs, features and tracing data are records, too
//!  directory:  a file `data` as above, and `data.0`, `data.1`, ... of nothing but records
//! ```
//!
//! # Your part
//! - Open the files, and spool a pipe to a file first. For a directory open `data` and pass its
//!   `data.N` as parts.
//! - Order records by time if you need an order: they are delivered as they lie in the file.
//! - A [`FileWriter`] takes whole records, and makes them readable when
//!   [`publish`](FileWriter::publish) is called.
//!
//! # Guarantees
//! - No bytes whatever make it panic, loop for ever, or allocate by a size that a file claims:
//!   every size is checked against what is really there. A compressed stream may make zstd use its
//!   window, at most 128 MiB.
//! - Damage does not hide what is whole: everything up to the damage is delivered, and a
//!   [`Problem`] names the byte offset, the record type, and what was wrong. Record types of a
//!   newer perf are passed over and counted.
//! - Each record is delivered exactly once, in chunks of about 1 MiB; memory does not grow with the
//!   file, apart from 24 bytes per chunk that make a second reading lock-free.
//! - Parsing a record (but for build IDs) or a sample allocates nothing: everything borrows from
//!   the chunk.
//! - All features are written as perf writes them, byte for byte.
//!
//! # Non-goals
//! Big-endian recordings, version 1 files, opening files, time ordering, AUX data (passed over),
//! what records mean.
//!
//! # Modules
//! - [`abi`]: the kernel's constants by their names. [`build`]: records made up by a recorder.
//! - [`tracing_data`]: fields of tracepoints. [`jitdump`]: names of generated code.
//! - Everything else is at the top: [`Recording`], [`RawRecord`] and [`Record`], [`SampleLayout`]
//!   and [`Sample`], [`Attr`], [`FileWriter`], [`PipeWriter`], [`Compressor`]. [`RecordCursor`]
//!   walks over records that are in memory already.
//!
//! # Example
//! Which thread has most samples? Each worker counts for itself, the counts are added at the end.
//!
//! ```
//! use kymo_data::{Recording, abi::PERF_RECORD_SAMPLE};
//! use std::{collections::HashMap, sync::Arc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/callgraph.data");
//! let recording = Recording::open(Arc::new(std::fs::File::open(path)?), Vec::new())?;
//! let (counts, summary) = recording.read_parallel(
//!     0,
//!     HashMap::<i32, u64>::new,
//!     |counts, chunk| {
//!         for record in chunk.records().flatten() {
//!             if record.header.kind != PERF_RECORD_SAMPLE {
//!                 continue;
//!             }
//!             let Some(event) = recording.events.event_of(&record) else { continue };
//!             if let Ok(sample) = recording.events.list[event].layout.parse_record(&record) {
//!                 *counts.entry(sample.tid.unwrap_or(-1)).or_default() += 1;
//!             }
//!         }
//!     },
//!     &|_done, _total| {},
//! )?;
//! let mut by_thread = HashMap::new();
//! for (tid, count) in counts.into_iter().flatten() {
//!     *by_thread.entry(tid).or_insert(0) += count;
//! }
//! assert!(by_thread.values().sum::<u64>() > 20);
//! assert!(summary.problems.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Why it is fast
//! One thread holds the stream's lock only to read 1 MiB and to walk over its record headers, then
//! works on a copy of its own. The cuts are remembered, so a second reading takes
//! chunks by a counter. One thread parses a 207 MB recording of 882,000 samples with call chains at
//! about 5 GB/s, two at 4 to 9 GB/s, on a machine with two CPUs that other programs used, too
//! (`bench/runs/2026-11-21-scan.txt`; the file was in memory);
//! `cargo run --release -p kymo-data --example scan -- perf.data` measures it on yours.
//!
//! # Support
//! Little-endian 64-bit recordings of Linux 2.6.36 and newer, written by perf, or by kymo.
#![forbid(unsafe_code)]

pub mod abi;
mod attr;
pub mod build;
mod chunk;
mod code_names;
mod compressor;
mod control_group;
mod cursor;
mod event;
mod excess;
mod features;
mod file_build_id;
mod header;
mod index;
pub mod jitdump;
mod mark;
mod pass;
mod pipe;
pub mod print_format;
mod problem;
mod record;
mod recording;
mod registers;
mod sample;
mod source;
mod start_table;
mod stat;
mod stream;
pub mod tracing_data;
mod unwound_sample;
mod words;
mod writer;

pub use attr::Attr;
pub use chunk::{Chunk, Records};
pub use code_names::CodeNames;
pub use compressor::Compressor;
pub use control_group::{ControlGroup, cgroup_of_process, is_in_cgroup};
pub use cursor::{RecordCursor, WholeRecord, record_at, retain_records, whole_records_bytes};
pub use event::{Event, EventSet};
pub use excess::{holds_build_id, meant_bytes};
pub use features::{
    CacheLevel, ClockData, CompressedInfo, CpuPlace, CpuTopology, EventDesc, Features, GroupDesc,
    ImportedFacts, ImportedUnit, NrCpus, NumaNode, SampleLabel, SamplingPeriod,
};
pub use file_build_id::FileBuildId;
pub use header::is_recording;
pub use mark::{InterpretedFunction, Mark, UnwindCounts, is_lasting_mark};
pub use pass::ReadSummary;
pub use problem::{OpenError, Problem, ReadError};
pub use record::{
    BuildId, Comm, Ksymbol, MappedFile, Mapping, ParseError, RECORD_HEADER_BYTES, RawRecord, Record,
    RecordHeader, TaskRecord, Throttle,
};
pub use recording::{RecordReader, Recording};
pub use registers::Registers;
pub use sample::{Branches, CounterValue, ReadValues, Regs, Sample, SampleId, SampleLayout, StackParts};
pub use source::{ReadAt, WriteAt};
pub use stat::{
    StatAggregation, StatConfig, StatCount, StatRecord, cpu_map, event_unit, stat_config, stat_count,
    stat_round, thread_map,
};
pub use words::Words;
pub use writer::{EventSpec, FileWriter, PipeWriter, Reserved, groups};
