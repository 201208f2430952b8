//! The answers as JSON, described in `docs/reference/formats/sched-json.md`.
use super::history_summary::{Away, History, ThreadTimes};
use super::latency::Latency;
use super::map::MapLine;
use super::replay::{Replay, ThreadIndex};
use super::stream::SchedSummary;
use super::timehist::{HistoryKind, HistoryLine};
use super::totals::SchedStats;
use crate::text::json;
use serde::Serialize;
use std::io::{self, Write};

/// Grows when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// An object that is written key by key and item by item: a history is never in memory as a whole.
pub struct SchedJson<'a> {
    out: &'a mut dyn Write,
    items: u64,
}

impl std::fmt::Debug for SchedJson<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchedJson").field("items", &self.items).finish_non_exhaustive()
    }
}

impl<'a> SchedJson<'a> {
    /// Begins the object of a view (`latency`, `timehist`, `map` or `stats`) of the recording that
    /// the user called `source`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin(out: &'a mut dyn Write, view: &str, source: &str) -> io::Result<SchedJson<'a>> {
        writeln!(out, "{{\n\"schema\": \"kymo-sched\",\n\"schema_version\": {SCHEMA_VERSION},")?;
        write!(out, "\"view\": {},\n\"source\": {}", json(view)?, json(source)?)?;
        Ok(SchedJson { out, items: 0 })
    }

    fn value(&mut self, key: &str, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
        write!(self.out, ",\n\"{key}\": {}", json(value)?)
    }

    fn list(&mut self, key: &str, items: impl IntoIterator<Item = impl Serialize>) -> io::Result<()> {
        self.begin_list(key)?;
        items.into_iter().try_for_each(|item| self.item(&item))?;
        self.end_list()
    }

    /// Begins a list; its items follow.
    ///
    /// # Errors
    /// Those of the output.
    pub fn begin_list(&mut self, key: &str) -> io::Result<()> {
        self.items = 0;
        write!(self.out, ",\n\"{key}\": [")
    }

    fn item(&mut self, item: &(impl Serialize + ?Sized)) -> io::Result<()> {
        let comma = if self.items == 0 { "" } else { "," };
        self.items += 1;
        write!(self.out, "{comma}\n{}", json(item)?)
    }

    /// Ends a list.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end_list(&mut self) -> io::Result<()> {
        self.out.write_all(if self.items == 0 { b"]" } else { b"\n]" })
    }

    /// Delays.
    ///
    /// # Errors
    /// Those of the output.
    pub fn latency(&mut self, latency: &Latency) -> io::Result<()> {
        self.value("kernel_runtimes", &latency.kernel_runtimes)?;
        self.value("runtime_ns", &latency.runtime_ns)?;
        self.value("switches", &latency.switches)?;
        self.value("mismatched_switches", &latency.mismatched_switches)?;
        self.list("rows", &latency.rows)
    }

    /// Totals.
    ///
    /// # Errors
    /// Those of the output.
    pub fn stats(&mut self, stats: &SchedStats) -> io::Result<()> {
        self.value("elapsed_ns", &stats.elapsed_ns)?;
        self.value("mismatched_switches", &stats.mismatched_switches)?;
        self.value("all", &stats.all)?;
        self.list("cpus", &stats.cpus)?;
        self.list("threads", &stats.threads)
    }

    /// A line of a history, with the call chain of its switch.
    ///
    /// # Errors
    /// Those of the output.
    pub fn history_line(&mut self, line: &HistoryLine, replay: &Replay, chain: &str) -> io::Result<()> {
        self.item(&LineItem::new(line, replay, chain))
    }

    /// The summary of a history.
    ///
    /// # Errors
    /// Those of the output.
    pub fn history(&mut self, history: &History) -> io::Result<()> {
        let totals = history.totals();
        self.value("elapsed_ns", &totals.elapsed_ns)?;
        self.value("switches", &totals.switches)?;
        self.value("runtime_ns", &totals.run_ns)?;
        let threads = history.threads();
        self.list(
            "threads",
            threads.iter().map(|(thread, times)| ThreadItem {
                task: thread.shown_name(),
                tid: thread.tid,
                pid: thread.pid,
                parent_tid: thread.parent_tid,
                times: TimesItem::new(times),
            }),
        )?;
        if history.is_partial {
            return Ok(());
        }
        let idle = history.idle().map(|(cpu, times)| IdleItem {
            cpu,
            times: TimesItem::new(times.unwrap_or(&ThreadTimes::default())),
        });
        self.list("idle", idle)
    }

    /// A line of a map.
    ///
    /// # Errors
    /// Those of the output.
    pub fn map_line(&mut self, line: &MapLine, replay: &Replay) -> io::Result<()> {
        let cells = line.cells.iter().map(|cell| {
            let thread = cell.thread.map(|(thread, short)| (TaskItem::new(replay, thread), short));
            CellItem {
                cpu: cell.cpu,
                short: thread.as_ref().map(|(_, short)| short.as_str().trim_end().to_owned()),
                tid: thread.as_ref().map(|(task, _)| task.tid),
                task: thread.map(|(task, _)| task.task),
            }
        });
        self.item(&MapItem {
            time_ns: line.time_ns,
            cpu: line.cpu,
            departure: line.is_departure,
            cells: cells.collect(),
        })
    }

    /// Ends the object with what was wrong with the recording.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, summary: &SchedSummary) -> io::Result<()> {
        self.value("events", &summary.events)?;
        self.value("lost_records", &summary.lost_records)?;
        self.value("malformed", &summary.malformed)?;
        self.value("unordered", &summary.unordered)?;
        self.out.write_all(b"\n}\n")
    }
}

#[derive(Serialize)]
struct TaskItem {
    task: String,
    tid: i32,
    pid: Option<i32>,
}

impl TaskItem {
    fn new(replay: &Replay, thread: ThreadIndex) -> TaskItem {
        let thread = replay.thread(thread);
        TaskItem { task: thread.shown_name(), tid: thread.tid, pid: thread.pid }
    }
}

#[derive(Serialize)]
struct LineItem {
    time_ns: u64,
    cpu: Option<u32>,
    kind: &'static str,
    #[serde(flatten)]
    thread: Option<TaskItem>,
    #[serde(flatten)]
    details: Details,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Details {
    Left {
        run_ns: u64,
        wait_ns: u64,
        wait: &'static str,
        delay_ns: u64,
        before_migration_ns: u64,
        state: char,
        preempted: bool,
        priority: i32,
        next: Option<String>,
        next_tid: Option<i32>,
        #[serde(skip_serializing_if = "String::is_empty")]
        chain: String,
    },
    WokeUp {
        woken: TaskItem,
        in_interrupt: bool,
    },
    Moved {
        moved: TaskItem,
        from_cpu: u32,
        to_cpu: u32,
    },
    Lost {
        records: u64,
    },
}

impl LineItem {
    fn new(line: &HistoryLine, replay: &Replay, chain: &str) -> LineItem {
        let (kind, details) = match line.kind {
            HistoryKind::Left { times, state, priority, next, .. } => (
                "switch",
                Details::Left {
                    run_ns: times.run_ns,
                    wait_ns: times.wait_ns,
                    wait: match times.away {
                        Away::Slept => "sleep",
                        Away::WaitedForIo => "iowait",
                        Away::Preempted => "preempt",
                    },
                    delay_ns: times.delay_ns,
                    before_migration_ns: times.before_migration_ns,
                    state: state.letter,
                    preempted: state.preempted,
                    priority,
                    next: next.map(|(name, _)| name.to_string()),
                    next_tid: next.map(|(_, tid)| tid),
                    chain: chain.to_owned(),
                },
            ),
            HistoryKind::WokeUp { woken, in_interrupt } => {
                ("wakeup", Details::WokeUp { woken: TaskItem::new(replay, woken), in_interrupt })
            }
            HistoryKind::Moved { moved, from_cpu, to_cpu } => {
                ("migration", Details::Moved { moved: TaskItem::new(replay, moved), from_cpu, to_cpu })
            }
            HistoryKind::Lost { records } => ("lost", Details::Lost { records }),
        };
        let thread = line.thread.map(|thread| TaskItem::new(replay, thread));
        LineItem { time_ns: line.time_ns, cpu: line.cpu, kind, thread, details }
    }
}

#[derive(Serialize)]
struct TimesItem {
    turns: u64,
    run_ns: u64,
    min_run_ns: u64,
    max_run_ns: u64,
    sleep_ns: u64,
    iowait_ns: u64,
    preempt_ns: u64,
    delay_ns: u64,
    before_migration_ns: u64,
    migrations: u64,
}

impl TimesItem {
    fn new(times: &ThreadTimes) -> TimesItem {
        TimesItem {
            turns: times.turns,
            run_ns: times.run_ns,
            min_run_ns: times.min_run_ns,
            max_run_ns: times.max_run_ns,
            sleep_ns: times.sleep_ns,
            iowait_ns: times.iowait_ns,
            preempt_ns: times.preempted_ns,
            delay_ns: times.delay_ns,
            before_migration_ns: times.before_migration_ns,
            migrations: times.migrations,
        }
    }
}

#[derive(Serialize)]
struct ThreadItem {
    task: String,
    tid: i32,
    pid: Option<i32>,
    parent_tid: Option<i32>,
    #[serde(flatten)]
    times: TimesItem,
}

#[derive(Serialize)]
struct IdleItem {
    cpu: u32,
    #[serde(flatten)]
    times: TimesItem,
}

#[derive(Serialize)]
struct MapItem {
    time_ns: u64,
    cpu: u32,
    departure: bool,
    cells: Vec<CellItem>,
}

#[derive(Serialize)]
struct CellItem {
    cpu: u32,
    short: Option<String>,
    task: Option<String>,
    tid: Option<i32>,
}
