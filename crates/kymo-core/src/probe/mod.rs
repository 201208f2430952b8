//! The registry of probes: which consumers are called when a place in a program is hit, at a cost
//! that does not grow with the CPUs that hit it.
//!
//! *You give* consumers for places ([`Key`]: module and offset), an owner of the sites who arms and
//! disarms them ([`Sites`]), and at every hit the key. *It gives* each hit to all consumers of the
//! place, and, after [`unregister`](Registry::unregister) and
//! [`synchronize`](Registry::synchronize), the certainty that a consumer is not running and never
//! will.
//!
//! *Its callers today:* the slow path of the agent's stubs
//! (`kymo-agent/src/patch/runtime/slow_path.rs`) registers consumers and hits them, with
//! [`NoSites`]: the agent arms its sites itself. Sites, semaphores, [`Registry::settle`] and
//! [`Verdict::Remove`] are for the next callers (heap profiles, function traces) and run in tests
//! until then. `wire/` is what a tracer and the agent say to each other; `kymo-perf` and the agent
//! speak it. Returns of functions are the agent's (`patch/runtime/shadow/`).
//!
//! ```text
//!  hit (any thread, no lock, no shared store)          writers (one at a time)
//!
//!  mark of this thread            table                writer state: lock, sites, retired things
//!    |                              |                     |
//!    '-- key --> chain --> probe --> members              | insert: a new head of a chain
//!                                     | | |               | add: a new list of members
//!                                     v v v               | erase, remove: likewise; the old ones are retired
//!                                    handlers             v
//!                                                      synchronize: one grace period, then all of them are freed
//! ```
//! A hit walks only what never changes: a writer copies what it changes, and exchanges one pointer.
//! So a hit sees a list of consumers as it was at one moment. A search that misses is a miss:
//! chains are not rotated, so there is no false one to detect.
//!
//! # Invariants
//! - **P1** After `synchronize` returned, no handler of a consumer runs or starts whose
//!   `unregister` came before. Until then it may.
//! - **P2** A consumer that is registered throughout is called exactly once per hit, whatever comes
//!   and goes beside it.
//! - **P3** Nothing is read after it was freed.
//! - **P4** There is at most one probe per key; a search is linearizable with insertions and
//!   erasures.
//! - **P5** When no call is under way, a site is armed if and only if its module is mapped, it was
//!   not refused, and a consumer that accepts is registered. After the last `unregister` every site
//!   is restored; one that could not be is broken and stays known.
//! - **P6** A semaphore is one higher for each armed probe that names it, not for each consumer.
//! - **P7** A site is disarmed on account of [`Verdict::Remove`] only if all consumers of a hit
//!   answered so and then, under the lock, none accepts.
//!
//! # What shows it
//! Tests of this module by their names (`tests/`, `loom.rs`), and of the agent
//! (`crates/kymo-agent/tests/suite`), which does it in real text.
//!
//! | | here | in programs |
//! |---|---|---|
//! | P1 | `loom::hit_and_unregister`, `two_unregisters`, `ends_itself`; `threads::come_and_go`, `threads_come_and_go`; `cases::ends_itself`, `one_grace_period_for_many` | |
//! | P2 | `loom::hit_and_unregister`; `threads::come_and_go`; `property::as_the_locked_model` | `probes::probes_come_and_go_under_running_threads`, `stress` |
//! | P3 | `loom::*` and all tests with threads, by canaries that are poisoned when they are freed (`cases::a_witness_complains`) | `stress::under_the_address_sanitizer` |
//! | P4 | `loom::lookup_and_insert`, `two_unregisters`; `property::a_table_of_keys`; `cases::again_before_the_old_one_is_freed`, `end_twice`, `modules_differ` | `probes::a_site_has_one_patch` |
//! | P5 | `sites::armed_as_wanted`, `a_batch`, `not_restored` | all of `probes`, `returns`, `stress`; `inject::all_of_libc`; `probe_lifetimes` of the command |
//! | P6 | `sites::armed_as_wanted`, `another_semaphore` | `inject::semaphores` |
//! | P7 | `sites::armed_as_wanted`, `one_removes_and_one_does_not` | |
//!
//! Cases that a simpler registry would miss:
//!
//! | | here | in programs |
//! |---|---|---|
//! | a miss, then the same key while the old probe is not freed | `cases::again_before_the_old_one_is_freed` | `probes::libraries_come_and_go` |
//! | a hit between the restore of the byte and its trap; a site that is entered while it is written | | `probes::probes_come_and_go_under_running_threads`, `hazards::a_handler_returns_into_a_patch`, `stress` |
//! | one consumer removes, another one does not | `sites::one_removes_and_one_does_not` | |
//! | fork | `cases::fork` | `returns::both_processes_return_from_a_fork`, `stress` |
//! | a module that is mapped later, unmapped, or mapped again | `sites::armed_as_wanted` | `probes::libraries_come_and_go`, `stress` |
//! | a handler that unregisters itself | `cases::ends_itself`, `loom::ends_itself` | `returns::a_probe_may_go_while_calls_are_inside` |
//! | a site at the end of a page | | `hazards::a_site_across_pages` |
//!
//! # What is not as in a kernel
//! - Probes are not counted by hits: a hit is in a section.
//! - Sites are armed in batches, because stopping threads is dear and arming is not.
//! - [`Verdict::Remove`] takes effect at the next [`settle`](Registry::settle), because a thread
//!   that is hit cannot change text.
//! - Handlers cannot change where a program goes on, and there is no timer.
//!
//! # Cost
//! A hit: two stores to the thread's own line, six dependent loads, the handlers. Register,
//! unregister: a copy of the probe's list, and of the front of a chain; now and then a new table.
//! `synchronize`: the slowest handler. Retired memory stays until a call of it.
//!
//! # Example
//! ```
//! use kymo_core::epoch::{Symmetric, TaskId};
//! use kymo_core::probe::{Consumer, Key, ModuleId, NoSites, Registry, Verdict};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[derive(Default)]
//! struct Count(AtomicU64);
//! impl Consumer for Count {
//!     type Context = ();
//!     fn hit(&self, (): &mut ()) -> Verdict {
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
mod frozen;
mod garbage;
mod key;
#[cfg(all(test, loom))]
mod loom;
mod members;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod odd_returns;
mod place;
mod reader_handle;
mod registry;
mod sites;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod value;
pub mod wire;

pub use consumer::{Consumer, Verdict};
pub use error::Error;
pub use frozen::FrozenRegistry;
pub use key::{Key, ModuleId, Target};
pub use odd_returns::returns_oddly;
pub use reader_handle::{HitSection, ReaderHandle};
pub use registry::{Handle, Registry};
pub use sites::{NoSites, Sites};

/// The longest first instruction of a function that stays where it is, with a patch behind it. What
/// else is probed beside a function is to be apart from its patch.
pub const MOST_STAYING_BYTES: usize = 8;
