//! The call trees of both sides as one tree, whose nodes have their mean cost on each side.
//!
//! Paths are sorted by their functions, from the start of the tree on, so the paths through a node
//! stand beside each other: a node is a range of them. A tree of any size costs one list of
//! numbers, and what is below a node is made when it is asked for.
//!
//! # Invariants
//! - **T1** The total of a node is its own cost and the totals of the nodes directly below it.
//! - **T2** In the tree from the innermost functions the total of a root is the cost of its
//!   function's [`Effect`](super::Effect), where functions are compared by their own cost.
use super::{Comparison, MeanPath, MeanPaths, Subject};
use crate::query::{Levels, MOST_NODES};
use rustc_hash::FxHashMap;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeStart {
    /// At the outermost callers; below each function is what it called.
    Outermost,
    /// At the innermost functions; below each function are its callers.
    Innermost,
}

/// The order of nodes beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeOrder {
    /// Those that changed most first, in either direction.
    Change,
    /// Those that cost most on the new side first.
    New,
}

/// The mean cost on each side, weighted as those of an [`Effect`](super::Effect).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostPair {
    /// On the old side.
    pub old: f64,
    /// On the new side.
    pub new: f64,
}

impl CostPair {
    /// New minus old.
    pub fn change(self) -> f64 {
        self.new - self.old
    }

    fn add(&mut self, path: &MeanPath) {
        self.old += path.old;
        self.new += path.new;
    }
}

/// A node of a [`ComparedTree`]: the paths from `first` to `end`, which have so many functions in
/// common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRange {
    first: u32,
    end: u32,
    functions: u32,
}

/// A function at a place of the tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComparedNode<'a> {
    /// Its paths, to ask for what is below it.
    pub node: NodeRange,
    /// How many of the nodes that were asked for are above it.
    pub depth: usize,
    /// The function's name.
    pub name: &'a str,
    /// Its module.
    pub module: &'a str,
    /// Its number in the comparison's paths.
    pub(crate) function: u32,
    /// Its function's place in [`Comparison::effects`], where functions are compared and this one
    /// was tested.
    pub effect: Option<usize>,
    /// The cost of paths that end here.
    pub own: CostPair,
    /// That, and the totals of all nodes below.
    pub total: CostPair,
    /// Whether there are nodes below it.
    pub has_below: bool,
}

/// The call trees of both sides as one tree.
#[derive(Clone, Debug)]
pub struct ComparedTree<'a> {
    paths: &'a MeanPaths,
    start: TreeStart,
    /// Places in the list of paths, in the order of their functions.
    order: Vec<u32>,
    /// By number of a function its place in the list of effects.
    effects: FxHashMap<u32, usize>,
    /// By place in the list of effects the number of a function.
    functions: FxHashMap<usize, u32>,
}

impl<'a> ComparedTree<'a> {
    /// No more nodes are given at once.
    pub const MOST_NODES: usize = MOST_NODES;

    /// The tree of all paths that have a function with `part` in its name.
    pub fn new(comparison: &'a Comparison, start: TreeStart, part: &str) -> ComparedTree<'a> {
        let paths = &comparison.paths;
        let has_part: Vec<bool> = paths.functions.iter().map(|label| label.name.contains(part)).collect();
        let functions = |path: &u32| paths.list[*path as usize].functions.iter();
        let is_wanted = |path: &u32| functions(path).any(|function| has_part[*function as usize]);
        let mut order: Vec<u32> = (0..paths.list.len() as u32).filter(is_wanted).collect();
        match start {
            TreeStart::Outermost => order.sort_by(|a, b| functions(a).cmp(functions(b))),
            TreeStart::Innermost => order.sort_by(|a, b| functions(a).rev().cmp(functions(b).rev())),
        }
        let effects: FxHashMap<u32, usize> = comparison.function_effects().collect();
        let functions = effects.iter().map(|(function, effect)| (*effect, *function)).collect();
        ComparedTree { paths, start, order, effects, functions }
    }

    /// The cost of all of its paths.
    pub fn whole(&self) -> CostPair {
        self.total(0, self.order.len())
    }

    /// The root of the function that an effect is of, by its place in [`Comparison::effects`]; none
    /// in a tree from the outermost callers, and where other things than functions are compared.
    pub fn root_of(&self, effect: usize) -> Option<NodeRange> {
        let function = *self.functions.get(&effect).filter(|_| self.start == TreeStart::Innermost)?;
        let bound = |is_before: fn(u32, u32) -> bool| {
            let first = |path: &u32| self.paths.list[*path as usize].functions.last();
            self.order.partition_point(|path| first(path).is_none_or(|found| is_before(*found, function)))
        };
        let (first, end) = (bound(|found, function| found < function), bound(|found, of| found <= of));
        (first < end).then_some(NodeRange { first: first as u32, end: end as u32, functions: 1 })
    }

    /// Whether there are nodes below a node.
    pub fn has_below(&self, node: NodeRange) -> bool {
        // Paths that end at a node stand before those that go on.
        node.end.checked_sub(1).is_some_and(|last| self.function(last as usize, node.functions).is_some())
    }

    /// The nodes below a node, or from the roots on: so many levels, each node before those below
    /// it. Nodes without others beside them cost no level, up to the first that have some. No more
    /// than [`ComparedTree::MOST_NODES`].
    pub fn below(&self, node: Option<NodeRange>, levels: usize, order: TreeOrder) -> Vec<ComparedNode<'a>> {
        self.nodes(node, levels, order, ComparedTree::MOST_NODES)
    }

    /// The nodes directly below a node, or the roots.
    pub fn directly_below(&self, node: Option<NodeRange>, order: TreeOrder) -> Vec<ComparedNode<'a>> {
        self.children(node.unwrap_or(self.all()), order)
    }

    /// [`ComparedTree::below`], of so many nodes at most.
    pub(super) fn nodes(
        &self,
        node: Option<NodeRange>,
        levels: usize,
        order: TreeOrder,
        most: usize,
    ) -> Vec<ComparedNode<'a>> {
        let mut nodes = Vec::new();
        // Nodes beside each other to come: how deep, what is left for them, and themselves.
        let mut pending: Vec<(usize, Levels, std::vec::IntoIter<ComparedNode<'a>>)> = Vec::new();
        let first = self.directly_below(node, order);
        let asked = Levels::asked(levels).below(first.len());
        pending.extend(asked.map(|levels| (0, levels, first.into_iter())));
        while let Some((depth, levels, list)) = pending.last_mut() {
            let (depth, levels) = (*depth, *levels);
            let Some(next) = list.next() else {
                pending.pop();
                continue;
            };
            if nodes.len() >= most {
                break;
            }
            nodes.push(ComparedNode { depth, ..next });
            let below = self.children(next.node, order);
            let left = levels.below(below.len());
            pending.extend(left.map(|levels| (depth + 1, levels, below.into_iter())));
        }
        nodes
    }

    fn all(&self) -> NodeRange {
        NodeRange { first: 0, end: self.order.len() as u32, functions: 0 }
    }

    fn children(&self, node: NodeRange, order: TreeOrder) -> Vec<ComparedNode<'a>> {
        let depth = node.functions;
        let mut children: Vec<ComparedNode<'a>> = Vec::new();
        for at in node.first..node.end {
            let Some(function) = self.function(at as usize, depth) else { continue };
            let same = children.last_mut().filter(|last| last.function == function);
            let child = match same {
                Some(child) => child,
                None => {
                    children.push(self.empty_node(at, depth + 1, function));
                    // SANITY: it has just been pushed.
                    children.last_mut().expect("a node")
                }
            };
            let path = &self.paths.list[self.order[at as usize] as usize];
            child.node.end = at + 1;
            child.total.add(path);
            match self.function(at as usize, depth + 1) {
                Some(_) => child.has_below = true,
                None => child.own.add(path),
            }
        }
        let size = |node: &ComparedNode<'_>| match order {
            TreeOrder::Change => node.total.change().abs(),
            TreeOrder::New => node.total.new,
        };
        children.sort_by(|a, b| {
            size(b).total_cmp(&size(a)).then_with(|| (a.name, a.module).cmp(&(b.name, b.module)))
        });
        children
    }

    fn empty_node(&self, first: u32, functions: u32, function: u32) -> ComparedNode<'a> {
        let label = &self.paths.functions[function as usize];
        ComparedNode {
            node: NodeRange { first, end: first, functions },
            depth: 0,
            name: &label.name,
            module: &label.module,
            function,
            effect: self.effects.get(&function).copied(),
            own: CostPair::default(),
            total: CostPair::default(),
            has_below: false,
        }
    }

    /// A function of a path by its place in the order, from the start of the tree on.
    fn function(&self, at: usize, depth: u32) -> Option<u32> {
        let functions = &self.paths.list[self.order[at] as usize].functions;
        let depth = depth as usize;
        match self.start {
            TreeStart::Outermost => functions.get(depth).copied(),
            TreeStart::Innermost => functions.len().checked_sub(depth + 1).map(|at| functions[at]),
        }
    }

    fn total(&self, first: usize, end: usize) -> CostPair {
        let mut sum = CostPair::default();
        self.order[first..end].iter().for_each(|path| sum.add(&self.paths.list[*path as usize]));
        sum
    }
}

impl Comparison {
    /// The numbers of functions in the paths with the places of their effects; nothing where the
    /// rows are something else.
    pub(super) fn function_effects(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        let labels = self.paths.functions.iter().zip(0..);
        let numbers: FxHashMap<(&str, &str), u32> =
            labels.map(|(label, number)| ((label.module.as_str(), label.name.as_str()), number)).collect();
        let is_of_functions = self.subject == Subject::Functions;
        let effects = self.effects.iter().enumerate().filter(move |_| is_of_functions);
        effects.filter_map(move |(at, effect)| {
            let number = numbers.get(&(effect.module.as_str(), effect.name.as_str()))?;
            Some((*number, at))
        })
    }
}
