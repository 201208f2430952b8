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
#[derive(Default)]
struct Trie {
    own: Vec<u64>,
    function: Vec<FunctionId>,
    parent: Vec<u32>,
    first_child: Vec<u32>,
    next_sibling: Vec<u32>,
}

const ROOT: u32 = 0;
/// The root is nobody's child.
const NO_NODE: u32 = ROOT;

impl Trie {
    /// The tree of these paths and their periods. A path shares its beginning with the one before
    /// it in their order, so nothing is looked up: only what differs makes nodes.
    fn of(mut paths: Vec<(Path<'_>, u64)>) -> Trie {
        paths.sort_unstable_by(|a, b| a.0.order(b.0));
        let mut trie = Trie::default();
        trie.push(FunctionId(0), ROOT);
        let mut before: Vec<(FunctionId, u32)> = Vec::new();
        for (path, period) in paths {
            let shared = before.iter().zip(path.functions()).take_while(|(node, f)| node.0 == *f).count();
            before.truncate(shared);
            for function in path.functions().skip(shared) {
                let parent = before.last().map_or(ROOT, |node| node.1);
                before.push((function, trie.push(function, parent)));
            }
            if let Some(&(_, node)) = before.last() {
                trie.own[node as usize] += period;
            }
        }
        trie
    }

    fn push(&mut self, function: FunctionId, parent: u32) -> u32 {
        let node = self.own.len() as u32;
        self.own.push(0);
        self.function.push(function);
        self.parent.push(parent);
        self.first_child.push(NO_NODE);
        let next = if node == ROOT {
            NO_NODE
        } else {
            std::mem::replace(&mut self.first_child[parent as usize], node)
        };
        self.next_sibling.push(next);
        node
    }

    fn children(&self, node: u32) -> impl Iterator<Item = u32> {
        let some = |node: u32| (node != NO_NODE).then_some(node);
        std::iter::successors(some(self.first_child[node as usize]), move |&child| {
            some(self.next_sibling[child as usize])
        })
    }

    /// The only child of a node that has one.
    fn only_child(&self, node: u32) -> Option<u32> {
        let first = self.first_child[node as usize];
        (first != NO_NODE && self.next_sibling[first as usize] == NO_NODE).then_some(first)
    }

    /// Totals bottom-up; a child's index is always larger than its parent's, so no recursion is needed.
    fn totals(&self) -> Vec<u64> {
        let mut totals = self.own.clone();
        for node in (1..totals.len()).rev() {
            totals[self.parent[node] as usize] += totals[node];
        }
        totals
    }
}

/// A stack from one of its ends.
#[derive(Clone, Copy)]
enum Path<'a> {
    Outwards(&'a [FunctionId]),
    Inwards(&'a [FunctionId]),
}

impl<'a> Path<'a> {
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
        let totals = trie.totals();
        CallTree { roots: join(profile, &trie, &totals, ROOT, min_period) }
    }
}

/// The children of a trie node as call nodes, runs joined. The depth is that of distinct branches on one stack, at
/// most the number of frames (127 by default).
fn join(profile: &Profile, trie: &Trie, totals: &[u64], node: u32, min_period: u64) -> Vec<CallNode> {
    let mut nodes: Vec<CallNode> = Vec::new();
    for child in trie.children(node) {
        if totals[child as usize] < min_period {
            continue;
        }
        let mut at = child;
        let mut functions = vec![trie.function[at as usize]];
        while trie.own[at as usize] == 0
            && let Some(only) = trie.only_child(at)
        {
            at = only;
            functions.push(trie.function[at as usize]);
        }
        nodes.push(CallNode {
            functions,
            own: trie.own[at as usize],
            total: totals[child as usize],
            children: join(profile, trie, totals, at, min_period),
        });
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
