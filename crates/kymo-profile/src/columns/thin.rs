//! A fair part of the rows, for pictures that cannot show all.
use super::{Columns, RowField, per_cpu};
use kymo_symbols::pool;

/// Some of the rows of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinRows {
    /// The rows, ascending.
    pub rows: Vec<usize>,
    /// Each stands for so many.
    pub stride: u64,
}

impl Default for ThinRows {
    /// All rows of no columns.
    fn default() -> ThinRows {
        ThinRows { rows: Vec::new(), stride: 1 }
    }
}

impl Columns {
    /// At most `most` rows: all, or one in 2, 4, 8, ...
    ///
    /// Which ones is decided by the samples themselves, not by their order: every second sample of
    /// two threads that take turns would be one thread only.
    pub fn thin(&self, most: usize) -> ThinRows {
        let pieces = per_cpu(0..self.len());
        if self.len() <= most {
            return ThinRows { rows: (0..self.len()).collect(), stride: 1 };
        }
        // About so many zeros at its end has the ticket of a row that stays: one fewer is surely
        // enough, unless the tickets do not look random at all.
        let few = (self.len() / most.max(1)).ilog2().saturating_sub(1);
        // Rows by the number of zeros that their tickets end with: 2^n divides the tickets of those
        // with n zeros and more.
        let looked = pool::map(&pieces, |piece| {
            let (mut by_zeros, mut likely) = ([0usize; 65], Vec::new());
            for row in piece.clone() {
                let zeros = self.ticket(row).trailing_zeros();
                by_zeros[zeros as usize] += 1;
                if zeros >= few {
                    likely.push(row);
                }
            }
            (by_zeros, likely)
        });
        let (mut kept, mut zeros) = (self.len(), 0);
        while kept > most && zeros < 62 {
            kept -= looked.iter().map(|(by_zeros, _)| by_zeros[zeros]).sum::<usize>();
            zeros += 1;
        }
        let stride = 1u64 << zeros;
        let rows = match zeros as u32 >= few {
            true => {
                let likely = looked.into_iter().flat_map(|(_, likely)| likely);
                likely.filter(|row| self.is_kept(*row, stride)).collect()
            }
            false => (0..self.len()).filter(|row| self.is_kept(*row, stride)).collect(),
        };
        ThinRows { rows, stride }
    }

    /// Whether a row is one of those that stay when one in `stride` does, a power of two.
    pub(crate) fn is_kept(&self, row: usize, stride: u64) -> bool {
        stride == 1 || self.ticket(row).is_multiple_of(stride)
    }

    /// A number that looks random, from what a sample is.
    fn ticket(&self, row: usize) -> u64 {
        let thread = self.thread(row);
        let place = self.get(RowField::Cpu, row) << 32 | u64::from(thread.tid as u32);
        let mixed = (self.time[row] ^ place.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // The low bits decide; the high ones are mixed best.
        (mixed ^ mixed >> 32) ^ self.get(RowField::Event, row)
    }
}
