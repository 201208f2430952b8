//! What the order of runs says of the difference of two sides: a machine that becomes slower from
//! run to run makes the later side dearer, without a change of the program.
//!
//! A linear trend is estimated within each side, or from turn to turn, and taken out of the
//! difference; that it is only estimated makes the interval wider. Where all runs of one side come
//! before those of the other, that is twice as wide; where sides alternate, hardly wider.

/// A value, and the place of its run in the order in which all runs were made.
pub(crate) type PlacedValue = (f64, f64);

/// A turn: the old value, the new one, and by how many places the new one came later.
pub(crate) type TurnValues = (f64, f64, f64);

/// What a trend adds to the difference of two means, and how much the difference without it varies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrendShift {
    /// New minus old by the trend alone.
    pub(crate) shift: f64,
    /// The trend from one run to the next.
    pub(crate) per_run: f64,
    /// The standard error of that.
    pub(crate) per_run_error: f64,
    /// The variance of the difference without the trend.
    pub(crate) variance: f64,
    /// Degrees of freedom of the variance.
    pub(crate) freedom: f64,
}

/// The same of values, and of what each is of the mean of its side: the difference of logarithms,
/// as far as it is small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OrderedDifference {
    pub(crate) absolute: TrendShift,
    pub(crate) relative: TrendShift,
}

impl OrderedDifference {
    /// Of runs in turns. `None`: a side has nothing.
    pub(crate) fn in_turns(turns: &[TurnValues]) -> Option<OrderedDifference> {
        let count = turns.len() as f64;
        let old = turns.iter().map(|(old, ..)| old).sum::<f64>() / count;
        let new = turns.iter().map(|(_, new, _)| new).sum::<f64>() / count;
        let relative: Vec<TurnValues> =
            turns.iter().map(|(of_old, of_new, later)| (of_old / old, of_new / new, *later)).collect();
        (turns.len() > 2 && old > 0.0 && new > 0.0).then(|| OrderedDifference {
            absolute: shift_of_turns(turns),
            relative: shift_of_turns(&relative),
        })
    }

    /// Of runs in another order. `None`: a side has nothing, or too few runs to have a trend.
    pub(crate) fn by_place(old: &[PlacedValue], new: &[PlacedValue]) -> Option<OrderedDifference> {
        let mean =
            |side: &[PlacedValue]| side.iter().map(|(_, value)| value).sum::<f64>() / side.len() as f64;
        let (of_old, of_new) = (mean(old), mean(new));
        let parts = |side: &[PlacedValue], mean: f64| -> Vec<PlacedValue> {
            side.iter().map(|(place, value)| (*place, value / mean)).collect()
        };
        let is_known = old.len().min(new.len()) >= FEWEST && of_old > 0.0 && of_new > 0.0;
        is_known.then(|| OrderedDifference {
            absolute: shift_of_sides(old, new),
            relative: shift_of_sides(&parts(old, of_old), &parts(new, of_new)),
        })
    }
}

/// Fewer runs of a side have no trend that could be told from chance.
const FEWEST: usize = 3;

/// The trend is that of the means of turns; each difference is freed of it.
fn shift_of_turns(turns: &[TurnValues]) -> TrendShift {
    let count = turns.len() as f64;
    let means: Vec<PlacedValue> =
        (0..).zip(turns).map(|(turn, (old, new, _))| (f64::from(2 * turn), (old + new) / 2.0)).collect();
    let line = Line::of(&means);
    let per_run = line.products / line.squares;
    let per_run_variance = line.rest(per_run) / (count - 2.0) / line.squares;
    let later = turns.iter().map(|(.., later)| later).sum::<f64>() / count;
    let freed: Vec<PlacedValue> =
        turns.iter().map(|(old, new, later)| (0.0, new - old - per_run * later)).collect();
    let own = Line::of(&freed).values / (count - 1.0) / count;
    let (variance, freedom) =
        sum_of_variances([(own, count - 1.0), (later.powi(2) * per_run_variance, count - 2.0)]);
    TrendShift { shift: per_run * later, per_run, per_run_error: per_run_variance.sqrt(), variance, freedom }
}

/// The trend is that within both sides, which have it in common.
fn shift_of_sides(old: &[PlacedValue], new: &[PlacedValue]) -> TrendShift {
    let lines = [Line::of(old), Line::of(new)];
    let squares = lines[0].squares + lines[1].squares;
    let per_run = (lines[0].products + lines[1].products) / squares;
    let later = lines[1].place - lines[0].place;
    let parts = lines.map(|line| {
        // The trend takes half a degree of freedom of each side.
        let freedom = line.count - 1.5;
        let of_trend = line.squares / squares.powi(2);
        let value = line.rest(per_run).max(0.0) / freedom;
        (value * (1.0 / line.count + later.powi(2) * of_trend), freedom, value * of_trend)
    });
    let (variance, freedom) = sum_of_variances(parts.map(|(variance, freedom, _)| (variance, freedom)));
    let per_run_error = parts.iter().map(|(.., variance)| variance).sum::<f64>().sqrt();
    TrendShift { shift: per_run * later, per_run, per_run_error, variance, freedom }
}

/// A sum of variances and its degrees of freedom (Welch and Satterthwaite).
pub(crate) fn sum_of_variances(parts: [(f64, f64); 2]) -> (f64, f64) {
    let sum: f64 = parts.iter().map(|(variance, _)| variance).sum();
    let squares: f64 = parts.iter().map(|(variance, freedom)| variance.powi(2) / freedom.max(1.0)).sum();
    let all: f64 = parts.iter().map(|(_, freedom)| freedom).sum();
    let freedom = if squares > 0.0 { sum.powi(2) / squares } else { all };
    (sum, freedom.max(1.0))
}

/// The sums of a linear regression.
#[derive(Clone, Copy, Debug)]
struct Line {
    count: f64,
    /// The mean place.
    place: f64,
    squares: f64,
    products: f64,
    /// The squares of the values.
    values: f64,
}

impl Line {
    fn of(values: &[PlacedValue]) -> Line {
        let count = values.len() as f64;
        let place = values.iter().map(|(place, _)| place).sum::<f64>() / count;
        let mean = values.iter().map(|(_, value)| value).sum::<f64>() / count;
        let mut line = Line { count, place, squares: 0.0, products: 0.0, values: 0.0 };
        for (at, value) in values {
            line.squares += (at - place).powi(2);
            line.products += (at - place) * (value - mean);
            line.values += (value - mean).powi(2);
        }
        line
    }

    /// The squares that are left beside a slope.
    fn rest(&self, slope: f64) -> f64 {
        self.values - 2.0 * slope * self.products + slope.powi(2) * self.squares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what only a trend adds is no difference, in both orders, and that a difference
    /// beside a trend is what is left.
    #[test]
    fn a_trend_is_taken_out() {
        let sides = |difference: f64| -> [Vec<PlacedValue>; 2] {
            let value = |place: f64| 1000.0 + 10.0 * place;
            [(0..6).map(|at| (at.into(), value(at.into()))).collect(), {
                (6..12).map(|at| (at.into(), value(at.into()) + difference)).collect()
            }]
        };
        let [old, new] = sides(0.0);
        let found = OrderedDifference::by_place(&old, &new).expect("known").absolute;
        assert!((found.shift - 60.0).abs() < 1e-9 && found.variance.abs() < 1e-9, "{found:?}");
        let turns: Vec<TurnValues> = (0..6)
            .map(|turn| {
                let old = 1000.0 + 20.0 * f64::from(turn);
                (old, old + 10.0 + 7.0, 1.0)
            })
            .collect();
        let found = OrderedDifference::in_turns(&turns).expect("known").absolute;
        assert!((found.shift - 10.0).abs() < 1e-9 && found.variance.abs() < 1e-9, "{found:?}");
    }

    /// Checks the variance within turns without a trend against a calculation by hand: differences
    /// 1, 3 and 2 have the variance of the mean 1/3; turns in both orders have no shift.
    #[test]
    fn turns_by_hand() {
        let turns = [(10.0, 11.0, 1.0), (10.0, 13.0, -1.0), (11.0, 13.0, 1.0), (10.0, 12.0, -1.0)];
        let found = OrderedDifference::in_turns(&turns).expect("known").absolute;
        assert_eq!(found.shift, 0.0);
        let apart = [(10.0, 11.0, 0.0), (20.0, 23.0, 0.0), (30.0, 32.0, 0.0)];
        let found = OrderedDifference::in_turns(&apart).expect("known").absolute;
        assert!((found.variance - 1.0 / 3.0).abs() < 1e-12 && found.freedom == 2.0, "{found:?}");
    }

    /// Checks what has no trend: a side with nothing, and few runs.
    #[test]
    fn few_runs_have_no_trend() {
        let of =
            |values: &[f64]| (0..).zip(values).map(|(at, value)| (f64::from(at), *value)).collect::<Vec<_>>();
        assert_eq!(OrderedDifference::by_place(&of(&[1.0, 2.0]), &of(&[1.0, 2.0, 3.0])), None);
        assert_eq!(OrderedDifference::by_place(&of(&[0.0; 3]), &of(&[1.0, 2.0, 3.0])), None);
        assert_eq!(OrderedDifference::in_turns(&[(0.0, 2.0, 1.0); 6]), None);
        assert_eq!(OrderedDifference::in_turns(&[]), None);
    }
}
