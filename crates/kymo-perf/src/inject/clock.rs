//! Converts ticks of the processor's counter, which programs write with their events, to the
//! recording's clock.
//!
//! ```text
//!   kernel's time
//!      ^          /            known line: what the kernel itself multiplies the counter by
//!      |        /|
//!      |      /  '- bent here: the line did not lead through what was read
//!      |    /
//!      +--------------------> ticks
//! ```
//! - C1: Where the kernel says how its clock follows the counter, that is the line, and times are
//!   the kernel's to the nanosecond.
//! - C2: `CLOCK_MONOTONIC_RAW` is a line of the counter as well, whose steepness the kernel
//!   computes from a whole number of kHz. Computed in the same way it does not drift; what is left
//!   is the distance of the two readings that tie them, some tens of nanoseconds.
//! - C3: The line is compared with a reading before each use. One that it does not lead through
//!   bends it, from the last reading that it led through: whatever happens to the counter (the
//!   machine slept, its frequency was guessed), times are right at each reading, and in between on
//!   a straight line.
//! - C4: Later ticks never have earlier times.
use super::rings;
use crate::sys::counter::{self, ClockReading};
use std::time::Duration;

/// Lines that are remembered: a ring may hold ticks of before the last bends.
const LINES: usize = 5;
/// By so much may a reading be beside the line: counters of several processors, and rounding.
const SLACK_NS: u64 = 30;
/// How often it is read when the line is to be bent.
const TRIES: usize = 4;

/// From a tick on: `zero_ns + (ticks * tick >> 32)`, which wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinearClock {
    from: u64,
    tick: u64,
    zero_ns: u64,
}

impl LinearClock {
    /// Through a point.
    fn through(ticks: u64, time_ns: u64, tick: u64) -> LinearClock {
        LinearClock { from: ticks, tick, zero_ns: time_ns.wrapping_sub(scaled(ticks, tick)) }
    }

    fn at(&self, ticks: u64) -> u64 {
        self.zero_ns.wrapping_add(scaled(ticks, self.tick))
    }
}

fn scaled(ticks: u64, tick: u64) -> u64 {
    ((u128::from(ticks) * u128::from(tick)) >> 32) as u64
}

/// Makes times of a recording from the processor's time stamp counter.
#[derive(Clone, Copy, Debug)]
pub struct ProgramClock {
    /// The newest last.
    lines: [LinearClock; LINES],
    /// Nanoseconds of a tick, times 2^32.
    tick: u64,
    /// Where the line was right last; `None`: it is the kernel's own.
    checked: Option<u64>,
}

impl ProgramClock {
    /// The clock of perf events where none is asked for; `None` where the kernel does not say how
    /// it follows the counter (as in most virtual machines), or events are not permitted.
    pub fn of_events() -> Option<ProgramClock> {
        let (tick, zero_ns) = rings::recording_clock()?;
        Some(ProgramClock { lines: [LinearClock { from: 0, tick, zero_ns }; LINES], tick, checked: None })
    }

    /// `CLOCK_MONOTONIC_RAW`, tied now, in 60 ms. `None` where the kernel's clock is another
    /// counter.
    pub fn raw() -> Option<ProgramClock> {
        const WINDOW: Duration = Duration::from_millis(60);
        const READINGS: usize = 64;
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        if std::fs::read_to_string(SOURCE).ok()?.trim() != "tsc" {
            return None;
        }
        let first = counter::reading(READINGS)?;
        std::thread::sleep(WINDOW);
        let last = counter::reading(READINGS)?;
        let ticks = middle(&last).checked_sub(middle(&first)).filter(|&ticks| ticks > 0)?;
        let tick =
            u64::try_from((u128::from(last.time_ns - first.time_ns) << 32) / u128::from(ticks)).ok()?;
        let named = [frequency_of_events(), frequency_of_text()].into_iter().flatten().map(tick_of);
        let tick = named.into_iter().find(|&named| is_near(named, tick)).unwrap_or(tick);
        Some(ProgramClock::tied(last, tick))
    }

    /// A nanosecond for each tick, from this time on: for tests of those who use it.
    pub fn plain(zero_ns: u64) -> ProgramClock {
        ProgramClock {
            lines: [LinearClock { from: 0, tick: 1 << 32, zero_ns }; LINES],
            tick: 1 << 32,
            checked: None,
        }
    }

    /// A line through this reading, which is looked at while it is used.
    fn tied(reading: ClockReading, tick: u64) -> ProgramClock {
        let line = LinearClock::through(middle(&reading), reading.time_ns, tick);
        ProgramClock {
            lines: [LinearClock { from: 0, ..line }; LINES],
            tick,
            checked: Some(middle(&reading)),
        }
    }

    /// The time of a tick.
    pub fn time_ns(&self, ticks: u64) -> u64 {
        let line = self.lines.iter().rev().find(|line| line.from <= ticks).unwrap_or(&self.lines[0]);
        line.at(ticks)
    }

    /// Compares itself with the kernel's clock: to be called when ticks were taken out of a ring,
    /// before their times are asked for. No system call; does not block.
    pub fn keep_up(&mut self) {
        let is_off = |reading: &ClockReading| !self.leads_through(reading);
        if self.checked.is_some()
            && let Some(mut reading) = counter::reading(1)
        {
            if is_off(&reading) {
                reading = counter::reading(TRIES).unwrap_or(reading);
            }
            self.check(reading);
        }
    }

    fn leads_through(&self, reading: &ClockReading) -> bool {
        let least = self.time_ns(reading.before).saturating_sub(SLACK_NS);
        let most = self.time_ns(reading.after).saturating_add(SLACK_NS);
        (least..=most).contains(&reading.time_ns)
    }

    fn check(&mut self, reading: ClockReading) {
        let (at, time) = (middle(&reading), reading.time_ns);
        let Some(checked) = self.checked.filter(|&checked| checked < at) else { return };
        self.checked = Some(at);
        if self.leads_through(&reading) {
            return;
        }
        // From where it was right to where it is now; nothing that was told before changes but what
        // came between.
        let then = self.time_ns(checked);
        let since = time.saturating_sub(then);
        let tick = (u128::from(since) << 32) / u128::from(at - checked);
        let bridge = LinearClock::through(checked, then, u64::try_from(tick).unwrap_or(u64::MAX));
        self.lines.rotate_left(2);
        self.lines[LINES - 2] = bridge;
        self.lines[LINES - 1] = LinearClock::through(at, bridge.at(at).max(time), self.tick);
    }
}

fn middle(reading: &ClockReading) -> u64 {
    reading.before + reading.after.saturating_sub(reading.before) / 2
}

/// Whether a frequency that something names is the one that was measured.
fn is_near(named: u64, measured: u64) -> bool {
    const TOLERANCE: f64 = 2e-6;
    (named as f64 / measured as f64 - 1.0).abs() < TOLERANCE
}

/// The counter's kHz, by the factor that perf's own clock has.
fn frequency_of_events() -> Option<u64> {
    let (tick, _) = rings::recording_clock()?;
    Some(((1_000_000_u128 << 32) as f64 / tick as f64).round() as u64)
}

/// The counter's kHz, where /proc/cpuinfo has them: in most virtual machines.
fn frequency_of_text() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    Some((line.split(':').nth(1)?.trim().parse::<f64>().ok()? * 1000.0).round() as u64)
}

/// The steepness of the kernel's clocks for a counter of so many kHz: a factor and a shift that
/// keep ten minutes from overflowing 64 bits.
fn tick_of(khz: u64) -> u64 {
    const KEPT_SECONDS: u64 = 600;
    const PER_MILLISECOND: u64 = 1_000_000;
    let khz = khz.clamp(1, 1 << 32);
    let most_ticks = KEPT_SECONDS * 1000 * khz;
    // The factor has what the ticks leave of 64 bits, and 32 bits at most.
    let bits = 32 - (u64::BITS - (most_ticks >> 32).leading_zeros()).min(31);
    let factor = |shift: u32| ((PER_MILLISECOND << shift) + khz / 2) / khz;
    let shift = (1..=32).rev().find(|&shift| factor(shift) >> bits == 0).unwrap_or(0);
    factor(shift) << (32 - shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks factors that kernels have computed: of this kind of machine, and of two that others
    /// wrote about.
    #[test]
    fn the_kernels_factors() {
        assert_eq!(tick_of(2_596_146), 6_462_355 << 8);
        assert_eq!(tick_of(3_000_000), 5_592_405 << 8);
        assert_eq!(tick_of(1_000_000), 4_194_304 << 10, "a nanosecond is a nanosecond");
        for khz in [0, 1, 1 << 20, 10_000_000, u64::MAX] {
            assert!(tick_of(khz) > 0, "{khz}");
        }
    }

    /// A counter of which the kernel's clock is a line, or several.
    struct SteppedClock {
        ticks: u64,
        line: LinearClock,
    }

    impl SteppedClock {
        fn passes(&mut self, ticks: u64) {
            self.ticks += ticks;
        }

        /// The clock goes on otherwise.
        fn turns(&mut self, tick: u64, jump_ns: u64) {
            self.line = LinearClock::through(self.ticks, self.line.at(self.ticks) + jump_ns, tick);
        }

        fn read(&mut self, gap: u64) -> ClockReading {
            let before = self.ticks;
            self.passes(gap);
            let time_ns = self.line.at(before + gap / 3);
            ClockReading { before, after: self.ticks, time_ns }
        }
    }

    proptest! {
        /// Checks that times are the kernel's, to the distance of readings and what its clock runs
        /// otherwise between two of them (C3); that an exact line is never bent (C2); and that time
        /// does not go back (C4).
        #[test]
        fn it_follows(
            khz in 800_000..6_000_000_u64,
            off in prop_oneof![Just(0.0), -1e-4..1e-4],
            steps in proptest::collection::vec((1..400_000_000_u64, 1..2_000_u64), 1..200),
        ) {
            let tick = tick_of(khz);
            let wrong = (tick as f64 * (1.0 + off)) as u64;
            let ns = |ticks: u64| scaled(ticks, tick);
            let mut machine = SteppedClock { ticks: 1 << 50, line: LinearClock::through(1 << 50, 77, tick) };
            let mut clock = ProgramClock::tied(machine.read(30), wrong);
            let (mut last, mut widest) = (0, ns(30));
            for (passed, gap) in steps {
                let from = machine.ticks;
                machine.passes(passed);
                clock.check(machine.read(gap));
                widest = widest.max(ns(gap));
                // What came into the ring since the last look.
                for at in [from, from + passed / 2, from + passed] {
                    let (told, truth) = (clock.time_ns(at), machine.line.at(at));
                    let most = if off == 0.0 { ns(30) } else { 2 * widest + (ns(passed) as f64 * off.abs()) as u64 };
                    prop_assert!(told.abs_diff(truth) <= most + 2 * SLACK_NS, "{told} for {truth}, {most}");
                    prop_assert!(told >= last, "{told} after {last}");
                    last = told;
                }
            }
            if off == 0.0 {
                prop_assert_eq!(clock.lines[0], clock.lines[LINES - 1]);
            }
        }
    }

    /// Checks that a clock that jumps or turns is found again with the next reading, and that the
    /// ticks of before have their times.
    #[test]
    fn a_clock_that_jumps() {
        let tick = tick_of(2_596_146);
        let mut machine =
            SteppedClock { ticks: 1 << 40, line: LinearClock::through(1 << 40, 1_000_000_000, tick) };
        let mut clock = ProgramClock::tied(machine.read(60), tick);
        for (jump_ns, slower) in [(0, 0), (5_000_000_000, 0), (0, tick / 1000), (3_000, 0)] {
            machine.passes(10_000_000);
            let (before, truth) = (machine.ticks, machine.line.at(machine.ticks));
            clock.check(machine.read(60));
            machine.turns(tick - slower, jump_ns);
            machine.passes(2_000);
            clock.check(machine.read(60));
            let now = clock.time_ns(machine.ticks);
            assert!(now.abs_diff(machine.line.at(machine.ticks)) < 100, "{now}");
            assert!(clock.time_ns(before).abs_diff(truth) < 100);
        }
    }

    /// Checks, where the kernel's clock is the counter, that times lie between what the kernel's
    /// clock said before and after.
    #[test]
    fn the_real_one() {
        let Some(mut clock) = ProgramClock::raw() else {
            return kymo_testing::skip(
                "inject::clock::the_real_one",
                "the kernel's clock is another counter",
            );
        };
        for _ in 0..200 {
            let reading = counter::reading(5).unwrap();
            clock.keep_up();
            assert!(clock.time_ns(reading.before) <= reading.time_ns + 200, "{clock:?} {reading:?}");
            assert!(clock.time_ns(reading.after) + 200 >= reading.time_ns, "{clock:?} {reading:?}");
            std::thread::yield_now();
        }
    }
}
