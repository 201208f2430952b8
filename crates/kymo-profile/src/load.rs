//! Reading a recording into a profile, in two parallel passes.
//!
//! 1. **Side-band.** Every record that tells who was what is collected, sorted by its moment and
//!    replayed into the [`Timeline`]. Samples are skipped over.
//! 2. **Samples.** Each worker makes a row of each sample (`worker.rs`). Every sample finds its
//!    thread's state by its own moment, so chunks are read in any order, by any number of workers.
//!
//! Rows are counted at once, by what tells samples apart: distinct raw stack, event, thread name,
//! and whatever else was asked for. Or they are kept as [`columns`](crate::columns), where single
//! samples are needed ([`LoadOptions::columns`]); the same counts are then made from the columns.
//!
//! Distinct stacks are merged and resolved once each. Where rows are counted, memory grows with
//! what is distinct; the exception are groups that read their members' counters, where a period is
//! the difference to the read before and so needs all reads in order.
use crate::chains::Chains;
use crate::columns::Columns;
use crate::timeline::{Moment, SideEvent, Timeline, TimelineBuilder};
use kymo_data::{Event, RawRecord, ReadError, ReadSummary, Record, Recording, abi};
use kymo_symbols::SymbolOptions;
use kymo_symbols::unwind::UnwindStats;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::time::Duration;

mod cgroups;
mod first_pass;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod parallelism;
mod reads;
mod short;
mod sideband;
mod spans;
mod tally;
#[cfg(test)]
pub(crate) mod tests;
mod worker;

pub use crate::counts::{Count, Dims, GroupKey, Groups};
pub use crate::extra::{Extra, ExtraId, Extras};
pub use cgroups::{CgroupNames, Cgroups};
pub(crate) use first_pass::FirstPass;
pub use parallelism::Parallelism;
pub(crate) use parallelism::{CpuSwitch, add_untold};
pub(crate) use reads::ReadPeriods;
pub use short::ShortRecords;
pub(crate) use sideband::collect as collect_sideband;
pub use spans::{TimeSpans, TimeSpansError};

/// Which samples are read, and how closely they are told apart.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// What tells samples apart.
    pub dims: Dims,
    /// Call chains are read; without them only the sampled address counts.
    pub callchains: bool,
    /// Call chains of waits are not read: they come from a [`Wall`](crate::wall::Wall).
    pub without_wait_stacks: bool,
    /// Only samples of these CPUs.
    pub cpus: Option<FxHashSet<u32>>,
    /// Only samples of these processes.
    pub pids: Option<FxHashSet<i32>>,
    /// Only samples of these threads.
    pub tids: Option<FxHashSet<i32>>,
    /// Only samples of cgroups of these names, and of what is in them: paths, units, containers or pods.
    pub cgroups: Option<Vec<String>>,
    /// Only samples of these spans of time.
    pub time: Option<TimeSpans>,
    /// Only samples at which so many threads ran; of recordings with context switches.
    pub parallelism: Option<FxHashSet<u32>>,
    /// Each period is divided by how many threads ran, too; of recordings with context switches.
    pub latency: bool,
    /// Single samples are kept, as [`Loaded::columns`]: some 15 to 30 bytes each, and half as much
    /// again while they are put in order.
    pub columns: bool,
    /// Worker threads; 0 means one per CPU.
    pub workers: usize,
}

impl LoadOptions {
    /// Whether a moment of a thread is not wanted, by its process, its number or its time.
    pub(crate) fn excludes(&self, pid: i32, tid: i32, time_ns: u64) -> bool {
        let is_out =
            |set: &Option<FxHashSet<i32>>, id: i32| set.as_ref().is_some_and(|set| !set.contains(&id));
        self.time.as_ref().is_some_and(|spans| !spans.contains(time_ns))
            || is_out(&self.pids, pid)
            || is_out(&self.tids, tid)
    }
}

/// Losses and other facts that the records tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records by type, for `--stats`.
    pub by_type: std::collections::BTreeMap<u32, u64>,
    /// Records that the kernel dropped because a ring was full (LOST).
    pub lost_records: u64,
    /// LOST records.
    pub lost_chunks: u64,
    /// LOST records that say when they were written, by time.
    pub lost_at: Vec<LostAt>,
    /// Samples lost as the kernel counted them per event (LOST_SAMPLES). What
    /// [`lost_records`](Self::lost_records) says is counted in here again.
    pub lost_samples: u64,
    /// Times the kernel throttled an event.
    pub throttled: u64,
    /// Samples whose id no event has.
    pub unknown_ids: u64,
    /// The cgroups that records tell of.
    pub cgroups: Cgroups,
    /// Records that are too short for their type, by type.
    pub short: ShortRecords,
}

/// Where a ring lost records: after the CPU's record before, until this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostAt {
    /// When the kernel could tell it, ns of the recording's clock.
    pub time_ns: u64,
    /// Whose ring it was, `u32::MAX` if not recorded.
    pub cpu: u32,
    /// Records lost.
    pub lost: u64,
}

/// How long the parts of reading took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// The first pass, and replaying what it found.
    pub sideband: Duration,
    /// The second pass.
    pub samples: Duration,
    /// Putting the workers' counts together.
    pub merge: Duration,
}

/// A recording as counts.
#[derive(Debug)]
pub struct Loaded {
    /// Who was what, when.
    pub timeline: Arc<Timeline>,
    /// Distinct raw stacks.
    pub chains: Chains,
    /// What [`GroupKey::extra`] stands for.
    pub extras: Extras,
    /// Samples by what they share, in a fixed order.
    pub groups: Vec<(GroupKey, Count)>,
    /// Totals by event.
    pub totals: Vec<Count>,
    /// Single samples by time, if asked for.
    pub columns: Option<Columns>,
    /// Samples taken while one thread ran. All samples, unless [`LoadOptions`] need the number of
    /// threads that ran.
    pub single_threaded: u64,
    /// First and last time of a sample, ns.
    pub time_range: Option<(u64, u64)>,
    /// What the records tell besides.
    pub counts: RecordCounts,
    /// What the reader saw (problems of the file).
    pub summary: ReadSummary,
    /// How stack unwinding ended, where the recording holds stacks.
    pub unwind: UnwindStats,
    /// How long it took.
    pub times: LoadTimes,
}

/// Tells how far a pass is: pass (0 or 1), bytes done, bytes in all.
pub type Progress<'a> = &'a (dyn Fn(u32, u64, u64) + Sync);

/// Reads a recording.
///
/// # Errors
/// When the file cannot be read at all. Damage inside it is not an error: see [`Loaded::summary`].
pub fn load(
    recording: &Recording,
    options: &LoadOptions,
    progress: Progress<'_>,
) -> Result<Loaded, ReadError> {
    FirstPass::read(recording, options, &SymbolOptions::default(), progress)?.samples(progress, &|_| {})
}

/// Whether an event's samples carry counter values whose differences are the periods.
pub(crate) fn counts_by_reading(event: &Event) -> bool {
    event.attr.sample_type & abi::PERF_SAMPLE_READ != 0
}
