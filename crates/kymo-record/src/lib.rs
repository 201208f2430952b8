//! The recording pipeline of kymo: drain, write, account for every loss.
//!
//! You give [`Options`] (what to observe, whom, where to); they become a [`Plan`], which can be printed; a [`Session`] opens it, runs until
//! it is told to stop or the command ends, and gives a [`Summary`] with the [`LossAccount`].
//!
//! ```text
//!  kernel ring of CPU n          drain thread n (pinned, SCHED_FIFO)      writer thread
//!  +-----------------+  wakeup   copies out, hands the space back   full   counts, compresses, appends,
//!  | records ....... | --------> never waits for the disk         -------> marks rounds, publishes the size
//!  +-----------------+           <------------------------------- free ---
//! ```
//!
//! # Guarantees
//! - The recording is a perf.data file that opens at any moment: the header's data size is brought up to date as chunks land.
//! - Every record that could not be kept is counted in the [`LossAccount`], by cause.
//! - Memory for records on their way is bounded; when it is used up, records stay in the rings, and what the kernel then drops is counted.
//!
//! Non-goals: what the recording means (that is `kymo-profile`), and talking to the user: this library returns notes, it prints nothing.
#![forbid(unsafe_code)]

mod account;
mod attr;
mod build_ids;
mod drain;
mod formats;
mod machine;
mod output;
mod plan;
mod pool;
mod round;
mod session;
mod sink;
mod synth;
mod walk;
mod writer;

pub use account::LossAccount;
pub use output::{Output, OutputError};
pub use plan::{CallGraph, Clock, Delay, Options, Plan, PlanError, Rate, TargetSpec, tracking_event};
pub use session::{Error, Session, Summary};
