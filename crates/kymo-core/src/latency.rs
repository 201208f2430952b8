//! Latencies as counts by size: eight buckets for each doubling, so a bucket's ends are at most an
//! eighth apart.
//!
//! One layout for all that count: BPF programs in the kernel, code that the agent writes into
//! programs, and readers of both.
//!
//! ```text
//!  ns      0 1 2 3 4 5 6 7 | 8-9 10-11 12-13 ... 22-23 | 24-27 28-31 ... 52-55 | 56-63 ...
//!  bucket  8 9 ...      15 | 16  17    18    ... 23    | 24    25    ... 31    | 32    ...
//! ```
//! A value plus 8 is written as `top * 2^shift`, where `top` has four bits; its bucket is
//! `8 * shift + top`.

/// Slots that the counts of one histogram take, also those below and above [`USED`].
pub const SLOTS: u32 = 512;
/// Buckets for each doubling.
pub const PER_DOUBLING: u32 = 8;

/// The buckets that can have calls: there are no lower values, and higher ones do not fit into 64
/// bits.
pub const USED: std::ops::Range<u32> = PER_DOUBLING..SLOTS - 16;

/// Slots of a histogram that no latency falls into: the calls that could not be timed, because too
/// many were under way at once.
pub const UNTIMED: u32 = 0;
/// The calls, where these are counted in the same memory.
pub const CALLS: u32 = 1;
const _: () = assert!(UNTIMED < USED.start && CALLS < USED.start);

/// The bucket that a latency falls into.
#[must_use]
#[inline]
pub fn bucket(ns: u64) -> u32 {
    let sum = u128::from(ns) + u128::from(PER_DOUBLING);
    let shift = sum.ilog2() - PER_DOUBLING.ilog2();
    // The last eight numbers are in the last bucket.
    (PER_DOUBLING * shift + (sum >> shift) as u32).min(USED.end - 1)
}

/// The first value of a bucket that can be used, in nanoseconds.
fn first_ns(bucket: u32) -> u64 {
    let (shift, top) = (bucket / PER_DOUBLING - 1, bucket % PER_DOUBLING + PER_DOUBLING);
    (u64::from(top) << shift) - u64::from(PER_DOUBLING)
}

/// First and last ns of a bucket; of one that is not [`USED`], of the nearest one that is.
#[must_use]
pub fn range_ns(bucket: u32) -> (u64, u64) {
    let bucket = bucket.clamp(USED.start, USED.end - 1);
    let last = if bucket + 1 == USED.end { u64::MAX } else { first_ns(bucket + 1) - 1 };
    (first_ns(bucket), last)
}

/// Latencies of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The longest; for a part of a recording, the longest since its start.
    pub max_ns: u64,
    /// How many in each bucket, by its number; empty where there are none, else [`SLOTS`].
    pub buckets: Vec<u64>,
}

impl Latencies {
    /// Takes one.
    pub fn add(&mut self, ns: u64) {
        self.count = self.count.saturating_add(1);
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        self.count_in(bucket(ns), 1);
    }

    /// Takes calls of which only the bucket is known: its middle stands for each, its end for the
    /// longest.
    pub fn add_bucket(&mut self, bucket: u32, calls: u64) {
        if calls == 0 {
            return;
        }
        let (first, last) = range_ns(bucket);
        let middle = first + (last - first) / 2;
        self.count = self.count.saturating_add(calls);
        self.total_ns = self.total_ns.saturating_add(middle.saturating_mul(calls));
        self.max_ns = self.max_ns.max(last);
        self.count_in(bucket, calls);
    }

    /// A program may say any number.
    fn count_in(&mut self, bucket: u32, calls: u64) {
        self.buckets.resize(SLOTS as usize, 0);
        let of = &mut self.buckets[bucket.clamp(USED.start, USED.end - 1) as usize];
        *of = of.saturating_add(calls);
    }

    /// Those of two together.
    pub fn merge(&mut self, other: &Latencies) {
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        if !other.buckets.is_empty() {
            self.buckets.resize(SLOTS as usize, 0);
            self.buckets
                .iter_mut()
                .zip(&other.buckets)
                .for_each(|(own, more)| *own = own.saturating_add(*more));
        }
    }

    /// What came since an earlier state of the same.
    #[must_use]
    pub fn since(&self, before: &Latencies) -> Latencies {
        let old = |index: usize| before.buckets.get(index).copied().unwrap_or(0);
        Latencies {
            count: self.count.saturating_sub(before.count),
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            max_ns: self.max_ns,
            buckets: self
                .buckets
                .iter()
                .enumerate()
                .map(|(at, count)| count.saturating_sub(old(at)))
                .collect(),
        }
    }

    /// The mean; `None` without calls.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / self.count as f64)
    }

    /// The latency that this share (0 to 1) of the calls did not exceed: the end of its bucket, or
    /// the longest where that is shorter. At most an eighth too long, or 1 ns. `None` without
    /// calls.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let all = self.buckets.iter().fold(0_u64, |all, count| all.saturating_add(*count));
        if all == 0 {
            return None;
        }
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all);
        let mut seen = 0_u64;
        let at = self.buckets.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= wanted
        })?;
        let (first, last) = range_ns(at as u32);
        Some(last.min(self.max_ns.max(first)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that buckets follow one another without a gap, that each number is inside of its own,
    /// and that each bucket is an eighth of its numbers at most.
    #[test]
    fn ranges() {
        let mut next = 0;
        for at in USED {
            let (first, last) = range_ns(at);
            assert_eq!(first, next, "bucket {at}");
            assert_eq!((bucket(first), bucket(last)), (at, at));
            assert!(last - first <= first / 8, "bucket {at}");
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0);
    }

    /// Checks that any number of a bucket has an answer.
    #[test]
    fn any_bucket() {
        for bucket in [0, 1, 7, 495, 496, 511, 512, 10_000, u32::MAX] {
            assert!(range_ns(bucket).0 <= range_ns(bucket).1);
            Latencies::default().add_bucket(bucket, u64::MAX);
        }
    }

    /// Checks that numbers which a hostile program says are added without an overflow.
    #[test]
    fn forged_numbers() {
        let mut latencies = Latencies::default();
        for _ in 0..3 {
            latencies.add_bucket(USED.end - 1, u64::MAX);
            latencies.add_bucket(USED.start, u64::MAX);
        }
        let other = latencies.clone();
        latencies.merge(&other);
        assert_eq!((latencies.count, latencies.total_ns), (u64::MAX, u64::MAX));
        assert!(latencies.quantile_ns(0.99).is_some() && latencies.mean_ns().is_some());
    }

    proptest! {
        /// Checks that a quantile is not below the true one, and at most an eighth above it; also
        /// where only buckets are known.
        #[test]
        fn quantiles(mut values in prop::collection::vec(0u64..10_000_000, 1..200), share in 0.0f64..1.0) {
            let (mut exact, mut by_bucket) = (Latencies::default(), Latencies::default());
            values.iter().for_each(|&ns| exact.add(ns));
            values.iter().for_each(|&ns| by_bucket.add_bucket(bucket(ns), 1));
            values.sort_unstable();
            let at = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
            let truth = values[at - 1];
            for latencies in [&exact, &by_bucket] {
                let said = latencies.quantile_ns(share).unwrap();
                prop_assert!(said >= truth && said as f64 <= truth as f64 * 1.125 + 1.0, "{said} for {truth}");
            }
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            let said = by_bucket.mean_ns().unwrap();
            prop_assert!((said - mean).abs() <= mean / 16.0 + 1.0, "{said} for {mean}");
        }
    }
}
