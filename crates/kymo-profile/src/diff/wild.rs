//! A run that cost far more or less than all others of its side: another program ran beside it, or
//! it ended early. One such run hides every difference, so it is left out, which is said.
use super::run::RunSums;
use super::turns::RunOrder;
use std::borrow::Cow;

/// With fewer runs nobody knows what is usual.
const FEWEST: usize = 5;
/// It differs from the nearest other run by this factor,
const LEAST_FACTOR: f64 = 1.5;
/// and by this many times what all others differ by.
const LEAST_GAP: f64 = 2.0;

/// The runs of both sides that count, and what is said of those that do not.
#[derive(Debug)]
pub(crate) struct CountedRuns<'a> {
    pub(crate) old: Cow<'a, [RunSums]>,
    pub(crate) new: Cow<'a, [RunSums]>,
    pub(crate) notes: Vec<String>,
}

/// Leaves out the only wild run of a side, with the run beside it where they were made in turns.
///
/// A side is judged by itself, so that this makes no difference more probable where there is none.
pub(crate) fn without_wild<'a>(old: &'a [RunSums], new: &'a [RunSums]) -> CountedRuns<'a> {
    let order = RunOrder::of(old, new);
    let mut left_out: [Vec<usize>; 2] = Default::default();
    let mut notes = Vec::new();
    for (side, runs) in [old, new].into_iter().enumerate() {
        let Some((wild, factor)) = wild_run(runs) else { continue };
        left_out[side].push(wild);
        let partner = order.as_ref().and_then(|order| order.partner(side == 1, wild));
        left_out[1 - side].extend(partner);
        let beside = if partner.is_some() { ", with the run of its turn" } else { "" };
        notes.push(format!(
            "{} cost {factor} the usual of its side: it is left out{beside}",
            runs[wild].facts.name,
        ));
    }
    let counted = |runs: &'a [RunSums], left_out: &[usize]| -> Cow<'a, [RunSums]> {
        if left_out.is_empty() {
            return Cow::Borrowed(runs);
        }
        let is_counted = |(at, _): &(usize, &RunSums)| !left_out.contains(at);
        runs.iter().enumerate().filter(is_counted).map(|(_, run)| run.clone()).collect()
    };
    CountedRuns { old: counted(old, &left_out[0]), new: counted(new, &left_out[1]), notes }
}

/// The only run of a side that is wild, and how its cost compares with the usual.
fn wild_run(runs: &[RunSums]) -> Option<(usize, String)> {
    if runs.len() < FEWEST || runs.iter().any(|run| run.total <= 0.0) {
        return None;
    }
    let mut costs: Vec<(f64, usize)> =
        runs.iter().enumerate().map(|(at, run)| (run.total.ln(), at)).collect();
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_wild = |gap: f64, others: f64| gap >= LEAST_FACTOR.ln() && gap > LEAST_GAP * others;
    let last = costs.len() - 1;
    let (low_gap, high_gap) = (costs[1].0 - costs[0].0, costs[last].0 - costs[last - 1].0);
    let wild = match () {
        () if is_wild(high_gap, costs[last - 1].0 - costs[0].0) => last,
        () if is_wild(low_gap, costs[last].0 - costs[1].0) => 0,
        () => return None,
    };
    let usual = costs[costs.len() / 2].0;
    let times = (costs[wild].0 - usual).exp();
    let factor = if times > 1.0 { format!("{times:.1} times") } else { format!("{:.0} % of", 100.0 * times) };
    Some((costs[wild].1, factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(costs: &[f64]) -> Vec<RunSums> {
        costs.iter().map(|cost| RunSums { total: *cost, ..RunSums::default() }).collect()
    }

    /// Checks which run is wild: one that is far from all others, and neither one of two, nor one
    /// of few, nor one of a side whose runs differ anyway.
    #[test]
    fn one_run_far_from_all_others_is_wild() {
        let wild = |costs: &[f64]| wild_run(&side(costs)).map(|(run, _)| run);
        assert_eq!(wild(&[1.0, 1.02, 4.0, 0.99, 1.01]), Some(2));
        assert_eq!(wild(&[1.0, 1.02, 0.2, 0.99, 1.01]), Some(2));
        assert_eq!(wild(&[1.0, 1.02, 4.0, 4.1, 1.01]), None);
        assert_eq!(wild(&[1.0, 1.02, 4.0, 1.01]), None);
        assert_eq!(wild(&[1.0, 1.5, 2.2, 3.0, 4.7]), None);
        assert_eq!(wild(&[1.0, 1.0, 1.0, 1.0, 1.2]), None);
        assert_eq!(wild(&[1.0, 1.0, 1.0, 1.0, 0.0]), None);
        let (old, new) = (side(&[1.0, 1.02, 4.0, 0.99, 1.01]), side(&[1.0; 5]));
        let counted = without_wild(&old, &new);
        assert_eq!((counted.old.len(), counted.new.len(), counted.notes.len()), (4, 5, 1));
        assert!(counted.notes[0].contains("4.0 times the usual"), "{:?}", counted.notes);
    }
}
