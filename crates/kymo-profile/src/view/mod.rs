//! A recording that is looked at: the page of it, and the sums that the page asks for when its user
//! selects.
//!
//! *You give it* a recording; *it gives you* the page, which has the call trees whole and the
//! timeline as coarse as a picture needs, and for a selection the sums by node of all rows.
//!
//! ```text
//!   recording --> Dataset (rows as columns) --+--> ExportProfile --> page: trees, timeline
//!                                             |
//!                 node of each row (4 bytes) -'--> selection --> sums by node
//! ```
//!
//! # Invariants
//! - **V1** The sums of a selection of everything are the selves of the page's nodes.
//! - **V2** The sums of a range are those of `kymo query` and `kymo report --time` for it.
//! - **V3** The page's nodes keep their numbers as long as the view lives.
//!
//! # Cost
//! A selection costs one look at each row in its range.
#[cfg(test)]
mod tests;

use crate::export::{self, ExportProfile, RowNodes, collect_with_nodes, row_nodes};
use crate::load::{LoadOptions, Progress};
use crate::profile::Profile;
use crate::query::{Dataset, OpenError, Query, QueryAnswer, QueryError, SelectedThreads, Selection};
use crate::resolve::ResolveOptions;
use crate::wall::{WaitDetail, Wall, wait_detail};
use kymo_data::Recording;
use kymo_symbols::SymbolStore;
use std::io::{self, Write};
use std::sync::atomic::AtomicBool;

pub use crate::export::policy;
pub use crate::query::NodeSums;

/// A recording that is looked at.
#[derive(Debug)]
pub struct RecordingView {
    export: ExportProfile,
    /// The place in the recording of each event of the export.
    events: Vec<u32>,
    data: Dataset,
    nodes: RowNodes,
}

/// A selection as the page names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSelection {
    /// Index of the page's event.
    pub event: usize,
    /// From a moment to before another, ns from the page's beginning on.
    pub range: Option<(u64, u64)>,
    /// Index of a thread.
    pub thread: Option<usize>,
    /// The number of a process.
    pub process: Option<i32>,
}

impl RecordingView {
    /// Reads a recording. One that tells where threads waited is shown with all of their time,
    /// unless `samples_only`. `source`: its name as the user gave it.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn open(
        recording: &Recording,
        (source, samples_only): (&str, bool),
        (resolve, store): (ResolveOptions, &SymbolStore),
        workers: usize,
        progress: Progress<'_>,
    ) -> Result<RecordingView, OpenError> {
        let load = LoadOptions { callchains: true, columns: true, workers, ..LoadOptions::default() };
        if !samples_only
            && wait_detail(recording) == WaitDetail::All
            && let Some(wall) = Wall::open(recording, (&load, None), resolve, store, progress)?
        {
            let (export, nodes) = wall.export_with_nodes(recording, source);
            return Ok(RecordingView { export, events: vec![0], data: Dataset::of_wall(wall), nodes });
        }
        let profile = Profile::open(recording, &load, resolve, store, progress)?;
        let (export, of_events) = collect_with_nodes(recording, &profile, source);
        let nodes = profile.loaded.columns.as_ref().map(|columns| row_nodes(columns, &of_events));
        let with_samples = profile.loaded.totals.iter().zip(0..).filter(|(total, _)| total.samples > 0);
        let events = with_samples.map(|(_, event)| event).collect();
        let data = Dataset::of_profile(recording, profile);
        Ok(RecordingView { export, events, data, nodes: nodes.unwrap_or_default() })
    }

    /// The rows and names, for any query.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// What the page shows.
    pub fn export(&self) -> &ExportProfile {
        &self.export
    }

    /// When the file was written, for the page's head, ns since 1970.
    pub fn set_written(&mut self, unix_ns: Option<u64>) {
        self.export.written_unix_ns = unix_ns;
    }

    /// Writes the page. Its scripts run only if they have this word, and ask the server that it
    /// came from.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_page(&self, nonce: &str, out: &mut dyn Write) -> io::Result<()> {
        export::served_html(&self.export, nonce, out)
    }

    /// Sums of what the page's user selected, by node of the event's call tree.
    ///
    /// # Errors
    /// [`QueryError::Unknown`] for an event or thread that the page does not have,
    /// [`QueryError::Cancelled`].
    pub fn select(&self, selection: PageSelection, cancel: &AtomicBool) -> Result<NodeSums, QueryError> {
        let no = |what: &str| QueryError::Unknown(format!("the page has no such {what}"));
        let event = *self.events.get(selection.event).ok_or_else(|| no("event"))?;
        let thread = selection.thread.map(|at| self.export.threads.get(at).ok_or_else(|| no("thread")));
        let thread = thread.transpose()?.map(|thread| SelectedThreads::Thread(thread.pid, thread.tid));
        let range = selection.range.map(|(from, until)| {
            let moment = |ns: u64| self.export.start_ns.saturating_add(ns);
            (moment(from), moment(until))
        });
        let threads = thread.or(selection.process.map(SelectedThreads::Process));
        self.data.sum_by_node(&Selection { event, range, threads }, &self.nodes, cancel)
    }

    /// Answers a query as `kymo query` does. `store`: the symbols that the recording was opened
    /// with.
    ///
    /// # Errors
    /// When the query names what the recording does not have, asks what these rows do not tell, or
    /// was cancelled.
    pub fn ask(
        &self,
        query: &Query,
        store: &SymbolStore,
        cancel: &AtomicBool,
    ) -> Result<QueryAnswer, QueryError> {
        if query.needs_spans() && !self.data.is_of_spans() {
            let what = "what is shown are samples: the time of threads was not recorded, or not asked for";
            return Err(QueryError::NotRecorded(what.into()));
        }
        self.data.ask(query, store, cancel)
    }
}
