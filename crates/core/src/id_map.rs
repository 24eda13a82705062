//! A fixed-size hash index from ids to slots: open addressing, linear probing, backward-shift deletion.
//!
//! It stores slots only and asks the caller for a slot's id, so a bucket is four bytes. It never grows, never leaves
//! tombstones, and therefore never stops to rehash: look-up, insertion and removal are O(1) expected at any time.

use crate::request::{FileId, TargetId};

const EMPTY: u32 = u32::MAX;

/// What slots are found by.
pub(crate) trait Id: Copy + Eq {
    /// As one number; equal ids give equal ones, and different ones should differ.
    fn number(self) -> u64;
}

impl Id for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl Id for (FileId, TargetId) {
    fn number(self) -> u64 {
        // Files of many targets are numbered alike; on target 0 alone nothing is lost.
        self.0.0 ^ u64::from(self.1.0).wrapping_mul(0xD1B5_4A32_D192_ED03)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct IdMap {
    buckets: Vec<u32>,
    shift: u32,
}

impl IdMap {
    /// An index with room for `slots` slots at a load of at most one half.
    pub(crate) fn new(slots: u32) -> IdMap {
        let size = (u64::from(slots) * 2).next_power_of_two().max(4);
        IdMap { buckets: vec![EMPTY; size as usize], shift: 64 - size.trailing_zeros() }
    }

    fn home(&self, id: impl Id) -> usize {
        // Fibonacci hashing after a fold, so that ids which differ only in their high bits spread too.
        let id = id.number();
        let folded = id ^ (id >> 32);
        (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// The slot whose id is `id`.
    pub(crate) fn find<I: Id>(&self, id: I, id_of: impl Fn(u32) -> I) -> Option<u32> {
        let mask = self.buckets.len() - 1;
        let mut at = self.home(id);
        loop {
            match self.buckets[at] {
                EMPTY => return None,
                slot if id_of(slot) == id => return Some(slot),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Adds `slot` under `id`, which must not be there yet.
    pub(crate) fn insert(&mut self, id: impl Id, slot: u32) {
        let mask = self.buckets.len() - 1;
        let mut at = self.home(id);
        while self.buckets[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.buckets[at] = slot;
    }

    /// Removes `slot`, which must be there under `id`.
    pub(crate) fn remove<I: Id>(&mut self, id: I, slot: u32, id_of: impl Fn(u32) -> I) {
        let mask = self.buckets.len() - 1;
        let mut hole = self.home(id);
        while self.buckets[hole] != slot {
            debug_assert_ne!(self.buckets[hole], EMPTY, "removing an id that is not in the map");
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let candidate = self.buckets[at];
            if candidate == EMPTY {
                break;
            }
            // The candidate may fill the hole unless its home lies strictly between the hole and its place.
            let home = self.home(id_of(candidate));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.buckets[hole] = candidate;
                hole = at;
            }
        }
        self.buckets[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u64..40, any::<bool>()), 0..400)) {
            let mut map = IdMap::new(16);
            let mut ids = [u64::MAX; 16];
            let mut model: HashMap<u64, u32> = HashMap::new();
            for (key, add) in ops {
                let id = key << 30; // collide in the low bits
                prop_assert_eq!(map.find(id, |s| ids[s as usize]), model.get(&id).copied());
                if add && model.len() < 16 && !model.contains_key(&id) {
                    let slot = (0..16).find(|s| !model.values().any(|v| v == s)).unwrap();
                    ids[slot as usize] = id;
                    map.insert(id, slot);
                    model.insert(id, slot);
                } else if let Some(slot) = model.remove(&id) {
                    map.remove(id, slot, |s| ids[s as usize]);
                }
            }
            for (id, slot) in model {
                prop_assert_eq!(map.find(id, |s| ids[s as usize]), Some(slot));
            }
        }
    }
}
