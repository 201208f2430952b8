//! Options of `perf record` that change nothing here, or that kymo has something else for.

use kymo_cli::perf_options::{PerfOption, PerfOptionTable, PerfValue};

/// The table of `kymo record`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordOptions;

const NONE: PerfValue = PerfValue::None;
const VALUE: PerfValue = PerfValue::Required;
const OPTIONAL: PerfValue = PerfValue::Optional;

const TRACES: &str = "it records no processor traces (Intel PT, ARM SPE); `perf record` does";

impl PerfOptionTable for RecordOptions {
    const OPTIONS: &'static [PerfOption] = &[
        PerfOption::accepted("affinity", VALUE, "each CPU's ring is drained by a thread on that CPU"),
        PerfOption::accepted("aio", OPTIONAL, "the file is written through io_uring where the kernel has it"),
        PerfOption::refused("aux-sample", OPTIONAL, TRACES),
        PerfOption::refused(
            "clang-opt",
            VALUE,
            "it compiles no BPF scriptlets; `kymo probe` and `-e probe:FUNCTION` observe functions",
        ),
        PerfOption::refused(
            "clang-path",
            VALUE,
            "it compiles no BPF scriptlets; `kymo probe` and `-e probe:FUNCTION` observe functions",
        ),
        PerfOption::accepted("debuginfod", OPTIONAL, "symbols are looked up when the recording is read"),
        PerfOption::refused("group", NONE, "write the events of a group in braces: -e '{a,b}'"),
        PerfOption::refused(
            "kcore",
            NONE,
            "the kernel's code is not copied; names come from /proc/kallsyms when the recording is read",
        ),
        PerfOption::accepted("mmap-flush", VALUE, "a ring is drained when a quarter of it is full"),
        PerfOption::accepted(
            "num-thread-synthesize",
            VALUE,
            "many processes are listed by several threads anyway",
        ),
        PerfOption::refused(
            "off-cpu",
            NONE,
            "`kymo record --wall` records where threads wait, how long, and who wakes them",
        ),
        PerfOption::refused(
            "off-cpu-thresh",
            VALUE,
            "`kymo record --wall` records where threads wait, how long, and who wakes them",
        ),
        PerfOption::accepted("proc-map-timeout", VALUE, "mappings are read while the recording runs"),
        PerfOption::accepted(
            "realtime",
            VALUE,
            "the threads that drain rings run at real-time priority where it is permitted; see --overload",
        )
        .short('r'),
        PerfOption::refused(
            "setup-filter",
            VALUE,
            "filters of the kernel's tracepoints (--filter) need no setting up",
        ),
        PerfOption::refused(
            "switch-output-event",
            VALUE,
            "SIGUSR2, or the command snapshot of --control, asks for another file",
        ),
        PerfOption::accepted(
            "tail-synthesize",
            NONE,
            "the file is complete in either order: each file of several repeats what the others began with",
        ),
        PerfOption::accepted("threads", OPTIONAL, "there is always a thread for each CPU, and one file"),
        PerfOption::accepted("timestamp", NONE, "samples always have a time").short('T'),
        PerfOption::accepted(
            "timestamp-boundary",
            NONE,
            "the times of the first and the last sample are always recorded",
        ),
        PerfOption::accepted("vmlinux", VALUE, "symbols are looked up when the recording is read"),
    ];
}
