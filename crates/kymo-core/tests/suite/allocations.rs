//! Hot paths that must not allocate, with an allocator that counts.
use kymo_core::breakpoint::{Config, Kind, Ledger, Slots, Target, TaskId};
use kymo_core::context::{Attr, Child, CpuId, Engine, Pmu, Source, Switch};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator as it came; the counter is a plain cell of the
// thread, without a destructor and made without an allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; it came from `alloc`, so from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Still;

impl Pmu for Still {
    fn now_ns(&self, _: CpuId) -> u64 {
        0
    }
    fn read(&self, _: CpuId, _: Source) -> u64 {
        0
    }
}

/// Checks that a switch between relatives allocates nothing, also where it takes the numbers of
/// single tasks along, and that neither does one that reschedules.
#[test]
fn a_switch_allocates_nothing() {
    for (inherit_stat, bound, expected) in [
        (false, false, Switch::Exchanged),
        (true, false, Switch::Exchanged),
        (false, true, Switch::Rescheduled),
    ] {
        let cpu = CpuId(0);
        let engine = Engine::new(Still, 1);
        let mut parent = engine.task();
        for _ in 0..16 {
            engine
                .open(&mut parent, &[Attr { inherit_stat, bound, ..Attr::family(Source(0)) }])
                .expect("a sound group");
        }
        let mut child = engine.fork(&mut parent, Child::Thread).expect("it lives");
        engine.enter(cpu, &mut parent).expect("the CPU is idle");
        let before = ALLOCATIONS.get();
        for _ in 0..10 {
            assert_eq!(engine.switch(cpu, &mut parent, &mut child), Ok(expected));
            assert_eq!(engine.switch(cpu, &mut child, &mut parent), Ok(expected));
        }
        assert_eq!(ALLOCATIONS.get(), before);
        drop(Box::new(0u8));
        assert!(ALLOCATIONS.get() > before, "the allocator counts");
    }
}

/// Checks that a slot for a task, wherever it runs, is reserved, changed and released without an
/// allocation, and that a refusal allocates nothing either.
#[test]
fn a_slot_allocates_nothing() {
    let ledger = Ledger::new(Config { cpus: 64, slots: Slots::Shared(1) }).expect("a sound config");
    let task = ledger.task(TaskId(1));
    let before = ALLOCATIONS.get();
    for _ in 0..10 {
        let mut slot = ledger.reserve(Target::Task(&task), Kind::WRITE).expect("nothing is taken");
        assert!(slot.modify(Kind::EXECUTE).is_ok());
        assert!(ledger.reserve(Target::Task(&task), Kind::WRITE).is_err());
        slot.release();
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
