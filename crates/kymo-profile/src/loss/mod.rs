//! What a recording lost, ring by ring and moment by moment.
//!
//! *You give it* a [`kymo_data::Recording`], kymo's or perf's; *it gives you* a [`LossTimeline`]: for every ring the
//! samples and bytes over time, the stretches of time in which records were lost, throttling and pauses, and for every
//! event how many samples were kept and lost. [`text`], [`json`] and [`picture`] show it.
//!
//! ```text
//!  ring of CPU 0   rec rec rec . . . . . . LOST rec rec rec rec . . LOST rec
//!                           |<--- lost --->|                 |<-lost->|
//!  ring of CPU 1   rec    rec    rec    rec    rec    rec . . . . . . . . . (end; LOST_SAMPLES tell more than LOST)
//!                                                     |<---- lost ---->|
//!  any ring                 |<--- lost --->|          |<---- lost ---->|
//!  |<-------------------------------- elapsed ------------------------>|
//! ```
//!
//! # What a lost interval is
//! The kernel cannot write down when it drops a record. It counts, and when the ring has room again it writes a LOST
//! record before the next one. So records were lost somewhere between the ring's record before and that moment:
//! - The interval of a LOST record goes from the time of the record before it **in its ring** to its own time. Before
//!   a LOST that is the ring's first record, the interval begins with the recording.
//! - A ring that lost after its last record has nobody to tell. Where the LOST_SAMPLES of its events count more than
//!   its LOST records, an interval goes from its last record to the recording's end.
//! - *Lost time* of a ring is the length of the union of its intervals; that of *any ring* the length of the union
//!   over all rings. *Elapsed* goes from the first time in the recording to the last, and is the same for all rings.
//! - Intervals are the outer bound of what is known: a ring that lost one record in an idle second lost a second.
//!
//! A ring is a CPU where records tell theirs, or where their id does (ID_INDEX). Else it is a file of a
//! `--threads` directory, or everything is one ring and the intervals of rings that took turns are too short.
//! Records without a time (made up by the recorder) are in no ring's time and bytes; losses without one are counted.
//!
//! # Invariants
//! - **L1** The result depends on the recording only, not on the number of threads or how chunks went to them.
//! - **L2** Bins are [`LossTimeline::bin_ns`] wide, a power of two, and begin at multiples of it on the recording's
//!   clock. So bins of two workers merge without a remainder, and the width depends on the time span alone.
//! - **L3** Lost time of a ring is at most elapsed; of any ring at least the most of one ring, at most the sum.
//! - **L4** Memory is bounded: bins by [`MOST_BINS`] per ring and fewer with many rings, intervals by
//!   [`MOST_INTERVALS`] (beyond: [`LossTimeline::estimated`]), and 40 bytes for each ring in each MiB of the file.
//!
//! # Non-goals
//! Who lost (processes, stacks): what is lost is not known. Losses that no record tells of (AUX data).
mod bins;
pub mod json;
#[cfg(test)]
mod model;
pub mod picture;
mod scan;
mod stretch;
#[cfg(test)]
mod tests;
pub mod text;

pub use bins::{Cell, MOST_BINS};
pub use scan::scan;
pub use stretch::Stretch;

/// So many lost intervals are kept one by one, over all rings.
pub const MOST_INTERVALS: usize = 1 << 20;

/// CPU numbers from here on are nonsense: no kernel is built for more.
const MOST_CPUS: u32 = 8192;

/// What stands for a ring buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ring {
    /// The ring of a CPU.
    Cpu(u32),
    /// The ring whose records are in `data.N` of a directory, N + 1 here.
    Part(u32),
    /// Records that tell neither.
    Unknown,
}

impl std::fmt::Display for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ring::Cpu(cpu) => write!(f, "CPU {cpu}"),
            Ring::Part(part) => write!(f, "data.{}", part.saturating_sub(1)),
            Ring::Unknown => f.write_str("no CPU told"),
        }
    }
}

/// What one ring kept and lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingLoss {
    /// Which ring.
    pub ring: Ring,
    /// Samples kept.
    pub samples: u64,
    /// Bytes of records kept that have a time.
    pub bytes: u64,
    /// Records that LOST records say were lost.
    pub lost_records: u64,
    /// LOST records.
    pub lost_chunks: u64,
    /// Samples that LOST_SAMPLES records say were lost, where they tell the ring. They count what
    /// [`lost_records`](Self::lost_records) counts, and what was lost at the end.
    pub lost_samples: u64,
    /// Lost time, ns.
    pub lost_ns: u64,
    /// Times an event was throttled.
    pub throttles: u64,
    /// Time in which an event was throttled, ns.
    pub throttled_ns: u64,
    /// The ring over time: bin `i` begins at [`LossTimeline::start_of`]`(i)`.
    pub cells: Vec<Cell>,
}

impl RingLoss {
    /// Records lost: those that LOST records tell of, and what was lost after the last of them.
    pub fn lost(&self) -> u64 {
        self.lost_records.max(self.lost_samples)
    }
}

/// What one event kept and lost. The JSON account has these fields in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct EventLoss {
    /// Its name as recorded: escape it.
    pub name: String,
    /// Samples kept.
    pub samples: u64,
    /// Samples lost as the kernel counted them (LOST_SAMPLES). For an event that takes no samples: names and mappings.
    pub lost_samples: u64,
    /// Times it was throttled.
    pub throttles: u64,
}

/// A recording's losses over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossTimeline {
    /// The rings: CPUs by number, then parts of a directory, then what tells neither.
    pub rings: Vec<RingLoss>,
    /// The events, in the recording's order.
    pub events: Vec<EventLoss>,
    /// First and last time in the recording, ns; `None` where no record has one.
    pub span: Option<(u64, u64)>,
    /// Width of a bin, ns: a power of two.
    pub bin_ns: u64,
    /// Number of the first bin; all rings have the same.
    pub first_bin: u64,
    /// Lost time of any ring by bin, ns.
    pub any_cells: Vec<u64>,
    /// Time in which any ring lost, ns.
    pub any_lost_ns: u64,
    /// There were more than [`MOST_INTERVALS`], so lost time is an upper bound made from bins.
    pub estimated: bool,
    /// Lost intervals by ring, in order and disjoint; empty if `estimated`.
    pub lost: Vec<(Ring, Stretch)>,
    /// Throttled intervals by ring, in order and disjoint.
    pub throttled: Vec<(Ring, Stretch)>,
    /// Intervals in which the recorder held the target, in order and disjoint.
    pub pauses: Vec<Stretch>,
    /// Intervals in which a CPU was not observed although it was there for a part of them, in
    /// order. What ran there may be missing; how many samples that were is not known.
    pub cpu_gaps: Vec<(Ring, Stretch)>,
    /// What walking user stacks while recording came to; `None`: the recorder did not, or has not said.
    pub unwound: Option<kymo_data::UnwindCounts>,
    /// Samples lost whose ring is not told (LOST_SAMPLES).
    pub unplaced_lost_samples: u64,
    /// Samples whose id no event has.
    pub unknown_ids: u64,
    /// Damage that was found while reading.
    pub problems: Vec<kymo_data::Problem>,
}

impl LossTimeline {
    /// From the first time in the recording to the last, ns.
    pub fn elapsed_ns(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last - first)
    }

    /// When a bin begins, ns of the recording's clock.
    pub fn start_of(&self, bin: usize) -> u64 {
        (self.first_bin + bin as u64).saturating_mul(self.bin_ns)
    }

    /// Samples kept.
    pub fn samples(&self) -> u64 {
        self.events.iter().map(|e| e.samples).sum()
    }

    /// Records that LOST records say were lost.
    pub fn lost_records(&self) -> u64 {
        self.rings.iter().fold(0, |sum, r| sum.saturating_add(r.lost_records))
    }

    /// LOST records.
    pub fn lost_chunks(&self) -> u64 {
        self.rings.iter().map(|r| r.lost_chunks).sum()
    }

    /// Samples that LOST_SAMPLES records say were lost.
    pub fn lost_samples(&self) -> u64 {
        self.events.iter().fold(0, |sum, e| sum.saturating_add(e.lost_samples))
    }

    /// Records that were lost after the last LOST record of their ring: only LOST_SAMPLES tell of them.
    pub fn lost_late(&self) -> u64 {
        self.lost_samples().saturating_sub(self.lost_records())
    }

    /// Records lost in all.
    pub fn lost(&self) -> u64 {
        self.lost_records().max(self.lost_samples())
    }

    /// Times an event was throttled.
    pub fn throttles(&self) -> u64 {
        self.rings.iter().map(|r| r.throttles).sum()
    }

    /// Time in which the recorder held the target, ns.
    pub fn paused_ns(&self) -> u64 {
        self.pauses.iter().map(Stretch::len_ns).sum()
    }

    /// Time in which a CPU was not observed, ns, over all CPUs.
    pub fn cpu_gaps_ns(&self) -> u64 {
        self.cpu_gaps.iter().map(|(_, stretch)| stretch.len_ns()).fold(0, u64::saturating_add)
    }

    /// Share of records that were lost, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        share(self.lost(), self.lost().saturating_add(self.samples()))
    }

    /// Lost time over elapsed time of a ring, 0 to 1.
    pub fn lost_time_share(&self, ring: &RingLoss) -> f64 {
        share(ring.lost_ns, self.elapsed_ns())
    }

    /// Lost time over elapsed time, 0 to 1: the mean of all rings.
    pub fn mean_lost_time_share(&self) -> f64 {
        let sum: f64 = self.rings.iter().map(|r| self.lost_time_share(r)).sum();
        sum / self.rings.len().max(1) as f64
    }

    /// Time in which any ring lost over elapsed time, 0 to 1: one timeline for the whole machine.
    pub fn any_lost_time_share(&self) -> f64 {
        share(self.any_lost_ns, self.elapsed_ns())
    }

    /// Whether the recording tells of no loss, no throttling and no CPU that was not observed.
    pub fn is_clean(&self) -> bool {
        self.lost() == 0 && self.throttles() == 0 && self.cpu_gaps.is_empty()
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}
