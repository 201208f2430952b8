//! Who was what, when: the processes of a recording as functions of time.
//!
//! A recording interleaves samples with *side-band* records: names (COMM), births (FORK), mappings (MMAP, MMAP2).
//! A sample means nothing without the state of its thread at its own moment, so most readers sort every record by
//! time and replay them one after another, in one thread. Side-band records are few and samples are many, so kymo
//! replays only the side-band, once, into a structure that answers "thread 7 at 12.3 s" without replaying anything:
//!
//! ```text
//!  side-band, sorted          threads: tid -> epochs              spaces -> versions of the mapping set
//!  FORK 7 (of 5)  t=10   ──▶   7: [10.. comm "sh"   space 3]       3: [10.. v8] [12.. v9]
//!  COMM 7 "ls"    t=11         7: [11.. comm "ls"   space 3]
//!  MMAP2 7 libc   t=12                                              v8, v9 share all chunks but one
//! ```
//!
//! Samples can then be read in any order, by any number of threads.
//!
//! # Invariants
//! - **I1** The timeline depends only on the multiset of side-band records with their moments, not on the order in
//!   which they were collected.
//! - **I2** Epochs of one thread and versions of one space are sorted by moment; the one in force at `m` is the last
//!   whose `from` is not after `m`.
//! - **I3** A frozen version never changes; versions share unchanged chunks.
//! - **I4** Mappings of one version never overlap; a later mapping cuts what it covers out of earlier ones.
//!
//! The rules (what a fork copies, what an exec keeps, who shares whose mappings) are those of `perf report`, so that
//! both attribute every sample alike.
use kymo_data::{MappedFile, Record, abi};
use kymo_symbols::unwind::FileId;

mod kernel;
mod live;
mod maps;
mod modules;
mod scripts;
mod threads;

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use kernel::KernelMaps;
#[cfg(any(test, feature = "model"))]
pub(crate) use kernel::image_end;
pub use live::LiveSpaces;
pub use maps::{MapSet, Mapping, Mappings};
pub(crate) use modules::is_memory_file;
#[cfg(any(test, feature = "model"))]
pub(crate) use modules::user_kind;
pub use modules::{Module, ModuleId, ModuleKind, Modules};
pub use scripts::Scripts;
pub use threads::{CommId, Span, ThreadView, Timeline, TimelineBuilder};

/// A point in a recording: the time of a record, and its place in the file for records of the same time.
///
/// Records without a time (synthesized at the start, or a recording without timestamps) have time 0 and so come
/// first, in file order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment {
    /// Nanoseconds of the recording's clock.
    pub time_ns: u64,
    /// Place in delivery order (`RawRecord::position`).
    pub position: u64,
}

impl Moment {
    /// Before every record.
    pub const START: Moment = Moment { time_ns: 0, position: 0 };
    /// After every record.
    pub const END: Moment = Moment { time_ns: u64::MAX, position: u64::MAX };

    /// The moment of a record; perf marks synthesized records by time 0 or all ones, and both mean "from the start".
    pub fn new(time_ns: Option<u64>, position: u64) -> Moment {
        match time_ns {
            None | Some(u64::MAX) => Moment { time_ns: 0, position },
            Some(time_ns) => Moment { time_ns, position },
        }
    }
}

/// One side-band record with what the timeline needs of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are what records call so; what more there is to say, the variants say"
)]
pub enum SideEvent {
    /// A thread got a name (at most 15 bytes from the kernel), with `exec` by `execve` rather than by `prctl`.
    Comm { pid: i32, tid: i32, exec: bool, name: Vec<u8> },
    /// A thread or process was born. `synthesized`: written by the recorder for a task that existed before. Mappings
    /// follow as records of their own, so none are copied from the parent (`PERF_RECORD_MISC_FORK_EXEC`).
    Fork { pid: i32, tid: i32, parent_pid: i32, parent_tid: i32, synthesized: bool },
    /// A file or memory was mapped into a process, or (with `kernel`, and perhaps pid -1) a piece of the kernel's own
    /// text. Addresses (AVMA) from `start` to before `end` show what lies `pgoff` bytes into the file; `prot` are the
    /// `PROT_*` bits. Where files have one name, `file_id` tells them apart; `build_id` is empty if the record has none.
    Map {
        pid: i32,
        tid: i32,
        kernel: bool,
        start: u64,
        end: u64,
        pgoff: u64,
        prot: u32,
        path: Vec<u8>,
        file_id: FileId,
        build_id: Vec<u8>,
    },
    /// Kernel code of `len` bytes appeared at run time, or with `unregister` went away (BPF programs, trampolines).
    Ksymbol { start: u64, len: u64, name: Vec<u8>, unregister: bool },
    /// Some address of generated code has another name from now on than before.
    CodeChange { pid: i32 },
}

impl SideEvent {
    /// What a record tells about tasks and mappings; `None` for all other records, and for the end of a task: what a task was
    /// stays true of its samples, and a reader keeps it.
    pub fn of(record: &Record<'_>) -> Option<SideEvent> {
        Some(match record {
            Record::Mmap(map) => {
                let mode = map.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK;
                // A guest's mappings are none of this machine.
                if matches!(mode, abi::PERF_RECORD_MISC_GUEST_KERNEL | abi::PERF_RECORD_MISC_GUEST_USER) {
                    return None;
                }
                let (file_id, build_id) = match map.file {
                    MappedFile::Inode { maj, min, ino, .. } => ((maj, min, ino), Vec::new()),
                    MappedFile::BuildId(id) => ((0, 0, 0), id.to_vec()),
                    MappedFile::Unknown => ((0, 0, 0), Vec::new()),
                };
                SideEvent::Map {
                    pid: map.pid,
                    tid: map.tid,
                    kernel: mode == abi::PERF_RECORD_MISC_KERNEL,
                    start: map.addr,
                    end: map.addr.saturating_add(map.len),
                    pgoff: map.pgoff,
                    prot: map.prot,
                    path: map.filename.to_vec(),
                    file_id,
                    build_id,
                }
            }
            Record::Comm(comm) => {
                SideEvent::Comm { pid: comm.pid, tid: comm.tid, exec: comm.exec, name: comm.name.to_vec() }
            }
            Record::Fork(task) => SideEvent::Fork {
                pid: task.pid,
                tid: task.tid,
                parent_pid: task.ppid,
                parent_tid: task.ptid,
                synthesized: task.synthesized,
            },
            Record::Ksymbol(symbol) => SideEvent::Ksymbol {
                start: symbol.addr,
                len: u64::from(symbol.len),
                name: symbol.name.to_vec(),
                unregister: symbol.unregister,
            },
            _ => return None,
        })
    }
}
