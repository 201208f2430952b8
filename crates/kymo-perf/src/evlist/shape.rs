//! The shape of a list during its opening: shared by all workers, changed only while none runs.
use super::{EvlistPlan, Request};
use crate::sys::{ANY, Descriptor, EventTarget, Kernel, exclude_hidden_frames, perf_event_attr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A place in the table of descriptors. Slots are ordered as the serial engine opens them: event,
/// CPU, task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventSlot {
    pub(crate) event: usize,
    /// Index among the CPUs of the event.
    pub(crate) row: usize,
    /// Index of the task.
    pub(crate) column: usize,
}

/// Events, CPUs and tasks as they are to be opened now.
#[derive(Clone, Debug)]
pub(crate) struct EvlistShape {
    /// The requests, as far as fallbacks have changed them.
    pub(crate) events: Vec<Request>,
    /// The leader of the batch that an event joins, if it does.
    pub(crate) batches: Vec<Option<usize>>,
    /// The CPUs of each event, ascending.
    pub(crate) cpus: Vec<Vec<i32>>,
    /// The tasks that are left.
    pub(crate) tasks: Vec<i32>,
    /// Whether the kernel knows close-on-exec.
    pub(crate) cloexec: bool,
    /// The CPUs of the target, ascending, with those where only mappings and names are tracked.
    pub(crate) target_cpus: Vec<i32>,
    /// Those without.
    observed_cpus: Vec<i32>,
    cgroup: Option<Arc<OwnedFd>>,
}

impl EvlistShape {
    pub(crate) fn new(plan: EvlistPlan) -> EvlistShape {
        let batches = super::batch::find(&plan.events);
        let (observed, tracked) = (plan.targets.cpus, plan.targets.tracked_cpus);
        let mut target_cpus: Vec<i32> = observed.iter().chain(&tracked).copied().collect();
        target_cpus.sort_unstable();
        target_cpus.dedup();
        let mut shape = EvlistShape {
            cpus: Vec::new(),
            batches,
            events: plan.events,
            tasks: plan.targets.tasks,
            cloexec: true,
            target_cpus,
            observed_cpus: observed,
            cgroup: plan.targets.cgroup,
        };
        shape.events.iter_mut().for_each(|request| exclude_hidden_frames(&mut request.attr));
        shape.cpus = (0..shape.events.len()).map(|event| shape.cover(event)).collect();
        shape
    }

    /// The CPUs of the target that the event's PMU covers.
    fn cover(&self, event: usize) -> Vec<i32> {
        let request = &self.events[event];
        let cpus = if request.immediate { &self.target_cpus } else { &self.observed_cpus };
        match &request.cpus {
            Some(own) if *cpus != [ANY] => {
                cpus.iter().copied().filter(|&cpu| own.contains(&(cpu as u32))).collect()
            }
            _ => cpus.clone(),
        }
    }

    /// Whether nothing but mappings and names is taken on the slot's CPU.
    pub(crate) fn only_tracked(&self, slot: EventSlot) -> bool {
        self.events[slot.event].immediate && !self.observed_cpus.contains(&self.cpus[slot.event][slot.row])
    }

    /// To be called when the event's PMU changed.
    pub(crate) fn cover_again(&mut self, event: usize) {
        self.cpus[event] = self.cover(event);
    }

    /// How many descriptors the list needs.
    pub(crate) fn descriptors(&self) -> usize {
        self.cpus.iter().map(Vec::len).sum::<usize>() * self.tasks.len()
    }

    /// How many slots come before this one.
    pub(crate) fn ordinal(&self, slot: EventSlot) -> usize {
        let rows: usize = self.cpus[..slot.event].iter().map(Vec::len).sum();
        (rows + slot.row) * self.tasks.len() + slot.column
    }

    /// The slot that this many come before; `None` beyond the last.
    pub(crate) fn slot(&self, ordinal: usize) -> Option<EventSlot> {
        let mut row = ordinal.checked_div(self.tasks.len())?;
        for (event, cpus) in self.cpus.iter().enumerate() {
            if row < cpus.len() {
                return Some(EventSlot { event, row, column: ordinal % self.tasks.len() });
            }
            row -= cpus.len();
        }
        None
    }

    /// The leader whose group the event joins: that which was asked for, or that of a batch.
    pub(crate) fn leader(&self, event: usize) -> Option<usize> {
        self.events[event].leader.or(self.batches[event])
    }

    /// Whether the event is switched by itself: it leads, or is alone.
    pub(crate) fn leads(&self, event: usize) -> bool {
        self.leader(event).is_none()
    }

    /// The attr that the kernel gets; in files it stands as it was asked for.
    fn attr(&self, event: usize) -> perf_event_attr {
        let mut attr = self.events[event].attr;
        if self.batches[event].is_some() {
            // The leader of the batch starts it.
            attr.set_disabled(0);
            attr.set_enable_on_exec(0);
        }
        attr
    }

    /// Whether the slot's leader is not on its CPU, so that it is refused before the kernel is
    /// asked.
    pub(crate) fn lacks_leader(&self, slot: EventSlot) -> bool {
        let cpu = self.cpus[slot.event][slot.row];
        self.leader(slot.event).is_some_and(|leader| self.cpus[leader].binary_search(&cpu).is_err())
    }

    /// Opens one slot. `leader` gives the descriptor of an event in the row of a CPU and the column
    /// of this slot.
    pub(crate) fn open<'a>(
        &self,
        kernel: &dyn Kernel,
        slot: EventSlot,
        leader: impl FnOnce(usize, usize) -> Option<&'a Descriptor>,
    ) -> io::Result<Descriptor> {
        let cpu = self.cpus[slot.event][slot.row];
        let mut place = EventTarget::new(self.tasks[slot.column], cpu);
        place.cloexec = self.cloexec;
        place.to_its_end = self.events[slot.event].is_uprobe();
        place.cgroup = self.cgroup.as_ref().map(|fd| fd.as_fd());
        if let Some(event) = self.leader(slot.event) {
            // A leader that does not cover this CPU cannot lead here.
            let row = self.cpus[event].binary_search(&cpu).ok();
            let fd = row.and_then(|row| leader(event, row));
            place.group = Some(fd.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?);
        }
        let attr = self.attr(slot.event);
        loop {
            match kernel.open(&attr, &place) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}
