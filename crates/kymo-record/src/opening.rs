//! Opens what the plan says (scope, events, rings), and describes it for the file's header.
use crate::budget::Budget;
use crate::drain::RingSource;
use crate::error::{PlanError, RecordError, system};
use crate::lock_holds::HoldSource;
use crate::observe::Observer;
use crate::plan::RecordingPlan;
use crate::python::PythonStacks;
use crate::user_rings::{DrainedUserRings, UserEvent};
use crate::{locks, waits};
use kymo_data::{Attr, Event, EventSet, EventSpec, Features, abi};
use kymo_perf::evlist::{self, Evlist, MappedRing, OpenEngine, OpenError};
use kymo_perf::sys::{self, Kernel};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// What a session has opened. Every stage of the pipeline borrows from it.
pub(crate) struct Opened {
    pub(crate) plan: RecordingPlan,
    // Rings before events: an event's ring is unmapped before it is closed.
    pub(crate) rings: Vec<MappedRing>,
    /// Rings that keep the newest records, and are not drained.
    pub(crate) kept: Vec<MappedRing>,
    pub(crate) events: Evlist,
    /// The events as the recording has them.
    pub(crate) specs: Vec<EventSpec>,
    /// The events as the kernel writes their samples, if the recording has them otherwise.
    pub(crate) by_kernel: Option<Arc<EventSet>>,
    pub(crate) budget: Budget,
    pub(crate) observer: Observer,
    pub(crate) holds: Mutex<Holds>,
}

/// Who tells how long locks are held, and what it said at the end besides.
#[derive(Default)]
pub(crate) struct Holds {
    pub(crate) source: Option<Box<dyn HoldSource>>,
    pub(crate) remarks: Vec<String>,
}

impl Opened {
    /// Has waits, locks and holds of locks counted from now on, also of threads that wait already.
    pub(crate) fn begin_waits_and_locks(&self) {
        let (plan, observer) = (&self.plan, &self.observer);
        if let Some(waits) = &observer.waits {
            let by_thread = !plan.options.targets.tids.is_empty();
            waits.begin();
            waits.enter_existing(&plan.observed, &observer.processes(plan), by_thread);
        }
        if let Some(locks) = &observer.locks {
            locks.tracer.begin();
            locks.enter_existing(&observer.processes(plan));
            self.begin_holds();
        }
    }

    fn begin_holds(&self) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.source.iter_mut().for_each(|source| source.begin());
    }

    /// What records of waits have not told, when the events are off.
    pub(crate) fn untold_waits(&self) -> Vec<u8> {
        let locks = self.observer.locks.as_ref().zip(self.plan.lock_event);
        if let Some((locks, event)) = locks {
            let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
            let told = holds.source.take().map(|mut source| source.end());
            let (report, remarks) = told.unwrap_or_default();
            holds.remarks = remarks;
            return locks.end(&self.specs, event, self.plan.options.clock, &report);
        }
        let waits = self.observer.waits.as_ref().zip(self.plan.wait_event);
        let spec = waits.and_then(|(waits, event)| Some((waits, self.specs.get(event)?)));
        let python = self
            .observer
            .python
            .as_ref()
            .zip(self.by_kernel.as_ref())
            .map(|(python, events)| PythonStacks::at_end(Arc::clone(&python.interpreters), events));
        spec.map(|(waits, spec)| waits.end(spec, self.plan.options.clock, python)).unwrap_or_default()
    }
}

/// Sets up the scope and opens events and rings. A scope that turns out to be impossible makes way
/// for the next best, unless it was asked for.
pub(crate) fn open(
    kernel: &Arc<dyn Kernel>,
    plan: &mut RecordingPlan,
) -> Result<(Observer, Evlist, Vec<MappedRing>), RecordError> {
    loop {
        let reason = match Observer::prepare(kernel.as_ref(), plan) {
            Ok(mut observer) => match open_events(kernel, plan) {
                Ok(_) if plan.tasks_have_come() => continue,
                Ok((events, rings)) => {
                    observer.bind(&events).map_err(system("attach the filter of tasks to the events"))?;
                    return Ok((observer, events, rings));
                }
                Err(RecordError::Open(error)) if refused(&error) && plan.has_other_scope() => {
                    error.to_string()
                }
                Err(error) => return Err(error),
            },
            Err(reason) => match plan.lock_refusal.take() {
                Some(reason) => return Err(PlanError::Locks(reason).into()),
                None => reason,
            },
        };
        plan.give_up_scope(reason)?;
    }
}

/// Whether the kernel forbids it, or does not have it.
fn refused(error: &OpenError) -> bool {
    let errno = error.source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP))
}

/// Opens events and rings; where rings must be smaller than planned, once more with earlier
/// wakeups.
fn open_events(
    kernel: &Arc<dyn Kernel>,
    plan: &mut RecordingPlan,
) -> Result<(Evlist, Vec<MappedRing>), RecordError> {
    let engine = match plan.options.jobs {
        None => OpenEngine::Auto,
        Some(1) => OpenEngine::Serial,
        Some(workers) => OpenEngine::Parallel { workers: Some(workers) },
    };
    let mut shrunk = None;
    loop {
        let mut events = evlist::open(Arc::clone(kernel), plan.open.clone(), engine)?;
        let rings = events.map_rings(plan.ring_pages, plan.ring_may_shrink)?;
        let pages = rings.iter().map(|ring| ring.ring.size_bytes() / sys::page_size()).max();
        let pages = pages.unwrap_or(plan.ring_pages);
        if pages >= plan.ring_pages {
            events.notes.extend(shrunk);
            return Ok((events, rings));
        }
        shrunk = events.notes.pop();
        plan.set_ring_pages(pages);
    }
}

pub(crate) fn spec(event: &kymo_perf::evlist::OpenEvent, ids: Vec<u64>) -> EventSpec {
    // Always long enough: the kernel's struct is.
    let attr = Attr::parse(&sys::attr_bytes(&event.request.attr)).unwrap_or_default();
    EventSpec { attr, ids, name: event.request.name.clone() }
}

/// The events of samples as the kernel writes them.
pub(crate) fn event_set(specs: &[EventSpec]) -> EventSet {
    let events = specs.iter().enumerate();
    let events = events.map(|(index, spec)| Event::new(spec.attr.clone(), spec.ids.clone(), index));
    EventSet::new(events.collect())
}

/// Completes what is known of the machine and the formats by what is recorded.
pub(crate) fn features(machine: Features, events: &Evlist, specs: &[EventSpec]) -> Features {
    let mut features = machine;
    features.event_desc = specs.iter().map(EventSpec::desc).collect();
    let leaders =
        events.events.iter().enumerate().map(|(index, event)| event.request.leader.unwrap_or(index));
    // Events of programs lead themselves.
    let leaders = leaders.chain(events.events.len()..specs.len());
    features.groups = kymo_data::groups(&leaders.collect::<Vec<_>>());
    features
}

/// The formats of the tracepoints, without which no reader can print their fields.
pub(crate) fn tracing_data(
    plan: &RecordingPlan,
    user_rings: &[UserEvent],
) -> Result<Option<Vec<u8>>, RecordError> {
    let waits = plan.wait_event.map(|_| waits::events());
    let locks = plan.lock_event.map(|_| locks::events(plan.options.holds));
    let own = waits.into_iter().flatten().chain(locks.into_iter().flatten());
    let described: Vec<UserEvent> = user_rings.iter().cloned().chain(own).collect();
    if plan.tracepoints.is_empty() && described.is_empty() {
        return Ok(None);
    }
    crate::formats::data(&plan.tracepoints, &described)
        .map(Some)
        .map_err(system("read the formats of tracepoints"))
}

/// The rings by the thread that drains them: one per CPU, or one for all per-thread rings.
pub(crate) fn sources<'a>(
    events: &'a Evlist,
    rings: &'a [MappedRing],
) -> Vec<(Option<u32>, Vec<RingSource<'a>>)> {
    let mut groups: Vec<(Option<u32>, Vec<RingSource<'_>>)> = Vec::new();
    for (index, mapped) in rings.iter().enumerate() {
        let cpu = u32::try_from(mapped.cpu).ok();
        let fds = if cpu.is_none() {
            events.poll_fd(mapped).into_iter().collect()
        } else {
            events.poll_fds(mapped.cpu)
        };
        let source = RingSource { index, ring: &mapped.ring, fds, user_ring: None };
        match groups.last_mut() {
            Some(group) if group.0 == cpu => group.1.push(source),
            _ => groups.push((cpu, vec![source])),
        }
    }
    groups
}

/// Adds a program's rings to those that each CPU's drain empties. `first`: how many rings precede
/// them.
pub(crate) fn add_user_rings<'a>(
    groups: &mut [(Option<u32>, Vec<RingSource<'a>>)],
    user_rings: &'a DrainedUserRings,
    first: usize,
) {
    let Some(last) = groups.len().checked_sub(1) else { return };
    for (cpu, ring, user_ring) in user_rings.readers() {
        let own = groups.iter().position(|(of, _)| *of == Some(cpu));
        // The ring of a CPU without a drain goes to another drain.
        let group = &mut groups[own.unwrap_or(last.min(cpu as usize))];
        let user_ring = Some(user_ring);
        group.1.push(RingSource { index: first + cpu as usize, ring, fds: Vec::new(), user_ring });
    }
}

/// Whether the records of mappings have build ids where the kernel finds some.
pub(crate) fn has_build_ids(specs: &[EventSpec]) -> bool {
    specs.iter().any(|spec| spec.attr.flags & abi::ATTR_FLAG_BUILD_ID != 0)
}
