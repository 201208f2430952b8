//! What did not change between two sides of which only shares are known.
//!
//! A share rises where another one falls: of a program that does half of its work twice as fast,
//! all other shares rise by a third. So shares are judged against the functions whose cost did not
//! change. These are the largest group whose shares all changed by one factor, as the shares of
//! what did not change do. Where two groups are nearly as large, the one whose absolute cost
//! changed less is it, and where that does not tell either, nothing is certain.
use rustc_hash::FxHashSet;

/// Ratios that differ by less are alike: what matters of itself is larger.
const LEAST_TOLERANCE: f64 = 0.02;
/// A group with so much of the weight of the largest one may be what did not change, too.
const RIVAL: f64 = 0.75;
/// Where no group has so much of the whole weight, each may be.
const MAJORITY: f64 = 0.5;
const LEAST_OF_BEST: f64 = 0.5;
/// The absolute cost tells two groups apart if that of one changed by less than this part of that
/// of the other.
const CLEARLY_LESS: f64 = 0.5;

/// A function that both sides have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareRatio {
    pub(crate) function: u32,
    /// The logarithm of the new share divided by the old one.
    pub(crate) ratio: f64,
    /// So far it may lie from the truth.
    pub(crate) reach: f64,
    /// The part of the whole cost that the function has.
    pub(crate) share: f64,
}

impl ShareRatio {
    /// Shares differ by four orders of magnitude: neither the largest nor the many small ones may
    /// decide alone.
    fn weight(&self) -> f64 {
        self.share.sqrt()
    }

    fn is_at(&self, center: f64) -> bool {
        (self.ratio - center).abs() <= self.reach.max(LEAST_TOLERANCE)
    }
}

/// What did not change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Remainder {
    /// Everything but these functions.
    AllBut(FxHashSet<u32>),
    /// Shares do not tell.
    Unclear,
}

/// Finds it. `absolute`: the logarithm of the new whole cost divided by the old one.
pub(crate) fn unchanged(rows: &[ShareRatio], absolute: f64) -> Remainder {
    let weight = |rows: &[ShareRatio]| rows.iter().map(ShareRatio::weight).sum::<f64>();
    let all = weight(rows);
    let mut groups: Vec<(f64, Vec<ShareRatio>)> = Vec::new();
    let mut left = rows.to_vec();
    while !left.is_empty() {
        let at = |center: f64| -> Vec<ShareRatio> {
            left.iter().filter(|row| row.is_at(center)).copied().collect()
        };
        let groups_of_rows = left.iter().map(|row| at(row.ratio));
        let group = groups_of_rows.max_by(|a, b| weight(a).total_cmp(&weight(b))).unwrap_or_default();
        let members: FxHashSet<u32> = group.iter().map(|row| row.function).collect();
        left.retain(|row| !members.contains(&row.function));
        groups.push((weight(&group), group));
    }
    let Some((best, _)) = groups.first() else { return Remainder::AllBut(FxHashSet::default()) };
    let is_clear = *best >= MAJORITY * all && groups.get(1).is_none_or(|(second, _)| *second < RIVAL * best);
    let chosen = match is_clear {
        true => Some(0),
        false => least_changed(&groups, LEAST_OF_BEST * best, absolute),
    };
    let Some(chosen) = chosen else { return Remainder::Unclear };
    let others = groups.iter().enumerate().filter(|(at, _)| *at != chosen);
    Remainder::AllBut(others.flat_map(|(_, (_, group))| group.iter().map(|row| row.function)).collect())
}

/// The group whose absolute cost changed clearly less than that of all others of at least this
/// weight.
fn least_changed(groups: &[(f64, Vec<ShareRatio>)], least: f64, absolute: f64) -> Option<usize> {
    let change = |group: &[ShareRatio]| {
        let share: f64 = group.iter().map(|row| row.share).sum();
        let ratio = group.iter().map(|row| row.share * row.ratio).sum::<f64>() / share;
        (ratio + absolute).abs()
    };
    let candidates = groups.iter().enumerate().filter(|(_, (weight, _))| *weight >= least);
    let mut changes: Vec<(f64, usize)> = candidates.map(|(at, (_, group))| (change(group), at)).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    match &changes[..] {
        [(_, only)] => Some(*only),
        [(first, at), (second, _), ..] if *first < CLEARLY_LESS * second => Some(*at),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions that changed, of their costs on both sides and the whole cost of both.
    fn changed(costs: &[(f64, f64)], wholes: (f64, f64)) -> Remainder {
        let sum = |side: fn(&(f64, f64)) -> f64| costs.iter().map(side).sum::<f64>();
        let (old, new) = (sum(|costs| costs.0), sum(|costs| costs.1));
        let row = |(function, (before, after)): (u32, &(f64, f64))| ShareRatio {
            function,
            ratio: (after / new / (before / old)).ln(),
            reach: 0.01,
            share: before / old,
        };
        let rows: Vec<ShareRatio> = (0..).zip(costs).map(row).collect();
        unchanged(&rows, (wholes.1 / wholes.0).ln())
    }

    fn all_but(functions: &[u32]) -> Remainder {
        Remainder::AllBut(functions.iter().copied().collect())
    }

    /// Checks that one function that changed is found, whatever part of the cost it has, where the
    /// whole cost does not tell anything.
    #[test]
    fn one_function_that_changed() {
        let alike = (1.0, 1.0);
        assert_eq!(changed(&[(50.0, 50.0), (30.0, 30.0), (20.0, 20.0)], alike), all_but(&[]));
        assert_eq!(changed(&[(50.0, 25.0), (30.0, 30.0), (10.0, 10.0), (8.0, 8.0)], alike), all_but(&[0]));
        assert_eq!(changed(&[(50.0, 50.0), (30.0, 30.0), (10.0, 20.0), (8.0, 8.0)], alike), all_but(&[2]));
        assert_eq!(changed(&[], alike), all_but(&[]));
    }

    /// Checks that the whole cost decides between two halves, and that nothing is known where it
    /// does not.
    #[test]
    fn halves_need_the_whole_cost() {
        let halves = [(50.0, 25.0), (50.0, 50.0)];
        assert_eq!(changed(&halves, (100.0, 75.0)), all_but(&[0]));
        assert_eq!(changed(&halves, (100.0, 150.0)), all_but(&[1]));
        assert_eq!(changed(&halves, (100.0, 106.0)), Remainder::Unclear);
        let thirds = [(40.0, 48.0), (30.0, 24.0), (30.0, 30.0)];
        assert_eq!(changed(&thirds, (100.0, 102.0)), all_but(&[0, 1]));
    }
}
