//! Periods of groups that read their members' counters (`{a,b}:S`).
//!
//! Such a sample carries every member's running total; what happened since the last sample is the difference, per
//! counter. Differences need order, so all reads are kept and sorted: 40 bytes for each counter of each sample.
//!
//! Since Linux 6.13 events that children inherit may be read, too. Each thread then has a total of its own under the same
//! id, so a counter is known by id and thread there.
use crate::timeline::Moment;
use rustc_hash::FxHashMap;

/// One counter's total at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Read {
    pub(super) id: u64,
    /// The thread that it counts, of an event that is inherited; 0 of others.
    pub(super) tid: i32,
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
        let mut last = None;
        for read in reads {
            let before =
                last.filter(|&(counter, _)| counter == (read.id, read.tid)).map_or(0, |(_, value)| value);
            // A total never shrinks: a smaller one is that of a new counter (a thread that got the id of one that is
            // gone, a counter that was reset), which began at 0.
            let moved = read.value.checked_sub(before).unwrap_or(read.value);
            by_place.insert((read.moment.position, read.id), moved);
            last = Some(((read.id, read.tid), read.value));
        }
        ReadPeriods { by_place }
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
        let read =
            |id, time_ns, position, value| Read { id, tid: 0, moment: Moment { time_ns, position }, value };
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

    /// Checks that totals of two threads under one id are taken apart, and that a thread which begins again at 0 never gives a
    /// difference beyond 2^63: perf 7.2 on Linux 6.13 and later records such files.
    #[test]
    fn periods_of_inherited_groups_do_not_wrap() {
        let read =
            |tid, time_ns, value| Read { id: 7, tid, moment: Moment { time_ns, position: time_ns }, value };
        let periods = ReadPeriods::new(vec![
            read(1, 10, 100),
            read(2, 20, 3),
            read(1, 30, 140),
            read(2, 40, 9),
            read(2, 50, 4),
        ]);
        assert_eq!([10, 20, 30, 40, 50].map(|p| periods.period(p, 7)), [100, 3, 40, 6, 4]);
    }
}
