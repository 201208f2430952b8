//! Columns against plain lists of rows.
use super::*;
use crate::chains::Chains;
use crate::counts::Groups;
use crate::timeline::CommId;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A row as a test makes it: its ids are what they stand for, not indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plain {
    time_ns: u64,
    thread: Thread,
    cpu: u32,
    event: u32,
    /// Address of the stack.
    ip: u64,
    period: u64,
    weight: Option<u64>,
    parallelism: u32,
}

fn plain() -> impl Strategy<Value = Plain> {
    let rare = |wide: u64| prop_oneof![9 => 0..6u64, 1 => 0..wide];
    let weight = proptest::option::weighted(0.1, any::<u64>());
    (rare(u64::MAX), 0..5i32, rare(900), rare(70_000), 0..40u64, rare(1 << 40), weight, 1..4u32).prop_map(
        |(time_ns, tid, event, cpu, ip, period, weight, parallelism)| Plain {
            time_ns,
            thread: Thread { pid: tid / 2, tid, comm: CommId::unnamed(tid % 3) },
            cpu: if cpu == 5 { u32::MAX } else { cpu as u32 },
            event: event as u32,
            ip,
            period,
            weight,
            parallelism,
        },
    )
}

/// The chunks of a file, each a list of rows.
pub(super) fn chunks() -> impl Strategy<Value = Vec<Vec<Plain>>> {
    proptest::collection::vec(proptest::collection::vec(plain(), 0..12), 0..12)
}

/// The columns of a file, whose chunks are read by workers as `turns` say: a worker for each chunk,
/// and the order in which chunks are read.
pub(super) fn built(chunks: &[Vec<Plain>], workers: usize, turns: &[u64]) -> (Columns, Chains) {
    struct Worker(RowBuffer, Chains, ThreadTable);
    let new = || Worker(RowBuffer::new(1 << 20), Chains::default(), ThreadTable::default());
    let mut all: Vec<Worker> = (0..workers).map(|_| new()).collect();
    let turn = |chunk: usize| turns.get(chunk).copied().unwrap_or(0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_by_key(|chunk| turn(*chunk));
    for chunk in order {
        let Worker(rows, chains, threads) = &mut all[turn(chunk) as usize % workers];
        rows.begin_chunk(1000 * chunk as u64);
        for row in &chunks[chunk] {
            rows.push(&Row {
                time_ns: row.time_ns,
                thread: threads.intern(row.thread),
                cpu: row.cpu,
                event: row.event,
                stack: chains.intern(0, 2, row.ip, &[][..]),
                period: row.period,
                weight: row.weight,
                state: 0,
                waker: None,
                span_ns: 0,
                parallelism: row.parallelism,
                extra: 0,
            });
        }
    }
    let (mut chains, mut threads) = (Chains::default(), ThreadTable::default());
    let parts = all
        .into_iter()
        .map(|Worker(rows, own, names)| Part {
            rows,
            stacks: chains.absorb(&own),
            threads: threads.absorb(&names),
            extras: vec![0],
        })
        .collect();
    columns(parts, threads, chains, 1 << 20).expect("not too many rows")
}

/// All rows of columns with what their ids stand for.
fn rows(columns: &Columns, chains: &Chains) -> Vec<Plain> {
    let of = |at| {
        let row = columns.row(at);
        Plain {
            time_ns: row.time_ns,
            thread: *columns.thread(at),
            cpu: row.cpu,
            event: row.event,
            ip: chains.get(row.stack).ip,
            period: row.period,
            weight: row.weight,
            parallelism: row.parallelism,
        }
    };
    (0..columns.len()).map(of).collect()
}

proptest! {
    /// Checks that columns hold the rows of a file by time, and that they are the same to the last
    /// bit for any number of workers that read chunks in any order.
    #[test]
    fn rows_by_time_whoever_reads(
        chunks in chunks(),
        workers in 1..5usize,
        turns in proptest::collection::vec(any::<u64>(), 12),
    ) {
        let mut expected = chunks.concat();
        // The largest weight has no room for "plus one".
        expected.iter_mut().for_each(|row| row.weight = row.weight.map(|weight| weight.min(u64::MAX - 1)));
        expected.sort_by_key(|row| row.time_ns);
        let (one, chains) = built(&chunks, 1, &[]);
        prop_assert_eq!(rows(&one, &chains), expected);
        let (several, others) = built(&chunks, workers, &turns);
        prop_assert_eq!(&one, &several);
        let stacks = |chains: &Chains| (0..chains.len()).map(|id| chains.get(id as u32).ip).collect::<Vec<_>>();
        prop_assert_eq!(stacks(&chains), stacks(&others));
    }

    /// Checks that a range of time has the rows that a filter of all rows finds, and their counts.
    #[test]
    fn ranges_are_filters(
        chunks in chunks(),
        from in prop_oneof![0..8u64, any::<u64>()],
        until in prop_oneof![0..8u64, any::<u64>()],
        [pid, tid, cpu, latency] in any::<[bool; 4]>(),
    ) {
        let (columns, chains) = built(&chunks, 2, &[3, 1, 2]);
        let all = rows(&columns, &chains);
        let range = columns.rows_in(from..=until);
        let expected: Vec<Plain> =
            all.iter().copied().filter(|row| (from..=until).contains(&row.time_ns)).collect();
        prop_assert_eq!(&all[range.clone()], &expected[..]);
        let dims = Dims { pid, tid, cpu, ..Dims::default() };
        let mut counts: BTreeMap<_, Count> = BTreeMap::new();
        for row in expected {
            let Thread { pid: process, tid: thread, comm } = row.thread;
            let key = (
                row.event,
                comm,
                if pid || tid { process } else { 0 },
                if tid { thread } else { 0 },
                if cpu { row.cpu } else { 0 },
                row.ip,
            );
            let share = if latency { row.period * 256 / u64::from(row.parallelism) } else { 0 };
            *counts.entry(key).or_default() += Count { samples: 1, period: row.period, latency: share };
        }
        let groups: Groups = columns.group_by(range, dims, latency);
        let key = |k: &GroupKey| (k.event, k.comm, k.pid, k.tid, k.cpu, chains.get(k.chain).ip);
        let found: BTreeMap<_, Count> = groups.iter().map(|(k, count)| (key(k), *count)).collect();
        prop_assert_eq!(groups.len(), found.len(), "no group twice");
        prop_assert_eq!(found, counts);
    }

    /// Checks that threads are counted whatever their names, those with most samples first.
    #[test]
    fn threads_are_counted(chunks in chunks()) {
        let (columns, _) = built(&chunks, 2, &[1, 2]);
        let mut counts: BTreeMap<(i32, i32), Count> = BTreeMap::new();
        for row in chunks.concat() {
            let count = Count { samples: 1, period: row.period, latency: 0 };
            *counts.entry((row.thread.pid, row.thread.tid)).or_default() += count;
        }
        let mut expected: Vec<_> = counts.into_iter().map(|((pid, tid), c)| (pid, tid, c)).collect();
        expected.sort_by_key(|(pid, tid, count)| (std::cmp::Reverse(count.samples), *pid, *tid));
        prop_assert_eq!(columns.count_threads(), expected);
    }
}

/// Rows of two threads that take turns.
fn in_turns(count: u64) -> Columns {
    let row = |n: u64| Plain {
        time_ns: 1_000_000 + n * 1_000,
        thread: Thread { pid: 1, tid: (n % 2) as i32, comm: CommId::unnamed(0) },
        cpu: (n % 2) as u32,
        event: 0,
        ip: 0,
        period: 1,
        weight: None,
        parallelism: 1,
    };
    built(&[(0..count).map(row).collect()], 1, &[]).0
}

/// Checks that a part of the rows fits, is not much smaller than it might be, and holds threads
/// that take turns alike; and that all rows are shown where they fit.
#[test]
fn threads_that_take_turns_are_shown_alike() {
    let columns = in_turns(100_000);
    let shown = columns.thin(2_000);
    assert!((800..=2_000).contains(&shown.rows.len()), "{}", shown.rows.len());
    assert!((50..=125).contains(&shown.stride), "{}", shown.stride);
    let first = shown.rows.iter().filter(|row| columns.thread(**row).tid == 0).count();
    let share = first as f64 / shown.rows.len() as f64;
    assert!((0.4..0.6).contains(&share), "{share}");
    let all = ThinRows { rows: (0..columns.len()).collect(), stride: 1 };
    assert_eq!(columns.thin(100_000), all);
}

/// Checks that a column which has nothing to tell takes no memory, and the others what they need.
#[test]
fn columns_take_what_they_need() {
    let columns = in_turns(1_000);
    let bytes = |field| columns.field(field).bytes();
    assert_eq!((bytes(RowField::Thread), bytes(RowField::Cpu)), (1_000, 1_000));
    assert_eq!(columns.bytes(), 10_000, "time, thread and CPU");
    assert_eq!(columns.field(RowField::Weight).same(), Some(0));
}

/// Checks that more rows than memory is spent on are an error, not memory.
#[test]
fn too_many_rows_are_refused() {
    let mut rows = RowBuffer::new(3);
    rows.begin_chunk(0);
    let row = in_turns(1).row(0);
    let part = |rows| Part { rows, stacks: vec![0], threads: vec![0], extras: vec![0] };
    let tables = || {
        let (mut chains, mut threads) = (Chains::default(), ThreadTable::default());
        chains.intern(0, 2, 0, &[][..]);
        threads.intern(Thread { pid: 1, tid: 0, comm: CommId::unnamed(0) });
        (threads, chains)
    };
    (0..5).for_each(|_| rows.push(&row));
    let (threads, chains) = tables();
    let error = columns(vec![part(rows)], threads, chains, 3).expect_err("too many of one worker");
    assert!(error.to_string().starts_with("the recording has more than 3 samples"), "{error}");
    let of = |count| {
        let mut rows = RowBuffer::new(3);
        rows.begin_chunk(count);
        (0..count).for_each(|_| rows.push(&row));
        part(rows)
    };
    let (threads, chains) = tables();
    columns(vec![of(2), of(1)], threads, chains, 3).expect("as many as are held");
    let (threads, chains) = tables();
    columns(vec![of(2), of(3)], threads, chains, 3).expect_err("too many of two workers");
}
