//! Notes about changes that were needed to open a list, and the error when it failed.
use crate::sys::perf_event_attr;
use std::fmt;
use std::io;

/// A feature of `perf_event_open` that older kernels do not know, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Loss counts in reads (Linux 6.0).
    ReadLost,
    /// Build ids in records of mappings (5.12).
    MappingBuildId,
    /// Weights as a structure (5.12).
    WeightStruct,
    /// The branch stack's hardware index (5.7).
    BranchHwIndex,
    /// BPF program records (5.0).
    BpfEvent,
    /// Kernel symbol records (5.0).
    Ksymbol,
    /// The clock that was asked for (4.1).
    Clockid,
    /// Close-on-exec when opening (3.14).
    Cloexec,
    /// MMAP2 records (3.12).
    Mmap2,
    /// Exclusion of guest or host (3.2).
    ExcludeGuest,
    /// Ids on every record (2.6.38).
    SampleIdAll,
    /// Group reads of inherited events.
    GroupRead,
}

impl Feature {
    /// All of them, in the order in which they are given up.
    pub(crate) const NEWEST_FIRST: [Feature; 12] = [
        Feature::ReadLost,
        Feature::MappingBuildId,
        Feature::WeightStruct,
        Feature::BranchHwIndex,
        Feature::BpfEvent,
        Feature::Ksymbol,
        Feature::Clockid,
        Feature::Cloexec,
        Feature::Mmap2,
        Feature::ExcludeGuest,
        Feature::SampleIdAll,
        Feature::GroupRead,
    ];

    fn words(self) -> &'static str {
        match self {
            Feature::ReadLost => "loss counts per event",
            Feature::MappingBuildId => "build ids in records of mappings",
            Feature::WeightStruct => "structured weights",
            Feature::BranchHwIndex => "branch hardware indexes",
            Feature::BpfEvent => "BPF records",
            Feature::Ksymbol => "kernel symbol records",
            Feature::Clockid => "the chosen clock",
            Feature::Cloexec => "close-on-exec descriptors",
            Feature::Mmap2 => "MMAP2 records",
            Feature::ExcludeGuest => "guest exclusion",
            Feature::SampleIdAll => "ids on every record",
            Feature::GroupRead => "group reads",
        }
    }
}

/// One change that was made so that the kernel would accept the list; worth a line to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The event's precision was lowered.
    Precision {
        /// The event.
        event: String,
        /// The new `precise_ip`.
        to: u64,
    },
    /// This task was gone before it could be opened.
    TaskGone(i32),
    /// The limit of open files was raised to this.
    Descriptors(u64),
    /// The kernel side was left out, for lack of permission; the event's new name.
    UserOnly(String),
    /// There is no hardware counter: the software clock takes its place.
    SoftwareClock {
        /// The event that was asked for.
        asked: String,
        /// The event that is used.
        used: String,
    },
    /// The kernel is too old for this.
    Missing(Feature),
    /// The weak group of this leader was opened as single events.
    GroupDissolved(String),
    /// Rings were made smaller because the memory lock limit is low.
    SmallerRings {
        /// Pages that were asked for.
        asked_pages: usize,
        /// Pages that were mapped.
        pages: usize,
    },
}

impl Note {
    /// Whether a user should see it without asking for details.
    pub fn is_notable(&self) -> bool {
        !matches!(self, Note::TaskGone(_) | Note::Descriptors(_) | Note::Missing(_))
            || matches!(self, Note::Missing(Feature::Clockid))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Precision { event, to } => write!(f, "{event}: opened with precision {to}"),
            Note::TaskGone(task) => write!(f, "task {task} ended before it could be observed"),
            Note::Descriptors(limit) => write!(f, "raised the limit of open files to {limit}"),
            Note::UserOnly(event) => {
                write!(f, "no permission to observe the kernel: recording user space only, as {event}")
            }
            Note::SoftwareClock { asked, used } => {
                write!(f, "{asked}: no hardware counter on this machine; using {used} instead")
            }
            Note::Missing(feature) => write!(f, "this kernel has no {}", feature.words()),
            Note::GroupDissolved(leader) => {
                write!(f, "the group of {leader} does not fit the counters: opened as single events")
            }
            Note::SmallerRings { asked_pages, pages } => write!(
                f,
                "rings have {pages} pages instead of {asked_pages}, because of kernel.perf_event_mlock_kb and `ulimit -l`"
            ),
        }
    }
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `perf_event_open`.
    Open,
    /// A tracepoint filter.
    Filter,
}

/// There were too few descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// How many the list needs: one per event, CPU and task.
    pub needed: u64,
    /// How many the process may have.
    pub limit: Option<u64>,
}

/// An event could not be opened. What to do about it is for the caller to say, who knows the
/// machine.
#[derive(Debug, thiserror::Error)]
#[error("failed to {} {event}{}{}: {source}{}",
    match stage { Stage::Open => "open", Stage::Filter => "set the filter of" },
    match task { Some(task) => format!(" for task {task}"), None => String::new() },
    match cpu { Some(cpu) => format!(" on CPU {cpu}"), None => String::new() },
    match shortage {
        Some(Shortage { needed, limit: Some(limit) }) => {
            format!("; the list needs {needed} descriptors, the limit is {limit}")
        }
        Some(Shortage { needed, limit: None }) => format!("; the list needs {needed} descriptors"),
        None => String::new(),
    })]
pub struct OpenError {
    /// The event's name, as fallbacks left it.
    pub event: String,
    /// What the kernel was given at last.
    pub attr: Box<perf_event_attr>,
    /// Its index in the plan.
    pub index: usize,
    /// The task, unless all, or where it does not matter.
    pub task: Option<i32>,
    /// The CPU, unless any, or where it does not matter.
    pub cpu: Option<i32>,
    /// What failed.
    pub stage: Stage,
    /// How many descriptors would have been enough, if it was their number.
    pub shortage: Option<Shortage>,
    /// Why, in the kernel's words.
    pub source: io::Error,
}
