//! Recordings that stay loaded, so that the second question takes milliseconds.
use crate::access::{AllowedFile, AllowedRecordings};
use kymo_data::Recording;
use kymo_profile::query::{self, Dataset, DatasetKind, Query, QueryAnswer, QueryError};
use kymo_profile::resolve::ResolveOptions;
use kymo_symbols::SymbolStore;
use kymo_view::ShownFile;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// So many recordings stay loaded; one that is asked about samples and about waits counts twice.
const MOST_LOADED: usize = 4;
/// With more bytes of samples than this together, those that were asked least recently go, up to
/// the last.
const MOST_BYTES: usize = 1 << 30;

/// Opens a recording by its name. The error is a sentence.
pub type OpenRecording = Box<dyn Fn(&Path) -> Result<Recording, String> + Send + Sync>;

/// Reads a recording from a file that is open. The error is a sentence.
pub type ReadRecording = Box<dyn Fn(File) -> Result<Recording, String> + Send + Sync>;

/// How recordings are opened and read.
pub struct RecordingOpener {
    /// Opens one that the command line names.
    pub open: OpenRecording,
    /// Reads one that the client named, below the folder.
    pub read: ReadRecording,
    /// The symbols of a recording.
    pub store: Box<dyn Fn(&Recording) -> SymbolStore + Send + Sync>,
    /// Worker threads; 0: as many as CPUs.
    pub jobs: usize,
}

impl fmt::Debug for RecordingOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingOpener").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

/// How far a load is: parts of a million, the second pass after the first.
#[derive(Debug, Default)]
pub(crate) struct LoadProgress(AtomicU64);

impl LoadProgress {
    pub(crate) const ALL: u64 = 2_000_000;

    fn set(&self, pass: u32, done: u64, all: u64) {
        let part = u128::from(done.min(all)) * 1_000_000 / u128::from(all.max(1));
        // Relaxed: only a number to show.
        self.0.fetch_max(u64::from(pass.min(1)) * 1_000_000 + part as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A recording with what its queries need.
#[derive(Debug)]
pub(crate) struct LoadedRecording {
    pub(crate) recording: Recording,
    pub(crate) data: Dataset,
    store: SymbolStore,
    /// The client chose it: it is below the folder.
    is_chosen: bool,
}

impl LoadedRecording {
    pub(crate) fn ask(&self, query: &Query, cancel: &AtomicBool) -> Result<QueryAnswer, QueryError> {
        let mut answer = self.data.ask(query, &self.store, cancel)?;
        // Debug information of a file that the client wrote could name any file.
        if let query::Body::Annotate(found) = &mut answer.body
            && self.is_chosen
        {
            found.remove_source_text();
        }
        Ok(answer)
    }
}

/// What was loaded of a recording.
#[derive(Debug)]
struct Entry {
    file: AllowedFile,
    kind: DatasetKind,
    state: ShownFile,
    loaded: Arc<LoadedRecording>,
}

/// The recordings that are loaded, the one that was asked last at the end.
#[derive(Debug)]
pub(crate) struct LoadedRecordings {
    pub(crate) allowed: AllowedRecordings,
    opener: RecordingOpener,
    entries: Mutex<Vec<Entry>>,
    /// One load at a time: each uses all CPUs.
    turn: Mutex<()>,
}

impl LoadedRecordings {
    pub(crate) fn new(allowed: AllowedRecordings, opener: RecordingOpener) -> LoadedRecordings {
        LoadedRecordings { allowed, opener, entries: Mutex::default(), turn: Mutex::default() }
    }

    /// Opens a recording, for its head only: samples are not read.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn head(&self, file: &AllowedFile) -> Result<Recording, String> {
        match file {
            AllowedFile::Named(path) => (self.opener.open)(path),
            AllowedFile::Below(below) => {
                let opened = self.allowed.open_below(below)?;
                (self.opener.read)(opened)
                    .map_err(|error| format!("failed to read {}: {error}", below.display()))
            }
        }
    }

    /// A recording that was loaded before for such queries, and has not changed since.
    fn known(&self, file: &AllowedFile, kind: DatasetKind) -> Option<Arc<LoadedRecording>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|entry| entry.file == *file && entry.kind == kind)?;
        let entry = entries.remove(at);
        if entry.state.has_changed() {
            return None;
        }
        let loaded = Arc::clone(&entry.loaded);
        entries.push(entry);
        Some(loaded)
    }

    /// A recording that was loaded before for any query, and has not changed since.
    pub(crate) fn any(&self, file: &AllowedFile) -> Option<Arc<LoadedRecording>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.iter().find(|entry| entry.file == *file && !entry.state.has_changed())?;
        Some(Arc::clone(&entry.loaded))
    }

    /// The recording for a query: loaded before, or now. `head`: the recording, if it was opened
    /// for this query.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn get(
        &self,
        file: &AllowedFile,
        query: &Query,
        head: Option<Recording>,
        progress: &LoadProgress,
    ) -> Result<Arc<LoadedRecording>, String> {
        let kind = query.dataset_kind();
        if let Some(known) = self.known(file, kind) {
            return Ok(known);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have loaded it meanwhile.
        if let Some(known) = self.known(file, kind) {
            return Ok(known);
        }
        let path = self.allowed.path(file);
        let state = ShownFile::new(&path);
        let recording = match head {
            Some(head) => head,
            None => self.head(file)?,
        };
        let store = (self.opener.store)(&recording);
        let symbols = (ResolveOptions::default(), &store);
        let data = query::open(&recording, query, symbols, self.opener.jobs, &|pass, done, all| {
            progress.set(pass, done, all);
        });
        let data = data.map_err(|error| match error {
            query::OpenError::Query(error) => error.to_string(),
            error @ query::OpenError::Read(_) => format!("failed to read {}: {error}", path.display()),
        })?;
        let is_chosen = matches!(file, AllowedFile::Below(_));
        let loaded = Arc::new(LoadedRecording { recording, data, store, is_chosen });
        self.keep(Entry { file: file.clone(), kind, state, loaded: Arc::clone(&loaded) });
        Ok(loaded)
    }

    fn keep(&self, entry: Entry) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
        let bytes = |entries: &[Entry]| {
            entries.iter().map(|entry| entry.loaded.data.columns().bytes()).sum::<usize>()
        };
        while entries.len() > MOST_LOADED || entries.len() > 1 && bytes(&entries) > MOST_BYTES {
            entries.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_symbols::SymbolOptions;

    /// Checks that the recordings that were asked last stay loaded, so many at most, and that one
    /// that has changed does not.
    #[test]
    fn the_last_ones_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/plain.data");
        let names: Vec<_> = (0..6).map(|n| folder.path().join(format!("{n}.data"))).collect();
        for name in &names {
            std::fs::copy(&fixture, name).expect("a copy");
        }
        let read = |file| Recording::open(Arc::new(file), Vec::new()).map_err(|error| error.to_string());
        let opener = RecordingOpener {
            open: Box::new(move |path| File::open(path).map_err(|error| error.to_string()).and_then(read)),
            read: Box::new(read),
            store: Box::new(|_| SymbolStore::new(SymbolOptions::default())),
            jobs: 1,
        };
        let allowed = AllowedRecordings::new(names.clone(), None).expect("no folder");
        let loaded = LoadedRecordings::new(allowed, opener);
        let file = |n: usize| AllowedFile::Named(names[n].clone());
        let ask = |n: usize| {
            let head = loaded.head(&file(n)).expect("a recording");
            let query = query::parse("events", &head).expect("a query");
            loaded.get(&file(n), &query, Some(head), &LoadProgress::default()).expect("it is read")
        };
        let first = ask(0);
        assert!(Arc::ptr_eq(&first, &ask(0)), "it stays");
        (1..MOST_LOADED).for_each(|n| drop(ask(n)));
        ask(0);
        ask(4);
        let is_there = |n: usize| loaded.any(&file(n)).is_some();
        assert_eq!([0, 1, 2, 3, 4, 5].map(is_there), [true, false, true, true, true, false]);
        std::fs::copy(&fixture, &names[5]).expect("a copy");
        std::fs::write(&names[4], "no recording any more").expect("written");
        assert!(!is_there(4));
        assert!(loaded.head(&file(4)).is_err());
    }
}
