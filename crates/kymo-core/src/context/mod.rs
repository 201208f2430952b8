//! Counting tasks without slowing their switches: events live in contexts, and tasks whose contexts
//! are alike exchange them.
//!
//! *You give* a [`Pmu`] (counters and a clock), and tell what happens: a task forks, enters a CPU,
//! hands over to another, ends. *It gives* exact counts of whole families of tasks, and on request
//! of each task.
//!
//! *Its callers today:* `kymo-agent/src/task/` counts tasks of a program, with a thread as each
//! CPU: it opens groups, forks, enters, switches, leaves, exits, and reads groups and tasks.
//! [`exec`](Engine::exec), [`rotate`](Engine::rotate), events of CPUs, and enabling and disabling
//! run in tests only, until task counters have more events than the processor has counters.
//!
//! A **task** is whatever runs one at a time on a CPU: an async task, a fiber, a thread. A **CPU**
//! is whatever runs tasks: a worker thread, mostly. A task has one **context**: the **events** that
//! count while it runs, in groups. A fork gives the child a **clone** of its parent's context, with
//! a child of each inherited event; reading an event sums over its family.
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
//! The exchange is the work of whoever has `&mut` of both tasks, so it needs no lock: a switch
//! loads the **class** of each context, a number that is equal exactly in clones of one another,
//! and exchanges two pointers. Everything else (a fork, an open, an end) needs `&mut` of its task
//! too, so nobody can look for a task's context while it is exchanged; and whoever works on events
//! (reads, enables, closes) goes from the event to its contexts, and does not care whose they are.
//!
//! What makes contexts unlike: an event opened on one task only, an exec that changed something, a
//! child that did not inherit all, an event that is [`bound`](Attr::bound) to its task, a reader of
//! numbers of single tasks. Then the counters of one are stopped and those of the other started, as
//! everybody did it before; `model.rs` is that alone.
//!
//! # What is not as in a kernel
//! - An original does not count the changes it went through: its lineage is a number that nobody
//!   else has, renewed at each change. Clones copy it, and need no reference to an original that
//!   may be gone.
//! - Counts that are exchanged are paired by event, not by position: a rotation changes positions.
//! - A child takes the exec flags, like the state, from its parent's event: those of the opened
//!   event may be with any relative.
//! - An exec that only used up a flag also makes the context unlike others, since the flag is part
//!   of what must be equal.
//! - A close leaves a family alike, for it takes the event from everyone.
//! - A group is opened whole, so a leader can never be in another context than those that join it.
//!
//! # Invariants
//! - **I1** Each living task has exactly one context, and each context one task. It is on the CPU
//!   where its task is.
//! - **I2** Contexts of one class hold children of the same events, enabled alike and waiting for
//!   an exec alike (once a walk that enables, disables or closes in all of the family is through):
//!   no sum can tell which of them counted.
//! - **I3** What a class depends on changes under the context's lock, by whoever has its task, or
//!   in the whole family, or for a pin.
//! - **I4** An opened event is never in a clone: opening makes the context an original of its own.
//! - **I5** A count is in one living context, or folded into the sum of its family. It goes from
//!   one to the other, and the context leaves the family's list, in one critical section of the
//!   family's lock, which readers hold.
//! - **I6** A count goes from one context to another (for numbers of single tasks) only under the
//!   locks of both, neither pinned. Who sums such counts pins all contexts of the family before it
//!   looks at the first.
//! - **I7** A context gets an event only before others know that event, or under the lock of its
//!   family, which a close holds while it takes it from everyone.
//! - **I8** Time running is at most time enabled. Both, and the value, only grow.
//! - **I9** No CPU has more counters started than it has slots. What needs no slot always counts
//!   when it is enabled.
//! - **I10** A counter that goes on is not touched: a task runs on while another thread opens,
//!   closes, enables or disables other events of its context or CPU, and what it does meanwhile
//!   counts.
//!
//! # Lock order
//! A family, then a context (of two, the older first), then a CPU; never two families or two CPUs.
//! The table of open events is locked alone. The `Pmu` is called under any of them.
//!
//! | store | load | why this order suffices |
//! |---|---|---|
//! | class, Relaxed (under the context's lock) | class, Relaxed (a switch) | whoever switches got the task from whoever changed its membership; a close or a pin may be seen late (I2; I6 looks again under the locks) |
//! | holder, Relaxed (a switch) | holder, Relaxed (a table, a message) | where it must be right, both are under the context's lock (I6) |
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
mod counting;
mod cpu;
mod engine;
mod error;
mod event;
mod lifecycle;
mod pmu;
mod scheduler;
mod set;
mod shared;
mod task;
mod unique;

#[cfg(all(test, loom))]
mod loom;
#[cfg(any(test, feature = "model"))]
pub mod model;
#[cfg(test)]
mod naive;
#[cfg(all(test, not(loom)))]
mod tests;

pub use engine::Engine;
pub use error::Error;
pub use event::{Attr, Count, EventId, Inherit, Source};
pub use pmu::Pmu;
pub use scheduler::Scheduler;
pub use task::Task;

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
    if group.iter().any(|attr| attr.inherit != leader.inherit || attr.cpu != leader.cpu) {
        return Err(Error::MixedGroup);
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
