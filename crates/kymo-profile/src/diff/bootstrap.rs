//! How much the cost of the only run of a side would vary: a block bootstrap over its time.
//!
//! A run is cut into blocks of equal time. Neighbouring blocks are alike, because programs have
//! phases, so they are drawn in stretches, round the end to the start (the circular block
//! bootstrap). What varies from run to run and not within one stays unknown: whoever shows such an
//! interval says so.
use super::random::SplitMix64;
use super::statistics::Estimate;

/// A run is cut into so many blocks.
pub(crate) const BLOCKS: usize = 32;
/// Neighbours that are drawn together.
const STRETCH: usize = 4;
/// How often blocks are drawn.
const DRAWS: usize = 1000;

/// The quotient of two sums over blocks, and its variance over draws. `weights` are what costs are
/// divided by: all ones give the mean of a block.
pub(crate) fn of_blocks(costs: &[f64], weights: &[f64], random: &mut SplitMix64) -> Estimate {
    let count = costs.len().min(weights.len());
    let (all, weight): (f64, f64) = (costs[..count].iter().sum(), weights[..count].iter().sum());
    if count == 0 || weight <= 0.0 {
        return Estimate::default();
    }
    let stretches = count.div_ceil(STRETCH);
    let (mut sum, mut squares, mut draws) = (0.0, 0.0, 0.0_f64);
    for _ in 0..DRAWS {
        let (mut cost, mut divisor) = (0.0, 0.0);
        for drawn in 0..stretches {
            let start = random.below(count);
            let length = STRETCH.min(count - drawn * STRETCH);
            for at in (start..start + length).map(|at| at % count) {
                cost += costs[at];
                divisor += weights[at];
            }
        }
        if divisor > 0.0 {
            let quotient = cost / divisor;
            sum += quotient;
            squares += quotient * quotient;
            draws += 1.0;
        }
    }
    let mean = sum / draws.max(1.0);
    // Draws of few stretches vary by that much less than the runs that they stand for.
    let few = stretches as f64 / (stretches as f64 - 1.0).max(1.0);
    let variance = (squares / draws.max(1.0) - mean * mean).max(0.0) * few;
    Estimate { mean: all / weight, variance, freedom: (stretches as f64 - 1.0).max(1.0), floor: 0.0 }
}
