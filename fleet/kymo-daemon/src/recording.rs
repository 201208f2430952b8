//! The recording that never ends, divided into intervals.
use crate::config::{Config, Stacks};
use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};
use kymo_perf::sys;
use kymo_record::{
    CallGraph, LiveRecorder, LiveSnapshot, Options, Output, Overload, Rate, RecordingClock, RecordingPlan,
    Session, TargetSpec, Tracking, WaitOptions,
};
use std::sync::mpsc::Receiver;

/// What is sampled: time on a CPU, in which sums over hosts are right whatever their processors.
pub(crate) const EVENT: &str = "cpu-clock";

/// A copy of a user stack, in bytes. What it does not hold is read while unwinding.
const STACK_BYTES: u32 = 16 << 10;

/// What unwind data of all files may take together. Frames of others are found by frame pointers.
const UNWIND_BYTES: u64 = 32 << 20;

/// Up to so many samples per second a small ring holds what comes until it is read, which happens
/// four times a second. It does not with records of waits, which are as many as there are switches.
const SMALL_RING_HZ: u64 = 199;
/// Its size, and that of what may wait behind it, for each CPU.
const SMALL_RING_BYTES: usize = 1 << 20;
const SMALL_QUEUE_BYTES: usize = 5 << 20;

/// The event, without samples of idle CPUs.
fn event() -> Result<Selected, String> {
    let machine = Machine::here();
    let groups = selector::parse(&format!("{EVENT}:I")).map_err(|error| error.to_string())?;
    let mut events = selector::resolve(&groups, &machine).map_err(|error| error.to_string())?;
    let mut event = events.pop().ok_or("there is no event")?;
    event.name = EVENT.to_owned();
    Ok(event)
}

fn options(config: &Config) -> Result<Options, String> {
    let targets = TargetSpec { all: true, ..TargetSpec::default() };
    let has_small_rings = config.frequency <= SMALL_RING_HZ && !config.off_cpu;
    let memory_bytes = sys::online_cpus().len() * (SMALL_RING_BYTES + SMALL_QUEUE_BYTES);
    let options = Options {
        rate: Rate::Frequency(config.frequency),
        call_graph: match config.stacks {
            Stacks::Unwound => CallGraph::Dwarf { stack_bytes: STACK_BYTES },
            Stacks::FramePointers => CallGraph::FramePointers,
            Stacks::None => CallGraph::None,
        },
        waits: config.off_cpu.then(WaitOptions::default),
        tracking: Tracking { cgroups: true, only_code: true, ..Tracking::default() },
        python: config.python && config.stacks == Stacks::Unwound,
        unwind_memory_bytes: UNWIND_BYTES,
        ring_pages: has_small_rings.then(|| SMALL_RING_BYTES / sys::page_size()),
        max_memory_bytes: has_small_rings.then_some(memory_bytes as u64),
        clock: Some(RecordingClock::Monotonic),
        // Not a second of the machine's time for completeness: what is lost is counted.
        overload: Overload::Drop,
        sample_cpu: true,
        version: format!("kymo {}", env!("CARGO_PKG_VERSION")),
        ..Options::new(vec![event()?], targets, Output::Memory)
    };
    Ok(LiveRecorder::prepare_complete(options))
}

/// What would be recorded.
///
/// # Errors
/// A sentence: something that was asked for is not there.
pub(crate) fn plan(config: &Config) -> Result<RecordingPlan, String> {
    RecordingPlan::resolve(options(config)?).map_err(|error| error.to_string())
}

/// Opens everything; nothing is sampled yet.
///
/// # Errors
/// What the kernel refused, with what helps.
pub(crate) fn open(plan: RecordingPlan) -> Result<Session, String> {
    let (requests, descriptors) = (plan.open.events.clone(), plan.descriptors());
    let rings = plan.open.targets.cpus.len();
    Session::start(plan).map_err(|error| error.explained(&requests, descriptors, rings))
}

/// Starts sampling.
///
/// # Errors
/// There is no thread, or no descriptor for it.
pub(crate) fn start(session: Session) -> Result<(LiveRecorder, Receiver<LiveSnapshot>), String> {
    LiveRecorder::start(session).map_err(|error| error.to_string())
}
