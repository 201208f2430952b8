//! The ledger of breakpoint slots: which CPUs and tasks hold the debug registers, at a cost that is
//! the same with one task or a million.
//!
//! *You give* a [`Config`] (how many CPUs, how many slots each) and ask for slots: for a task
//! wherever it runs, for a task on one CPU, for a CPU whoever runs there, for many CPUs. *It gives*
//! a [`Reservation`], or says why not. A slot that was granted is there whenever it is needed: no
//! task that a CPU can come to run finds too few.
//!
//! It is the admission that a kernel does when a breakpoint is opened, so it can tell beforehand
//! what the kernel will say. It does not choose a register: with what it admits, the first free one
//! does.
//!
//! *Its callers today:* `kymo-perf`'s planner (`watch/schedule.rs`) reserves for all CPUs or for
//! one task, in one thread. The agent's `watch/pool.rs` reserves for its process as if it were one
//! CPU, under a mutex. Many tasks at once, [`Reservation::modify`] and [`Ledger::holders`] run in
//! tests and in `kymo bench breakpoint` only. They are for a sampler of data races, which kymo does
//! not have yet: there many threads take and give slots all the time.
//!
//! # The rule
//! A [`Pool`] is the registers for the same kinds of access: x86 has one, some CPUs have two. Of one
//! pool with S slots per CPU: P\[c\] are the slots that CPU c has for itself, U\[t\]\[c\] those that
//! task t has on c (anywhere, or bound to c). A request for one more is granted by these rules:
//! - by task t, for a CPU or all of them: the largest P\[c\] + U\[t\]\[c\] of these CPUs, plus 1,
//!   must be at most S. Other tasks do not matter: they do not run at the same time there.
//! - by CPU c: P\[c\], plus the largest U\[t\]\[c\] of all tasks, plus 1, must be at most S.
//!
//! # How it is kept
//! *The lock* is one for the whole ledger, a [big-reader lock](crate::big_reader_lock): requests of
//! tasks hold it as readers, each thread in its shard; requests of CPUs hold it as writers.
//!
//! ```text
//!   per task:  any = 2, bound = {CPU 7: 1}          under the task's mutex
//!                |              |
//!                v              v
//!   anywhere:  tasks with       bound:  on CPU 7, tasks with      under the lock's reader side, by atomics
//!              any = 1 [ 40 ]           any + bound = 1 [ 0 ]
//!                    2 [  7 ]                         2 [ 0 ]
//!                    3 [  0 ]                         3 [ 1 ]
//!
//!   own:  P[7] = 1       by own:  CPUs with P = 1 [ 1 ]           under the lock's writer side
//!                                             2 [ 0 ]
//! ```
//! Nobody looks for the largest: it is the highest count that is not 0.
//! - A task asks: the largest P is read off `by own`; CPUs to which the task is bound are looked at
//!   one by one.
//! - A CPU asks: the largest U on c is the higher of two tops, that of `anywhere` and that of
//!   `bound` on c.
//! - A grant moves the task from one count to the next: one subtraction, one addition. In between
//!   it is in neither, so only who excludes all others, a CPU that asks, reads these counts.
//!
//! Tasks do not meet: each has its own mutex, the lock's reader side is a cache line per thread,
//! and so are the counts of `anywhere` (the sum over threads counts).
//!
//! # What is not as in a kernel
//! - There a task that is bound anywhere is counted on every CPU, and moves there and back are
//!   loops over all of them. Here it is counted by what it has anywhere, and beside that on those
//!   CPUs to which it is bound: the largest of both is the same number, and no loop is left.
//! - A kernel lists a task's breakpoints and walks the list, twice per request. Here are counts by
//!   CPU, in a tree.
//! - CPUs that ask together ([`Target::Cpus`]) do so in one step, all or nothing: nobody sees some
//!   of them granted.
//!
//! # Invariants
//! - **B1** For every CPU and pool: P\[c\] + the largest U\[t\]\[c\] is at most S. At every moment
//!   at which the lock is held for writing.
//! - **B2** With the lock held for writing, a task with n > 0 slots anywhere is in `anywhere` once,
//!   at n; one with m > 0 bound to c is in `bound` of c once, at n + m. Nothing else is counted.
//!   The sum over shards of a count of `anywhere` is never negative, one shard can be.
//! - **B3** P and `by own` change only with the lock held for writing; a CPU with P > 0 is in
//!   `by own` once, at P.
//! - **B4** What a task has changes only under its mutex and with the lock held for reading,
//!   together with the counts.
//! - **B5** A refusal changes nothing. A change of kind that is refused leaves the reservation as
//!   it was.
//! - **B6** A reservation is released once: when it is dropped. After the last one every count is
//!   0.
//!
//! # Lock order
//! A task's mutex, then the lock. A shard's list of tasks is locked alone. Who holds the lock for
//! writing locks nothing else.
//!
//! # Cost
//! Asking and releasing for a task is O(CPUs to which this task is bound), whatever the CPUs and
//! other tasks; for a CPU it is O(shards), and stops all others meanwhile; who asks for
//! [`holders`](Ledger::holders) walks everything.
//!
//! # Where it is checked
//! - `tests/property.rs` compares the ledger with `model.rs` and with the rule (`tests/rule.rs`) at
//!   every step of random requests (B1 to B4). `tests/cases.rs` has the cases of the kernel's test.
//! - `tests/misuse.rs` has requests that are refused (B5).
//! - `tests/threads.rs` looks for an order of requests that explains all answers (B1, B6).
//! - `loom.rs` moves a task from one count to the next while a CPU, or another task, asks.
//!
//! # Example
//! ```
//! use kymo_core::breakpoint::{Config, CpuId, Kind, Ledger, Slots, Target, TaskId};
//!
//! let ledger = Ledger::new(Config { cpus: 2, slots: Slots::Shared(4) })?;
//! let task = ledger.task(TaskId(1234));
//! let held: Vec<_> = (0..3)
//!     .map(|_| ledger.reserve(Target::Task(&task), Kind::WRITE))
//!     .collect::<Result<_, _>>()?;
//! let cpu = ledger.reserve(Target::Cpu(CpuId(1)), Kind::READ_WRITE)?;
//! // CPU 1 has one slot for itself and three for whenever the task comes.
//! let error = ledger.reserve(Target::Task(&task), Kind::WRITE).unwrap_err();
//! assert_eq!(error.errno(), 28); // ENOSPC
//! drop(cpu);
//! ledger.reserve(Target::Task(&task), Kind::WRITE)?;
//! # Ok::<(), kymo_core::breakpoint::Error>(())
//! ```
mod accounts;
mod config;
mod error;
mod holder;
mod kind;
mod ledger;
#[cfg(all(test, loom))]
mod loom;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod place;
mod reservation;
mod shared;
mod slot_counts;
mod target;
mod task;
#[cfg(all(test, not(loom)))]
mod tests;

pub use crate::context::CpuId;
pub use accounts::Accounts;
pub use config::{Config, MAX_CPUS, MAX_SLOTS, Slots};
pub use error::{Error, SlotRequest};
pub use holder::Holder;
pub use kind::{Kind, Pool};
pub use ledger::Ledger;
pub use reservation::Reservation;
pub use target::{Target, TaskId};
pub use task::Task;
