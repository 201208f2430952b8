//! From a selected event to the attr that records it: sample contents, targets, tracking.
use crate::options::{CallGraph, CpuMode, Options, Rate};
use crate::ring_size;
use crate::{locks, waits};
use kymo_data::abi;
use kymo_perf::evlist::{Request, SIDE_RING_PAGES};
use kymo_perf::selector::{CallGraph as EventCallGraph, Overrides, Sampling, Selected};
use kymo_perf::sys::{Perf, attr_zeroed, perf_event_attr};

/// The registers that a user stack is unwound from.
#[cfg(target_arch = "x86_64")]
pub(crate) const USER_REGS: u64 = 0xff_0fff;
#[cfg(target_arch = "aarch64")]
pub(crate) const USER_REGS: u64 = (1 << 33) - 1;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const USER_REGS: u64 = 0;

/// The register with the caller of a leaf function, where the kernel's call chains leave it out:
/// the link register.
const LEAF_REGS: u64 = if cfg!(target_arch = "aarch64") { 1 << 30 } else { 0 };

/// What all events of a list have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// More than one event: samples say which one they belong to.
    pub(crate) several: bool,
    /// The events start when the command is executed.
    pub(crate) on_exec: bool,
    /// Observes CPUs, not tasks.
    pub(crate) system: bool,
    /// The kernel copies events for children.
    pub(crate) inherit: bool,
    /// Events of CPUs, which belong to no task.
    pub(crate) per_cpu: bool,
    /// Samples per second unless the event says otherwise.
    pub(crate) rate: Rate,
    /// Wake the drain when so many bytes are in the ring.
    pub(crate) watermark_bytes: u32,
}

/// The request to open for a selected event. `tracking` makes it carry mappings, names, forks and
/// exits.
pub(crate) fn request(
    selected: &Selected,
    index: usize,
    options: &Options,
    common: &Common,
    tracking: bool,
) -> Request {
    let mut attr = selected.attr.to_raw();
    if attr.config3 == 0 {
        attr.size = attr_zeroed().size;
    }
    let member = selected.leader != index;
    let tracepoint = selected.tracepoint.is_some();
    attr.sample_type = Perf::SAMPLE_IP | Perf::SAMPLE_TID | Perf::SAMPLE_TIME;
    attr.read_format = Perf::FORMAT_ID | Perf::FORMAT_LOST;
    set_rate(&mut attr, selected.attr.sampling, common.rate);
    if attr.freq() == 1 || tracepoint || options.period {
        attr.sample_type |= Perf::SAMPLE_PERIOD;
    }
    if common.several {
        attr.sample_type |= Perf::SAMPLE_IDENTIFIER;
    }
    if common.system || options.sample_cpu || tracepoint {
        attr.sample_type |= Perf::SAMPLE_CPU;
    }
    if tracepoint || options.raw {
        attr.sample_type |= Perf::SAMPLE_RAW;
    }
    if options.data || attr.type_ == Perf::BREAKPOINT {
        attr.sample_type |= Perf::SAMPLE_ADDR;
    }
    set_call_graph(&mut attr, &selected.overrides, options);
    set_fields(&mut attr, selected, options);
    if options.no_samples {
        attr.set_freq(0);
        attr.sample_period = 0;
    }
    let inherit = selected.overrides.inherit.unwrap_or(common.inherit) && !common.per_cpu;
    if selected.group_read {
        attr.sample_type |= Perf::SAMPLE_READ;
        attr.read_format |= Perf::FORMAT_GROUP;
        if member {
            attr.set_freq(0);
            attr.sample_period = 0;
        }
    }
    // The kernel refuses group reads of inherited events (before 6.13).
    attr.set_inherit(u64::from(inherit && !selected.group_read));
    if options.fields.running_time && selected.group_read {
        attr.read_format |= Perf::FORMAT_TOTAL_TIME_ENABLED | Perf::FORMAT_TOTAL_TIME_RUNNING;
    }
    if options.counts {
        attr.read_format |= Perf::FORMAT_TOTAL_TIME_ENABLED | Perf::FORMAT_TOTAL_TIME_RUNNING;
        attr.set_inherit_stat(attr.inherit());
    }
    if !member {
        attr.set_disabled(1);
        attr.set_enable_on_exec(u64::from(common.on_exec));
    }
    finish(&mut attr, options, common);
    if options.keeps_newest(selected) {
        attr.set_write_backward(1);
        attr.set_watermark(1);
        // Nobody is woken by it: as seldom as can be.
        attr.wakeup_watermark = u32::MAX;
    }
    if tracking {
        track(&mut attr, options, common);
    }
    Request {
        name: selected.name.clone(),
        attr,
        leader: member.then_some(selected.leader),
        weak: selected.weak,
        cpus: selected.cpus.clone(),
        precise_max: selected.precise_max,
        filter: selected.tracepoint_filter(),
        immediate: false,
        alone: false,
    }
}

/// Further fields of samples, and the mode of the processor to sample in.
fn set_fields(attr: &mut perf_event_attr, selected: &Selected, options: &Options) {
    let fields = &options.fields;
    attr.sample_type |= fields.bits;
    if let Some(branches) = selected.overrides.branch_type.or(fields.branches) {
        attr.sample_type |= Perf::SAMPLE_BRANCH_STACK;
        attr.branch_sample_type = branches;
    }
    if fields.user_registers != 0 {
        attr.sample_type |= Perf::SAMPLE_REGS_USER;
        attr.sample_regs_user |= fields.user_registers;
    }
    if fields.interrupt_registers != 0 {
        attr.sample_type |= abi::PERF_SAMPLE_REGS_INTR;
        attr.sample_regs_intr = fields.interrupt_registers;
    }
    set_cgroup(attr, options);
    if let Some(mode) = options.mode {
        attr.set_exclude_user(u64::from(mode == CpuMode::Kernel));
        attr.set_exclude_kernel(u64::from(mode == CpuMode::User));
    }
}

fn set_cgroup(attr: &mut perf_event_attr, options: &Options) {
    if options.tracking.cgroups {
        attr.sample_type |= abi::PERF_SAMPLE_CGROUP;
    }
}

/// An event that samples nothing and only tracks mappings, names, forks and exits; it is enabled
/// before all others.
pub(crate) fn tracker(options: &Options, common: &Common) -> Request {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = Perf::SW_DUMMY;
    attr.sample_type = Perf::SAMPLE_IP | Perf::SAMPLE_TID | Perf::SAMPLE_TIME | Perf::SAMPLE_IDENTIFIER;
    if common.system || options.sample_cpu {
        attr.sample_type |= Perf::SAMPLE_CPU;
    }
    attr.sample_period = 1;
    attr.read_format = Perf::FORMAT_ID | Perf::FORMAT_LOST;
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_inherit(u64::from(common.inherit));
    attr.set_disabled(1);
    attr.set_enable_on_exec(u64::from(common.on_exec));
    finish(&mut attr, options, common);
    if attr.watermark() == 1 {
        // Its own rings, where it has some, are smaller.
        attr.wakeup_watermark = attr.wakeup_watermark.min(ring_size::watermark_bytes(SIDE_RING_PAGES));
    }
    track(&mut attr, options, common);
    Request { immediate: true, ..Request::new("dummy:u", attr) }
}

/// An event that takes what is told of Python's frames, before each sample.
pub(crate) fn python(options: &Options, common: &Common) -> Request {
    Request::new("python", written_by_programs(options, common))
}

/// The most that is copied of a stack for a wait. The ring has room for all of it in each sample,
/// so more would wake the drains more often, among threads that wake each other.
const WAIT_STACK_BYTES: u32 = 16 << 10;

/// An event that takes what is told of waits, with the stack of the thread that waited or of the
/// one that wakes it.
pub(crate) fn waits(options: &Options, common: &Common) -> Request {
    with_stacks(waits::OFF_CPU, options, common)
}

/// An event that takes what is told of futexes, with the stack of the thread that waited or of the
/// one that wakes it.
pub(crate) fn locks(options: &Options, common: &Common) -> Request {
    let mut request = with_stacks(locks::WAIT, options, common);
    // How the kernel got there is always the same.
    request.attr.set_exclude_callchain_kernel(1);
    request
}

/// An event of which a program in the kernel writes each sample, with the thread's stack.
fn with_stacks(name: &str, options: &Options, common: &Common) -> Request {
    let mut attr = written_by_programs(options, common);
    attr.sample_type |= Perf::SAMPLE_CPU | Perf::SAMPLE_PERIOD;
    set_call_graph(&mut attr, &Overrides::default(), options);
    attr.sample_stack_user = attr.sample_stack_user.min(WAIT_STACK_BYTES);
    set_cgroup(&mut attr, options);
    Request::new(name, attr)
}

/// An event of which a program in the kernel writes each sample.
fn written_by_programs(options: &Options, common: &Common) -> perf_event_attr {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = Perf::SW_BPF_OUTPUT;
    attr.sample_type = Perf::SAMPLE_IP | Perf::SAMPLE_TID | Perf::SAMPLE_TIME | Perf::SAMPLE_IDENTIFIER;
    attr.sample_type |= Perf::SAMPLE_RAW;
    if common.system || options.sample_cpu {
        attr.sample_type |= Perf::SAMPLE_CPU;
    }
    attr.sample_period = 1;
    attr.read_format = Perf::FORMAT_ID;
    attr.set_disabled(1);
    finish(&mut attr, options, common);
    attr
}

fn finish(attr: &mut perf_event_attr, options: &Options, common: &Common) {
    attr.set_sample_id_all(1);
    if options.unbuffered {
        attr.wakeup_events = 1;
    } else {
        attr.set_watermark(1);
        attr.wakeup_watermark = common.watermark_bytes;
    }
    if let Some(clock) = options.clock {
        attr.set_use_clockid(1);
        attr.clockid = clock.id();
    }
}

fn track(attr: &mut perf_event_attr, options: &Options, common: &Common) {
    attr.set_mmap(1);
    attr.set_mmap2(1);
    // Not by default: the kernel marks the records of other recorders as well, and perf 6.1 crashes
    // on what it then reads (`kymo_data::holds_build_id`).
    attr.set_build_id(u64::from(options.tracking.build_ids));
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_mmap_data(u64::from(options.data_mappings()));
    attr.set_context_switch(u64::from(options.switch_events));
    attr.set_namespaces(u64::from(options.tracking.namespaces));
    attr.set_cgroup(u64::from(options.tracking.cgroups));
    attr.set_ksymbol(u64::from(common.system));
    attr.set_bpf_event(u64::from(common.system && !options.tracking.no_bpf));
}

fn set_rate(attr: &mut perf_event_attr, own: Sampling, asked: Rate) {
    let (freq, value) = match (own, asked) {
        (Sampling::Period(period), _) => (false, period),
        (Sampling::Frequency(freq), _) => (true, freq),
        (_, Rate::Period(period)) => (false, period),
        (_, Rate::Frequency(freq)) => (true, freq),
        (Sampling::Natural(period), Rate::Default(_)) => (false, period),
        (Sampling::Unset, Rate::Default(freq)) => (true, freq),
    };
    attr.set_freq(u64::from(freq));
    attr.sample_period = value;
}

fn set_call_graph(attr: &mut perf_event_attr, overrides: &Overrides, options: &Options) {
    let call_graph = match overrides.call_graph {
        Some(EventCallGraph::None) => CallGraph::None,
        Some(EventCallGraph::FramePointers | EventCallGraph::Lbr) => CallGraph::FramePointers,
        Some(EventCallGraph::Dwarf(bytes)) => {
            CallGraph::Dwarf { stack_bytes: bytes.unwrap_or(CallGraph::DEFAULT_STACK_BYTES) }
        }
        None => options.call_graph,
    };
    match call_graph {
        CallGraph::None => {}
        // What is not resolved has no plan that could choose.
        CallGraph::FramePointers | CallGraph::Auto => {
            attr.sample_type |= Perf::SAMPLE_CALLCHAIN;
            if LEAF_REGS != 0 && options.chain_mode != Some(CpuMode::Kernel) {
                attr.sample_type |= Perf::SAMPLE_REGS_USER;
                attr.sample_regs_user |= LEAF_REGS;
            }
        }
        CallGraph::Dwarf { stack_bytes } => {
            attr.sample_type |= Perf::SAMPLE_CALLCHAIN | Perf::SAMPLE_REGS_USER | Perf::SAMPLE_STACK_USER;
            attr.set_exclude_callchain_user(1);
            attr.sample_regs_user = USER_REGS;
            attr.sample_stack_user = stack_bytes;
        }
    }
    match options.chain_mode {
        Some(CpuMode::User) => attr.set_exclude_callchain_kernel(1),
        Some(CpuMode::Kernel) => attr.set_exclude_callchain_user(1),
        None => {}
    }
    if let Some(frames) = overrides.max_stack {
        attr.sample_max_stack = frames;
    }
}

/// Whether samples of the event can have a program of their own: those of tracepoints have the
/// tracepoint's.
pub(crate) fn takes_program(attr: &perf_event_attr) -> bool {
    samples(attr) && attr.type_ != Perf::TRACEPOINT
}

/// Whether the event takes samples.
fn samples(attr: &perf_event_attr) -> bool {
    attr.type_ != Perf::SOFTWARE || ![Perf::SW_DUMMY, Perf::SW_BPF_OUTPUT].contains(&attr.config)
}
