//! Small profiles for tests, made from functions and stacks as a test writes them down.
use crate::chains::Chains;
use crate::functions::{FunctionId, Functions, Level};
use crate::load::{Count, GroupKey, LoadTimes, Loaded, RecordCounts};
use crate::profile::Profile;
use crate::resolve::Stacks;
use crate::timeline::{CommId, ModuleId, Moment, SideEvent, TimelineBuilder};
use kymo_data::ReadSummary;

/// How a function comes to be in a profile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Symbol,
    Inlined,
    Address,
}

/// Module (index of [`MODULES`]), kind, name, start. Symbols end 0x100 after their start.
pub(crate) type Spec = (usize, Kind, &'static str, u64);

/// Two files of one base name, and the kernel.
pub(crate) const MODULES: [&str; 4] =
    ["/bin/app", "/lib/libc.so.6", "/opt/libc.so.6", "[kernel.kallsyms]_text"];

/// Some stacks of a profile: they share everything.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    pub(crate) event: u32,
    /// Index into the names.
    pub(crate) comm: usize,
    /// Index of the function that the samples were taken in.
    pub(crate) leaf: usize,
    /// Indices of the call chain's functions, innermost first.
    pub(crate) frames: Vec<usize>,
    pub(crate) samples: u64,
    pub(crate) period: u64,
}

/// A profile of these stacks; the function of index `i` has the id `i`.
pub(crate) fn profile(comms: &[&str], functions: &[Spec], stacks: &[Stack]) -> Profile {
    let mut side = Vec::new();
    let mut at = |event| {
        let position = side.len() as u64;
        side.push((Moment { time_ns: 0, position }, event));
    };
    for (n, comm) in comms.iter().enumerate() {
        let tid = 10 + n as i32;
        at(SideEvent::Comm { pid: tid, tid, exec: false, name: comm.as_bytes().to_vec() });
    }
    for (n, path) in MODULES.iter().enumerate() {
        at(SideEvent::Map {
            pid: 10,
            tid: 10,
            kernel: path.starts_with('['),
            start: 0x1000 * n as u64,
            end: 0x1000 * (n as u64 + 1),
            pgoff: 0,
            prot: 5,
            path: path.as_bytes().to_vec(),
            file_id: (0, 0, n as u64),
            build_id: Vec::new(),
        });
    }
    let timeline = TimelineBuilder::build(side, true);
    let later = Moment { time_ns: 1, position: 0 };
    let comm = |n: usize| -> CommId { timeline.thread(10 + n as i32, 10 + n as i32, later).comm };

    let mut named = Functions::default();
    for (index, &(module, kind, name, start)) in functions.iter().enumerate() {
        let level = if MODULES[module].starts_with('[') { Level::Kernel } else { Level::User };
        let module = ModuleId(module as u32);
        let id = match kind {
            Kind::Symbol => named.symbol(module, level, start, start + 0x100, name),
            Kind::Inlined => named.inlined(module, level, start, start + 0x100, name),
            Kind::Address => named.address(Some(module), level, start),
        };
        assert_eq!(id.0 as usize, index, "every function once");
    }

    let mut chains = Chains::default();
    let mut groups = Vec::new();
    let mut list = Vec::new();
    let events = stacks.iter().map(|s| s.event + 1).max().unwrap_or(1).max(2);
    let mut totals = vec![Count::default(); events as usize];
    for (index, stack) in stacks.iter().enumerate() {
        let chain = chains.intern(0, 2, index as u64, &[][..]);
        let count = Count { samples: stack.samples, period: stack.period, latency: 0 };
        let key =
            GroupKey { event: stack.event, comm: comm(stack.comm), pid: 0, tid: 0, cpu: 0, extra: 0, chain };
        groups.push((key, count));
        totals[stack.event as usize] += count;
        let id = |f: &usize| FunctionId(*f as u32);
        list.push((id(&stack.leaf), stack.frames.iter().map(id).collect()));
    }
    let loaded = Loaded {
        extras: Default::default(),
        timeline: timeline.into(),
        chains,
        groups,
        totals,
        columns: None,
        single_threaded: 0,
        time_range: None,
        counts: RecordCounts::default(),
        summary: ReadSummary::default(),
        unwind: Default::default(),
        times: LoadTimes::default(),
    };
    Profile {
        loaded,
        functions: named,
        stacks: Stacks::of(list),
        notes: Vec::new(),
        absences: Vec::new(),
        traces: Vec::new(),
    }
}
