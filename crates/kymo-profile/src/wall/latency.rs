//! The time that all threads together took, divided among them: what the whole waited for.
//!
//! ```text
//!  at each moment   threads that run share it; without any
//!                   those that are ready; without any
//!                   those whose waits an interrupt ends, or nobody knows what; without any
//!                   those that wait for threads; without any
//!                   idle ones
//! ```
//! A row says how long its thread ran and waited shortly since the row before, but not in which
//! order: there each counts as a part of a thread.
use super::{End, PARTS, SHORT_PARTS, State, Wall};

/// A thread is in one of these at a moment; one of a lower number decides.
const CLASSES: usize = 5;
const READY: usize = 1;
const WAITS: usize = 2;
const WAITS_FOR_THREAD: usize = 3;
const IDLE: usize = 4;

/// Fewer threads than this are none: what is left of sums that are not exact.
const NOBODY: f64 = 1e-6;

/// A part of a row, of those of [`Wall::parts`]: a part of a thread was in a class all the time.
struct Share {
    row: usize,
    part: usize,
    class: usize,
    begin_ns: u64,
    end_ns: u64,
    /// How much of the thread.
    threads: f64,
}

impl Wall {
    /// From here on times of threads, places and flame graphs are of the time that passed: of each
    /// moment the threads have equal parts whose doing decides when it ends.
    pub fn weigh_by_latency(&mut self) {
        self.latencies = Some(self.latencies());
    }

    /// Whether times are of the time that passed.
    pub fn is_by_latency(&self) -> bool {
        self.latencies.is_some()
    }

    fn latencies(&self) -> Vec<[u64; PARTS]> {
        let shares: Vec<Share> = (0..self.waits.len()).flat_map(|row| self.shares(row)).collect();
        // When something begins or ends: the moment, the share, and whether it begins.
        let mut changes: Vec<(u64, usize, bool)> = (shares.iter().enumerate())
            .flat_map(|(at, share)| [(share.begin_ns, at, true), (share.end_ns, at, false)])
            .collect();
        changes.sort_unstable();
        let mut found = vec![[0.0; PARTS]; self.waits.len()];
        let mut threads = [0.0_f64; CLASSES];
        // What one thread of a class has had of the time until now.
        let mut had = [0.0_f64; CLASSES];
        let mut now = changes.first().map_or(0, |(time, ..)| *time);
        for (time, at, begins) in changes {
            let mut rest = 1.0_f64;
            for (threads, had) in threads.iter().zip(&mut had).filter(|(threads, _)| **threads > NOBODY) {
                let taken = threads.min(rest);
                *had += taken / threads * (time - now) as f64;
                rest -= taken;
            }
            now = time;
            let Share { row, part, class, threads: of_thread, .. } = shares[at];
            let sign = if begins { 1.0 } else { -1.0 };
            threads[class] += sign * of_thread;
            found[row][part] -= sign * of_thread * had[class];
        }
        found.into_iter().map(|row| row.map(|time| time.round().max(0.0) as u64)).collect()
    }

    /// The parts of a row, in time.
    fn shares(&self, row: usize) -> impl Iterator<Item = Share> {
        let wait = &self.waits[row];
        let (begun, woken) = super::needed::span(wait);
        let mixed = [wait.run_ns, wait.all_short_ns(), wait.all_short_runnable_ns()];
        let all = mixed.iter().fold(0_u64, |sum, time| sum.saturating_add(*time));
        let waits = match (self.is_idle(row), self.end(row)) {
            (true, _) => IDLE,
            (false, End::Thread(..)) => WAITS_FOR_THREAD,
            (false, _) => WAITS,
        };
        let of_short = if self.is_idle(row) { IDLE } else { WAITS };
        let of_blocked =
            if matches!(self.state(row), State::Runnable | State::Throttled) { READY } else { waits };
        let part = |time: u64| time as f64 / all.max(1) as f64;
        let before = begun.saturating_sub(all);
        let own = [
            (0, 0, before, begun, part(wait.run_ns)),
            (1, of_blocked, begun, woken, 1.0),
            (2, READY, woken, wait.time_ns, 1.0),
        ];
        let short = wait.short().map(|place| (part(place.blocked_ns), part(place.runnable_ns)));
        let short = short.into_iter().zip(SHORT_PARTS).flat_map(move |(place, (waited, ready))| {
            [(waited, of_short, before, begun, place.0), (ready, READY, before, begun, place.1)]
        });
        let share = move |(part, class, begin_ns, end_ns, threads)| {
            let is_any = begin_ns < end_ns && threads > 0.0;
            is_any.then_some(Share { row, part, class, begin_ns, end_ns, threads })
        };
        own.into_iter().chain(short).filter_map(share)
    }
}
