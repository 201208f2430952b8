//! The critical path of a thread: backwards over wake-ups, what decided how long it took.
use super::SiteId;
use super::needed::{by_thread, span};
use super::{End, State, ThreadTime, Wall};
use rustc_hash::FxHashMap;

/// So many threads may have woken each other at one moment.
const MOST_HOPS: u32 = 64;
/// So many waits that only their wake-ups tell may follow each other.
const MOST_WAKEUPS: usize = 64;

/// A stretch of the path: a thread in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// The thread.
    pub tid: i32,
    /// What it did.
    pub state: State,
    /// From when on, ns.
    pub begin_ns: u64,
    /// Until when, ns.
    pub end_ns: u64,
    /// The wait, if it is one.
    pub wait: Option<usize>,
}

/// The steps of threads of one name in one state and at one site, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// The thread that has most of it.
    pub tid: i32,
    /// How many threads.
    pub threads: usize,
    /// What it did.
    pub state: State,
    /// Where it waited; `None` where it ran.
    pub site: Option<SiteId>,
    /// How long, ns: what could be gained at most.
    pub time_ns: u64,
}

/// What a thread did between two waits that have rows of their own, ns, in no known order.
#[derive(Clone, Copy, Debug, Default)]
struct Between {
    run: u64,
    ready: u64,
    /// Its short waits by place, what they were for, and the row that tells of them.
    waited: Option<[(u64, State, Option<usize>); 3]>,
}

impl Between {
    fn is_empty(&self) -> bool {
        let waited = self.waited.iter().flatten().map(|(time, ..)| *time);
        waited.chain([self.run, self.ready]).all(|time| time == 0)
    }

    /// The steps of this span, the latest first: each has its share of it.
    fn steps(self, (begin, end): (u64, u64), mut step: impl FnMut(State, u64, u64, Option<usize>)) {
        let places = self.waited.unwrap_or([(0, State::Running, None); 3]);
        let waited: u128 = places.iter().map(|(time, ..)| u128::from(*time)).sum();
        let all = u128::from(self.run) + u128::from(self.ready) + waited;
        let span = end.saturating_sub(begin);
        let share = |part: u64| match all {
            0 => 0,
            all => (u128::from(span) * u128::from(part) / all) as u64,
        };
        let ready_begin = end - share(self.ready).min(span);
        step(State::Runnable, ready_begin, end, places[0].2);
        let mut now = ready_begin;
        for (time, state, wait) in places {
            let waited_begin = now - share(time).min(now - begin.min(now));
            step(state, waited_begin, now, wait);
            now = waited_begin;
        }
        step(State::Running, begin, now, None);
    }
}

/// Where paths go: the waits of each thread.
pub(super) struct Paths<'a> {
    wall: &'a Wall,
    threads: FxHashMap<i32, Vec<usize>>,
}

impl<'a> Paths<'a> {
    pub(super) fn of(wall: &'a Wall) -> Paths<'a> {
        Paths { wall, threads: by_thread(&wall.waits) }
    }

    /// When a thread was made, or first seen, ns; 0 if it has no rows.
    fn born(&self, tid: i32) -> u64 {
        let first = self.threads.get(&tid).and_then(|list| self.wall.waits.get(*list.first()?));
        first.map_or(0, |row| row.time_ns.saturating_sub(row.total_ns()))
    }

    /// The path that ends with this thread at `end_ns`, back to `begin_ns`; the latest step first.
    /// The steps cover that time without gaps.
    ///
    /// Where a thread waited and another one woke it, the path goes on in that other one; where
    /// none did, or one that has no rows, the wait itself is a step.
    pub(super) fn critical_path(&self, tid: i32, begin_ns: u64, end_ns: u64) -> Vec<PathStep> {
        let Paths { wall, threads } = self;
        let (mut tid, mut now, mut hops) = (tid, end_ns, 0);
        let mut steps: Vec<PathStep> = Vec::new();
        let mut waiters = Vec::new();
        let mut step = |tid, state, begin: u64, end: u64, wait| {
            let begin_ns = begin.max(begin_ns);
            if begin_ns < end {
                steps.push(PathStep { tid, state, begin_ns, end_ns: end, wait });
            }
        };
        while now > begin_ns {
            // The last of its waits that had begun by then.
            let list = threads.get(&tid).map_or(&[][..], Vec::as_slice);
            let after = list.partition_point(|at| span(&wall.waits[*at]).0 < now);
            let Some(&at) = after.checked_sub(1).and_then(|before| list.get(before)) else {
                let parts = wall.between_from(list);
                // Before it was made the path is that of the thread that waited for it.
                let waiter = waiters.pop();
                let since = waiter.map_or(begin_ns, |_| self.born(tid).clamp(begin_ns, now));
                parts.steps((since, now), |state, begin, end, wait| step(tid, state, begin, end, wait));
                let Some(waiter) = waiter.filter(|_| since > begin_ns) else { break };
                (tid, now) = (waiter, since);
                continue;
            };
            let row = &wall.waits[at];
            let (begun, woken) = span(row);
            // What the next row says of the time before its wait; in which order is not known.
            let parts = wall.between_from(list.get(after..).unwrap_or_default());
            parts.steps((row.time_ns, now), |state, begin, end, wait| step(tid, state, begin, end, wait));
            let state = wall.state(at);
            let ready = if state == State::Throttled { state } else { State::Runnable };
            step(tid, ready, woken, now.min(row.time_ns), Some(at));
            now = now.min(woken);
            if let End::Thread(waker, _) = wall.end(at)
                && waker != tid
                && threads.contains_key(&waker)
                && now == woken
                && begun < woken
                && self.born(waker) < now
                && hops < MOST_HOPS
            {
                waiters.push(tid);
                tid = waker;
                hops += 1;
                // A moment earlier: the waker ran.
                let ran = threads[&tid].partition_point(|other| span(&wall.waits[*other]).0 < now);
                let before = ran.checked_sub(1).map(|index| &wall.waits[threads[&tid][index]]);
                if before.is_none_or(|other| other.time_ns <= now) {
                    continue;
                }
                // It is in a wait of its own: an interrupt came in it, and ended both.
                tid = row.thread.1;
                waiters.pop();
            }
            step(tid, state, begun, now, Some(at));
            (now, hops) = (now.min(begun), 0);
        }
        steps
    }
}

/// Whether a thread does nothing so that others could go on without.
fn sleeps(state: State) -> bool {
    matches!(state, State::Timer | State::Poll | State::Child | State::Stopped | State::Unknown)
}

impl Wall {
    /// What the thread of this row did before its wait, since its row before.
    fn between(&self, wait: usize) -> Between {
        let row = &self.waits[wait];
        let waited = row.short().map(|place| place.blocked_ns);
        let waited = std::array::from_fn(|number| {
            let short = self.short_place(wait, number);
            (waited[number], short.state, short.wait)
        });
        Between { run: row.run_ns, ready: row.all_short_runnable_ns(), waited: Some(waited) }
    }

    /// The same of the first of these rows, which are of one thread. A wait that only its wake-up
    /// tells knows nothing of the time before it: that is in the sums of a row behind it.
    fn between_from(&self, rows: &[usize]) -> Between {
        let mut near = rows.iter().take(MOST_WAKEUPS).map(|row| self.between(*row));
        near.find(|between| !between.is_empty()).unwrap_or_default()
    }

    /// The path that ends with this thread at `end_ns`, back to `begin_ns`; the latest step first.
    pub fn critical_path(&self, tid: i32, begin_ns: u64, end_ns: u64) -> Vec<PathStep> {
        Paths::of(self).critical_path(tid, begin_ns, end_ns)
    }

    /// The path of a thread over all its time, and how long that is. If none is named: of the first
    /// thread of the process with most time, or of the busiest one where that path is mostly its
    /// own sleep; of no thread that collects garbage.
    pub(super) fn path_of_interest(
        &self,
        threads: &[ThreadTime],
        tid: Option<i32>,
    ) -> Option<(i32, u64, Vec<PathStep>)> {
        if tid.is_some() {
            return self.path_of_all_time(tid?);
        }
        let threads: Vec<ThreadTime> = match self.divide_collectors(threads.to_vec()) {
            (collectors, others) if others.is_empty() => collectors,
            (_, others) => others,
        };
        let first = || threads.iter().filter(|thread| thread.thread.0 == thread.thread.1);
        let busy = |thread: &&ThreadTime| thread.total_ns().saturating_sub(thread.idle_ns);
        let longest = || first().max_by_key(|thread| (busy(thread), std::cmp::Reverse(thread.thread)));
        let path = self.path_of_all_time(longest().or(threads.first())?.thread.1)?;
        let own = |step: &&PathStep| step.tid == path.0 && sleeps(step.state);
        let asleep: u64 = path.2.iter().filter(own).map(|step| step.end_ns - step.begin_ns).sum();
        let active = |thread: &&ThreadTime| -> u64 {
            let states = State::ALL.into_iter().filter(|state| !sleeps(*state));
            let all = states.fold(0, |sum: u64, state| sum.saturating_add(thread.in_state(state)));
            all.saturating_sub(thread.in_state(State::Condition).min(thread.idle_ns))
        };
        let busiest =
            || threads.iter().max_by_key(|thread| (active(thread), std::cmp::Reverse(thread.thread)));
        match busiest().filter(|thread| asleep > path.1 / 2 && active(thread) > 0) {
            Some(thread) => self.path_of_all_time(thread.thread.1),
            None => Some(path),
        }
    }

    fn path_of_all_time(&self, tid: i32) -> Option<(i32, u64, Vec<PathStep>)> {
        let mut rows = self.waits.iter().filter(|row| row.thread.1 == tid);
        let first = rows.next()?;
        let last = rows.next_back().unwrap_or(first);
        let begin = first.time_ns.saturating_sub(first.total_ns());
        let total = last.time_ns.checked_sub(begin)?;
        Some((tid, total, self.critical_path(tid, begin, last.time_ns)))
    }

    /// The same, summed by state, site and name of the thread, the longest first.
    pub fn critical_parts(&self, steps: impl IntoIterator<Item = PathStep>) -> Vec<PathPart> {
        let mut sums: FxHashMap<(String, State, Option<SiteId>), FxHashMap<i32, u64>> = FxHashMap::default();
        for step in steps {
            let site = step.wait.map(|wait| self.sites.of(self.waits[wait].chain));
            let of_threads = sums.entry((self.thread_name(step.tid), step.state, site)).or_default();
            let time = of_threads.entry(step.tid).or_default();
            *time = time.saturating_add(step.end_ns - step.begin_ns);
        }
        let part = |((_, state, site), of_threads): (_, FxHashMap<i32, u64>)| PathPart {
            tid: of_threads.iter().max_by_key(|(tid, time)| (**time, **tid)).map_or(0, |(tid, _)| *tid),
            threads: of_threads.len(),
            state,
            site,
            time_ns: of_threads.values().fold(0, |sum, time| sum.saturating_add(*time)),
        };
        let mut parts: Vec<PathPart> = sums.into_iter().map(part).collect();
        parts.sort_unstable_by_key(|part| (std::cmp::Reverse(part.time_ns), part.tid, part.state, part.site));
        parts
    }
}
