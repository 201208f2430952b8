//! Which rate to try next, so that few recordings find the highest rate at which nothing is lost.
//!
//! The first try is as fast as the load can: where that loses nothing, the load is the ceiling, and nothing else needs to be tried. Else
//! the rate is somewhere below what was produced there, and is found by halving what is left.

/// Neighbouring rates that are closer than this are one: two recordings of the same rate differ as much.
const CLOSE: f64 = 1.15;
/// Below this nobody calls it a storm, samples per second and CPU.
const LEAST: u64 = 100;

/// How fast a load is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as it can.
    Free,
    /// So many samples per second on each CPU.
    PerCpu(u64),
}

/// The search for one kind of record.
#[derive(Clone, Debug)]
pub(super) struct Search {
    only: Option<Pace>,
    /// Highest rate that lost nothing.
    kept: Option<u64>,
    /// Lowest rate that lost something.
    lost: Option<u64>,
    tries: u32,
    most: u32,
    done: bool,
}

impl Search {
    /// At most `most` tries; only one, at this rate, if there is one.
    pub(super) fn new(most: u32, only: Option<u64>) -> Search {
        Search { only: only.map(Pace::PerCpu), kept: None, lost: None, tries: 0, most, done: false }
    }

    /// What to try next; `None`: enough is known, or enough was tried.
    pub(super) fn next(&self) -> Option<Pace> {
        if self.done || self.tries >= self.most {
            return None;
        }
        match (self.only, self.lost) {
            (Some(only), _) => Some(only),
            (None, None) => Some(Pace::Free),
            (None, Some(lost)) => {
                let kept = self.kept.unwrap_or(0);
                let rate = kept + (lost - kept) / 2;
                let close = self.kept.is_some_and(|kept| lost as f64 <= kept as f64 * CLOSE);
                (rate >= LEAST && rate > kept && !close).then_some(Pace::PerCpu(rate))
            }
        }
    }

    /// What came of the last try: so many samples per second and CPU were produced, and whether any was lost.
    pub(super) fn learn(&mut self, pace: Pace, produced: u64, lost: bool) {
        self.tries += 1;
        self.done = self.only.is_some() || (pace == Pace::Free && !lost);
        // What was produced may be less than what was asked for, and is what the recorder had to deal with.
        let rate = match pace {
            Pace::Free => produced,
            Pace::PerCpu(asked) => asked.min(produced.max(1)),
        };
        if lost {
            self.lost = Some(self.lost.map_or(rate, |before| before.min(rate)));
            // A rate that once lost something is not free of loss, whatever an earlier try said.
            self.kept = self.kept.filter(|&kept| kept < rate);
        } else {
            self.kept = Some(self.kept.map_or(rate, |before| before.max(rate)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Pace, Search};

    /// Asks and answers until the search has enough; what it found at last, and how often it asked. `most_kept`: the truth.
    fn find(most_kept: u64, most_offered: u64, tries: u32) -> (Option<u64>, u32) {
        let mut search = Search::new(tries, None);
        let mut asked = 0;
        while let Some(pace) = search.next() {
            let produced = match pace {
                Pace::Free => most_offered,
                Pace::PerCpu(rate) => rate.min(most_offered),
            };
            search.learn(pace, produced, produced > most_kept);
            asked += 1;
            assert!(asked <= tries, "more tries than permitted");
        }
        (search.kept, asked)
    }

    /// Checks that one try is enough where the load cannot offer what would be lost.
    #[test]
    fn load_is_the_ceiling() {
        assert_eq!(find(200_000, 100_000, 5), (Some(100_000), 1));
    }

    /// Checks that the truth is found from below, to within what counts as close, with enough tries, for truths all over the scale.
    #[test]
    fn found_from_below() {
        for truth in [250, 1000, 7777, 50_000, 99_000] {
            let (found, asked) = find(truth, 100_000, 20);
            let found = found.expect("a rate");
            assert!(
                found <= truth && truth as f64 <= found as f64 * super::CLOSE * 1.01,
                "{found} of {truth}"
            );
            assert!(asked <= 14, "{asked} tries");
        }
    }

    /// Checks that a recorder that always loses ends the search without a rate, and not only because tries ran out.
    #[test]
    fn never_free_of_loss() {
        let (found, asked) = find(0, 100_000, 50);
        assert_eq!(found, None);
        assert!(asked < 20, "{asked}");
    }

    /// Checks that a rate that was asked for is the only one that is tried.
    #[test]
    fn one_rate() {
        let mut search = Search::new(5, Some(1234));
        assert_eq!(search.next(), Some(Pace::PerCpu(1234)));
        search.learn(Pace::PerCpu(1234), 1300, true);
        assert_eq!(search.next(), None);
    }

    /// Checks that a loss at a rate takes back what an earlier recording of a higher one said.
    #[test]
    fn contradiction() {
        let mut search = Search::new(9, None);
        search.learn(Pace::Free, 1000, true);
        search.learn(Pace::PerCpu(500), 500, false);
        search.learn(Pace::PerCpu(750), 400, true);
        assert_eq!(search.kept, None);
        assert_eq!(search.next(), Some(Pace::PerCpu(200)));
    }
}
