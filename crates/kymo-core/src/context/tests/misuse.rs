//! What must be refused, in words, and without a change to any count.
use super::{CPU, Script, counted, engine, family, fork, one, value};
use crate::context::{
    Attr, Child, CpuId, Engine, Error, EventId, Inherit, Pmu, Source, Switch, Task, TaskId,
};
use std::sync::atomic::{AtomicU64, Ordering};

const OTHER: CpuId = CpuId(1);

/// Checks that an event that was never opened, or is closed, is refused by everything that takes
/// one.
#[test]
fn unknown_events() {
    let engine = engine(1, 0);
    let (_task, events) = counted(&engine, &[family(0)]);
    engine.close(events[0]).expect("it is open");
    for event in [events[0], EventId::from_number(0), EventId::from_number(u64::MAX)] {
        let error = Error::UnknownEvent(event);
        assert_eq!(engine.read(event), Err(error));
        assert_eq!(engine.read_group(event), Err(error));
        assert_eq!(engine.read_tasks(event), Err(error));
        assert_eq!(engine.is_over(event), Err(error));
        assert_eq!(engine.enable(event), Err(error));
        assert_eq!(engine.disable(event), Err(error));
        assert_eq!(engine.close(event), Err(error));
    }
}

/// Checks that a task which ended is refused by everything, and that its counts stay.
#[test]
fn a_task_ends_twice() {
    let engine = engine(1, 0);
    let (mut task, events) = counted(&engine, &[family(0)]);
    let mut other = fork(&engine, &mut task);
    engine.enter(CPU, &mut task).expect("the CPU is idle");
    engine.pmu().work(CPU, 10);
    assert_eq!(engine.exit(&mut task), Ok(Vec::new()));
    let error = Error::Ended(task.id());
    assert_eq!(engine.exit(&mut task), Err(error));
    assert_eq!(engine.exec(&mut task), Err(error));
    assert_eq!(engine.fork(&mut task, Child::Thread).err(), Some(error));
    assert_eq!(engine.open(&mut task, &[family(0)]), Err(error));
    assert_eq!(engine.enter(CPU, &mut task), Err(error));
    assert_eq!(engine.leave(CPU, &mut task), Err(error));
    engine.enter(CPU, &mut other).expect("the CPU is idle: who ran there ended");
    assert_eq!(engine.switch(CPU, &mut other, &mut task), Err(error));
    assert_eq!(engine.switch(CPU, &mut task, &mut other), Err(error));
    assert_eq!(other.cpu(), Some(CPU), "nothing was switched");
    assert_eq!(value(&engine, events[0]), one(0, 10));
}

/// Checks that only the CPU where a task runs can switch it, and only to one that rests, and that a
/// refused switch changes nothing.
#[test]
fn switches_from_the_wrong_cpu() {
    let engine = engine(2, 0);
    let (mut a, events) = counted(&engine, &[family(0)]);
    let (mut b, mut c) = (fork(&engine, &mut a), fork(&engine, &mut a));
    engine.enter(CPU, &mut a).expect("the CPU is idle");
    engine.enter(OTHER, &mut b).expect("the CPU is idle");
    engine.pmu().work(CPU, 10);
    let elsewhere = Error::NotRunningHere { task: a.id(), here: OTHER, on: Some(CPU) };
    assert_eq!(engine.switch(OTHER, &mut a, &mut c), Err(elsewhere));
    assert_eq!(engine.leave(OTHER, &mut a), Err(elsewhere));
    let resting = Error::NotRunningHere { task: c.id(), here: CPU, on: None };
    assert_eq!(engine.switch(CPU, &mut c, &mut a), Err(resting));
    assert_eq!(engine.leave(CPU, &mut c), Err(resting));
    let running = Error::AlreadyRunning { task: b.id(), on: OTHER };
    assert_eq!(engine.switch(CPU, &mut a, &mut b), Err(running));
    assert_eq!(engine.enter(CPU, &mut b), Err(running));
    assert_eq!(engine.enter(CPU, &mut c), Err(Error::Busy { cpu: CPU, task: a.id() }));
    assert_eq!([a.cpu(), b.cpu(), c.cpu()], [Some(CPU), Some(OTHER), None]);
    engine.pmu().work(CPU, 20);
    assert_eq!(value(&engine, events[0]), one(0, 10) + one(0, 20));
    assert_eq!(engine.switch(CPU, &mut a, &mut c), Ok(Switch::Exchanged));
    assert_eq!(
        engine.enter(CPU, &mut a),
        Err(Error::Busy { cpu: CPU, task: c.id() }),
        "who runs is known after an exchange"
    );
}

/// Checks that a CPU that does not exist is refused, also the numbers that mean "nowhere" inside.
#[test]
fn unknown_cpus() {
    let engine = engine(2, 0);
    let (mut a, mut b) = (engine.task(), engine.task());
    for cpu in [2, u32::MAX - 1, u32::MAX].map(CpuId) {
        let error = Error::UnknownCpu { cpu, cpus: 2 };
        assert_eq!(engine.enter(cpu, &mut a), Err(error));
        assert_eq!(engine.leave(cpu, &mut a), Err(error));
        assert_eq!(engine.switch(cpu, &mut a, &mut b), Err(error));
        assert_eq!(engine.rotate(cpu), Err(error));
        assert_eq!(engine.open_cpu(cpu, &[Attr::new(Source(0))]), Err(error));
    }
}

/// Checks that a task dropped at rest ends, and that one dropped while it runs ends there and then,
/// which its CPU says once.
#[test]
fn dropped_while_running() {
    let engine = engine(1, 0);
    let (mut root, events) = counted(&engine, &[family(0)]);
    drop(fork(&engine, &mut root));
    let mut child = fork(&engine, &mut root);
    let id = child.id();
    engine.enter(CPU, &mut child).expect("the CPU is idle");
    engine.pmu().work(CPU, 10);
    drop(child);
    engine.pmu().work(CPU, 20);
    assert_eq!(value(&engine, events[0]), one(0, 10));
    assert_eq!(engine.enter(CPU, &mut root), Err(Error::DroppedWhileRunning { cpu: CPU, task: id }));
    assert_eq!(engine.enter(CPU, &mut root), Ok(()));
    engine.pmu().work(CPU, 30);
    assert_eq!(value(&engine, events[0]), one(0, 10) + one(0, 30));
    drop(root);
    assert_eq!(engine.is_over(events[0]), Ok(true));
}

/// Checks that tasks of another engine are refused.
#[test]
fn another_engine() {
    let (engine, other) = (engine(1, 0), engine(1, 0));
    let (mut task, _) = counted(&engine, &[family(0)]);
    let mut strange: Task<Script> = other.task();
    engine.enter(CPU, &mut task).expect("the CPU is idle");
    assert_eq!(engine.switch(CPU, &mut task, &mut strange), Err(Error::OtherEngine));
    assert_eq!(other.switch(CPU, &mut task, &mut strange), Err(Error::OtherEngine));
    assert_eq!(engine.enter(CPU, &mut strange), Err(Error::OtherEngine));
    assert_eq!(engine.fork(&mut strange, Child::Thread).err(), Some(Error::OtherEngine));
    assert_eq!(engine.open(&mut strange, &[family(0)]), Err(Error::OtherEngine));
    assert_eq!(engine.exit(&mut strange), Err(Error::OtherEngine));
    assert_eq!(other.exit(&mut strange), Ok(Vec::new()));
}

/// Checks that groups that cannot be are refused whole.
#[test]
fn impossible_groups() {
    let engine = engine(1, 0);
    let mut task = engine.task();
    let here = Attr { cpu: Some(CPU), ..family(0) };
    let pinned = Attr { pinned: true, ..family(0) };
    for (group, error) in [
        (vec![], Error::EmptyGroup),
        (vec![family(0), Attr::new(Source(1))], Error::MixedGroup),
        (vec![family(0), here], Error::MixedGroup),
        (vec![family(0), family(1), pinned], Error::NotLeader { position: 2 }),
        (vec![family(0), Attr { exclusive: true, ..family(1) }], Error::NotLeader { position: 1 }),
    ] {
        assert_eq!(engine.open(&mut task, &group), Err(error));
    }
    let plain = Attr::new(Source(0));
    for attr in [
        Attr { inherit: Inherit::Threads, ..plain },
        Attr { inherit_stat: true, ..plain },
        Attr { enable_on_exec: true, ..plain },
        Attr { remove_on_exec: true, ..plain },
        Attr { cpu: Some(CPU), ..plain },
        Attr { bound: true, ..plain },
    ] {
        assert_eq!(engine.open_cpu(CPU, &[attr]), Err(Error::TaskOnly));
    }
    let events = engine.open(&mut task, &[family(0), family(1)]).expect("a sound group");
    assert_eq!(engine.read_tasks(events[0]), Err(Error::NotPerTask(events[0])));
    assert_eq!(engine.read_group(events[1]), Err(Error::NotALeader(events[1])));
}

/// Checks that each error is a sentence with the numbers that are needed to find the mistake.
#[test]
fn errors_are_sentences() {
    let (event, task) = (EventId::from_number(7), TaskId(8));
    for (error, parts) in [
        (Error::UnknownEvent(event), ["event 7", "closed"]),
        (Error::UnknownCpu { cpu: OTHER, cpus: 1 }, ["CPU 1", "made for 1"]),
        (Error::EmptyGroup, ["group", "event"]),
        (Error::MixedGroup, ["group", "two groups"]),
        (Error::NotLeader { position: 3 }, ["event 3", "leader"]),
        (Error::TaskOnly, ["CPU", "open it on a task"]),
        (Error::Ended(task), ["task 8", "ended"]),
        (Error::AlreadyRunning { task, on: OTHER }, ["task 8", "CPU 1"]),
        (Error::NotRunningHere { task, here: CPU, on: Some(OTHER) }, ["CPU 0", "is on CPU 1"]),
        (Error::NotRunningHere { task, here: CPU, on: None }, ["CPU 0", "is on no CPU"]),
        (Error::Busy { cpu: OTHER, task }, ["CPU 1", "task 8"]),
        (Error::DroppedWhileRunning { cpu: OTHER, task }, ["task 8", "CPU 1"]),
        (Error::OtherEngine, ["task", "another engine"]),
        (Error::NotPerTask(event), ["event 7", "inherit_stat"]),
        (Error::NotALeader(event), ["event 7", "leader"]),
        (Error::PinnedOut(event), ["event 7", "enable it again"]),
    ] {
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{error:?}: {text}");
    }
}

/// A clock that shows whatever comes next, and counters that do too.
#[derive(Debug)]
struct Mad(AtomicU64);

impl Pmu for Mad {
    fn now_ns(&self, _: CpuId) -> u64 {
        // A step that is odd reaches every number.
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
    fn read(&self, cpu: CpuId, _: Source) -> u64 {
        self.now_ns(cpu)
    }
}

/// Checks that with a clock that jumps to and fro nothing panics, and that time running is never
/// more than time enabled.
#[test]
fn a_mad_clock() {
    let engine = Engine::new(Mad(AtomicU64::new(1)), 1);
    let mut a = engine.task();
    let event = engine.open(&mut a, &[Attr { inherit_stat: true, ..family(0) }]).expect("a sound group")[0];
    let mut b = engine.fork(&mut a, Child::Thread).expect("it lives");
    engine.enter(CPU, &mut a).expect("the CPU is idle");
    for _ in 0..200 {
        engine.switch(CPU, &mut a, &mut b).expect("one runs, the other rests");
        engine.leave(CPU, &mut b).expect("it runs here");
        engine.enter(CPU, &mut a).expect("the CPU is idle");
        let count = engine.read(event).expect("it is open");
        assert!(count.running_ns <= count.enabled_ns, "{count:?}");
    }
}
