//! Takes up the events of a CPU that went offline and came back.
//!
//! The kernel ends the events of a CPU that goes: they stay open, count no more, and nothing
//! enables them again. So they are opened anew when the CPU is back, and take the places of the old
//! ones:
//!
//! ```text
//!  the CPU goes       number 7 --> event, ended ---> ring (mapped, what was in it can still be read)
//!  it comes back      number 9 --> new event -----------^  SET_OUTPUT; filter and program as before
//!                     dup3(9, 7); close(9):  number 7 --> new event --> the same ring
//! ```
//! The table of descriptors, the rings and who polls them stay as they are. What changes is the id
//! of the event, which samples carry: the caller gets pairs of ids ([`IdAlias`]) and translates.
//! The old events' counts and losses are read before, and added to those of the new ones.
//!
//! Events of tasks need none of this: the kernel keeps them with the task.
use super::rings::keeps;
use super::{ANY, EventSlot, Evlist, Lost, Read, UnitContext};
use crate::sys::{Descriptor, Perf};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ids of an event that was opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdAlias {
    /// The id that its records carry now.
    pub new: u64,
    /// The id that the event of this place had at first.
    pub first: u64,
}

/// Why the events of a CPU were not opened anew.
#[derive(Debug, thiserror::Error)]
pub enum ReopenError {
    /// The CPU was not online when the list was opened, so it has no place and no ring.
    #[error("it was not online at the start")]
    NotThere,
    /// Samples carry values of the group with ids, which are not translated.
    #[error("group reads (`:S`) are not taken up again")]
    GroupRead,
    /// What the kernel says.
    #[error(transparent)]
    Kernel(#[from] io::Error),
}

/// What is done to the events of a list after they were opened: a CPU that comes back gets it
/// again.
#[derive(Debug, Default)]
pub(super) struct AfterOpening {
    /// Whether rings are mapped.
    pub(super) has_rings: bool,
    /// Programs and the events that have them.
    pub(super) programs: Vec<(Arc<OwnedFd>, Vec<usize>)>,
    /// Events that are enabled.
    enabled: Vec<usize>,
    /// What events counted that were replaced since: value, time enabled, time running.
    counts: BTreeMap<EventSlot, [u64; 3]>,
    /// What they lost.
    pub(super) lost: Vec<Lost>,
    /// The ids of those that replaced them.
    aliases: Vec<IdAlias>,
}

impl AfterOpening {
    pub(super) fn switched(&mut self, events: &[usize], on: bool) {
        self.enabled.retain(|event| !events.contains(event));
        if on {
            self.enabled.extend(events);
        }
    }

    /// The id that the event had at first.
    pub(super) fn first_id(&self, id: u64) -> u64 {
        self.aliases.iter().find(|alias| alias.new == id).map_or(id, |alias| alias.first)
    }

    /// Adds what earlier events of the same places counted.
    pub(super) fn add_counts(&self, reads: &mut [(EventSlot, Read)]) {
        for (slot, read) in reads {
            if let Some([value, enabled_ns, running_ns]) = self.counts.get(slot) {
                read.value += value;
                read.enabled_ns += enabled_ns;
                read.running_ns += running_ns;
            }
        }
    }
}

impl Evlist {
    pub(super) fn after_opening(&self) -> MutexGuard<'_, AfterOpening> {
        self.after_opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the events of a CPU anew that went offline and came back, and enables those that are
    /// enabled elsewhere. `ids` gets the ids of the new events before one of them is enabled.
    /// `false` for events of tasks, which go on by themselves.
    ///
    /// # Errors
    /// [`ReopenError`]: the events of this CPU, old or new, count nothing more.
    pub fn reopen(&self, cpu: i32, ids: &mut dyn FnMut(&[IdAlias])) -> Result<bool, ReopenError> {
        let cpus = self.cpus();
        if !cpus.contains(&cpu) && cpus != [ANY] {
            return Err(ReopenError::NotThere);
        }
        if self.tasks != [ANY] {
            return Ok(false);
        }
        // Nothing is enabled or disabled meanwhile.
        let _switching = self.switching.lock().unwrap_or_else(PoisonError::into_inner);
        if self.events.iter().any(|event| event.request.attr.sample_type & Perf::SAMPLE_READ != 0) {
            return Err(ReopenError::GroupRead);
        }
        // Before they are replaced.
        let (lost, counts) = (self.lost(), self.read().unwrap_or_default());
        let task = {
            let after = self.after_opening();
            Arc::new(Reopening {
                cpu,
                has_rings: after.has_rings,
                programs: after.programs.clone(),
                enabled: after.enabled.clone(),
                aliases: Mutex::default(),
            })
        };
        let shared = Arc::clone(&task);
        self.in_units(move |unit| unit.reopen(&shared))?;
        let mut aliases = std::mem::take(&mut *task.aliases.lock().unwrap_or_else(PoisonError::into_inner));
        let mut after = self.after_opening();
        for alias in &mut aliases {
            alias.first = after.first_id(alias.first);
        }
        after.aliases.extend(&aliases);
        after.lost.retain(|lost| lost.cpu != cpu);
        after.lost.extend(lost.iter().filter(|lost| lost.cpu == cpu));
        for read in counts.iter().filter(|read| read.cpu == cpu) {
            let row = self.shape.cpus[read.event].binary_search(&cpu).unwrap_or_default();
            let slot = EventSlot { event: read.event, row, column: 0 };
            after.counts.insert(slot, [read.value, read.enabled_ns, read.running_ns]);
        }
        drop(after);
        ids(&aliases);
        self.in_units(move |unit| unit.enable_anew(&task))?;
        Ok(true)
    }
}

/// What the workers share while they open a CPU's events anew.
#[derive(Debug)]
struct Reopening {
    cpu: i32,
    has_rings: bool,
    programs: Vec<(Arc<OwnedFd>, Vec<usize>)>,
    enabled: Vec<usize>,
    aliases: Mutex<Vec<IdAlias>>,
}

impl UnitContext<'_> {
    /// Replaces the events of the CPU that are in this unit. If one is refused, none is replaced.
    fn reopen(&self, task: &Reopening) -> io::Result<()> {
        let mut fresh: Vec<(EventSlot, Descriptor)> = Vec::new();
        if let Err(error) = self.open_anew(task, &mut fresh) {
            // Members before their leaders.
            fresh.into_iter().rev().for_each(|(_, fd)| self.kernel.close(vec![fd]));
            return Err(error);
        }
        let mut replaced = Ok(());
        for (slot, fd) in fresh.into_iter().rev() {
            match self.units.get(self.shape, slot) {
                Some(old) => replaced = replaced.and(self.kernel.replace(old, fd)),
                None => self.kernel.close(vec![fd]),
            }
        }
        replaced
    }

    /// Enables the CPU's events that are enabled elsewhere: what tracks names and mappings first,
    /// so that no sample comes before them.
    fn enable_anew(&self, task: &Reopening) -> io::Result<()> {
        let events = 0..self.shape.events.len();
        let (first, then): (Vec<usize>, Vec<usize>) = (events.filter(|event| task.enabled.contains(event)))
            .partition(|&event| self.shape.events[event].immediate);
        let of_cpu = first.into_iter().chain(then).flat_map(|event| {
            let slots = self.unit.event(self.shape, event);
            slots.filter(move |(slot, _)| self.shape.cpus[event][slot.row] == task.cpu)
        });
        super::first(of_cpu.map(|(_, fd)| self.kernel.switch(fd, true)))
    }

    /// Opens the CPU's events with their rings, filters and programs, disabled as at first.
    fn open_anew(&self, task: &Reopening, fresh: &mut Vec<(EventSlot, Descriptor)>) -> io::Result<()> {
        for event in 0..self.shape.events.len() {
            let places: Vec<(EventSlot, &Descriptor)> = (self.unit.event(self.shape, event))
                .filter(|(slot, _)| self.shape.cpus[event][slot.row] == task.cpu)
                .collect();
            for (slot, old) in places {
                let leader = |event: usize, row: usize| {
                    let found = fresh.iter().find(|(slot, _)| (slot.event, slot.row) == (event, row));
                    found.map(|(_, fd)| fd)
                };
                let fd = self.shape.open(self.kernel, slot, leader)?;
                fresh.push((slot, fd));
                let Some((_, fd)) = fresh.last() else { continue };
                if task.has_rings
                    && let Some(owner) = self.ring_owner(slot, task.cpu)
                {
                    self.kernel.set_output(fd, owner)?;
                    let alias = IdAlias { new: self.kernel.id(fd)?, first: self.kernel.id(old)? };
                    task.aliases.lock().unwrap_or_else(PoisonError::into_inner).push(alias);
                }
                if let Some(filter) = &self.shape.events[event].filter {
                    self.kernel.set_filter(fd, &filter.text)?;
                }
                for (program, events) in &task.programs {
                    if events.contains(&event) {
                        self.kernel.set_bpf(fd, program.as_fd())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The descriptor whose ring the slot writes into: the CPU's first one of the same kind.
    fn ring_owner(&self, slot: EventSlot, cpu: i32) -> Option<&Descriptor> {
        let kind = keeps(self.shape, slot);
        (0..self.shape.events.len())
            .flat_map(|event| self.unit.event(self.shape, event))
            .find(|(other, _)| {
                self.shape.cpus[other.event][other.row] == cpu && keeps(self.shape, *other) == kind
            })
            .map(|(_, fd)| fd)
    }
}
