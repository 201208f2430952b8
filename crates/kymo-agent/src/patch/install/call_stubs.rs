//! The code by which calls are timed where they end: stubs, and the routines that they call.
//!
//! Each function has a page of counters of its own, for the routines find it by its number.
use super::arena::Arena;
use super::error::PatchError;
use super::memory::OwnMemory;
use super::refusal::Refusal;
use crate::patch::Consumers;
use crate::patch::codegen::context::CodegenContext;
use crate::patch::codegen::freestanding::{
    CALL_TABLE_BYTES, CallCounts, CallTable, Convention, FreestandingSpec, FreestandingStub, HitCounter,
    RoutineAddresses, freestanding_stub, routines,
};
use crate::patch::codegen::stub::{ReturnAction, StubSpec};
use crate::patch::mapping::Mapping;
use crate::patch::site::Site;
use crate::patch::slots::{CAPACITY, PAGE_SLOTS, Slots};
use kymo_core::latency::{CALLS, SLOTS as TIME_SLOTS};
use kymo_core::probe::value::Condition;

/// A slot of a function's page that nothing counts in.
const UNUSED: u32 = 2;
/// More than a stub, or the routines, take.
const LONGEST_BYTES: u64 = 2048;
const _: () = assert!(PAGE_SLOTS == TIME_SLOTS);
// Numbers of functions are part of identities of calls.
const _: () = assert!(CAPACITY / PAGE_SLOTS <= crate::patch::MOST_TIMED_SITES);

/// Makes stubs. It keeps the routines, which note when calls begin, and find that again when they
/// end.
#[derive(Debug, Default)]
pub(super) struct CallStubs {
    /// Once they are needed, with the counters that they count in.
    routines: Option<(RoutineAddresses, &'static Slots)>,
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
    ) -> Result<(StubSpec, FreestandingStub), PatchError> {
        let at = site.address;
        let unreachable = || PatchError::Refused { at, why: Refusal::OutOfReach { at } };
        let routines = self.routines((&mut *arena, memory), at, slots, context)?;
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
            condition: &Condition::new(),
            while_set: None,
            timed: Some((spec.hits / PAGE_SLOTS, routines)),
            exits: ends,
        };
        let place = arena.take(memory, at, LONGEST_BYTES).map_err(|_| unreachable())?;
        let stub = match freestanding_stub(site, &freestanding, place) {
            Ok(stub) if stub.code.len() as u64 <= LONGEST_BYTES => stub,
            _ => {
                arena.keep(place, 0);
                return Err(unreachable());
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
}

fn counting(hits: u32, at_return: ReturnAction) -> StubSpec {
    StubSpec { hits, at_return, record: None, action: None, slow_path: None, hold: None }
}
