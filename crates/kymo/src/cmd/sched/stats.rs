//! `kymo sched stats`: totals of CPUs and threads.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kymo_cli::exit;
use kymo_cli::perf_options::PerfOptions;
use kymo_profile::sched::{self, SchedJson, SchedStats, SchedTotals};
use kymo_profile::text::shown;

use super::perf_options::StatsPerfOptions;
use super::{finish, milliseconds, open_with_switches};
use crate::cmd::filter::{InputArgs, numbers};

/// Show totals of each CPU and thread: switches, wake-ups, moves to other CPUs, time in run queues.
#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Only these CPUs, for example 0,4-7; threads are then left out
    #[arg(short = 'C', long, value_name = "LIST")]
    cpu: Option<String>,

    /// Only these threads; CPUs are then left out
    #[arg(short, long, value_name = "TIDS", value_delimiter = ',', conflicts_with = "cpu")]
    tid: Vec<i32>,

    /// Show what each column is
    #[arg(short, long)]
    verbose: bool,

    /// Print JSON
    #[arg(short, long)]
    json: bool,

    #[command(flatten)]
    perf: PerfOptions<StatsPerfOptions>,
}

/// The columns, and what they are.
const COLUMNS: [(&str, &str); 10] = [
    ("voluntary", "switches away from a task that waits for something"),
    ("involuntary", "switches away from a task that could have gone on"),
    ("sched_goidle", "switches to the idle task"),
    ("ttwu_count", "wake-ups that this CPU did, or of this thread"),
    ("ttwu_local", "of these, to the CPU that did it"),
    ("from_irq", "of these, by an interrupt"),
    ("migrations", "moves of tasks to this CPU, or of this thread"),
    ("rq_cpu_time", "time in which tasks ran, in milliseconds"),
    ("run_delay", "time in which tasks were runnable before they ran, in milliseconds"),
    ("pcount", "how often a task got the CPU"),
];

/// Prints the totals.
pub(super) fn run(args: StatsArgs) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = args.perf.refusal {
        return Ok(exit::misused("sched stats", refusal));
    }
    let cpus = args.cpu.as_deref().map(|list| numbers("-C", list)).transpose().map_err(exit::usage)?;
    let input = args.input.path();
    let (recording, _) = open_with_switches(input)?;
    let (mut stats, summary) =
        sched::totals(&recording).with_context(|| format!("failed to read {}", input.display()))?;
    if let Some(cpus) = &cpus {
        stats.cpus.retain(|row| cpus.contains(&row.cpu));
        stats.threads.clear();
    }
    if !args.tid.is_empty() {
        stats.threads.retain(|row| args.tid.contains(&row.tid));
        stats.cpus.clear();
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let mut json = SchedJson::begin(&mut out, "stats", &input.display().to_string())?;
        json.stats(&stats)?;
        json.finish(&summary)?;
    } else {
        write_tables(&stats, args.verbose, &mut out)?;
    }
    out.flush()?;
    Ok(finish(&recording, &summary, stats.mismatched_switches))
}

fn write_tables(stats: &SchedStats, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    if verbose {
        COLUMNS.iter().try_for_each(|(name, what)| writeln!(out, "{name:12} {what}"))?;
        writeln!(out)?;
    }
    writeln!(out, "Time elapsed (msec): {:.3}", milliseconds(stats.elapsed_ns))?;
    if !stats.cpus.is_empty() {
        write_head("CPU", out)?;
        write_row("all", &stats.all, out)?;
        for row in &stats.cpus {
            write_row(&row.cpu.to_string(), &row.totals, out)?;
        }
    }
    if !stats.threads.is_empty() {
        write_head("Task", out)?;
        for row in &stats.threads {
            write_row(&format!("{}:{}", shown(&row.task), row.tid), &row.totals, out)?;
        }
    }
    Ok(())
}

fn write_head(first: &str, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "\n{first:24}")?;
    COLUMNS.iter().try_for_each(|(name, _)| write!(out, " {name:>12}"))?;
    writeln!(out)
}

fn write_row(label: &str, totals: &SchedTotals, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{label:24}")?;
    let SchedTotals { voluntary, involuntary, sched_goidle, ttwu_count, ttwu_local, .. } = *totals;
    let counts = [voluntary, involuntary, sched_goidle, ttwu_count, ttwu_local];
    let counts = counts.into_iter().chain([totals.from_interrupts, totals.migrations]);
    counts.into_iter().try_for_each(|count| write!(out, " {count:>12}"))?;
    let times = [totals.rq_cpu_time_ns, totals.run_delay_ns].map(milliseconds);
    writeln!(out, " {:>12.3} {:>12.3} {:>12}", times[0], times[1], totals.pcount)
}
