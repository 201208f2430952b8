//! A branch of a call tree: what lies below a path. A view that opens nodes one by one asks for
//! each as it is opened, so a tree of any size costs what is shown of it.
use super::QueryError;
use super::scan::{Scan, Sum};
use super::tree::MOST_NODES;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;

/// A function of a [`Dataset`](super::Dataset), exactly: functions of the same name stay apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FunctionKey(pub(super) u32);

/// Which tree a branch is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeKind {
    /// From the outermost callers to what they called.
    Calls,
    /// From the innermost functions to their callers.
    Inverted,
    /// From a function to its callers. The path begins with the function.
    Callers,
    /// From a function to what it called. The path begins with the function.
    Callees,
}

/// What lies below a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Branch {
    /// All rows that count, also those outside of the branch.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// A node comes before its children, and these in the order of their totals.
    pub nodes: Vec<BranchNode>,
    /// So many nodes are left out, because they have too little.
    pub more: usize,
}

/// A function at a place of the branch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BranchNode {
    /// How many nodes of the branch are above it.
    pub depth: usize,
    /// The function.
    pub function: FunctionKey,
    /// Its name.
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
    /// Whether there are nodes below it, asked for or not.
    pub has_below: bool,
}

#[derive(Default)]
struct GrowingNode {
    name: u32,
    own: Sum,
    total: Sum,
    children: Vec<usize>,
    has_below: bool,
}

/// Grows by the parts of stacks that lie below the path.
struct GrowingBranch {
    nodes: Vec<GrowingNode>,
    roots: Vec<usize>,
    index: FxHashMap<(Option<usize>, u32), usize>,
    levels: usize,
}

impl GrowingBranch {
    fn add(&mut self, below: impl Iterator<Item = u32>, sum: Sum) {
        let mut at = None;
        let mut below = below.peekable();
        for _ in 0..self.levels {
            let Some(name) = below.next() else { break };
            let next = self.nodes.len();
            let node = *self.index.entry((at, name)).or_insert(next);
            if node == next {
                self.nodes.push(GrowingNode { name, ..GrowingNode::default() });
                match at {
                    Some(parent) => self.nodes[parent].children.push(node),
                    None => self.roots.push(node),
                }
            }
            let node_ref = &mut self.nodes[node];
            node_ref.total += sum;
            match below.peek() {
                Some(_) => node_ref.has_below = true,
                None => node_ref.own += sum,
            }
            at = Some(node);
        }
    }

    /// The nodes with enough, in the order to show them.
    fn finish(mut self, scan: &Scan<'_>, all: Sum, least_percent: f64) -> Branch {
        let names = &scan.data.names;
        let mut lists: Vec<Vec<usize>> =
            self.nodes.iter_mut().map(|node| std::mem::take(&mut node.children)).collect();
        let nodes = &self.nodes;
        let by_total = |node: &usize| {
            let (total, name) = (nodes[*node].total, nodes[*node].name);
            let function = &names[name as usize];
            (Reverse((total.period, total.samples)), &function.name, &function.module, name)
        };
        let sort = |list: &mut Vec<usize>| list.sort_by(|a, b| by_total(a).cmp(&by_total(b)));
        lists.iter_mut().for_each(sort);
        sort(&mut self.roots);
        let least = (all.period as f64 * least_percent / 100.0).ceil() as u64;
        let mut branch = Branch { samples: all.samples, period: all.period, ..Branch::default() };
        // Those to come, the next one last.
        let mut pending: Vec<(usize, usize)> = self.roots.iter().rev().map(|root| (*root, 0)).collect();
        while let Some((at, depth)) = pending.pop() {
            let node = &nodes[at];
            if node.total.period < least || branch.nodes.len() == MOST_NODES {
                continue;
            }
            let function = &names[node.name as usize];
            branch.nodes.push(BranchNode {
                depth,
                function: FunctionKey(node.name),
                name: function.name.clone(),
                module: function.module.clone(),
                self_samples: node.own.samples,
                self_period: node.own.period,
                total_samples: node.total.samples,
                total_period: node.total.period,
                has_below: node.has_below,
            });
            pending.extend(lists[at].iter().rev().map(|child| (*child, depth + 1)));
        }
        branch.more = nodes.len() - branch.nodes.len();
        branch
    }
}

/// The nodes below a path, so many levels of them. Of a stack on which the function of
/// [`TreeKind::Callers`] and [`TreeKind::Callees`] is several times, the outermost place counts.
pub(super) fn branch(
    scan: &Scan<'_>,
    kind: TreeKind,
    path: &[FunctionKey],
    levels: usize,
    least_percent: f64,
) -> Result<Branch, QueryError> {
    let mut tree = GrowingBranch {
        nodes: Vec::new(),
        roots: Vec::new(),
        index: FxHashMap::default(),
        levels: levels.max(1),
    };
    let mut all = Sum::default();
    // The part of a stack that the tree shows, from the root of the tree on.
    let (mut stack, mut line) = (Vec::new(), Vec::new());
    for (key, sum) in scan.by_stack()? {
        scan.data.path(key.stack, key.state, &mut stack);
        all += sum;
        let outermost = || {
            let first = path.first()?;
            stack.iter().rposition(|name| *name == first.0)
        };
        line.clear();
        match (kind, outermost()) {
            (TreeKind::Calls, _) => line.extend(stack.iter().rev()),
            (TreeKind::Inverted, _) => line.extend(stack.iter()),
            (TreeKind::Callers, Some(at)) => line.extend(&stack[at..]),
            (TreeKind::Callees, Some(at)) => line.extend(stack[..=at].iter().rev()),
            (_, None) => continue,
        }
        let is_below = line.len() > path.len() && path.iter().zip(&line).all(|(key, name)| key.0 == *name);
        if is_below {
            tree.add(line[path.len()..].iter().copied(), sum);
        }
    }
    Ok(tree.finish(scan, all, least_percent))
}
