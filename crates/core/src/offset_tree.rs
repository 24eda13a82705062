//! Requests of one file and operation in offset order: an intrusive AVL tree, threaded (each node knows its neighbours
//! in order) and augmented with the largest end below each node, so that overlaps are found in O(log n).
//!
//! Many trees share one array of nodes; a tree is just its [`Tree`] record (root and both ends). A request is in at
//! most one tree at a time. Equal offsets keep the order of insertion.

use crate::list::NIL;

const HEIGHT_SHIFT: u32 = 26;
const PARENT_MASK: u32 = (1 << HEIGHT_SHIFT) - 1;
/// Largest number of nodes that an array can hold: the parent link shares its word with the height.
pub(crate) const NODES_MAX: u32 = PARENT_MASK;

/// Forty bytes a request.
#[derive(Clone, Copy, Debug)]
struct Node {
    offset: u64,
    /// Largest `offset + len` in this node's subtree.
    max_end: u64,
    len: u32,
    left: u32,
    right: u32,
    /// Low 26 bits: parent (all ones: none). High 6 bits: height (a leaf has 1); an AVL tree of 2^26 nodes is at most 38 high.
    parent_height: u32,
    prev: u32,
    next: u32,
}

/// One tree. Plain data; all work is done by [`Nodes`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    root: u32,
    first: u32,
    last: u32,
}

impl Tree {
    pub(crate) const EMPTY: Tree = Tree { root: NIL, first: NIL, last: NIL };

    pub(crate) fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// The node with the lowest offset.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NIL).then_some(self.first)
    }
}

/// The nodes of all trees.
#[derive(Debug)]
pub(crate) struct Nodes(Vec<Node>);

impl Nodes {
    pub(crate) fn new(capacity: u32) -> Nodes {
        debug_assert!(capacity <= NODES_MAX);
        let blank = Node {
            offset: 0,
            max_end: 0,
            len: 0,
            left: NIL,
            right: NIL,
            parent_height: PARENT_MASK,
            prev: NIL,
            next: NIL,
        };
        Nodes(vec![blank; capacity as usize])
    }

    /// Sets the range of a node that is in no tree.
    pub(crate) fn set_range(&mut self, id: u32, offset: u64, len: u32) {
        let node = &mut self.0[id as usize];
        node.offset = offset;
        node.len = len;
    }

    pub(crate) fn offset(&self, id: u32) -> u64 {
        self.0[id as usize].offset
    }

    pub(crate) fn len(&self, id: u32) -> u32 {
        self.0[id as usize].len
    }

    pub(crate) fn end(&self, id: u32) -> u64 {
        let node = &self.0[id as usize];
        node.offset + u64::from(node.len)
    }

    /// The neighbour with the next higher place in the order.
    pub(crate) fn next(&self, id: u32) -> Option<u32> {
        let next = self.0[id as usize].next;
        (next != NIL).then_some(next)
    }

    /// The neighbour with the next lower place in the order.
    pub(crate) fn prev(&self, id: u32) -> Option<u32> {
        let prev = self.0[id as usize].prev;
        (prev != NIL).then_some(prev)
    }

    /// The first node, in order, whose offset is at least `offset`.
    pub(crate) fn lower_bound(&self, tree: &Tree, offset: u64) -> Option<u32> {
        let (mut at, mut best) = (tree.root, NIL);
        while at != NIL {
            let node = &self.0[at as usize];
            if node.offset >= offset {
                best = at;
                at = node.left;
            } else {
                at = node.right;
            }
        }
        (best != NIL).then_some(best)
    }

    /// A node whose range shares a byte with `lo..hi` and that `accept` takes; of several, the last in order.
    ///
    /// O(log n) if the first overlap found is accepted; otherwise O(log n) for each overlap refused.
    pub(crate) fn last_overlap(&self, tree: &Tree, lo: u64, hi: u64, accept: &impl Fn(u32) -> bool) -> Option<u32> {
        if lo >= hi { None } else { self.overlap_below(tree.root, lo, hi, accept) }
    }

    fn overlap_below(&self, at: u32, lo: u64, hi: u64, accept: &impl Fn(u32) -> bool) -> Option<u32> {
        if at == NIL {
            return None;
        }
        let node = &self.0[at as usize];
        if node.max_end <= lo {
            return None;
        }
        if node.offset < hi {
            let found = self.overlap_below(node.right, lo, hi, accept);
            if found.is_some() {
                return found;
            }
            if node.len > 0 && node.offset + u64::from(node.len) > lo && accept(at) {
                return Some(at);
            }
        }
        self.overlap_below(node.left, lo, hi, accept)
    }

    /// Inserts a node whose range was set. O(log n); O(1) amortised for the rebalancing.
    pub(crate) fn insert(&mut self, tree: &mut Tree, id: u32) {
        let (offset, end) = (self.offset(id), self.end(id));
        {
            let node = &mut self.0[id as usize];
            (node.max_end, node.left, node.right) = (end, NIL, NIL);
            node.parent_height = PARENT_MASK | 1 << HEIGHT_SHIFT;
            (node.prev, node.next) = (NIL, NIL);
        }
        if tree.root == NIL {
            *tree = Tree { root: id, first: id, last: id };
            return;
        }
        // Appending behind the last node is what sequential streams do: no descent.
        let (parent, to_left) = if self.offset(tree.last) <= offset {
            self.raise_max_end(tree.last, end);
            (tree.last, false)
        } else {
            self.descend(tree.root, offset, end)
        };
        self.set_parent(id, parent);
        if to_left {
            self.0[parent as usize].left = id;
            let prev = self.0[parent as usize].prev;
            self.thread(tree, prev, id, parent);
        } else {
            self.0[parent as usize].right = id;
            let next = self.0[parent as usize].next;
            self.thread(tree, parent, id, next);
        }
        self.rebalance_up(tree, parent, NIL);
    }

    fn raise_max_end(&mut self, mut at: u32, end: u64) {
        while at != NIL && self.0[at as usize].max_end < end {
            self.0[at as usize].max_end = end;
            at = self.parent(at);
        }
    }

    /// Where to hang a node, raising `max_end` on the way.
    fn descend(&mut self, mut at: u32, offset: u64, end: u64) -> (u32, bool) {
        loop {
            let node = &mut self.0[at as usize];
            node.max_end = node.max_end.max(end);
            let to_left = offset < node.offset;
            let child = if to_left { node.left } else { node.right };
            if child == NIL {
                return (at, to_left);
            }
            at = child;
        }
    }

    fn thread(&mut self, tree: &mut Tree, prev: u32, id: u32, next: u32) {
        self.0[id as usize].prev = prev;
        self.0[id as usize].next = next;
        match prev {
            NIL => tree.first = id,
            prev => self.0[prev as usize].next = id,
        }
        match next {
            NIL => tree.last = id,
            next => self.0[next as usize].prev = id,
        }
    }

    /// Removes a node that is in `tree`. O(log n).
    pub(crate) fn remove(&mut self, tree: &mut Tree, id: u32) {
        let Node { left, right, prev, next, .. } = self.0[id as usize];
        match prev {
            NIL => tree.first = next,
            prev => self.0[prev as usize].next = next,
        }
        match next {
            NIL => tree.last = prev,
            next => self.0[next as usize].prev = prev,
        }
        if left != NIL && right != NIL {
            // The successor (leftmost of the right subtree) takes this node's place.
            let successor = next;
            let from = self.parent(successor);
            let orphan = self.0[successor as usize].right;
            let start = if from == id {
                successor
            } else {
                self.replace_child(tree, from, successor, orphan);
                self.0[successor as usize].right = right;
                self.set_parent(right, successor);
                from
            };
            self.0[successor as usize].left = left;
            self.set_parent(left, successor);
            let parent = self.parent(id);
            self.replace_child(tree, parent, id, successor);
            // Whatever changes below, the successor's own record is not yet that of its new place.
            self.rebalance_up(tree, start, successor);
        } else {
            let child = if left != NIL { left } else { right };
            let parent = self.parent(id);
            self.replace_child(tree, parent, id, child);
            self.rebalance_up(tree, parent, NIL);
        }
    }

    fn parent(&self, id: u32) -> u32 {
        match self.0[id as usize].parent_height & PARENT_MASK {
            PARENT_MASK => NIL,
            parent => parent,
        }
    }

    fn set_parent(&mut self, id: u32, parent: u32) {
        let node = &mut self.0[id as usize];
        node.parent_height = node.parent_height & !PARENT_MASK | parent & PARENT_MASK;
    }

    fn height(&self, id: u32) -> u32 {
        if id == NIL { 0 } else { self.0[id as usize].parent_height >> HEIGHT_SHIFT }
    }

    fn replace_child(&mut self, tree: &mut Tree, parent: u32, old: u32, new: u32) {
        if parent == NIL {
            tree.root = new;
        } else if self.0[parent as usize].left == old {
            self.0[parent as usize].left = new;
        } else {
            self.0[parent as usize].right = new;
        }
        if new != NIL {
            self.set_parent(new, parent);
        }
    }

    /// Recomputes height and largest end from the children; true if either changed.
    fn update(&mut self, id: u32) -> bool {
        let node = &self.0[id as usize];
        let (left, right) = (node.left, node.right);
        let mut max_end = node.offset + u64::from(node.len);
        let mut height = 0;
        for child in [left, right] {
            if child != NIL {
                let child = &self.0[child as usize];
                max_end = max_end.max(child.max_end);
                height = height.max(child.parent_height >> HEIGHT_SHIFT);
            }
        }
        let node = &mut self.0[id as usize];
        let packed = (height + 1) << HEIGHT_SHIFT | node.parent_height & PARENT_MASK;
        let changed = node.max_end != max_end || node.parent_height != packed;
        (node.max_end, node.parent_height) = (max_end, packed);
        changed
    }

    /// Walks up from `at`, restoring heights, largest ends and balance; ends early where nothing changed any more, but
    /// not at or before `must_visit` (if it is not `NIL`, an ancestor of `at` or `at` itself).
    fn rebalance_up(&mut self, tree: &mut Tree, mut at: u32, mut must_visit: u32) {
        while at != NIL {
            // What is above the node to visit knew the one whose place it took: it must be looked at, too.
            let replaced = at == must_visit;
            if replaced {
                must_visit = NIL;
            }
            let changed = self.update(at) || replaced;
            let Node { left, right, .. } = self.0[at as usize];
            let (l, r) = (self.height(left), self.height(right));
            let top = if l > r + 1 {
                let Node { left: ll, right: lr, .. } = self.0[left as usize];
                if self.height(ll) < self.height(lr) {
                    self.rotate_left(tree, left);
                }
                self.rotate_right(tree, at)
            } else if r > l + 1 {
                let Node { left: rl, right: rr, .. } = self.0[right as usize];
                if self.height(rr) < self.height(rl) {
                    self.rotate_right(tree, right);
                }
                self.rotate_left(tree, at)
            } else {
                if !changed && must_visit == NIL {
                    return;
                }
                at
            };
            at = self.parent(top);
        }
    }

    fn rotate_left(&mut self, tree: &mut Tree, at: u32) -> u32 {
        let up = self.0[at as usize].right;
        let middle = self.0[up as usize].left;
        let parent = self.parent(at);
        self.replace_child(tree, parent, at, up);
        self.0[at as usize].right = middle;
        if middle != NIL {
            self.set_parent(middle, at);
        }
        self.0[up as usize].left = at;
        self.set_parent(at, up);
        self.update(at);
        self.update(up);
        up
    }

    fn rotate_right(&mut self, tree: &mut Tree, at: u32) -> u32 {
        let up = self.0[at as usize].left;
        let middle = self.0[up as usize].right;
        let parent = self.parent(at);
        self.replace_child(tree, parent, at, up);
        self.0[at as usize].left = middle;
        if middle != NIL {
            self.set_parent(middle, at);
        }
        self.0[up as usize].right = at;
        self.set_parent(at, up);
        self.update(at);
        self.update(up);
        up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Height, largest end and order of the subtree, checking every invariant on the way.
    fn check(nodes: &Nodes, at: u32, parent: u32, order: &mut Vec<u32>) -> (u32, u64) {
        if at == NIL {
            return (0, 0);
        }
        let Node { left, right, .. } = nodes.0[at as usize];
        assert_eq!(nodes.parent(at), parent);
        let (lh, le) = check(nodes, left, at, order);
        order.push(at);
        let (rh, re) = check(nodes, right, at, order);
        assert!(lh.abs_diff(rh) <= 1, "unbalanced");
        assert_eq!(nodes.height(at), lh.max(rh) + 1);
        let end = nodes.end(at).max(le).max(re);
        assert_eq!(nodes.0[at as usize].max_end, end);
        (nodes.height(at), end)
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_vector(
            ops in prop::collection::vec((0u32..64, 0u64..40, 0u32..6, 0u8..5), 0..300),
            query in (0u64..45, 1u64..6),
        ) {
            let mut nodes = Nodes::new(64);
            let mut tree = Tree::EMPTY;
            let mut model: Vec<u32> = Vec::new(); // in order
            for (id, offset, len, what) in ops {
                if let Some(at) = model.iter().position(|&m| m == id) {
                    if what < 3 {
                        nodes.remove(&mut tree, id);
                        model.remove(at);
                    }
                } else {
                    nodes.set_range(id, offset, len);
                    nodes.insert(&mut tree, id);
                    let at = model.iter().position(|&m| nodes.offset(m) > offset).unwrap_or(model.len());
                    model.insert(at, id);
                }
                let mut order = Vec::new();
                check(&nodes, tree.root, NIL, &mut order);
                prop_assert_eq!(&order, &model);
                let (mut threaded, mut at) = (Vec::new(), tree.first());
                while let Some(id) = at {
                    threaded.push(id);
                    at = nodes.next(id);
                    prop_assert_eq!(at.map_or(tree.last, |n| nodes.0[n as usize].prev), id);
                }
                prop_assert_eq!(&threaded, &model);
                let (lo, hi) = (query.0, query.0 + query.1);
                let overlap = |m: u32| nodes.len(m) > 0 && nodes.offset(m) < hi && nodes.end(m) > lo;
                prop_assert_eq!(
                    nodes.last_overlap(&tree, lo, hi, &|m| m % 2 == 0),
                    model.iter().rev().copied().find(|&m| overlap(m) && m % 2 == 0)
                );
                prop_assert_eq!(
                    nodes.lower_bound(&tree, lo),
                    model.iter().copied().find(|&m| nodes.offset(m) >= lo)
                );
            }
        }
    }
}
