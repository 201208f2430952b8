//! What the scheduler of a recorded machine did: who ran where, who waited, and who woke whom up.
//!
//! *You give it* a recording with switches, of kymo or perf: samples of the tracepoint
//! `sched:sched_switch` and its companions, or SWITCH records. *It gives you* a stream of typed
//! [events](SchedEvent) in order of time, a [replay](Replay) of all threads' states, and four
//! answers: delays by task, a history of switches, a map of the CPUs, and totals.
//!
//! ```text
//!  samples, SWITCH, COMM, FORK ... --decode--> SchedEvent --rounds--> in order of time
//!                                                                          |
//!                      what each thread was doing    Replay <--------------'
//!                                                      | Step
//!                   +-------------+-----------------+--+-----------+
//!                latency       timehist            map           stats
//! ```
//!
//! # Invariants
//! - **S1** The stream holds two rounds of the recorder in memory, not the file. Malformed events
//!   are counted and left out; nothing in a recording panics or allocates by a number that it
//!   claims.
//! - **S2** Letters of states and places of fields are those of the recorded kernel's formats.
//! - **S3** A thread is in one state at a time. A time that reaches over a loss, or has no known
//!   beginning, is not counted.
//! - **S4** A number of a task that the kernel uses again is another thread.
//! - **S5** Counts are those of `perf sched` for the same file; the differences are in the book
//!   (`docs/reference/sched.md`).
//!
//! # Example
//! How long each thread of a recording ran, from the stream and the replay.
//!
//! ```
//! use kymo_data::ReadError;
//! use kymo_profile::sched::{Replay, Step, read_events};
//! use std::{collections::BTreeMap, sync::Arc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/switch.data");
//! let recording = kymo_data::Recording::open(Arc::new(std::fs::File::open(path)?), Vec::new())?;
//! let (mut replay, mut run_ns) = (Replay::default(), BTreeMap::new());
//! let summary = read_events(&recording, false, |event, _| -> Result<(), ReadError> {
//!     if let Step::Switched { out: Some(out), .. } = replay.apply(event)
//!         && let Some(from_ns) = out.from_ns
//!     {
//!         *run_ns.entry(out.thread).or_insert(0) += event.time_ns - from_ns;
//!     }
//!     Ok(())
//! })?;
//! for (thread, run_ns) in &run_ns {
//!     println!("{}: {run_ns} ns", replay.thread(*thread).shown_name());
//! }
//! assert!(summary.remarks().is_empty() && run_ns.len() > 2);
//! # Ok(())
//! # }
//! ```

mod chains;
mod decode;
mod event;
mod history_summary;
mod json;
mod latency;
mod map;
#[cfg(test)]
mod model;
mod replay;
mod stream;
#[cfg(test)]
mod tests;
mod timehist;
mod totals;

pub use chains::{SwitchChains, with_chains};
pub use event::{
    OutState, SchedEvent, SchedEventKind, SwitchedIn, SwitchedOut, TaskIds, TaskName, WakeupStep,
};
pub use history_summary::{Away, History, HistoryTotals, ThreadTimes, TurnTimes};
pub use json::{SCHEMA_VERSION, SchedJson};
pub use latency::{Latency, LatencyKey, LatencyOptions, LatencyRow, latency};
pub use map::{MapCell, MapLine, MapOptions, ShortName, map};
pub use replay::{Arrival, Replay, ReplayThread, Step, Stint, ThreadIndex, ThreadState, Wait};
pub use stream::{CPUS_MAX, SchedSources, SchedSummary, read_events};
pub use timehist::{HistoryKind, HistoryLine, TimehistOptions, timehist};
pub use totals::{CpuTotals, SchedStats, SchedTotals, ThreadTotals, totals};
