//! The recording pipeline of kymo: drain, reduce, write, account for every loss.
//!
//! You give [`Options`] (what to observe, whom, where to); they become a [`Plan`], which can be
//! printed; a [`Session`] opens it, runs until it is told to stop or the command ends, and gives a
//! [`Summary`] with the [`LossAccount`].
//!
//! ```text
//!  kernel ring of CPU n          drain thread n (pinned, SCHED_FIFO)      writer thread
//!  +-----------------+  wakeup   copies out, hands the space back   full   counts, compresses, appends,
//!  | records ....... | --------> never waits for the disk         -------> marks rounds, publishes the size
//!  +-----------------+           <------------------------------- free ---
//! ```
//!
//! # Guarantees
//! - The recording is a perf.data file that opens at any moment: the header's data size is brought
//!   up to date as chunks land.
//! - Every record that could not be kept is counted in the [`LossAccount`], by cause.
//! - Memory for records on their way is bounded; when it is used up, records stay in the rings, and
//!   what the kernel then drops is counted.
//!
//! # Non-goals
//! What the recording means (that is `kymo-profile`), and talking to the user: this library returns
//! notes, it prints nothing.
//!
//! # Modules
//! All private, in the order of a record's way: `plan`, `opening` and `session` decide and open,
//! `command` and `conduct` begin and end, `synth` lists what was there before, `drain`, `look`,
//! `mail` and `pool` carry, `user_rings` are events that programs write, `reduce` unwinds stacks,
//! `writer`, `walk`, `round` and `sink` count and write, `finish` and `account` are the result.
//! `callers` walks stacks of stopped threads, for probes.
//!
//! # Example
//! ```no_run
//! use kymo_perf::machine::Machine;
//! use kymo_perf::selector;
//! use kymo_record::{Options, Output, Plan, Session, TargetSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let events = selector::resolve(&selector::parse("cpu-clock")?, &Machine::here())?;
//! let targets = TargetSpec { command: vec!["ls".into()], ..TargetSpec::default() };
//! let options = Options::new(events, targets, Output::File("perf.data".into()));
//! let plan = Plan::resolve(options)?;
//! println!("{plan}");
//! let summary = Session::start(plan)?.run(None)?; // until the command ends
//! println!("{} samples; {}", summary.account.samples, summary.account);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod account;
mod attr;
mod background;
mod budget;
mod build_ids;
mod callers;
mod channel;
mod command;
mod control;
mod coverage;
mod disk;
mod drain;
mod error;
mod existing;
mod finish;
mod flight;
mod formats;
mod machine;
mod observe;
mod opening;
mod options;
mod output;
mod pid_filter;
mod pipeline;
mod plan;
mod pool;
mod previous;
mod record_stats;
mod reduce;
mod ring_scan;
mod ring_size;
mod round;
mod run_loop;
mod scope;
mod scope_choice;
mod series;
mod session;
mod shared;
mod sideband;
mod sink;
mod standalone_writer;
mod synth;
mod targets;
mod throttle;
mod user_rings;
mod writer;

pub use account::{Claimed, LossAccount, Unwound};
pub use callers::Callers;
pub use control::{Answer, Command as ControlCommand, ControlChannel, ControlError, ControlSpec, Detail};
pub use coverage::{Coverage, RingCoverage};
pub use disk::{Silence, WriteError, watch_for_silence};
pub use error::{PlanError, RecordError};
pub use finish::Summary;
pub use options::{CallGraph, Delay, LastSnapshot, Options, Overload, Rate, RecordingClock, TargetSpec};
pub use output::{Output, OutputError};
pub use plan::{Plan, tracking_event};
pub use scope::Scope;
pub use scope_choice::{Choice, Estimate};
pub use series::{Limits, RemovedFiles, SwitchRule};
pub use session::Session;
pub use standalone_writer::StandaloneWriter;
pub use throttle::Pauses;
pub use user_rings::{UserEvent, UserEventControl, UserRings};
