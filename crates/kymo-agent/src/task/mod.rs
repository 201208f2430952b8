//! Counters for tasks inside a program: CPU time, polls, allocations and more, per group of tasks
//! and per task.
//!
//! Executors of async tasks, fibers and thread pools switch in user space, where the kernel sees
//! one thread that never stops. What they can tell of a task is how long its polls took, which
//! counts as work what was waiting. This tells CPU time.
//!
//! *You give* a [`Group`] to each thing that you want a number of, and a [`Task`] to whatever runs
//! for it. *It gives* the group's sums, exact at any moment, and on request
//! ([`GroupBuilder::per_task`]) the numbers of each task.
//!
//! ```
//! use kymo_agent::task::{Counter, Group, Instrument};
//!
//! let orders = Group::builder("orders").per_task().build()?;
//! let task = orders.task("order 17")?;
//! let watch = task.watch();
//! let work = async { (0..1000).map(std::hint::black_box).sum::<u64>() }.instrument(task);
//! // Any executor does; this is the smallest.
//! let mut work = std::pin::pin!(work);
//! let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! assert!(std::future::Future::poll(work.as_mut(), &mut context).is_ready());
//!
//! assert_eq!(watch.read()?.polls, 1);
//! assert_eq!(watch.count(Counter::CpuTime)?, orders.read()?.get(Counter::CpuTime).expect("always counted"));
//! # Ok::<(), kymo_agent::task::Error>(())
//! ```
//!
//! # How it counts
//! A thread is a CPU of the [context engine](kymo_core::context), and each task has a context of
//! counters there. A thread has a task of its own for what it does between tasks (the executor's
//! work), in the group "(threads)": so the sum over all groups is the threads' CPU time. Tasks of
//! one group count into the same sums, and hand over without a look at any counter; across groups,
//! and where tasks have numbers of their own, a switch looks once at each counter. CPU time costs
//! no system call even then (`clock.rs`).
//!
//! # Guarantees
//! - CPU time is the kernel's CPU time of the threads: not the time that polls took, and nothing is
//!   counted twice or lost in between.
//! - A number that is not right is not given: it is `None`, or an error, or [`Reading::uncounted`]
//!   says how much is missing.
//! - A panic in a poll ends the task's turn like a return. Polls may nest. Tasks may change threads
//!   between turns.
//! - A thread that ends ends the task that it runs; a forked child counts nothing and touches
//!   nothing of its parent's.
//!
//! # Your responsibilities
//! Not to call this from signal handlers. To make groups after forking, if workers are forked. To
//! let what is blocking a thread for long be seen by other means: a task that sleeps inside a poll
//! uses no CPU time.
//!
//! # Non-goals
//! Time between polls, and why a task waits.
mod clock;
mod counter;
mod counters;
mod error;
mod group;
mod hardware;
mod instrument;
mod publish;
mod reading;
mod thread;
mod thread_slot;
mod turn;

pub use counter::{Counter, Hardware};
pub use error::Error;
pub use group::{Group, GroupBuilder};
pub use instrument::{Instrument, Instrumented};
pub use publish::publish;
pub use reading::{Reading, TaskReading};
pub use thread::{enter_thread, first_problem};
pub use thread_slot::{OWN_COUNTERS, THREADS};
pub use turn::{Task, Watch, switch};

pub(crate) use thread_slot::count_allocation;

/// Adds to a counter of the program's own, for the task that runs on the calling thread
/// ([`Counter::Own`]). A few instructions; on a thread that has never run a task, and with an
/// unknown number, it does nothing. Probes in the process count their hits with this.
#[inline]
pub fn count(counter: u8, by: u64) {
    thread_slot::count_own(counter.into(), by);
}
