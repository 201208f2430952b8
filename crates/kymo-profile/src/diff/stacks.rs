//! The call trees of all runs as one: each run is a list of costs by node.
use super::RenamedFunction;
use crate::name_key;
use rustc_hash::FxHashMap;

/// The parent of a root.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// A function as one build calls it, without what changes in every build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FunctionLabel {
    /// The module, without the version of a library.
    pub(crate) module: String,
    /// The name, without hashes and suffixes of clones.
    pub(crate) name: String,
}

/// A function on a path, and the path that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathNode {
    pub(crate) parent: u32,
    pub(crate) function: u32,
}

/// The call trees of all runs, put together by names.
#[derive(Debug, Default)]
pub struct SharedStacks {
    pub(crate) functions: Vec<FunctionLabel>,
    function_numbers: FxHashMap<FunctionLabel, u32>,
    pub(crate) nodes: Vec<PathNode>,
    node_numbers: FxHashMap<PathNode, u32>,
    /// Source lines: function and `file:line`.
    pub(crate) lines: Vec<(u32, String)>,
    line_numbers: FxHashMap<(u32, String), u32>,
}

impl SharedStacks {
    /// No runs yet.
    pub fn new() -> SharedStacks {
        SharedStacks::default()
    }

    /// The number of a function, by its name in a build.
    pub(crate) fn function(&mut self, module: &str, name: &str) -> u32 {
        let (module, name) = (name_key::module(module).into_owned(), name_key::function(name).into_owned());
        self.label(FunctionLabel { module, name })
    }

    fn label(&mut self, label: FunctionLabel) -> u32 {
        let next = self.functions.len() as u32;
        *self.function_numbers.entry(label).or_insert_with_key(|label| {
            self.functions.push(label.clone());
            next
        })
    }

    /// The node of a function below a parent. A function that calls a part of itself stays one node.
    pub(crate) fn step(&mut self, parent: u32, function: u32) -> u32 {
        if self.nodes.get(parent as usize).is_some_and(|node| node.function == function) {
            return parent;
        }
        let (node, next) = (PathNode { parent, function }, self.nodes.len() as u32);
        *self.node_numbers.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            next
        })
    }

    /// The number of a source line of a function.
    pub(crate) fn line(&mut self, function: u32, line: &str) -> u32 {
        let next = self.lines.len() as u32;
        *self.line_numbers.entry((function, line.to_owned())).or_insert_with_key(|key| {
            self.lines.push(key.clone());
            next
        })
    }

    /// The functions from a node to its root.
    pub(crate) fn path(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.parent;
            Some(node.function)
        })
    }

    /// The cost of each function, of that of each node.
    pub(crate) fn by_function(&self, nodes: &[f64]) -> Vec<f64> {
        let mut costs = vec![0.0; self.functions.len()];
        for (node, cost) in self.nodes.iter().zip(nodes) {
            costs[node.function as usize] += cost;
        }
        costs
    }

    /// The cost of each node with all below it, of that of each node.
    pub(crate) fn inclusive(&self, nodes: &[f64]) -> Vec<f64> {
        let mut inclusive = nodes.to_vec();
        inclusive.resize(self.nodes.len(), 0.0);
        // Parents come first.
        for at in (0..self.nodes.len()).rev() {
            let cost = inclusive[at];
            if let Some(parent) = inclusive.get_mut(self.nodes[at].parent as usize) {
                *parent += cost;
            }
        }
        inclusive
    }

    /// The same trees with other labels: functions of one label are one.
    pub(crate) fn relabelled(&self, labels: &[FunctionLabel]) -> (SharedStacks, Renumbering) {
        let mut to = SharedStacks::default();
        let functions: Vec<u32> = labels.iter().map(|label| to.label(label.clone())).collect();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            // Parents come first.
            let parent = nodes.get(node.parent as usize).copied().unwrap_or(NO_NODE);
            nodes.push(to.step(parent, functions[node.function as usize]));
        }
        let lines = self.lines.iter().map(|(of, line)| to.line(functions[*of as usize], line)).collect();
        (to, Renumbering { nodes, lines, ..Renumbering::default() })
    }
}

/// Where the nodes and lines of runs are in the matched trees, and what was matched.
#[derive(Debug, Default)]
pub(crate) struct Renumbering {
    pub(crate) nodes: Vec<u32>,
    pub(crate) lines: Vec<u32>,
    /// Modules of one side that are another one of the other side: new name, old name.
    pub(crate) modules: Vec<(String, String)>,
    /// Functions that the new build calls otherwise.
    pub(crate) renames: Vec<RenamedFunction>,
    /// How many functions were joined without their numbers, lines or folders.
    pub(crate) joined: usize,
}

impl Renumbering {
    /// Costs of nodes under their new numbers.
    pub(crate) fn moved(&self, costs: &[f64], count: usize) -> Vec<f64> {
        let mut moved = vec![0.0; count];
        self.nodes.iter().zip(costs).for_each(|(node, cost)| moved[*node as usize] += cost);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that parts of functions are the function, also on a path.
    #[test]
    fn parts_are_no_frames_of_their_own() {
        let mut stacks = SharedStacks::new();
        let (whole, part) = (stacks.function("app", "f"), stacks.function("app", "f.cold"));
        assert_eq!(whole, part);
        let root = stacks.step(NO_NODE, whole);
        assert_eq!(stacks.step(root, part), root);
        assert_eq!(stacks.path(root).collect::<Vec<_>>(), [whole]);
    }
}
