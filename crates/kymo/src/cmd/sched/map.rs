//! `kymo sched map`: which thread ran on which CPU.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kymo_cli::perf_options::PerfOptions;
use kymo_cli::{exit, terminal};
use kymo_profile::sched::{self, MapCell, MapLine, MapOptions, Replay, SchedJson, SchedSummary};
use kymo_profile::text::shown;
use rustc_hash::FxHashSet;

use super::perf_options::MapPerfOptions;
use super::{finish, open_with_switches, seconds};
use crate::cmd::filter::{InputArgs, numbers};

/// Show which thread ran on which CPU: a line for each switch, a column for each CPU.
#[derive(Debug, Args)]
pub(super) struct MapArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Columns only for CPUs on which a switch was seen
    #[arg(long)]
    compact: bool,

    /// Only switches of these CPUs, for example 0,4-7
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,

    /// On a terminal, show these CPUs in colour
    #[arg(long, value_name = "LIST")]
    color_cpus: Option<String>,

    /// On a terminal, show these threads in colour
    #[arg(long, value_name = "TIDS", value_delimiter = ',')]
    color_pids: Vec<i32>,

    /// Only threads of these names
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    task_name: Vec<String>,

    /// The names may be parts of names
    #[arg(long, requires = "task_name")]
    fuzzy_name: bool,

    /// Print JSON
    #[arg(short, long)]
    json: bool,

    #[command(flatten)]
    perf: PerfOptions<MapPerfOptions>,
}

/// What is shown in colour.
#[derive(Debug)]
struct Highlights {
    is_on: bool,
    cpus: FxHashSet<u32>,
    tids: FxHashSet<i32>,
}

const BLUE: &str = "\x1b[34m";
const ON_RED: &str = "\x1b[41m";
const PLAIN: &str = "\x1b[m";

/// Prints the map.
pub(super) fn run(args: MapArgs) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = args.perf.refusal {
        return Ok(exit::misused("sched map", refusal));
    }
    let set = |option, list: Option<&str>| list.map(|list| numbers(option, list)).transpose();
    let options = MapOptions {
        compact: args.compact,
        cpus: set("--cpus", args.cpus.as_deref()).map_err(exit::usage)?,
        names: (!args.task_name.is_empty()).then_some(args.task_name),
        parts_of_names: args.fuzzy_name,
    };
    let highlights = Highlights {
        is_on: terminal::look().color,
        cpus: set("--color-cpus", args.color_cpus.as_deref()).map_err(exit::usage)?.unwrap_or_default(),
        tids: args.color_pids.into_iter().collect(),
    };
    let input = args.input.path();
    let (recording, _) = open_with_switches(input)?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let reading = || format!("failed to read {}", input.display());
    let (mut mismatched, mut lines) = (0, 0_u64);
    let summary: SchedSummary = if args.json {
        let mut json = SchedJson::begin(&mut out, "map", &input.display().to_string())?;
        json.begin_list("lines")?;
        let summary = sched::map(&recording, &options, |line, replay| -> anyhow::Result<()> {
            (mismatched, lines) = (replay.mismatched_switches, lines + 1);
            Ok(json.map_line(line, replay)?)
        })
        .with_context(reading)?;
        json.end_list()?;
        json.finish(&summary)?;
        summary
    } else {
        sched::map(&recording, &options, |line, replay| -> anyhow::Result<()> {
            (mismatched, lines) = (replay.mismatched_switches, lines + 1);
            Ok(write_line(line, replay, &highlights, &mut out)?)
        })
        .with_context(reading)?
    };
    out.flush()?;
    if lines == 0 {
        terminal::say(
            "no switch is shown: there is none of these tasks and CPUs, or the recording does not tell CPUs (record with -a)",
        );
    }
    Ok(finish(&recording, &summary, mismatched))
}

fn write_line(
    line: &MapLine,
    replay: &Replay,
    highlights: &Highlights,
    out: &mut dyn Write,
) -> io::Result<()> {
    write!(out, "  ")?;
    line.cells.iter().try_for_each(|cell| write_cell(line, cell, replay, highlights, out))?;
    write!(out, "  {:>12} secs ", seconds(line.time_ns))?;
    if let Some((short, thread)) = line.announced {
        let thread = replay.thread(thread);
        let name = if thread.is_idle() { "swapper".to_owned() } else { thread.shown_name() };
        let text = format!("{} => {}:{}", short.as_str(), shown(&name), thread.tid);
        coloured(&text, BLUE, highlights.is_on && highlights.tids.contains(&thread.tid), out)?;
    }
    if line.is_new_cpu {
        write!(out, " (CPU {})", line.cpu)?;
    }
    writeln!(out)
}

fn write_cell(
    line: &MapLine,
    cell: &MapCell,
    replay: &Replay,
    highlights: &Highlights,
    out: &mut dyn Write,
) -> io::Result<()> {
    let is_here = cell.cpu == line.cpu;
    let mark = if is_here { "*" } else { " " };
    coloured(mark, ON_RED, highlights.is_on && is_here && highlights.cpus.contains(&cell.cpu), out)?;
    match cell.thread {
        _ if is_here && line.is_departure => write!(out, "-  "),
        Some((thread, short)) => {
            let tid = replay.thread(thread).tid;
            let text = format!("{} ", short.as_str());
            coloured(&text, BLUE, highlights.is_on && highlights.tids.contains(&tid), out)
        }
        None => write!(out, "   "),
    }
}

fn coloured(text: &str, color: &str, is_on: bool, out: &mut dyn Write) -> io::Result<()> {
    if is_on { write!(out, "{color}{text}{PLAIN}") } else { out.write_all(text.as_bytes()) }
}
