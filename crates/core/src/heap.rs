//! A priority queue of small integers that can change or lose any of its members in O(log n): a 4-ary heap with an
//! index of positions. Allocated once for its largest size.

const NOT_IN: u32 = u32::MAX;

/// Members are `0..capacity`, each at most once, ordered by a key; the least key is on top.
#[derive(Debug)]
pub(crate) struct IndexedHeap<K> {
    entries: Vec<(K, u32)>,
    position: Vec<u32>,
}

impl<K: Copy + Ord> IndexedHeap<K> {
    /// An empty heap for the members `0..capacity`.
    pub(crate) fn new(capacity: u32) -> IndexedHeap<K> {
        IndexedHeap { entries: Vec::with_capacity(capacity as usize), position: vec![NOT_IN; capacity as usize] }
    }

    pub(crate) fn peek(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// The key of `id` if it is there.
    pub(crate) fn key(&self, id: u32) -> Option<K> {
        self.contains(id).then(|| self.entries[self.position[id as usize] as usize].0)
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.position[id as usize] != NOT_IN
    }

    /// Adds `id`, or gives it a new key if it is there.
    pub(crate) fn set(&mut self, id: u32, key: K) {
        let at = self.position[id as usize];
        if at == NOT_IN {
            self.entries.push((key, id));
            self.up(self.entries.len() - 1);
        } else {
            let at = at as usize;
            let old = std::mem::replace(&mut self.entries[at].0, key);
            if key < old { self.up(at) } else { self.down(at) }
        }
    }

    /// Removes `id` if it is there.
    pub(crate) fn remove(&mut self, id: u32) {
        let at = self.position[id as usize];
        if at == NOT_IN {
            return;
        }
        self.position[id as usize] = NOT_IN;
        let at = at as usize;
        let moved = self.entries.pop().expect("a member has an entry");
        if at < self.entries.len() {
            let old = std::mem::replace(&mut self.entries[at], moved);
            if moved.0 < old.0 { self.up(at) } else { self.down(at) }
        }
    }

    fn up(&mut self, mut at: usize) {
        let moving = self.entries[at];
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.entries[parent].0 <= moving.0 {
                break;
            }
            self.place(at, self.entries[parent]);
            at = parent;
        }
        self.place(at, moving);
    }

    fn down(&mut self, mut at: usize) {
        let moving = self.entries[at];
        loop {
            let first = 4 * at + 1;
            let last = (first + 4).min(self.entries.len());
            let Some(least) = (first..last).min_by_key(|&child| self.entries[child].0) else { break };
            if moving.0 <= self.entries[least].0 {
                break;
            }
            self.place(at, self.entries[least]);
            at = least;
        }
        self.place(at, moving);
    }

    fn place(&mut self, at: usize, entry: (K, u32)) {
        self.entries[at] = entry;
        self.position[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap};

    proptest! {
        #[test]
        fn behaves_like_a_sorted_set(ops in prop::collection::vec((0u32..32, 0u64..50, 0u8..3), 0..300)) {
            let mut heap = IndexedHeap::new(32);
            let mut keys: HashMap<u32, (u64, u32)> = HashMap::new();
            for (id, key, what) in ops {
                if what < 2 {
                    heap.set(id, (key, id));
                    keys.insert(id, (key, id));
                } else {
                    heap.remove(id);
                    keys.remove(&id);
                }
                let sorted: BTreeSet<_> = keys.values().copied().collect();
                prop_assert_eq!(heap.peek().map(|(k, _)| k), sorted.first().copied());
                prop_assert_eq!(heap.contains(id), keys.contains_key(&id));
            }
        }
    }
}
