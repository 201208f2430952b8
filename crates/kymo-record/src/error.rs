//! Why a recording could not be planned or made.
use crate::output::OutputError;
use crate::scope::Scope;
use kymo_perf::evlist::{OpenError, Request, RingError};
use kymo_perf::{caps, explain, sys};
use std::io;

/// Why a plan cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No such process or thread.
    #[error("there is no {what} {id}: it may have ended; `ps -eL` lists processes and threads")]
    NoTask {
        /// `process` or `thread`.
        what: &'static str,
        /// The id.
        id: i32,
    },
    /// The user owns no process.
    #[error("user {0} owns no process: start one first, or record everything with -a")]
    NoProcess(u32),
    /// A CPU that is not there.
    #[error("CPU {cpu} is not online; online are {online:?}")]
    NoCpu {
        /// The CPU.
        cpu: u32,
        /// Those that are.
        online: Vec<u32>,
    },
    /// The recorder itself would stand still.
    #[error(
        "--overload=pause cannot stop everything that runs on a CPU: record a command or processes (-p), or choose slow or drop"
    )]
    PauseOfAll,
    /// Files in memory are those of a recorder whose output is memory.
    #[error("snapshots in memory want a recorder whose output is memory")]
    NotLive,
    /// More samples per second than the kernel permits, and none less is accepted.
    #[error(
        "{asked} samples per second are more than kernel.perf_event_max_sample_rate permits, which is {max}, and --strict-freq accepts no less: raise it, or ask for less"
    )]
    Frequency {
        /// Asked for.
        asked: u64,
        /// Permitted.
        max: u64,
    },
    /// There is no such cgroup.
    #[error(
        "{0}; a cgroup is named by its path below the place where the hierarchy is mounted, or by its unit, container or pod"
    )]
    Cgroup(#[from] kymo_perf::cgroup::CgroupError),
    /// More than one cgroup of a name.
    #[error("{} cgroups are called {name}, name one by its path:\n  {}", paths.len(), paths.join("\n  "))]
    CgroupsOfName {
        /// The name of a unit, a container or a pod.
        name: String,
        /// Their paths.
        paths: Vec<String>,
    },
    /// Processes in a cgroup.
    #[error("-G records what is in a cgroup on each CPU, -p, -t and -u record tasks: choose one")]
    CgroupOfTasks,
    /// /proc could not be read.
    #[error("failed to list the tasks in /proc: {0}")]
    Proc(#[from] io::Error),
    /// An event that cannot follow tasks.
    #[error("{0} counts for a whole socket or machine, not for a task: record it with -a or -C")]
    SystemWideOnly(String),
    /// Some events keep the newest records, others the oldest.
    #[error(
        "{newest} keeps the newest records and {oldest} the oldest: they cannot be in one recording; give both the term overwrite, or neither"
    )]
    TwoKinds {
        /// One that keeps the newest.
        newest: String,
        /// One that does not.
        oldest: String,
    },
    /// Waits are traced where tasks are followed in the kernel, which is not possible with the rest.
    #[error("--wall is not possible with what else is asked for: {0}")]
    Waits(String),
    /// Waits for locks are added up by programs in the kernel, which are not possible here.
    #[error("locks cannot be observed: {0}")]
    Locks(String),
    /// A scope that was asked for and cannot be had.
    #[error("--scope {} is not possible here: {reason}; leave it out to let kymo choose", scope.name())]
    Scope {
        /// The scope.
        scope: Scope,
        /// Why not.
        reason: String,
    },
}

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A ring could not be mapped.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output could not be made ready.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The scope that was asked for is not possible.
    #[error(transparent)]
    Scope(#[from] PlanError),
    /// The command could not be executed.
    #[error("failed to execute {command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The memory that is allowed is not enough.
    #[error(
        "{rings} rings of {ring_bytes} bytes and two buffers for each CPU need {needed} bytes, --max-memory allows {most} (without it, a quarter of the cgroup's limit): allow more, or use smaller rings (-m)"
    )]
    Memory {
        /// How many rings.
        rings: usize,
        /// The size of each.
        ring_bytes: usize,
        /// What would do.
        needed: u64,
        /// What is allowed.
        most: u64,
    },
    /// Something that usually works did not.
    #[error("failed to {action}: {source}")]
    System {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl RecordError {
    /// The error with what helps against it. `requests`: the events of the plan; `descriptors` and
    /// `rings`: how many of each it needs.
    pub fn explained(&self, requests: &[Request], descriptors: u64, rings: usize) -> String {
        match self {
            RecordError::Open(error) => explain::explain_list(error, requests, Some(descriptors)),
            RecordError::Ring(error) if !error.redirect => {
                let errno = error.source.raw_os_error().unwrap_or(0);
                let bytes = (error.pages * sys::page_size()) as u64;
                explain::explain_map(errno, &error.event, bytes, rings as u64, &caps::probe()).to_string()
            }
            RecordError::System { action, source } => {
                format!("failed to {action}: {source}{}", explain::limit_advice(source))
            }
            error => error.to_string(),
        }
    }
}

/// An error of the system, with what was being done.
pub(crate) fn system(action: &'static str) -> impl Fn(io::Error) -> RecordError {
    move |source| RecordError::System { action, source }
}
