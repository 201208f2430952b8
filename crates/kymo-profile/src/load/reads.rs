//! Periods of groups that read their members' counters (`{a,b}:S`).
//!
//! Such a sample carries every member's running total; what happened since the last sample is the difference, per
//! counter. Differences need order, so all reads are kept and sorted: 40 bytes for each counter of each sample.

use kymo_data::Event;
use rustc_hash::FxHashMap;

use crate::timeline::Moment;

/// One counter's total at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Read {
    pub(super) id: u64,
    pub(super) moment: Moment,
    pub(super) value: u64,
}

/// What each counter moved since its sample before.
#[derive(Debug, Default)]
pub(crate) struct ReadPeriods {
    by_place: FxHashMap<(u64, u64), u64>,
}

impl ReadPeriods {
    pub(super) fn new(mut reads: Vec<Read>) -> ReadPeriods {
        reads.sort_unstable();
        let mut by_place = FxHashMap::with_capacity_and_hasher(reads.len(), Default::default());
        let mut last = (u64::MAX, 0);
        for read in reads {
            let before = if last.0 == read.id { last.1 } else { 0 };
            by_place.insert((read.moment.position, read.id), read.value.wrapping_sub(before));
            last = (read.id, read.value);
        }
        ReadPeriods { by_place }
    }

    /// Whether an event's periods come from here.
    pub(super) fn applies(&self, event: &Event) -> bool {
        super::counts_by_reading(event)
    }

    /// What counter `id` moved up to the sample at `position`.
    pub(crate) fn period(&self, position: u64, id: u64) -> u64 {
        self.by_place.get(&(position, id)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that differences follow time per counter, in whatever order the reads were collected.
    #[test]
    fn differences_follow_time() {
        let read = |id, time_ns, position, value| Read { id, moment: Moment { time_ns, position }, value };
        let periods = ReadPeriods::new(vec![
            read(1, 30, 300, 17),
            read(2, 10, 100, 1000),
            read(1, 10, 100, 5),
            read(1, 20, 200, 12),
            read(2, 20, 200, 1000),
        ]);
        assert_eq!([100, 200, 300].map(|p| periods.period(p, 1)), [5, 7, 5]);
        assert_eq!([100, 200].map(|p| periods.period(p, 2)), [1000, 0]);
        assert_eq!(periods.period(999, 1), 0, "an unknown sample moved nothing");
    }
}
