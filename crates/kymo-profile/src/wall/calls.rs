//! Calls of a function: how long they took, what their threads did meanwhile, and what decided how
//! long that was.
use super::path::Paths;
use super::{PathPart, ThreadTime, Wall};
use kymo_data::Recording;

/// What the event of a function's returns is called behind the name of that of its calls.
const RETURN: &str = "%return";
/// What the names of events of functions begin with.
const PROBE: &str = "probe:";

/// The paths of calls have so many steps together, or little more.
const MOST_STEPS: usize = 20_000_000;

/// A call or a return, as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallHit {
    pub(super) thread: (i32, i32),
    pub(super) time_ns: u64,
    /// Where in the recording.
    pub(super) position: u64,
    pub(super) returns: bool,
}

/// A call that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Process and thread.
    pub thread: (i32, i32),
    /// When it began, ns.
    pub begin_ns: u64,
    /// When it returned, ns.
    pub end_ns: u64,
}

impl Call {
    /// How long it took.
    pub fn time_ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }
}

/// All calls of a function that returned; of those that lie in one another the outermost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The function, as it was asked for.
    pub function: String,
    /// In the order of threads and time.
    pub calls: Vec<Call>,
    /// In so many threads calls did not return in the recording.
    pub unfinished: u64,
}

impl Calls {
    /// Pairs calls with their returns. A return alone is of a call before the recording. A call
    /// whose return is missing (it was lost, or not observed yet) hides none of those that follow.
    pub(super) fn of(function: &str, mut hits: Vec<CallHit>) -> Calls {
        hits.sort_unstable_by_key(|hit| (hit.thread, hit.time_ns, hit.position));
        let mut found = Calls { function: function.to_owned(), ..Calls::default() };
        for of_thread in hits.chunk_by(|one, next| one.thread == next.thread) {
            // When they began, and how many calls had been found then.
            let mut open: Vec<(u64, usize)> = Vec::new();
            for hit in of_thread {
                if !hit.returns {
                    open.push((hit.time_ns, found.calls.len()));
                } else if let Some((begin_ns, before)) = open.pop() {
                    // Those within it are parts of it.
                    found.calls.truncate(before);
                    found.calls.push(Call { thread: hit.thread, begin_ns, end_ns: hit.time_ns });
                }
            }
            found.unfinished += u64::from(!open.is_empty());
        }
        found
    }

    /// How many threads called it.
    pub fn threads(&self) -> usize {
        self.calls.chunk_by(|one, next| one.thread == next.thread).count()
    }

    /// The time of all calls, ns.
    pub fn total_ns(&self) -> u64 {
        self.first_ns(self.calls.len())
    }

    /// The time of the first of them, ns.
    pub fn first_ns(&self, count: usize) -> u64 {
        self.calls.iter().take(count).fold(0, |sum, call| sum.saturating_add(call.time_ns()))
    }

    /// For each of these percentages, how long so many of the calls took at most, ns.
    pub fn percentiles<const N: usize>(&self, percentages: [usize; N]) -> [u64; N] {
        let mut times: Vec<u64> = self.calls.iter().map(Call::time_ns).collect();
        times.sort_unstable();
        percentages.map(|percentage| {
            let rank = (times.len() * percentage).div_ceil(100).max(1);
            times.get(rank - 1).copied().unwrap_or(0)
        })
    }

    /// Whether the recording would have them, had there been some.
    pub fn are_recorded(&self, recording: &Recording) -> bool {
        let events = &recording.events.list;
        events.iter().any(|event| says_of_calls(&event.name, &self.function) == Some(true))
    }
}

/// The functions whose calls and returns a recording has, as it calls them: `server:handle`.
pub fn recorded_calls(recording: &Recording) -> Vec<&str> {
    let names = || recording.events.list.iter().map(|event| &event.name[..]);
    let returns =
        |name: &str| names().any(|other| other.strip_suffix(RETURN).is_some_and(|other| other == name));
    names().filter(|name| returns(name)).map(|name| name.strip_prefix(PROBE).unwrap_or(name)).collect()
}

/// What an event says of calls of a function: whether they return. `function`: with or without its
/// file.
pub(super) fn says_of_calls(event: &str, function: &str) -> Option<bool> {
    let (name, returns) = event.strip_suffix(RETURN).map_or((event, false), |name| (name, true));
    let name = name.strip_prefix(PROBE)?;
    let is = name == function || name.strip_suffix(function).is_some_and(|file| file.ends_with(':'));
    is.then_some(returns)
}

impl Wall {
    /// What the threads did during the calls.
    pub fn time_of_calls(&self, calls: &Calls) -> ThreadTime {
        let threads = super::needed::by_thread(&self.waits);
        let mut sum = ThreadTime::default();
        for call in &calls.calls {
            let list = threads.get(&call.thread.1).map_or(&[][..], Vec::as_slice);
            let first = list.partition_point(|at| self.waits[*at].time_ns <= call.begin_ns);
            let (mut left, mut now) = (call.time_ns(), call.begin_ns);
            // Each row begins where the one before it ended.
            for &at in list[first..].iter().take_while(|at| {
                let begun = std::mem::replace(&mut now, self.waits[**at].time_ns);
                begun < call.end_ns
            }) {
                for (state, time) in self.parts_within(at, call) {
                    let time = time.min(left);
                    sum.add(state, time);
                    left -= time;
                }
            }
            // No row tells of it: nothing was in its way.
            sum.add(super::State::Running, left);
        }
        sum
    }

    /// What lies within a call of the parts of a row. What it did not tell one by one counts by its
    /// share.
    fn parts_within(&self, at: usize, call: &Call) -> [(super::State, u64); super::PARTS] {
        let row = &self.waits[at];
        let (begun, woken) = super::needed::span(row);
        let mixed = row.total_ns().saturating_sub(row.blocked_ns).saturating_sub(row.runnable_ns);
        let within = |begin: u64, end: u64| end.min(call.end_ns).saturating_sub(begin.max(call.begin_ns));
        let of_mixed = within(begun.saturating_sub(mixed), begun);
        let share = |time: u64| (u128::from(time) * u128::from(of_mixed) / u128::from(mixed.max(1))) as u64;
        let short = row.short().map(|place| (share(place.blocked_ns), share(place.runnable_ns)));
        let run = short
            .iter()
            .fold(of_mixed, |left, (waited, ready)| left.saturating_sub(*waited).saturating_sub(*ready));
        let mut times = [0; super::PARTS];
        times[..3].copy_from_slice(&[run, within(begun, woken), within(woken, row.time_ns)]);
        for (of_place, (waited, ready)) in short.into_iter().zip(super::SHORT_PARTS) {
            (times[waited], times[ready]) = of_place;
        }
        let mut parts = self.parts(at);
        parts.iter_mut().zip(times).for_each(|(part, time)| part.1 = time);
        parts
    }

    /// What decided how long the calls took, over all threads that they waited for, summed; the
    /// longest first. And of how many of the calls, the first ones, if their paths are very long.
    pub fn path_of_calls(&self, calls: &Calls) -> (Vec<PathPart>, usize) {
        let paths = Paths::of(self);
        let (mut steps, mut done) = (0, 0);
        let of_calls = calls.calls.iter().map_while(|call| {
            if steps >= MOST_STEPS {
                return None;
            }
            let path = paths.critical_path(call.thread.1, call.begin_ns, call.end_ns);
            (steps, done) = (steps + path.len(), done + 1);
            Some(path)
        });
        let parts = self.critical_parts(of_calls.flatten());
        (parts, done)
    }
}
