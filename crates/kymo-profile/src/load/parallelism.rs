//! How many threads ran at each moment, by the context switches that were recorded.
use kymo_data::{RawRecord, ReadError, Record, Recording, abi};
use rustc_hash::FxHashMap;

/// What a record says of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TaskTurn {
    /// It was made; it does not run yet.
    Made,
    /// It began to run.
    In,
    /// It stopped.
    Out,
    /// It ended; the kernel tells no switch of it.
    Ended,
}

/// A turn of a thread: when, where in the recording, and which.
type Turns = FxHashMap<i32, Vec<(u64, u64, TaskTurn)>>;

/// How many of the recorded threads ran at each moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parallelism {
    /// From each of these times on so many ran, ascending.
    steps: Vec<(u64, u32)>,
}

impl Parallelism {
    /// Whether the recording has context switches, with times.
    pub fn is_recorded(recording: &Recording) -> bool {
        const NEEDED: u64 = abi::ATTR_FLAG_CONTEXT_SWITCH | abi::ATTR_FLAG_SAMPLE_ID_ALL;
        recording.events.list.iter().any(|event| {
            event.attr.flags & NEEDED == NEEDED && event.attr.sample_type & abi::PERF_SAMPLE_TIME != 0
        })
    }

    /// Reads all context switches of a recording: 24 bytes of memory each.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn read(recording: &Recording, workers: usize) -> Result<Parallelism, ReadError> {
        let events = &recording.events;
        let each = |turns: &mut Turns, chunk: &kymo_data::Chunk| {
            for record in chunk.records().flatten() {
                let Some((tid, turn)) = turn_of(&record) else { continue };
                let id = events.sample_id(&record);
                // Without the idle threads, and the last switch of a thread that has ended, told as -1.
                let tid = tid.or(id.tid).filter(|tid| *tid > 0);
                if let (Some(tid), Some(time)) = (tid, id.time) {
                    turns.entry(tid).or_default().push((time, record.position, turn));
                }
            }
        };
        let (all, _) = recording.read_parallel(workers, Turns::default, each, &|_, _| {})?;
        let mut turns = Turns::default();
        for (tid, list) in all.into_iter().flatten() {
            turns.entry(tid).or_default().extend(list);
        }
        Ok(Parallelism::of(turns))
    }

    fn of(mut turns: Turns) -> Parallelism {
        turns.values_mut().for_each(|list| list.sort_unstable());
        let begin = turns.values().filter_map(|list| list.first()).map(|(time, ..)| *time).min();
        let mut changes: Vec<(u64, i32)> = Vec::new();
        for list in turns.values() {
            // Nothing is known before: a thread that stops first ran from the beginning.
            let (mut since, mut known) = (begin, false);
            for &(time, _, turn) in list {
                match turn {
                    TaskTurn::In => since = since.filter(|_| known).or(Some(time)),
                    TaskTurn::Made => since = None,
                    TaskTurn::Out | TaskTurn::Ended => {
                        changes.extend(since.take().into_iter().flat_map(|from| [(from, 1), (time, -1)]));
                    }
                }
                known = true;
            }
            changes.extend(since.map(|from| (from, 1)));
        }
        changes.sort_unstable();
        let mut steps: Vec<(u64, u32)> = Vec::new();
        let mut running = 0i32;
        for (time, change) in changes {
            running += change;
            let now = running.max(0) as u32;
            match steps.last_mut() {
                Some((last, count)) if *last == time => *count = now,
                _ => steps.push((time, now)),
            }
        }
        Parallelism { steps }
    }

    /// How many ran at this time, the sampled one among them: at least 1.
    pub fn at(&self, time_ns: u64) -> u32 {
        let after = self.steps.partition_point(|(time, _)| *time <= time_ns);
        let count = after.checked_sub(1).and_then(|at| self.steps.get(at)).map_or(0, |(_, count)| *count);
        count.max(1)
    }
}

fn turn_of(record: &RawRecord<'_>) -> Option<(Option<i32>, TaskTurn)> {
    match record.header.kind {
        abi::PERF_RECORD_SWITCH | abi::PERF_RECORD_SWITCH_CPU_WIDE => {
            let out = record.header.misc & abi::PERF_RECORD_MISC_SWITCH_OUT != 0;
            Some((None, if out { TaskTurn::Out } else { TaskTurn::In }))
        }
        abi::PERF_RECORD_FORK | abi::PERF_RECORD_EXIT => match record.parse().ok()? {
            Record::Fork(task) if !task.synthesized => Some((Some(task.tid), TaskTurn::Made)),
            Record::Exit(task) => Some((Some(task.tid), TaskTurn::Ended)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(turns: &[(i32, u64, TaskTurn)]) -> Parallelism {
        let mut all = Turns::default();
        for (position, &(tid, time, turn)) in turns.iter().enumerate() {
            all.entry(tid).or_default().push((time, position as u64, turn));
        }
        Parallelism::of(all)
    }

    /// Checks two threads, one of which ran when the recording began, one of which was made in it
    /// and ended without a switch.
    #[test]
    fn begun_made_and_ended() {
        let turns = [
            (1, 10, TaskTurn::In),
            (2, 20, TaskTurn::Out),
            (3, 25, TaskTurn::Made),
            (3, 30, TaskTurn::In),
            (1, 40, TaskTurn::Out),
            (3, 50, TaskTurn::Ended),
        ];
        let found = of(&turns);
        let counts: Vec<u32> = [5, 10, 19, 20, 29, 30, 39, 40, 49, 50, 90].map(|time| found.at(time)).into();
        assert_eq!(counts, [1, 2, 2, 1, 1, 2, 2, 1, 1, 1, 1]);
    }

    proptest! {
        /// Checks against the count of spans around each moment, for threads that switch at any
        /// times.
        #[test]
        fn as_many_as_spans(spans in proptest::collection::vec((1..6i32, 0..200u64, 1..50u64), 0..40)) {
            let mut ends = FxHashMap::<i32, u64>::default();
            let (mut turns, mut ran) = (Vec::new(), Vec::new());
            for (tid, gap, length) in spans {
                let from = ends.get(&tid).map_or(gap, |end| end + 1 + gap);
                ends.insert(tid, from + length);
                turns.extend([(tid, from, TaskTurn::In), (tid, from + length, TaskTurn::Out)]);
                ran.push(from..from + length);
            }
            let found = of(&turns);
            for time in 0..400 {
                let count = ran.iter().filter(|span| span.contains(&time)).count() as u32;
                prop_assert_eq!(found.at(time), count.max(1), "at {}", time);
            }
        }
    }
}
