//! Every sample of a recording, as columns.
//!
//! *You give it* rows, worker by worker and in any order ([`load`](crate::load) does); *it gives
//! you* all of them by time: a range of time is two binary searches, and each question about
//! samples reads the columns that it needs only.
//!
//! ```text
//!            time     thread  cpu  event  stack  period  weight  state  waker  span  ...
//!  row 0     1000017  0       0    0      0      1       -       -      -      -
//!  row 1     1000044  2       1    0      1      1       -       -      -      -
//!    ...       |        |                   |
//!              |        '--> ThreadTable    '--> Chains ---> Stacks --> Functions --> Modules
//!    ascending, those of    pid, tid, name      (raw)       (frames)   (names)       (files)
//!    one time in the order of the file
//! ```
//!
//! A row is a sample; a sample of a group that reads its members' counters (`{a,b}:S`) is a row for
//! each counter that moved. Or it is a span of wall time, with a state and a length: such columns
//! are made by [`Wall::columns`](crate::wall::Wall::columns).
//!
//! # Invariants
//! - **I1** Rows are ordered by time, and those of one time by their place in the file.
//! - **I2** Columns and the ids in them do not depend on the number of workers, nor on which worker
//!   read what: threads are numbered by process, thread and name, stacks by their first rows
//!   (those of spans as in [`Wall::stacks`](crate::wall::Wall::stacks)).
//! - **I3** The rows are those of the samples that [`LoadOptions`](crate::load::LoadOptions) let
//!   through, all of them. There are no more than the recording has bytes; a recording that unpacks
//!   to more is refused ([`TooManyRows`]).
//! - **I4** The form of a column follows from its numbers.
//!
//! # Memory
//! Times take 8 bytes for each row. Every other column takes 0, 1, 2, 4 or 8: what its largest
//! number needs, and nothing where all rows have one number ([`Narrow`]). So a column costs nothing
//! where a recording has nothing to tell (a single event, a fixed period, no weights).
//!
//! A generated recording of 10 million samples (4 CPUs, 64 threads, 20,000 stacks, periods that
//! vary) takes 16 bytes a row, and 27 while rows are put in order; 100 million take the same. A row
//! of `{a,b}:S` or with weights takes up to 8 more for each of those columns. In files whose times
//! are in no order at all, the order takes some 50 bytes a row more.
//!
//! # Why tables are counted while reading
//! [`load`](crate::load) has one path for both: a sample becomes a [`Row`], which is counted at
//! once or kept here. Counting takes 1.43 s of CPU time for 4 million samples, columns and a group-by
//! 2.08 s ([run](../../../../bench/runs/2026-11-26-columns-2.txt)). And it holds 25 MB whatever the
//! file has, where columns hold 276 MB for 10 million samples and 2.7 GB for 100 million
//! ([run](../../../../bench/runs/2026-11-26-columns.txt)). So a table, which asks nothing of single
//! samples, is counted while reading, and its memory grows with what is distinct.
#[cfg(test)]
mod tests;

mod build;
mod group;
mod merge;
mod narrow;
mod thin;
mod threads;

use crate::chains::ChainId;
use crate::counts::{Count, Dims, GroupKey};
use crate::extra::ExtraId;
pub use build::TooManyRows;
pub(crate) use build::{Part, RowBuffer, columns, columns_of_spans, row_limit};
use kymo_symbols::pool;
pub use narrow::Narrow;
use std::ops::{Range, RangeInclusive};
pub use thin::ThinRows;
pub use threads::{Thread, ThreadId, ThreadTable};

/// A column beside the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowField {
    /// Index into [`Columns::threads`].
    Thread,
    /// CPU, `u32::MAX` if not recorded.
    Cpu,
    /// Index of the event.
    Event,
    /// Raw stack, an id of [`Loaded::chains`](crate::load::Loaded::chains).
    Stack,
    /// What the sample stands for, in the event's unit.
    Period,
    /// The sample's own weight (`PERF_SAMPLE_WEIGHT`), plus one; 0 if not recorded. Of a span: how
    /// many waits it stands for.
    Weight,
    /// What the thread did in a span of wall time, a [`SpanState`](crate::wall::SpanState) as its
    /// number; 0 in a sample.
    State,
    /// The thread that ended a wait, an index into [`Columns::threads`], plus one; 0 if not
    /// recorded.
    Waker,
    /// How long before the time of the row its span begins, ns: the period is spread evenly over
    /// it. 0 in a sample.
    Span,
    /// How many threads ran; 1 unless asked for.
    Parallelism,
    /// What else was asked for, an id of [`Loaded::extras`](crate::load::Loaded::extras). Of a
    /// span: the number of the interrupt that ended the wait, 0 if none did.
    Extra,
}

/// How many fields there are.
const FIELDS: usize = RowField::ALL.len();

impl RowField {
    /// All of them, in their order.
    pub const ALL: [RowField; 11] = [
        RowField::Thread,
        RowField::Cpu,
        RowField::Event,
        RowField::Stack,
        RowField::Period,
        RowField::Weight,
        RowField::State,
        RowField::Waker,
        RowField::Span,
        RowField::Parallelism,
        RowField::Extra,
    ];
}

/// One sample, or one span of wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// When, ns of the recording's clock; 0 if not recorded. Of a span: its end.
    pub time_ns: u64,
    /// Index into [`Columns::threads`].
    pub thread: ThreadId,
    /// CPU, `u32::MAX` if not recorded.
    pub cpu: u32,
    /// Index of the event.
    pub event: u32,
    /// Raw stack.
    pub stack: ChainId,
    /// What the sample stands for, in the event's unit.
    pub period: u64,
    /// The sample's own weight.
    pub weight: Option<u64>,
    /// What the thread did in a span: the number of a
    /// [`SpanState`](crate::wall::SpanState), 0 of a sample.
    pub state: u8,
    /// The thread that ended a wait, an index into [`Columns::threads`].
    pub waker: Option<ThreadId>,
    /// The length of a span, ns.
    pub span_ns: u64,
    /// How many threads ran; 1 unless asked for.
    pub parallelism: u32,
    /// What else was asked for; of a span the number of an interrupt.
    pub extra: ExtraId,
}

impl Row {
    /// What is in a column for this row.
    #[inline]
    fn field(&self, field: RowField) -> u64 {
        match field {
            RowField::Thread => u64::from(self.thread),
            RowField::Cpu => u64::from(self.cpu),
            RowField::Event => u64::from(self.event),
            RowField::Stack => u64::from(self.stack),
            RowField::Period => self.period,
            RowField::Weight => self.weight.map_or(0, |weight| weight.saturating_add(1)),
            RowField::State => u64::from(self.state),
            RowField::Waker => self.waker.map_or(0, |waker| u64::from(waker) + 1),
            RowField::Span => self.span_ns,
            RowField::Parallelism => u64::from(self.parallelism),
            RowField::Extra => u64::from(self.extra),
        }
    }

    /// What the row shares with others of its group; `thread` is that of the row.
    #[inline]
    pub(crate) fn key(&self, thread: &Thread, dims: Dims) -> GroupKey {
        GroupKey {
            event: self.event,
            comm: thread.comm,
            pid: if dims.pid || dims.tid { thread.pid } else { 0 },
            tid: if dims.tid { thread.tid } else { 0 },
            cpu: if dims.cpu { self.cpu } else { 0 },
            extra: self.extra,
            chain: self.stack,
        }
    }

    /// What the row adds to the counts of its group.
    #[inline]
    pub(crate) fn count(&self, latency: bool) -> Count {
        Count::of_sample(self.period, self.parallelism, latency)
    }
}

/// Fewer rows than this are one thread's work.
const ROWS_EACH: usize = 1 << 16;

/// Rows in as many pieces as there are CPUs, or fewer where they are few.
pub(crate) fn per_cpu(rows: Range<usize>) -> Vec<Range<usize>> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let step = rows.len().div_ceil(cpus).max(ROWS_EACH);
    rows.clone().step_by(step).map(|start| start..rows.end.min(start + step)).collect()
}

/// All samples of a recording, by time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Columns {
    time: Vec<u64>,
    fields: [Narrow; FIELDS],
    /// One more than the largest number of each column.
    values: [u64; FIELDS],
    /// The threads of the rows.
    pub threads: ThreadTable,
}

impl Columns {
    /// How many rows.
    pub fn len(&self) -> usize {
        self.time.len()
    }

    /// No row at all.
    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// The times of all rows, ascending.
    pub fn time(&self) -> &[u64] {
        &self.time
    }

    /// A column.
    pub fn field(&self, field: RowField) -> &Narrow {
        &self.fields[field as usize]
    }

    /// What a column has for a row.
    #[inline]
    pub fn get(&self, field: RowField, row: usize) -> u64 {
        self.fields[field as usize].get(row)
    }

    /// The thread of a row.
    #[inline]
    pub fn thread(&self, row: usize) -> &Thread {
        self.threads.get(self.get(RowField::Thread, row) as ThreadId)
    }

    /// A row.
    #[inline]
    pub fn row(&self, row: usize) -> Row {
        Row {
            time_ns: self.time[row],
            thread: self.get(RowField::Thread, row) as ThreadId,
            cpu: self.get(RowField::Cpu, row) as u32,
            event: self.get(RowField::Event, row) as u32,
            stack: self.get(RowField::Stack, row) as ChainId,
            period: self.get(RowField::Period, row),
            weight: self.get(RowField::Weight, row).checked_sub(1),
            state: self.get(RowField::State, row) as u8,
            waker: self.get(RowField::Waker, row).checked_sub(1).map(|waker| waker as ThreadId),
            span_ns: self.get(RowField::Span, row),
            parallelism: self.get(RowField::Parallelism, row) as u32,
            extra: self.get(RowField::Extra, row) as ExtraId,
        }
    }

    /// The rows whose times are in a span.
    pub fn rows_in(&self, span: RangeInclusive<u64>) -> Range<usize> {
        let start = self.time.partition_point(|time| time < span.start());
        let end = self.time.partition_point(|time| time <= span.end());
        start..end.max(start)
    }

    /// Counts by process and thread, whatever their names; those with most samples first.
    pub fn count_threads(&self) -> Vec<(i32, i32, Count)> {
        let mut counts = vec![Count::default(); self.threads.len()];
        let count = |rows: &Range<usize>| {
            let mut counts = vec![Count::default(); self.threads.len()];
            for row in rows.clone() {
                counts[self.get(RowField::Thread, row) as usize] +=
                    Count::of_sample(self.get(RowField::Period, row), 1, false);
            }
            counts
        };
        for counted in pool::map(&per_cpu(0..self.len()), count) {
            counts.iter_mut().zip(counted).for_each(|(sum, count)| *sum += count);
        }
        let mut threads: Vec<(i32, i32, Count)> = Vec::new();
        // ThreadTable are sorted: the names of one follow each other.
        for (thread, count) in self.threads.iter().zip(counts) {
            match threads.last_mut() {
                Some((pid, tid, sum)) if (*pid, *tid) == (thread.pid, thread.tid) => *sum += count,
                _ => threads.push((thread.pid, thread.tid, count)),
            }
        }
        threads.sort_by_key(|(_, _, count)| std::cmp::Reverse(count.samples));
        threads
    }

    /// Bytes of memory that the rows take.
    pub fn bytes(&self) -> usize {
        self.time.len() * size_of::<u64>() + self.fields.iter().map(Narrow::bytes).sum::<usize>()
    }
}
