//! The obvious test of a difference, all ways in which the runs could have been dealt to the
//! sides; and the intervals that were not chosen.
use super::random::SplitMix64;
use super::statistics::Estimate;

/// The part of all deals whose means differ at least as much as those of the two sides.
pub(super) fn permutation_p(old: &[f64], new: &[f64]) -> f64 {
    let values: Vec<f64> = old.iter().chain(new).copied().collect();
    let difference = |chosen: u32| {
        let (mut sums, mut counts) = ([0.0; 2], [0.0; 2]);
        for (at, value) in values.iter().enumerate() {
            let side = (chosen >> at & 1) as usize;
            sums[side] += value;
            counts[side] += 1.0;
        }
        (sums[1] / counts[1] - sums[0] / counts[0]).abs()
    };
    let own = (0..new.len()).fold(0, |chosen, at| chosen | 1 << (old.len() + at));
    let limit = difference(own) * (1.0 - 1e-12);
    let deals = (0..1_u32 << values.len()).filter(|chosen| chosen.count_ones() as usize == new.len());
    let (mut all, mut extreme) = (0, 0);
    for deal in deals {
        all += 1;
        extreme += u32::from(difference(deal) >= limit);
    }
    f64::from(extreme) / f64::from(all)
}

/// The percentile bootstrap of the logarithm of the ratio of means: draws of runs, and the values
/// between which so much of them lies.
pub(super) fn percentile_interval(old: &[f64], new: &[f64], random: &mut SplitMix64) -> (f64, f64) {
    let mut ratios: Vec<f64> =
        (0..DRAWS).map(|_| log_ratio(&drawn(old, random), &drawn(new, random)).0).collect();
    ratios.sort_by(f64::total_cmp);
    (ratios[DRAWS / 40], ratios[DRAWS - 1 - DRAWS / 40])
}

/// The studentized bootstrap: the same of the ratio in units of its own standard error.
pub(super) fn studentized_interval(old: &[f64], new: &[f64], random: &mut SplitMix64) -> (f64, f64) {
    let (ratio, error) = log_ratio(old, new);
    let mut units: Vec<f64> = (0..DRAWS)
        .map(|_| log_ratio(&drawn(old, random), &drawn(new, random)))
        .map(|(draw, of_draw)| (draw - ratio) / of_draw.max(1e-12))
        .collect();
    units.sort_by(f64::total_cmp);
    (ratio - units[DRAWS - 1 - DRAWS / 40] * error, ratio - units[DRAWS / 40] * error)
}

const DRAWS: usize = 400;

fn drawn(values: &[f64], random: &mut SplitMix64) -> Vec<f64> {
    values.iter().map(|_| values[random.below(values.len())]).collect()
}

/// The logarithm of the ratio of means, and its standard error.
fn log_ratio(old: &[f64], new: &[f64]) -> (f64, f64) {
    let part = |values: &[f64]| {
        let estimate = Estimate::of_values(values);
        (estimate.mean, estimate.variance / estimate.mean.powi(2))
    };
    let ((old, old_part), (new, new_part)) = (part(old), part(new));
    ((new / old).ln(), (old_part + new_part).sqrt())
}
