//! The registry beside its model, by invariants.
mod cases;
mod property;
mod sites;
mod threads;

use super::{Consumer, Key, ModuleId, Verdict};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) fn key(offset: u64) -> Key {
    Key { module: ModuleId(1), offset }
}

/// The consumers that were called, in order, and how often each had been called before.
pub(super) type Log = Vec<(usize, u64)>;

/// Writes down that it was called; complains if that is after its end.
pub(super) struct Witness {
    pub(super) name: usize,
    pub(super) verdict: Mutex<Verdict>,
    pub(super) accepts: AtomicBool,
    pub(super) ended: AtomicBool,
    pub(super) hits: AtomicU64,
}

impl Witness {
    pub(super) fn new(name: usize) -> Witness {
        Witness {
            name,
            verdict: Mutex::new(Verdict::Keep),
            accepts: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            hits: AtomicU64::new(0),
        }
    }

    /// After this, a call is a violation of P1.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn calls(&self) -> u64 {
        self.hits.load(Ordering::SeqCst)
    }

    fn live(&self) {
        assert!(!self.ended.load(Ordering::SeqCst), "consumer {} is called after its end", self.name);
    }
}

impl Consumer for Witness {
    type Context = Log;

    fn accepts(&self) -> bool {
        self.accepts.load(Ordering::SeqCst)
    }

    fn hit(&self, log: &mut Log) -> Verdict {
        self.live();
        log.push((self.name, self.hits.fetch_add(1, Ordering::SeqCst)));
        let verdict = *self.verdict.lock().unwrap();
        self.live();
        verdict
    }
}
