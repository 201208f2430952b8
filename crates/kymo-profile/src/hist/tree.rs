//! Call trees: the stacks that a row is on, put together from one end.
use super::Row;
use crate::functions::FunctionId;
use crate::profile::Profile;
use std::cmp::Ordering;

/// Which end of the stacks a tree starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// From the row down to what it called.
    Caller,
    /// From the row up to who called it.
    Callee,
}

/// A node of a call tree: a run of functions without a branch.
#[derive(Debug, Clone, Default)]
pub struct CallNode {
    /// The functions, from the tree's root on.
    pub functions: Vec<FunctionId>,
    /// Period of the samples whose stack ends here.
    pub own: u64,
    /// Period of those and of all below.
    pub total: u64,
    /// What branches off, largest first; equal ones by name.
    pub children: Vec<CallNode>,
}

/// The call tree of a row.
#[derive(Debug, Clone, Default)]
pub struct CallTree {
    /// Roots, largest first.
    pub roots: Vec<CallNode>,
}

/// A tree with one function per node, before runs are joined. Nodes are numbered in the order of
/// their paths, so a node comes after its parent.
struct Trie {
    nodes: Vec<TrieNode>,
}

struct TrieNode {
    own: u64,
    /// With all below, once it was summed up.
    total: u64,
    function: FunctionId,
    parent: u32,
    first_child: u32,
    next_sibling: u32,
}

const ROOT: u32 = 0;
/// The root is nobody's child.
const NO_NODE: u32 = ROOT;

impl Trie {
    /// The tree of these paths and their periods. A path shares its beginning with the one before
    /// it in their order, so nothing is looked up: only what differs makes nodes.
    fn of(mut paths: Vec<(Path<'_>, u64)>) -> Trie {
        paths.sort_unstable_by(|a, b| a.0.order(b.0));
        let longest = paths.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
        let mut trie = Trie { nodes: Vec::with_capacity(1 + longest) };
        trie.push(FunctionId(0), ROOT);
        let mut before: Vec<(FunctionId, u32)> = Vec::with_capacity(longest);
        for (path, period) in paths {
            let shared = before.iter().zip(path.functions()).take_while(|(node, f)| node.0 == *f).count();
            before.truncate(shared);
            for function in path.functions().skip(shared) {
                let parent = before.last().map_or(ROOT, |node| node.1);
                before.push((function, trie.push(function, parent)));
            }
            if let Some(&(_, node)) = before.last() {
                trie.nodes[node as usize].own += period;
            }
        }
        trie.sum_up();
        trie
    }

    fn push(&mut self, function: FunctionId, parent: u32) -> u32 {
        let number = self.nodes.len() as u32;
        let next_sibling = match self.nodes.get_mut(parent as usize) {
            Some(parent) => std::mem::replace(&mut parent.first_child, number),
            None => NO_NODE,
        };
        let node = TrieNode { own: 0, total: 0, function, parent, first_child: NO_NODE, next_sibling };
        self.nodes.push(node);
        number
    }

    fn node(&self, number: u32) -> &TrieNode {
        &self.nodes[number as usize]
    }

    fn children(&self, node: u32) -> impl Iterator<Item = u32> {
        let some = |node: u32| (node != NO_NODE).then_some(node);
        std::iter::successors(some(self.node(node).first_child), move |&child| {
            some(self.node(child).next_sibling)
        })
    }

    /// The only child of a node that has one.
    fn only_child(&self, node: u32) -> Option<u32> {
        let first = self.node(node).first_child;
        (first != NO_NODE && self.node(first).next_sibling == NO_NODE).then_some(first)
    }

    /// Totals bottom-up; a child's index is always larger than its parent's, so no recursion is needed.
    fn sum_up(&mut self) {
        for node in (0..self.nodes.len()).rev() {
            let TrieNode { own, total, parent, .. } = self.nodes[node];
            self.nodes[node].total = own + total;
            if node != ROOT as usize {
                self.nodes[parent as usize].total += own + total;
            }
        }
    }
}

/// A stack from one of its ends.
#[derive(Clone, Copy)]
enum Path<'a> {
    Outwards(&'a [FunctionId]),
    Inwards(&'a [FunctionId]),
}

impl<'a> Path<'a> {
    fn len(self) -> usize {
        match self {
            Path::Outwards(stack) | Path::Inwards(stack) => stack.len(),
        }
    }

    fn functions(self) -> impl Iterator<Item = FunctionId> {
        let (stack, is_inwards): (&'a [FunctionId], _) = match self {
            Path::Outwards(stack) => (stack, false),
            Path::Inwards(stack) => (stack, true),
        };
        let last = stack.len().wrapping_sub(1);
        (0..stack.len()).map(move |at| stack[if is_inwards { last - at } else { at }])
    }

    /// By the functions of both. Stacks share most of their outer frames, so those of paths inwards
    /// are compared several at once.
    fn order(self, other: Path<'_>) -> Ordering {
        let (Path::Inwards(mut a), Path::Inwards(mut b)) = (self, other) else {
            return self.functions().cmp(other.functions());
        };
        while let (Some((a_rest, a_end)), Some((b_rest, b_end))) =
            (a.split_last_chunk::<8>(), b.split_last_chunk::<8>())
        {
            // Without a branch for each, so that they are compared as one vector.
            if !(0..8).fold(true, |same, at| same & (a_end[at] == b_end[at])) {
                break;
            }
            (a, b) = (a_rest, b_rest);
        }
        a.iter().rev().cmp(b.iter().rev())
    }
}

impl CallTree {
    /// The tree of a row. Nodes with less than `min_period` are left out.
    pub fn new(profile: &Profile, row: &Row, order: Order, min_period: u64) -> CallTree {
        let path = |&(group, frames): &(u32, u32)| {
            let (key, count) = &profile.loaded.groups[group as usize];
            let stack = profile.stacks.frames(key.chain);
            let stack = &stack[..stack.len().min(frames as usize)];
            let path = match order {
                Order::Caller => Path::Inwards(stack),
                Order::Callee => Path::Outwards(stack),
            };
            (path, count.period)
        };
        let trie = Trie::of(row.places.iter().map(path).collect());
        CallTree { roots: join(profile, &trie, ROOT, min_period) }
    }
}

/// The children of a trie node as call nodes, runs joined. The depth is that of distinct branches on one stack, at
/// most the number of frames (127 by default).
fn join(profile: &Profile, trie: &Trie, node: u32, min_period: u64) -> Vec<CallNode> {
    let mut nodes: Vec<CallNode> = Vec::new();
    for child in trie.children(node) {
        let total = trie.node(child).total;
        if total < min_period {
            continue;
        }
        let mut at = child;
        let mut functions = vec![trie.node(at).function];
        while trie.node(at).own == 0
            && let Some(only) = trie.only_child(at)
        {
            at = only;
            functions.push(trie.node(at).function);
        }
        let children = join(profile, trie, at, min_period);
        nodes.push(CallNode { functions, own: trie.node(at).own, total, children });
    }
    nodes.sort_by(|a, b| {
        b.total.cmp(&a.total).then_with(|| {
            let name = |n: &CallNode| profile.functions.get(n.functions[0]).name.as_deref();
            name(a).cmp(&name(b)).then(a.functions[0].cmp(&b.functions[0]))
        })
    });
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that paths are ordered by their functions, from either end, whatever they share.
        #[test]
        fn paths_in_the_order_of_their_functions(
            shared in proptest::collection::vec(0..3u32, 0..40),
            a in proptest::collection::vec(0..3u32, 0..12),
            b in proptest::collection::vec(0..3u32, 0..12),
        ) {
            let stack = |own: &[u32], end: &[u32]| -> Vec<FunctionId> {
                own.iter().chain(end).map(|&number| FunctionId(number)).collect()
            };
            for (a, b) in [(stack(&a, &shared), stack(&b, &shared)), (stack(&shared, &a), stack(&shared, &b))] {
                let reversed = |stack: &[FunctionId]| stack.iter().rev().copied().collect::<Vec<_>>();
                prop_assert_eq!(Path::Outwards(&a).order(Path::Outwards(&b)), a.cmp(&b));
                let inwards = Path::Inwards(&a).order(Path::Inwards(&b));
                prop_assert_eq!(inwards, reversed(&a).cmp(&reversed(&b)));
            }
        }
    }
}
