//! Wall time as columns: a row is a span of a thread's time in one state.
//!
//! ```text
//!  a row of waits:  |<---- ran, waited shortly ---->|<-- blocked -->|<- ready ->|
//!                        ^       ^ samples                          woken       row.time_ns
//!  spans:           |run |  run  |       run        |  its state    | runnable  |
//!                   |<------- short waits --------->|  of each place
//!                   |<------- short, ready -------->|
//! ```
//! The time of a span is its end. Its period is the time that the thread was in the state; where a
//! row of waits does not say in which order that was, the span is longer than its period, and
//! several spans of the thread overlap. A range of time has the spans that end in it, whole.
//! Running time is divided among the thread's samples in it by their periods, with their stacks.
use super::rows::RunSample;
use super::{End, SHORT_PARTS, SpanState, State, Wall};
use crate::columns::{Columns, Row, Thread, ThreadId, ThreadTable, columns_of_spans};
use crate::extra::ExtraId;
use crate::timeline::CommId;
use rustc_hash::FxHashMap;

impl Wall {
    /// All spans of all threads, by time. The stacks are those of [`Wall::stacks`].
    ///
    /// The periods of a thread sum to its time in [`Wall::threads`], state by state (D1).
    pub fn columns(&self) -> Columns {
        let mut spans = Spans {
            wall: self,
            threads: ThreadTable::default(),
            ends: FxHashMap::default(),
            processes: self.waits.iter().map(|row| (row.thread.1, row.thread)).collect(),
            rows: Vec::with_capacity(2 * self.waits.len() + self.runs.len()),
        };
        (0..self.waits.len()).for_each(|index| spans.add_row(index));
        columns_of_spans(spans.rows, spans.threads)
    }
}

/// What ended a wait, where that is not known: no thread, and no interrupt.
const NOBODY: (Option<ThreadId>, ExtraId) = (None, 0);

/// Spans as they are made.
struct Spans<'a> {
    wall: &'a Wall,
    threads: ThreadTable,
    /// The moment of the last row of each thread.
    ends: FxHashMap<(i32, i32), u64>,
    /// The process of each thread.
    processes: FxHashMap<i32, (i32, i32)>,
    rows: Vec<Row>,
}

impl Spans<'_> {
    /// Adds the parts of a row of waits.
    fn add_row(&mut self, index: usize) {
        let (wall, row) = (self.wall, &self.wall.waits[index]);
        let (begun, woken) = super::needed::span(row);
        // Rows of a thread follow each other; those that claim more have no more moments.
        let last = self.ends.insert(row.thread, row.time_ns).unwrap_or(0);
        let (begun, woken) = (begun.max(last), woken.max(last));
        let before = row.time_ns.saturating_sub(row.total_ns()).max(last);
        let parts = wall.parts(index);
        let [(_, run), blocked, ready, ..] = parts;
        self.add_run(index, (before, begun), run);
        let thread = self.thread(row.thread, row.comm);
        let ended = match wall.end(index) {
            End::Thread(tid, _) => (Some(self.waker(tid)), 0),
            End::Interrupt(cause) => (None, super::state::number_of_interrupt(cause)),
            End::Unknown => NOBODY,
        };
        // How many waits each stands for, who ended it, the CPU that a ready thread waited for, and
        // where.
        let of_idle = wall.is_idle(index);
        let own = [
            (blocked, (begun, woken), (1, ended, u32::MAX, row.chain, of_idle)),
            (ready, (woken, row.time_ns), (0, NOBODY, row.cpu, row.chain, of_idle)),
        ];
        let short = row.short().into_iter().enumerate().flat_map(|(number, place)| {
            let (stack, of_idle) = (wall.short(index, number).1, wall.is_short_idle(index, number));
            let facts = |waits| (waits, NOBODY, u32::MAX, stack, of_idle);
            let (waited, ready) = SHORT_PARTS[number];
            let span = (before, begun);
            [(parts[waited], span, facts(place.waits)), (parts[ready], span, facts(0))]
        });
        for ((state, time), span, facts) in own.into_iter().chain(short) {
            if time > 0 {
                let (count, (waker, extra), cpu, stack, of_idle) = facts;
                let (event, weight) = (wall.events.0, Some(count));
                let span = span_of(span, SpanState { state, of_idle }, time);
                self.rows.push(Row { thread, cpu, event, stack, weight, waker, extra, ..span });
            }
        }
    }

    /// The time that a thread ran is where its samples are: those of that time, else the one before
    /// or after it.
    fn add_run(&mut self, index: usize, (before, begun): (u64, u64), time: u64) {
        if time == 0 {
            return;
        }
        let (wall, row) = (self.wall, &self.wall.waits[index]);
        let at =
            |moment: u64| wall.runs.partition_point(|run| (run.thread, run.time_ns) <= (row.thread, moment));
        let (from, to) = (at(before), at(begun));
        let near = [from.checked_sub(1), Some(to)].into_iter().flatten();
        let mut near = near.filter_map(|at| wall.runs.get(at)).filter(|run| run.thread == row.thread);
        let within = match &wall.runs[from..to] {
            [] => near.next().map_or(&[][..], std::slice::from_ref),
            within => within,
        };
        let running = SpanState { state: State::Running, of_idle: false };
        let Some((last, others)) = within.split_last() else {
            let thread = self.thread(row.thread, row.comm);
            let (event, stack) = (wall.events.1, wall.no_stack);
            let run = span_of((before, begun), running, time);
            self.rows.push(Row { thread, event, stack, ..run });
            return;
        };
        let all = within.iter().fold(0_u128, |sum, run| sum + u128::from(run.period)).max(1);
        let (mut since, mut left) = (before, time);
        let mut add = |run: &RunSample, until: u64, part: u64| {
            let thread = self.thread(row.thread, run.comm);
            let (cpu, event, stack) = (run.cpu, wall.events.1, run.chain);
            let span = span_of((since, until), running, part);
            since = until;
            if part > 0 {
                self.rows.push(Row { thread, cpu, event, stack, ..span });
            }
        };
        for run in others {
            let part = (u128::from(time) * u128::from(run.period) / all) as u64;
            left -= part;
            add(run, run.time_ns, part);
        }
        add(last, begun, left);
    }

    fn thread(&mut self, (pid, tid): (i32, i32), comm: CommId) -> ThreadId {
        self.threads.intern(Thread { pid, tid, comm })
    }

    /// A thread that is known by its number only.
    fn waker(&mut self, tid: i32) -> ThreadId {
        let (pid, tid) = self.processes.get(&tid).copied().unwrap_or((-1, tid));
        self.thread((pid, tid), self.wall.timeline.last_comm(tid))
    }
}

/// A row that has nothing but its span, state and time.
fn span_of((begin, end): (u64, u64), state: SpanState, period: u64) -> Row {
    Row {
        time_ns: end,
        thread: 0,
        cpu: u32::MAX,
        event: 0,
        stack: 0,
        period,
        weight: None,
        state: state.number(),
        waker: None,
        span_ns: end.saturating_sub(begin),
        parallelism: 1,
        extra: 0,
    }
}
