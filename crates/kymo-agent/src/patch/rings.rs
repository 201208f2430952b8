//! Rings in shared memory that stubs write events to: one for each CPU, of the same shape as the
//! kernel's.
//!
//! ```text
//!   the file:    | CPU 0: page, data | CPU 1: page, data | ...       page: head at 1024, tail at 1032, data's offset and size behind
//!   mapped here: | page, data, data again |                          so that a record is never cut at the end
//! ```
//!
//! Another process maps the file and reads a CPU's part with [`kymo_core::ring::Reader`], as it
//! would a ring of perf_event_open. The writers of one ring are the threads on one CPU; each writes
//! its record inside a restartable sequence whose last store moves the head, so a thread that loses
//! its CPU begins again, and nothing is half-written. A forked child writes nothing.
//!
//! # Records
//! `PERF_RECORD_SAMPLE` with IDENTIFIER, IP, TID, TIME, CPU, PERIOD and RAW: what the kernel writes
//! for a tracepoint ([`ProbeAction`] says what is in the raw data). What does not fit is counted by
//! the probe ([`Probe::lost`](crate::patch::Probe::lost)).
use crate::patch::clock::Clock;
use crate::patch::filter::InternedAction;
use crate::patch::layout::{HEAD_AT, PAGE_BYTES, TAIL_AT};
use crate::patch::mapping::Mapping;
use crate::patch::os;
use crate::patch::record::Record;
use crate::sys::lock;
use crate::sys::memory_file;
use kymo_core::probe::wire::{EventId, ProbeAction};
use kymo_core::ring::Area;
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Where a ring's page says where its data are, as `struct perf_event_mmap_page` does.
const OFFSET_AT: u64 = 1040;
const SIZE_AT: u64 = 1048;

/// The rings of this process. Their addresses stay for good: a thread may be writing.
#[derive(Debug)]
pub struct Rings {
    /// A word for each CPU: where its page is mapped, 0 in a forked child.
    table: Mapping,
    rings: Vec<Mapping>,
    data_bytes: u32,
    clock: Clock,
}

impl Rings {
    /// Makes a ring of `data_bytes` (rounded up to a power of two, 4 KiB to 1 GiB) for each CPU
    /// that this machine can have.
    ///
    /// # Errors
    /// Where memory or address space is short.
    pub fn create(data_bytes: u32, clock: Clock) -> io::Result<&'static Rings> {
        let data_bytes = data_bytes.clamp(PAGE_BYTES as u32, 1 << 30).next_power_of_two();
        let file = memory_file::create(c"kymo-probes")?;
        let rings = Rings::reserve(data_bytes, clock)?;
        file.set_len(rings.stride_bytes() * rings.cpus() as u64)?;
        rings.map(&file)?;
        Ok(rings)
    }

    /// In the file of a tracer, at the addresses of rings that an earlier one had for the same.
    pub(crate) fn share(file: &File, cpus: u32, data_bytes: u32, clock: Clock) -> io::Result<&'static Rings> {
        static ALL: Mutex<Vec<&'static Rings>> = Mutex::new(Vec::new());
        let fits = data_bytes.is_power_of_two() && (PAGE_BYTES..=1 << 30).contains(&data_bytes.into());
        if !fits || cpus as usize != os::possible_cpus() {
            return Err(io::Error::other("the tracer's rings have impossible sizes"));
        }
        memory_file::check(file, (PAGE_BYTES + u64::from(data_bytes)) * u64::from(cpus))?;
        let mut all = lock(&ALL);
        let same = |rings: &&&Rings| rings.clock == clock && rings.data_bytes == data_bytes;
        let rings = match all.iter().find(same) {
            Some(rings) => *rings,
            None => {
                let rings = Rings::reserve(data_bytes, clock)?;
                all.push(rings);
                rings
            }
        };
        if let Err(error) = rings.map(file) {
            rings.release();
            return Err(error);
        }
        Ok(rings)
    }

    fn reserve(data_bytes: u32, clock: Clock) -> io::Result<&'static Rings> {
        let cpus = os::possible_cpus();
        // And one for the CPU of threads of ours, as in `slots.rs`.
        let table = Mapping::zeros(((cpus as u64 + 1) * 8).next_multiple_of(PAGE_BYTES))?;
        table.on_fork(false)?;
        let space = || Mapping::reserve(PAGE_BYTES + 2 * u64::from(data_bytes));
        let rings = (0..cpus).map(|_| space()).collect::<io::Result<_>>()?;
        Ok(Box::leak(Box::new(Rings { table, rings, data_bytes, clock })))
    }

    fn map(&self, file: &File) -> io::Result<()> {
        for (cpu, ring) in (0..).zip(&self.rings) {
            let data = u64::from(self.data_bytes);
            ring.share_ring(file, cpu * self.stride_bytes(), PAGE_BYTES, data)?;
            // Relaxed: published by what makes stubs or tells other processes.
            ring.word(OFFSET_AT).store(PAGE_BYTES, Ordering::Relaxed);
            ring.word(SIZE_AT).store(data, Ordering::Relaxed);
            self.table.word(cpu * 8).store(ring.address(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives the tracer's memory back. A thread that is in a stub writes where nobody reads.
    pub(crate) fn release(&self) {
        self.rings.iter().for_each(|ring| ring.zero());
    }

    /// How far one CPU's part begins after the part before.
    fn stride_bytes(&self) -> u64 {
        PAGE_BYTES + u64::from(self.data_bytes)
    }

    /// Parts in the file.
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }

    /// One CPU's ring, to read in this process.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub fn area(&self, cpu: usize) -> Area<'_> {
        let ring = self.rings[cpu];
        let (head, tail) = (ring.word(HEAD_AT as u64), ring.word(TAIL_AT as u64));
        let data = ring.part(PAGE_BYTES, u64::from(self.data_bytes)).words();
        // SANITY: create() made it a power of two.
        Area::new(head, tail, data).expect("a power of two")
    }

    /// A consumer that writes each hit into these rings, as an event with this id.
    pub fn record(&self, event: u64) -> Record {
        let action = ProbeAction { event: Some(EventId { id: event, kind: 0 }), ..ProbeAction::default() };
        let action = InternedAction::of(action);
        Record { table: self.table.address(), data_bytes: self.data_bytes, clock: self.clock, action }
    }
}
