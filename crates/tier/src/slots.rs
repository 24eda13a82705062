//! Which slots of the disk are worth a place in the prefetch area (the paper's 6.2.4). A state machine.
//!
//! An LRU stack of slots with counters, twice as long as the area has places. Deviations: the paper says that prefetching
//! pauses when the share of prefetched data *not* used is below 40 %; meant is the used share. While it pauses, slots that
//! would have been loaded are judged as if they had been, so that it goes on even if the area has run empty.

use std::collections::{HashMap, VecDeque};

/// Bytes of which it is known whether they were read, and whether the copy is current.
pub const BLOCK: u64 = 4096;
/// Evicted slots that the mean is taken over.
const RECENT: usize = 16;
const NONE: u32 = u32::MAX;

/// A set of blocks of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Blocks(Vec<u64>);

impl Blocks {
    fn of(slot_bytes: u64) -> Blocks {
        Blocks(vec![0; (slot_bytes / BLOCK).div_ceil(64) as usize])
    }
    fn set(&mut self, block: u64, to: bool) {
        let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
        if to { self.0[word] |= bit } else { self.0[word] &= !bit }
    }
    fn has(&self, block: u64) -> bool {
        self.0[(block / 64) as usize] & 1 << (block % 64) != 0
    }
    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
    fn fill(&mut self, blocks: u64) {
        (0..blocks).for_each(|block| self.set(block, true));
    }
    fn clear(&mut self) {
        self.0.fill(0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    No,
    /// It would be loaded if prefetching did not pause.
    Imagined,
    Loading(u32),
    At(u32),
}

struct Node {
    slot: u64,
    count: u32,
    copy: Copy,
    /// Blocks of the copy that are as on the disk; while it is loaded, those that were not written since that began.
    current: Blocks,
    /// Blocks read since it was loaded, or would have been.
    used: Blocks,
    above: u32,
    below: u32,
}

/// What prefetching has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct SlotStats {
    /// Slots in the area.
    pub loaded: u32,
    /// Slots ever loaded.
    pub loads: u64,
    /// Evicted.
    pub evictions: u64,
    /// Used share of those evicted last, 0 to 1.
    pub used_share: f64,
    /// Prefetching pauses because of that.
    pub paused: bool,
}

/// The stack.
pub struct Slots {
    slot_bytes: u64,
    depth: usize,
    threshold: u32,
    used_pause: f64,
    used_resume: f64,
    nodes: Vec<Node>,
    by_slot: HashMap<u64, u32>,
    free_nodes: Vec<u32>,
    top: u32,
    bottom: u32,
    free_places: Vec<u32>,
    /// Readers of each place.
    pins: Vec<u32>,
    recent: VecDeque<f64>,
    stats: SlotStats,
}

impl Slots {
    /// For an area of `places` slots of `slot_bytes`; `threshold`: of the counter; `used`: shares at which prefetching pauses
    /// and goes on.
    #[must_use]
    pub fn new(places: u32, slot_bytes: u64, threshold: u32, used: (f64, f64)) -> Slots {
        Slots {
            slot_bytes: slot_bytes.max(BLOCK),
            depth: places as usize * 2,
            threshold,
            used_pause: used.0,
            used_resume: used.1,
            nodes: Vec::new(),
            by_slot: HashMap::new(),
            free_nodes: Vec::new(),
            top: NONE,
            bottom: NONE,
            free_places: (0..places).rev().collect(),
            pins: vec![0; places as usize],
            recent: VecDeque::with_capacity(RECENT),
            stats: SlotStats { used_share: 1.0, ..SlotStats::default() },
        }
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// A read of the range, all in one slot, is dispatched. O(1), beside the range's blocks.
    pub fn read(&mut self, offset: u64, len: u64) {
        if self.depth == 0 {
            return;
        }
        let slot = offset / self.slot_bytes;
        let node = match self.by_slot.get(&slot) {
            Some(&node) => {
                if node != self.top {
                    self.unlink(node);
                    self.push(node);
                    let count = &mut self.nodes[node as usize].count;
                    *count = count.saturating_add(1);
                }
                node
            }
            None => self.enter(slot),
        };
        if self.stats.paused && self.nodes[node as usize].copy == Copy::No && self.is_wanted(node) {
            self.imagine(node);
        }
        let blocks = self.blocks(offset, len);
        let node = &mut self.nodes[node as usize];
        if node.copy != Copy::No {
            blocks.for_each(|block| node.used.set(block, true));
        }
    }

    /// Where the range, all in one slot, can be read in the area: the place. It stays there until [`Slots::unpin`].
    pub fn find(&mut self, offset: u64, len: u64) -> Option<u32> {
        let &node = self.by_slot.get(&(offset / self.slot_bytes))?;
        let Copy::At(place) = self.nodes[node as usize].copy else { return None };
        let mut blocks = self.blocks(offset, len);
        if !blocks.all(|block| self.nodes[node as usize].current.has(block)) {
            return None;
        }
        self.pins[place as usize] += 1;
        Some(place)
    }

    /// A reader of the place has gone.
    pub fn unpin(&mut self, place: u32) {
        self.pins[place as usize] -= 1;
    }

    /// The disk's bytes in the range change, or have changed: told before and after.
    pub fn written(&mut self, offset: u64, len: u64) {
        if self.by_slot.is_empty() || len == 0 {
            return;
        }
        let (first, last) = (offset / self.slot_bytes, (offset + len - 1) / self.slot_bytes);
        if last - first >= self.by_slot.len() as u64 {
            for node in self.by_slot.values() {
                let node = &mut self.nodes[*node as usize];
                if (first..=last).contains(&node.slot) {
                    node.current.clear();
                }
            }
            return;
        }
        for slot in first..=last {
            if let Some(&node) = self.by_slot.get(&slot) {
                let from = offset.max(slot * self.slot_bytes);
                let to = (offset + len).min((slot + 1) * self.slot_bytes);
                let blocks = self.blocks(from, to - from);
                let current = &mut self.nodes[node as usize].current;
                blocks.for_each(|block| current.set(block, false));
            }
        }
    }

    /// The next slot to load: its number. With `near` only one that begins within `near.1` bytes of `near.0`. O(depth).
    #[must_use]
    pub fn candidate(&self, near: Option<(u64, u64)>) -> Option<u64> {
        if self.stats.paused {
            return None;
        }
        let mut node = self.top;
        while node != NONE {
            let Node { slot, copy, below, .. } = self.nodes[node as usize];
            let here = near.is_none_or(|(at, within)| (slot * self.slot_bytes).abs_diff(at) <= within);
            if matches!(copy, Copy::No | Copy::Imagined) && self.is_wanted(node) && here {
                return Some(slot);
            }
            node = below;
        }
        None
    }

    /// Loading the slot begins: the place for it, `None` if there is none, as all are being read from.
    pub fn load(&mut self, slot: u64) -> Option<u32> {
        let &node = self.by_slot.get(&slot)?;
        if !matches!(self.nodes[node as usize].copy, Copy::No | Copy::Imagined) {
            return None;
        }
        if self.free_places.is_empty() {
            self.evict_lowest(node)?;
        }
        let place = self.free_places.pop()?;
        let blocks = self.slot_bytes / BLOCK;
        let node = &mut self.nodes[node as usize];
        node.copy = Copy::Loading(place);
        node.current.fill(blocks);
        node.used.clear();
        Some(place)
    }

    /// Loading has ended.
    pub fn loaded(&mut self, slot: u64, place: u32, well: bool) {
        match self.by_slot.get(&slot) {
            Some(&node) if self.nodes[node as usize].copy == Copy::Loading(place) => {
                self.nodes[node as usize].copy = if well { Copy::At(place) } else { Copy::No };
                if well {
                    self.stats.loads += 1;
                    self.stats.loaded += 1;
                    return;
                }
            }
            // It has left the stack meanwhile.
            _ => {}
        }
        self.free_places.push(place);
    }

    /// What was done.
    #[must_use]
    pub fn stats(&self) -> SlotStats {
        self.stats
    }

    /// The blocks, in their slot, that the range touches.
    fn blocks(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let start = offset % self.slot_bytes;
        start / BLOCK..(start + len).div_ceil(BLOCK)
    }

    fn is_wanted(&self, node: u32) -> bool {
        self.nodes[node as usize].count > self.threshold
    }

    fn imagine(&mut self, node: u32) {
        let node = &mut self.nodes[node as usize];
        node.copy = Copy::Imagined;
        node.used.clear();
    }

    fn enter(&mut self, slot: u64) -> u32 {
        if self.by_slot.len() >= self.depth {
            self.drop_lowest();
        }
        let node = Node {
            slot,
            count: 1,
            copy: Copy::No,
            current: Blocks::of(self.slot_bytes),
            used: Blocks::of(self.slot_bytes),
            above: NONE,
            below: NONE,
        };
        let at = match self.free_nodes.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.by_slot.insert(slot, at);
        self.push(at);
        at
    }

    /// Removes the slot at the bottom of the stack; one that is being read or loaded stays for now.
    fn drop_lowest(&mut self) {
        let mut node = self.bottom;
        while node != NONE {
            let pinned = match self.nodes[node as usize].copy {
                Copy::At(place) => self.pins[place as usize] > 0,
                Copy::Loading(_) => true,
                _ => false,
            };
            if !pinned {
                self.judge(node);
                self.unlink(node);
                self.by_slot.remove(&self.nodes[node as usize].slot);
                self.free_nodes.push(node);
                return;
            }
            node = self.nodes[node as usize].above;
        }
    }

    /// Takes its place from the lowest slot of the stack that has one.
    fn evict_lowest(&mut self, except: u32) -> Option<()> {
        let mut node = self.bottom;
        while node != NONE {
            if let Copy::At(place) = self.nodes[node as usize].copy
                && self.pins[place as usize] == 0
                && node != except
            {
                self.judge(node);
                // It comes back when it was read as often again.
                self.nodes[node as usize].count = 1;
                return Some(());
            }
            node = self.nodes[node as usize].above;
        }
        None
    }

    /// The slot's copy goes: how much of it was used?
    fn judge(&mut self, node: u32) {
        let blocks = self.slot_bytes / BLOCK;
        let node = &mut self.nodes[node as usize];
        match std::mem::replace(&mut node.copy, Copy::No) {
            Copy::At(place) => {
                self.free_places.push(place);
                self.stats.loaded -= 1;
                self.stats.evictions += 1;
            }
            Copy::Imagined => {}
            other => {
                node.copy = other;
                return;
            }
        }
        let share = node.used.count() as f64 / blocks as f64;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(share);
        let mean = self.recent.iter().sum::<f64>() / self.recent.len() as f64;
        self.stats.used_share = mean;
        if self.stats.paused {
            self.stats.paused = mean <= self.used_resume;
        } else {
            self.stats.paused = self.recent.len() == RECENT && mean < self.used_pause;
        }
    }

    fn push(&mut self, node: u32) {
        self.nodes[node as usize].below = self.top;
        self.nodes[node as usize].above = NONE;
        match self.top {
            NONE => self.bottom = node,
            top => self.nodes[top as usize].above = node,
        }
        self.top = node;
    }

    fn unlink(&mut self, node: u32) {
        let Node { above, below, .. } = self.nodes[node as usize];
        match above {
            NONE => self.top = below,
            above => self.nodes[above as usize].below = below,
        }
        match below {
            NONE => self.bottom = above,
            below => self.nodes[below as usize].above = above,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Random;

    const SLOT: u64 = 64 << 10;

    fn slots(places: u32) -> Slots {
        Slots::new(places, SLOT, 2, (0.4, 0.6))
    }

    fn visit(slots: &mut Slots, order: &[u64]) {
        order.iter().for_each(|slot| slots.read(slot * SLOT, BLOCK));
    }

    fn load(slots: &mut Slots, slot: u64) -> u32 {
        let place = slots.load(slot).unwrap();
        slots.loaded(slot, place, true);
        place
    }

    #[test]
    fn a_slot_that_is_come_back_to_is_worth_prefetching() {
        let mut slots = slots(4);
        visit(&mut slots, &[7, 7, 7, 7, 7]);
        assert_eq!(slots.candidate(None), None, "staying in a slot is sequential");
        visit(&mut slots, &[8, 7, 8]);
        assert_eq!(slots.candidate(None), None, "7: twice, 8: twice");
        visit(&mut slots, &[7]);
        assert_eq!(slots.candidate(None), Some(7), "the third time");
        visit(&mut slots, &[8]);
        assert_eq!(slots.candidate(None), Some(8), "from the top");
        assert_eq!(slots.candidate(Some((7 * SLOT + 10, SLOT / 2))), Some(7), "near the head");
        let place = load(&mut slots, 8);
        assert_eq!(slots.candidate(None), Some(7));
        assert_eq!(slots.find(8 * SLOT + 100, 5000), Some(place));
        assert_eq!(slots.find(7 * SLOT, 1), None);
    }

    #[test]
    fn what_is_written_is_not_read_from_the_area_any_more() {
        let mut slots = slots(2);
        visit(&mut slots, &[1, 2, 1, 2, 1, 2]);
        let place = load(&mut slots, 1);
        slots.written(SLOT + BLOCK + 1, 1);
        assert_eq!(slots.find(SLOT, BLOCK), Some(place));
        assert_eq!(slots.find(SLOT, BLOCK + 1), None);
        assert_eq!(slots.find(SLOT + 2 * BLOCK, BLOCK), Some(place));
        slots.written(0, u64::MAX / 2);
        assert_eq!(slots.find(SLOT, BLOCK), None, "many slots at once");
        // While it is loaded.
        let other = slots.load(2).unwrap();
        slots.written(2 * SLOT, BLOCK);
        slots.loaded(2, other, true);
        assert_eq!(slots.find(2 * SLOT, BLOCK), None);
        assert_eq!(slots.find(2 * SLOT + BLOCK, BLOCK), Some(other));
    }

    #[test]
    fn readers_keep_a_slot_in_its_place() {
        let mut slots = slots(1);
        visit(&mut slots, &[1, 2, 1, 2, 1, 2]);
        let place = load(&mut slots, 1);
        assert_eq!(slots.find(SLOT, 1), Some(place));
        assert_eq!(slots.load(2), None, "the only place is being read from");
        visit(&mut slots, &[3, 4, 5, 6]);
        assert_eq!(slots.find(SLOT, 1), Some(place), "also at the bottom of the stack");
        slots.unpin(place);
        slots.unpin(place);
        visit(&mut slots, &[2, 3, 2, 3, 2, 3]);
        assert_eq!(slots.load(2), Some(place));
        slots.loaded(2, place, false);
        assert_eq!(slots.find(2 * SLOT, 1), None, "loading it failed");
        assert_eq!(slots.stats().loaded, 0);
    }

    #[test]
    fn prefetching_pauses_when_little_of_it_is_used_and_goes_on_when_it_would_be() {
        let mut slots = slots(8);
        let mut next = 0;
        // Slots come, are loaded, are read at one block, and go.
        while !slots.stats().paused {
            assert!(next < 400, "{:?}", slots.stats());
            visit(&mut slots, &[next, next + 1, next, next + 1, next, next + 1]);
            while let Some(slot) = slots.candidate(None) {
                if load_if(&mut slots, slot).is_none() {
                    break;
                }
            }
            next += 2;
        }
        assert!(slots.stats().used_share < 0.4);
        while slots.stats().paused {
            assert!(next < 1000, "{:?}", slots.stats());
            for _ in 0..3 {
                for slot in [next, next + 1] {
                    slots.read(slot * SLOT, SLOT);
                }
            }
            assert_eq!(slots.candidate(None).filter(|_| slots.stats().paused), None);
            next += 2;
        }
        assert!(slots.stats().used_share > 0.6);
    }

    fn load_if(slots: &mut Slots, slot: u64) -> Option<u32> {
        let place = slots.load(slot)?;
        slots.loaded(slot, place, true);
        Some(place)
    }

    #[test]
    fn the_stack_is_bounded_and_places_are_neither_lost_nor_given_twice() {
        let mut random = Random(1);
        let mut slots = slots(3);
        let mut pinned = Vec::new();
        for _ in 0..20_000 {
            let slot = random.below(12);
            match random.below(6) {
                0 => {
                    if let Some(slot) = slots.candidate(None) {
                        load_if(&mut slots, slot);
                    }
                }
                1 => pinned.extend(slots.find(slot * SLOT, SLOT)),
                2 => pinned.pop().into_iter().for_each(|place| slots.unpin(place)),
                3 => slots.written(random.below(12 * SLOT), random.below(2 * SLOT)),
                _ => slots.read(slot * SLOT + random.below(SLOT / 2), random.below(SLOT / 2)),
            }
            // Readers may hold the lowest, so that one more is taken in for each.
            assert!(slots.by_slot.len() <= 6 + 3);
            let mut places: Vec<u32> = slots.free_places.clone();
            for &node in slots.by_slot.values() {
                if let Copy::At(place) = slots.nodes[node as usize].copy {
                    places.push(place);
                }
            }
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2]);
            assert_eq!(slots.stats().loaded as usize, 3 - slots.free_places.len());
        }
    }
}
