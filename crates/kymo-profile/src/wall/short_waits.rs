//! Waits that have no rows of their own: what they were for, and where.
//!
//! A row has the sums of up to three places, each with the call; what was elsewhere counts with
//! the largest of them, and is told as an estimate. A place is a number. Its stack is that of a row
//! whose own wait was there, of any thread of the process: threads that only wait shortly, or live
//! shortly, have no rows with stacks.
use super::state::{self, WaitCall};
use super::{PlaceWaits, State, WaitRow, Wall, is_ready};
use crate::chains::ChainId;
use rustc_hash::FxHashMap;

/// What waits without rows of their own were for, and the wait at whose place they count; `None`:
/// nothing tells the place.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortPlace {
    pub(super) state: State,
    pub(super) wait: Option<usize>,
    /// So much of their time may have been for something else, ns.
    pub(super) estimated_ns: u64,
}

impl ShortPlace {
    pub(super) const UNKNOWN: ShortPlace = ShortPlace { state: State::Unknown, wait: None, estimated_ns: 0 };
}

impl WaitRow {
    /// Whether its thread has ended, and does not wait.
    pub(super) fn is_over(&self) -> bool {
        self.is_end && self.blocked_ns == 0 && self.task_state != 0
    }
}

impl Wall {
    /// For each place of a process a wait there, whose stack is known.
    pub(super) fn waits_at_places(&self) -> FxHashMap<(i32, u64), usize> {
        let mut known = FxHashMap::default();
        for (wait, row) in self.waits.iter().enumerate() {
            let Some(place) = row.place.filter(|_| !row.is_end && !row.is_preempted()) else {
                continue;
            };
            if self.frames(row.chain, false).next().is_some() {
                known.entry((row.thread.0, place)).or_insert(wait);
            }
        }
        known
    }

    /// Gives waits without stacks that of another one at the same place. Before Linux 6.16 few
    /// waits have stacks.
    pub(super) fn add_stacks_of_places(&mut self) {
        let at_places = self.waits_at_places();
        for at in 0..self.waits.len() {
            let row = self.waits[at];
            let Some(place) = row.place.filter(|_| !row.is_end && !row.is_preempted()) else { continue };
            let has_none =
                [false, true].into_iter().all(|kernel| self.frames(row.chain, kernel).next().is_none());
            if has_none && let Some(known) = at_places.get(&(row.thread.0, place)) {
                self.waits[at].chain = self.waits[*known].chain;
            }
        }
    }

    /// What the short waits of each row were for: by their place, else by the last wait of the
    /// thread in their call, else by the call alone, else by the row's own wait or the one before.
    pub(super) fn short_places(&self) -> Vec<[ShortPlace; 3]> {
        let at_places = self.waits_at_places();
        let mut last = FxHashMap::default();
        let mut of_calls = FxHashMap::default();
        let short = |(wait, row): (usize, &WaitRow)| {
            let state = self.state(wait);
            let before: State = last.get(&row.thread).copied().unwrap_or(State::Unknown);
            let is_wait = !row.is_over() && !is_ready(state);
            if is_wait && !row.is_end {
                last.insert(row.thread, state);
            }
            if is_wait {
                of_calls.insert((row.thread, row.syscall), (state, Some(wait)));
            }
            let place = |short: PlaceWaits, mixed_ns: u64| {
                let by_place = || {
                    let at = *at_places.get(&(row.thread.0, short.place?))?;
                    Some((self.state(at), Some(at)))
                };
                let same_call = short.call.map(|call| {
                    let by_call = || (self.state_of_call(call), None);
                    let of_thread = || of_calls.get(&(row.thread, call)).copied();
                    by_place().or_else(of_thread).unwrap_or_else(by_call)
                });
                match same_call {
                    None | Some((State::Unknown, _)) => {
                        let estimate = if is_wait && !row.is_end { state } else { before };
                        let unknown = Some(()).filter(|()| estimate == State::Unknown);
                        let (state, wait) =
                            unknown.and_then(|()| by_place()).unwrap_or((estimate, Some(wait)));
                        let estimated_ns = if state == State::Unknown { 0 } else { short.blocked_ns };
                        ShortPlace { state, wait, estimated_ns }
                    }
                    Some((state, wait)) => ShortPlace { state, wait, estimated_ns: mixed_ns },
                }
            };
            let [first, second, third] = row.short();
            [place(first, row.short_mixed_ns), place(second, 0), place(third, 0)]
        };
        self.waits.iter().enumerate().map(short).collect()
    }

    /// What waits in a call are for, if nothing else is known of them.
    fn state_of_call(&self, number: i64) -> State {
        let call = WaitCall { number, operation: 0, is_arm: self.is_arm, is_unfinished: true };
        state::of_wait(1, call, std::iter::empty(), std::iter::empty())
    }

    /// Whether the short waits of a row at the place of this number were idle: those that were for
    /// the same as its own.
    pub(super) fn is_short_idle(&self, wait: usize, number: usize) -> bool {
        let may_be = self.idle.get(wait).is_some_and(|idle| idle.short);
        may_be && self.short(wait, number).0 == self.state(wait)
    }

    /// What the short waits of a row at the place of this number were for, and where.
    pub(super) fn short(&self, wait: usize, number: usize) -> (State, ChainId) {
        let ShortPlace { state, wait: place, .. } = self.short_place(wait, number);
        (state, place.and_then(|at| self.waits.get(at)).map_or(self.no_stack, |row| row.chain))
    }

    pub(super) fn short_place(&self, wait: usize, number: usize) -> ShortPlace {
        let known = self.short.get(wait).and_then(|places| places.get(number));
        known.copied().unwrap_or(ShortPlace::UNKNOWN)
    }
}
