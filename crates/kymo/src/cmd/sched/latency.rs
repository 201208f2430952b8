//! `kymo sched latency`: how long tasks waited for a CPU.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kymo_cli::exit;
use kymo_cli::perf_options::PerfOptions;
use kymo_cli::terminal::say;
use kymo_profile::sched::{self, Latency, LatencyKey, LatencyOptions, LatencyRow, SchedJson};
use kymo_profile::text::shown;

use super::perf_options::LatencyPerfOptions;
use super::{finish, milliseconds, open_with_switches, seconds};
use crate::cmd::filter::InputArgs;

/// Show how long tasks waited for a CPU, from being runnable to running.
#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    input: InputArgs,

    /// A row for each thread, not for each name
    #[arg(short, long)]
    pids: bool,

    /// Sort by these keys, largest first: runtime, switch, avg, max, pid
    #[arg(short, long, value_name = "KEYS", value_delimiter = ',', value_parser = parse_key)]
    sort: Vec<LatencyKey>,

    /// Print JSON
    #[arg(short, long)]
    json: bool,

    #[command(flatten)]
    perf: PerfOptions<LatencyPerfOptions>,
}

fn parse_key(word: &str) -> Result<LatencyKey, String> {
    let key = LatencyKey::ALL.iter().find(|(name, _)| *name == word.trim());
    key.map(|(_, key)| *key).ok_or_else(|| "the keys are runtime, switch, avg, max, pid".into())
}

/// Prints the table.
pub(super) fn run(args: LatencyArgs) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = args.perf.refusal {
        return Ok(exit::misused("sched latency", refusal));
    }
    let input = args.input.path();
    let (recording, sources) = open_with_switches(input)?;
    let keys = if args.sort.is_empty() { LatencyKey::DEFAULT.to_vec() } else { args.sort };
    let options = LatencyOptions { per_thread: args.pids, keys };
    let (latency, summary) = sched::latency(&recording, &options)
        .with_context(|| format!("failed to read {}", input.display()))?;
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let mut json = SchedJson::begin(&mut out, "latency", &input.display().to_string())?;
        json.latency(&latency)?;
        json.finish(&summary)?;
    } else {
        write_table(&latency, &mut out)?;
    }
    out.flush()?;
    if !sources.runtimes {
        say("run times are the times between switches: the recording has no sched:sched_stat_runtime");
    }
    Ok(finish(&recording, &summary, latency.mismatched_switches))
}

/// perf's table.
fn write_table(latency: &Latency, out: &mut dyn Write) -> io::Result<()> {
    let rule = |out: &mut dyn Write, width: usize| writeln!(out, " {}", "-".repeat(width));
    writeln!(out)?;
    rule(out, 139)?;
    writeln!(
        out,
        "  Task                  |   Runtime ms  |  Count   | Avg delay ms    | Max delay ms    | Max delay start           | Max delay end          |"
    )?;
    rule(out, 139)?;
    latency.rows.iter().try_for_each(|row| write_row(row, out))?;
    rule(out, 113)?;
    let runtime = milliseconds(latency.runtime_ns);
    writeln!(out, "  TOTAL:                |{runtime:11.3} ms |{:9} |", latency.switches)?;
    rule(out, 51)?;
    writeln!(out)
}

fn write_row(row: &LatencyRow, out: &mut dyn Write) -> io::Result<()> {
    let name = shown(&row.task);
    let label = match row.threads {
        1 => format!("  {name}:{} ", row.tid),
        threads => format!("  {name}:({threads}) "),
    };
    writeln!(
        out,
        "{label:24}|{:11.3} ms |{:9} | avg:{:8.3} ms | max:{:8.3} ms | max start: {:>12} s | max end: {:>12} s",
        milliseconds(row.runtime_ns),
        row.switches,
        milliseconds(row.average_delay_ns().unwrap_or(0)),
        milliseconds(row.max_delay_ns),
        seconds(row.max_delay_start_ns),
        seconds(row.max_delay_end_ns),
    )
}
