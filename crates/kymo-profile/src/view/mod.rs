//! A recording that is looked at: the page of it, and what the page asks for when its user selects,
//! looks closer, or wants to see code.
//!
//! *You give it* a recording; *it gives you* the page, which has the call trees whole and the
//! timeline as coarse as a picture needs, and for a selection the sums by node of all rows.
//!
//! ```text
//!   recording --> Dataset (rows as columns) --+--> ExportProfile --> page: trees, timeline
//!                                             |
//!                 node of each row (4 bytes) -'--> selection --> sums by node, rows over time,
//!                                                                heat map, code (code)
//! ```
//!
//! # Invariants
//! - **V1** The sums of a selection of everything are the selves of the page's nodes.
//! - **V2** The sums of a range are those of `kymo query` and `kymo report --time` for it.
//! - **V3** The page's nodes keep their numbers as long as the view lives.
//!
//! # Cost
//! A selection costs one look at each row in its range; one of all threads, whose sums are made in
//! blocks before ([`NodeIndex`]), at those at its ends only.
mod code;
#[cfg(test)]
mod tests;

use crate::export::{
    self, ExportProfile, MOST_ENTRIES, RowNodes, ServedPage, Timeline, collect_with_nodes, row_nodes,
};
use crate::load::{LoadOptions, Progress};
use crate::profile::{EarlyProfile, Profile};
use crate::query::{
    Dataset, HeatMap, NodeIndex, OpenError, Query, QueryAnswer, QueryError, RowNumbers, SelectedThreads,
    Selection,
};
use crate::resolve::ResolveOptions;
use crate::wall::{WaitDetail, Wall, wait_detail};
use kymo_data::Recording;
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

pub use crate::export::{policy, write_served_page};
pub use crate::query::NodeSums;
pub use code::{PageCode, PageFunction, SourcePiece};

/// A recording that is looked at.
#[derive(Debug)]
pub struct RecordingView {
    export: ExportProfile,
    /// The place in the recording of each event of the export.
    events: Vec<u32>,
    data: Dataset,
    nodes: NodeIndex,
    /// By thread of the columns its place in the export.
    threads: Vec<Option<u32>>,
    /// The rows are of one chunk of the recording in so many.
    one_in: Option<NonZeroUsize>,
}

/// How a recording is read to be looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewOptions<'a> {
    /// The recording's name as the user gave it.
    pub source: &'a str,
    /// The samples of a recording that has the time of threads, too.
    pub samples_only: bool,
    /// The page has a server, which tells more of what it looks at closely.
    pub is_served: bool,
    /// Worker threads; 0 means one per CPU.
    pub workers: usize,
    /// How names are found.
    pub resolve: ResolveOptions,
}

/// A smaller recording is read whole in the time that an early look would take.
const EARLY_FROM_BYTES: u64 = 128 << 20;
/// So much of a recording is read for an early look, whatever its size: enough for shares, and
/// little beside what the whole takes.
const EARLY_BYTES: u64 = 64 << 20;

/// Samples on the timelines of an early look: it is there for a second, and what counts is how soon.
const EARLY_ENTRIES: usize = 40_000;

/// Samples on the timelines of a page with a server: a column of the picture has enough of them,
/// and each takes time to send and to draw.
const SERVED_ENTRIES: usize = 150_000;

/// Parts into which the page's heat map divides a second.
const HEAT_ROWS: u32 = 50;

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
    /// unless [`ViewOptions::samples_only`].
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn open(
        recording: &Recording,
        options: ViewOptions<'_>,
        store: &SymbolStore,
        progress: Progress<'_>,
    ) -> Result<RecordingView, OpenError> {
        RecordingView::open_early(recording, options, store, progress, None)
    }

    /// The same; `early` gets a view of a part of a large recording's samples as soon as it can be
    /// had. Recordings that are read in a moment, are compressed or have wall time have none.
    ///
    /// # Errors
    /// Those of [`RecordingView::open`].
    pub fn open_early(
        recording: &Recording,
        options: ViewOptions<'_>,
        store: &SymbolStore,
        progress: Progress<'_>,
        early: Option<&dyn Fn(RecordingView)>,
    ) -> Result<RecordingView, OpenError> {
        let ViewOptions { source, samples_only, is_served, workers, resolve } = options;
        let load = LoadOptions { callchains: true, columns: true, workers, ..LoadOptions::default() };
        if !samples_only
            && wait_detail(recording) == WaitDetail::All
            && let Some(wall) = Wall::open(recording, (&load, None), resolve, store, progress)?
        {
            let (export, nodes) = wall.export_with_nodes(recording, source);
            return Ok(RecordingView::new(export, vec![0], Dataset::of_wall(wall), nodes));
        }
        let one_in = NonZeroUsize::new((recording.data_bytes() / EARLY_BYTES) as usize);
        let take = |profile| {
            let view = RecordingView::of_profile(recording, profile, source, EARLY_ENTRIES);
            early.inspect(|early| early(RecordingView { one_in, ..view }));
        };
        let is_large = recording.data_bytes() >= EARLY_FROM_BYTES;
        let one_in_many = one_in.filter(|_| is_large && early.is_some());
        let early = one_in_many.map(|one_in| EarlyProfile { one_in, take: &take });
        let profile = Profile::open_early(recording, &load, (resolve, store), progress, early)?;
        let most_entries = if is_served { SERVED_ENTRIES } else { MOST_ENTRIES };
        Ok(RecordingView::of_profile(recording, profile, source, most_entries))
    }

    fn of_profile(
        recording: &Recording,
        profile: Profile,
        source: &str,
        most_entries: usize,
    ) -> RecordingView {
        let (export, of_events) = collect_with_nodes(recording, &profile, source, most_entries);
        let nodes = profile.loaded.columns.as_ref().map(|columns| row_nodes(columns, &of_events));
        let with_samples = profile.loaded.totals.iter().zip(0..).filter(|(total, _)| total.samples > 0);
        let events = with_samples.map(|(_, event)| event).collect();
        let data = Dataset::of_profile(recording, profile);
        RecordingView::new(export, events, data, nodes.unwrap_or_default())
    }

    fn new(export: ExportProfile, events: Vec<u32>, data: Dataset, nodes: RowNodes) -> RecordingView {
        let numbers: FxHashMap<(i32, i32), u32> =
            export.threads.iter().zip(0..).map(|(thread, at)| ((thread.pid, thread.tid), at)).collect();
        let threads = data.columns().threads.iter();
        let threads = threads.map(|thread| numbers.get(&(thread.pid, thread.tid)).copied()).collect();
        RecordingView { export, events, data, nodes: NodeIndex::new(nodes), threads, one_in: None }
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

    /// Writes the page as a file that needs nothing but itself, with the code of the hottest
    /// functions.
    ///
    /// # Errors
    /// Those of `out`, and [`io::ErrorKind::Interrupted`] where it was cancelled.
    pub fn write_bundle(
        &self,
        store: &SymbolStore,
        cancel: &AtomicBool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let cancelled = |error: QueryError| io::Error::new(io::ErrorKind::Interrupted, error.to_string());
        let codes = self.codes(store, cancel).map_err(cancelled)?;
        export::html_with_codes(&self.export, &codes, out)
    }

    /// Writes what a served page shows, as JSON. `version` counts the readings that were shown, and
    /// `is_last` tells that no other one will come.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_profile(&self, version: u64, is_last: bool, out: &mut dyn Write) -> io::Result<()> {
        let one_in = self.one_in.map(NonZeroUsize::get);
        export::page_json(&self.export, ServedPage { version, one_in, is_last }, out)
    }

    /// Makes what the first selection would wait for; the page can be shown before.
    pub fn prepare_selections(&self) {
        // A selection of spans looks at each of them.
        if !self.data.is_of_spans() {
            self.nodes.prepare(self.data.columns());
        }
    }

    /// Sums of what the page's user selected, by node of the event's call tree.
    ///
    /// # Errors
    /// [`QueryError::Unknown`] for an event or thread that the page does not have,
    /// [`QueryError::Cancelled`].
    pub fn select(&self, selection: PageSelection, cancel: &AtomicBool) -> Result<NodeSums, QueryError> {
        self.data.sum_by_node(&self.selection(selection)?, &self.nodes, cancel)
    }

    /// What is selected, over time and as finely as a picture needs, in the page's packed form.
    /// Buckets are counted from the beginning of the selected range on.
    ///
    /// # Errors
    /// Those of [`RecordingView::select`], and those of `out` as [`QueryError::Unknown`].
    pub fn write_entries(
        &self,
        selection: PageSelection,
        cancel: &AtomicBool,
        out: &mut Vec<u8>,
    ) -> Result<(), QueryError> {
        let timeline = self.rows_over_time(selection, cancel)?;
        export::entries_json(&timeline, out).map_err(|error| QueryError::Unknown(error.to_string()))
    }

    fn rows_over_time(&self, selection: PageSelection, cancel: &AtomicBool) -> Result<Timeline, QueryError> {
        let numbers = RowNumbers { nodes: self.nodes.nodes(), threads: &self.threads };
        self.data.rows_over_time(&self.selection(selection)?, numbers, cancel)
    }

    /// How much each part of each second of a selection has; the first second is the page's.
    ///
    /// # Errors
    /// Those of [`RecordingView::select`].
    pub fn heat_map(&self, selection: PageSelection, cancel: &AtomicBool) -> Result<HeatMap, QueryError> {
        let columns = (HEAT_ROWS, self.export.start_ns);
        self.data.heat_map_of(&self.selection(selection)?, columns, cancel)
    }

    /// A selection of the page in the recording's own terms.
    fn selection(&self, selection: PageSelection) -> Result<Selection, QueryError> {
        let no = |what: &str| QueryError::Unknown(format!("the page has no such {what}"));
        let event = *self.events.get(selection.event).ok_or_else(|| no("event"))?;
        let thread = selection.thread.map(|at| self.export.threads.get(at).ok_or_else(|| no("thread")));
        let thread = thread.transpose()?.map(|thread| SelectedThreads::Thread(thread.pid, thread.tid));
        let range = selection.range.map(|(from, until)| {
            let moment = |ns: u64| self.export.start_ns.saturating_add(ns);
            (moment(from), moment(until))
        });
        let threads = thread.or(selection.process.map(SelectedThreads::Process));
        Ok(Selection { event, range, threads })
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
