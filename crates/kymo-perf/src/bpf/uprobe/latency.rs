//! Latencies as counts in buckets that grow with what they hold: four to each power of two, so a bucket's ends are at most 25 % apart.
//!
//! ```text
//!  ns      0 1 2 3 | 4 5 6 7 | 8-9 10-11 12-13 14-15 | 16-19 20-23 24-27 28-31 | 32-39 ...
//!  bucket  0 1 2 3 | 4 5 6 7 | 8   9     10    11    | 12    13    14    15    | 16 ...
//! ```

/// How many buckets there are: the last one ends at the largest number.
pub const BUCKETS: usize = 252;

/// The bucket that a latency falls into.
#[must_use]
pub fn bucket(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let exponent = ns.ilog2();
    4 * (exponent as usize - 1) + (ns >> (exponent - 2) & 3) as usize
}

/// First and last ns of a bucket.
#[must_use]
pub fn range_ns(bucket: usize) -> (u64, u64) {
    let first = |bucket: usize| -> u64 {
        if bucket < 4 {
            return bucket as u64;
        }
        let exponent = bucket / 4 + 1;
        (4 + (bucket as u64 & 3)) << (exponent - 2)
    };
    let bucket = bucket.min(BUCKETS - 1);
    let last = if bucket + 1 == BUCKETS { u64::MAX } else { first(bucket + 1) - 1 };
    (first(bucket), last)
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
    /// How many in each bucket; empty where there are none.
    pub buckets: Vec<u64>,
}

impl Latencies {
    /// Takes one.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        self.buckets.resize(BUCKETS, 0);
        self.buckets[bucket(ns)] += 1;
    }

    /// Takes calls of which only between which times they took is known: the middle of it stands for each.
    pub fn add_between(&mut self, first_ns: u64, last_ns: u64, calls: u64) {
        if calls == 0 {
            return;
        }
        let middle = first_ns + last_ns.saturating_sub(first_ns) / 2;
        self.count = self.count.saturating_add(calls);
        self.total_ns = self.total_ns.saturating_add(middle.saturating_mul(calls));
        self.max_ns = self.max_ns.max(last_ns);
        self.buckets.resize(BUCKETS, 0);
        // A program may say any number.
        let of = &mut self.buckets[bucket(middle)];
        *of = of.saturating_add(calls);
    }

    /// Those of two together.
    pub fn merge(&mut self, other: &Latencies) {
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        if !other.buckets.is_empty() {
            self.buckets.resize(BUCKETS, 0);
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

    /// The latency that this share (0 to 1) of the calls did not exceed: the end of its bucket, or the longest where that is shorter. `None` without calls.
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
        Some(range_ns(at).1.min(self.max_ns.max(range_ns(at).0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that buckets follow one another without a gap, and that each number is inside of its own.
    #[test]
    fn ranges() {
        let mut next = 0;
        for at in 0..BUCKETS {
            let (first, last) = range_ns(at);
            assert_eq!(first, next, "bucket {at}");
            assert_eq!((bucket(first), bucket(last)), (at, at));
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0);
    }

    /// Checks that numbers which a hostile program says are added without an overflow.
    #[test]
    fn forged_numbers() {
        let mut latencies = Latencies::default();
        for _ in 0..3 {
            latencies.add_between(0, u64::MAX, u64::MAX);
            latencies.add_between(8, 9, u64::MAX);
        }
        let other = latencies.clone();
        latencies.merge(&other);
        assert_eq!((latencies.count, latencies.total_ns), (u64::MAX, u64::MAX));
        assert!(latencies.quantile_ns(0.99).is_some() && latencies.mean_ns().is_some());
    }

    proptest! {
        /// Checks that a quantile is not below the true one, and at most 25 % above it.
        #[test]
        fn quantiles(mut values in prop::collection::vec(0u64..10_000_000, 1..200), share in 0.0f64..1.0) {
            let mut latencies = Latencies::default();
            values.iter().for_each(|&ns| latencies.add(ns));
            values.sort_unstable();
            let at = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
            let (truth, said) = (values[at - 1], latencies.quantile_ns(share).unwrap());
            prop_assert!(said >= truth && said as f64 <= truth as f64 * 1.25 + 1.0, "{said} for {truth}");
        }
    }
}
