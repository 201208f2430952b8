//! The flame graph and the timeline of all time of all threads: a stack is as wide as its time, and
//! what ends it says the state.
use super::{End, SpanState, State, Wall};
use crate::chains::ChainId;
use crate::columns::RowField;
use crate::export::{
    ExportEvent, ExportProfile, Function, FunctionKind, Link, NO_CPU, NO_PARENT, RowNodes, StackTree, Thread,
    Timeline, TimelineEntry, facts, function_of, step,
};
use crate::functions::FunctionId;
use crate::timeline::CommId;
use kymo_data::Recording;
use rustc_hash::{FxHashMap, FxHashSet};

/// What the event of wall time is called.
pub const WALL_TIME: &str = "wall-time";
/// A timeline has about so many entries, and so many steps.
const MOST_ENTRIES: u64 = 1_000_000;
const STEPS: std::ops::RangeInclusive<u64> = 4..=2048;
/// An entry has so much time at most; of one place in a step there are so many.
const MOST_TIME: u64 = u32::MAX as u64;
const MOST_PIECES: u64 = 64;
/// So many waits have arrows to what ended them: the longest.
const MOST_LINKS: usize = 20_000;

impl Wall {
    /// As an export with one event, in ns. Idle threads are one stack for each place. The timeline
    /// is left out where times are of the time that passed.
    pub fn export(&self, recording: &Recording, source: &str) -> ExportProfile {
        self.export_with_nodes(recording, source).0
    }

    /// The same, and the places of the spans in it, in the order of [`Wall::columns`].
    pub(crate) fn export_with_nodes(&self, recording: &Recording, source: &str) -> (ExportProfile, RowNodes) {
        let range = self.range();
        let mut export = facts(recording, source, range);
        let nodes = self.fill(&mut export, range.unwrap_or((0, 0)));
        (export, nodes)
    }

    /// The same without the timeline, for those that show spans one by one.
    pub(crate) fn export_without_timeline(
        &self,
        recording: &Recording,
        source: &str,
    ) -> (ExportProfile, RowNodes) {
        let range = self.range();
        let mut export = facts(recording, source, range);
        let nodes = self.fill_with(&mut export, range.unwrap_or((0, 0)), false);
        (export, nodes)
    }

    /// The first moment and the last, ns; `None` without spans.
    fn range(&self) -> Option<(u64, u64)> {
        let begins = self.waits.iter().map(|row| row.time_ns.saturating_sub(row.total_ns()));
        begins.min().zip(self.waits.last()).map(|(first, last)| (first, last.time_ns.max(first)))
    }

    /// Threads, functions and the event, of the time from the first moment to the last; by span its
    /// node.
    pub(super) fn fill(&self, export: &mut ExportProfile, range: (u64, u64)) -> RowNodes {
        self.fill_with(export, range, true)
    }

    fn fill_with(
        &self,
        export: &mut ExportProfile,
        (first, last): (u64, u64),
        has_timeline: bool,
    ) -> RowNodes {
        let threads = self.threads();
        export.threads = (threads.iter())
            .map(|thread| Thread {
                pid: thread.thread.0,
                tid: thread.thread.1,
                comm: self.thread_name(thread.thread.1),
                samples: thread.total_ns(),
                earlier_processes: 0,
            })
            .collect();
        let numbers = threads.iter().zip(0..).map(|(thread, number)| (thread.thread, number)).collect();
        let steps = (MOST_ENTRIES / threads.len().max(1) as u64).clamp(*STEPS.start(), *STEPS.end());
        let bucket_ns = (last - first) / steps + 1;
        let mut tree = CallTree { has_timeline, first, bucket_ns, numbers, ..CallTree::default() };
        let columns = self.columns();
        let key = |row: usize| {
            let state = SpanState::of_number(columns.get(RowField::State, row) as u8)?;
            Some((columns.thread(row).comm, columns.get(RowField::Stack, row) as ChainId, state))
        };
        let mut times: FxHashMap<_, u64> = FxHashMap::default();
        for (row, key) in (0..columns.len()).filter_map(|row| Some((row, key(row)?))) {
            let time = times.entry(key).or_default();
            *time = time.saturating_add(columns.get(RowField::Period, row));
        }
        // What has most entries has the smallest number: the page is shorter.
        let mut keys: Vec<_> = times.keys().copied().collect();
        keys.sort_unstable_by_key(|key| (std::cmp::Reverse(times[key]), *key));
        let node = |(comm, stack, state)| {
            ((comm, stack, state), self.node_of(comm, (stack, state), export, &mut tree))
        };
        let nodes: FxHashMap<_, u32> = keys.into_iter().map(node).collect();
        let node = |row| key(row).and_then(|key| nodes.get(&key).copied()).unwrap_or(NO_PARENT);
        let of_rows: RowNodes = (0..columns.len()).map(node).collect();
        for (row, node) in of_rows.iter().enumerate().filter(|(_, node)| **node != NO_PARENT) {
            let (thread, end) = (columns.thread(row), columns.time()[row]);
            let span = (end - columns.get(RowField::Span, row), end);
            tree.add((thread.pid, thread.tid), *node, span, columns.get(RowField::Period, row));
        }
        let total = tree.tree.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.self_period));
        let with_time = !self.is_by_latency();
        let links = if with_time { self.links(&tree) } else { Vec::new() };
        let entries = if with_time { tree.entries } else { Vec::new() };
        export.events.push(ExportEvent {
            name: WALL_TIME.into(),
            unit: "ns".into(),
            total_samples: total,
            total_period: total,
            stacks: tree.tree,
            timeline: Timeline { bucket_ns, entries },
            links,
            ..ExportEvent::default()
        });
        of_rows
    }

    /// Adds to an export all functions of all stacks that it does not have.
    pub(crate) fn add_functions(&self, export: &mut ExportProfile) {
        let mut known: FxHashSet<Function> = export.functions.iter().cloned().collect();
        let mut seen = vec![false; self.functions.len()];
        for stack in 0..self.stacks.len() as ChainId {
            let leaf = self.stacks.leaf(stack);
            for id in self.stacks.frames(stack).iter().copied().chain([leaf]) {
                if std::mem::replace(&mut seen[id.0 as usize], true) {
                    continue;
                }
                let function = function_of(&self.functions, &self.timeline.modules, id);
                if known.insert(function.clone()) {
                    export.functions.push(function);
                }
            }
        }
    }

    /// What the picture shows of a stack in a state, innermost first: of a wait the kernel's
    /// functions without those that only switch; of an idle one its site.
    pub(crate) fn shown_frames(&self, stack: ChainId, state: SpanState) -> Vec<FunctionId> {
        match state {
            SpanState { state: State::Running, .. } => self.stacks.frames(stack).to_vec(),
            SpanState { of_idle: true, .. } => self.site(self.sites.of(stack)).to_vec(),
            _ => self.frames(stack, true).chain(self.frames(stack, false)).collect(),
        }
    }

    /// The node of spans: the name of the thread, the stack and the state.
    fn node_of(
        &self,
        comm: CommId,
        (stack, state): (ChainId, SpanState),
        export: &mut ExportProfile,
        tree: &mut CallTree,
    ) -> u32 {
        let name = self.timeline.comm(comm).into_owned();
        let comm = Function { name, kind: FunctionKind::Comm, ..Function::default() };
        let mut node = tree.enter(export, NO_PARENT, comm);
        for &frame in self.shown_frames(stack, state).iter().rev() {
            node = tree.enter(export, node, function_of(&self.functions, &self.timeline.modules, frame));
        }
        let state = Function { name: state.name(), kind: FunctionKind::State, ..Function::default() };
        tree.enter(export, node, state)
    }

    /// What ended the longest waits that were not idle.
    fn links(&self, tree: &CallTree) -> Vec<Link> {
        let of_tid: FxHashMap<i32, u32> = tree.numbers.iter().map(|((_, tid), at)| (*tid, *at)).collect();
        let link = |index: usize| {
            let row = &self.waits[index];
            let (begun, woken) = super::needed::span(row);
            let (waker, by) = match self.end(index) {
                _ if row.blocked_ns == 0 || self.is_idle(index) => return None,
                End::Thread(tid, site) => {
                    let place = site.map_or_else(String::new, |site| format!(" in {}", self.site_name(site)));
                    (of_tid.get(&tid).copied(), format!("{} {tid}{place}", self.thread_name(tid)))
                }
                End::Interrupt(cause) => (None, cause.to_owned()),
                End::Unknown => return None,
            };
            Some(Link {
                thread: *tree.numbers.get(&row.thread)?,
                begin_ns: begun.saturating_sub(tree.first),
                end_ns: woken.saturating_sub(tree.first),
                state: self.state(index).name(),
                waker,
                by,
            })
        };
        // Names are made of those only that stay.
        let mut longest: Vec<usize> = (0..self.waits.len()).filter(|at| !self.is_idle(*at)).collect();
        longest.sort_by_key(|at| std::cmp::Reverse(self.waits[*at].blocked_ns));
        longest.into_iter().filter_map(link).take(MOST_LINKS).collect()
    }
}

/// A call tree that grows, and when time was added to it.
#[derive(Default)]
struct CallTree {
    tree: StackTree,
    index: FxHashMap<(u32, u32), u32>,
    functions: FxHashMap<Function, u32>,
    /// The numbers of threads.
    numbers: FxHashMap<(i32, i32), u32>,
    has_timeline: bool,
    first: u64,
    bucket_ns: u64,
    entries: Vec<TimelineEntry>,
}

impl CallTree {
    fn enter(&mut self, export: &mut ExportProfile, parent: u32, function: Function) -> u32 {
        let next = export.functions.len() as u32;
        let number = *self.functions.entry(function).or_insert_with_key(|function| {
            export.functions.push(function.clone());
            next
        });
        step(&mut self.tree, &mut self.index, parent, number)
    }

    /// Adds time of a thread, which is spread evenly over a span, to a node.
    fn add(&mut self, thread: (i32, i32), at: u32, (begin, end): (u64, u64), time: u64) {
        let node = &mut self.tree.nodes[at as usize];
        // What the pictures count: a stack as wide as its time.
        node.self_samples = node.self_samples.saturating_add(time);
        node.self_period = node.self_period.saturating_add(time);
        let Some(&thread) = self.numbers.get(&thread).filter(|_| self.has_timeline) else { return };
        let (begin, end) = (begin.saturating_sub(self.first), end.saturating_sub(self.first));
        let last = end.saturating_sub(1).max(begin) / self.bucket_ns;
        let (mut from, mut left) = (begin, time);
        for bucket in begin / self.bucket_ns..=last {
            let until = if bucket == last { end } else { (bucket + 1).saturating_mul(self.bucket_ns) };
            let part = match bucket == last {
                true => left,
                false => (u128::from(time) * u128::from(until - from) / u128::from(end - begin)) as u64,
            };
            (from, left) = (until, left - part);
            let (bucket, node) = (bucket as u32, at);
            let mut rest = part.min(MOST_PIECES * MOST_TIME);
            while rest > 0 {
                let period = rest.min(MOST_TIME);
                let samples = period as u32;
                self.entries.push(TimelineEntry { bucket, thread, cpu: NO_CPU, node, samples, period });
                rest -= period;
            }
        }
    }
}
