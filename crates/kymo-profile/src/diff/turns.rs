//! In which order runs were made: in turns, one side after the other, or mixed. The runs of a turn
//! stood beside each other in time, so that what changes slowly about the machine was alike for
//! both.
use super::run::RunSums;
use super::trend::{OrderedDifference, PlacedValue, TurnValues};

/// With fewer turns, knowing them is worth less than the degrees of freedom that they cost.
const FEWEST_TURNS: usize = 6;
/// Where one side comes later than the other by fewer places, a trend meets both alike.
const LEAST_DISTANCE: f64 = 0.99;

/// The place of each run in the order of all: 0 for the first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunOrder {
    old: Vec<f64>,
    new: Vec<f64>,
    /// The runs of each turn, as numbers of both sides, if they were made in turns.
    turns: Option<Vec<(usize, usize)>>,
}

impl RunOrder {
    /// The order of the runs of both sides. `None`: they were made at the same time, on several
    /// machines, or where no clock tells.
    ///
    /// Only when runs were made decides, not what they cost: so knowing it makes no difference more
    /// probable where there is none.
    pub(crate) fn of(old: &[RunSums], new: &[RunSums]) -> Option<RunOrder> {
        let side = |runs: &[RunSums], is_new: bool| -> Vec<_> {
            let of_run = |(at, run): (usize, &RunSums)| (run.facts.first_ns, run.facts.last_ns, is_new, at);
            runs.iter().enumerate().map(of_run).collect()
        };
        let mut runs = [side(old, false), side(new, true)].concat();
        runs.sort_unstable();
        let host = &old.first()?.facts.host;
        let is_one_machine = !host.is_empty() && old.iter().chain(new).all(|run| run.facts.host == *host);
        let is_one_by_one = runs.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if !is_one_machine || !is_one_by_one {
            return None;
        }
        let mut places = [vec![0.0; old.len()], vec![0.0; new.len()]];
        for (place, (.., is_new, at)) in (0..).zip(&runs) {
            places[usize::from(*is_new)][*at] = f64::from(place);
        }
        let turn = |pair: &[(u64, u64, bool, usize)]| match pair {
            [(.., false, old), (.., true, new)] | [(.., true, new), (.., false, old)] => Some((*old, *new)),
            _ => None,
        };
        let is_even = old.len() == new.len() && old.len() >= FEWEST_TURNS;
        let turns = is_even.then(|| runs.chunks(2).map(turn).collect::<Option<Vec<_>>>()).flatten();
        let [old, new] = places;
        Some(RunOrder { old, new, turns })
    }

    /// Whether the runs were made in turns.
    pub(crate) fn is_in_turns(&self) -> bool {
        self.turns.is_some()
    }

    /// The run of the other side that stands in the same turn.
    pub(crate) fn partner(&self, is_new: bool, run: usize) -> Option<usize> {
        let turns = self.turns.as_ref()?.iter();
        turns.copied().find_map(|(old, new)| match is_new {
            true => (new == run).then_some(old),
            false => (old == run).then_some(new),
        })
    }

    /// Whether all runs of one side were made before those of the other.
    pub(crate) fn is_one_after_other(&self) -> bool {
        let ends = |side: &[f64]| {
            side.iter().fold((f64::INFINITY, 0.0_f64), |(first, last), at| (first.min(*at), last.max(*at)))
        };
        let (old, new) = (ends(&self.old), ends(&self.new));
        old.1 < new.0 || new.1 < old.0
    }

    /// What the order says of the difference of the values of both sides, by run.
    pub(crate) fn difference(&self, old: &[f64], new: &[f64]) -> Option<OrderedDifference> {
        if let Some(turns) = &self.turns {
            let turn = |(of_old, of_new): &(usize, usize)| {
                (old[*of_old], new[*of_new], self.new[*of_new] - self.old[*of_old])
            };
            return OrderedDifference::in_turns(&turns.iter().map(turn).collect::<Vec<TurnValues>>());
        }
        let mean = |places: &[f64]| places.iter().sum::<f64>() / places.len() as f64;
        if (mean(&self.new) - mean(&self.old)).abs() < LEAST_DISTANCE {
            return None;
        }
        let placed = |places: &[f64], values: &[f64]| -> Vec<PlacedValue> {
            places.iter().copied().zip(values.iter().copied()).collect()
        };
        OrderedDifference::by_place(&placed(&self.old, old), &placed(&self.new, new))
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::RunFacts;
    use super::*;

    /// Runs of a second that began at these seconds.
    fn side(begins: &[u64], host: &str) -> Vec<RunSums> {
        let run = |begin: &u64| {
            let (first_ns, last_ns) = (begin * 1_000_000_000, begin * 1_000_000_000 + 999_999_999);
            let facts = RunFacts { first_ns, last_ns, host: host.into(), ..RunFacts::default() };
            RunSums { facts, ..RunSums::default() }
        };
        begins.iter().map(run).collect()
    }

    /// Checks that turns are known by time alone, whichever side was first in each, and in whatever
    /// order the recordings are named.
    #[test]
    fn turns_are_known_by_time() {
        let (old, new) = (side(&[0, 3, 9, 6, 4, 10], "a"), side(&[1, 2, 8, 7, 5, 11], "a"));
        let order = RunOrder::of(&old, &new).expect("an order");
        assert_eq!(order.turns, Some(vec![(0, 0), (1, 1), (4, 4), (3, 3), (2, 2), (5, 5)]));
        assert_eq!((order.partner(true, 4), order.partner(false, 2)), (Some(4), Some(2)));
        assert!(!order.is_one_after_other());
    }

    /// Checks what is no series of turns: one side after the other, sides of different length and
    /// few runs; and what has no order: runs at the same time, and those of several machines or of
    /// one that is not named.
    #[test]
    fn other_orders_are_no_turns() {
        let old = side(&[0, 2, 4, 6, 8, 10], "a");
        let of = |begins: &[u64], host: &str| RunOrder::of(&old, &side(begins, host));
        let in_turns = |begins: &[u64]| of(begins, "a").map(|order| order.is_in_turns());
        assert_eq!(in_turns(&[1, 3, 5, 7, 9, 11]), Some(true));
        assert_eq!(in_turns(&[11, 12, 13, 14, 15, 16]), Some(false));
        assert_eq!(in_turns(&[1, 3, 5, 7, 9]), Some(false));
        assert!(of(&[11, 12, 13], "a").is_some_and(|order| order.is_one_after_other()));
        assert_eq!(of(&[0, 2, 4, 6, 8, 10], "a"), None);
        assert_eq!(of(&[1, 3, 5, 7, 9, 11], "b"), None);
        let few = RunOrder::of(&old[..5], &side(&[1, 3, 5, 7, 9], "a"));
        assert!(few.is_some_and(|order| !order.is_in_turns()));
        assert_eq!(RunOrder::of(&side(&[0, 2, 4, 6, 8, 10], ""), &side(&[1, 3, 5, 7, 9, 11], "")), None);
    }
}
