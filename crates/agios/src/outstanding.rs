//! Which requests are outstanding, by their attributes.
//!
//! Several may have the same attributes; which of them a call means makes no difference then, and the oldest is taken.
//!
//! A request keeps its place from [`Outstanding::add`] to its end, and its cookie says where that is. So it is looked for
//! by its attributes once, when it is released or cancelled; entering and dispatching find their place without. Each
//! shard is a table of chains over a slab, and chains are in order of arrival. Nothing is allocated once a shard has
//! grown to the most it had to hold.

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

/// Where a request is: what its cookie says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(u64);

impl Place {
    fn new(shard: usize, index: u32) -> Place {
        Place((shard as u64) << 32 | u64::from(index))
    }

    /// Of a request that was submitted with [`Place::cookie`].
    pub(crate) fn of(request: &Request) -> Place {
        Place(request.cookie)
    }

    pub(crate) fn cookie(self) -> u64 {
        self.0
    }

    fn shard(self) -> usize {
        (self.0 >> 32) as usize % SHARDS
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Queued,
    /// To be dropped when it is dispatched.
    Cancelled,
    /// Handed over. The engine's number, if it came from an engine.
    InFlight(Option<RequestId>),
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    identifier: i64,
    state: State,
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

    fn add(&mut self, hash: u64, entry: Entry) -> u32 {
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
        index
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

    /// The oldest that fits, and the one before it in its chain.
    fn find(&mut self, hash: u64, fits: impl Fn(u32, &Entry) -> bool) -> Option<(u32, u32)> {
        let (mut before, mut at) = (NIL, self.chain(hash).first);
        while at != NIL {
            let entry = &self.entries[at as usize];
            if fits(at, entry) {
                return Some((before, at));
            }
            (before, at) = (at, entry.next);
        }
        None
    }

    /// Takes out `index`, which follows `before` in its chain.
    fn remove(&mut self, hash: u64, before: u32, index: u32) {
        let free = self.free;
        let next = std::mem::replace(&mut self.entries[index as usize].next, free);
        self.free = index;
        self.len -= 1;
        match before {
            NIL => self.chain(hash).first = next,
            before => self.entries[before as usize].next = next,
        }
        if next == NIL {
            self.chain(hash).last = before;
        }
    }

    /// Takes out one whose place in its chain is not known.
    fn remove_at(&mut self, index: u32) {
        let hash = self.entries[index as usize].key.hash();
        if let Some((before, at)) = self.find(hash, |at, _| at == index) {
            self.remove(hash, before, at);
        }
    }
}

/// The table. Every call is O(1), plus the requests with the same attributes that are before the one meant.
pub(crate) struct Outstanding {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl Outstanding {
    pub(crate) fn new() -> Outstanding {
        Outstanding { shards: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(Shard::new()))).collect() }
    }

    fn add(&self, key: Key, identifier: i64, state: State) -> Place {
        let hash = key.hash();
        let shard = shard_of(hash);
        let index = self.shards[shard].lock().add(hash, Entry { key, identifier, state, next: NIL });
        Place::new(shard, index)
    }

    /// A request that is to be queued. Its cookie is then that of the place.
    pub(crate) fn queued(&self, key: Key, identifier: i64) -> Place {
        self.add(key, identifier, State::Queued)
    }

    /// A request that no engine sees.
    pub(crate) fn handed_over(&self, key: Key, identifier: i64) {
        self.add(key, identifier, State::InFlight(None));
    }

    /// A request that is queued will never be dispatched.
    pub(crate) fn dropped(&self, place: Place) {
        self.shards[place.shard()].lock().remove_at(place.index() as u32);
    }

    /// The program's identifier if the request is to be done; `None` if it was cancelled, which ends it.
    pub(crate) fn dispatched(&self, place: Place, id: RequestId) -> Option<i64> {
        let mut shard = self.shards[place.shard()].lock();
        let entry = &mut shard.entries[place.index()];
        if entry.state == State::Cancelled {
            shard.remove_at(place.index() as u32);
            return None;
        }
        entry.state = State::InFlight(Some(id));
        Some(entry.identifier)
    }

    /// One in flight with these attributes, which is so no more: its number if it came from an engine.
    pub(crate) fn released(&self, key: Key) -> Option<Option<RequestId>> {
        let hash = key.hash();
        let mut shard = self.shards[shard_of(hash)].lock();
        let in_flight = |_, entry: &Entry| entry.key == key && matches!(entry.state, State::InFlight(_));
        let (before, at) = shard.find(hash, in_flight)?;
        let State::InFlight(id) = shard.entries[at as usize].state else { return None };
        shard.remove(hash, before, at);
        Some(id)
    }

    /// Marks one that is queued. False if there is none.
    pub(crate) fn cancelled(&self, key: Key) -> bool {
        let hash = key.hash();
        let mut shard = self.shards[shard_of(hash)].lock();
        match shard.find(hash, |_, entry| entry.key == key && entry.state == State::Queued) {
            Some((_, at)) => {
                shard.entries[at as usize].state = State::Cancelled;
                true
            }
            None => false,
        }
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

    /// What is known of a request in the lists.
    struct Known {
        place: Place,
        identifier: i64,
        cancelled: bool,
        id: Option<RequestId>,
    }

    proptest! {
        /// Against a list of requests for each key, in order of arrival.
        #[test]
        fn behaves_like_lists(ops in prop::collection::vec((0..5_u8, 0..4_u64, any::<prop::sample::Index>()), 0..200)) {
            let table = Outstanding::new();
            let mut lists: [Vec<Known>; 4] = Default::default();
            for (number, (op, which, chosen)) in ops.into_iter().enumerate() {
                let (list, identifier) = (&mut lists[which as usize], number as i64);
                let queued: Vec<usize> = (0..list.len()).filter(|&at| list[at].id.is_none()).collect();
                match op {
                    0 => {
                        let place = table.queued(key(which), identifier);
                        list.push(Known { place, identifier, cancelled: false, id: None });
                    }
                    1 if !queued.is_empty() => {
                        let at = *chosen.get(&queued);
                        let (id, known) = (RequestId::from_bits(number as u64), &mut list[at]);
                        let expected = (!known.cancelled).then_some(known.identifier);
                        prop_assert_eq!(table.dispatched(known.place, id), expected);
                        known.id = Some(id);
                        if known.cancelled {
                            list.remove(at);
                        }
                    }
                    2 if !queued.is_empty() => {
                        let known = list.remove(*chosen.get(&queued));
                        table.dropped(known.place);
                    }
                    3 => {
                        let at = list.iter().position(|known| known.id.is_some());
                        let expected = at.map(|at| list.remove(at).id);
                        prop_assert_eq!(table.released(key(which)), expected);
                    }
                    _ => {
                        let at = list.iter().position(|known| known.id.is_none() && !known.cancelled);
                        if let Some(at) = at {
                            list[at].cancelled = true;
                        }
                        prop_assert_eq!(table.cancelled(key(which)), at.is_some());
                    }
                }
                prop_assert_eq!(table.len(), lists.iter().map(Vec::len).sum::<usize>());
            }
        }

        /// Keys that are alike are told apart, in shards that grow, in any order of release.
        #[test]
        fn many_are_found(seed in any::<u64>(), count in 1..6_000_u64) {
            let table = Outstanding::new();
            let key = |n: u64| {
                let op = if n.is_multiple_of(2) { Op::Read } else { Op::Write };
                Key { file: FileId(seed ^ (n / 2 % 3)), op, offset: n / 6 % 50 * 4096, len: (n / 300) as u32 }
            };
            let places: Vec<Place> = (0..count).map(|n| table.queued(key(n), n as i64)).collect();
            for n in 0..count {
                prop_assert_eq!(table.dispatched(places[n as usize], RequestId::from_bits(n)), Some(n as i64));
            }
            // An odd multiplier visits every number below a power of two once.
            let range = count.next_power_of_two();
            for n in (0..range).map(|n| n.wrapping_mul(0x9E37_79B9) % range).filter(|&n| n < count) {
                prop_assert_eq!(table.released(key(n)), Some(Some(RequestId::from_bits(n))));
                prop_assert_eq!(table.released(key(n)), None);
            }
            prop_assert_eq!(table.len(), 0);
        }
    }

    #[test]
    fn equal_ones_are_found_without_looking_at_all() {
        let table = Outstanding::new();
        // Quadratic time would take minutes.
        let places: Vec<Place> = (0..100_000).map(|n| table.queued(key(0), n)).collect();
        for (n, place) in places.into_iter().enumerate() {
            assert_eq!(table.dispatched(place, RequestId::from_bits(n as u64)), Some(n as i64));
        }
        for n in 0..100_000 {
            assert_eq!(table.released(key(0)), Some(Some(RequestId::from_bits(n))));
        }
        assert_eq!(table.len(), 0);
    }
}
