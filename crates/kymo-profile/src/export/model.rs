//! What every export starts from: a profile as plain values.
use kymo_data::SamplingPeriod;
use kymo_symbols::pool;
use serde::Serialize;

/// Version of the JSON report and of the page's data. It grows when a field changes its meaning or goes away; new
/// fields alone do not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// The parent of a root node.
pub const NO_PARENT: u32 = u32::MAX;

/// The CPU of a timeline entry whose samples did not say on which CPU they were taken.
pub const NO_CPU: u32 = u32::MAX;

/// A recording, aggregated: who recorded what, and per event the call tree and the samples over time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportProfile {
    /// The heading, for example the command's name; empty makes writers use "kymo profile".
    pub title: String,
    /// The recorder's command line, one item per argument; empty if the recording does not say.
    pub command_line: Vec<String>,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture, as `uname -m` says it.
    pub arch: String,
    /// CPU model.
    pub cpu: String,
    /// Online CPUs, 0 if unknown.
    pub cpus_online: u32,
    /// The program that wrote the recording and its version, for example "kymo 0.1.0" or "perf 6.1.187".
    pub recorder: String,
    /// Where the recording was read from, as the user named it.
    pub source: String,
    /// Wall-clock time at the start, nanoseconds since 1970 UTC, if the recording knows it.
    pub start_unix_ns: Option<u64>,
    /// When the recording was last written to, nanoseconds since 1970 UTC: what is left where `start_unix_ns` is not known.
    pub written_unix_ns: Option<u64>,
    /// Time of the first sample on the recording's own clock, in nanoseconds.
    pub start_ns: u64,
    /// From the first sample to the last, in nanoseconds.
    pub duration_ns: u64,
    /// What an imported profile says was counted from one sample to the next.
    #[serde(skip)]
    pub sampling: Option<SamplingPeriod>,
    /// Functions of all events; nodes refer to them by index.
    pub functions: Vec<Function>,
    /// Threads of all events; timeline entries refer to them by index.
    pub threads: Vec<Thread>,
    /// One per event, in the order of the recording.
    pub events: Vec<ExportEvent>,
    /// What was lost, by cause. Empty, or all zero: nothing was lost.
    pub loss: Vec<Loss>,
    /// Stretches of time in which something other than the program shaped the profile.
    pub intervals: Vec<Interval>,
    /// Sentences for the reader, for example about missing symbols.
    pub notes: Vec<String>,
}

/// One thing that was counted or sampled.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportEvent {
    /// The event's name as in the recording, for example "cycles:u".
    pub name: String,
    /// What the period counts: "ns" for clocks, else the plural of the event ("cycles", "faults")
    /// or the unit of an imported profile ("bytes"); empty means "events".
    pub unit: String,
    /// Each record is the sum of all samples of a stack, and how many those were is not known: of
    /// imported profiles.
    #[serde(skip)]
    pub is_of_sums: bool,
    /// What an imported profile calls the number of samples; empty: it does not say.
    #[serde(skip)]
    pub samples_type: String,
    /// Samples of this event.
    pub total_samples: u64,
    /// Sum of the samples' periods.
    pub total_period: u64,
    /// The call tree.
    pub stacks: StackTree,
    /// Samples over time; empty where there are no time stamps.
    pub timeline: Timeline,
    /// Waits of threads and what ended them, the longest first; of wall time only.
    pub links: Vec<Link>,
}

/// A wait of a thread, and what ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Index into [`ExportProfile::threads`].
    pub thread: u32,
    /// When it began, ns from [`ExportProfile::start_ns`] on.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What it was for.
    pub state: &'static str,
    /// The thread that ended it, if it is one of [`ExportProfile::threads`].
    pub waker: Option<u32>,
    /// What ended it, in words.
    pub by: String,
}

/// A function, a kernel function, a command: anything that can be one frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Function {
    /// Demangled name; for frames without a symbol an address or `[unknown]`.
    pub name: String,
    /// Short name of the module it lies in (`libc.so.6`, `[kernel]`); empty for [`FunctionKind::Comm`].
    pub module: String,
    /// Source file, if debug information says.
    pub file: Option<String>,
    /// Source line of the function or of its hottest call, if debug information says.
    pub line: Option<u32>,
    /// Where the code runs.
    pub kind: FunctionKind,
}

/// What sort of frame a function is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionKind {
    /// Code in user space.
    User,
    /// Code in the kernel or one of its modules.
    Kernel,
    /// A user function that the compiler inlined into its caller.
    Inline,
    /// No symbol was found.
    #[default]
    Unknown,
    /// Not code: the command name that heads each stack.
    Comm,
    /// Not code: what a thread did or waited for, which ends a stack of wall time.
    State,
}

/// A call tree: each node is a function called along one path from the root.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StackTree {
    /// Parents come before their children (E1).
    pub nodes: Vec<Node>,
}

/// A place in the call tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Index of the caller's node, or [`NO_PARENT`].
    pub parent: u32,
    /// Index into [`ExportProfile::functions`].
    pub function: u32,
    /// Samples taken exactly here, not below.
    pub self_samples: u64,
    /// Sum of those samples' periods.
    pub self_period: u64,
}

/// A thread that was sampled.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Thread {
    /// Process id.
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// Its command name (the last one seen).
    pub comm: String,
    /// Samples of all events.
    pub samples: u64,
    /// How many processes had its process number before, in this recording.
    #[serde(skip)]
    pub earlier_processes: u32,
}

impl Thread {
    /// Process and thread numbers for formats that know threads by their numbers alone: those of a
    /// later process with the number of an earlier one are moved beyond all that Linux gives.
    pub fn distinct_ids(&self) -> (i32, i32) {
        const MOST_THREADS: i32 = 1 << 22;
        let moved = |id: i32| id.saturating_add(MOST_THREADS.saturating_mul(self.earlier_processes as i32));
        (moved(self.pid), moved(self.tid))
    }
}

/// Samples over time, counted in buckets of equal length.
///
/// Fine buckets (one sample each) and coarse ones have the same form; [`Timeline::coarsen`] goes from one to the other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timeline {
    /// Length of a bucket in nanoseconds; bucket 0 begins at [`ExportProfile::start_ns`].
    pub bucket_ns: u64,
    /// Counts, in any order; the same place may occur more than once.
    pub entries: Vec<TimelineEntry>,
}

/// So many samples at one place of the call tree, in one bucket of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineEntry {
    /// `(time - start_ns) / bucket_ns`.
    pub bucket: u32,
    /// Index into [`ExportProfile::threads`].
    pub thread: u32,
    /// The CPU, or [`NO_CPU`].
    pub cpu: u32,
    /// Index into the event's [`StackTree::nodes`]: where the samples were taken.
    pub node: u32,
    /// Number of samples.
    pub samples: u32,
    /// Sum of their periods.
    pub period: u64,
}

/// How many samples or records were lost for one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The cause in a few words, for example "ring buffer full".
    pub cause: String,
    /// How many.
    pub count: u64,
}

/// A marked stretch of time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    /// What happened in it.
    pub kind: IntervalKind,
    /// Begin on the recording's clock, nanoseconds.
    pub start_ns: u64,
    /// End on the recording's clock, nanoseconds.
    pub end_ns: u64,
    /// Records lost in it, 0 where that is not what it is about.
    pub count: u64,
}

/// Why a stretch of time is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IntervalKind {
    /// Records were lost somewhere in it.
    Loss,
    /// The target was stopped instead of losing records.
    Pause,
    /// The kernel throttled the event.
    Throttle,
}

impl ExportProfile {
    /// Sum of everything that was lost.
    pub fn lost(&self) -> u64 {
        self.loss.iter().fold(0, |sum, loss| sum.saturating_add(loss.count))
    }

    /// The heading: the title, or a plain one where there is none.
    pub fn heading(&self) -> &str {
        if self.title.is_empty() { "kymo profile" } else { &self.title }
    }
}

impl ExportEvent {
    /// What the period counts, never empty.
    pub fn unit(&self) -> &str {
        if self.unit.is_empty() { "events" } else { &self.unit }
    }

    /// The unit as pprof and OTLP write it.
    pub fn unit_of_values(&self) -> &str {
        match &*self.unit {
            "" => "count",
            "ns" => "nanoseconds",
            unit => unit,
        }
    }
}

impl Timeline {
    /// Sorts the entries, adds up those that share bucket, thread, CPU and node, and doubles the bucket length until at
    /// most `limit` are left or the timeline would have fewer than `min_buckets` buckets.
    pub fn coarsen(&mut self, limit: usize, min_buckets: u32) {
        self.merge();
        loop {
            let last = self.entries.last().map_or(0, |e| e.bucket);
            if self.entries.len() <= limit || last / 2 + 1 < min_buckets.max(1) {
                return;
            }
            self.bucket_ns = self.bucket_ns.saturating_mul(2);
            for entry in &mut self.entries {
                entry.bucket /= 2;
            }
            self.merge();
        }
    }

    fn merge(&mut self) {
        pool::sort_by_key(&mut self.entries, |e| (e.bucket, e.thread, e.cpu, e.node, e.samples, e.period));
        self.entries.dedup_by(|next, kept| {
            let same = (next.bucket, next.thread, next.cpu, next.node)
                == (kept.bucket, kept.thread, kept.cpu, kept.node);
            // Two counts that do not fit together stay apart.
            match kept.samples.checked_add(next.samples) {
                Some(samples) if same => {
                    kept.samples = samples;
                    kept.period = kept.period.saturating_add(next.period);
                    true
                }
                _ => false,
            }
        });
    }
}
