//! The flame graph of all time of all threads: its width is wall time times threads, and what ends
//! each stack says the state.
use super::{State, Wall};
use crate::export::{
    ExportEvent, ExportProfile, Function, FunctionKind, NO_PARENT, StackTree, facts, function_of, step,
};

use crate::functions::FunctionId;
use crate::timeline::CommId;
use kymo_data::Recording;
use rustc_hash::FxHashMap;

/// The name of the event.
const EVENT: &str = "wall-time";

impl Wall {
    /// As an export with one event, in ns. Idle threads are one stack for each place.
    pub fn export(&self, recording: &Recording, source: &str) -> ExportProfile {
        let first = self.waits.first().map_or(0, |row| row.time_ns.saturating_sub(row.total_ns()));
        let last = self.waits.last().map_or(first, |row| row.time_ns.max(first));
        let mut export = facts(recording, source, (first, last));
        let mut tree = CallTree::default();
        // The time that a thread ran is where its samples are.
        let mut sampled: FxHashMap<(i32, i32), u64> = FxHashMap::default();
        for ((thread, ..), period) in &self.runs {
            *sampled.entry(*thread).or_default() += period;
        }
        let mut ran: FxHashMap<(i32, i32), (u64, CommId)> = FxHashMap::default();
        for (index, row) in self.waits.iter().enumerate() {
            let [(_, run_ns), ..] = self.parts(index);
            ran.entry(row.thread).or_insert((0, row.comm)).0 += run_ns;
            let frames: Vec<FunctionId> = if self.is_idle(index) {
                self.site(self.sites.of(row.chain)).to_vec()
            } else {
                self.frames(row.chain, true).chain(self.frames(row.chain, false)).collect()
            };
            let parts =
                self.parts(index).into_iter().filter(|(state, time)| *state != State::Running && *time > 0);
            for (state, time) in parts {
                let idle = self.is_idle(index) && state != State::Runnable;
                self.add(&mut export, &mut tree, row.comm, &frames, (state, idle), time);
            }
        }
        let mut runs: Vec<_> = self.runs.iter().collect();
        runs.sort_unstable_by_key(|((thread, comm, chain), _)| (*thread, comm.number(), *chain));
        for ((thread, comm, chain), period) in runs {
            let (time, all) = (ran.get(thread).map_or(0, |(time, _)| *time), sampled[thread].max(1));
            let part = (u128::from(time) * u128::from(*period) / u128::from(all)) as u64;
            let frames = self.stacks.frames(*chain).to_vec();
            self.add(&mut export, &mut tree, *comm, &frames, (State::Running, false), part);
        }
        let mut unsampled: Vec<_> =
            ran.into_iter().filter(|(thread, _)| !sampled.contains_key(thread)).collect();
        unsampled.sort_unstable_by_key(|(thread, _)| *thread);
        for (_, (time, comm)) in unsampled {
            self.add(&mut export, &mut tree, comm, &[], (State::Running, false), time);
        }
        let total = tree.tree.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.self_period));
        export.events.push(ExportEvent {
            name: EVENT.into(),
            unit: "ns".into(),
            total_samples: total,
            total_period: total,
            stacks: tree.tree,
            ..ExportEvent::default()
        });
        export
    }

    /// Adds time to a stack, whose frames are given innermost first.
    fn add(
        &self,
        export: &mut ExportProfile,
        tree: &mut CallTree,
        comm: CommId,
        frames: &[FunctionId],
        (state, idle): (State, bool),
        time: u64,
    ) {
        let name = self.timeline.comm(comm).into_owned();
        tree.enter(export, NO_PARENT, Function { name, kind: FunctionKind::Comm, ..Function::default() });
        for &frame in frames.iter().rev() {
            let function = function_of(&self.functions, &self.timeline.modules, frame);
            tree.enter(export, tree.node, function);
        }
        let name = if idle { format!("idle: {}", state.name()) } else { state.name().to_owned() };
        tree.enter(export, tree.node, Function { name, kind: FunctionKind::State, ..Function::default() });
        let node = &mut tree.tree.nodes[tree.node as usize];
        // What the pictures count: a stack as wide as its time.
        node.self_samples = node.self_samples.saturating_add(time);
        node.self_period = node.self_period.saturating_add(time);
    }
}

/// A call tree that grows.
#[derive(Default)]
struct CallTree {
    tree: StackTree,
    index: FxHashMap<(u32, u32), u32>,
    functions: FxHashMap<Function, u32>,
    /// Where the last step led.
    node: u32,
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
}
