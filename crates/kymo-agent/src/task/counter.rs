//! The counters of tasks, and their names.
use std::fmt;

/// Something that is counted for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Counter {
    /// Nanoseconds that the thread was on a CPU, as the kernel counts it; not what a poll took.
    CpuTime,
    /// Allocations, where the program's allocator is [`Counting`](crate::alloc::Counting).
    Allocations,
    /// Bytes asked for by them.
    AllocatedBytes,
    /// A counter of the processor, of user code only.
    Hardware(Hardware),
    /// What the program counts itself by [`count`](super::count), by number from 0 to
    /// [`OWN_COUNTERS`](super::OWN_COUNTERS) - 1. Probes inside the process count their hits here,
    /// too.
    Own(u8),
}

/// Counters of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are perf's")]
pub enum Hardware {
    Cycles,
    Instructions,
    CacheReferences,
    CacheMisses,
    Branches,
    BranchMisses,
}

impl Hardware {
    pub(super) const ALL: [Hardware; 6] = [
        Hardware::Cycles,
        Hardware::Instructions,
        Hardware::CacheReferences,
        Hardware::CacheMisses,
        Hardware::Branches,
        Hardware::BranchMisses,
    ];

    /// Its number among `PERF_COUNT_HW_*`.
    pub(super) fn config(self) -> u64 {
        self as u64
    }
}

const HARDWARE: [&str; 6] =
    ["cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses"];

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counter::CpuTime => f.write_str("cpu-time"),
            Counter::Allocations => f.write_str("allocations"),
            Counter::AllocatedBytes => f.write_str("allocated-bytes"),
            Counter::Hardware(counter) => f.write_str(HARDWARE[*counter as usize]),
            Counter::Own(number) => write!(f, "own:{number}"),
        }
    }
}
