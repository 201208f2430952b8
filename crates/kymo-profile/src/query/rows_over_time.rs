//! Rows of a selection over time, by thread, CPU and node: what a picture of a part of the
//! timeline draws.
use super::QueryError;
use super::dataset::Dataset;
use super::nodes::Selection;
use super::scan::{FilteredRow, Scan};
use super::tiles::each_tile;
use crate::columns::RowField;
use crate::export::{NO_PARENT, Timeline, TimelineEntry};
use std::sync::atomic::AtomicBool;

/// So many entries at most.
const MOST_ENTRIES: usize = 200_000;
/// Buckets of a selection: more than a screen has columns.
const BUCKETS: u64 = 4096;
/// Spans lie in many buckets: of many threads there are fewer.
const FEWEST_BUCKETS: u64 = 128;

/// The numbers by which the asker knows rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNumbers<'a> {
    /// By row its node.
    pub(crate) nodes: &'a [u32],
    /// By thread of the columns its number.
    pub(crate) threads: &'a [Option<u32>],
}

impl Dataset {
    /// The rows of a selection in buckets of time, of which the first begins where the selected
    /// range does. Where there are more than a picture needs, a fair part of them; each stands for
    /// several.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`].
    pub(crate) fn rows_over_time(
        &self,
        selection: &Selection,
        numbers: RowNumbers<'_>,
        cancel: &AtomicBool,
    ) -> Result<Timeline, QueryError> {
        let Some(scan) = self.scan_of(selection, cancel) else { return Ok(Timeline::default()) };
        let Some((first, last)) = scan.bounds() else { return Ok(Timeline::default()) };
        let first = selection.range.map_or(first, |(from, _)| from);
        let mut rows = 0;
        scan.each(|_| rows += 1)?;
        let stride =
            if self.is_of_spans() { 1 } else { (rows / MOST_ENTRIES + 1).next_power_of_two() as u64 };
        let most = match selection.threads {
            None if self.is_of_spans() => (MOST_ENTRIES as u64 / self.columns.threads.len().max(1) as u64)
                .clamp(FEWEST_BUCKETS, BUCKETS),
            _ => BUCKETS,
        };
        let bucket_ns = (last - first) / most + 1;
        let buckets = ((last - first) / bucket_ns + 1) as usize;
        let mut entries = Vec::new();
        scan.each(|found| {
            let Some(entry) = self.entry(&scan, found, numbers) else { return };
            if !self.columns.is_kept(found.row, stride) {
                return;
            }
            each_tile(&scan, found, (first, bucket_ns, buckets), |bucket, part| {
                let bucket = bucket as u32;
                if self.is_of_spans() {
                    let samples = part.min(u32::MAX.into()) as u32;
                    entries.push(TimelineEntry { bucket, samples, period: part, ..entry });
                } else {
                    let period = part.saturating_mul(stride);
                    entries.push(TimelineEntry { bucket, samples: stride as u32, period, ..entry });
                }
            });
        })?;
        let mut timeline = Timeline { bucket_ns, entries };
        timeline.coarsen(2 * MOST_ENTRIES, FEWEST_BUCKETS as u32);
        Ok(timeline)
    }

    /// What a row is in a picture, without its time.
    fn entry(&self, scan: &Scan<'_>, found: &FilteredRow, numbers: RowNumbers<'_>) -> Option<TimelineEntry> {
        let node = *numbers.nodes.get(found.row).filter(|node| **node != NO_PARENT)?;
        let thread = (*numbers.threads.get(scan.get(RowField::Thread, found.row) as usize)?)?;
        let cpu = scan.get(RowField::Cpu, found.row) as u32;
        Some(TimelineEntry { bucket: 0, thread, cpu, node, samples: 0, period: 0 })
    }
}
