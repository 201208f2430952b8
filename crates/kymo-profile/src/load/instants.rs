//! Single samples for a timeline: all of them, or a fair part of them where there are too many.
use crate::chains::ChainId;
use crate::timeline::CommId;

/// A single sample, kept for a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant {
    /// When, ns of the recording's clock.
    pub time_ns: u64,
    /// Index of the event.
    pub event: u32,
    /// Thread.
    pub tid: i32,
    /// Its name at that time.
    pub comm: CommId,
    /// CPU it ran on, `u32::MAX` if not recorded.
    pub cpu: u32,
    /// Raw stack.
    pub chain: ChainId,
    /// What it stands for, in the event's unit.
    pub period: u64,
}

/// At most `limit` samples; one in `stride` was kept, and stands for as many.
///
/// Which ones are kept is decided by the samples themselves, not by their order: every second sample of two threads that
/// take turns would be one thread only, and which worker read what must not show in the output.
#[derive(Debug)]
pub(super) struct Instants {
    pub(super) kept: Vec<Instant>,
    pub(super) stride: u64,
    limit: usize,
}

impl Instants {
    pub(super) fn new(limit: usize) -> Instants {
        Instants { kept: Vec::new(), stride: 1, limit }
    }

    pub(super) fn add(&mut self, instant: Instant) {
        if self.holds(&instant) {
            self.kept.push(instant);
            self.fit();
        }
    }

    /// Takes over what another worker kept; `chain` tells the new number of a stack.
    pub(super) fn absorb(&mut self, other: Instants, chain: impl Fn(ChainId) -> ChainId) {
        self.stride = self.stride.max(other.stride);
        let stride = self.stride;
        self.kept.retain(|i| ticket(i).is_multiple_of(stride));
        self.kept.extend(
            other
                .kept
                .into_iter()
                .filter(|i| ticket(i).is_multiple_of(stride))
                .map(|i| Instant { chain: chain(i.chain), ..i }),
        );
        self.fit();
    }

    fn holds(&self, instant: &Instant) -> bool {
        ticket(instant).is_multiple_of(self.stride)
    }

    /// Halves the part that is kept until it fits.
    fn fit(&mut self) {
        while self.kept.len() > self.limit && self.stride < 1 << 62 {
            self.stride *= 2;
            let stride = self.stride;
            self.kept.retain(|i| ticket(i).is_multiple_of(stride));
        }
    }
}

/// A number that looks random, from what a sample is; its stack's number is not part of it, workers number differently.
fn ticket(instant: &Instant) -> u64 {
    let place = u64::from(instant.cpu) << 32 | u64::from(instant.tid as u32);
    let mixed = (instant.time_ns ^ place.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    // The low bits decide; the high ones are mixed best.
    (mixed ^ mixed >> 32) ^ u64::from(instant.event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: u64) -> Vec<Instant> {
        (0..count)
            .map(|n| Instant {
                time_ns: 1_000_000 + n * 1_000,
                event: 0,
                // Two threads that take turns.
                tid: (n % 2) as i32,
                comm: CommId::unnamed(0),
                cpu: (n % 2) as u32,
                chain: 0,
                period: 1,
            })
            .collect()
    }

    /// Checks that the part that is kept is the same however the samples were dealt out to workers.
    #[test]
    fn same_part_whoever_reads() {
        let all = samples(10_000);
        let mut one = Instants::new(1_000);
        all.iter().for_each(|i| one.add(*i));
        for workers in [2, 3, 7] {
            let mut merged = Instants::new(1_000);
            for worker in 0..workers {
                let mut own = Instants::new(1_000);
                // Blocks of 64, and the last worker is lazy.
                let mine = |n: usize| (n / 64 % (workers + 1)).min(workers - 1) == worker;
                all.iter().enumerate().filter(|(n, _)| mine(*n)).for_each(|(_, i)| own.add(*i));
                merged.absorb(own, |chain| chain);
            }
            let time = |i: &Instant| i.time_ns;
            merged.kept.sort_by_key(time);
            assert_eq!((merged.stride, &merged.kept), (one.stride, &one.kept), "{workers} workers");
        }
        assert!(one.kept.len() <= 1_000 && one.kept.len() > 400, "{}", one.kept.len());
    }

    /// Checks that threads that take turns are kept alike.
    #[test]
    fn threads_that_take_turns_are_kept_alike() {
        let mut kept = Instants::new(2_000);
        samples(100_000).into_iter().for_each(|i| kept.add(i));
        let first = kept.kept.iter().filter(|i| i.tid == 0).count();
        let share = first as f64 / kept.kept.len() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }
}
