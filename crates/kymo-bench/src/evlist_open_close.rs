//! `kymo bench internals evlist-open-close`: what it takes to open an event list, make it ready and close it again.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kymo_perf::caps;
use kymo_perf::evlist::OpenEngine;
use kymo_perf::explain::{self, Attempt};
use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};
use kymo_perf::sys::{self, Kernel, Real};
use kymo_record::{CallGraph, Options, Output, Rate, RecordingPlan, Scope, TargetSpec};
use serde_json::json;

use super::SCHEMA_VERSION;
use super::list::{Followed, List, PHASES, Refused, Round, samples};
use super::stats::Stats;
use kymo_cli::exit;
use kymo_cli::parse::{Cpus, parse_cpus, parse_pid, parse_scope, parse_user};

const NAME: &str = "internals/evlist-open-close";

/// Open an event list, map its rings, enable, disable and close it
#[derive(Debug, Args)]
#[command(
    after_help = "Options and output are those of `perf bench internals evlist-open-close`.\nThe time is that of one whole round; +- is the standard error of the mean."
)]
pub(crate) struct EvlistArgs {
    /// What to open, in perf's words
    #[arg(short, long, value_name = "EVENT", default_value = "dummy")]
    event: String,
    /// Repeat the events so many times
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nr_events: u32,
    /// Rounds to average over
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Everything on this machine (as without a target)
    #[arg(short, long)]
    all_cpus: bool,
    /// Everything on these CPUs: 0-2,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = parse_cpus)]
    cpus: Option<Cpus>,
    /// These processes
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pids: Vec<i32>,
    /// These threads
    #[arg(short, long = "tid", value_name = "TID", value_delimiter = ',')]
    tids: Vec<i32>,
    /// All processes of this user (name or number)
    #[arg(short, long = "uid", value_name = "USER", value_parser = parse_user)]
    user: Option<u32>,
    /// One ring per thread instead of one per CPU
    #[arg(long)]
    per_thread: bool,
    /// Use so many workers; without a number, as many as there are CPUs [default: the list chooses by its size]
    #[arg(short = 'j', long = "jobs", value_name = "N", num_args = 0..=1, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(0..=1024))]
    jobs: Option<u16>,
    /// Use the reference: everything in one thread
    #[arg(long, conflicts_with = "jobs")]
    model: bool,
    /// Print the time of each phase, too
    #[arg(short, long)]
    detail: bool,
    /// How to bind events to tasks: cgroup (an empty one, without a target), filtered, inherit or thread-cpu [default: as `kymo record` would]
    #[arg(long, value_name = "SCOPE", value_parser = parse_scope)]
    scope: Option<Scope>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: EvlistArgs) -> anyhow::Result<ExitCode> {
    let list = list(&args)?;
    let kernel: Arc<dyn Kernel> = Arc::new(Real);
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
    }
    let (mut total, mut phases) = (Stats::default(), [Stats::default(); PHASES.len()]);
    let mut first: Option<Round> = None;
    for _ in 0..args.iterations {
        let round = list.round(&kernel).map_err(|error| explained(error, &list))?;
        total.add(us(round.phases.iter().sum()));
        phases.iter_mut().zip(round.phases).for_each(|(stats, took)| stats.add(us(took)));
        if first.is_none() {
            round.notes.iter().for_each(|note| eprintln!("kymo bench: {note}"));
            if !args.json {
                write_head(&mut out, &args, &list, &round)?;
            }
            first = Some(round);
        }
    }
    let Some(first) = first else { return Ok(ExitCode::SUCCESS) };
    if args.json {
        let json = as_json(&args, &list, &first, &total, &phases);
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "  Average open-close took: {:.3} usec (+- {:.3} usec)", total.mean(), total.error())?;
    if args.detail {
        for (name, stats) in PHASES.iter().zip(&phases) {
            writeln!(out, "    {name} took:\t{:.3} usec (+- {:.3} usec)", stats.mean(), stats.error())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn us(took: Duration) -> f64 {
    took.as_nanos() as f64 / 1e3
}

/// perf's lines, and what only kymo has to say.
fn write_head(out: &mut dyn Write, args: &EvlistArgs, list: &List, round: &Round) -> std::io::Result<()> {
    writeln!(out, "  Number of workers:\t{}", round.workers)?;
    writeln!(out, "  Number of cpus:\t{}", round.cpus)?;
    writeln!(out, "  Number of threads:\t{}", round.tasks)?;
    writeln!(out, "  Number of events:\t{} ({} fds)", list.plan.events.len(), round.descriptors)?;
    writeln!(out, "  Number of iterations:\t{}", args.iterations)?;
    if let Some(words) = scope_words(list) {
        writeln!(out, "  Scope:\t\t{words}")?;
    }
    out.flush()
}

fn scope_words(list: &List) -> Option<String> {
    let scope = list.scope?;
    let unfiltered = scope == Scope::Filtered && !list.plan.events.iter().any(samples);
    let remark = if unfiltered { " (without a filter: these events never sample)" } else { "" };
    Some(format!("{}{remark}", scope.name()))
}

fn as_json(
    args: &EvlistArgs,
    list: &List,
    first: &Round,
    total: &Stats,
    phases: &[Stats],
) -> serde_json::Value {
    let phases: serde_json::Map<String, serde_json::Value> = PHASES
        .iter()
        .zip(phases)
        .map(|(name, stats)| {
            ((*name).into(), json!({ "average_us": stats.mean(), "error_us": stats.error() }))
        })
        .collect();
    json!({
        "schema": "kymo-bench",
        "schema_version": SCHEMA_VERSION,
        "benchmark": NAME,
        "engine": match list.engine {
            OpenEngine::Serial => "serial",
            OpenEngine::Parallel { .. } => "parallel",
            OpenEngine::Auto => "auto",
        },
        "workers": first.workers,
        "scope": list.scope.map(Scope::name),
        "cpus": first.cpus,
        "threads": first.tasks,
        "events": list.plan.events.len(),
        "descriptors": first.descriptors,
        "iterations": args.iterations,
        "average_us": total.mean(),
        "error_us": total.error(),
        "phases": phases,
        "notes": first.notes,
    })
}

/// What to open, for whom, and how.
fn list(args: &EvlistArgs) -> anyhow::Result<List> {
    let selected =
        select(&args.event, args.nr_events).map_err(|error| exit::usage(anyhow::anyhow!(error)))?;
    let plan = RecordingPlan::resolve(options(args, selected))?;
    let system = plan.system();
    let per_thread = plan.open.targets.cpus == [sys::ANY];
    let (ring_pages, mut open) = (plan.ring_pages, plan.open.clone());
    // As in perf, no event that only tracks: the first one does.
    open.events.retain(|event| !event.immediate);
    if let Some(first) = open.events.first_mut() {
        first.attr.set_mmap(1);
        first.attr.set_mmap2(1);
        first.attr.set_comm(1);
        first.attr.set_comm_exec(1);
        first.attr.set_task(1);
    }
    let engine = match args.jobs {
        _ if args.model => OpenEngine::Serial,
        None => OpenEngine::Auto,
        Some(0) => OpenEngine::Parallel { workers: None },
        Some(workers) => OpenEngine::Parallel { workers: Some(workers.into()) },
    };
    let wrong = match args.scope {
        // What belongs to a cgroup of one's own was started in it; here nothing is.
        Some(Scope::Cgroup) if !nobody(args) => {
            Some("the cgroup of --scope cgroup is an empty one: leave out -p, -t, -u and -C")
        }
        Some(Scope::Cgroup) | None => None,
        Some(_) if system => Some("--scope binds events to tasks, and there are none: use -p, -t or -u"),
        Some(_) if per_thread => Some("--per-thread has one event per thread, whatever --scope says"),
        Some(_) => None,
    };
    if let Some(words) = wrong {
        return Err(exit::usage(anyhow::anyhow!(words)));
    }
    let own_cgroup = args.scope.filter(|&scope| scope == Scope::Cgroup);
    let scope = own_cgroup.or((!system && !per_thread).then_some(plan.scope));
    Ok(List { followed: followed(args)?, plan: open, scope, engine, ring_pages })
}

fn followed(args: &EvlistArgs) -> anyhow::Result<Followed> {
    Ok(match args.user {
        _ if !args.tids.is_empty() => Followed::Threads(args.tids.clone()),
        Some(uid) if args.pids.is_empty() => Followed::Processes(kymo_perf::proc::processes_of_user(uid)?),
        _ => Followed::Processes(args.pids.clone()),
    })
}

/// Whether no target was named: everything is opened then, as perf does.
fn nobody(args: &EvlistArgs) -> bool {
    args.pids.is_empty() && args.tids.is_empty() && args.user.is_none() && args.cpus.is_none()
}

/// The events, so many times.
fn select(text: &str, times: u32) -> Result<Vec<Selected>, String> {
    let groups = selector::parse(text).map_err(|error| error.to_string())?;
    let events = selector::resolve(&groups, &Machine::here()).map_err(|error| error.to_string())?;
    let repeated = (0..times as usize).flat_map(|time| {
        let first = time * events.len();
        events.iter().map(move |event| Selected { leader: event.leader + first, ..event.clone() })
    });
    Ok(repeated.collect())
}

/// As perf's benchmark: perf's default frequency, no call chains.
fn options(args: &EvlistArgs, events: Vec<Selected>) -> Options {
    let targets = TargetSpec {
        command: Vec::new(),
        pids: args.pids.clone(),
        tids: args.tids.clone(),
        uid: args.user,
        all: args.all_cpus || nobody(args),
        cpus: args.cpus.clone().map_or_else(Vec::new, |cpus| cpus.0),
        per_thread: args.per_thread,
        ..TargetSpec::default()
    };
    Options {
        rate: Rate::Frequency(4000),
        call_graph: CallGraph::None,
        scope: args.scope.filter(|&scope| scope != Scope::Cgroup),
        // Never written to.
        ..Options::new(events, targets, Output::File(PathBuf::new()))
    }
}

/// A refusal of the kernel in words, with what to do.
fn explained(error: anyhow::Error, list: &List) -> anyhow::Error {
    let Some(Refused(open)) = error.downcast_ref::<Refused>() else { return error };
    let errno = open.source.raw_os_error().unwrap_or(0);
    let targets = &list.plan.targets;
    let descriptors = (list.plan.events.len() * targets.cpus.len() * targets.tasks.len()) as u64;
    match Attempt::of(open, &list.plan.events, Some(descriptors)) {
        Some(attempt) => anyhow::anyhow!("{}", explain::explain_open(errno, &attempt, &caps::probe())),
        None => error,
    }
}
