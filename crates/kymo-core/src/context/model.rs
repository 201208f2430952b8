//! Events and tasks in the most obvious way: each task has its own, and at every switch all of the
//! one that leaves are stopped and read, and all of the one that comes are started.
//!
//! It is what tracers did before contexts were exchanged, so it is both the oracle of the tests and
//! what the benches race the engine against. One lock, no lists of children: a family's total is
//! looked for in every task there is.
use super::set::EventState;
use super::{Attr, Child, Count, CpuId, Error, EventId, Inherit, Pmu, Switch, TaskId};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The eager scheduler.
#[derive(Debug)]
pub struct Eager<P> {
    pmu: P,
    world: Mutex<World>,
}

/// A task of the eager scheduler. Unlike the engine's it must be ended by hand.
#[derive(Debug)]
pub struct Task<P> {
    id: TaskId,
    pmu: PhantomData<fn() -> P>,
}

impl<P> Task<P> {
    /// Its number.
    pub fn id(&self) -> TaskId {
        self.id
    }
}

/// One event in one task (or on one CPU).
#[derive(Debug)]
struct Object {
    event: EventId,
    attr: Attr,
    /// The one that was opened, not a child of it.
    own: bool,
    state: EventState,
    count: Count,
    since_ns: u64,
    begin: u64,
}

#[derive(Debug)]
struct Group {
    pinned: bool,
    objects: Vec<Object>,
}

impl Group {
    /// Brings the times up to date.
    fn settle(&mut self, now_ns: u64) {
        let leader = self.objects[0].state;
        for object in &mut self.objects {
            let state = if leader <= EventState::Off { leader } else { object.state };
            let delta = now_ns.saturating_sub(object.since_ns);
            object.count.enabled_ns += if state >= EventState::Inactive { delta } else { 0 };
            object.count.running_ns += if state == EventState::Active { delta } else { 0 };
            object.since_ns = now_ns;
        }
    }
}

/// The events of a task, or those of a CPU.
#[derive(Debug, Default)]
struct Home {
    groups: Vec<Group>,
    on: Option<CpuId>,
    must_rotate: bool,
}

#[derive(Debug, Default)]
struct Cpu {
    home: Home,
    task: Option<TaskId>,
}

#[derive(Debug)]
struct Top {
    attr: Attr,
    leader: EventId,
    /// What ended tasks had counted.
    folded: Count,
}

#[derive(Debug)]
struct World {
    /// By number; `None` once ended.
    tasks: Vec<Option<Home>>,
    cpus: Vec<Cpu>,
    tops: BTreeMap<EventId, Top>,
    last_event: u64,
}

/// Each method does what that of [`Engine`](super::Engine) does, and has its errors.
#[allow(missing_docs, reason = "they are described there")]
impl<P: Pmu> Eager<P> {
    pub fn new(pmu: P, cpus: usize) -> Eager<P> {
        let cpus = (0..cpus as u32)
            .map(|cpu| Cpu { home: Home { on: Some(CpuId(cpu)), ..Home::default() }, task: None })
            .collect();
        let world = World { tasks: vec![None], cpus, tops: BTreeMap::new(), last_event: 0 };
        Eager { pmu, world: Mutex::new(world) }
    }

    pub fn pmu(&self) -> &P {
        &self.pmu
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn task(&self) -> Task<P> {
        let mut world = self.world();
        world.tasks.push(Some(Home::default()));
        Task { id: TaskId(world.tasks.len() as u64 - 1), pmu: PhantomData }
    }

    pub fn fork(&self, parent: &mut Task<P>, child: Child) -> Result<Task<P>, Error> {
        let mut world = self.world();
        let mut groups = Vec::new();
        for pinned in [true, false] {
            for group in &world.home(parent.id)?.groups {
                let inherited = match group.objects[0].attr.inherit {
                    Inherit::No => false,
                    Inherit::Threads => child == Child::Thread,
                    Inherit::All => true,
                };
                if group.pinned != pinned || !inherited {
                    continue;
                }
                let objects = group.objects.iter().map(|object| {
                    let state = object.state.clamp(EventState::Off, EventState::Inactive);
                    Object { own: false, state, count: Count::default(), ..*object }
                });
                groups.push(Group { pinned, objects: objects.collect() });
            }
        }
        world.tasks.push(Some(Home { groups, ..Home::default() }));
        Ok(Task { id: TaskId(world.tasks.len() as u64 - 1), pmu: PhantomData })
    }

    pub fn exec(&self, task: &mut Task<P>) -> Result<(), Error> {
        let mut world = self.world();
        let on = world.home(task.id)?.on;
        self.stopped(&mut world, on, |world| {
            let home = world.home(task.id)?;
            for object in home.objects_mut() {
                if std::mem::take(&mut object.attr.enable_on_exec) && object.state < EventState::Inactive {
                    object.state = EventState::Inactive;
                }
            }
            let gone = home.objects().filter(|object| object.attr.remove_on_exec);
            let gone: Vec<EventId> = gone.map(|object| object.event).collect();
            for event in gone {
                let count = world.home(task.id)?.remove(event);
                world.fold(event, count);
            }
            Ok(())
        })
    }

    pub fn exit(&self, task: &mut Task<P>) -> Result<Vec<(EventId, Count)>, Error> {
        let mut world = self.world();
        if let Some(cpu) = world.home(task.id)?.on {
            self.task_out(&mut world, cpu);
        }
        let home = world.tasks[task.id.0 as usize].take().unwrap_or_default();
        let mut counts = Vec::new();
        for object in home.groups.into_iter().flat_map(|group| group.objects) {
            world.fold(object.event, object.count);
            if object.attr.inherit_stat {
                counts.push((object.event, object.count));
            }
        }
        counts.sort_by_key(|&(event, _)| event);
        Ok(counts)
    }

    pub fn enter(&self, cpu: CpuId, task: &mut Task<P>) -> Result<(), Error> {
        let mut world = self.world();
        world.cpu(cpu)?;
        if let Some(on) = world.home(task.id)?.on {
            return Err(Error::AlreadyRunning { task: task.id, on });
        }
        if let Some(task) = world.cpu(cpu)?.task {
            return Err(Error::Busy { cpu, task });
        }
        self.task_in(&mut world, cpu, task.id);
        Ok(())
    }

    pub fn leave(&self, cpu: CpuId, task: &mut Task<P>) -> Result<(), Error> {
        let mut world = self.world();
        world.runs_on(cpu, task.id)?;
        self.task_out(&mut world, cpu);
        Ok(())
    }

    /// Always the long way.
    pub fn switch(&self, cpu: CpuId, from: &mut Task<P>, to: &mut Task<P>) -> Result<Switch, Error> {
        let mut world = self.world();
        world.runs_on(cpu, from.id)?;
        if let Some(on) = world.home(to.id)?.on {
            return Err(Error::AlreadyRunning { task: to.id, on });
        }
        self.task_out(&mut world, cpu);
        self.task_in(&mut world, cpu, to.id);
        Ok(Switch::Rescheduled)
    }

    pub fn open(&self, task: &mut Task<P>, group: &[Attr]) -> Result<Vec<EventId>, Error> {
        let mut world = self.world();
        let on = world.home(task.id)?.on;
        super::check_group(group)?;
        Ok(self.stopped(&mut world, on, |world| {
            let (group, events) = world.new_group(group, on.map_or(0, |cpu| self.pmu.now_ns(cpu)));
            if let Ok(home) = world.home(task.id) {
                home.groups.push(group);
            }
            events
        }))
    }

    pub fn open_cpu(&self, cpu: CpuId, group: &[Attr]) -> Result<Vec<EventId>, Error> {
        let mut world = self.world();
        world.cpu(cpu)?;
        super::check_cpu_group(group)?;
        Ok(self.stopped(&mut world, Some(cpu), |world| {
            let (group, events) = world.new_group(group, self.pmu.now_ns(cpu));
            world.cpus[cpu.0 as usize].home.groups.push(group);
            events
        }))
    }

    pub fn close(&self, event: EventId) -> Result<(), Error> {
        let mut world = self.world();
        world.tops.remove(&event).ok_or(Error::UnknownEvent(event))?;
        self.everywhere(&mut world, |home| {
            home.remove(event);
        });
        // The others of its group have no leader now; each is one by itself.
        for (id, top) in &mut world.tops {
            if top.leader == event {
                top.leader = *id;
            }
        }
        Ok(())
    }

    pub fn enable(&self, event: EventId) -> Result<(), Error> {
        self.set(event, |object| {
            if object.state < EventState::Inactive {
                object.state = EventState::Inactive;
            }
        })
    }

    pub fn disable(&self, event: EventId) -> Result<(), Error> {
        self.set(event, |object| {
            if object.state > EventState::Off {
                object.state = EventState::Off;
            }
        })
    }

    pub fn rotate(&self, cpu: CpuId) -> Result<bool, Error> {
        let mut world = self.world();
        let task = world.cpu(cpu)?.task;
        let active = |group: &Group| group.objects[0].state == EventState::Active;
        let mut front = Vec::new();
        for home in world.homes(cpu, task) {
            let at = home.groups.iter().position(|group| !group.pinned && active(group));
            front.push(at.or_else(|| home.groups.iter().position(|group| !group.pinned)));
        }
        self.stopped(&mut world, Some(cpu), |world| {
            for (home, front) in world.homes(cpu, task).zip(front) {
                if let Some(front) = front.filter(|_| home.must_rotate) {
                    let group = home.groups.remove(front);
                    home.groups.push(group);
                }
            }
        });
        Ok(world.homes(cpu, task).any(|home| home.must_rotate))
    }

    pub fn read(&self, event: EventId) -> Result<Count, Error> {
        let mut world = self.world();
        let mut sum = world.tops.get(&event).ok_or(Error::UnknownEvent(event))?.folded;
        let mut pinned_out = false;
        self.everywhere(&mut world, |home| {
            for object in home.objects().filter(|object| object.event == event) {
                sum = sum.plus(object.count);
                pinned_out |= object.own && object.state == EventState::Error;
            }
        });
        if pinned_out { Err(Error::PinnedOut(event)) } else { Ok(sum) }
    }

    pub fn read_group(&self, leader: EventId) -> Result<Vec<(EventId, Count)>, Error> {
        let world = self.world();
        if world.tops.get(&leader).ok_or(Error::UnknownEvent(leader))?.leader != leader {
            return Err(Error::NotALeader(leader));
        }
        let members: Vec<EventId> =
            world.tops.iter().filter(|(_, top)| top.leader == leader).map(|(&event, _)| event).collect();
        drop(world);
        members.into_iter().map(|event| Ok((event, self.read(event)?))).collect()
    }

    pub fn read_tasks(&self, event: EventId) -> Result<Vec<(TaskId, Count)>, Error> {
        let mut world = self.world();
        if !world.tops.get(&event).ok_or(Error::UnknownEvent(event))?.attr.inherit_stat {
            return Err(Error::NotPerTask(event));
        }
        self.everywhere(&mut world, |_| ());
        let mut counts = Vec::new();
        for (id, home) in world.tasks.iter().enumerate() {
            let own = home.iter().flat_map(Home::objects).filter(|object| object.event == event);
            counts.extend(own.map(|object| (TaskId(id as u64), object.count)));
        }
        Ok(counts)
    }

    pub fn is_over(&self, event: EventId) -> Result<bool, Error> {
        let mut world = self.world();
        if !world.tops.contains_key(&event) {
            return Err(Error::UnknownEvent(event));
        }
        let mut found = false;
        self.everywhere(&mut world, |home| {
            found |= home.objects().any(|object| object.event == event);
        });
        Ok(!found)
    }

    fn set(&self, event: EventId, change: impl Fn(&mut Object)) -> Result<(), Error> {
        let mut world = self.world();
        if !world.tops.contains_key(&event) {
            return Err(Error::UnknownEvent(event));
        }
        self.everywhere(&mut world, |home| {
            home.objects_mut().filter(|object| object.event == event).for_each(&change);
        });
        Ok(())
    }

    /// Stops everything everywhere, does `what` with the events of each task and CPU, and starts
    /// again.
    fn everywhere(&self, world: &mut World, mut what: impl FnMut(&mut Home)) {
        for cpu in 0..world.cpus.len() {
            self.stop(world, CpuId(cpu as u32));
        }
        world.tasks.iter_mut().flatten().for_each(&mut what);
        world.cpus.iter_mut().for_each(|cpu| what(&mut cpu.home));
        for cpu in 0..world.cpus.len() {
            self.start(world, CpuId(cpu as u32));
        }
    }

    /// Does `what` while nothing counts on the CPU.
    fn stopped<R>(&self, world: &mut World, cpu: Option<CpuId>, what: impl FnOnce(&mut World) -> R) -> R {
        cpu.inspect(|&cpu| self.stop(world, cpu));
        let result = what(world);
        cpu.inspect(|&cpu| self.start(world, cpu));
        result
    }

    fn task_out(&self, world: &mut World, cpu: CpuId) {
        self.stop(world, cpu);
        if let Some(task) = world.cpus[cpu.0 as usize].task.take()
            && let Ok(home) = world.home(task)
        {
            home.on = None;
        }
        self.start(world, cpu);
    }

    fn task_in(&self, world: &mut World, cpu: CpuId, task: TaskId) {
        self.stop(world, cpu);
        world.cpus[cpu.0 as usize].task = Some(task);
        if let Ok(home) = world.home(task) {
            home.on = Some(cpu);
            let now_ns = self.pmu.now_ns(cpu);
            home.objects_mut().for_each(|object| object.since_ns = now_ns);
        }
        self.start(world, cpu);
    }

    /// Stops and reads everything on the CPU.
    fn stop(&self, world: &mut World, cpu: CpuId) {
        let now_ns = self.pmu.now_ns(cpu);
        let task = world.cpus[cpu.0 as usize].task;
        for group in world.homes(cpu, task).flat_map(|home| &mut home.groups) {
            group.settle(now_ns);
            for object in group.objects.iter_mut().filter(|object| object.state == EventState::Active) {
                let raw = self.pmu.stop(cpu, object.attr.source);
                object.count.value = object.count.value.wrapping_add(raw.wrapping_sub(object.begin));
                object.state = EventState::Inactive;
            }
        }
    }

    /// Starts what is enabled and fits: pinned before flexible, each the CPU's before the task's.
    fn start(&self, world: &mut World, cpu: CpuId) {
        let now_ns = self.pmu.now_ns(cpu);
        let task = world.cpus[cpu.0 as usize].task;
        let slots = self.pmu.slots(cpu);
        let (mut used, mut exclusive) = (0, false);
        for pinned in [true, false] {
            for home in world.homes(cpu, task) {
                if !pinned {
                    home.must_rotate = false;
                }
                let mut fits = true;
                for group in home.groups.iter_mut().filter(|group| group.pinned == pinned) {
                    group.settle(now_ns);
                    let leader = &group.objects[0];
                    let elsewhere = leader.attr.cpu.is_some_and(|only| only != cpu);
                    if leader.state != EventState::Inactive || elsewhere {
                        continue;
                    }
                    let alone = leader.attr.exclusive;
                    let ready = |object: &&mut Object| object.state == EventState::Inactive;
                    let sources = || group.objects.iter().map(|object| (object.attr.source, object.state));
                    let takes =
                        |&(source, state): &_| state == EventState::Inactive && self.pmu.needs_slot(source);
                    let needs = sources().filter(takes).count();
                    let software = sources().all(|(source, _)| !self.pmu.needs_slot(source));
                    if !software && (exclusive || alone && used > 0 || !fits || used + needs > slots) {
                        if pinned {
                            group.objects[0].state = EventState::Error;
                        } else {
                            home.must_rotate = true;
                            fits = false;
                        }
                        continue;
                    }
                    used += needs;
                    exclusive |= alone && !software;
                    for object in group.objects.iter_mut().filter(ready) {
                        object.begin = self.pmu.start(cpu, object.attr.source);
                        object.state = EventState::Active;
                    }
                }
            }
        }
    }
}

impl Home {
    fn objects(&self) -> impl Iterator<Item = &Object> {
        self.groups.iter().flat_map(|group| &group.objects)
    }

    fn objects_mut(&mut self) -> impl Iterator<Item = &mut Object> {
        self.groups.iter_mut().flat_map(|group| &mut group.objects)
    }

    /// Takes the event out. If it led a group, each of the others is a group of its own from now
    /// on.
    fn remove(&mut self, event: EventId) -> Count {
        let holds = |group: &Group| group.objects.iter().position(|object| object.event == event);
        let found = self.groups.iter().enumerate().find_map(|(at, group)| Some((at, holds(group)?)));
        let Some((at, member)) = found else { return Count::default() };
        let object = self.groups[at].objects.remove(member);
        if member == 0 {
            let orphans = self.groups.remove(at).objects.into_iter();
            self.groups.extend(orphans.map(|object| Group { pinned: false, objects: vec![object] }));
        }
        object.count
    }
}

impl World {
    fn home(&mut self, task: TaskId) -> Result<&mut Home, Error> {
        self.tasks.get_mut(task.0 as usize).and_then(Option::as_mut).ok_or(Error::Ended(task))
    }

    fn cpu(&self, cpu: CpuId) -> Result<&Cpu, Error> {
        self.cpus.get(cpu.0 as usize).ok_or(Error::UnknownCpu { cpu, cpus: self.cpus.len() })
    }

    fn runs_on(&mut self, cpu: CpuId, task: TaskId) -> Result<(), Error> {
        self.cpu(cpu)?;
        let on = self.home(task)?.on;
        if on == Some(cpu) { Ok(()) } else { Err(Error::NotRunningHere { task, here: cpu, on }) }
    }

    /// The events of the CPU and those of the task on it.
    fn homes(&mut self, cpu: CpuId, task: Option<TaskId>) -> impl Iterator<Item = &mut Home> {
        let task = task.and_then(|task| self.tasks.get_mut(task.0 as usize)).and_then(Option::as_mut);
        std::iter::once(&mut self.cpus[cpu.0 as usize].home).chain(task)
    }

    fn fold(&mut self, event: EventId, count: Count) {
        if let Some(top) = self.tops.get_mut(&event) {
            top.folded = top.folded.plus(count);
        }
    }

    fn new_group(&mut self, attrs: &[Attr], since_ns: u64) -> (Group, Vec<EventId>) {
        let leader = EventId(self.last_event + 1);
        let mut objects = Vec::new();
        for &attr in attrs {
            self.last_event += 1;
            let event = EventId(self.last_event);
            self.tops.insert(event, Top { attr, leader, folded: Count::default() });
            let state = if attr.disabled { EventState::Off } else { EventState::Inactive };
            let count = Count::default();
            objects.push(Object { event, attr, own: true, state, count, since_ns, begin: 0 });
        }
        let events = objects.iter().map(|object| object.event).collect();
        (Group { pinned: attrs[0].pinned, objects }, events)
    }
}
