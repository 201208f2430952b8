//! A branch of a call tree: what lies below a path. A view that opens nodes one by one asks for
//! each as it is opened, so a tree of any size costs what is shown of it.
use super::QueryError;
use super::function_key::FunctionKey;
use super::scan::{Scan, Sum};
use super::tree::{Growing, MOST_NODES};
use serde::Serialize;

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
    /// So many nodes are left out, because they have too little or are deeper than asked for.
    pub more: usize,
}

/// A function at a place of the branch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BranchNode {
    /// How many nodes of the branch are above it.
    pub depth: usize,
    /// The function.
    #[serde(skip)]
    pub function: FunctionKey,
    /// Its number in this dataset, for [`FunctionKey::of_number`].
    #[serde(rename = "function")]
    pub number: u32,
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

/// What of a branch is asked for below a node.
#[derive(Clone, Copy)]
pub(crate) struct Levels {
    left: usize,
    /// All nodes above were without others beside them.
    is_chain: bool,
}

impl Levels {
    /// So many levels, at least one.
    pub(crate) fn asked(levels: usize) -> Levels {
        Levels { left: levels.max(1), is_chain: true }
    }

    /// What is left for nodes that are so many beside each other; `None`: they are not shown.
    pub(crate) fn below(self, beside: usize) -> Option<Levels> {
        match self.is_chain && beside == 1 {
            true => Some(self),
            false => Some(Levels { left: self.left.checked_sub(1)?, is_chain: false }),
        }
    }
}

/// The nodes with enough of as many levels as are asked for, in the order to show them.
fn finish(mut tree: Growing, scan: &Scan<'_>, all: Sum, levels: usize, least_percent: f64) -> Branch {
    let totals = tree.ordered_totals(scan);
    let least = (all.period as f64 * least_percent / 100.0).ceil() as u64;
    let mut branch = Branch { samples: all.samples, period: all.period, ..Branch::default() };
    // Lists of nodes beside each other to come: how deep, what is left for them, and the next one.
    let mut pending: Vec<(usize, Levels, std::slice::Iter<'_, usize>)> = Vec::new();
    let asked = Levels::asked(levels);
    pending.extend(asked.below(tree.roots.len()).map(|levels| (0, levels, tree.roots.iter())));
    while let Some((depth, levels, list)) = pending.last_mut() {
        let (depth, levels) = (*depth, *levels);
        let Some(node) = list.next_back() else {
            pending.pop();
            continue;
        };
        let ((name, own), total, children) = (tree.nodes[*node], totals[*node], &tree.children[*node]);
        if total.period < least || branch.nodes.len() == MOST_NODES {
            continue;
        }
        let function = &scan.data.names[name as usize];
        branch.nodes.push(BranchNode {
            depth,
            function: FunctionKey::of(function),
            number: name,
            name: function.name.clone(),
            module: function.module.clone(),
            self_samples: own.samples,
            self_period: own.period,
            total_samples: total.samples,
            total_period: total.period,
            has_below: !children.is_empty(),
        });
        pending.extend(levels.below(children.len()).map(|levels| (depth + 1, levels, children.iter())));
    }
    branch.more = tree.nodes.len() - branch.nodes.len();
    branch
}

/// The nodes below a path, so many levels of them. Nodes without others beside them cost no level,
/// up to the first that have some. Of a stack on which the function of [`TreeKind::Callers`] and
/// [`TreeKind::Callees`] is several times, the outermost place counts.
pub(super) fn branch(
    scan: &Scan<'_>,
    kind: TreeKind,
    path: &[FunctionKey],
    levels: usize,
    least_percent: f64,
) -> Result<Branch, QueryError> {
    let mut tree = Growing::default();
    let mut all = Sum::default();
    // A function that the dataset does not have has nothing below it.
    let numbers: Option<Vec<u32>> = path.iter().map(|key| scan.data.number_of(key)).collect();
    // The part of a stack that the tree shows, from the root of the tree on.
    let (mut stack, mut line) = (Vec::new(), Vec::new());
    for (key, sum) in scan.by_stack()? {
        scan.data.path(key.stack, key.state, &mut stack);
        all += sum;
        let outermost = || {
            let first = numbers.as_ref()?.first()?;
            stack.iter().rposition(|name| name == first)
        };
        line.clear();
        match (kind, outermost()) {
            (TreeKind::Calls, _) => line.extend(stack.iter().rev()),
            (TreeKind::Inverted, _) => line.extend(stack.iter()),
            (TreeKind::Callers, Some(at)) => line.extend(&stack[at..]),
            (TreeKind::Callees, Some(at)) => line.extend(stack[..=at].iter().rev()),
            (_, None) => continue,
        }
        if let Some(below) = numbers.as_ref().and_then(|path| line.strip_prefix(path.as_slice()))
            && !below.is_empty()
        {
            tree.add(below.iter().copied(), sum);
        }
    }
    Ok(finish(tree, scan, all, levels, least_percent))
}
