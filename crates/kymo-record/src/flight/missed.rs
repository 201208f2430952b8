//! Samples that a snapshot misses within the time that it covers.
//!
//! A ring that cannot be read on its own CPU is paused while it is read, and the kernel drops what
//! comes meanwhile. That is no loss of the snapshot that is being taken, whose records are all
//! older. It is one of later snapshots, until the ring has overwritten what came before the pause:
//! then it is as old as everything else that was overwritten.
use super::clock::SampleClock;
use super::snapshot::RingSnapshot;
use kymo_perf::evlist::Lost;
use std::collections::HashMap;

/// Samples that came while their ring was paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    /// The event, by its place in the list, and the id of its descriptor.
    pub(crate) event: usize,
    pub(crate) id: u64,
    pub(crate) cpu: i32,
    pub(crate) task: i32,
    /// How many.
    pub(crate) count: u64,
    /// The time of the newest record before, in ns; 0: there was none.
    after_ns: u64,
}

/// All of them that a later snapshot may miss.
#[derive(Debug, Default)]
pub(crate) struct MissedSamples {
    known: Vec<Missed>,
    /// What the kernel had counted, by descriptor.
    counted: HashMap<u64, u64>,
}

fn is_ring_of(snapshot: &RingSnapshot, cpu: i32, task: i32) -> bool {
    if snapshot.cpu >= 0 { snapshot.cpu == cpu } else { snapshot.task == task }
}

impl MissedSamples {
    /// Which of them these rings miss; the others are forgotten.
    pub(crate) fn within(&mut self, snapshots: &[RingSnapshot], clock: &SampleClock) -> &[Missed] {
        let oldest = |snapshot: &RingSnapshot| clock.times_ns(&snapshot.records).min();
        let begins: Vec<Option<u64>> = snapshots.iter().map(oldest).collect();
        self.known.retain(|missed| {
            let ring = snapshots.iter().position(|snapshot| is_ring_of(snapshot, missed.cpu, missed.task));
            ring.is_some_and(|at| {
                !snapshots[at].wrapped || begins[at].is_some_and(|begin| missed.after_ns >= begin)
            })
        });
        &self.known
    }

    /// Takes note of what was dropped while these rings were read. `lost`: what the kernel has
    /// counted since the start.
    pub(crate) fn taken(&mut self, snapshots: &[RingSnapshot], lost: Vec<Lost>, clock: &SampleClock) {
        for Lost { event, cpu, task, id, lost } in lost {
            let count = lost.saturating_sub(self.counted.insert(id, lost).unwrap_or(0));
            if count > 0 {
                let ring = snapshots.iter().find(|snapshot| is_ring_of(snapshot, cpu, task));
                let newest = ring.and_then(|snapshot| clock.times_ns(&snapshot.records).next());
                let after_ns = newest.unwrap_or(0);
                self.known.push(Missed { event, id, cpu, task, count, after_ns });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_data::{Attr, EventSpec, abi};

    fn sample(time: u64) -> Vec<u8> {
        let header = u64::from(abi::PERF_RECORD_SAMPLE) | 16 << 48;
        [header, time].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn snapshot(wrapped: bool, newest_first: &[u64]) -> RingSnapshot {
        let records = newest_first.iter().flat_map(|&time| sample(time)).collect();
        RingSnapshot { cpu: -1, task: 7, records, wrapped, corrupt_bytes: 0 }
    }

    /// Checks that samples lost while a snapshot was taken are missing in the next one that reaches
    /// back to that moment, in neither the one that was being taken nor one that begins later, and
    /// that the kernel's total is never taken for what one snapshot misses.
    #[test]
    fn only_what_lies_within_a_snapshot() {
        let attr = Attr { sample_type: abi::PERF_SAMPLE_TIME, ..Attr::default() };
        let clock = SampleClock::new(&[EventSpec { attr, ids: vec![1], name: String::new() }]);
        let lost = |lost| vec![Lost { event: 0, cpu: 0, task: 7, id: 1, lost }];
        let mut missed = MissedSamples::default();
        let count = |missed: &mut MissedSamples, snapshot: RingSnapshot| -> u64 {
            missed.within(&[snapshot], &clock).iter().map(|missed| missed.count).sum()
        };
        assert_eq!(count(&mut missed, snapshot(false, &[20, 10])), 0);
        missed.taken(&[snapshot(false, &[20, 10])], lost(5), &clock);
        assert_eq!(count(&mut missed, snapshot(true, &[40, 20])), 5);
        missed.taken(&[snapshot(true, &[40, 20])], lost(8), &clock);
        assert_eq!(count(&mut missed, snapshot(true, &[60, 30])), 3);
        missed.taken(&[snapshot(true, &[60, 30])], lost(8), &clock);
        assert_eq!(count(&mut missed, snapshot(true, &[900, 800])), 0);
    }
}
