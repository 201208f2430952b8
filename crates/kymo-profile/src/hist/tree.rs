//! Call trees: the stacks that a row is on, put together from one end.
use super::Row;
use crate::functions::FunctionId;
use crate::profile::Profile;
use rustc_hash::FxHashMap;

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

/// A tree with one function per node, before runs are joined.
struct Trie {
    own: Vec<u64>,
    function: Vec<FunctionId>,
    children: Vec<Vec<u32>>,
    index: FxHashMap<(u32, FunctionId), u32>,
}

const ROOT: u32 = 0;

impl Trie {
    fn new() -> Trie {
        Trie {
            own: vec![0],
            function: vec![FunctionId(0)],
            children: vec![Vec::new()],
            index: FxHashMap::default(),
        }
    }

    fn add(&mut self, path: impl Iterator<Item = FunctionId>, period: u64) {
        let mut node = ROOT;
        for function in path {
            node = match self.index.get(&(node, function)) {
                Some(&child) => child,
                None => {
                    let child = self.own.len() as u32;
                    self.own.push(0);
                    self.function.push(function);
                    self.children.push(Vec::new());
                    self.children[node as usize].push(child);
                    self.index.insert((node, function), child);
                    child
                }
            };
        }
        if node != ROOT {
            self.own[node as usize] += period;
        }
    }

    /// Totals bottom-up; a child's index is always larger than its parent's, so no recursion is needed.
    fn totals(&self) -> Vec<u64> {
        let mut totals = self.own.clone();
        for node in (0..totals.len()).rev() {
            let below: u64 = self.children[node].iter().map(|&c| totals[c as usize]).sum();
            totals[node] += below;
        }
        totals
    }
}

impl CallTree {
    /// The tree of a row. Nodes with less than `min_period` are left out.
    pub fn new(profile: &Profile, row: &Row, order: Order, min_period: u64) -> CallTree {
        let mut trie = Trie::new();
        for &(group, frames) in &row.places {
            let (key, count) = &profile.loaded.groups[group as usize];
            let stack = profile.stacks.frames(key.chain);
            let stack = &stack[..stack.len().min(frames as usize)];
            match order {
                Order::Caller => trie.add(stack.iter().rev().copied(), count.period),
                Order::Callee => trie.add(stack.iter().copied(), count.period),
            }
        }
        let totals = trie.totals();
        CallTree { roots: join(profile, &trie, &totals, ROOT, min_period) }
    }
}

/// The children of a trie node as call nodes, runs joined. The depth is that of distinct branches on one stack, at
/// most the number of frames (127 by default).
fn join(profile: &Profile, trie: &Trie, totals: &[u64], node: u32, min_period: u64) -> Vec<CallNode> {
    let mut nodes: Vec<CallNode> = Vec::new();
    for &child in &trie.children[node as usize] {
        if totals[child as usize] < min_period {
            continue;
        }
        let mut at = child;
        let mut functions = vec![trie.function[at as usize]];
        while trie.own[at as usize] == 0
            && let [only] = trie.children[at as usize][..]
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
            let name = |n: &CallNode| profile.functions.get(n.functions[0]).name.clone();
            name(a).cmp(&name(b)).then(a.functions[0].cmp(&b.functions[0]))
        })
    });
    nodes
}
