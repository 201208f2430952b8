//! Tasks as a table: groups first, then tasks, the dearest above.
use std::cmp::Reverse;
use std::io::{self, Write};

use kymo_agent::table::{Frame, GroupRow};
use kymo_profile::text::shown as plain;

use super::{CPU_TIME, Shown, count};

/// How many tasks are shown unless all are wanted.
const ROWS: usize = 20;

/// One line: its CPU time, what else is counted, and whose it is.
struct Line {
    cpu_ns: Option<u64>,
    switches: u64,
    cells: Vec<String>,
    name: String,
}

pub(super) fn print(shown: &Shown<'_>, all: bool, out: &mut dyn Write) -> io::Result<()> {
    let frame = shown.frame;
    let living: usize = frame.groups.iter().map(|group| group.tasks.len()).sum();
    let span = match shown.span_ns {
        Some(span) => format!("the last {:.3} s", span as f64 / 1e9),
        None => "all their time".into(),
    };
    writeln!(out, "\n Tasks of process {}: {living} live; counts of {span}\n", shown.pid)?;
    if !frame.problem.is_empty() {
        writeln!(out, " Not everything is counted: {}\n", plain(&frame.problem))?;
    }
    let counters = counters(frame);
    let total = frame.groups.iter().filter_map(|group| count(group, &group.counts, CPU_TIME)).sum::<u64>();

    let columns = Columns { uncounted: frame.groups.iter().any(|group| group.own[3] > 0), counters };
    let mut groups: Vec<Line> = frame.groups.iter().map(|group| of_group(group, &columns)).collect();
    groups.sort_by_key(|line| Reverse(line.cpu_ns));
    let mut tasks: Vec<Line> = frame.groups.iter().flat_map(|group| of_tasks(group, &columns)).collect();
    tasks.sort_by_key(|line| (Reverse(line.cpu_ns), Reverse(line.switches)));
    let rows = if all { tasks.len() } else { tasks.len().min(ROWS) };
    let hidden = tasks.len() - rows;

    let mut heads: Vec<&str> = vec!["polls", "switches", "moved"];
    if columns.uncounted {
        heads.push("uncounted");
    }
    heads.extend(columns.counters.iter().map(String::as_str));
    let lines = || groups.iter().chain(&tasks[..rows]);
    let widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            lines().map(|line| line.cells.get(at).map_or(0, String::len)).fold(head.len(), usize::max)
        })
        .collect();
    let mut table = |title: &str, lines: &[Line]| -> io::Result<()> {
        write!(out, " {:>12} {:>7}", "CPU ms", "share")?;
        for (head, width) in heads.iter().zip(&widths) {
            write!(out, "  {:>width$}", plain(head))?;
        }
        writeln!(out, "  {title}")?;
        for line in lines {
            let cpu = line.cpu_ns.map_or("?".into(), |cpu| format!("{:.3}", cpu as f64 / 1e6));
            let share = match line.cpu_ns {
                Some(cpu) if total > 0 => format!("{:.2} %", 100.0 * cpu as f64 / total as f64),
                _ => "?".into(),
            };
            write!(out, " {cpu:>12} {share:>7}")?;
            for (cell, width) in line.cells.iter().zip(&widths) {
                write!(out, "  {cell:>width$}")?;
            }
            writeln!(out, "  {}", line.name)?;
        }
        writeln!(out)
    };
    table("group", &groups)?;
    if rows > 0 {
        table("task", &tasks[..rows])?;
    }
    if hidden > 0 {
        writeln!(out, " ... and {hidden} tasks with less; -v shows all, --json too\n")?;
    }
    if frame.groups.iter().any(|group| !group.per_task && !group.tasks.is_empty()) {
        writeln!(out, " ?: the group keeps sums only (GroupBuilder::per_task keeps the numbers of tasks)\n")?;
    }
    Ok(())
}

/// What stands beside CPU time.
struct Columns {
    /// Whether anything was not counted.
    uncounted: bool,
    counters: Vec<String>,
}

/// What any group counts besides CPU time.
fn counters(frame: &Frame) -> Vec<String> {
    let mut names = Vec::new();
    for name in frame.groups.iter().flat_map(|group| &group.counters) {
        if name != CPU_TIME && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn of_group(group: &GroupRow, columns: &Columns) -> Line {
    let (spawned, living) = (group.spawned, group.tasks.len());
    Line {
        cpu_ns: count(group, &group.counts, CPU_TIME),
        switches: group.own[1],
        cells: cells(group, &group.own, &group.counts, columns),
        name: match group.number {
            0 => format!("{} ({spawned} tasks, group ended)", plain(&group.name)),
            _ => format!("{} ({spawned} tasks, {living} live)", plain(&group.name)),
        },
    }
}

fn of_tasks(group: &GroupRow, columns: &Columns) -> Vec<Line> {
    let line = |task: &kymo_agent::table::TaskRow| Line {
        cpu_ns: count(group, &task.counts, CPU_TIME),
        switches: task.own[1],
        cells: cells(group, &task.own, &task.counts, columns),
        name: format!(
            "{}: {}{}",
            plain(&group.name),
            plain(&task.name),
            if task.running { " (runs)" } else { "" }
        ),
    };
    group.tasks.iter().map(line).collect()
}

fn cells(group: &GroupRow, own: &[u64; 4], counts: &[Option<u64>], columns: &Columns) -> Vec<String> {
    let [polls, switches, moved, uncounted] = own;
    let mut cells: Vec<String> = [polls, switches, moved].map(u64::to_string).into();
    if columns.uncounted {
        cells.push(uncounted.to_string());
    }
    for name in &columns.counters {
        let cell = match group.counters.contains(name) {
            true => count(group, counts, name).map_or("?".into(), |count| count.to_string()),
            false => String::new(),
        };
        cells.push(cell);
    }
    cells
}
