//! A list of events, opened for tasks and CPUs: open, map, enable, disable, read the losses, close.
//!
//! ```text
//!  Plan: events x targets          Evlist: one table of descriptors per event        rings: one per CPU (or task)
//!  +--------+  +-----------+       event 0   task 0  task 1                          cpu 0 <- event 0 task 0 (mapped)
//!  | cycles |  | tasks ..  | open   cpu 0     fd      fd                                   <- all others of cpu 0 (redirected)
//!  | faults |  | cpus ..   |------> cpu 1     fd      fd       map                   cpu 1 <- ...
//!  +--------+  +-----------+       event 1 ...              -------->
//! ```
//!
//! You give a [`Plan`] with resolved events and [`Targets`]; you get an [`Evlist`] whose [`Note`]s say what had to be changed to
//! make the machine accept it. [`serial`] is the straightforward opener, and the reference for any cleverer one.
//!
//! # Invariants
//! - **E1** After a success each event has one descriptor per (CPU of the event, surviving task); after a failure no descriptor is left.
//! - **E2** A member's group descriptor is its leader's at the same CPU and the same task.
//! - **E3** Fallbacks are monotone: precision only falls, features only go, tasks only shrink, exclusion only grows. So opening ends.
mod note;
mod rings;
pub mod serial;
mod switch;
#[cfg(test)]
mod tests;

pub use note::{Feature, Note, OpenError, Stage};
pub use rings::{MappedRing, RingError};

use crate::sys::{ANY, Kernel, Perf, perf_event_attr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// One event to open, resolved to what the kernel wants.
#[derive(Clone, Debug)]
pub struct Request {
    /// As the user wrote it; fallbacks edit it (`cycles` becomes `cycles:u`).
    pub name: String,
    /// What to open.
    pub attr: perf_event_attr,
    /// The index of the group's leader in the list, if this is a member; it must come earlier.
    pub leader: Option<usize>,
    /// Whether the group (of the leader) may be dissolved when the kernel refuses it.
    pub weak: bool,
    /// The CPUs that the event's PMU covers; `None`: all.
    pub cpus: Option<Vec<u32>>,
    /// Whether `precise_ip` may be lowered ("as precise as possible").
    pub precise_max: bool,
    /// A tracepoint filter.
    pub filter: Option<String>,
    /// Tracks mappings and names: enabled at once and disabled last.
    pub immediate: bool,
}

impl Request {
    /// A single event without conditions.
    pub fn new(name: impl Into<String>, attr: perf_event_attr) -> Request {
        Request {
            name: name.into(),
            attr,
            leader: None,
            weak: false,
            cpus: None,
            precise_max: false,
            filter: None,
            immediate: false,
        }
    }
}

/// Whom to observe, expanded: every event is opened for each task on each CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// Thread ids, or [`ANY`] alone for all tasks.
    pub tasks: Vec<i32>,
    /// CPU numbers, ascending, or [`ANY`] alone for per-thread events.
    pub cpus: Vec<i32>,
    /// Tasks that vanish before they are opened are left out, as long as one remains.
    pub ignore_missing: bool,
}

impl Targets {
    /// Everything on these CPUs.
    pub fn system(cpus: &[u32]) -> Targets {
        Targets {
            tasks: vec![ANY],
            cpus: cpus.iter().map(|&cpu| cpu as i32).collect(),
            ignore_missing: false,
        }
    }

    /// These tasks, wherever they run: one descriptor per task and CPU, because the kernel maps no inherited event that is not bound to a CPU.
    pub fn tasks(tasks: Vec<i32>, cpus: &[u32]) -> Targets {
        Targets { tasks, cpus: cpus.iter().map(|&cpu| cpu as i32).collect(), ignore_missing: true }
    }

    /// These tasks, one descriptor and one ring each; children are not followed.
    pub fn per_thread(tasks: Vec<i32>) -> Targets {
        Targets { tasks, cpus: vec![ANY], ignore_missing: true }
    }
}

/// What to open.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The events in order, leaders before members.
    pub events: Vec<Request>,
    /// For whom and where.
    pub targets: Targets,
}

/// One event of an open list.
#[derive(Debug)]
pub struct Event {
    /// The request as it was finally opened.
    pub request: Request,
    /// The CPUs it is opened on.
    pub cpus: Vec<i32>,
    /// Descriptors: one row per CPU, one column per surviving task.
    pub fds: Vec<Vec<OwnedFd>>,
}

/// An open list of events. Dropping it closes them.
#[derive(Debug)]
pub struct Evlist {
    /// The events in the order of the plan.
    pub events: Vec<Event>,
    /// The tasks that were there to be opened.
    pub tasks: Vec<i32>,
    /// What had to be changed, in order.
    pub notes: Vec<Note>,
}

/// A count of samples that one descriptor lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The event's index in the list.
    pub event: usize,
    /// The CPU of the descriptor.
    pub cpu: i32,
    /// Its task.
    pub task: i32,
    /// Its id.
    pub id: u64,
    /// How many samples it lost.
    pub lost: u64,
}

impl Evlist {
    /// The events' ids, one list per event in the order CPU, task.
    ///
    /// # Errors
    /// What the kernel says, which it should not.
    pub fn ids(&self, kernel: &dyn Kernel) -> io::Result<Vec<Vec<u64>>> {
        self.events
            .iter()
            .map(|event| event.fds.iter().flatten().map(|fd| kernel.id(fd.as_fd())).collect())
            .collect()
    }

    /// How many descriptors are open.
    pub fn descriptors(&self) -> usize {
        self.events.iter().map(|event| event.fds.iter().map(Vec::len).sum::<usize>()).sum()
    }

    /// Enables leaders and single events, CPU by CPU; those that are [`Request::immediate`] only, or all others only.
    ///
    /// # Errors
    /// The first refusal.
    pub fn enable(&self, kernel: &dyn Kernel, immediate: bool) -> io::Result<()> {
        self.each_leader(immediate, &mut |fd| kernel.enable(fd.as_fd()))
    }

    /// Disables leaders and single events: those that only track mappings last, so that no mapping is missed.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn disable(&self, kernel: &dyn Kernel) -> io::Result<()> {
        let mut result = Ok(());
        for immediate in [false, true] {
            let _ = self.each_leader(immediate, &mut |fd| {
                let one = kernel.disable(fd.as_fd());
                if result.is_ok() {
                    result = one;
                }
                Ok(())
            });
        }
        result
    }

    fn each_leader(
        &self,
        immediate: bool,
        act: &mut dyn FnMut(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<()> {
        for cpu in self.cpus() {
            for event in self.events.iter().filter(|e| e.request.leader.is_none()) {
                if event.request.immediate == immediate
                    && let Ok(row) = event.cpus.binary_search(&cpu)
                {
                    event.fds[row].iter().try_for_each(&mut *act)?;
                }
            }
        }
        Ok(())
    }

    /// All CPUs that any event is opened on, ascending.
    pub fn cpus(&self) -> Vec<i32> {
        let mut cpus: Vec<i32> = self.events.iter().flat_map(|event| event.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Reads how many samples each descriptor lost; only those that lost any. Empty on kernels before 6.0, which do not count.
    pub fn lost(&self, kernel: &dyn Kernel) -> Vec<Lost> {
        let mut found = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            let format = event.request.attr.read_format;
            if format & Perf::FORMAT_LOST == 0 {
                continue;
            }
            let times = u64::from(format & Perf::FORMAT_TOTAL_TIME_ENABLED != 0)
                + u64::from(format & Perf::FORMAT_TOTAL_TIME_RUNNING != 0);
            let members = self.events.len();
            let mut words = vec![0u64; 3 + 3 * members];
            for (row, &cpu) in event.cpus.iter().enumerate() {
                for (column, fd) in event.fds[row].iter().enumerate() {
                    let Ok(read) = kernel.read(fd.as_fd(), &mut words) else { continue };
                    let words = &words[..read.min(words.len())];
                    // A group read begins with its count and then has the leader's own values first.
                    let value = if format & Perf::FORMAT_GROUP != 0 { 1 + times as usize } else { 0 };
                    let (id, lost) = if format & Perf::FORMAT_GROUP != 0 {
                        let id = kernel.id(fd.as_fd()).unwrap_or(0);
                        let own = words.get(value..).unwrap_or(&[]).chunks_exact(3).find(|c| c[1] == id);
                        (id, own.map_or(0, |c| c[2]))
                    } else {
                        let at = value + 1 + times as usize;
                        (words.get(at).copied().unwrap_or(0), words.get(at + 1).copied().unwrap_or(0))
                    };
                    if lost > 0 {
                        found.push(Lost { event: index, cpu, task: self.tasks[column], id, lost });
                    }
                }
            }
        }
        found
    }
}
