//! `kymo sched timehist`: the history of switches.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use kymo_cli::exit;
use kymo_cli::perf_options::PerfOptions;
use kymo_cli::terminal::say;
use kymo_data::{RawRecord, Recording};
use kymo_profile::load::TimeSpans;
use kymo_profile::sched::{
    self, History, HistoryKind, HistoryLine, SchedJson, SchedSources, SchedSummary, SwitchChains,
    TimehistOptions,
};
use rustc_hash::FxHashSet;

use super::perf_options::TimehistPerfOptions;
use super::{finish, open_with_switches};
use crate::cmd::filter::{InputArgs, numbers};
use crate::cmd::report::SymbolArgs;

mod summary;
mod table;

use table::HistoryTable;

/// Show each switch: how long the task that left had waited, been runnable and run.
#[derive(Debug, Args)]
// -V is perf's --cpu-visual.
#[command(disable_version_flag = true)]
pub(super) struct TimehistArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Only switches of these CPUs, for example 0,4-7
    #[arg(short = 'C', long, value_name = "LIST")]
    cpu: Option<String>,

    /// Only threads of these processes
    #[arg(short, long, value_name = "PIDS", value_delimiter = ',')]
    pid: Vec<i32>,

    /// Only these threads
    #[arg(short, long, value_name = "TIDS", value_delimiter = ',')]
    tid: Vec<i32>,

    /// Only threads of these priorities, for example 120 or 0-99
    #[arg(long, value_name = "LIST")]
    prio: Option<String>,

    /// Only this time: FROM,TO in seconds of the recording's clock (either may be empty), or a part
    /// of the recording such as 10%/2 (the second tenth); times that reach beyond it are cut
    #[arg(long, value_name = "TIME")]
    time: Option<String>,

    /// Show the summary, and no switches
    #[arg(short, long)]
    summary: bool,

    /// Show the summary after the switches
    #[arg(short = 'S', long)]
    with_summary: bool,

    /// Show wake-ups, too
    #[arg(short, long)]
    wakeups: bool,

    /// Show moves to other CPUs, too
    #[arg(short = 'M', long)]
    migrations: bool,

    /// Show how long tasks were runnable before they were moved
    #[arg(short = 'P', long)]
    pre_migrations: bool,

    /// Show the task that runs next
    #[arg(short, long)]
    next: bool,

    /// Show a column for each CPU
    #[arg(short = 'V', long)]
    cpu_visual: bool,

    /// Show in which state the task left the CPU; in the summary, why it was away
    #[arg(long)]
    state: bool,

    /// Show priorities
    #[arg(long)]
    show_prio: bool,

    /// Show only the times in which CPUs were idle; in the summary, of each thread, the idle time
    /// after it
    #[arg(short = 'I', long)]
    idle_hist: bool,

    /// Show call chains where samples have them (the default)
    #[arg(short = 'g', long, overrides_with = "no_call_graph")]
    call_graph: bool,

    /// Leave out call chains
    #[arg(short = 'G', long, overrides_with = "call_graph")]
    no_call_graph: bool,

    /// Show no more than this many functions of a call chain
    #[arg(long, value_name = "N", default_value_t = 5)]
    max_stack: usize,

    /// Print JSON
    #[arg(short, long)]
    json: bool,

    #[command(flatten)]
    symbols_from: SymbolArgs,

    #[command(flatten)]
    perf: PerfOptions<TimehistPerfOptions>,
}

impl TimehistArgs {
    fn has_lines(&self) -> bool {
        !self.summary
    }

    fn has_summary(&self) -> bool {
        self.summary || self.with_summary
    }

    /// Whether a line is shown.
    fn shows(&self, line: &HistoryLine) -> bool {
        match line.kind {
            HistoryKind::Left { .. } | HistoryKind::Lost { .. } => true,
            HistoryKind::WokeUp { .. } => self.wakeups,
            HistoryKind::Moved { .. } => self.migrations,
        }
    }

    fn options(&self, recording: &Recording, samples: bool) -> anyhow::Result<TimehistOptions> {
        let set = |option, list: Option<&str>| list.map(|list| numbers(option, list)).transpose();
        let tasks = |list: &[i32]| (!list.is_empty()).then(|| list.iter().copied().collect::<FxHashSet<_>>());
        Ok(TimehistOptions {
            cpus: set("-C", self.cpu.as_deref())?,
            pids: tasks(&self.pid),
            tids: tasks(&self.tid),
            priorities: set("--prio", self.prio.as_deref())?,
            time: self.time.as_deref().map(|text| one_span(text, recording)).transpose()?,
            idle_only: self.idle_hist,
            samples,
        })
    }
}

/// A history is of one span of time.
fn one_span(text: &str, recording: &Recording) -> anyhow::Result<(u64, u64)> {
    match TimeSpans::parse(text, recording)?.0[..] {
        [span] => Ok(span),
        _ => bail!("--time {text}: a history is of one span of time; write FROM,TO"),
    }
}

/// Prints the history.
pub(super) fn run(args: TimehistArgs) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = args.perf.refusal {
        return Ok(exit::misused("sched timehist", refusal));
    }
    let input = args.input.path();
    let (recording, sources) = open_with_switches(input)?;
    let chains = !args.no_call_graph && sources.chains && args.has_lines();
    let options = args.options(&recording, chains).map_err(exit::usage)?;
    warn_of_gaps(&args, sources);
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut print = |chains: Option<&mut SwitchChains<'_>>| match args.json {
        true => print_json(&args, &recording, &options, chains, &mut out),
        false => print_table(&args, &recording, &options, chains, &mut out),
    };
    let printed = match chains {
        true => {
            let store = args.symbols_from.store(&recording);
            let print = |chains: &mut SwitchChains<'_>| print(Some(chains));
            sched::with_chains(&recording, &store, args.max_stack, print)
                .unwrap_or_else(|error| Err(error.into()))
        }
        false => print(None),
    };
    let (history, summary, lines) = printed.with_context(|| format!("failed to read {}", input.display()))?;
    out.flush()?;
    if args.has_lines() && lines == 0 {
        say("no switch is left: all others are of other threads, CPUs or times, or there is none");
    }
    Ok(finish(&recording, &summary, history.replay.mismatched_switches))
}

/// Says which events the options need and the recording lacks.
fn warn_of_gaps(args: &TimehistArgs, sources: SchedSources) {
    if (args.migrations || args.pre_migrations) && !sources.migrations {
        say("the recording has no moves of tasks: add -e sched:sched_migrate_task to the recording");
    }
    if args.call_graph && !sources.chains {
        say("the switches have no call chains: record with -g");
    }
}

type Printed = anyhow::Result<(History, SchedSummary, u64)>;

/// The call chain of a switch.
fn chain(chains: &mut Option<&mut SwitchChains<'_>>, sample: Option<&RawRecord<'_>>) -> String {
    let text = chains.as_mut().zip(sample).map(|(chains, sample)| chains.text(sample));
    text.unwrap_or_default()
}

fn print_table(
    args: &TimehistArgs,
    recording: &Recording,
    options: &TimehistOptions,
    mut chains: Option<&mut SwitchChains<'_>>,
    out: &mut dyn Write,
) -> Printed {
    let mut lines = 0;
    let table = HistoryTable::new(args, recording);
    if args.has_lines() {
        table.write_head(out)?;
    }
    let (history, summary) = sched::timehist(recording, options, |line, replay, sample| {
        if args.has_lines() && args.shows(line) {
            let chain = chain(&mut chains, sample);
            table.write_line(line, replay, &chain, out)?;
            lines += 1;
        }
        anyhow::Ok(())
    })?;
    if args.has_summary() {
        summary::write(&history, args.state, recording, out)?;
    }
    Ok((history, summary, lines))
}

fn print_json(
    args: &TimehistArgs,
    recording: &Recording,
    options: &TimehistOptions,
    mut chains: Option<&mut SwitchChains<'_>>,
    out: &mut dyn Write,
) -> Printed {
    let mut lines = 0;
    let mut json = SchedJson::begin(out, "timehist", &args.input.path().display().to_string())?;
    json.begin_list("lines")?;
    let (history, summary) = sched::timehist(recording, options, |line, replay, sample| {
        if args.has_lines() && args.shows(line) {
            let chain = chain(&mut chains, sample);
            json.history_line(line, replay, &chain)?;
            lines += 1;
        }
        anyhow::Ok(())
    })?;
    json.end_list()?;
    if args.has_summary() {
        json.history(&history)?;
    }
    json.finish(&summary)?;
    Ok((history, summary, lines))
}
