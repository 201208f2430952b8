//! perf's search tree, kept only where it decides an answer.
//!
//! perf holds a module's symbols in a red-black tree ordered by start, and a lookup follows one path from the root:
//! left if the address is before the node, right if it is behind the node's end, found otherwise. Where symbols
//! overlap (a label inside a function, code that a just-in-time compiler placed twice), the answer depends on
//! which node lies nearer to the root, that is, on the order of insertions and removals. This replays them.
//!
//! The balancing is the textbook's (Cormen et al., chapter 13), which is also the kernel library's.

const NIL: u32 = 0;

/// What happened to the tree, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next node in order of insertion goes in.
    Insert,
    /// The node with this insertion number goes out.
    Erase(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    key: u64,
    left: u32,
    right: u32,
    parent: u32,
    red: bool,
}

/// A red-black tree over nodes numbered by insertion (from 1; 0 is the missing node).
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    root: u32,
}

impl Tree {
    /// Replays `steps`; `start_of(n)` is the key of insertion `n` (counted from 0).
    pub(super) fn replay(steps: impl Iterator<Item = Step>, start_of: impl Fn(u32) -> u64) -> Tree {
        let mut tree = Tree { nodes: vec![Node::default()], root: NIL };
        for step in steps {
            match step {
                Step::Insert => tree.insert(&start_of),
                Step::Erase(n) => tree.erase(n + 1),
            }
        }
        tree
    }

    /// Walks from the root; `side(n)` says where the wanted address lies relative to insertion `n`.
    pub(super) fn search(&self, mut side: impl FnMut(u32) -> std::cmp::Ordering) -> Option<u32> {
        let mut node = self.root;
        while node != NIL {
            match side(node - 1) {
                std::cmp::Ordering::Less => node = self.nodes[node as usize].left,
                std::cmp::Ordering::Greater => node = self.nodes[node as usize].right,
                std::cmp::Ordering::Equal => return Some(node - 1),
            }
        }
        None
    }

    fn l(&self, node: u32) -> u32 {
        self.nodes[node as usize].left
    }

    fn r(&self, node: u32) -> u32 {
        self.nodes[node as usize].right
    }

    fn p(&self, node: u32) -> u32 {
        self.nodes[node as usize].parent
    }

    fn is_red(&self, node: u32) -> bool {
        self.nodes[node as usize].red
    }

    /// Puts `new` where `old` hangs below `old`'s parent.
    fn replace(&mut self, old: u32, new: u32) {
        let parent = self.p(old);
        if parent == NIL {
            self.root = new;
        } else if self.l(parent) == old {
            self.nodes[parent as usize].left = new;
        } else {
            self.nodes[parent as usize].right = new;
        }
        self.nodes[new as usize].parent = parent;
    }

    fn rotate_left(&mut self, x: u32) {
        let y = self.r(x);
        let inner = self.l(y);
        self.nodes[x as usize].right = inner;
        if inner != NIL {
            self.nodes[inner as usize].parent = x;
        }
        self.replace(x, y);
        self.nodes[y as usize].left = x;
        self.nodes[x as usize].parent = y;
    }

    fn rotate_right(&mut self, x: u32) {
        let y = self.l(x);
        let inner = self.r(y);
        self.nodes[x as usize].left = inner;
        if inner != NIL {
            self.nodes[inner as usize].parent = x;
        }
        self.replace(x, y);
        self.nodes[y as usize].right = x;
        self.nodes[x as usize].parent = y;
    }

    fn insert(&mut self, start_of: &impl Fn(u32) -> u64) {
        let new = self.nodes.len() as u32;
        let key = start_of(new - 1);
        let mut parent = NIL;
        let mut node = self.root;
        let mut goes_left = false;
        while node != NIL {
            parent = node;
            // Equal keys go right, so that equals stay in order of insertion.
            goes_left = key < self.nodes[node as usize].key;
            node = if goes_left { self.l(node) } else { self.r(node) };
        }
        self.nodes.push(Node { key, left: NIL, right: NIL, parent, red: true });
        if parent == NIL {
            self.root = new;
        } else if goes_left {
            self.nodes[parent as usize].left = new;
        } else {
            self.nodes[parent as usize].right = new;
        }
        self.balance_insert(new);
    }

    fn balance_insert(&mut self, mut z: u32) {
        while self.is_red(self.p(z)) {
            let parent = self.p(z);
            let grand = self.p(parent);
            let parent_is_left = parent == self.l(grand);
            let uncle = if parent_is_left { self.r(grand) } else { self.l(grand) };
            if self.is_red(uncle) {
                self.nodes[parent as usize].red = false;
                self.nodes[uncle as usize].red = false;
                self.nodes[grand as usize].red = true;
                z = grand;
                continue;
            }
            let inner = if parent_is_left { self.r(parent) } else { self.l(parent) };
            if z == inner {
                z = parent;
                if parent_is_left { self.rotate_left(z) } else { self.rotate_right(z) }
            }
            let (parent, grand) = (self.p(z), self.p(self.p(z)));
            self.nodes[parent as usize].red = false;
            self.nodes[grand as usize].red = true;
            if parent_is_left { self.rotate_right(grand) } else { self.rotate_left(grand) }
        }
        let root = self.root;
        self.nodes[root as usize].red = false;
    }

    fn erase(&mut self, z: u32) {
        let removed_red;
        let x;
        if self.l(z) == NIL || self.r(z) == NIL {
            removed_red = self.is_red(z);
            x = if self.l(z) == NIL { self.r(z) } else { self.l(z) };
            self.replace(z, x);
        } else {
            let mut y = self.r(z);
            while self.l(y) != NIL {
                y = self.l(y);
            }
            removed_red = self.is_red(y);
            x = self.r(y);
            if self.p(y) == z {
                self.nodes[x as usize].parent = y;
            } else {
                self.replace(y, x);
                let right = self.r(z);
                self.nodes[y as usize].right = right;
                self.nodes[right as usize].parent = y;
            }
            self.replace(z, y);
            let left = self.l(z);
            self.nodes[y as usize].left = left;
            self.nodes[left as usize].parent = y;
            self.nodes[y as usize].red = self.is_red(z);
        }
        if !removed_red {
            self.balance_erase(x);
        }
        // The missing node lends its parent link to the balancing; it must not keep it.
        self.nodes[NIL as usize].parent = NIL;
        self.nodes[NIL as usize].red = false;
    }

    fn balance_erase(&mut self, mut x: u32) {
        while x != self.root && !self.is_red(x) {
            let parent = self.p(x);
            let x_is_left = x == self.l(parent);
            let sibling_of = |tree: &Tree| if x_is_left { tree.r(parent) } else { tree.l(parent) };
            let mut w = sibling_of(self);
            if self.is_red(w) {
                self.nodes[w as usize].red = false;
                self.nodes[parent as usize].red = true;
                if x_is_left {
                    self.rotate_left(parent)
                } else {
                    self.rotate_right(parent)
                }
                w = sibling_of(self);
            }
            let (near, far) = if x_is_left { (self.l(w), self.r(w)) } else { (self.r(w), self.l(w)) };
            if !self.is_red(near) && !self.is_red(far) {
                self.nodes[w as usize].red = true;
                x = parent;
                continue;
            }
            if !self.is_red(far) {
                self.nodes[near as usize].red = false;
                self.nodes[w as usize].red = true;
                if x_is_left {
                    self.rotate_right(w)
                } else {
                    self.rotate_left(w)
                }
                w = sibling_of(self);
            }
            self.nodes[w as usize].red = self.is_red(parent);
            self.nodes[parent as usize].red = false;
            let far = if x_is_left { self.r(w) } else { self.l(w) };
            self.nodes[far as usize].red = false;
            if x_is_left {
                self.rotate_left(parent)
            } else {
                self.rotate_right(parent)
            }
            x = self.root;
        }
        self.nodes[x as usize].red = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks order, parent links, red rule and black height below `node`; returns the black height.
    fn check(tree: &Tree, node: u32, out: &mut Vec<u32>) -> usize {
        if node == NIL {
            return 1;
        }
        let (l, r) = (tree.l(node), tree.r(node));
        for child in [l, r] {
            if child != NIL {
                assert_eq!(tree.p(child), node);
                assert!(!(tree.is_red(node) && tree.is_red(child)), "red below red");
            }
        }
        let left = check(tree, l, out);
        out.push(node - 1);
        let right = check(tree, r, out);
        assert_eq!(left, right, "black heights differ");
        left + usize::from(!tree.is_red(node))
    }

    proptest! {
        /// Checks that after any insertions and removals the tree is a red-black tree in stable order.
        #[test]
        fn stays_balanced_and_ordered(
            keys in proptest::collection::vec(0u64..40, 0..120),
            erase in proptest::collection::vec(any::<bool>(), 120),
        ) {
            let erased: Vec<u32> =
                (0..keys.len() as u32).filter(|&n| erase[n as usize]).rev().collect();
            let steps = keys.iter().map(|_| Step::Insert).chain(erased.iter().map(|&n| Step::Erase(n)));
            let tree = Tree::replay(steps, |n| keys[n as usize]);
            let mut order = Vec::new();
            check(&tree, tree.root, &mut order);
            let mut expected: Vec<u32> =
                (0..keys.len() as u32).filter(|&n| !erase[n as usize]).collect();
            expected.sort_by_key(|&n| keys[n as usize]);
            prop_assert_eq!(order, expected);
        }
    }
}
