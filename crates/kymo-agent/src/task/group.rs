//! Groups of tasks.
pub(super) mod body;

use super::counter::Counter;
use super::counters::{Counters, engine};
use super::reading::{Reading, TaskReading};
use super::{Error, Task};
use crate::sys::fork;
use crate::sys::lock;
use body::{Body, Stats, shown};
use kymo_core::context::{self, Attr, Child, Count, EventId};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

static GROUPS: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// The sums of groups that are gone, by name.
static GONE: Mutex<BTreeMap<Cow<'static, str>, EndedGroup>> = Mutex::new(BTreeMap::new());
/// How many names are kept apart; what is gone besides is under one.
const GONE_NAMES: usize = 256;
const OTHERS: &str = "(other groups that ended)";

/// What groups of one name had counted when they were gone.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedGroup {
    pub(super) spawned: u64,
    pub(super) reading: Reading,
}

/// The groups that are gone, by name: with them the sum of all is the threads' CPU time.
pub(super) fn gone() -> Vec<(Cow<'static, str>, EndedGroup)> {
    lock(&GONE).iter().map(|(name, gone)| (name.clone(), gone.clone())).collect()
}

/// A handle of tasks that are counted together: the tasks of a request, of a tenant, of a part of
/// the program. Clones are the same group. It lives as long as a handle or a task of it.
#[derive(Clone)]
pub struct Group {
    pub(super) inner: Arc<Inner>,
}

/// What to count for a group, and how.
#[derive(Clone, Debug)]
pub struct GroupBuilder {
    name: Cow<'static, str>,
    counters: Vec<Counter>,
    per_task: bool,
    whole_threads: bool,
}

pub(super) struct Inner {
    number: u64,
    name: Cow<'static, str>,
    per_task: bool,
    whole_threads: bool,
    events: Vec<(Counter, EventId)>,
    /// Never runs: what tasks are forked from.
    root: Mutex<ManuallyDrop<context::Task<Counters>>>,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    living: HashMap<u64, Arc<Stats>>,
    ended: Reading,
    spawned: u64,
}

impl GroupBuilder {
    /// Counts this, too.
    #[must_use]
    pub fn count(mut self, counter: Counter) -> GroupBuilder {
        if !self.counters.contains(&counter) {
            self.counters.push(counter);
        }
        self
    }

    /// Keeps the numbers of each task, not only the group's sums: then a switch looks at each
    /// counter.
    #[must_use]
    pub fn per_task(mut self) -> GroupBuilder {
        self.per_task = true;
        self
    }

    /// What the threads do between the tasks of this group (the executor's own work) counts for the
    /// group as well. Then a switch between the executor and a task looks at no counter at all
    /// (with [`per_task`](GroupBuilder::per_task) it does), because both count into the same sums.
    /// For programs with one group: a thread belongs to the first such group that it runs.
    #[must_use]
    pub fn whole_threads(mut self) -> GroupBuilder {
        self.whole_threads = true;
        self
    }

    /// Makes the group.
    ///
    /// # Errors
    /// If something cannot be counted on this machine, or the process was forked from one that
    /// counts.
    pub fn build(self) -> Result<Group, Error> {
        let GroupBuilder { name, counters, per_task, whole_threads } = self;
        Error::if_forked()?;
        let mut attrs = Vec::new();
        for &counter in &counters {
            attrs.push(Attr { inherit_stat: per_task, ..Attr::family(counter.source()?) });
        }
        let mut root = engine().task();
        let events = engine().open(&mut root, &attrs)?;
        // Relaxed: a number, it publishes nothing.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let inner = Arc::new(Inner {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            name,
            per_task,
            whole_threads,
            events: counters.into_iter().zip(events).collect(),
            root: Mutex::new(ManuallyDrop::new(root)),
            members: Mutex::default(),
        });
        let mut groups = lock(&GROUPS);
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(&inner));
        Ok(Group { inner })
    }
}

impl Group {
    /// A group that counts the CPU time of all its tasks together.
    ///
    /// # Errors
    /// If the process was forked from one that counts.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Result<Group, Error> {
        Group::builder(name).build()
    }

    /// A group that counts CPU time and whatever else is asked for.
    pub fn builder(name: impl Into<Cow<'static, str>>) -> GroupBuilder {
        let counters = vec![Counter::CpuTime];
        GroupBuilder { name: name.into(), counters, per_task: false, whole_threads: false }
    }

    /// All groups that live, the one of executors ("(threads)") among them.
    pub fn all() -> Vec<Group> {
        lock(&GROUPS).iter().filter_map(Weak::upgrade).map(|inner| Group { inner }).collect()
    }

    /// A new task of this group, which rests. It ends when it is dropped.
    ///
    /// # Errors
    /// If the process was forked from one that counts.
    pub fn task(&self, name: impl Into<Cow<'static, str>>) -> Result<Task, Error> {
        Ok(Task::new(self.inner.body(name.into(), false)?))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its number, unique in this process.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// How many tasks it ever had, and how many of them live.
    pub fn population(&self) -> (u64, usize) {
        let members = lock(&self.inner.members);
        (members.spawned, members.living.len())
    }

    /// Whether it keeps the numbers of single tasks.
    pub fn is_per_task(&self) -> bool {
        self.inner.per_task
    }

    /// The sums over all its tasks, living and ended, exact at this moment. Any thread may ask.
    ///
    /// # Errors
    /// If the process was forked from one that counts.
    pub fn read(&self) -> Result<Reading, Error> {
        Error::if_forked()?;
        self.inner.sums()
    }

    /// The tasks that live, by number, each with its numbers: all of them if the group is
    /// [`per_task`](GroupBuilder::per_task), else what every task has (polls, switches).
    ///
    /// # Errors
    /// If the process was forked from one that counts.
    pub fn tasks(&self) -> Result<Vec<TaskReading>, Error> {
        Error::if_forked()?;
        let mut living: Vec<Arc<Stats>> = lock(&self.inner.members).living.values().map(Arc::clone).collect();
        living.sort_unstable_by_key(|stats| stats.number);
        let columns = self.inner.columns()?;
        let reading = |stats: &Arc<Stats>| TaskReading {
            number: stats.number,
            name: stats.name.clone().into_owned(),
            running: stats.is_running(),
            reading: self.inner.reading(stats, &columns),
        };
        Ok(living.iter().map(reading).collect())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("number", &self.number())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// The counts of single tasks, event by event.
type Columns = Vec<HashMap<u64, Count>>;

impl Inner {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_per_task(&self) -> bool {
        self.per_task
    }

    fn sums(&self) -> Result<Reading, Error> {
        let members = lock(&self.members);
        let sum =
            members.living.values().fold(members.ended.clone(), |sum, stats| sum.with(&stats.reading()));
        drop(members);
        let mut counts = Vec::new();
        for &(counter, event) in &self.events {
            let value = engine().read(event)?.value;
            counts.push((counter, counter.is_whole().then_some(value)));
        }
        Ok(Reading { counts, ..sum })
    }

    /// Its sums outlive it.
    fn leave_sums(&mut self) {
        let Ok(reading) = self.sums() else { return };
        let spawned = lock(&self.members).spawned;
        let mut all = lock(&GONE);
        let known = all.contains_key(&self.name) || all.len() < GONE_NAMES;
        let gone = all.entry(if known { self.name.clone() } else { OTHERS.into() }).or_default();
        gone.spawned += spawned;
        gone.reading = std::mem::take(&mut gone.reading).with(&reading);
    }

    pub(super) fn takes_threads(&self) -> bool {
        self.whole_threads
    }

    pub(super) fn body(self: &Arc<Inner>, name: Cow<'static, str>, is_thread: bool) -> Result<Body, Error> {
        Error::if_forked()?;
        let run = engine().fork(&mut lock(&self.root), Child::Thread)?;
        let stats = Arc::new(Stats::new(run.id().number(), name, Arc::clone(self), is_thread));
        let mut members = lock(&self.members);
        members.spawned += 1;
        members.living.insert(stats.number, Arc::clone(&stats));
        Ok(Body { run: ManuallyDrop::new(run), stats })
    }

    /// A task has ended.
    pub(super) fn forget(&self, stats: &Stats) {
        let mut members = lock(&self.members);
        if members.living.remove(&stats.number).is_some() {
            members.ended = std::mem::take(&mut members.ended).with(&stats.reading());
        }
    }

    /// The numbers of all living tasks; empty if only sums are kept.
    pub(super) fn columns(&self) -> Result<Columns, Error> {
        if !self.per_task {
            return Ok(Vec::new());
        }
        let column = |&(_, event): &(Counter, EventId)| {
            let tasks = engine().read_tasks(event)?;
            Ok(tasks.into_iter().map(|(task, count)| (task.number(), count)).collect())
        };
        self.events.iter().map(column).collect()
    }

    /// The numbers of one task.
    pub(super) fn reading(&self, stats: &Stats, columns: &Columns) -> Reading {
        let counts = self.events.iter().enumerate().map(|(at, &(counter, event))| {
            let living = || {
                let count = columns.get(at)?.get(&stats.number)?.value;
                counter.is_whole().then_some(count)
            };
            let ended = || shown(stats.finals()?, event, counter);
            (counter, living().or_else(ended))
        });
        Reading { counts: counts.collect(), ..stats.reading() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.leave_sums();
        for &(_, event) in &self.events {
            // Open since build(), and closed nowhere else.
            let _ = engine().close(event);
        }
        let root = self.root.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = engine().exit(root);
    }
}
