//! Numbers of several runs: mean, standard error, median, range, and which runs stand out.

/// The values of one thing in all runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series(pub(super) Vec<f64>);

/// How far beyond the quartiles, in distances between them, a value stands out.
const FENCE: f64 = 1.5;

/// From how many runs on quartiles mean something.
const LEAST_RUNS: usize = 5;

impl Series {
    pub(super) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn mean(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.iter().sum::<f64>() / self.0.len() as f64 }
    }

    /// The standard error of the mean, by the deviation of the sample.
    pub(super) fn standard_error(&self) -> f64 {
        let count = self.0.len() as f64;
        if count < 2.0 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|value| (value - mean) * (value - mean)).sum();
        (squares / (count - 1.0) / count).sqrt()
    }

    /// The standard error in percent of the mean, as perf prints it.
    pub(super) fn noise(&self) -> f64 {
        let mean = self.mean();
        if mean == 0.0 { 0.0 } else { 100.0 * self.standard_error() / mean }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Between the two values nearest to that share of them.
    fn quantile(sorted: &[f64], share: f64) -> f64 {
        let at = share * (sorted.len().saturating_sub(1)) as f64;
        let (low, high) = (at.floor() as usize, at.ceil() as usize);
        match (sorted.get(low), sorted.get(high)) {
            (Some(low), Some(high)) => low + (high - low) * at.fract(),
            _ => 0.0,
        }
    }

    pub(super) fn median(&self) -> f64 {
        Series::quantile(&self.sorted(), 0.5)
    }

    pub(super) fn range(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted.first().copied().unwrap_or(0.0), sorted.last().copied().unwrap_or(0.0))
    }

    /// The runs (from 1) that lie more than 1.5 distances between the quartiles beyond them; none of fewer than five runs.
    pub(super) fn outliers(&self) -> Vec<usize> {
        if self.0.len() < LEAST_RUNS {
            return Vec::new();
        }
        let sorted = self.sorted();
        let (low, high) = (Series::quantile(&sorted, 0.25), Series::quantile(&sorted, 0.75));
        let reach = FENCE * (high - low);
        let out = |value: &f64| *value < low - reach || *value > high + reach;
        self.0.iter().enumerate().filter(|(_, value)| out(value)).map(|(index, _)| index + 1).collect()
    }
}

/// Digits behind the point that show a deviation's first two, as perf chooses them.
pub(super) fn precision(deviation: f64) -> usize {
    if deviation > 1.0 || deviation <= 0.0 { 0 } else { ((-deviation.log10()).ceil() as usize) + 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks mean, standard error, median and quartile fences on numbers whose results are known.
    #[test]
    fn known_numbers() {
        let series = Series(vec![2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((series.mean(), series.median(), series.range()), (5.0, 4.5, (2.0, 9.0)));
        assert!((series.standard_error() - (32.0f64 / 7.0 / 8.0).sqrt()).abs() < 1e-12);
        assert_eq!(series.outliers(), [8]);
        let one = Series(vec![3.0]);
        assert_eq!((one.standard_error(), one.noise(), one.median()), (0.0, 0.0, 3.0));
        assert_eq!(Series::default().mean(), 0.0);
    }

    /// Checks that digits follow the deviation, as in perf's last line.
    #[test]
    fn digits() {
        assert_eq!((precision(0.000914), precision(0.000_096_5), precision(2.0)), (6, 7, 0));
    }
}
