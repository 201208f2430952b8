//! Mean and its standard error, one value at a time; medians, and how sure the ratio of two is.

/// Running mean and variance after Welford: no list of values, no cancellation of large sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    count: u64,
    mean: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
}

impl Stats {
    /// Takes one value.
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// The mean; 0 without values.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// How far the mean would move from one such run to the next: the standard error of the mean, not the deviation of one value. 0 for
    /// fewer than two values, from which nothing can be said.
    pub(crate) fn error(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let variance = self.squares / (self.count - 1) as f64;
        (variance / self.count as f64).sqrt()
    }
}

/// The middle value, or the mean of the two in the middle; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// The ratio of two medians with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) ratio: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Ratio {
    /// Of values that were measured in the same rounds. Rounds are drawn as pairs, because what disturbed a round disturbed both.
    pub(crate) fn of(above: &[f64], below: &[f64]) -> Ratio {
        const DRAWS: usize = 2000;
        let rounds = above.len().min(below.len());
        let ratio = median(above) / median(below);
        if rounds == 0 {
            return Ratio { ratio: 0.0, low: 0.0, high: 0.0 };
        }
        // Always the same draws: one measurement has one interval.
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = || {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice % rounds as u64) as usize
        };
        let mut seen: Vec<f64> = (0..DRAWS)
            .map(|_| {
                let rows: Vec<usize> = (0..rounds).map(|_| draw()).collect();
                let of = |values: &[f64]| median(&rows.iter().map(|&row| values[row]).collect::<Vec<_>>());
                of(above) / of(below)
            })
            .collect();
        seen.sort_by(f64::total_cmp);
        Ratio { ratio, low: seen[DRAWS / 40], high: seen[DRAWS - 1 - DRAWS / 40] }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ratio, Stats, median};

    /// Checks medians of no, odd and even numbers of values.
    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    /// Checks that rounds are drawn as pairs: where every round is twice as slow, the ratio is sure, however the rounds differ; and that
    /// values which have nothing to do with one another leave an interval around 1.
    #[test]
    fn ratios() {
        let below: Vec<f64> = (1..=15).map(f64::from).collect();
        let above: Vec<f64> = below.iter().map(|value| value * 2.0).collect();
        assert_eq!(Ratio::of(&above, &below), Ratio { ratio: 2.0, low: 2.0, high: 2.0 });
        let backwards: Vec<f64> = below.iter().rev().copied().collect();
        let Ratio { ratio, low, high } = Ratio::of(&backwards, &below);
        assert!(ratio == 1.0 && low < 1.0 && high > 1.0, "{low} .. {high}");
    }

    fn of(values: &[f64]) -> Stats {
        let mut stats = Stats::default();
        values.iter().for_each(|&value| stats.add(value));
        stats
    }

    /// Checks mean and standard error against values worked out by hand: 2, 4, 4, 4, 5, 5, 7, 9 has a sum of squares of 32.
    #[test]
    fn by_hand() {
        let stats = of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((stats.mean() - 5.0).abs() < 1e-12);
        assert!((stats.error() - (32.0f64 / 7.0 / 8.0).sqrt()).abs() < 1e-12);
    }

    /// Checks that small differences survive a large offset, where sums of squares would lose them.
    #[test]
    fn large_offset() {
        let (near, far) = (of(&[1.0, 2.0, 3.0]), of(&[1e9 + 1.0, 1e9 + 2.0, 1e9 + 3.0]));
        assert!((near.error() - far.error()).abs() < 1e-6);
    }

    /// Checks that no value and one value have no error.
    #[test]
    fn too_few() {
        assert_eq!((of(&[]).mean(), of(&[]).error()), (0.0, 0.0));
        assert_eq!((of(&[7.0]).mean(), of(&[7.0]).error()), (7.0, 0.0));
    }
}
