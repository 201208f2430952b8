//! The most obvious way to time holds: a list of what each thread has taken, a map of all holds.
use super::{HoldKind, LockHolds};
use crate::latency::Latencies;
use std::collections::BTreeMap;

/// One thread's acquisition that has not ended.
#[derive(Clone, Debug)]
struct Held {
    lock: u64,
    kind: HoldKind,
    place: u64,
    since: u64,
    depth: u32,
}

/// All threads, and all holds that have ended.
#[derive(Debug, Default)]
pub(super) struct HoldModel {
    threads: BTreeMap<u32, Vec<Held>>,
    ended: BTreeMap<(u64, HoldKind, u64), Latencies>,
}

impl HoldModel {
    pub(super) fn acquire(&mut self, thread: u32, lock: u64, kind: HoldKind, place: u64, now: u64) {
        let held = self.threads.entry(thread).or_default();
        match held.iter_mut().find(|held| held.lock == lock) {
            Some(held) => held.depth += 1,
            None => held.push(Held { lock, kind, place, since: now, depth: 1 }),
        }
    }

    pub(super) fn release(&mut self, thread: u32, lock: u64, now: u64) {
        let held = self.threads.entry(thread).or_default();
        let Some(at) = held.iter().position(|held| held.lock == lock) else { return };
        held[at].depth -= 1;
        if held[at].depth == 0 {
            let Held { lock, kind, place, since, .. } = held.remove(at);
            self.ended.entry((lock, kind, place)).or_default().add(now - since);
        }
    }

    pub(super) fn rows(&self, pid: i32) -> Vec<LockHolds> {
        let row = |(&(lock, kind, place), holds): (&(u64, HoldKind, u64), &Latencies)| LockHolds {
            pid,
            kind,
            lock,
            place,
            holds: holds.clone(),
        };
        self.ended.iter().map(row).collect()
    }
}
