//! What becomes of rows: they are counted at once, or kept as columns and counted afterwards.
use super::{LoadOptions, LoadTimes, Loaded, RecordCounts};
use crate::chains::Chains;
use crate::columns::{self, Columns, Part, Row, RowBuffer, ThreadTable, TooManyRows};
use crate::counts::{Count, Dims, GroupCounter, GroupKey, Groups};
use crate::extra::Extras;
use crate::timeline::Timeline;
use kymo_data::{ReadSummary, Recording};
use kymo_symbols::pool;
use kymo_symbols::unwind::UnwindStats;
use std::cmp::Ordering;
use std::sync::Arc;

/// The rows of one worker, and the tables that their ids are of.
pub(super) struct Tally {
    pub(super) chains: Chains,
    pub(super) extras: Extras,
    pub(super) threads: ThreadTable,
    rows: Rows,
    dims: Dims,
    latency: bool,
    time_range: Option<(u64, u64)>,
    pub(super) unknown_ids: u64,
    single_threaded: u64,
}

/// Where rows go.
enum Rows {
    Counted(GroupCounter),
    Kept(Box<RowBuffer>),
}

impl Tally {
    pub(super) fn new(recording: &Recording, options: &LoadOptions) -> Tally {
        let rows = match options.columns {
            true => Rows::Kept(Box::new(RowBuffer::new(columns::row_limit(recording)))),
            false => Rows::Counted(GroupCounter::default()),
        };
        Tally {
            chains: Chains::default(),
            extras: Extras::default(),
            threads: ThreadTable::default(),
            rows,
            dims: options.dims,
            latency: options.latency,
            time_range: None,
            unknown_ids: 0,
            single_threaded: 0,
        }
    }

    /// The rows that follow are of the chunk at this place of the file.
    pub(super) fn begin_chunk(&mut self, position: u64) {
        if let Rows::Kept(rows) = &mut self.rows {
            rows.begin_chunk(position);
        }
    }

    /// Takes a row; `time` is none where the sample has none.
    #[inline]
    pub(super) fn add(&mut self, row: &Row, time: Option<u64>) {
        self.single_threaded += u64::from(row.parallelism == 1);
        if let Some(time) = time {
            let (first, last) = self.time_range.unwrap_or((time, time));
            self.time_range = Some((first.min(time), last.max(time)));
        }
        match &mut self.rows {
            Rows::Counted(groups) => {
                let key = row.key(self.threads.get(row.thread), self.dims);
                groups.add(key, row.count(self.latency));
            }
            Rows::Kept(rows) => rows.push(row),
        }
    }
}

/// The rows of all workers.
pub(super) struct Merged {
    chains: Chains,
    extras: Extras,
    groups: Groups,
    columns: Option<Columns>,
    time_range: Option<(u64, u64)>,
    unknown_ids: u64,
    single_threaded: u64,
}

impl Merged {
    /// Puts the rows of all workers together.
    ///
    /// # Errors
    /// When rows are kept, and are too many.
    pub(super) fn of(
        tallies: Vec<Tally>,
        recording: &Recording,
        options: &LoadOptions,
    ) -> Result<Merged, TooManyRows> {
        let mut all = Merged {
            chains: Chains::default(),
            extras: Extras::default(),
            groups: Groups::default(),
            columns: None,
            time_range: None,
            unknown_ids: 0,
            single_threaded: 0,
        };
        let mut threads = ThreadTable::default();
        let mut parts = Vec::new();
        for tally in tallies {
            let stacks = all.chains.absorb(&tally.chains);
            let extras = all.extras.absorb(&tally.extras);
            all.time_range = match (all.time_range, tally.time_range) {
                (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
                (a, b) => a.or(b),
            };
            all.unknown_ids += tally.unknown_ids;
            all.single_threaded += tally.single_threaded;
            match tally.rows {
                Rows::Counted(groups) => {
                    for (key, count) in groups {
                        let (chain, extra) = (stacks[key.chain as usize], extras[key.extra as usize]);
                        *all.groups.entry(GroupKey { chain, extra, ..key }).or_default() += count;
                    }
                }
                Rows::Kept(rows) => {
                    let threads = threads.absorb(&tally.threads);
                    parts.push(Part { rows: *rows, stacks, threads, extras });
                }
            }
        }
        if options.columns {
            all.keep(parts, threads, recording, options)?;
        }
        Ok(all)
    }

    fn keep(
        &mut self,
        mut parts: Vec<Part>,
        threads: ThreadTable,
        recording: &Recording,
        options: &LoadOptions,
    ) -> Result<(), TooManyRows> {
        let (extras, ids) = std::mem::take(&mut self.extras).sorted();
        for id in parts.iter_mut().flat_map(|part| &mut part.extras) {
            *id = ids[*id as usize];
        }
        self.extras = extras;
        let chains = std::mem::take(&mut self.chains);
        let (columns, chains) = columns::columns(parts, threads, chains, columns::row_limit(recording))?;
        self.chains = chains;
        self.groups = columns.group_by(0..columns.len(), options.dims, options.latency);
        self.columns = Some(columns);
        Ok(())
    }

    /// All but how stacks were unwound, and how long it took.
    pub(super) fn finish(
        self,
        events: usize,
        timeline: Arc<Timeline>,
        mut counts: RecordCounts,
        summary: ReadSummary,
    ) -> Loaded {
        let hashed = |(key, count): (GroupKey, Count)| (self.chains.get(key.chain).hash(), key, count);
        let mut groups: Vec<(u64, GroupKey, Count)> = self.groups.into_iter().map(hashed).collect();
        // A hash table's order must not reach the output. Chain ids depend on which worker was
        // first where rows were counted, so the order here is by what the chains are: by their
        // hashes first, which are the same in each run.
        pool::sort_by(&mut groups, |(x, a, _), (y, b, _)| {
            let extra = |key: &GroupKey| self.extras.get(key.extra);
            let chain = |key: &GroupKey| {
                let chain = self.chains.get(key.chain);
                (chain.maps, chain.mode, chain.ip, self.chains.bytes(chain))
            };
            (a.event, a.comm, a.pid, a.tid, a.cpu)
                .cmp(&(b.event, b.comm, b.pid, b.tid, b.cpu))
                .then_with(|| if a.extra == b.extra { Ordering::Equal } else { extra(a).cmp(extra(b)) })
                .then(x.cmp(y))
                .then_with(|| chain(a).cmp(&chain(b)))
        });
        let groups: Vec<(GroupKey, Count)> = groups.into_iter().map(|(_, key, count)| (key, count)).collect();
        let mut totals = vec![Count::default(); events];
        for (key, count) in &groups {
            totals[key.event as usize] += *count;
        }
        counts.unknown_ids += self.unknown_ids;
        Loaded {
            timeline,
            chains: self.chains,
            extras: self.extras,
            groups,
            totals,
            columns: self.columns,
            single_threaded: self.single_threaded,
            time_range: self.time_range,
            counts,
            summary,
            unwind: UnwindStats::default(),
            times: LoadTimes::default(),
        }
    }
}
