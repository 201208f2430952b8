use super::*;
use crate::patch::install::plan::plan_exits;
use crate::patch::{EntryState, Function, Surroundings, plan, plan_begin};
use kymo_core::probe::value::Condition;

/// A Go function: the check of its stack, a frame, a return in the middle, a return at the end.
const GO: [u8; 32] = [
    0x49, 0x3b, 0x66, 0x10, // cmp rsp, [r14+16]
    0x76, 0x0b, // jbe, to the nops in the middle
    0x55, // push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0x48, 0x83, 0xec, 0x10, // sub rsp, 16
    0x48, 0x8b, 0x00, // mov rax, [rax]
    0x90, 0x90, 0x90, 0x90, // nops
    0x48, 0x83, 0xc4, 0x10, // add rsp, 16
    0x5d, // pop rbp
    0xc3, // ret
    0x90, 0x90, 0x90, 0x90, 0x90, // nops
];
const AT: u64 = 0x40_0000;

fn function() -> Function {
    Function { start: AT, bytes: 32, next: AT + 32 }
}

fn spec(convention: Convention, hits_at: Option<u64>) -> FreestandingSpec<'static> {
    FreestandingSpec {
        convention,
        number: 0,
        hits: Some(HitCounter::Word(AT + 0x10_0000)),
        hits_at,
        condition: const { &Condition::new() },
        while_set: None,
        return_condition: const { &Condition::new() },
        every: 0,
        timed: None,
        callers: None,
        events: None,
        exits: &[],
    }
}

/// Checks that the comparison of a stack's check stays, that its branch is executed before the hit
/// is counted, and the function's own instructions behind that.
#[test]
fn the_check_comes_first() {
    let memory = (AT, &GO[..]);
    let looks_at = Some(EntryState { has_red_zone: false, ..EntryState::NOTHING });
    let surroundings = Surroundings { targets: &[], looks_at };
    let site = plan_begin(&memory, &function(), AT + 6, &surroundings).unwrap();
    assert_eq!((site.address, site.end()), (AT + 4, AT + 10));
    let stub = freestanding_stub(&site, &spec(Convention::Go, Some(AT + 6)), AT + 0x1000).unwrap();
    let places = stub.moved.iter().map(|at| (at - AT - 0x1000) as usize).collect::<Vec<_>>();
    let [branch, push, ..] = places[..] else { panic!("{places:?}") };
    assert_eq!(stub.moves(&site), [[AT + 6, stub.moved[1]], [AT + 7, stub.moved[2]]]);
    // A branch, lock inc [rip + x], push rbp, mov rbp, rsp, jmp back
    let increment = stub.code.windows(3).position(|part| part == [0xf0, 0x48, 0xff]).unwrap();
    let moved = stub.code.windows(5).position(|part| part == [0x55, 0x48, 0x89, 0xe5, 0xe9]).unwrap();
    assert!(branch < push && push <= increment && increment < moved, "{:x?}", stub.code);
    assert!(plan_begin(&memory, &function(), AT + 7, &surroundings).is_ok());
    assert!(plan_begin(&memory, &function(), AT + 8, &surroundings).is_err());
}

/// Checks that an instruction of Go that may fault is not moved, one of C is.
#[test]
fn what_may_fault_stays_in_go() {
    let code = (AT, &GO[14..]);
    let function = Function { start: AT, bytes: 18, next: AT + 18 };
    let site = plan(&code, &function, &Surroundings::default()).unwrap();
    let of = |convention| freestanding_stub(&site, &spec(convention, None), AT + 0x1000);
    assert_eq!(of(Convention::Go).unwrap_err(), FreestandingError::Faults(AT));
    assert!(of(Convention::C).is_ok());
}

/// Checks that a return moves with as few instructions before it as a jump needs, and not where
/// the program jumps between them.
#[test]
fn exits_with_what_is_before_them() {
    let memory = (AT, &GO[..]);
    let exit = AT + 26;
    let planned = |targets: &[u64]| {
        plan_exits(&memory, &function(), &[exit], &Surroundings { targets, looks_at: None })
            .map(|mut sites| sites.remove(0))
    };
    let alone = planned(&[]).unwrap();
    // With the padding behind it.
    assert_eq!((alone.address, alone.end()), (AT + 26, AT + 31));
    assert!(planned(&[AT + 25]).is_ok());
    let site = planned(&[AT + 28]).unwrap();
    assert_eq!((site.address, site.end()), (AT + 21, AT + 27));
    assert!(planned(&[AT + 26, AT + 28]).is_err());
    assert!(plan_exits(&memory, &function(), &[AT + 1], &Surroundings::default()).is_err());
}
