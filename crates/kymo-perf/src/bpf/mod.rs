//! Following tasks in the kernel: events are open on every CPU, and a BPF program drops the samples
//! of tasks that are not followed.
//!
//! *You give it* processes, threads, or a command that waits for its exec; *it gives you* a program
//! for your sampling events. Attaching costs the same for one thread and for ten thousand, and a
//! new thread costs a few nanoseconds, because nothing is opened for it.
//!
//! ```text
//!                                     FOLLOWED: id -> 1 now, 2 from its exec on
//!  task:task_newtask ---> newtask ----> enters the new one if its maker is in,      +--> cpu-clock on CPU 0 --+
//!                                       removes it if not (an old owner's entry)    |                         |
//!  sched_process_exit --> exit -------> removes it                  sample: in? ----+--> cpu-clock on CPU 1 --+--> rings
//!  task:task_rename ----> rename -----> 2 becomes 1 (commands)      (interrupt)     |                         |
//!  sched_process_exec --> exec -------> moves it (threads)                          +--> page-faults on ... --+
//!  Follower::start, add --------------> enters the targets
//!
//!  STATE: [0] how many could not be entered  [1] whether all targets are entered ("settled")
//!  EVER: a bit per process id, set by newtask, start and add, never cleared: read by us without a system call
//! ```
//!
//! Keys are *process* ids wherever processes are followed: a thread belongs to whom its process
//! belongs, so 10,000 threads are one entry, need no list of /proc, and cannot slip away between a
//! list and its use; and an exec in a thread that is not the first (which takes over the first
//! one's id) changes nothing. Keys are *thread* ids where threads are asked for. Kernels without
//! type information and before 6.16 do not tell which exit is a process's last: there ended
//! processes stay in the map, which is larger then; I3 makes that harmless.
//!
//! # Invariants
//! - **I1** A sample is kept if and only if what ran is in FOLLOWED with 1. The program decides
//!   before the kernel collects the sample's data.
//! - **I2** The programs are attached before the first target is entered, so there is no moment
//!   when a target is entered and what it makes is not seen.
//! - **I3** Once settled, an entry is right from its owner's birth: `newtask` runs after the id is
//!   given out and before the owner runs, and sets what the maker is, or removes what is there. So
//!   an id that is used again is never followed by mistake, whatever is left in the map.
//! - **I4** `newtask` removes only if it saw "settled" *before* it looked for the maker. So a child
//!   that was entered from a list is not removed by a maker whose own entry was still to come.
//! - **I5** What could not be entered, and every time that the kernel could not run `newtask`, is
//!   counted ([`Follower::missed`]), never silent.
//! - **I6** The programs that follow return 1, so that other users of the same tracepoints see
//!   every hit.
//! - **I7** A process's bit in EVER is set before it is in FOLLOWED and, if it is new, before it
//!   runs; in EVER are processes even where keys are threads. So whoever reads a record about a
//!   followed process finds the bit, however far behind it reads and from whichever ring. The
//!   kernel writes the FORK and NAMESPACES records of a new process just before `newtask` runs: for
//!   them the maker's bit counts, too.
//!
//! # What is not the same as with inherited events
//! - Samples in the kernel after a process's last thread (with thread keys: the thread itself)
//!   passed `sched_process_exit` are dropped. Inherited events end a few instructions later (before
//!   Linux 6.16: after its memory and files are gone).
//! - A sample that hits while another BPF program of the same CPU runs (or a map is being changed)
//!   is dropped by the kernel itself.
//! - With thread keys, an exec in a thread other than the first drops the samples in the kernel
//!   between taking over the id and the new program's first instruction.
//! - Side-band records (comm, mmap, fork, exit) of events on every CPU come for all processes: BPF
//!   does not see them. Whoever reads them drops the strangers' by EVER ([`Follower::ever`]). An id
//!   that is used again counts as followed there: too much can be kept, never too little. Where
//!   maps cannot be mapped or programs cannot set single bits (before Linux 5.12) there is no EVER,
//!   and all must be kept.
//!
//! # What it costs
//! On a 2-CPU VM ([one run](../../../../bench/runs/2026-11-21-follow.txt)): 0.8 ms to begin, for
//! one thread or ten thousand of a process; 0.2 ms to end; 1 % of making and joining a thread, 3 %
//! with a sampling timer on every CPU, where inherited events cost 38 %; about 0.1 us for each
//! sample, kept or dropped. Tracepoint events take 8-16 ms to begin and 140-210 ms to end, because
//! each close waits for all CPUs: they are the fallback. The costs of all scopes beside each other
//! are in `docs/internals/design/0003-scopes.md`.
//!
//! # Modules
//! `sys`: the system call (the only unsafe code); `insn`: the assembler; `interpreter`: runs
//! programs in tests, without a kernel; `types`: how offsets in
//! the kernel's structs are asked for; `program`: the programs; `cgroup_counts`: [`CgroupCounter`],
//! which counts instead of following; `watch_program`: `WatchProgram`, which reads memory at the
//! hit of a watchpoint; `python`: [`PythonWalker`], which walks the frames of Python at samples,
//! and tells what the kernel's copies of stacks leave out; [`uprobe`]: probes of user functions;
//! `waits`: [`WaitTracer`], which divides each thread's time; `futex`: [`FutexTracer`], which adds
//! up waits for futexes; `latency` and `budget`: what programs share that count and write them;
//! `kernel_functions`: the kernel's functions by name;
//! `map` and `followed_bitmap`: the maps; `memlock`: their room on old kernels; `attach`: where
//! programs are attached; `follow`: [`Follower`]; `available`: whether this works here.
mod attach;
mod available;
mod budget;
mod cgroup_counts;
mod error;
mod follow;
mod followed_bitmap;
mod futex;
mod insn;
#[cfg(test)]
mod interpreter;
mod kernel_btf;
mod latency;
mod map;
mod memlock;
mod program;
mod python;
mod sys;
mod task_states;
#[cfg(test)]
mod tests;
mod types;
pub mod uprobe;
mod waits;
mod watch_program;

pub use attach::Attachment;
pub use available::Unavailable;
pub use cgroup_counts::{CgroupCounter, CgroupCounts};
pub use error::BpfError;
pub use follow::{Follow, FollowOptions, Follower};
pub use followed_bitmap::FollowedBitmap;
pub use futex::{FutexKind, FutexOptions, FutexRecord, FutexSums, FutexTracer};
pub use python::{
    FrameKind, PythonCode, PythonFrame, PythonLayout, PythonMaps, PythonRecord, PythonRequest, PythonWalker,
    StackPage, StackWish,
};
pub use task_states::{TaskRegisters, TaskState, states_of_tasks};
pub use waits::{
    PlaceWaits, ShortWaits, ThreadState, WaitKind, WaitOptions, WaitRecord, WaitTracer, WaitedFiles,
};
pub(crate) use watch_program::WatchProgram;
pub use watch_program::{WatchCounts, WatchSample};
