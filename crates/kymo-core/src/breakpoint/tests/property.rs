//! Random lives of reservations: engine, model and rule must say the same at every step, and the
//! counts must be those of the rule.
use super::rule::{Rule, Whom};
use super::*;
use crate::breakpoint::MAX_SLOTS;
use crate::sync::lock;
use proptest::prelude::*;

const TASKS: usize = 3;
const CPUS: u32 = 3;

/// Numbers choose among what there is at that time.
#[derive(Clone, Debug)]
enum Op {
    Reserve { whom: Whom, kind: Kind },
    Modify { which: usize, kind: Kind },
    Release { which: usize },
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::READ, Kind::WRITE, Kind::READ_WRITE, Kind::EXECUTE, Kind::EXECUTE])
}

fn cpu() -> impl Strategy<Value = CpuId> {
    (0..CPUS).prop_map(CpuId)
}

fn whom() -> impl Strategy<Value = Whom> {
    let task = (0..TASKS, prop::option::of(cpu())).prop_map(|(task, cpu)| Whom::Task(task, cpu));
    // One, several (some twice), or all.
    let cpus = prop_oneof![
        4 => cpu().prop_map(|cpu| vec![cpu]),
        1 => prop::collection::vec(cpu(), 1..4),
        1 => Just((0..CPUS).map(CpuId).collect()),
    ];
    prop_oneof![4 => task, 1 => cpus.prop_map(Whom::Cpus)]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (whom(), kinds()).prop_map(|(whom, kind)| Op::Reserve { whom, kind }),
        1 => (any::<usize>(), kinds()).prop_map(|(which, kind)| Op::Modify { which, kind }),
        3 => any::<usize>().prop_map(|which| Op::Release { which }),
    ];
    prop::collection::vec(op, 0..120)
}

fn configs() -> impl Strategy<Value = Config> {
    let slots = prop_oneof![
        (0..6usize).prop_map(Slots::Shared),
        (0..5usize, 0..5usize).prop_map(|(data, instructions)| Slots::Separate { data, instructions }),
    ];
    slots.prop_map(|slots| Config { cpus: CPUS as usize, slots })
}

/// What an account says to a request.
pub(super) fn ask<A: Accounts>(
    account: &A,
    tasks: &[A::Task],
    whom: &Whom,
    kind: Kind,
) -> Result<A::Reservation, Error> {
    let target = match whom {
        Whom::Task(task, None) => Target::Task(&tasks[*task]),
        Whom::Task(task, Some(cpu)) => Target::TaskOn(&tasks[*task], *cpu),
        Whom::Cpus(cpus) if cpus.len() == 1 => Target::Cpu(cpus[0]),
        Whom::Cpus(cpus) if cpus.iter().copied().eq((0..CPUS).map(CpuId)) => Target::AllCpus,
        Whom::Cpus(cpus) => Target::Cpus(cpus),
    };
    account.reserve(target, kind)
}

fn tasks<A: Accounts>(account: &A) -> Vec<A::Task> {
    (0..TASKS).map(|task| account.task(TaskId(task as u64))).collect()
}

/// Checks all counts of the ledger against what the rule knows is reserved (B1, B2, B3).
fn audit(ledger: &Ledger, tasks: &[Task], rule: &Rule) {
    let config = ledger.config();
    let (mut by_own, mut anywhere) = ([[0; MAX_SLOTS]; 2], [[0; MAX_SLOTS]; 2]);
    let count = |cells: &mut [u32; MAX_SLOTS], n: usize| {
        if n > 0 {
            cells[n - 1] += 1;
        }
    };
    for pool in 0..config.pools() {
        (0..CPUS).for_each(|cpu| count(&mut by_own[pool], rule.own(pool, CpuId(cpu))));
        (0..TASKS).for_each(|task| count(&mut anywhere[pool], rule.of_task(pool, task, C0).0));
    }
    for (pool, kind) in [(Pool::Data, Kind::WRITE), (Pool::Instructions, Kind::EXECUTE)] {
        let index = config.index(kind.pool());
        for cpu in (0..CPUS).map(CpuId) {
            let mut bound = [0; MAX_SLOTS];
            for (number, task) in tasks.iter().enumerate() {
                let (any, here) = rule.of_task(index, number, cpu);
                count(&mut bound, if here > 0 { any + here } else { 0 });
                assert_eq!(lock(&task.0.holds)[index].on(cpu) as usize, any + here, "B4");
            }
            assert_eq!(
                ledger.shared.counts.write().counts(index, cpu),
                (anywhere[index], bound, by_own[index]),
                "B2, B3"
            );
            let taken = ledger.taken(cpu, pool).expect("the CPU exists");
            assert_eq!(taken, rule.taken(index, cpu));
            assert!(taken <= config.slots_for(pool), "B1");
        }
    }
}

/// Checks that a task which comes now gets all that another one has, as a fork would ask for it.
fn fork_fits(ledger: &Ledger, rule: &Rule, task: usize) {
    let child = ledger.task(TaskId(99));
    let mut inherited = Vec::new();
    for (_, whom, kind) in &rule.held {
        let target = match whom {
            Whom::Task(of, None) if *of == task => Target::Task(&child),
            Whom::Task(of, Some(cpu)) if *of == task => Target::TaskOn(&child, *cpu),
            _ => continue,
        };
        inherited.push(ledger.reserve(target, *kind).expect("the parent has the same"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks every answer, errno and count of the ledger against model and rule, that a fork never
    /// fails, and that nothing is left after the last release.
    #[test]
    fn as_the_rule_says(config in configs(), ops in ops()) {
        let (engine, before) = (ledger(config), model::OneList::new(config).expect("a sound config"));
        let mut rule = Rule::new(config);
        let (engine_tasks, before_tasks) = (tasks(&engine), tasks(&before));
        let mut held = Vec::new();
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Reserve { whom, kind } => {
                    let granted = ask(&engine, &engine_tasks, &whom, kind);
                    let as_before = ask(&before, &before_tasks, &whom, kind);
                    let ruled = rule.reserve(number, whom, kind);
                    prop_assert_eq!(granted.as_ref().err(), ruled.as_ref().err());
                    prop_assert_eq!(as_before.as_ref().err(), ruled.as_ref().err());
                    prop_assert!(ruled.is_ok() || ruled.is_err_and(|error| error.errno() == 28));
                    if let (Ok(granted), Ok(as_before)) = (granted, as_before) {
                        held.push((number, granted, as_before));
                    }
                }
                Op::Modify { which, kind } if !held.is_empty() => {
                    let at = which % held.len();
                    let (number, granted, as_before) = &mut held[at];
                    let ruled = rule.modify(*number, kind);
                    let was = granted.kind();
                    prop_assert_eq!(&granted.modify(kind), &ruled);
                    prop_assert_eq!(&as_before.modify(kind), &ruled);
                    prop_assert_eq!(granted.kind(), if ruled.is_ok() { kind } else { was });
                }
                Op::Release { which } if !held.is_empty() => {
                    let (number, granted, as_before) = held.swap_remove(which % held.len());
                    rule.release(number);
                    granted.release();
                    drop(as_before);
                }
                _ => {}
            }
            audit(&engine, &engine_tasks, &rule);
        }
        (0..TASKS).for_each(|task| fork_fits(&engine, &rule, task));
        audit(&engine, &engine_tasks, &rule);
        prop_assert_eq!(engine.is_unused(), held.is_empty());
        prop_assert_eq!(before.is_unused(), held.is_empty());
        drop(held);
        prop_assert!(engine.is_unused() && before.is_unused());
    }
}
