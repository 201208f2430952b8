//! The memory limit of a cgroup bounds what a recorder takes by itself.
//!
//! ```text
//!  limit   1/4 rings and buffers | 1/4 unwind tables | the rest: names, BPF maps, files in memory
//! ```
//! Without a limit these shares are larger than what is taken anyway.
use crate::options::{CallGraph, Options};

/// A share of the limit for each of the two largest consumers.
const SHARE: u64 = 4;
/// The defaults of rings and buffers take no more than this.
const USUAL_BYTES: u64 = 256 << 20;
/// With less than this a recorder does not get far.
const LEAST_LIMIT: u64 = 32 << 20;

/// Bounds the options by this limit, where nobody has chosen. What the user should know of it.
pub(crate) fn bound(options: &mut Options, limit: Option<u64>) -> Option<String> {
    let limit = limit?;
    let share = limit / SHARE;
    let mib = |bytes: u64| bytes >> 20;
    let mut bounded = Vec::new();
    if share < USUAL_BYTES && options.max_memory_bytes.is_none() {
        options.max_memory_bytes = Some(share);
        options.limited_by_cgroup = true;
        bounded.push(format!("rings and buffers take at most {} MiB (--max-memory)", mib(share)));
    }
    if share < options.unwind_memory_bytes {
        options.unwind_memory_bytes = share;
        bounded.push(format!("unwind tables at most {} MiB", mib(share)));
    }
    let targets = &options.targets;
    let everything = targets.all || !targets.cpus.is_empty() || targets.cgroup.is_some();
    if limit < USUAL_BYTES && everything && options.call_graph == CallGraph::Auto {
        // Among all programs there may be some whose unwind tables alone are larger than this.
        options.call_graph = CallGraph::FramePointers;
        bounded.push("call chains follow frame pointers (--call-graph dwarf unwinds)".into());
    }
    let warning =
        if limit < LEAST_LIMIT { ", which may not be enough: recorders need some 32 MiB" } else { "" };
    (!bounded.is_empty() && limit < USUAL_BYTES).then(|| {
        let bounded = bounded.join(", ");
        format!("the cgroup limits memory to {} MiB{warning}: {bounded}", mib(limit))
    })
}

/// So many pages of each ring fit into the share with two buffers for each, if a cgroup bounds it.
pub(crate) fn most_pages(options: &Options, rings: usize, page_bytes: usize) -> usize {
    let Some(most) = options.max_memory_bytes.filter(|_| options.limited_by_cgroup) else {
        return usize::MAX;
    };
    // Two buffers of half a ring, with small ones beside them.
    let of_ring = usize::try_from(most).unwrap_or(usize::MAX) / rings.max(1) * 2 / 5;
    let pages = (of_ring / page_bytes).max(1);
    1 << pages.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::TargetSpec;
    use crate::output::Output;

    /// Checks that a small limit bounds rings, buffers and unwind tables and is told, that a large
    /// one changes nothing, and that what was asked for stays.
    #[test]
    fn shares_of_a_limit() {
        let options = || Options::new(Vec::new(), TargetSpec::default(), Output::Memory);
        let mut small = options();
        let note = bound(&mut small, Some(64 << 20)).unwrap();
        assert!(note.starts_with("the cgroup limits memory to 64 MiB: rings and buffers"), "{note}");
        assert_eq!((small.max_memory_bytes, small.unwind_memory_bytes), (Some(16 << 20), 16 << 20));
        assert_eq!((most_pages(&small, 2, 4096), most_pages(&small, 64, 4096)), (512, 16));
        let mut everything = options();
        everything.targets.all = true;
        assert!(bound(&mut everything, Some(64 << 20)).unwrap().contains("frame pointers"));
        assert_eq!((everything.call_graph, small.call_graph), (CallGraph::FramePointers, CallGraph::Auto));
        for limit in [None, Some(2 << 30)] {
            let mut large = options();
            assert_eq!(bound(&mut large, limit), None);
            assert_eq!((large.max_memory_bytes, large.unwind_memory_bytes), (None, Options::UNWIND_BYTES));
            assert_eq!(most_pages(&large, 2, 4096), usize::MAX);
        }
        let mut chosen = Options { max_memory_bytes: Some(1 << 20), ..options() };
        bound(&mut chosen, Some(64 << 20));
        assert_eq!((chosen.max_memory_bytes, chosen.limited_by_cgroup), (Some(1 << 20), false));
        assert!(bound(&mut options(), Some(16 << 20)).unwrap().contains("may not be enough"));
    }
}
