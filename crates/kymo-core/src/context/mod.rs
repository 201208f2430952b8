//! Counting tasks without slowing their switches: events live in contexts, and tasks whose contexts are alike exchange them.
//!
//! *You give* a [`Pmu`] (counters and a clock), and tell what happens: a task forks, enters a CPU, hands over to another, ends.
//! *It gives* exact counts of whole families of tasks, and on request of each task.
//!
//! A **task** is whatever runs one at a time on a CPU: an async task, a fiber, a thread. A **CPU** is whatever runs tasks: a
//! worker thread, mostly. A task has one **context**: the **events** that count while it runs, in groups. A fork gives the child
//! a **clone** of its parent's context, with a child of each inherited event; reading an event sums over its family.
//!
//! ```text
//!   before:   task A --> context a  [e1 e2 .. e16]  counts on CPU 0
//!             task B --> context b  [e1'e2'.. e16'] at rest                 A and B are clones: a and b count the
//!                                                                           same, into the same sums. So:
//!   switch A -> B on CPU 0: exchange the two arrows, touch no event.
//!
//!   after:    task A --> context b  [e1'e2'.. e16'] at rest, with A
//!             task B --> context a  [e1 e2 .. e16]  still counts on CPU 0
//! ```
//!
//! # Example
//! ```
//! use kymo_core::context::{Attr, Child, CpuId, Engine, Pmu, Source};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! /// Counts how often someone said "work", on any CPU.
//! #[derive(Default)]
//! struct Work(AtomicU64);
//! impl Pmu for Work {
//!     fn now_ns(&self, _: CpuId) -> u64 {
//!         self.0.load(Ordering::Relaxed)
//!     }
//!     fn read(&self, _: CpuId, _: Source) -> u64 {
//!         self.0.load(Ordering::Relaxed)
//!     }
//! }
//!
//! let engine = Engine::new(Work::default(), 1);
//! let work = || engine.pmu().0.fetch_add(1, Ordering::Relaxed);
//! let mut parent = engine.task();
//! let event = engine.open(&mut parent, &[Attr::family(Source(0))])?[0];
//! let mut child = engine.fork(&mut parent, Child::Thread)?;
//!
//! engine.enter(CpuId(0), &mut parent)?;
//! work();
//! engine.switch(CpuId(0), &mut parent, &mut child)?;
//! work();
//! engine.exit(&mut child)?;
//! work(); // Nobody runs: not counted.
//! assert_eq!(engine.read(event)?.value, 2);
//! # Ok::<(), kymo_core::context::Error>(())
//! ```
mod error;
mod event;
pub mod model;
mod pmu;
mod scheduler;

pub use error::Error;
pub use event::{Attr, Count, EventId, Inherit, Source};
pub use model::{Eager as Engine, Task};
pub use pmu::Pmu;
pub use scheduler::Scheduler;

use std::fmt;

/// A CPU of the engine, counted from 0: what runs one task at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}", self.0)
    }
}

/// The number of a task. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u64);

impl TaskId {
    /// The number, for a table or another language.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// What a fork makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// A thread (or async task, or fiber): it gets the events of [`Inherit::Threads`] too.
    Thread,
    /// A process: it gets those of [`Inherit::All`] only.
    Process,
}

/// How a switch was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The tasks exchanged their contexts; no counter was touched.
    Exchanged,
    /// The counters of one were stopped and those of the other started.
    Rescheduled,
}

fn check_group(group: &[Attr]) -> Result<(), Error> {
    let leader = group.first().ok_or(Error::EmptyGroup)?;
    if group.iter().any(|attr| attr.inherit != leader.inherit) {
        return Err(Error::MixedInherit);
    }
    match group.iter().skip(1).position(|attr| attr.pinned || attr.exclusive) {
        Some(at) => Err(Error::NotLeader { position: at + 1 }),
        None => Ok(()),
    }
}

fn check_cpu_group(group: &[Attr]) -> Result<(), Error> {
    check_group(group)?;
    let of_tasks = |attr: &Attr| {
        let Attr { inherit, inherit_stat, enable_on_exec, remove_on_exec, cpu, bound, .. } = *attr;
        inherit != Inherit::No || inherit_stat || enable_on_exec || remove_on_exec || cpu.is_some() || bound
    };
    if group.iter().any(of_tasks) { Err(Error::TaskOnly) } else { Ok(()) }
}
