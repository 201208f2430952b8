//! Who is told when a place in a program is reached, at a cost that does not grow with the CPUs that reach it.
//!
//! *You give* consumers for places ([`Key`]: module and offset), somebody who can arm and disarm a place ([`Sites`]), and at every hit
//! the key. *It gives* each hit to all consumers of the place, the returns of calls to those who want them, and, after
//! [`unregister`](Registry::unregister) and [`synchronize`](Registry::synchronize), the certainty that a consumer is not running and
//! never will.
//!
//! ```text
//!  hit (any thread, no lock, no shared store)          writers (one at a time)
//!
//!  mark of this thread            table                books: lock, sites, retired things
//!    |                              |                     |
//!    '-- key --> chain --> probe --> members              | insert: a new head of a chain
//!                                     | | |               | add: a new list of members
//!                                     v v v               | erase, remove: likewise; the old ones are retired
//!                                   entry handlers        v
//!                                     |                synchronize: one grace period, then all of them are freed
//!                                     '--> returns of this thread --> (trampoline) --> return handlers
//! ```
//! Everything that a hit walks never changes: what a writer changes, it copies, and exchanges one pointer. So a hit sees a list of
//! consumers as it was at one moment. A search that misses is a miss: chains are not rotated, so there is no false one to detect.
//!
//! # Invariants
//! - **P1** After `synchronize` returned, no handler of a consumer runs or starts whose `unregister` came before. Until then it may.
//! - **P2** A consumer that is registered throughout is called exactly once per hit, whatever comes and goes beside it.
//! - **P3** Nothing is looked at after it was freed.
//! - **P4** There is at most one probe per key; a search is linearizable with insertions and erasures.
//! - **P5** When no call is under way, a site is armed if and only if its module is mapped, it was not refused, and a consumer that accepts is
//!   registered. After the last `unregister` every site is restored; one that could not be is broken and stays known.
//! - **P6** A semaphore is one higher for each armed probe that names it, not for each consumer.
//! - **P7** A site is disarmed on account of [`Verdict::Remove`] only if all consumers of a hit answered so and then, under the lock, none
//!   accepts.
//! - **P8** Return handlers run newest call first, once per call and probe at most, never for calls that were left otherwise; control resumes
//!   at the original address; at most [`DEPTH`] are awaited.
//! - **P9** Return handlers run for consumers that are registered at the return. Those that want [`Both`](Wants::Both) run only if
//!   their own entry handler ran for this call.
//!
//! # What shows it
//! Tests of this module by their names (`tests/`, `loom.rs`), and of the agent (`crates/kymo-agent/tests/suite`), which does it in real text.
//!
//! | | here | in programs |
//! |---|---|---|
//! | P1 | `loom::hit_and_unregister`, `two_unregisters`, `ends_itself`, `return_and_unregister`; `threads::come_and_go`, `threads_come_and_go`; `cases::ends_itself`, `one_grace_period_for_many` | |
//! | P2 | `loom::hit_and_unregister`; `threads::come_and_go`; `property::as_the_locked_model` | `probes::probes_come_and_go_under_running_threads`, `stress` |
//! | P3 | `loom::*` and all tests with threads, by canaries that are poisoned when they are freed (`tests::a_witness_complains`) | `stress::under_the_address_sanitizer` |
//! | P4 | `loom::lookup_and_insert`, `two_unregisters`; `property::a_table_of_keys`; `cases::again_before_the_old_one_is_freed`, `end_twice`, `modules_differ` | `probes::a_site_has_one_patch` |
//! | P5 | `sites::armed_as_wanted`, `a_batch`, `not_restored` | all of `probes`, `returns`, `stress`; `inject::all_of_libc`; `probe_lifetimes` of the command |
//! | P6 | `sites::armed_as_wanted`, `another_semaphore` | `inject::semaphores` |
//! | P7 | `sites::armed_as_wanted`, `one_removes_and_one_does_not` | |
//! | P8 | `property::as_the_locked_model`; `loom::return_and_unregister`; `returns::*` | `returns::*`, `stress` |
//! | P9 | `property::as_the_locked_model`; `returns::register_between_entry_and_return`, `register_again_with_outstanding_returns`, `more_pairs_than_cookies` | |
//!
//! Cases that a simpler one would miss:
//!
//! | | here | in programs |
//! |---|---|---|
//! | a miss, then the same key while the old probe is not freed | `cases::again_before_the_old_one_is_freed` | `probes::libraries_come_and_go` |
//! | a hit between the restore of the byte and its trap; a site that is entered while it is written | | `probes::probes_come_and_go_under_running_threads`, `hazards::a_handler_returns_into_a_patch`, `stress` |
//! | one consumer removes, another one does not | `sites::one_removes_and_one_does_not` | |
//! | registered between entry and return; unregistered with calls inside | `returns::register_between_entry_and_return`, `unregister_with_outstanding_returns` | `returns::a_probe_may_go_while_calls_are_inside` |
//! | fork, vfork, exec, a thread's end, with calls inside | `cases::fork`; `returns::fork_copies`, `vfork_child_execs` | `returns::both_processes_return_from_a_fork`, `threads_end_inside`, `stress` |
//! | longjmp and exceptions over several calls, then a shallower return | `returns::longjmp_over_several_frames`, `longjmp_for_ever` | `returns::jumps_land`, `exceptions_pass`, `panics_pass`, `what_exceptions_left_misleads_nobody`, `long_jumps_from_far_below_leave_room` |
//! | signal stacks | `returns::signal_stack` | `returns::signals_on_their_own_stack_return`, `stress` |
//! | handlers that throw or jump; at each instruction of a hit; in what the agent does there | | `returns::handlers_that_throw_leave_room`, `stepped::*` |
//! | deeper than [`DEPTH`]; tail calls | `returns::deeper_than_the_limit`, `chained` | `returns::deep_recursion_returns`, `calls_return` |
//! | coroutines, also on other threads and after their threads' end | `returns::coroutines`, `slot_used_again` | `returns::coroutines_return`, `coroutines_outlive_their_threads`, `coroutines_inside_of_a_stack_return` |
//! | a module that is mapped later, unmapped, or mapped again | `sites::armed_as_wanted` | `probes::libraries_come_and_go`, `stress` |
//! | a handler that unregisters itself | `cases::ends_itself`, `loom::ends_itself` | `returns::a_probe_may_go_while_calls_are_inside` |
//! | a site at the end of a page | | `hazards::a_site_across_pages` |
//!
//! Handlers cannot change where a program goes on, there is no timer, and a program's own memory is its semaphores' only place: what a kernel has to
//! mind there does not exist.
//!
//! # Which calls were left
//! On one stack, a call whose return address lies deeper than the stack pointer is gone: `slot < pointer`, or `slot <= pointer` at an
//! entry that finds an address of the program's own. Between stacks addresses say nothing: a program that switches (signal stacks,
//! coroutines) would lose the return address of a call that is only asleep. So the rule holds only between calls whose [`StackId`] is
//! known and equal, and a return finds its call by its slot, not by being the newest. Where control resumes never depends on the rule.
//!
//! # What is not as in a kernel
//! - Nothing is counted: neither probes by hits (a hit is in a section) nor by awaited returns (they know the key, and look again).
//! - Sites are armed in batches, because stopping threads is dear and arming is not.
//! - A consumer that answers [`Verdict::Remove`] is obeyed at the next [`settle`](Registry::settle), because a thread that is hit cannot
//!   change text.
//!
//! # Cost
//! A hit: two stores to the thread's own line, six dependent loads, the handlers. Register, unregister: a copy of the probe's list, and of
//! the front of a chain; now and then a new table. `synchronize`: the slowest handler. What is retired stays until somebody calls it.
//!
//! # Example
//! ```
//! use kymo_core::epoch::{Symmetric, TaskId};
//! use kymo_core::probe::{Consumer, Key, ModuleId, NoSites, Registry, Verdict, Wants};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[derive(Default)]
//! struct Count(AtomicU64);
//! impl Consumer for Count {
//!     type Context = ();
//!     fn wants(&self) -> Wants {
//!         Wants::Entry
//!     }
//!     fn entry(&self, (): &mut (), _: &mut u64) -> Verdict {
//!         self.0.fetch_add(1, Ordering::Relaxed);
//!         Verdict::Keep
//!     }
//! }
//!
//! let registry = Registry::new(Symmetric, NoSites);
//! let malloc = Key { module: ModuleId(1), offset: 0x9_8760 };
//! let count = Arc::new(Count::default());
//! let handle = registry.register(malloc, Arc::clone(&count)).expect("there is nothing to arm");
//!
//! let reader = registry.join(TaskId(1));
//! assert!(reader.enter().hit(malloc, &mut ()));
//!
//! registry.unregister(&[handle]);
//! registry.synchronize(TaskId(1))?;
//! assert!(!reader.enter().hit(malloc, &mut ()));
//! assert_eq!(count.0.load(Ordering::Relaxed), 1);
//! # Ok::<(), kymo_core::epoch::InSection>(())
//! ```
mod arming;
#[cfg(test)]
mod canary;
mod consumer;
mod error;
mod garbage;
mod instance;
mod key;
#[cfg(all(test, loom))]
mod loom;
mod members;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod place;
mod reader_handle;
mod registry;
mod returns;
mod sites;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod wire;

pub use consumer::{Consumer, Verdict, Wants};
pub use error::Error;
pub use instance::{COOKIES, ConsumerId, Frame, Instance, StackId};
pub use key::{Key, ModuleId, Target};
pub use reader_handle::{Call, ReaderHandle, Section};
pub use registry::{FrozenRegistry, Handle, Registry};
pub use returns::{DEPTH, Hijack, Returns, Untraced};
pub use sites::{NoSites, Sites};
