//! The thread that opens mapped files soon after they were mapped, and holds them.
use super::{RecordedFile, open};
use kymo_data::{FileBuildId, RecordCursor, abi};
use kymo_symbols::unwind::Seen;
use kymo_symbols::{MappedCode, MappedFiles};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files that are remembered; a machine that maps more has programs that are made and thrown away.
const MOST_FILES: usize = 1 << 16;
/// Mappings without a build id that are remembered.
const MOST_UNIDENTIFIED: usize = 1 << 14;
/// Mappings that wait for the thread.
const MOST_WAITING: usize = 1 << 14;
/// Processes that are tried for a file in a [`PERIOD`]: the first one may have ended.
const MOST_PROCESSES: usize = 8;
/// After so long a file is opened again: who reads the recording may have let it go.
const PERIOD: Duration = Duration::from_secs(60);
/// So long a file of ended processes is held where the recorder may run for ever: longer than an
/// interval that is read when it is over.
const RELEASED_AFTER: Duration = Duration::from_secs(600);
/// So long the end of a recording waits for the last files.
const LAST_FILES: Duration = Duration::from_secs(1);

/// Files that are to be opened.
#[derive(Debug, Default)]
struct WatchState {
    news: VecDeque<(Arc<RecordedFile>, Seen)>,
    /// Mappings whose records have no build id.
    unidentified: Vec<UnidentifiedMapping>,
    /// Records that tell the build ids of files which were opened, until they are taken.
    build_ids: Vec<u8>,
    is_busy: bool,
    has_ended: bool,
}

/// A mapping of code that its record does not tell the build id of.
#[derive(Clone, Debug)]
pub(super) struct UnidentifiedMapping {
    pub(super) file: Arc<RecordedFile>,
    pub(super) seen: Seen,
    /// Where it begins in the file.
    pub(super) offset: u64,
}

/// What the tap tells the thread.
#[derive(Debug)]
pub(crate) struct FileWatch {
    state: Mutex<WatchState>,
    changed: Condvar,
    /// Files are let go when their processes have ended.
    releases: bool,
    /// Build ids are wanted as records.
    tells_build_ids: bool,
}

/// Looks at records of mappings on their way to the file, and has their files opened.
#[derive(Debug)]
pub(crate) struct FileTap {
    watch: Arc<FileWatch>,
    /// Since when, and for which processes, each file was told of.
    known: HashMap<Arc<RecordedFile>, (Instant, Vec<i32>)>,
}

impl FileWatch {
    /// Starts the thread. It ends with the last [`FileTap`]; nobody joins it, because a file system
    /// may keep it waiting for ever (M2).
    /// `releases`: the recorder may run for ever, and what has ended is read soon after.
    /// `tells_build_ids`: they are [taken](FileWatch::take_build_ids).
    pub(crate) fn start(releases: bool, tells_build_ids: bool) -> std::io::Result<Arc<FileWatch>> {
        let (state, changed) = (Mutex::default(), Condvar::default());
        let watch = Arc::new(FileWatch { state, changed, releases, tells_build_ids });
        let theirs = Arc::clone(&watch);
        std::thread::Builder::new().name("mapped-files".into()).spawn(move || theirs.run())?;
        Ok(watch)
    }

    fn add(&self, file: Arc<RecordedFile>, seen: Seen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.news.len() < MOST_WAITING {
            state.news.push_back((file, seen));
            self.changed.notify_all();
        }
    }

    fn unidentified_mapping(&self, mapping: UnidentifiedMapping) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.unidentified.len() < MOST_UNIDENTIFIED {
            state.unidentified.push(mapping);
        }
    }

    /// Records for the recording that tell the build ids of files, as far as they were read since
    /// the last call: the table in the header is written at the end only, which a recorder that is
    /// killed does not reach.
    pub(crate) fn take_build_ids(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).build_ids)
    }

    /// Ends the thread once it has opened what it was told of.
    pub(crate) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.changed.notify_all();
    }

    /// The mappings whose records have no build id, as far as told.
    pub(super) fn unidentified(&self) -> Vec<UnidentifiedMapping> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).unidentified.clone()
    }

    /// Waits until the thread has opened what it was told of, but not for long.
    pub(crate) fn wait(&self) {
        let until = Instant::now() + LAST_FILES;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.is_busy || !state.news.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn run(&self) {
        let mut told = HashSet::new();
        while let Some((file, seen)) = self.next() {
            let id = hold(&file, seen).filter(|_| self.tells_build_ids && file.build_id.is_empty());
            let Some(id) = id.filter(|_| told.len() < MOST_FILES && told.insert(Arc::clone(&file))) else {
                continue;
            };
            let known = FileBuildId { path: file.path.clone(), file_id: file.file_id, id };
            let record = known.record().unwrap_or_default();
            self.state.lock().unwrap_or_else(PoisonError::into_inner).build_ids.extend(record);
        }
    }

    /// The next file; `None` after the last one.
    fn next(&self) -> Option<(Arc<RecordedFile>, Seen)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_busy = false;
        self.changed.notify_all();
        loop {
            if let Some(news) = state.news.pop_front() {
                state.is_busy = true;
                return Some(news);
            }
            if state.has_ended {
                return None;
            }
            let waited = self.changed.wait_timeout(state, PERIOD);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if self.releases {
                MappedFiles::of_process().release_ended(RELEASED_AFTER);
            }
        }
    }
}

impl Drop for FileTap {
    /// Nothing more is told.
    fn drop(&mut self) {
        self.watch.end();
    }
}

impl FileTap {
    pub(crate) fn new(watch: &Arc<FileWatch>) -> FileTap {
        FileTap { watch: Arc::clone(watch), known: HashMap::new() }
    }

    /// Waits until the files that were told of are open, but not for long.
    pub(crate) fn wait(&self) {
        self.watch.wait();
    }

    /// As [`FileWatch::names_of_gone`].
    pub(crate) fn names_of_gone(&self) -> Vec<u8> {
        self.watch.names_of_gone()
    }

    /// As [`FileWatch::take_build_ids`].
    pub(crate) fn take_build_ids(&self) -> Vec<u8> {
        self.watch.take_build_ids()
    }

    /// Looks at an MMAP2 record.
    pub(crate) fn mapping(&mut self, record: &[u8]) {
        const OFFSET_AT: usize = 32;
        let Some((file, seen)) = RecordedFile::of_record(record) else { return };
        if file.build_id.is_empty() {
            let offset = record.get(OFFSET_AT..OFFSET_AT + 8).and_then(|bytes| bytes.try_into().ok());
            let offset = offset.map_or(0, u64::from_le_bytes);
            self.watch.unidentified_mapping(UnidentifiedMapping {
                file: Arc::new(file.clone()),
                seen,
                offset,
            });
        }
        self.mapped(file, seen);
    }

    /// Looks at all mappings among these records.
    pub(crate) fn records(&mut self, bytes: &[u8]) {
        for record in RecordCursor::new(bytes) {
            if record.header.kind == abi::PERF_RECORD_MMAP2 {
                self.mapping(record.bytes);
            }
        }
    }

    fn mapped(&mut self, file: RecordedFile, seen: Seen) {
        let now = Instant::now();
        let Some((since, pids)) = self.known.get_mut(&file) else {
            if self.known.len() < MOST_FILES {
                let file = Arc::new(file);
                self.watch.add(Arc::clone(&file), seen);
                self.known.insert(file, (now, vec![seen.pid]));
            }
            return;
        };
        if now.duration_since(*since) > PERIOD {
            *since = now;
            pids.clear();
        }
        if pids.len() < MOST_PROCESSES && !pids.contains(&seen.pid) {
            pids.push(seen.pid);
            self.watch.add(Arc::new(file), seen);
        }
    }
}

/// Opens the file of a mapping, and holds it; its build id, if it has one.
pub(crate) fn hold(file: &RecordedFile, seen: Seen) -> Option<Vec<u8>> {
    let opened = open(&file.mapped(Some(seen))).ok()?;
    let path = Path::new(OsStr::from_bytes(&file.path));
    let build_id = opened.build_id.clone();
    let code = MappedCode::new(path, file.file_id, (opened.build_id, opened.is_elf), opened.file);
    MappedFiles::of_process().hold(code, seen.pid);
    build_id
}
