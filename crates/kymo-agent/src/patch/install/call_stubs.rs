//! The code by which calls are timed where they end: stubs, and the routines that they call.
//!
//! Each function has a page of counters of its own, for the routines find it by its number.
use super::arena::Arena;
use super::error::PatchError;
use super::memory::OwnMemory;
use super::refusal::Refusal;
use crate::patch::Consumers;
use crate::patch::codegen::assembly::Stub;
use crate::patch::codegen::context::CodegenContext;
use crate::patch::codegen::freestanding::{
    CALL_TABLE_BYTES, CallCounts, CallTable, CallerCount, CallerTable, Convention, FreestandingError,
    FreestandingSpec, HitCounter, RoutineAddresses, callers_routine, freestanding_stub, routines,
};
use crate::patch::codegen::stub::{ReturnAction, StubSpec};
use crate::patch::mapping::Mapping;
use crate::patch::site::Site;
use crate::patch::slots::{CAPACITY, PAGE_SLOTS, Slots};
use kymo_core::latency::{CALLS, SLOTS as TIME_SLOTS};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

/// A slot of a function's page that nothing counts in.
const UNUSED: u32 = 2;
/// More than a stub, or the routines, take.
const LONGEST_BYTES: u64 = 2048;
const _: () = assert!(PAGE_SLOTS == TIME_SLOTS);
/// Places for callers, as a power of two: 4 MiB, of which only what is used takes memory.
const CALLER_BITS: u32 = 18;
// Numbers of functions are part of identities of calls.
const _: () = assert!(CAPACITY / PAGE_SLOTS <= crate::patch::MOST_TIMED_SITES);

/// Makes stubs. It keeps the routines, which note when calls begin, and find that again when they
/// end.
#[derive(Debug, Default)]
pub(super) struct CallStubs {
    /// Once they are needed, with the counters that they count in.
    routines: Option<(RoutineAddresses, &'static Slots)>,
    /// The routine that counts callers, and its table, once these are needed.
    callers: Option<(u64, Mapping)>,
}

/// The number of a function by one of its slots.
pub(super) fn function_number(slot: u32) -> u32 {
    slot / PAGE_SLOTS
}

impl CallStubs {
    /// The stub of a function's begin, or of a place where its calls end, and what it counts.
    pub(super) fn build(
        &mut self,
        (arena, memory): (&mut Arena, &OwnMemory),
        (site, ends): (&Site, &[u64]),
        consumers: Consumers,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<(StubSpec, Stub), PatchError> {
        let at = site.address;
        let unreachable = || PatchError::Refused { at, why: Refusal::OutOfReach { at } };
        let routines = self.routines((&mut *arena, memory), at, slots, context)?;
        let (spec, is_entry, action) = match consumers {
            Consumers::Exit(times, filtered) => {
                (counting(times + UNUSED, ReturnAction::Ignored), false, filtered.action)
            }
            Consumers::LatencyAtExits(filtered) => {
                let times = slots.take_page().ok_or(PatchError::Full)?;
                let spec = counting(times + CALLS, ReturnAction::Timed(times));
                (StubSpec { action: Some(filtered.action), ..spec }, true, filtered.action)
            }
            _ => return Err(unreachable()),
        };
        let callers = match is_entry && action.callers {
            true => Some(self.callers_routine((&mut *arena, memory), at, context)?),
            false => None,
        };
        let freestanding = FreestandingSpec {
            convention: Convention::C,
            number: function_number(spec.hits),
            hits: is_entry.then_some(HitCounter::Routine),
            hits_at: None,
            condition: &action.entry_condition,
            return_condition: &action.return_condition,
            every: action.every,
            while_set: None,
            timed: Some(routines),
            callers,
            events: None,
            exits: ends,
        };
        let place = arena.take(memory, at, LONGEST_BYTES).map_err(|_| unreachable())?;
        let stub = match freestanding_stub(site, &freestanding, place) {
            Ok(stub) if stub.code.len() as u64 <= LONGEST_BYTES => stub,
            made => {
                arena.keep(place, 0);
                return Err(match made {
                    Err(FreestandingError::NoReturn(end)) => {
                        PatchError::Refused { at, why: Refusal::EndsByJump { at: end } }
                    }
                    _ => unreachable(),
                });
            }
        };
        arena.keep(place, stub.code.len() as u64);
        arena.write(memory, place, &stub.code).map_err(PatchError::system("write a stub"))?;
        Ok((spec, stub))
    }

    /// The routines that count in these counters. Stubs anywhere reach them.
    fn routines(
        &mut self,
        (arena, memory): (&mut Arena, &OwnMemory),
        near: u64,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<RoutineAddresses, PatchError> {
        if let Some((known, counters)) = &self.routines
            && std::ptr::eq(*counters, slots)
        {
            return Ok(*known);
        }
        // For good: stubs lead there. A forked child has its own.
        let table = Mapping::zeros(CALL_TABLE_BYTES).map_err(PatchError::system("map a table of calls"))?;
        let counts = CallCounts::PerCpu { table: context.table, rseq: context.rseq };
        let table = CallTable { table: table.address(), counts, tick: context.tick };
        let unreachable = || PatchError::Refused { at: near, why: Refusal::OutOfReach { at: near } };
        let place = arena.take(memory, near, LONGEST_BYTES).map_err(|_| unreachable())?;
        let (code, made) = routines(Convention::C, &table, place).map_err(|_| unreachable())?;
        arena.keep(place, code.len() as u64);
        arena.write(memory, place, &code).map_err(PatchError::system("write a stub"))?;
        self.routines = Some((made, slots));
        Ok(made)
    }

    /// The routine that counts callers. Stubs anywhere reach it.
    fn callers_routine(
        &mut self,
        (arena, memory): (&mut Arena, &OwnMemory),
        near: u64,
        context: &CodegenContext,
    ) -> Result<u64, PatchError> {
        if let Some((known, _)) = self.callers {
            return Ok(known);
        }
        let table = Mapping::zeros(CallerTable::word_count(CALLER_BITS) * 8)
            .and_then(|table| table.on_fork(false).map(|()| table))
            .map_err(PatchError::system("map a table of callers"))?;
        let unreachable = || PatchError::Refused { at: near, why: Refusal::OutOfReach { at: near } };
        let place = arena.take(memory, near, LONGEST_BYTES).map_err(|_| unreachable())?;
        let per_cpu = Some((context.table, context.rseq));
        let of = CallerTable { table: table.address(), bits: CALLER_BITS, per_cpu };
        let code = callers_routine(Convention::C, of, place).map_err(|_| unreachable())?;
        arena.keep(place, code.len() as u64);
        arena.write(memory, place, &code).map_err(PatchError::system("write a stub"))?;
        self.callers = Some((place, table));
        Ok(place)
    }

    /// Who called, by the numbers of functions.
    pub(super) fn callers(&self) -> BTreeMap<u32, Vec<CallerCount>> {
        let mut all: BTreeMap<u32, Vec<CallerCount>> = BTreeMap::new();
        let Some((_, table)) = self.callers else { return all };
        // Relaxed: counts, and keys that never change once they are there.
        let word = |at: u64| table.word(at * 8).load(Ordering::Relaxed);
        for caller in CallerTable::read(CALLER_BITS, CAPACITY / PAGE_SLOTS, word) {
            all.entry(caller.site).or_default().push(caller);
        }
        all
    }

    /// Sets the counts of these functions to 0, in which nobody counts at the moment.
    pub(super) fn clear_callers(&self, numbers: &HashSet<u32>) {
        let Some((_, table)) = self.callers else { return };
        // Relaxed: as above.
        let word = |at: u64| table.word(at * 8).load(Ordering::Relaxed);
        for at in CallerTable::counts_of(CALLER_BITS, numbers, word) {
            table.word(at * 8).store(0, Ordering::Relaxed);
        }
    }
}

fn counting(hits: u32, at_return: ReturnAction) -> StubSpec {
    StubSpec { hits, at_return, record: None, action: None, slow_path: None, hold: None }
}
