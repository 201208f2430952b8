//! [`PythonFinder`]: a thread that looks at processes for CPython, and lets their frames be walked.
//!
//! The walker asks about a process at its 1st, 2nd, 4th, 8th .. sample. A process whose program has
//! "python" in its name is looked at then; while its library is not mapped yet, each
//! [`RETRY`] again. Others may hold CPython as a library: their mappings are read at the samples
//! [`EMBEDDED_FROM`] and each fourth of those after it.
use super::Interpreter;
use super::layouts::{VersionLayout, layout};
use crate::channel::Notifier;
use kymo_perf::bpf::{FrameKind, PythonWalker};
use kymo_perf::proc::{self, Mappings, MapsEntry};
use kymo_symbols::{Budget, PythonRuntime};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::setpriority_process;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How soon a process is looked at again whose interpreter is not mapped yet.
const RETRY: Duration = Duration::from_millis(1);
/// How long that goes on.
const MOST_RETRYING: Duration = Duration::from_millis(200);
/// From which sample on programs of other names are looked at.
const EMBEDDED_FROM: u64 = 64;
/// Before what is observed.
const NICE: i32 = -18;
/// So many processes are looked at before the recording begins; others at their first sample.
const MOST_EXISTING: usize = 16;
/// Sentences about interpreters that cannot be read.
const MOST_REMARKS: usize = 4;

type FileKey = (u32, u32, u64);

/// The interpreters that were found, by the ids under which their frames are told.
#[derive(Debug, Default)]
pub(crate) struct Interpreters(Mutex<Vec<Interpreter>>);

impl Interpreters {
    pub(super) fn get(&self, id: u32) -> Option<Interpreter> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.get(id as usize).cloned()
    }

    fn add(&self, interpreter: Interpreter) -> u32 {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(interpreter);
        list.len() as u32 - 1
    }
}

/// What looks for interpreters while a recording runs.
pub(crate) struct PythonFinder<'a> {
    walker: &'a PythonWalker,
    interpreters: &'a Interpreters,
    budget: Budget,
    /// What files hold, by device and inode.
    files: FxHashMap<FileKey, Option<Arc<PythonRuntime>>>,
    /// Processes whose interpreter is not mapped yet, and since when.
    retrying: Vec<(i32, Instant)>,
    remarks: Vec<String>,
}

/// What looking at a process came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// Its frames are walked.
    Entered,
    /// There is no CPython in it, or none that can be read.
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
            let wait = (!self.retrying.is_empty()).then(|| crate::channel::timespec(RETRY));
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
        }
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
        match find(pid, &mut |pid, map| self.runtime(pid, map), interpreters) {
            Ok(Some(found)) => self.enter(pid, &found, before),
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

    fn runtime(&mut self, pid: i32, map: &MapsEntry<'_>) -> Option<Arc<PythonRuntime>> {
        let key = (map.major, map.minor, map.inode);
        if let Some(known) = self.files.get(&key) {
            return known.clone();
        }
        let found = runtime_of(pid, map, &self.budget).map(Arc::new);
        self.files.insert(key, found.clone());
        found
    }

    fn remark(&mut self, remark: String) {
        if self.remarks.len() < MOST_REMARKS && !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }
}

/// CPython that was found in a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPython {
    pub(super) layout: VersionLayout,
    /// Where the address of its first interpreter is.
    pub(super) interpreters: u64,
    /// As [`Interpreters`] knows it.
    pub(super) id: u32,
}

/// CPython in a process, if there is one.
///
/// # Errors
/// Why its frames are not read, for the user.
pub(super) fn find_python(
    pid: i32,
    budget: &Budget,
    interpreters: &Interpreters,
) -> Result<Option<FoundPython>, String> {
    find(pid, &mut |pid, map| runtime_of(pid, map, budget).map(Arc::new), interpreters)
}

/// `runtime`: what a file that is mapped there holds.
fn find(
    pid: i32,
    runtime: &mut dyn FnMut(i32, &MapsEntry<'_>) -> Option<Arc<PythonRuntime>>,
    interpreters: &Interpreters,
) -> Result<Option<FoundPython>, String> {
    let exe = exe(pid);
    let text = proc::maps(pid);
    // The program's own file counts whatever its name.
    let own = exe.as_ref().map(|exe| exe.as_os_str().as_bytes());
    for map in Mappings::new(&text).filter(|map| map.prot & 4 != 0 && map.inode != 0) {
        let name = map.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if !is_named_python(name) && own != Some(map.path) {
            continue;
        }
        let Some(runtime) = runtime(pid, &map) else { continue };
        let Some(bias) = runtime.load_bias(map.start, map.offset) else { continue };
        let layout = layout(&runtime).map_err(|why| {
            let (major, minor) = runtime.version;
            format!("frames of Python {major}.{minor} are shown as native ones: {why}")
        })?;
        let there = |linked: u64| linked.wrapping_add(bias);
        let evaluate = runtime.evaluate.iter().map(|range| there(range.start)..there(range.end));
        let id = interpreters.add(Interpreter {
            layout: layout.code,
            evaluate: evaluate.collect(),
            code_type: there(runtime.code_type),
            is_separated: layout.walk.frames == FrameKind::Separated,
            is_entered_each: layout.walk.frames == FrameKind::Object,
        });
        let interpreters = there(runtime.runtime).wrapping_add(layout.interpreters);
        return Ok(Some(FoundPython { layout, interpreters, id }));
    }
    Ok(None)
}

/// Through the mapping: it is that file, whatever its path means here.
fn runtime_of(pid: i32, map: &MapsEntry<'_>, budget: &Budget) -> Option<PythonRuntime> {
    let file = format!("/proc/{pid}/map_files/{:x}-{:x}", map.start, map.end);
    let name = Path::new(OsStr::from_bytes(map.path));
    PythonRuntime::find(Path::new(&file), name, budget)
}

/// The file of the program that a process runs.
pub(super) fn exe(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

pub(super) fn is_named_python(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.windows(6).any(|window| window.eq_ignore_ascii_case(b"python"))
}
