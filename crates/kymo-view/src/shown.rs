//! The recording that is shown: what was read of it, which reading that is, and whether its file is
//! still the same.
use kymo_data::Recording;
use kymo_profile::view::RecordingView;
use kymo_symbols::SymbolStore;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// A recording that was read, to be shown.
#[derive(Debug)]
pub struct ShownRecording {
    /// The recording.
    pub recording: Arc<Recording>,
    /// What was read of it.
    pub view: RecordingView,
    /// The symbols that it was read with.
    pub store: Arc<SymbolStore>,
    /// Its file.
    pub file: ShownFile,
}

/// Where a reader of recordings puts what the server shows: nothing at first, then perhaps a part,
/// then the whole, and of a recording that grows one reading after another.
#[derive(Debug)]
pub struct ShownSlot {
    readings: watch::Sender<Reading>,
    /// How far the first reading is: the pass, bytes read in it, and bytes in all.
    progress: [AtomicU64; 3],
}

/// What is shown at a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Counts the readings; 0 where none is there yet.
    pub(crate) version: u64,
    /// No other one will follow.
    pub(crate) is_last: bool,
    pub(crate) shown: Option<Arc<ShownRecording>>,
}

impl Default for ShownSlot {
    /// One that is empty.
    fn default() -> ShownSlot {
        ShownSlot { readings: watch::Sender::new(Reading::default()), progress: Default::default() }
    }
}

impl ShownSlot {
    /// Shows a recording in the place of what was shown before. `is_last`: no other one will follow.
    pub fn show(&self, shown: Arc<ShownRecording>, is_last: bool) {
        self.readings.send_modify(|reading| {
            let version = reading.version + 1;
            *reading = Reading { version, is_last, shown: Some(shown) };
        });
    }

    /// How many readings were shown.
    pub fn version(&self) -> u64 {
        self.readings.borrow().version
    }

    /// No other reading will follow: what is shown stays.
    pub fn end(&self) {
        self.readings.send_modify(|reading| reading.is_last = true);
    }

    /// How far the first reading is: the pass, bytes read in it, and bytes in all.
    pub fn set_progress(&self, pass: u32, done: u64, all: u64) {
        // Relaxed: a progress bar may mix two moments.
        for (slot, value) in self.progress.iter().zip([u64::from(pass), done, all]) {
            slot.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn progress(&self) -> [u64; 3] {
        std::array::from_fn(|at| self.progress.get(at).map_or(0, |slot| slot.load(Ordering::Relaxed)))
    }

    pub(crate) fn reading(&self) -> Reading {
        self.readings.borrow().clone()
    }

    /// The first reading after this one, or the end of readings; `None` when neither comes in time.
    pub(crate) async fn reading_after(&self, version: u64, time: Duration) -> Option<Reading> {
        let mut readings = self.readings.subscribe();
        let is_news = |reading: &Reading| reading.version > version || reading.is_last;
        let news = tokio::time::timeout(time, readings.wait_for(is_news)).await;
        news.ok()?.ok().map(|reading| reading.clone())
    }
}

/// The file of a recording, as it was before it was read.
#[derive(Clone, Debug)]
pub struct ShownFile {
    path: PathBuf,
    before: Option<FileState>,
}

/// What changes when a file is written to, cut, or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    file: (u64, u64),
    bytes: u64,
    written: (i64, i64),
}

impl FileState {
    fn of(path: &Path) -> Option<FileState> {
        let found = std::fs::metadata(path).ok().filter(|found| found.is_file())?;
        let (file, written) = ((found.dev(), found.ino()), (found.mtime(), found.mtime_nsec()));
        Some(FileState { file, bytes: found.len(), written })
    }
}

impl ShownFile {
    /// To be called before the file is read. One that is no file, such as a pipe, is not looked at
    /// again.
    pub fn new(path: &Path) -> ShownFile {
        ShownFile { path: path.to_owned(), before: FileState::of(path) }
    }

    /// When it was written to, ns since 1970.
    pub fn written_unix_ns(&self) -> Option<u64> {
        let (seconds, ns) = self.before?.written;
        u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(ns).ok()?)
    }

    /// Whether it is not what was read any more.
    pub fn has_changed(&self) -> bool {
        self.before.is_some_and(|before| FileState::of(&self.path) != Some(before))
    }
}
