//! The arguments of `kymo record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kymo_cli::event_args::EventArgs;
use kymo_cli::parse::{
    Cpus, parse_call_graph, parse_clock, parse_cpus, parse_duration, parse_frequency, parse_overload,
    parse_pid, parse_ring, parse_scope, parse_size, parse_user,
};
use kymo_cli::perf_options::PerfOptions;
use kymo_probe::engine::Choice;
use kymo_record::{CallGraph, ControlSpec, Overload, RecordingClock, Scope, SwitchRule, Synthesis};

use super::perf_options::RecordOptions;
use super::values::{parse_branches, parse_registers, parse_synthesis};
use crate::cmd::filter::percent;
use crate::cmd::probe::engines;
use crate::cmd::switching::{Snapshot, parse_snapshot, parse_switch};

/// Record a command, or what runs already, into a perf.data file.
#[derive(Debug, Default, Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kymo record -- ./program arg       a program and its children\n  kymo record -p 1234                a process that runs, until it ends or Ctrl-C\n  kymo record -a --duration 10       the whole machine for ten seconds\n  kymo record --call-graph dwarf -- ./program-without-frame-pointers"
)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) events: EventArgs,
    /// Sample so many times per second, or `max` [default: 999; 199 with --wall]
    #[arg(short = 'F', long = "freq", value_name = "HZ", value_parser = parse_frequency, conflicts_with = "period_count")]
    pub(crate) frequency: Option<u64>,
    /// Sample every so many events instead
    #[arg(short = 'c', long = "count", value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) period_count: Option<u64>,
    /// Record call chains (this is the default)
    #[arg(short = 'g')]
    pub(crate) chains: bool,
    /// How to record call chains: `fp` along frame pointers, `dwarf[,BYTES]` by unwind tables, from a copy of so much of the stack, or `auto`, by unwind tables from copies as large as the load permits, where events sample by time, and along frame pointers elsewhere [default: auto]
    #[arg(long, value_name = "MODE", value_parser = parse_call_graph)]
    pub(crate) call_graph: Option<CallGraph>,
    /// Keep the copies of stacks, for the report to unwind, instead of unwinding them while recording
    #[arg(long)]
    pub(crate) raw_stacks: bool,
    /// Show Python as the native frames of its interpreter
    ///
    /// Where call chains are whole and kymo may load programs into the kernel (as root, or with
    /// CAP_BPF and CAP_PERFMON), Python's functions take the place of the native frames that run
    /// them, for CPython 3.8 to 3.14.
    #[arg(long)]
    pub(crate) no_python: bool,
    /// Record no call chains
    #[arg(long, conflicts_with_all = ["chains", "call_graph"])]
    pub(crate) no_call_graph: bool,
    /// Size of each ring buffer: a number of pages, or bytes with B, K, M or G; rounded up to a power of two (where a program writes all events itself: of its rings)
    #[arg(short = 'm', long = "mmap-pages", value_name = "SIZE", value_parser = parse_ring)]
    pub(crate) ring_pages: Option<usize>,
    /// Where to write; a recording that is there becomes FILE.old, anything else is left alone; - is standard output (what the command prints goes to standard error then)
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    pub(crate) output: PathBuf,
    /// Record these processes and what they have started, by number or name
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pub(crate) pids: Vec<i32>,
    /// With -p, do not record what the processes have started before (what they start later is recorded without -i)
    #[arg(long)]
    pub(crate) no_children: bool,
    /// Record these threads (and not what they start)
    #[arg(short, long = "tid", value_name = "TID", value_delimiter = ',')]
    pub(crate) tids: Vec<i32>,
    /// Record everything on this machine
    #[arg(short, long = "all-cpus")]
    pub(crate) all: bool,
    /// Record everything on these CPUs: 0-2,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = parse_cpus)]
    pub(crate) cpus: Option<Cpus>,
    /// Record all processes of this user (name or number)
    #[arg(short, long = "uid", value_name = "USER", value_parser = parse_user)]
    pub(crate) user: Option<u32>,
    /// Record data addresses too, and mappings of data
    #[arg(short, long)]
    pub(crate) data: bool,
    /// Record mappings of data too
    #[arg(long)]
    pub(crate) data_mmap: bool,
    /// Record the weight of each sample, such as the cycles of a load, where the event has one
    #[arg(short = 'W', long)]
    pub(crate) weight: bool,
    /// Record physical addresses of data (root)
    #[arg(long)]
    pub(crate) phys_data: bool,
    /// Record the page size of data addresses
    #[arg(long)]
    pub(crate) data_page_size: bool,
    /// Record the page size of instruction addresses
    #[arg(long)]
    pub(crate) code_page_size: bool,
    /// Record where data came from (cache, memory), where the event knows it
    #[arg(long)]
    pub(crate) sample_mem_info: bool,
    /// Record the flags of hardware transactions
    #[arg(long)]
    pub(crate) transaction: bool,
    /// Record the event of each sample at a fixed place, also where it is not needed
    #[arg(long)]
    pub(crate) sample_identifier: bool,
    /// Record how long each event was on its counter, where a group is read at a sample ({a,b}:S)
    #[arg(long)]
    pub(crate) running_time: bool,
    /// Record the last branches before each sample, where the hardware keeps them
    #[arg(short = 'b', long, conflicts_with = "branch_filter")]
    pub(crate) branch_any: bool,
    /// Of those only some kinds: any, any_call, any_ret, ind_call, cond, call, u, k, save_type, ...
    #[arg(short = 'j', long, value_name = "KINDS", value_parser = parse_branches)]
    pub(crate) branch_filter: Option<u64>,
    /// Record registers at each sample: all, or these; =? lists them
    #[arg(short = 'I', long, value_name = "REGISTERS", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_registers)]
    pub(crate) intr_regs: Option<u64>,
    /// Record registers of the program at each sample: all, or these; =? lists them
    #[arg(long, value_name = "REGISTERS", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_registers)]
    pub(crate) user_regs: Option<u64>,
    /// Sample in programs only, all events
    #[arg(long, conflicts_with = "all_kernel")]
    pub(crate) all_user: bool,
    /// Sample in the kernel only, all events
    #[arg(long)]
    pub(crate) all_kernel: bool,
    /// Record the program's part of call chains only
    #[arg(long, conflicts_with = "kernel_callchains")]
    pub(crate) user_callchains: bool,
    /// Record the kernel's part of call chains only
    #[arg(long)]
    pub(crate) kernel_callchains: bool,
    /// Of everything on the CPUs record what is in this cgroup: its path below the cgroup mount, or the name of its unit (nginx.service), its container (by its id) or its pod
    #[arg(
        short = 'G',
        long = "cgroup",
        visible_alias = "cgroup-name",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) cgroups: Vec<String>,
    /// Record the cgroup of each sample, so that the report can tell containers and services apart
    #[arg(long)]
    pub(crate) all_cgroups: bool,
    /// Record the namespaces of processes
    #[arg(long)]
    pub(crate) namespaces: bool,
    /// Do not record programs of BPF that come and go
    #[arg(long)]
    pub(crate) no_bpf_event: bool,
    /// What to list of processes that run already: no, all, task, mmap, cgroup, or several of them
    #[arg(long, value_name = "KINDS", value_parser = parse_synthesis)]
    pub(crate) synth: Option<Synthesis>,
    /// Write each sample as soon as it is taken
    #[arg(long)]
    pub(crate) no_buffering: bool,
    /// Fail if the kernel does not permit so many samples per second, instead of taking fewer
    #[arg(long)]
    pub(crate) strict_freq: bool,
    /// Record context switches too
    #[arg(long)]
    pub(crate) switch_events: bool,
    /// Record context switches, so that `kymo report` can tell for what the whole waits
    #[arg(long)]
    pub(crate) latency: bool,
    /// Record where threads wait, too: for what, how long, and who wakes them
    ///
    /// It needs root, or CAP_BPF and CAP_PERFMON. `kymo report --wall` divides the time of each
    /// thread without remainder.
    #[arg(long, conflicts_with_all = ["raw_stacks", "user_regs", "overwrite", "snapshot", "per_thread", "no_samples", "stat", "cgroups", "cpus", "delay"])]
    pub(crate) wall: bool,
    /// With --wall: record when each call of this function begins and ends, too, so that `kymo
    /// report --wall --request` can say what these calls wait for (any function that `kymo probe`
    /// knows)
    #[arg(long = "request", value_name = "FUNCTION", requires = "wall")]
    pub(crate) requests: Vec<String>,
    /// With --wall: do without the tracepoint behind a switch, as before Linux 6.16 (for tests)
    #[arg(long, hide = true, requires = "wall")]
    pub(crate) wall_at_switch: bool,
    /// With --wall: waits from this length on are recorded one by one, shorter ones together
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "wall", default_value = "100us")]
    pub(crate) min: Duration,
    /// Begin to sample so many milliseconds after the start; -1: not at all
    #[arg(short = 'D', long, value_name = "MS", allow_negative_numbers = true)]
    pub(crate) delay: Option<i64>,
    /// Record for this time: seconds, or with ms, s, m, h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "command")]
    pub(crate) duration: Option<Duration>,
    /// Read commands from a descriptor or fifo while recording, one per line: `enable [EVENT]`, `disable [EVENT]`, `ping`, `stop`, `snapshot`, `evlist [-v|-g|-F]`; write "ack" to the second one for each. With `-D -1` recording begins with `enable`
    #[arg(long, value_name = "fd:CTL[,ACK]|fifo:PATH[,PATH]", value_parser = ControlSpec::parse)]
    pub(crate) control: Option<ControlSpec>,
    /// One ring buffer per thread instead of one per CPU; children are not followed
    #[arg(long)]
    pub(crate) per_thread: bool,
    /// How to bind events to what is recorded: cgroup, filtered, inherit or thread-cpu [default: the cheapest that is permitted; --dry-run lists them]
    #[arg(long, value_name = "SCOPE", value_parser = parse_scope)]
    pub(crate) scope: Option<Scope>,
    /// Open events with so many workers; 1: one after the other [default: by their number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Do not follow children
    #[arg(short = 'i', long)]
    pub(crate) no_inherit: bool,
    /// The clock of times: mono, raw, boot, real, tai
    #[arg(short = 'k', long, value_name = "CLOCK", value_parser = parse_clock)]
    pub(crate) clockid: Option<RecordingClock>,
    /// End the recording when its file has this size: bytes, or with B, K, M, G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_size: Option<u64>,
    /// Go on in another file on SIGUSR2, and when one has this size (with B, K, M, G) or age (with s, m, h, d); each is named FILE.TIME when it is done, and is a recording by itself
    #[arg(long, value_name = "signal|SIZE|TIME", num_args = 0..=1, require_equals = true, default_missing_value = "signal", value_parser = parse_switch)]
    pub(crate) switch_output: Option<SwitchRule>,
    /// Name the file FILE.TIME when it is done
    #[arg(long)]
    pub(crate) timestamp_filename: bool,
    /// Keep the latest so many of those files, or snapshots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) switch_max_files: Option<u32>,
    /// Be a flight recorder: rings keep the newest samples and overwrite the oldest, and nothing is written until SIGUSR2 (or the command snapshot of --control, or --switch-output=TIME), which makes a file FILE.TIME of what the rings hold; at the end it goes to FILE. -m says how much that is; the event terms overwrite and no-overwrite say it for single events
    #[arg(long, conflicts_with = "max_size")]
    pub(crate) overwrite: bool,
    /// As --overwrite, without a file at the end; =e: with one, as another snapshot
    #[arg(short = 'S', long, value_name = "e", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_snapshot, conflicts_with = "max_size")]
    pub(crate) snapshot: Option<Snapshot>,
    /// Compress the recording with zstd [level 1 to 22, default 1]
    #[arg(short = 'z', long = "compression-level", value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) compress: Option<i32>,
    /// Record the raw bytes of all events (tracepoints always have them)
    #[arg(short = 'R', long)]
    pub(crate) raw_samples: bool,
    /// Do not ask Java virtual machines for the names of their compiled code
    #[arg(long)]
    pub(crate) no_jvm: bool,
    /// Do not store the build IDs of programs and libraries
    #[arg(short = 'B', long)]
    pub(crate) no_buildid: bool,
    /// Copy all mapped files into the folder of `kymo --buildid-dir`, not only those of samples
    #[arg(long)]
    pub(crate) buildid_all: bool,
    /// Take the build IDs of mapped files from the kernel (Linux 5.12)
    #[arg(long)]
    pub(crate) buildid_mmap: bool,
    /// Do not copy the files of samples into the folder that `kymo --buildid-dir` names
    #[arg(short = 'N', long)]
    pub(crate) no_buildid_cache: bool,
    /// Count per thread
    #[arg(short, long)]
    pub(crate) stat: bool,
    /// Record the period of each sample, also where it is fixed
    #[arg(short = 'P', long)]
    pub(crate) period: bool,
    /// Record the CPU of each sample, also where it is not needed
    #[arg(long)]
    pub(crate) sample_cpu: bool,
    /// Take no samples, only count
    #[arg(short, long)]
    pub(crate) no_samples: bool,
    /// End with an error if anything was lost, or with a percentage, if more of the samples than that were
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, value_parser = percent)]
    pub(crate) fail_on_loss: Option<Option<f64>>,
    /// What gives way when samples come faster than they can be kept: slow (the target, kymo runs before it), drop (samples are lost and counted, kymo takes no priority) or pause (the target stands still while kymo catches up; the recording shows when) [default: slow]
    #[arg(long, value_name = "WHAT", value_parser = parse_overload)]
    pub(crate) overload: Option<Overload>,
    /// Rings and buffers together take at most so much memory: bytes, or with K, M, G [default: the
    /// rings and at most 128M of buffers, or two for each CPU where that is more; a quarter of a
    /// cgroup's limit where that is less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_memory: Option<u64>,
    /// Who writes the events of probe:FUNCTION: kernel, inproc (the program itself, patched by kymo; of one process with -p, without call chains) or auto (whoever is fastest)
    #[arg(long, value_parser = engines(), value_name = "ENGINE", default_value = "kernel")]
    pub(crate) engine: Choice,
    /// Of `kymo probe -o` only: hits of which this holds
    #[arg(skip)]
    pub(crate) probe_condition: Option<String>,
    /// Of `kymo probe -o` only: one of so many hits
    #[arg(skip)]
    pub(crate) probe_every: u32,
    /// Print nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print what was decided
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print what would be recorded, and end
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) perf: PerfOptions<RecordOptions>,
    /// The command to record, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
