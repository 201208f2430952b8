//! What a conversation is about: probes in this process, by whoever can put them there.
use kymo_core::probe::wire::{Count, Listed, Span, Wanted};
use std::sync::Arc;

/// One probe that was asked for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The file, as /proc/self/maps names it.
    pub(super) module: Arc<[u8]>,
    pub(super) wanted: Wanted,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) refused: Vec<(u32, String)>,
    pub(super) armed: u32,
    pub(super) stopped_ns: u64,
}

/// Puts probes in place and takes them away.
pub(super) trait Probing {
    /// Removes, then adds. Refusals are of single probes.
    fn change(&mut self, remove: &[u32], add: Vec<Asked>) -> Done;

    /// What was counted for the armed ones.
    fn counts(&self) -> Vec<Count>;

    /// How long the calls of timed ones took, by number; only of those that have any.
    fn times(&self) -> Vec<(u32, Vec<Span>)>;

    /// All that were asked for and not removed.
    fn list(&self) -> Vec<Listed>;

    /// Removes everything. How many were armed.
    fn clear(&mut self) -> u32;
}

/// Where nothing can be put in place.
#[cfg(not(target_arch = "x86_64"))]
pub(super) struct Nothing;

#[cfg(not(target_arch = "x86_64"))]
impl Probing for Nothing {
    fn change(&mut self, _: &[u32], add: Vec<Asked>) -> Done {
        let no = |asked: Asked| (asked.wanted.id, "the agent patches x86-64 programs only".to_owned());
        Done { refused: add.into_iter().map(no).collect(), ..Done::default() }
    }

    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }

    fn times(&self) -> Vec<(u32, Vec<Span>)> {
        Vec::new()
    }

    fn list(&self) -> Vec<Listed> {
        Vec::new()
    }

    fn clear(&mut self) -> u32 {
        0
    }
}
