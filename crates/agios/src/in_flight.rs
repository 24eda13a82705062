//! Which requests are in flight, by their attributes.
//!
//! Several may have the same attributes; which of them a release means makes no difference then, and the oldest is taken.
//!
//! Requests are entered by the thread that hands them over, not by the one that adds them: so what a request costs here
//! stays with one processor where the callback releases it. Each shard is a table of chains over a slab, and chains are in
//! order of arrival. Nothing is allocated once a shard has grown to the most it had to hold.

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sluice_core::{FileId, Op, Request, RequestId};

/// Locks: more than threads that are likely to meet. A power of two.
const SHARDS: usize = 64;

/// Chains of a shard at the start. A power of two.
const CHAINS: usize = 64;

/// The end of a chain.
const NIL: u32 = u32::MAX;

/// What AGIOS names a request by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    pub(crate) fn names(&self, request: &Request) -> bool {
        *self == Key::of(request)
    }

    /// Mixes the few numbers of a key. Nobody chooses them to do harm: they come from the program itself.
    fn hash(&self) -> u64 {
        let mixed = (self.file.0 ^ self.offset.rotate_left(23)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let rest = u64::from(self.len) << 1 | self.op.index() as u64;
        ((mixed ^ mixed >> 32) ^ rest.rotate_left(40)).wrapping_mul(0xA24B_AED4_963E_E407)
    }
}

fn shard_of(hash: u64) -> usize {
    (hash >> 58) as usize % SHARDS
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    /// The engine's number, if it came from an engine.
    id: Option<RequestId>,
    /// The next in the chain, or in the list of free ones.
    next: u32,
}

/// The first and the last entry.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
}

const EMPTY: Chain = Chain { first: NIL, last: NIL };

struct Shard {
    chains: Vec<Chain>,
    entries: Vec<Entry>,
    free: u32,
    len: usize,
}

impl Shard {
    fn new() -> Shard {
        Shard { chains: vec![EMPTY; CHAINS], entries: Vec::new(), free: NIL, len: 0 }
    }

    fn chain(&mut self, hash: u64) -> &mut Chain {
        let mask = self.chains.len() - 1;
        &mut self.chains[(hash >> 20) as usize & mask]
    }

    fn append(&mut self, hash: u64, index: u32) {
        let chain = self.chain(hash);
        let last = std::mem::replace(&mut chain.last, index);
        match last {
            NIL => chain.first = index,
            last => self.entries[last as usize].next = index,
        }
    }

    fn add(&mut self, hash: u64, entry: Entry) {
        if self.len >= self.chains.len() {
            self.grow();
        }
        self.len += 1;
        let index = match self.free {
            NIL => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
            free => {
                let place = &mut self.entries[free as usize];
                self.free = place.next;
                *place = entry;
                free
            }
        };
        self.append(hash, index);
    }

    /// Twice the chains, each in the order it had.
    fn grow(&mut self) {
        let chains = vec![EMPTY; self.chains.len() * 2];
        for chain in std::mem::replace(&mut self.chains, chains) {
            let mut at = chain.first;
            while at != NIL {
                let entry = &mut self.entries[at as usize];
                let next = std::mem::replace(&mut entry.next, NIL);
                let hash = entry.key.hash();
                self.append(hash, at);
                at = next;
            }
        }
    }

    /// Takes the oldest of a key out.
    fn remove(&mut self, hash: u64, key: Key) -> Option<Entry> {
        let (mut before, mut at) = (NIL, self.chain(hash).first);
        while at != NIL && self.entries[at as usize].key != key {
            (before, at) = (at, self.entries[at as usize].next);
        }
        if at == NIL {
            return None;
        }
        let entry = self.entries[at as usize];
        self.entries[at as usize].next = std::mem::replace(&mut self.free, at);
        self.len -= 1;
        match before {
            NIL => self.chain(hash).first = entry.next,
            before => self.entries[before as usize].next = entry.next,
        }
        if entry.next == NIL {
            self.chain(hash).last = before;
        }
        Some(entry)
    }
}

/// The table. Every call is O(1) on average.
pub(crate) struct InFlight {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl InFlight {
    pub(crate) fn new() -> InFlight {
        InFlight { shards: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(Shard::new()))).collect() }
    }

    /// A request is handed over. `id`: none if no engine knows it.
    pub(crate) fn add(&self, key: Key, id: Option<RequestId>) {
        let hash = key.hash();
        self.shards[shard_of(hash)].lock().add(hash, Entry { key, id, next: NIL });
    }

    /// One with these attributes, which is in flight no more: the number it was added with.
    pub(crate) fn remove(&self, key: Key) -> Option<Option<RequestId>> {
        let hash = key.hash();
        self.shards[shard_of(hash)].lock().remove(hash, key).map(|entry| entry.id)
    }

    /// Requests in the table. Others may come and go meanwhile.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len).sum()
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
        /// Against a list of requests for each key, in order of arrival.
        #[test]
        fn behaves_like_lists(ops in prop::collection::vec((any::<bool>(), 0..4_u64), 0..200)) {
            let table = InFlight::new();
            let mut lists: [Vec<Option<RequestId>>; 4] = Default::default();
            for (number, (adds, which)) in ops.into_iter().enumerate() {
                let list = &mut lists[which as usize];
                if adds {
                    let id = (number % 3 > 0).then(|| RequestId::from_bits(number as u64));
                    table.add(key(which), id);
                    list.push(id);
                } else {
                    let expected = (!list.is_empty()).then(|| list.remove(0));
                    prop_assert_eq!(table.remove(key(which)), expected);
                }
                prop_assert_eq!(table.len(), lists.iter().map(Vec::len).sum::<usize>());
            }
        }

        /// Keys that are alike are told apart, in shards that grow, in any order of release.
        #[test]
        fn many_are_found(seed in any::<u64>(), count in 1..6_000_u64) {
            let table = InFlight::new();
            let key = |n: u64| {
                let op = if n.is_multiple_of(2) { Op::Read } else { Op::Write };
                Key { file: FileId(seed ^ (n / 2 % 3)), op, offset: n / 6 % 50 * 4096, len: (n / 300) as u32 }
            };
            (0..count).for_each(|n| table.add(key(n), Some(RequestId::from_bits(n))));
            // An odd multiplier visits every number below a power of two once.
            let range = count.next_power_of_two();
            for n in (0..range).map(|n| n.wrapping_mul(0x9E37_79B9) % range).filter(|&n| n < count) {
                prop_assert_eq!(table.remove(key(n)), Some(Some(RequestId::from_bits(n))));
                prop_assert_eq!(table.remove(key(n)), None);
            }
            prop_assert_eq!(table.len(), 0);
        }
    }

    #[test]
    fn equal_ones_are_found_without_looking_at_all() {
        let table = InFlight::new();
        // Quadratic time would take minutes.
        (0..100_000).for_each(|n| table.add(key(0), Some(RequestId::from_bits(n))));
        (0..100_000).for_each(|n| assert_eq!(table.remove(key(0)), Some(Some(RequestId::from_bits(n)))));
        assert_eq!(table.len(), 0);
    }
}
