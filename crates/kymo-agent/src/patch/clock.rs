//! The time stamp counter as a clock.
use super::os;
use std::sync::OnceLock;
use std::time::Duration;

/// How the time stamp counter becomes a record's time: `zero_ns + (ticks * tick >> 32)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    /// Nanoseconds of a tick, times 2^32.
    pub tick: u64,
    /// The time when the counter was 0; it wraps.
    pub zero_ns: u64,
}

impl Clock {
    /// The counter itself, which costs least: who reads the rings knows what time that is.
    pub const TICKS: Clock = Clock { tick: 1 << 32, zero_ns: 0 };

    /// CLOCK_MONOTONIC_RAW, as measured now: some microseconds off for each second from now on.
    pub fn measured() -> Clock {
        let tick = tick();
        let (ticks, time) = os::ticks_and_time();
        let since = (u128::from(ticks) * u128::from(tick)) >> 32;
        Clock { tick, zero_ns: (time.as_nanos() as u64).wrapping_sub(since as u64) }
    }
}

static TICK: OnceLock<u64> = OnceLock::new();

/// Takes the tick from somebody who has measured it, if it is not known yet.
pub(crate) fn know_tick(tick: u64) {
    if tick > 0 {
        _ = TICK.set(tick);
    }
}

/// Nanoseconds of one tick of the time stamp counter, times 2^32; measured once, in 20 ms.
pub(crate) fn tick() -> u64 {
    *TICK.get_or_init(|| {
        let (ticks, time) = os::ticks_and_time();
        std::thread::sleep(Duration::from_millis(20));
        let (later, then) = os::ticks_and_time();
        let ticks = u128::from(later.wrapping_sub(ticks)).max(1);
        u64::try_from(((then - time).as_nanos() << 32) / ticks).unwrap_or(u64::MAX)
    })
}
