//! `kymo stat --tasks`: what the tasks inside a program use, as the program itself counts them (kymo-agent).
//!
//! ```text
//!   program: kymo_agent::task::publish()        kymo
//!   memory file, pipe  <--- /proc/PID/fd --- find (source.rs)
//!   thread wakes       <--- a byte --------- ask
//!   writes a frame     ----------------------> read, checked --since the one before (-I)--> text.rs | json.rs
//! ```

mod json;
mod source;
mod text;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kymo_agent::table::{Frame, GroupRow, TaskRow};
use kymo_perf::explain;
use source::{Source, TaskTable};

use super::StatArgs;
use kymo_cli::{exit, terminal};

/// How often a command is looked into for its table, until it has one.
const LOOK: Duration = Duration::from_millis(5);

/// What to show.
#[derive(Debug)]
struct Plan<'a> {
    /// What happened in each such span, instead of what happened so far.
    interval: Option<Duration>,
    /// End after so many spans.
    spans: Option<u64>,
    /// JSON instead of a table.
    json: bool,
    /// All rows of the table.
    all: bool,
    /// To be started.
    command: &'a [OsString],
}

/// What is printed at a time.
pub(super) struct Shown<'a> {
    pid: i32,
    frame: &'a Frame,
    /// The span that it stands for; `None`: from the beginning.
    span_ns: Option<u64>,
}

/// Shows the tasks of a process, on stdout, or of a command, on stderr beside what it says itself.
pub(super) fn run(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        interval: args.interval(),
        spans: args.interval_count,
        json: args.json,
        all: args.verbose > 0,
        command: &args.command,
    };
    let interrupted = kymo_cli::signals::interrupted()?;
    let mut out: Box<dyn Write> = match &args.output {
        Some(path) => {
            let mut options = File::options();
            options.create(true).write(true).append(args.append).truncate(!args.append);
            Box::new(options.open(path).with_context(|| format!("{} cannot be written", path.display()))?)
        }
        None if plan.command.is_empty() => Box::new(std::io::stdout()),
        None => Box::new(std::io::stderr()),
    };
    match (args.pids.as_slice(), plan.command) {
        (&[pid], []) => of_process(&plan, pid, &interrupted, &mut *out),
        ([], [_, ..]) => of_command(&plan, &interrupted, &mut *out),
        _ => Err(exit::usage(anyhow::anyhow!("--tasks is for one process (-p PID) or for a command"))),
    }
}

fn of_process(
    plan: &Plan<'_>,
    pid: i32,
    interrupted: &AtomicBool,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let source = match source::find(pid)? {
        TaskTable::Table(source) => source,
        TaskTable::Inherited(parent) => bail!(
            "process {pid} was forked from process {parent}, which counts tasks; it counts none itself. Use -p {parent}, or let \
             it make its groups after the fork"
        ),
        TaskTable::Nothing => bail!(
            "process {pid} does not show tasks: it has to use kymo-agent and call kymo_agent::task::publish(), or kymo_publish() \
             in C (docs/reference/tasks-api.md)"
        ),
    };
    let mut shows = Shows::new(plan, pid, source.ask()?);
    let Some(interval) = plan.interval else {
        shows.totals(out)?;
        return Ok(ExitCode::SUCCESS);
    };
    while !shows.is_done() && wait(interval, interrupted, || false) {
        match source.ask() {
            Ok(frame) => shows.since(frame, out)?,
            // It has ended: what it told last is what there is to tell.
            Err(_) if !lives(pid) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn of_command(plan: &Plan<'_>, interrupted: &AtomicBool, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let (program, arguments) = (&plan.command[0], &plan.command[1..]);
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            terminal::say(&explain::not_executed(&program.to_string_lossy(), &error));
            return Ok(ExitCode::from(exit::NOT_STARTED));
        }
    };
    let pid = child.id() as i32;
    let source = table_of(&mut child)?;
    if let Some(source) = &source {
        // From now on it also tells when it ends. A program that is that quick has told, or ends without.
        let first = source.ask().unwrap_or_default();
        let mut shows = Shows::new(plan, pid, first);
        while let Some(interval) = plan.interval {
            let over = || !matches!(child.try_wait(), Ok(None));
            if shows.is_done() || !wait(interval, interrupted, over) {
                break;
            }
            if let Ok(frame) = source.ask() {
                shows.since(frame, out)?;
            }
        }
    }
    let status = child.wait()?;
    match source.as_ref().map(Source::newest).transpose()?.flatten() {
        None => terminal::say(
            "the command showed no tasks: it has to use kymo-agent and call kymo_agent::task::publish(), or kymo_publish() in C \
             (docs/reference/tasks-api.md), and to run for some milliseconds",
        ),
        Some(frame) => {
            if !frame.last {
                terminal::say(
                    "the command ended without telling of its tasks a last time; these are its last numbers before",
                );
            }
            Shows::new(plan, pid, frame).totals(out)?;
        }
    }
    if let Some(signal) = status.signal() {
        return Ok(exit::by_signal(signal));
    }
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

/// The table of a command, as soon as it has one; `None` if it ended without.
fn table_of(child: &mut Child) -> anyhow::Result<Option<Source>> {
    loop {
        // Whatever goes wrong in looking, at an exec or at the end, may be right at the next look.
        if let Ok(TaskTable::Table(source)) = source::find(child.id() as i32) {
            return Ok(Some(source));
        }
        if child.try_wait()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

fn lives(pid: i32) -> bool {
    std::fs::metadata(format!("/proc/{pid}/fd")).is_ok()
}

/// Waits for a span; `false` if somebody ended it.
fn wait(span: Duration, interrupted: &AtomicBool, mut over: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + span;
    loop {
        // Relaxed: a flag, raised by a signal.
        if interrupted.load(Ordering::Relaxed) || over() {
            return false;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

/// What was shown, and what is to be.
struct Shows<'a> {
    plan: &'a Plan<'a>,
    pid: i32,
    last: Frame,
    spans: u64,
}

impl<'a> Shows<'a> {
    fn new(plan: &'a Plan<'a>, pid: i32, first: Frame) -> Shows<'a> {
        Shows { plan, pid, last: first, spans: 0 }
    }

    fn is_done(&self) -> bool {
        self.plan.spans.is_some_and(|spans| self.spans >= spans)
    }

    fn totals(&self, out: &mut dyn Write) -> std::io::Result<()> {
        self.print(&Shown { pid: self.pid, frame: &self.last, span_ns: None }, out)
    }

    fn since(&mut self, frame: Frame, out: &mut dyn Write) -> std::io::Result<()> {
        let span_ns = frame.time_ns.saturating_sub(self.last.time_ns);
        let difference = difference(&frame, &self.last);
        self.print(&Shown { pid: self.pid, frame: &difference, span_ns: Some(span_ns) }, out)?;
        self.last = frame;
        self.spans += 1;
        Ok(())
    }

    fn print(&self, shown: &Shown<'_>, out: &mut dyn Write) -> std::io::Result<()> {
        if self.plan.json {
            writeln!(out, "{}", json::line(shown))?;
        } else {
            text::print(shown, self.plan.all, out)?;
        }
        out.flush()
    }
}

/// What happened between two frames. What is only in the later one began since.
fn difference(now: &Frame, before: &Frame) -> Frame {
    let mut frame = now.clone();
    for group in &mut frame.groups {
        // A group that is gone adds to the row of its name, where what it had before is not new.
        let same = |old: &&GroupRow| match group.number {
            0 => {
                old.name == group.name
                    && (old.number == 0 || !now.groups.iter().any(|group| group.number == old.number))
            }
            number => old.number == number,
        };
        for old in before.groups.iter().filter(same).collect::<Vec<_>>() {
            subtract(&mut group.own, &old.own);
            for (name, count) in group.counters.iter().zip(&mut group.counts) {
                let old = old
                    .counters
                    .iter()
                    .position(|counter| counter == name)
                    .and_then(|at| old.counts.get(at).copied());
                *count = less(*count, old.unwrap_or(Some(0)));
            }
            let rows: HashMap<u64, &TaskRow> = old.tasks.iter().map(|task| (task.number, task)).collect();
            for task in &mut group.tasks {
                let Some(old) = rows.get(&task.number) else { continue };
                subtract(&mut task.own, &old.own);
                task.counts.iter_mut().zip(&old.counts).for_each(|(now, old)| *now = less(*now, *old));
            }
        }
    }
    frame
}

fn subtract(own: &mut [u64; 4], old: &[u64; 4]) {
    own.iter_mut().zip(old).for_each(|(now, old)| *now = now.saturating_sub(*old));
}

fn less(now: Option<u64>, old: Option<u64>) -> Option<u64> {
    now.zip(old).map(|(now, old)| now.saturating_sub(old))
}

/// One count of a row, by the name of the counter.
fn count(group: &GroupRow, counts: &[Option<u64>], name: &str) -> Option<u64> {
    let at = group.counters.iter().position(|counter| counter == name)?;
    counts.get(at).copied().flatten()
}

/// What CPU time is called in a table.
const CPU_TIME: &str = "cpu-time";

#[cfg(test)]
mod tests {
    use super::*;

    fn group(number: u64, name: &str, count: u64, tasks: &[(u64, u64)]) -> GroupRow {
        let task = |&(number, count): &(u64, u64)| TaskRow {
            number,
            own: [count; 4],
            counts: vec![Some(count)],
            ..TaskRow::default()
        };
        GroupRow {
            number,
            name: name.into(),
            counters: vec![CPU_TIME.into()],
            own: [count; 4],
            counts: vec![Some(count)],
            tasks: tasks.iter().map(task).collect(),
            ..GroupRow::default()
        }
    }

    fn frame(groups: Vec<GroupRow>) -> Frame {
        Frame { groups, ..Frame::default() }
    }

    /// Checks that a span shows what was added in it: by tasks that lived, that began, and that ended.
    #[test]
    fn a_span_is_what_was_added() {
        let before = frame(vec![group(1, "a", 100, &[(7, 60), (8, 40)])]);
        let now = frame(vec![group(1, "a", 150, &[(8, 55), (9, 30)]), group(2, "a", 5, &[])]);
        let wanted = frame(vec![group(1, "a", 50, &[(8, 15), (9, 30)]), group(2, "a", 5, &[])]);
        assert_eq!(difference(&now, &before), wanted);
    }

    /// Checks that what a group had before it was gone is not shown as new when it is gone.
    #[test]
    fn a_group_that_is_gone_is_not_new() {
        let before =
            frame(vec![group(1, "a", 100, &[(7, 60)]), group(2, "a", 10, &[]), group(0, "a", 1000, &[])]);
        let now = frame(vec![group(2, "a", 11, &[]), group(0, "a", 1103, &[])]);
        assert_eq!(difference(&now, &before), frame(vec![group(2, "a", 1, &[]), group(0, "a", 3, &[])]));
    }

    /// Checks that a count that was unknown before is unknown in the span, and that rows that lie do no harm.
    #[test]
    fn rows_that_lie_do_no_harm() {
        let mut old = group(1, "a", 100, &[(7, 60)]);
        old.counts = vec![None];
        let less = group(1, "a", 50, &[(7, 10), (7, 20)]);
        let shown = difference(&frame(vec![less.clone(), less]), &frame(vec![old.clone(), old]));
        assert_eq!(shown.groups[0].counts, [None]);
        assert_eq!(shown.groups[0].own, [0; 4]);
    }
}
