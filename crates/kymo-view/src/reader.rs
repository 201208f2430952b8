//! Reads a recording into the slot that the server shows: a part of it early, all of it, and again
//! as it grows.
use crate::shown::{ShownFile, ShownRecording, ShownSlot};
use kymo_data::Recording;
use kymo_profile::query::OpenError;
use kymo_profile::view::{RecordingView, ViewOptions};
use kymo_symbols::SymbolStore;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How soon a recording that grows is read again, at least.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// Reading takes at most one part in so many of the time.
const PAUSE_FOR_READING: u32 = 4;
/// By so much the priority of reading is lowered when there is something to look at.
const READING_NICE: i32 = 10;
/// How soon the end of following is noticed.
const STOP_POLL: Duration = Duration::from_millis(50);
/// A recording that cannot be read so many times in a row is not followed any more.
const MOST_FAILURES: u32 = 5;

/// Opens the recording.
pub type OpenRecording<E> = Box<dyn Fn() -> Result<Recording, E> + Send>;

/// How a recording is opened and read.
pub struct RecordingReader<E> {
    /// Its file.
    pub path: PathBuf,
    /// Opens it, each time that it is read.
    pub open: OpenRecording<E>,
    /// The symbols of it.
    pub store: Box<dyn Fn(&Recording) -> SymbolStore + Send>,
    /// How it is read.
    pub options: ReadOptions,
}

/// What is read of a recording.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// The samples of a recording that has the time of threads, too.
    pub samples_only: bool,
    /// Worker threads; 0 means one per CPU.
    pub workers: usize,
    /// The recording is read again as it grows.
    pub follows: bool,
}

/// Whether a recorder may still write: the times of the first and the last sample are among what
/// recorders tell at the end.
fn goes_on(recording: &Recording) -> bool {
    recording.features.sample_time.is_none()
}

impl<E> fmt::Debug for RecordingReader<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingReader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<E: From<OpenError>> RecordingReader<E> {
    /// Reads the recording into the slot: a part of a large one as soon as that can be had, then all
    /// of it. Gives what was read. Blocks.
    ///
    /// # Errors
    /// Those of opening, and when it cannot be read at all.
    pub fn read(
        &self,
        slot: &ShownSlot,
        progress: &(dyn Fn(u32, u64, u64) + Sync),
    ) -> Result<Arc<ShownRecording>, E> {
        let progress = |pass, done, all| {
            slot.set_progress(pass, done, all);
            progress(pass, done, all);
        };
        self.read_again(slot, None, &progress)
    }

    /// Reads a recording that is still written again and again, as it grows, until its recorder has
    /// ended it or the flag is set. `shown`: the first reading. Blocks.
    ///
    /// # Errors
    /// When it could not be read several times in a row: what was shown last stays.
    pub fn follow(
        &self,
        slot: &ShownSlot,
        mut shown: Arc<ShownRecording>,
        stop: &AtomicBool,
    ) -> Result<(), E> {
        // The recorded program and its recorder come first.
        if self.options.follows {
            _ = rustix::process::nice(READING_NICE);
        }
        let (mut pause, mut failures) = (LEAST_PAUSE, 0);
        // Relaxed: a signal's handler sets it, and nothing else.
        while self.options.follows && goes_on(&shown.recording) && !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            while begin.elapsed() < pause && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(STOP_POLL);
            }
            if !shown.file.has_changed() || stop.load(Ordering::Relaxed) {
                continue;
            }
            let begin = Instant::now();
            match self.read_again(slot, Some(&shown.store), &|_, _, _| {}) {
                Ok(again) => (shown, failures) = (again, 0),
                Err(error) if failures == MOST_FAILURES => {
                    slot.end();
                    return Err(error);
                }
                // It may have been caught between two writes.
                Err(_) => failures += 1,
            }
            pause = LEAST_PAUSE.max(begin.elapsed() * PAUSE_FOR_READING);
        }
        slot.end();
        Ok(())
    }

    fn read_again(
        &self,
        slot: &ShownSlot,
        store: Option<&Arc<SymbolStore>>,
        progress: &(dyn Fn(u32, u64, u64) + Sync),
    ) -> Result<Arc<ShownRecording>, E> {
        let file = ShownFile::new(&self.path);
        let recording = Arc::new((self.open)()?);
        let store = store.map_or_else(|| Arc::new((self.store)(&recording)), Arc::clone);
        let source = self.path.display().to_string();
        let ReadOptions { samples_only, workers, follows } = self.options;
        let options =
            ViewOptions { source: &source, samples_only, is_served: true, workers, ..ViewOptions::default() };
        let shown = |mut view: RecordingView| {
            view.set_written(file.written_unix_ns());
            let (recording, store) = (Arc::clone(&recording), Arc::clone(&store));
            Arc::new(ShownRecording { recording, view, store, file: file.clone() })
        };
        let early = |view| {
            slot.show(shown(view), false);
            // The browser draws it now, and that is what the user waits for: the rest of the
            // reading takes the time that this leaves. Of this thread and those that it starts.
            _ = rustix::process::nice(READING_NICE);
        };
        // Only the first reading has an early part: a later one is there before it.
        let early = (slot.version() == 0).then_some(&early as &dyn Fn(RecordingView));
        let view = RecordingView::open_early(&recording, options, &store, progress, early)?;
        let shown = shown(view);
        slot.show(Arc::clone(&shown), !(follows && goes_on(&recording)));
        shown.view.prepare_selections();
        Ok(shown)
    }
}
