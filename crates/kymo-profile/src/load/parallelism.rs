//! How many threads ran at each moment, by the context switches that were recorded.
use kymo_data::{RawRecord, ReadError, Record, Recording, abi};

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
    /// Another came on its CPU, and nothing told that it had stopped.
    Taken,
}

/// The CPU of a turn whose record does not tell it.
const NO_CPU: u32 = u32::MAX;

/// A turn of a thread, 0 being the idle ones: which, when, where in the recording, and on which
/// CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TimedTurn {
    tid: i32,
    time_ns: u64,
    position: u64,
    cpu: u32,
    turn: TaskTurn,
}

/// What a record of a switch says of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuSwitch {
    pub(crate) cpu: u32,
    pub(crate) time_ns: u64,
    pub(crate) position: u64,
    pub(crate) tid: i32,
    pub(crate) is_out: bool,
}

/// Adds the switches that no record tells: a thread has left its CPU when another comes on it. Some
/// kernels leave out switches away from tasks of their own.
///
/// `of`: what an element tells of a CPU, if it does; `left`: makes the missing one, of the arrival
/// of the thread and of that of the next. The order of the elements is lost.
pub(crate) fn add_untold<T>(
    all: &mut Vec<T>,
    of: impl Fn(&T) -> Option<CpuSwitch>,
    left: impl Fn(&T, &T) -> T,
) {
    all.sort_unstable_by_key(|element| of(element).map(|it| (it.cpu, it.time_ns, it.position)));
    let mut untold = Vec::new();
    let mut current: Option<(CpuSwitch, &T)> = None;
    for element in all.iter() {
        let Some(switch) = of(element) else { continue };
        let before = current.take().filter(|(before, _)| before.cpu == switch.cpu);
        if switch.is_out {
            current = before.filter(|(before, _)| before.tid != switch.tid);
            continue;
        }
        if let Some((before, arrival)) = before
            && before.tid != switch.tid
        {
            untold.push(left(arrival, element));
        }
        current = Some((switch, element));
    }
    all.append(&mut untold);
}

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

    /// Reads all context switches of a recording: 32 bytes of memory each.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn read(recording: &Recording, workers: usize) -> Result<Parallelism, ReadError> {
        let events = &recording.events;
        let each = |turns: &mut Vec<TimedTurn>, chunk: &kymo_data::Chunk| {
            for record in chunk.records().flatten() {
                let Some((tid, turn)) = turn_of(&record) else { continue };
                let id = events.sample_id(&record);
                // Without the last switch of a thread that has ended, told as -1.
                let tid = tid.or(id.tid).filter(|tid| *tid >= 0);
                if let (Some(tid), Some(time_ns)) = (tid, id.time) {
                    let cpu = id.cpu.unwrap_or(NO_CPU);
                    turns.push(TimedTurn { tid, time_ns, position: record.position, cpu, turn });
                }
            }
        };
        let (all, _) = recording.read_parallel(workers, Vec::new, each, &|_, _| {})?;
        Ok(Parallelism::of(all.into_iter().flatten().collect()))
    }

    fn of(mut turns: Vec<TimedTurn>) -> Parallelism {
        add_untold(&mut turns, TimedTurn::on_cpu, |arrival, next| TimedTurn {
            tid: arrival.tid,
            turn: TaskTurn::Taken,
            ..*next
        });
        let cpus = CpuHistory::new(&turns);
        turns.retain(|turn| turn.tid > 0);
        turns.sort_unstable_by_key(|turn| (turn.tid, turn.time_ns, turn.position, turn.turn));
        let begin = turns.iter().map(|turn| turn.time_ns).min();
        let mut changes: Vec<(u64, i32)> = Vec::new();
        for list in turns.chunk_by(|one, next| one.tid == next.tid) {
            let (mut since, mut known, mut on) = (None, false, NO_CPU);
            for told in list {
                let TimedTurn { time_ns: time, turn, cpu, .. } = *told;
                if !known {
                    since = cpus.arrival_of(told).or(begin);
                }
                match turn {
                    TaskTurn::In => (since, on) = (since.filter(|_| known).or(Some(time)), cpu),
                    TaskTurn::Made => since = None,
                    // It has moved on, which was told.
                    TaskTurn::Taken if cpu != on => {}
                    TaskTurn::Out | TaskTurn::Ended | TaskTurn::Taken => {
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

/// When something came on each CPU or left it, in the order of time.
struct CpuHistory {
    switches: Vec<CpuSwitch>,
}

impl CpuHistory {
    fn new(turns: &[TimedTurn]) -> CpuHistory {
        let mut switches: Vec<CpuSwitch> = turns.iter().filter_map(TimedTurn::on_cpu).collect();
        switches.sort_unstable_by_key(|switch| (switch.cpu, switch.time_ns, switch.position));
        CpuHistory { switches }
    }

    /// When a thread came of which nothing is known before this turn: at the latest switch on its CPU,
    /// whose own record was lost; not before this turn if another thread was there. `None` if that
    /// CPU had no switch before, or is not known: the thread ran from the beginning.
    fn arrival_of(&self, turn: &TimedTurn) -> Option<u64> {
        let after = self.switches.partition_point(|switch| {
            (switch.cpu, switch.time_ns, switch.position) < (turn.cpu, turn.time_ns, turn.position)
        });
        let before = self.switches.get(after.checked_sub(1)?)?;
        if before.cpu != turn.cpu || before.tid == turn.tid {
            return None;
        }
        let was_free = before.is_out || before.tid == 0;
        Some(if was_free { before.time_ns } else { turn.time_ns })
    }
}

impl TimedTurn {
    fn on_cpu(&self) -> Option<CpuSwitch> {
        let is_out = match self.turn {
            _ if self.cpu == NO_CPU => return None,
            TaskTurn::In => false,
            TaskTurn::Out | TaskTurn::Taken => true,
            TaskTurn::Made | TaskTurn::Ended => return None,
        };
        let TimedTurn { tid, time_ns, position, cpu, .. } = *self;
        Some(CpuSwitch { cpu, time_ns, position, tid, is_out })
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
    use rustc_hash::FxHashMap;

    fn of(turns: &[(i32, u64, TaskTurn)]) -> Parallelism {
        on_cpus(&turns.iter().map(|&(tid, time, turn)| (tid, time, turn, NO_CPU)).collect::<Vec<_>>())
    }

    fn on_cpus(turns: &[(i32, u64, TaskTurn, u32)]) -> Parallelism {
        let turn = |(position, &(tid, time_ns, turn, cpu)): (usize, &(i32, u64, TaskTurn, u32))| TimedTurn {
            tid,
            time_ns,
            position: position as u64,
            cpu,
            turn,
        };
        Parallelism::of(turns.iter().enumerate().map(turn).collect())
    }

    /// Checks that a thread stops when another comes on its CPU, the idle one too, where no record
    /// tells that it did; not where it has moved, nor on another CPU.
    #[test]
    fn switches_away_that_no_record_tells() {
        let turns = [
            (1, 10, TaskTurn::In, 0),
            (2, 20, TaskTurn::In, 0),
            (2, 30, TaskTurn::Out, 0),
            (3, 40, TaskTurn::In, 1),
            (0, 50, TaskTurn::In, 1),
            (1, 60, TaskTurn::In, 0),
            (1, 70, TaskTurn::In, 2),
            (4, 80, TaskTurn::In, 0),
            (4, 90, TaskTurn::Out, 0),
            (1, 100, TaskTurn::Out, 2),
        ];
        let found = on_cpus(&turns);
        let steps = [(10, 1), (20, 1), (30, 0), (40, 1), (50, 0), (60, 1), (80, 2), (90, 1), (100, 0)];
        assert_eq!(found.steps, steps);
    }

    /// Checks that a thread whose arrival was lost did not run from the beginning, where its CPU
    /// had switches since: never more threads run than there are CPUs.
    #[test]
    fn arrivals_that_were_lost() {
        let turns = [
            (1, 10, TaskTurn::In, 0),
            (1, 20, TaskTurn::Out, 0),
            (2, 30, TaskTurn::Out, 0),
            (3, 40, TaskTurn::In, 0),
            (4, 50, TaskTurn::Out, 0),
            (3, 60, TaskTurn::Out, 0),
            (5, 70, TaskTurn::Out, 1),
        ];
        let steps = [(10, 2), (20, 2), (30, 1), (40, 2), (50, 2), (60, 1), (70, 0)];
        assert_eq!(on_cpus(&turns).steps, steps);
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
        /// Checks any switches on CPUs, of which some that leave are left out, against those where
        /// all are told.
        #[test]
        fn left_out_or_told(stints in proptest::collection::vec((0..3u32, 0..6i32, 1..50u64, any::<bool>()), 0..40)) {
            let (mut now, mut cpus) = (0, [None; 3]);
            let (mut all, mut part) = (Vec::new(), Vec::new());
            for (cpu, tid, later, is_told) in stints {
                // A thread is on one CPU at a time.
                if tid > 0 && cpus.contains(&Some(tid)) {
                    continue;
                }
                now += later;
                if let Some(before) = cpus[cpu as usize].replace(tid) {
                    all.push((before, now, TaskTurn::Out, cpu));
                    if is_told {
                        part.push((before, now, TaskTurn::Out, cpu));
                    }
                }
                all.push((tid, now, TaskTurn::In, cpu));
                part.push((tid, now, TaskTurn::In, cpu));
            }
            prop_assert_eq!(on_cpus(&part), on_cpus(&all));
        }

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
