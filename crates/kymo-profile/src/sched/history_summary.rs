//! What a history adds up to: times of each thread, and of the idle CPUs.
use super::event::OutState;
use super::replay::{Replay, ReplayThread, ThreadIndex, Wait};

/// The times of one turn of a thread on a CPU, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// It ran so long; 0 where its beginning is not known.
    pub run_ns: u64,
    /// It had been away from a CPU so long before.
    pub wait_ns: u64,
    /// Why it was away.
    pub away: Away,
    /// Of that, it had been runnable so long.
    pub delay_ns: u64,
    /// Of that, it had been runnable so long before it was moved to another CPU.
    pub before_migration_ns: u64,
}

/// Why a thread was away from a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Away {
    /// It slept.
    #[default]
    Slept,
    /// It waited for a device, or whatever does not let it be woken up.
    WaitedForIo,
    /// It lost the CPU.
    Preempted,
}

impl Away {
    fn of(state: OutState) -> Away {
        match state.letter {
            'R' => Away::Preempted,
            'D' => Away::WaitedForIo,
            _ => Away::Slept,
        }
    }
}

impl TurnTimes {
    /// The times of a thread that got a CPU after `wait`, and left it `now`.
    pub(super) fn of(got_ns: Option<u64>, now: u64, wait: &Wait) -> TurnTimes {
        let Some(got) = got_ns else { return TurnTimes::default() };
        let since = |from: u64| got.saturating_sub(from);
        let migrated =
            wait.migrated_ns.zip(wait.ready_ns).filter(|(moved, ready)| moved > ready && *moved < got);
        TurnTimes {
            run_ns: now.saturating_sub(got),
            wait_ns: wait.off.map_or(0, |(off, _)| since(off)),
            away: wait.off.map_or(Away::Slept, |(_, state)| Away::of(state)),
            delay_ns: wait.ready_ns.map_or(0, since),
            before_migration_ns: migrated.map_or(0, |(moved, ready)| moved - ready),
        }
    }
}

/// All turns of a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadTimes {
    /// Turns on a CPU.
    pub turns: u64,
    /// Sums, in ns.
    pub run_ns: u64,
    /// Time asleep.
    pub sleep_ns: u64,
    /// Time waiting for a device.
    pub iowait_ns: u64,
    /// Time away after it had lost the CPU.
    pub preempted_ns: u64,
    /// Time runnable.
    pub delay_ns: u64,
    /// Time runnable before a move.
    pub before_migration_ns: u64,
    /// The shortest turn.
    pub min_run_ns: u64,
    /// The longest turn.
    pub max_run_ns: u64,
    /// How often it was moved to another CPU.
    pub migrations: u64,
    mean: f64,
    squares: f64,
}

impl ThreadTimes {
    fn add(&mut self, times: &TurnTimes) {
        let run = times.run_ns;
        self.min_run_ns = if self.turns == 0 { run } else { self.min_run_ns.min(run) };
        self.max_run_ns = self.max_run_ns.max(run);
        self.turns += 1;
        let away = match times.away {
            Away::Slept => &mut self.sleep_ns,
            Away::WaitedForIo => &mut self.iowait_ns,
            Away::Preempted => &mut self.preempted_ns,
        };
        *away = away.saturating_add(times.wait_ns);
        self.run_ns = self.run_ns.saturating_add(run);
        self.delay_ns = self.delay_ns.saturating_add(times.delay_ns);
        self.before_migration_ns = self.before_migration_ns.saturating_add(times.before_migration_ns);
        let delta = run as f64 - self.mean;
        self.mean += delta / self.turns as f64;
        self.squares += delta * (run as f64 - self.mean);
    }

    /// The mean turn, in ns.
    pub fn mean_run_ns(&self) -> u64 {
        self.mean as u64
    }

    /// The standard error of the mean turn, in percent of it.
    pub fn run_error_percent(&self) -> f64 {
        if self.turns < 2 || self.mean == 0.0 {
            return 0.0;
        }
        let turns = self.turns as f64;
        100.0 * (self.squares / (turns - 1.0) / turns).sqrt() / self.mean
    }
}

/// What a history added up to.
#[derive(Debug)]
pub struct History {
    /// The threads, and their last states.
    pub replay: Replay,
    /// Threads were picked: times of idle CPUs are not those of the whole.
    pub is_partial: bool,
    /// Only idle times count: those of a thread are of the CPU after it.
    pub idle_only: bool,
    times: Vec<ThreadTimes>,
    first_ns: Option<u64>,
    last_ns: u64,
}

/// The sums of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryTotals {
    /// Threads that had a turn.
    pub tasks: u64,
    /// Turns of them, and of idle CPUs.
    pub switches: u64,
    /// Time in which they ran.
    pub run_ns: u64,
    /// From the first switch to the last.
    pub elapsed_ns: u64,
}

impl History {
    pub(super) fn new(is_partial: bool, idle_only: bool) -> History {
        let replay = Replay::default();
        History { replay, is_partial, idle_only, times: Vec::new(), first_ns: None, last_ns: 0 }
    }

    /// A switch at `now`, cut to the span.
    pub(super) fn saw(&mut self, now: u64, real: u64, (from, until): (u64, u64)) {
        if self.first_ns.is_none() && now >= from {
            self.first_ns = Some(now);
        }
        // As perf: a switch behind the end closes the history at the end.
        if real <= until || now == until {
            self.last_ns = self.last_ns.max(now);
        }
    }

    pub(super) fn left(&mut self, thread: ThreadIndex, times: &TurnTimes) {
        self.of(thread).add(times);
    }

    pub(super) fn moved(&mut self, thread: ThreadIndex) {
        self.of(thread).migrations += 1;
    }

    fn of(&mut self, thread: ThreadIndex) -> &mut ThreadTimes {
        if self.times.len() <= thread.at() {
            self.times.resize(thread.at() + 1, ThreadTimes::default());
        }
        &mut self.times[thread.at()]
    }

    /// Every thread gets times, if only zeros.
    pub(super) fn finish(&mut self) {
        self.times.resize(self.replay.threads().len(), ThreadTimes::default());
    }

    /// The threads that had a turn, without idle ones; by run time, largest first.
    pub fn threads(&self) -> Vec<(&ReplayThread, &ThreadTimes)> {
        let all = self.replay.threads().iter().zip(&self.times);
        let mut threads: Vec<_> =
            all.filter(|(thread, times)| !thread.is_idle() && times.turns > 0).collect();
        threads.sort_by_key(|(thread, times)| (std::cmp::Reverse(times.run_ns), thread.tid));
        threads
    }

    /// The idle times of each CPU that was seen; none where it was never idle.
    pub fn idle(&self) -> impl Iterator<Item = (u32, Option<&ThreadTimes>)> {
        (0..self.replay.cpu_count() as u32).map(|cpu| {
            let idle = self.replay.idle_thread(cpu).and_then(|thread| self.times.get(thread.at()));
            (cpu, idle.filter(|idle| idle.turns > 0))
        })
    }

    /// The sums.
    pub fn totals(&self) -> HistoryTotals {
        let mut totals = HistoryTotals {
            elapsed_ns: self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns)),
            ..HistoryTotals::default()
        };
        for (_, times) in self.threads() {
            totals.tasks += 1;
            totals.switches += times.turns;
            totals.run_ns = totals.run_ns.saturating_add(times.run_ns);
        }
        totals.switches += self.idle().filter_map(|(_, idle)| idle).map(|idle| idle.turns).sum::<u64>();
        totals
    }
}
