//! The clock that events tell the time by, read from here.
//!
//! Where no clock is asked for, that is the kernel's scheduler clock, which no call returns. But a
//! thread that renames itself makes a record with the time, in a ring of its own; so it works
//! everywhere, also in virtual machines where the processor's counter is not known to be the clock.

use crate::evlist::{self, EvlistPlan, MappedRing, OpenEngine, Request, Targets};
use crate::sys::{self, Perf, attr_zeroed};
use kymo_core::ring::Reader;
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use std::sync::Arc;

/// Pages of the thread's ring.
const PAGES: usize = 1;

/// Tells the time of a recording. Belongs to the thread that made it.
#[derive(Debug)]
pub enum EventClock {
    /// A clock that can be asked.
    Named(DynamicClockId<'static>),
    /// The scheduler's.
    Scheduler {
        /// Keeps the event open.
        events: Box<evlist::Evlist>,
        /// Where its records are.
        rings: Vec<MappedRing>,
        /// The thread's own, which is given to it again and again.
        name: std::ffi::CString,
    },
}

/// One moment in two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    /// Of the recording.
    pub recording_ns: u64,
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// `CLOCK_MONOTONIC` now, in ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

impl EventClock {
    /// The clock of events that were opened with this clock id, or with none. The calling thread
    /// keeps its name. `None` where the system permits no event for it.
    pub fn new(clock: Option<i32>) -> Option<EventClock> {
        let known = |clock| Some(EventClock::Named(DynamicClockId::Known(clock)));
        match clock {
            Some(0) => known(ClockId::Realtime),
            Some(1) => known(ClockId::Monotonic),
            Some(4) => known(ClockId::MonotonicRaw),
            Some(7) => known(ClockId::Boottime),
            Some(11) => Some(EventClock::Named(DynamicClockId::Tai)),
            Some(_) => None,
            None => EventClock::scheduler(),
        }
    }

    fn scheduler() -> Option<EventClock> {
        let name = rustix::thread::name().ok()?;
        let mut attr = attr_zeroed();
        attr.type_ = Perf::SOFTWARE;
        attr.config = Perf::SW_DUMMY;
        attr.sample_period = 1;
        attr.sample_type = Perf::SAMPLE_TIME;
        attr.set_sample_id_all(1);
        attr.set_comm(1);
        attr.set_exclude_kernel(1);
        let thread = rustix::thread::gettid().as_raw_pid();
        let plan = EvlistPlan {
            events: vec![Request::new("dummy:u", attr)],
            targets: Targets::per_thread(vec![thread]),
        };
        let mut events = evlist::open(Arc::new(sys::Real), plan, OpenEngine::Serial).ok()?;
        let rings = events.map_rings(PAGES, false).ok()?;
        let mut clock = EventClock::Scheduler { events: Box::new(events), rings, name };
        clock.now().map(|_| clock)
    }

    /// The time now. `None` if the kernel wrote no record of it.
    pub fn now(&mut self) -> Option<ClockPair> {
        let before = monotonic_ns();
        let recording_ns = match self {
            EventClock::Named(clock) => nanoseconds(clock_gettime_dynamic(*clock).ok()?),
            EventClock::Scheduler { rings, name, .. } => {
                rustix::thread::set_name(name).ok()?;
                last_time(rings.first()?)?
            }
        };
        Some(ClockPair { recording_ns, monotonic_ns: before.midpoint(monotonic_ns()) })
    }
}

/// The time of the last record in a ring, which is emptied. Nothing but the time follows the fields
/// of a record.
fn last_time(ring: &MappedRing) -> Option<u64> {
    let mut reader = Reader::new(ring.ring.area());
    let span = reader.begin().ok()?;
    let mut bytes = vec![0; span.len_bytes()];
    span.copy_to(&mut bytes);
    reader.release(span, bytes.len());
    bytes.last_chunk::<8>().map(|time| u64::from_ne_bytes(*time))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that times grow, that both clocks advance alike, and that a named clock is that one;
    /// and that the thread keeps its name: a recorder's main thread was called `waits` at its end.
    #[test]
    fn clocks_advance_alike() {
        let name = rustix::thread::name().expect("a name");
        for clock in [None, Some(1), Some(4)] {
            let Some(mut clock) = EventClock::new(clock) else {
                kymo_testing::skip("event_clock::clocks_advance_alike", "events are not permitted here");
                continue;
            };
            let pairs: Vec<ClockPair> = (0..3)
                .map(|_| {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    clock.now().expect("a time")
                })
                .collect();
            for two in pairs.windows(2) {
                let recording = two[1].recording_ns.checked_sub(two[0].recording_ns).expect("it grows");
                let monotonic = two[1].monotonic_ns.checked_sub(two[0].monotonic_ns).expect("it grows");
                assert!(recording >= 2_000_000 && monotonic >= 2_000_000, "{pairs:?}");
            }
            if let EventClock::Named(DynamicClockId::Known(ClockId::Monotonic)) = clock {
                assert!(pairs[0].recording_ns.abs_diff(pairs[0].monotonic_ns) < 1_000_000_000);
            }
        }
        assert!(EventClock::new(Some(99)).is_none());
        assert_eq!(rustix::thread::name().expect("a name"), name);
    }
}
