//! `kymo stat`: count what happens while a command runs, in processes, on CPUs or in cgroups.
//!
//! ```text
//!  arguments --events--> Selected --run--> Run (one per repetition; Tick per interval) --repeat--> Summary --table|csv|json--> stderr or -o
//!                                   |                                       ^
//!                                   '-- kymo_perf::count (counters) --------'  derived: rates, CPUs utilized, IPC
//! ```
//! What is printed has perf's shape, byte for byte where perf has the same line; what perf does not have comes behind its lines.

mod accounts;
mod bind;
mod counting;
mod cpu_time;
mod csv;
mod derived;
mod events;
mod footer;
mod json;
mod line;
mod metrics;
mod output;
mod perf_options;
mod print;
mod recording;
mod repeat;
mod report;
mod run;
mod table;
mod tasks;
mod tools;
mod watched;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kymo_perf::count::aggregate::By;
use kymo_perf::explain;
use kymo_record::ControlSpec;

use kymo_cli::event_args::EventArgs;
use kymo_cli::exit;
use kymo_cli::parse::parse_pid;
use kymo_cli::perf_options::PerfOptions;
use kymo_probe::kernel_events;
use kymo_probe::memory_events::{self, RecordingTarget};

use counting::End;
pub(crate) use perf_options::StatOptions;
use recording::CountFile;

/// Count what happens while a command runs, or in what runs already.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_value_name = "record|report")]
pub(crate) struct StatCommand {
    #[command(subcommand)]
    verb: Option<StatVerb>,
    #[command(flatten)]
    args: StatArgs,
}

/// What else can be done with counts.
#[derive(Debug, Subcommand)]
enum StatVerb {
    /// Count, and write the counts into a recording (-o FILE, `perf.data` without it), too
    Record(Box<StatArgs>),
    /// Print the counts of a recording
    Report(report::StatReportArgs),
}

/// Count what happens while a command runs, or in what runs already.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kymo stat -- ./program arg             perf's default events, for a program and all it starts\n  kymo stat -r 10 -- ./program           ten times: mean, standard error, median, outliers\n  kymo stat -e page-faults,sched:sched_switch -p 1234\n  kymo stat -a -I 1000                   the whole machine, every second, until Ctrl-C\n  kymo stat -x, -o counts.csv -- ./program"
)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(super) events: EventArgs,
    /// Count in these processes and what they have started, by number or name
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pub(super) pids: Vec<i32>,
    /// With -p, do not count in what the processes have started before
    #[arg(long)]
    pub(super) no_children: bool,
    /// Count in these threads
    #[arg(short, long = "tid", value_name = "TID", value_delimiter = ',')]
    pub(super) tids: Vec<i32>,
    /// Count on all CPUs, whatever runs
    #[arg(short, long = "all-cpus")]
    pub(super) all: bool,
    /// Count on these CPUs: 0-2,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = kymo_cli::parse::parse_cpus)]
    pub(super) cpus: Option<kymo_cli::parse::Cpus>,
    /// Count each event in its cgroup, or all in one; paths below the cgroup mount
    #[arg(short = 'G', long = "cgroup", value_name = "NAME", value_delimiter = ',')]
    pub(super) cgroups: Vec<String>,
    /// Count every event in each of these cgroups
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "cgroups")]
    pub(super) for_each_cgroup: Vec<String>,
    /// Run the command so many times and print means, standard errors, medians, ranges and outliers; 0: until Ctrl-C
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub(super) repeat: u32,
    /// Print the time of each repetition
    #[arg(long)]
    pub(super) table: bool,
    /// Print what was counted every so many milliseconds
    #[arg(short = 'I', long = "interval-print", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) interval: Option<u64>,
    /// End after so many intervals
    #[arg(long, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) interval_count: Option<u64>,
    /// Print the sums at the end of the intervals, too
    #[arg(long)]
    pub(super) summary: bool,
    /// End the command, or the counting, after so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: Option<u64>,
    /// Begin to count so many milliseconds after the start; -1: not at all, until --control enables it
    #[arg(short = 'D', long, value_name = "MS", allow_negative_numbers = true)]
    pub(super) delay: Option<i64>,
    /// Print perf's CSV fields, with this separator
    #[arg(short = 'x', long = "field-separator", value_name = "SEP")]
    pub(super) separator: Option<String>,
    /// Print one JSON object per line, with perf's keys
    #[arg(short = 'j', long = "json-output", visible_alias = "json", conflicts_with = "separator")]
    pub(super) json: bool,
    /// With --summary, do not mark the lines of the sums in CSV
    #[arg(long)]
    pub(super) no_csv_summary: bool,
    /// Print what follows from the counts (instructions per cycle, shares of misses), and no counts
    #[arg(long)]
    pub(super) metric_only: bool,
    /// Count what these metrics need, and print them: CPUs_utilized, cs_per_second, migrations_per_second, page_faults_per_second
    #[arg(short = 'M', long, value_name = "METRIC", value_delimiter = ',')]
    pub(super) metrics: Vec<String>,
    /// Do not sum over CPUs
    #[arg(short = 'A', long, conflicts_with_all = ["per_thread", "per_core", "per_die", "per_socket", "per_node"])]
    pub(super) no_aggr: bool,
    /// As -A
    #[arg(long, conflicts_with_all = ["per_thread", "per_core", "per_die", "per_socket", "per_node"])]
    pub(super) no_merge: bool,
    /// Sum for each thread
    #[arg(long, conflicts_with_all = ["per_core", "per_die", "per_socket", "per_node"])]
    pub(super) per_thread: bool,
    /// Sum for each core
    #[arg(long, conflicts_with_all = ["per_die", "per_socket", "per_node"])]
    pub(super) per_core: bool,
    /// Sum for each die
    #[arg(long, conflicts_with_all = ["per_socket", "per_node"])]
    pub(super) per_die: bool,
    /// Sum for each socket
    #[arg(long, conflicts_with = "per_node")]
    pub(super) per_socket: bool,
    /// Sum for each memory node
    #[arg(long, conflicts_with_all = ["per_cache", "per_cluster"])]
    pub(super) per_node: bool,
    /// Sum for each cluster of cores
    #[arg(long, conflicts_with_all = ["no_aggr", "per_thread", "per_core", "per_die", "per_socket", "per_cache"])]
    pub(super) per_cluster: bool,
    /// Sum for each cache: of the last level, or of this one (L2)
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = parse_cache_level, conflicts_with_all = ["no_aggr", "per_thread", "per_core", "per_die", "per_socket"])]
    pub(super) per_cache: Option<u8>,
    /// Count in programs only, all events
    #[arg(long, conflicts_with = "all_kernel")]
    pub(super) all_user: bool,
    /// Count in the kernel only, all events
    #[arg(long)]
    pub(super) all_kernel: bool,
    /// Print what was counted where events took turns, not what it would have been in all of the time
    #[arg(long)]
    pub(super) no_scale: bool,
    /// Write all data of files to the disks before each repetition (sync)
    #[arg(short = 'S', long)]
    pub(super) sync: bool,
    /// Clear the screen before each interval
    #[arg(long, requires = "interval")]
    pub(super) interval_clear: bool,
    /// More events: caches; twice and three times: more of them
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) detailed: u8,
    /// Count nothing, only take the time
    #[arg(short = 'n', long)]
    pub(super) null: bool,
    /// Do not count in what the command or the processes start
    #[arg(short = 'i', long)]
    pub(super) no_inherit: bool,
    /// How to bind events to a command: cgroup or inherit [default: cgroup where it is permitted, because a new thread then costs nothing and a switch little]
    #[arg(long, value_name = "SCOPE", value_parser = ["cgroup", "inherit"])]
    pub(super) scope: Option<String>,
    /// Where counts are read: auto takes what the kernel accounts anyway or can count where it happens, so that no event is looked after at a context switch, and events for the rest; perf takes events for all
    #[arg(long, value_name = "SOURCE", default_value = "auto", value_parser = ["auto", "perf"])]
    pub(super) source: String,
    /// Write there instead of to stderr
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Add to the end of that file
    #[arg(long, requires = "output")]
    pub(super) append: bool,
    /// Write to this descriptor instead
    #[arg(long, value_name = "FD", conflicts_with = "output")]
    pub(super) log_fd: Option<i32>,
    /// Group digits by thousands (as perf: only where the locale does)
    #[arg(short = 'B', long, overrides_with = "no_big_num")]
    pub(super) big_num: bool,
    /// Do not group digits
    #[arg(long)]
    pub(super) no_big_num: bool,
    /// Print the kernel's own accounts (memory, faults, switches, I/O, pressure) in CSV and JSON, too
    #[arg(long, overrides_with = "no_accounting")]
    pub(super) accounting: bool,
    /// Do not print them in the table either
    #[arg(long)]
    pub(super) no_accounting: bool,
    /// Print for how long the command had to wait for CPU, I/O and memory; costs 1 % of a context switch
    #[arg(long)]
    pub(super) pressure: bool,
    /// Run this before each repetition, with sh
    #[arg(long, value_name = "COMMAND")]
    pub(super) pre: Option<OsString>,
    /// Run this after each repetition, with sh
    #[arg(long, value_name = "COMMAND")]
    pub(super) post: Option<OsString>,
    /// Read commands from a descriptor or fifo, one per line: `enable [EVENT]`, `disable [EVENT]`, `ping`, `stop`; write "ack" to the second one for each
    #[arg(long, value_name = "fd:CTL[,ACK]|fifo:PATH[,PATH]", value_parser = ControlSpec::parse)]
    pub(super) control: Option<ControlSpec>,
    /// Show what the tasks inside a program use (async tasks, fibers, jobs), of one process or a command that counts them with kymo-agent; -v: all of them
    #[arg(long, conflicts_with_all = [
        "event", "filter", "exclude-perf", "tids", "all", "cpus", "cgroups", "for_each_cgroup", "repeat", "table", "summary", "timeout", "delay", "separator",
        "no_aggr", "per_thread", "pressure", "per_core", "per_die", "per_socket", "per_node", "detailed", "null", "no_inherit", "scope", "log_fd",
        "accounting", "no_accounting", "pre", "post", "control", "metrics", "metric_only", "per_cache", "per_cluster", "all_user", "all_kernel", "sync", "quiet",
    ])]
    pub(super) tasks: bool,
    /// Print no counts and no messages
    #[arg(long)]
    pub(super) quiet: bool,
    /// Print what was decided
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(flatten)]
    pub(super) perf: PerfOptions<StatOptions>,
    /// The command to count, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl StatArgs {
    /// By what to sum.
    pub(super) fn by(&self) -> By {
        match self {
            Self { no_aggr: true, .. } | Self { no_merge: true, .. } => By::Cpu,
            Self { per_thread: true, .. } => By::Thread,
            Self { per_core: true, .. } => By::Core,
            Self { per_die: true, .. } => By::Die,
            Self { per_socket: true, .. } => By::Socket,
            Self { per_node: true, .. } => By::Node,
            Self { per_cluster: true, .. } => By::Cluster,
            Self { per_cache: Some(level), .. } => By::Cache(*level),
            _ => By::All,
        }
    }

    pub(super) fn interval(&self) -> Option<Duration> {
        self.interval.map(Duration::from_millis)
    }

    /// Whether CPUs are counted on, whatever runs there.
    pub(super) fn wide(&self) -> bool {
        let tasks = !self.pids.is_empty() || !self.tids.is_empty();
        !tasks && (self.all || self.cpus.is_some() || self.command.is_empty() || self.in_cgroups())
    }

    pub(super) fn in_cgroups(&self) -> bool {
        !self.cgroups.is_empty() || !self.for_each_cgroup.is_empty()
    }

    /// What makes no sense together.
    fn contradiction(&self) -> Option<&'static str> {
        let tasks = !self.pids.is_empty() || !self.tids.is_empty();
        Some(match self {
            _ if tasks && self.repeat != 1 && self.command.is_empty() => {
                "-r repeats a command, and there is none: -p and -t count in what runs already"
            }
            _ if self.repeat != 1 && self.command.is_empty() => "-r repeats a command: give one",
            _ if tasks && self.in_cgroups() => {
                "-G and --for-each-cgroup count on CPUs, -p and -t in tasks: choose one"
            }
            _ if tasks
                && matches!(
                    self.by(),
                    By::Cpu | By::Core | By::Die | By::Socket | By::Node | By::Cluster | By::Cache(_)
                ) =>
            {
                "sums by CPU need counting on CPUs: -a or -C, or a command (its cgroup is counted on each CPU)"
            }
            _ if self.per_thread && !tasks && !self.wide() => {
                "--per-thread is for what runs already: -p, -t or -a; the threads of a command do not exist yet when it starts"
            }
            _ if !self.cgroups.is_empty() && self.events.texts.is_empty() => {
                "-G goes with -e: name the events before the cgroups"
            }
            _ if self.timeout.is_some() && self.interval_count.is_some() => {
                "--timeout and --interval-count both say when to end: choose one"
            }
            _ if self.separator.as_deref() == Some("") => "-x needs a separator",
            _ => return None,
        })
    }
}

/// A level of caches such as `L2`.
fn parse_cache_level(text: &str) -> Result<u8, String> {
    let level = text.trim_start_matches(['l', 'L']).parse().ok().filter(|level| *level <= MOST_CACHE_LEVELS);
    level.ok_or_else(|| "expected a level of caches such as L2, or nothing for the last one".into())
}

/// As perf.
const MOST_CACHE_LEVELS: u8 = 4;

/// Says a sentence that is no count.
fn say(text: &str) {
    eprintln!("kymo stat: {text}");
}

/// Counts, or does what else can be done with counts.
pub(crate) fn run(command: StatCommand) -> anyhow::Result<ExitCode> {
    match command.verb {
        None => count(command.args, None),
        Some(StatVerb::Record(mut args)) => {
            if let Some(refusal) = recording::refusal(&args) {
                return Ok(exit::misused("stat record", refusal));
            }
            let path = args.output.take().unwrap_or_else(|| PathBuf::from("perf.data"));
            let file = CountFile::new(path)?;
            count(*args, Some(file))
        }
        Some(StatVerb::Report(args)) => report::run(&args),
    }
}

/// Counts, and ends as the command did. The counts go into the file, too.
fn count(args: StatArgs, file: Option<CountFile>) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = &args.perf.refusal {
        return Ok(exit::misused("stat", refusal));
    }
    if args.tasks {
        return tasks::run(&args);
    }
    if let Some(contradiction) = args.contradiction() {
        return Ok(exit::misused("stat", contradiction));
    }
    let channel = match args.control.as_ref().map(ControlSpec::open).transpose() {
        Ok(channel) => channel,
        Err(error) => return Ok(exit::misused("stat", error)),
    };
    let whom = RecordingTarget { command: &args.command, pids: &args.pids, tids: &args.tids };
    let named = memory_events::find(&args.events.texts, &whom, &say)?;
    let texts = named.as_ref().map_or(&args.events.texts, |named| &named.texts);
    let probes = kernel_events::find(texts, &whom, &say)?;
    let texts = probes.as_ref().map_or(texts, |probes| &probes.texts);
    let events = match events::select(&args, texts) {
        Ok(mut events) => {
            named.iter().for_each(|named| named.rename(events.iter_mut().map(|event| &mut event.selected)));
            probes
                .iter()
                .for_each(|probes| probes.rename(events.iter_mut().map(|event| &mut event.selected)));
            events
        }
        Err(error) => return Ok(exit::misused("stat", error)),
    };
    let mut output = output::Output::open(&args)?;
    output.recording = file;
    let end = run::all(&args, &events, &mut output, channel);
    // Nothing has them open any more, and what follows may end this process by a signal.
    drop(probes);
    match end? {
        End::Command(ended) => Ok(exit::as_command(ended)),
        End::Signal(signal) => Ok(exit::by_signal(signal)),
        End::NotStarted { command, source } => {
            say(&explain::not_executed(&command, &source));
            Ok(ExitCode::from(exit::NOT_STARTED))
        }
        End::Done => Ok(ExitCode::SUCCESS),
    }
}
