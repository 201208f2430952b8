//! Threads and address spaces in epochs, and the builder that replays side-band records into them.
use super::{
    KernelMaps, MapSet, Mapping, Mappings, ModuleKind, Modules, Moment, Scripts, SideEvent,
    modules::user_kind,
};
use crate::generated_code::GeneratedCode;
use rustc_hash::FxHashMap;
use std::time::SystemTime;

/// The name of a thread: an index into [`Timeline::comm`]'s table, or "no name known" for a thread id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(u32);

const UNNAMED: u32 = 1 << 31;

impl CommId {
    /// The stand-in name of a thread that never got one, shown as `:tid`.
    pub(crate) fn unnamed(tid: i32) -> CommId {
        CommId(UNNAMED | tid as u32)
    }

    /// A number for this name, equal for equal names of one timeline.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// From `from` (inclusive) to `until` (exclusive) an answer of the timeline stays the same; callers cache by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First moment.
    pub from: Moment,
    /// First moment after.
    pub until: Moment,
}

impl Span {
    /// The span holds this moment.
    pub fn holds(&self, moment: Moment) -> bool {
        self.from <= moment && moment < self.until
    }
}

/// What a thread was at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadView {
    /// Its name.
    pub comm: CommId,
    /// The version of its address space, for [`Timeline::maps`].
    pub maps: u32,
    /// For how long this holds.
    pub span: Span,
}

#[derive(Debug, Clone, Copy)]
struct Epoch {
    from: Moment,
    comm: Option<CommId>,
    space: u32,
}

#[derive(Debug, Default)]
struct Space {
    current: MapSet,
    /// The moment of the newest change that no version shows yet.
    changed: Option<Moment>,
    versions: Vec<(Moment, u32)>,
}

/// What an address space shows from a moment on.
#[derive(Debug, Default)]
struct Version {
    from: Moment,
    maps: MapSet,
}

/// The finished timeline: every question about a thread at a moment is two binary searches.
#[derive(Debug)]
pub struct Timeline {
    threads: FxHashMap<i32, Vec<Epoch>>,
    births: FxHashMap<i32, Vec<Moment>>,
    spaces: Vec<Vec<(Moment, u32)>>,
    versions: Vec<Version>,
    comms: Vec<String>,
    /// Names of generated code, by process.
    pub(crate) code: GeneratedCode,
    /// All mappings, for [`MapSet::find`].
    pub mappings: Mappings,
    /// All modules.
    pub modules: Modules,
    /// The kernel's mappings.
    pub kernel: KernelMaps,
    /// Functions of interpreters.
    pub scripts: Scripts,
    /// When the recording was written, if that is known: files that changed later were not mapped.
    pub recorded_until: Option<SystemTime>,
}

impl Timeline {
    /// What thread `tid` of process `pid` was at `moment`. Never fails: a thread without records has no name and
    /// shares the mappings of its process.
    pub fn thread(&self, pid: i32, tid: i32, moment: Moment) -> ThreadView {
        let life = self.life(pid, moment);
        // An epoch from before the birth of its process is that of an earlier user of the same ids.
        let own = self.epoch(tid, moment).filter(|(epoch, _)| epoch.from >= life.from);
        let (epoch, span) = match own {
            Some(found) => found,
            None => {
                // The process's own thread lends its mappings until the thread's next epoch begins.
                let until = self.next_epoch(tid, moment);
                match self.epoch(pid, moment) {
                    Some((leader, span)) if pid != tid => {
                        let epoch = Epoch { comm: None, ..leader };
                        (epoch, Span { from: span.from, until: span.until.min(until) })
                    }
                    _ => {
                        let until = until.min(self.next_epoch(pid, moment));
                        let span = Span { from: Moment::START.max(life.from), until };
                        return ThreadView { comm: CommId::unnamed(tid), maps: 0, span };
                    }
                }
            }
        };
        let span = Span { from: span.from.max(life.from), until: span.until.min(life.until) };
        let versions = &self.spaces[epoch.space as usize];
        let next = versions.partition_point(|v| v.0 <= moment);
        let (from, maps) = next.checked_sub(1).map_or((Moment::START, 0), |i| versions[i]);
        let until = versions.get(next).map_or(Moment::END, |v| v.0);
        ThreadView {
            comm: epoch.comm.unwrap_or(CommId::unnamed(tid)),
            maps,
            span: Span { from: span.from.max(from), until: span.until.min(until) },
        }
    }

    fn epoch(&self, tid: i32, moment: Moment) -> Option<(Epoch, Span)> {
        let epochs = self.threads.get(&tid)?;
        let next = epochs.partition_point(|e| e.from <= moment);
        let epoch = epochs[next.checked_sub(1)?];
        let until = epochs.get(next).map_or(Moment::END, |e| e.from);
        Some((epoch, Span { from: epoch.from, until }))
    }

    /// When the thread's next epoch after `moment` begins.
    fn next_epoch(&self, tid: i32, moment: Moment) -> Moment {
        let epochs = self.threads.get(&tid).map_or(&[][..], |e| e);
        epochs.get(epochs.partition_point(|e| e.from <= moment)).map_or(Moment::END, |e| e.from)
    }

    /// From which birth to which the process id means the same process.
    fn life(&self, pid: i32, moment: Moment) -> Span {
        let births = self.births.get(&pid).map_or(&[][..], |b| b);
        let next = births.partition_point(|b| *b <= moment);
        Span {
            from: next.checked_sub(1).map_or(Moment::START, |i| births[i]),
            until: births.get(next).copied().unwrap_or(Moment::END),
        }
    }

    /// The mappings of a version.
    pub fn maps(&self, version: u32) -> &MapSet {
        &self.versions[version as usize].maps
    }

    /// When a version begins: until the next one of its space, no address changes its meaning.
    pub fn version_from(&self, version: u32) -> Moment {
        self.versions[version as usize].from
    }

    /// How many versions of address spaces there are.
    pub fn version_count(&self) -> usize {
        self.versions.len()
    }

    /// The text of a name.
    pub fn comm(&self, id: CommId) -> std::borrow::Cow<'_, str> {
        if id.0 & UNNAMED != 0 {
            // The top bit is taken; no thread id needs it but -1, that of a task that is just going away.
            let tid = (id.0 & !UNNAMED) as i32;
            format!(":{}", if tid == i32::MAX { -1 } else { tid }).into()
        } else {
            self.comms[id.0 as usize].as_str().into()
        }
    }

    /// When the number of a process that had ended was given to another one, ascending.
    pub fn reuses(&self, pid: i32) -> &[Moment] {
        let births = self.births.get(&pid).map_or(&[][..], |births| births);
        let is_born_first = self
            .threads
            .get(&pid)
            .and_then(|epochs| epochs.first())
            .is_none_or(|first| births.first().is_none_or(|birth| first.from >= *birth));
        // Before its first birth the number was nobody's.
        births.get(usize::from(is_born_first)..).unwrap_or_default()
    }

    /// The name of a thread just before a moment.
    pub fn comm_before(&self, pid: i32, tid: i32, until: Moment) -> std::borrow::Cow<'_, str> {
        let before = match until.position.checked_sub(1) {
            Some(position) => Moment { position, ..until },
            None => Moment { time_ns: until.time_ns.saturating_sub(1), position: u64::MAX },
        };
        self.comm(self.thread(pid, tid, before).comm)
    }

    /// The last name that a thread had, for lists of threads.
    pub fn last_comm(&self, tid: i32) -> CommId {
        self.threads
            .get(&tid)
            .and_then(|e| e.iter().rev().find_map(|e| e.comm))
            .unwrap_or(CommId::unnamed(tid))
    }
}

/// Replays side-band records, in order of their moments, into a [`Timeline`].
#[derive(Debug, Default)]
pub struct TimelineBuilder {
    timed: bool,
    threads: FxHashMap<i32, Vec<Epoch>>,
    /// The process that each thread belongs to, and which life of that process id.
    process_of: FxHashMap<i32, (i32, u32)>,
    /// Process ids that were born during the recording, and when.
    births: FxHashMap<i32, Vec<Moment>>,
    spaces: Vec<Space>,
    versions: Vec<Version>,
    comms: Vec<String>,
    comm_ids: FxHashMap<Vec<u8>, CommId>,
    mappings: Mappings,
    modules: Modules,
    kernel: KernelMaps,
}

impl TimelineBuilder {
    /// Sorts the records by moment and replays them. `timed` is false for a recording without timestamps, whose
    /// records are in order as they stand.
    pub fn build(mut events: Vec<(Moment, SideEvent)>, timed: bool) -> Timeline {
        // Stable, and moments are unique by position, so I1 holds however the records were collected.
        events.sort_by_key(|e| e.0);
        let mut builder = TimelineBuilder::new(timed);
        for (moment, event) in &events {
            builder.apply(*moment, event);
        }
        builder.finish()
    }

    fn new(timed: bool) -> TimelineBuilder {
        let versions = vec![Version::default()];
        let mut builder = TimelineBuilder { timed, versions, ..TimelineBuilder::default() };
        // The idle task has no records of its own.
        let idle = SideEvent::Comm { pid: 0, tid: 0, exec: false, name: b"swapper".to_vec() };
        builder.apply(Moment::START, &idle);
        builder
    }

    fn apply(&mut self, moment: Moment, event: &SideEvent) {
        match event {
            SideEvent::Comm { pid, tid, name, .. } => {
                self.find_or_new(*pid, *tid, moment);
                let comm = self.comm_id(name);
                self.set_comm(*tid, comm, moment);
            }
            SideEvent::Fork { pid, tid, parent_pid, parent_tid, synthesized } => {
                self.fork(moment, (*pid, *tid), (*parent_pid, *parent_tid), *synthesized);
            }
            SideEvent::Map { kernel: true, .. } | SideEvent::Ksymbol { .. } => {
                self.kernel.apply(event, &mut self.modules, &mut self.mappings);
            }
            SideEvent::CodeChange { pid } => {
                // Of a process that nothing else is known of, nothing can have changed.
                if self.process_of.contains_key(pid) {
                    let space = self.find_or_new(*pid, *pid, moment);
                    self.freeze_before(space, moment);
                    self.spaces[space as usize].changed.get_or_insert(moment);
                }
            }
            SideEvent::Map { pid, tid, start, end, pgoff, prot, path, file_id, build_id, .. } => {
                let executable = prot & 4 != 0;
                let kind = user_kind(path, *pid, executable);
                let module = self.modules.intern(path, kind, *file_id, build_id);
                let identity = matches!(kind, ModuleKind::Jit { .. } | ModuleKind::Memory);
                let space = self.find_or_new(*pid, *tid, moment);
                self.freeze_before(space, moment);
                let mapping = Mapping {
                    start: *start,
                    end: *end,
                    pgoff: *pgoff,
                    module,
                    pid: *pid,
                    identity,
                    executable,
                };
                let space = &mut self.spaces[space as usize];
                space.current.insert(&mut self.mappings, mapping);
                space.changed.get_or_insert(moment);
            }
        }
    }

    fn fork(&mut self, moment: Moment, child: (i32, i32), parent: (i32, i32), synthesized: bool) {
        let (pid, tid) = child;
        let (parent_pid, parent_tid) = parent;
        // Recorders list tasks that were there before in any order: a thread may stand before its process. That is no
        // second life of the process.
        if synthesized && self.process_of.get(&tid) == Some(&(pid, self.life(pid).0)) {
            return;
        }
        if self.process_of.get(&parent_tid).is_some_and(|p| p.0 != parent_pid) {
            self.process_of.remove(&parent_tid);
        }
        let parent_space = self.find_or_new(parent_pid, parent_tid, moment);
        let comm = self.threads[&parent_tid].last().and_then(|e| e.comm);
        let space = if pid == tid {
            self.births.entry(pid).or_default().push(moment);
            self.new_space()
        } else {
            self.process_of.remove(&tid);
            self.find_or_new(pid, pid, moment)
        };
        if pid != parent_pid && !synthesized {
            let maps = self.spaces[parent_space as usize].current.clone();
            self.freeze_before(space, moment);
            let own = &mut self.spaces[space as usize];
            own.current = maps;
            own.changed.get_or_insert(moment);
        }
        self.process_of.insert(tid, (pid, self.life(pid).0));
        self.threads.entry(tid).or_default().push(Epoch { from: moment, comm, space });
    }

    /// Which life of a process id is on, and since when.
    fn life(&self, pid: i32) -> (u32, Moment) {
        let births = self.births.get(&pid).map_or(&[][..], |b| b);
        (births.len() as u32, births.last().copied().unwrap_or(Moment::START))
    }

    /// The address space of a thread, made on first sight.
    fn find_or_new(&mut self, pid: i32, tid: i32, moment: Moment) -> u32 {
        let known = self.process_of.get(&tid).copied();
        // A thread of an earlier life of its process id is another thread.
        let known = known.filter(|&(p, life)| life == self.life(p).0);
        if known.is_some_and(|(p, _)| p == pid || pid == -1) {
            // SANITY: a tid in process_of has at least one epoch; both are written together.
            return self.threads[&tid].last().expect("a known thread has an epoch").space;
        }
        let space =
            if pid == tid || pid == -1 { self.new_space() } else { self.find_or_new(pid, pid, moment) };
        let (life, birth) = self.life(pid);
        let epochs = self.threads.entry(tid).or_default();
        // Samples that came before the first record of a thread, but in this life of its process, belong to it.
        let from = if epochs.last().is_none_or(|e| e.from < birth) { birth } else { moment };
        let comm = if known.is_some() { epochs.last().and_then(|e| e.comm) } else { None };
        epochs.push(Epoch { from, comm, space });
        self.process_of.insert(tid, (pid, life));
        space
    }

    fn new_space(&mut self) -> u32 {
        self.spaces.push(Space::default());
        (self.spaces.len() - 1) as u32
    }

    fn comm_id(&mut self, name: &[u8]) -> CommId {
        if let Some(&id) = self.comm_ids.get(name) {
            return id;
        }
        let id = CommId(self.comms.len() as u32);
        self.comms.push(String::from_utf8_lossy(name).into_owned());
        self.comm_ids.insert(name.to_vec(), id);
        id
    }

    fn set_comm(&mut self, tid: i32, comm: CommId, moment: Moment) {
        let Some(epochs) = self.threads.get_mut(&tid) else { return };
        let Some(last) = epochs.last_mut() else { return };
        match last.comm {
            // The first name holds for what the thread did before it, too.
            None => last.comm = Some(comm),
            Some(old) if old == comm => {}
            Some(_) => {
                let space = last.space;
                epochs.push(Epoch { from: moment, comm: Some(comm), space });
            }
        }
    }

    /// Makes a version of what a space shows before a change at `moment`. Changes of one time with no sample between
    /// them (a recording's synthesized start) share one version.
    fn freeze_before(&mut self, space: u32, moment: Moment) {
        let own = &mut self.spaces[space as usize];
        if let Some(changed) = own.changed
            && (changed.time_ns != moment.time_ns || !self.timed)
        {
            own.changed = None;
            own.versions.push((changed, self.versions.len() as u32));
            self.versions.push(Version { from: changed, maps: own.current.clone() });
        }
    }

    fn finish(mut self) -> Timeline {
        for space in 0..self.spaces.len() {
            self.freeze_before(space as u32, Moment::END);
        }
        self.kernel.stretch(&mut self.mappings);
        Timeline {
            threads: self.threads,
            births: self.births,
            spaces: self.spaces.into_iter().map(|s| s.versions).collect(),
            versions: self.versions,
            comms: self.comms,
            code: GeneratedCode::default(),
            mappings: self.mappings,
            modules: self.modules,
            kernel: self.kernel,
            scripts: Scripts::default(),
            recorded_until: None,
        }
    }
}
