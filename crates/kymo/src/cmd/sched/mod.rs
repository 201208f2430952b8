//! `kymo sched`: who ran where, who waited for a CPU, and who woke whom up.
//!
//! The recording's events, the states of threads and all counts are in [`kymo_profile::sched`];
//! here are the arguments, the tables and what is said on stderr.

mod latency;
mod map;
mod perf_options;
mod stats;
mod timehist;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use kymo_cli::terminal::say;
use kymo_cli::{damage, exit, open};
use kymo_data::Recording;
use kymo_profile::sched::{Replay, SchedSources, SchedSummary, ThreadIndex};
use kymo_profile::text::shown;

pub(crate) use perf_options::page as perf_options_page;

/// See who ran on which CPU, how long tasks waited for one, and who woke them up.
#[derive(Debug, Args)]
#[command(
    subcommand_value_name = "latency|timehist|map|stats",
    after_help = "Record the scheduler's events of the whole machine first:\n  kymo record -a -e 'sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new,sched:sched_migrate_task' -- sleep 5\n`perf sched record` makes such recordings, too."
)]
pub(crate) struct SchedCommand {
    #[command(subcommand)]
    view: View,
}

#[derive(Debug, Subcommand)]
enum View {
    Latency(latency::LatencyArgs),
    Timehist(Box<timehist::TimehistArgs>),
    Map(map::MapArgs),
    Stats(stats::StatsArgs),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Prints a view of the scheduler.
pub(crate) fn run(command: SchedCommand) -> anyhow::Result<ExitCode> {
    match command.view {
        View::Latency(args) => latency::run(args),
        View::Timehist(args) => timehist::run(*args),
        View::Map(args) => map::run(args),
        View::Stats(args) => stats::run(args),
        View::Other(words) => Ok(other(&words.first().map_or("".into(), |word| word.to_string_lossy()))),
    }
}

/// What does the work of a view that perf has and kymo has not.
fn other(view: &str) -> ExitCode {
    let instead = match view {
        "record" => {
            "`kymo record -a -e 'sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new,sched:sched_migrate_task' -- COMMAND` records what is needed"
        }
        "script" => "`kymo script` prints the events one by one",
        "replay" => "it does not run recordings again; `perf sched replay` does",
        _ => "the views are latency, timehist, map and stats",
    };
    exit::misused("sched", format!("there is no `kymo sched {}`: {instead}", shown(view)))
}

/// A recording with switches, and which events it has; says what cannot be known of it.
fn open_with_switches(input: &Path) -> anyhow::Result<(Recording, SchedSources)> {
    let recording = open::recording(input)?;
    damage::tell(&recording.problems);
    let sources = SchedSources::of(&recording);
    if !sources.has_switches() {
        bail!(
            "{} has no switches of tasks: record with `kymo record -a -e 'sched:sched_switch,sched:sched_waking'`, or `perf sched record`",
            input.display()
        );
    }
    sources.gaps().into_iter().for_each(say);
    Ok((recording, sources))
}

/// Says what was wrong with the events; the status for that.
fn finish(recording: &Recording, summary: &SchedSummary, mismatched_switches: u64) -> ExitCode {
    summary.remarks().iter().for_each(|remark| say(remark));
    if mismatched_switches > 0 {
        say(&format!(
            "{mismatched_switches} switches are away from a task that had not got the CPU: events before them are missing"
        ));
    }
    damage::tell(&summary.problems);
    exit::of_reading(recording, &summary.problems)
}

/// `12.345678`: seconds, cut to microseconds as perf cuts them.
fn seconds(time_ns: u64) -> String {
    format!("{}.{:06}", time_ns / 1_000_000_000, time_ns % 1_000_000_000 / 1000)
}

/// Milliseconds, rounded to microseconds.
fn milliseconds(time_ns: u64) -> f64 {
    time_ns as f64 / 1e6
}

/// `name[tid/pid]`, `name[tid]` of a process's first thread, or `<idle>`.
fn task_label(replay: &Replay, thread: ThreadIndex) -> String {
    let thread = replay.thread(thread);
    if thread.is_idle() {
        return "<idle>".into();
    }
    let (name, tid) = (thread.shown_name(), thread.tid);
    let name = shown(&name);
    match thread.pid {
        Some(pid) if pid == tid => format!("{name}[{tid}]"),
        Some(pid) => format!("{name}[{tid}/{pid}]"),
        None => format!("{name}[{tid}]"),
    }
}
