//! Rows of a table: what samples share under the sort keys.
use crate::chains::ChainId;
use crate::functions::{FunctionId, Level};
use crate::load::{Count, Dims, ExtraId, GroupKey};
use crate::profile::Profile;
use crate::timeline::CommId;
use regex_lite::Regex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::{Ordering, Reverse};
use std::str::FromStr;

/// What rows are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortKey {
    /// Name of the thread.
    Comm,
    /// Thread id with its name (perf calls this key `pid`).
    Thread,
    /// Process id.
    Process,
    /// Module.
    Dso,
    /// Function.
    Symbol,
    /// CPU.
    Cpu,
    /// The first function on the stack, from the sampled one up, that [`HistOptions::parent`]
    /// matches.
    Parent,
    /// Length of the function in bytes.
    SymbolSize,
    /// Source file and line of the sampled instruction.
    SourceLine,
    /// Time, in steps of [`HistOptions::time_quantum_ns`].
    Time,
    /// The text of a tracepoint's fields.
    Trace,
    /// The path of the cgroup.
    Cgroup,
    /// The container that the cgroup is of.
    Container,
    /// The unit of systemd that it is of.
    Unit,
    /// The pod that it is of.
    Pod,
    /// How many threads ran.
    Parallelism,
}

/// At most so many sort keys.
pub const MAX_KEYS: usize = 8;

/// A word that is no sort key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown sort key '{0}': the keys are {KEYS}{reason}", reason = reason(.0))]
pub struct UnknownSortKey(pub String);

/// The words for sort keys, for sentences.
pub(crate) const KEYS: &str = "comm, pid, tgid, dso, symbol, cpu, parent, symbol_size, srcline, time, trace, cgroup, container, unit, pod and parallelism";

/// Why a sort key of perf is none here.
fn reason(word: &str) -> &'static str {
    let has = |parts: &[&str]| parts.iter().any(|part| word.contains(part));
    if has(&["_from", "_to", "mispredict", "abort", "in_tx", "cycles", "ipc"]) {
        "; kymo does not read branch stacks, `perf report` does"
    } else if has(&[
        "mem",
        "daddr",
        "iaddr",
        "snoop",
        "locked",
        "tlb",
        "dcacheline",
        "weight",
        "blocked",
        "_lat",
    ]) {
        "; kymo does not read memory samples, `perf report` does"
    } else {
        ""
    }
}

impl SortKey {
    /// Whether it is one of a sample's cgroup.
    pub fn is_of_cgroup(self) -> bool {
        matches!(self, SortKey::Cgroup | SortKey::Container | SortKey::Unit | SortKey::Pod)
    }
}

impl FromStr for SortKey {
    type Err = UnknownSortKey;

    fn from_str(word: &str) -> Result<SortKey, UnknownSortKey> {
        Ok(match word.trim() {
            "comm" | "command" => SortKey::Comm,
            "pid" | "tid" | "thread" => SortKey::Thread,
            "tgid" | "process" => SortKey::Process,
            "dso" => SortKey::Dso,
            "symbol" | "sym" => SortKey::Symbol,
            "cpu" => SortKey::Cpu,
            "parent" => SortKey::Parent,
            "symbol_size" => SortKey::SymbolSize,
            "srcline" => SortKey::SourceLine,
            "time" => SortKey::Time,
            "trace" => SortKey::Trace,
            "cgroup" => SortKey::Cgroup,
            "container" => SortKey::Container,
            "unit" => SortKey::Unit,
            "pod" => SortKey::Pod,
            "parallelism" => SortKey::Parallelism,
            other => return Err(UnknownSortKey(other.to_string())),
        })
    }
}

/// How a table is made.
#[derive(Debug, Clone, Default)]
pub struct HistOptions {
    /// What rows are told apart by, at most [`MAX_KEYS`].
    pub keys: Vec<SortKey>,
    /// Rows gain what they called.
    pub children: bool,
    /// Only rows of these thread names.
    pub comms: Option<Vec<String>>,
    /// Only rows of these modules.
    pub dsos: Option<Vec<String>>,
    /// Only rows of these functions.
    pub symbols: Option<Vec<String>>,
    /// Only rows of functions whose name has this part.
    pub symbol_part: Option<String>,
    /// What [`SortKey::Parent`] looks for.
    pub parent: Option<Regex>,
    /// Only rows that have a parent.
    pub only_with_parent: bool,
    /// Samples in code without a symbol do not count at all.
    pub hide_unresolved: bool,
    /// Shares are of the rows that filters leave, not of all samples.
    pub relative: bool,
    /// Only rows of samples at which so many threads ran.
    pub parallelism: Option<FxHashSet<u32>>,
    /// Rows are sorted by what they added to the time that the whole took
    /// ([`Count::latency`]), not by the time of all threads.
    pub by_latency: bool,
    /// The step of [`SortKey::Time`], ns; 0 stands for [`HistOptions::TIME_QUANTUM_NS`].
    pub time_quantum_ns: u64,
}

impl HistOptions {
    /// perf's default keys.
    pub const DEFAULT_KEYS: [SortKey; 3] = [SortKey::Comm, SortKey::Dso, SortKey::Symbol];

    /// perf's step of time.
    pub const TIME_QUANTUM_NS: u64 = 100_000_000;

    /// Whether rows depend on whole stacks, besides what they called.
    pub fn needs_stacks(&self) -> bool {
        self.only_with_parent || self.keys.contains(&SortKey::Parent)
    }

    /// What a recording must be loaded by for these keys.
    pub fn dims(&self) -> Dims {
        let quantum = if self.time_quantum_ns == 0 { Self::TIME_QUANTUM_NS } else { self.time_quantum_ns };
        Dims {
            time_quantum_ns: if self.keys.contains(&SortKey::Time) { quantum } else { 0 },
            raw: self.keys.contains(&SortKey::Trace),
            cgroup: self.keys.iter().any(|key| key.is_of_cgroup()),
            parallelism: self.keys.contains(&SortKey::Parallelism) || self.parallelism.is_some(),
            pid: self.keys.contains(&SortKey::Process),
            tid: self.keys.contains(&SortKey::Thread),
            cpu: self.keys.contains(&SortKey::Cpu),
        }
    }
}

/// The values of the sort keys, then whether filters hide the row: what is hidden never shares a
/// row with what is not.
type RowKey = [u64; MAX_KEYS + 1];

/// A row of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// Samples taken in it.
    pub own: Count,
    /// Samples taken in it or in what it called. Equal to `own` without children.
    pub total: Count,
    /// One of the groups that the row was made of, for what to show.
    pub group: GroupKey,
    /// The row's function.
    pub function: FunctionId,
    /// Which stacks it is on: index of the group, and how many frames of the stack from the sampled
    /// one up to (and with) the row's outermost appearance. `u32::MAX` frames stands for the whole
    /// stack.
    pub places: Vec<(u32, u32)>,
    /// Hidden by a filter; still part of the whole.
    pub filtered: bool,
    /// What of [`Row::own`] was in the kernel, as a sum of periods.
    pub own_kernel: u64,
    /// The function that [`SortKey::Parent`] found.
    pub parent: Option<FunctionId>,
    max_depth: u32,
}

/// The table of one event.
#[derive(Debug)]
pub struct Hist {
    /// Rows in the order to show them.
    pub rows: Vec<Row>,
    /// Sum over all samples of the event.
    pub total: Count,
    /// What shares are of: the sum of all periods, or of those that filters leave.
    pub whole: u64,
    /// The same of [`Count::latency`].
    pub whole_latency: u64,
}

impl Hist {
    /// Makes the table of an event.
    pub fn new(profile: &Profile, event: usize, options: &HistOptions) -> Hist {
        let mut maker = Maker::new(profile, options);
        let mut total = Count::default();
        for (index, (key, count)) in profile.loaded.groups.iter().enumerate() {
            let leaf = profile.stacks.leaf(key.chain);
            let hidden = options.hide_unresolved && profile.functions.get(leaf).name.is_none();
            if key.event as usize == event && !hidden {
                total += *count;
                maker.add(index as u32, key, *count);
            }
        }
        let mut rows = maker.rows;
        rows.sort_by(|a, b| order(profile, options, a, b));
        let whole = if options.relative {
            let mut shown = Count::default();
            rows.iter().filter(|row| !row.filtered).for_each(|row| shown += row.own);
            shown
        } else {
            total
        };
        Hist { rows, total, whole: whole.period, whole_latency: whole.latency }
    }
}

/// What of a group rows may be told apart by.
#[derive(PartialEq, Eq, Hash)]
struct GroupPart {
    comm: CommId,
    pid: i32,
    tid: i32,
    cpu: u32,
    extra: ExtraId,
}

struct Maker<'a> {
    profile: &'a Profile,
    options: &'a HistOptions,
    index: FxHashMap<RowKey, u32>,
    rows: Vec<Row>,
    /// The number that rows know each function by: functions of one name, module name and place are
    /// one.
    symbol_ids: Vec<u64>,
    dso_ids: Vec<u64>,
    /// What filters say to each function, and to the names that were met.
    function_shown: Vec<bool>,
    comm_shown: FxHashMap<CommId, bool>,
    /// Numbers of what groups bring to the keys of rows, whatever the function.
    parts: FxHashMap<GroupPart, u32>,
    /// The row of a function in groups of such a number.
    of_function: FxHashMap<(u32, FunctionId), u32>,
    /// By row the last group that was counted for it, plus one.
    counted: Vec<u32>,
    /// The parent in each stack that was asked.
    parents: FxHashMap<ChainId, Option<FunctionId>>,
    /// Numbers of texts: source lines, and outputs of tracepoints.
    texts: FxHashMap<&'a str, u64>,
}

impl<'a> Maker<'a> {
    fn new(profile: &'a Profile, options: &'a HistOptions) -> Maker<'a> {
        let mut dsos: FxHashMap<&str, u64> = FxHashMap::default();
        let mut symbols: FxHashMap<_, u64> = FxHashMap::default();
        let (mut symbol_ids, mut dso_ids, mut function_shown) = (Vec::new(), Vec::new(), Vec::new());
        for (id, function) in profile.functions.iter() {
            let next = dsos.len() as u64;
            let dso = *dsos.entry(profile.module_name(id)).or_insert(next);
            dso_ids.push(dso);
            let name = if function.inlined { function.name.as_deref() } else { None };
            let bare = function.name.is_none();
            let next = symbols.len() as u64;
            // A compiler makes the same function again at another place: it stays one.
            let key = match function.generated {
                true => (dso, bare, 0, 0, function.name.as_deref()),
                false => (dso, bare, function.start, function.end, name),
            };
            symbol_ids.push(*symbols.entry(key).or_insert(next));
            let symbol = function.name.as_deref().unwrap_or("");
            let part = options.symbol_part.as_deref().is_none_or(|part| symbol.contains(part));
            let listed = within(&options.dsos, profile.module_name(id)) && within(&options.symbols, symbol);
            function_shown.push(listed && part);
        }
        Maker {
            profile,
            options,
            index: FxHashMap::default(),
            rows: Vec::new(),
            symbol_ids,
            dso_ids,
            function_shown,
            comm_shown: FxHashMap::default(),
            parts: FxHashMap::default(),
            of_function: FxHashMap::default(),
            counted: Vec::new(),
            parents: FxHashMap::default(),
            texts: FxHashMap::default(),
        }
    }

    fn add(&mut self, index: u32, group: &GroupKey, count: Count) {
        let profile = self.profile;
        let leaf = profile.stacks.leaf(group.chain);
        let frames = profile.stacks.frames(group.chain);
        let part = self.part(group);
        let own = self.row(part, group, leaf);
        self.counted[own as usize] = index + 1;
        let row = &mut self.rows[own as usize];
        row.own += count;
        if profile.functions.get(leaf).level == Level::Kernel {
            row.own_kernel += count.period;
        }
        row.total += count;
        row.max_depth = row.max_depth.max(frames.len() as u32);
        row.places.push((index, u32::MAX));
        if !self.options.children {
            return;
        }
        // Outermost first: a function that is on the stack twice counts at its outermost place.
        for at in (0..frames.len()).rev() {
            let id = self.row(part, group, frames[at]);
            if std::mem::replace(&mut self.counted[id as usize], index + 1) == index + 1 {
                continue;
            }
            let row = &mut self.rows[id as usize];
            row.total += count;
            row.max_depth = row.max_depth.max(at as u32 + 1);
            row.places.push((index, at as u32 + 1));
        }
    }

    /// The number of what a group brings to the keys of its rows; none where these depend on its
    /// stack, which few groups share.
    fn part(&mut self, group: &GroupKey) -> Option<u32> {
        let options = self.options;
        if options.needs_stacks() || options.keys.contains(&SortKey::SourceLine) {
            return None;
        }
        let GroupKey { comm, pid, tid, cpu, extra, .. } = *group;
        let next = self.parts.len() as u32;
        Some(*self.parts.entry(GroupPart { comm, pid, tid, cpu, extra }).or_insert(next))
    }

    /// The row of a function in a group, whose part may have a number.
    fn row(&mut self, part: Option<u32>, group: &GroupKey, function: FunctionId) -> u32 {
        let Some(part) = part else { return self.row_by_keys(group, function) };
        if let Some(row) = self.of_function.get(&(part, function)) {
            return *row;
        }
        let row = self.row_by_keys(group, function);
        self.of_function.insert((part, function), row);
        row
    }

    fn row_by_keys(&mut self, group: &GroupKey, function: FunctionId) -> u32 {
        let parent = self.parent(group.chain);
        let shown = self.function_shown[function.0 as usize] && self.comm_shown(group.comm);
        let parallelism = self.profile.loaded.extras.get(group.extra).parallelism;
        let outside = self.options.parallelism.as_ref().is_some_and(|wanted| !wanted.contains(&parallelism));
        let filtered = !shown || outside || self.options.only_with_parent && parent.is_none();
        let mut key = [0; MAX_KEYS + 1];
        key[MAX_KEYS] = u64::from(filtered);
        let options = self.options;
        for (slot, sort) in key.iter_mut().zip(&options.keys) {
            *slot = match sort {
                SortKey::Comm => comm_number(group.comm),
                SortKey::Thread => group.tid as u32 as u64,
                SortKey::Process => group.pid as u32 as u64,
                SortKey::Dso => self.dso_ids[function.0 as usize],
                SortKey::Symbol => self.symbol_ids[function.0 as usize],
                SortKey::Cpu => u64::from(group.cpu),
                SortKey::Parent => parent.map_or(0, |parent| self.symbol_ids[parent.0 as usize] + 1),
                SortKey::SymbolSize => symbol_size(self.profile, function).unwrap_or(u64::MAX),
                SortKey::SourceLine => self.text_number(self.profile.stacks.line(group.chain)),
                SortKey::Time => self.profile.loaded.extras.get(group.extra).time_ns,
                SortKey::Parallelism => u64::from(parallelism),
                SortKey::Trace => self.text_number(self.profile.trace(group.extra)),
                SortKey::Cgroup | SortKey::Container | SortKey::Unit | SortKey::Pod => {
                    self.text_number(cgroup_name(self.profile, *sort, group))
                }
            };
        }
        let next = self.rows.len() as u32;
        let id = *self.index.entry(key).or_insert(next);
        if id == next {
            self.counted.push(0);
            self.rows.push(Row {
                own: Count::default(),
                total: Count::default(),
                group: *group,
                function,
                places: Vec::new(),
                filtered,
                own_kernel: 0,
                parent,
                max_depth: 0,
            });
        }
        id
    }

    fn text_number(&mut self, text: &'a str) -> u64 {
        let next = self.texts.len() as u64;
        *self.texts.entry(text).or_insert(next)
    }

    fn parent(&mut self, chain: ChainId) -> Option<FunctionId> {
        let pattern = self.options.parent.as_ref()?;
        if !self.options.needs_stacks() {
            return None;
        }
        let profile = self.profile;
        *self.parents.entry(chain).or_insert_with(|| {
            let matches = |id: &FunctionId| {
                let function = profile.functions.get(*id);
                !function.inlined && function.name.as_deref().is_some_and(|name| pattern.is_match(name))
            };
            let leaf = profile.stacks.leaf(chain);
            std::iter::once(leaf).chain(profile.stacks.frames(chain).iter().copied()).find(matches)
        })
    }

    fn comm_shown(&mut self, comm: CommId) -> bool {
        let Some(list) = &self.options.comms else { return true };
        let timeline = &self.profile.loaded.timeline;
        *self
            .comm_shown
            .entry(comm)
            .or_insert_with(|| list.iter().any(|wanted| *wanted == timeline.comm(comm)))
    }
}

fn comm_number(comm: CommId) -> u64 {
    u64::from(comm.number())
}

fn within(list: &Option<Vec<String>>, value: &str) -> bool {
    list.as_ref().is_none_or(|l| l.iter().any(|wanted| wanted == value))
}

/// Largest first; where two are equal, callers before callees, then by name.
fn order(profile: &Profile, options: &HistOptions, a: &Row, b: &Row) -> Ordering {
    let weights = |count: &Count| match options.by_latency {
        true => Reverse((count.latency, count.period)),
        false => Reverse((count.period, count.latency)),
    };
    let by_total = |r: &Row| if options.children { weights(&r.total) } else { Reverse((0, 0)) };
    let by_depth = |r: &Row| if options.children { Reverse(r.max_depth) } else { Reverse(0) };
    let rank = |r: &Row| (by_total(r), weights(&r.own), by_depth(r));
    let mut by_keys = options.keys.iter().map(|key| compare(profile, *key, a, b));
    rank(a).cmp(&rank(b)).then_with(|| by_keys.find(|order| order.is_ne()).unwrap_or(Ordering::Equal))
}

/// What a key of cgroups says of a group of samples.
pub(crate) fn cgroup_name<'a>(profile: &'a Profile, key: SortKey, group: &GroupKey) -> &'a str {
    let names = profile.loaded.counts.cgroups.get(profile.loaded.extras.get(group.extra).cgroup);
    match key {
        SortKey::Container => &names.container,
        SortKey::Unit => &names.unit,
        SortKey::Pod => &names.pod,
        _ => &names.path,
    }
}

/// The length of a function in bytes; `None` for code without a symbol.
pub(crate) fn symbol_size(profile: &Profile, function: FunctionId) -> Option<u64> {
    let function = profile.functions.get(function);
    function.name.is_some().then(|| function.end.saturating_sub(function.start))
}

/// Rows in the order of one sort key.
pub(crate) fn compare(profile: &Profile, key: SortKey, a: &Row, b: &Row) -> Ordering {
    let timeline = &profile.loaded.timeline;
    let symbol = |id: FunctionId| {
        let f = profile.functions.get(id);
        (Reverse(f.name.is_some()), &f.name, f.start)
    };
    match key {
        SortKey::Comm => timeline.comm(a.group.comm).cmp(&timeline.comm(b.group.comm)),
        SortKey::Thread => a.group.tid.cmp(&b.group.tid),
        SortKey::Process => a.group.pid.cmp(&b.group.pid),
        SortKey::Dso => profile.module_name(a.function).cmp(profile.module_name(b.function)),
        SortKey::Symbol => symbol(a.function).cmp(&symbol(b.function)),
        SortKey::Cpu => a.group.cpu.cmp(&b.group.cpu),
        SortKey::Parent => {
            // As in perf, rows without a parent come last.
            let parent = |row: &Row| (row.parent.is_none(), row.parent.map(symbol));
            parent(a).cmp(&parent(b))
        }
        SortKey::SymbolSize => symbol_size(profile, a.function).cmp(&symbol_size(profile, b.function)),
        SortKey::SourceLine => profile.stacks.line(a.group.chain).cmp(profile.stacks.line(b.group.chain)),
        SortKey::Time => {
            let time = |row: &Row| profile.loaded.extras.get(row.group.extra).time_ns;
            time(a).cmp(&time(b))
        }
        SortKey::Parallelism => {
            let count = |row: &Row| profile.loaded.extras.get(row.group.extra).parallelism;
            count(a).cmp(&count(b))
        }
        SortKey::Trace => profile.trace(a.group.extra).cmp(profile.trace(b.group.extra)),
        SortKey::Cgroup | SortKey::Container | SortKey::Unit | SortKey::Pod => {
            cgroup_name(profile, key, &a.group).cmp(cgroup_name(profile, key, &b.group))
        }
    }
}
