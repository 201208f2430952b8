//! The seam between a request and the ways of probing: what is asked, and what an engine answers.
//!
//! An engine counts by itself, in the kernel or inside the program; the caller only reads.
use crate::arguments::Values;
use crate::exits::ReturnAddresses;
use kymo_core::holds::HoldReport;
use kymo_core::latency::Latencies;
use kymo_core::probe::value::Condition;
pub use kymo_perf::bpf::uprobe::CapturedValue;
use kymo_symbols::sites::Site;
use std::io;
use std::os::fd::BorrowedFd;

/// What was counted at a site until now.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Hits that the condition let through.
    pub hits: u64,
    /// Times of calls, from entry to return.
    pub latencies: Latencies,
    /// Calls that could not be timed.
    pub missed: u64,
    /// Hits and returns whose values are not told, since nobody read them in time.
    pub lost: u64,
}

/// A hit or a return, with its values.
#[derive(Clone, Debug)]
pub struct ProbeHit {
    /// Number of the site among those that the engine serves.
    pub site: usize,
    /// A return; otherwise a hit of the site.
    pub returned: bool,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// How long the call took; of returns only.
    pub latency_ns: Option<u64>,
    /// The thread's name.
    pub comm: String,
    /// In the order in which they were asked for.
    pub values: Vec<CapturedValue>,
}

impl Reading {
    /// What came since an earlier reading.
    pub fn since(&self, before: &Reading) -> Reading {
        Reading {
            hits: self.hits.saturating_sub(before.hits),
            latencies: self.latencies.since(&before.latencies),
            missed: self.missed.saturating_sub(before.missed),
            lost: self.lost.saturating_sub(before.lost),
        }
    }
}

/// Where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the site among those that the engine serves.
    pub site: usize,
    /// The process.
    pub pid: i32,
    /// In the process.
    pub address: u64,
    /// Calls from there.
    pub hits: u64,
}

/// A way of probing, attached to its sites.
pub trait Engine: Send {
    /// For people: `kernel` or `inproc`.
    fn name(&self) -> &'static str;

    /// What was counted, in the order of the sites that it serves.
    fn read(&self) -> Vec<Reading>;

    /// Who called, the most frequent first; empty unless asked for.
    fn callers(&self) -> io::Result<Vec<Caller>> {
        Ok(Vec::new())
    }

    /// How long locks were held, if that was asked for.
    fn holds(&self) -> HoldReport {
        HoldReport::default()
    }

    /// Tells hits and returns with their values, those since the last time.
    fn told(&self, _tell: &mut dyn FnMut(ProbeHit)) {}

    /// What becomes readable when there are any.
    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Waits until the command, which has just been started and whose end `ended` tells, is probed; it is held until [`Engine::go`]. The sites that
    /// cannot be probed in it, with the reasons: the engine leaves them to others.
    ///
    /// # Errors
    /// Why it is not probed at all; then it is not held.
    fn started(&self, _ended: BorrowedFd<'_>) -> Result<Vec<(usize, String)>, String> {
        Ok(Vec::new())
    }

    /// Leaves sites (ascending) to another engine in all programs that are to come.
    fn leave(&self, _sites: &[usize]) {}

    /// Lets the command run.
    fn go(&self) {}

    /// Why nothing was counted at the end, if none of its sites was ever probed.
    fn unserved(&self) -> Option<String> {
        None
    }

    /// What is to be said at the end.
    fn words(&self, _sites: &[Site]) -> Vec<String> {
        Vec::new()
    }
}

/// Where hits are looked at, and what is to be measured there.
#[derive(Clone, Debug, Default)]
pub struct ProbeRequest {
    /// The places. Everybody names them by their numbers in this list.
    pub sites: Vec<Site>,
    /// Time calls of functions.
    pub timed: bool,
    /// Count calls by caller.
    pub callers: bool,
    /// Count one of so many hits; 0 and 1: each.
    pub every: u32,
    /// For each site: which hits, and which returns; empty if all of each.
    pub conditions: Vec<(Condition, Condition)>,
    /// For each site, what is told of each hit and return; empty if nothing is told of any.
    pub values: Vec<Option<Values>>,
    /// Whether return addresses may be replaced.
    pub return_addresses: ReturnAddresses,
}

impl ProbeRequest {
    /// Which hits and which returns of a site count.
    pub(crate) fn conditions_of(&self, number: usize) -> (Condition, Condition) {
        self.conditions.get(number).cloned().unwrap_or_default()
    }

    /// What is told of each hit and return of a site, if anything is.
    pub(crate) fn values_of(&self, number: usize) -> Option<&Values> {
        self.values.get(number)?.as_ref()
    }

    /// The same of some sites only, which have new numbers then.
    pub(crate) fn subset(&self, numbers: &[usize]) -> ProbeRequest {
        fn chosen<T: Clone>(all: &[T], numbers: &[usize]) -> Vec<T> {
            numbers.iter().filter_map(|&number| all.get(number).cloned()).collect()
        }
        ProbeRequest {
            sites: chosen(&self.sites, numbers),
            conditions: chosen(&self.conditions, numbers),
            values: chosen(&self.values, numbers),
            ..self.clone()
        }
    }

    /// Sites by their numbers, with the reasons, for sentences.
    pub(crate) fn named<'a>(
        &'a self,
        refused: &'a [(usize, String)],
    ) -> impl Iterator<Item = (String, &'a str)> {
        refused.iter().map(|(number, reason)| (reason.clone(), self.sites[*number].name.as_str()))
    }
}

/// Whom to probe.
#[derive(Clone, Debug)]
pub struct Target {
    /// Processes that exist: those of `-p`, or the command that waits for its start.
    pub pids: Vec<i32>,
    /// It is a command that has not executed its program yet.
    pub command: bool,
    /// What they start, too.
    pub children: bool,
}

/// An engine, and the numbers of the sites that it serves.
pub struct Service {
    /// The numbers of the sites, ascending.
    pub sites: Vec<usize>,
    /// What counts there.
    pub engine: Box<dyn Engine>,
    /// Those of the sites, ascending, that it could not probe when the command had started, and
    /// nobody else does.
    pub not_probed: Vec<usize>,
}

impl Service {
    /// An engine that has probed all of its sites.
    pub fn new(sites: Vec<usize>, engine: Box<dyn Engine>) -> Service {
        Service { sites, engine, not_probed: Vec::new() }
    }

    /// The numbers of the sites that are probed.
    pub fn probed(&self) -> impl Iterator<Item = usize> {
        self.sites.iter().copied().filter(|site| self.not_probed.binary_search(site).is_err())
    }
}

/// Which engines may serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The fastest that can serve each probe
    Auto,
    /// Only inside the program
    Inproc,
    /// Only the kernel's uprobes
    #[default]
    Kernel,
    /// Only inside the program, and returns are seen by replaced return addresses
    Shadow,
}

impl Choice {
    /// All of them, in the order of the enum: name on a command line, engine, and what it is in a few words.
    pub const NAMES: [(&str, Choice, &str); 4] = [
        ("auto", Choice::Auto, "The fastest that can serve each probe"),
        ("inproc", Choice::Inproc, "Only inside the program"),
        ("kernel", Choice::Kernel, "Only the kernel's uprobes"),
        (
            "shadow",
            Choice::Shadow,
            "As inproc, but replaces return addresses: times calls by conditions of memory, and ends programs that copy their stacks",
        ),
    ];

    /// Whether nothing may be left to the kernel.
    pub fn is_inside(self) -> bool {
        matches!(self, Choice::Inproc | Choice::Shadow)
    }

    /// As it is named on a command line.
    pub fn name(self) -> &'static str {
        Choice::NAMES[self as usize].0
    }
}
