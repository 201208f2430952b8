//! How long an answer of the agent is waited for.
use crate::proc;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often it is looked who has a CPU.
const LOOK: Duration = Duration::from_millis(250);
/// So long threads may be ready without a CPU, for one question: as long as the agent waits for
/// those.
const MOST_STARVED: Duration = Duration::from_secs(60);
/// Threads that are looked at, besides the agent's: the first ones.
const MOST_THREADS: usize = 64;

/// The time that is left for an answer. It is not spent while the agent's thread, or one that it
/// may wait for, is ready and has no CPU: on a busy machine that takes seconds, and no agent is
/// silent for that.
#[derive(Debug)]
pub(super) struct Patience {
    left: Duration,
    /// What may still be waited for threads without a CPU.
    starved: Duration,
    looked: Instant,
    /// The process, where its threads are known.
    pid: Option<i32>,
    /// How long its threads had run at the last look, those that were ready then.
    ran: HashMap<i32, u64>,
}

impl Patience {
    /// With the agent in this process.
    pub(super) fn with(pid: Option<i32>, limit: Duration) -> Patience {
        let (looked, ran) = (Instant::now(), HashMap::new());
        Patience { left: limit, starved: MOST_STARVED, looked, pid, ran }
    }

    /// All time counts.
    pub(super) fn strict(limit: Duration) -> Patience {
        Patience::with(None, limit)
    }

    /// So long may be waited before the next look.
    pub(super) fn slice(&self) -> Duration {
        self.left.min(LOOK)
    }

    /// Whether it is spent. To be called after each [`slice`](Patience::slice).
    pub(super) fn is_over(&mut self) -> bool {
        let since = self.looked.elapsed();
        if since >= LOOK || since >= self.left {
            self.look(since);
        }
        self.left.is_zero()
    }

    /// At least so much is left from now on.
    pub(super) fn renew(&mut self, least: Duration) {
        self.looked = Instant::now();
        self.left = self.left.max(least);
    }

    fn look(&mut self, since: Duration) {
        self.looked += since;
        let had = self.least_had(since);
        let starved = (since - had).min(self.starved);
        self.starved -= starved;
        self.left = self.left.saturating_sub(since - starved);
    }

    /// How much of this time each thread had that was ready at both ends of it: the least of all.
    fn least_had(&mut self, since: Duration) -> Duration {
        let Some(pid) = self.pid else { return since };
        let before = std::mem::take(&mut self.ran);
        let mut tids = proc::tasks(pid).unwrap_or_default();
        // The agent's is one of the last.
        if tids.len() > 2 * MOST_THREADS {
            tids.drain(MOST_THREADS..tids.len() - MOST_THREADS);
        }
        let ready = tids.into_iter().filter(|&tid| proc::state(pid, tid) == Some('R'));
        self.ran.extend(ready.filter_map(|tid| Some((tid, proc::ran(pid, tid)?))));
        let had = self
            .ran
            .iter()
            .filter_map(|(tid, ran)| Some(Duration::from_nanos(ran.saturating_sub(*before.get(tid)?))));
        had.min().map_or(since, |had| had.min(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(patience: &mut Patience, time: Duration) -> bool {
        patience.looked -= time;
        patience.is_over()
    }

    /// Checks that time passes where nobody is known, or all sleep, and that what took its time
    /// elsewhere can be given back.
    #[test]
    fn time_passes() {
        let mut patience = Patience::strict(Duration::from_secs(10));
        assert!(!age(&mut patience, Duration::from_secs(4)) && patience.slice() == LOOK);
        assert!(age(&mut patience, Duration::from_secs(7)) && patience.slice().is_zero());
        patience.renew(Duration::from_secs(1));
        assert!(!patience.is_over());
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id() as i32;
        while proc::state(pid, pid) != Some('S') {
            std::thread::yield_now();
        }
        let mut patience = Patience::with(Some(pid), Duration::from_secs(10));
        assert!(!age(&mut patience, Duration::from_secs(6)));
        assert!(age(&mut patience, Duration::from_secs(6)));
        sleeper.kill().and_then(|()| sleeper.wait()).unwrap();
    }

    /// Checks that a thread that is ready and does not run spends nothing, but that this has an
    /// end, too. Here it has run as long as can be said, so it can run no longer.
    #[test]
    fn a_thread_without_a_cpu_is_not_silent() {
        // It ends by itself if the test does before.
        const LOOP: &str = "i=0; while [ $i -lt 100000000 ]; do i=$((i+1)); done";
        let mut busy = std::process::Command::new("sh").args(["-c", LOOP]).spawn().unwrap();
        let pid = busy.id() as i32;
        while proc::ran(pid, pid).is_none() {
            std::thread::yield_now();
        }
        let mut patience = Patience::with(Some(pid), Duration::from_secs(10));
        // The first look knows no thread yet.
        while patience.ran.is_empty() {
            assert!(!age(&mut patience, LOOK), "this kernel does not say how long threads ran");
        }
        let left = patience.left;
        let mut rounds = 0;
        while patience.left == left {
            patience.ran.values_mut().for_each(|ran| *ran = u64::MAX);
            assert!(!age(&mut patience, Duration::from_secs(5)));
            rounds += 1;
        }
        assert!(rounds >= MOST_STARVED.as_secs() / 5 - 1, "{rounds}");
        assert!(age(&mut patience, Duration::from_secs(20)));
        busy.kill().and_then(|()| busy.wait()).unwrap();
    }
}
