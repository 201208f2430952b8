//! perf's search tree, kept only where it decides an answer.
//!
//! perf holds a module's symbols in a red-black tree ordered by start, and a lookup follows one path from the root:
//! left if the address is before the node, right if it is behind the node's end, found otherwise. Where symbols
//! overlap (a label inside a function, code that a just-in-time compiler placed twice), the answer depends on
//! which node lies nearer to the root, that is, on the order of insertions and removals. This replays them.
//!
//! The balancing is the textbook's (Cormen et al., chapter 13), which is also the kernel library's.

const NIL: u32 = 0;
const LEFT: usize = 0;
const RIGHT: usize = 1;

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
    children: [u32; 2],
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
                std::cmp::Ordering::Less => node = self.child(node, LEFT),
                std::cmp::Ordering::Greater => node = self.child(node, RIGHT),
                std::cmp::Ordering::Equal => return Some(node - 1),
            }
        }
        None
    }

    fn child(&self, node: u32, side: usize) -> u32 {
        self.nodes[node as usize].children[side]
    }

    fn p(&self, node: u32) -> u32 {
        self.nodes[node as usize].parent
    }

    fn is_red(&self, node: u32) -> bool {
        self.nodes[node as usize].red
    }

    fn set_red(&mut self, node: u32, red: bool) {
        self.nodes[node as usize].red = red;
    }

    /// Hangs `child` on one side below `parent`.
    fn link(&mut self, parent: u32, side: usize, child: u32) {
        self.nodes[parent as usize].children[side] = child;
        self.nodes[child as usize].parent = parent;
    }

    /// The side of its parent on which a node hangs.
    fn side_of(&self, node: u32) -> usize {
        usize::from(self.child(self.p(node), LEFT) != node)
    }

    /// Puts `new` where `old` hangs below `old`'s parent.
    fn replace(&mut self, old: u32, new: u32) {
        let parent = self.p(old);
        if parent == NIL {
            self.root = new;
        } else {
            let side = self.side_of(old);
            self.nodes[parent as usize].children[side] = new;
        }
        self.nodes[new as usize].parent = parent;
    }

    /// Moves `x` down to this side; its other child takes its place.
    fn rotate(&mut self, x: u32, side: usize) {
        let y = self.child(x, 1 - side);
        let inner = self.child(y, side);
        self.nodes[x as usize].children[1 - side] = inner;
        if inner != NIL {
            self.nodes[inner as usize].parent = x;
        }
        self.replace(x, y);
        self.link(y, side, x);
    }

    fn insert(&mut self, start_of: &impl Fn(u32) -> u64) {
        let new = self.nodes.len() as u32;
        let key = start_of(new - 1);
        let (mut parent, mut node, mut side) = (NIL, self.root, LEFT);
        while node != NIL {
            parent = node;
            // Equal keys go right, so that equals stay in order of insertion.
            side = usize::from(key >= self.nodes[node as usize].key);
            node = self.child(node, side);
        }
        self.nodes.push(Node { key, children: [NIL; 2], parent, red: true });
        if parent == NIL {
            self.root = new;
        } else {
            self.link(parent, side, new);
        }
        self.balance_insert(new);
    }

    fn balance_insert(&mut self, mut z: u32) {
        while self.is_red(self.p(z)) {
            let parent = self.p(z);
            let grand = self.p(parent);
            let side = self.side_of(parent);
            let uncle = self.child(grand, 1 - side);
            if self.is_red(uncle) {
                self.set_red(parent, false);
                self.set_red(uncle, false);
                self.set_red(grand, true);
                z = grand;
                continue;
            }
            if z == self.child(parent, 1 - side) {
                z = parent;
                self.rotate(z, side);
            }
            let (parent, grand) = (self.p(z), self.p(self.p(z)));
            self.set_red(parent, false);
            self.set_red(grand, true);
            self.rotate(grand, 1 - side);
        }
        self.set_red(self.root, false);
    }

    fn erase(&mut self, z: u32) {
        let [left, right] = self.nodes[z as usize].children;
        let (removed_red, x);
        if left == NIL || right == NIL {
            removed_red = self.is_red(z);
            x = if left == NIL { right } else { left };
            self.replace(z, x);
        } else {
            let mut y = right;
            while self.child(y, LEFT) != NIL {
                y = self.child(y, LEFT);
            }
            removed_red = self.is_red(y);
            x = self.child(y, RIGHT);
            if self.p(y) == z {
                self.nodes[x as usize].parent = y;
            } else {
                self.replace(y, x);
                self.link(y, RIGHT, self.child(z, RIGHT));
            }
            self.replace(z, y);
            self.link(y, LEFT, left);
            self.set_red(y, self.is_red(z));
        }
        if !removed_red {
            self.balance_erase(x);
        }
        // The missing node lends its parent link to the balancing; it must not keep it.
        self.nodes[NIL as usize].parent = NIL;
        self.set_red(NIL, false);
    }

    fn balance_erase(&mut self, mut x: u32) {
        while x != self.root && !self.is_red(x) {
            let parent = self.p(x);
            let side = self.side_of(x);
            let mut w = self.child(parent, 1 - side);
            if self.is_red(w) {
                self.set_red(w, false);
                self.set_red(parent, true);
                self.rotate(parent, side);
                w = self.child(parent, 1 - side);
            }
            let (near, far) = (self.child(w, side), self.child(w, 1 - side));
            if !self.is_red(near) && !self.is_red(far) {
                self.set_red(w, true);
                x = parent;
                continue;
            }
            if !self.is_red(far) {
                self.set_red(near, false);
                self.set_red(w, true);
                self.rotate(w, 1 - side);
                w = self.child(parent, 1 - side);
            }
            self.set_red(w, self.is_red(parent));
            self.set_red(parent, false);
            self.set_red(self.child(w, 1 - side), false);
            self.rotate(parent, side);
            x = self.root;
        }
        self.set_red(x, false);
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
        let [l, r] = tree.nodes[node as usize].children;
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
