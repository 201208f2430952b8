//! Counts of callers, by return address: a table for each CPU, which hits fill without a lock.
//!
//! ```text
//!   CPU 0: [ address, calls | address, calls | ... ]   CPU 1: [ ... ]        and behind the entries: calls of callers without a place
//! ```
//! An address has its place within a few entries of where its bits say. A table that is full there
//! counts what it cannot tell apart: the sum is right. A forked child finds empty tables, which
//! nobody reads.
use crate::patch::mapping::Mapping;
use crate::patch::os;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

/// Entries of each CPU.
const ENTRIES: u64 = 1024;
/// So many are looked at for one address.
const TRIES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
/// Behind the entries.
const OTHERS_AT: u64 = ENTRIES * ENTRY_BYTES;
const CPU_BYTES: u64 = OTHERS_AT + 4096;

/// The callers of one probe. Its memory stays for good.
#[derive(Debug)]
pub(crate) struct Callers {
    tables: Mapping,
    cpus: u64,
}

impl Callers {
    pub(crate) fn map() -> io::Result<Callers> {
        let cpus = os::possible_cpus() as u64;
        let tables = Mapping::zeros(cpus * CPU_BYTES)?;
        tables.on_fork(false)?;
        Ok(Callers { tables, cpus })
    }

    /// Counts a call. Anywhere, also in handlers of signals.
    pub(crate) fn count(&self, cpu: u64, address: u64) {
        if cpu >= self.cpus {
            return;
        }
        let own = self.tables.part(cpu * CPU_BYTES, CPU_BYTES);
        let first = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        let mut tries = 0;
        while tries < TRIES {
            let at = (first + tries) % ENTRIES * ENTRY_BYTES;
            let key = own.word(at);
            // Relaxed, here and below: an address is put there once, and counts are only added up.
            // Threads that change their CPU in between still count once.
            let mut found = key.load(Ordering::Relaxed);
            if found == 0 {
                let put = key.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
                found = put.map_or_else(|other| other, |_| address);
            }
            if found == address {
                own.word(at + 8).fetch_add(1, Ordering::Relaxed);
                return;
            }
            tries += 1;
        }
        own.word(OTHERS_AT).fetch_add(1, Ordering::Relaxed);
    }

    /// Callers and their calls; and the calls of those that had no place.
    pub(crate) fn read(&self) -> (BTreeMap<u64, u64>, u64) {
        let (mut all, mut others) = (BTreeMap::new(), 0);
        for cpu in 0..self.cpus {
            let own = self.tables.part(cpu * CPU_BYTES, CPU_BYTES);
            others += own.word(OTHERS_AT).load(Ordering::Relaxed);
            for entry in 0..ENTRIES {
                let at = entry * ENTRY_BYTES;
                let (address, calls) =
                    (own.word(at).load(Ordering::Relaxed), own.word(at + 8).load(Ordering::Relaxed));
                if address != 0 && calls > 0 {
                    *all.entry(address).or_insert(0) += calls;
                }
            }
        }
        (all, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that callers are told apart on all CPUs, that each call is counted, and that those
    /// beyond the table are counted together.
    #[test]
    fn every_call_is_counted() {
        let callers = Callers::map().expect("memory");
        for round in 0..10 {
            for address in 1..=100_u64 {
                callers.count(round % callers.cpus, 0x4000_0000 + address * 7);
            }
        }
        let (all, others) = callers.read();
        assert_eq!((all.len() as u64 + others.min(1), all.values().sum::<u64>() + others), (100, 1000));
        let many = Callers::map().expect("memory");
        (1..=5000).for_each(|address| many.count(0, address * 16));
        many.count(u64::MAX, 16);
        let (all, others) = many.read();
        assert!(all.len() as u64 > ENTRIES / 2 && others > 0, "{} {others}", all.len());
        assert_eq!(all.values().sum::<u64>() + others, 5000);
    }
}
