//! Probes by patches (`crate::patch`).
use super::engine::{BatchOutcome, CallerCounts, ProbeEngine, RequestedProbe};
use super::hold::{HeldBy, Threads, may_write};
use super::maps::{Maps, MapsEntry};
use super::semaphore::Semaphore;
use crate::patch::{
    self, CallEnds, CallPlan, CallerCount, Clock, Consumers, EntryState, FilteredProbe, Function, Holder,
    Measure, OwnMemory, PatchError, Probe, Rings, Site, Surroundings,
};
use kymo_core::probe::wire::{Bucket, HitCount, ProbeAction, ProbeKind, ProbeSlots, ProbeState, ProbeStatus};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are armed")]
enum Placement {
    Armed { probe: Probe, exits: Vec<Probe>, semaphore: Option<Semaphore>, still: bool },
    Waiting,
    Refused(String),
}

/// All probes of the conversation, by the tracer's numbers.
#[derive(Debug, Default)]
pub(super) struct Patching {
    kept: BTreeMap<u32, Placement>,
    /// Where a module's jumps lead in the functions of a batch, by the module's first address. For
    /// one batch: modules come and go.
    targets: BTreeMap<u64, Rc<[u64]>>,
    /// Where events go, once somebody has asked for it.
    rings: Option<&'static Rings>,
    /// Holds of locks are timed, once somebody has asked for it.
    times_holds: bool,
    /// Probes that wrote events and were removed: what they lost may still be asked for.
    gone: BTreeMap<u32, Probe>,
}

struct PlannedSite {
    id: u32,
    /// With the places where calls end, if they are timed there.
    call: CallPlan,
    semaphore: Option<Semaphore>,
    consumers: Consumers,
    /// It is written only while all threads stand still.
    still: bool,
}

/// Whether it is the C library itself or its dynamic linker, which run with all signals blocked at
/// times: a thread that comes there while a site is being written meets a trap that it cannot take,
/// and the process ends. Where threads are held there are no traps.
fn blocks_signals(module: &[u8]) -> bool {
    let name = module.rsplit(|byte| *byte == b'/').next().unwrap_or(module);
    [&b"libc.so"[..], b"libc-2", b"ld-linux", b"ld-2", b"libpthread", b"ld-musl", b"libc.musl"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Tells where an armed probe counts.
fn place(id: u32, probe: &Probe, done: &mut BatchOutcome) {
    let (hits, before) = probe.hits_slot();
    let times = probe.times_slots();
    done.placed.push(ProbeSlots { id, hits, before, times: times.map(|(first, _)| first) });
    let held = times.map_or(&[][..], |(_, held)| held);
    let held = (0..).zip(held).filter(|(_, calls)| **calls > 0);
    let held: Vec<Bucket> = held.map(|(number, &calls)| Bucket { number, calls }).collect();
    if !held.is_empty() {
        done.before.push((id, held));
    }
}

/// The code that a probe is in, and its function there; `None` if it is not mapped.
fn function<'a>(asked: &RequestedProbe, maps: &'a Maps) -> Option<(&'a MapsEntry, Function)> {
    let wanted = &asked.spec;
    let code = maps.code(&asked.module, wanted.offset)?;
    let start = code.start + (wanted.offset - code.offset);
    let next = start + u64::from(wanted.room_bytes.max(wanted.size_bytes));
    Some((code, Function { start, bytes: u64::from(wanted.size_bytes), next }))
}

impl Patching {
    fn plan(
        &self,
        asked: &RequestedProbe,
        exits: &[RequestedProbe],
        (maps, memory): (&Maps, &OwnMemory),
    ) -> Result<Option<PlannedSite>, String> {
        let wanted = &asked.spec;
        let consumers = match wanted.kind {
            ProbeKind::Count => self.some(Measure::Count, Consumers::Count, asked),
            ProbeKind::Latency => self.some(Measure::Latency, Consumers::Latency, asked),
            ProbeKind::LatencyAtExits => {
                let action = asked.action.as_ref().map(|how| ProbeAction::clone(how)).unwrap_or_default();
                Consumers::LatencyAtExits(FilteredProbe::new(Measure::Latency, action))
            }
            ProbeKind::Record => {
                let (Some(rings), Some(how)) = (self.rings, &asked.action) else {
                    return Err("the tracer has sent no rings, or named no event".to_owned());
                };
                let record = rings.record(0).with_action(ProbeAction::clone(how));
                if exits.is_empty() { Consumers::Record(record) } else { Consumers::RecordAtExits(record) }
            }
            ProbeKind::Hold(role) if self.times_holds => Consumers::Hold(role),
            ProbeKind::Hold(_) => return Err("the tracer has sent no table of holds".to_owned()),
            _ => return Err("the agent cannot do that".to_owned()),
        };
        if let Some(reason) = consumers.beyond() {
            return Err(reason.to_owned());
        }
        let Some((function, targets)) = self.function(asked, maps) else { return Ok(None) };
        let semaphore = match wanted.semaphore {
            0 => None,
            offset => Some(Semaphore::of(&asked.module, offset, maps)?),
        };
        let at = function.start + u64::from(wanted.inside_bytes);
        let looks_at = match (wanted.kind, &asked.action) {
            // A lock, or a condition and its lock.
            (ProbeKind::Hold(_), _) => EntryState::two_arguments(),
            (_, Some(action)) => EntryState::of(action),
            (_, None) => EntryState::NOTHING,
        };
        let mut parts = Vec::new();
        for exits in exits.chunk_by(|exit, next| exit.spec.offset == next.spec.offset) {
            let part = exits.first().and_then(|first| self.function(first, maps));
            let (part, targets) = part.ok_or("one of its exits is not mapped")?;
            let ends = exits.iter().map(|exit| part.start + u64::from(exit.spec.inside_bytes)).collect();
            parts.push((part, ends, targets));
        }
        let ends = parts.into_iter().map(|(part, ends, targets)| CallEnds { part, ends, targets });
        let entry = |surroundings: &Surroundings<'_>| patch::plan_inside(memory, &function, at, surroundings);
        let call = CallPlan::of(memory, &entry, (&targets, looks_at), &ends.collect::<Vec<_>>())
            .map_err(|refusal| refusal.to_string())?;
        let still = blocks_signals(&asked.module);
        Ok(Some(PlannedSite { id: wanted.id, call, semaphore, consumers, still }))
    }

    /// Where the function is that a probe is in, and where its module's jumps lead; `None` if that
    /// is not mapped.
    fn function(&self, asked: &RequestedProbe, maps: &Maps) -> Option<(Function, Rc<[u64]>)> {
        let (code, function) = function(asked, maps)?;
        Some((function, Rc::clone(self.targets.get(&code.start)?)))
    }

    /// Finds out where jumps lead in the functions of a batch.
    fn find_targets<'a>(
        &mut self,
        batch: impl Iterator<Item = &'a RequestedProbe>,
        (maps, memory): (&Maps, &OwnMemory),
    ) {
        let mut modules: BTreeMap<u64, (&MapsEntry, Vec<Range<u64>>)> = BTreeMap::new();
        for (code, function) in batch.filter_map(|asked| function(asked, maps)) {
            let (_, places) = modules.entry(code.start).or_insert((code, Vec::new()));
            places.push(function.start..function.next);
        }
        let targets = modules.into_iter().map(|(start, (code, places))| {
            (start, patch::jump_targets(memory, code.start..code.end, &places).into())
        });
        self.targets = targets.collect();
    }

    fn some(&self, measure: Measure, all: Consumers, asked: &RequestedProbe) -> Consumers {
        match &asked.action {
            Some(how) if **how != ProbeAction::default() => {
                Consumers::Filtered(FilteredProbe::new(measure, ProbeAction::clone(how)))
            }
            _ => all,
        }
    }

    /// Arms what can be, all that do the same together.
    fn arm_all(&mut self, planned: Vec<PlannedSite>, threads: &mut Threads<'_>, done: &mut BatchOutcome) {
        let mut groups: Vec<(Consumers, Vec<PlannedSite>)> = Vec::new();
        let mut places: HashMap<Consumers, usize> = HashMap::new();
        for planned in planned {
            let place = *places.entry(planned.consumers).or_insert(groups.len());
            if place == groups.len() {
                groups.push((planned.consumers, Vec::new()));
            }
            groups[place].1.push(planned);
        }
        for (consumers, planned) in groups {
            self.arm(planned, consumers, threads, done);
        }
    }

    fn arm(
        &mut self,
        planned: Vec<PlannedSite>,
        consumers: Consumers,
        threads: &mut Threads<'_>,
        done: &mut BatchOutcome,
    ) {
        let planned = match self.arm_with(planned, consumers, &mut threads.holder(), done) {
            None => return,
            // Nobody is there to count for, and another tool may already put the kernel's probes
            // there, whose handler would take our traps for its own.
            Some((planned, error @ PatchError::NotHeld { .. })) if threads.is_orphaned() => {
                return self.refuse_all(planned, &error, done);
            }
            Some((planned, PatchError::NotHeld { why })) if !may_write() => {
                return self.refuse_all(planned, &PatchError::NotForced { why: Some(why) }, done);
            }
            Some((planned, PatchError::NotHeld { why })) => {
                let (still, planned): (Vec<_>, Vec<_>) =
                    planned.into_iter().partition(|planned| planned.still);
                for planned in still {
                    let why = format!(
                        "the C library blocks all signals at times, so its code is written only while all threads are held, and these could not be: {why}"
                    );
                    self.refuse(planned.id, why, done);
                }
                planned
            }
            Some((planned, error)) => return self.refuse_all(planned, &error, done),
        };
        if let Some((planned, error)) = self.arm_with(planned, consumers, &mut Holder::Nobody, done) {
            self.refuse_all(planned, &error, done);
        }
    }

    /// Arms what can be with the threads held so; all of it and the reason if nothing can.
    fn arm_with(
        &mut self,
        planned: Vec<PlannedSite>,
        consumers: Consumers,
        holder: &mut Holder<'_>,
        done: &mut BatchOutcome,
    ) -> Option<(Vec<PlannedSite>, PatchError)> {
        if planned.is_empty() {
            return None;
        }
        let attached = match consumers.at_exits() {
            Some(at_exits) => {
                let calls: Vec<CallPlan> = planned.iter().map(|planned| planned.call.clone()).collect();
                patch::attach_calls(&calls, at_exits, holder)
            }
            None => {
                let sites: Vec<Site> = planned.iter().map(|planned| planned.call.entry.clone()).collect();
                let alone = |probe: Result<Probe, PatchError>| probe.map(|probe| vec![probe]);
                patch::attach_each(&sites, consumers, holder)
                    .map(|probes| probes.into_iter().map(alone).collect())
            }
        };
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => return Some((planned, error)),
        };
        for (planned, attached) in planned.into_iter().zip(attached) {
            match attached.map(Vec::into_iter).map(|mut probes| (probes.next(), probes)) {
                Ok((Some(probe), exits)) => {
                    let PlannedSite { id, semaphore, still, .. } = planned;
                    semaphore.iter().for_each(|semaphore| semaphore.add(1));
                    place(id, &probe, done);
                    let exits = exits.collect();
                    self.kept.insert(id, Placement::Armed { probe, exits, semaphore, still });
                }
                Ok((None, _)) => {}
                Err(error) => self.refuse(planned.id, error.to_string(), done),
            }
        }
        None
    }

    fn refuse_all(&mut self, planned: Vec<PlannedSite>, error: &PatchError, done: &mut BatchOutcome) {
        for planned in planned {
            self.refuse(planned.id, error.to_string(), done);
        }
    }

    fn refuse(&mut self, id: u32, reason: String, done: &mut BatchOutcome) {
        done.refused.push((id, reason.clone()));
        self.kept.insert(id, Placement::Refused(reason));
    }

    fn disarm(&mut self, ids: &[u32], threads: &mut Threads<'_>) {
        let mut probes = Vec::new();
        for id in ids {
            if let Some(Placement::Armed { probe, exits, semaphore, still }) = self.kept.remove(id) {
                semaphore.iter().for_each(|semaphore| semaphore.add(-1));
                probes.extend(exits.into_iter().map(|exit| (still, exit)));
                if probe.lost().is_some() {
                    self.gone.insert(*id, probe.clone());
                }
                probes.push((still, probe));
            }
        }
        // Those of the C library last.
        probes.sort_by_key(|(still, _)| *still);
        let first_still = probes.partition_point(|(still, _)| !still);
        let mut probes: Vec<Probe> = probes.into_iter().map(|(_, probe)| probe).collect();
        let held = threads.by == HeldBy::Tracer
            && !matches!(patch::detach_with(&probes, &mut threads.holder()), Err(PatchError::NotHeld { .. }));
        // Who never held them has put all of them in place while the threads ran, and takes all
        // away so.
        let still = if threads.by == HeldBy::Nobody { Vec::new() } else { probes.split_off(first_still) };
        // Each attempt waits for threads that block traps; one that does so for half a minute keeps
        // patches that count for nobody, which harms nothing. Of sites that others changed since,
        // nothing better is to be done than leave them.
        const ATTEMPTS: usize = 15;
        for _ in 0..ATTEMPTS {
            if held || probes.is_empty() || super::filters::forbids_handlers() {
                break;
            }
            if !matches!(patch::detach(&probes), Err(PatchError::BlocksTraps { .. })) {
                break;
            }
        }
        // Those that are there all the same wait for a tracer that holds the threads.
        probes.extend(still);
        patch::abandon(probes);
        if self.armed() == 0 {
            patch::leave();
        }
    }

    fn armed(&self) -> u32 {
        self.kept.values().filter(|kept| matches!(kept, Placement::Armed { .. })).count() as u32
    }
}

impl ProbeEngine for Patching {
    fn sizes(&self) -> (u32, u32) {
        patch::counter_sizes()
    }

    fn count_in(&mut self, file: &File, cpus: u32, slots: u32, children: bool) -> io::Result<()> {
        patch::share_counters(file, cpus, slots, children)
    }

    fn record_in(
        &mut self,
        file: &File,
        cpus: u32,
        data_bytes: u32,
        (tick, zero_ns): (u64, u64),
    ) -> io::Result<()> {
        self.rings = Some(Rings::share(file, cpus, data_bytes, Clock { tick, zero_ns })?);
        Ok(())
    }

    fn hold_in(&mut self, file: &File, children: bool) -> io::Result<()> {
        patch::share_holds(file, children)?;
        self.times_holds = true;
        Ok(())
    }

    fn let_go(&mut self) {
        let armed = std::mem::take(&mut self.kept).into_values().flat_map(|kept| match kept {
            Placement::Armed { probe, mut exits, .. } => {
                exits.push(probe);
                exits
            }
            Placement::Waiting | Placement::Refused(_) => Vec::new(),
        });
        patch::abandon(armed.collect());
    }

    fn close(&mut self) {
        self.kept = BTreeMap::new();
        self.gone = BTreeMap::new();
        self.targets = BTreeMap::new();
        super::filters::release();
        patch::release_counters();
        patch::release_holds();
        self.times_holds = false;
        if let Some(rings) = self.rings.take() {
            rings.release();
        }
    }

    fn change(
        &mut self,
        remove: &[u32],
        add: Vec<RequestedProbe>,
        threads: &mut Threads<'_>,
    ) -> BatchOutcome {
        if !remove.is_empty() {
            self.disarm(remove, threads);
        }
        if threads.by == HeldBy::FirstWaits {
            super::exec_interpose::finish(&mut threads.holder());
        }
        if !add.is_empty() {
            super::filters::watch();
        }
        let mut done = BatchOutcome::default();
        let mut exits: HashMap<u32, Vec<RequestedProbe>> = HashMap::new();
        let (ends, add): (Vec<_>, Vec<_>) =
            add.into_iter().partition(|asked| asked.spec.kind == ProbeKind::Exit);
        for end in ends {
            exits.entry(end.spec.id).or_default().push(end);
        }
        match (Maps::read(), OwnMemory::open()) {
            (Ok(maps), Ok(memory)) => {
                self.find_targets(add.iter().chain(exits.values().flatten()), (&maps, &memory));
                let mut planned = Vec::new();
                for asked in &add {
                    let exits = exits.get(&asked.spec.id).map_or(&[][..], Vec::as_slice);
                    match self.plan(asked, exits, (&maps, &memory)) {
                        Ok(Some(plan)) => planned.push(plan),
                        Ok(None) => _ = self.kept.insert(asked.spec.id, Placement::Waiting),
                        Err(reason) => self.refuse(asked.spec.id, reason, &mut done),
                    }
                }
                self.targets.clear();
                self.arm_all(planned, threads, &mut done);
            }
            (Err(error), _) | (_, Err(error)) => {
                for asked in &add {
                    self.refuse(asked.spec.id, format!("/proc/self cannot be read: {error}"), &mut done);
                }
            }
        }
        done.armed = self.armed();
        done
    }

    fn losses(&self) -> Vec<HitCount> {
        let there = self.kept.iter().filter_map(|(id, kept)| match kept {
            Placement::Armed { probe, .. } => Some((id, probe)),
            Placement::Waiting | Placement::Refused(_) => None,
        });
        let of = |(id, probe): (&u32, &Probe)| {
            let hits = probe.lost().filter(|lost| *lost > 0)?;
            Some(HitCount { id: *id, hits })
        };
        there.chain(&self.gone).filter_map(of).collect()
    }

    fn callers(&self) -> Vec<CallerCounts> {
        let armed = self.kept.iter().filter_map(|(id, kept)| match kept {
            Placement::Armed { probe, .. } => Some((*id, probe)),
            Placement::Waiting | Placement::Refused(_) => None,
        });
        let (ids, probes): (Vec<u32>, Vec<&Probe>) = armed.unzip();
        let at_exits = patch::callers_of_calls(&probes);
        let of = |((id, probe), at_exits): ((u32, &Probe), Option<Vec<CallerCount>>)| {
            let (of, others) = match at_exits {
                Some(counts) => {
                    let known = counts.iter().filter(|count| count.address != 0);
                    let others = counts.iter().filter(|count| count.address == 0);
                    (
                        known.map(|count| (count.address, count.calls)).collect(),
                        others.map(|count| count.calls).sum(),
                    )
                }
                None => probe.callers().map(|(of, others)| (of.into_iter().collect(), others))?,
            };
            Some(CallerCounts { id, of, others })
        };
        ids.into_iter().zip(probes).zip(at_exits).filter_map(of).collect()
    }

    fn list(&self) -> Vec<ProbeStatus> {
        let of = |(id, kept): (&u32, &Placement)| ProbeStatus {
            id: *id,
            state: match kept {
                Placement::Armed { .. } => ProbeState::Armed,
                Placement::Waiting => ProbeState::Waiting,
                Placement::Refused(reason) => ProbeState::Refused(reason.clone()),
            },
        };
        self.kept.iter().map(of).collect()
    }

    fn clear(&mut self, threads: &mut Threads<'_>) -> u32 {
        let armed = self.armed();
        let ids: Vec<u32> = self.kept.keys().copied().collect();
        self.disarm(&ids, threads);
        self.kept.clear();
        self.gone.clear();
        armed
    }

    fn clean(&mut self, threads: &mut Threads<'_>) -> u32 {
        patch::clean(&mut threads.holder()) as u32
    }
}

impl Drop for Patching {
    fn drop(&mut self) {
        if self.armed() > 0 {
            // After a fault of ours: nobody is asked.
            let (socket, _other) = UnixDatagram::pair().unwrap_or_else(|_| std::process::abort());
            self.clear(&mut Threads { by: HeldBy::NobodyAnyMore, ..Threads::new(&socket) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::blocks_signals;

    /// Checks that the C library and its dynamic linker are known by their files, old and new, and
    /// that others are not taken for them.
    #[test]
    fn c_libraries() {
        for name in
            ["libc.so.6", "libc-2.31.so", "ld-linux-x86-64.so.2", "libpthread-2.31.so", "ld-musl-x86_64.so.1"]
        {
            assert!(blocks_signals(format!("/usr/lib/{name}").as_bytes()), "{name}");
        }
        for name in ["libcrypto.so.3", "libc++.so.1", "libcurl.so.4", "libc", "server"] {
            assert!(!blocks_signals(format!("/usr/lib/{name}").as_bytes()), "{name}");
        }
    }
}
