//! Counts as callers read them.
use super::counter::Counter;
use std::time::Duration;

/// The numbers of a task, or the sums of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// How often its future was polled.
    pub polls: u64,
    /// How often a thread began to run it: polls, scopes, and switches to it.
    pub switches: u64,
    /// How many of these were on another thread than the one before.
    pub migrations: u64,
    /// Polls that ran without being counted, because counting was refused: the counts lack them.
    /// See [`first_problem`](super::first_problem).
    pub uncounted: u64,
    /// What else was counted. `None`: not known, because the group keeps sums only, or because some
    /// thread could not count it.
    pub counts: Vec<(Counter, Option<u64>)>,
}

impl Reading {
    /// One of the counts; `None` if it was not counted, or is not known.
    pub fn get(&self, counter: Counter) -> Option<u64> {
        self.counts.iter().find(|(of, _)| *of == counter).and_then(|(_, count)| *count)
    }

    /// The CPU time.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.get(Counter::CpuTime).map(Duration::from_nanos)
    }

    /// The sum with another, of the counts that either has.
    pub(super) fn with(mut self, other: &Reading) -> Reading {
        let mut own = self.own_numbers();
        own.iter_mut().zip(other.own_numbers()).for_each(|(sum, other)| *sum += other);
        [self.polls, self.switches, self.migrations, self.uncounted] = own;
        for &(counter, count) in &other.counts {
            match self.counts.iter_mut().find(|(of, _)| *of == counter) {
                Some((_, sum)) => *sum = sum.zip(count).map(|(sum, count)| sum.wrapping_add(count)),
                None => self.counts.push((counter, count)),
            }
        }
        self
    }

    /// Polls, switches, migrations, uncounted polls.
    pub(super) fn own_numbers(&self) -> [u64; 4] {
        [self.polls, self.switches, self.migrations, self.uncounted]
    }
}

/// A task of a group, as [`Group::tasks`](super::Group::tasks) lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReading {
    /// Its number, unique in this process.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Whether a thread runs it just now.
    pub running: bool,
    /// Its numbers.
    pub reading: Reading,
}
