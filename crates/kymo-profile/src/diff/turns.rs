//! Runs that were made in turns: the runs of a turn stood beside each other in time, so that what
//! changes slowly about the machine was alike for both.
use super::run::RunSums;

/// With fewer turns, knowing them is worth less than the degrees of freedom that they cost.
const FEWEST_TURNS: usize = 6;

/// The runs of each turn: places in `old` and `new`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turns(Vec<(usize, usize)>);

impl Turns {
    /// The turns of both sides. `None`: the runs were made in another way, on several machines, or
    /// they are too few.
    ///
    /// Only when runs were made decides, not what they cost: so knowing it makes no difference more
    /// probable where there is none.
    pub(crate) fn of(old: &[RunSums], new: &[RunSums]) -> Option<Turns> {
        if old.len() != new.len() || old.len() < FEWEST_TURNS {
            return None;
        }
        let side = |runs: &[RunSums], is_new: bool| -> Vec<_> {
            let of_run = |(at, run): (usize, &RunSums)| (run.facts.first_ns, run.facts.last_ns, is_new, at);
            runs.iter().enumerate().map(of_run).collect()
        };
        let mut runs = [side(old, false), side(new, true)].concat();
        runs.sort_unstable();
        let host = &old[0].facts.host;
        let is_one_machine = !host.is_empty() && old.iter().chain(new).all(|run| run.facts.host == *host);
        let is_one_by_one = runs.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if !is_one_machine || !is_one_by_one {
            return None;
        }
        let turn = |pair: &[(u64, u64, bool, usize)]| match pair {
            [(.., false, old), (.., true, new)] | [(.., true, new), (.., false, old)] => Some((*old, *new)),
            _ => None,
        };
        runs.chunks(2).map(turn).collect::<Option<Vec<_>>>().map(Turns)
    }

    /// The values of both sides by turn.
    pub(crate) fn values<'a>(
        &'a self,
        old: &'a [f64],
        new: &'a [f64],
    ) -> impl Iterator<Item = (f64, f64)> + Clone + 'a {
        self.0.iter().map(|(of_old, of_new)| (old[*of_old], new[*of_new]))
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
        let turns = Turns::of(&old, &new).expect("turns");
        assert_eq!(turns.0, [(0, 0), (1, 1), (4, 4), (3, 3), (2, 2), (5, 5)]);
        let values = turns.values(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
        assert_eq!(values.map(|(old, new)| new - old).collect::<Vec<_>>(), [10.0; 6]);
    }

    /// Checks what is no series of turns: one side after the other, runs at the same time, sides of
    /// different length, few runs, and runs of several machines or of one that is not named.
    #[test]
    fn other_orders_are_no_turns() {
        let old = side(&[0, 2, 4, 6, 8, 10], "a");
        let of = |begins: &[u64], host: &str| Turns::of(&old, &side(begins, host));
        assert!(of(&[1, 3, 5, 7, 9, 11], "a").is_some());
        assert_eq!(of(&[11, 12, 13, 14, 15, 16], "a"), None);
        assert_eq!(of(&[0, 2, 4, 6, 8, 10], "a"), None);
        assert_eq!(of(&[1, 3, 5, 7, 9], "a"), None);
        assert_eq!(of(&[1, 3, 5, 7, 9, 11], "b"), None);
        assert_eq!(Turns::of(&old[..5], &side(&[1, 3, 5, 7, 9], "a")), None);
        assert_eq!(Turns::of(&side(&[0, 2, 4, 6, 8, 10], ""), &side(&[1, 3, 5, 7, 9, 11], "")), None);
    }
}
