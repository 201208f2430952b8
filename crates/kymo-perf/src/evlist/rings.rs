//! Rings for an open list: per CPU (or task) the first descriptor is mapped, the rest write into
//! it.
//!
//! A ring either keeps the oldest records or the newest, as its events say, and the kernel mixes no
//! two kinds. Where a list has both, each CPU has two rings.
use super::note::Note;
use super::shape::{EventSlot, EvlistShape};
use super::unit::{Share, Units};
use super::workers::CpuBinding;
use super::{ANY, Evlist, UnitContext};
use crate::ring::{Keeps, Ring};
use crate::sys::{Descriptor, Kernel};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// Pages of rings that hold only mappings and names: of CPUs where nothing else is observed, and
/// beside rings that keep the newest records. Fewer if the memory lock limit is too low.
pub const SIDE_RING_PAGES: usize = 32;

/// How large rings are to be.
#[derive(Clone, Copy)]
struct Sizes {
    pages: usize,
    /// Of rings for mappings and names alone.
    side: usize,
}

/// A ring and whose records it holds.
#[derive(Debug)]
pub struct MappedRing {
    /// The CPU, or [`ANY`] for a per-thread ring.
    pub cpu: i32,
    /// The task of a per-thread ring, otherwise [`ANY`] or the first of several.
    pub task: i32,
    /// The descriptor that is mapped and polled.
    pub(crate) owner: EventSlot,
    /// The memory.
    pub ring: Ring,
}

/// A ring could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("failed to {} the ring of {pages} pages of {event} on CPU {cpu}: {source}", if *.redirect { "share" } else { "map" })]
pub struct RingError {
    /// The event whose descriptor it was.
    pub event: String,
    /// The CPU, or -1.
    pub cpu: i32,
    /// The size that was tried last.
    pub pages: usize,
    /// Whether it was the redirection that failed.
    pub redirect: bool,
    /// Why.
    pub source: io::Error,
}

impl Evlist {
    /// Maps one ring of `pages` pages per CPU (per task where events are not bound to a CPU) and
    /// redirects all other descriptors into it. Events with `write_backward` have rings of their
    /// own; the others then have some of [`SIDE_RING_PAGES`]. Where the memory lock limit is too
    /// low and `shrink` is set, all rings become smaller, which is noted.
    ///
    /// # Errors
    /// [`RingError`] if a ring cannot be had even with one page.
    pub fn map_rings(&mut self, pages: usize, shrink: bool) -> Result<Vec<MappedRing>, RingError> {
        let mut now = pages.max(1).next_power_of_two();
        loop {
            let side = if now < pages { now.min(SIDE_RING_PAGES) } else { SIDE_RING_PAGES };
            match self.try_map(Sizes { pages: now, side }) {
                Err(error) if shrink && now > 1 && error.source.raw_os_error() == Some(libc::EPERM) => {
                    now /= 2
                }
                Ok(rings) if now < pages => {
                    self.notes.push(Note::SmallerRings { asked_pages: pages, pages: now });
                    self.after_opening().has_rings = true;
                    return Ok(rings);
                }
                result => {
                    self.after_opening().has_rings = result.is_ok();
                    return result;
                }
            }
        }
    }

    fn try_map(&self, sizes: Sizes) -> Result<Vec<MappedRing>, RingError> {
        let mut rings: Vec<MappedRing> = Vec::new();
        let mut owners: HashMap<(i32, i32, bool), EventSlot> = HashMap::new();
        let per_task = self.cpus() == [ANY];
        let fail = |slot: EventSlot, redirect, source| RingError {
            event: self.events[slot.event].request.name.clone(),
            cpu: self.shape.cpus[slot.event][slot.row],
            pages: sizes.pages,
            redirect,
            source,
        };
        if let Some(found) = self.map_by_unit(sizes) {
            return found.map_err(|(slot, redirect, source)| fail(slot, redirect, source));
        }
        let mut slots = Vec::new();
        for event in 0..self.events.len() {
            for row in 0..self.shape.cpus[event].len() {
                // Without per-task rings, all tasks of a CPU write where its first does.
                for column in 0..if per_task { self.tasks.len() } else { self.tasks.len().min(1) } {
                    let slot = EventSlot { event, row, column };
                    let Entry::Vacant(vacant) = owners.entry(ring_of(&self.shape, slot, per_task)) else {
                        continue;
                    };
                    if self.units.get(&self.shape, slot).is_some() {
                        vacant.insert(slot);
                        slots.push(slot);
                    }
                }
            }
        }
        for (slot, ring) in self.map_each(&slots, sizes) {
            rings.push(self.mapped(slot, ring.map_err(|source| fail(slot, false, source))?));
        }
        let failed = Arc::new(OnceLock::new());
        let first_failed = Arc::clone(&failed);
        let events = self.events.len();
        let redirect = move |share: &UnitContext<'_>| {
            let slots = (0..events).flat_map(|event| share.unit.event(share.shape, event));
            for (slot, fd) in slots {
                let key = ring_of(share.shape, slot, per_task);
                let Some(&owner) = owners.get(&key).filter(|&&owner| owner != slot) else { continue };
                let Some(output) = share.units.get(share.shape, owner) else { continue };
                share.kernel.set_output(fd, output).inspect_err(|_| {
                    let _ = first_failed.set(slot);
                })?;
            }
            Ok(())
        };
        self.for_units(redirect)
            .map_err(|source| fail(failed.get().copied().unwrap_or_default(), true, source))?;
        Ok(rings)
    }

    /// Where each worker has a CPU of its own, it maps that CPU's ring and redirects the rest into
    /// it, in one errand. `None`: the work is not divided by CPU.
    fn map_by_unit(&self, sizes: Sizes) -> Option<Result<Vec<MappedRing>, (EventSlot, bool, io::Error)>> {
        let pool = self.pool.as_ref()?;
        let by_cpu =
            self.units.as_slice().iter().all(|unit| matches!(unit.share, Share::Cpu(cpu) if cpu != ANY));
        if !by_cpu {
            return None;
        }
        let events = self.events.len();
        let mapped = pool.run((0..self.units.as_slice().len()).map(|index| {
            let (kernel, shape) = (Arc::clone(&self.kernel), Arc::clone(&self.shape));
            let units = Arc::clone(&self.units);
            move |_: &mut CpuBinding| {
                let unit = &units.as_slice()[index];
                let mut mapped: Vec<(EventSlot, &Descriptor, Ring)> = Vec::new();
                for (slot, fd) in (0..events).flat_map(|event| unit.event(&shape, event)) {
                    match mapped.iter().find(|(_, _, ring)| ring.keeps() == keeps(&shape, slot)) {
                        Some((_, output, _)) => {
                            kernel.set_output(fd, output).map_err(|source| (slot, true, source))?;
                        }
                        None => {
                            let ring = map(kernel.as_ref(), &shape, slot, fd, sizes);
                            mapped.push((slot, fd, ring.map_err(|source| (slot, false, source))?));
                        }
                    }
                }
                Ok(mapped.into_iter().map(|(slot, _, ring)| (slot, ring)).collect())
            }
        }));
        let all: Result<Vec<Vec<(EventSlot, Ring)>>, _> = mapped.into_iter().collect();
        let ring = |(owner, ring)| self.mapped(owner, ring);
        Some(all.map(|found| found.into_iter().flatten().map(ring).collect()))
    }

    fn mapped(&self, owner: EventSlot, ring: Ring) -> MappedRing {
        let (cpu, task) = (self.shape.cpus[owner.event][owner.row], self.tasks[owner.column]);
        MappedRing { cpu, task, owner, ring }
    }

    /// Maps the rings of these slots, with the workers if there are some: most of it is the kernel
    /// clearing their pages.
    fn map_each(&self, slots: &[EventSlot], sizes: Sizes) -> Vec<(EventSlot, io::Result<Ring>)> {
        let map = move |kernel: &dyn Kernel, shape: &EvlistShape, units: &Units, slot| {
            let fd = units.get(shape, slot).ok_or(io::ErrorKind::NotFound)?;
            self::map(kernel, shape, slot, fd, sizes)
        };
        let here = |slot| map(self.kernel.as_ref(), &self.shape, &self.units, slot);
        let Some(pool) = &self.pool else { return slots.iter().map(|&slot| (slot, here(slot))).collect() };
        pool.run(slots.iter().map(|&slot| {
            let (kernel, shape) = (Arc::clone(&self.kernel), Arc::clone(&self.shape));
            let units = Arc::clone(&self.units);
            move |_: &mut CpuBinding| (slot, map(kernel.as_ref(), &shape, &units, slot))
        }))
    }

    /// Lets a ring refuse all records, or take them again. What it refuses counts as lost.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pause_output(&self, ring: &MappedRing, paused: bool) -> io::Result<()> {
        let owner = self.units.get(&self.shape, ring.owner);
        self.kernel.pause_output(owner.ok_or(io::ErrorKind::NotFound)?, paused)
    }

    /// The descriptor to poll for a ring; `None` if the kernel has no files behind its descriptors.
    pub fn poll_fd(&self, ring: &MappedRing) -> Option<BorrowedFd<'_>> {
        self.kernel.poll_fd(self.units.get(&self.shape, ring.owner)?)
    }
}

/// Whose ring a slot writes into: that of its CPU, or of its task on any CPU; and of which kind it
/// is.
fn ring_of(shape: &EvlistShape, slot: EventSlot, per_task: bool) -> (i32, i32, bool) {
    let cpu = shape.cpus[slot.event][slot.row];
    (cpu, if per_task { shape.tasks[slot.column] } else { ANY }, keeps(shape, slot) == Keeps::Newest)
}

/// What the ring keeps that a slot writes into.
pub(super) fn keeps(shape: &EvlistShape, slot: EventSlot) -> Keeps {
    if shape.events[slot.event].attr.write_backward() == 1 { Keeps::Newest } else { Keeps::Oldest }
}

/// Maps the ring of a slot.
fn map(
    kernel: &dyn Kernel,
    shape: &EvlistShape,
    slot: EventSlot,
    fd: &Descriptor,
    sizes: Sizes,
) -> io::Result<Ring> {
    let keeps = keeps(shape, slot);
    let beside = keeps == Keeps::Oldest && shape.events.iter().any(|event| event.attr.write_backward() == 1);
    let is_side = beside || shape.only_tracked(slot);
    kernel.map(fd, if is_side { sizes.side } else { sizes.pages }, keeps)
}
