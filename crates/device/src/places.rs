//! Where files lie on a device.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys are mixed by one multiplication: they are numbers that no stranger chooses.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A file, and which of its extents.
type Key = (u64, u64);

/// Which extent of a device holds which extent of which file: one after the other, in the order of first use, as a file system
/// that is not yet fragmented would have them. On a full device each new extent takes the place of the oldest.
pub struct Places {
    of: HashMap<Key, u64, BuildHasherDefault<Mixer>>,
    /// The reverse. Nobody has a place that a file which did not fit before the end has skipped.
    owner: Vec<Option<Key>>,
    /// How many extents of the device each file has, if any.
    held: HashMap<u64, u64, BuildHasherDefault<Mixer>>,
    /// Most requests stay in the extent of the one before.
    last: Option<(Key, u64)>,
    next: u64,
    extent: u64,
    extents: u64,
}

impl Places {
    /// A device without files, with so many bytes, divided into extents of so many bytes each.
    ///
    /// # Panics
    /// If an extent has no bytes.
    #[must_use]
    pub fn new(capacity_bytes: u64, extent_bytes: u64) -> Places {
        let extents = (capacity_bytes / extent_bytes).max(1);
        Places {
            of: HashMap::default(),
            owner: Vec::new(),
            held: HashMap::default(),
            last: None,
            next: 0,
            extent: extent_bytes,
            extents,
        }
    }

    /// Where on the device a byte of a file is. O(1), expected; memory grows with the extents used.
    #[must_use]
    pub fn address(&mut self, file: u64, offset: u64) -> u64 {
        let key = (file, offset / self.extent);
        let place = match self.last {
            Some((last, place)) if last == key => place,
            _ => self.of.get(&key).copied().unwrap_or_else(|| self.give(key)),
        };
        self.last = Some((key, place));
        place * self.extent + offset % self.extent
    }

    /// Bytes from an offset of a file to the end of its extent: so many are in one piece. At least 1.
    #[must_use]
    pub const fn contiguous(&self, offset: u64) -> u64 {
        self.extent - offset % self.extent
    }

    /// Whether something of the file is on the device.
    #[must_use]
    pub fn knows(&self, file: u64) -> bool {
        self.held.contains_key(&file)
    }

    /// Gives a file that is not on the device yet, but has been there before it was touched, consecutive extents for all its
    /// bytes. One that the device cannot hold gets its extents one by one, as they are touched. O(extents of the file).
    pub fn lay_out(&mut self, file: u64, bytes: u64) {
        let wanted = bytes.div_ceil(self.extent);
        if wanted > self.extents || self.knows(file) {
            return;
        }
        if self.next + wanted > self.extents {
            self.next = 0;
        }
        for extent in 0..wanted {
            self.give((file, extent));
        }
    }

    fn give(&mut self, key: Key) -> u64 {
        let place = self.next;
        self.next = (self.next + 1) % self.extents;
        self.give_up(place);
        if self.owner.len() as u64 <= place {
            self.owner.resize(place as usize + 1, None);
        }
        self.owner[place as usize] = Some(key);
        self.of.insert(key, place);
        *self.held.entry(key.0).or_default() += 1;
        place
    }

    /// Takes an extent of the device from whoever has it.
    fn give_up(&mut self, place: u64) {
        let Some(old) = self.owner.get_mut(place as usize).and_then(Option::take) else { return };
        self.of.remove(&old);
        self.last = self.last.filter(|(last, _)| *last != old);
        let held = self.held.entry(old.0).or_default();
        *held -= 1;
        if *held == 0 {
            self.held.remove(&old.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_have_one_owner(touches in proptest::collection::vec((0u64..4, 0u64..50, 0u64..90), 1..100)) {
            let mut places = Places::new(75, 10);
            for (file, offset, size) in touches {
                places.lay_out(file, size);
                let address = places.address(file, offset);
                prop_assert!(address < 70);
                prop_assert_eq!(address % 10, offset % 10);
                prop_assert_eq!(places.address(file, offset), address);
                prop_assert_eq!(places.contiguous(offset), 10 - offset % 10);
                prop_assert!(places.of.len() <= 7);
                prop_assert_eq!(places.of.values().filter(|p| **p == address / 10).count(), 1);
                prop_assert_eq!(places.held.values().sum::<u64>(), places.of.len() as u64);
            }
        }
    }

    #[test]
    fn extents_follow_each_other_in_the_order_of_first_use() {
        let mut places = Places::new(30, 10);
        assert_eq!([(5, 0), (6, 12), (5, 9), (5, 25)].map(|(file, at)| places.address(file, at)), [0, 12, 9, 25]);
        // Full: the oldest goes, and gets the place of the next oldest when it comes again.
        assert_eq!([(7, 3), (5, 0), (7, 0)].map(|(file, at)| places.address(file, at)), [3, 10, 0]);
    }

    #[test]
    fn a_file_that_is_there_lies_in_one_piece() {
        let mut places = Places::new(100, 10);
        assert_eq!(places.address(1, 0), 0);
        places.lay_out(2, 49);
        assert_eq!((places.address(2, 30), places.address(2, 0)), (40, 10));
        places.lay_out(2, 90);
        assert_eq!(places.address(2, 70), 60, "it has grown since it was laid out");
        places.lay_out(3, 40);
        assert_eq!(places.address(3, 0), 0, "four do not fit before the end");
        assert!(!places.knows(1) && places.knows(2));
        places.lay_out(4, 110);
        assert!(!places.knows(4), "more than the device holds");
    }
}
