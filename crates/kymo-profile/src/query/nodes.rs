//! Sums by node of a call tree that is known already: what a picture asks when its user selects a
//! range of time or a thread.
use super::QueryError;
use super::annotate::Annotator;
use super::dataset::Dataset;
use super::filter::Test;
use super::heatmap::{HeatMap, heat_map};
use super::node_index::NodeIndex;
use super::scan::{FilteredRow, Scan, Sum};
use crate::columns::RowField;
use crate::export::NO_PARENT;
use kymo_symbols::SymbolStore;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Whose rows count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectedThreads {
    /// Those of a process.
    Process(i32),
    /// Those of a thread: its process, and itself.
    Thread(i32, i32),
}

/// Which rows count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The event, by its place in the recording; of spans it does not matter.
    pub event: u32,
    /// From a moment to before another, ns of the recording's clock; `None`: all.
    pub range: Option<(u64, u64)>,
    /// `None`: all.
    pub threads: Option<SelectedThreads>,
}

/// What each node has of the selected rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeSums {
    /// Rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// Node, its own rows, and the sum of their periods; nodes ascend.
    pub nodes: Vec<(u32, u64, u64)>,
}

impl Dataset {
    /// The rows of a selection; `None` where its range is empty.
    pub(super) fn scan_of<'a>(&'a self, selection: &Selection, cancel: &'a AtomicBool) -> Option<Scan<'a>> {
        let range = match selection.range {
            Some((from, until)) if from < until => vec![(from, until - 1)],
            Some(_) => return None,
            None => vec![(0, u64::MAX)],
        };
        let chosen = |selected: SelectedThreads| -> Vec<bool> {
            let threads = self.columns.threads.iter();
            let is_chosen = threads.map(|thread| match selected {
                SelectedThreads::Process(pid) => thread.pid == pid,
                SelectedThreads::Thread(pid, tid) => (thread.pid, thread.tid) == (pid, tid),
            });
            is_chosen.collect()
        };
        let tests = selection.threads.map(|selected| Test::Table(RowField::Thread, chosen(selected)));
        Some(Scan::of_rows(self, selection.event, range, tests.into_iter().collect(), cancel))
    }

    /// The heat map of a selection, with columns that begin at a moment of the recording's clock.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`].
    pub(crate) fn heat_map_of(
        &self,
        selection: &Selection,
        (rows, from): (u32, u64),
        cancel: &AtomicBool,
    ) -> Result<HeatMap, QueryError> {
        let scan = self.scan_of(selection, cancel);
        scan.map_or_else(|| Ok(HeatMap::default()), |scan| heat_map(&scan, rows, Some(from)))
    }

    /// Counts the rows of a selection by function and address.
    ///
    /// # Errors
    /// When the rows are spans, which have no sampled address.
    pub(crate) fn annotator_of<'a>(
        &'a self,
        selection: &Selection,
        store: &'a SymbolStore,
        cancel: &'a AtomicBool,
    ) -> Result<Annotator<'a>, QueryError> {
        let range = selection.range.filter(|(from, until)| from < until);
        let scan = self.scan_of(&Selection { range, ..*selection }, cancel);
        let none = || QueryError::Unknown("nothing is selected".into());
        self.annotator_of_scan(&scan.ok_or_else(none)?, store)
    }

    /// Sums of the selected rows by their nodes. A span counts with the part of it that lies in the
    /// range.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`].
    pub(crate) fn sum_by_node(
        &self,
        selection: &Selection,
        index: &NodeIndex,
        cancel: &AtomicBool,
    ) -> Result<NodeSums, QueryError> {
        let Some(scan) = self.scan_of(selection, cancel) else { return Ok(NodeSums::default()) };
        let mut sums = vec![Sum::default(); index.count()];
        let mut all = Sum::default();
        let mut add = |node: u32, sum: Sum| {
            all += sum;
            if let Some(of_node) = sums.get_mut(node as usize) {
                *of_node += sum;
            }
        };
        let node = |row: usize| index.nodes().get(row).copied().unwrap_or(NO_PARENT);
        let one = |found: &FilteredRow| Sum { samples: 1, period: found.period };
        // Of a thread there are no sums, and a span may lie in a range with a part only.
        if self.is_of_spans() || selection.threads.is_some() {
            scan.each(|found| add(node(found.row), one(found)))?;
        } else {
            for &(from, to) in scan.spans() {
                let rows = self.columns.rows_in(from..=to);
                for rest in index.each_block(&self.columns, selection.event, rows, &mut add) {
                    scan.rows(rest, (from, to), &mut |found| add(node(found.row), one(found)))?;
                }
            }
        }
        let nodes = (0..).zip(&sums).filter(|(_, sum)| sum.samples > 0);
        let nodes = nodes.map(|(node, sum)| (node, sum.samples, sum.period)).collect();
        Ok(NodeSums { samples: all.samples, period: all.period, nodes })
    }
}
