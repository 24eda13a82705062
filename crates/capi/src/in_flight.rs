//! Which requests hosts were given and have not completed.
//!
//! The engine itself learns of a completion only later; this tells at once whether it can be right.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_core::RequestId;

/// A request's number: its generation in the upper half, then its shard, then its slot.
const SLOT_BITS: u32 = 26;
/// In a place: the generation and one, then the client.
const CLIENT_SHIFT: u32 = 40;
/// Numbers of clients that there is room for.
pub(crate) const CLIENTS_MAX: u32 = 1 << (64 - CLIENT_SHIFT);

pub(crate) fn to_number(shard: usize, id: RequestId) -> u64 {
    let bits = id.to_bits();
    bits & 0xffff_ffff_0000_0000 | (shard as u64) << SLOT_BITS | bits & 0xffff_ffff
}

/// Shard, slot, generation.
fn from_number(number: u64) -> (usize, usize, u64) {
    let low = number as u32;
    ((low >> SLOT_BITS) as usize, (low & ((1 << SLOT_BITS) - 1)) as usize, number >> 32)
}

/// Shard and the engine's number.
pub(crate) fn split(number: u64) -> (usize, RequestId) {
    let (shard, slot, generation) = from_number(number);
    (shard, RequestId::from_bits(generation << 32 | slot as u64))
}

/// For each shard and slot: the client that has the request there in flight and its generation, plus 1; or 0.
pub(crate) struct InFlight(Vec<Box<[AtomicU64]>>);

impl InFlight {
    pub(crate) fn new(shards: usize, capacity: u32) -> InFlight {
        InFlight((0..shards).map(|_| (0..capacity).map(|_| AtomicU64::new(0)).collect()).collect())
    }

    fn place(&self, shard: usize, slot: usize) -> Option<&AtomicU64> {
        self.0.get(shard)?.get(slot)
    }

    fn value(client: u32, generation: u64) -> u64 {
        u64::from(client) << CLIENT_SHIFT | (generation + 1)
    }

    /// A client is given a request; what it completes it by.
    pub(crate) fn add(&self, client: u32, shard: usize, id: RequestId) -> u64 {
        let number = to_number(shard, id);
        let (_, slot, generation) = from_number(number);
        if let Some(place) = self.place(shard, slot) {
            place.store(InFlight::value(client, generation), Ordering::Release);
        }
        number
    }

    /// A client completes one. False if it has no such request.
    pub(crate) fn remove(&self, client: u32, number: u64) -> bool {
        let (shard, slot, generation) = from_number(number);
        let Some(place) = self.place(shard, slot) else { return false };
        place.compare_exchange(InFlight::value(client, generation), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_completes_what_it_was_given_and_only_once() {
        let table = InFlight::new(64, 4);
        for (shard, slot, generation) in [(0, 0, 0), (63, 3, u64::from(u32::MAX)), (7, 2, 1)] {
            let id = RequestId::from_bits(generation << 32 | slot);
            let number = table.add(CLIENTS_MAX - 1, shard, id);
            assert_eq!(split(number), (shard, id));
            assert!(!table.remove(CLIENTS_MAX - 2, number) && !table.remove(CLIENTS_MAX - 1, number ^ 1 << 32));
            assert!(table.remove(CLIENTS_MAX - 1, number) && !table.remove(CLIENTS_MAX - 1, number));
        }
        assert!(!table.remove(0, u64::MAX));
    }
}
