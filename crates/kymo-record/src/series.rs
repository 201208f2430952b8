//! A recording in several files: when the next one begins, what it is called, and which are kept.
//!
//! Each file is a recording by itself: header, events, features, build IDs, and at its start what
//! [`Sideband`] knows of tasks and mappings. The file that is being written has the plain name; a
//! complete one gets the time appended, as with perf. Or the files have no names: each that is
//! complete is handed over in memory.
use crate::build_ids::FileBuildIds;
use crate::channel::Notifier;
use crate::coverage::Coverage;
use crate::cpu_accounts::Account;
use crate::output::{Naming, Output, OutputError, SharedNaming};
use crate::sideband::Sideband;
use crate::sink::Sink;
use kymo_data::{CompressedInfo, EventSpec, Features, abi};
use kymo_files::Identity;
use kymo_perf::event_clock::monotonic_ns;
use kymo_perf::proc::{self, KernelModule};
use kymo_perf::sys;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// When a recording goes on in another file. It does so on request, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchRule {
    /// When the file has this size, in bytes.
    pub size_bytes: Option<u64>,
    /// When the file is this old.
    pub every: Option<Duration>,
    /// So many files are kept, the latest ones; `None`: all.
    pub max_files: Option<usize>,
}

/// How large a recording may become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The recording ends when its file has this size, in bytes.
    pub max_bytes: Option<u64>,
    /// The recording goes on in other files.
    pub switch: Option<SwitchRule>,
}

/// Asks the writer for another file.
#[derive(Debug)]
pub(crate) struct SwitchRequest {
    /// How many have asked, how many of them the writer has heard, and how many have their file.
    asked: AtomicU64,
    heard: AtomicU64,
    answered: AtomicU64,
    /// The writer's.
    notifier: Arc<Notifier>,
    /// Rings when somebody has been answered.
    done_notifier: Notifier,
}

impl SwitchRequest {
    pub(crate) fn new(notifier: Arc<Notifier>) -> io::Result<SwitchRequest> {
        let (asked, heard, answered) = Default::default();
        Ok(SwitchRequest { asked, heard, answered, notifier, done_notifier: Notifier::new()? })
    }

    /// Asks; the number of the question. One answer stands for all that were asked before it was
    /// begun.
    pub(crate) fn ask(&self) -> u64 {
        // Release: pairs with `take`; whatever the caller did before is seen by who makes the file.
        let number = self.asked.fetch_add(1, Ordering::Release) + 1;
        self.notifier.notify();
        number
    }

    /// Whether somebody has asked since the last call.
    pub(crate) fn take(&self) -> bool {
        // Acquire: pairs with `ask`.
        let asked = self.asked.load(Ordering::Acquire);
        // Relaxed, as below: only the writer, who calls this, changes it.
        let new = asked != self.heard.load(Ordering::Relaxed);
        if new {
            self.heard.store(asked, Ordering::Relaxed);
        }
        new
    }

    /// Another file has begun, and the one before it is done.
    pub(crate) fn answer(&self) {
        // Release: pairs with `is_answered`; the file is complete. Relaxed: only the writer, who
        // calls this, changes it.
        self.answered.store(self.heard.load(Ordering::Relaxed), Ordering::Release);
        self.done_notifier.notify();
    }

    /// Whether the question of this number has been answered.
    pub(crate) fn is_answered(&self, number: u64) -> bool {
        // Acquire: pairs with `answer`.
        self.answered.load(Ordering::Acquire) >= number
    }

    /// What rings when somebody has been answered.
    pub(crate) fn done_notifier(&self) -> &Notifier {
        &self.done_notifier
    }
}

/// Who is told of each file that is done, and of a flight recorder's how far back it reaches.
pub(crate) type FileListener = Box<dyn FnMut(&Path, Option<&Coverage>) + Send>;

/// A snapshot of a flight recorder, or a part of a complete recording, in memory.
#[derive(Debug)]
pub struct LiveSnapshot {
    /// A complete recording, at its start.
    pub file: File,
    /// When it was complete, in ns of CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// How far back it reaches.
    pub coverage: Coverage,
    /// What the kernel accounts to what is observed, from the start of the recorder until then;
    /// `None`: samples need not stand for all of that.
    pub accounted: Option<Account>,
}

/// Who gets snapshots that stay in memory.
pub(crate) type SnapshotListener = Box<dyn FnMut(LiveSnapshot) + Send>;

/// Who hears of files that are done.
pub(crate) enum SeriesListener {
    /// By their names.
    Files(FileListener),
    /// They are handed over.
    Snapshots(SnapshotListener),
}

/// What becomes of files that are done.
pub(crate) enum SeriesPlace {
    /// They have names beside each other.
    Folder {
        /// The plain name, of the file that is being written.
        path: PathBuf,
        /// Of the current file.
        naming: SharedNaming,
        say: FileListener,
    },
    /// They are handed over.
    Memory {
        /// The current file.
        file: File,
        take: SnapshotListener,
    },
}

/// What becomes of the last file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Last {
    /// It gets the time behind its name, as the others.
    #[default]
    Joins,
    /// It keeps the plain name.
    Stays,
    /// Nothing was to be written to it.
    Goes,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    pub(crate) samples: u64,
}

/// Files that were removed again because only so many are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedFiles {
    /// How many.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
    /// The samples in them.
    pub samples: u64,
}

/// A file that is done.
#[derive(Debug)]
struct FinishedFile {
    name: OsString,
    file: Identity,
    content: Content,
}

/// The files of one recording.
pub(crate) struct Series {
    pub(crate) rule: SwitchRule,
    pub(crate) sideband: Sideband,
    /// A file is wanted now.
    pub(crate) asked: Arc<SwitchRequest>,
    /// What becomes of the last file.
    pub(crate) last: Last,
    /// How far back the current file reaches.
    pub(crate) coverage: Option<Coverage>,
    /// Files that are gone.
    pub(crate) removed: RemovedFiles,
    place: SeriesPlace,
    specs: Vec<EventSpec>,
    features: Features,
    pub(crate) build_ids: bool,
    modules: Option<Vec<KernelModule>>,
    begun: Instant,
    kept: VecDeque<FinishedFile>,
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Series {
    /// Whether files have no names, and are handed over when they are complete.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.place, SeriesPlace::Memory { .. })
    }

    /// Files of which the first has begun. `features`: what is known of all files from the start.
    pub(crate) fn new(
        rule: SwitchRule,
        place: SeriesPlace,
        specs: Vec<EventSpec>,
        features: Features,
        build_ids: bool,
        asked: Arc<SwitchRequest>,
    ) -> Series {
        // Only one event tracks; what the others put behind their records may be longer or shorter.
        let tracks = |spec: &&EventSpec| spec.attr.flags & abi::ATTR_FLAG_TASK != 0;
        let tracking = specs.iter().find(tracks).or(specs.first());
        let sideband = Sideband::new(tracking.map(|spec| spec.attr.clone()).unwrap_or_default());
        Series {
            rule,
            sideband,
            asked,
            last: Last::default(),
            coverage: None,
            removed: RemovedFiles::default(),
            place,
            specs,
            features,
            build_ids,
            modules: None,
            begun: Instant::now(),
            kept: VecDeque::new(),
        }
    }

    /// The files that are done and still there, as far as they have names.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match &self.place {
            SeriesPlace::Folder { path, .. } => {
                self.kept.iter().map(|file| path.with_file_name(&file.name)).collect()
            }
            SeriesPlace::Memory { .. } => Vec::new(),
        }
    }

    /// When the file will be old enough.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.begun.checked_add(self.rule.every?)
    }

    /// Whether a file of this size has to be followed by another.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        self.rule.size_bytes.is_some_and(|limit| bytes >= limit)
            || self.deadline().is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Gives the current file, which holds so much, its final name and begins the next one.
    pub(crate) fn next(&mut self, done: Content) -> io::Result<Sink> {
        self.keep(done)?;
        let fail = |error: OutputError| io::Error::new(error.why.kind(), error);
        self.begun = Instant::now();
        let output = match &self.place {
            SeriesPlace::Folder { path, .. } => Output::File(path.clone()),
            SeriesPlace::Memory { .. } => Output::Memory,
        };
        let (sink, fresh) = Sink::create(&output, None, &self.specs, &self.features).map_err(fail)?;
        match &mut self.place {
            SeriesPlace::Folder { naming, .. } => {
                let mut fresh = fresh.ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
                // One that goes again, unless another snapshot is asked for, needs no name of its
                // own.
                if self.last != Last::Goes {
                    fresh.publish().map_err(fail)?;
                }
                *naming = Arc::new(Mutex::new(fresh));
            }
            SeriesPlace::Memory { file, .. } => *file = sink.another_handle()?,
        }
        Ok(sink)
    }

    /// What the header of a file that is done says.
    pub(crate) fn features(
        &mut self,
        build_ids: FileBuildIds,
        times: Option<(u64, u64)>,
        compressed: Option<CompressedInfo>,
    ) -> Features {
        let mut features = self.features.clone();
        features.sample_time = times;
        features.compressed = compressed.or(features.compressed);
        if self.build_ids {
            let modules = self.modules.get_or_insert_with(proc::modules);
            features.build_ids = build_ids.table(modules);
        }
        features
    }

    /// Does with the last file, which holds so much, what is to be done.
    pub(crate) fn end(&mut self, done: Content) -> io::Result<()> {
        match self.last {
            Last::Joins => self.keep(done),
            // It has no name, and disappears.
            Last::Stays | Last::Goes => Ok(()),
        }
    }

    /// Gives the current file its final name, and removes the oldest if there are too many; or
    /// hands it over.
    fn keep(&mut self, content: Content) -> io::Result<()> {
        let coverage = self.coverage.take();
        let (path, naming, say) = match &mut self.place {
            SeriesPlace::Folder { path, naming, say } => (path, naming, say),
            SeriesPlace::Memory { file, take } => {
                let taken_ns = monotonic_ns();
                let coverage = coverage.unwrap_or_default();
                take(LiveSnapshot { file: file.try_clone()?, taken_ns, coverage, accounted: None });
                return Ok(());
            }
        };
        let shared = Arc::clone(naming);
        let mut naming = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut time = SystemTime::now();
        let name = loop {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(".");
            name.push(sys::timestamp(time));
            match naming.rename(&name) {
                Ok(()) => break name,
                // Two within a hundredth of a second.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    time += Duration::from_millis(10);
                }
                Err(error) => return Err(error),
            }
        };
        say(&path.with_file_name(&name), coverage.as_ref());
        self.kept.push_back(FinishedFile { name, file: naming.identity()?, content });
        if self.kept.len() > self.rule.max_files.unwrap_or(usize::MAX).max(1)
            && let Some(oldest) = self.kept.pop_front()
        {
            self.remove(&naming, &oldest);
        }
        Ok(())
    }

    /// Removes a file of ours. It may have gone already, or another may have its name: that one
    /// stays.
    fn remove(&mut self, naming: &Naming, oldest: &FinishedFile) {
        if let Err(error) = naming.folder().remove(&oldest.name, oldest.file) {
            tracing::warn!(%error, name = %oldest.name.display(), "an older file was not removed");
        }
        self.removed.files += 1;
        self.removed.bytes += oldest.content.bytes;
        self.removed.samples += oldest.content.samples;
    }
}
