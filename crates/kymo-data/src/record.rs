//! Records other than samples: one type per kernel record, borrowed from the bytes they came in.
//!
//! ```text
//!  position          +8
//!  +--------+-------+------+---------------------------+-----------------------+
//!  | type   | misc  | size | body                      | sample id trailer     |
//!  | u32    | u16   | u16  | fields of the type        | if sample_id_all      |
//!  +--------+-------+------+---------------------------+-----------------------+
//!  |<------------------------- size ------------------------------------------>|
//! ```
//!
//! The trailer is read by [`EventSet::sample_id`](crate::EventSet::sample_id), because its layout
//! depends on the event.

use crate::abi::*;
use crate::excess::holds_build_id;
use crate::words::{Cursor, Words, u32_at, u64_at, until_nul};

/// The 8 bytes that start every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "perf_event_header")]
pub struct RecordHeader {
    /// Record type: `PERF_RECORD_*`.
    pub kind: u32,
    /// Flags, `PERF_RECORD_MISC_*`.
    pub misc: u16,
    /// Size in bytes of the whole record, this header included.
    pub size: u16,
}

/// Size in bytes of a [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = 8;

impl RecordHeader {
    /// Reads a header; `None` when there are fewer than 8 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<RecordHeader> {
        let word = u64_at(bytes, 0)?;
        Some(RecordHeader { kind: word as u32, misc: (word >> 32) as u16, size: (word >> 48) as u16 })
    }

    /// The 8 bytes of this header.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.kind) | u64::from(self.misc) << 32 | u64::from(self.size) << 48).to_le_bytes()
    }
}

/// A record whose fields do not fit into its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Where the record starts: a position as in [`RawRecord::position`].
    pub position: u64,
    /// The record's type.
    pub kind: u32,
    /// How many bytes into the record's body the missing field starts.
    pub offset: u32,
    /// Which field was expected there.
    pub expected: &'static str,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ParseError { position, kind, offset, expected } = *self;
        write!(
            f,
            "at offset {position:#x}: {} ({kind}): it ends before {expected} at byte {offset} of its body",
            record_name(kind)
        )
    }
}

impl std::error::Error for ParseError {}

/// One record as it lies in the recording.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// Type, flags and size.
    pub header: RecordHeader,
    /// Everything after the header.
    pub body: &'a [u8],
    /// Where the record starts. Unique, and increasing within one stream: the file offset in a
    /// plain file; `stream << 48 | offset` in compressed recordings and directories, where `offset`
    /// counts decompressed bytes.
    pub position: u64,
}

/// A memory mapping: MMAP and MMAP2 alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Process; -1 for the kernel's own mappings.
    pub pid: i32,
    /// Thread that made the mapping.
    pub tid: i32,
    /// First address in the process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset within the file, in bytes.
    pub pgoff: u64,
    /// Protection bits (1 read, 2 write, 4 execute). An MMAP record tells only "executable or not":
    /// 5 or 1.
    pub prot: u32,
    /// Mapping flags (`MAP_*`); 0 for an MMAP record.
    pub flags: u32,
    /// Which file it is, as far as the record tells.
    pub file: MappedFile<'a>,
    /// Path or mark such as `//anon`, `[vdso]`, `[kernel.kallsyms]_text`.
    pub filename: &'a [u8],
    /// The record's `misc` flags; the CPU mode tells kernel from user space.
    pub misc: u16,
}

/// Identity of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedFile<'a> {
    /// The record does not tell.
    Unknown,
    /// Device and inode.
    Inode {
        /// Device, major number.
        maj: u32,
        /// Device, minor number.
        min: u32,
        /// Inode number.
        ino: u64,
        /// Inode generation.
        ino_generation: u64,
    },
    /// The build ID, at most 20 bytes.
    BuildId(&'a [u8]),
}

/// A task's new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comm<'a> {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Whether an exec caused it.
    pub exec: bool,
    /// The name, at most 15 bytes from the kernel.
    pub name: &'a [u8],
}

/// Creation or end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// Process of the task.
    pub pid: i32,
    /// Process that created it (for an exit: of its parent).
    pub ppid: i32,
    /// The task.
    pub tid: i32,
    /// Thread that created it.
    pub ptid: i32,
    /// When, in ns of the recording's clock.
    pub time: u64,
    /// FORK only: synthesized by the recorder for a task that existed before.
    pub synthesized: bool,
}

/// An event was throttled or runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// When, in ns.
    pub time: u64,
    /// Id of the event.
    pub id: u64,
    /// Its stream id.
    pub stream_id: u64,
}

/// A kernel symbol that appeared or vanished: BPF programs, trampolines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ksymbol<'a> {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Kind: 1 BPF, 2 out-of-line code.
    pub ksym_type: u16,
    /// The symbol vanished.
    pub unregister: bool,
    /// Its name.
    pub name: &'a [u8],
}

/// The build ID of a file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BuildId {
    /// CPU mode and flags, as in a record header.
    pub misc: u16,
    /// Process whose kernel it belongs to; -1 is the host.
    pub pid: i32,
    /// The build ID, at most 20 bytes.
    pub id: Vec<u8>,
    /// The file.
    pub filename: Vec<u8>,
}

/// What a record says, apart from samples.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of most fields say what they are")]
pub enum Record<'a> {
    /// MMAP or MMAP2.
    Mmap(Mapping<'a>),
    /// COMM.
    Comm(Comm<'a>),
    /// FORK.
    Fork(TaskRecord),
    /// EXIT.
    Exit(TaskRecord),
    /// LOST: a ring was full. `id` is the event that wrote the record, not the one that lost.
    Lost { id: u64, lost: u64 },
    /// LOST_SAMPLES: the event named by the trailer lost so many samples.
    LostSamples { lost: u64 },
    /// THROTTLE.
    Throttle(Throttle),
    /// UNTHROTTLE.
    Unthrottle(Throttle),
    /// A sample: parse it with the event's [`SampleLayout`](crate::SampleLayout).
    Sample,
    /// KSYMBOL.
    Ksymbol(Ksymbol<'a>),
    /// CGROUP.
    Cgroup { id: u64, path: &'a [u8] },
    /// HEADER_ATTR of a pipe recording.
    HeaderAttr { attr: &'a [u8], ids: Words<'a> },
    /// HEADER_BUILD_ID of a pipe recording.
    BuildId(BuildId),
    /// FINISHED_ROUND: everything older than the previous round's newest record has been delivered.
    FinishedRound,
    /// FINISHED_INIT: synthesized records end here.
    FinishedInit,
    /// ID_INDEX: id, index, CPU and thread per entry (a word each), and a second list in newer
    /// files.
    IdIndex { nr: u64, entries: Words<'a> },
    /// EVENT_UPDATE: later knowledge about an event; `what`: 0 unit, 1 scale, 2 name, 3 CPUs.
    EventUpdate { what: u64, id: u64, data: &'a [u8] },
    /// HEADER_FEATURE of a pipe recording.
    Feature { bit: u64, data: &'a [u8] },
    /// A type without a parser here: known to perf but not needed by kymo, or newer than this
    /// library.
    Other,
}

struct Fields<'a> {
    cursor: Cursor<'a>,
    position: u64,
    kind: u32,
}

impl<'a> Fields<'a> {
    fn missing(&self, expected: &'static str) -> ParseError {
        ParseError { position: self.position, kind: self.kind, offset: self.cursor.at() as u32, expected }
    }
    fn u16(&mut self, what: &'static str) -> Result<u16, ParseError> {
        let missing = self.missing(what);
        self.cursor.u16().ok_or(missing)
    }
    fn u32(&mut self, what: &'static str) -> Result<u32, ParseError> {
        let missing = self.missing(what);
        self.cursor.u32().ok_or(missing)
    }
    fn i32(&mut self, what: &'static str) -> Result<i32, ParseError> {
        self.u32(what).map(u32::cast_signed)
    }
    fn u64(&mut self, what: &'static str) -> Result<u64, ParseError> {
        let missing = self.missing(what);
        self.cursor.u64().ok_or(missing)
    }
    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], ParseError> {
        let missing = self.missing(what);
        self.cursor.take(len).ok_or(missing)
    }
    fn name(&mut self) -> &'a [u8] {
        until_nul(self.cursor.rest())
    }
}

impl<'a> RawRecord<'a> {
    /// Whether perf wrote the record (type 64 and up), not the kernel: it has no sample id trailer.
    #[inline]
    pub fn is_user_type(&self) -> bool {
        self.header.kind >= PERF_RECORD_HEADER_ATTR
    }

    /// Reads the record's fields. Samples come back as [`Record::Sample`]; parse them with their
    /// event's [`SampleLayout`](crate::SampleLayout).
    ///
    /// # Errors
    /// When the record is too short for its type.
    pub fn parse(&self) -> Result<Record<'a>, ParseError> {
        let misc = self.header.misc;
        let mut f =
            Fields { cursor: Cursor::new(self.body), position: self.position, kind: self.header.kind };
        Ok(match self.header.kind {
            PERF_RECORD_MMAP | PERF_RECORD_MMAP2 => Record::Mmap(self.parse_mapping(&mut f)?),
            PERF_RECORD_COMM => Record::Comm(Comm {
                pid: f.i32("pid")?,
                tid: f.i32("tid")?,
                exec: misc & PERF_RECORD_MISC_COMM_EXEC != 0,
                name: f.name(),
            }),
            PERF_RECORD_FORK | PERF_RECORD_EXIT => {
                let task = TaskRecord {
                    pid: f.i32("pid")?,
                    ppid: f.i32("ppid")?,
                    tid: f.i32("tid")?,
                    ptid: f.i32("ptid")?,
                    time: f.u64("time")?,
                    synthesized: misc & PERF_RECORD_MISC_FORK_EXEC != 0,
                };
                if self.header.kind == PERF_RECORD_FORK { Record::Fork(task) } else { Record::Exit(task) }
            }
            PERF_RECORD_LOST => Record::Lost { id: f.u64("id")?, lost: f.u64("lost")? },
            PERF_RECORD_LOST_SAMPLES => Record::LostSamples { lost: f.u64("lost")? },
            PERF_RECORD_THROTTLE | PERF_RECORD_UNTHROTTLE => {
                let throttle =
                    Throttle { time: f.u64("time")?, id: f.u64("id")?, stream_id: f.u64("stream_id")? };
                if self.header.kind == PERF_RECORD_THROTTLE {
                    Record::Throttle(throttle)
                } else {
                    Record::Unthrottle(throttle)
                }
            }
            PERF_RECORD_SAMPLE => Record::Sample,
            PERF_RECORD_KSYMBOL => Record::Ksymbol(Ksymbol {
                addr: f.u64("addr")?,
                len: f.u32("len")?,
                ksym_type: f.u16("ksym_type")?,
                unregister: f.u16("flags")? & PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER != 0,
                name: f.name(),
            }),
            PERF_RECORD_CGROUP => Record::Cgroup { id: f.u64("id")?, path: f.name() },
            _ => self.parse_user(&mut f)?,
        })
    }

    /// The types that recorders make up.
    fn parse_user(&self, f: &mut Fields<'a>) -> Result<Record<'a>, ParseError> {
        Ok(match self.header.kind {
            PERF_RECORD_HEADER_ATTR => {
                let size = u32_at(self.body, 4).ok_or(f.missing("attr size"))?;
                // Size 0 stands for the first kernel's attr, as in the kernel's own interface.
                let size = if size == 0 { crate::attr::ATTR_SIZE_VER0 } else { size };
                let attr = f.take(size as usize, "the whole attr")?;
                Record::HeaderAttr { attr, ids: Words::new(f.cursor.rest()) }
            }
            PERF_RECORD_HEADER_BUILD_ID => Record::BuildId(
                BuildId::parse_body(self.header.misc, self.body).ok_or(f.missing("pid and build ID"))?,
            ),
            PERF_RECORD_FINISHED_ROUND => Record::FinishedRound,
            PERF_RECORD_FINISHED_INIT => Record::FinishedInit,
            PERF_RECORD_ID_INDEX => {
                Record::IdIndex { nr: f.u64("nr")?, entries: Words::new(f.cursor.rest()) }
            }
            PERF_RECORD_EVENT_UPDATE => {
                Record::EventUpdate { what: f.u64("type")?, id: f.u64("id")?, data: f.cursor.rest() }
            }
            PERF_RECORD_HEADER_FEATURE => {
                Record::Feature { bit: f.u64("feature bit")?, data: f.cursor.rest() }
            }
            _ => Record::Other,
        })
    }

    fn parse_mapping(&self, f: &mut Fields<'a>) -> Result<Mapping<'a>, ParseError> {
        let misc = self.header.misc;
        let (pid, tid) = (f.i32("pid")?, f.i32("tid")?);
        let (addr, len, pgoff) = (f.u64("addr")?, f.u64("len")?, f.u64("pgoff")?);
        let (mut prot, mut flags, mut file) = (5, 0, MappedFile::Unknown);
        if misc & PERF_RECORD_MISC_MMAP_DATA != 0 {
            prot = 1;
        }
        if self.header.kind == PERF_RECORD_MMAP2 {
            let identity = f.take(24, "file identity")?;
            file = if misc & PERF_RECORD_MISC_MMAP_BUILD_ID != 0 && holds_build_id(identity) {
                let size = identity.first().copied().unwrap_or(0).min(20);
                MappedFile::BuildId(identity.get(4..4 + usize::from(size)).unwrap_or(&[]))
            } else {
                MappedFile::Inode {
                    maj: u32_at(identity, 0).unwrap_or(0),
                    min: u32_at(identity, 4).unwrap_or(0),
                    ino: u64_at(identity, 8).unwrap_or(0),
                    ino_generation: u64_at(identity, 16).unwrap_or(0),
                }
            };
            prot = f.u32("prot")?;
            flags = f.u32("flags")?;
        }
        Ok(Mapping { pid, tid, addr, len, pgoff, prot, flags, file, filename: f.name(), misc })
    }
}

impl BuildId {
    /// Reads the part after the record header: pid, 24 bytes of build ID, filename. `None` when it
    /// is too short.
    pub(crate) fn parse_body(misc: u16, body: &[u8]) -> Option<BuildId> {
        let mut cursor = Cursor::new(body);
        let pid = cursor.u32()?.cast_signed();
        let id = cursor.take(24)?;
        let size = if misc & PERF_RECORD_MISC_BUILD_ID_SIZE != 0 {
            usize::from(*id.get(20)?).min(20)
        } else {
            // Old files always meant 20 bytes; shorter IDs were padded with zeros.
            20
        };
        Some(BuildId { misc, pid, id: id.get(..size)?.to_vec(), filename: until_nul(cursor.rest()).to_vec() })
    }
}
