//! Totals of each CPU and each thread: switches, wake-ups, moves, and time in the run queues.
use super::event::{SchedEvent, SchedEventKind, WakeupStep};
use super::replay::{Replay, Step, ThreadIndex};
use super::stream::{SchedSources, SchedSummary, read_events};
use kymo_data::{ReadError, Recording};
use serde::Serialize;

/// Totals of a CPU, of a thread, or of all. The names are those of `/proc/schedstat` where the same
/// thing is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SchedTotals {
    /// Switches away from a task that waits for something: `voluntary_ctxt_switches` of a thread.
    pub voluntary: u64,
    /// Switches away from a task that could have gone on: `nonvoluntary_ctxt_switches`.
    pub involuntary: u64,
    /// Switches to the idle task; 0 for a thread.
    pub sched_goidle: u64,
    /// Wake-ups: by this CPU, or of this thread.
    pub ttwu_count: u64,
    /// Those to the waker's own CPU.
    pub ttwu_local: u64,
    /// Those that an interrupt did.
    pub from_interrupts: u64,
    /// Moves from another CPU to this one, or of this thread.
    pub migrations: u64,
    /// Time in which tasks ran, in ns.
    pub rq_cpu_time_ns: u64,
    /// Time in which tasks were runnable before they ran here, in ns.
    pub run_delay_ns: u64,
    /// How often a task got the CPU.
    pub pcount: u64,
}

impl SchedTotals {
    /// All switches of a CPU but those away from its idle task; all of a thread.
    pub fn switches(&self) -> u64 {
        self.voluntary + self.involuntary
    }

    fn add(&mut self, other: &SchedTotals) {
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.sched_goidle += other.sched_goidle;
        self.ttwu_count += other.ttwu_count;
        self.ttwu_local += other.ttwu_local;
        self.from_interrupts += other.from_interrupts;
        self.migrations += other.migrations;
        self.rq_cpu_time_ns = self.rq_cpu_time_ns.saturating_add(other.rq_cpu_time_ns);
        self.run_delay_ns = self.run_delay_ns.saturating_add(other.run_delay_ns);
        self.pcount += other.pcount;
    }
}

/// Totals of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadTotals {
    /// Its name.
    pub task: String,
    /// Its number.
    pub tid: i32,
    /// Its process, if known.
    pub pid: Option<i32>,
    /// Its totals.
    #[serde(flatten)]
    pub totals: SchedTotals,
}

/// Totals of one CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuTotals {
    /// The CPU.
    pub cpu: u32,
    /// Its totals.
    #[serde(flatten)]
    pub totals: SchedTotals,
}

/// Totals of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SchedStats {
    /// From the first switch to the last, in ns.
    pub elapsed_ns: u64,
    /// Of all CPUs.
    pub all: SchedTotals,
    /// Of each CPU that was seen.
    pub cpus: Vec<CpuTotals>,
    /// Of each thread that did anything, without the idle ones; by time in run queues, largest
    /// first.
    pub threads: Vec<ThreadTotals>,
    /// Switches away from a thread that had not got the CPU.
    pub mismatched_switches: u64,
}

/// Reads the totals of a recording.
///
/// # Errors
/// When the recording cannot be read at all.
pub fn totals(recording: &Recording) -> Result<(SchedStats, SchedSummary), ReadError> {
    let mut counter =
        TotalsCounter { waking: SchedSources::of(recording).waking, ..TotalsCounter::default() };
    let summary = read_events(recording, false, |event, _| -> Result<(), ReadError> {
        counter.add(event);
        Ok(())
    })?;
    Ok((counter.finish(), summary))
}

/// Counts, event by event.
#[derive(Debug, Default)]
struct TotalsCounter {
    /// Wake-ups are those of `sched_waking`.
    waking: bool,
    replay: Replay,
    threads: Vec<SchedTotals>,
    cpus: Vec<Option<SchedTotals>>,
    /// The newest wake-up of each CPU, until something else happens there: the kernel decides after
    /// `sched_waking` where the task shall run, and tells it as a move.
    waking_now: Vec<Option<(ThreadIndex, bool)>>,
    span: Option<(u64, u64)>,
}

impl TotalsCounter {
    fn thread(&mut self, thread: ThreadIndex) -> &mut SchedTotals {
        if self.threads.len() <= thread.at() {
            self.threads.resize(thread.at() + 1, SchedTotals::default());
        }
        &mut self.threads[thread.at()]
    }

    fn cpu(&mut self, cpu: u32) -> &mut SchedTotals {
        let at = cpu as usize;
        if self.cpus.len() <= at {
            self.cpus.resize(at + 1, None);
            self.waking_now.resize(at + 1, None);
        }
        self.cpus[at].get_or_insert_default()
    }

    /// Counts for the thread and the CPU.
    fn count(&mut self, thread: ThreadIndex, cpu: Option<u32>, each: impl Fn(&mut SchedTotals)) {
        each(self.thread(thread));
        if let Some(cpu) = cpu {
            each(self.cpu(cpu));
        }
    }

    fn add(&mut self, event: &SchedEvent) {
        let now = event.time_ns;
        if matches!(event.kind, SchedEventKind::Switch { .. }) {
            let (first, last) = self.span.unwrap_or((now, now));
            self.span = Some((first.min(now), last.max(now)));
        }
        match self.replay.apply(event) {
            Step::Switched { out, into } => {
                if let Some(cpu) = event.cpu {
                    self.cpu(cpu);
                    self.waking_now[cpu as usize] = None;
                }
                if let Some(out) = out.filter(|out| !self.replay.thread(out.thread).is_idle()) {
                    let ran = out.from_ns.map_or(0, |from| now.saturating_sub(from));
                    self.count(out.thread, event.cpu, |totals| {
                        let waits = !out.state.is_runnable() && !out.state.preempted;
                        totals.voluntary += u64::from(waits);
                        totals.involuntary += u64::from(!waits);
                        totals.rq_cpu_time_ns = totals.rq_cpu_time_ns.saturating_add(ran);
                    });
                }
                match into {
                    Some(into) if self.replay.thread(into.thread).is_idle() => {
                        if let Some(cpu) = event.cpu {
                            self.cpu(cpu).sched_goidle += 1;
                        }
                    }
                    Some(into) => {
                        let delay = into.wait.ready_ns.map_or(0, |ready| now.saturating_sub(ready));
                        self.count(into.thread, event.cpu, |totals| {
                            totals.run_delay_ns = totals.run_delay_ns.saturating_add(delay);
                            totals.pcount += 1;
                        });
                    }
                    None => {}
                }
            }
            Step::Woken { thread, .. } => self.woken(event, thread),
            Step::Migrated { thread, .. } => self.moved(event, thread),
            Step::Accounted { .. } | Step::Other => {}
        }
    }

    fn woken(&mut self, event: &SchedEvent, thread: ThreadIndex) {
        let SchedEventKind::Wakeup { step, target_cpu, in_interrupt, .. } = event.kind else { return };
        let counts = match step {
            WakeupStep::Waking => true,
            WakeupStep::Enqueued => !self.waking,
            // The kernel does not count the first wake-up of a new task.
            WakeupStep::New => false,
        };
        if !counts {
            return;
        }
        let is_local = target_cpu.is_some() && target_cpu == event.cpu;
        self.count(thread, event.cpu, |totals| {
            totals.ttwu_count += 1;
            totals.ttwu_local += u64::from(is_local);
            totals.from_interrupts += u64::from(in_interrupt);
        });
        if let Some(cpu) = event.cpu {
            self.waking_now[cpu as usize] = Some((thread, is_local));
        }
    }

    fn moved(&mut self, event: &SchedEvent, thread: ThreadIndex) {
        let SchedEventKind::Migrate { to_cpu, .. } = event.kind else { return };
        self.count(thread, Some(to_cpu), |totals| totals.migrations += 1);
        let Some(cpu) = event.cpu else { return };
        self.cpu(cpu);
        if let Some((woken, was_local)) = self.waking_now[cpu as usize].take()
            && woken == thread
        {
            let is_local = to_cpu == cpu;
            self.count(thread, event.cpu, |totals| {
                totals.ttwu_local = totals.ttwu_local - u64::from(was_local) + u64::from(is_local);
            });
        }
    }

    fn finish(mut self) -> SchedStats {
        self.threads.resize(self.replay.threads().len(), SchedTotals::default());
        let all = self.replay.threads().iter().zip(&self.threads);
        let mut threads: Vec<ThreadTotals> = all
            .filter(|(thread, totals)| !thread.is_idle() && **totals != SchedTotals::default())
            .map(|(thread, totals)| ThreadTotals {
                task: thread.shown_name(),
                tid: thread.tid,
                pid: thread.pid,
                totals: *totals,
            })
            .collect();
        threads.sort_by_key(|row| (std::cmp::Reverse(row.totals.run_delay_ns), row.tid));
        let cpus = (0..).zip(&self.cpus);
        let cpus: Vec<CpuTotals> =
            cpus.filter_map(|(cpu, totals)| Some(CpuTotals { cpu, totals: (*totals)? })).collect();
        let mut all = SchedTotals::default();
        cpus.iter().for_each(|row| all.add(&row.totals));
        SchedStats {
            elapsed_ns: self.span.map_or(0, |(first, last)| last - first),
            all,
            cpus,
            threads,
            mismatched_switches: self.replay.mismatched_switches,
        }
    }
}
