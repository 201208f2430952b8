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
mod batch;
mod fallback;
mod note;
mod rings;
mod serial;
mod shape;
mod switch;
mod table;
#[cfg(test)]
mod tests;

pub use note::{Feature, Note, OpenError, Shortage, Stage};
pub use rings::{MappedRing, RingError};

use crate::sys::{ANY, Descriptor, Kernel, Perf, perf_event_attr};
use fallback::Fallbacks;
use shape::Shape;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use table::Table;

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
#[derive(Clone, Debug)]
pub struct Targets {
    /// Thread ids, or [`ANY`] alone for all tasks.
    pub tasks: Vec<i32>,
    /// CPU numbers, ascending, or [`ANY`] alone for per-thread events.
    pub cpus: Vec<i32>,
    /// Tasks that vanish before they are opened are left out, as long as one remains.
    pub ignore_missing: bool,
    /// The directory of a cgroup whose tasks are observed, present and future ones; `tasks` is [`ANY`] alone then.
    pub cgroup: Option<Arc<OwnedFd>>,
}

impl Targets {
    fn new(tasks: Vec<i32>, cpus: Vec<i32>, ignore_missing: bool) -> Targets {
        Targets { tasks, cpus, ignore_missing, cgroup: None }
    }

    /// All tasks of a cgroup, present and future, on these CPUs: one descriptor per CPU.
    pub fn cgroup(directory: Arc<OwnedFd>, cpus: &[u32]) -> Targets {
        Targets { cgroup: Some(directory), ..Targets::system(cpus) }
    }

    /// Everything on these CPUs.
    pub fn system(cpus: &[u32]) -> Targets {
        Targets::new(vec![ANY], numbers(cpus), false)
    }

    /// These tasks, wherever they run: one descriptor per task and CPU, because the kernel maps no inherited event that is not bound to a CPU.
    pub fn tasks(tasks: Vec<i32>, cpus: &[u32]) -> Targets {
        Targets::new(tasks, numbers(cpus), true)
    }

    /// These tasks, one descriptor and one ring each; children are not followed.
    pub fn per_thread(tasks: Vec<i32>) -> Targets {
        Targets::new(tasks, vec![ANY], true)
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

fn numbers(cpus: &[u32]) -> Vec<i32> {
    cpus.iter().map(|&cpu| cpu as i32).collect()
}

/// Who makes the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The calling thread.
    Serial,
    /// Threads that live as long as the list.
    Parallel {
        /// How many; `None`: as many as there are CPUs that this process may use, or less where there is less to do.
        workers: Option<usize>,
    },
    /// The faster one for the number of descriptors.
    #[default]
    Auto,
}

/// One event of an open list.
#[derive(Debug)]
pub struct Event {
    /// The request as it was finally opened.
    pub request: Request,
    /// The CPUs it is opened on.
    pub cpus: Vec<i32>,
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
    kernel: Arc<dyn Kernel>,
    shape: Arc<Shape>,
    table: Arc<Table>,
}

/// Opens everything in the plan.
///
/// # Errors
/// [`OpenError`] names the event, task and CPU of the open that no fallback could save. Nothing stays open then.
pub fn open(kernel: Arc<dyn Kernel>, plan: Plan, engine: Engine) -> Result<Evlist, OpenError> {
    let mut fallbacks = Fallbacks::new(kernel.as_ref(), plan);
    let _ = engine;
    let table = serial::open(kernel.as_ref(), &mut fallbacks)?;
    let Fallbacks { shape, notes, .. } = fallbacks;
    let events = shape.events.iter().zip(&shape.cpus);
    let list = Evlist {
        events: events
            .map(|(request, cpus)| Event { request: request.clone(), cpus: cpus.clone() })
            .collect(),
        tasks: shape.tasks.clone(),
        notes,
        kernel,
        shape,
        table: Arc::new(table),
    };
    list.set_filters()?;
    Ok(list)
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
    pub fn ids(&self) -> io::Result<Vec<Vec<u64>>> {
        let events = self.table.events.iter();
        events.map(|rows| rows.iter().flatten().map(|fd| self.kernel.id(fd)).collect()).collect()
    }

    /// How many descriptors are open.
    pub fn descriptors(&self) -> usize {
        self.table.len()
    }

    fn set_filters(&self) -> Result<(), OpenError> {
        for (index, event) in self.events.iter().enumerate() {
            let Some(filter) = &event.request.filter else { continue };
            for fd in self.table.events[index].iter().flatten() {
                self.kernel.set_filter(fd, filter).map_err(|source| OpenError {
                    event: event.request.name.clone(),
                    index,
                    task: None,
                    cpu: None,
                    stage: Stage::Filter,
                    shortage: None,
                    source,
                })?;
            }
        }
        Ok(())
    }

    /// Attaches a BPF program to every descriptor of the events that `which` chooses: a sample is recorded if it returns other than 0.
    ///
    /// # Errors
    /// The first refusal; those before it keep the program.
    pub fn set_bpf(&self, program: BorrowedFd<'_>, mut which: impl FnMut(&Event) -> bool) -> io::Result<()> {
        let chosen = self.events.iter().zip(&self.table.events).filter(|(event, _)| which(event));
        chosen.flat_map(|(_, rows)| rows.iter().flatten()).try_for_each(|fd| self.kernel.set_bpf(fd, program))
    }

    /// Enables leaders and single events, CPU by CPU; those that are [`Request::immediate`] only, or all others only.
    ///
    /// # Errors
    /// The first refusal.
    pub fn enable(&self, immediate: bool) -> io::Result<()> {
        self.each_leader(immediate, &mut |fd| self.kernel.enable(fd))
    }

    /// Disables leaders and single events: those that only track mappings last, so that no mapping is missed.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn disable(&self) -> io::Result<()> {
        let mut result = Ok(());
        for immediate in [false, true] {
            let _ = self.each_leader(immediate, &mut |fd| {
                let one = self.kernel.disable(fd);
                if result.is_ok() {
                    result = one;
                }
                Ok(())
            });
        }
        result
    }

    /// Closes everything, as dropping does.
    pub fn close(self) {}

    fn each_leader(
        &self,
        immediate: bool,
        act: &mut dyn FnMut(&Descriptor) -> io::Result<()>,
    ) -> io::Result<()> {
        for cpu in self.cpus() {
            for (index, event) in self.events.iter().enumerate() {
                if self.shape.leads(index)
                    && event.request.immediate == immediate
                    && let Ok(row) = event.cpus.binary_search(&cpu)
                {
                    self.table.events[index][row].iter().try_for_each(&mut *act)?;
                }
            }
        }
        Ok(())
    }

    /// Everything of a CPU that can be polled: for its ring, the first that is alive matters.
    pub fn poll_fds(&self, cpu: i32) -> Vec<BorrowedFd<'_>> {
        let rows = self.events.iter().enumerate().filter_map(|(index, event)| {
            Some(&self.table.events[index][event.cpus.binary_search(&cpu).ok()?])
        });
        rows.flatten().filter_map(|fd| self.kernel.poll_fd(fd)).collect()
    }

    /// All CPUs that any event is opened on, ascending.
    pub fn cpus(&self) -> Vec<i32> {
        let mut cpus: Vec<i32> = self.events.iter().flat_map(|event| event.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Reads how many samples each descriptor lost; only those that lost any. Empty on kernels before 6.0, which do not count.
    pub fn lost(&self) -> Vec<Lost> {
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
                for (column, fd) in self.table.events[index][row].iter().enumerate() {
                    let Ok(read) = self.kernel.read(fd, &mut words) else { continue };
                    let words = &words[..read.min(words.len())];
                    // A group read begins with its count and then has the leader's own values first.
                    let value = if format & Perf::FORMAT_GROUP != 0 { 1 + times as usize } else { 0 };
                    let (id, lost) = if format & Perf::FORMAT_GROUP != 0 {
                        let id = self.kernel.id(fd).unwrap_or(0);
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

impl Drop for Evlist {
    fn drop(&mut self) {
        // Ours alone: workers give their share back when a phase ends.
        if let Some(table) = Arc::get_mut(&mut self.table) {
            std::mem::take(table).close(self.kernel.as_ref(), &self.shape);
        }
    }
}
