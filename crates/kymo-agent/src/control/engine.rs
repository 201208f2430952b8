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

/// The rings that events are written to.
#[derive(Debug)]
pub(super) struct RingsFile<'a> {
    pub(super) file: &'a File,
    pub(super) cpus: u32,
    pub(super) data_bytes: u32,
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

/// The memory that probes count in, which the tracer reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counters<'a> {
    pub(super) file: &'a File,
    pub(super) cpus: u32,
    pub(super) slots: u32,
}

/// Puts probes in place and takes them away.
pub(super) trait Probing {
    /// Where probes of this conversation count, and whether forked children do. Before the first change.
    fn open(&mut self, children: bool) -> io::Result<Counters<'_>>;

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

    /// Has rings in place that events can be written to, with this clock if they are new.
    fn rings(&mut self, data_bytes: u32, tick: u64, zero_ns: u64) -> Result<RingsFile<'_>, String> {
        let _ = (data_bytes, tick, zero_ns);
        Err("the agent writes no events".to_owned())
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

    fn open(&mut self, _: bool) -> io::Result<Counters<'_>> {
        Err(io::Error::other("the agent patches x86-64 programs only"))
    }

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
