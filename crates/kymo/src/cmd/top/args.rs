//! The arguments of `kymo top`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use kymo_cli::event_args::EventArgs;
use kymo_cli::parse::{Cpus, parse_cpus, parse_duration, parse_frequency, parse_pid, parse_ring, parse_user};
use kymo_record::{CallGraph, LiveRecorder, Options, Output, Rate, TargetSpec};

use crate::cmd::report::SymbolArgs;

/// Samples per second when nothing is said, as of `kymo record`.
const DEFAULT_FREQUENCY: u64 = 999;

/// Show what takes the CPU time now: the newest samples, refreshed every two seconds.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "At a terminal it is the browser of `kymo report`: ? shows the keys, p freezes, q ends.\nElsewhere it prints a table at each refresh, or lines of JSON.\n\nExamples:\n  kymo top                           the whole machine\n  kymo top -p 1234 -g                a process, with call chains\n  kymo top postgres                  the process of this name\n  kymo top -- make                   a command, from its start\n  kymo top -p 1234 --json -n 5       five refreshes for a script"
)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(super) events: EventArgs,
    /// Sample so many times per second, or `max` [default: 999]
    #[arg(short = 'F', long = "freq", value_name = "HZ", value_parser = parse_frequency, conflicts_with = "period_count")]
    frequency: Option<u64>,
    /// Sample every so many events instead
    #[arg(short = 'c', long = "count", value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    period_count: Option<u64>,
    /// Record call chains, along frame pointers: functions open to their callers
    #[arg(short = 'g')]
    pub(super) chains: bool,
    /// With -g, show functions that were inlined, too; it takes the time and memory to read debug
    /// information
    #[arg(long, requires = "chains")]
    pub(super) inline: bool,
    /// Observe everything on this machine (this is the default)
    #[arg(short, long = "all-cpus")]
    pub(super) all: bool,
    /// Observe these processes and what they have started, by number or name
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pids: Vec<i32>,
    /// With -p, do not observe what the processes have started before
    #[arg(long)]
    no_children: bool,
    /// Observe these threads
    #[arg(short, long = "tid", value_name = "TID", value_delimiter = ',')]
    pub(super) tids: Vec<i32>,
    /// Observe all processes of this user (name or number)
    #[arg(short, long = "uid", value_name = "USER", value_parser = parse_user)]
    pub(super) user: Option<u32>,
    /// Observe everything on these CPUs: 0-2,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = parse_cpus)]
    pub(super) cpus: Option<Cpus>,
    /// Refresh every so many seconds
    #[arg(short = 'd', long = "delay", value_name = "SECONDS", value_parser = parse_duration, default_value = "2")]
    pub(super) delay: Duration,
    /// Samples of so many seconds count, the newest ones
    #[arg(long, value_name = "SECONDS", value_parser = parse_duration, default_value = "10")]
    pub(super) window: Duration,
    /// End after so many refreshes; without a screen
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) iterations: Option<u64>,
    /// So many functions at each refresh; without a screen
    #[arg(short = 'E', long, value_name = "N", default_value_t = 20)]
    pub(super) entries: usize,
    /// Print a table at each refresh, also at a terminal
    #[arg(long)]
    pub(super) stdio: bool,
    /// Print a line of JSON at each refresh
    #[arg(long)]
    pub(super) json: bool,
    /// Size of each ring buffer: a number of pages, or bytes with B, K, M or G [default: what the
    /// window needs]
    #[arg(short = 'm', long = "mmap-pages", value_name = "SIZE", value_parser = parse_ring)]
    ring_pages: Option<usize>,
    #[command(flatten)]
    pub(super) symbols: SymbolArgs,
    /// Say only what is wrong
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Observe this process, as with -p
    #[arg(value_name = "PID|NAME", value_parser = parse_pid)]
    process: Option<i32>,
    /// A command to start and observe
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl TopArgs {
    /// The processes that are named, with -p and without.
    fn processes(&self) -> Vec<i32> {
        self.pids.iter().copied().chain(self.process).collect()
    }

    /// Whether something is to be observed by itself, not the whole machine.
    fn names_target(&self) -> bool {
        !self.processes().is_empty()
            || !self.tids.is_empty()
            || self.user.is_some()
            || self.cpus.is_some()
            || !self.command.is_empty()
    }

    /// What is observed, in words.
    pub(super) fn target_words(&self) -> String {
        let list = |one: &str, many: &str, numbers: &[i32]| {
            let words: Vec<String> = numbers.iter().map(i32::to_string).collect();
            format!("{} {}", if numbers.len() == 1 { one } else { many }, words.join(","))
        };
        match (&self.cpus, self.user, self.command.first()) {
            _ if self.all => "the whole machine".into(),
            (Some(cpus), ..) => {
                let words: Vec<String> = cpus.0.iter().map(u32::to_string).collect();
                format!("CPU {}", words.join(","))
            }
            (_, Some(user), _) => format!("user {user}"),
            _ if !self.tids.is_empty() => list("thread", "threads", &self.tids),
            _ if !self.processes().is_empty() => list("process", "processes", &self.processes()),
            (.., Some(command)) => command.to_string_lossy().into_owned(),
            _ => "the whole machine".into(),
        }
    }

    /// What is to be recorded, of these events. `on_screen`: the command must not write there.
    pub(super) fn options(&self, events: Vec<kymo_perf::selector::Selected>, on_screen: bool) -> Options {
        let targets = TargetSpec {
            command: self.command.clone(),
            pids: self.processes(),
            children: !self.no_children,
            tids: self.tids.clone(),
            uid: self.user,
            all: self.all || !self.names_target(),
            cpus: self.cpus.as_ref().map_or_else(Vec::new, |cpus| cpus.0.clone()),
            ..TargetSpec::default()
        };
        let options = Options {
            rate: match (self.frequency, self.period_count) {
                (Some(hz), _) => Rate::Frequency(hz),
                (_, Some(events)) => Rate::Period(events),
                _ => Rate::Default(DEFAULT_FREQUENCY),
            },
            call_graph: if self.chains { CallGraph::FramePointers } else { CallGraph::None },
            ring_pages: self.ring_pages,
            silent_command: on_screen,
            python: false,
            sample_cpu: true,
            cmdline: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            version: format!("kymo {}", env!("CARGO_PKG_VERSION")),
            ..Options::new(events, targets, Output::Memory)
        };
        LiveRecorder::prepare(options, self.window)
    }
}
