//! Call trees: of all stacks, from either end, and around a function.
use super::QueryError;
use super::filter::{FilterValue, fits, unknown};
use super::scan::{Scan, Sum};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;

/// A tree has so many nodes at most; what is left out is said.
pub(crate) const MOST_NODES: usize = 100_000;

/// Which way a tree goes from a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Callers,
    Callees,
}

/// A tree of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallTreeAnswer {
    /// All rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// From each function to its callers, not to what it called.
    pub inverted: bool,
    /// A node comes before its children, and these in the order of their totals.
    pub nodes: Vec<TreeNode>,
    /// So many nodes are left out, because they have too little.
    pub more: usize,
}

/// A function at a place of the tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TreeNode {
    /// The node above it, an index into the nodes.
    pub parent: Option<usize>,
    /// How many nodes are above it.
    pub depth: usize,
    /// The function.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Rows whose stack ends here.
    pub self_samples: u64,
    /// The sum of their periods.
    pub self_period: u64,
    /// Those, and those of all nodes below.
    pub total_samples: u64,
    /// The sum of their periods.
    pub total_period: u64,
}

/// A tree that grows. Children have larger numbers than their parents.
#[derive(Default)]
pub(super) struct Growing {
    /// The name of each, and the sum of what ends there.
    pub(super) nodes: Vec<(u32, Sum)>,
    pub(super) children: Vec<Vec<usize>>,
    pub(super) roots: Vec<usize>,
    index: FxHashMap<(Option<usize>, u32), usize>,
}

impl Growing {
    pub(super) fn add(&mut self, path: impl Iterator<Item = u32>, sum: Sum) {
        let mut at = None;
        for name in path {
            let next = self.nodes.len();
            let node = *self.index.entry((at, name)).or_insert(next);
            if node == next {
                self.nodes.push((name, Sum::default()));
                self.children.push(Vec::new());
                match at {
                    Some(parent) => self.children[parent].push(node),
                    None => self.roots.push(node),
                }
            }
            at = Some(node);
        }
        if let Some(node) = at {
            self.nodes[node].1 += sum;
        }
    }

    /// The sum of each node and all below it. Nodes beside each other are put in order: the one
    /// with most comes last.
    pub(super) fn ordered_totals(&mut self, scan: &Scan<'_>) -> Vec<Sum> {
        let mut totals: Vec<Sum> = self.nodes.iter().map(|(_, own)| *own).collect();
        for node in (0..self.nodes.len()).rev() {
            for child in &self.children[node] {
                let below = totals[*child];
                totals[node] += below;
            }
        }
        let names = &scan.data.names;
        let by_total = |node: &usize| {
            let function = &names[self.nodes[*node].0 as usize];
            (Reverse(totals[*node].period), Reverse(totals[*node].samples), &function.name, &function.module)
        };
        self.children.iter_mut().for_each(|list| list.sort_by(|a, b| by_total(b).cmp(&by_total(a))));
        self.roots.sort_by(|a, b| by_total(b).cmp(&by_total(a)));
        totals
    }

    /// The nodes with enough, in the order to show them.
    fn finish(mut self, scan: &Scan<'_>, all: Sum, least_percent: f64, inverted: bool) -> CallTreeAnswer {
        let totals = self.ordered_totals(scan);
        let names = &scan.data.names;
        let least = (all.period as f64 * least_percent / 100.0).ceil() as u64;
        let mut answer =
            CallTreeAnswer { samples: all.samples, period: all.period, inverted, ..Default::default() };
        // Those to come, the next one last.
        let mut pending: Vec<(usize, Option<usize>, usize)> =
            self.roots.iter().map(|root| (*root, None, 0)).collect();
        while let Some((node, parent, depth)) = pending.pop() {
            if totals[node].period < least || answer.nodes.len() == MOST_NODES {
                continue;
            }
            let ((name, own), total) = (self.nodes[node], totals[node]);
            let function = &names[name as usize];
            let at = answer.nodes.len();
            answer.nodes.push(TreeNode {
                parent,
                depth,
                name: function.name.clone(),
                module: function.module.clone(),
                self_samples: own.samples,
                self_period: own.period,
                total_samples: total.samples,
                total_period: total.period,
            });
            pending.extend(self.children[node].iter().map(|child| (*child, Some(at), depth + 1)));
        }
        answer.more = self.nodes.len() - answer.nodes.len();
        answer
    }
}

/// The tree of all stacks.
pub(super) fn whole(
    scan: &Scan<'_>,
    inverted: bool,
    least_percent: f64,
) -> Result<CallTreeAnswer, QueryError> {
    let (mut tree, mut all, mut path) = (Growing::default(), Sum::default(), Vec::new());
    for (key, sum) in scan.by_stack()? {
        scan.data.path(key.stack, key.state, &mut path);
        all += sum;
        match inverted {
            true => tree.add(path.iter().copied(), sum),
            false => tree.add(path.iter().rev().copied(), sum),
        }
    }
    Ok(tree.finish(scan, all, least_percent, inverted))
}

/// The tree that begins with the functions of a name. Of a stack on which it is several times, the
/// outermost place counts.
pub(super) fn around(
    scan: &Scan<'_>,
    function: &FilterValue,
    side: Side,
    least_percent: f64,
) -> Result<CallTreeAnswer, QueryError> {
    let names = &scan.data.names;
    let wanted: Vec<bool> = names.iter().map(|name| fits(&function.text, &name.name)).collect();
    if !wanted.contains(&true) {
        return Err(unknown("function", function, names.iter().map(|name| name.name.as_str())));
    }
    let (mut tree, mut all, mut path) = (Growing::default(), Sum::default(), Vec::new());
    for (key, sum) in scan.by_stack()? {
        scan.data.path(key.stack, key.state, &mut path);
        all += sum;
        let Some(at) = path.iter().rposition(|name| wanted[*name as usize]) else { continue };
        match side {
            Side::Callers => tree.add(path[at..].iter().copied(), sum),
            Side::Callees => tree.add(path[..=at].iter().rev().copied(), sum),
        }
    }
    Ok(tree.finish(scan, all, least_percent, side == Side::Callers))
}
