//! Every sample of a recording, for formats that have places for single samples, addresses or
//! threads.
//!
//! ```text
//!  Profile or Wall --> ExportProfile   functions, threads, a call tree for each event
//!        |               ^      ^
//!        |          node |      | function
//!        '--> rows ------'   Locations   addresses, inlined functions, lines, mappings
//!             by time, or by Track       (of each distinct stack)
//!             (a thread and an event)
//! ```
//!
//! # Invariants
//! - **S1** The rows of an event sum to the counts of its call tree, node by node, and so to what
//!   `kymo report --json` says of each function.
//! - **S2** The frames of a row's stack are those of its node without the command's name.
//! - **S3** Every row is in one track, and tracks have their rows in order of time.
use super::collect::{collect_shown, row_nodes};
use super::locations::Locations;
use super::model::{ExportEvent, ExportProfile, Function, FunctionKind, NO_PARENT, Thread};
use super::process_names::{ProcessNames, process_names};
use super::reused_ids::{LaterThreads, later_threads};
use super::wakers::Wakers;
use crate::columns::{Columns, RowField, ThinRows};
use crate::export::RowNodes;
use crate::load::{CgroupNames, Extra, ExtraId};
use crate::profile::Profile;
use crate::resolve::Resolver;
use crate::timeline::Timeline;
use crate::wall::{SpanState, State, Wall};
use kymo_data::{Recording, SampleLabel, abi};
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// Samples of a recording without time stamps are shown so far from each other.
const STEP_NS: u64 = 1_000_000;
/// No event, and no thread.
const NONE: u32 = u32::MAX;

/// Every sample of a recording, or every span of its wall time, in the terms of an
/// [`ExportProfile`].
#[derive(Debug)]
pub struct ExportSamples<'a> {
    /// Facts, functions, threads and call trees. Its timelines are empty.
    pub profile: ExportProfile,
    /// What is known of the frames of each stack.
    pub locations: Locations,
    /// What the caller knows of processes besides: names and values of attributes, for formats that
    /// have a place for them (OTLP).
    pub attributes: FxHashMap<i32, Vec<(&'static str, String)>>,
    columns: Cow<'a, Columns>,
    nodes: RowNodes,
    /// By event of the recording its place in the profile.
    events: Vec<u32>,
    /// By event of the profile the period that all its samples were taken with, if it is fixed.
    fixed_periods: Vec<Option<u64>>,
    /// By thread of the columns its place in the profile.
    threads: Vec<u32>,
    /// Of threads whose process number was used again: since when (ns) they are another thread of
    /// the profile.
    later: LaterThreads,
    /// Rows by track.
    order: Vec<u32>,
    tracks: Vec<Track>,
    stacks: RowStacks,
    wakers: Wakers,
    process_names: ProcessNames,
    /// Samples per second that the first event with samples was asked for, if it has a frequency.
    frequency_hz: Option<u64>,
    /// By id of what was asked of samples: the cgroup, if it was and the recording has its path.
    cgroups: Vec<Option<CgroupNames>>,
    /// The same with the labels of imported samples.
    labels: Vec<Vec<SampleLabel>>,
    is_imported: bool,
}

/// What the number of a row's stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowStacks {
    /// Of a sample: its stack.
    Samples,
    /// Of a span: its node.
    Nodes,
    /// Of a span: its stack while it runs; so many more while it waits.
    Spans(u32),
}

/// The rows of one thread and event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// Index into [`ExportProfile::threads`].
    pub thread: u32,
    /// Index into [`ExportProfile::events`].
    pub event: u32,
    begin: u32,
    end: u32,
}

/// A sample, or a span of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// When it was taken, or when the span began, ns from [`ExportProfile::start_ns`] on.
    pub begin_ns: u64,
    /// The end of a span; the same as its begin for a sample.
    pub end_ns: u64,
    /// Index into [`ExportProfile::threads`].
    pub thread: u32,
    /// A number of the thread under the name that it had then.
    pub named_thread: u32,
    /// CPU, [`NO_CPU`](super::NO_CPU) if not recorded.
    pub cpu: u32,
    /// Index into [`ExportProfile::events`].
    pub event: u32,
    /// Index into the nodes of the event.
    pub node: u32,
    /// Its stack in [`ExportSamples::locations`].
    pub stack: u32,
    /// 1 for a sample; the time in ns for a span.
    pub samples: u64,
    /// What it stands for, in the unit of the event.
    pub period: u64,
    /// Tells cgroups apart, see [`ExportSamples::cgroup`].
    pub extra: ExtraId,
    /// What the thread did in a span; `None` of a sample.
    pub state: Option<SpanState>,
    /// How many waits a span stands for.
    pub waits: u64,
    /// Who ended the wait, see [`ExportSamples::waker`].
    pub waker: u32,
}

impl<'a> ExportSamples<'a> {
    /// The samples of a profile that was loaded with its
    /// [`columns`](crate::load::LoadOptions::columns). `source`: the name of the recording as the
    /// user gave it.
    pub fn of_profile(
        recording: &Recording,
        profile: &'a Profile,
        store: &SymbolStore,
        source: &str,
    ) -> ExportSamples<'a> {
        let (export, of_events) = collect_shown(recording, profile, source, &ThinRows::default());
        let columns = profile.loaded.columns.as_ref().map_or_else(Cow::default, Cow::Borrowed);
        let nodes = row_nodes(&columns, &of_events);
        let mut next = 0;
        let mut events = Vec::new();
        let mut fixed_periods = Vec::new();
        for (event, total) in recording.events.list.iter().zip(&profile.loaded.totals) {
            events.push(if total.samples > 0 { next } else { NONE });
            if total.samples > 0 {
                next += 1;
                let is_fixed = event.attr.flags & abi::ATTR_FLAG_FREQ == 0 && event.attr.sample_period > 0;
                fixed_periods.push(is_fixed.then_some(event.attr.sample_period));
            }
        }
        let resolver = Resolver::new(&profile.loaded.timeline, store);
        let locations = Locations::of_profile(profile, &resolver, &export.functions);
        let frequency_hz =
            recording.events.list.iter().zip(&profile.loaded.totals).find_map(|(event, total)| {
                let is_asked = total.samples > 0 && event.attr.flags & abi::ATTR_FLAG_FREQ != 0;
                is_asked.then_some(event.attr.sample_period)
            });
        let timeline = &profile.loaded.timeline;
        let samples = ExportSamples::new(
            export,
            (timeline, false),
            (columns, nodes),
            (events, fixed_periods),
            locations,
        );
        let loaded = &profile.loaded;
        let cgroup = |extra: &Extra| loaded.counts.cgroups.known(extra.cgroup).cloned();
        let imported = recording.features.imported.as_ref();
        let labels =
            |extra: &Extra| imported.map_or_else(Vec::new, |facts| facts.labels(extra.cgroup).to_vec());
        ExportSamples {
            frequency_hz,
            // Labels are no cgroups.
            cgroups: if imported.is_some() { Vec::new() } else { loaded.extras.iter().map(cgroup).collect() },
            labels: loaded.extras.iter().map(labels).collect(),
            is_imported: imported.is_some(),
            ..samples
        }
    }

    /// The spans of wall time. States end their stacks as functions of kind
    /// [`FunctionKind::State`].
    pub fn of_wall(recording: &Recording, wall: &Wall, source: &str) -> ExportSamples<'static> {
        let locate = |export: &mut ExportProfile| {
            let nodes = export.events.first().map_or(&[][..], |event| &event.stacks.nodes);
            Locations::of_nodes(nodes, &export.functions)
        };
        ExportSamples::of_spans(recording, wall, source, RowStacks::Nodes, locate)
    }

    /// The same with the stacks' addresses, as samples have them: the state is in the rows only.
    /// `store`: the one that the wall time was read with.
    pub fn of_wall_with_addresses(
        recording: &Recording,
        wall: &Wall,
        store: &SymbolStore,
        source: &str,
    ) -> ExportSamples<'static> {
        let locate = |export: &mut ExportProfile| {
            wall.add_functions(export);
            Locations::of_wall(wall, &Resolver::new(&wall.timeline, store), &export.functions)
        };
        let stacks = RowStacks::Spans(wall.stacks.len() as u32);
        ExportSamples::of_spans(recording, wall, source, stacks, locate)
    }

    fn of_spans(
        recording: &Recording,
        wall: &Wall,
        source: &str,
        stacks: RowStacks,
        locate: impl FnOnce(&mut ExportProfile) -> Locations,
    ) -> ExportSamples<'static> {
        let (mut export, nodes) = wall.export_without_timeline(recording, source);
        let events = vec![0; recording.events.list.len()];
        let locations = locate(&mut export);
        let columns = Cow::Owned(wall.columns());
        let wakers = Wakers::of(wall, &columns);
        let events = (events, vec![None]);
        let samples = ExportSamples::new(export, (&wall.timeline, true), (columns, nodes), events, locations);
        let mut samples = ExportSamples { stacks, wakers, ..samples };
        samples.order_by_begin();
        samples
    }

    fn new(
        mut profile: ExportProfile,
        (timeline, is_of_spans): (&Timeline, bool),
        (columns, nodes): (Cow<'a, Columns>, RowNodes),
        (events, fixed_periods): (Vec<u32>, Vec<Option<u64>>),
        locations: Locations,
    ) -> ExportSamples<'a> {
        let first = profile.threads.iter().zip(0..).filter(|(thread, _)| thread.earlier_processes == 0);
        let numbers = first.map(|(thread, at)| ((thread.pid, thread.tid), at));
        let mut numbers: FxHashMap<(i32, i32), u32> = numbers.collect();
        let threads = columns.threads.iter().map(|thread| {
            *numbers.entry((thread.pid, thread.tid)).or_insert_with(|| {
                // A thread that only woke others up.
                profile.threads.push(Thread { pid: thread.pid, tid: thread.tid, ..Thread::default() });
                (profile.threads.len() - 1) as u32
            })
        });
        let threads: Vec<u32> = threads.collect();
        let later = later_threads(&mut profile, (timeline, is_of_spans), &columns, &threads);
        let names = process_names(&profile.threads, timeline);
        let (order, tracks) = (Vec::new(), Vec::new());
        let mut samples = ExportSamples {
            profile,
            locations,
            attributes: FxHashMap::default(),
            columns,
            nodes,
            events,
            fixed_periods,
            threads,
            later,
            order,
            tracks,
            stacks: RowStacks::Samples,
            wakers: Wakers::default(),
            process_names: names,
            frequency_hz: None,
            cgroups: Vec::new(),
            labels: Vec::new(),
            is_imported: false,
        };
        samples.make_tracks();
        samples
    }

    /// Sorts rows by thread and event, by counting.
    fn make_tracks(&mut self) {
        let events = self.profile.events.len().max(1);
        let key = |row: &SampleRow| row.thread as usize * events + row.event as usize;
        let mut ends = vec![0_u32; self.profile.threads.len() * events];
        self.rows().for_each(|(_, row)| ends[key(&row)] += 1);
        let mut sum = 0;
        for end in &mut ends {
            // Where the track begins, until its rows are placed.
            (*end, sum) = (sum, sum + *end);
        }
        let mut order = vec![0; sum as usize];
        for (at, row) in self.rows() {
            let place = &mut ends[key(&row)];
            order[*place as usize] = at as u32;
            *place += 1;
        }
        let mut begin = 0;
        let mut tracks = Vec::new();
        for (at, end) in ends.into_iter().enumerate().filter(|(_, end)| *end > 0) {
            if end > begin {
                let (thread, event) = ((at / events) as u32, (at % events) as u32);
                tracks.push(Track { thread, event, begin, end });
            }
            begin = end;
        }
        (self.order, self.tracks) = (order, tracks);
    }

    /// Spans are kept by their ends; tracks have them by their begins.
    fn order_by_begin(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        for track in &self.tracks {
            let rows = &mut order[track.begin as usize..track.end as usize];
            rows.sort_by_key(|row| self.span(*row as usize).0);
        }
        self.order = order;
    }

    /// Begin and end of a row, ns from the first sample on.
    fn span(&self, row: usize) -> (u64, u64) {
        let end = self.columns.time()[row];
        let begin = end.saturating_sub(self.columns.get(RowField::Span, row));
        (begin.saturating_sub(self.profile.start_ns), end.saturating_sub(self.profile.start_ns))
    }

    fn row(&self, row: usize) -> Option<SampleRow> {
        let columns = &self.columns;
        let node = self.nodes.get(row).copied().filter(|node| *node != NO_PARENT)?;
        let event = self.events.get(columns.get(RowField::Event, row) as usize).copied()?;
        let named_thread = columns.get(RowField::Thread, row) as u32;
        let period = columns.get(RowField::Period, row);
        let (begin_ns, end_ns) = self.span(row);
        let of_stack = columns.get(RowField::Stack, row) as u32;
        let state = SpanState::of_number(columns.get(RowField::State, row) as u8);
        let waits = |state: SpanState| state.state != State::Running;
        Some(SampleRow {
            begin_ns,
            end_ns,
            thread: self.thread_at(named_thread, columns.time()[row])?,
            named_thread,
            cpu: columns.get(RowField::Cpu, row) as u32,
            event: Some(event).filter(|event| *event != NONE)?,
            node,
            stack: match self.stacks {
                RowStacks::Samples => of_stack,
                RowStacks::Nodes => node,
                RowStacks::Spans(all) => of_stack + if state.is_some_and(waits) { all } else { 0 },
            },
            samples: if self.is_of_spans() { period } else { 1 },
            period,
            extra: if self.is_of_spans() { 0 } else { columns.get(RowField::Extra, row) as ExtraId },
            state,
            waits: state.map_or(0, |_| columns.get(RowField::Weight, row).saturating_sub(1)),
            waker: self.wakers.number(row, columns),
        })
    }

    /// The thread that a number of the columns stood for.
    fn thread_at(&self, named_thread: u32, time_ns: u64) -> Option<u32> {
        let first = *self.threads.get(named_thread as usize)?;
        Some(self.later.at(named_thread, time_ns).unwrap_or(first))
    }

    fn rows(&self) -> impl Iterator<Item = (usize, SampleRow)> {
        (0..self.columns.len()).filter_map(|row| Some((row, self.row(row)?)))
    }

    /// All rows in order of time.
    pub fn by_time(&self) -> impl Iterator<Item = SampleRow> {
        self.rows().map(|(_, row)| row)
    }

    /// Each thread and event that has rows: by thread, in the order of
    /// [`ExportProfile::threads`].
    pub fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    /// The rows of a track. Where the recording has no time stamps, one millisecond lies between
    /// two rows.
    pub fn rows_of(&self, track: &Track) -> impl Iterator<Item = SampleRow> {
        let rows = &self.order[track.begin as usize..track.end as usize];
        let has_times = self.has_times();
        rows.iter().enumerate().filter_map(move |(number, row)| {
            let mut row = self.row(*row as usize)?;
            if !has_times {
                row.begin_ns = number as u64 * STEP_NS;
                row.end_ns = row.begin_ns;
            }
            Some(row)
        })
    }

    /// How many rows a track has.
    pub fn row_count(&self, track: &Track) -> usize {
        (track.end - track.begin) as usize
    }

    /// Whether the recording says when samples were taken.
    pub fn has_times(&self) -> bool {
        self.columns.time().last().is_some_and(|time| *time > 0)
    }

    /// Whether rows are spans of wall time.
    pub fn is_of_spans(&self) -> bool {
        self.stacks != RowStacks::Samples
    }

    /// Who ended the wait of a span: the name of a thread, or what an interrupt did (`a timer`,
    /// `the network`, `a disk`); `None` where that is not known, and of time that is no wait.
    pub fn waker(&self, row: &SampleRow) -> Option<&str> {
        self.wakers.name(row.waker)
    }

    /// The period that all samples of an event were taken with, if it is fixed.
    pub fn fixed_period(&self, event: u32) -> Option<u64> {
        self.fixed_periods.get(event as usize).copied().flatten()
    }

    /// Samples per second and CPU that were asked for, if the event has a frequency.
    pub fn frequency_hz(&self) -> Option<u64> {
        self.frequency_hz
    }

    /// The cgroup that a sample was taken in: where those were asked for when it was loaded
    /// ([`Dims::cgroup`](crate::load::Dims::cgroup)), and the recording has them.
    pub fn cgroup(&self, row: &SampleRow) -> Option<&CgroupNames> {
        self.cgroups.get(row.extra as usize)?.as_ref()
    }

    /// The labels of a sample of an imported profile, where cgroups were asked for when it was
    /// loaded.
    pub fn labels(&self, extra: ExtraId) -> &[SampleLabel] {
        self.labels.get(extra as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether it is of an imported profile.
    pub fn is_imported(&self) -> bool {
        self.is_imported
    }

    /// Whether the number of rows of an event is that of its samples: not of spans, which have
    /// their time, nor of sums.
    pub fn has_counts(&self, event: u32) -> bool {
        !self.is_of_spans() && !self.event(event).is_of_sums
    }

    /// Values of formats that have how many samples an event has, if that is known, and then the
    /// sum of their periods: by event the place of that sum, and how many values there are.
    pub fn value_places(&self) -> (Vec<usize>, usize) {
        let mut next = 0;
        let place = |event| {
            let place = next + usize::from(self.has_counts(event));
            next = place + 1;
            place
        };
        let places = (0..self.profile.events.len() as u32).map(place).collect();
        (places, next)
    }

    /// The thread of a row, by its number in the profile.
    pub fn thread(&self, thread: u32) -> &Thread {
        &self.profile.threads[thread as usize]
    }

    /// The name of a thread's process: that of its main thread, sampled or not; `None` where the
    /// recording does not say.
    pub fn process_name(&self, thread: &Thread) -> Option<&str> {
        self.process_names.get(&(thread.pid, thread.earlier_processes)).map(String::as_str)
    }

    /// The event of a row or track.
    pub fn event(&self, event: u32) -> &ExportEvent {
        &self.profile.events[event as usize]
    }

    /// The name that the thread of a row had then.
    pub fn comm(&self, row: &SampleRow) -> &str {
        self.command(row.event, row.node).map_or("", |function| &self.function(function).name)
    }

    /// The function of kind [`FunctionKind::Comm`] that heads the stack of a node.
    pub fn command(&self, event: u32, node: u32) -> Option<u32> {
        let nodes = &self.event(event).stacks.nodes;
        let mut at = node as usize;
        while let Some(node) = nodes.get(at).filter(|node| (node.parent as usize) < at) {
            at = node.parent as usize;
        }
        let function = nodes.get(at)?.function;
        (self.function(function).kind == FunctionKind::Comm).then_some(function)
    }

    /// The functions from the outermost one to that of a node, without the command's name. `path`
    /// is emptied first.
    pub fn path(&self, event: u32, node: u32, path: &mut Vec<u32>) {
        path.clear();
        let nodes = &self.event(event).stacks.nodes;
        let mut at = node as usize;
        while let Some(node) = nodes.get(at) {
            if self.function(node.function).kind != FunctionKind::Comm {
                path.push(node.function);
            }
            // E1, checked: a parent that does not come first ends the path.
            if node.parent as usize >= at {
                break;
            }
            at = node.parent as usize;
        }
        path.reverse();
    }

    /// A function by its number in the profile.
    pub fn function(&self, function: u32) -> &Function {
        &self.profile.functions[function as usize]
    }

    /// A name for a track: that of its thread, with the event where there are several.
    pub fn track_name(&self, track: &Track) -> String {
        let thread = self.thread(track.thread);
        let name = format!("{} {}", thread.comm, thread.tid);
        match self.profile.events.len() {
            0 | 1 => name,
            _ => format!("{name} ({})", self.event(track.event).name),
        }
    }
}
