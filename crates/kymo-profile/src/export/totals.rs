//! Per-function sums over a call tree.
use super::model::{ExportEvent, NO_PARENT};
use crate::load::Count;

/// What each function cost in one event: itself, and with everything it called.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// By function index: samples taken in the function itself.
    pub own: Vec<Count>,
    /// By function index: samples that have the function anywhere on their stack, each counted once.
    pub total: Vec<Count>,
    /// By node index: the node and everything below it.
    pub subtree: Vec<Count>,
}

impl Totals {
    /// Adds up `event`'s tree for `functions` functions. Time and memory are linear in nodes and functions.
    pub fn new(event: &ExportEvent, functions: usize) -> Totals {
        let nodes = &event.stacks.nodes;
        let mut subtree: Vec<Count> = nodes
            .iter()
            .map(|n| Count { samples: n.self_samples, period: n.self_period, latency: 0 })
            .collect();
        let mut own = vec![Count::default(); functions];
        for (node, weight) in nodes.iter().zip(&subtree) {
            if let Some(sum) = own.get_mut(node.function as usize) {
                *sum += *weight;
            }
        }
        // E1: parents come first, so going backwards each node is complete before its parent takes it.
        for index in (0..nodes.len()).rev() {
            let parent = nodes[index].parent as usize;
            if nodes[index].parent != NO_PARENT && parent < index {
                let weight = subtree[index];
                subtree[parent] += weight;
            }
        }
        let mut total = vec![Count::default(); functions];
        outermost(event, functions, |node, function| total[function] += subtree[node]);
        Totals { own, total, subtree }
    }
}

/// Calls `each(node, function)` for every node whose function does not occur above it on its own path.
fn outermost(event: &ExportEvent, functions: usize, mut each: impl FnMut(usize, usize)) {
    let nodes = &event.stacks.nodes;
    // Children as linked lists: first child and next sibling.
    let mut first = vec![NO_PARENT; nodes.len()];
    let mut next = vec![NO_PARENT; nodes.len()];
    let mut roots = Vec::new();
    for index in (0..nodes.len()).rev() {
        let parent = nodes[index].parent;
        match first.get_mut(parent as usize) {
            Some(head) if (parent as usize) < index => {
                next[index] = *head;
                *head = index as u32;
            }
            _ => roots.push(index as u32),
        }
    }
    let mut on_path = vec![0u32; functions];
    // A node is visited twice: on the way down and, marked, on the way up.
    let mut pending: Vec<(u32, bool)> = roots.into_iter().map(|root| (root, false)).collect();
    while let Some((index, leaving)) = pending.pop() {
        let index = index as usize;
        let function = nodes[index].function as usize;
        let Some(depth) = on_path.get_mut(function) else { continue };
        if leaving {
            *depth -= 1;
            continue;
        }
        if *depth == 0 {
            each(index, function);
        }
        *depth += 1;
        pending.push((index as u32, true));
        let mut child = first[index];
        while child != NO_PARENT {
            pending.push((child, false));
            child = next[child as usize];
        }
    }
}
