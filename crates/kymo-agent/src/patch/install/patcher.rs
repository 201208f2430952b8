//! The one patcher of this process: stubs, sites, attach, detach.
use super::arena::Arena;
use super::call_stubs::CallStubs;
use super::error::PatchError;
use super::hold::Holder;
use super::memory::{Memory, OwnMemory};
use super::pass::{EditOutcome, Pass, SiteEdit};
use super::probe::Probe;
use super::publish::{self, SiteChange};
use super::refusal::Refusal;
use super::{got_hooks, threads, traps, unwinder_hooks};
use crate::patch::codegen::context::{CallTargets, CodegenContext};
use crate::patch::codegen::slow_path::SlowPath;
use crate::patch::codegen::stub::{self, ReturnAction, StubSpec};
use crate::patch::filter::{self, InternedAction, Measure};
use crate::patch::runtime::callers::Callers;
use crate::patch::runtime::frames;
use crate::patch::runtime::shadow::{claim, page};
use crate::patch::runtime::slow_path::{self, ProbeCounters, SlowProbe};
use crate::patch::runtime::trap::{self, Detour, Retired};
use crate::patch::site::{JUMP_BYTES, Site};
use crate::patch::slots::{self, Slots, slots};
use crate::patch::{Consumers, clock::tick, os};
use crate::sys::{clock, fork, lock, rseq};
use iced_x86::FlowControl;
use kymo_core::latency::SLOTS as TIME_SLOTS;
use kymo_core::probe::Handle;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// Gives the tracer's counters back. To be called while no probe is attached.
pub(crate) fn release_counters() {
    // In a forked child the lock may be taken for good.
    if !fork::is_child() {
        slots::release();
    }
}

/// A stub that was once published: a thread may be in it, so it stays what it is, for this site.
#[derive(Debug)]
struct BuiltStub {
    spec: StubSpec,
    watch: Option<Arc<SlowProbe>>,
    slots: &'static Slots,
    /// The memory that it was attached in last.
    counted_in: Option<u64>,
    enter: u64,
    moved: Vec<u64>,
    original: [u8; JUMP_BYTES],
}

#[derive(Debug, Default)]
pub(super) struct Patcher {
    pub(super) arena: Arena,
    /// By the site's address and what its stub does.
    built: HashMap<(u64, Consumers), BuiltStub>,
    pub(super) call_stubs: CallStubs,
    /// The sites with probes, by address; what is there for traps.
    attached: BTreeMap<u64, Vec<Detour>>,
    /// Sites that had probes.
    gone: BTreeSet<u64>,
    /// Probes that nobody could take away: they are attached.
    pub(super) left: Vec<Probe>,
    retired: Retired,
    /// How many stubs ever needed the handler.
    slow_paths: u64,
}

/// Room for any stub: some 600 bytes are the most that one has.
const LONGEST_STUB_BYTES: u64 = 2048;

/// The patcher; none in a forked child, where its lock may be taken for good.
pub(super) fn patcher() -> Result<MutexGuard<'static, Patcher>, PatchError> {
    static PATCHER: LazyLock<Mutex<Patcher>> = LazyLock::new(Mutex::default);
    // A panic inside leaves sites half-written but consistent with `attached`: nothing better is to
    // be had by refusing.
    match fork::is_child() {
        true => Err(PatchError::Child),
        false => Ok(lock(&PATCHER)),
    }
}

/// Puts probes at `sites`, all or none, while all threads run.
///
/// The calling thread waits some microseconds, or until the last thread that was interrupted inside
/// a site's bytes has got a CPU.
///
/// # Errors
/// [`PatchError`]; then every byte is as it was.
pub fn attach(sites: &[Site], consumers: Consumers) -> Result<Vec<Probe>, PatchError> {
    patcher()?.attach(sites, consumers, &mut Holder::Nobody, true)?.into_iter().collect()
}

/// Puts probes at those of `sites` where that can be, and tells why not at the others, in the same
/// order.
///
/// The calling thread waits as for [`attach`] if nobody holds the others; otherwise it writes all
/// in one pass while they are held.
///
/// # Errors
/// What stands against all of them: then every byte is as it was. [`PatchError::NotHeld`] if
/// `holder` cannot hold the threads.
pub fn attach_each(
    sites: &[Site],
    consumers: Consumers,
    holder: &mut Holder<'_>,
) -> Result<Vec<Result<Probe, PatchError>>, PatchError> {
    patcher()?.attach(sites, consumers, holder, false)
}

/// Takes probes away, while all threads run. When it returns, the program's bytes are its own
/// again; hits that had begun may still be counted.
///
/// # Errors
/// [`PatchError::Changed`] for sites that somebody else has changed since: these are left alone,
/// all others are restored. [`PatchError::BlocksTraps`]: nothing was done, and a later attempt may
/// succeed. [`PatchError::System`]; then sites may be left that still count.
pub fn detach(probes: &[Probe]) -> Result<(), PatchError> {
    detach_with(probes, &mut Holder::Nobody)
}

/// As [`detach`], while `holder` holds the threads.
///
/// # Errors
/// As [`detach`]; [`PatchError::NotHeld`] if the threads cannot be held: nothing was done.
pub fn detach_with(probes: &[Probe], holder: &mut Holder<'_>) -> Result<(), PatchError> {
    patcher()?.detach(probes, holder)
}

/// Leaves probes that cannot be taken away now to [`clean`]: their sites count on, for nobody.
pub fn abandon(probes: Vec<Probe>) {
    let Ok(mut patcher) = patcher() else { return };
    let there = |probe: &Probe| patcher.attached.contains_key(&probe.site.address);
    let there: Vec<Probe> = probes.into_iter().filter(there).collect();
    patcher.left.extend(there);
}

/// Takes away what [`abandon`] left, if the threads can be held; how many probes that were.
pub fn clean(holder: &mut Holder<'_>) -> usize {
    let Ok(mut patcher) = patcher() else { return 0 };
    if patcher.left.is_empty() {
        return 0;
    }
    let left = std::mem::take(&mut patcher.left);
    // What is not restored is still attached, whatever the reason.
    _ = patcher.detach(&left, holder);
    let all = left.len();
    let there = |probe: &Probe| patcher.attached.contains_key(&probe.site.address);
    patcher.left = left.into_iter().filter(there).collect();
    all - patcher.left.len()
}

/// Has code written that is no probe's, in one pass while `holder` holds the threads: places, what
/// is there, what is to be there.
///
/// # Errors
/// Why something of it was not written.
pub(crate) fn write_code(
    places: &[(u64, [u8; JUMP_BYTES], [u8; JUMP_BYTES])],
    holder: &mut Holder<'_>,
) -> Result<(), PatchError> {
    let memory = OwnMemory::open().map_err(PatchError::system("open /proc/self/mem"))?;
    let mut sites: Vec<u64> = places.iter().map(|(at, ..)| *at).collect();
    sites.sort_unstable();
    let edits = places.iter().map(|&(at, from, to)| SiteEdit { at, from, to }).collect();
    let mut pass = Pass::prepare(&memory, edits)
        .map_err(PatchError::system("make cores look at changed code (membarrier)"))?;
    let edits = pass.for_the_holder();
    holder
        .during(&sites, &[], &edits, |goes_on| pass.write(goes_on))
        .map_err(|why| PatchError::NotHeld { why })?;
    let mut fates = pass.fates();
    let failed = fates.find(|(_, fate)| *fate != EditOutcome::Written);
    failed.map_or(Ok(()), |(at, fate)| Err(not_written(at, fate)))
}

/// Takes back what the first [`attach`] did to the process besides its probes: SIGILL is the
/// program's, and calls that change signal masks and handlers go to the C library again. To be
/// called when the last probe is gone; the handler of one real-time signal stays.
pub fn leave() {
    let Ok(patcher) = patcher() else { return };
    if patcher.attached.is_empty() {
        // A thread that has run into a site's trap may be about to call its handler.
        let all_asked =
            || traps::question().is_ok_and(|question| threads::leave(question, |_| false).is_ok());
        traps::uninstall(all_asked);
    }
    got_hooks::release();
}

/// Ends the registrations of probes that are not there any more, all together.
fn end_handling<'p>(probes: impl Iterator<Item = &'p Probe>) {
    let handles: Vec<Handle> = probes.flat_map(|probe| probe.handles.iter().copied()).collect();
    slow_path::unregister(&handles, clock::own_tid() as u32);
}

impl Patcher {
    fn attach(
        &mut self,
        sites: &[Site],
        consumers: Consumers,
        holder: &mut Holder<'_>,
        all: bool,
    ) -> Result<Vec<Result<Probe, PatchError>>, PatchError> {
        let memory = OwnMemory::open().map_err(PatchError::system("open /proc/self/mem"))?;
        may_write(&memory, holder)?;
        let timed = match consumers {
            Consumers::Filtered(filtered) => filtered.measure == Measure::Latency,
            consumers => consumers == Consumers::Latency,
        };
        let (slots, context) = surroundings(timed)?;
        self.forget_unloaded(&memory, sites.iter());
        let mut probes = Vec::with_capacity(sites.len());
        for site in sites {
            match self.prepare(&memory, (site, &[]), consumers, slots, &context) {
                Err(error) if all || !error.concerns_one_site() => {
                    return Err(self.forget(&memory, probes, error));
                }
                probe => probes.push(probe),
            }
        }
        self.arena.seal();
        if !probes.iter().any(Result::is_ok) {
            return Ok(probes);
        }
        if consumers.returns() {
            unwinder_hooks::look_again();
        }
        match self.arm(&memory, &mut probes, holder) {
            Ok(()) => Ok(probes),
            Err(error) => Err(self.forget(&memory, probes, error)),
        }
    }

    /// Forgets the probes of libraries that were unloaded with them, and loaded again at the same
    /// place.
    pub(super) fn forget_unloaded<'s>(&mut self, memory: &OwnMemory, sites: impl Iterator<Item = &'s Site>) {
        for site in sites {
            if self.attached.contains_key(&site.address)
                && memory.bytes(site.address, JUMP_BYTES as u64) == site.original
            {
                self.attached.remove(&site.address);
            }
        }
    }

    /// A probe whose stub is in place, and whose site is taken though not written. With a site come
    /// the places of its function where calls end, if they are timed there.
    pub(super) fn prepare(
        &mut self,
        memory: &OwnMemory,
        (site, ends): (&Site, &[u64]),
        consumers: Consumers,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<Probe, PatchError> {
        self.check(memory, site)?;
        let key = (site.address, consumers);
        // Another library may lie there by now: its stub is another one. The old one stays, for a
        // thread may still be in it.
        let same = |built: &BuiltStub| built.original == site.original && std::ptr::eq(built.slots, slots);
        if !self.built.get(&key).is_some_and(same) {
            let built = match consumers {
                Consumers::LatencyAtExits(_) | Consumers::Exit(..) => {
                    let (arena, site) = ((&mut self.arena, memory), (site, ends));
                    let (spec, stub) = self.call_stubs.build(arena, site, consumers, slots, context)?;
                    let (enter, moved, original) = (stub.enter, stub.moved, site.0.original);
                    BuiltStub { spec, watch: None, slots, counted_in: None, enter, moved, original }
                }
                _ => self.build(memory, (site, ends), consumers, slots, context)?,
            };
            self.built.insert(key, built);
        }
        // Memory that this site has not counted in yet is not read: that would make the kernel take
        // some for it.
        let memory_number = slots.memory();
        let counted_in = self.built.get_mut(&(site.address, consumers));
        let counted_in = counted_in.and_then(|built| built.counted_in.replace(memory_number));
        let has_counted = counted_in == Some(memory_number);
        // SANITY: built above.
        let built = &self.built[&(site.address, consumers)];
        self.attached.insert(site.address, detours(site, built));
        let (spec, enter) = (built.spec, built.enter);
        let before = spec.slots().map(|slot| if has_counted { slots.read(slot) } else { 0 }).collect();
        let watch = built.watch.clone();
        let number = spec.slow_path.map_or(0, |(slow_path, _)| slow_path.number);
        let handles = watch.as_ref().map_or_else(Vec::new, |watch| slow_path::register(number, watch));
        let callers = watch.as_ref().and_then(|watch| watch.callers());
        let callers_before = callers.map(Callers::read).unwrap_or_default();
        Ok(Probe { site: site.clone(), enter, slots, spec, before, watch, handles, callers_before })
    }

    /// Writes the sites of `probes`: all, or none with an error, or, when the one who holds the
    /// threads ends meanwhile, some.
    pub(super) fn arm(
        &mut self,
        memory: &OwnMemory,
        probes: &mut [Result<Probe, PatchError>],
        holder: &mut Holder<'_>,
    ) -> Result<(), PatchError> {
        if let Holder::Nobody = holder {
            let changes: Vec<SiteChange<'_>> = probes
                .iter()
                .flatten()
                .map(|probe| SiteChange { site: &probe.site, enter: probe.enter })
                .collect();
            return self.write_with_traps(memory, &changes);
        }
        let edit = |probe: &Probe| SiteEdit {
            at: probe.site.address,
            from: probe.site.original,
            to: publish::jump(probe.site.address, probe.enter),
        };
        let edits: Vec<SiteEdit> = probes.iter().flatten().map(edit).collect();
        let mut sites: Vec<u64> = edits.iter().map(|edit| edit.at).collect();
        sites.sort_unstable();
        let detours = sites.iter().filter_map(|site| self.attached.get(site)).flatten();
        let moves: Vec<[u64; 2]> =
            detours.filter(|detour| detour.interior).map(|detour| [detour.from, detour.to]).collect();
        let mut pass = Pass::prepare(memory, edits)
            .map_err(PatchError::system("make cores look at changed code (membarrier)"))?;
        pass.warm();
        let edits = pass.for_the_holder();
        holder
            .during(&sites, &moves, &edits, |goes_on| pass.write(goes_on))
            .map_err(|why| PatchError::NotHeld { why })?;
        let fates: HashMap<u64, EditOutcome> =
            pass.fates().filter(|(_, fate)| *fate != EditOutcome::Written).collect();
        if fates.is_empty() {
            return Ok(());
        }
        for place in probes.iter_mut() {
            let Ok(probe) = place else { continue };
            let at = probe.site.address;
            let Some(fate) = fates.get(&at) else { continue };
            self.attached.remove(&at);
            *place = Err(not_written(at, *fate));
        }
        Ok(())
    }

    /// Writes sites while all threads run.
    fn write_with_traps(&mut self, memory: &OwnMemory, changes: &[SiteChange<'_>]) -> Result<(), PatchError> {
        let question = traps::question().map_err(PatchError::system("find a signal to ask threads with"))?;
        self.with_traps(&[trap::SIGNAL, question], |patcher| {
            frames::learn(&os::restorers());
            let done = publish::set_traps(memory, changes)
                .map_err(PatchError::system("write traps"))
                .and_then(|()| {
                    let interior = |address: u64| patcher.is_interior(address);
                    if changes.iter().any(|change| !change.site.is_single_instruction()) {
                        threads::leave(question, interior)?;
                    }
                    publish::set_jumps(memory, changes).map_err(PatchError::system("write jumps"))
                });
            done.inspect_err(|_| {
                let all: Vec<&Site> = changes.iter().map(|change| change.site).collect();
                // What the first failure said is the reason; if this fails, too, traps stay, and
                // lead into stubs.
                _ = publish::restore(memory, &all);
            })
        })
    }

    /// Does what writes traps, with these signals open in this thread, unless one blocks traps.
    fn with_traps(
        &mut self,
        signals: &[i32],
        write: impl FnOnce(&mut Patcher) -> Result<(), PatchError>,
    ) -> Result<(), PatchError> {
        // First this: from here on a program that handles SIGILL does so behind us.
        got_hooks::guard();
        traps::install().map_err(PatchError::system("handle SIGILL"))?;
        os::with_signals_open(signals, || {
            // Handlers of the program that block all signals would block traps, too, and a trap
            // that is blocked ends the process.
            os::let_through(trap::SIGNAL);
            let others = threads::others().map_err(PatchError::system("list threads"))?;
            if let Some(tid) = threads::blocker(&others) {
                return Err(PatchError::BlocksTraps { tid });
            }
            // Sites that were written while all threads were held are not among them yet.
            self.publish_detours();
            write(self)
        })
    }

    fn detach(&mut self, probes: &[Probe], holder: &mut Holder<'_>) -> Result<(), PatchError> {
        let memory = OwnMemory::open().map_err(PatchError::system("open /proc/self/mem"))?;
        may_write(&memory, holder)?;
        let (mut ours, mut changed) = (Vec::new(), None);
        for probe in probes {
            let site = &probe.site;
            // A library that was unloaded took its probes along; what lies there now is not ours.
            let there =
                memory.bytes(site.address, JUMP_BYTES as u64) == publish::jump(site.address, probe.enter);
            if self.attached.contains_key(&site.address) && there {
                ours.push(probe);
            } else {
                self.attached.remove(&site.address);
                changed = changed.or(Some(PatchError::Changed { at: site.address }));
            }
        }
        if ours.is_empty() {
            end_handling(probes.iter());
            return changed.map_or(Ok(()), Err);
        }
        match holder {
            Holder::Nobody => {
                let sites: Vec<&Site> = ours.iter().map(|probe| &probe.site).collect();
                let restore =
                    || publish::restore(&memory, &sites).map_err(PatchError::system("restore code"));
                self.with_traps(&[trap::SIGNAL], |_| restore())?;
                sites.iter().for_each(|site| self.is_gone(site.address));
                self.publish_detours();
            }
            _ => {
                let edit = |probe: &&Probe| SiteEdit {
                    at: probe.site.address,
                    from: publish::jump(probe.site.address, probe.enter),
                    to: probe.site.original,
                };
                let mut pass = Pass::prepare(&memory, ours.iter().map(edit).collect())
                    .map_err(PatchError::system("make cores look at changed code (membarrier)"))?;
                // Nobody stands inside of a jump.
                let edits = pass.for_the_holder();
                holder
                    .during(&[], &[], &edits, |goes_on| pass.write(goes_on))
                    .map_err(|why| PatchError::NotHeld { why })?;
                for (at, fate) in pass.fates() {
                    match fate {
                        EditOutcome::Written => self.is_gone(at),
                        fate => changed = changed.or(Some(not_written(at, fate))),
                    }
                }
            }
        }
        end_handling(probes.iter().filter(|probe| !self.attached.contains_key(&probe.site.address)));
        changed.map_or(Ok(()), Err)
    }

    fn is_gone(&mut self, site: u64) {
        self.attached.remove(&site);
        self.gone.insert(site);
    }

    /// Whether the site is free and its bytes are what they were.
    fn check(&self, memory: &OwnMemory, site: &Site) -> Result<(), PatchError> {
        let at = site.address;
        let end = at + JUMP_BYTES as u64;
        let before = self.attached.range(..end).next_back();
        if before.is_some_and(|(&other, _)| other + JUMP_BYTES as u64 > at) {
            return Err(PatchError::Taken { at });
        }
        if memory.bytes(at, JUMP_BYTES as u64) != site.original {
            return Err(PatchError::Changed { at });
        }
        Ok(())
    }

    /// Makes the site's stub.
    fn build(
        &mut self,
        memory: &OwnMemory,
        (site, ends): (&Site, &[u64]),
        consumers: Consumers,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<BuiltStub, PatchError> {
        let at = site.address;
        if consumers.returns() && !site.entry {
            return Err(PatchError::Refused { at, why: Refusal::NotTheEntry { at } });
        }
        let jump = site.displaced.iter().find(|instruction| {
            ends.binary_search(&instruction.ip()).is_ok() && instruction.flow_control() != FlowControl::Return
        });
        if let Some(jump) = jump {
            return Err(PatchError::Refused { at, why: Refusal::EndsByJump { at: jump.ip() } });
        }
        let take = |count| slots.take(count).ok_or(PatchError::Full);
        let look = match consumers {
            Consumers::Filtered(filtered) => filtered.measure,
            Consumers::CountReturns => Measure::CountReturns,
            Consumers::Latency => Measure::Latency,
            _ => Measure::Count,
        };
        let at_return = match (consumers, look) {
            (Consumers::Record(record), _) if record.returns() => ReturnAction::Recorded(take(1)?),
            (Consumers::RecordAtExits(_), _) => ReturnAction::RecordedAtExits(take(1)?),
            (Consumers::RecordedExit(_, exit), _) => ReturnAction::Exit(exit),
            (Consumers::Hold(role), _) if role.acquires() => ReturnAction::Acquired(role),
            (_, Measure::Count) => ReturnAction::Ignored,
            (_, Measure::CountReturns) => ReturnAction::Counted(take(1)?),
            (_, Measure::Latency) => ReturnAction::Timed(take(TIME_SLOTS)?),
        };
        let (record, action) = match consumers {
            Consumers::Record(record) | Consumers::RecordAtExits(record) => {
                (Some((record, take(1)?)), Some(record.action))
            }
            Consumers::RecordedExit(record, exit) => (Some((record, exit.lost)), None),
            Consumers::Filtered(filtered) => (None, Some(filtered.action)),
            _ => (None, None),
        };
        let slow_path = self.slow_path(consumers, action);
        let hold = if let Consumers::Hold(role) = consumers { Some(role) } else { None };
        if record.is_some() || slow_path.is_some() || hold.is_some() {
            // Stubs find their thread's number there, and the locks that it holds.
            claim::region().map_err(PatchError::system("map shadow stacks"))?;
        }
        let missed = match (slow_path, record) {
            (Some(_), None) => take(1)?,
            (_, record) => record.map_or(0, |(_, lost)| lost),
        };
        let spec = StubSpec {
            hits: if let ReturnAction::Exit(exit) = at_return { exit.returns } else { take(1)? },
            at_return,
            record,
            action,
            slow_path: slow_path.map(|it| (it, missed)),
            hold,
        };
        let counters = ProbeCounters {
            slots,
            hits: spec.hits,
            returns: if let ReturnAction::Recorded(slot) = at_return { slot } else { 0 },
        };
        let watch = match (slow_path, action) {
            (Some(_), Some(action)) => {
                let watch = SlowProbe::new(action, counters, at, context.rseq);
                Some(Arc::new(watch.map_err(PatchError::system("map tables of callers"))?))
            }
            _ => None,
        };
        let unreachable = || PatchError::Refused { at, why: Refusal::OutOfReach { at } };
        let place = self.arena.take(memory, at, LONGEST_STUB_BYTES).map_err(|_| unreachable())?;
        let context = CodegenContext { calls: self.arena.calls(place), ..*context };
        let stub = match stub::generate((site, ends), &spec, &context, place) {
            Ok(stub) if stub.code.len() as u64 <= LONGEST_STUB_BYTES => stub,
            _ => {
                self.arena.keep(place, 0);
                return Err(unreachable());
            }
        };
        self.arena.keep(place, stub.code.len() as u64);
        if consumers.returns() {
            self.arena.describe(place).map_err(PatchError::system("describe stubs to unwinders"))?;
        }
        self.arena.write(memory, place, &stub.code).map_err(PatchError::system("write a stub"))?;
        Ok(BuiltStub {
            spec,
            watch,
            slots,
            counted_in: None,
            enter: stub.enter,
            moved: stub.moved,
            original: site.original,
        })
    }

    /// What of a stub the handler is to do.
    fn slow_path(&mut self, consumers: Consumers, action: Option<InternedAction>) -> Option<SlowPath> {
        let action = action?;
        let records = matches!(consumers, Consumers::Record(_) | Consumers::RecordAtExits(_));
        let (at_entry, at_return) = filter::needs(action, records);
        if !at_entry && !at_return {
            return None;
        }
        self.slow_paths += 1;
        let room = if records { SlowProbe::room(&action) } else { 0 };
        Some(SlowPath { number: self.slow_paths, room, at_entry, at_return })
    }

    /// Undoes [`Patcher::prepare`]. A site that could not be restored may have a trap: it stays.
    pub(super) fn forget(
        &mut self,
        memory: &OwnMemory,
        probes: Vec<Result<Probe, PatchError>>,
        error: PatchError,
    ) -> PatchError {
        self.arena.seal();
        end_handling(probes.iter().flatten());
        for probe in probes.into_iter().flatten() {
            let site = &probe.site;
            if memory.bytes(site.address, JUMP_BYTES as u64) == site.original {
                self.is_gone(site.address);
            } else {
                self.left.push(probe);
            }
        }
        self.publish_detours();
        error
    }

    fn is_interior(&self, address: u64) -> bool {
        let before = self.attached.range(..address).next_back();
        before.is_some_and(|(_, detours)| {
            detours.iter().any(|detour| detour.interior && detour.from == address)
        })
    }

    fn publish_detours(&mut self) {
        let gone = self.gone.iter().filter(|at| !self.attached.contains_key(at));
        let gone = gone.map(|&from| Detour { from, to: 0, interior: false });
        let mut all: Vec<Detour> = self.attached.values().flatten().copied().chain(gone).collect();
        all.sort_unstable();
        trap::publish(all, &mut self.retired);
    }
}

/// The counters of this process, and what code that counts there must know.
pub(super) fn surroundings(timed: bool) -> Result<(&'static Slots, CodegenContext), PatchError> {
    let slots = slots().map_err(PatchError::system("map counters"))?;
    let rseq = rseq::offset().and_then(|offset| i32::try_from(offset).ok()).ok_or(PatchError::NoSequences)?;
    let top = i32::try_from(page::top_offset()).map_err(|_| PatchError::NoSequences)?;
    let tick = if timed { tick() } else { 0 };
    Ok((slots, CodegenContext { table: slots.table(), rseq, top, tick, calls: CallTargets::default() }))
}

/// Whether anybody can write code: this process, or the one who holds its threads.
pub(super) fn may_write(memory: &OwnMemory, holder: &Holder<'_>) -> Result<(), PatchError> {
    match holder {
        Holder::Nobody if !memory.is_forced() => Err(PatchError::NotForced { why: None }),
        _ => Ok(()),
    }
}

/// Why a site was not written although the threads were held.
fn not_written(at: u64, fate: EditOutcome) -> PatchError {
    match fate {
        EditOutcome::Changed | EditOutcome::Written => PatchError::Changed { at },
        EditOutcome::Untouched => PatchError::NotHeld { why: "who held them has ended".to_owned() },
        EditOutcome::Failed(errno) => {
            PatchError::System { what: "write a site", error: std::io::Error::from_raw_os_error(errno) }
        }
    }
}

fn detours(site: &Site, built: &BuiltStub) -> Vec<Detour> {
    let inner = site.displaced.iter().zip(&built.moved).filter_map(|(instruction, &to)| {
        let offset = instruction.ip() - site.address;
        let interior = (1..JUMP_BYTES as u64).contains(&offset);
        interior.then_some(Detour { from: instruction.ip(), to, interior })
    });
    std::iter::once(Detour { from: site.address, to: built.enter, interior: false }).chain(inner).collect()
}
