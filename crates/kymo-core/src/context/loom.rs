//! Switches, reads, forks, ends and closes in two threads, in every order that matters.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --release context::loom`. What is
//! checked each time: a read that begins after so much work and ends before so much more gives
//! something in between, and in the end all work was counted once.
use super::{Attr, Child, CpuId, Engine, EventId, Pmu, Source, Switch, Task};
use loom::thread;
use std::sync::atomic::{AtomicU64, Ordering};

const CPU: CpuId = CpuId(0);
const OTHER: CpuId = CpuId(1);

/// What each of two CPUs has worked. Plain atomics: loom need not look at them.
#[derive(Debug, Default)]
struct Work([AtomicU64; 2]);

impl Work {
    fn work(&self, cpu: CpuId) {
        self.work_long(cpu, 1);
    }

    fn work_long(&self, cpu: CpuId, units: u64) {
        self.0[cpu.0 as usize].fetch_add(units, Ordering::Relaxed);
    }

    fn done(&self) -> u64 {
        self.0.iter().map(|cpu| cpu.load(Ordering::Relaxed)).sum()
    }
}

impl Pmu for Work {
    fn now_ns(&self, cpu: CpuId) -> u64 {
        self.0[cpu.0 as usize].load(Ordering::Relaxed)
    }
    fn read(&self, cpu: CpuId, _: Source) -> u64 {
        self.now_ns(cpu)
    }
}

fn check(what: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(5));
    builder.check(what);
}

/// Does this in another thread.
fn beside<R: 'static>(
    engine: &Engine<Work>,
    what: impl FnOnce(Engine<Work>) -> R + 'static,
) -> thread::JoinHandle<R> {
    let engine = engine.clone();
    thread::spawn(move || what(engine))
}

/// A counted task on CPU 0, and a clone of it.
fn pair(attr: Attr) -> (Engine<Work>, EventId, Task<Work>, Task<Work>) {
    let engine = Engine::new(Work::default(), 2);
    let mut root = engine.task();
    let event = engine.open(&mut root, &[attr]).unwrap()[0];
    let child = engine.fork(&mut root, Child::Thread).unwrap();
    engine.enter(CPU, &mut root).unwrap();
    (engine, event, root, child)
}

/// Reads, and checks the answer against the work done before and after.
fn read(engine: &Engine<Work>, event: EventId) {
    let before = engine.pmu().done();
    let count = engine.read(event).unwrap();
    assert!(
        (before..=engine.pmu().done()).contains(&count.value),
        "{before} <= {} <= {}",
        count.value,
        engine.pmu().done()
    );
    assert_eq!(count.enabled_ns, count.value, "the work is the clock");
}

fn switch_against_read(attr: Attr) {
    check(move || {
        let (engine, event, mut root, mut child) = pair(attr);
        let worker = beside(&engine, move |engine| {
            // More than what follows, so that nothing that follows can hide that it was met
            // twice.
            engine.pmu().work_long(CPU, 10);
            let exchanged = engine.switch(CPU, &mut root, &mut child).unwrap();
            engine.pmu().work(CPU);
            (root, child, exchanged)
        });
        read(&engine, event);
        let (root, child, exchanged) = worker.join().unwrap();
        assert_eq!(engine.read(event).unwrap().value, 11);
        if attr.inherit_stat {
            let tasks = engine.read_tasks(event).unwrap();
            assert_eq!(
                tasks.iter().map(|(_, count)| count.value).collect::<Vec<_>>(),
                [10, 1],
                "{exchanged:?}"
            );
        } else {
            assert_eq!(exchanged, Switch::Exchanged, "a read of the sum is in nobody's way");
        }
        drop((root, child));
    });
}

/// Checks that a read of the sum meets each count once while contexts are exchanged (I5).
#[test]
fn switch_against_read_of_the_sum() {
    switch_against_read(Attr::family(Source(0)));
}

/// Checks that it does also where the exchange moves counts (I6).
#[test]
fn switch_against_read_with_counts() {
    switch_against_read(Attr { inherit_stat: true, ..Attr::family(Source(0)) });
}

/// Checks that the numbers of single tasks are never those of another while contexts are exchanged
/// (I6).
#[test]
fn switch_against_read_of_tasks() {
    check(|| {
        let (engine, event, mut root, mut child) =
            pair(Attr { inherit_stat: true, ..Attr::family(Source(0)) });
        let worker = beside(&engine, move |engine| {
            engine.pmu().work(CPU);
            engine.switch(CPU, &mut root, &mut child).unwrap();
            (root, child)
        });
        let tasks = engine.read_tasks(event).unwrap();
        assert_eq!(tasks.len(), 2);
        assert!(tasks[0].0 < tasks[1].0 && tasks[0].1.value <= 1 && tasks[1].1.value == 0, "{tasks:?}");
        drop(worker.join().unwrap());
    });
}

/// Checks that a read finds the count of a task that ends exactly once: in the task, or folded
/// (I5).
#[test]
fn exit_against_read() {
    for inherit_stat in [false, true] {
        check(move || {
            let (engine, event, mut root, mut child) = pair(Attr { inherit_stat, ..Attr::family(Source(0)) });
            engine.pmu().work(CPU);
            engine.switch(CPU, &mut root, &mut child).unwrap();
            engine.pmu().work(CPU);
            // The child ends in the root's context: what was opened goes with it.
            let worker = beside(&engine, move |engine| engine.exit(&mut child).unwrap());
            assert_eq!(engine.read(event).unwrap().value, 2);
            worker.join().unwrap();
            assert_eq!(engine.read(event).unwrap().value, 2);
            drop(root);
            assert_eq!(engine.is_over(event), Ok(true));
        });
    }
}

/// Checks that a child forked while relatives exchange contexts on another CPU is counted, and may
/// be exchanged.
#[test]
fn fork_against_switch() {
    check(|| {
        let (engine, event, mut root, mut child) = pair(Attr::family(Source(0)));
        let mut other = engine.fork(&mut root, Child::Thread).unwrap();
        engine.switch(CPU, &mut root, &mut child).unwrap();
        engine.enter(OTHER, &mut other).unwrap();
        let worker = beside(&engine, move |engine| {
            // The root rests in a clone of its own context.
            assert_eq!(engine.switch(OTHER, &mut other, &mut root).unwrap(), Switch::Exchanged);
            engine.pmu().work(OTHER);
            (other, root)
        });
        let mut grandchild = engine.fork(&mut child, Child::Thread).unwrap();
        assert_eq!(engine.switch(CPU, &mut child, &mut grandchild).unwrap(), Switch::Exchanged);
        engine.pmu().work(CPU);
        let relatives = worker.join().unwrap();
        assert_eq!(engine.read(event).unwrap().value, 2);
        drop((relatives, child, grandchild));
    });
}

/// Checks that a child forked while its event closes has it nowhere afterwards, and is a clone if
/// it says so (I2, I7).
#[test]
fn fork_against_close() {
    check(|| {
        let (engine, event, mut root, child) = pair(Attr::family(Source(0)));
        let kept = engine.open(&mut root, &[Attr::family(Source(0))]).unwrap()[0];
        let worker = beside(&engine, move |engine| engine.close(event).unwrap());
        let mut grandchild = engine.fork(&mut root, Child::Thread).unwrap();
        worker.join().unwrap();
        let events = |task: &Task<Work>| {
            task.context.lock().set.groups().map(|group| group.events.len()).sum::<usize>()
        };
        assert_eq!((events(&root), events(&grandchild)), (1, 1));
        engine.switch(CPU, &mut root, &mut grandchild).unwrap();
        engine.pmu().work(CPU);
        assert_eq!(engine.read(kept).unwrap().value, 1);
        drop((root, child, grandchild));
    });
}

/// Checks that what is disabled from another thread stops wherever it is, through a switch.
#[test]
fn switch_against_disable() {
    check(|| {
        let (engine, event, mut root, mut child) = pair(Attr::family(Source(0)));
        let worker = beside(&engine, move |engine| {
            engine.switch(CPU, &mut root, &mut child).unwrap();
            engine.leave(CPU, &mut child).unwrap();
            engine.enter(CPU, &mut root).unwrap();
            (root, child)
        });
        engine.disable(event).unwrap();
        let (mut root, mut child) = worker.join().unwrap();
        engine.pmu().work(CPU);
        engine.switch(CPU, &mut root, &mut child).unwrap();
        engine.pmu().work(CPU);
        assert_eq!(engine.read(event).unwrap().value, 0);
        drop((root, child));
    });
}
