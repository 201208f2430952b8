//! perf.data, jitdump and perf maps: bytes in, structs out.
#![forbid(unsafe_code)]

pub mod abi;
mod attr;
pub mod build;
mod chunk;
mod compressor;
mod event;
mod features;
mod header;
pub mod jitdump;
pub mod perf_map;
mod problem;
mod record;
mod recording;
mod sample;
mod source;
mod stream;
pub mod tracing_data;
mod words;
mod writer;

pub use attr::{ATTR_SIZE_VER0, ATTR_SIZE_WRITTEN, Attr};
pub use chunk::{Chunk, Records};
pub use compressor::Compressor;
pub use event::{Event, Events};
pub use features::{
    CacheLevel, ClockData, CompressedInfo, CpuPlace, CpuTopology, EventDesc, Features, GroupDesc, NrCpus,
    NumaNode,
};
pub use problem::{OpenError, Problem, ReadError};
pub use record::{
    BpfEvent, BuildId, Comm, Ksymbol, MappedFile, Mapping, ParseError, RECORD_HEADER_BYTES, RawRecord,
    Record, RecordHeader, Switch, Task, Throttle,
};
pub use recording::{ReadSummary, RecordReader, Recording};
pub use sample::{Branches, CounterValue, ReadValues, Regs, Sample, SampleId, SampleLayout};
pub use source::{ReadAt, WriteAt};
pub use words::Words;
pub use writer::{EventSpec, PipeWriter, Reserved, Writer, groups};
