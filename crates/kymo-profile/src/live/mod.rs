//! A recording that runs: snapshots of its newest samples, one after the other, each as a
//! [`Dataset`] that is asked like any other.
//!
//! *You give it* snapshots of a flight recorder whose clock is CLOCK_MONOTONIC; *it gives you* for
//! each the samples of a window of time that ends when the snapshot was taken.
//!
//! ```text
//!   snapshot --> samples of the window --> Dataset --> questions (query), table, JSON line
//!                        |
//!   symbols of modules, kept from snapshot to snapshot
//! ```
//!
//! # A window, not a decay
//! Each sample of the last seconds counts once, and an older one not at all. So percentages are
//! shares of a known time, the sum of functions is that of their module, and what has ended is gone
//! after the window. (perf top multiplies what it has by 7/8 at each refresh.)
//!
//! # Invariants
//! - **L1** The window has every sample that the rings took in it: where a ring has overwritten a
//!   part of the window, the window begins later, for all rings.
//! - **L2** A file is read once as long as it stays the same and some process maps it. Names of
//!   generated code are read for each snapshot.
//! - **L3** What is kept from snapshot to snapshot is the symbols of modules in the last one.
mod output;
#[cfg(test)]
mod tests;

pub use output::{SCHEMA_VERSION, write_json_line, write_text};

use crate::columns::RowField;
use crate::load::{LoadOptions, TimeSpans};
use crate::profile::Profile;
use crate::query::{Condition, FilterField, FilterValue};
use crate::query::{Dataset, EventRow, Filter, Query, QueryAnswer, QueryError, Verb};
use crate::resolve::{KernelIdentity, ResolveOptions, module_key};
use crate::timeline::Timeline;
use kymo_data::{OpenError, ReadAt, ReadError, Recording, abi};
use kymo_symbols::{MappedFiles, ModuleKey, SymbolStore};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Why a snapshot cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// It is no recording.
    #[error("a snapshot is no recording: {0}")]
    Open(#[from] OpenError),
    /// It cannot be read.
    #[error("failed to read a snapshot: {0}")]
    Read(#[from] ReadError),
}

/// A snapshot, and what is known of it besides.
pub struct SnapshotInput {
    /// The recording.
    pub source: Arc<dyn ReadAt>,
    /// When it was taken, in ns of its clock.
    pub taken_ns: u64,
    /// Since when it has every sample, in ns of its clock; 0: always.
    pub complete_since_ns: u64,
}

/// How snapshots are read.
pub struct LiveOptions {
    /// How far back samples count.
    pub window: Duration,
    /// Whether call chains are read.
    pub callchains: bool,
    /// How names are found.
    pub resolve: ResolveOptions,
}

/// Snapshots up to this size are read by one thread: to start others would take as long.
const SMALL_BYTES: u64 = 8 << 20;

/// Makes the store of symbols, by what the first snapshot tells of the machine.
type MakeStore = Box<dyn Fn(&Recording) -> SymbolStore + Send>;

/// Reads snapshots, one after the other.
pub struct LiveReader {
    options: LiveOptions,
    make_store: MakeStore,
    store: Option<Arc<SymbolStore>>,
    /// The files of modules as they were when they were read.
    files: FxHashMap<ModuleKey, FileState>,
    /// When the recording began: the window reaches no further back.
    began_ns: u64,
}

/// What changes when a file is replaced or written, and whether the one that was mapped is held.
type FileState = (Option<(u64, u64, i64, i64, u64)>, bool);

fn file_state(path: &Path, build_id: Option<&[u8]>) -> FileState {
    let file = std::fs::metadata(path).ok();
    let state = file.map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size()));
    (state, MappedFiles::of_process().has_elsewhere(path, build_id))
}

/// The newest samples of a recording that runs.
pub struct LiveData {
    /// The snapshot.
    pub recording: Recording,
    /// The samples of the window.
    pub data: Dataset,
    /// The symbols that it was read with.
    pub store: Arc<SymbolStore>,
    /// Its part of the time, in ns of the recording's clock.
    pub window_ns: (u64, u64),
    /// How long the recording has run, in ns.
    pub elapsed_ns: u64,
    /// Samples that are missing in what the rings hold.
    pub lost: u64,
    /// How often the kernel throttled an event, in what the rings hold.
    pub throttled: u64,
}

impl LiveReader {
    /// A reader of a recording that began at `began_ns` of its clock. The store is made once, by
    /// the first snapshot.
    pub fn new(
        options: LiveOptions,
        began_ns: u64,
        make_store: impl Fn(&Recording) -> SymbolStore + Send + 'static,
    ) -> LiveReader {
        LiveReader {
            options,
            make_store: Box::new(make_store),
            store: None,
            files: FxHashMap::default(),
            began_ns,
        }
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// [`LiveError`]: a later snapshot may be readable.
    pub fn read(&mut self, snapshot: SnapshotInput) -> Result<LiveData, LiveError> {
        let recording = Recording::open(snapshot.source, Vec::new())?;
        let store = Arc::clone(self.store.get_or_insert_with(|| Arc::new((self.make_store)(&recording))));
        self.forget_changed(&store);
        let window = u64::try_from(self.options.window.as_nanos()).unwrap_or(u64::MAX);
        let first = snapshot.taken_ns.saturating_sub(window);
        let first = first.max(snapshot.complete_since_ns).max(self.began_ns);
        let load = LoadOptions {
            callchains: self.options.callchains,
            columns: true,
            workers: usize::from(recording.data_bytes() <= SMALL_BYTES),
            time: Some(TimeSpans(vec![(first, u64::MAX)])),
            ..LoadOptions::default()
        };
        let resolve = self.options.resolve;
        let profile = Profile::open(&recording, &load, resolve, &store, &|_, _, _| {})?;
        self.keep_mapped(&store, &profile.loaded.timeline);
        let counts = &profile.loaded.counts;
        let (lost, throttled) = (counts.lost_samples.max(counts.lost_records), counts.throttled);
        let last = profile.loaded.time_range.map_or(0, |(_, last)| last).max(snapshot.taken_ns);
        let data = Dataset::of_profile(&recording, profile);
        let elapsed_ns = last.saturating_sub(self.began_ns);
        Ok(LiveData { recording, data, store, window_ns: (first, last), elapsed_ns, lost, throttled })
    }

    /// Forgets symbols of files that are others now, and those of code that programs make (L2).
    fn forget_changed(&self, store: &SymbolStore) {
        store.retain(|key| match key {
            ModuleKey::PerfMap { .. } => false,
            ModuleKey::Elf { path, build_id, .. } => {
                self.files.get(key).is_none_or(|state| *state == file_state(path, build_id.as_deref()))
            }
            _ => true,
        });
    }

    /// Keeps the symbols of what is mapped now, and notes the state of its files (L3).
    fn keep_mapped(&mut self, store: &SymbolStore, timeline: &Timeline) {
        let kernel = KernelIdentity::of(timeline);
        let mapped: FxHashSet<ModuleKey> = timeline
            .modules
            .iter()
            .map(|(_, module)| module_key(module, &kernel, timeline.recorded_until))
            .collect();
        let mut files = FxHashMap::default();
        store.retain(|key| {
            let keeps = mapped.contains(key);
            if let (ModuleKey::Elf { path, build_id, .. }, true) = (key, keeps) {
                files.insert(key.clone(), file_state(path, build_id.as_deref()));
            }
            keeps
        });
        self.files = files;
    }
}

impl LiveData {
    /// The events that sample, also those without samples in this window, in a fixed order.
    pub fn events(&self) -> Vec<EventRow> {
        let samples = |event: &&kymo_data::Event| {
            (event.attr.kind, event.attr.config) != (abi::PERF_TYPE_SOFTWARE, abi::PERF_COUNT_SW_DUMMY)
        };
        let names: FxHashSet<&str> =
            self.recording.events.list.iter().filter(samples).map(|event| &*event.name).collect();
        let rows = self.data.all_events().iter();
        rows.filter(|event| names.contains(&*event.name)).cloned().collect()
    }

    /// The first event whose samples stand for CPU time: how many of it a span has, without those
    /// of the idle task, and for how much they stand, ns. `None`: there is none, or not all of the
    /// span is in the window.
    pub fn clock_samples(&self, span: RangeInclusive<u64>) -> Option<(u64, u64)> {
        let events = &self.recording.events.list;
        let clock = events.iter().position(|event| event.attr.samples_cpu_time())? as u64;
        let (first, last) = self.window_ns;
        if self.throttled > 0 || self.lost > 0 || *span.start() < first || *span.end() > last {
            return None;
        }
        let columns = self.data.columns();
        let rows = columns
            .rows_in(span)
            .filter(|&row| columns.get(RowField::Event, row) == clock && columns.thread(row).pid != 0);
        Some(rows.fold((0, 0_u64), |(samples, ns), row| {
            (samples + 1, ns.saturating_add(columns.get(RowField::Period, row)))
        }))
    }

    /// Answers the same question about each event.
    ///
    /// # Errors
    /// Those of [`Dataset::ask`].
    pub fn ask_of_each(&self, verb: &Verb, cancel: &AtomicBool) -> Result<Vec<QueryAnswer>, QueryError> {
        let ask = |event: EventRow| {
            let value = FilterValue { text: event.name, at: 0 };
            let of_event = Condition {
                field: FilterField::Event,
                negated: false,
                values: vec![value],
                spans: Vec::new(),
            };
            let query = Query { verb: verb.clone(), filter: Filter { conditions: vec![of_event] } };
            self.data.ask(&query, &self.store, cancel)
        };
        self.events().into_iter().map(ask).collect()
    }

    /// What the user should know of the symbols: sentences.
    pub fn notes(&self) -> Vec<String> {
        let problems = self.recording.problems.iter().chain(self.data.problems());
        problems.map(ToString::to_string).chain(self.data.notes().iter().cloned()).collect()
    }

    /// How long the window is, and what is missing, in words: `the last 10.0 s, 3 samples lost`.
    pub fn window_words(&self) -> String {
        let seconds = self.window_ns.1.saturating_sub(self.window_ns.0) as f64 / 1e9;
        let mut words = format!("the last {seconds:.1} s");
        if self.lost > 0 {
            words.push_str(&format!(", {} lost", self.lost));
        }
        if self.throttled > 0 {
            words.push_str(&format!(", throttled {} times", self.throttled));
        }
        words
    }
}

impl std::fmt::Debug for LiveReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveReader").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for LiveData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveData").field("window_ns", &self.window_ns).finish_non_exhaustive()
    }
}
