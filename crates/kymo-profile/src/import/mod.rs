//! Profiles of other tools as recordings, so that every verb that reads recordings reads them.
//!
//! *You give it* bytes of [`pprof()`] or of folded stacks ([`folded()`]); *it gives you* an
//! [`ImportedProfile`], which [`write()`] makes a recording of.
//!
//! ```text
//!  function --> a range of addresses that no process maps, with a name (a mark in the recording)
//!  stack ----> a call chain of such addresses
//!  value ----> one record, whose period it is; or so many samples, whose periods sum to it
//!  labels ---> a cgroup of their names
//! ```
//!
//! # Invariants
//! - **M1** Self and total of each function are those of the profile, to the unit.
//! - **M2** Bytes are untrusted: anything gives a profile or an [`ImportError`], and what they claim
//!   to hold is bounded ([`MOST_BYTES`], [`MOST_ENTRIES`]). A value costs one record, whatever it
//!   is: samples are records of their own up to [`MOST_SINGLE_SAMPLES`] of them.
//!
//! Profiles have no moments: the samples of the recording have no time stamps.
mod folded;
mod pprof;
mod protobuf;
mod recording;
#[cfg(test)]
mod tests;

pub(crate) use folded::MILLIONTHS;
pub use folded::folded;
pub use pprof::pprof;
pub use recording::write;

use kymo_data::{SampleLabel, SamplingPeriod};
use rustc_hash::FxHashMap;

/// Samples of a profile that become a record each: as many as 100 per second of a CPU give in 11
/// minutes. In a larger one a record is all samples of a stack.
pub const MOST_SINGLE_SAMPLES: u64 = 1 << 16;
/// Bytes of a profile, unpacked.
pub const MOST_BYTES: u64 = 512 << 20;
/// Entries of all tables of a profile: an entry takes two bytes in the file, and more in memory.
pub const MOST_ENTRIES: usize = 1 << 24;
/// Frames of a stack that are taken, the innermost ones; reports look at fewer.
pub const MOST_FRAMES: usize = 1000;
/// Frames of all distinct stacks.
const MOST_FRAMES_OF_ALL: usize = 100_000_000;
/// Words of call chains in the recording.
const MOST_WORDS: u64 = 1 << 30;
/// The labels of a sample without any.
const NO_LABELS: u32 = 0;

/// Why a profile was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not in this format, or damaged.
    #[error("{0}")]
    Damaged(String),
    /// It has more than [`MOST_BYTES`], [`MOST_ENTRIES`], or values beyond all that a recording
    /// holds.
    #[error("{0}")]
    Large(String),
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] std::io::Error),
}

/// A profile of another tool.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImportedProfile {
    /// What was counted.
    pub events: Vec<ImportedEvent>,
    /// Functions; stacks refer to them by index.
    pub functions: Vec<ImportedFunction>,
    /// Threads; counts refer to them by index.
    pub threads: Vec<ImportedThread>,
    /// Distinct stacks as functions, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// What each stack counts for.
    pub counts: Vec<ImportedCount>,
    /// Distinct sets of labels; counts refer to them by index. The first is that of none.
    pub label_sets: Vec<Vec<SampleLabel>>,
    /// When it began, nanoseconds since 1970; 0: it does not say.
    pub start_unix_ns: u64,
    /// How long it took, ns; 0: it does not say.
    pub duration_ns: u64,
    /// What was counted from one sample to the next; `None`: it does not say.
    pub sampling: Option<SamplingPeriod>,
    /// What the user should know of the reading, a sentence each.
    pub notes: Vec<String>,
}

/// Something that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedEvent {
    /// Its name.
    pub name: String,
    /// The unit of its values.
    pub unit: String,
    /// The name of the type of values that says how many samples there are, if each is a record.
    pub samples_type: Option<String>,
}

/// A function by name and module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImportedFunction {
    /// Its name.
    pub name: String,
    /// The path of its module, or a name in brackets.
    pub module: String,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImportedThread {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Its name.
    pub comm: String,
}

/// What a stack of a thread counts for in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedCount {
    /// Index of the event.
    pub event: u32,
    /// Index of the thread.
    pub thread: u32,
    /// Index of the stack.
    pub stack: u32,
    /// Index of the set of labels.
    pub labels: u32,
    /// So many records.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
}

/// Whether a label of pprof names the thread of a sample.
fn names_thread(key: &str) -> bool {
    is_process(key) || is_thread(key) || is_thread_name(key)
}

fn is_process(key: &str) -> bool {
    matches!(key, "pid" | "process_id")
}

fn is_thread(key: &str) -> bool {
    matches!(key, "tid" | "thread_id")
}

fn is_thread_name(key: &str) -> bool {
    matches!(key, "comm" | "thread" | "thread_name")
}

/// Gives things numbers, each once.
#[derive(Debug)]
struct Numbered<T> {
    list: Vec<T>,
    numbers: FxHashMap<T, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { list: Vec::new(), numbers: FxHashMap::default() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Numbered<T> {
    fn number(&mut self, thing: T) -> u32 {
        if let Some(number) = self.numbers.get(&thing) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(thing.clone());
        self.numbers.insert(thing, number);
        number
    }
}

/// A profile that grows.
#[derive(Debug, Default)]
struct ProfileBuilder {
    functions: Numbered<ImportedFunction>,
    threads: Numbered<ImportedThread>,
    stacks: Numbered<Vec<u32>>,
    labels: Numbered<Vec<SampleLabel>>,
    counts: Vec<ImportedCount>,
    frames: usize,
    words: u64,
}

impl ProfileBuilder {
    /// The number of a stack, innermost first.
    fn stack(&mut self, mut frames: Vec<u32>) -> Result<u32, ImportError> {
        frames.truncate(MOST_FRAMES);
        let (before, length) = (self.stacks.list.len(), frames.len());
        let number = self.stacks.number(frames);
        if self.stacks.list.len() > before {
            self.frames += length;
        }
        match self.frames > MOST_FRAMES_OF_ALL {
            true => Err(ImportError::Large(format!("its stacks have more than {MOST_FRAMES_OF_ALL} frames"))),
            false => Ok(number),
        }
    }

    fn add(&mut self, count: ImportedCount) -> Result<(), ImportError> {
        let words = self.stacks.list[count.stack as usize].len() as u64;
        self.words = self.words.saturating_add(count.samples.saturating_mul(words));
        if self.words > MOST_WORDS {
            return Err(ImportError::Large(format!("its stacks have more than {MOST_WORDS} frames in all")));
        }
        self.counts.push(count);
        Ok(())
    }

    fn finish(self, events: Vec<ImportedEvent>) -> ImportedProfile {
        ImportedProfile {
            events,
            functions: self.functions.list,
            threads: self.threads.list,
            stacks: self.stacks.list,
            counts: self.counts,
            label_sets: self.labels.list,
            ..ImportedProfile::default()
        }
    }
}
