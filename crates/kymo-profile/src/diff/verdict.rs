//! What is to be said of an effect, and how many runs would decide what is not decided.
use super::DiffOptions;
use super::statistics::{Difference, Interval, t_quantile};
use serde::Serialize;

/// Nobody makes more runs than this to decide one question.
const MOST_RUNS: usize = 1000;

/// What is to be said of an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectVerdict {
    /// It costs more.
    Regression,
    /// It costs less.
    Improvement,
    /// Its cost moved to its callers or came from them.
    Moved,
    /// A change that matters is excluded.
    NoDifference,
    /// The runs do not tell.
    #[default]
    Undecided,
}

impl EffectVerdict {
    /// The words of tables.
    pub fn words(self) -> &'static str {
        match self {
            EffectVerdict::Regression => "regression",
            EffectVerdict::Improvement => "improvement",
            EffectVerdict::Moved => "moved",
            EffectVerdict::NoDifference => "no difference",
            EffectVerdict::Undecided => "undecided",
        }
    }
}

/// What is to be said of a difference. `of_total`: the change as a part of the old side's whole
/// cost. `rate`: the false-discovery rate at which it counts.
///
/// A difference must be certain and matter: it is at least `smallest_of_total` of everything, or
/// `smallest_of_itself` of what changed. The absence of one must be certain, too: the interval lies
/// within `smallest_of_total`.
pub(crate) fn judge(
    difference: &Difference,
    of_total: Interval,
    rate: f64,
    options: &DiffOptions,
) -> EffectVerdict {
    let change = of_total.estimate;
    // Where one side has nothing, the change is infinitely large in relation to itself.
    let of_itself = difference.relative.map_or(f64::INFINITY, |relative| relative.estimate.abs());
    let matters = change.abs() >= options.smallest_of_total || of_itself >= options.smallest_of_itself;
    match () {
        () if rate <= options.discovery_rate && matters && change > 0.0 => EffectVerdict::Regression,
        () if rate <= options.discovery_rate && matters && change < 0.0 => EffectVerdict::Improvement,
        () if of_total.is_within(options.smallest_of_total) => EffectVerdict::NoDifference,
        () => EffectVerdict::Undecided,
    }
}

/// How runs tell of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replication {
    /// Runs a side.
    pub(crate) runs: usize,
    /// They were made in turns.
    pub(crate) in_turns: bool,
}

/// How many runs more a side would decide an effect if it stays as large. None where more than a
/// thousand would be needed.
pub(crate) fn more_runs(
    of_total: Interval,
    Replication { runs, in_turns }: Replication,
    tests: usize,
    options: &DiffOptions,
) -> Option<usize> {
    let change = of_total.estimate.abs();
    let reach = (of_total.high - of_total.low) / 2.0;
    let limit = options.smallest_of_total;
    let plain = 0.5 + options.confidence / 2.0;
    // The least p-value of so many tests must be this small.
    let strict = 1.0 - options.discovery_rate / 2.0 / tests.max(1) as f64;
    let sides = if in_turns { 1 } else { 2 };
    let freedom = |runs: usize| (sides * runs.saturating_sub(1)).max(1) as f64;
    let error = reach / t_quantile(plain, freedom(runs)) * (runs as f64).sqrt();
    let decides = |more: &usize| {
        let runs = runs + more;
        let reach_at = |probability| t_quantile(probability, freedom(runs)) * error / (runs as f64).sqrt();
        match change < limit {
            true => reach_at(plain) < limit - change,
            false => reach_at(strict) < change,
        }
    };
    // Reaches become smaller with each run, so the least number that decides is found by halving.
    if runs == 0 || !decides(&MOST_RUNS) {
        return None;
    }
    let (mut too_few, mut enough) = (0, MOST_RUNS);
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        match decides(&middle) {
            true => enough = middle,
            false => too_few = middle,
        }
    }
    Some(enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(change: f64, reach: f64) -> Interval {
        Interval { estimate: change, low: change - reach, high: change + reach }
    }

    fn verdict(of_total: Interval, of_itself: Option<f64>, rate: f64) -> EffectVerdict {
        let relative = of_itself.map(|change| of(change, 0.01));
        let difference = Difference { absolute: of_total, relative, p: rate };
        judge(&difference, of_total, rate, &DiffOptions::default())
    }

    /// Checks each verdict at both sides of its limits.
    #[test]
    fn verdicts_by_limits() {
        use EffectVerdict::*;
        assert_eq!(verdict(of(0.02, 0.01), Some(0.02), 0.01), Regression);
        assert_eq!(verdict(of(-0.02, 0.01), Some(-0.02), 0.01), Improvement);
        assert_eq!(verdict(of(0.02, 0.01), Some(0.02), 0.06), Undecided);
        // Small in relation to everything, large in relation to itself.
        assert_eq!(verdict(of(0.004, 0.001), Some(0.2), 0.01), Regression);
        assert_eq!(verdict(of(0.004, 0.001), None, 0.01), Regression);
        // Certain, and too small in every respect.
        assert_eq!(verdict(of(0.002, 0.001), Some(0.02), 0.0), NoDifference);
        assert_eq!(verdict(of(0.0, 0.009), Some(0.0), 1.0), NoDifference);
        assert_eq!(verdict(of(0.0, 0.011), Some(0.0), 1.0), Undecided);
    }

    /// Checks that so many runs more shrink the interval below what is needed, and one less does
    /// not.
    #[test]
    fn more_runs_are_the_least_that_decide() {
        let options = DiffOptions::default();
        let apart = |runs| Replication { runs, in_turns: false };
        let more = more_runs(of(0.0, 0.03), apart(10), 1, &options).expect("decidable");
        // Nine times as many runs as these, but for the smaller quantile.
        assert!((70..80).contains(&more), "{more}");
        let fewer = more_runs(of(0.0, 0.011), apart(10), 1, &options).expect("decidable");
        assert!((1..4).contains(&fewer), "{fewer}");
        assert_eq!(more_runs(of(0.0099999, 0.02), apart(10), 1, &options), None);
        let of_tests = |tests| more_runs(of(0.02, 0.03), apart(5), tests, &options);
        assert!(of_tests(100) > of_tests(1));
    }
}
