//! A probe that is in place, and what it has counted.
use crate::patch::codegen::stub::{ReturnAction, StubSpec};
use crate::patch::runtime::slow_path::SlowProbe;
use crate::patch::site::Site;
use crate::patch::slots::Slots;
use kymo_core::latency::{Latencies, UNTIMED, USED};
use kymo_core::probe::Handle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A probe that is in place. Dropping it leaves it there: [`detach`](crate::patch::detach) takes it
/// away.
#[derive(Clone, Debug)]
pub struct Probe {
    pub(crate) site: Site,
    /// Where its stub begins.
    pub(crate) enter: u64,
    pub(crate) slots: &'static Slots,
    pub(crate) spec: StubSpec,
    /// What the slots held before: a site's stub is used again.
    pub(crate) before: Vec<u64>,
    /// What the handler does for it, and its registrations.
    pub(crate) watch: Option<Arc<SlowProbe>>,
    pub(crate) handles: Vec<Handle>,
    pub(crate) callers_before: (BTreeMap<u64, u64>, u64),
}

impl Probe {
    /// The site's address.
    pub fn address(&self) -> u64 {
        self.site.address
    }

    /// How often the site was executed since the attach, by all threads. A hit of this very moment
    /// may be missing.
    pub fn hits(&self) -> u64 {
        self.slots.read(self.spec.hits).wrapping_sub(self.before[0])
    }

    /// How many of these calls have returned, if the probe looks at that. Fewer than hits: some
    /// calls are still inside, or ended by an exception, a longjmp or the thread's end, or were too
    /// deep for a look at their return ([`returns_missed`](crate::patch::returns_missed)).
    pub fn returns(&self) -> Option<u64> {
        match self.spec.at_return {
            ReturnAction::Ignored | ReturnAction::Acquired(_) | ReturnAction::Exit(_) => None,
            ReturnAction::Counted(slot)
            | ReturnAction::Recorded(slot)
            | ReturnAction::RecordedAtExits(slot) => {
                Some(self.slots.read(slot).wrapping_sub(self.back_before()[0]))
            }
            ReturnAction::Timed(_) => self.latencies().map(|latencies| latencies.count),
        }
    }

    /// How long the calls took that have returned, if the probe looks at that.
    pub fn latencies(&self) -> Option<Latencies> {
        let ReturnAction::Timed(slot) = self.spec.at_return else { return None };
        let (before, mut latencies) = (self.back_before(), Latencies::default());
        for bucket in USED {
            let before = before.get(bucket as usize).copied().unwrap_or(0);
            latencies.add_bucket(bucket, self.slots.read(slot + bucket).wrapping_sub(before));
        }
        Some(latencies)
    }

    /// How many calls were not timed, because too many were under way at once; `None` unless calls
    /// are timed.
    pub fn untimed(&self) -> Option<u64> {
        let ReturnAction::Timed(slot) = self.spec.at_return else { return None };
        let before = self.back_before().get(UNTIMED as usize).copied().unwrap_or(0);
        Some(self.slots.read(slot + UNTIMED).wrapping_sub(before))
    }

    /// What the counters of the return held.
    fn back_before(&self) -> &[u64] {
        &self.before[1 + usize::from(self.spec.lost().is_some())..]
    }

    /// The slot of its hits in the `Slots` of this process, and what that held when the probe was
    /// attached.
    pub fn hits_slot(&self) -> (u32, u64) {
        (self.spec.hits, self.before[0])
    }

    /// The first slot of its times, and what those held, if the probe looks at them.
    pub fn times_slots(&self) -> Option<(u32, &[u64])> {
        let ReturnAction::Timed(slot) = self.spec.at_return else { return None };
        Some((slot, self.back_before()))
    }

    /// How many events did not fit into their CPU's ring, if the probe records; or how many hits
    /// could not be looked at, if that takes more than a few instructions.
    pub fn lost(&self) -> Option<u64> {
        Some(self.slots.read(self.spec.lost()?).wrapping_sub(self.before[1]))
    }

    /// Return addresses and how often calls came from there, since the probe's site was first
    /// attached so; and calls of callers that there was no place for. `None` unless that was asked
    /// for.
    pub fn callers(&self) -> Option<(BTreeMap<u64, u64>, u64)> {
        let (mut now, others) = self.watch.as_ref()?.callers()?.read();
        let (before, others_before) = &self.callers_before;
        now.retain(|address, calls| {
            *calls = calls.wrapping_sub(before.get(address).copied().unwrap_or(0));
            *calls > 0
        });
        Some((now, others.wrapping_sub(*others_before)))
    }
}
