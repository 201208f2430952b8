//! The kernel's and perf's constants, by their own names.
//!
//! Values come from the kernel's user ABI header `perf_event.h` and, for record types from 64 on,
//! from perf's file format. Names keep the kernel's spelling so that they can be searched for.
#![allow(missing_docs, reason = "most names say what they stand for")]

// Record types: below 64 the kernel's, from 64 on perf's.
/// A memory mapping (old form).
pub const PERF_RECORD_MMAP: u32 = 1;
/// Records were lost because a ring was full.
pub const PERF_RECORD_LOST: u32 = 2;
/// A task's name changed (also by exec).
pub const PERF_RECORD_COMM: u32 = 3;
/// A task ended.
pub const PERF_RECORD_EXIT: u32 = 4;
/// An event was throttled.
pub const PERF_RECORD_THROTTLE: u32 = 5;
/// An event runs again after a throttle.
pub const PERF_RECORD_UNTHROTTLE: u32 = 6;
/// A task was created.
pub const PERF_RECORD_FORK: u32 = 7;
/// Counter values of an ended task.
pub const PERF_RECORD_READ: u32 = 8;
pub const PERF_RECORD_SAMPLE: u32 = 9;
/// A memory mapping with file identity and protection.
pub const PERF_RECORD_MMAP2: u32 = 10;
/// New data in the AUX area.
pub const PERF_RECORD_AUX: u32 = 11;
/// Instruction tracing started.
pub const PERF_RECORD_ITRACE_START: u32 = 12;
/// Samples that an event lost.
pub const PERF_RECORD_LOST_SAMPLES: u32 = 13;
/// A context switch of the task.
pub const PERF_RECORD_SWITCH: u32 = 14;
/// A context switch seen by a CPU-wide event.
pub const PERF_RECORD_SWITCH_CPU_WIDE: u32 = 15;
/// A task's namespaces.
pub const PERF_RECORD_NAMESPACES: u32 = 16;
/// A kernel symbol appeared or vanished.
pub const PERF_RECORD_KSYMBOL: u32 = 17;
/// A BPF program was loaded or unloaded.
pub const PERF_RECORD_BPF_EVENT: u32 = 18;
/// A cgroup's id and path.
pub const PERF_RECORD_CGROUP: u32 = 19;
/// Kernel text was modified.
pub const PERF_RECORD_TEXT_POKE: u32 = 20;
/// Hardware id of an event in AUX output.
pub const PERF_RECORD_AUX_OUTPUT_HW_ID: u32 = 21;
/// A user callchain delivered after its sample.
pub const PERF_RECORD_CALLCHAIN_DEFERRED: u32 = 22;
/// Pipe form: one event's attr and ids.
pub const PERF_RECORD_HEADER_ATTR: u32 = 64;
/// Obsolete.
pub const PERF_RECORD_HEADER_EVENT_TYPE: u32 = 65;
/// The fewest bytes of a HEADER_EVENT_TYPE record: a header, an id and a name. perf 7 warns of
/// shorter ones.
pub(crate) const SMALLEST_EVENT_TYPE_RECORD: usize = 80;
/// Pipe form: tracing data follows the record.
pub const PERF_RECORD_HEADER_TRACING_DATA: u32 = 66;
/// A build ID of a file.
pub const PERF_RECORD_HEADER_BUILD_ID: u32 = 67;
/// The recorder finished one pass over all rings.
pub const PERF_RECORD_FINISHED_ROUND: u32 = 68;
/// Ids with their CPU and thread.
pub const PERF_RECORD_ID_INDEX: u32 = 69;
/// Describes AUX data.
pub const PERF_RECORD_AUXTRACE_INFO: u32 = 70;
/// AUX data follows the record.
pub const PERF_RECORD_AUXTRACE: u32 = 71;
/// An AUX decoding error.
pub const PERF_RECORD_AUXTRACE_ERROR: u32 = 72;
/// The threads of a stat recording.
pub const PERF_RECORD_THREAD_MAP: u32 = 73;
/// The CPUs of a recording.
pub const PERF_RECORD_CPU_MAP: u32 = 74;
/// Settings of a stat recording.
pub const PERF_RECORD_STAT_CONFIG: u32 = 75;
/// A counter value of a stat recording.
pub const PERF_RECORD_STAT: u32 = 76;
/// End of an interval of a stat recording.
pub const PERF_RECORD_STAT_ROUND: u32 = 77;
/// Later knowledge about an event (name, unit, scale, CPUs).
pub const PERF_RECORD_EVENT_UPDATE: u32 = 78;
/// TSC to time conversion.
pub const PERF_RECORD_TIME_CONV: u32 = 79;
/// Pipe form: one feature section.
pub const PERF_RECORD_HEADER_FEATURE: u32 = 80;
/// Bytes of a zstd stream of records.
pub const PERF_RECORD_COMPRESSED: u32 = 81;
/// All synthesized records precede this one.
pub const PERF_RECORD_FINISHED_INIT: u32 = 82;
/// As COMPRESSED, with an explicit data size and padding.
pub const PERF_RECORD_COMPRESSED2: u32 = 83;
/// Metadata of a BPF program.
pub const PERF_RECORD_BPF_METADATA: u32 = 84;
/// Scheduler statistics of a CPU.
pub const PERF_RECORD_SCHEDSTAT_CPU: u32 = 85;
/// Scheduler statistics of a domain.
pub const PERF_RECORD_SCHEDSTAT_DOMAIN: u32 = 86;
/// The first of simpleperf's own types.
/// Source: `SIMPLE_PERF_RECORD_TYPE_START` in Android's `simpleperf/record.h`.
pub const SIMPLEPERF_FIRST_RECORD: u32 = 32768;

// Bits of a record header's `misc`.
/// The low bits: where the instruction pointer was.
pub const PERF_RECORD_MISC_CPUMODE_MASK: u16 = 7;
pub const PERF_RECORD_MISC_KERNEL: u16 = 1;
pub const PERF_RECORD_MISC_USER: u16 = 2;
pub const PERF_RECORD_MISC_HYPERVISOR: u16 = 3;
pub const PERF_RECORD_MISC_GUEST_KERNEL: u16 = 4;
pub const PERF_RECORD_MISC_GUEST_USER: u16 = 5;
/// MMAP: not executable.
pub const PERF_RECORD_MISC_MMAP_DATA: u16 = 1 << 13;
/// COMM: because of an exec.
pub const PERF_RECORD_MISC_COMM_EXEC: u16 = 1 << 13;
/// FORK: synthesized, no mappings are inherited (perf's own).
pub const PERF_RECORD_MISC_FORK_EXEC: u16 = 1 << 13;
/// SWITCH: away from the task.
pub const PERF_RECORD_MISC_SWITCH_OUT: u16 = 1 << 13;
/// SWITCH: the task was preempted.
pub const PERF_RECORD_MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
/// MMAP2: carries a build ID instead of the file's device and inode.
pub const PERF_RECORD_MISC_MMAP_BUILD_ID: u16 = 1 << 14;
/// HEADER_BUILD_ID: the build ID's size is valid.
pub const PERF_RECORD_MISC_BUILD_ID_SIZE: u16 = 1 << 15;

// Bits of `Attr::sample_type`.
pub const PERF_SAMPLE_IP: u64 = 1 << 0;
/// Process and thread id.
pub const PERF_SAMPLE_TID: u64 = 1 << 1;
pub const PERF_SAMPLE_TIME: u64 = 1 << 2;
pub const PERF_SAMPLE_ADDR: u64 = 1 << 3;
pub const PERF_SAMPLE_READ: u64 = 1 << 4;
pub const PERF_SAMPLE_CALLCHAIN: u64 = 1 << 5;
pub const PERF_SAMPLE_ID: u64 = 1 << 6;
pub const PERF_SAMPLE_CPU: u64 = 1 << 7;
pub const PERF_SAMPLE_PERIOD: u64 = 1 << 8;
pub const PERF_SAMPLE_STREAM_ID: u64 = 1 << 9;
/// Raw data of a tracepoint.
pub const PERF_SAMPLE_RAW: u64 = 1 << 10;
pub const PERF_SAMPLE_BRANCH_STACK: u64 = 1 << 11;
pub const PERF_SAMPLE_REGS_USER: u64 = 1 << 12;
/// A copy of the user stack.
pub const PERF_SAMPLE_STACK_USER: u64 = 1 << 13;
pub const PERF_SAMPLE_WEIGHT: u64 = 1 << 14;
/// Source of the data.
pub const PERF_SAMPLE_DATA_SRC: u64 = 1 << 15;
/// The event's id at a fixed place.
pub const PERF_SAMPLE_IDENTIFIER: u64 = 1 << 16;
pub const PERF_SAMPLE_TRANSACTION: u64 = 1 << 17;
/// Registers at the interrupt.
pub const PERF_SAMPLE_REGS_INTR: u64 = 1 << 18;
pub const PERF_SAMPLE_PHYS_ADDR: u64 = 1 << 19;
pub const PERF_SAMPLE_AUX: u64 = 1 << 20;
pub const PERF_SAMPLE_CGROUP: u64 = 1 << 21;
/// Page size of the data address.
pub const PERF_SAMPLE_DATA_PAGE_SIZE: u64 = 1 << 22;
/// Page size of the instruction pointer.
pub const PERF_SAMPLE_CODE_PAGE_SIZE: u64 = 1 << 23;
/// Three weights in one word.
pub const PERF_SAMPLE_WEIGHT_STRUCT: u64 = 1 << 24;

// Bits of `Attr::read_format`.
/// The time that the event was enabled.
pub const PERF_FORMAT_TOTAL_TIME_ENABLED: u64 = 1;
/// The time that the event ran.
pub const PERF_FORMAT_TOTAL_TIME_RUNNING: u64 = 1 << 1;
pub const PERF_FORMAT_ID: u64 = 1 << 2;
/// All values of the group.
pub const PERF_FORMAT_GROUP: u64 = 1 << 3;
pub const PERF_FORMAT_LOST: u64 = 1 << 4;

// Bits of `Attr::flags`: the bit field of `perf_event_attr`.
pub const ATTR_FLAG_DISABLED: u64 = 1 << 0;
pub const ATTR_FLAG_INHERIT: u64 = 1 << 1;
pub const ATTR_FLAG_EXCLUDE_USER: u64 = 1 << 4;
pub const ATTR_FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
pub const ATTR_FLAG_EXCLUDE_HV: u64 = 1 << 6;
pub const ATTR_FLAG_FREQ: u64 = 1 << 10;
pub const ATTR_FLAG_TASK: u64 = 1 << 13;
pub const ATTR_FLAG_MMAP_DATA: u64 = 1 << 17;
pub const ATTR_FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
pub const ATTR_FLAG_EXCLUDE_HOST: u64 = 1 << 19;
pub const ATTR_FLAG_EXCLUDE_GUEST: u64 = 1 << 20;
pub const ATTR_FLAG_EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
pub const ATTR_FLAG_USE_CLOCKID: u64 = 1 << 25;
pub const ATTR_FLAG_CONTEXT_SWITCH: u64 = 1 << 26;
pub const ATTR_FLAG_BUILD_ID: u64 = 1 << 34;

// The two-bit `precise_ip` field of `Attr::flags`.
/// Where the field starts.
pub const ATTR_PRECISE_IP_SHIFT: u32 = 15;

// Event types (`Attr::kind`).
pub const PERF_TYPE_HARDWARE: u32 = 0;
pub const PERF_TYPE_SOFTWARE: u32 = 1;
pub const PERF_TYPE_TRACEPOINT: u32 = 2;
pub const PERF_TYPE_RAW: u32 = 4;
pub const PERF_TYPE_BREAKPOINT: u32 = 5;

// Software events (`Attr::config` of type software).
pub const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
pub const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
pub const PERF_COUNT_SW_DUMMY: u64 = 9;

// Marks within a callchain: the following addresses belong to this place.
pub const PERF_CONTEXT_KERNEL: u64 = 128u64.wrapping_neg();
pub const PERF_CONTEXT_USER: u64 = 512u64.wrapping_neg();
/// All marks are at least this, all addresses below it.
pub const PERF_CONTEXT_MAX: u64 = 4095u64.wrapping_neg();

// Branch sample bits that change a sample's layout.
/// The branch stack is the stack of calls under way (`--call-graph lbr`).
pub const PERF_SAMPLE_BRANCH_CALL_STACK: u64 = 1 << 11;
/// The branch stack starts with a hardware index.
pub const PERF_SAMPLE_BRANCH_HW_INDEX: u64 = 1 << 17;
/// The branch stack ends with one counter word per entry.
pub const PERF_SAMPLE_BRANCH_COUNTERS: u64 = 1 << 19;

// Kinds of register sets.
/// No registers: a kernel thread.
pub const PERF_SAMPLE_REGS_ABI_NONE: u64 = 0;

// Flags of a KSYMBOL record.
/// The symbol vanished.
pub const PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER: u16 = 1;

// Feature bits of the file header.
pub const HEADER_TRACING_DATA: u32 = 1;
pub const HEADER_BUILD_ID: u32 = 2;
pub const HEADER_HOSTNAME: u32 = 3;
pub const HEADER_OSRELEASE: u32 = 4;
pub const HEADER_VERSION: u32 = 5;
pub const HEADER_ARCH: u32 = 6;
pub const HEADER_NRCPUS: u32 = 7;
pub const HEADER_CPUDESC: u32 = 8;
pub const HEADER_CPUID: u32 = 9;
pub const HEADER_TOTAL_MEM: u32 = 10;
pub const HEADER_CMDLINE: u32 = 11;
pub const HEADER_EVENT_DESC: u32 = 12;
pub const HEADER_CPU_TOPOLOGY: u32 = 13;
pub const HEADER_NUMA_TOPOLOGY: u32 = 14;
pub const HEADER_BRANCH_STACK: u32 = 15;
pub const HEADER_PMU_MAPPINGS: u32 = 16;
pub const HEADER_GROUP_DESC: u32 = 17;
pub const HEADER_AUXTRACE: u32 = 18;
pub const HEADER_STAT: u32 = 19;
pub const HEADER_CACHE: u32 = 20;
pub const HEADER_SAMPLE_TIME: u32 = 21;
pub const HEADER_MEM_TOPOLOGY: u32 = 22;
pub const HEADER_CLOCKID: u32 = 23;
pub const HEADER_DIR_FORMAT: u32 = 24;
pub const HEADER_BPF_PROG_INFO: u32 = 25;
pub const HEADER_BPF_BTF: u32 = 26;
pub const HEADER_COMPRESSED: u32 = 27;
pub const HEADER_CPU_PMU_CAPS: u32 = 28;
pub const HEADER_CLOCK_DATA: u32 = 29;
pub const HEADER_PMU_CAPS: u32 = 31;
/// What an imported profile says of itself. perf has 256 bits and steps over those that it does not
/// know.
pub const HEADER_KYMO_IMPORTED: u32 = 200;

/// The name of a record type as perf prints it without its prefix, or `"unknown"`.
pub fn record_name(kind: u32) -> &'static str {
    match kind {
        PERF_RECORD_MMAP => "MMAP",
        PERF_RECORD_LOST => "LOST",
        PERF_RECORD_COMM => "COMM",
        PERF_RECORD_EXIT => "EXIT",
        PERF_RECORD_THROTTLE => "THROTTLE",
        PERF_RECORD_UNTHROTTLE => "UNTHROTTLE",
        PERF_RECORD_FORK => "FORK",
        PERF_RECORD_READ => "READ",
        PERF_RECORD_SAMPLE => "SAMPLE",
        PERF_RECORD_MMAP2 => "MMAP2",
        PERF_RECORD_AUX => "AUX",
        PERF_RECORD_ITRACE_START => "ITRACE_START",
        PERF_RECORD_LOST_SAMPLES => "LOST_SAMPLES",
        PERF_RECORD_SWITCH => "SWITCH",
        PERF_RECORD_SWITCH_CPU_WIDE => "SWITCH_CPU_WIDE",
        PERF_RECORD_NAMESPACES => "NAMESPACES",
        PERF_RECORD_KSYMBOL => "KSYMBOL",
        PERF_RECORD_BPF_EVENT => "BPF_EVENT",
        PERF_RECORD_CGROUP => "CGROUP",
        PERF_RECORD_TEXT_POKE => "TEXT_POKE",
        PERF_RECORD_AUX_OUTPUT_HW_ID => "AUX_OUTPUT_HW_ID",
        PERF_RECORD_CALLCHAIN_DEFERRED => "CALLCHAIN_DEFERRED",
        PERF_RECORD_HEADER_ATTR => "HEADER_ATTR",
        PERF_RECORD_HEADER_EVENT_TYPE => "HEADER_EVENT_TYPE",
        PERF_RECORD_HEADER_TRACING_DATA => "HEADER_TRACING_DATA",
        PERF_RECORD_HEADER_BUILD_ID => "HEADER_BUILD_ID",
        PERF_RECORD_FINISHED_ROUND => "FINISHED_ROUND",
        PERF_RECORD_ID_INDEX => "ID_INDEX",
        PERF_RECORD_AUXTRACE_INFO => "AUXTRACE_INFO",
        PERF_RECORD_AUXTRACE => "AUXTRACE",
        PERF_RECORD_AUXTRACE_ERROR => "AUXTRACE_ERROR",
        PERF_RECORD_THREAD_MAP => "THREAD_MAP",
        PERF_RECORD_CPU_MAP => "CPU_MAP",
        PERF_RECORD_STAT_CONFIG => "STAT_CONFIG",
        PERF_RECORD_STAT => "STAT",
        PERF_RECORD_STAT_ROUND => "STAT_ROUND",
        PERF_RECORD_EVENT_UPDATE => "EVENT_UPDATE",
        PERF_RECORD_TIME_CONV => "TIME_CONV",
        PERF_RECORD_HEADER_FEATURE => "HEADER_FEATURE",
        PERF_RECORD_COMPRESSED => "COMPRESSED",
        PERF_RECORD_FINISHED_INIT => "FINISHED_INIT",
        PERF_RECORD_COMPRESSED2 => "COMPRESSED2",
        PERF_RECORD_BPF_METADATA => "BPF_METADATA",
        PERF_RECORD_SCHEDSTAT_CPU => "SCHEDSTAT_CPU",
        PERF_RECORD_SCHEDSTAT_DOMAIN => "SCHEDSTAT_DOMAIN",
        _ => "unknown",
    }
}
