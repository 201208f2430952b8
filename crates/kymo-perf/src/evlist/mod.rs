//! A list of events, opened for tasks and CPUs: open, map, enable, disable, read the losses, close.
//!
//! *You give it* a [`EvlistPlan`] with resolved events and [`Targets`], and say which
//! [`OpenEngine`] is to make the calls. *It gives you* an [`Evlist`], which owns its descriptors
//! and its workers, and whose [`Note`]s say what had to be changed to make the machine accept it.
//!
//! ```text
//!  Plan: events x targets       Shape: what is to be opened now      Units: one per worker's share
//!  +--------+  +----------+     (batches, leaders, attrs)           CPU-wide: one CPU      tasks: those that ran last there
//!  | cycles |  | tasks .. |          |                               cpu 0: event 0  fd     event 0  cpu 0  fd fd fd
//!  | faults |  | cpus ..  |---> open |---> serial: one unit                 event 1  fd              cpu 1  fd fd fd
//!  +--------+  +----------+          |---> parallel: units side     cpu 1: event 0  fd     event 1 ...
//!                    ^               |     by side, then a barrier
//!                    +-- Fallbacks <-+ refused: one decision for the first refusal in serial order
//! ```
//!
//! # Invariants
//! - **E1** After a success each event has one descriptor per (CPU of the event, surviving task);
//!   after a failure, and after closing, no descriptor is left, and none was closed twice.
//! - **E2** A member's group descriptor is its leader's at the same CPU and the same task.
//! - **E3** Fallbacks are monotone: precision only falls, features only go, tasks only shrink,
//!   exclusion only grows, groups only dissolve. So opening ends.
//! - **E4** For the same answers of the kernel both engines end with the same table, attrs, tasks,
//!   notes, or the same error, whatever the number of workers.
//! - **E5** All descriptors of an event were opened with the same attr: whatever changes it, closes
//!   and reopens all of them.
//! - **E6** Shared state changes only while all workers rest; the calling thread is never moved to
//!   another CPU.
//! - **E7** Members of a group or batch are closed before its leader, which would otherwise leave
//!   them enabled by themselves.
mod batch;
mod fallback;
mod note;
mod parallel;
mod read;
mod reopen;
mod rings;
mod serial;
mod shape;
#[cfg(test)]
mod tests;
mod unit;
mod workers;

pub(crate) use fallback::user_only_name;
pub use note::{Feature, Note, OpenError, Shortage, Stage};
pub(crate) use read::Read;
pub use reopen::{IdAlias, ReopenError};
pub use rings::{MappedRing, RingError, SIDE_RING_PAGES};

use crate::sys::{ANY, Kernel, Perf, perf_event_attr, with_priority};
use crate::tracefs::TracepointFilter;
use fallback::Fallbacks;
use shape::{EventSlot, EvlistShape};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use unit::{Unit, Units};
use workers::WorkerPool;

/// One event to open, resolved to what the kernel wants.
#[derive(Clone, Debug, Default)]
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
    pub filter: Option<TracepointFilter>,
    /// Tracks mappings and names: enabled at once and disabled last.
    pub immediate: bool,
    /// Will be switched by itself ([`Evlist::switch`]), so it must not share a switch with others.
    pub alone: bool,
}

impl Request {
    /// Whether opening and closing it changes programs' code: kymo's probes and those of
    /// `perf probe` are named so.
    fn is_uprobe(&self) -> bool {
        self.attr.type_ == Perf::TRACEPOINT && self.name.starts_with("probe")
    }

    /// A single event without conditions.
    pub fn new(name: impl Into<String>, attr: perf_event_attr) -> Request {
        Request { name: name.into(), attr, ..Request::default() }
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
    /// The directory of a cgroup whose tasks are observed, present and future ones; `tasks` is
    /// [`ANY`] alone then.
    pub cgroup: Option<Arc<OwnedFd>>,
    /// More CPUs, ascending, where only mappings and names are tracked ([`Request::immediate`]): a
    /// task that runs on an observed CPU may have started on another.
    pub tracked_cpus: Vec<i32>,
}

impl Targets {
    fn new(tasks: Vec<i32>, cpus: Vec<i32>, ignore_missing: bool) -> Targets {
        Targets { tasks, cpus, ignore_missing, cgroup: None, tracked_cpus: Vec::new() }
    }

    /// All tasks of a cgroup, present and future, on these CPUs: one descriptor per CPU.
    pub fn cgroup(directory: Arc<OwnedFd>, cpus: &[u32]) -> Targets {
        Targets { cgroup: Some(directory), ..Targets::system(cpus) }
    }

    /// Everything on these CPUs.
    pub fn system(cpus: &[u32]) -> Targets {
        Targets::new(vec![ANY], numbers(cpus), false)
    }

    /// These tasks, wherever they run: one descriptor per task and CPU, because the kernel maps no
    /// inherited event that is not bound to a CPU.
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
pub struct EvlistPlan {
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
pub enum OpenEngine {
    /// The calling thread.
    Serial,
    /// Threads that live as long as the list.
    Parallel {
        /// How many; `None`: as many as there are CPUs that this process may use, or fewer where
        /// there is less to do.
        workers: Option<usize>,
    },
    /// The faster one for the number of descriptors.
    #[default]
    Auto,
}

/// One event of an open list.
#[derive(Debug)]
pub struct OpenEvent {
    /// The request as it was finally opened.
    pub request: Request,
    /// The CPUs it is opened on.
    pub cpus: Vec<i32>,
}

/// An open list of events. Dropping it closes them.
#[derive(Debug)]
pub struct Evlist {
    /// The events in the order of the plan.
    pub events: Vec<OpenEvent>,
    /// The tasks that were there to be opened.
    pub tasks: Vec<i32>,
    /// What had to be changed, in order.
    pub notes: Vec<Note>,
    kernel: Arc<dyn Kernel>,
    shape: Arc<EvlistShape>,
    units: Arc<Units>,
    pool: Option<WorkerPool>,
    /// Whether each worker can switch all its events in one call.
    own: bool,
    /// What events of a CPU that comes back get again, and what those before them counted.
    after_opening: Mutex<reopen::AfterOpening>,
    /// Held while events are enabled, disabled or replaced.
    switching: Mutex<()>,
}

/// Opens everything in the plan.
///
/// # Errors
/// [`OpenError`] names the event, task and CPU of the open that no fallback could save. Nothing
/// stays open then.
pub fn open(kernel: Arc<dyn Kernel>, plan: EvlistPlan, engine: OpenEngine) -> Result<Evlist, OpenError> {
    let mut fallbacks = Fallbacks::new(kernel.as_ref(), plan);
    let pool = WorkerPool::start(workers(engine, kernel.as_ref(), &fallbacks.shape));
    let pool = Some(pool).filter(|pool| pool.len() > 0);
    let units = match &pool {
        Some(pool) => parallel::open(pool, &kernel, &mut fallbacks)?,
        None => vec![Unit::whole(serial::open(kernel.as_ref(), &mut fallbacks)?.events)],
    };
    let Fallbacks { shape, notes, .. } = fallbacks;
    let events = shape.events.iter().zip(&shape.cpus);
    let single = (0..shape.events.len()).all(|event| shape.leads(event));
    let own = pool.as_ref().is_some_and(|pool| pool.len() >= units.len());
    let list = Evlist {
        events: events
            .map(|(request, cpus)| OpenEvent { request: request.clone(), cpus: cpus.clone() })
            .collect(),
        tasks: shape.tasks.clone(),
        notes,
        kernel,
        units: Arc::new(Units::new(units, &shape)),
        own: own && single && !shape.events.iter().any(|request| request.immediate || request.is_uprobe()),
        shape,
        pool,
        after_opening: Mutex::default(),
        switching: Mutex::default(),
    };
    list.set_filters()?;
    Ok(list)
}

/// From how many descriptors on workers are worth their start. Measured with the example
/// `evlist_speed` on two CPUs, the fewest that can help: bench/runs/2026-11-21-evlist-speed.txt,
/// docs/internals/design/0002-event-lists.md.
const PARALLEL_FROM: usize = 128;

/// So many descriptors each worker must have, or there are fewer workers. In the run above a
/// descriptor of a CPU-wide list takes 13 us from opening to closing, and each of two workers costs
/// 0.15 ms in all (the least values; three times as much on a machine that is busy). So a worker
/// has at least five times as much to do as it costs, or is not started. Without that, 16 and 61
/// virtual CPUs that two real ones carried had as many workers, which waited for each other: a list
/// of 20 events on each took 2.5 times as long as perf's single thread.
const LEAST_PER_WORKER: usize = PARALLEL_FROM / 2;

/// From how many short calls on it is worth to wake the workers for them: waking costs as much as
/// 300.
const WORTH_WAKING_FOR: usize = 1000;

/// How many workers to start; 0: none, the calling thread does it.
fn workers(engine: OpenEngine, kernel: &dyn Kernel, shape: &EvlistShape) -> usize {
    let cpus = shape.cpus.iter().map(Vec::len).max().unwrap_or(0);
    // More would have nothing to do.
    let most = if shape.tasks.len() > 1 { shape.tasks.len() } else { cpus };
    // Not what the standard library says: it reads a dozen files of cgroups about it, and a share
    // of a CPU is no CPU.
    let here = || rustix::thread::sched_getaffinity(None).map_or(1, |cpus| cpus.count() as usize);
    match engine {
        OpenEngine::Serial => 0,
        OpenEngine::Parallel { workers } => workers.unwrap_or_else(here).clamp(1, most.max(1)),
        OpenEngine::Auto => {
            // All events of one task are in one context, which one caller at a time can change.
            let divisible = shape.tasks.len() > 1 || shape.tasks == [ANY];
            if most < 2 || !divisible || shape.descriptors() < PARALLEL_FROM {
                return 0;
            }
            let count = here().min(most).min(shape.descriptors() / LEAST_PER_WORKER);
            let cpu = rustix::thread::sched_getcpu() as u32;
            let pays = shape.tasks == [ANY] || parallel::pays(kernel, shape, count, cpu);
            if count > 1 && pays { count } else { 0 }
        }
    }
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
        let events = self.events.len();
        let found = Arc::new(Mutex::new(Vec::with_capacity(self.descriptors())));
        let all = Arc::clone(&found);
        self.for_units(move |share| {
            let mut own = Vec::with_capacity(share.unit.len());
            for (slot, fd) in (0..events).flat_map(|event| share.unit.event(share.shape, event)) {
                own.push(((slot.event, slot.row, slot.column), share.kernel.id(fd)?));
            }
            all.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
            Ok(())
        })?;
        let mut found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        found.sort_unstable();
        let mut ids = vec![Vec::new(); events];
        found.into_iter().for_each(|((event, ..), id)| ids[event].push(id));
        Ok(ids)
    }

    /// How many descriptors are open.
    pub fn descriptors(&self) -> usize {
        self.units.len()
    }

    /// How many workers there are; 0 if the calling thread does everything.
    pub fn workers(&self) -> usize {
        self.pool.as_ref().map_or(0, WorkerPool::len)
    }

    fn set_filters(&self) -> Result<(), OpenError> {
        for (index, event) in self.events.iter().enumerate() {
            let Some(filter) = event.request.filter.clone() else { continue };
            let set = move |share: &UnitContext<'_>| {
                share
                    .unit
                    .event(share.shape, index)
                    .try_for_each(|(_, fd)| share.kernel.set_filter(fd, &filter.text))
            };
            self.in_units(set).map_err(|source| OpenError {
                event: event.request.name.clone(),
                attr: Box::new(event.request.attr),
                index,
                task: None,
                cpu: None,
                stage: Stage::Filter,
                shortage: None,
                source,
            })?;
        }
        Ok(())
    }

    /// Attaches a BPF program to every descriptor of the events that `which` chooses: a sample is
    /// recorded if it returns other than 0.
    ///
    /// # Errors
    /// The first refusal; descriptors that have the program already keep it.
    pub fn set_bpf(
        &self,
        program: BorrowedFd<'_>,
        mut which: impl FnMut(&OpenEvent) -> bool,
    ) -> io::Result<()> {
        let chosen: Vec<usize> = (0..self.events.len()).filter(|&event| which(&self.events[event])).collect();
        let program = Arc::new(program.try_clone_to_owned()?);
        self.after_opening().programs.push((Arc::clone(&program), chosen.clone()));
        self.in_units(move |share| {
            let mut fds = chosen.iter().flat_map(|&event| share.unit.event(share.shape, event));
            fds.try_for_each(|(_, fd)| share.kernel.set_bpf(fd, program.as_fd()))
        })
    }

    /// Enables leaders and single events; those that are [`Request::immediate`] only, or all others
    /// only.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn enable(&self, immediate: bool) -> io::Result<()> {
        if immediate && !self.events.iter().any(|event| event.request.immediate) {
            return Ok(());
        }
        self.turn(true, immediate)
    }

    /// Disables leaders and single events: those that only track mappings last, so that no mapping
    /// is missed.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn disable(&self) -> io::Result<()> {
        let others = self.turn(false, false);
        let tracks = self.events.iter().any(|event| event.request.immediate);
        others.and(if tracks { self.turn(false, true) } else { Ok(()) })
    }

    /// Disables leaders and single events, but not those that only track mappings: what begins
    /// meanwhile is still known when sampling goes on.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn pause(&self) -> io::Result<()> {
        self.turn(false, false)
    }

    fn turn(&self, on: bool, immediate: bool) -> io::Result<()> {
        let leads =
            |&event: &usize| self.shape.leads(event) && self.events[event].request.immediate == immediate;
        let leaders: Vec<usize> = (0..self.events.len()).filter(leads).collect();
        if self.own {
            let _switching = self.switching.lock().unwrap_or_else(PoisonError::into_inner);
            self.after_opening().switched(&leaders, on);
            return self.in_units(move |share| with_priority(|| share.kernel.switch_own(on)));
        }
        self.switch_all(leaders, on)
    }

    fn switch_all(&self, events: Vec<usize>, on: bool) -> io::Result<()> {
        let _switching = self.switching.lock().unwrap_or_else(PoisonError::into_inner);
        self.after_opening().switched(&events, on);
        self.in_units(move |share| {
            let fds = events.iter().flat_map(|&event| share.unit.event(share.shape, event));
            with_priority(|| first(fds.map(|(_, fd)| share.kernel.switch(fd, on))))
        })
    }

    /// Enables or disables the events of this name, one by one also inside a group; they should be
    /// [`Request::alone`]. How many events have the name.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn switch(&self, name: &str, on: bool) -> io::Result<usize> {
        let named = (0..self.events.len()).filter(|&event| self.events[event].request.name == name);
        let named: Vec<usize> = named.collect();
        let count = named.len();
        self.switch_all(named, on).map(|()| count)
    }

    /// Closes everything, as dropping does.
    pub fn close(self) {}

    /// Runs something for every unit that is done as well on any CPU: in the workers if there is
    /// much of it.
    fn for_units(
        &self,
        act: impl Fn(&UnitContext<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<()> {
        if self.units.len() < WORTH_WAKING_FOR { self.here(act) } else { self.in_units(act) }
    }

    /// Runs something for every unit, in the calling thread.
    fn here(&self, act: impl Fn(&UnitContext<'_>) -> io::Result<()>) -> io::Result<()> {
        let shared =
            |unit| UnitContext { kernel: self.kernel.as_ref(), shape: &self.shape, unit, units: &self.units };
        first(self.units.as_slice().iter().map(|unit| act(&shared(unit))))
    }

    /// Runs something for every unit, in its worker if it has one. The first error in the order of
    /// units, after all have run.
    fn in_units(
        &self,
        act: impl Fn(&UnitContext<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let count = self.units.as_slice().len();
        let Some(pool) = &self.pool else { return self.here(act) };
        let (act, alone) = (Arc::new(act), count <= pool.len());
        let jobs = (0..count).map(|unit| {
            let (kernel, shape) = (Arc::clone(&self.kernel), Arc::clone(&self.shape));
            let (units, act) = (Arc::clone(&self.units), Arc::clone(&act));
            move |binding: &mut workers::CpuBinding| {
                let unit = &units.as_slice()[unit];
                binding.take(kernel.as_ref(), unit.home);
                let result =
                    act(&UnitContext { kernel: kernel.as_ref(), shape: &shape, unit, units: &units });
                if !alone {
                    binding.leave(kernel.as_ref());
                }
                result
            }
        });
        first(pool.run(jobs).into_iter())
    }

    /// Everything of a CPU that can be polled: for its ring, the first that is alive matters.
    /// Without events that keep the newest records: nobody waits for those.
    pub fn poll_fds(&self, cpu: i32) -> Vec<BorrowedFd<'_>> {
        let rows = self.events.iter().enumerate().filter_map(|(index, event)| {
            let row = event.cpus.binary_search(&cpu).ok()?;
            if event.request.attr.write_backward() == 1 {
                return None;
            }
            Some((0..self.tasks.len()).map(move |column| EventSlot { event: index, row, column }))
        });
        let fds = rows.flatten().filter_map(|slot| self.units.get(&self.shape, slot));
        fds.filter_map(|fd| self.kernel.poll_fd(fd)).collect()
    }

    /// The descriptors of an event, each with its CPU.
    pub fn event_fds(&self, event: usize) -> Vec<(i32, BorrowedFd<'_>)> {
        let cpus = self.events.get(event).map_or(&[][..], |event| &event.cpus);
        let rows = cpus.iter().enumerate().filter_map(|(row, &cpu)| {
            let fd = self.units.get(&self.shape, EventSlot { event, row, column: 0 })?;
            Some((cpu, self.kernel.poll_fd(fd)?))
        });
        rows.collect()
    }

    /// All CPUs that any event is opened on, ascending.
    pub fn cpus(&self) -> Vec<i32> {
        let mut cpus: Vec<i32> = self.events.iter().flat_map(|event| event.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Reads how many samples each descriptor lost; only those that lost any. Empty on kernels
    /// before 6.0, which do not count.
    pub fn lost(&self) -> Vec<Lost> {
        let mut found = self.after_opening().lost.clone();
        for (index, event) in self.events.iter().enumerate() {
            let format = event.request.attr.read_format;
            if format & Perf::FORMAT_LOST == 0 {
                continue;
            }
            let has = |bit| usize::from(format & bit != 0);
            let times = has(Perf::FORMAT_TOTAL_TIME_ENABLED) + has(Perf::FORMAT_TOTAL_TIME_RUNNING);
            let mut words = vec![0u64; 3 + 3 * self.events.len()];
            for (EventSlot { row, column, .. }, fd) in self.units.event(&self.shape, index) {
                let Ok(read) = self.kernel.read(fd, &mut words) else { continue };
                let values = words[..read.min(words.len())].get(1 + times..).unwrap_or(&[]);
                // A group read begins with its count and then has the leader's own values first.
                let (id, lost) = if has(Perf::FORMAT_GROUP) == 1 {
                    let id = self.kernel.id(fd).unwrap_or(0);
                    (id, values.chunks_exact(3).find(|own| own[1] == id).map_or(0, |own| own[2]))
                } else {
                    (values.first().copied().unwrap_or(0), values.get(1).copied().unwrap_or(0))
                };
                let id = self.after_opening().first_id(id);
                if lost > 0 {
                    found.push(Lost {
                        event: index,
                        cpu: event.cpus[row],
                        task: self.tasks[column],
                        id,
                        lost,
                    });
                }
            }
        }
        found
    }
}

impl Drop for Evlist {
    fn drop(&mut self) {
        // Ours alone: workers drop their share of it before they say that they are done.
        let Some(units) = Arc::get_mut(&mut self.units).map(std::mem::take) else { return };
        let mut units = units.into_vec();
        match &self.pool {
            Some(pool) => parallel::close(pool, &self.kernel, &self.shape, units),
            None => units.iter_mut().for_each(|unit| unit.close(self.kernel.as_ref(), &self.shape)),
        }
    }
}

/// What an action on a unit gets.
struct UnitContext<'a> {
    kernel: &'a dyn Kernel,
    shape: &'a EvlistShape,
    unit: &'a Unit,
    units: &'a Units,
}

/// The first error, after all were run.
fn first(results: impl Iterator<Item = io::Result<()>>) -> io::Result<()> {
    results.fold(Ok(()), io::Result::and)
}
