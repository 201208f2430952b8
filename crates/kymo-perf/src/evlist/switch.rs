//! Turning events off and on while a recording runs.
use super::{Event, Evlist};
use crate::sys::Kernel;
use std::io;
use std::os::fd::AsFd;

impl Evlist {
    /// Disables leaders and single events, but not those that only track mappings: what begins meanwhile is still known when
    /// sampling goes on.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn pause(&self, kernel: &dyn Kernel) -> io::Result<()> {
        let leaders = self.events.iter().filter(|event| event.request.leader.is_none());
        all(leaders.filter(|event| !event.request.immediate).map(|event| switch(event, kernel, false)))
    }

    /// Enables or disables the events of this name, one by one also inside a group. How many events have the name.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn switch(&self, kernel: &dyn Kernel, name: &str, on: bool) -> io::Result<usize> {
        let named: Vec<&Event> = self.events.iter().filter(|event| event.request.name == name).collect();
        all(named.iter().map(|event| switch(event, kernel, on))).map(|()| named.len())
    }
}

fn switch(event: &Event, kernel: &dyn Kernel, on: bool) -> io::Result<()> {
    let fds = event.fds.iter().flatten();
    all(fds.map(|fd| if on { kernel.enable(fd.as_fd()) } else { kernel.disable(fd.as_fd()) }))
}

/// The first error, after all were run.
fn all(results: impl Iterator<Item = io::Result<()>>) -> io::Result<()> {
    let mut first = Ok(());
    for one in results {
        first = first.and(one);
    }
    first
}
