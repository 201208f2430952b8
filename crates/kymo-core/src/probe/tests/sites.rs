//! Which sites are armed: random programs against what the invariants say.
use super::super::{Error, Key, ModuleId, Registry, Sites, Target, Verdict};
use super::{Log, Witness, key};
use crate::epoch::{Symmetric, TaskId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The text and data of a program, as bytes.
#[derive(Default)]
struct Program {
    armed: BTreeSet<Key>,
    semaphores: BTreeMap<(ModuleId, u64), i32>,
    unmapped: BTreeSet<ModuleId>,
    refuses: BTreeSet<Key>,
    keeps: BTreeSet<Key>,
    stops: usize,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Program>>);

impl Sites for Shared {
    type Refusal = &'static str;

    fn arm(&mut self, keys: &[Key]) -> Vec<Result<bool, &'static str>> {
        let mut program = self.0.lock().unwrap();
        program.stops += 1;
        (keys.iter())
            .map(|key| {
                if program.unmapped.contains(&key.module) {
                    return Ok(false);
                }
                if program.refuses.contains(key) {
                    return Err("too short");
                }
                assert!(program.armed.insert(*key), "{key} is armed twice");
                Ok(true)
            })
            .collect()
    }

    fn disarm(&mut self, keys: &[Key]) -> Vec<Result<(), &'static str>> {
        let mut program = self.0.lock().unwrap();
        (keys.iter())
            .map(|key| {
                if program.keeps.contains(key) {
                    return Err("write-protected");
                }
                assert!(program.armed.remove(key), "{key} is disarmed and was not armed");
                Ok(())
            })
            .collect()
    }

    fn semaphore(&mut self, module: ModuleId, offset: u64, by: i16) -> Result<(), &'static str> {
        let mut program = self.0.lock().unwrap();
        let count = program.semaphores.entry((module, offset)).or_default();
        *count += i32::from(by);
        assert!(*count >= 0, "a semaphore is negative");
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Register(u64),
    Unregister(usize),
    Accept(usize, bool),
    Removes(usize, bool),
    Hit(u64),
    Settle,
    Map(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..6).prop_map(Step::Register),
        3 => (0usize..20).prop_map(Step::Unregister),
        2 => (0usize..20, any::<bool>()).prop_map(|(at, accepts)| Step::Accept(at, accepts)),
        2 => (0usize..20, any::<bool>()).prop_map(|(at, removes)| Step::Removes(at, removes)),
        4 => (0u64..6).prop_map(Step::Hit),
        2 => Just(Step::Settle),
        1 => any::<bool>().prop_map(Step::Map),
    ]
}

/// Keys 0, 2, 4 name one semaphore, 1 and 3 another one, 5 has none and is refused.
fn target(offset: u64) -> Target {
    Target { key: key(offset), semaphore: (offset < 5).then_some(0x1000 + offset % 2) }
}

fn run(steps: &[Step]) {
    let program = Shared::default();
    program.0.lock().unwrap().refuses.insert(key(5));
    let registry: Registry<Witness, _, _> = Registry::new(Symmetric, program.clone());
    let reader = registry.join(TaskId(1));
    let mut registered = Vec::new();
    let mut mapped = true;
    for (name, step) in steps.iter().enumerate() {
        match *step {
            Step::Register(offset) => {
                let witness = Arc::new(Witness::new(name));
                match registry.register(target(offset), Arc::clone(&witness)) {
                    Ok(handle) => registered.push((handle, witness)),
                    Err(error) => {
                        assert_eq!(error, Error::Refused { key: key(5), reason: "too short" });
                        assert!(offset == 5 && mapped);
                    }
                }
            }
            Step::Unregister(at) if at < registered.len() => {
                let (handle, witness) = registered.remove(at);
                registry.unregister(&[handle]);
                registry.synchronize(TaskId(1)).unwrap();
                witness.end();
            }
            Step::Accept(at, accepts) if at < registered.len() => {
                let (handle, witness) = &registered[at];
                witness.accepts.store(accepts, Ordering::SeqCst);
                let applied = registry.apply(handle.key());
                assert!(applied.is_ok() || handle.key() == key(5));
            }
            Step::Removes(at, removes) if at < registered.len() => {
                let verdict = if removes { Verdict::Remove } else { Verdict::Keep };
                *registered[at].1.verdict.lock().unwrap() = verdict;
            }
            Step::Hit(offset) => _ = reader.enter().hit(key(offset), &mut Log::new()),
            Step::Settle => registry.settle(),
            Step::Map(map) if map != mapped => {
                mapped = map;
                if map {
                    program.0.lock().unwrap().unmapped.clear();
                    let refused = registry.mapped(ModuleId(1));
                    assert!(refused.iter().all(|(at, _)| *at == key(5)));
                } else {
                    let mut text = program.0.lock().unwrap();
                    text.unmapped.insert(ModuleId(1));
                    text.armed.clear();
                    text.semaphores.clear();
                    drop(text);
                    registry.unmapped(ModuleId(1));
                }
            }
            _ => {}
        }
        let wanted: BTreeSet<Key> = (registered.iter())
            .filter(|(handle, witness)| {
                mapped && handle.key() != key(5) && witness.accepts.load(Ordering::SeqCst)
            })
            .map(|(handle, _)| handle.key())
            .collect();
        let text = program.0.lock().unwrap();
        assert_eq!(text.armed, wanted, "after {step:?}");
        for (at, count) in &text.semaphores {
            let armed = wanted.iter().filter(|key| target(key.offset).semaphore == Some(at.1)).count();
            assert_eq!(*count, armed as i32, "after {step:?}: the semaphore at {at:?}");
        }
        drop(text);
        assert_eq!(registry.armed(), wanted.into_iter().collect::<Vec<_>>());
    }
    let handles: Vec<_> = registered.iter().map(|(handle, _)| *handle).collect();
    registry.unregister(&handles);
    let text = program.0.lock().unwrap();
    assert!(text.armed.is_empty(), "sites are left: {:?}", text.armed);
    assert!(text.semaphores.values().all(|count| *count == 0));
    drop(text);
    assert_eq!(registry.probes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that whatever is registered, ended, applied, hit, mapped and unmapped, a site is
    /// armed exactly if it should be, and a semaphore is the number of armed probes that name it
    /// (P5, P6, P7).
    #[test]
    fn armed_as_wanted(steps in prop::collection::vec(step(), 0..80)) {
        run(&steps);
    }
}

/// Checks that a site goes when all its consumers answer Remove and none accepts, and not when one
/// answers otherwise or accepts (P7).
#[test]
fn one_removes_and_one_does_not() {
    let program = Shared::default();
    let registry: Registry<Witness, _, _> = Registry::new(Symmetric, program.clone());
    let reader = registry.join(TaskId(1));
    let consumers = [0, 1].map(|name| Arc::new(Witness::new(name)));
    for consumer in &consumers {
        registry.register(key(1), Arc::clone(consumer)).unwrap();
        *consumer.verdict.lock().unwrap() = Verdict::Remove;
    }
    let hit_and_settle = || {
        reader.enter().hit(key(1), &mut Log::new());
        registry.settle();
        !registry.armed().is_empty()
    };
    assert!(hit_and_settle(), "both accept");
    consumers.iter().for_each(|consumer| consumer.accepts.store(false, Ordering::SeqCst));
    *consumers[1].verdict.lock().unwrap() = Verdict::Keep;
    assert!(hit_and_settle(), "one says Keep");
    *consumers[1].verdict.lock().unwrap() = Verdict::Remove;
    assert!(!hit_and_settle());
    assert_eq!(registry.probes(), 1, "they stay registered");
    consumers[0].accepts.store(true, Ordering::SeqCst);
    registry.apply(key(1)).unwrap();
    assert_eq!(registry.armed(), [key(1)]);
}

/// Checks that sites of one batch are armed by one call, and that a refusal keeps only those out
/// that it is about.
#[test]
fn a_batch() {
    let program = Shared::default();
    program.0.lock().unwrap().refuses.extend([key(3), key(4)]);
    let registry: Registry<Witness, _, _> = Registry::new(Symmetric, program.clone());
    let asked = [1, 2, 3, 3, 1].map(|offset| (key(offset).into(), Arc::new(Witness::new(0))));
    let answers = registry.register_all(asked);
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, false, true]);
    assert!(matches!(answers[3], Err(Error::Refused { reason: "too short", .. })));
    assert_eq!(program.0.lock().unwrap().stops, 1);
    assert_eq!(registry.armed(), [key(1), key(2)]);
    assert_eq!(registry.probes(), 2);
}

/// Checks that a probe has one semaphore.
#[test]
fn another_semaphore() {
    let registry: Registry<Witness, _, _> = Registry::new(Symmetric, Shared::default());
    registry.register(target(1), Arc::new(Witness::new(0))).unwrap();
    let other = registry.register(key(1), Arc::new(Witness::new(1))).unwrap_err();
    assert_eq!(other, Error::OtherSemaphore { key: key(1), has: Some(0x1001), asked: None });
    assert!(other.to_string().contains("0x1001"), "{other}");
}

/// Checks that a site which could not be restored stays known as broken, is not armed again, and
/// its late hits call nobody.
#[test]
fn not_restored() {
    let program = Shared::default();
    let registry: Registry<Witness, _, _> = Registry::new(Symmetric, program.clone());
    let witness = Arc::new(Witness::new(0));
    let handle = registry.register(key(1), Arc::clone(&witness)).unwrap();
    program.0.lock().unwrap().keeps.insert(key(1));
    registry.unregister(&[handle]);
    registry.synchronize(TaskId(1)).unwrap();
    witness.end();
    assert_eq!(registry.probes(), 1);
    assert!(!registry.join(TaskId(1)).enter().hit(key(1), &mut Log::new()));
    let again = registry.register(key(1), Arc::new(Witness::new(1)));
    assert_eq!(again, Err(Error::Broken { key: key(1) }));
}
