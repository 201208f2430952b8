//! [`PythonFinder`]: a thread that looks at processes for CPython, and lets their frames be walked.
//!
//! The walker asks about a process at its 1st, 2nd, 4th, 8th .. sample. A process whose program has
//! "python" in its name is looked at then; while its library is not mapped yet, each
//! [`RETRY`] again. Others may hold CPython as a library: their mappings are read at the samples
//! [`EMBEDDED_FROM`] and each fourth of those after it. What holds CPython and has not begun it is
//! looked at each [`NOT_BEGUN`] again.
use super::Interpreters;
use super::location::{
    FoundPython, LocatedPython, exe, find_in_process, has_begun, is_named_python, runtime_of,
};
use crate::channel::Notifier;
use kymo_perf::bpf::PythonWalker;
use kymo_symbols::unwind::{FileId, MappedFile};
use kymo_symbols::{Budget, PythonRuntime};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::setpriority_process;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How soon a process is looked at again whose interpreter is not there yet.
const RETRY: Duration = Duration::from_millis(1);
/// How long that goes on.
const MOST_RETRYING: Duration = Duration::from_millis(200);
/// From which sample on programs of other names are looked at.
const EMBEDDED_FROM: u64 = 64;
/// How soon a process is looked at again that holds CPython and has not begun it.
const NOT_BEGUN: Duration = Duration::from_millis(100);
/// So many of those are known.
const MOST_NOT_BEGUN: usize = 256;
/// Before what is observed.
const NICE: i32 = -18;
/// So many processes are looked at before the recording begins; others at their first sample.
const MOST_EXISTING: usize = 16;
/// Sentences about interpreters that cannot be read.
const MOST_REMARKS: usize = 4;

/// What looks for interpreters while a recording runs.
pub(crate) struct PythonFinder<'a> {
    walker: &'a PythonWalker,
    interpreters: &'a Interpreters,
    budget: Budget,
    /// What files hold, by device and inode.
    files: FxHashMap<FileId, Option<Arc<PythonRuntime>>>,
    /// Processes whose interpreter is not there yet, and since when.
    retrying: Vec<(i32, Instant)>,
    /// Processes that have not begun their interpreter, and where its address will be.
    not_begun: Vec<(i32, u64)>,
    /// When they were looked at.
    looked: Instant,
    remarks: Vec<String>,
}

/// What looking at a process came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// Its frames are walked.
    Entered,
    /// There is no CPython in it, or none that was begun.
    Nothing,
}

impl<'a> PythonFinder<'a> {
    pub(crate) fn new(walker: &'a PythonWalker, interpreters: &'a Interpreters) -> PythonFinder<'a> {
        PythonFinder {
            walker,
            interpreters,
            budget: Budget::new(),
            files: FxHashMap::default(),
            retrying: Vec::new(),
            not_begun: Vec::new(),
            looked: Instant::now(),
            remarks: Vec::new(),
        }
    }

    /// Looks at processes that run Python already, so that the first waits and samples have names,
    /// too.
    pub(crate) fn look_at(mut self, processes: &[i32]) -> Self {
        let is_python = |pid: i32| exe(pid).is_some_and(|exe| is_named_python(exe.as_os_str().as_bytes()));
        for &pid in processes.iter().filter(|pid| is_python(**pid)).take(MOST_EXISTING) {
            self.look(pid);
        }
        self
    }

    /// Looks until `stop` is notified; returns what the user should know.
    pub(crate) fn run(mut self, stop: &Notifier) -> Vec<String> {
        let _ = rustix::thread::set_name(c"python");
        // A program that computes on every CPU would be long known by its native frames only. Where
        // that is not permitted, it is known later.
        let _ = setpriority_process(None, NICE);
        loop {
            let wait = match (self.retrying.is_empty(), self.not_begun.is_empty()) {
                (false, _) => Some(crate::channel::timespec(RETRY)),
                (true, false) => Some(crate::channel::timespec(NOT_BEGUN)),
                (true, true) => None,
            };
            let mut fds = [
                PollFd::from_borrowed_fd(self.walker.fd(), PollFlags::IN),
                PollFd::new(stop.fd(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, wait.as_ref());
            if !fds[1].revents().is_empty() {
                return self.remarks;
            }
            for request in self.walker.requests() {
                self.requested(request.pid, request.samples);
            }
            for (pid, since) in std::mem::take(&mut self.retrying) {
                if self.look(pid) == Finding::Nothing && since.elapsed() < MOST_RETRYING {
                    self.retrying.push((pid, since));
                }
            }
            if self.looked.elapsed() >= NOT_BEGUN {
                self.look_whether_begun();
            }
        }
    }

    /// Looks again at those that have begun their interpreter by now, or are gone.
    fn look_whether_begun(&mut self) {
        let begun = |&(pid, interpreters): &(i32, u64)| has_begun(pid, interpreters);
        let known = std::mem::take(&mut self.not_begun);
        let (begun, not_begun): (Vec<_>, Vec<_>) = known.into_iter().partition(begun);
        self.not_begun = not_begun;
        for (pid, _) in begun {
            self.look(pid);
        }
        self.looked = Instant::now();
    }

    fn requested(&mut self, pid: i32, samples: u64) {
        let is_named = exe(pid).is_some_and(|exe| is_named_python(exe.as_os_str().as_bytes()));
        // Powers of two: each second one of them is a power of four.
        let is_due = samples >= EMBEDDED_FROM && samples.trailing_zeros().is_multiple_of(2);
        if !is_named && !is_due || self.retrying.iter().any(|(known, _)| *known == pid) {
            return;
        }
        if self.look(pid) == Finding::Nothing && is_named {
            self.retrying.push((pid, Instant::now()));
        }
    }

    /// Enters a process if there is CPython in it.
    fn look(&mut self, pid: i32) -> Finding {
        let before = exe(pid);
        let interpreters = self.interpreters;
        match find_in_process(pid, &mut |file| self.runtime(file), interpreters) {
            Ok(Some(LocatedPython::Running(found))) => self.enter(pid, &found, before),
            Ok(Some(LocatedPython::NotBegun { interpreters })) => {
                self.not_begun.retain(|(known, _)| *known != pid);
                if self.not_begun.len() < MOST_NOT_BEGUN {
                    self.not_begun.push((pid, interpreters));
                }
                Finding::Nothing
            }
            Ok(None) => Finding::Nothing,
            Err(remark) => {
                self.remark(remark);
                Finding::Entered
            }
        }
    }

    fn enter(&mut self, pid: i32, found: &FoundPython, before: Option<PathBuf>) -> Finding {
        if let Err(error) = self.walker.enter(pid, &found.layout.walk, found.interpreters, found.id) {
            self.remark(format!("frames of Python are shown as native ones: {error}"));
        } else if exe(pid) != before {
            // Another program was executed meanwhile, and may have been removed before it was there.
            self.walker.forget(pid);
        }
        Finding::Entered
    }

    fn runtime(&mut self, file: &MappedFile<'_>) -> Option<Arc<PythonRuntime>> {
        if let Some(known) = self.files.get(&file.file_id) {
            return known.clone();
        }
        let found = runtime_of(file, &self.budget);
        self.files.insert(file.file_id, found.clone());
        found
    }

    fn remark(&mut self, remark: String) {
        if self.remarks.len() < MOST_REMARKS && !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }
}
