//! [`FutexTracer`]: adds up how long threads wait for each futex, and says who waited and who woke
//! them.
//!
//! *You give it* whom to follow and a `bpf-output` event on every CPU; *it gives you* exact sums
//! for each futex ([`FutexSums`]), and samples of that event: some waits with the stack of the
//! thread that waited, and some wake-ups with the stack of the thread that ended them. At a lock
//! that is the thread that has just unlocked it. Their raw bytes are [`FutexRecord`]s.
//!
//! ```text
//!  futex() is called:  waits? ----> WAITERS[tid] = futex, since now    FUTEXES[futex].waiting += 1
//!  futex() returns: a wait -------> FUTEXES[futex]: waits, time, longest, buckets
//!                                     '--> within the budget: sample with the waiter's stack
//!                   woke others --> FUTEXES[futex]: wakes, the waker
//!                                     '--> within the budget: sample with the waker's stack
//! ```
//! A lock that is free is taken without a system call, so it costs nothing. The programs run at the
//! kernel's function of this one call (`fentry`), where the kernel has that: other system calls
//! cost nothing, either. Else they run at its tracepoints, for which the kernel takes a longer way
//! through every system call.
//!
//! # Invariants
//! - **X1** The sums are exact, whatever becomes of the records: each ended wait is added once,
//!   also if its record finds no place. What no record has told comes with the next one, and at the
//!   end with the sums ([`FutexSums::untold`]).
//! - **X2** A futex or thread that has no place in the maps is counted ([`FutexTracer::missed`]).
//! - **X3** The programs read the observed thread only at its registers in the kernel, and its
//!   memory never.
//! - **X4** A call that returned at once because there was nothing to wait for is no wait.
//!
//! # What is not exact
//! A wait that a signal interrupts ends there; the kernel may go on with it in another system call,
//! which is not looked at. A futex that processes share is one entry by its address, whatever each
//! process has mapped there. Calls of 32-bit programs are not seen, nor are `futex_waitv` and
//! `futex_wait`, which C libraries do not use. Where threads can be preempted in the kernel, a
//! program does not run while another thread of the same CPU is in the same one
//! ([`FutexTracer::missed`] counts that).
mod programs;
mod record;
#[cfg(test)]
mod tests;

pub use record::{FutexKind, FutexRecord, FutexSums};

use super::attach::{attach_to_tracepoint, attach_typed_program};
use super::available::{Unavailable, available};
use super::error::{BpfError, version};
use super::follow::{Follower, skipped};
use super::kernel_btf::KernelBtf;
use super::program::Program;
use super::sys::sized_map::{SizedMap, SizedMapKind};
use super::sys::uprobe::WideMap;
use super::sys::{self, MapFd, MapKind, ProgramKind};
use crate::event_clock::monotonic_ns;
use kymo_core::latency::{Latencies, SLOTS, USED};
use programs::{
    FutexMaps, FutexPoint, LOST, Limits, MISSED_FUTEXES, MISSED_WAITS, PRIVATE, WAITER_WORDS, entry,
};
use record::BUCKETS;
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Futexes that are told apart; an entry takes 2.6 KB.
const FUTEXES: u32 = 1 << 14;
/// Threads that wait at the same time.
const WAITERS: u32 = 1 << 17;
/// Waits without a record that get one together when records become many.
const TOGETHER_NS: u64 = 1_000_000;
/// The function of the system call.
#[cfg(target_arch = "x86_64")]
const FUNCTION: &CStr = c"__x64_sys_futex";
#[cfg(not(target_arch = "x86_64"))]
const FUNCTION: &CStr = c"__arm64_sys_futex";

/// How much is written of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutexOptions {
    /// Each CPU writes so many records a second at most, on average. Twice as many, if they are of
    /// waits of 10 ms and more.
    pub records_per_second: u32,
    /// Use the tracepoints, as on kernels that attach no programs to functions.
    pub tracepoints: bool,
}

impl Default for FutexOptions {
    fn default() -> FutexOptions {
        FutexOptions { records_per_second: 250, tracepoints: false }
    }
}

/// The maps and programs. Dropping it detaches them.
#[derive(Debug)]
pub struct FutexTracer {
    // First, so that they are detached before the maps go.
    links: Mutex<Vec<OwnedFd>>,
    /// To ask the kernel how often they could not run.
    programs: Vec<OwnedFd>,
    futexes: WideMap,
    waiters: WideMap,
    _zeros: SizedMap,
    _scratches: [SizedMap; 2],
    events: MapFd,
    counts: MapFd,
    uses_tracepoints: bool,
}

impl FutexTracer {
    /// Begins to add up the waits of the follower's threads, of all threads without one. Threads
    /// that wait already are to be entered ([`enter`](Self::enter)).
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused. It needs Linux 5.12.
    pub fn start(followed: Option<&Follower>, options: &FutexOptions) -> Result<FutexTracer, BpfError> {
        available().map_err(BpfError::Unavailable)?;
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if version(&release).is_some_and(|version| version < (5, 12)) {
            let words = "before Linux 5.12 programs in the kernel cannot add up what several CPUs see";
            return Err(BpfError::Unavailable(Unavailable::Refused(words.into())));
        }
        let name = sys::name("kymo_futex");
        let refused = |what, entries| move |cause| BpfError::Map { what, entries, cause };
        let cpus = crate::sys::possible_cpus();
        let futexes = WideMap::hash(2, entry::WORDS, FUTEXES, name).map_err(refused("futexes", FUTEXES))?;
        let waiters =
            WideMap::hash(1, WAITER_WORDS, WAITERS, name).map_err(refused("waiting threads", WAITERS))?;
        let sized = |kind, bytes| SizedMap::new(kind, (4, bytes), 1, name).map_err(refused("records", 1));
        let zeros = sized(SizedMapKind::Array, 8 * entry::WORDS)?;
        let scratch = || sized(SizedMapKind::PerCpuArray, programs::SCRATCH_BYTES);
        let mut tracer = FutexTracer {
            links: Mutex::default(),
            programs: Vec::new(),
            futexes,
            waiters,
            _zeros: zeros,
            _scratches: [scratch()?, scratch()?],
            events: sys::create_map(MapKind::Events, cpus, name).map_err(refused("events", cpus))?,
            counts: sys::create_map(MapKind::Array, 3, name).map_err(refused("counts", 3))?,
            uses_tracepoints: false,
        };
        let maps = FutexMaps {
            futexes: tracer.futexes.number(),
            zeros: tracer._zeros.number(),
            waiters: tracer.waiters.number(),
            scratch: tracer._scratches[0].number(),
            wake_scratch: tracer._scratches[1].number(),
            events: tracer.events.number(),
            counts: tracer.counts.number(),
            followed: followed.map(|follower| (follower.followed_map(), follower.key())),
        };
        let limits = Limits {
            interval_ns: (1_000_000_000 / options.records_per_second.max(1)) as i32,
            together_ns: TOGETHER_NS,
        };
        let function = if options.tracepoints { None } else { function() };
        let attached = match function.map(|function| attach(maps, limits, FutexPoint::Function(function))) {
            Some(Ok(attached)) => attached,
            Some(Err(error)) => {
                tracing::debug!(%error, "no programs at the function of futex calls");
                tracer.uses_tracepoints = true;
                attach(maps, limits, FutexPoint::Tracepoint)?
            }
            None => {
                tracer.uses_tracepoints = true;
                attach(maps, limits, FutexPoint::Tracepoint)?
            }
        };
        let (links, programs) = attached.into_iter().unzip();
        (tracer.links, tracer.programs) = (Mutex::new(links), programs);
        Ok(tracer)
    }

    /// Whether the programs run at tracepoints, because this kernel attaches none to functions:
    /// each system call of any program takes a little longer.
    pub fn uses_tracepoints(&self) -> bool {
        self.uses_tracepoints
    }

    /// Where a CPU's records go: an open `bpf-output` event of that CPU. It must stay open.
    ///
    /// # Errors
    /// EINVAL for an event of another kind, E2BIG for a CPU that cannot be.
    pub fn write_to(&self, cpu: u32, event: BorrowedFd<'_>) -> io::Result<()> {
        sys::update(&self.events, cpu, event.as_raw_fd() as u64)
    }

    /// Waits count from now on, those that last as well once they are entered
    /// ([`enter`](Self::enter)), and records that nobody could take yet were not lost. To be called
    /// when the events take records.
    pub fn begin(&self) {
        // In this order: the end of a wait without an entry of its futex counts nothing, and the
        // entry of a thread that waits comes with its next wait, or when it is entered.
        self.waiters.clear(WAITERS);
        self.futexes.clear(FUTEXES);
        if let Err(error) = sys::update(&self.counts, LOST, 0) {
            tracing::debug!(%error, "records before the recording count as lost");
        }
    }

    /// Enters a thread that waits for a futex already, by the operation and the address of its
    /// call; its wait counts from now on. `false`: it is known already, or there is no place for
    /// it.
    pub fn enter(&self, pid: i32, tid: i32, operation: u32, address: u64) -> bool {
        let (Ok(tid), Ok(pid)) = (u64::try_from(tid), u64::try_from(pid)) else { return false };
        let pid = if operation & PRIVATE as u32 != 0 { pid } else { 0 };
        let mut zeros = vec![0; entry::WORDS];
        zeros[entry::OPERATION as usize / 8] = operation.into();
        // There already: that is as well.
        _ = self.futexes.insert(&[pid, address], &zeros);
        self.waiters.insert(&[tid], &[pid, address, monotonic_ns(), operation.into()]).is_ok()
    }

    /// What has come together until now, of waits that have ended, longest first.
    pub fn sums(&self) -> Vec<FutexSums> {
        let mut sums: Vec<FutexSums> = self
            .futexes
            .entries(FUTEXES)
            .filter_map(|(key, value)| sums_of(&key, &value))
            .filter(|sums| sums.waits.count > 0 || sums.waiting > 0)
            .collect();
        sums.sort_by_key(|sums| std::cmp::Reverse((sums.waits.total_ns, sums.pid, sums.address)));
        sums
    }

    /// Ends it: the sums, with the time of waits that have not ended, these waits, and the moment
    /// until which they go, ns of CLOCK_MONOTONIC.
    pub fn end(&self) -> (Vec<FutexSums>, Vec<FutexRecord>, u64) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let now = monotonic_ns();
        let waits = self.waiters.entries(WAITERS).filter_map(|(key, value)| {
            let [pid, address, since, operation] = *value.first_chunk::<WAITER_WORDS>()?;
            let wait_ns = now.saturating_sub(since);
            Some(FutexRecord {
                kind: FutexKind::Unfinished,
                operation: operation as u32,
                tid: *key.first()? as i32,
                pid: pid as i32,
                address,
                wait_ns,
                told_ns: wait_ns,
                count: 1,
                result: 0,
                waker: 0,
            })
        });
        let waits: Vec<FutexRecord> = waits.collect();
        let mut sums: HashMap<(i32, u64), FutexSums> = self
            .sums()
            .into_iter()
            .map(|sums| ((sums.pid, sums.address), FutexSums { waiting: 0, ..sums }))
            .collect();
        for wait in &waits {
            let of = sums.entry((wait.pid, wait.address)).or_insert_with(|| FutexSums {
                pid: wait.pid,
                address: wait.address,
                operation: wait.operation,
                ..FutexSums::default()
            });
            of.waits.add(wait.wait_ns);
            of.waiting += 1;
            of.most_waiting = of.most_waiting.max(of.waiting);
        }
        let mut sums: Vec<FutexSums> = sums.into_values().filter(|sums| sums.waits.count > 0).collect();
        sums.sort_by_key(|sums| std::cmp::Reverse((sums.waits.total_ns, sums.pid, sums.address)));
        (sums, waits, now)
    }

    /// So many waits at most are not in the sums: too many futexes, or threads that waited, at the
    /// same time, or the programs could not run.
    pub fn missed(&self) -> u64 {
        let counted = [MISSED_FUTEXES, MISSED_WAITS].map(|at| sys::lookup(&self.counts, at).unwrap_or(0));
        let skipped = self.programs.iter().filter_map(|program| skipped(program.as_fd()));
        counted.into_iter().chain(skipped).fold(0, u64::saturating_add)
    }

    /// Records that found no room. What they told came with later ones.
    pub fn lost(&self) -> u64 {
        sys::lookup(&self.counts, LOST).unwrap_or(0)
    }
}

/// The number of the call's function; `None` if the kernel does not tell it.
fn function() -> Option<u32> {
    KernelBtf::read()?.function(FUNCTION)
}

/// The links and the programs.
fn attach(maps: FutexMaps, limits: Limits, point: FutexPoint) -> Result<Vec<(OwnedFd, OwnedFd)>, BpfError> {
    let (entry, exit) = (ProgramKind::FunctionEntry, ProgramKind::FunctionExit);
    // The ends first: a wait is entered only if its end will be seen.
    let points = [
        ("kymo_futex_wait", programs::waited(maps, point, limits), "sys_exit_futex", exit),
        (
            "kymo_futex_wake",
            programs::woke(FutexMaps { scratch: maps.wake_scratch, ..maps }, point, limits),
            "sys_exit_futex",
            exit,
        ),
        ("kymo_futex_call", programs::enter(maps, point), "sys_enter_futex", entry),
    ];
    let attach = |(name, program, tracepoint, kind): (&'static str, Program, &str, ProgramKind)| {
        if point == FutexPoint::Tracepoint {
            return attach_to_tracepoint(name, ("syscalls", tracepoint), &program);
        }
        attach_typed_program(kind, name, FUNCTION, &program, None)
    };
    points.into_iter().map(attach).collect()
}

fn sums_of(key: &[u64], value: &[u64]) -> Option<FutexSums> {
    let [pid, address] = *key.first_chunk::<2>()?;
    let word = |at: i16| value.get(at as usize / 8).copied().unwrap_or(0);
    let mut buckets = vec![0; SLOTS as usize];
    let counted = value.get(entry::FIRST_BUCKET as usize / 8..)?;
    buckets[USED.start as usize..][..BUCKETS].copy_from_slice(counted.get(..BUCKETS)?);
    Some(FutexSums {
        pid: pid as i32,
        address,
        operation: word(entry::OPERATION) as u32,
        waits: Latencies {
            count: word(entry::WAITS),
            total_ns: word(entry::TOTAL),
            max_ns: word(entry::LONGEST),
            buckets,
        },
        timeouts: word(entry::TIMEOUTS),
        wakes: word(entry::WAKES),
        // One that was entered while it waited was not counted when it began.
        waiting: u64::try_from(word(entry::WAITING).cast_signed()).unwrap_or(0),
        most_waiting: word(entry::MOST_WAITING),
        untold: (word(entry::UNTOLD_WAITS), word(entry::UNTOLD_NS)),
    })
}
