//! Mean and its standard error, one value at a time.

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

#[cfg(test)]
mod tests {
    use super::Stats;

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
