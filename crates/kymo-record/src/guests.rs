//! Events that observed programs write themselves, into rings that are drained with the kernel's: probes inside of them.
//!
//! A program's ring wakes nobody: drains look at such rings by the clock. What did not fit into them the programs count; it is part of the account
//! of losses as what the kernel dropped.
use crate::drain::Source;
use kymo_data::{Attr, EventSpec, abi};
use kymo_perf::ring::Ring;
use std::fmt;

/// One event that programs write.
#[derive(Clone, Debug)]
pub struct GuestEvent {
    /// As the user named it.
    pub name: String,
    /// Where tracepoints have the name of their system.
    pub system: String,
    /// As tracefs would describe it: `name:`, `ID:`, `format:`.
    pub format: String,
    /// The number in its description.
    pub kind: u64,
    /// The number in each of its records, which no event of the kernel's has.
    pub id: u64,
}

/// Turns what writes the events on and off.
pub trait Conduct {
    /// Lets the events begin.
    ///
    /// # Errors
    /// In words.
    fn begin(&mut self) -> Result<(), String>;

    /// Lets them end. How many of each event were lost, and in words what else the user should know.
    fn end(&mut self) -> (Vec<u64>, Option<String>);
}

/// Events of programs, and all that belongs to them.
pub struct Guests {
    /// The events.
    pub events: Vec<GuestEvent>,
    /// For each CPU, the rings that are written there.
    pub rings: Vec<Ring>,
    /// Who turns them on and off.
    pub conduct: Box<dyn Conduct + Send>,
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests").field("events", &self.events).finish_non_exhaustive()
    }
}

/// What a sample of theirs holds.
pub(crate) const SAMPLE_TYPE: u64 = abi::PERF_SAMPLE_IDENTIFIER
    | abi::PERF_SAMPLE_IP
    | abi::PERF_SAMPLE_TID
    | abi::PERF_SAMPLE_TIME
    | abi::PERF_SAMPLE_CPU
    | abi::PERF_SAMPLE_PERIOD
    | abi::PERF_SAMPLE_RAW;

impl GuestEvent {
    /// As the recording has it: a tracepoint of each of which there is a sample.
    pub(crate) fn spec(&self) -> EventSpec {
        let attr = Attr {
            kind: abi::PERF_TYPE_TRACEPOINT,
            config: self.kind,
            sample_period: 1,
            sample_type: SAMPLE_TYPE,
            read_format: abi::PERF_FORMAT_ID | abi::PERF_FORMAT_LOST,
            flags: abi::ATTR_FLAG_DISABLED | abi::ATTR_FLAG_SAMPLE_ID_ALL,
            ..Attr::default()
        };
        EventSpec { attr, ids: vec![self.id], name: self.name.clone() }
    }
}

/// Adds the guests' rings to those that each CPU's drain empties. `first`: how many rings there are before them.
pub(crate) fn join<'a>(groups: &mut [(Option<u32>, Vec<Source<'a>>)], rings: &'a [Ring], first: usize) {
    let Some(count) = groups.len().checked_sub(1) else { return };
    for (cpu, ring) in rings.iter().enumerate() {
        let own = groups.iter().position(|(of, _)| of.is_some_and(|of| of as usize == cpu));
        // Of a CPU that nobody drains, any other can.
        let group = &mut groups[own.unwrap_or(cpu.min(count))];
        group.1.push(Source { index: first + cpu, ring, fds: Vec::new() });
    }
}
