//! Which requests are outstanding, by their attributes.
//!
//! Several may have the same attributes; which of them a call means makes no difference then, and the oldest is taken.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;
use sluice_core::{FileId, Op, Request, RequestId};

/// Locks: more than threads that are likely to meet.
const SHARDS: usize = 64;

/// What AGIOS names a request by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) file: FileId,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Key {
    pub(crate) fn of(request: &Request) -> Key {
        Key { file: request.file, op: request.op, offset: request.offset, len: request.len }
    }

    fn shard(&self) -> usize {
        let mixed = (self.file.0 ^ (self.offset >> 9)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 58) as usize % SHARDS
    }
}

/// Mixes the few numbers of a key. Nobody chooses them to do harm: they come from the program itself.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(29) ^ number).wrapping_mul(0xA24B_AED4_963E_E407);
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}

#[derive(Default)]
struct Same {
    queued: u32,
    /// Of the queued: to be dropped when they are dispatched.
    cancelled: u32,
    in_flight: Option<RequestId>,
    /// In flight beside that one.
    more: Vec<RequestId>,
}

type Map = HashMap<Key, Same, BuildHasherDefault<KeyHasher>>;

/// The table.
pub(crate) struct Outstanding {
    shards: Vec<Mutex<Map>>,
}

impl Outstanding {
    pub(crate) fn new() -> Outstanding {
        Outstanding { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn with<R>(&self, key: Key, action: impl FnOnce(&mut Map) -> R) -> R {
        action(&mut self.shards[key.shard()].lock())
    }

    pub(crate) fn queued(&self, key: Key) {
        self.with(key, |map| map.entry(key).or_default().queued += 1);
    }

    /// The request was not accepted after all.
    pub(crate) fn refused(&self, key: Key) {
        self.with(key, |map| {
            if let Some(same) = map.get_mut(&key) {
                same.queued -= 1;
                if same.is_empty() {
                    map.remove(&key);
                }
            }
        });
    }

    /// True if it is to be done, false if it was cancelled.
    pub(crate) fn dispatched(&self, key: Key, id: RequestId) -> bool {
        self.with(key, |map| {
            let same = map.entry(key).or_default();
            same.queued -= 1;
            if same.cancelled > 0 {
                same.cancelled -= 1;
                if same.is_empty() {
                    map.remove(&key);
                }
                return false;
            }
            match same.in_flight {
                None => same.in_flight = Some(id),
                Some(_) => same.more.push(id),
            }
            true
        })
    }

    /// One in flight with these attributes, which is so no more.
    pub(crate) fn released(&self, key: Key) -> Option<RequestId> {
        self.with(key, |map| {
            let same = map.get_mut(&key)?;
            let id = same.in_flight.take()?;
            if !same.more.is_empty() {
                same.in_flight = Some(same.more.remove(0));
            }
            if same.is_empty() {
                map.remove(&key);
            }
            Some(id)
        })
    }

    /// Marks one that is queued. False if there is none.
    pub(crate) fn cancelled(&self, key: Key) -> bool {
        self.with(key, |map| match map.get_mut(&key) {
            Some(same) if same.queued > same.cancelled => {
                same.cancelled += 1;
                true
            }
            _ => false,
        })
    }
}

impl Same {
    fn is_empty(&self) -> bool {
        self.queued == 0 && self.in_flight.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key { file: FileId(n % 2), op: Op::Read, offset: n / 2, len: 1 }
    }

    proptest! {
        /// Against lists of what is queued and in flight for each key.
        #[test]
        fn behaves_like_lists(ops in prop::collection::vec((0..4_u8, 0..4_u64), 0..100)) {
            let table = Outstanding::new();
            let mut model = [(0_u32, 0_u32, Vec::new()), (0, 0, Vec::new()), (0, 0, Vec::new()), (0, 0, Vec::new())];
            for (number, (op, which)) in ops.into_iter().enumerate() {
                let (queued, cancelled, in_flight) = &mut model[which as usize];
                match op {
                    0 => {
                        table.queued(key(which));
                        *queued += 1;
                    }
                    1 if *queued > 0 => {
                        let id = RequestId::from_bits(number as u64);
                        *queued -= 1;
                        let alive = *cancelled == 0;
                        prop_assert_eq!(table.dispatched(key(which), id), alive);
                        if alive { in_flight.push(id) } else { *cancelled -= 1 }
                    }
                    2 => {
                        let expected = (!in_flight.is_empty()).then(|| in_flight.remove(0));
                        prop_assert_eq!(table.released(key(which)), expected);
                    }
                    _ => {
                        let can = *queued > *cancelled;
                        prop_assert_eq!(table.cancelled(key(which)), can);
                        *cancelled += u32::from(can);
                    }
                }
            }
            for (which, (queued, _, in_flight)) in model.into_iter().enumerate() {
                let known = table.shards[key(which as u64).shard()].lock().contains_key(&key(which as u64));
                prop_assert_eq!(known, queued > 0 || !in_flight.is_empty());
            }
        }
    }
}
