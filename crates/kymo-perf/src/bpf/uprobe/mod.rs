//! Uprobes: the kernel stops at an instruction of a user program, and BPF programs count, time and
//! tell callers apart there.
//!
//! *You give it* files and offsets; *it gives you* counts, latencies and callers of each, without a
//! record per hit. It is the net under kymo's probes inside the program: it works everywhere that
//! uprobes do, at the price of a trap.
//!
//! ```text
//!  hit --trap--> entry:  followed? condition? --> TABLE[site, CPU].hits += 1
//!                        timed --> STARTED[stack pointer, site, process] = now      callers --> CALLERS[return address, site, process] += 1
//!  exit  ------> exit:   STARTED known? --> TABLE[site, CPU].{returns, total, longest, bucket}
//! ```
//! An exit is an instruction of the function (`ret`, or a jump to another function:
//! [`ReturnAction::TimeAtExits`]), which touches nothing of the program, or the kernel's return
//! probe ([`ReturnAction::Time`]), which replaces the return address: a program that throws
//! exceptions, switches stacks or walks them dies of that.
//!
//! TABLE is memory that we map, so reading costs no system call. A call is known by its stack
//! pointer: recursion needs no depth, and what longjmp or a thread's end leaves behind is
//! overwritten by the next call at the same place, or forgotten (STARTED forgets what was not used
//! for longest).
//!
//! # Invariants
//! - **U1** A hit is counted once, in a line of its own CPU where memory permits a line for each.
//! - **U2** A latency is that of one call: entry and return have the same stack pointer, site and
//!   process.
//! - **U3** Hits of others than those asked for change no count. (They may trap: see
//!   [`UprobeScope`].)
//! - **U4** Dropping [`Uprobes`] detaches all; so does the end of this process, however it ends.
//!
//! # What it costs
//! A trap per hit (about 1 us where this was written, half of it with a function that begins with a
//! 5-byte nop), two with returns. Attaching thousands of sites at once takes one link for each file
//! and process (`uprobe_multi`, Linux 6.6); before that, two descriptors for each site.

mod attaching;
mod condition;
mod layout;
mod programs;
#[cfg(test)]
mod tests;
mod values;

pub use condition::MOST_CHARACTERS;
use kymo_core::latency::{self, Latencies};
use kymo_core::probe::value::{Condition, Operand};
pub use values::{CapturedValue, MOST_VALUES, UprobeRecord, Value};

use super::available::Unavailable;
use super::error::BpfError;
use super::follow::Follower;
use super::sys::ring::Ring;
use super::sys::uprobe::{Links, WideMap};
use super::sys::{self, SharedWords};
use crate::caps;
use crate::explain::setcap_command;
use layout::{
    BUCKETS, CALL_WORDS, FIRST_BUCKET, HITS, KEY_WORDS, LONG_LINE, LONGEST, LOST, MISSED, RETURNS,
    SHORT_LINE, TOTAL,
};
use programs::Maps;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Calls that can be under way at the same time and still be timed.
const STARTED: u32 = 1 << 16;
/// Callers that are told apart.
const CALLERS: u32 = 1 << 14;
/// What is told and was not read yet, in bytes.
const RING_BYTES: usize = 4 << 20;
/// What the counts may take in all, in bytes.
const TABLE_BYTES: usize = 256 << 20;

/// Where to put a probe.
#[derive(Clone, Debug, Default)]
pub struct UprobeSite {
    /// The file, as this process opens it.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// Where in it a marker's counter of listeners lies.
    pub semaphore: Option<u64>,
    /// What of its returns; only where it is a function's first instruction.
    pub returns: ReturnAction,
    /// It is a function's first instruction, and its callers are to be counted.
    pub callers: bool,
    /// Only such hits.
    pub condition: Condition,
    /// Only such returns are timed.
    pub return_condition: Condition,
    /// What is told of each hit; `None`: nothing.
    pub values: Option<Vec<Value>>,
    /// The same of each return that is timed.
    pub return_values: Option<Vec<Value>>,
}

/// How a call is known from its entry to its exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallKey {
    /// By the stack pointer, which is the same at both.
    #[default]
    StackPointer,
    /// In Go: by the goroutine (register 14), and how far the stack pointer is from its stack's
    /// upper end.
    Goroutine,
}

/// When an instruction is an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitWhen {
    /// The kernel's return probe: it has returned.
    Returned,
    /// Always.
    Always,
    /// If a conditional jump with the processor's condition of this number is taken.
    Flags(u8),
    /// If this address is not in the function.
    Leaves(Operand),
}

/// An instruction where calls of a function end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Where in the file.
    pub offset: u64,
    /// When.
    pub when: ExitWhen,
    /// How many bytes of the function are before it, and from it on, for [`ExitWhen::Leaves`]; less
    /// than a MiB.
    pub bounds: (u32, u32),
}

/// What is done when a function returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReturnAction {
    /// Nothing: returns do not trap.
    #[default]
    Ignore,
    /// They are counted.
    Count,
    /// Calls are timed, by the kernel's return probes.
    Time,
    /// Calls are timed, by probes at their exits.
    TimeAtExits(CallKey, Vec<Exit>),
}

impl ReturnAction {
    fn is_timed(&self) -> bool {
        matches!(self, ReturnAction::Time | ReturnAction::TimeAtExits(..))
    }
}

/// Whose hits count.
#[derive(Debug)]
pub enum UprobeScope<'a> {
    /// These processes, with all their threads and without their children. No other process traps.
    Processes(&'a [i32]),
    /// Whom the follower follows, and what they make. Every process that has the files mapped
    /// traps.
    Followed(&'a Follower),
    /// Whom the follower follows, as far as it is this process; no other one traps.
    FollowedIn(&'a Follower, i32),
    /// Everyone.
    All,
}

/// How places are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// All of a file at once (Linux 6.6).
    Multi,
    /// Each by an event of the `uprobe` PMU (Linux 5.15).
    Events,
}

/// Choices.
#[derive(Clone, Copy, Debug, Default)]
pub struct UprobeOptions {
    /// Look at each so-many-th hit only (0 and 1: all); all are counted.
    pub every: u32,
    /// How to attach; `None`: all of a file at once where the kernel can.
    pub attachment: Option<Attachment>,
}

/// What was counted at a place until now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UprobeCounts {
    /// Hits.
    pub hits: u64,
    /// Calls that ended and whose beginning was seen.
    pub latencies: Latencies,
    /// Calls that could not be timed.
    pub missed: u64,
    /// Hits and returns that were counted and not told: nobody has read for too long.
    pub lost: u64,
}

/// A caller of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the place.
    pub place: usize,
    /// The process, as the kernel numbers it.
    pub pid: i32,
    /// Where the call returns to.
    pub address: u64,
    /// How often.
    pub hits: u64,
}

/// Why a place could not be probed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UprobeError {
    /// This process may not load programs.
    #[error("the kernel's probes cannot be used: {}{}", .0, .0.hint().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Unavailable(Unavailable),
    /// Programs or maps were refused.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The kernel has no uprobes.
    #[error("this kernel has no uprobes: it was built without CONFIG_UPROBE_EVENTS")]
    NoUprobes,
    /// A process was patched while the probes were attached; they are gone again.
    #[error("failed to probe {path}: {process}", path = path.display())]
    Patched {
        /// The file.
        path: PathBuf,
        /// Which process.
        process: crate::patched::Patched,
    },
    /// No place could be probed.
    #[error("failed to probe {path}: {reason}", path = path.display())]
    None {
        /// The file of the first.
        path: PathBuf,
        /// Why not that one.
        reason: String,
    },
    /// A file or a process.
    #[error("failed to probe {places} places of {path}{whom}: {cause}{}", hint(cause), path = path.display())]
    Attach {
        /// How many places of it.
        places: usize,
        /// The file.
        path: PathBuf,
        /// ` in process 7`, or nothing.
        whom: String,
        /// The system's words.
        cause: io::Error,
    },
}

fn hint(cause: &io::Error) -> String {
    let fixed = match cause.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let command = setcap_command(&caps::probe());
            return format!("; run kymo as root, or give it CAP_BPF and CAP_PERFMON with `{command}`");
        }
        Some(libc::ESRCH) => "; the process has ended",
        Some(libc::EINTR) => "; a signal came before all were attached, and none is attached any more",
        Some(libc::EOPNOTSUPP) => "; an instruction there is itself a trap: a debugger may be at work",
        Some(libc::EMFILE) => "; permit more descriptors in this shell: `ulimit -n 100000`",
        Some(libc::EINVAL) => "; the offset is not one of an instruction",
        Some(libc::EIO) => "; its file system has no pages to be patched",
        _ => "",
    };
    fixed.to_owned()
}

/// Probes that are attached. Dropping it detaches them.
#[derive(Debug)]
pub struct Uprobes {
    // First, so that they are detached before the memory goes. Never read.
    _links: Links,
    words: SharedWords,
    callers: Option<WideMap>,
    ring: Option<Ring>,
    /// Which of the values of each place are texts: at hits, at returns.
    shapes: Vec<[Vec<values::ValueShape>; 2]>,
    places: usize,
    line: usize,
    bank_bits: i32,
    attachment: Attachment,
    refused: Vec<Refused>,
}

/// A place that the kernel cannot probe.
#[derive(Debug)]
pub struct Refused {
    /// Its number.
    pub place: usize,
    /// The system's words; `None`: we do not let the kernel try.
    pub cause: Option<io::Error>,
}

impl Refused {
    /// Why, in words.
    pub fn reason(&self) -> String {
        match &self.cause {
            None => {
                "it begins with a vector instruction, which the kernel would take for another one".to_owned()
            }
            Some(cause) if cause.raw_os_error() == Some(ENOTSUPP) => {
                "the kernel does not probe its first instruction".to_owned()
            }
            Some(cause) => format!("{cause}{}", hint(cause)),
        }
    }
}

/// Whether the kernel would take the instruction at a place of a file for another one. On x86-64 it
/// looks at the opcode alone, also behind the prefixes of vector instructions (VEX, EVEX, XOP),
/// where the same numbers mean other things: seen on Linux 6.18, a probe on `vpbroadcastb` (EVEX
/// 7a), with which variants of `strchr` begin, is emulated as the jump 7a, and the program goes
/// astray.
pub fn is_mistaken(path: &Path, offset: u64) -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let mut code = [0u8; 15];
    let read = kymo_files::open_regular(path).and_then(|file| file.read_at(&mut code, offset));
    let code = &code[..read.unwrap_or(0)];
    // Prefixes of length, address and segment, and of repetition.
    let prefix = |byte: &&u8| {
        matches!(byte, 0x66 | 0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3)
    };
    let mut rest = code.iter().skip_while(prefix);
    match (rest.next(), rest.next()) {
        (Some(0xc4 | 0xc5 | 0x62), _) => true,
        // `pop` to memory has 0 here, XOP at least 8 in the lower five bits.
        (Some(0x8f), Some(map)) => map & 0x1f >= 8,
        _ => false,
    }
}

/// The kernel's own number for an instruction that it cannot step over.
const ENOTSUPP: i32 = 524;

impl Uprobes {
    /// Loads a program that counts, without a place: whether this kernel takes it.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn try_one() -> Result<(), BpfError> {
        let map = |cause| BpfError::Map { what: "counts", entries: 1, cause };
        let (table, _words) = WideMap::shared(SHORT_LINE, 1, sys::name("kymo_probes")).map_err(map)?;
        attaching::try_one(Maps {
            table: table.number(),
            bank_bits: 0,
            started: None,
            callers: None,
            followed: None,
            ring: None,
            waits: false,
            frame: CallKey::StackPointer,
        })
    }

    /// Attaches to all places; when it returns, hits count. How long that takes is the kernel's:
    /// about 3 us a place, and a pause for all CPUs for each file.
    ///
    /// # Errors
    /// [`UprobeError`]; then nothing is attached.
    pub fn attach(
        places: &[UprobeSite],
        whom: &UprobeScope<'_>,
        options: &UprobeOptions,
    ) -> Result<Uprobes, UprobeError> {
        super::available::may_load().map_err(UprobeError::Unavailable)?;
        let timed = places.iter().any(|place| place.returns.is_timed());
        let line = if timed { LONG_LINE } else { SHORT_LINE };
        let bank_bits = bank_bits(places.len(), line);
        let entries = u32::try_from(places.len() << bank_bits).unwrap_or(u32::MAX);
        let map = |what, entries| move |cause| BpfError::Map { what, entries, cause };
        let (table, words) =
            WideMap::shared(line, entries, sys::name("kymo_probes")).map_err(map("counts", entries))?;
        let hash = |wanted: bool, words, what, entries, name| {
            let made = wanted.then(|| WideMap::forgetful(words, 1, entries, sys::name(name)));
            made.transpose().map_err(map(what, entries))
        };
        let started = hash(timed, CALL_WORDS, "calls under way", STARTED, "kymo_started")?;
        let asks_callers = places.iter().any(|place| place.callers);
        let callers = hash(asks_callers, KEY_WORDS, "callers", CALLERS, "kymo_callers")?;
        let told = places.iter().any(|place| place.values.is_some() || place.return_values.is_some());
        let ring = told.then(|| Ring::make(RING_BYTES, sys::name("kymo_values")));
        let ring = ring.transpose().map_err(map("values", RING_BYTES as u32))?;
        let follower = match whom {
            UprobeScope::Followed(follower) | UprobeScope::FollowedIn(follower, _) => Some(follower),
            UprobeScope::Processes(_) | UprobeScope::All => None,
        };
        let maps = Maps {
            table: table.number(),
            bank_bits,
            started: started.as_ref().map(WideMap::number),
            callers: callers.as_ref().map(WideMap::number),
            followed: follower.map(|follower| follower.followed_map()),
            ring: ring.as_ref().map(Ring::number),
            waits: false,
            frame: CallKey::StackPointer,
        };
        let attach = |how| attaching::attach(places, whom, options, maps, how);
        let ((links, refused), attachment) = match options.attachment {
            Some(how) => (attach(how)?, how),
            None => match attach(Attachment::Multi) {
                Ok(attached) => (attached, Attachment::Multi),
                // Nothing of that is the kind's fault, and each event takes the kernel a grace
                // period to end.
                Err(patched @ UprobeError::Patched { .. }) => return Err(patched),
                Err(interrupted) if crate::inject::is_interrupted() => return Err(interrupted),
                // A kernel that does not know the kind says that the program, or the link, is
                // invalid; then events may be known.
                Err(multi) => match attach(Attachment::Events) {
                    Ok(attached) => (attached, Attachment::Events),
                    Err(_) => return Err(multi),
                },
            },
        };
        Ok(Uprobes {
            _links: links,
            words,
            callers,
            ring,
            shapes: places.iter().map(values::shape).collect(),
            places: places.len(),
            line,
            bank_bits,
            attachment,
            refused,
        })
    }

    /// What was counted at each place until now, in the order of the places. No system call.
    pub fn read(&self) -> Vec<UprobeCounts> {
        (0..self.places).map(|place| self.reading(place)).collect()
    }

    fn reading(&self, place: usize) -> UprobeCounts {
        let words = self.words.words();
        let lines = (place << self.bank_bits..(place + 1) << self.bank_bits).map(|bank| bank * self.line);
        let mut reading = UprobeCounts::default();
        // Times first: a call is counted before it is timed, perhaps in another bank. Acquire: hits
        // are read behind them, as they are counted before.
        for line in lines.clone() {
            let word = |at: i16| words[line + at as usize].load(Ordering::Acquire);
            reading.missed += word(MISSED);
            reading.latencies.count += if self.line == SHORT_LINE { word(RETURNS) } else { 0 };
            if self.line == LONG_LINE {
                let mut latencies = Latencies::default();
                (0..BUCKETS).for_each(|at| {
                    latencies.add_bucket(latency::USED.start + at, word(FIRST_BUCKET + at as i16))
                });
                // Of these three more is known than the buckets tell.
                (latencies.count, latencies.total_ns) = (word(RETURNS), word(TOTAL));
                latencies.max_ns = word(LONGEST);
                reading.latencies.merge(&latencies);
            }
        }
        for line in lines {
            // Relaxed: counters.
            let word = |at: i16| words[line + at as usize].load(Ordering::Relaxed);
            reading.hits += word(HITS);
            reading.lost += word(LOST);
        }
        reading
    }

    /// Tells what is known of hits and returns that were not told yet, in the order of their times
    /// nearly; how many. No system call.
    pub fn records(&self, tell: &mut dyn FnMut(UprobeRecord<'_>)) -> usize {
        let Some(ring) = &self.ring else { return 0 };
        ring.read(&mut |words| {
            let shape =
                |place: usize, returned: bool| Some(&self.shapes.get(place)?[usize::from(returned)][..]);
            if let Some(record) = UprobeRecord::of(words, shape) {
                tell(record);
            }
        })
    }

    /// What becomes readable when there are records, if any can come.
    pub fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(Ring::fd)
    }

    /// The callers until now, the most frequent first; empty unless they were asked for.
    pub fn callers(&self) -> Vec<Caller> {
        let Some(map) = &self.callers else { return Vec::new() };
        let callers = map.entries(CALLERS).map(|(key, value)| {
            // As programs stored it: site, then process, each half a word.
            let halves = key[1].to_ne_bytes();
            let [place, pid] = [0, 1].map(|half| u32::from_ne_bytes(halves.as_chunks().0[half]));
            Caller { place: place as usize, pid: pid as i32, address: key[0], hits: value[0] }
        });
        let mut found: Vec<Caller> = callers.collect();
        found.sort_by_key(|caller| (std::cmp::Reverse(caller.hits), caller.place, caller.address));
        found.dedup_by_key(|caller| (caller.place, caller.pid, caller.address));
        found
    }

    /// The places that the kernel does not probe, with its reasons; they count nothing. Only
    /// instructions of files that are mapped now are looked at: a place in a library that is loaded
    /// later is refused silently.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// How they are attached.
    pub fn attachment(&self) -> Attachment {
        self.attachment
    }
}

/// Lines of a site: one for each CPU, fewer where that would take too much memory.
fn bank_bits(places: usize, line: usize) -> i32 {
    let cpus = crate::sys::online_cpus().last().map_or(1, |last| *last as usize + 1).next_power_of_two();
    let affordable = TABLE_BYTES / (8 * line * places.max(1));
    let banks = cpus.min(affordable.max(1));
    // Powers of two only; the next one below.
    banks.ilog2() as i32
}
