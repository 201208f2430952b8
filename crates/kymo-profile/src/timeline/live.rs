//! Address spaces while a recording runs: the side-band so far, asked about moments that are not over yet.
//!
//! A [`Timeline`](super::Timeline) is built once, from all side-band records, and keeps everything. A recorder that unwinds stacks
//! gets its records bit by bit, needs mappings only, and must not grow with the length of the recording. [`LiveSpaces`] follows the
//! same rules (its tests hold it against the timeline) and forgets what nobody can ask about any more.
//!
//! ```text
//!  apply(moment, event)  in order of moments      prune(floor)
//!        |                                          | drops versions, epochs, births, tasks
//!        v                                          v that ended before `floor`
//!  tasks: tid -> epochs -> space -> versions [10.. 12.. now] <- pending changes
//!                            ^--- space(pid, tid, moment), moment >= floor
//! ```
//! Most processes of a machine are never asked about: what they map waits in a list, and becomes
//! versions at a question or a fork.
use super::{ModuleKind, Moment, SideEvent, modules::user_kind};
use kymo_symbols::unwind::{AddressSpace, MappedFile, Module, Seen, UnwindModules};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A task is remembered so long after its end, in ns: the kernel takes samples of tasks that are on their way out.
const AFTERLIFE_NS: u64 = 1_000_000_000;

/// So many events are applied at least between two looks for what can be forgotten.
const PRUNE_EVERY: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Epoch {
    from: Moment,
    space: u32,
}

#[derive(Debug, Default)]
struct Task {
    epochs: Vec<Epoch>,
    ended: Option<u64>,
}

/// The births of a process id: how many were forgotten, and the later ones.
#[derive(Debug, Default)]
struct Births {
    forgotten: u32,
    known: Vec<Moment>,
}

/// Changes of a space that wait, at most.
const MOST_PENDING: usize = 64;

/// What happens to a space.
#[derive(Debug)]
enum Change {
    /// A piece of a file, or of memory, is mapped as code.
    Map { start: u64, end: u64, pgoff: u64, module: Option<Arc<Module>> },
    /// Data is mapped.
    Unmap { start: u64, end: u64 },
    /// It begins as a copy of the parent's.
    Inherit(AddressSpace),
}

#[derive(Debug, Default)]
struct Space {
    /// What comes after `now`, in the order in which it was told.
    pending: Vec<(Moment, Change)>,
    now: AddressSpace,
    /// Since when `now` is as it is; `None`: nothing was ever mapped.
    since: Option<Moment>,
    /// What was before, each with the moment from which it held.
    before: Vec<(Moment, AddressSpace)>,
}

/// The executable mappings of all processes, as a function of time, from the side-band so far.
#[derive(Debug, Default)]
pub struct LiveSpaces {
    tasks: FxHashMap<i32, Task>,
    /// The process that each task belongs to, and which life of that process id.
    process_of: FxHashMap<i32, (i32, u32)>,
    births: FxHashMap<i32, Births>,
    spaces: FxHashMap<u32, Space>,
    next_space: u32,
    empty: AddressSpace,
    applied: usize,
    prune_at: usize,
    /// Nobody asks about earlier times (ns).
    floor_ns: u64,
}

impl LiveSpaces {
    /// No tasks yet.
    pub fn new() -> LiveSpaces {
        LiveSpaces::default()
    }

    /// Takes in an event. Events come in order of their moments; one that comes late still counts, from its own moment on
    /// as far as later changes left room. Modules are looked up in `modules`, which reads no file yet.
    pub fn apply(&mut self, moment: Moment, event: &SideEvent, modules: &UnwindModules) {
        self.applied += 1;
        match event {
            SideEvent::Comm { pid, tid, .. } => {
                self.find_or_new(*pid, *tid, moment);
            }
            SideEvent::Fork { pid, tid, parent_pid, parent_tid, synthesized } => {
                self.fork(moment, (*pid, *tid), (*parent_pid, *parent_tid), *synthesized);
            }
            SideEvent::Map { kernel: true, .. }
            | SideEvent::Ksymbol { .. }
            | SideEvent::CodeChange { .. } => {}
            SideEvent::Map { pid, tid, start, end, pgoff, prot, path, file_id, build_id, .. } => {
                let space = self.find_or_new(*pid, *tid, moment);
                let executable = prot & 4 != 0;
                let (start, end) = (*start, *end);
                let change = match executable {
                    false => Change::Unmap { start, end },
                    true => {
                        let kind = user_kind(path, *pid, executable);
                        let file = MappedFile {
                            path,
                            build_id,
                            file_id: *file_id,
                            seen: Some(Seen { pid: *pid, start, end }),
                        };
                        let unwindable = matches!(kind, ModuleKind::File | ModuleKind::Vdso);
                        let module = unwindable.then(|| modules.module_of(&file)).flatten();
                        Change::Map { start, end, pgoff: *pgoff, module }
                    }
                };
                self.change(space, moment, change);
            }
        }
    }

    fn change(&mut self, space: u32, moment: Moment, change: Change) {
        let Some(space) = self.spaces.get_mut(&space) else { return };
        space.pending.push((moment, change));
        if space.pending.len() >= MOST_PENDING {
            space.catch_up(self.floor_ns);
        }
    }

    /// A task has ended.
    pub fn ended(&mut self, moment: Moment, tid: i32) {
        self.applied += 1;
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.ended = Some(moment.time_ns);
        }
    }

    /// The mappings of thread `tid` of process `pid` at a moment. A thread without records shares those of its process.
    pub fn space(&mut self, pid: i32, tid: i32, moment: Moment) -> &AddressSpace {
        let life = self.births.get(&pid).and_then(|b| b.known.iter().rev().find(|&&b| b <= moment));
        let life = life.copied().unwrap_or(Moment::START);
        let own = self.epoch(tid, moment).filter(|epoch| epoch.from >= life);
        let lent = || if pid == tid { None } else { self.epoch(pid, moment) };
        let Some(Epoch { space, .. }) = own.or_else(lent) else { return &self.empty };
        let Some(space) = self.spaces.get_mut(&space) else { return &self.empty };
        space.catch_up(self.floor_ns);
        space.at(moment).unwrap_or(&self.empty)
    }

    fn epoch(&self, tid: i32, moment: Moment) -> Option<Epoch> {
        self.tasks.get(&tid)?.epochs.iter().rev().find(|epoch| epoch.from <= moment).copied()
    }

    fn fork(&mut self, moment: Moment, child: (i32, i32), parent: (i32, i32), synthesized: bool) {
        let (pid, tid) = child;
        let (parent_pid, parent_tid) = parent;
        if synthesized && self.process_of.get(&tid) == Some(&(pid, self.life(pid).0)) {
            return;
        }
        if self.process_of.get(&parent_tid).is_some_and(|p| p.0 != parent_pid) {
            self.process_of.remove(&parent_tid);
        }
        let parent_space = self.find_or_new(parent_pid, parent_tid, moment);
        let space = if pid == tid {
            self.births.entry(pid).or_default().known.push(moment);
            self.new_space()
        } else {
            self.process_of.remove(&tid);
            self.find_or_new(pid, pid, moment)
        };
        if pid != parent_pid && !synthesized {
            let parent = self.spaces.get_mut(&parent_space);
            let maps = parent.map(|parent| parent.caught_up(self.floor_ns).clone()).unwrap_or_default();
            self.change(space, moment, Change::Inherit(maps));
        }
        self.process_of.insert(tid, (pid, self.life(pid).0));
        let task = self.tasks.entry(tid).or_default();
        task.ended = None;
        task.epochs.push(Epoch { from: moment, space });
    }

    /// Which life of a process id is on, and since when.
    fn life(&self, pid: i32) -> (u32, Moment) {
        let Some(births) = self.births.get(&pid) else { return (0, Moment::START) };
        let count = births.forgotten + births.known.len() as u32;
        (count, births.known.last().copied().unwrap_or(Moment::START))
    }

    /// The address space of a task, made on first sight.
    fn find_or_new(&mut self, pid: i32, tid: i32, moment: Moment) -> u32 {
        let known = self.process_of.get(&tid).copied();
        // A thread of an earlier life of its process id is another thread.
        let known = known.filter(|&(p, life)| life == self.life(p).0);
        if known.is_some_and(|(p, _)| p == pid || pid == -1)
            && let Some(epoch) = self.tasks.get(&tid).and_then(|task| task.epochs.last())
        {
            return epoch.space;
        }
        let space =
            if pid == tid || pid == -1 { self.new_space() } else { self.find_or_new(pid, pid, moment) };
        let (life, birth) = self.life(pid);
        let task = self.tasks.entry(tid).or_default();
        // Samples that came before the first record of a thread, but in this life of its process, belong to it.
        let from = if task.epochs.last().is_none_or(|e| e.from < birth) { birth } else { moment };
        task.ended = None;
        task.epochs.push(Epoch { from, space });
        self.process_of.insert(tid, (pid, life));
        space
    }

    fn new_space(&mut self) -> u32 {
        self.next_space = self.next_space.wrapping_add(1);
        self.spaces.insert(self.next_space, Space::default());
        self.next_space
    }

    /// Forgets what no moment from `floor` (ns) on can need, once enough has come together for that to pay.
    pub fn prune(&mut self, floor_ns: u64) {
        if self.applied < self.prune_at.max(PRUNE_EVERY) {
            return;
        }
        self.forget(floor_ns);
        self.applied = 0;
        // A look at everything is paid for by as many events as there are things.
        self.prune_at = self.tasks.len() + self.spaces.len();
    }

    pub(super) fn forget(&mut self, floor_ns: u64) {
        self.floor_ns = self.floor_ns.max(floor_ns);
        let floor = Moment { time_ns: floor_ns, position: 0 };
        // Processes with threads besides their first: new threads would share with the first.
        let needed: FxHashSet<i32> = (self.process_of.iter())
            .filter(|(tid, (pid, _))| {
                *tid != pid && self.tasks.get(*tid).is_some_and(|task| task.ended.is_none())
            })
            .map(|(_, (pid, _))| *pid)
            .collect();
        self.tasks.retain(|tid, task| {
            let over = task.ended.is_some_and(|end| end.saturating_add(AFTERLIFE_NS) < floor_ns);
            drop_before(&mut task.epochs, floor, |epoch| epoch.from);
            !over || needed.contains(tid)
        });
        let tasks = &self.tasks;
        self.process_of.retain(|tid, _| tasks.contains_key(tid));
        let processes: FxHashSet<i32> = self.process_of.values().map(|(pid, _)| *pid).collect();
        self.births.retain(|pid, births| {
            births.forgotten += drop_before(&mut births.known, floor, |birth| *birth);
            processes.contains(pid)
        });
        let used: FxHashSet<u32> =
            self.tasks.values().flat_map(|task| task.epochs.iter().map(|epoch| epoch.space)).collect();
        self.spaces.retain(|id, space| {
            match space.since {
                Some(since) if since <= floor => space.before.clear(),
                _ => drop(drop_before(&mut space.before, floor, |version| version.0)),
            }
            used.contains(id)
        });
    }

    /// How many tasks, spaces and earlier versions are kept.
    pub fn len(&self) -> usize {
        let versions: usize =
            self.spaces.values().map(|space| space.before.len() + space.pending.len()).sum();
        self.tasks.len() + self.spaces.len() + versions
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Space {
    /// Takes in the changes that wait. `floor_ns`: nobody asks about earlier times.
    fn catch_up(&mut self, floor_ns: u64) {
        for (moment, change) in std::mem::take(&mut self.pending) {
            if let Change::Unmap { start, end } = change
                && !(start < end && self.now.mappings().iter().any(|m| m.start < end && start < m.end))
            {
                // Most mappings are of data and lie where no code was.
                continue;
            }
            self.freeze(moment, floor_ns);
            match change {
                Change::Map { start, end, pgoff, module } => self.now.map(start, end, pgoff, module),
                Change::Unmap { start, end } => self.now.unmap(start, end),
                Change::Inherit(maps) => self.now = maps,
            }
        }
    }

    /// The mappings after all changes.
    fn caught_up(&mut self, floor_ns: u64) -> &AddressSpace {
        self.catch_up(floor_ns);
        &self.now
    }

    /// The mappings at a moment; `None` before the first.
    fn at(&self, moment: Moment) -> Option<&AddressSpace> {
        if self.since.is_some_and(|since| since <= moment) {
            return Some(&self.now);
        }
        self.before.iter().rev().find(|version| version.0 <= moment).map(|version| &version.1)
    }

    /// Keeps what there is before a change at `moment`, unless nobody asks about it. Changes of one
    /// time make one version.
    fn freeze(&mut self, moment: Moment, floor_ns: u64) {
        match self.since {
            Some(since) if since.time_ns >= moment.time_ns => {}
            Some(_) if moment.time_ns <= floor_ns => {
                self.before.clear();
                self.since = Some(moment);
            }
            Some(since) => {
                self.before.push((since, self.now.clone()));
                self.since = Some(moment);
            }
            None => self.since = Some(moment),
        }
    }
}

/// Drops the entries of a list sorted by moments that the next entry has replaced by `floor`; returns how many.
fn drop_before<T>(list: &mut Vec<T>, floor: Moment, moment: impl Fn(&T) -> Moment) -> u32 {
    let keep_from = list.partition_point(|entry| moment(entry) <= floor).saturating_sub(1);
    list.drain(..keep_from);
    keep_from as u32
}
