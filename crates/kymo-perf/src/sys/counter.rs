//! The processor's time stamp counter, and pairs of it with `CLOCK_MONOTONIC_RAW`.
//!
//! # Safety
//! Three instructions that every x86-64 processor has, and one call into libc with a local value.
#![allow(unsafe_code, reason = "the counter has no safe interface")]

/// A time, and the ticks before and after it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReading {
    /// The counter before.
    pub before: u64,
    /// The counter after.
    pub after: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC_RAW` in between.
    pub time_ns: u64,
}

/// The counter now: not before what was done earlier, and not after what is done later. 0 on other
/// machines than x86-64.
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: waits for the instructions before it.
        unsafe { _mm_lfence() };
        // SAFETY: reads a register.
        let ticks = unsafe { _rdtsc() };
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        ticks
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// The counter and the clock, as near to each other as in the best of so many tries: tens of
/// nanoseconds for each.
pub(crate) fn reading(tries: usize) -> Option<ClockReading> {
    (0..tries).filter_map(|_| once()).min_by_key(|reading| reading.after.wrapping_sub(reading.before))
}

fn once() -> Option<ClockReading> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let before = ticks();
    // SAFETY: writes a timespec, which is ours.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time) };
    let after = ticks();
    (done == 0).then(|| ClockReading {
        before,
        after,
        time_ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Checks that of many tries the nearest is taken, and that neither the counter nor the clock
    /// goes back.
    #[test]
    fn readings_follow_each_other() {
        let before = ticks();
        let (first, second) = (reading(50).unwrap(), reading(1).unwrap());
        assert!(before <= first.before && first.before <= first.after && first.after <= second.before);
        assert!(first.time_ns <= second.time_ns);
    }
}
