//! How `--call-graph auto` records call chains: by unwind data where that is cheap, along frame
//! pointers elsewhere.
//!
//! | event | call chains | why |
//! |---|---|---|
//! | samples by time (`-F`) | by unwind data, from copies of the stack | their number is bounded, so is what the copies cost |
//! | samples every so many events | along frame pointers | there may be a million a second |
//! | waits for locks | by unwind data, from copies of the stack | programs limit their number |
//! | any event of a flight recorder, or on other machines than x86-64 and aarch64 | along frame pointers | nothing unwinds while recording |
//! | any event whose samples keep registers of the user, or whose chains are the kernel's | along frame pointers | registers would be replaced, a user's part is not wanted |
//!
//! Copies have at most 64 KiB, and less where all CPUs together could copy more than
//! [`BYTES_PER_SECOND`], or where a ring would hold fewer than [`SAMPLES_PER_RING`]. A shallow
//! stack costs little: the kernel copies what there is, and drains leave the rest out
//! (`stack_trim`). What a copy does not hold is found by the reducer (`reduce`).
use crate::options::{CallGraph, CpuMode, Options, Rate};
use kymo_perf::selector::{CallGraph as EventCallGraph, Sampling, Selected};
use kymo_perf::sys;
use kymo_symbols::Arch;

/// The largest copy, for which a record has room (perf_event_open(2): below 64 KiB, a multiple of
/// 8).
pub(crate) const MOST_STACK_BYTES: u32 = 65_528;
/// The smallest copy that is of use: stacks of most programs in C are smaller.
const LEAST_STACK_BYTES: u64 = 2048;
/// What all CPUs copy together at most, if all stacks are deep.
const BYTES_PER_SECOND: u64 = 4 << 30;
/// A ring holds so many samples at least.
const SAMPLES_PER_RING: u64 = 16;

/// Whether events of these options get their call chains by unwind data, if `auto` decides.
pub(crate) fn unwinds(options: &Options) -> bool {
    let keeps_newest = options.events.iter().any(|event| options.keeps_newest(event));
    let by_time = options.events.iter().any(|event| frequency(event, options.rate).is_some());
    let unwindable = options.fields.user_registers == 0 && options.chain_mode != Some(CpuMode::Kernel);
    Arch::NATIVE.is_some()
        && unwindable
        && !keeps_newest
        && !options.no_samples
        && (by_time || options.locks.is_some())
}

/// Decides for each event, if `auto` is to decide. `ring_pages`: the size of each ring.
pub(crate) fn resolve(options: &mut Options, ring_pages: usize) {
    if options.call_graph != CallGraph::Auto {
        return;
    }
    options.call_graph = CallGraph::FramePointers;
    if !unwinds(options) {
        return;
    }
    let cpus = match options.targets.cpus.len() {
        0 => sys::online_cpus().len(),
        some => some,
    };
    let rate: u64 = options.events.iter().filter_map(|event| frequency(event, options.rate)).sum();
    // Of very long waits there may be as many again.
    let rate = rate + options.locks.map_or(0, |locks| 2 * u64::from(locks.records_per_second));
    let ring_bytes = (ring_pages * sys::page_size()) as u64;
    let Some(stack_bytes) = copy_bytes(rate, cpus as u64, ring_bytes) else { return };
    options.call_graph = CallGraph::Dwarf { stack_bytes };
    for event in &mut options.events {
        if frequency(event, options.rate).is_none() {
            event.overrides.call_graph.get_or_insert(EventCallGraph::FramePointers);
        }
    }
}

/// How often the event samples per second; `None`: every so many events.
fn frequency(event: &Selected, asked: Rate) -> Option<u64> {
    match (event.attr.sampling, asked) {
        (Sampling::Frequency(hz), _) => Some(hz),
        (Sampling::Unset, Rate::Default(hz))
        | (Sampling::Unset | Sampling::Natural(_), Rate::Frequency(hz)) => Some(hz),
        _ => None,
    }
}

/// The size of the copies for so many samples per second on each of so many CPUs; `None`: too small
/// to be of use.
fn copy_bytes(rate: u64, cpus: u64, ring_bytes: u64) -> Option<u32> {
    let by_load = BYTES_PER_SECOND / rate.saturating_mul(cpus).max(1);
    let bytes = by_load.min(ring_bytes / SAMPLES_PER_RING).min(MOST_STACK_BYTES.into()) & !7;
    (bytes >= LEAST_STACK_BYTES).then_some(bytes as u32)
}

#[cfg(test)]
mod tests {
    use super::{MOST_STACK_BYTES, copy_bytes, resolve};
    use crate::options::{CallGraph, Options, Rate, TargetSpec};
    use crate::output::Output;
    use kymo_perf::machine::Machine;
    use kymo_perf::selector::{self, CallGraph as EventCallGraph};
    use kymo_symbols::Arch;

    const MIB: u64 = 1 << 20;

    /// Checks that copies are as large as possible on a small machine, smaller where many CPUs,
    /// many samples or small rings bound them, and none where they would be useless.
    #[test]
    fn sizes_of_copies() {
        assert_eq!(copy_bytes(999, 2, 2 * MIB), Some(MOST_STACK_BYTES));
        assert_eq!(copy_bytes(999, 256, 2 * MIB), Some(16_792));
        assert_eq!(copy_bytes(999, 2, MIB / 4), Some(16 << 10));
        assert_eq!(copy_bytes(100_000, 2, 2 * MIB), Some(21_472));
        assert_eq!(copy_bytes(999, 4096, 2 * MIB), None);
        assert_eq!(copy_bytes(999, 2, 16 << 10), None);
    }

    fn options(events: &str, rate: Rate) -> Options {
        let groups = selector::parse(events).unwrap();
        let events = selector::resolve(&groups, &Machine::here()).unwrap();
        let output = Output::File("perf.data".into());
        Options { rate, ..Options::new(events, TargetSpec::default(), output) }
    }

    /// Checks which events get their call chains by unwind data: those that sample by time, whoever
    /// says how often, unless they say how themselves or a flight recorder keeps them.
    #[test]
    fn events_that_sample_by_time() {
        let copies = CallGraph::Dwarf { stack_bytes: MOST_STACK_BYTES };
        let resolved = |events: &str, rate, overwrite| {
            let mut options = Options { overwrite, ..options(events, rate) };
            resolve(&mut options, 512);
            let own = options.events.iter().map(|event| event.overrides.call_graph).collect::<Vec<_>>();
            (options.call_graph, own)
        };
        let by_count = Some(EventCallGraph::FramePointers);
        if Arch::NATIVE.is_some() {
            let few = Rate::Default(99);
            assert_eq!(resolved("cpu-clock", few, false), (copies, vec![None]));
            assert_eq!(resolved("cpu-clock,cs/period=1/", few, false), (copies, vec![None, by_count]));
            assert_eq!(
                resolved("cpu-clock/call-graph=no/", few, false),
                (copies, vec![Some(EventCallGraph::None)])
            );
            assert_eq!(resolved("cpu-clock/freq=99/", Rate::Period(5), false), (copies, vec![None]));
        }
        assert_eq!(resolved("cpu-clock", Rate::Period(1000), false), (CallGraph::FramePointers, vec![None]));
        assert_eq!(resolved("cpu-clock", Rate::Default(99), true), (CallGraph::FramePointers, vec![None]));
    }
}
