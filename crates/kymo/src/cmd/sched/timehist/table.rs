//! The lines of a history, in perf's columns.
use std::fmt::Write as _;
use std::io::{self, Write};

use kymo_data::Recording;
use kymo_profile::sched::{HistoryKind, HistoryLine, Replay, TurnTimes};
use kymo_profile::text::shown;

use super::TimehistArgs;
use crate::cmd::sched::{seconds, task_label};

/// Width of the column of names.
const NAME: usize = 30;

/// What lines have.
#[derive(Debug)]
pub(super) struct HistoryTable<'a> {
    args: &'a TimehistArgs,
    /// Columns of `--cpu-visual`.
    cpus: usize,
}

/// Milliseconds, cut to microseconds as perf cuts them.
pub(super) fn cut_milliseconds(time_ns: u64, width: usize) -> String {
    format!("{:width$}.{:03} ", time_ns / 1_000_000, time_ns % 1_000_000 / 1000)
}

impl HistoryTable<'_> {
    pub(super) fn new<'a>(args: &'a TimehistArgs, recording: &Recording) -> HistoryTable<'a> {
        const MOST: u32 = 4096;
        let cpus = recording.features.nr_cpus.map_or(1, |cpus| cpus.available.clamp(1, MOST));
        HistoryTable { args, cpus: if args.cpu_visual { cpus as usize } else { 0 } }
    }

    /// The head, in three lines.
    pub(super) fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let digits: String = (0..self.cpus).map(|cpu| char::from(b"0123456789abcdef"[cpu % 16])).collect();
        self.write_head_line(
            out,
            ["time", "cpu"],
            &digits,
            "task name",
            "prio",
            ["wait time", "sch delay", "run time", "pre-mig time"],
            "state",
        )?;
        let (units, none) = (["(msec)"; 4], " ".repeat(self.cpus));
        self.write_head_line(out, ["", ""], &none, "[tid/pid]", "", units, "")?;
        let dashes = |width| "-".repeat(width);
        let rule = [(); 4].map(|()| dashes(9));
        let rule = rule.each_ref().map(String::as_str);
        let left = [dashes(15), dashes(6)];
        let left = left.each_ref().map(String::as_str);
        self.write_head_line(out, left, &dashes(self.cpus), &dashes(NAME), &dashes(8), rule, "-----")
    }

    #[allow(clippy::too_many_arguments, reason = "one per column")]
    fn write_head_line(
        &self,
        out: &mut dyn Write,
        [time, cpu]: [&str; 2],
        visual: &str,
        name: &str,
        priority: &str,
        times: [&str; 4],
        state: &str,
    ) -> io::Result<()> {
        write!(out, "{time:>15} {cpu:>6} ")?;
        if self.args.cpu_visual {
            write!(out, " {visual} ")?;
        }
        write!(out, " {name:NAME$}")?;
        if self.args.show_prio {
            write!(out, "  {priority:8}")?;
        }
        write!(out, "  {:>9}  {:>9}  {:>9}", times[0], times[1], times[2])?;
        if self.args.pre_migrations {
            write!(out, "  {:>9}", times[3])?;
        }
        if self.args.state && !state.is_empty() {
            write!(out, "  {state}")?;
        }
        writeln!(out)
    }

    /// A line.
    pub(super) fn write_line(
        &self,
        line: &HistoryLine,
        replay: &Replay,
        chain: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if let HistoryKind::Lost { records } = line.kind {
            let cpu = line.cpu.map_or(String::new(), |cpu| format!(" on cpu {cpu}"));
            return writeln!(out, "{:>15} lost {records} events{cpu}", seconds(line.time_ns));
        }
        let is_idle = line.thread.is_some_and(|thread| replay.thread(thread).is_idle());
        let cpu = line.cpu.map_or("----".into(), |cpu| format!("{cpu:04}"));
        write!(out, "{:>15} [{cpu}] ", seconds(line.time_ns))?;
        self.write_visual(line, is_idle, out)?;
        let label = match line.kind {
            // As perf calls the idle task where it is no CPU's.
            HistoryKind::WokeUp { .. } | HistoryKind::Moved { .. } if is_idle => "swapper".into(),
            _ => line.thread.map_or("[unknown]".into(), |thread| task_label(replay, thread)),
        };
        write!(out, " {label:NAME$} ")?;
        let HistoryKind::Left { times, state, priority_in, priority, next } = line.kind else {
            write!(out, "  {:9}  {:9}  {:9} ", "", "", "")?;
            return writeln!(out, "{}", self.event_text(line, replay));
        };
        if self.args.show_prio {
            let changed = priority_in >= 0 && priority_in != priority;
            let before = if changed { format!("{priority_in}->") } else { String::new() };
            write!(out, " {:8} ", format!("{before}{priority}"))?;
        }
        self.write_times(&times, out)?;
        if self.args.state {
            write!(out, " {:>5} ", if is_idle { 'I' } else { state.letter })?;
        }
        if self.args.next
            && let Some((name, tid)) = next
        {
            write!(out, " {:NAME$}", format!("next: {}[{tid}]", shown(&name.to_string())))?;
        }
        if self.args.wakeups && !self.args.next {
            write!(out, "  {:NAME$}", "")?;
        }
        if !chain.is_empty() && !is_idle {
            write!(out, "  {}", shown(chain))?;
        }
        writeln!(out)
    }

    fn write_times(&self, times: &TurnTimes, out: &mut dyn Write) -> io::Result<()> {
        for time in [times.wait_ns, times.delay_ns, times.run_ns] {
            write!(out, "{}", cut_milliseconds(time, 6))?;
        }
        if self.args.pre_migrations {
            write!(out, "{}", cut_milliseconds(times.before_migration_ns, 6))?;
        }
        Ok(())
    }

    /// A letter below the CPU: `s` a task left, `i` it had been idle, `m` a task was moved.
    fn write_visual(&self, line: &HistoryLine, is_idle: bool, out: &mut dyn Write) -> io::Result<()> {
        if !self.args.cpu_visual {
            return Ok(());
        }
        let letter = match line.kind {
            HistoryKind::Left { .. } if is_idle => 'i',
            HistoryKind::Left { .. } => 's',
            HistoryKind::Moved { .. } => 'm',
            HistoryKind::WokeUp { .. } | HistoryKind::Lost { .. } => ' ',
        };
        let here = line.cpu.map(|cpu| cpu as usize);
        let text: String = (0..self.cpus).map(|cpu| if Some(cpu) == here { letter } else { ' ' }).collect();
        write!(out, " {text} ")
    }

    /// What a line says of a wake-up or a move.
    fn event_text(&self, line: &HistoryLine, replay: &Replay) -> String {
        let mut text = String::new();
        match line.kind {
            HistoryKind::WokeUp { woken, in_interrupt } => {
                text = format!("awakened: {}", task_label(replay, woken));
                if in_interrupt {
                    text.push_str(" (interrupt)");
                }
            }
            HistoryKind::Moved { moved, from_cpu, to_cpu } => {
                // Writing into a String cannot fail.
                let moved = task_label(replay, moved);
                _ = write!(text, "migrated: {moved} cpu {from_cpu} => {to_cpu}");
            }
            HistoryKind::Left { .. } | HistoryKind::Lost { .. } => {}
        }
        text
    }
}
