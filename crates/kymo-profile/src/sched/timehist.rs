//! The history of switches, line by line, and its summary.
use super::event::{OutState, SchedEvent, SchedEventKind, TaskName, WakeupStep};
use super::history_summary::{History, TurnTimes};
use super::replay::{Replay, Step, Stint, ThreadIndex};
use super::stream::{SchedSources, SchedSummary, read_events};
use kymo_data::{RawRecord, ReadError, Recording};
use rustc_hash::FxHashSet;

/// What is asked of a recording.
#[derive(Clone, Debug, Default)]
pub struct TimehistOptions {
    /// Only these CPUs.
    pub cpus: Option<FxHashSet<u32>>,
    /// Only threads of these processes.
    pub pids: Option<FxHashSet<i32>>,
    /// Only these threads.
    pub tids: Option<FxHashSet<i32>>,
    /// Only threads of these priorities, as the kernel counts.
    pub priorities: Option<FxHashSet<u32>>,
    /// Only this span of time in ns; what reaches beyond it is cut.
    pub time: Option<(u64, u64)>,
    /// Only the times in which CPUs were idle, each added to the thread that ran before it.
    pub idle_only: bool,
    /// The samples of switches are wanted, for their call chains.
    pub samples: bool,
}

impl TimehistOptions {
    fn picks_threads(&self) -> bool {
        self.pids.is_some() || self.tids.is_some() || self.priorities.is_some()
    }

    fn has_cpu(&self, cpu: Option<u32>) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpu.is_some_and(|cpu| cpus.contains(&cpu)))
    }

    fn has_time(&self, now: u64) -> bool {
        self.time.is_none_or(|(from, until)| (from..=until).contains(&now))
    }

    /// Whether a thread is among those that were asked for.
    fn has_thread(&self, replay: &Replay, thread: ThreadIndex, priority: i32) -> bool {
        let thread = replay.thread(thread);
        let has = |set: &Option<FxHashSet<i32>>, number: Option<i32>| {
            set.as_ref().is_none_or(|set| number.is_some_and(|number| set.contains(&number)))
        };
        let priority = if thread.priority >= 0 { thread.priority } else { priority };
        has(&self.pids, thread.pid)
            && has(&self.tids, Some(thread.tid))
            && self
                .priorities
                .as_ref()
                .is_none_or(|set| u32::try_from(priority).is_ok_and(|p| set.contains(&p)))
    }
}

/// One line of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    /// When.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: Option<u32>,
    /// The thread that ran there; not known where the recording does not tell.
    pub thread: Option<ThreadIndex>,
    /// What happened.
    pub kind: HistoryKind,
}

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryKind {
    /// The thread left the CPU.
    Left {
        /// Its times.
        times: TurnTimes,
        /// In which state.
        state: OutState,
        /// Its priority when it got the CPU; -1 if not known.
        priority_in: i32,
        /// Its priority when it left; -1 if not known.
        priority: i32,
        /// What runs next: name and number.
        next: Option<(TaskName, i32)>,
    },
    /// The thread woke up this one.
    WokeUp {
        /// The thread that was woken up.
        woken: ThreadIndex,
        /// An interrupt did it while the thread ran.
        in_interrupt: bool,
    },
    /// The thread moved this one.
    Moved {
        /// The thread that was moved.
        moved: ThreadIndex,
        /// From this CPU.
        from_cpu: u32,
        /// To this one.
        to_cpu: u32,
    },
    /// So many records were lost.
    Lost {
        /// How many.
        records: u64,
    },
}

/// Calls `each` with every line, in order of time, and gives the summary of them.
///
/// # Errors
/// When the recording cannot be read at all, and those of `each`.
pub fn timehist<E: From<ReadError>>(
    recording: &Recording,
    options: &TimehistOptions,
    mut each: impl FnMut(&HistoryLine, &Replay, Option<&RawRecord<'_>>) -> Result<(), E>,
) -> Result<(History, SchedSummary), E> {
    let mut walk = HistoryBuilder::new(SchedSources::of(recording), options);
    let summary = read_events(recording, options.samples, |event, sample| match walk.line(event) {
        Some(line) => each(&line, &walk.history.replay, sample),
        None => Ok(()),
    })?;
    walk.history.finish();
    Ok((walk.history, summary))
}

/// Lines and summary, event by event.
#[derive(Debug)]
struct HistoryBuilder<'a> {
    options: &'a TimehistOptions,
    sources: SchedSources,
    history: History,
    /// Of each CPU: the thread that ran before it became idle.
    before_idle: Vec<Option<ThreadIndex>>,
}

impl HistoryBuilder<'_> {
    fn new(sources: SchedSources, options: &TimehistOptions) -> HistoryBuilder<'_> {
        let history = History::new(options.picks_threads(), options.idle_only);
        HistoryBuilder { options, sources, history, before_idle: Vec::new() }
    }

    fn line(&mut self, event: &SchedEvent) -> Option<HistoryLine> {
        let step = self.history.replay.apply(event);
        let line = |thread, kind| Some(HistoryLine { time_ns: event.time_ns, cpu: event.cpu, thread, kind });
        match (step, event.kind) {
            (Step::Switched { out: Some(out), .. }, SchedEventKind::Switch { next, .. }) => {
                let (time_ns, times) = self.left(event, &out)?;
                let kind = HistoryKind::Left {
                    times,
                    state: out.state,
                    priority_in: out.priority_in,
                    priority: out.priority,
                    next: next.map(|next| (next.name, next.tid)),
                };
                Some(HistoryLine { time_ns, cpu: event.cpu, thread: Some(out.thread), kind })
            }
            (Step::Woken { thread, waker, .. }, SchedEventKind::Wakeup { step, in_interrupt, .. }) => {
                let is_repeated = step == WakeupStep::Enqueued && self.sources.waking;
                if is_repeated || !self.shows_either(event, thread, waker) {
                    return None;
                }
                line(waker, HistoryKind::WokeUp { woken: thread, in_interrupt })
            }
            (Step::Migrated { thread, mover }, SchedEventKind::Migrate { from_cpu, to_cpu, .. }) => {
                self.history.moved(thread);
                if !self.shows_either(event, thread, mover) {
                    return None;
                }
                line(mover, HistoryKind::Moved { moved: thread, from_cpu, to_cpu })
            }
            (_, SchedEventKind::Lost { records }) => line(None, HistoryKind::Lost { records }),
            _ => None,
        }
    }

    /// As perf: an event of two threads is shown if either was asked for.
    fn shows_either(&self, event: &SchedEvent, first: ThreadIndex, second: Option<ThreadIndex>) -> bool {
        let has = |thread| self.options.has_thread(&self.history.replay, thread, -1);
        !self.options.idle_only
            && self.options.has_cpu(event.cpu)
            && self.options.has_time(event.time_ns)
            && (has(first) || second.is_some_and(has))
    }

    /// The times of a thread that left its CPU, cut to the span that was asked for, and when it
    /// left within it; added to the summary.
    fn left(&mut self, event: &SchedEvent, out: &Stint) -> Option<(u64, TurnTimes)> {
        let (from, until) = self.options.time.unwrap_or((0, u64::MAX));
        let now = event.time_ns.min(until);
        self.history.saw(now, event.time_ns, (from, until));
        if !self.options.has_thread(&self.history.replay, out.thread, out.priority) {
            return None;
        }
        let before = self.remember_before_idle(event, out);
        if event.time_ns < from {
            return None;
        }
        let got = out.from_ns.map(|got| got.max(from));
        // As perf: with an end, what is not known to have begun before it does not count.
        if until != u64::MAX && got.is_none_or(|got| got > until) {
            return None;
        }
        let is_idle = self.history.replay.thread(out.thread).is_idle();
        if self.options.idle_only && !is_idle {
            return None;
        }
        let times = TurnTimes::of(got, now, &out.wait);
        if !self.options.has_cpu(event.cpu) {
            return None;
        }
        self.history.left(out.thread, &times);
        if let Some(before) = before.filter(|_| self.options.idle_only) {
            self.history.left(before, &times);
        }
        Some((now, times))
    }

    /// Notes what ran before a CPU became idle; for the idle task itself, what that was.
    fn remember_before_idle(&mut self, event: &SchedEvent, out: &Stint) -> Option<ThreadIndex> {
        let cpu = event.cpu.filter(|_| self.options.idle_only)? as usize;
        if self.before_idle.len() <= cpu {
            self.before_idle.resize(cpu + 1, None);
        }
        if self.history.replay.thread(out.thread).is_idle() {
            return self.before_idle[cpu].take();
        }
        self.before_idle[cpu] = Some(out.thread);
        None
    }
}
