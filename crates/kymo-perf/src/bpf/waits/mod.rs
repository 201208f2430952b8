//! [`WaitTracer`]: divides the time of threads, without remainder: on a CPU, ready for one, and
//! blocked until somebody woke it.
//!
//! *You give it* whom to follow and a `bpf-output` event on every CPU; *it gives you* samples of
//! that event, whose raw bytes are [`WaitRecord`]s. Long waits have records of their own, with the
//! stack of the thread that waited and with that of the one that woke it. Short ones are added up
//! in the kernel and come with the next record, whose stack stands for them, as a sample stands for
//! the time since the one before.
//!
//! ```text
//!  task_newtask ----> THREADS[tid] = ready, since now
//!  sched_switch ----> who leaves:  run += now - since; state = ready (preempted) or blocked
//!                     who comes:   blocked and ready += its wait;  long, or enough together?
//!                                    '--> scratch: a record --.        (all sums = 0)
//!  sched_exit_tp ---> (in who came) is there one? frames of Python, if it runs that (`python`)
//!                                  then its system call --> sample with its stack
//!  sched_waking ----> woken = now, by whom;  a long wait? ---------> sample, the waker's stack
//!  sched_process_exec: a command that was held begins; a thread takes over its first one's id
//! ```
//! Before Linux 6.16 there is no tracepoint behind the switch. There `sched_switch` writes the
//! record: as a sample of the thread that leaves. The stack of a wait is written when it begins, of
//! threads whose last wait was long ([`WaitKind::Stack`]); whoever reads both puts them together.
//!
//! # Places of short waits
//! Short waits cost no unwinding. A number tells where in the program they were: a hash of the
//! call, its address, and how far the stack pointer is below the thread's own memory, which is the
//! same in all threads of a process that came the same way. The thread's entry has a sum for each
//! of the first three places since its last record; what is elsewhere is in no sum but the whole.
//! Whoever reads the records learns the stack of a place from a record that has both.
//!
//! # Invariants
//! - **W1** The sum of a thread's records, and of what [`WaitTracer::end`] gives, is the time from
//!   when the thread was entered (or made, or executed) to its end, or to that of the tracer.
//! - **W2** A record that finds no room in the ring is counted ([`WaitTracer::lost`]), and its
//!   times come with the next one, those of the last record of a thread at the end: W1 holds
//!   whatever is lost.
//! - **W3** The programs read the observed thread only at its registers in the kernel. They hold
//!   nothing up: all work is a few look-ups.
//! - **W4** A thread that has no place in THREADS is counted ([`WaitTracer::missed`]).
//!
//! The tests run the programs without a kernel (`emulated`), through random switches and wake-ups,
//! and hold every record and sum against a replay of all of them (`model`).
//!
//! # What is not exact
//! A thread that is woken on one CPU while another is still switching away from it may be entered
//! as blocked until it runs, though it was ready before: a few microseconds. The programs do not
//! run where the kernel forbids it (an NMI inside of them). A kernel may leave out switches: one
//! virtual machine (Linux 6.18) told neither ftrace nor these programs of 92 of 20,144, nearly all
//! away from a few threads of its supervisor. The wait before such a switch counts until the thread
//! was woken, or to the next switch if nobody was seen to wake it. It has no record of its own; of a
//! long one the wake-up tells how long it was, in which call, and at which place.
#[cfg(test)]
mod emulated;
#[cfg(test)]
mod model;
mod programs;
mod record;
#[cfg(test)]
mod tests;

use record::PLACE_WORDS;
pub use record::{PlaceWaits, ShortWaits, WaitKind, WaitRecord, WaitedFiles};

use super::attach::{MovableProgram, attach_raw_program, attach_typed_program};
use super::available::{Unavailable, available};
use super::error::{BpfError, version};
use super::follow::Follower;
use super::kernel_btf::KernelBtf;
use super::program::Program;
use super::python::{PendingRecord, PythonWalker};
use super::sys::sized_map::{SizedMap, SizedMapKind};
use super::sys::uprobe::WideMap;
use super::sys::{self, MapFd, MapKind, ProgramKind};
use super::types::TaskTypes;
use crate::event_clock::monotonic_ns;
use programs::{
    BLOCKED, COUNTS, GONE, HELD, LOST, MISSED, READY, RUNNING, TaskAccess, Thresholds, ThrottleSource,
    UNSEEN, WaitMaps, entry,
};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Threads at the same time.
const THREADS: u32 = 1 << 17;
/// The tracepoint behind a switch.
const BEHIND: &CStr = c"sched_exit_tp";

/// Which waits get records of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    /// Waits from this length on.
    pub long: Duration,
    /// Shorter ones get one together when they have come to this.
    pub together: Duration,
    /// Each CPU writes so many records a second at most, on average; what finds no place among them
    /// comes with the thread's next record. When they are many, they are of those waits at which a
    /// thread's time without a record has come to a threshold.
    pub records_per_second: u32,
    /// Do without the tracepoint behind a switch, as before Linux 6.16.
    pub not_behind: bool,
}

impl Default for WaitOptions {
    fn default() -> WaitOptions {
        WaitOptions {
            long: Duration::from_micros(100),
            together: Duration::from_millis(1),
            records_per_second: 250,
            not_behind: false,
        }
    }
}

/// What a thread that exists already does when it is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// It runs, or is ready to.
    Ready,
    /// It waits.
    Blocked,
    /// It is held before its exec, before which nothing counts.
    Held,
}

/// The maps and programs. Dropping it detaches them.
#[derive(Debug)]
pub struct WaitTracer {
    // First, so that they are detached before the maps go.
    links: Mutex<Vec<OwnedFd>>,
    /// Writes the records of waits, where the kernel has a tracepoint behind a switch.
    behind: Option<Arc<MovableProgram>>,
    threads: WideMap,
    _scratches: [SizedMap; 2],
    events: MapFd,
    counts: MapFd,
}

impl WaitTracer {
    /// Begins to divide the time of the follower's threads, of all threads without one. Threads
    /// that exist already are to be entered ([`enter`](Self::enter)). `python`: tells the frames of
    /// Python before each record that has the stack of the thread that waited.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused. It needs type information, and Linux 5.18.
    pub fn start(
        followed: Option<&Follower>,
        python: Option<&PythonWalker>,
        options: &WaitOptions,
    ) -> Result<WaitTracer, BpfError> {
        WaitTracer::start_with((followed, python), options, KernelBtf::read())
    }

    fn start_with(
        (followed, python): (Option<&Follower>, Option<&PythonWalker>),
        options: &WaitOptions,
        kernel: Option<KernelBtf>,
    ) -> Result<WaitTracer, BpfError> {
        available().map_err(BpfError::Unavailable)?;
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if version(&release).is_some_and(|version| version < (5, 18)) {
            let words = "before Linux 5.18 the kernel does not tell programs why a thread leaves its CPU";
            return Err(BpfError::Unavailable(Unavailable::Refused(words.into())));
        }
        let points = Points { types: TaskTypes::load().map_err(BpfError::Types)?, kernel };
        let refused = |what, entries| move |cause| BpfError::Map { what, entries, cause };
        let name = sys::name("kymo_waits");
        let scratch = || {
            let made = SizedMap::new(SizedMapKind::PerCpuArray, (4, programs::SCRATCH_BYTES), 1, name);
            made.map_err(refused("records", 1))
        };
        let cpus = crate::sys::possible_cpus();
        let mut tracer = WaitTracer {
            links: Mutex::default(),
            threads: WideMap::hash(1, entry::WORDS, THREADS, name).map_err(refused("threads", THREADS))?,
            _scratches: [scratch()?, scratch()?],
            events: sys::create_map(MapKind::Events, cpus, name).map_err(refused("events", cpus))?,
            counts: sys::create_map(MapKind::Array, COUNTS, name).map_err(refused("counts", COUNTS))?,
            behind: None,
        };
        let maps = WaitMaps {
            threads: tracer.threads.number(),
            switch_scratch: tracer._scratches[0].number(),
            waking_scratch: tracer._scratches[1].number(),
            events: tracer.events.number(),
            counts: tracer.counts.number(),
            followed: followed.map(|follower| (follower.followed_map(), follower.key())),
            tasks: TaskAccess::Loads,
        };
        let mut thresholds = Thresholds {
            long_ns: u64::try_from(options.long.as_nanos()).unwrap_or(u64::MAX),
            together_ns: u64::try_from(options.together.as_nanos()).unwrap_or(u64::MAX),
            interval_ns: (1_000_000_000 / options.records_per_second.max(1)) as i32,
            throttle: ThrottleSource::Task,
        };
        let attach = |name, point, program: &dyn Fn(WaitMaps) -> Program| {
            points.attach(name, point, &|tasks| program(WaitMaps { tasks, ..maps }))
        };
        let walked = python.filter(|_| !options.not_behind).map(PythonWalker::maps);
        let switched = |tasks| programs::switched(WaitMaps { tasks, ..maps }, walked);
        let behind = match points.attach_movable("kymo_switched", BEHIND, &switched) {
            _ if options.not_behind => None,
            Err(BpfError::Attach { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => None,
            attached => Some(Arc::new(attached?)),
        };
        if let (Some(python), Some(behind)) = (python, &behind) {
            let pending = PendingRecord { map: maps.switch_scratch, flag: programs::PENDING };
            if let Err(error) = python.walk_at_waits(BEHIND, pending, Arc::downgrade(behind)) {
                tracing::debug!(%error, "waits have no frames of Python");
            }
        }
        // Who is made from here on is entered by its maker, before it can run.
        let mut links = Vec::new();
        links.push(attach("kymo_wait_new", c"task_newtask", &programs::newtask)?);
        links.push(attach("kymo_wait_exec", c"sched_process_exec", &programs::exec)?);
        links.push(attach("kymo_waking", c"sched_waking", &|maps| programs::waking(maps, thresholds))?);
        let mut switch = |throttle| {
            thresholds.throttle = throttle;
            let program = |maps| programs::switch(maps, thresholds, behind.is_none());
            attach("kymo_switch", c"sched_switch", &program)
        };
        // What the kernel does not have it refuses to look up.
        let attached = switch(ThrottleSource::Task).or_else(|_| switch(ThrottleSource::Queue));
        links.push(attached.or_else(|_| switch(ThrottleSource::None))?);
        tracer.links = Mutex::new(links);
        tracer.behind = behind;
        Ok(tracer)
    }

    /// Whether all records come with the stack of the thread that waited; not before Linux 6.16.
    pub fn has_stacks(&self) -> bool {
        self.behind.is_some()
    }

    /// Where a CPU's records go: an open `bpf-output` event of that CPU. It must stay open.
    ///
    /// # Errors
    /// EINVAL for an event of another kind, E2BIG for a CPU that cannot be.
    pub fn write_to(&self, cpu: u32, event: BorrowedFd<'_>) -> io::Result<()> {
        sys::update(&self.events, cpu, event.as_raw_fd() as u64)
    }

    /// Time counts from now on: threads that were made since the start are forgotten, and records
    /// that nobody could take yet were not lost. To be called when the events take records, before
    /// [`enter`](Self::enter).
    pub fn begin(&self) {
        self.threads.clear(THREADS);
        for word in [LOST, UNSEEN] {
            if let Err(error) = sys::update(&self.counts, word, 0) {
                tracing::debug!(%error, "what was before the recording counts");
            }
        }
    }

    /// Enters a thread that exists already; its time counts from now on. `false`: it is known
    /// already, or there is no place for it.
    pub fn enter(&self, pid: i32, tid: i32, state: ThreadState) -> bool {
        let (Ok(key), Ok(process)) = (u64::try_from(tid), u64::try_from(pid)) else { return false };
        self.threads.insert(&[key], &entry_of(process, state, monotonic_ns())).is_ok()
    }

    /// Ends it: what no record has told, with the moments until which that goes, ns of
    /// CLOCK_MONOTONIC, and the moment of now.
    pub fn end(&self) -> (Vec<(WaitRecord, u64)>, u64) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.behind.iter().for_each(|behind| behind.detach());
        let now = monotonic_ns();
        // Nobody changes it any more.
        let entries = self.threads.entries(THREADS);
        let until = |value: &[u64]| {
            if word_of(value, entry::STATE) as i32 == GONE { word_of(value, entry::SINCE) } else { now }
        };
        let left =
            entries.flat_map(|(key, value)| Some((untold(key[0], &value, now)?, until(&value)))).collect();
        (left, now)
    }

    /// Threads whose time is not divided, because too many were there at the same time.
    pub fn missed(&self) -> u64 {
        sys::lookup(&self.counts, MISSED).unwrap_or(0)
    }

    /// Records that found no room. Their times came with later ones.
    pub fn lost(&self) -> u64 {
        sys::lookup(&self.counts, LOST).unwrap_or(0)
    }

    /// Switches to threads that the kernel has left out: the waits before them have no stacks, and
    /// a thread that was ready counts as running. At most so many: threads that ran when they were
    /// entered count, too.
    pub fn unseen(&self) -> u64 {
        sys::lookup(&self.counts, UNSEEN).unwrap_or(0)
    }
}

/// Where the programs are attached.
struct Points {
    types: TaskTypes,
    /// `None`: this kernel gives no types to the arguments of tracepoints.
    kernel: Option<KernelBtf>,
}

impl Points {
    /// Attaches a program; the link.
    fn attach(
        &self,
        name: &'static str,
        point: &CStr,
        program: &dyn Fn(TaskAccess) -> Program,
    ) -> Result<OwnedFd, BpfError> {
        self.attach_either_way(name, point, program).map(|((link, _), _)| link)
    }

    /// The same of a program that can be moved.
    fn attach_movable(
        &self,
        name: &'static str,
        point: &CStr,
        program: &dyn Fn(TaskAccess) -> Program,
    ) -> Result<MovableProgram, BpfError> {
        let (attached, tasks) = self.attach_either_way(name, point, program)?;
        Ok(MovableProgram::new(attached, (tasks == TaskAccess::Copies).then_some(point)))
    }

    /// With typed arguments where that is possible: reading a task costs less then.
    fn attach_either_way(
        &self,
        name: &'static str,
        point: &CStr,
        program: &dyn Fn(TaskAccess) -> Program,
    ) -> Result<((OwnedFd, OwnedFd), TaskAccess), BpfError> {
        if let Some(number) = self.kernel.as_ref().and_then(|kernel| kernel.tracepoint(point)) {
            let program = Program { kernel_type: number, ..program(TaskAccess::Loads) };
            let kind = ProgramKind::TypedTracepoint;
            if let Ok(attached) = attach_typed_program(kind, name, point, &program, Some(&self.types)) {
                return Ok((attached, TaskAccess::Loads));
            }
        }
        let program = program(TaskAccess::Copies);
        let attached = attach_raw_program(name, point, &program, Some(&self.types))?;
        Ok((attached, TaskAccess::Copies))
    }
}

/// The entry of a thread that is in this state from `now` on.
fn entry_of(process: u64, state: ThreadState, now: u64) -> [u64; entry::WORDS] {
    let mut value = [0; entry::WORDS];
    let mut put = |at: i16, word: u64| value[at as usize / 8] = word;
    put(entry::SINCE, now);
    put(entry::PID, process);
    let state = match state {
        ThreadState::Ready => READY,
        ThreadState::Blocked => BLOCKED,
        ThreadState::Held => HELD,
    };
    put(entry::STATE, state as u64);
    put(entry::LONG, 1);
    // Of such a wait it is not known which it is: an interruptible one.
    put(entry::TASK_STATE, u64::from(state == BLOCKED));
    value
}

/// A word of an entry.
fn word_of(value: &[u64], at: i16) -> u64 {
    value.get(at as usize / 8).copied().unwrap_or(0)
}

/// What an entry has at the end.
fn untold(tid: u64, value: &[u64], now: u64) -> Option<WaitRecord> {
    let word = |at: i16| word_of(value, at);
    let state = word(entry::STATE) as i32;
    let (since, woken) = (word(entry::SINCE), word(entry::WOKEN));
    if state == HELD {
        return None;
    }
    let time = now.saturating_sub(since);
    let (mut run_ns, mut blocked_ns, mut runnable_ns) = (word(entry::RUN), 0, 0);
    match state {
        RUNNING => run_ns = run_ns.saturating_add(time),
        READY => runnable_ns = time,
        GONE => {}
        _ if woken >= since => {
            blocked_ns = woken - since;
            runnable_ns = now.saturating_sub(woken);
        }
        _ => blocked_ns = time,
    }
    Some(WaitRecord {
        kind: WaitKind::End,
        task_state: word(entry::TASK_STATE) as u32,
        tid: tid as i32,
        pid: word(entry::PID) as i32,
        waker: word(entry::WAKER) as i32,
        files: WaitedFiles::Unknown,
        blocked_ns,
        runnable_ns,
        run_ns,
        short: ShortWaits {
            blocked_ns: word(entry::BLOCKED),
            runnable_ns: word(entry::RUNNABLE),
            waits: word(entry::WAITS),
            preemptions: word(entry::PREEMPTIONS),
            longest_ns: word(entry::LONGEST),
            places: std::array::from_fn(|number| {
                PlaceWaits::of(std::array::from_fn(|at| {
                    word(entry::PLACES + (PLACE_WORDS * number + at) as i16 * 8)
                }))
            }),
        },
        syscall: -1,
        arguments: [0; 2],
        place: 0,
    })
}
