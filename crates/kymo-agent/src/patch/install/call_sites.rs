//! Times calls where they end: a function's begin and all its exits are patched together, with the
//! stubs that tracers write into programs without the agent (`codegen/freestanding.rs`).
//!
//! No return address changes, so programs may walk, copy, switch and leave their stacks as they
//! like. The identity of a call is the place of its frame; which calls are under way is kept in one
//! table of the process.
//!
//! Each function has a page of counters of its own, for the code finds it by its number.
use super::error::PatchError;
use super::hold::Holder;
use super::memory::OwnMemory;
use super::patcher::{BuiltStub, Patcher, may_write, patcher, surroundings};
use super::probe::Probe;
use super::refusal::Refusal;
use crate::patch::Consumers;
use crate::patch::codegen::context::CodegenContext;
use crate::patch::codegen::freestanding::{
    CALL_TABLE_BYTES, CallCounts, CallTable, Convention, FreestandingSpec, HitCounter, RoutineAddresses,
    freestanding_stub, routines,
};
use crate::patch::codegen::stub::{ReturnAction, StubSpec};
use crate::patch::mapping::Mapping;
use crate::patch::site::Site;
use crate::patch::slots::{CAPACITY, PAGE_SLOTS, Slots};
use kymo_core::latency::{CALLS, SLOTS as TIME_SLOTS};

/// A slot of a function's page that nothing counts in.
const UNUSED: u32 = 2;
/// More than a stub, or the routines, take.
const LONGEST_BYTES: u64 = 2048;
const _: () = assert!(PAGE_SLOTS == TIME_SLOTS);
// Numbers of functions are part of identities of calls.
const _: () = assert!(CAPACITY / PAGE_SLOTS <= crate::patch::MOST_TIMED_SITES);

/// A function whose calls are to be timed where they end.
#[derive(Clone, Debug)]
pub struct TimedCall {
    /// Its begin.
    pub entry: Site,
    /// Where its calls end, ascending.
    pub ends: Vec<u64>,
    /// What is patched for those that are not in `entry`.
    pub exits: Vec<Site>,
}

/// The code that notes when calls begin, and finds that again when they end.
#[derive(Debug)]
pub(super) struct CallClock {
    routines: RoutineAddresses,
    /// The counters that it counts in.
    slots: &'static Slots,
}

/// Puts probes at these functions where that can be, each with all of its exits, and tells why not
/// at the others, in the same order. The first probe of each is the one that counts.
///
/// # Errors
/// As [`attach_each`](super::patcher::attach_each).
pub fn attach_calls(
    calls: &[TimedCall],
    holder: &mut Holder<'_>,
) -> Result<Vec<Result<Vec<Probe>, PatchError>>, PatchError> {
    patcher()?.attach_calls(calls, holder)
}

impl Patcher {
    fn attach_calls(
        &mut self,
        calls: &[TimedCall],
        holder: &mut Holder<'_>,
    ) -> Result<Vec<Result<Vec<Probe>, PatchError>>, PatchError> {
        let memory = OwnMemory::open().map_err(PatchError::system("open /proc/self/mem"))?;
        may_write(&memory, holder)?;
        let (slots, context) = surroundings(true)?;
        let sites = calls.iter().flat_map(|call| std::iter::once(&call.entry).chain(&call.exits));
        self.forget_unloaded(&memory, sites);
        // Those of all functions together, to be written in one pass; and for each function how
        // many these are.
        let (mut probes, mut counts) = (Vec::new(), Vec::new());
        for call in calls {
            let prepared = self.prepare_call(&memory, call, slots, &context);
            counts.push(match prepared {
                Ok(prepared) => {
                    let count = prepared.len();
                    probes.extend(prepared.into_iter().map(Ok));
                    Ok(count)
                }
                Err(error) if error.is_of_site() => Err(error),
                Err(error) => return Err(self.forget(&memory, probes, error)),
            });
        }
        self.arena.seal();
        if !probes.is_empty()
            && let Err(error) = self.arm(&memory, &mut probes, holder)
        {
            return Err(self.forget(&memory, probes, error));
        }
        let mut probes = probes.into_iter();
        let each = counts.into_iter().map(|count| self.whole(probes.by_ref().take(count?).collect()));
        Ok(each.collect())
    }

    /// The probes of a function, none of which is written.
    fn prepare_call(
        &mut self,
        memory: &OwnMemory,
        call: &TimedCall,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<Vec<Probe>, PatchError> {
        let of = (&call.entry, &call.ends[..]);
        let entry = self.prepare(memory, of, Consumers::LatencyAtExits, slots, context)?;
        let times = entry.times_slots().map_or(0, |(first, _)| first);
        let mut probes = vec![Ok(entry)];
        for exit in &call.exits {
            match self.prepare(memory, (exit, &call.ends), Consumers::Exit(times), slots, context) {
                Ok(probe) => probes.push(Ok(probe)),
                Err(error) => return Err(self.forget(memory, probes, error)),
            }
        }
        probes.into_iter().collect()
    }

    /// A function's probes, if all are written; else what is written waits for somebody who takes
    /// it away. A call that has begun and is not seen to end harms nobody.
    fn whole(&mut self, probes: Vec<Result<Probe, PatchError>>) -> Result<Vec<Probe>, PatchError> {
        let mut written = Vec::new();
        let mut failed = None;
        for probe in probes {
            match probe {
                Ok(probe) => written.push(probe),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let Some(error) = failed else { return Ok(written) };
        self.left.extend(written);
        Err(error)
    }

    /// Makes the stub of a function's begin, or of a place where its calls end.
    pub(super) fn build_call_site(
        &mut self,
        memory: &OwnMemory,
        (site, ends): (&Site, &[u64]),
        consumers: Consumers,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<BuiltStub, PatchError> {
        let at = site.address;
        let unreachable = || PatchError::Refused { at, why: Refusal::OutOfReach { at } };
        let routines = self.routines(memory, at, slots, context)?;
        let spec = match consumers {
            Consumers::Exit(times) => counting(times + UNUSED, ReturnAction::Ignored),
            _ => {
                let times = slots.take_page().ok_or(PatchError::Full)?;
                counting(times + CALLS, ReturnAction::Timed(times))
            }
        };
        let is_entry = spec.at_return != ReturnAction::Ignored;
        let freestanding = FreestandingSpec {
            convention: Convention::C,
            hits: is_entry.then_some(HitCounter::Routine),
            hits_behind: false,
            while_set: None,
            timed: Some((spec.hits / PAGE_SLOTS, routines)),
            exits: ends,
        };
        let place = self.arena.take(memory, at, LONGEST_BYTES).map_err(|_| unreachable())?;
        let stub = match freestanding_stub(site, &freestanding, place) {
            Ok(stub) if stub.code.len() as u64 <= LONGEST_BYTES => stub,
            _ => {
                self.arena.keep(place, 0);
                return Err(unreachable());
            }
        };
        self.arena.keep(place, stub.code.len() as u64);
        self.arena.write(memory, place, &stub.code).map_err(PatchError::system("write a stub"))?;
        let original = site.original();
        let (enter, moved) = (stub.enter, stub.moved);
        Ok(BuiltStub { spec, watch: None, slots, counted_in: None, enter, moved, original })
    }

    /// The routines that count in these counters. Stubs anywhere reach them.
    fn routines(
        &mut self,
        memory: &OwnMemory,
        near: u64,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<RoutineAddresses, PatchError> {
        if let Some(clock) = &self.call_clock
            && std::ptr::eq(clock.slots, slots)
        {
            return Ok(clock.routines);
        }
        // For good: stubs lead there. A forked child has its own.
        let table = Mapping::zeros(CALL_TABLE_BYTES).map_err(PatchError::system("map a table of calls"))?;
        let counts = CallCounts::PerCpu { table: context.table, rseq: context.rseq };
        let table = CallTable { table: table.address(), counts, tick: context.tick };
        let unreachable = || PatchError::Refused { at: near, why: Refusal::OutOfReach { at: near } };
        let place = self.arena.take(memory, near, LONGEST_BYTES).map_err(|_| unreachable())?;
        let (code, routines) = routines(Convention::C, &table, place).map_err(|_| unreachable())?;
        self.arena.keep(place, code.len() as u64);
        self.arena.write(memory, place, &code).map_err(PatchError::system("write a stub"))?;
        self.call_clock = Some(CallClock { routines, slots });
        Ok(routines)
    }
}

fn counting(hits: u32, at_return: ReturnAction) -> StubSpec {
    StubSpec { hits, at_return, record: None, action: None, slow_path: None, hold: None }
}
