//! What a conversation is about: probes in this process, by whoever can put them there.
use super::hold::Threads;
use kymo_core::probe::wire::{Bucket, Count, How, Listed, Placed, Wanted};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// One probe that was asked for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The file, as /proc/self/maps names it.
    pub(super) module: Arc<[u8]>,
    pub(super) wanted: Wanted,
    /// What its number of a `How` stands for.
    pub(super) how: Option<Arc<How>>,
}

/// Callers of one probe.
#[derive(Debug, Default)]
pub(super) struct CallersOf {
    pub(super) id: u32,
    /// Return addresses, and how many calls.
    pub(super) of: Vec<(u64, u64)>,
    /// Calls of callers that there was no place for.
    pub(super) others: u64,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) refused: Vec<(u32, String)>,
    /// Where those count that were armed now.
    pub(super) placed: Vec<Placed>,
    /// What the buckets of timed ones held before, by number; only of those where that is something.
    pub(super) before: Vec<(u32, Vec<Bucket>)>,
    pub(super) armed: u32,
}

/// Puts probes in place and takes them away.
pub(super) trait Probing {
    /// CPUs that need slots and rings, and the most slots of each that can be used.
    fn sizes(&self) -> (u32, u32);

    /// Counts in the tracer's file from now on, and whether forked children do. Before the first change.
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

    /// Gives all memory back that belongs to the conversation. After [`Probing::clear`].
    fn close(&mut self);

    /// Removes, then adds. Refusals are of single probes.
    fn change(&mut self, remove: &[u32], add: Vec<Asked>, threads: &mut Threads<'_>) -> Done;

    /// How many events of some probes were lost; only of those that have any.
    fn losses(&self) -> Vec<Count> {
        Vec::new()
    }

    /// Who called, for each probe that tells callers apart.
    fn callers(&self) -> Vec<CallersOf> {
        Vec::new()
    }

    /// All that were asked for and not removed.
    fn list(&self) -> Vec<Listed>;

    /// Removes everything. How many were armed.
    fn clear(&mut self, threads: &mut Threads<'_>) -> u32;

    /// Removes what earlier conversations had to leave. How many probes that were.
    fn clean(&mut self, threads: &mut Threads<'_>) -> u32;
}

/// Where nothing can be put in place.
#[cfg(not(target_arch = "x86_64"))]
pub(super) struct Nothing;

#[cfg(not(target_arch = "x86_64"))]
impl Probing for Nothing {
    fn change(&mut self, _: &[u32], add: Vec<Asked>, _: &mut Threads<'_>) -> Done {
        let no = |asked: Asked| (asked.wanted.id, "the agent patches x86-64 programs only".to_owned());
        Done { refused: add.into_iter().map(no).collect(), ..Done::default() }
    }

    fn sizes(&self) -> (u32, u32) {
        (1, 0)
    }

    fn count_in(&mut self, _: &File, _: u32, _: u32, _: bool) -> io::Result<()> {
        Err(io::Error::other("the agent patches x86-64 programs only"))
    }

    fn close(&mut self) {}

    fn list(&self) -> Vec<Listed> {
        Vec::new()
    }

    fn clear(&mut self, _: &mut Threads<'_>) -> u32 {
        0
    }

    fn clean(&mut self, _: &mut Threads<'_>) -> u32 {
        0
    }
}
