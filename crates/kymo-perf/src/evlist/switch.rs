//! Turning events off and on while a recording runs.
use super::Evlist;
use std::io;

impl Evlist {
    /// Disables leaders and single events, but not those that only track mappings: what begins meanwhile is still known when
    /// sampling goes on.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn pause(&self) -> io::Result<()> {
        let leaders = (0..self.events.len()).filter(|&event| self.shape.leads(event));
        all(leaders
            .filter(|&event| !self.events[event].request.immediate)
            .map(|event| self.one(event, false)))
    }

    /// Enables or disables the events of this name, one by one also inside a group. How many events have the name.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn switch(&self, name: &str, on: bool) -> io::Result<usize> {
        let named = (0..self.events.len()).filter(|&event| self.events[event].request.name == name);
        let named: Vec<usize> = named.collect();
        all(named.iter().map(|&event| self.one(event, on))).map(|()| named.len())
    }

    fn one(&self, event: usize, on: bool) -> io::Result<()> {
        let fds = self.table.events[event].iter().flatten();
        all(fds.map(|fd| if on { self.kernel.enable(fd) } else { self.kernel.disable(fd) }))
    }
}

/// The first error, after all were run.
fn all(results: impl Iterator<Item = io::Result<()>>) -> io::Result<()> {
    let mut first = Ok(());
    for one in results {
        first = first.and(one);
    }
    first
}
