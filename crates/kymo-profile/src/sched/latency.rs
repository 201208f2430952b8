//! How long tasks waited for a CPU: a row for each thread, or for each name.
use super::event::{SchedEvent, SchedEventKind};
use super::replay::{Arrival, Replay, ReplayThread, Step, ThreadIndex, ThreadState};
use super::stream::{SchedSources, SchedSummary, read_events};
use kymo_data::{ReadError, Recording};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A key that rows are sorted by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyKey {
    /// Run time.
    Runtime,
    /// How often they got a CPU.
    Switch,
    /// Mean delay.
    Avg,
    /// Longest delay.
    Max,
    /// Number of the thread.
    Pid,
}

impl LatencyKey {
    /// perf's order.
    pub const DEFAULT: [LatencyKey; 4] =
        [LatencyKey::Avg, LatencyKey::Max, LatencyKey::Switch, LatencyKey::Runtime];

    /// All keys with their words.
    pub const ALL: [(&'static str, LatencyKey); 5] = [
        ("runtime", LatencyKey::Runtime),
        ("switch", LatencyKey::Switch),
        ("avg", LatencyKey::Avg),
        ("max", LatencyKey::Max),
        ("pid", LatencyKey::Pid),
    ];

    fn compare(self, a: &LatencyRow, b: &LatencyRow) -> Ordering {
        match self {
            LatencyKey::Runtime => a.runtime_ns.cmp(&b.runtime_ns),
            LatencyKey::Switch => a.switches.cmp(&b.switches),
            LatencyKey::Avg => a.average_delay_ns().cmp(&b.average_delay_ns()),
            LatencyKey::Max => a.max_delay_ns.cmp(&b.max_delay_ns),
            LatencyKey::Pid => a.tid.cmp(&b.tid),
        }
    }
}

/// What is asked of a recording.
#[derive(Clone, Debug)]
pub struct LatencyOptions {
    /// A row for each thread, not for each name.
    pub per_thread: bool,
    /// The order of rows.
    pub keys: Vec<LatencyKey>,
}

/// Delays of one thread, or of all threads of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LatencyRow {
    /// The name.
    pub task: String,
    /// The thread; of several threads that with the highest number.
    pub tid: i32,
    /// How many threads it is.
    pub threads: u64,
    /// Time on a CPU.
    pub runtime_ns: u64,
    /// How often a thread got a CPU after a wait that is known.
    pub switches: u64,
    /// Sum of the delays: from being runnable to running.
    pub delay_ns: u64,
    /// The longest delay.
    pub max_delay_ns: u64,
    /// When that began.
    pub max_delay_start_ns: u64,
    /// When that ended.
    pub max_delay_end_ns: u64,
}

impl LatencyRow {
    /// The mean delay, rounded down as perf rounds it.
    pub fn average_delay_ns(&self) -> Option<u64> {
        self.delay_ns.checked_div(self.switches)
    }

    fn new(thread: &ReplayThread) -> LatencyRow {
        LatencyRow {
            task: thread.shown_name(),
            tid: thread.tid,
            threads: 1,
            runtime_ns: 0,
            switches: 0,
            delay_ns: 0,
            max_delay_ns: 0,
            max_delay_start_ns: 0,
            max_delay_end_ns: 0,
        }
    }

    fn absorb(&mut self, other: LatencyRow) {
        self.threads += other.threads;
        self.runtime_ns = self.runtime_ns.saturating_add(other.runtime_ns);
        self.switches += other.switches;
        self.delay_ns = self.delay_ns.saturating_add(other.delay_ns);
        if self.max_delay_ns < other.max_delay_ns {
            self.max_delay_ns = other.max_delay_ns;
            (self.max_delay_start_ns, self.max_delay_end_ns) =
                (other.max_delay_start_ns, other.max_delay_end_ns);
        }
    }
}

/// The delays of a recording.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// The kernel's account of run times was recorded; otherwise they are the times between
    /// switches.
    pub kernel_runtimes: bool,
    /// The rows of tasks that got a CPU, sorted. The idle tasks are left out.
    pub rows: Vec<LatencyRow>,
    /// Sum of their run times.
    pub runtime_ns: u64,
    /// Sum of their switches.
    pub switches: u64,
    /// Switches away from a thread that had not got the CPU.
    pub mismatched_switches: u64,
}

/// Counts of a thread.
#[derive(Clone, Debug, Default)]
struct Delays {
    switched_ns: u64,
    accounted_ns: u64,
    switches: u64,
    delay_ns: u64,
    max: Option<(u64, u64)>,
}

impl Delays {
    /// As perf: of delays of one length the first is the longest, and no delay at all is none.
    fn add(&mut self, from_ns: u64, until_ns: u64) {
        let delay = until_ns.saturating_sub(from_ns);
        self.switches += 1;
        self.delay_ns = self.delay_ns.saturating_add(delay);
        if delay > self.max.map_or(0, |(from, until)| until - from) {
            self.max = Some((from_ns, until_ns));
        }
    }

    fn row(&self, thread: &ReplayThread, kernel_runtimes: bool) -> LatencyRow {
        let (from, until) = self.max.unwrap_or((0, 0));
        LatencyRow {
            runtime_ns: if kernel_runtimes { self.accounted_ns } else { self.switched_ns },
            switches: self.switches,
            delay_ns: self.delay_ns,
            max_delay_ns: until - from,
            max_delay_start_ns: from,
            max_delay_end_ns: until,
            ..LatencyRow::new(thread)
        }
    }
}

/// Collects delays, event by event.
#[derive(Debug, Default)]
struct LatencyCollector {
    replay: Replay,
    delays: Vec<Delays>,
}

impl LatencyCollector {
    fn of(&mut self, thread: ThreadIndex) -> &mut Delays {
        let needed = thread.at() + 1;
        if self.delays.len() < needed {
            self.delays.resize(needed, Delays::default());
        }
        &mut self.delays[thread.at()]
    }

    fn add(&mut self, event: &SchedEvent) {
        let now = event.time_ns;
        match self.replay.apply(event) {
            Step::Switched { out, into } => {
                if let Some(out) = out {
                    let ran = out.from_ns.map_or(0, |from| now.saturating_sub(from));
                    let delays = self.of(out.thread);
                    delays.switched_ns = delays.switched_ns.saturating_add(ran);
                }
                if let Some(into) = into {
                    self.got_cpu(&into, now);
                }
            }
            Step::Accounted { thread } => {
                if let SchedEventKind::Runtime { runtime_ns, .. } = event.kind {
                    let delays = self.of(thread);
                    delays.accounted_ns = delays.accounted_ns.saturating_add(runtime_ns);
                }
            }
            Step::Woken { thread, .. } => _ = self.of(thread),
            Step::Migrated { .. } | Step::Other => {}
        }
    }

    /// As perf: the first that is seen of a thread, when it gets a CPU, is a delay of 0.
    fn got_cpu(&mut self, into: &Arrival, now: u64) {
        let ready = if into.is_first { Some(now) } else { into.wait.ready_ns };
        if let Some(ready) = ready {
            self.of(into.thread).add(ready, now);
        }
    }

    fn finish(self, sources: SchedSources, options: &LatencyOptions) -> Latency {
        let seen = self.replay.threads().iter().zip(&self.delays).filter(|(thread, delays)| {
            !thread.is_idle() && (thread.state != ThreadState::Unknown || delays.accounted_ns > 0)
        });
        let mut rows: Vec<LatencyRow> =
            seen.map(|(thread, delays)| delays.row(thread, sources.runtimes)).collect();
        // As perf: the order of rows that are equal by all keys, and of delays that are equally
        // long.
        rows.sort_by_key(|row| std::cmp::Reverse(row.tid));
        if !options.per_thread {
            rows = merged_by_name(rows);
        }
        rows.retain(|row| row.switches > 0);
        rows.sort_by(|a, b| {
            options
                .keys
                .iter()
                .map(|key| key.compare(b, a))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        Latency {
            kernel_runtimes: sources.runtimes,
            runtime_ns: rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.runtime_ns)),
            switches: rows.iter().map(|row| row.switches).sum(),
            rows,
            mismatched_switches: self.replay.mismatched_switches,
        }
    }
}

/// One row for all threads of a name, the names in falling order.
fn merged_by_name(rows: Vec<LatencyRow>) -> Vec<LatencyRow> {
    let mut merged: BTreeMap<String, LatencyRow> = BTreeMap::new();
    for row in rows {
        match merged.get_mut(&row.task) {
            Some(first) => first.absorb(row),
            None => _ = merged.insert(row.task.clone(), row),
        }
    }
    merged.into_values().rev().collect()
}

/// Reads the delays of a recording.
///
/// # Errors
/// When the recording cannot be read at all.
pub fn latency(
    recording: &Recording,
    options: &LatencyOptions,
) -> Result<(Latency, SchedSummary), ReadError> {
    let mut collector = LatencyCollector::default();
    let summary = read_events(recording, false, |event, _| -> Result<(), ReadError> {
        collector.add(event);
        Ok(())
    })?;
    Ok((collector.finish(SchedSources::of(recording), options), summary))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{event, name, switch, wake};
    use super::*;

    fn of(events: &[SchedEvent], per_thread: bool, keys: &[LatencyKey]) -> Latency {
        let mut collector = LatencyCollector::default();
        events.iter().for_each(|event| collector.add(event));
        let options = LatencyOptions { per_thread, keys: keys.to_vec() };
        collector.finish(SchedSources::default(), &options)
    }

    /// Checks that threads of one name are one row, with the longest delay of all, that a name
    /// without a delay has none, and the order of rows that are equal by their keys.
    #[test]
    fn rows() {
        let events = [
            name(7, "a"),
            name(8, "a"),
            name(9, "b"),
            name(5, "never"),
            wake(10, 0, 7),
            wake(11, 0, 8),
            wake(12, 0, 9),
            switch(20, 0, 0, 'R', 7),
            switch(30, 0, 7, 'S', 8),
            switch(40, 0, 8, 'R', 9),
            switch(46, 0, 9, 'S', 8),
        ];
        let merged = of(&events, false, &LatencyKey::DEFAULT);
        let row = &merged.rows[1];
        assert_eq!((&*row.task, row.threads, row.switches, row.delay_ns), ("a", 2, 3, 10 + 19 + 6));
        assert_eq!((row.max_delay_ns, row.max_delay_start_ns, row.max_delay_end_ns), (19, 11, 30));
        assert_eq!((row.runtime_ns, row.average_delay_ns()), (20, Some(11)));
        assert_eq!((merged.rows.len(), merged.switches), (2, 4));
        let threads = of(&events, true, &[LatencyKey::Switch]);
        let tids: Vec<i32> = threads.rows.iter().map(|row| row.tid).collect();
        assert_eq!(tids, [8, 9, 7]);
    }

    /// Checks that the first that is seen of a thread, when it gets a CPU, is a delay of 0, as in
    /// perf; but not since the kernel has accounted for it, as in perf: it may have slept.
    #[test]
    fn first_seen() {
        let accounted = event(3, 0, SchedEventKind::Runtime { tid: 8, runtime_ns: 2 });
        let events = [accounted, switch(5, 0, 0, 'R', 7), switch(6, 0, 7, 'S', 8)];
        let rows = of(&events, true, &[LatencyKey::Max]).rows;
        let delays: Vec<(i32, u64, u64)> =
            rows.iter().map(|row| (row.tid, row.switches, row.delay_ns)).collect();
        assert_eq!(delays, [(8, 1, 0), (7, 1, 0)]);
    }
}
