//! Sums of rows: the time of each thread by state, and of each place by state.
use super::SiteId;
use super::needed::span;
use super::{End, State, WaitRow, Wall};
use crate::chains::ChainId;
use rustc_hash::FxHashMap;
use std::iter;

/// Where the time of a thread went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Process and thread.
    pub thread: (i32, i32),
    /// ns in each state, in the order of [`State::ALL`].
    pub times: [u64; State::ALL.len()],
    /// Of those in which it waited, what was idle, ns.
    pub idle_ns: u64,
    /// How often it waited.
    pub waits: u64,
    /// How often it was preempted.
    pub preemptions: u64,
}

impl ThreadTime {
    /// ns in a state.
    pub fn in_state(&self, state: State) -> u64 {
        self.times[state as usize]
    }

    /// All of it, ns.
    pub fn total_ns(&self) -> u64 {
        self.times.iter().fold(0, |sum, time| sum.saturating_add(*time))
    }

    pub(super) fn add(&mut self, state: State, time: u64) {
        let known = &mut self.times[state as usize];
        *known = known.saturating_add(time);
    }
}

/// A place in the program where threads wait, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What for.
    pub state: State,
    /// Where.
    pub site: SiteId,
    /// Nobody waited for those that wait here.
    pub idle: bool,
    /// All time of all threads, ns.
    pub time_ns: u64,
    /// How many waits.
    pub waits: u64,
    /// The longest, ns; 0: none of them was recorded.
    pub longest_ns: u64,
    /// How many threads.
    pub threads: usize,
    /// What ended most of the time.
    pub ended_by: End,
}

/// The sum; a damaged recording has any numbers.
fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// The parts of a row: it ran, was blocked, and ready; and before that it waited shortly, and was
/// ready behind that, at each of its places.
pub(super) const PARTS: usize = 9;
/// Those of its short waits, by place: blocked, and ready.
pub(super) const SHORT_PARTS: [(usize, usize); 3] = [(3, 4), (5, 6), (7, 8)];

impl Wall {
    /// What a wait's row is divided into.
    pub(super) fn parts(&self, wait: usize) -> [(State, u64); PARTS] {
        let (row, state) = (&self.waits[wait], self.state(wait));
        let short = [0, 1, 2].map(|number| self.short(wait, number).0);
        let ready = if state == State::Throttled { state } else { State::Runnable };
        let blocked = if state == ready { short[0] } else { state };
        let mut states = [State::Runnable; PARTS];
        states[..3].copy_from_slice(&[State::Running, blocked, ready]);
        let mut times = [0; PARTS];
        times[..3].copy_from_slice(&[row.run_ns, row.blocked_ns, row.runnable_ns]);
        for ((place, state), (waits, ready)) in row.short().into_iter().zip(short).zip(SHORT_PARTS) {
            (states[waits], times[waits], times[ready]) = (state, place.blocked_ns, place.runnable_ns);
        }
        let times = self.latencies.as_ref().and_then(|rows| rows.get(wait)).copied().unwrap_or(times);
        std::array::from_fn(|part| (states[part], times[part]))
    }

    /// Where the time of each thread went, by process and thread.
    pub fn threads(&self) -> Vec<ThreadTime> {
        let mut threads: FxHashMap<(i32, i32), ThreadTime> = FxHashMap::default();
        for (index, row) in self.waits.iter().enumerate() {
            let thread = threads.entry(row.thread).or_default();
            thread.thread = row.thread;
            let parts = self.parts(index);
            for (state, time) in parts {
                thread.add(state, time);
            }
            let own = u64::from(row.blocked_ns > 0 || row.runnable_ns > 0);
            let (waits, preemptions) = if row.is_preempted() { (0, own) } else { (own, 0) };
            let [first, second, third] = row.short().map(|place| place.waits);
            thread.waits = sum([thread.waits, first, second, third, waits]);
            thread.preemptions = sum([thread.preemptions, row.short_preemptions, preemptions]);
            if self.is_idle(index) {
                let [first, second, third] = [0, 1, 2].map(|number| {
                    if self.is_short_idle(index, number) { parts[SHORT_PARTS[number].0].1 } else { 0 }
                });
                thread.idle_ns = sum([thread.idle_ns, parts[1].1, first, second, third]);
            }
        }
        let mut threads: Vec<ThreadTime> = threads.into_values().collect();
        threads.sort_unstable_by_key(|thread| thread.thread);
        threads
    }

    /// Where threads wait, the longest first, idle ones last.
    pub fn places(&self) -> Vec<Place> {
        #[derive(Default)]
        struct Sum {
            time_ns: u64,
            waits: u64,
            longest_ns: u64,
            threads: rustc_hash::FxHashSet<i32>,
            ended_by: FxHashMap<End, u64>,
        }
        let mut sums: FxHashMap<(State, SiteId, bool), Sum> = FxHashMap::default();
        for (index, row) in self.waits.iter().enumerate() {
            let site = self.sites.of(row.chain);
            let parts = self.parts(index);
            let [_, blocked, ready, ..] = parts;
            let site_of_short = |number| self.sites.of(self.short(index, number).1);
            let own = (self.is_idle(index), site, blocked, (row.blocked_ns, 1, self.end(index)));
            // Who ended short waits is not known.
            let short = row.short().into_iter().enumerate().map(|(number, place)| {
                let counts = (place.longest_ns.unwrap_or(0), place.waits, End::Unknown);
                let part = parts[SHORT_PARTS[number].0];
                (self.is_short_idle(index, number), site_of_short(number), part, counts)
            });
            for (idle, site, (state, time), (longest, waits, end)) in iter::once(own).chain(short) {
                if time == 0 {
                    continue;
                }
                let sum = sums.entry((state, site, idle)).or_default();
                sum.time_ns = sum.time_ns.saturating_add(time);
                sum.waits = sum.waits.saturating_add(waits);
                sum.longest_ns = sum.longest_ns.max(longest);
                sum.threads.insert(row.thread.1);
                let ended = sum.ended_by.entry(end).or_default();
                *ended = ended.saturating_add(time);
            }
            // Ready threads wait for a CPU, wherever they are: one place for each site, too.
            let short = [0, 1, 2].map(|number| (site_of_short(number), parts[SHORT_PARTS[number].1], 0));
            let ready = iter::once((site, ready, row.runnable_ns)).chain(short);
            for (site, (state, time), longest) in ready {
                if time > 0 {
                    let sum = sums.entry((state, site, false)).or_default();
                    sum.time_ns = sum.time_ns.saturating_add(time);
                    sum.waits = sum.waits.saturating_add(1);
                    sum.longest_ns = sum.longest_ns.max(longest);
                    sum.threads.insert(row.thread.1);
                }
            }
        }
        let place = |((state, site, idle), sum): (_, Sum)| {
            let known = sum.ended_by.into_iter().filter(|(end, _)| *end != End::Unknown);
            let most = known.max_by_key(|(end, time)| (*time, *end));
            Place {
                state,
                site,
                idle,
                time_ns: sum.time_ns,
                waits: sum.waits,
                longest_ns: sum.longest_ns,
                threads: sum.threads.len(),
                ended_by: most.map_or(End::Unknown, |(end, _)| end),
            }
        };
        let mut places: Vec<Place> = sums.into_iter().map(place).collect();
        places.sort_unstable_by_key(|place| {
            (place.idle, std::cmp::Reverse(place.time_ns), place.state, place.site)
        });
        places
    }

    /// The longest of the waits that a span stands for together, by its thread, end and stack, ns.
    pub(crate) fn longest_short_waits(&self) -> FxHashMap<(i32, u64, ChainId), u64> {
        let mut all = FxHashMap::default();
        for (index, row) in self.waits.iter().enumerate() {
            for (number, place) in row.short().iter().enumerate().filter(|(_, place)| place.waits > 1) {
                let Some(longest) = place.longest_ns else { continue };
                let key = (row.thread.1, span(row).0, self.short(index, number).1);
                let known = all.entry(key).or_insert(0);
                *known = longest.max(*known);
            }
        }
        all
    }

    /// For each wait the wake-up that ended it, if it has a row.
    pub(super) fn wakeups_of_waits(&self) -> Vec<Option<usize>> {
        let mut of_thread: FxHashMap<i32, Vec<usize>> = FxHashMap::default();
        for (at, wakeup) in self.wakeups.iter().enumerate() {
            of_thread.entry(wakeup.woken).or_default().push(at);
        }
        let find = |row: &WaitRow| {
            let list = of_thread.get(&row.thread.1)?;
            let after = list.partition_point(|at| self.wakeups[*at].time_ns <= row.time_ns);
            let at = *list.get(after.checked_sub(1)?)?;
            let begun = row.time_ns.saturating_sub(row.runnable_ns).saturating_sub(row.blocked_ns);
            (self.wakeups[at].time_ns >= begun).then_some(at)
        };
        self.waits.iter().map(find).collect()
    }
}
