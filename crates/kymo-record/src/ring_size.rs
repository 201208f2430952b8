//! The size of rings, and the watermark that wakes their drains.
use crate::machine::read_number;
use crate::options::{CallGraph, Options};
use crate::stack_choice;
use kymo_perf::sys;
use rustix::process::geteuid;

/// Rings for samples with stacks are so many times larger, at most.
const STACKS_SHARE: usize = 8;
/// But all rings together take no more than this because of it.
const ALL_RINGS_BYTES: usize = 128 << 20;

/// The pages of each ring where nobody says how many.
pub(crate) fn default_pages(options: &Options) -> usize {
    let allowed = read_number("/proc/sys/kernel/perf_event_mlock_kb").unwrap_or(516) as usize * 1024;
    let stacks = match options.call_graph {
        CallGraph::Dwarf { .. } => true,
        // Nobody asked for stacks that do not fit into the memory that was asked for.
        CallGraph::Auto => stack_choice::unwinds(options) && options.max_memory_bytes.is_none(),
        CallGraph::FramePointers | CallGraph::None => false,
    };
    // Only root may have what it likes.
    pages(allowed, stacks && geteuid().is_root(), sys::online_cpus().len())
}

/// What the kernel allows a user for each CPU, minus the control page, rounded down to a power of
/// two. For stacks more: larger rings mean fewer wakeups, which are context switches with stacks of
/// their own.
fn pages(allowed_bytes: usize, larger: bool, cpus: usize) -> usize {
    let page = sys::page_size();
    // The largest power of two that is not above it.
    let usual = 1 << (allowed_bytes / page).saturating_sub(1).max(1).ilog2();
    let mut share = if larger { STACKS_SHARE } else { 1 };
    while share > 1 && share * usual * page * cpus > ALL_RINGS_BYTES {
        share /= 2;
    }
    share * usual
}

/// A quarter of the ring: the drain comes early enough that three quarters are left for the burst
/// meanwhile.
pub(crate) fn watermark_bytes(ring_pages: usize) -> u32 {
    u32::try_from(ring_pages * sys::page_size() / 4).unwrap_or(u32::MAX)
}

/// What to say of rings that hold so few samples with stacks that the next ones are lost while a
/// drain wakes up.
pub(crate) fn few_samples(ring_pages: usize, call_graph: CallGraph) -> Option<String> {
    const ENOUGH: usize = 4;
    /// A sample without its stack, and more than that.
    const REST_BYTES: usize = 1024;
    let CallGraph::Dwarf { stack_bytes } = call_graph else { return None };
    let holds = |pages: usize| pages * sys::page_size() / (stack_bytes as usize + REST_BYTES);
    if holds(ring_pages) >= ENOUGH {
        return None;
    }
    let enough =
        (ENOUGH * (stack_bytes as usize + REST_BYTES)).div_ceil(sys::page_size()).next_power_of_two();
    let held = holds(ring_pages);
    Some(format!(
        "rings of {ring_pages} pages hold {held} of these samples: what comes while they are emptied is lost; -m {enough} would hold {}",
        holds(enough)
    ))
}

#[cfg(test)]
mod tests {
    use super::{ALL_RINGS_BYTES, CallGraph, few_samples, pages};
    use kymo_perf::sys;

    /// Checks that rings are what the kernel allows, eight times that for stacks, and that this
    /// never makes the rings of a large machine take more than their bound.
    #[test]
    fn pages_of_rings() {
        let page = sys::page_size();
        let allowed = 129 * page;
        assert_eq!((pages(allowed, false, 2), pages(allowed, true, 2)), (128, 1024));
        for cpus in [1, 64, 128, 256, 1024] {
            let larger = pages(allowed, true, cpus);
            assert!(larger == 128 || larger * page * cpus <= ALL_RINGS_BYTES, "{cpus} CPUs: {larger}");
        }
        assert_eq!(pages(allowed, true, 1024), 128);
        assert_eq!(pages(0, true, 1), 8);
    }

    /// Checks that rings which hold hardly a sample with its stack are said to lose samples, with a
    /// size that would not, and others are not.
    #[test]
    fn rings_of_few_samples() {
        let stacks = CallGraph::Dwarf { stack_bytes: 8192 };
        let said = few_samples(4, stacks).unwrap();
        assert!(said.contains("hold 1 of these samples") && said.contains("-m 16 would hold 7"), "{said}");
        assert_eq!(few_samples(16, stacks), None);
        assert_eq!(few_samples(1, CallGraph::FramePointers), None);
    }
}
