//! Which events stubs are to write, and what rings they need for it.
use kymo_agent::patch::{EventRings, slot_bytes};
use kymo_core::probe::wire::{Fetch, ProbeAction};
use kymo_perf::inject::{RemoteProcess, RemoteRegion, RingSizes, ThreadLayout};
use kymo_symbols::sites::Site;
use std::collections::BTreeMap;
use std::fs;

/// Events that are asked for.
pub(crate) struct EventRequest<'a> {
    pub(crate) pid: i32,
    pub(crate) sites: &'a [Site],
    /// By the numbers of sites.
    pub(crate) actions: BTreeMap<usize, ProbeAction>,
    /// The data of each CPU's ring.
    pub(crate) ring_bytes: usize,
    /// Returns are seen where calls end; otherwise by replaced return addresses.
    pub(crate) at_exits: bool,
}

/// What is written, and what rings are needed for it.
pub(super) struct EventPlan {
    /// By the numbers of sites.
    pub(super) actions: BTreeMap<usize, ProbeAction>,
    pub(super) rings: RingSizes,
    slot_bytes: u32,
    threads: ThreadLayout,
}

impl EventPlan {
    pub(super) fn of(request: &EventRequest<'_>, process: &RemoteProcess) -> Result<EventPlan, String> {
        let events = request
            .actions
            .values()
            .flat_map(|action| [(&action.fetches[..], false), (&action.return_fetches[..], true)]);
        let slot_bytes = slot_bytes(events).ok_or(
            "the program cannot load the agent, and stubs alone tell values of registers, not of memory",
        )?;
        let threads = process.thread_layout()?;
        if threads.rseq.is_none() && !has_rdtscp() {
            return Err("its processor does not tell the CPU with the time (rdtscp)".to_owned());
        }
        let shared = threads.rseq.is_none().then_some(slot_bytes);
        Ok(EventPlan {
            actions: request.actions.clone(),
            rings: RingSizes::new(request.ring_bytes, shared),
            slot_bytes,
            threads,
        })
    }

    /// Whether returns of this site are events.
    pub(super) fn returns(&self, number: usize) -> bool {
        self.actions.get(&number).is_some_and(|action| action.return_event.is_some())
    }

    /// What is told of a hit of this site.
    pub(super) fn fetches(&self, number: usize) -> Vec<Fetch> {
        self.actions.get(&number).map(|action| action.fetches.clone()).unwrap_or_default()
    }

    /// The rings, which are in this region.
    pub(super) fn rings_at(&self, region: &RemoteRegion) -> EventRings {
        let RingSizes { cpus, data_bytes, .. } = self.rings;
        EventRings {
            first: region.rings_at(),
            stride_bytes: self.rings.stride_bytes() as u32,
            cpus,
            data_bytes,
            slot_bytes: self.slot_bytes,
            thread_number: self.threads.number,
            rseq: self.threads.rseq,
        }
    }
}

/// Whether all CPUs have the instruction that tells time and CPU at once.
fn has_rdtscp() -> bool {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = text.lines().filter(|line| line.starts_with("flags")).peekable();
    flags.peek().is_some() && flags.all(|line| line.split_ascii_whitespace().any(|flag| flag == "rdtscp"))
}
