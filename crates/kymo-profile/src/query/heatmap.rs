//! The heat map: columns of time, each divided into rows, with what each cell has. What happens
//! once in each column, or in one only, is seen at a glance.
use super::QueryError;
use super::scan::{Scan, Sum};
use super::tiles::each_tile;
use serde::Serialize;

const SECOND: u64 = 1_000_000_000;
/// Of recordings that are longer than the first and shorter than the second, a column is a second.
const SECOND_COLUMNS: std::ops::Range<u64> = 40 * SECOND..600 * SECOND;
/// Columns of shorter and of longer recordings, at most.
const COLUMNS: (u64, u64) = (60, 600);
/// The shortest column, ns.
const SHORTEST_COLUMN: u64 = 100_000;

/// What each part of each column of time has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeatMap {
    /// All rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// When the first column begins, ns of the recording's clock.
    pub start_ns: u64,
    /// How long a column is, ns: a second, or another round number.
    pub column_ns: u64,
    /// How long a cell is, ns.
    pub row_ns: u64,
    /// How many columns.
    pub columns: usize,
    /// How many cells a column has.
    pub rows: usize,
    /// Samples of each cell in the order of time: column by column.
    pub cell_samples: Vec<u64>,
    /// The sums of their periods. A span counts in each cell with the part that lies there.
    pub cell_periods: Vec<u64>,
}

/// How long a column of so long a recording is.
pub(crate) fn column_ns(span: u64) -> u64 {
    if SECOND_COLUMNS.contains(&span) {
        return SECOND;
    }
    let most = if span < SECOND_COLUMNS.start { COLUMNS.0 } else { COLUMNS.1 };
    let least = (span / most).max(SHORTEST_COLUMN);
    let mut unit = SHORTEST_COLUMN;
    while let Some(next) = unit.checked_mul(10).filter(|next| *next <= least) {
        unit = next;
    }
    [1, 2, 5].map(|n| unit.saturating_mul(n)).into_iter().find(|ns| *ns >= least).unwrap_or(unit * 10)
}

/// `from`: where the first column begins; `None`: with the first row.
pub(super) fn heat_map(scan: &Scan<'_>, rows: u32, from: Option<u64>) -> Result<HeatMap, QueryError> {
    let Some((first, last)) = scan.bounds() else { return Ok(HeatMap::default()) };
    let first = from.unwrap_or(first).min(first);
    let rows = u64::from(rows.max(1));
    let row_ns = (column_ns(last - first) / rows).max(1);
    let column_ns = row_ns * rows;
    let columns = ((last - first) / column_ns + 1) as usize;
    let cells = columns * rows as usize;
    let mut answer = HeatMap {
        start_ns: first,
        column_ns,
        row_ns,
        columns,
        rows: rows as usize,
        cell_samples: vec![0; cells],
        cell_periods: vec![0; cells],
        ..HeatMap::default()
    };
    let mut all = Sum::default();
    scan.each(|found| {
        all += Sum { samples: 1, period: found.period };
        each_tile(scan, found, (first, row_ns, cells), |cell, part| {
            answer.cell_samples[cell] = answer.cell_samples[cell].saturating_add(1);
            answer.cell_periods[cell] = answer.cell_periods[cell].saturating_add(part);
        });
    })?;
    (answer.samples, answer.period) = (all.samples, all.period);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the lengths of columns: a second where that fits, else a round number.
    #[test]
    fn columns_have_round_lengths() {
        for (span, expected) in [
            (0, SHORTEST_COLUMN),
            (3 * SECOND, 50_000_000),
            (12 * SECOND, 200_000_000),
            (30 * SECOND, 500_000_000),
            (60 * SECOND, SECOND),
            (599 * SECOND, SECOND),
            (700 * SECOND, 2 * SECOND),
            (36_000 * SECOND, 100 * SECOND),
        ] {
            assert_eq!(column_ns(span), expected, "{span}");
        }
        assert!(column_ns(u64::MAX) > SECOND);
    }
}
