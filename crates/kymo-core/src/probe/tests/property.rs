//! Random programs on one stack: registry and locked model are told of the same calls, and must call the same consumers.
use super::super::model::{self, Locked};
use super::super::{Call, Frame, Hijack, NoSites, Registry, Returns, StackId, Verdict, Wants};
use super::{Log, Witness, key};
use crate::epoch::{Symmetric, TaskId};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

const TRAMPOLINE: u64 = 0x7000_0000;

#[derive(Debug, Clone)]
enum Step {
    Register { function: u64, wants: Wants, verdict: Verdict },
    Unregister(usize),
    Synchronize,
    Call(u64),
    Recurse { function: u64, times: usize },
    TailCall(u64),
    Return,
    LongJump(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let function = 0u64..4;
    let wants = prop_oneof![Just(Wants::Entry), Just(Wants::Return), Just(Wants::Both)];
    let verdict = prop_oneof![4 => Just(Verdict::Keep), 1 => Just(Verdict::Ignore)];
    prop_oneof![
        3 => (function.clone(), wants, verdict)
            .prop_map(|(function, wants, verdict)| Step::Register { function, wants, verdict }),
        2 => (0usize..32).prop_map(Step::Unregister),
        1 => Just(Step::Synchronize),
        8 => function.clone().prop_map(Step::Call),
        1 => (function.clone(), 1usize..80).prop_map(|(function, times)| Step::Recurse { function, times }),
        2 => function.prop_map(Step::TailCall),
        8 => Just(Step::Return),
        2 => (0usize..6).prop_map(Step::LongJump),
    ]
}

/// The program's stack, as memory that a side has changed.
struct Side {
    memory: HashMap<u64, u64>,
    log: Log,
    consumers: Vec<Arc<Witness>>,
}

impl Side {
    fn new() -> Side {
        Side { memory: HashMap::new(), log: Log::new(), consumers: Vec::new() }
    }

    fn consumer(&mut self, wants: Wants, verdict: Verdict) -> Arc<Witness> {
        let witness = Witness::new(self.consumers.len(), wants);
        *witness.verdict.lock().unwrap() = verdict;
        self.consumers.push(Arc::new(witness));
        Arc::clone(&self.consumers[self.consumers.len() - 1])
    }

    fn frame(&self, slot: u64) -> Frame {
        Frame { slot, return_address: self.memory[&slot], stack: Some(StackId(1)) }
    }
}

/// Runs the steps on both sides. What the program itself knows (who called whom) is the third witness.
fn run(steps: &[Step]) {
    let registry = Registry::new(Symmetric, NoSites);
    let locked = Locked::default();
    let (mut engine, mut oracle) = (Side::new(), Side::new());
    let (mut handles, mut locked_handles) = (Vec::new(), Vec::new());
    let (mut returns, mut locked_returns) = (Returns::new(TRAMPOLINE), model::Returns::new(TRAMPOLINE));
    let reader = registry.join(TaskId(1));
    // Slots of the frames that are open, and the address to which each returns.
    let mut stack: Vec<(u64, u64)> = Vec::new();
    let mut calls = 0;
    let enter = |function: u64,
                 slot: u64,
                 engine: &mut Side,
                 oracle: &mut Side,
                 returns: &mut Returns,
                 locked_returns: &mut _| {
        let frame = engine.frame(slot);
        let call = reader.enter().call(key(function), &mut engine.log, frame, returns);
        if call == Call::Awaited(Hijack::Write) {
            engine.memory.insert(slot, TRAMPOLINE);
        }
        let frame = oracle.frame(slot);
        if locked.call(key(function), &mut oracle.log, frame, locked_returns) {
            oracle.memory.insert(slot, TRAMPOLINE);
        }
    };
    for step in steps {
        match *step {
            Step::Register { function, wants, verdict } => {
                handles.push(registry.register(key(function), engine.consumer(wants, verdict)).unwrap());
                locked_handles.push(locked.register(key(function), oracle.consumer(wants, verdict)));
            }
            Step::Unregister(at) if !handles.is_empty() => {
                let at = at % handles.len();
                registry.unregister(&[handles[at]]);
                locked.unregister(locked_handles[at]);
                // In one thread nobody is under way, but what a handler walks must live until the next step all the same.
            }
            Step::Unregister(_) => {}
            Step::Synchronize => registry.synchronize(TaskId(1)).unwrap(),
            Step::Call(function) | Step::Recurse { function, .. } => {
                let times = if let Step::Recurse { times, .. } = *step { times } else { 1 };
                for _ in 0..times {
                    calls += 1;
                    let slot = stack.last().map_or(0x10_0000, |(slot, _)| slot - 0x20);
                    stack.push((slot, calls));
                    engine.memory.insert(slot, calls);
                    oracle.memory.insert(slot, calls);
                    enter(function, slot, &mut engine, &mut oracle, &mut returns, &mut locked_returns);
                }
            }
            Step::TailCall(function) => {
                if let Some((slot, _)) = stack.last().copied() {
                    enter(function, slot, &mut engine, &mut oracle, &mut returns, &mut locked_returns);
                }
            }
            Step::Return => {
                let Some((slot, caller)) = stack.pop() else { continue };
                let resumed = match engine.memory[&slot] {
                    TRAMPOLINE => reader.enter().returned(slot, &mut engine.log, &mut returns),
                    plain => Some(plain),
                };
                assert_eq!(resumed, Some(caller), "the registry resumes elsewhere");
                let resumed = match oracle.memory[&slot] {
                    TRAMPOLINE => locked.returned(slot + 8, &mut oracle.log, &mut locked_returns),
                    plain => Some(plain),
                };
                assert_eq!(resumed, Some(caller), "the model resumes elsewhere");
            }
            Step::LongJump(frames) => stack.truncate(stack.len().saturating_sub(frames)),
        }
        assert_eq!(engine.log, oracle.log, "after {step:?}");
        assert_eq!(engine.memory, oracle.memory, "after {step:?}");
        assert!(returns.len() <= super::super::DEPTH);
    }
    registry.unregister(&handles);
    registry.synchronize(TaskId(1)).unwrap();
    engine.consumers.iter().for_each(|consumer| consumer.end());
    assert_eq!(registry.probes(), 0);
    // The outstanding calls return, to where they came from, and nobody is called.
    let before = engine.log.len();
    while let Some((slot, caller)) = stack.pop() {
        if engine.memory[&slot] == TRAMPOLINE {
            assert_eq!(reader.enter().returned(slot, &mut engine.log, &mut returns), Some(caller));
        }
    }
    assert_eq!(engine.log.len(), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that random programs of calls, tail calls, returns, long jumps and registrations make the registry call whom the locked
    /// model calls, with the same cookies, and resume where the program called (P2, P3, P8, P9).
    #[test]
    fn as_the_locked_model(steps in prop::collection::vec(step(), 0..150)) {
        run(&steps);
    }

    /// Checks that inserting and erasing any keys in any order leaves exactly those that are in (P4), through all sizes of the table.
    #[test]
    fn a_table_of_keys(steps in prop::collection::vec((0u64..400, prop::bool::weighted(0.7)), 0..800)) {
        let registry = Registry::new(Symmetric, NoSites);
        let reader = registry.join(TaskId(1));
        let mut present = HashMap::new();
        for (at, (offset, insert)) in steps.into_iter().enumerate() {
            if insert {
                let handle = registry.register(key(offset), Arc::new(Witness::new(at, Wants::Entry))).unwrap();
                present.entry(offset).or_insert_with(Vec::new).push(handle);
            } else if let Some(handles) = present.remove(&offset) {
                registry.unregister(&handles);
            }
            if at % 97 == 0 {
                registry.synchronize(TaskId(1)).unwrap();
            }
            prop_assert_eq!(registry.probes(), present.len());
            prop_assert_eq!(reader.enter().has(key(offset)), present.contains_key(&offset));
        }
        for offset in 0..400 {
            prop_assert_eq!(reader.enter().has(key(offset)), present.contains_key(&offset));
        }
        let handles: Vec<_> = present.into_values().flatten().collect();
        registry.unregister(&handles);
        registry.synchronize(TaskId(1)).unwrap();
        prop_assert_eq!(registry.probes(), 0);
    }
}
