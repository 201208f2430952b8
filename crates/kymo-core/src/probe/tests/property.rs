//! Random registrations and hits: registry and locked model get the same, and must call the same
//! consumers.
use super::super::model::Locked;
use super::super::{NoSites, Registry};
use super::{Log, Witness, key};
use crate::epoch::{Symmetric, TaskId};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Step {
    Register(u64),
    Unregister(usize),
    Synchronize,
    Hit(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let function = 0u64..4;
    prop_oneof![
        3 => function.clone().prop_map(Step::Register),
        2 => (0usize..32).prop_map(Step::Unregister),
        1 => Just(Step::Synchronize),
        8 => function.prop_map(Step::Hit),
    ]
}

/// Runs the steps on both sides.
fn run(steps: &[Step]) {
    let (registry, locked) = (Registry::new(Symmetric, NoSites), Locked::default());
    let (mut log, mut locked_log) = (Log::new(), Log::new());
    let (mut handles, mut locked_handles, mut consumers) = (Vec::new(), Vec::new(), Vec::new());
    let reader = registry.join(TaskId(1));
    for step in steps {
        match *step {
            Step::Register(function) => {
                let witness = || Arc::new(Witness::new(handles.len()));
                let (ours, other) = (witness(), witness());
                handles.push(registry.register(key(function), Arc::clone(&ours)).unwrap());
                locked_handles.push(locked.register(key(function), other));
                consumers.push(ours);
            }
            Step::Unregister(at) if !handles.is_empty() => {
                let at = at % handles.len();
                registry.unregister(&[handles[at]]);
                locked.unregister(locked_handles[at]);
                // In one thread nobody is under way, but what a handler walks must live until the
                // next step all the same.
            }
            Step::Unregister(_) => {}
            Step::Synchronize => registry.synchronize(TaskId(1)).unwrap(),
            Step::Hit(function) => {
                let found = reader.enter().hit(key(function), &mut log);
                assert_eq!(found, locked.hit(key(function), &mut locked_log));
            }
        }
        assert_eq!(log, locked_log, "after {step:?}");
    }
    registry.unregister(&handles);
    registry.synchronize(TaskId(1)).unwrap();
    consumers.iter().for_each(|consumer| consumer.end());
    assert_eq!(registry.probes(), 0);
    assert!((0..4).all(|function| !reader.enter().hit(key(function), &mut log)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that random hits and registrations make the registry call the consumers that the
    /// locked model calls (P2, P3).
    #[test]
    fn as_the_locked_model(steps in prop::collection::vec(step(), 0..150)) {
        run(&steps);
    }

    /// Checks that inserting and erasing any keys in any order leaves exactly those that are in
    /// (P4), through all sizes of the table.
    #[test]
    fn a_table_of_keys(steps in prop::collection::vec((0u64..400, prop::bool::weighted(0.7)), 0..800)) {
        let registry = Registry::new(Symmetric, NoSites);
        let reader = registry.join(TaskId(1));
        let mut present = HashMap::new();
        for (at, (offset, insert)) in steps.into_iter().enumerate() {
            if insert {
                let handle = registry.register(key(offset), Arc::new(Witness::new(at))).unwrap();
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
