//! Grace periods, as RCU has them: a writer that took something away waits here until no reader can
//! have it any more.
//!
//! *You give* each thread that reads a [`Reader`], and enter a [`Section`] around what it looks at.
//! *It gives* you [`Domain::synchronize`], which returns when every section that was open at its
//! call has ended. A reader stores twice, into a cache line of its own, and waits for nothing;
//! sections nest, may sleep, and may be interrupted by signal handlers with sections of their own.
//! [The registry of probes](crate::probe) uses it; the agent waits with [`Domain::try_synchronize`]
//! only, because a thread of a program may leave a signal handler by `longjmp` and never end its
//! section.
//!
//! ```text
//!   reader (its own line)                    writer
//!   mark = epoch | 1                         takes the thing out of where readers find it
//!   light half of the fence                  heavy half of the fence
//!   looks, and finds it or not               looks at all marks, waits for the old ones
//!   mark -= 1                                nobody has it: frees it
//! ```
//! Between the halves lies the whole proof: either the writer sees the reader's mark and waits, or
//! the reader came so late that it cannot find the thing any more.
//!
//! # Invariants
//! - **E1** When [`Domain::synchronize`] returns, each section that was open when it was called has
//!   ended, and what was done in it happens before the return.
//! - **E2** What was taken away before a call of `synchronize` is not found in sections that are
//!   entered after it returned.
//! - **E3** Entering and leaving a section are a fixed number of instructions: no lock, no
//!   allocation, no store to a line that another thread stores to. An interrupted enter or leave is
//!   completed by nobody else, and disturbs nobody else.
//! - **E4** Calls of `synchronize` that wait at the same time share grace periods: any number of
//!   them costs two at most.
//! - **E5** A thread that calls it inside a section of its own is refused: it would wait for
//!   itself.
//! - **E6** A wait that expires ([`Domain::try_synchronize`]) ends no grace period: nothing counts
//!   as waited for, and a later call waits anew.
//! - **E7** A record belongs to one reader at a time; that of a reader that is gone is taken by a
//!   later one.
//!
//! # Why one number and not two phases
//! A mark holds the epoch at which its section was entered, 47 bits that are never used twice. A
//! reader that is held up between reading the epoch and storing its mark stores an old one. That is
//! an error on the safe side: later writers wait for it without need. With one bit that flips, it
//! would be taken for a late one, which is why such schemes wait twice.
//!
//! # What loom shows and what not
//! Loom runs [`Symmetric`], whose halves are fences of the processor. That a membarrier is as good
//! as the fence that it replaces is the kernel's promise; `kymo-agent`, which makes the system
//! call, runs it with real threads.
//!
//! # Example
//! ```
//! use kymo_core::epoch::{Domain, Symmetric, TaskId};
//!
//! let domain = Domain::new(Symmetric);
//! let reader = domain.join(TaskId(1));
//! {
//!     let _section = reader.enter();
//!     assert!(domain.synchronize(TaskId(1)).is_err(), "it would wait for itself");
//! }
//! domain.synchronize(TaskId(1))?;
//! # Ok::<(), kymo_core::epoch::InSection>(())
//! ```
mod domain;
mod fence;
#[cfg(all(test, loom))]
mod loom;
mod published;
mod record;
#[cfg(all(test, not(loom)))]
mod tests;

pub use domain::{Domain, Frozen, InSection, SynchronizeError};
pub use fence::{Fence, Symmetric};
pub(crate) use published::{Published, Retired};
pub use record::{Reader, Section, TaskId};
