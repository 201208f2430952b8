//! The obvious tree: every beginning of every path, with the sums of all paths that begin so.
use super::super::{Comparison, MeanPath};
use super::{CostPair, TreeStart};
use std::collections::BTreeMap;

/// The cost of a node: of paths that end there, and of all through it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModelNode {
    pub(super) own: CostPair,
    pub(super) total: CostPair,
}

/// All nodes by the functions from the start of the tree to each.
pub(super) fn nodes(
    comparison: &Comparison,
    start: TreeStart,
    is_wanted: impl Fn(&MeanPath) -> bool,
) -> BTreeMap<Vec<u32>, ModelNode> {
    let mut nodes: BTreeMap<Vec<u32>, ModelNode> = BTreeMap::new();
    for path in comparison.paths.list.iter().filter(|path| is_wanted(path)) {
        let mut functions = path.functions.clone();
        if start == TreeStart::Innermost {
            functions.reverse();
        }
        for length in 1..=functions.len() {
            let node = nodes.entry(functions[..length].to_vec()).or_default();
            node.total = CostPair { old: node.total.old + path.old, new: node.total.new + path.new };
            if length == functions.len() {
                node.own = CostPair { old: node.own.old + path.old, new: node.own.new + path.new };
            }
        }
    }
    nodes
}
