//! Decides when a FINISHED_ROUND marker may be written.
//!
//! A reader that meets a marker delivers everything up to the latest time that it had seen at the
//! *previous* marker. So between two markers every ring must have been emptied up to a head that
//! was read after the first of them: then nothing older can follow the second.
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the round that is running, read by drains and advanced by the writer.
#[derive(Debug, Default)]
pub(crate) struct RoundNumber(AtomicU64);

impl RoundNumber {
    /// The round to tag a drain with; to be read before the ring's head.
    pub(crate) fn now(&self) -> u64 {
        // Acquire: the head that is read next is not older than the marker of this round.
        self.0.load(Ordering::Acquire)
    }
}

/// The writer's view: which rings were emptied in the running round.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    seen: Vec<bool>,
    missing: usize,
    now: u64,
}

impl Rounds {
    /// Rounds over this many rings.
    pub(crate) fn new(rings: usize) -> Rounds {
        Rounds { seen: vec![false; rings], missing: rings, now: 0 }
    }

    /// A ring's bytes up to a head that was read in `round` have been written; true if a marker is
    /// due.
    pub(crate) fn drained(&mut self, ring: usize, round: u64) -> bool {
        if round == self.now
            && let Some(seen) = self.seen.get_mut(ring)
            && !std::mem::replace(seen, true)
        {
            self.missing -= 1;
        }
        self.missing == 0
    }

    /// The marker has been written: the next round begins.
    pub(crate) fn next(&mut self, number: &RoundNumber) {
        self.seen.fill(false);
        self.missing = self.seen.len();
        self.now += 1;
        // Release: pairs with `RoundNumber::now`.
        number.0.store(self.now, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{RoundNumber, Rounds};
    use proptest::prelude::*;

    /// A drain as the test plays it: reads the round, takes what was produced until then, hands it
    /// over later.
    #[derive(Clone, Copy, Debug)]
    enum RoundStep {
        Produce(usize),
        Drain(usize),
        Write(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<RoundStep>> {
        let step = prop_oneof![
            (0..3usize).prop_map(RoundStep::Produce),
            (0..3usize).prop_map(RoundStep::Drain),
            (0..3usize).prop_map(RoundStep::Write),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        /// Checks, for any interleaving of three rings, that a reader which flushes at each marker
        /// up to the previous marker's latest time never meets an older record afterwards.
        #[test]
        fn nothing_late(steps in steps()) {
            let (number, mut rounds) = (RoundNumber::default(), Rounds::new(3));
            let mut clock = 0u64;
            let mut rings: [Vec<u64>; 3] = Default::default();
            let mut queues: [std::collections::VecDeque<(Vec<u64>, u64)>; 3] = Default::default();
            let (mut latest, mut at_previous_marker, mut flushed) = (0u64, 0u64, 0u64);
            for step in steps {
                match step {
                    RoundStep::Produce(ring) => {
                        clock += 1;
                        rings[ring].push(clock);
                    }
                    RoundStep::Drain(ring) => {
                        let round = number.now();
                        queues[ring].push_back((std::mem::take(&mut rings[ring]), round));
                    }
                    RoundStep::Write(ring) => {
                        let Some((times, round)) = queues[ring].pop_front() else { continue };
                        for time in times {
                            prop_assert!(time > flushed, "{time} is late, {flushed} was flushed");
                            latest = latest.max(time);
                        }
                        if rounds.drained(ring, round) {
                            flushed = at_previous_marker;
                            at_previous_marker = latest;
                            rounds.next(&number);
                        }
                    }
                }
            }
        }
    }
}
