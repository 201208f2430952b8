//! Requests in every order that matters: a task moves from one count to the next while a CPU looks
//! for the largest.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --lib --release breakpoint::loom`. Two
//! slots per CPU, two shards.
use super::{Config, CpuId, Kind, Ledger, Pool, Reservation, Slots, Target, Task, TaskId};
use crate::big_reader_lock::stand_in_shard;
use loom::sync::Arc;
use loom::thread;

const CPU: CpuId = CpuId(0);

fn check(what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(2));
    model.check(what);
}

fn ledger() -> Arc<Ledger> {
    Arc::new(Ledger::new(Config { cpus: 1, slots: Slots::Shared(2) }).unwrap())
}

fn reserve(ledger: &Ledger, target: Target<'_, Task>) -> Option<Reservation> {
    ledger.reserve(target, Kind::WRITE).ok()
}

/// Does `other` in a thread in the second shard and `here` in the first, on a task; gives both
/// results.
fn both<A: 'static, B>(
    ledger: &Arc<Ledger>,
    task: &Task,
    other: fn(&Ledger, &Task) -> A,
    here: impl FnOnce(&Ledger, &Task) -> B,
) -> (A, B) {
    let thread = {
        let (ledger, task) = (Arc::clone(ledger), task.clone());
        thread::spawn(move || {
            stand_in_shard(1);
            other(&ledger, &task)
        })
    };
    let here = here(ledger, task);
    (thread.join().unwrap(), here)
}

/// A task that has one of the two slots asks for another anywhere, while a second thread asks for
/// one, too: exactly one of them gets it.
fn one_gets_the_last(has: fn(&Task) -> Target<'_, Task>, other: fn(&Ledger, &Task) -> Option<Reservation>) {
    check(move || {
        let ledger = ledger();
        let task = ledger.task(TaskId(1));
        let first = reserve(&ledger, has(&task)).unwrap();
        let (other, any) = both(&ledger, &task, other, |ledger, task| reserve(ledger, Target::Task(task)));
        assert!(other.is_some() != any.is_some());
        assert_eq!(ledger.taken(CPU, Pool::Data), Ok(2));
        drop((first, other, any));
        assert!(ledger.is_unused());
    });
}

/// Checks the two-cell move upwards: a task with one slot asks for the second while the CPU asks
/// for one. A CPU that met the task in neither cell would get it, too.
#[test]
fn a_task_moves_up() {
    one_gets_the_last(|task| Target::Task(task), |ledger, _| reserve(ledger, Target::Cpu(CPU)));
}

/// Checks the two-cell move downwards: a task releases its second slot while the CPU asks. The CPU
/// gets it only if it was released before, and whichever was first, what is taken afterwards is
/// what both have.
#[test]
fn a_task_moves_down() {
    check(|| {
        let ledger = ledger();
        let task = ledger.task(TaskId(1));
        let first = reserve(&ledger, Target::Task(&task)).unwrap();
        let second = reserve(&ledger, Target::Task(&task)).unwrap();
        let (cpu, ()) =
            both(&ledger, &task, |ledger, _| reserve(ledger, Target::Cpu(CPU)), |_, _| second.release());
        assert_eq!(ledger.taken(CPU, Pool::Data), Ok(1 + usize::from(cpu.is_some())));
        drop((first, cpu));
        assert!(ledger.is_unused());
    });
}

/// Checks that a task which has a slot on the CPU and gets one anywhere (a move in two places) is
/// not overlooked in between.
#[test]
fn a_bound_task_moves_in_two_places() {
    one_gets_the_last(|task| Target::TaskOn(task, CPU), |ledger, _| reserve(ledger, Target::Cpu(CPU)));
}

/// Checks two threads that ask for the last slot of one task, anywhere and bound: one gets it.
#[test]
fn one_task_in_two_threads() {
    one_gets_the_last(|task| Target::Task(task), |ledger, task| reserve(ledger, Target::TaskOn(task, CPU)));
}

/// Checks that two tasks in two shards move at once and nothing is lost, also where one shard takes
/// back what the other counted.
#[test]
fn two_tasks_move_at_once() {
    check(|| {
        let ledger = ledger();
        let (one, two) = (ledger.task(TaskId(1)), ledger.task(TaskId(2)));
        let (first, second) = both(
            &ledger,
            &one,
            |ledger, one| reserve(ledger, Target::Task(one)),
            |ledger, _| reserve(ledger, Target::Task(&two)),
        );
        assert!(first.is_some() && second.is_some(), "tasks do not compete");
        assert_eq!(ledger.taken(CPU, Pool::Data), Ok(1));
        drop((first, second));
        assert!(ledger.is_unused());
    });
}
