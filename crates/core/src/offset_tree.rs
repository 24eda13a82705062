//! Requests of one file and operation in offset order: an intrusive AVL tree, threaded (each node knows its neighbours
//! in order) and augmented with ends, so that overlaps are found in O(log n).
//!
//! Many trees share one array of nodes; a tree is just its [`Tree`] record (root and both ends). A request is in at
//! most one tree at a time. Equal offsets keep the order of insertion.
//!
//! A node keeps the largest end in its *left* subtree and of itself, not of the whole subtree. A search for overlaps
//! needs no more (it walks down one path and asks this of every node it leaves to the right), and what arrives at the
//! high end, as sequential streams do, then changes no other node.
//!
//! The nodes of a tree may have numbers ([`Nodes::insert_numbered`]). Each then also knows the least number in its
//! whole subtree, so that a search that wants small ones passes over all others at once. Trees without pay nothing for
//! it: the balancing knows nothing of numbers, and a second walk up puts right what it has moved.

use crate::list::NIL;

// How many nodes searches for overlaps have looked at.
#[cfg(test)]
thread_local!(pub(crate) static LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

/// Largest number of nodes that an array can hold: the parent link shares its word with the balance.
pub(crate) const NODES_MAX: u32 = PARENT_MASK;
const PARENT_MASK: u32 = (1 << 30) - 1;
const BALANCE_SHIFT: u32 = 30;
/// Both subtrees are equally high; the two others say which is the higher one.
const EVEN: u32 = 1;
/// In place of a balance: the node is in a [`Loose`] list.
const IS_LOOSE: u32 = 3;
const LEFT: usize = 0;
const RIGHT: usize = 1;

/// What a descent looks at: four nodes to a cache line.
#[derive(Clone, Copy, Debug)]
struct Key {
    offset: u64,
    child: [u32; 2],
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Largest end of the ranges in the left subtree and of this node.
    max_end: u64,
    len: u32,
    /// Low 30 bits: parent (all ones: none). High 2 bits: height of the right subtree minus that of the left, plus 1.
    parent_balance: u32,
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

/// Ranges that are in no tree yet, because nothing has asked for an order: a list, and the stretch that covers them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loose {
    head: u32,
    lo: u64,
    hi: u64,
}

impl Loose {
    pub(crate) const EMPTY: Loose = Loose { head: NIL, lo: u64::MAX, hi: 0 };

    /// Whether one of the ranges may share a byte with `lo..hi`.
    pub(crate) fn may_overlap(&self, lo: u64, hi: u64) -> bool {
        lo < self.hi && self.lo < hi
    }
}

/// The nodes of all trees, forty bytes each, and sixteen more that only those of numbered trees touch.
#[derive(Debug)]
pub(crate) struct Nodes {
    keys: Vec<Key>,
    nodes: Vec<Node>,
    /// In numbered trees: the number of each node, and the least one in its subtree.
    numbers: Vec<u64>,
    least: Vec<u64>,
}

impl Nodes {
    pub(crate) fn new(capacity: u32) -> Nodes {
        debug_assert!(capacity <= NODES_MAX);
        let blank = Node { max_end: 0, len: 0, parent_balance: PARENT_MASK, prev: NIL, next: NIL };
        Nodes {
            keys: vec![Key { offset: 0, child: [NIL; 2] }; capacity as usize],
            nodes: vec![blank; capacity as usize],
            numbers: vec![0; capacity as usize],
            least: vec![0; capacity as usize],
        }
    }

    /// Sets the range of a node that is in no tree.
    pub(crate) fn set_range(&mut self, id: u32, offset: u64, len: u32) {
        self.keys[id as usize].offset = offset;
        self.nodes[id as usize].len = len;
    }

    pub(crate) fn offset(&self, id: u32) -> u64 {
        self.keys[id as usize].offset
    }

    pub(crate) fn len(&self, id: u32) -> u32 {
        self.nodes[id as usize].len
    }

    pub(crate) fn end(&self, id: u32) -> u64 {
        self.offset(id) + u64::from(self.len(id))
    }

    /// The number of a node that is in a numbered tree, or was.
    pub(crate) fn number(&self, id: u32) -> u64 {
        self.numbers[id as usize]
    }

    /// The neighbour with the next higher place in the order.
    pub(crate) fn next(&self, id: u32) -> Option<u32> {
        let next = self.nodes[id as usize].next;
        (next != NIL).then_some(next)
    }

    /// The neighbour with the next lower place in the order.
    pub(crate) fn prev(&self, id: u32) -> Option<u32> {
        let prev = self.nodes[id as usize].prev;
        (prev != NIL).then_some(prev)
    }

    /// Adds a node whose range was set to a list. O(1).
    pub(crate) fn push_loose(&mut self, loose: &mut Loose, id: u32) {
        if self.len(id) > 0 {
            loose.lo = loose.lo.min(self.offset(id));
            loose.hi = loose.hi.max(self.end(id));
        }
        let head = std::mem::replace(&mut loose.head, id);
        if head != NIL {
            self.nodes[head as usize].prev = id;
        }
        let node = &mut self.nodes[id as usize];
        node.parent_balance = IS_LOOSE << BALANCE_SHIFT;
        (node.prev, node.next) = (NIL, head);
    }

    pub(crate) fn is_loose(&self, id: u32) -> bool {
        self.balance(id) == IS_LOOSE
    }

    /// Removes a node that is in `loose`. O(1).
    pub(crate) fn remove_loose(&mut self, loose: &mut Loose, id: u32) {
        let Node { prev, next, .. } = self.nodes[id as usize];
        match prev {
            NIL => loose.head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        if next != NIL {
            self.nodes[next as usize].prev = prev;
        }
        if loose.head == NIL {
            *loose = Loose::EMPTY;
        }
    }

    /// Moves all of a list into a tree. O(log n) for each.
    pub(crate) fn settle(&mut self, loose: &mut Loose, tree: &mut Tree) {
        let mut at = loose.head;
        *loose = Loose::EMPTY;
        while at != NIL {
            let next = self.nodes[at as usize].next;
            self.insert(tree, at);
            at = next;
        }
    }

    /// The first node, in order, whose offset is at least `offset`. O(log n).
    pub(crate) fn lower_bound(&self, tree: &Tree, offset: u64) -> Option<u32> {
        let (mut at, mut best) = (tree.root, NIL);
        while at != NIL {
            let key = &self.keys[at as usize];
            let is_before = key.offset < offset;
            best = if is_before { best } else { at };
            at = key.child[usize::from(is_before)];
        }
        (best != NIL).then_some(best)
    }

    /// A node whose range shares a byte with `lo..hi`; of several, the last in order.
    ///
    /// O(log n) if nothing overlaps; else O(log^2 n), and as much for each empty range inside that is passed.
    pub(crate) fn last_overlap(&self, tree: &Tree, lo: u64, hi: u64) -> Option<u32> {
        if lo >= hi || !self.overlaps(tree, lo, hi) {
            return None;
        }
        self.overlap_below::<false>(tree.root, lo, hi, 0)
    }

    /// As [`Nodes::last_overlap`], of those in a numbered tree that have a number below `before`.
    ///
    /// O(log n) if no number is below; O(log^2 n) if all are, or all whose number is below overlap. In between it looks
    /// in vain into subtrees where one range overlaps and another has the number.
    pub(crate) fn last_overlap_before(&self, tree: &Tree, lo: u64, hi: u64, before: u64) -> Option<u32> {
        if lo >= hi || !self.overlaps(tree, lo, hi) {
            return None;
        }
        self.overlap_below::<true>(tree.root, lo, hi, before)
    }

    /// Whether any range shares a byte with `lo..hi`, or is empty and inside: one path down to the place of `hi`.
    fn overlaps(&self, tree: &Tree, lo: u64, hi: u64) -> bool {
        let mut at = tree.root;
        while at != NIL {
            let key = &self.keys[at as usize];
            // Which way to go cannot be predicted, so nothing may branch on it.
            let to_right = key.offset < hi;
            if to_right & (self.nodes[at as usize].max_end > lo) {
                return true;
            }
            at = key.child[usize::from(to_right)];
        }
        false
    }

    /// `before` counts if the tree is `NUMBERED`.
    fn overlap_below<const NUMBERED: bool>(&self, mut at: u32, lo: u64, hi: u64, before: u64) -> Option<u32> {
        loop {
            if at == NIL {
                return None;
            }
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            if NUMBERED && self.least[at as usize] >= before {
                return None;
            }
            if self.offset(at) < hi {
                break;
            }
            at = self.keys[at as usize].child[LEFT];
        }
        let [left, right] = self.keys[at as usize].child;
        let found = self.overlap_below::<NUMBERED>(right, lo, hi, before);
        if found.is_some() || self.nodes[at as usize].max_end <= lo {
            return found;
        }
        if self.end(at) > lo && self.len(at) > 0 && (!NUMBERED || self.numbers[at as usize] < before) {
            return Some(at);
        }
        self.overlap_below::<NUMBERED>(left, lo, hi, before)
    }

    /// Inserts a node whose range was set. O(log n), O(1) behind the last node (amortised).
    pub(crate) fn insert(&mut self, tree: &mut Tree, id: u32) {
        let (offset, end) = (self.offset(id), self.end(id));
        self.keys[id as usize].child = [NIL; 2];
        let node = &mut self.nodes[id as usize];
        (node.max_end, node.prev, node.next) = (end, NIL, NIL);
        node.parent_balance = PARENT_MASK | EVEN << BALANCE_SHIFT;
        if tree.root == NIL {
            *tree = Tree { root: id, first: id, last: id };
            return;
        }
        // Appending behind the last node is what sequential streams do: no descent.
        let (parent, side) =
            if self.offset(tree.last) <= offset { (tree.last, RIGHT) } else { self.descend(tree.root, offset, end) };
        self.keys[parent as usize].child[side] = id;
        self.set_parent(id, parent);
        if side == LEFT {
            self.thread(tree, self.nodes[parent as usize].prev, id, parent);
        } else {
            self.thread(tree, parent, id, self.nodes[parent as usize].next);
        }
        self.grown(tree, id);
    }

    /// Where to hang a node, raising `max_end` on the way.
    fn descend(&mut self, mut at: u32, offset: u64, end: u64) -> (u32, usize) {
        loop {
            let key = &self.keys[at as usize];
            // Which way to go cannot be predicted, so nothing may branch on it alone.
            let to_right = offset >= key.offset;
            let side = usize::from(to_right);
            let child = key.child[side];
            if !to_right & (end > key.offset) {
                let node = &mut self.nodes[at as usize];
                node.max_end = node.max_end.max(end);
            }
            if child == NIL {
                return (at, side);
            }
            at = child;
        }
    }

    fn thread(&mut self, tree: &mut Tree, prev: u32, id: u32, next: u32) {
        self.nodes[id as usize].prev = prev;
        self.nodes[id as usize].next = next;
        self.join(tree, prev, id);
        self.join(tree, id, next);
    }

    /// Makes `left` and `right` neighbours; one of them may be `NIL`.
    fn join(&mut self, tree: &mut Tree, left: u32, right: u32) {
        match left {
            NIL => tree.first = right,
            left => self.nodes[left as usize].next = right,
        }
        match right {
            NIL => tree.last = left,
            right => self.nodes[right as usize].prev = left,
        }
    }

    /// Restores the balance after the subtree of `child` grew by one level.
    fn grown(&mut self, tree: &mut Tree, mut child: u32) {
        loop {
            let at = self.parent(child);
            if at == NIL {
                return;
            }
            let side = self.side(at, child);
            let heavy = side as u32 * 2;
            match self.balance(at) {
                EVEN => self.set_balance(at, heavy),
                balance if balance == heavy => {
                    self.rotate_back(tree, at, side);
                    return;
                }
                _ => {
                    self.set_balance(at, EVEN);
                    return;
                }
            }
            child = at;
        }
    }

    /// Removes a node that is in `tree`. O(log n); O(1) at the low end (amortised).
    ///
    /// Returns the lowest node whose subtree has changed, rotations above it aside; `NIL` if there is none.
    pub(crate) fn remove(&mut self, tree: &mut Tree, id: u32) -> u32 {
        let [left, right] = self.keys[id as usize].child;
        let Node { prev, next, .. } = self.nodes[id as usize];
        let end = self.end(id);
        let parent = self.parent(id);
        // The lowest node whose subtree lost one level, and on which side.
        let (at, side) = if left != NIL && right != NIL {
            self.replace_by_successor(tree, id, next)
        } else {
            let side = if parent == NIL { LEFT } else { self.side(parent, id) };
            self.replace_child(tree, parent, id, if left != NIL { left } else { right });
            self.lower_ends(parent, side, end);
            (parent, side)
        };
        self.join(tree, prev, next);
        self.shrunk(tree, at, side);
        at
    }

    /// The successor (leftmost of the right subtree) takes the place of `id`.
    fn replace_by_successor(&mut self, tree: &mut Tree, id: u32, successor: u32) -> (u32, usize) {
        let [left, right] = self.keys[id as usize].child;
        let (parent, from) = (self.parent(id), self.parent(successor));
        let (end, moved_end) = (self.end(id), self.end(successor));
        let balance = self.balance(id);
        let start = if from == id {
            (successor, RIGHT)
        } else {
            let orphan = self.keys[successor as usize].child[RIGHT];
            self.replace_child(tree, from, successor, orphan);
            // Up to the top of the right subtree; `id` itself has the successor on its right.
            self.lower_ends_below(from, LEFT, moved_end, id);
            self.keys[successor as usize].child[RIGHT] = right;
            self.set_parent(right, successor);
            (from, LEFT)
        };
        self.keys[successor as usize].child[LEFT] = left;
        self.set_parent(left, successor);
        let side = if parent == NIL { LEFT } else { self.side(parent, id) };
        self.replace_child(tree, parent, id, successor);
        self.set_balance(successor, balance);
        // Where ranges do not overlap, the first case is the rule.
        let before = self.nodes[id as usize].max_end;
        self.nodes[successor as usize].max_end = match before {
            before if moved_end >= before => moved_end,
            before if before > end => before,
            _ => self.largest_end(left).max(moved_end),
        };
        self.lower_ends(parent, side, end);
        start
    }

    /// Restores the balance after the subtree on `side` of `at` lost one level.
    fn shrunk(&mut self, tree: &mut Tree, mut at: u32, mut side: usize) {
        while at != NIL {
            let heavy = (1 - side as u32) * 2;
            let mut top = at;
            match self.balance(at) {
                EVEN => {
                    self.set_balance(at, heavy);
                    return;
                }
                balance if balance == heavy => {
                    let sibling = self.keys[at as usize].child[1 - side];
                    let keeps_height = self.balance(sibling) == EVEN;
                    top = self.rotate_back(tree, at, 1 - side);
                    if keeps_height {
                        return;
                    }
                }
                _ => self.set_balance(at, EVEN),
            }
            at = self.parent(top);
            if at != NIL {
                side = self.side(at, top);
            }
        }
    }

    // ---- numbers ---------------------------------------------------------------------------------------------

    /// As [`Nodes::insert`], into a tree of which every node was inserted with a number. O(log n).
    pub(crate) fn insert_numbered(&mut self, tree: &mut Tree, id: u32, number: u64) {
        self.numbers[id as usize] = number;
        self.insert(tree, id);
        self.renew_least(id);
    }

    /// Removes a node from such a tree. O(log n).
    pub(crate) fn remove_numbered(&mut self, tree: &mut Tree, id: u32) {
        let lowest = self.remove(tree, id);
        self.renew_least(lowest);
    }

    /// Finds the least numbers anew from `at` up, below which nothing has changed. Of what rotations have moved since,
    /// some is beside the way up, but no farther than one step.
    fn renew_least(&mut self, mut at: u32) {
        while at != NIL {
            for child in self.keys[at as usize].child {
                if child != NIL {
                    self.add_up_least(child);
                }
            }
            self.add_up_least(at);
            at = self.parent(at);
        }
    }

    /// From the children, where it is known.
    fn add_up_least(&mut self, at: u32) {
        let [left, right] = self.keys[at as usize].child;
        let below = |child: u32| self.least.get(child as usize).copied().unwrap_or(u64::MAX); // none at `NIL`
        self.least[at as usize] = self.numbers[at as usize].min(below(left)).min(below(right));
    }

    // ---- ends ------------------------------------------------------------------------------------------------

    /// A range with this end has left the subtree on `side` of `at`: corrects `max_end` above.
    fn lower_ends(&mut self, at: u32, side: usize, end: u64) {
        self.lower_ends_below(at, side, end, NIL);
    }

    /// As [`Nodes::lower_ends`], up to but without `stop`.
    fn lower_ends_below(&mut self, mut at: u32, mut side: usize, end: u64, stop: u32) {
        while at != stop && at != NIL {
            if side == LEFT {
                // What is above counts at least as much.
                if self.nodes[at as usize].max_end != end {
                    return;
                }
                let left = self.keys[at as usize].child[LEFT];
                self.nodes[at as usize].max_end = self.largest_end(left).max(self.end(at));
            }
            let parent = self.parent(at);
            if parent != NIL {
                side = self.side(parent, at);
            }
            at = parent;
        }
    }

    /// Largest end in a whole subtree. O(its height).
    fn largest_end(&self, mut at: u32) -> u64 {
        let mut largest = 0;
        while at != NIL {
            largest = largest.max(self.nodes[at as usize].max_end);
            at = self.keys[at as usize].child[RIGHT];
        }
        largest
    }

    // ---- links -----------------------------------------------------------------------------------------------

    fn parent(&self, id: u32) -> u32 {
        match self.nodes[id as usize].parent_balance & PARENT_MASK {
            PARENT_MASK => NIL,
            parent => parent,
        }
    }

    fn set_parent(&mut self, id: u32, parent: u32) {
        let node = &mut self.nodes[id as usize];
        node.parent_balance = node.parent_balance & !PARENT_MASK | parent & PARENT_MASK;
    }

    fn balance(&self, id: u32) -> u32 {
        self.nodes[id as usize].parent_balance >> BALANCE_SHIFT
    }

    fn set_balance(&mut self, id: u32, balance: u32) {
        let node = &mut self.nodes[id as usize];
        node.parent_balance = node.parent_balance & PARENT_MASK | balance << BALANCE_SHIFT;
    }

    fn side(&self, parent: u32, child: u32) -> usize {
        usize::from(self.keys[parent as usize].child[RIGHT] == child)
    }

    fn replace_child(&mut self, tree: &mut Tree, parent: u32, old: u32, new: u32) {
        if parent == NIL {
            tree.root = new;
        } else {
            let side = self.side(parent, old);
            self.keys[parent as usize].child[side] = new;
        }
        if new != NIL {
            self.set_parent(new, parent);
        }
    }

    /// The subtree on `side` of `at` is two levels higher than the other: rotates, and returns the new top.
    fn rotate_back(&mut self, tree: &mut Tree, at: u32, side: usize) -> u32 {
        let heavy = side as u32 * 2;
        let child = self.keys[at as usize].child[side];
        let child_balance = self.balance(child);
        if child_balance != 2 - heavy {
            // Single rotation. An even child (after a removal only) stays higher on this side's opposite.
            self.rotate(tree, at, side);
            let even = child_balance == EVEN;
            self.set_balance(at, if even { heavy } else { EVEN });
            self.set_balance(child, if even { 2 - heavy } else { EVEN });
            return child;
        }
        let middle = self.keys[child as usize].child[1 - side];
        let middle_balance = self.balance(middle);
        self.rotate(tree, child, 1 - side);
        self.rotate(tree, at, side);
        self.set_balance(at, if middle_balance == heavy { 2 - heavy } else { EVEN });
        self.set_balance(child, if middle_balance == 2 - heavy { heavy } else { EVEN });
        self.set_balance(middle, EVEN);
        middle
    }

    /// The child on `side` of `at` takes its place and gets it as its child on the other side.
    fn rotate(&mut self, tree: &mut Tree, at: u32, side: usize) {
        let up = self.keys[at as usize].child[side];
        let middle = self.keys[up as usize].child[1 - side];
        let parent = self.parent(at);
        self.replace_child(tree, parent, at, up);
        self.keys[at as usize].child[side] = middle;
        if middle != NIL {
            self.set_parent(middle, at);
        }
        self.keys[up as usize].child[1 - side] = at;
        self.set_parent(at, up);
        if side == RIGHT {
            let below = self.nodes[at as usize].max_end;
            let node = &mut self.nodes[up as usize];
            node.max_end = node.max_end.max(below);
        } else {
            let own = self.end(at);
            if self.nodes[at as usize].max_end > own {
                self.nodes[at as usize].max_end = self.largest_end(middle).max(own);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Height and largest end of the subtree and its order, checking every invariant on the way.
    fn check(nodes: &Nodes, at: u32, parent: u32, order: &mut Vec<u32>) -> (u32, u64) {
        if at == NIL {
            return (0, 0);
        }
        let from = order.len();
        let [left, right] = nodes.keys[at as usize].child;
        assert_eq!(nodes.parent(at), parent);
        let (left_height, left_end) = check(nodes, left, at, order);
        order.push(at);
        let (right_height, right_end) = check(nodes, right, at, order);
        assert_eq!(nodes.balance(at) + left_height, right_height + 1, "balance");
        let end = nodes.end(at).max(left_end);
        assert_eq!(nodes.nodes[at as usize].max_end, end, "largest end");
        let least = order[from..].iter().map(|&m| nodes.number(m)).min();
        assert_eq!(Some(nodes.least[at as usize]), least, "least number");
        (left_height.max(right_height) + 1, end.max(right_end))
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_vector(
            ops in prop::collection::vec((0u32..64, 0u64..40, 0u32..6, 0u8..5), 0..300),
            query in (0u64..45, 1u64..6),
            numbers in prop::collection::vec(0u64..100, 300),
            before in 0u64..100,
        ) {
            let mut nodes = Nodes::new(64);
            let mut tree = Tree::EMPTY;
            let mut model: Vec<u32> = Vec::new(); // in order
            let mut given = [0; 64];
            for ((id, offset, len, what), number) in ops.into_iter().zip(numbers) {
                if let Some(at) = model.iter().position(|&m| m == id) {
                    if what < 3 {
                        nodes.remove_numbered(&mut tree, id);
                        model.remove(at);
                    }
                } else {
                    nodes.set_range(id, offset, len);
                    nodes.insert_numbered(&mut tree, id, number);
                    given[id as usize] = number;
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
                    prop_assert_eq!(at.map_or(tree.last, |n| nodes.nodes[n as usize].prev), id);
                }
                prop_assert_eq!(&threaded, &model);
                let (lo, hi) = (query.0, query.0 + query.1);
                let overlap = |m: u32| nodes.len(m) > 0 && nodes.offset(m) < hi && nodes.end(m) > lo;
                prop_assert_eq!(
                    nodes.last_overlap(&tree, lo, hi),
                    model.iter().rev().copied().find(|&m| overlap(m))
                );
                prop_assert_eq!(
                    nodes.last_overlap_before(&tree, lo, hi, before),
                    model.iter().rev().copied().find(|&m| overlap(m) && given[m as usize] < before)
                );
                prop_assert_eq!(
                    nodes.lower_bound(&tree, lo),
                    model.iter().copied().find(|&m| nodes.offset(m) >= lo)
                );
            }
        }
    }
}
