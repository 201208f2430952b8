//! A recording in several files: when the next one begins, what it is called, and which are kept.
//!
//! Each file is a recording by itself: header, events, features, build IDs, and at its start what [`Sideband`] knows of tasks and mappings.
//! The file that is being written has the plain name; one that is done has the time behind it, as perf does it.
use crate::build_ids;
use crate::mail::Bell;
use crate::output::{self, Output, OutputError};
use crate::sideband::Sideband;
use crate::sink::Sink;
use kymo_data::{CompressedInfo, EventSpec, Features};
use kymo_perf::proc::{self, Module};
use kymo_perf::sys;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// When a recording goes on in another file. It does so on request, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
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
    pub switch: Option<Switch>,
}

/// Asks the writer for another file.
#[derive(Debug)]
pub(crate) struct Ask {
    asked: AtomicBool,
    /// The writer's.
    bell: Arc<Bell>,
}

impl Ask {
    pub(crate) fn new(bell: Arc<Bell>) -> Ask {
        Ask { asked: AtomicBool::new(false), bell }
    }

    /// Asks. A question that waits to be heard stands for all.
    pub(crate) fn ask(&self) {
        // Release: pairs with `take`; whatever the caller did before is seen by who makes the file.
        self.asked.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether somebody has asked since the last call.
    pub(crate) fn take(&self) -> bool {
        // Acquire: pairs with `ask`. The look before is cheap: nobody asks most of the time.
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Acquire)
    }
}

/// Who is told of each file that is done.
pub(crate) type Say = Box<dyn FnMut(&Path) + Send>;

/// The files of one recording.
pub(crate) struct Series {
    pub(crate) rule: Switch,
    pub(crate) sideband: Sideband,
    /// A file is wanted now.
    pub(crate) asked: Arc<Ask>,
    path: PathBuf,
    specs: Vec<EventSpec>,
    early: Features,
    features: Features,
    build_ids: bool,
    modules: Option<Vec<Module>>,
    begun: Instant,
    kept: VecDeque<PathBuf>,
    say: Say,
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("path", &self.path).field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Series {
    /// Files at `path`, of which the first has begun. `features`: what is known of all files from the start.
    pub(crate) fn new(
        rule: Switch,
        path: PathBuf,
        specs: Vec<EventSpec>,
        features: Features,
        build_ids: bool,
        asked: Arc<Ask>,
        say: Say,
    ) -> Series {
        let early = Features {
            tracing_data: features.tracing_data.clone(),
            compressed: features.compressed,
            ..Features::default()
        };
        let sideband = Sideband::new(specs.first().map(|spec| spec.attr.clone()).unwrap_or_default());
        Series {
            rule,
            sideband,
            asked,
            path,
            specs,
            early,
            features,
            build_ids,
            modules: None,
            begun: Instant::now(),
            kept: VecDeque::new(),
            say,
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

    /// Gives the current file its final name and begins the next one.
    pub(crate) fn next(&mut self) -> io::Result<Sink> {
        self.keep()?;
        let fail = |error: OutputError| io::Error::new(error.source.kind(), error);
        let opened = output::open(&Output::File(self.path.clone())).map_err(fail)?;
        self.begun = Instant::now();
        Sink::create(opened, &self.specs, &self.early, &self.features).map_err(fail)
    }

    /// What the header of a file that is done says.
    pub(crate) fn features(
        &mut self,
        files: &HashSet<Vec<u8>>,
        times: Option<(u64, u64)>,
        compressed: Option<CompressedInfo>,
    ) -> Features {
        let mut features = self.features.clone();
        features.sample_time = times;
        features.compressed = compressed.or(features.compressed);
        if self.build_ids {
            let modules = self.modules.get_or_insert_with(proc::modules);
            features.build_ids = build_ids::of_recording(modules, files);
        }
        features
    }

    /// Gives the current file its final name, and removes the oldest if there are too many.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        let mut time = SystemTime::now();
        let name = loop {
            let mut name = self.path.as_os_str().to_owned();
            name.push(".");
            name.push(sys::timestamp(time));
            let name = PathBuf::from(name);
            if !name.exists() {
                break name;
            }
            // Two within a hundredth of a second.
            time += Duration::from_millis(10);
        };
        std::fs::rename(&self.path, &name)?;
        (self.say)(&name);
        self.kept.push_back(name);
        if self.kept.len() > self.rule.max_files.unwrap_or(usize::MAX).max(1)
            && let Some(oldest) = self.kept.pop_front()
        {
            // Somebody else may have taken it away.
            let _ = std::fs::remove_file(oldest);
        }
        Ok(())
    }
}
