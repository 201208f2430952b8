//! Awaited returns: the corner cases by name.
use super::super::instance::Cookies;
use super::super::{Consumer, DEPTH, Frame, Hijack, NoSites, Registry, Returns, StackId, Untraced, Wants};
use super::{Log, Witness, key};
use crate::epoch::{Symmetric, TaskId};
use std::sync::Arc;

const TRAMPOLINE: u64 = 0xfeed;
const MAIN: Option<StackId> = Some(StackId(1));
const SIGNAL: Option<StackId> = Some(StackId(2));

fn frame(slot: u64, return_address: u64, stack: Option<StackId>) -> Frame {
    Frame { slot, return_address, stack }
}

fn push(returns: &mut Returns, name: u64, slot: u64, stack: Option<StackId>) -> Result<Hijack, Untraced> {
    returns.push(key(name), frame(slot, name, stack), &Cookies::default())
}

fn names(returns: &Returns) -> Vec<u64> {
    returns.instances().iter().map(|instance| instance.key().offset).collect()
}

/// Checks that a long jump over several traced frames forgets them at the next call, and at a shallower return (5.5).
#[test]
fn longjmp_over_several_frames() {
    let mut returns = Returns::new(TRAMPOLINE);
    for (name, slot) in [(1, 0x900), (2, 0x800), (3, 0x700), (4, 0x600)] {
        assert_eq!(push(&mut returns, name, slot, MAIN), Ok(Hijack::Write));
    }
    // From 4 back into 2, which calls 5 where 3 was.
    assert_eq!(push(&mut returns, 5, 0x700, MAIN), Ok(Hijack::Write));
    assert_eq!(names(&returns), [1, 2, 5]);
    // From 5 back into 1, which returns.
    let popped = returns.pop(0x900).unwrap();
    assert_eq!((popped.return_address, popped.chained), (1, false));
    assert!(returns.is_empty());
}

/// Checks that the 65th return is not awaited, that the first 64 are, and that there is room again after one came.
#[test]
fn deeper_than_the_limit() {
    let mut returns = Returns::new(TRAMPOLINE);
    for name in 0..DEPTH as u64 {
        assert_eq!(push(&mut returns, name, 0x10_000 - name * 16, MAIN), Ok(Hijack::Write));
    }
    assert_eq!(push(&mut returns, 99, 0x100, MAIN), Err(Untraced::TooDeep));
    assert_eq!(returns.len(), DEPTH);
    let newest = 0x10_000 - (DEPTH as u64 - 1) * 16;
    assert_eq!(returns.pop(newest).unwrap().return_address, DEPTH as u64 - 1);
    assert_eq!(push(&mut returns, 99, 0x100, MAIN), Ok(Hijack::Write));
}

/// Checks that frames of a long jump do not use up the limit: a program that leaves a traced call so each time is traced for ever.
#[test]
fn longjmp_for_ever() {
    let mut returns = Returns::new(TRAMPOLINE);
    for round in 0..1000 {
        assert_eq!(push(&mut returns, round, 0x700, MAIN), Ok(Hijack::Write), "round {round}");
        assert_eq!(returns.len(), 1);
    }
}

/// Checks that a tail call and several probes at one entry complete together, newest first, at the oldest's address.
#[test]
fn chained() {
    let mut returns = Returns::new(TRAMPOLINE);
    push(&mut returns, 1, 0x700, MAIN).unwrap();
    for name in 2..4 {
        let again = returns.push(key(name), frame(0x700, TRAMPOLINE, MAIN), &Cookies::default());
        assert_eq!(again, Ok(Hijack::Chained));
    }
    let popped: Vec<_> = std::iter::from_fn(|| returns.pop(0x700))
        .map(|instance| (instance.key.offset, instance.return_address, instance.chained))
        .collect();
    assert_eq!(popped, [(3, 1, true), (2, 1, true), (1, 1, false)]);
}

/// Checks that a call whose slot holds the trampoline's address, though nothing is awaited there, is refused: where it returns to is
/// not known (a stack that was copied).
#[test]
fn trampoline_of_nobody() {
    let mut returns = Returns::new(TRAMPOLINE);
    let copied = returns.push(key(1), frame(0x700, TRAMPOLINE, MAIN), &Cookies::default());
    assert_eq!(copied, Err(Untraced::Unknown));
    push(&mut returns, 1, 0x900, MAIN).unwrap();
    let copied = returns.push(key(1), frame(0x700, TRAMPOLINE, MAIN), &Cookies::default());
    assert_eq!(copied, Err(Untraced::Unknown));
    assert_eq!(names(&returns), [1]);
    assert!(returns.pop(0x700).is_none());
}

/// Checks that a handler on a signal stack at higher addresses forgets nothing of the interrupted stack, and that its own long jump is
/// cleaned up there.
#[test]
fn signal_stack() {
    let mut returns = Returns::new(TRAMPOLINE);
    push(&mut returns, 1, 0x900, MAIN).unwrap();
    push(&mut returns, 2, 0x800, MAIN).unwrap();
    push(&mut returns, 3, 0xf000, SIGNAL).unwrap();
    push(&mut returns, 4, 0xe000, SIGNAL).unwrap();
    push(&mut returns, 5, 0xf000, SIGNAL).unwrap();
    assert_eq!(names(&returns), [1, 2, 5]);
    assert_eq!(returns.pop(0x800).unwrap().return_address, 2);
    assert_eq!(names(&returns), [1, 5], "the handler's call is not below the slot, but elsewhere");
}

/// Checks that coroutines whose stacks nobody knows return in any order, each to its own caller.
#[test]
fn coroutines() {
    let mut returns = Returns::new(TRAMPOLINE);
    for (name, slot) in [(1, 0x1900), (2, 0x2900), (3, 0x1800), (4, 0x3900), (5, 0x2800)] {
        push(&mut returns, name, slot, None).unwrap();
    }
    for (slot, caller) in [(0x1800, 3), (0x3900, 4), (0x1900, 1), (0x2800, 5), (0x2900, 2)] {
        assert_eq!(returns.original(slot), Some(caller));
        assert_eq!(returns.pop(slot).unwrap().return_address, caller);
    }
    assert!(returns.is_empty());
}

/// Checks that a slot that is used again on an unknown stack replaces what was awaited there before.
#[test]
fn slot_used_again() {
    let mut returns = Returns::new(TRAMPOLINE);
    push(&mut returns, 1, 0x1900, None).unwrap();
    push(&mut returns, 2, 0x2900, None).unwrap();
    push(&mut returns, 3, 0x1900, None).unwrap();
    assert_eq!(names(&returns), [2, 3]);
}

/// Checks that a forked child has the same returns before it, and that neither disturbs the other.
#[test]
fn fork_copies() {
    let mut parent = Returns::new(TRAMPOLINE);
    push(&mut parent, 1, 0x900, MAIN).unwrap();
    push(&mut parent, 2, 0x800, MAIN).unwrap();
    let mut child = parent.clone();
    assert_eq!(child.pop(0x800).unwrap().return_address, 2);
    assert_eq!(child.pop(0x900).unwrap().return_address, 1);
    assert_eq!(names(&parent), [1, 2]);
}

/// Checks that what a vfork child left behind (it shares memory, calls deeper, and never returns from there) is gone at the parent's next
/// call.
#[test]
fn vfork_child_execs() {
    let mut shared = Returns::new(TRAMPOLINE);
    push(&mut shared, 1, 0x900, MAIN).unwrap();
    push(&mut shared, 2, 0x700, MAIN).unwrap();
    push(&mut shared, 3, 0x800, MAIN).unwrap();
    assert_eq!(names(&shared), [1, 3]);
}

/// One call of `function` by consumers that are registered and unregistered in the middle.
fn call_with(
    before: &[Wants],
    during: impl FnOnce(&Registry<Witness, NoSites, Symmetric>, &mut Vec<super::super::Handle>),
) -> Log {
    let registry = Registry::new(Symmetric, NoSites);
    let mut handles: Vec<_> = (before.iter().enumerate())
        .map(|(name, wants)| registry.register(key(1), Arc::new(Witness::new(name, *wants))).unwrap())
        .collect();
    let reader = registry.join(TaskId(1));
    let (mut log, mut returns) = (Log::new(), Returns::new(TRAMPOLINE));
    reader.enter().call(key(1), &mut log, frame(0x700, 42, MAIN), &mut returns);
    log.clear();
    during(&registry, &mut handles);
    if !returns.is_empty() {
        assert_eq!(reader.enter().returned(0x700, &mut log, &mut returns), Some(42));
    }
    log
}

/// Checks that a consumer of returns that comes between entry and return is told of the return, and one that wants pairs is not (P9).
#[test]
fn register_between_entry_and_return() {
    let log = call_with(&[Wants::Return], |registry, handles| {
        for (name, wants) in [(7, Wants::Return), (8, Wants::Both)] {
            handles.push(registry.register(key(1), Arc::new(Witness::new(name, wants))).unwrap());
        }
    });
    assert_eq!(log, [(0, false, None), (7, false, None)]);
}

/// Checks that a return whose last consumer is gone, and freed, resumes at its address and calls nobody.
#[test]
fn unregister_with_outstanding_returns() {
    let log = call_with(&[Wants::Both, Wants::Return], |registry, handles| {
        registry.unregister(handles);
        registry.synchronize(TaskId(1)).unwrap();
        assert_eq!(registry.probes(), 0);
    });
    assert_eq!(log, []);
}

/// Checks that after the last consumer went and another one came, the outstanding return is told to the new one if it wants returns, and
/// not if it wants pairs: it has the old one's cookie place, not its number.
#[test]
fn register_again_with_outstanding_returns() {
    let log = call_with(&[Wants::Both], |registry, handles| {
        registry.unregister(handles);
        registry.synchronize(TaskId(1)).unwrap();
        for (name, wants) in [(7, Wants::Both), (8, Wants::Return)] {
            handles.push(registry.register(key(1), Arc::new(Witness::new(name, wants))).unwrap());
        }
    });
    assert_eq!(log, [(8, false, None)]);
}

/// Checks that a fifth pair of one call has no place for its cookie, so that its return handler does not run, and the others' do.
#[test]
fn more_pairs_than_cookies() {
    let log = call_with(&[Wants::Both; 5], |_, _| {});
    assert_eq!(log.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

/// Checks that a witness complains when it is called after its end, or else the tests that rely on it show nothing.
#[test]
#[should_panic(expected = "called after its end")]
fn a_witness_complains() {
    let witness = Witness::new(0, Wants::Entry);
    witness.end();
    witness.entry(&mut Log::new(), &mut 0);
}
