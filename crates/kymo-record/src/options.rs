//! What to record, as the user asked for it.
use crate::output::Output;
use crate::scope::Scope;
use kymo_perf::bpf::{FutexOptions, WaitOptions};
use kymo_perf::selector::Selected;
use std::ffi::OsString;
use std::time::Duration;

/// How often events sample, unless an event says it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many samples per second, but the natural period for events that have one (1 for
    /// tracepoints and breakpoints).
    Default(u64),
    /// So many samples per second.
    Frequency(u64),
    /// A sample every so many events.
    Period(u64),
}

/// How call chains are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallGraph {
    /// As suits each event: by unwind data, from copies as large as the load permits, where it samples by time; along
    /// frame pointers where it samples every so many events, where nothing unwinds while recording (flight recorders,
    /// other machines than x86-64), and where the rings are too small for copies.
    Auto,
    /// Not at all.
    None,
    /// By the kernel, along frame pointers.
    FramePointers,
    /// By unwind data, from a copy of the user stack: while recording, or later (see
    /// [`Options::raw_stacks`]).
    Dwarf {
        /// Size of the copy: a multiple of 8, at most 65,528.
        stack_bytes: u32,
    },
}

impl CallGraph {
    /// The usual size of a stack copy.
    pub const DEFAULT_STACK_BYTES: u32 = 8192;
}

/// The clock of the recording's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingClock {
    /// CLOCK_REALTIME.
    Realtime,
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// CLOCK_MONOTONIC_RAW.
    MonotonicRaw,
    /// CLOCK_BOOTTIME.
    Boottime,
    /// CLOCK_TAI.
    Tai,
}

impl RecordingClock {
    /// The kernel's number.
    pub fn id(self) -> i32 {
        match self {
            RecordingClock::Realtime => 0,
            RecordingClock::Monotonic => 1,
            RecordingClock::MonotonicRaw => 4,
            RecordingClock::Boottime => 7,
            RecordingClock::Tai => 11,
        }
    }

    /// The clock of this name, as perf spells them.
    pub fn parse(name: &str) -> Option<RecordingClock> {
        let name = name.to_ascii_lowercase();
        Some(match name.strip_prefix("clock_").unwrap_or(&name) {
            "realtime" | "real" => RecordingClock::Realtime,
            "monotonic" | "mono" => RecordingClock::Monotonic,
            "monotonic_raw" | "raw" => RecordingClock::MonotonicRaw,
            "boottime" | "boot" => RecordingClock::Boottime,
            "tai" => RecordingClock::Tai,
            _ => return None,
        })
    }
}

/// The mode of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMode {
    /// Programs and libraries.
    User,
    /// The kernel.
    Kernel,
}

/// Fields of samples beside those that every recording has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleFields {
    /// `PERF_SAMPLE_*` bits of fields that need nothing else.
    pub bits: u64,
    /// The last branches: `PERF_SAMPLE_BRANCH_*` bits say which.
    pub branches: Option<u64>,
    /// User registers, one bit each ([`Registers`](kymo_data::Registers)).
    pub user_registers: u64,
    /// Registers at the interrupt.
    pub interrupt_registers: u64,
    /// How long each event was on its counter, where a whole group is read at a sample.
    pub running_time: bool,
}

/// What is recorded of processes beside their names, forks, ends and mappings of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// Mappings of data.
    pub data_mappings: bool,
    /// No mappings of data, not even for unwinding. Programs map much more data than code. In return
    /// a library that was unloaded counts as mapped until other code is mapped at its place.
    pub only_code: bool,
    /// The namespaces of each process.
    pub namespaces: bool,
    /// The paths of cgroups; samples say which one they are of.
    pub cgroups: bool,
    /// Not the programs of BPF.
    pub no_bpf: bool,
    /// Build ids in records of mappings, in place of device and inode, where the kernel has them.
    pub build_ids: bool,
}

/// What is listed of processes and cgroups that were there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthesis {
    /// Processes and threads.
    pub tasks: bool,
    /// Their mappings.
    pub mappings: bool,
    /// The paths of cgroups.
    pub cgroups: bool,
}

impl Default for Synthesis {
    fn default() -> Synthesis {
        Synthesis { tasks: true, mappings: true, cgroups: true }
    }
}

/// When sampling begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// This long after the start.
    After(Duration),
    /// Not by itself.
    Disabled,
}

/// Whom to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSpec {
    /// A command to start; the others decide what is observed if any is given.
    pub command: Vec<OsString>,
    /// Processes.
    pub pids: Vec<i32>,
    /// What these processes have started already, too.
    pub children: bool,
    /// Threads.
    pub tids: Vec<i32>,
    /// All processes of this user.
    pub uid: Option<u32>,
    /// Everything.
    pub all: bool,
    /// Everything on these CPUs.
    pub cpus: Vec<u32>,
    /// Of everything on these CPUs only what is in this cgroup.
    pub cgroup: Option<String>,
    /// One ring per thread instead of one per CPU.
    pub per_thread: bool,
}

/// What gives way when samples come faster than they can be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// The target: the recorder runs before it, and it goes slower.
    #[default]
    Slow,
    /// Completeness: the recorder has no priority over the target; what it cannot keep is lost and
    /// counted.
    Drop,
    /// The target's progress: it stands still while the recorder catches up. Not for whole CPUs.
    Pause,
}

/// What a flight recorder leaves at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastSnapshot {
    /// A snapshot, in the file of the plain name.
    #[default]
    Plain,
    /// A snapshot, named as those before it.
    Dated,
    /// Nothing: there are the snapshots that were asked for.
    Not,
}

/// What to record, as asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The events.
    pub events: Vec<Selected>,
    /// How often they sample.
    pub rate: Rate,
    /// Call chains.
    pub call_graph: CallGraph,
    /// Whom to observe.
    pub targets: TargetSpec,
    /// How to bind events to the targets; `None`: the cheapest way that is permitted.
    pub scope: Option<Scope>,
    /// How many workers open events: `None` decides by their number, 1 opens them one after the
    /// other.
    pub jobs: Option<usize>,
    /// Follow children; `None`: yes, except for single threads.
    pub inherit: Option<bool>,
    /// Data pages of each ring, a power of two; `None`: the kernel's allowance, and smaller if that
    /// is refused.
    pub ring_pages: Option<usize>,
    /// Data addresses in samples, and data mappings.
    pub data: bool,
    /// Context switch records.
    pub switch_events: bool,
    /// Where threads wait: what they wait for, for how long, and who wakes them. It needs programs
    /// in the kernel, and [`Scope::Filtered`] or whole CPUs.
    pub waits: Option<WaitOptions>,
    /// How long threads wait for each futex, with stacks of those that waited and of those that
    /// woke them. It needs programs in the kernel, and [`Scope::Filtered`] or whole CPUs; not with
    /// `waits`.
    pub locks: Option<FutexOptions>,
    /// With `locks`: how long they are held is told by a
    /// [`HoldSource`](crate::Session::with_holds).
    pub holds: bool,
    /// What the command has in its environment besides what this process has.
    pub environment: Vec<(&'static str, OsString)>,
    /// The command reads and writes nothing: its standard streams are `/dev/null`.
    pub silent_command: bool,
    /// Further fields of samples.
    pub fields: SampleFields,
    /// Further records of processes.
    pub tracking: Tracking,
    /// What was there before.
    pub synthesis: Synthesis,
    /// Sample in this mode only.
    pub mode: Option<CpuMode>,
    /// Record the part of call chains in this mode only.
    pub chain_mode: Option<CpuMode>,
    /// Wake the drains for each sample.
    pub unbuffered: bool,
    /// Fail if the kernel does not permit so many samples per second.
    pub strict_frequency: bool,
    /// Rings keep the newest records instead of the oldest, and are written as snapshots: on
    /// request and at the end. The same as the term `overwrite` of every event.
    pub overwrite: bool,
    /// With `overwrite`: rings hold the samples of about so long, where that much memory is
    /// permitted and [`Options::ring_pages`] says nothing.
    pub ring_reach: Option<Duration>,
    /// With `overwrite`: what is taken at the end.
    pub last_snapshot: LastSnapshot,
    /// Raw bytes in samples of all events (tracepoints always have them).
    pub raw: bool,
    /// The CPU in samples, also where it is not needed.
    pub sample_cpu: bool,
    /// The period in samples, also where it is fixed.
    pub period: bool,
    /// Counts and times of each event in reads.
    pub counts: bool,
    /// Keep copies of stacks as they are, instead of unwinding them while recording.
    pub raw_stacks: bool,
    /// Python's functions take the place of the native frames that run them, where stacks are
    /// unwound while recording and programs may be loaded into the kernel.
    pub python: bool,
    /// Take no samples, only count.
    pub no_samples: bool,
    /// When sampling begins.
    pub delay: Option<Delay>,
    /// How long it goes on at most, from when it begins.
    pub duration: Option<Duration>,
    /// The clock of times; `None`: the kernel's own.
    pub clock: Option<RecordingClock>,
    /// Compress records with zstd at this level.
    pub compress: Option<i32>,
    /// What gives way under overload.
    pub overload: Overload,
    /// Rings and buffers take at most so many bytes; `None`: rings as large as they are, and 128
    /// MiB of buffers.
    pub max_memory_bytes: Option<u64>,
    /// That is a share of the cgroup's limit, and was not asked for.
    pub limited_by_cgroup: bool,
    /// Unwind data of mapped files may take so many bytes; beyond that further files are treated as
    /// having none.
    pub unwind_memory_bytes: u64,
    /// Store build IDs of mapped files.
    pub build_ids: bool,
    /// Programs write events of their own: samples say to which event they belong, and tracking
    /// begins before them.
    pub user_rings: bool,
    /// Java virtual machines are asked for the names of their compiled code.
    pub asks_jvms: bool,
    /// Where to.
    pub output: Output,
    /// The command line, for the recording's header.
    pub cmdline: Vec<String>,
    /// Who records, for the recording's header.
    pub version: String,
}

impl Options {
    /// Whether mappings of data are recorded: by wish, for data addresses, and where stacks are
    /// unwound from copies unless only code is wanted.
    pub(crate) fn data_mappings(&self) -> bool {
        let unwinds = matches!(self.call_graph, CallGraph::Dwarf { .. }) && !self.tracking.only_code;
        self.wants_data_mappings() || unwinds
    }

    /// Whether they are of use when the stacks have been unwound.
    pub(crate) fn wants_data_mappings(&self) -> bool {
        self.data || self.tracking.data_mappings
    }

    /// Whether the ring of this event keeps the newest records.
    pub(crate) fn keeps_newest(&self, event: &Selected) -> bool {
        event.overrides.overwrite.unwrap_or(self.overwrite)
    }

    /// Bytes of unwind data that are kept for all files together, unless something else is said.
    pub const UNWIND_BYTES: u64 = 384 << 20;

    /// The plainest recording: call chains as suits each event, 999 samples per second, everything
    /// else as it is if nobody says anything.
    pub fn new(events: Vec<Selected>, targets: TargetSpec, output: Output) -> Options {
        Options {
            events,
            rate: Rate::Default(999),
            call_graph: CallGraph::Auto,
            targets,
            scope: None,
            jobs: None,
            inherit: None,
            ring_pages: None,
            data: false,
            switch_events: false,
            waits: None,
            locks: None,
            holds: false,
            environment: Vec::new(),
            silent_command: false,
            fields: SampleFields::default(),
            tracking: Tracking::default(),
            synthesis: Synthesis::default(),
            mode: None,
            chain_mode: None,
            unbuffered: false,
            strict_frequency: false,
            overwrite: false,
            ring_reach: None,
            last_snapshot: LastSnapshot::default(),
            raw: false,
            sample_cpu: false,
            period: false,
            counts: false,
            raw_stacks: false,
            python: true,
            no_samples: false,
            delay: None,
            duration: None,
            clock: None,
            compress: None,
            overload: Overload::Slow,
            max_memory_bytes: None,
            limited_by_cgroup: false,
            unwind_memory_bytes: Options::UNWIND_BYTES,
            build_ids: true,
            asks_jvms: true,
            user_rings: false,
            output,
            cmdline: Vec::new(),
            version: String::new(),
        }
    }
}
