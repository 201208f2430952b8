//! A column of numbers that takes no more bytes for each row than its largest number needs.
use kymo_symbols::pool::map;
use std::ops::Range;

/// A column of numbers. The form follows from the numbers alone, so equal columns are equal in
/// memory, too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Narrow {
    len: usize,
    cells: Cells,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cells {
    /// All rows have this number.
    Same(u64),
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Default for Cells {
    fn default() -> Cells {
        Cells::Same(0)
    }
}

impl Narrow {
    /// Adds a row.
    #[inline]
    pub(super) fn push(&mut self, value: u64) {
        match &mut self.cells {
            Cells::Same(same) if *same == value || self.len == 0 => *same = value,
            Cells::U8(list) if value <= u64::from(u8::MAX) => list.push(value as u8),
            Cells::U16(list) if value <= u64::from(u16::MAX) => list.push(value as u16),
            Cells::U32(list) if value <= u64::from(u32::MAX) => list.push(value as u32),
            Cells::U64(list) => list.push(value),
            _ => return self.push_wider(value),
        }
        self.len += 1;
    }

    /// Adds rows.
    #[inline]
    pub(super) fn extend(&mut self, values: &[u64]) {
        let widest = values.iter().fold(0, |widest, value| widest | value);
        match &mut self.cells {
            Cells::U8(list) if widest <= u64::from(u8::MAX) => list.extend(values.iter().map(|v| *v as u8)),
            Cells::U16(list) if widest <= u64::from(u16::MAX) => {
                list.extend(values.iter().map(|v| *v as u16));
            }
            Cells::U32(list) if widest <= u64::from(u32::MAX) => {
                list.extend(values.iter().map(|v| *v as u32));
            }
            Cells::U64(list) => list.extend(values),
            Cells::Same(same) if self.len > 0 && values.iter().all(|value| value == same) => {}
            _ => return values.iter().for_each(|value| self.push(*value)),
        }
        self.len += values.len();
    }

    #[cold]
    fn push_wider(&mut self, value: u64) {
        let widest = match self.cells {
            Cells::Same(same) => same.max(value),
            _ => value,
        };
        self.cells = std::mem::take(&mut self.cells).widened(self.len, widest);
        self.push(value);
    }

    /// The number in a row.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    pub fn get(&self, row: usize) -> u64 {
        match &self.cells {
            Cells::Same(same) => {
                assert!(row < self.len, "row {row} of {}", self.len);
                *same
            }
            Cells::U8(list) => u64::from(list[row]),
            Cells::U16(list) => u64::from(list[row]),
            Cells::U32(list) => u64::from(list[row]),
            Cells::U64(list) => list[row],
        }
    }

    /// Replaces the numbers of `out`, one for each of `rows`, by what `each` makes of them and of
    /// the numbers in the rows.
    #[inline]
    pub(super) fn copy(&self, rows: Range<usize>, out: &mut [u64], each: impl Fn(u64, u64) -> u64) {
        fn of<T: Copy + Into<u64>>(list: &[T], out: &mut [u64], each: impl Fn(u64, u64) -> u64) {
            out.iter_mut().zip(list).for_each(|(cell, value)| *cell = each(*cell, (*value).into()));
        }
        match &self.cells {
            Cells::Same(same) => out.iter_mut().for_each(|cell| *cell = each(*cell, *same)),
            Cells::U8(list) => of(&list[rows], out, each),
            Cells::U16(list) => of(&list[rows], out, each),
            Cells::U32(list) => of(&list[rows], out, each),
            Cells::U64(list) => of(&list[rows], out, each),
        }
    }

    /// The largest number; 0 where there is no row.
    pub(super) fn max(&self) -> u64 {
        // Without a branch for each, so that several are compared at once.
        fn of<T: Copy + Ord + Default + Into<u64>>(list: &[T]) -> u64 {
            list.iter().fold(T::default(), |most, value| most.max(*value)).into()
        }
        match &self.cells {
            Cells::Same(same) => *same,
            Cells::U8(list) => of(list),
            Cells::U16(list) => of(list),
            Cells::U32(list) => of(list),
            Cells::U64(list) => of(list),
        }
    }

    /// The number that all rows have, if all have one.
    pub fn same(&self) -> Option<u64> {
        match self.cells {
            Cells::Same(same) if self.len > 0 => Some(same),
            _ => None,
        }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No row at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that the rows take.
    pub fn bytes(&self) -> usize {
        self.len
            * match self.cells {
                Cells::Same(_) => 0,
                Cells::U8(_) => 1,
                Cells::U16(_) => 2,
                Cells::U32(_) => 4,
                Cells::U64(_) => 8,
            }
    }

    /// Adds the rows of another column.
    pub(super) fn append(&mut self, other: Narrow) {
        if self.is_empty() {
            *self = other;
            return;
        }
        let len = other.len;
        match (&mut self.cells, other.cells) {
            _ if len == 0 => {}
            (Cells::Same(same), Cells::Same(more)) if *same == more => {}
            (Cells::U8(list), Cells::U8(more)) => list.extend(more),
            (Cells::U16(list), Cells::U16(more)) => list.extend(more),
            (Cells::U32(list), Cells::U32(more)) => list.extend(more),
            (Cells::U64(list), Cells::U64(more)) => list.extend(more),
            (_, cells) => {
                let other = Narrow { len, cells };
                let widest = self.max().max(other.max());
                self.cells = std::mem::take(&mut self.cells).widened(self.len, widest);
                return self.append(Narrow { len, cells: other.cells.widened(len, widest) });
            }
        }
        self.len += len;
    }

    /// Each number replaced by that of the map, which has another number for each that is in the
    /// column, and no larger one beside them.
    pub(super) fn mapped(&self, map: &[u32]) -> Narrow {
        let of = |value: u64| map[value as usize];
        let cells = match (&self.cells, map.iter().max().copied().unwrap_or(0)) {
            (Cells::Same(same), _) if self.len > 0 => Cells::Same(of(*same).into()),
            (Cells::Same(_), _) => Cells::default(),
            (_, 0..=0xff) => Cells::U8(self.cells.collect(|value| of(value) as u8)),
            (_, 0x100..=0xffff) => Cells::U16(self.cells.collect(|value| of(value) as u16)),
            _ => Cells::U32(self.cells.collect(of)),
        };
        Narrow { len: self.len, cells }
    }

    /// The rows in another order: `order` has every row once.
    pub(super) fn ordered(&self, order: &[u32]) -> Narrow {
        let cells = match &self.cells {
            Cells::Same(same) => Cells::Same(*same),
            Cells::U8(list) => Cells::U8(map(order, |row| list[*row as usize])),
            Cells::U16(list) => Cells::U16(map(order, |row| list[*row as usize])),
            Cells::U32(list) => Cells::U32(map(order, |row| list[*row as usize])),
            Cells::U64(list) => Cells::U64(map(order, |row| list[*row as usize])),
        };
        Narrow { len: self.len, cells }
    }
}

impl Cells {
    /// The same numbers in a list that has room for the widest.
    fn widened(self, len: usize, widest: u64) -> Cells {
        fn of<T: Clone>(cells: Cells, len: usize, each: impl Fn(u64) -> T) -> Vec<T> {
            match cells {
                Cells::Same(same) => vec![each(same); len],
                Cells::U8(list) => list.into_iter().map(|value| each(value.into())).collect(),
                Cells::U16(list) => list.into_iter().map(|value| each(value.into())).collect(),
                Cells::U32(list) => list.into_iter().map(|value| each(value.into())).collect(),
                Cells::U64(list) => list.into_iter().map(each).collect(),
            }
        }
        match widest {
            0..=0xff => Cells::U8(of(self, len, |value| value as u8)),
            0x100..=0xffff => Cells::U16(of(self, len, |value| value as u16)),
            0x1_0000..=0xffff_ffff => Cells::U32(of(self, len, |value| value as u32)),
            _ => Cells::U64(of(self, len, |value| value)),
        }
    }

    /// What becomes of the number of each row, where rows have numbers of their own.
    fn collect<T: Send>(&self, each: impl Fn(u64) -> T + Sync + Send) -> Vec<T> {
        match self {
            Cells::Same(_) => Vec::new(),
            Cells::U8(list) => map(list, |value| each(u64::from(*value))),
            Cells::U16(list) => map(list, |value| each(u64::from(*value))),
            Cells::U32(list) => map(list, |value| each(u64::from(*value))),
            Cells::U64(list) => map(list, |value| each(*value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let one = prop_oneof![
            4 => Just(7u64),
            4 => 0..300u64,
            1 => 0..70_000u64,
            1 => any::<u32>().prop_map(u64::from),
            1 => any::<u64>(),
        ];
        (0..40usize, proptest::collection::vec(one, 0..40)).prop_map(|(skip, list)| {
            // Long equal beginnings, so that widening is met at any length.
            std::iter::repeat_n(7, skip).chain(list).collect()
        })
    }

    fn of(list: &[u64]) -> Narrow {
        let mut column = Narrow::default();
        list.iter().for_each(|value| column.push(*value));
        column
    }

    fn of_blocks(list: &[u64], rows: usize) -> Narrow {
        let mut column = Narrow::default();
        list.chunks(rows).for_each(|block| column.extend(block));
        column
    }

    fn list(column: &Narrow) -> Vec<u64> {
        (0..column.len()).map(|row| column.get(row)).collect()
    }

    proptest! {
        /// Checks that a column has the numbers that it was given, in the fewest bytes, whether
        /// they came one by one, in blocks or in two parts.
        #[test]
        fn keeps_its_numbers(first in numbers(), second in numbers(), rows in 1..9usize) {
            let whole = [first.clone(), second.clone()].concat();
            let column = of(&whole);
            prop_assert_eq!(&list(&column), &whole);
            let widest = whole.iter().max().copied().unwrap_or(0);
            let width = match widest {
                _ if whole.iter().all(|value| *value == whole[0]) => 0,
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            prop_assert_eq!(column.bytes(), width * whole.len());
            let mut parts = of(&first);
            parts.append(of(&second));
            prop_assert_eq!(&of_blocks(&whole, rows), &column);
            prop_assert_eq!(parts, column);
        }

        /// Checks that mapped and ordered columns are those that the numbers would make.
        #[test]
        fn maps_and_orders(
            values in proptest::collection::vec(0..200u64, 0..60),
            (mask, step) in (0..256u32, prop_oneof![Just(1u32), Just(200), Just(1 << 20)]),
            seed in any::<u64>(),
        ) {
            let column = of(&values);
            // Numbers that no row has become small ones.
            let number = |n: u64| (n as u32 ^ mask) * step;
            let map: Vec<u32> = (0..200).map(|n| if values.contains(&n) { number(n) } else { 0 }).collect();
            let mapped: Vec<u64> = values.iter().map(|value| u64::from(map[*value as usize])).collect();
            prop_assert_eq!(column.mapped(&map), of(&mapped));
            let mut order: Vec<u32> = (0..values.len() as u32).collect();
            order.sort_by_key(|row| (u64::from(*row) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let ordered: Vec<u64> = order.iter().map(|row| values[*row as usize]).collect();
            prop_assert_eq!(column.ordered(&order), of(&ordered));
        }
    }
}
