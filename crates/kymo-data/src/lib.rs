//! perf.data, jitdump and perf maps: bytes in, structs out.
#![forbid(unsafe_code)]

pub mod abi;
mod attr;
mod event;
mod record;
mod sample;
mod words;

pub use attr::{ATTR_SIZE_VER0, ATTR_SIZE_WRITTEN, Attr};
pub use event::{Event, Events};
pub use record::{
    BpfEvent, BuildId, Comm, Ksymbol, MappedFile, Mapping, ParseError, RECORD_HEADER_BYTES, RawRecord,
    Record, RecordHeader, Switch, Task, Throttle,
};
pub use sample::{Branches, CounterValue, ReadValues, Regs, Sample, SampleId, SampleLayout};
pub use words::Words;
