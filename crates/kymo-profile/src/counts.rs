//! Counts of samples, and what the samples that are counted together share.
use crate::chains::ChainId;
use crate::extra::ExtraId;
use crate::timeline::CommId;
use rustc_hash::FxHashMap;

/// One [`Count::latency`] is this part of a period that one thread ran alone, so that small periods
/// are not rounded away.
const LATENCY_SCALE: u64 = 256;

/// What tells samples apart, beyond event, thread name and stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dims {
    /// Process id.
    pub pid: bool,
    /// Thread id (and process id).
    pub tid: bool,
    /// CPU.
    pub cpu: bool,
    /// Time in steps of so many ns; 0 does not tell times apart.
    pub time_quantum_ns: u64,
    /// The raw bytes of a tracepoint.
    pub raw: bool,
    /// Cgroup.
    pub cgroup: bool,
    /// How many threads ran; of recordings with context switches.
    pub parallelism: bool,
}

/// Counts of one group of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Samples.
    pub samples: u64,
    /// Sum of their periods, in the event's unit.
    pub period: u64,
    /// Sum of their periods, each divided by how many threads ran: what it added to the time that
    /// the whole took. In 256ths of the event's unit; 0 unless asked for.
    pub latency: u64,
}

impl Count {
    /// One sample, taken while so many threads ran.
    #[inline]
    pub(crate) fn of_sample(period: u64, parallelism: u32, latency: bool) -> Count {
        let latency = match latency {
            true => period.saturating_mul(LATENCY_SCALE) / u64::from(parallelism.max(1)),
            false => 0,
        };
        Count { samples: 1, period, latency }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.samples = self.samples.saturating_add(other.samples);
        self.period = self.period.saturating_add(other.period);
        self.latency = self.latency.saturating_add(other.latency);
    }
}

/// What the samples of a group share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    /// Index of the event.
    pub event: u32,
    /// Name of the thread.
    pub comm: CommId,
    /// Process, 0 unless asked for.
    pub pid: i32,
    /// Thread, 0 unless asked for.
    pub tid: i32,
    /// CPU, 0 unless asked for.
    pub cpu: u32,
    /// What else was asked for, 0 unless something was.
    pub extra: ExtraId,
    /// Raw stack.
    pub chain: ChainId,
}

/// Counts by what the counted samples share.
pub type Groups = FxHashMap<GroupKey, Count>;

/// Counts that rows are added to one by one. Most stacks have one group, which has a place by the
/// number of the stack: no hash, and one place in memory.
#[derive(Debug, Default)]
pub(crate) struct GroupCounter {
    /// The first group of each stack.
    first: Vec<(GroupKey, Count)>,
    others: Groups,
}

impl GroupCounter {
    /// Adds to the count of a group.
    #[inline]
    pub(crate) fn add(&mut self, key: GroupKey, count: Count) {
        let next = self.first.len();
        match self.first.get_mut(key.chain as usize) {
            Some((known, sum)) if *known == key => *sum += count,
            // Stacks are numbered as they are first seen.
            None if key.chain as usize == next => self.first.push((key, count)),
            _ => *self.others.entry(key).or_default() += count,
        }
    }
}

impl IntoIterator for GroupCounter {
    type Item = (GroupKey, Count);
    type IntoIter = std::iter::Chain<
        std::vec::IntoIter<(GroupKey, Count)>,
        std::collections::hash_map::IntoIter<GroupKey, Count>,
    >;

    /// All groups; one may come in two parts where stacks are not numbered as they are first seen.
    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that groups have the counts of a plain table, whatever order stacks come in.
        #[test]
        fn as_a_plain_table(rows in proptest::collection::vec((0..6u32, 0..3u32, 0..9u64), 0..60)) {
            let (mut counter, mut table) = (GroupCounter::default(), Groups::default());
            for (chain, event, period) in rows {
                let comm = CommId::unnamed(1);
                let key = GroupKey { event, comm, pid: 0, tid: 0, cpu: 0, extra: 0, chain };
                let count = Count::of_sample(period, 1, false);
                counter.add(key, count);
                *table.entry(key).or_default() += count;
            }
            let mut found = Groups::default();
            counter.into_iter().for_each(|(key, count)| *found.entry(key).or_default() += count);
            prop_assert_eq!(found, table);
        }
    }
}
