//! The order of rows by time, from rows as they lie in a file.
//!
//! A recorder writes one ring after another, so the rows of a file are *runs*: each run is in order
//! of time, and runs of several CPUs overlap. They are merged, with a heap of those runs only that
//! have begun: as many as there are CPUs, whatever the length of the file.
use kymo_symbols::pool;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Below so many rows the work is not divided.
const FEW_ROWS: usize = 1 << 16;
/// Rows whose times are moved at once.
const BLOCK: usize = if cfg!(test) { 4 } else { 1 << 16 };
/// Times that are looked at to divide the work, for each part.
const PROBES: usize = 64;

/// Rows that lie one after another, in order of time.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u32,
    end: u32,
}

/// The rows in order of time; rows of one time in the order of the file. `pieces` are all rows in
/// the order of the file. `None` says that rows are in order as they are.
pub(super) fn order(time: &[u64], pieces: &[Range<usize>]) -> Option<Vec<u32>> {
    let runs = runs(time, pieces);
    if runs.len() <= 1 {
        return None;
    }
    let parts: Vec<Vec<u32>> = pool::map(&spans(time), |span| merge(time, &runs, span));
    let mut parts = parts.into_iter();
    let mut order = parts.next().unwrap_or_default();
    parts.for_each(|part| order.extend(part));
    Some(order)
}

/// Puts numbers in the order of their rows, in their place: times are most of the memory that
/// columns take, and would be there twice. `order` has every row once.
///
/// Rows lie close to where they come to lie, so only few blocks have to be kept beside, from when
/// their place is overwritten until their last number was taken.
pub(super) fn reorder(numbers: &mut [u64], order: &[u32]) {
    let block_of = |row: u32| row as usize / BLOCK;
    let mut last_uses = vec![0; numbers.len().div_ceil(BLOCK)];
    for (block, rows) in order.chunks(BLOCK).enumerate() {
        rows.iter().for_each(|row| last_uses[block_of(*row)] = block);
    }
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); last_uses.len()];
    last_uses.iter().enumerate().for_each(|(block, last)| ends[*last].push(block));
    let mut kept: Vec<Vec<u64>> = vec![Vec::new(); last_uses.len()];
    for (block, rows) in order.chunks(BLOCK).enumerate() {
        let place = block * BLOCK..block * BLOCK + rows.len();
        kept[block] = numbers[place.clone()].to_vec();
        let before = |row: u32| {
            let old = kept[block_of(row)].get(row as usize % BLOCK);
            old.copied().unwrap_or_else(|| numbers[row as usize])
        };
        let moved: Vec<u64> = rows.iter().map(|row| before(*row)).collect();
        numbers[place].copy_from_slice(&moved);
        ends[block].iter().for_each(|done| kept[*done] = Vec::new());
    }
}

fn runs(time: &[u64], pieces: &[Range<usize>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        for row in piece.clone() {
            match runs.last_mut() {
                Some(run) if run.end as usize == row && time[row - 1] <= time[row] => run.end += 1,
                _ => runs.push(Run { start: row as u32, end: row as u32 + 1 }),
            }
        }
    }
    runs
}

/// Spans of time that hold about as many rows each, one for each CPU; first and last time included.
fn spans(time: &[u64]) -> Vec<(u64, u64)> {
    let parts = match time.len() {
        0..FEW_ROWS => 1,
        _ => std::thread::available_parallelism().map_or(1, |cpus| cpus.get()),
    };
    let mut probes: Vec<u64> = time.iter().step_by((time.len() / (parts * PROBES)).max(1)).copied().collect();
    probes.sort_unstable();
    let mut spans = Vec::new();
    let mut from = 0;
    for part in 1..parts {
        // A time is in one span only.
        match probes.get(probes.len() * part / parts).and_then(|time| time.checked_sub(1)) {
            Some(until) if from <= until => {
                spans.push((from, until));
                from = until + 1;
            }
            _ => {}
        }
    }
    spans.push((from, u64::MAX));
    spans
}

/// The next row of a run; heads come in the order of their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    time: u64,
    /// Place of the run in the file.
    place: u32,
    row: u32,
    end: u32,
}

/// The rows of all runs whose times are from `from` to `until`.
fn merge(time: &[u64], runs: &[Run], &(from, until): &(u64, u64)) -> Vec<u32> {
    let mut heads: Vec<Head> = Vec::new();
    let mut rows = 0;
    for (place, run) in (0..).zip(runs) {
        let times = &time[run.start as usize..run.end as usize];
        let row = run.start + times.partition_point(|time| *time < from) as u32;
        let end = run.start + times.partition_point(|time| *time <= until) as u32;
        if row < end {
            heads.push(Head { time: time[row as usize], place, row, end });
            rows += (end - row) as usize;
        }
    }
    heads.sort_unstable();
    let mut order = Vec::with_capacity(rows);
    let mut waiting = heads.into_iter().peekable();
    let Some(mut head) = waiting.next() else { return order };
    let mut begun: BinaryHeap<Reverse<Head>> = BinaryHeap::new();
    loop {
        // Rows are taken from one run up to the first row of another.
        let next = match (begun.peek(), waiting.peek()) {
            (Some(Reverse(old)), Some(new)) => Some(*old.min(new)),
            (old, new) => old.map(|Reverse(old)| *old).or(new.copied()),
        };
        let limit = next.map_or((u64::MAX, u32::MAX), |next| (next.time, next.place));
        while head.row < head.end && (head.time, head.place) <= limit {
            order.push(head.row);
            head.row += 1;
            head.time = time.get(head.row as usize).copied().unwrap_or(u64::MAX);
        }
        let has_begun = head.row < head.end;
        let Some(next) = next else { return order };
        if waiting.next_if_eq(&next).is_some() {
            if has_begun {
                begun.push(Reverse(head));
            }
        } else if has_begun {
            // At once, which is half the work of push and pop.
            begun.peek_mut().into_iter().for_each(|mut first| *first = Reverse(head));
        } else {
            begun.pop();
        }
        head = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that rows come in the order of a stable sort, for pieces of a file that lie in
        /// memory in another order, and for times that are in runs, equal, or in no order at all;
        /// and that times are moved to it.
        #[test]
        fn as_a_stable_sort(
            pieces in proptest::collection::vec((any::<u32>(), proptest::collection::vec(0..9u64, 0..20)), 0..9),
            scatter in any::<bool>(),
            edge in any::<bool>(),
        ) {
            let mut time: Vec<u64> = Vec::new();
            let mut ranges = Vec::new();
            for (place, steps) in &pieces {
                let start = time.len();
                let mut now = u64::from(place % 50);
                for step in steps {
                    now = if scatter { now.wrapping_mul(0x9e37_79b9) % 97 + step } else { now + step };
                    time.push(if edge && step == &8 { u64::MAX } else { now });
                }
                ranges.push((place, start..time.len()));
            }
            // The order of the file.
            ranges.sort_by_key(|(place, _)| *place);
            let pieces: Vec<Range<usize>> = ranges.into_iter().map(|(_, range)| range).collect();
            let mut expected: Vec<u32> = pieces.iter().cloned().flatten().map(|row| row as u32).collect();
            expected.sort_by_key(|row| time[*row as usize]);
            let as_they_are: Vec<u32> = (0..time.len() as u32).collect();
            prop_assert_eq!(order(&time, &pieces).unwrap_or(as_they_are), expected.clone());
            let mut moved = time.clone();
            reorder(&mut moved, &expected);
            let in_order: Vec<u64> = expected.iter().map(|row| time[*row as usize]).collect();
            prop_assert_eq!(moved, in_order);
            // In parts, which few rows are not.
            let runs = runs(&time, &pieces);
            for cut in [0, 20, 50] {
                let parts = [(0, cut), (cut + 1, u64::MAX)].map(|span| merge(&time, &runs, &span));
                prop_assert_eq!(parts.concat(), expected.clone());
            }
        }
    }

    /// Checks that many rows are divided into spans that hold every time once.
    #[test]
    fn spans_hold_every_time_once() {
        let count = 3 * FEW_ROWS as u64;
        let shapes: [&dyn Fn(u64) -> u64; 4] =
            [&|row| row, &|row| count - row, &|_| 0, &|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15)];
        for shape in shapes {
            let time: Vec<u64> = (0..count).map(shape).collect();
            let spans = spans(&time);
            assert_eq!((spans[0].0, spans[spans.len() - 1].1), (0, u64::MAX));
            assert!(spans.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{spans:?}");
            let pieces: Vec<Range<usize>> = vec![0..10, 10..time.len()];
            let mut expected: Vec<u32> = (0..count as u32).collect();
            expected.sort_by_key(|row| time[*row as usize]);
            let found = order(&time, &pieces).unwrap_or((0..count as u32).collect());
            assert!(found == expected);
        }
    }
}
