use super::*;
use crate::patch::{Function, Surroundings, plan, plan_begin, plan_exits};
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

fn spec(convention: Convention, behind: bool) -> FreestandingSpec<'static> {
    FreestandingSpec {
        convention,
        number: 0,
        hits: Some(HitCounter::Word(AT + 0x10_0000)),
        hits_behind: behind,
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

/// Checks that the check of a stack moves as a whole, is executed before the hit is counted,
/// and that a thread between its two instructions goes on in the copy.
#[test]
fn the_check_comes_first() {
    let memory = (AT, &GO[..]);
    let site = plan_begin(&memory, &function(), AT + 6, &Surroundings::default()).unwrap();
    let stub = freestanding_stub(&site, &spec(Convention::Go, true), AT + 0x1000).unwrap();
    assert_eq!(stub.code[..4], GO[..4]);
    assert_eq!(stub.moves, [[AT + 4, AT + 0x1004]]);
    // lock inc [rip + x], jmp back
    let increment = stub.code.windows(3).position(|part| part == [0xf0, 0x48, 0xff]).unwrap();
    assert!(increment >= 6 && stub.code[increment + 8] == 0xe9, "{:x?}", stub.code);
    assert!(plan_begin(&memory, &function(), AT + 7, &Surroundings::default()).is_ok());
    assert!(plan_begin(&memory, &function(), AT + 8, &Surroundings::default()).is_err());
}

/// Checks that an instruction of Go that may fault is not moved, one of C is.
#[test]
fn what_may_fault_stays_in_go() {
    let code = (AT, &GO[14..]);
    let function = Function { start: AT, bytes: 18, next: AT + 18 };
    let site = plan(&code, &function, &Surroundings::default()).unwrap();
    let of = |convention| freestanding_stub(&site, &spec(convention, false), AT + 0x1000);
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
        plan_exits(&memory, &function(), &[exit], &Surroundings { targets }).map(|mut sites| sites.remove(0))
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
