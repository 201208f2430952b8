//! The summary of a history, in perf's form.
use std::io::{self, Write};

use kymo_data::Recording;
use kymo_profile::sched::{History, ReplayThread, ThreadTimes};
use kymo_profile::text::shown;

use super::table::cut_milliseconds;

/// Writes it; with `states`, why threads were away instead of how they ran.
pub(super) fn write(
    history: &History,
    states: bool,
    recording: &Recording,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (title, columns) = match (history.idle_only, states) {
        (true, _) => (
            "Idle-time",
            "parent  sched-out    idle-time   min-idle    avg-idle    max-idle  stddev  migrations",
        ),
        (false, true) => {
            ("Wait-time", "parent   sched-in     run-time      sleep      iowait     preempt       delay")
        }
        (false, false) => (
            "Runtime",
            "parent   sched-in     run-time    min-run     avg-run     max-run  stddev  migrations",
        ),
    };
    let states = states && !history.idle_only;
    writeln!(out, "\n{title} summary\n{:>30}  {columns}", "comm")?;
    let last = if states { "(msec)" } else { "%" };
    writeln!(
        out,
        "{:30}            (count)       (msec)     (msec)      (msec)      (msec)       {last}",
        ""
    )?;
    writeln!(out, "{}", "-".repeat(117))?;
    let threads = history.threads();
    for (thread, times) in &threads {
        write_thread(thread, times, states, out)?;
    }
    if threads.is_empty() {
        writeln!(out, "<no task ran>")?;
    }
    if history.is_partial && !history.idle_only {
        return Ok(());
    }
    let totals = history.totals();
    writeln!(out, "\nIdle stats:")?;
    for (cpu, idle) in history.idle() {
        match idle {
            None => writeln!(out, "    CPU {cpu:2} idle entire time window")?,
            Some(idle) => {
                let share = 100.0 * idle.run_ns as f64 / totals.elapsed_ns.max(1) as f64;
                let time = cut_milliseconds(idle.run_ns, 6);
                writeln!(out, "    CPU {cpu:2} idle for {time} msec  ({share:6.2}%)")?;
            }
        }
    }
    let cpus = recording.features.nr_cpus.map_or(history.replay.cpu_count() as u32, |cpus| cpus.online);
    writeln!(out, "\n    Total number of unique tasks: {}", totals.tasks)?;
    writeln!(out, "Total number of context switches: {}", totals.switches)?;
    writeln!(out, "           Total run time (msec): {}", cut_milliseconds(totals.run_ns, 2))?;
    writeln!(out, "    Total scheduling time (msec): {} (x {cpus})", cut_milliseconds(totals.elapsed_ns, 2))
}

fn write_thread(
    thread: &ReplayThread,
    times: &ThreadTimes,
    states: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let name = thread.shown_name();
    let label = match thread.pid {
        Some(pid) if pid != thread.tid => format!("{}[{}/{pid}]", shown(&name), thread.tid),
        _ => format!("{}[{}]", shown(&name), thread.tid),
    };
    let parent = thread.parent_tid.unwrap_or(-1);
    write!(out, "{label:>30}   {parent:5}  {:9} {}", times.turns, cut_milliseconds(times.run_ns, 8))?;
    if states {
        let of = [times.sleep_ns, times.iowait_ns, times.preempted_ns, times.delay_ns];
        return writeln!(out, "{}", of.map(|time| cut_milliseconds(time, 6)).join(" "));
    }
    let of = [times.min_run_ns, times.mean_run_ns(), times.max_run_ns].map(|time| cut_milliseconds(time, 6));
    writeln!(out, "{}  {:5.2}   {:5}", of.join(" "), times.run_error_percent(), times.migrations)
}
