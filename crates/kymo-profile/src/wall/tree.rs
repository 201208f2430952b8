//! The flame graph and the timeline of all time of all threads: a stack is as wide as its time, and
//! what ends it says the state.
use super::rows::RunSample;
use super::{End, State, Wall};
use crate::export::{
    ExportEvent, ExportProfile, Function, FunctionKind, Link, NO_CPU, NO_PARENT, StackTree, Thread, Timeline,
    TimelineEntry, facts, function_of, step,
};
use crate::functions::FunctionId;
use crate::timeline::CommId;
use kymo_data::Recording;
use rustc_hash::FxHashMap;

/// The name of the event.
const EVENT: &str = "wall-time";
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
        let begins = self.waits.iter().map(|row| row.time_ns.saturating_sub(row.total_ns()));
        let first = begins.min().unwrap_or(0);
        let last = self.waits.last().map_or(first, |row| row.time_ns.max(first));
        let mut export = facts(recording, source, (first, last));
        self.fill(&mut export, (first, last));
        export
    }

    /// Threads, functions and the event, of the time from the first moment to the last.
    pub(super) fn fill(&self, export: &mut ExportProfile, (first, last): (u64, u64)) {
        let threads = self.threads();
        export.threads = (threads.iter())
            .map(|thread| Thread {
                pid: thread.thread.0,
                tid: thread.thread.1,
                comm: self.thread_name(thread.thread.1),
                samples: thread.total_ns(),
            })
            .collect();
        let numbers = threads.iter().zip(0..).map(|(thread, number)| (thread.thread, number)).collect();
        let steps = (MOST_ENTRIES / threads.len().max(1) as u64).clamp(*STEPS.start(), *STEPS.end());
        let bucket_ns = (last - first) / steps + 1;
        let mut tree = CallTree { first, bucket_ns, numbers, ..CallTree::default() };
        for index in 0..self.waits.len() {
            self.add_row(export, &mut tree, index);
        }
        let total = tree.tree.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.self_period));
        let with_time = !self.is_by_latency();
        let links = if with_time { self.links(&tree) } else { Vec::new() };
        let entries = if with_time { tree.entries } else { Vec::new() };
        export.events.push(ExportEvent {
            name: EVENT.into(),
            unit: "ns".into(),
            total_samples: total,
            total_period: total,
            stacks: tree.tree,
            timeline: Timeline { bucket_ns, entries },
            links,
        });
    }

    /// Adds the parts of a row.
    fn add_row(&self, export: &mut ExportProfile, tree: &mut CallTree, index: usize) {
        let row = &self.waits[index];
        let (begun, woken) = super::needed::span(row);
        // Rows of a thread follow each other; those that claim more have no more moments.
        let last = tree.ends.insert(row.thread, row.time_ns).unwrap_or(0);
        let (begun, woken) = (begun.max(last), woken.max(last));
        let before = row.time_ns.saturating_sub(row.total_ns()).max(last);
        let [(_, run), waits @ ..] = self.parts(index);
        self.add_run(export, tree, index, (before, begun), run);
        let frames: Vec<FunctionId> = if self.is_idle(index) {
            self.site(self.sites.of(row.chain)).to_vec()
        } else {
            self.frames(row.chain, true).chain(self.frames(row.chain, false)).collect()
        };
        let spans = [(begun, woken), (woken, row.time_ns), (before, begun), (before, begun)];
        for ((state, time), span) in waits.into_iter().zip(spans).filter(|((_, time), _)| *time > 0) {
            let idle = self.is_idle(index) && state != State::Runnable;
            self.enter(export, tree, row.comm, &frames, (state, idle));
            tree.add(row.thread, span, time);
        }
    }

    /// The time that a thread ran is where its samples are: those of that time, else the one before
    /// or behind it.
    fn add_run(
        &self,
        export: &mut ExportProfile,
        tree: &mut CallTree,
        index: usize,
        (before, begun): (u64, u64),
        time: u64,
    ) {
        if time == 0 {
            return;
        }
        let row = &self.waits[index];
        let at =
            |moment: u64| self.runs.partition_point(|run| (run.thread, run.time_ns) <= (row.thread, moment));
        let (from, to) = (at(before), at(begun));
        let near = [from.checked_sub(1), Some(to)].into_iter().flatten();
        let mut near = near.filter_map(|at| self.runs.get(at)).filter(|run| run.thread == row.thread);
        let within = match &self.runs[from..to] {
            [] => near.next().map_or(&[][..], std::slice::from_ref),
            within => within,
        };
        let Some((last, others)) = within.split_last() else {
            self.enter(export, tree, row.comm, &[], (State::Running, false));
            return tree.add(row.thread, (before, begun), time);
        };
        let all = within.iter().fold(0_u128, |sum, run| sum + u128::from(run.period)).max(1);
        let (mut since, mut left) = (before, time);
        let mut add = |run: &RunSample, until: u64, part: u64| {
            let frames = self.stacks.frames(run.chain).to_vec();
            self.enter(export, tree, run.comm, &frames, (State::Running, false));
            tree.add(row.thread, (since, until), part);
            since = until;
        };
        for run in others {
            let part = (u128::from(time) * u128::from(run.period) / all) as u64;
            left -= part;
            add(run, run.time_ns, part);
        }
        add(last, begun, left);
    }

    /// Goes to a stack, whose frames are given innermost first.
    fn enter(
        &self,
        export: &mut ExportProfile,
        tree: &mut CallTree,
        comm: CommId,
        frames: &[FunctionId],
        (state, idle): (State, bool),
    ) {
        let name = self.timeline.comm(comm).into_owned();
        tree.enter(export, NO_PARENT, Function { name, kind: FunctionKind::Comm, ..Function::default() });
        for &frame in frames.iter().rev() {
            let function = function_of(&self.functions, &self.timeline.modules, frame);
            tree.enter(export, tree.node, function);
        }
        let name = if idle { format!("idle: {}", state.name()) } else { state.name().to_owned() };
        tree.enter(export, tree.node, Function { name, kind: FunctionKind::State, ..Function::default() });
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
    /// Where the last step led.
    node: u32,
    /// The numbers of threads.
    numbers: FxHashMap<(i32, i32), u32>,
    /// The moment of the last row of each.
    ends: FxHashMap<(i32, i32), u64>,
    first: u64,
    bucket_ns: u64,
    entries: Vec<TimelineEntry>,
}

impl CallTree {
    fn enter(&mut self, export: &mut ExportProfile, parent: u32, function: Function) {
        let next = export.functions.len() as u32;
        let number = *self.functions.entry(function).or_insert_with_key(|function| {
            export.functions.push(function.clone());
            next
        });
        self.node = step(&mut self.tree, &mut self.index, parent, number);
    }

    /// Adds time of a thread, which is spread evenly over a span, to where the last step led.
    fn add(&mut self, thread: (i32, i32), (begin, end): (u64, u64), time: u64) {
        let node = &mut self.tree.nodes[self.node as usize];
        // What the pictures count: a stack as wide as its time.
        node.self_samples = node.self_samples.saturating_add(time);
        node.self_period = node.self_period.saturating_add(time);
        let Some(&thread) = self.numbers.get(&thread) else { return };
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
            let (bucket, node) = (bucket as u32, self.node);
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
