//! Random lives of tasks and events: engine, model and truth must say the same at every step.
use super::truth::Truth;
use super::{SOURCES, Script};
use crate::context::model::Eager;
use crate::context::set::family::EventHome;
use crate::context::set::task_context::TaskContext;
use crate::context::set::{ContextEvent, EventState, Group};
use crate::context::{Attr, Child, Count, CpuId, Engine, Error, EventId, Inherit, Source, Task, model};
use crate::sync::{Ordering, lock};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CPUS: usize = 3;

/// Numbers choose among what there is at that time.
#[derive(Clone, Debug)]
enum Op {
    Task,
    Fork { parent: usize, child: Child },
    Exec { task: usize },
    Exit { task: usize },
    Drop { task: usize },
    Enter { cpu: u32, task: usize },
    Leave { cpu: u32 },
    Switch { cpu: u32, to: usize, alike: bool },
    SwitchWrong { cpu: u32, from: usize, to: usize },
    Open { task: usize, group: Vec<Attr> },
    OpenCpu { cpu: u32, group: Vec<Attr> },
    Close { event: usize },
    Enable { event: usize },
    Disable { event: usize },
    Rotate { cpu: u32 },
}

fn attrs(crowded: bool) -> impl Strategy<Value = Vec<Attr>> {
    let inherit = prop_oneof![1 => Just(Inherit::No), 1 => Just(Inherit::Threads), 6 => Just(Inherit::All)];
    let cpu = prop_oneof![6 => Just(None), 1 => (0..CPUS as u32).prop_map(|cpu| Some(CpuId(cpu)))];
    let one = (
        0..SOURCES as u32,
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.05),
    );
    let exclusive = prop::bool::weighted(if crowded { 0.1 } else { 0.0 });
    (inherit, cpu, any::<bool>(), exclusive, prop::collection::vec(one, 1..4)).prop_map(
        |(inherit, cpu, pinned, exclusive, group)| {
            let member =
                |(at, (source, inherit_stat, disabled, enable_on_exec, remove_on_exec, bound))| Attr {
                    source: Source(source),
                    pinned: pinned && at == 0,
                    exclusive: exclusive && at == 0,
                    inherit,
                    inherit_stat,
                    disabled,
                    enable_on_exec,
                    remove_on_exec,
                    cpu,
                    bound,
                };
            group.into_iter().enumerate().map(member).collect()
        },
    )
}

fn ops(crowded: bool) -> impl Strategy<Value = Vec<Op>> {
    let (n, cpu) = (0..1000usize, 0..CPUS as u32);
    let child = prop_oneof![3 => Just(Child::Thread), 1 => Just(Child::Process)];
    let op = prop_oneof![
        1 => Just(Op::Task),
        5 => (n.clone(), child).prop_map(|(parent, child)| Op::Fork { parent, child }),
        1 => n.clone().prop_map(|task| Op::Exec { task }),
        1 => n.clone().prop_map(|task| Op::Exit { task }),
        1 => n.clone().prop_map(|task| Op::Drop { task }),
        4 => (cpu.clone(), n.clone()).prop_map(|(cpu, task)| Op::Enter { cpu, task }),
        1 => cpu.clone().prop_map(|cpu| Op::Leave { cpu }),
        20 => (cpu.clone(), n.clone(), any::<bool>()).prop_map(|(cpu, to, alike)| Op::Switch { cpu, to, alike }),
        1 => (0..CPUS as u32 + 1, n.clone(), n.clone()).prop_map(|(cpu, from, to)| Op::SwitchWrong { cpu, from, to }),
        2 => (n.clone(), attrs(crowded)).prop_map(|(task, group)| Op::Open { task, group }),
        1 => (cpu.clone(), attrs(crowded)).prop_map(|(cpu, group)| Op::OpenCpu { cpu, group }),
        1 => n.clone().prop_map(|event| Op::Close { event }),
        2 => n.clone().prop_map(|event| Op::Enable { event }),
        2 => n.prop_map(|event| Op::Disable { event }),
        2 => cpu.prop_map(|cpu| Op::Rotate { cpu }),
    ];
    // Every life begins with a counted task that runs and has two children.
    let begin = attrs(crowded).prop_map(|group| {
        let group =
            group.into_iter().map(|attr| Attr { inherit: Inherit::All, bound: false, ..attr }).collect();
        let fork = |parent| Op::Fork { parent, child: Child::Thread };
        vec![Op::Task, Op::Open { task: 0, group }, Op::Enter { cpu: 0, task: 0 }, fork(0), fork(0)]
    });
    (begin, prop::collection::vec(op, 1..120)).prop_map(|(begin, life)| [begin, life].concat())
}

/// The three of them, and who is where.
struct World {
    engine: Engine<Script>,
    model: Eager<Script>,
    truth: Truth,
    tasks: Vec<(Task<Script>, model::Task<Script>)>,
    events: Vec<(EventId, Source)>,
    crowded: bool,
    /// What was closed had counted so much, by source.
    closed: [Count; SOURCES],
    seen: BTreeMap<EventId, Count>,
    exchanged: usize,
}

impl World {
    fn new(slots: usize) -> World {
        World {
            crowded: slots < 100,
            engine: Engine::new(Script::new(CPUS, slots), CPUS),
            model: Eager::new(Script::new(CPUS, slots), CPUS),
            truth: Truth::default(),
            tasks: Vec::new(),
            events: Vec::new(),
            closed: Default::default(),
            seen: BTreeMap::new(),
            exchanged: 0,
        }
    }

    fn on(&self, cpu: CpuId) -> Option<usize> {
        self.tasks.iter().position(|(task, _)| task.cpu() == Some(cpu))
    }

    fn work(&mut self, step: usize) {
        for cpu in 0..CPUS as u32 {
            let (cpu, ns) = (CpuId(cpu), ((step as u64 * 7 + u64::from(cpu) * 3) % 13) + 1);
            let task = self.on(cpu).map(|at| self.tasks[at].0.id().number());
            self.truth.work(cpu, task, ns);
            self.engine.pmu().work(cpu, ns);
            self.model.pmu().work(cpu, ns);
        }
    }

    fn event(&self, at: usize) -> EventId {
        match self.events.len() {
            0 => EventId::from_number(77),
            len => self.events[at % len].0,
        }
    }

    fn exit(&mut self, at: usize) -> Result<(), TestCaseError> {
        let (mut task, mut other) = self.tasks.swap_remove(at);
        let counts = self.engine.exit(&mut task).unwrap();
        let expected = self.truth.exit(task.id().number());
        let modelled = self.model.exit(&mut other).unwrap();
        if !self.crowded {
            prop_assert_eq!(modelled, expected.clone());
            prop_assert_eq!(counts, expected);
        }
        prop_assert_eq!(self.engine.exit(&mut task), Err(Error::Ended(task.id())));
        prop_assert_eq!(self.model.exit(&mut other), Err(Error::Ended(task.id())));
        Ok(())
    }

    fn open_cpu(&mut self, cpu: CpuId, group: &[Attr]) -> Result<(), TestCaseError> {
        let group: Vec<Attr> = group
            .iter()
            .map(|attr| Attr {
                pinned: attr.pinned,
                exclusive: attr.exclusive,
                disabled: attr.disabled,
                ..Attr::new(attr.source)
            })
            .collect();
        let events = self.engine.open_cpu(cpu, &group).unwrap();
        prop_assert_eq!(&events, &self.model.open_cpu(cpu, &group).unwrap());
        self.truth.open(0, Some(cpu), &group, &events);
        self.events.extend(events.into_iter().zip(group.iter().map(|attr| attr.source)));
        Ok(())
    }

    fn close(&mut self, event: EventId) -> Result<(), TestCaseError> {
        if let Some(at) = self.events.iter().position(|&(other, _)| other == event) {
            let source = self.events[at].1;
            let total = &mut self.closed[source.0 as usize];
            *total = total.plus(read_anyhow(&self.engine, event));
            self.events.remove(at);
            self.truth.close(event);
        }
        prop_assert_eq!(self.engine.close(event), self.model.close(event));
        prop_assert_eq!(self.engine.close(event), Err(Error::UnknownEvent(event)));
        Ok(())
    }

    /// Does one thing on all three, and compares what they answer.
    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let pick = |at: usize| if self.tasks.is_empty() { None } else { Some(at % self.tasks.len()) };
        match *op {
            Op::Task => {
                let (task, other) = (self.engine.task(), self.model.task());
                prop_assert_eq!(task.id(), other.id());
                self.tasks.push((task, other));
            }
            Op::Fork { parent, child } => {
                let Some(parent) = pick(parent) else { return Ok(()) };
                let (task, other) = &mut self.tasks[parent];
                let parent = task.id().number();
                let (task, other) =
                    (self.engine.fork(task, child).unwrap(), self.model.fork(other, child).unwrap());
                prop_assert_eq!(task.id(), other.id());
                self.truth.fork(parent, task.id().number(), child);
                self.tasks.push((task, other));
            }
            Op::Exec { task } => {
                let Some(at) = pick(task) else { return Ok(()) };
                let (task, other) = &mut self.tasks[at];
                prop_assert_eq!(self.engine.exec(task), self.model.exec(other));
                self.truth.exec(task.id().number());
            }
            Op::Exit { task } => {
                if let Some(at) = pick(task) {
                    self.exit(at)?;
                }
            }
            Op::Drop { task } => {
                let Some(at) = pick(task).filter(|&at| self.tasks[at].0.cpu().is_none()) else {
                    return Ok(());
                };
                let (task, mut other) = self.tasks.swap_remove(at);
                self.truth.exit(task.id().number());
                drop(task);
                self.model.exit(&mut other).unwrap();
            }
            Op::Enter { cpu, task } => {
                let Some(at) = pick(task) else { return Ok(()) };
                let (task, other) = &mut self.tasks[at];
                prop_assert_eq!(self.engine.enter(CpuId(cpu), task), self.model.enter(CpuId(cpu), other));
            }
            Op::Leave { cpu } => {
                let Some(at) = self.on(CpuId(cpu)) else { return Ok(()) };
                let (task, other) = &mut self.tasks[at];
                prop_assert_eq!(self.engine.leave(CpuId(cpu), task), self.model.leave(CpuId(cpu), other));
            }
            Op::Switch { cpu, to, alike } => {
                let Some(from) = self.on(CpuId(cpu)) else { return Ok(()) };
                let class = |at: usize| self.tasks[at].0.context.class.load(Ordering::Relaxed);
                let rests = |at: &usize| self.tasks[*at].0.cpu().is_none();
                let mut others: Vec<usize> = (0..self.tasks.len()).filter(rests).collect();
                if alike && others.iter().any(|&at| class(at) == class(from)) {
                    others.retain(|&at| class(at) == class(from));
                }
                if !others.is_empty() {
                    self.switch(cpu, from, others[to % others.len()])?;
                }
            }
            Op::SwitchWrong { cpu, from, to } => {
                let (Some(from), Some(to)) = (pick(from), pick(to)) else { return Ok(()) };
                self.switch(cpu, from, to)?;
            }
            Op::Open { task, ref group } => {
                let Some(at) = pick(task) else { return Ok(()) };
                let (task, other) = &mut self.tasks[at];
                let events = self.engine.open(task, group);
                prop_assert_eq!(&events, &self.model.open(other, group));
                if let Ok(events) = events {
                    self.truth.open(task.id().number(), None, group, &events);
                    self.events.extend(events.into_iter().zip(group.iter().map(|attr| attr.source)));
                }
            }
            Op::OpenCpu { cpu, ref group } => self.open_cpu(CpuId(cpu), group)?,
            Op::Close { event } => self.close(self.event(event))?,
            Op::Enable { event } | Op::Disable { event } => {
                let (event, enabled) = (self.event(event), matches!(op, Op::Enable { .. }));
                if enabled {
                    prop_assert_eq!(self.engine.enable(event), self.model.enable(event));
                } else {
                    prop_assert_eq!(self.engine.disable(event), self.model.disable(event));
                }
                self.truth.enable(event, enabled);
            }
            // Whether somebody waits may differ: contexts that were exchanged are in another order.
            Op::Rotate { cpu } => {
                self.engine.rotate(CpuId(cpu)).unwrap();
                self.model.rotate(CpuId(cpu)).unwrap();
            }
        }
        Ok(())
    }

    fn switch(&mut self, cpu: u32, from: usize, to: usize) -> Result<(), TestCaseError> {
        let Ok([from, to]) = self.tasks.get_disjoint_mut([from, to]) else { return Ok(()) };
        let lazy = self.engine.switch(CpuId(cpu), &mut from.0, &mut to.0);
        let eager = self.model.switch(CpuId(cpu), &mut from.1, &mut to.1);
        prop_assert_eq!(lazy.map(|_| ()), eager.map(|_| ()));
        self.exchanged += usize::from(lazy == Ok(crate::context::Switch::Exchanged));
        Ok(())
    }

    /// Every count, of engine, model and truth.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        for &(event, _) in &self.events {
            let total = self.truth.total(event);
            prop_assert_eq!(self.engine.read(event), Ok(total), "{}", event);
            prop_assert_eq!(self.model.read(event), Ok(total), "{}, the model", event);
            prop_assert_eq!(self.engine.is_over(event), self.model.is_over(event));
            let group = self.engine.read_group(event);
            prop_assert_eq!(&group, &self.model.read_group(event));
            for (member, count) in group.into_iter().flatten() {
                prop_assert_eq!(count, self.truth.total(member));
            }
            let tasks = self.engine.read_tasks(event);
            prop_assert_eq!(&tasks, &self.model.read_tasks(event));
            if let Ok(tasks) = tasks {
                let tasks: Vec<(u64, Count)> =
                    tasks.into_iter().map(|(task, count)| (task.number(), count)).collect();
                prop_assert_eq!(tasks, self.truth.per_task(event));
            }
        }
        Ok(())
    }

    /// Where counters are few, engine and model may choose differently who gets them. Times enabled
    /// are the same, no count is more than could be counted, and all together are what the counters
    /// gave.
    fn compare_crowded(&mut self) -> Result<(), TestCaseError> {
        let mut sums = self.closed;
        for &(event, _) in &self.events {
            let Ok(count) = self.engine.read(event) else { continue };
            let total = self.truth.total(event);
            prop_assert!(count.running_ns <= count.enabled_ns && count.enabled_ns <= total.enabled_ns);
            prop_assert!(count.value <= total.value && count.running_ns <= total.running_ns);
            let before = self.seen.insert(event, count).unwrap_or_default();
            prop_assert!(before.value <= count.value && before.running_ns <= count.running_ns, "I8");
        }
        for &(event, source) in &self.events {
            let sum = &mut sums[source.0 as usize];
            *sum = sum.plus(peek_all(&self.engine, event));
        }
        for source in 0..SOURCES as u32 {
            let sum = sums[source as usize];
            let (value, running_ns) = self.engine.pmu().delivered(Source(source));
            prop_assert_eq!((sum.value, sum.running_ns), (value, running_ns), "source {}", source);
        }
        Ok(())
    }

    /// I1, I2, I3, I4: who has which context, and which contexts are alike.
    fn invariants(&self) -> Result<(), TestCaseError> {
        let mut contexts: BTreeMap<*const TaskContext, &TaskContext> = BTreeMap::new();
        let mut alike: BTreeMap<u64, Vec<&TaskContext>> = BTreeMap::new();
        for (task, _) in &self.tasks {
            let context = &*task.context;
            prop_assert!(
                contexts.insert(&raw const *context, context).is_none(),
                "two tasks with one context"
            );
            prop_assert_eq!(context.holder.load(Ordering::Relaxed), task.id().number());
            alike.entry(context.class.load(Ordering::Relaxed)).or_default().push(context);
            let inner = context.lock();
            prop_assert!(!inner.over && inner.pins == 0);
            prop_assert_eq!(inner.set.on, task.cpu());
            let mut ids = BTreeSet::new();
            for event in inner.set.groups().flat_map(|group| &group.events) {
                prop_assert!(ids.insert(event.id), "an event twice in one context");
                prop_assert!(!(event.own && inner.cloned), "an opened event in a clone");
                prop_assert!(event.state != EventState::Active || inner.set.on.is_some(), "counts at rest");
                prop_assert!(event.count.running_ns <= event.count.enabled_ns);
            }
            for group in inner.set.groups() {
                let kin = lock(&group.family.kin);
                let known = kin.contexts().any(|(child_index, other)| {
                    child_index == group.child_index && std::ptr::eq(&**other, context)
                });
                prop_assert!(known, "a family that does not know its child");
                prop_assert!(!group.events.is_empty());
            }
        }
        for cpu in 0..CPUS as u32 {
            let state = self.engine.shared.cpu(CpuId(cpu)).unwrap();
            let task = self.on(CpuId(cpu)).map(|at| Arc::as_ptr(&self.tasks[at].0.context));
            prop_assert_eq!(state.active.as_ref().map(Arc::as_ptr), task);
        }
        for contexts in alike.values().filter(|contexts| contexts.len() > 1) {
            let events: Vec<BTreeMap<EventId, (bool, bool)>> =
                contexts.iter().map(|context| content(context)).collect();
            prop_assert!(
                events.windows(2).all(|pair| pair[0] == pair[1]),
                "alike and different: {:?}",
                events
            );
        }
        for &(event, _) in &self.events {
            let family = Arc::clone(&lock(&self.engine.shared.events)[&event]);
            let kin = lock(&family.kin);
            for (_, context) in kin.contexts() {
                prop_assert!(
                    contexts.contains_key(&Arc::as_ptr(context)),
                    "a context that outlived its task"
                );
            }
            let gone = matches!(kin.own, EventHome::Gone);
            prop_assert!(!(gone && kin.contexts().any(|(child_index, _)| child_index.is_none())));
        }
        Ok(())
    }
}

/// What must be equal in contexts that are alike: the events, whether each is enabled (a pinned one
/// that lost its counter is), and whether an exec would enable it.
fn content(context: &TaskContext) -> BTreeMap<EventId, (bool, bool)> {
    let inner = context.lock();
    let of = |event: &ContextEvent| (event.id, (event.state != EventState::Off, event.attr.enable_on_exec));
    let of_group = |group: &Group| group.events.iter().map(of).collect::<Vec<_>>();
    inner.set.groups().flat_map(of_group).collect()
}

/// The total without the refusal for what lost its counter.
fn peek_all(engine: &Engine<Script>, event: EventId) -> Count {
    let family = Arc::clone(&lock(&engine.shared.events)[&event]);
    let kin = lock(&family.kin);
    let mut sum = kin.member(event).expect("it is open").folded;
    let mut add = |found: Option<(ContextEvent, EventState)>| {
        sum = sum.plus(found.map_or(Count::default(), |(event, _)| event.count))
    };
    if let EventHome::Cpu(cpu) = kin.own {
        let state = engine.shared.cpu(cpu).expect("it exists");
        add(state.set.peek(engine.pmu(), event, state.set.now_ns(engine.pmu())));
    }
    for (_, context) in kin.contexts() {
        let inner = context.lock();
        add(inner.set.peek(engine.pmu(), event, inner.set.now_ns(engine.pmu())));
    }
    sum
}

fn read_anyhow(engine: &Engine<Script>, event: EventId) -> Count {
    engine.read(event).unwrap_or_else(|_| peek_all(engine, event))
}

proptest! {
    /// Checks that totals of families, times enabled and running, and numbers of single tasks are
    /// exactly those of the model and of the truth, at any step of any life (I4, I5, I6, I7, I8),
    /// and that contexts and tasks fit together (I1, I2, I3).
    #[test]
    fn equals_model_and_truth(ops in ops(false)) {
        let mut world = World::new(1000);
        for (step, op) in ops.iter().enumerate() {
            world.step(op)?;
            world.work(step);
            world.invariants()?;
            if step % 4 == 0 {
                world.compare()?;
            }
        }
    }

    /// Checks the same with reads only at the end: a read brings times up to date, which must not
    /// matter.
    #[test]
    fn equals_model_and_truth_unread(ops in ops(false)) {
        let mut world = World::new(1000);
        for (step, op) in ops.iter().enumerate() {
            world.step(op)?;
            world.work(step);
        }
        world.invariants()?;
        world.compare()?;
    }

    /// Checks that with few counters nothing is lost or counted twice, whoever gets them (I8, I9).
    #[test]
    fn few_counters(ops in ops(true), slots in 0usize..4) {
        let mut world = World::new(slots);
        for (step, op) in ops.iter().enumerate() {
            world.step(op)?;
            world.work(step);
            world.compare_crowded()?;
            for cpu in 0..CPUS as u32 {
                prop_assert!(world.engine.pmu().slots_used(CpuId(cpu)) <= slots, "I9");
            }
        }
    }
}

/// Checks that the property tests do what they are for: contexts are exchanged in them, often.
#[test]
fn lives_exchange_contexts() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut exchanged = 0;
    for _ in 0..50 {
        let ops = ops(false).new_tree(&mut runner).expect("no filter").current();
        let mut world = World::new(1000);
        ops.iter().for_each(|op| world.step(op).expect("a sound life"));
        exchanged += world.exchanged;
    }
    assert!(exchanged > 300, "{exchanged} exchanges in 50 lives");
}
