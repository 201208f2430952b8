//! The corner cases, by name. In each, `one(source, ns)` is what one piece of work must add.
use super::{CPU, HARDWARE, Script, counted, engine, family, fork, one, per_task, value};
use crate::context::{Attr, Child, Count, CpuId, Engine, Error, EventId, Inherit, Pmu, Source, Switch, Task};
use crate::sync::lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const OTHER: CpuId = CpuId(1);

fn enter(engine: &Engine<Script>, task: &mut Task<Script>) {
    engine.enter(CPU, task).expect("the CPU is idle");
}

fn switch(engine: &Engine<Script>, from: &mut Task<Script>, to: &mut Task<Script>) -> Switch {
    engine.switch(CPU, from, to).expect("one runs, the other rests")
}

fn work(engine: &Engine<Script>, ns: u64) {
    engine.pmu().work(CPU, ns);
}

/// A task with one group of these events, which runs, and its child, which rests.
fn running_with_child(group: &[Attr]) -> (Engine<Script>, Task<Script>, Vec<EventId>, Task<Script>) {
    let engine = engine(1, 0);
    let (mut parent, events) = counted(&engine, group);
    let child = fork(&engine, &mut parent);
    enter(&engine, &mut parent);
    (engine, parent, events, child)
}

/// What a single task has counted.
fn of(engine: &Engine<Script>, event: EventId, task: &Task<Script>) -> u64 {
    let tasks = engine.read_tasks(event).expect("the event is kept per task");
    tasks.iter().find(|(id, _)| *id == task.id()).expect("the task lives").1.value
}

/// The life that lost counts: W counts; it forks A; A runs in W's context, and dies with it; W
/// forks B; B runs long, elsewhere. Gives what was counted and what should have been.
fn five_steps(engine: &Engine<Script>) -> (u64, u64) {
    let (mut w, events) = counted(engine, &[family(0)]);
    enter(engine, &mut w);
    work(engine, 10);
    let mut a = fork(engine, &mut w);
    assert_eq!(switch(engine, &mut w, &mut a), Switch::Exchanged);
    work(engine, 20);
    engine.exit(&mut a).expect("it lives");
    let mut b = fork(engine, &mut w);
    engine.enter(OTHER, &mut b).expect("the CPU is idle");
    engine.pmu().work(OTHER, 100_000);
    engine.exit(&mut b).expect("it lives");
    (value(engine, events[0]), one(0, 10) + one(0, 20) + one(0, 100_000))
}

/// Checks that B is counted although the opened event died with A: a child begins as its parent's
/// event is, not as the one that was opened is.
#[test]
fn the_source_failure() {
    let (counted, expected) = five_steps(&engine(2, 0));
    assert_eq!(counted, expected);
}

/// Checks that the same life loses B when parent and child exchange contexts and a child begins as
/// the opened event is: that policy, and not something else, is what the test above refuses.
#[test]
fn the_source_failure_with_the_naive_policy() {
    let engine = engine(2, 0);
    engine.shared.naive.start_as_the_top.store(true, Ordering::Relaxed);
    let (counted, expected) = five_steps(&engine);
    assert_eq!(counted, expected - one(0, 100_000), "all of B is lost, and nothing else");
}

/// Two events that take turns on one counter, kept per task, in a parent whose order a rotation has
/// changed since the fork. Gives what parent and child have of each.
fn rotated(engine: &Engine<Script>) -> [[u64; 2]; 2] {
    let (mut parent, first) = counted(engine, &[per_task(4)]);
    let second = engine.open(&mut parent, &[per_task(5)]).expect("a sound group");
    let mut child = fork(engine, &mut parent);
    enter(engine, &mut parent);
    work(engine, 10);
    assert_eq!(engine.rotate(CPU), Ok(true));
    work(engine, 100);
    assert_eq!(switch(engine, &mut parent, &mut child), Switch::Exchanged);
    work(engine, 1000);
    [&parent, &child].map(|task| [of(engine, first[0], task), of(engine, second[0], task)])
}

/// Checks that numbers of single tasks are paired by event: a rotation changes the order of groups
/// in one of two clones.
#[test]
fn pairs_by_event_after_a_rotation() {
    assert_eq!(rotated(&engine(1, 1)), [[one(4, 10), one(5, 100)], [0, one(5, 1000)]]);
}

/// Checks that pairing by position gives one event's count to another there.
#[test]
fn pairing_by_position_is_wrong() {
    let engine = engine(1, 1);
    engine.shared.naive.pair_by_position.store(true, Ordering::Relaxed);
    assert_eq!(rotated(&engine)[0], [one(5, 100), one(4, 10)], "exactly exchanged");
}

/// Checks that an exchange looks at no clock and no counter, however many events there are.
#[test]
fn an_exchange_touches_nothing() {
    let engine = engine(1, 0);
    let mut parent = engine.task();
    for _ in 0..64 {
        engine.open(&mut parent, &[family(0)]).expect("a sound group");
    }
    let mut child = fork(&engine, &mut parent);
    enter(&engine, &mut parent);
    let before = engine.pmu().asked.load(Ordering::Relaxed);
    assert_eq!(switch(&engine, &mut parent, &mut child), Switch::Exchanged);
    assert_eq!(switch(&engine, &mut child, &mut parent), Switch::Exchanged);
    assert_eq!(engine.pmu().asked.load(Ordering::Relaxed), before);
}

/// Checks that a reader's pin forbids the exchange, that the switch is right all the same, and that
/// it ends with the reader.
#[test]
fn a_pinned_context_is_not_exchanged() {
    let (engine, mut parent, events, mut child) = running_with_child(&[family(0)]);
    let pin = |tasks: [&Task<Script>; 2], change: fn(&mut u32)| {
        for context in tasks.map(|task| &task.context) {
            let mut inner = context.lock();
            change(&mut inner.pins);
            context.classify(&inner, engine.shared.empty);
        }
    };
    pin([&parent, &child], |pins| *pins += 1);
    work(&engine, 10);
    assert_eq!(switch(&engine, &mut parent, &mut child), Switch::Rescheduled);
    work(&engine, 10);
    assert_eq!(value(&engine, events[0]), 2 * one(0, 10));
    pin([&parent, &child], |pins| *pins -= 1);
    assert_eq!(switch(&engine, &mut child, &mut parent), Switch::Exchanged);
}

/// Checks that a task which forks while it holds the context of another gives its child what that
/// has.
#[test]
fn fork_in_an_exchanged_context() {
    let (engine, mut parent, events, mut child) = running_with_child(&[per_task(0)]);
    assert_eq!(switch(&engine, &mut parent, &mut child), Switch::Exchanged);
    let mut grandchild = fork(&engine, &mut child);
    let mut other = fork(&engine, &mut parent);
    work(&engine, 10);
    assert_eq!(switch(&engine, &mut child, &mut grandchild), Switch::Exchanged);
    work(&engine, 20);
    assert_eq!(switch(&engine, &mut grandchild, &mut other), Switch::Exchanged);
    work(&engine, 30);
    assert_eq!(switch(&engine, &mut other, &mut parent), Switch::Exchanged);
    let counts = [&parent, &child, &grandchild, &other].map(|task| of(&engine, events[0], task));
    assert_eq!(counts, [0, one(0, 10), one(0, 20), one(0, 30)]);
}

/// Checks that after a close and a fork in two threads, whichever was first, no child has the
/// closed event.
#[test]
fn close_races_fork() {
    for _ in 0..300 {
        let engine = engine(1, 0);
        let (mut parent, events) = counted(&engine, &[family(0), family(1)]);
        let family = Arc::clone(&lock(&engine.shared.events)[&events[0]]);
        let children: Vec<Task<Script>> = std::thread::scope(|scope| {
            let closing = scope.spawn(|| engine.close(events[0]));
            let children = (0..3).map(|_| fork(&engine, &mut parent)).collect();
            closing.join().expect("no panic").expect("it was open");
            children
        });
        let ids = |task: &Task<Script>| -> Vec<EventId> {
            let inner = task.context.lock();
            inner.set.groups().flat_map(|group| group.events.iter().map(|event| event.id)).collect()
        };
        assert!(children.iter().all(|task| ids(task) == [events[1]]), "the other one stays");
        assert_eq!(lock(&family.kin).contexts().count(), 4);
        drop((parent, children));
        assert_eq!(engine.is_over(events[1]), Ok(true));
    }
}

/// Checks that a close leaves a family alike: it takes the event from all of them, and from those
/// that are forked later.
#[test]
fn a_close_leaves_contexts_alike() {
    let engine = engine(1, 0);
    let (mut parent, events) = counted(&engine, &[family(0), family(1)]);
    let mut older = fork(&engine, &mut parent);
    engine.close(events[0]).expect("it is open");
    let mut younger = fork(&engine, &mut parent);
    enter(&engine, &mut parent);
    assert_eq!(switch(&engine, &mut parent, &mut younger), Switch::Exchanged);
    work(&engine, 10);
    assert_eq!(switch(&engine, &mut younger, &mut older), Switch::Exchanged);
    work(&engine, 20);
    assert_eq!(value(&engine, events[1]), one(1, 10) + one(1, 20));
}

/// Checks that a grandchild whose parent died is still a clone of the root's context.
#[test]
fn grandchild_of_a_dead_middle_task() {
    let engine = engine(1, 0);
    let (mut root, events) = counted(&engine, &[family(0)]);
    let mut middle = fork(&engine, &mut root);
    let mut grandchild = fork(&engine, &mut middle);
    enter(&engine, &mut middle);
    work(&engine, 10);
    engine.exit(&mut middle).expect("it lives");
    enter(&engine, &mut root);
    assert_eq!(switch(&engine, &mut root, &mut grandchild), Switch::Exchanged);
    work(&engine, 20);
    assert_eq!(value(&engine, events[0]), one(0, 10) + one(0, 20));
}

/// Checks that the opened event may die with a child while the task it was opened on lives on, is
/// counted, and is enabled and disabled through it, and that the family ends with its last task.
#[test]
fn the_opened_event_dies_with_a_child() {
    let (engine, mut root, events, mut child) = running_with_child(&[family(0), family(1)]);
    assert_eq!(switch(&engine, &mut root, &mut child), Switch::Exchanged);
    engine.exit(&mut child).expect("it lives");
    enter(&engine, &mut root);
    work(&engine, 10);
    engine.disable(events[0]).expect("it is open");
    work(&engine, 20);
    assert_eq!(
        engine.read_group(events[0]).unwrap().iter().map(|(_, count)| count.value).collect::<Vec<_>>(),
        [one(0, 10), one(1, 10)]
    );
    engine.enable(events[0]).expect("it is open");
    work(&engine, 30);
    assert_eq!(engine.is_over(events[0]), Ok(false));
    engine.exit(&mut root).expect("it lives");
    assert_eq!(engine.is_over(events[0]), Ok(true));
    assert_eq!(value(&engine, events[0]), one(0, 10) + one(0, 30));
    assert_eq!(engine.enable(events[0]), Ok(()), "nobody is left, and nothing happens");
    assert_eq!(value(&engine, events[1]), one(1, 10) + one(1, 30), "the group goes with its leader");
}

/// Checks that an exec enables what the task has, also if that came from another task, and makes it
/// unlike the others.
#[test]
fn exec_in_an_exchanged_context() {
    let attr = Attr { disabled: true, enable_on_exec: true, ..family(0) };
    let (engine, mut root, events, mut child) = running_with_child(&[attr]);
    assert_eq!(switch(&engine, &mut root, &mut child), Switch::Exchanged);
    work(&engine, 10);
    engine.exec(&mut child).expect("it lives");
    work(&engine, 20);
    assert_eq!(value(&engine, events[0]), one(0, 20));
    assert_eq!(switch(&engine, &mut child, &mut root), Switch::Rescheduled, "only one is enabled");
    work(&engine, 30);
    assert_eq!(value(&engine, events[0]), one(0, 20), "the root did not exec");
    let mut grandchild = fork(&engine, &mut child);
    assert_eq!(switch(&engine, &mut root, &mut grandchild), Switch::Rescheduled);
    work(&engine, 40);
    assert_eq!(value(&engine, events[0]), one(0, 20) + one(0, 40), "as its parent, not as the opened event");
    assert_eq!(switch(&engine, &mut grandchild, &mut child), Switch::Exchanged);
}

/// Checks that an exec takes an event away that asked for it, keeps what it counted, and makes the
/// task unlike the others.
#[test]
fn exec_removes() {
    let engine = engine(1, 0);
    let (mut root, events) = counted(&engine, &[Attr { remove_on_exec: true, ..family(0) }]);
    let mut child = fork(&engine, &mut root);
    enter(&engine, &mut child);
    work(&engine, 10);
    engine.exec(&mut child).expect("it lives");
    work(&engine, 20);
    assert_eq!(value(&engine, events[0]), one(0, 10));
    assert_eq!(switch(&engine, &mut child, &mut root), Switch::Rescheduled);
    work(&engine, 30);
    assert_eq!(value(&engine, events[0]), one(0, 10) + one(0, 30));
}

/// Checks that a pinned event which lost its counter says so, that the state goes with the context
/// to another task and CPU, and that enabling it brings it back.
#[test]
fn a_pinned_error_travels() {
    let engine = engine(2, 1);
    let own = engine.open_cpu(CPU, &[Attr { pinned: true, ..Attr::new(Source(4)) }]).expect("a sound group");
    let (mut root, events) = counted(&engine, &[Attr { pinned: true, ..family(5) }]);
    let mut child = fork(&engine, &mut root);
    enter(&engine, &mut root);
    assert_eq!(engine.read(events[0]), Err(Error::PinnedOut(events[0])));
    assert_eq!(switch(&engine, &mut root, &mut child), Switch::Exchanged);
    engine.leave(CPU, &mut child).expect("it runs here");
    engine.enter(OTHER, &mut child).expect("the CPU is idle");
    engine.pmu().work(OTHER, 10);
    assert_eq!(engine.read(events[0]), Err(Error::PinnedOut(events[0])), "also where there is room");
    engine.enable(events[0]).expect("it is open");
    engine.pmu().work(OTHER, 20);
    assert_eq!(value(&engine, events[0]), one(5, 20));
    enter(&engine, &mut root);
    engine.pmu().work(CPU, 30);
    assert_eq!(value(&engine, events[0]), one(5, 20), "a child of it that lost its counter is silent");
    assert_eq!(value(&engine, own[0]), one(4, 30));
}

/// Checks which pairs are not exchanged: what differs, or may not move, is rescheduled, and each
/// counts its own.
#[test]
fn unlike_contexts_are_rescheduled() {
    let engine = engine(1, 0);
    let (mut root, events) = counted(&engine, &[family(0)]);
    let mut child = fork(&engine, &mut root);
    let more = engine.open(&mut child, &[family(1)]).expect("a sound group");
    let (mut stranger, _) = counted(&engine, &[family(0)]);
    let mut nobody = engine.task();
    let mut other = engine.task();
    enter(&engine, &mut root);
    work(&engine, 1);
    assert_eq!(switch(&engine, &mut root, &mut child), Switch::Rescheduled, "it has one more");
    work(&engine, 2);
    assert_eq!(switch(&engine, &mut child, &mut stranger), Switch::Rescheduled, "not related");
    work(&engine, 4);
    assert_eq!(switch(&engine, &mut stranger, &mut nobody), Switch::Rescheduled, "not counted");
    work(&engine, 8);
    assert_eq!(switch(&engine, &mut nobody, &mut other), Switch::Exchanged, "nobody counts them");
    work(&engine, 16);
    assert_eq!(switch(&engine, &mut other, &mut root), Switch::Rescheduled);
    work(&engine, 32);
    assert_eq!(value(&engine, events[0]), one(0, 1) + one(0, 2) + one(0, 32));
    assert_eq!(value(&engine, more[0]), one(1, 2));
}

/// Checks that an event which belongs to its very task keeps its context from being exchanged.
#[test]
fn a_bound_event_forbids_the_exchange() {
    let (engine, mut root, _, mut child) = running_with_child(&[Attr { bound: true, ..family(0) }]);
    assert_eq!(switch(&engine, &mut root, &mut child), Switch::Rescheduled);
}

/// Checks that a process does not get what only threads inherit, and so is no clone; a thread is.
#[test]
fn threads_only() {
    let engine = engine(1, 0);
    let (mut root, events) = counted(&engine, &[Attr { inherit: Inherit::Threads, ..family(0) }]);
    engine.open(&mut root, &[family(1)]).expect("a sound group");
    let mut thread = fork(&engine, &mut root);
    let mut process = engine.fork(&mut root, Child::Process).expect("it lives");
    enter(&engine, &mut root);
    assert_eq!(switch(&engine, &mut root, &mut thread), Switch::Exchanged);
    work(&engine, 10);
    assert_eq!(switch(&engine, &mut thread, &mut process), Switch::Rescheduled);
    work(&engine, 20);
    assert_eq!(value(&engine, events[0]), one(0, 10));
}

/// Checks that events opened while a task runs in an exchanged context count that task only.
#[test]
fn open_in_an_exchanged_context() {
    let (engine, mut root, _, mut child) = running_with_child(&[family(0)]);
    assert_eq!(switch(&engine, &mut root, &mut child), Switch::Exchanged);
    let own = engine.open(&mut root, &[family(1)]).expect("a sound group");
    work(&engine, 10);
    assert_eq!(switch(&engine, &mut child, &mut root), Switch::Rescheduled);
    work(&engine, 20);
    assert_eq!(value(&engine, own[0]), one(1, 20));
}

/// Checks that without its leader each of a group goes on by itself, in children too, and enabled
/// only if it was.
#[test]
fn a_leader_closes() {
    let engine = engine(1, 0);
    let off = Attr { disabled: true, ..family(2) };
    let (mut root, events) = counted(&engine, &[off, family(1), off]);
    let mut child = fork(&engine, &mut root);
    enter(&engine, &mut child);
    work(&engine, 10);
    assert_eq!(value(&engine, events[1]), 0, "a group counts with its leader");
    assert_eq!(engine.read_group(events[1]), Err(Error::NotALeader(events[1])));
    engine.close(events[0]).expect("it is open");
    work(&engine, 20);
    assert_eq!(engine.read(events[1]), Ok(Count { value: one(1, 20), enabled_ns: 20, running_ns: 20 }));
    assert_eq!(value(&engine, events[2]), 0);
    assert_eq!(engine.read_group(events[1]).map(|group| group.len()), Ok(1));
}

/// Checks that groups which find no counter take turns, that no time is lost, and that scaling
/// makes up for it.
#[test]
fn groups_take_turns() {
    let engine = engine(1, 2);
    let (mut task, first) = counted(&engine, &[family(4), family(5)]);
    let mut events = vec![first[0]];
    for source in [6, 7] {
        events.push(engine.open(&mut task, &[family(source), family(4)]).expect("a sound group")[0]);
    }
    enter(&engine, &mut task);
    for _ in 0..30 {
        work(&engine, 100);
        assert_eq!(engine.rotate(CPU), Ok(true));
    }
    for (event, source) in events.into_iter().zip([4, 6, 7]) {
        let count = engine.read(event).expect("it is open");
        assert_eq!(count, Count { value: 10 * one(source, 100), enabled_ns: 3000, running_ns: 1000 });
        assert_eq!(count.scaled(), Some(30 * one(source, 100)));
    }
}

/// Checks that a turn ends for the first group that counts, not for one before it that is disabled.
#[test]
fn a_disabled_group_takes_no_turn() {
    let engine = engine(1, 1);
    let (mut task, _) = counted(&engine, &[Attr { disabled: true, ..family(4) }]);
    let events = [5, 6].map(|source| engine.open(&mut task, &[family(source)]).expect("a sound group")[0]);
    enter(&engine, &mut task);
    work(&engine, 10);
    assert_eq!(engine.rotate(CPU), Ok(true));
    work(&engine, 20);
    assert_eq!(events.map(|event| value(&engine, event)), [one(5, 10), one(6, 20)]);
    engine.close(events[0]).expect("it is open");
    assert_eq!(engine.rotate(CPU), Ok(false), "nobody waits");
}

/// Checks that a group is started whole or not at all, and that software always counts.
#[test]
fn all_or_nothing() {
    let engine = engine(1, 2);
    let (mut task, large) = counted(&engine, &[family(4), family(5), family(6)]);
    let mixed = engine.open(&mut task, &[family(0), family(7)]).expect("a sound group");
    let software = engine.open(&mut task, &[family(1)]).expect("a sound group");
    enter(&engine, &mut task);
    work(&engine, 10);
    let counts = large.iter().map(|&event| engine.read(event).expect("it is open"));
    assert!(counts.into_iter().all(|count| count == Count { value: 0, enabled_ns: 10, running_ns: 0 }));
    assert_eq!(value(&engine, mixed[0]), 0, "after one that waits, hardware waits");
    assert_eq!(value(&engine, software[0]), one(1, 10));
    assert_eq!(Count { value: 0, enabled_ns: 10, running_ns: 0 }.scaled(), None);
}

/// Checks that an exclusive group has the counters alone, and gives them back.
#[test]
fn exclusive_is_alone() {
    let engine = engine(1, 4);
    let (mut task, alone) = counted(&engine, &[Attr { exclusive: true, ..family(4) }]);
    let other = engine.open(&mut task, &[family(5)]).expect("a sound group");
    enter(&engine, &mut task);
    work(&engine, 10);
    assert_eq!((value(&engine, alone[0]), value(&engine, other[0])), (one(4, 10), 0));
    engine.disable(alone[0]).expect("it is open");
    work(&engine, 20);
    assert_eq!((value(&engine, alone[0]), value(&engine, other[0])), (one(4, 10), one(5, 20)));
}

/// Checks that the events of a CPU count whoever runs there and nobody, and that pinned ones of a
/// task come before its flexible ones.
#[test]
fn a_cpu_counts_all() {
    let engine = engine(2, 1);
    let own = engine.open_cpu(CPU, &[Attr::new(Source(4))]).expect("a sound group");
    work(&engine, 10);
    let (mut task, pinned) = counted(&engine, &[Attr { pinned: true, ..family(5) }]);
    enter(&engine, &mut task);
    work(&engine, 20);
    assert_eq!((value(&engine, own[0]), value(&engine, pinned[0])), (one(4, 10), one(5, 20)));
    engine.leave(CPU, &mut task).expect("it runs here");
    work(&engine, 30);
    engine.pmu().work(OTHER, 1000);
    assert_eq!(
        engine.read(own[0]),
        Ok(Count { value: one(4, 10) + one(4, 30), enabled_ns: 60, running_ns: 40 })
    );
    assert_eq!(engine.is_over(own[0]), Ok(false));
    engine.close(own[0]).expect("it is open");
}

/// A counter of a task that goes on running while another thread works on its events: it grows at
/// each look.
#[derive(Debug, Default)]
struct GoesOn(AtomicU64);

impl Pmu for GoesOn {
    fn now_ns(&self, _: CpuId) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn read(&self, _: CpuId, _: Source) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn needs_slot(&self, source: Source) -> bool {
        source.0 >= HARDWARE
    }

    fn slots(&self, _: CpuId) -> usize {
        4
    }
}

/// Regression: whoever enabled, disabled, opened or closed an event stopped all others of the task
/// or CPU and started them again, and what the task, which ran on, did in between was lost. What
/// goes on counting is not touched.
#[test]
fn others_are_not_touched() {
    let engine = Engine::new(GoesOn::default(), 1);
    let mut task = engine.task();
    let groups = [vec![family(0), family(1)], vec![Attr { pinned: true, ..family(4) }], vec![family(5)]];
    let events: Vec<EventId> =
        groups.iter().flat_map(|group| engine.open(&mut task, group).expect("a sound group")).collect();
    let of_cpu = engine.open_cpu(CPU, &[Attr::new(Source(6))]).expect("a sound group")[0];
    engine.enter(CPU, &mut task).expect("the CPU is idle");
    let shows = || engine.pmu().0.load(Ordering::Relaxed);
    let values = |events: &[EventId]| -> Vec<u64> {
        events.iter().map(|&event| engine.read(event).expect("it is open").value).collect()
    };
    let kept = [events[0], events[2], events[3], of_cpu];
    let (before, from) = (values(&kept), shows());
    for _ in 0..3 {
        // A member of one's own group, another group, one of the CPU, and one that finds no
        // counter.
        engine.disable(events[1]).expect("it is open");
        engine.enable(events[1]).expect("it is open");
        let other = engine.open(&mut task, &[family(7)]).expect("a sound group")[0];
        let waits = engine.open(&mut task, &[family(7), family(7)]).expect("a sound group");
        let on_cpu = engine.open_cpu(CPU, &[Attr::new(Source(2))]).expect("a sound group")[0];
        for event in [other, waits[1], waits[0], on_cpu] {
            engine.disable(event).expect("it is open");
            engine.enable(event).expect("it is open");
            engine.close(event).expect("it is open");
        }
    }
    engine.close(events[1]).expect("it is open");
    let (after, to) = (values(&kept), shows());
    for ((event, before), after) in kept.iter().zip(before).zip(after) {
        // The looks of this test itself are a few of them.
        let counted = after - before;
        assert!(to - from - 8 <= counted && counted <= to - from + 8, "{event}: {counted} of {}", to - from);
    }
}

/// Checks, with workers that hand over as fast as they can while others read, fork, close and
/// disable, that no count is ever lost or met twice.
#[test]
fn threads_agree() {
    const WORKERS: u32 = 3;
    const ROUNDS: u64 = 2000;
    for attr in [family(0), per_task(0)] {
        let engine = engine(WORKERS as usize, 0);
        let (mut root, events) = counted(&engine, &[attr, family(1)]);
        let extra = engine.open(&mut root, &[family(2)]).expect("a sound group")[0];
        let tasks: Vec<Vec<Task<Script>>> =
            (0..WORKERS).map(|_| (0..3).map(|_| fork(&engine, &mut root)).collect()).collect();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .zip(tasks)
                .map(|(cpu, mut tasks)| {
                    let engine = &engine;
                    scope.spawn(move || {
                        let cpu = CpuId(cpu);
                        engine.enter(cpu, &mut tasks[0]).expect("the CPU is idle");
                        for round in 0..ROUNDS {
                            engine.pmu().work(cpu, 1);
                            let [from, to] = &mut tasks[..2] else { unreachable!() };
                            engine.switch(cpu, from, to).expect("one runs, the other rests");
                            if round % 64 == 0 {
                                let mut short = engine.fork(to, Child::Thread).expect("it lives");
                                engine.switch(cpu, to, &mut short).expect("one runs, the other rests");
                                engine.pmu().work(cpu, 1);
                                engine.exit(&mut short).expect("it lives");
                                engine.enter(cpu, to).expect("the CPU is idle");
                            }
                            tasks.swap(0, 1);
                        }
                    })
                })
                .collect();
            let mut before = 0;
            let mut rounds = 0;
            while !workers.iter().all(|worker| worker.is_finished()) {
                let now = value(&engine, events[0]);
                assert!(before <= now, "{before}, then {now}");
                before = now;
                rounds += 1;
                if rounds == 5 {
                    engine.disable(extra).expect("it is open");
                    engine.enable(extra).expect("it is open");
                    engine.close(extra).expect("it is open");
                }
                std::thread::yield_now();
            }
            for worker in workers {
                worker.join().expect("no panic");
            }
        });
        let works = u64::from(WORKERS) * (ROUNDS + ROUNDS.div_ceil(64));
        assert_eq!(value(&engine, events[0]), works * one(0, 1));
        assert_eq!(value(&engine, events[1]), works * one(1, 1));
        assert_eq!(engine.is_over(events[0]), Ok(false), "the root lives");
    }
}
