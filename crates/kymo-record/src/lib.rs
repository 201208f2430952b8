//! The recording pipeline of kymo: drain, reduce, write, account for every loss.
//!
//! *You give* [`Options`]: events, targets, output. They become a [`RecordingPlan`], which can be
//! printed. *It gives* a [`Session`] that has opened everything; [`Session::run`] records until a
//! descriptor of yours becomes readable or the targets end, and returns a [`Summary`] with the
//! [`LossAccount`].
//!
//! ```text
//!  kernel ring of CPU n          drain thread n (pinned, SCHED_FIFO)      writer thread
//!  +-----------------+  wakeup   copies out, hands the space back   full   counts, compresses, appends,
//!  | records ....... | --------> never waits for the disk         -------> marks rounds, publishes the size
//!  +-----------------+           <------------------------------- free ---
//! ```
//!
//! # Your part
//! - Resolve events first (`kymo_perf::selector`), and print the notes and remarks: this library
//!   prints nothing.
//! - Turn signals into a readable descriptor for [`Session::run`]; the library installs no
//!   handlers.
//!
//! # Guarantees
//! - The recording is a perf.data file that opens at any moment: the header's data size is brought
//!   up to date as chunks land.
//! - Every record that is not in the file is counted in the [`LossAccount`], by cause.
//! - Memory for records on their way is bounded. When it is used up, records stay in the rings, and
//!   the kernel counts what it drops then.
//! - A drain waits neither for the disk nor for unwinding.
//!
//! # Non-goals
//! The meaning of a recording (that is `kymo-profile`), and talking to the user.
//!
//! # Modules
//! All are private. In the order of a record's way:
//!
//! - `plan`, `scope_choice`, `opening`, `session`: decide and open.
//! - `pipeline`, `run_loop`, `command`: start the threads and the command, wait for the end.
//! - `existing`, `synth`: records of processes and mappings that existed before.
//! - `drain`, `ring_scan`, `channel`, `pool`: from the rings to the writer; `user_rings`: rings
//!   that programs write themselves.
//! - `reduce`: stacks to call chains; `python`: with names of Python; `pid_filter`: records of other
//!   processes are dropped.
//! - `code_names`: names of generated code, from the processes into the file.
//! - `writer`, `record_stats`, `round`, `sink`, `disk`: count, mark, append; `series`, `sideband`:
//!   several files; `flight`: snapshots in place of the writer; `live`: snapshots in memory, of a
//!   recorder in a thread of its own.
//! - `finish`, `account`, `coverage`: the result.
//! - [`StandaloneWriter`]: a file of records that the caller has read itself. [`Callers`]: stacks
//!   of stopped threads, for probes.
//!
//! # Example
//! ```no_run
//! use kymo_perf::machine::Machine;
//! use kymo_perf::selector;
//! use kymo_record::{Options, Output, RecordingPlan, Session, TargetSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let events = selector::resolve(&selector::parse("cpu-clock")?, &Machine::here())?;
//! let targets = TargetSpec { command: vec!["ls".into()], ..TargetSpec::default() };
//! let options = Options::new(events, targets, Output::File("perf.data".into()));
//! let plan = RecordingPlan::resolve(options)?;
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
mod code_names;
mod command;
mod control;
mod core_file;
mod count_writer;
mod coverage;
mod cpu_accounts;
mod cpu_time;
mod cpus;
mod disk;
mod drain;
mod error;
mod existing;
mod finish;
mod flight;
mod formats;
mod id_aliases;
mod live;
mod live_cpu_time;
mod lock_holds;
mod locks;
mod machine;
mod mapped_files;
mod memory_limit;
mod observe;
mod opening;
mod options;
mod output;
mod pid_filter;
mod pipeline;
mod plan;
mod pool;
mod previous;
mod process_modules;
mod python;
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
mod sockets;
mod stack_choice;
mod stack_trim;
mod stall_monitor;
mod standalone_writer;
mod synth;
mod targets;
mod thread_stacks;
mod throttle;
mod user_rings;
mod waited_files;
mod waiting_stacks;
mod waits;
mod whole;
mod writer;

pub use account::{Claimed, LossAccount, Unwound};
pub use callers::Callers;
pub use control::{Answer, Command as ControlCommand, ControlChannel, ControlError, ControlSpec, Detail};
pub use count_writer::CountWriter;
pub use coverage::{Coverage, RingCoverage};
pub use cpu_accounts::{Account, Accounted};
pub use cpu_time::CpuTime;
pub use disk::{Silence, WriteError, watch_for_silence};
pub use error::{PlanError, RecordError};
pub use finish::Summary;
pub use kymo_perf::bpf::{FutexOptions, WaitOptions};
pub use live::LiveRecorder;
pub use live_cpu_time::LiveCpuTime;
pub use lock_holds::HoldSource;
pub use options::{
    CallGraph, CpuMode, Delay, LastSnapshot, Options, Overload, Rate, RecordingClock, SampleFields,
    Synthesis, TargetSpec, Tracking,
};
pub use output::{Output, OutputError};
pub use plan::{RecordingPlan, tracking_event};
pub use scope::Scope;
pub use scope_choice::{Choice, Estimate};
pub use series::{Limits, LiveSnapshot, RemovedFiles, SwitchRule};
pub use session::Session;
pub use standalone_writer::{StandaloneEnd, StandaloneWriter};
pub use targets::children_note;
pub use thread_stacks::{StackOptions, StackRecording, record_core, record_stacks};
pub use throttle::Pauses;
pub use user_rings::{UserEvent, UserEventControl, UserRings};
pub use whole::write_whole;
