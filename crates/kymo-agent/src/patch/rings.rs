//! Rings in shared memory that stubs write events to: one for each CPU, of the same shape as the kernel's.
//!
//! ```text
//!   the file:    | CPU 0: page, data | CPU 1: page, data | ...       page: head at 1024, tail at 1032, data's offset and size behind
//!   mapped here: | page, data, data again |                          so that a record is never cut at the end
//! ```
//!
//! Another process maps the file and reads a CPU's part with [`kymo_core::ring::Reader`], as it would a ring of perf_event_open. The
//! writers of one ring are the threads on one CPU; each writes its record inside a restartable sequence whose last store moves
//! the head, so a thread that loses its CPU begins again, and nothing is half-written. A forked child writes nothing.
//!
//! # Records
//! `PERF_RECORD_SAMPLE` with the fields of [`SAMPLE_TYPE`]: what the kernel writes for a tracepoint, raw data included ([`How`](kymo_core::probe::wire::How)
//! says what is in it). What does not fit is counted by the probe ([`Probe::lost`](super::Probe::lost)).
use super::histogram;
use super::os;
use super::record::Record;
use crate::sys::memory_file;
use kymo_core::ring::Area;
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where a ring's page has its counters, as `struct perf_event_mmap_page` has them.
pub(super) const HEAD_AT: i32 = 1024;
pub(super) const TAIL_AT: i32 = 1032;
/// Where nothing of the kernel's is: how many events did not fit, of all probes.
pub(super) const LOST_AT: i32 = 2048;
const OFFSET_AT: u64 = 1040;
const SIZE_AT: u64 = 1048;
pub(super) const PAGE_BYTES: u64 = 4096;

/// The sample type of records: IDENTIFIER, IP, TID, TIME, CPU, PERIOD, RAW.
pub const SAMPLE_TYPE: u64 = 1 << 16 | 1 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 8 | 1 << 10;

/// How the time stamp counter becomes a record's time: `zero_ns + (ticks * tick >> 32)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    /// Nanoseconds of a tick, times 2^32.
    pub tick: u64,
    /// The time when the counter was 0; it wraps.
    pub zero_ns: u64,
}

impl Clock {
    /// CLOCK_MONOTONIC_RAW, as measured now: some microseconds off for each second from now on. For a recording, take what the
    /// kernel says (`time_mult`, `time_shift`, `time_zero` of a perf event's page).
    pub fn measured() -> Clock {
        let tick = histogram::tick();
        let (ticks, time) = os::ticks_and_time();
        let since = (u128::from(ticks) * u128::from(tick)) >> 32;
        Clock { tick, zero_ns: (time.as_nanos() as u64).wrapping_sub(since as u64) }
    }
}

impl Clock {
    /// CLOCK_MONOTONIC_RAW by the processor's counter, as exactly as can be known in 60 ms: to some tenths of a microsecond for each second from now on, or, where
    /// /proc/cpuinfo has the counter's frequency, much better. `None` where the kernel's clock is another counter.
    pub fn exact() -> Option<Clock> {
        const WINDOW: Duration = Duration::from_millis(60);
        const READINGS: usize = 32;
        let source =
            std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        if source.ok()?.trim() != "tsc" {
            return None;
        }
        let reading = || {
            // The smallest difference is the one with the least between reading the one and the other.
            let all = (0..READINGS).map(|_| os::ticks_and_time());
            all.collect::<Vec<_>>()
        };
        let first = reading();
        std::thread::sleep(WINDOW);
        let last = reading();
        let (from, to) = (first[READINGS / 2], last[READINGS / 2]);
        let ticks = u128::from(to.0.checked_sub(from.0).filter(|ticks| *ticks > 0)?);
        let measured = u64::try_from(((to.1 - from.1).as_nanos() << 32) / ticks).ok()?;
        let tick = named_tick(measured).unwrap_or(measured);
        // Of all readings the middle one.
        let zero = |&(ticks, time): &(u64, Duration)| {
            let since = (u128::from(ticks) * u128::from(tick)) >> 32;
            (time.as_nanos() as u64).wrapping_sub(since as u64).cast_signed()
        };
        let mut zeros: Vec<i64> = last.iter().map(zero).collect();
        zeros.sort_unstable();
        Some(Clock { tick, zero_ns: zeros[READINGS / 2].cast_unsigned() })
    }
}

/// A tick by the frequency in whole kHz that /proc/cpuinfo names, if that is what was measured, too.
fn named_tick(measured: u64) -> Option<u64> {
    const TOLERANCE: f64 = 3e-6;
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let khz = (line.split(':').nth(1)?.trim().parse::<f64>().ok()? * 1000.0).round();
    let tick = ((1_000_000_u128 << 32) + khz as u128 / 2).checked_div(khz as u128)? as u64;
    ((tick as f64 / measured as f64 - 1.0).abs() < TOLERANCE).then_some(tick)
}

/// The rings of this process. They stay mapped for good: a thread may be writing.
#[derive(Debug)]
pub struct Rings {
    file: File,
    /// A word for each CPU: where its page is mapped, 0 in a forked child.
    table: u64,
    bases: Vec<u64>,
    data_bytes: u32,
    clock: Clock,
}

impl Rings {
    /// Makes a ring of `data_bytes` (rounded up to a power of two, 4 KiB to 1 GiB) for each CPU that this machine can have.
    ///
    /// # Errors
    /// Where memory or address space is short.
    pub fn create(data_bytes: u32, clock: Clock) -> io::Result<&'static Rings> {
        let data_bytes = data_bytes.clamp(PAGE_BYTES as u32, 1 << 30).next_power_of_two();
        let file = memory_file::create(c"kymo-probes")?;
        let cpus = os::possible_cpus();
        let stride = PAGE_BYTES + u64::from(data_bytes);
        file.set_len(stride * cpus as u64)?;
        // Who maps it need not fear that it is cut off.
        memory_file::seal(&file)?;
        // And one for the CPU of threads of ours, as in `slots.rs`.
        let table = os::wide_zeros(((cpus + 1) * 8).next_multiple_of(PAGE_BYTES as usize), true)?;
        let mut bases = Vec::new();
        for cpu in 0..cpus {
            let base = os::ring(&file, cpu as u64 * stride, PAGE_BYTES, u64::from(data_bytes))?;
            os::put_word(base + OFFSET_AT, PAGE_BYTES);
            os::put_word(base + SIZE_AT, u64::from(data_bytes));
            os::put_word(table + cpu as u64 * 8, base);
            bases.push(base);
        }
        Ok(Box::leak(Box::new(Rings { file, table, bases, data_bytes, clock })))
    }

    /// As [`Rings::create`], or those that were made before for the same.
    pub(crate) fn shared(data_bytes: u32, clock: Clock) -> io::Result<&'static Rings> {
        static ALL: Mutex<Vec<&'static Rings>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = data_bytes.clamp(PAGE_BYTES as u32, 1 << 30).next_power_of_two();
        if let Some(rings) = all.iter().find(|rings| rings.clock == clock && rings.data_bytes == bytes) {
            return Ok(rings);
        }
        let rings = Rings::create(data_bytes, clock)?;
        all.push(rings);
        Ok(rings)
    }

    /// The file, for another process to map.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// How far one CPU's part begins after the part before.
    pub fn stride_bytes(&self) -> u64 {
        PAGE_BYTES + u64::from(self.data_bytes)
    }

    /// Parts in the file.
    pub fn cpus(&self) -> usize {
        self.bases.len()
    }

    /// One CPU's ring, to read in this process.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub fn area(&self, cpu: usize) -> Area<'_> {
        let base = self.bases[cpu];
        let (head, tail) = (os::word(base + HEAD_AT as u64), os::word(base + TAIL_AT as u64));
        let data = os::words(base + PAGE_BYTES, self.data_bytes as usize / 8);
        // SANITY: create() made it a power of two.
        Area::new(head, tail, data).expect("a power of two")
    }

    /// The data of one CPU's ring.
    pub fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// A consumer that writes each hit into these rings, as an event with this id.
    pub fn record(&self, event: u64) -> Record {
        Record::new(event, self.table, self.data_bytes, self.clock)
    }
}
