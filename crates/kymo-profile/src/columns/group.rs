//! Counts over a range of rows.
//!
//! What a row is counted under is one number ([`Numbers`]), made column by column. Where few
//! numbers are possible, counts are a list by number, else a hash table.
use super::{Columns, RowField, per_cpu};
use crate::chains::ChainId;
use crate::counts::{Count, Dims, GroupKey, Groups};
use crate::extra::ExtraId;
use kymo_symbols::pool;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Rows whose numbers are made at once: they stay in the first cache.
const BLOCK: usize = 1 << 10;
/// Lists of so many places (6 MB) are always short enough.
const FEW_PLACES: u64 = 1 << 18;
/// Longer ones have at most so many for each row that is counted: memory follows the rows.
const PLACES_PER_ROW: u64 = 2;

impl Columns {
    /// Counts rows by what they share: the events, names of threads and stacks always, and `dims`.
    /// The parts of [`Dims`] that are [`Extra`](crate::load::Extra)s are those that were loaded.
    pub fn group_by(&self, rows: Range<usize>, dims: Dims, latency: bool) -> Groups {
        let numbers = Numbers::new(self, dims);
        let parts = pool::map(&per_cpu(rows), |piece| numbers.count(piece.clone(), latency));
        let most = parts.iter().map(Vec::len).max().unwrap_or(0);
        let mut groups = Groups::with_capacity_and_hasher(most, Default::default());
        for (key, count) in parts.into_iter().flatten() {
            *groups.entry(key).or_default() += count;
        }
        groups
    }

    /// Counts rows one by one; for columns whose numbers no word holds.
    fn group_rows(&self, rows: Range<usize>, dims: Dims, latency: bool) -> Groups {
        let mut groups = Groups::default();
        for row in rows.map(|row| self.row(row)) {
            *groups.entry(row.key(self.threads.get(row.thread), dims)).or_default() += row.count(latency);
        }
        groups
    }
}

/// Rows as the numbers that they are counted under.
struct Numbers<'a> {
    columns: &'a Columns,
    dims: Dims,
    /// The column of each digit, and how many values it has. Columns whose rows all have one value
    /// are none.
    digits: Vec<(RowField, u64)>,
    /// For each thread the number of those that are counted together, and one of them.
    classes: Vec<u32>,
    of_class: Vec<u32>,
    /// How many numbers there are, if a word holds them.
    count: Option<u64>,
}

impl<'a> Numbers<'a> {
    fn new(columns: &'a Columns, dims: Dims) -> Numbers<'a> {
        let mut known: FxHashMap<_, u32> = FxHashMap::default();
        let (mut classes, mut of_class) = (Vec::new(), Vec::new());
        for (id, thread) in (0..).zip(columns.threads.iter()) {
            let pid = (dims.pid || dims.tid).then_some(thread.pid);
            let next = of_class.len() as u32;
            let class = *known.entry((thread.comm, pid, dims.tid.then_some(thread.tid))).or_insert(next);
            if class == next {
                of_class.push(id);
            }
            classes.push(class);
        }
        let fields = [RowField::Extra, RowField::Event, RowField::Cpu, RowField::Thread, RowField::Stack];
        let digits: Vec<(RowField, u64)> = fields
            .into_iter()
            .filter(|field| columns.field(*field).same().is_none())
            .filter_map(|field| match field {
                RowField::Thread => (of_class.len() > 1).then_some((field, of_class.len() as u64)),
                RowField::Cpu if !dims.cpu => None,
                _ => Some((field, columns.values[field as usize])),
            })
            .collect();
        let count = digits.iter().try_fold(1u64, |count, (_, values)| count.checked_mul(*values));
        Numbers { columns, dims, digits, classes, of_class, count }
    }

    fn count(&self, rows: Range<usize>, latency: bool) -> Vec<(GroupKey, Count)> {
        match self.count {
            None => self.columns.group_rows(rows, self.dims, latency).into_iter().collect(),
            Some(count) if count <= FEW_PLACES.max(PLACES_PER_ROW * rows.len() as u64) => {
                self.list(rows, count, latency)
            }
            Some(_) => self.table(rows, latency),
        }
    }

    fn list(&self, rows: Range<usize>, count: u64, latency: bool) -> Vec<(GroupKey, Count)> {
        let mut list = vec![Count::default(); count as usize];
        self.each(rows, latency, |number, count| list[number as usize] += count);
        let counted = (0..).zip(list).filter(|(_, count)| count.samples > 0);
        counted.map(|(number, count)| (self.key(number), count)).collect()
    }

    fn table(&self, rows: Range<usize>, latency: bool) -> Vec<(GroupKey, Count)> {
        let mut table: FxHashMap<u64, Count> = FxHashMap::default();
        self.each(rows, latency, |number, count| *table.entry(number).or_default() += count);
        table.into_iter().map(|(number, count)| (self.key(number), count)).collect()
    }

    /// Calls `add` with the number and the count of each row.
    fn each(&self, rows: Range<usize>, latency: bool, mut add: impl FnMut(u64, Count)) {
        let (mut numbers, mut periods, mut parallelism) = ([0u64; BLOCK], [0u64; BLOCK], [1u64; BLOCK]);
        for start in rows.clone().step_by(BLOCK) {
            let block = start..rows.end.min(start + BLOCK);
            numbers.fill(0);
            for &(field, values) in &self.digits {
                let column = self.columns.field(field);
                match field {
                    RowField::Thread => column.copy(block.clone(), &mut numbers, |number, thread| {
                        number * values + u64::from(self.classes[thread as usize])
                    }),
                    _ => column.copy(block.clone(), &mut numbers, |number, digit| number * values + digit),
                }
            }
            self.columns.field(RowField::Period).copy(block.clone(), &mut periods, |_, period| period);
            if latency {
                let column = self.columns.field(RowField::Parallelism);
                column.copy(block.clone(), &mut parallelism, |_, parallelism| parallelism);
            }
            for ((&number, &period), &parallelism) in
                numbers.iter().zip(&periods).zip(&parallelism).take(block.len())
            {
                add(number, Count::of_sample(period, parallelism as u32, latency));
            }
        }
    }

    /// What rows of a number share.
    fn key(&self, mut number: u64) -> GroupKey {
        // What all rows have in common; of threads that are counted together any will do.
        let mut row = self.columns.row(0);
        if let Some(thread) = self.of_class.first() {
            row.thread = *thread;
        }
        for &(field, values) in self.digits.iter().rev() {
            let digit = (number % values) as u32;
            number /= values;
            match field {
                RowField::Thread => row.thread = self.of_class[digit as usize],
                RowField::Cpu => row.cpu = digit,
                RowField::Event => row.event = digit,
                RowField::Stack => row.stack = digit as ChainId,
                _ => row.extra = digit as ExtraId,
            }
        }
        row.key(self.columns.threads.get(row.thread), self.dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::tests::{built, chunks};
    use proptest::prelude::*;

    proptest! {
        /// Checks that lists, hash tables and rows one by one have the same counts.
        #[test]
        fn each_way_counts_alike(
            chunks in chunks(),
            [pid, tid, cpu, latency] in any::<[bool; 4]>(),
        ) {
            let (columns, _) = built(&chunks, 1, &[]);
            let all = 0..columns.len();
            let dims = Dims { pid, tid, cpu, ..Dims::default() };
            let expected = columns.group_rows(all.clone(), dims, latency);
            let numbers = Numbers::new(&columns, dims);
            let count = numbers.count.expect("a word holds the numbers of a few rows");
            let table = Some(numbers.table(all.clone(), latency));
            let list = (count < 1 << 16).then(|| numbers.list(all.clone(), count, latency));
            for found in [table, list].into_iter().flatten() {
                prop_assert_eq!(found.len(), expected.len());
                prop_assert_eq!(found.into_iter().collect::<Groups>(), expected.clone());
            }
            prop_assert_eq!(columns.group_by(all, dims, latency), expected);
        }
    }
}
