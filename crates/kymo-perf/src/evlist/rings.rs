//! Rings for an open list: per CPU (or task) the first descriptor is mapped, the rest write into it.
use super::note::Note;
use super::{ANY, Evlist};
use crate::ring::Ring;
use crate::sys::Descriptor;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

/// A ring and whose records it holds.
#[derive(Debug)]
pub struct MappedRing {
    /// The CPU, or [`ANY`] for a per-thread ring.
    pub cpu: i32,
    /// The task of a per-thread ring, otherwise [`ANY`] or the first of several.
    pub task: i32,
    /// The (event, CPU row, task column) of the descriptor that is mapped and polled.
    pub owner: (usize, usize, usize),
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
    /// Maps one ring of `pages` pages per CPU (per task where events are not bound to a CPU) and redirects all other descriptors into it. Where the memory lock
    /// limit is too low and `shrink` is set, all rings become smaller, which is noted.
    ///
    /// # Errors
    /// [`RingError`] if a ring cannot be had even with one page.
    pub fn map_rings(&mut self, pages: usize, shrink: bool) -> Result<Vec<MappedRing>, RingError> {
        let mut now = pages.max(1).next_power_of_two();
        loop {
            match self.try_map(now) {
                Err(error) if shrink && now > 1 && error.source.raw_os_error() == Some(libc::EPERM) => {
                    now /= 2
                }
                Ok(rings) if now < pages => {
                    self.notes.push(Note::SmallerRings { asked_pages: pages, pages: now });
                    return Ok(rings);
                }
                result => return result,
            }
        }
    }

    fn try_map(&self, pages: usize) -> Result<Vec<MappedRing>, RingError> {
        let mut rings: Vec<MappedRing> = Vec::new();
        let mut homes: HashMap<(i32, i32), usize> = HashMap::new();
        let per_task = self.cpus() == [ANY];
        for (index, event) in self.events.iter().enumerate() {
            for (row, &cpu) in event.cpus.iter().enumerate() {
                for (column, fd) in self.table.events[index][row].iter().enumerate() {
                    let task = self.tasks[column];
                    let key = (cpu, if per_task { task } else { ANY });
                    let fail = |redirect, source| RingError {
                        event: event.request.name.clone(),
                        cpu,
                        pages,
                        redirect,
                        source,
                    };
                    match homes.get(&key).map(|&home| &rings[home]) {
                        Some(home) => {
                            let owner = self.owner(home);
                            self.kernel.set_output(fd, owner).map_err(|source| fail(true, source))?;
                        }
                        None => {
                            let ring = self.kernel.map(fd, pages).map_err(|source| fail(false, source))?;
                            homes.insert(key, rings.len());
                            rings.push(MappedRing { cpu, task, owner: (index, row, column), ring });
                        }
                    }
                }
            }
        }
        Ok(rings)
    }

    /// The descriptor to poll for a ring; `None` if the kernel has no files behind its descriptors.
    pub fn poll_fd(&self, ring: &MappedRing) -> Option<BorrowedFd<'_>> {
        self.kernel.poll_fd(self.owner(ring))
    }

    fn owner(&self, ring: &MappedRing) -> &Descriptor {
        let (event, row, column) = ring.owner;
        &self.table.events[event][row][column]
    }
}
