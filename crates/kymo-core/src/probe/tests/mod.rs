//! The registry beside its model, by invariants.
mod cases;
mod property;
mod returns;
mod sites;
mod threads;

use super::{Consumer, Key, ModuleId, Verdict, Wants};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) fn key(offset: u64) -> Key {
    Key { module: ModuleId(1), offset }
}

/// What happened, in order: who, whether it was the entry, the cookie.
pub(super) type Log = Vec<(usize, bool, Option<u64>)>;

/// Writes down that it was called; complains if that is after its end.
pub(super) struct Witness {
    pub(super) name: usize,
    pub(super) wants: Wants,
    pub(super) verdict: Mutex<Verdict>,
    pub(super) accepts: AtomicBool,
    pub(super) ended: AtomicBool,
    pub(super) entries: AtomicU64,
    pub(super) leaves: AtomicU64,
}

impl Witness {
    pub(super) fn new(name: usize, wants: Wants) -> Witness {
        Witness {
            name,
            wants,
            verdict: Mutex::new(Verdict::Keep),
            accepts: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            leaves: AtomicU64::new(0),
        }
    }

    /// After this, a call is a violation of P1.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn calls(&self) -> (u64, u64) {
        (self.entries.load(Ordering::SeqCst), self.leaves.load(Ordering::SeqCst))
    }

    fn live(&self) {
        assert!(!self.ended.load(Ordering::SeqCst), "consumer {} is called after its end", self.name);
    }
}

impl Consumer for Witness {
    type Context = Log;

    fn wants(&self) -> Wants {
        self.wants
    }

    fn accepts(&self) -> bool {
        self.accepts.load(Ordering::SeqCst)
    }

    fn entry(&self, log: &mut Log, cookie: &mut u64) -> Verdict {
        self.live();
        *cookie = self.name as u64 + 1000 * self.entries.fetch_add(1, Ordering::SeqCst);
        log.push((self.name, true, Some(*cookie)));
        let verdict = *self.verdict.lock().unwrap();
        self.live();
        verdict
    }

    fn leave(&self, log: &mut Log, cookie: Option<u64>) {
        self.live();
        self.leaves.fetch_add(1, Ordering::SeqCst);
        log.push((self.name, false, cookie));
    }
}
