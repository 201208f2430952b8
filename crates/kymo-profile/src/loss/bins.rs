//! Time in bins that merge when the time grows (invariant L2).
use super::Stretch;

/// A ring has at most so many bins.
pub const MOST_BINS: u64 = 2048;

/// All rings together have not many more than this, unless each is down to the least.
const BUDGET: u64 = 1 << 20;
const LEAST: u64 = 64;

/// One bin of one ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cell {
    /// Samples kept.
    pub samples: u64,
    /// Bytes of records kept.
    pub bytes: u64,
    /// Lost time, ns.
    pub lost_ns: u64,
    /// Throttled time, ns.
    pub throttled_ns: u64,
}

impl std::ops::AddAssign for Cell {
    fn add_assign(&mut self, other: Cell) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.lost_ns = self.lost_ns.saturating_add(other.lost_ns);
        self.throttled_ns = self.throttled_ns.saturating_add(other.throttled_ns);
    }
}

/// Bins per ring for so many rings: a power of two.
pub(super) fn limit(rings: usize) -> u64 {
    let each = (BUDGET / (rings as u64).max(1)).clamp(LEAST, MOST_BINS);
    1 << each.ilog2()
}

/// The least shift by which the span has at most [`limit`] bins.
pub(super) fn shift_for(span: (u64, u64), rings: usize, from: u32) -> u32 {
    let mut shift = from;
    while (span.1 >> shift) - (span.0 >> shift) >= limit(rings) {
        shift += 1;
    }
    shift
}

/// One ring's bins from bin `first` on; how wide they are is its owner's to know.
#[derive(Debug, Clone, Default)]
pub(super) struct Bins {
    pub(super) first: u64,
    pub(super) cells: Vec<Cell>,
}

impl Bins {
    /// The bin with this number. Numbers of one ring are less than [`limit`] apart.
    pub(super) fn at(&mut self, number: u64) -> &mut Cell {
        if self.cells.is_empty() {
            self.first = number;
        }
        if number < self.first {
            let missing = (self.first - number) as usize;
            self.cells.splice(0..0, std::iter::repeat_n(Cell::default(), missing));
            self.first = number;
        }
        let at = (number - self.first) as usize;
        if at >= self.cells.len() {
            self.cells.resize(at + 1, Cell::default());
        }
        &mut self.cells[at]
    }

    /// Makes bins wider by `by` powers of two.
    pub(super) fn coarsen(&mut self, by: u32) {
        if by == 0 || self.cells.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.cells);
        let first = self.first;
        for (number, cell) in (first..).zip(old) {
            *self.at(number >> by) += cell;
        }
    }

    /// Adds another's, of the same width.
    pub(super) fn absorb(&mut self, other: Bins) {
        for (number, cell) in (other.first..).zip(other.cells) {
            *self.at(number) += cell;
        }
    }

    /// Gives each bin its part of a stretch.
    pub(super) fn spread(&mut self, stretch: Stretch, shift: u32, add: impl Fn(&mut Cell, u64)) {
        for (number, part) in parts(stretch, shift) {
            add(self.at(number), part);
        }
    }
}

/// The bins that a stretch touches, with how many ns of it are in each.
pub(super) fn parts(stretch: Stretch, shift: u32) -> impl Iterator<Item = (u64, u64)> {
    let Stretch { start_ns, end_ns } = stretch;
    let last = if end_ns > start_ns { Some((end_ns - 1) >> shift) } else { None };
    let numbers = last.map(|last| start_ns >> shift..=last).into_iter().flatten();
    numbers.map(move |number| {
        let begin = (number << shift).max(start_ns);
        // The end of the last bin that there is does not fit into 64 bits.
        let end = (number + 1).saturating_mul(1 << shift).min(end_ns);
        (number, end - begin)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that coarsening first or adding first gives the same bins, at the ends of time, too.
    #[test]
    fn coarsening_commutes() {
        let times = [0u64, 5, 6, 900, 1023, u64::MAX - 3, 40, 1 << 63];
        let mut fine = Bins::default();
        let shift = shift_for((0, u64::MAX), 1, 0);
        assert_eq!(shift, 53, "2048 bins hold all of time");
        for time in times.map(|t| t % 2000) {
            fine.at(time >> 2).samples += 1;
        }
        fine.coarsen(3);
        let mut coarse = Bins::default();
        for time in times.map(|t| t % 2000) {
            coarse.at(time >> 5).samples += 1;
        }
        let list = |bins: &Bins| -> Vec<(u64, u64)> {
            let cells = (bins.first..).zip(&bins.cells);
            cells.filter(|(_, c)| c.samples > 0).map(|(n, c)| (n, c.samples)).collect()
        };
        assert_eq!(list(&fine), list(&coarse));
    }

    /// Checks that the parts of a stretch add up to it, and that bins shrink in number with many rings.
    #[test]
    fn parts_add_up() {
        for (start_ns, end_ns, shift) in
            [(3, 29, 3), (8, 16, 3), (7, 7, 3), (9, 2, 3), (u64::MAX - 9, u64::MAX, 2)]
        {
            let stretch = Stretch { start_ns, end_ns };
            let parts: Vec<_> = parts(stretch, shift).collect();
            assert_eq!(parts.iter().map(|p| p.1).sum::<u64>(), stretch.len_ns());
            assert!(parts.iter().all(|&(_, part)| part > 0 && part <= 1 << shift));
        }
        assert_eq!([1, 512, 513, 8193, 1 << 20].map(limit), [2048, 2048, 1024, 64, 64]);
    }
}
