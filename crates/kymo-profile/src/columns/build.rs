//! From the rows of the workers to columns.
use super::{Columns, FIELDS, Narrow, Row, RowField, ThreadId, ThreadTable, merge};
use crate::chains::{ChainId, Chains};
use crate::extra::ExtraId;
use kymo_data::Recording;
use std::ops::Range;

/// So many rows are always held.
const LEAST_LIMIT: u64 = 1 << 20;

/// A recording with more samples than columns hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "the recording has more than {limit} samples, and kymo holds no more of a file of this size: the file is damaged or made to exhaust memory; choose a part with --time, or print the table (`kymo report --stdio`), which holds no single samples"
)]
pub struct TooManyRows {
    limit: usize,
}

/// How many rows are held of a recording: as many as it has bytes. A sample takes at least 8 bytes
/// of a recording that is not compressed, and more than one of an honest compressed one.
pub(crate) fn row_limit(recording: &Recording) -> usize {
    recording.data_bytes().clamp(LEAST_LIMIT, u64::from(u32::MAX)) as usize
}

/// So many rows are added to the columns at once: they stay in the first cache.
const BLOCK: usize = 64;

/// The rows of one worker, in the order in which it read them.
#[derive(Debug)]
pub(crate) struct RowBuffer {
    /// Rows that no column has yet, fewer than a block.
    latest: Vec<Row>,
    time: Vec<u64>,
    fields: [Narrow; FIELDS],
    /// Where each chunk that the worker read begins in the file, and its first row.
    chunks: Vec<(u64, usize)>,
    limit: usize,
    /// There were more rows than the limit.
    is_full: bool,
}

impl RowBuffer {
    /// Room for so many rows at most.
    pub(crate) fn new(limit: usize) -> RowBuffer {
        RowBuffer {
            latest: Vec::with_capacity(BLOCK),
            time: Vec::new(),
            fields: Default::default(),
            chunks: Vec::new(),
            limit,
            is_full: false,
        }
    }

    /// How many rows.
    fn len(&self) -> usize {
        self.time.len() + self.latest.len()
    }

    /// The rows that follow are of the chunk at this place of the file.
    pub(crate) fn begin_chunk(&mut self, position: u64) {
        self.chunks.push((position, self.len()));
    }

    /// Adds a row.
    #[inline]
    pub(crate) fn push(&mut self, row: &Row) {
        if self.len() == self.limit {
            self.is_full = true;
            return;
        }
        self.latest.push(*row);
        if self.latest.len() == BLOCK {
            self.add_latest();
        }
    }

    /// Adds the latest rows to the columns, one column after another.
    fn add_latest(&mut self) {
        self.time.extend(self.latest.iter().map(|row| row.time_ns));
        let mut values = [0; BLOCK];
        for field in RowField::ALL {
            values.iter_mut().zip(&self.latest).for_each(|(value, row)| *value = row.field(field));
            self.fields[field as usize].extend(&values[..self.latest.len()]);
        }
        self.latest.clear();
    }
}

/// The rows of a worker, with the ids in the common tables of the ids in its own.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) rows: RowBuffer,
    pub(crate) stacks: Vec<ChainId>,
    pub(crate) threads: Vec<ThreadId>,
    pub(crate) extras: Vec<ExtraId>,
}

/// Columns of the rows of all workers, with stacks under the ids that the columns have.
///
/// # Errors
/// When there are more than `limit` rows.
pub(crate) fn columns(
    mut parts: Vec<Part>,
    threads: ThreadTable,
    chains: Chains,
    limit: usize,
) -> Result<(Columns, Chains), TooManyRows> {
    parts.iter_mut().for_each(|part| part.rows.add_latest());
    let rows: usize = parts.iter().map(|part| part.rows.time.len()).sum();
    if rows > limit || parts.iter().any(|part| part.rows.is_full) {
        return Err(TooManyRows { limit });
    }
    let (threads, thread_ids) = threads.sorted();
    let pieces = pieces(&parts);
    let mut time = Vec::new();
    for part in &mut parts {
        let own = std::mem::take(&mut part.rows.time);
        if time.is_empty() { time = own } else { time.extend(own) }
    }
    let order = merge::order(&time, &pieces);
    let mut fields: [Narrow; FIELDS] = Default::default();
    for field in RowField::ALL {
        let column = &mut fields[field as usize];
        for part in &mut parts {
            // What is taken over is freed at once: columns are in memory twice one by one.
            let own = std::mem::take(&mut part.rows.fields[field as usize]);
            column.append(match field {
                RowField::Stack => own.mapped(&part.stacks),
                RowField::Extra => own.mapped(&part.extras),
                RowField::Thread => {
                    let map: Vec<_> = part.threads.iter().map(|id| thread_ids[*id as usize]).collect();
                    own.mapped(&map)
                }
                _ => own,
            });
        }
        if let Some(order) = &order {
            *column = column.ordered(order);
        }
    }
    if let Some(order) = order {
        merge::reorder(&mut time, &order);
    }
    let (stacks, ids) = by_first_row(&fields[RowField::Stack as usize], chains.len());
    fields[RowField::Stack as usize] = stacks;
    Ok((finished(time, fields, threads), chains.reordered(&ids)))
}

/// Columns of spans of wall time, with the stacks' ids as they are.
pub(crate) fn columns_of_spans(mut rows: Vec<Row>, threads: ThreadTable) -> Columns {
    rows.sort_by_key(|row| row.time_ns);
    let (threads, ids) = threads.sorted();
    let mut buffer = RowBuffer::new(rows.len());
    for row in rows {
        let thread = ids[row.thread as usize];
        let waker = row.waker.map(|waker| ids[waker as usize]);
        buffer.push(&Row { thread, waker, ..row });
    }
    buffer.add_latest();
    finished(buffer.time, buffer.fields, threads)
}

fn finished(time: Vec<u64>, fields: [Narrow; FIELDS], threads: ThreadTable) -> Columns {
    let values = std::array::from_fn(|field| fields[field].max().saturating_add(1));
    Columns { time, fields, values, threads }
}

/// All chunks in the order of the file: the rows of each, where the rows of one worker follow those
/// of the worker before.
fn pieces(parts: &[Part]) -> Vec<Range<usize>> {
    let mut pieces: Vec<(u64, Range<usize>)> = Vec::new();
    let mut base = 0;
    for part in parts {
        let rows = &part.rows;
        let ends = rows.chunks.iter().skip(1).map(|(_, first)| *first).chain([rows.time.len()]);
        let own = rows.chunks.iter().zip(ends);
        pieces.extend(own.map(|((position, first), end)| (*position, base + first..base + end)));
        base += rows.time.len();
    }
    pieces.sort_unstable_by_key(|(position, _)| *position);
    pieces.into_iter().map(|(_, rows)| rows).collect()
}

/// Numbers stacks in the order of their first rows, so that ids do not tell which worker was first;
/// the answer has the id before of each.
fn by_first_row(column: &Narrow, count: usize) -> (Narrow, Vec<ChainId>) {
    const NEW: u32 = u32::MAX;
    let mut map = vec![NEW; count];
    let mut ids = Vec::with_capacity(count);
    for row in 0..column.len() {
        let id = column.get(row) as usize;
        if map[id] == NEW {
            map[id] = ids.len() as u32;
            ids.push(id as ChainId);
            // All others follow from the first row.
            if column.same().is_some() || ids.len() == count {
                break;
            }
        }
    }
    (column.mapped(&map), ids)
}
