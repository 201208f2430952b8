//! A counting: what stays the same over all runs, and what each gives.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use kymo_cli::signals::Signals;
use kymo_perf::count::aggregate::{CountRow, Topology};
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::sys::Kernel;
use kymo_perf::workload::{Exit, Usage};

use super::StatArgs;
use super::events::Event;

/// How it all ended.
pub(super) enum End {
    /// The command did.
    Command(Exit),
    /// A signal to us.
    Signal(i32),
    /// The command could not be executed.
    NotStarted { command: String, source: io::Error },
    /// What was counted ended, or its time was over.
    Done,
}

/// What one run gave.
pub(super) struct Run {
    /// By event: rows, or `None` if the machine does not have it.
    pub(super) rows: Vec<Option<Vec<CountRow>>>,
    pub(super) elapsed_ns: u64,
    pub(super) usage: Option<Usage>,
    pub(super) accounts: KernelStats,
    pub(super) end: End,
}

/// What stays the same over all runs.
pub(super) struct Counting<'a> {
    pub(super) args: &'a StatArgs,
    pub(super) events: &'a [Event],
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) cpus: Vec<u32>,
    pub(super) topology: Topology,
    pub(super) signals: Signals,
    /// The events' names, as they were opened: an ordinary user gets user mode only.
    pub(super) names: RefCell<Vec<String>>,
}
