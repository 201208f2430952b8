//! [`PythonWalker`]: tells at each sample of CPython which Python functions run, from the
//! interpreter's own structures.
//!
//! Python's frames lie on no native stack. They change with every call, so that they can only be
//! read at the sample. A program at the sampling event follows them from the thread's state, by
//! offsets that the caller knows for each version ([`PythonLayout`]), and puts them into a sample of
//! another event, `bpf-output`, just before the sample itself in the same ring. The names of a code
//! object are told once, before its first frame, so that they are known however soon the process
//! ends.
//!
//! ```text
//!  sample -> OTHERS += 1 --1st, 2nd, 4th ..--> request --> PythonWalker::requests -> caller looks at the process
//!         -> PROCESSES? -> walker: thread state (STATES, or a search) -> frame -> frame -> ..     |
//!              ^   names of new code objects -> bpf-output         all frames -> bpf-output       |
//!              '------------------------------------------------------ PythonWalker::enter -------'
//!  wait  -> (behind the switch) the same, by a walker of its own; the record of the wait follows
//!  fork -> the new process is in PROCESSES if its maker is;  exec, end -> removed from PROCESSES and OTHERS
//! ```
//!
//! # Invariants
//! - **P1** The observed process is only read, at addresses of its own; what cannot be read ends the
//!   walk. Every loop is bounded, and every sample is kept.
//! - **P2** A frame's names are those of its code object in its process: one that takes another's
//!   address has other names, and is told again.
//! - **P3** Until a process of Python is entered, a sample costs one or two look-ups more, and a
//!   switch nothing.
//! - **P4** A thread's state is used only if it says that it is that thread's.
mod at_waits;
mod layout;
mod programs;
mod record;
mod stack_pages;
#[cfg(test)]
pub(super) mod tests;

pub(super) use at_waits::PendingRecord;
pub use layout::{FrameKind, PythonLayout};
pub use programs::PythonMaps;
pub use record::{PythonCode, PythonFrame, PythonRecord};
pub use stack_pages::{StackPage, StackWish};

use super::attach::{MovableProgram, attach_raw_program, load};
use super::available::{Unavailable, available};
use super::error::BpfError;
use super::program::Program;
use super::sys::ring::Ring;
use super::sys::sized_map::{SizedMap, SizedMapKind};
use super::sys::{self, MapFd, MapKind, ProgramKind};
use super::types::TaskTypes;
use at_waits::WaitWalk;
use stack_pages::StackPages;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{OnceLock, Weak};

/// Processes at the same time.
const PROCESSES: u32 = 1 << 12;
/// Processes that were asked about; the one that was not sampled for longest is forgotten.
const OTHERS: u32 = 1 << 13;
/// The same of threads, and of code objects.
const THREADS: u32 = 1 << 14;
const CODES: u32 = 1 << 16;
/// Requests that wait: 16 bytes each, and as much for their heads.
const REQUEST_BYTES: usize = 1 << 14;

/// A process that is sampled and was not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonRequest {
    /// Its id in the first pid namespace.
    pub pid: i32,
    /// How many samples there were of it until now: 1, 2, 4, 8 ..
    pub samples: u64,
}

/// The maps and programs. Dropping it detaches them; programs that events have stay with them.
#[derive(Debug)]
pub struct PythonWalker {
    // First, so that they are detached before the maps go.
    _links: Vec<OwnedFd>,
    processes: SizedMap,
    others: SizedMap,
    threads: SizedMap,
    codes: SizedMap,
    scratch: SizedMap,
    programs: SizedMap,
    events: MapFd,
    requests: Ring,
    types: TaskTypes,
    /// What else is told at samples.
    stacks: StackPages,
    /// The walker, once a process was entered; it takes a while to load.
    walker: OnceLock<OwnedFd>,
    /// What walks at waits, where they are traced.
    at_waits: OnceLock<WaitWalk>,
}

impl PythonWalker {
    /// Whether threads are known on this architecture, so that their frames can be walked.
    pub fn knows_machine() -> bool {
        cfg!(target_arch = "x86_64")
    }

    /// Makes the maps and watches for processes that execute something else, or end.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused, or that it has no type information.
    pub fn new() -> Result<PythonWalker, BpfError> {
        if !PythonWalker::knows_machine() {
            let words = "how threads are known on this architecture is not known to it".into();
            return Err(BpfError::Unavailable(Unavailable::Refused(words)));
        }
        available().map_err(BpfError::Unavailable)?;
        let types = TaskTypes::load().map_err(BpfError::Types)?;
        let map = |what, kind, sizes, entries| {
            let made = SizedMap::new(kind, sizes, entries, sys::name("kymo_python"));
            made.map_err(|cause| BpfError::Map { what, entries, cause })
        };
        let cpus = crate::sys::possible_cpus();
        let events = sys::create_map(MapKind::Events, cpus, sys::name("kymo_python"));
        let events = events.map_err(|cause| BpfError::Map { what: "events", entries: cpus, cause })?;
        let requests = Ring::make(REQUEST_BYTES, sys::name("kymo_python"));
        let requests = requests.map_err(|cause| BpfError::Map { what: "requests", entries: 1, cause })?;
        let kinds = (SizedMapKind::Hash, SizedMapKind::RecentlyUsed);
        let mut walker = PythonWalker {
            _links: Vec::new(),
            processes: map("processes of Python", kinds.0, (4, layout::LAYOUT_BYTES), PROCESSES)?,
            others: map("other processes", kinds.1, (4, 8), OTHERS)?,
            threads: map("threads of Python", kinds.1, (4, 8), THREADS)?,
            codes: map("code of Python", kinds.1, (16, 8), CODES)?,
            scratch: map("frames", SizedMapKind::PerCpuArray, (4, programs::SCRATCH_BYTES), 1)?,
            programs: map("programs", SizedMapKind::Programs, (4, 4), 1)?,
            events,
            requests,
            types,
            stacks: StackPages::new()?,
            walker: OnceLock::new(),
            at_waits: OnceLock::new(),
        };
        let maps = walker.maps();
        let attach = |name, point: &CStr, program: &Program| {
            attach_raw_program(name, point, program, Some(&walker.types)).map(|(link, _)| link)
        };
        walker._links = vec![
            attach("kymo_py_fork", c"task_newtask", &programs::inherit(maps))?,
            attach("kymo_py_exec", c"sched_process_exec", &programs::forget(maps, false))?,
            attach("kymo_py_exit", c"sched_process_exit", &programs::forget(maps, true))?,
        ];
        Ok(walker)
    }

    /// What other programs need to walk at their samples.
    pub fn maps(&self) -> PythonMaps {
        PythonMaps {
            processes: self.processes.number(),
            others: self.others.number(),
            threads: self.threads.number(),
            codes: self.codes.number(),
            scratch: self.scratch.number(),
            programs: self.programs.number(),
            events: self.events.number(),
            requests: self.requests.number(),
            stacks: self.stacks.maps(),
        }
    }

    /// A program for events that have no other one: it keeps every sample.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    pub fn program(&self) -> Result<OwnedFd, BpfError> {
        load(ProgramKind::PerfEvent, "kymo_py_sample", &programs::gate(self.maps()), None)
    }

    /// Tells frames at waits, too, behind a switch at this tracepoint: before `writer` writes the
    /// record that is pending there. To be called once, before a process is entered.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    pub(super) fn walk_at_waits(
        &self,
        point: &'static CStr,
        pending: PendingRecord,
        writer: Weak<MovableProgram>,
    ) -> Result<(), BpfError> {
        let _ = self.at_waits.set(WaitWalk::new(point, pending, writer)?);
        Ok(())
    }

    /// Where a CPU's frames are told: an open `bpf-output` event of that CPU. It must stay open.
    ///
    /// # Errors
    /// EINVAL for an event of another kind, E2BIG for a CPU that cannot be.
    pub fn tell(&self, cpu: u32, event: BorrowedFd<'_>) -> io::Result<()> {
        sys::update(&self.events, cpu, event.as_raw_fd() as u64)
    }

    /// Becomes readable when there are requests.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.requests.fd()
    }

    /// The processes to look at since the last call.
    pub fn requests(&self) -> Vec<PythonRequest> {
        let mut requests = Vec::new();
        self.requests.read(&mut |words| {
            let word = |at: usize| words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
            requests.push(PythonRequest { pid: word(0) as i32, samples: word(1) });
        });
        requests
    }

    /// Walks the frames of a process from now on. `interpreters`: the address of the word that has
    /// the address of its first interpreter. `id`: what its frames are told under.
    ///
    /// # Errors
    /// [`BpfError`]: the walker could not be loaded, or there are too many processes.
    pub fn enter(&self, pid: i32, layout: &PythonLayout, interpreters: u64, id: u32) -> Result<(), BpfError> {
        if self.walker.get().is_none() {
            let program = programs::walker(self.maps());
            let walker = load(ProgramKind::PerfEvent, "kymo_py_walk", &program, Some(&self.types))?;
            let set = self.programs.set_program(0, walker.as_fd());
            set.map_err(|cause| BpfError::Enter { targets: 1, cause })?;
            let _ = self.walker.set(walker);
        }
        if let Some(at_waits) = self.at_waits.get() {
            at_waits.enter(self.maps(), &self.types)?;
        }
        let entered = self.processes.update(&pid.to_ne_bytes(), &layout.bytes(interpreters, id));
        entered.map_err(|cause| BpfError::Enter { targets: 1, cause })
    }

    /// Has [`StackPage`]s told at the next samples of a thread, whose stack is
    /// not all in the kernel's copy. `false`: this kernel cannot (Linux 5.17). Does not wait, but
    /// for the first one, which loads the program.
    pub fn want_stack_pages(&self, tid: i32, wish: StackWish) -> bool {
        self.stacks.want(self.maps(), &self.types, tid, wish)
    }

    /// A process is not what it was when it was entered, or is no more.
    pub fn forget(&self, pid: i32) {
        // Where it is not entered, there is nothing to remove.
        let _ = self.processes.remove(&pid.to_ne_bytes());
        let _ = self.others.remove(&pid.to_ne_bytes());
    }
}
