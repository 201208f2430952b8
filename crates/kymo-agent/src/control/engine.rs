//! The interface between a session with a tracer and the engine that puts probes into this process.
use super::hold::Threads;
use kymo_core::probe::wire::{Bucket, HitCount, ProbeAction, ProbeSlots, ProbeSpec, ProbeStatus};
use std::fs::File;
use std::io;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(super) struct RequestedProbe {
    /// The file, as /proc/self/maps names it.
    pub(super) module: Arc<[u8]>,
    pub(super) spec: ProbeSpec,
    /// What its number of a `ProbeAction` stands for.
    pub(super) action: Option<Arc<ProbeAction>>,
}

#[derive(Debug, Default)]
pub(super) struct CallerCounts {
    pub(super) id: u32,
    /// Return addresses, and how many calls.
    pub(super) of: Vec<(u64, u64)>,
    /// Calls of callers that there was no place for.
    pub(super) others: u64,
}

#[derive(Debug, Default)]
pub(super) struct BatchOutcome {
    pub(super) refused: Vec<(u32, String)>,
    /// Where those count that were armed now.
    pub(super) placed: Vec<ProbeSlots>,
    /// What the buckets of timed ones held before, by number, where that is something.
    pub(super) before: Vec<(u32, Vec<Bucket>)>,
    pub(super) armed: u32,
}

pub(super) trait ProbeEngine {
    /// CPUs that need slots and rings, and the most slots of each that can be used.
    fn sizes(&self) -> (u32, u32);

    /// Counts in the tracer's file, and forked children with it, or not. Before the first change.
    fn count_in(&mut self, file: &File, cpus: u32, slots: u32, children: bool) -> io::Result<()>;

    /// Writes events to the rings in the tracer's file from now on, with times by this clock.
    fn record_in(
        &mut self,
        file: &File,
        cpus: u32,
        data_bytes: u32,
        (tick, zero_ns): (u64, u64),
    ) -> io::Result<()> {
        let _ = (file, cpus, data_bytes, tick, zero_ns);
        Err(io::Error::other("the agent writes no events"))
    }

    /// Adds holds of locks up in the tracer's file from now on; forked children do, or not.
    fn hold_in(&mut self, file: &File, children: bool) -> io::Result<()> {
        let _ = (file, children);
        Err(io::Error::other("the agent times no locks"))
    }

    /// The program begins, and nobody is there any more to remove what is armed: the next tracer
    /// does ([`ProbeEngine::clean`]).
    fn let_go(&mut self) {}

    /// Gives all memory back that belongs to the conversation. After [`ProbeEngine::clear`].
    fn close(&mut self);

    /// Removes, then adds. Refusals are of single probes.
    fn change(&mut self, remove: &[u32], add: Vec<RequestedProbe>, threads: &mut Threads<'_>)
    -> BatchOutcome;

    /// How many events of some probes were lost; only of those that have any.
    fn losses(&self) -> Vec<HitCount> {
        Vec::new()
    }

    /// Who called, for each probe that tells callers apart.
    fn callers(&self) -> Vec<CallerCounts> {
        Vec::new()
    }

    /// All that were asked for and not removed.
    fn list(&self) -> Vec<ProbeStatus>;

    /// Removes everything. How many were armed.
    fn clear(&mut self, threads: &mut Threads<'_>) -> u32;

    /// Removes what earlier conversations had to leave. How many probes that were.
    fn clean(&mut self, threads: &mut Threads<'_>) -> u32;
}
