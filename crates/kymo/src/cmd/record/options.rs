//! From the arguments of `kymo record` to what is to be recorded.

use std::time::Duration;

use kymo_data::abi;
use kymo_perf::selector::Selected;
use kymo_record::{
    CallGraph, CpuMode, Delay, LastSnapshot, Options, Output, Rate, SampleFields, TargetSpec, Tracking,
    WaitOptions,
};

use super::args::RecordArgs;
use super::values::ANY_BRANCH;
use crate::cmd::switching::Snapshot;

/// Samples per second when nothing is said: not a round number, so that it does not march in step with timers.
const DEFAULT_FREQUENCY: u64 = 999;
/// That beside waits. How long each thread ran is known exactly then; samples only divide that time
/// among functions, and are much of what the recording costs a busy machine.
const FREQUENCY_BESIDE_WAITS: u64 = 199;

fn fields(args: &RecordArgs) -> SampleFields {
    let bits = [
        (args.weight, abi::PERF_SAMPLE_WEIGHT_STRUCT),
        (args.phys_data, abi::PERF_SAMPLE_PHYS_ADDR),
        (args.data_page_size, abi::PERF_SAMPLE_DATA_PAGE_SIZE),
        (args.code_page_size, abi::PERF_SAMPLE_CODE_PAGE_SIZE),
        (args.sample_mem_info, abi::PERF_SAMPLE_DATA_SRC),
        (args.transaction, abi::PERF_SAMPLE_TRANSACTION),
        (args.sample_identifier, abi::PERF_SAMPLE_IDENTIFIER),
    ];
    SampleFields {
        bits: bits.iter().filter(|(wanted, _)| *wanted).fold(0, |bits, (_, bit)| bits | bit),
        branches: args.branch_filter.or(args.branch_any.then_some(ANY_BRANCH)),
        user_registers: args.user_regs.unwrap_or(0),
        interrupt_registers: args.intr_regs.unwrap_or(0),
        running_time: args.running_time,
    }
}

fn mode(user: bool, kernel: bool) -> Option<CpuMode> {
    user.then_some(CpuMode::User).or(kernel.then_some(CpuMode::Kernel))
}

/// What is to be recorded, of these events.
pub(super) fn options(args: RecordArgs, events: Vec<Selected>) -> Options {
    let rate = match (args.frequency, args.period_count) {
        (Some(hz), _) => Rate::Frequency(hz),
        (_, Some(events)) => Rate::Period(events),
        _ if args.wall => Rate::Default(FREQUENCY_BESIDE_WAITS),
        _ => Rate::Default(DEFAULT_FREQUENCY),
    };
    let call_graph =
        if args.no_call_graph { CallGraph::None } else { args.call_graph.unwrap_or(CallGraph::Auto) };
    let delay = args
        .delay
        .filter(|&ms| ms != 0)
        .map(|ms| u64::try_from(ms).map_or(Delay::Disabled, |ms| Delay::After(Duration::from_millis(ms))));
    let fields = fields(&args);
    Options {
        events,
        rate,
        call_graph,
        targets: TargetSpec {
            command: args.command,
            children: !args.no_children && !args.no_inherit && !args.per_thread,
            pids: args.pids,
            tids: args.tids,
            uid: args.user,
            all: args.all,
            cpus: args.cpus.map_or_else(Vec::new, |cpus| cpus.0),
            cgroup: args.cgroups.into_iter().next(),
            per_thread: args.per_thread,
        },
        scope: args.scope,
        jobs: args.jobs.map(usize::from),
        inherit: args.no_inherit.then_some(false),
        ring_pages: args.ring_pages,
        data: args.data,
        switch_events: args.switch_events || args.latency,
        waits: args.wall.then(|| WaitOptions {
            long: args.min,
            not_behind: args.wall_at_switch,
            ..WaitOptions::default()
        }),
        locks: None,
        holds: false,
        environment: Vec::new(),
        silent_command: false,
        fields,
        tracking: Tracking {
            data_mappings: args.data_mmap,
            only_code: false,
            namespaces: args.namespaces,
            cgroups: args.all_cgroups,
            no_bpf: args.no_bpf_event,
            build_ids: args.buildid_mmap && !args.no_buildid,
        },
        synthesis: args.synth.unwrap_or_default(),
        mode: mode(args.all_user, args.all_kernel),
        chain_mode: mode(args.user_callchains, args.kernel_callchains),
        unbuffered: args.no_buffering,
        strict_frequency: args.strict_freq,
        overwrite: args.overwrite || args.snapshot.is_some(),
        ring_reach: None,
        last_snapshot: match (args.snapshot, args.switch_output) {
            (Some(Snapshot { at_end: false }), _) => LastSnapshot::Not,
            (None, None) => LastSnapshot::Plain,
            _ => LastSnapshot::Dated,
        },
        raw: args.raw_samples,
        sample_cpu: args.sample_cpu,
        period: args.period,
        counts: args.stat,
        raw_stacks: args.raw_stacks,
        python: !args.no_python,
        no_samples: args.no_samples,
        delay,
        duration: args.duration,
        clock: args.clockid,
        compress: args.compress,
        overload: args.overload.unwrap_or_default(),
        max_memory_bytes: args.max_memory,
        limited_by_cgroup: false,
        unwind_memory_bytes: Options::UNWIND_BYTES,
        build_ids: !args.no_buildid,
        user_rings: false,
        asks_jvms: !args.no_jvm,
        output: Output::parse(&args.output),
        cmdline: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        version: format!("kymo {}", env!("CARGO_PKG_VERSION")),
    }
}
