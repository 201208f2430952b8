//! The order of ring scans: a logical clock that every scan advances, because timestamps of
//! different CPUs cannot order scans exactly.
//!
//! A scan takes a tick before it reads the ring's head and one after. If the first tick of a scan
//! of ring B is later than the last tick of a scan of ring A, B's head was read after A's. Then the
//! scan of B has seen every record of ring B that is older than a record which the scan of A found.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::channel::Notifier;
use std::io;
use std::os::fd::OwnedFd;

/// The clock.
#[derive(Debug, Default)]
pub(crate) struct LogicalClock(AtomicU64);

impl LogicalClock {
    /// A number that is larger than all before; what the caller reads afterwards is read after
    /// them, too.
    pub(crate) fn tick(&self) -> u64 {
        // AcqRel: the looks stand in one order, and neither head is read on the wrong side of its
        // ticks.
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// When a ring was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanInterval {
    /// Before its head was read.
    pub(crate) before: u64,
    /// After that.
    pub(crate) after: u64,
}

/// Whether every ring was emptied by a look that began after a moment.
#[derive(Debug)]
pub(crate) struct FullScan {
    since: u64,
    seen: Vec<bool>,
    missing: usize,
}

impl FullScan {
    /// Over this many rings, from now on.
    pub(crate) fn begin(clock: &LogicalClock, rings: usize) -> FullScan {
        FullScan { since: clock.tick(), seen: vec![false; rings], missing: rings }
    }

    /// What this look found in the ring, if anything, has been dealt with, and it was all that was
    /// there.
    pub(crate) fn emptied(&mut self, ring: usize, scan: ScanInterval) {
        if scan.before > self.since
            && let Some(seen) = self.seen.get_mut(ring)
            && !std::mem::replace(seen, true)
        {
            self.missing -= 1;
        }
    }

    /// Whether all of them were.
    pub(crate) fn is_done(&self) -> bool {
        self.missing == 0
    }
}

/// Asks a drain to scan its rings now, and to report empty ones too.
#[derive(Debug)]
pub(crate) struct DrainRequest {
    asked: AtomicBool,
    notifier: Notifier,
}

impl DrainRequest {
    /// A request to one drain.
    pub(crate) fn new() -> io::Result<DrainRequest> {
        Ok(DrainRequest { asked: AtomicBool::new(false), notifier: Notifier::new()? })
    }

    /// Asks. Cheap while an earlier request is pending.
    pub(crate) fn ask(&self) {
        // AcqRel: the drain that takes the request scans the rings after it was made.
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.notifier.notify();
        }
    }

    /// Whether there was a request since the last call.
    pub(crate) fn take(&self) -> bool {
        // The load is cheap, and mostly there is no request.
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::AcqRel)
    }

    /// Readable after a request, until [`DrainRequest::woken`].
    pub(crate) fn fd(&self) -> &OwnedFd {
        self.notifier.fd()
    }

    /// To be called by a drain that woke up, before [`take`](DrainRequest::take): in this order no
    /// request is missed.
    pub(crate) fn woken(&self) {
        self.notifier.clear();
    }
}
