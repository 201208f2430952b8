//! The size of rings, and the watermark that wakes their drains.
use crate::machine::read_number;
use crate::memory_limit;
use crate::options::{CallGraph, Options, Rate};
use crate::stack_choice;
use kymo_perf::sys;
use rustix::process::geteuid;
use std::time::Duration;

/// Rings for samples with stacks are so many times larger, at most.
const STACKS_SHARE: usize = 8;
/// But all rings together take no more than this because of it.
const ALL_RINGS_BYTES: usize = 128 << 20;

/// What a sample takes in a ring, in bytes, about: alone, and with its call chain.
const SAMPLE_BYTES: u64 = 80;
const CHAIN_BYTES: u64 = 640;

/// The pages of each ring where nobody says how many.
pub(crate) fn default_pages(options: &Options) -> usize {
    let most = memory_limit::most_pages(options, sys::online_cpus().len(), sys::page_size());
    usual_pages(options).min(most)
}

fn usual_pages(options: &Options) -> usize {
    let allowed = read_number("/proc/sys/kernel/perf_event_mlock_kb").unwrap_or(516) as usize * 1024;
    if let Some(reach) = options.ring_reach {
        let usual = pages(allowed, false, 1);
        // Only root may have what it likes.
        let most = if geteuid().is_root() { ALL_RINGS_BYTES / sys::online_cpus().len().max(1) } else { 0 };
        return pages_that_reach(options, reach, most).max(usual);
    }
    let stacks = match options.call_graph {
        CallGraph::Dwarf { .. } => true,
        // Nobody asked for stacks that do not fit into the memory that was asked for.
        CallGraph::Auto => {
            let is_free = options.max_memory_bytes.is_none() || options.limited_by_cgroup;
            stack_choice::unwinds(options) && is_free
        }
        CallGraph::FramePointers | CallGraph::None => false,
    };
    // Only root may have what it likes.
    pages(allowed, stacks && geteuid().is_root(), sys::online_cpus().len())
}

/// Pages that hold what a busy CPU samples in this time, in at most so many bytes.
fn pages_that_reach(options: &Options, reach: Duration, most_bytes: usize) -> usize {
    let sample_bytes = match options.call_graph {
        CallGraph::None => SAMPLE_BYTES,
        CallGraph::Auto | CallGraph::FramePointers => CHAIN_BYTES,
        CallGraph::Dwarf { stack_bytes } => CHAIN_BYTES + u64::from(stack_bytes),
    };
    let hz = match options.rate {
        Rate::Default(hz) | Rate::Frequency(hz) => hz,
        // As often as nobody knows.
        Rate::Period(_) => u64::MAX,
    };
    let samples = hz.saturating_mul(reach.as_secs().max(1)).saturating_mul(options.events.len() as u64);
    let page = sys::page_size() as u64;
    let pages = samples.saturating_mul(sample_bytes).div_ceil(page).min(most_bytes as u64 / page);
    let pages = usize::try_from(pages).unwrap_or(0).max(1);
    // The smallest power of two that is not below it, or the largest that may be.
    let above = pages.next_power_of_two();
    if above * sys::page_size() > most_bytes { 1 << pages.ilog2() } else { above }
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
    use super::{ALL_RINGS_BYTES, CallGraph, few_samples, pages, pages_that_reach};
    use crate::options::{Options, Rate, TargetSpec};
    use crate::output::Output;
    use kymo_perf::{machine::Machine, selector, sys};
    use std::time::Duration;

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

    /// Checks that rings which are to reach back hold the samples of that time, in a power of two
    /// of pages, and never more than may be.
    #[test]
    fn rings_that_reach_back() {
        let groups = selector::parse("cpu-clock").unwrap();
        let events = selector::resolve(&groups, &Machine::here()).unwrap();
        let mut options = Options {
            call_graph: CallGraph::None,
            ..Options::new(events, TargetSpec::default(), Output::Memory)
        };
        let pages = |options: &Options, most| pages_that_reach(options, Duration::from_secs(10), most);
        let needed = pages(&options, usize::MAX);
        assert!(needed.is_power_of_two() && needed * sys::page_size() >= 9990 * 48, "{needed}");
        options.call_graph = CallGraph::FramePointers;
        assert!(pages(&options, usize::MAX) >= 4 * needed);
        options.rate = Rate::Period(1);
        for most in [1 << 20, 3 << 20] {
            assert_eq!(pages(&options, most), (1 << 20) * (most >> 20).min(2) / sys::page_size());
        }
        assert_eq!(pages(&options, 0), 1);
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
