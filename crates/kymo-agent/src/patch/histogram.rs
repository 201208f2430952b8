//! Times by their size: eight buckets for each doubling, so a value is known to an eighth.
use crate::patch::slots::Slots;
use kymo_core::probe::wire::times::{USED, first_ns};

pub(crate) use kymo_core::probe::wire::times::BUCKETS;

/// How long calls took, of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// (From this many nanoseconds on, up to and without this many, calls), in order, without the empty ones.
    pub buckets: Vec<(u64, u64, u64)>,
}

impl Histogram {
    /// Reads the counters from `slot` on.
    pub(crate) fn read(slots: &Slots, slot: u32, before: &[u64]) -> Histogram {
        let count = |bucket: u32| {
            let before = before.get(bucket as usize).copied().unwrap_or(0);
            (first_ns(bucket), first_ns(bucket + 1), slots.read(slot + bucket).wrapping_sub(before))
        };
        Histogram { buckets: USED.map(count).filter(|bucket| bucket.2 > 0).collect() }
    }

    /// How many calls.
    pub fn calls(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.2).sum()
    }

    /// The time below which this share of the calls stayed, in nanoseconds, to an eighth; `None` without calls.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let calls = self.calls();
        let wanted = ((calls as f64 * share).ceil() as u64).clamp(1, calls.max(1));
        let mut seen = 0;
        let found = self.buckets.iter().find(|bucket| {
            seen += bucket.2;
            seen >= wanted
        });
        found.map(|bucket| bucket.1 - 1)
    }

    /// The mean in nanoseconds, to some hundredths; `None` without calls.
    pub fn mean_ns(&self) -> Option<f64> {
        let sum: f64 = self
            .buckets
            .iter()
            .map(|&(from, to, calls)| (from as f64 + (to - 1) as f64) / 2.0 * calls as f64)
            .sum();
        let calls = self.calls();
        (calls > 0).then(|| sum / calls as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks quantiles and the mean of a known row.
    #[test]
    fn quantiles_are_of_all_calls() {
        let histogram = Histogram { buckets: vec![(0, 1, 50), (8, 10, 49), (1000, 1100, 1)] };
        assert_eq!(histogram.calls(), 100);
        assert_eq!(histogram.quantile_ns(0.5), Some(0));
        assert_eq!(histogram.quantile_ns(0.99), Some(9));
        assert_eq!(histogram.quantile_ns(1.0), Some(1099));
        assert!((histogram.mean_ns().expect("calls") - 14.66).abs() < 0.01);
        assert_eq!(Histogram { buckets: vec![] }.quantile_ns(0.5), None);
    }
}
