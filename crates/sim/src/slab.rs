//! Records that come and go, named by their place.

use std::ops::{Index, IndexMut};

/// No record.
pub(crate) const NONE: u32 = u32::MAX;

/// A vector whose freed places are used again: as large as the most records that were there at a time.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    records: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { records: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, record: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.records[place as usize] = record;
            return place;
        }
        self.records.push(record);
        self.records.len() as u32 - 1
    }

    /// The record stays readable until its place is used again.
    pub(crate) fn free(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Records there at present.
    pub(crate) fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Most records that were there at a time.
    pub(crate) fn most(&self) -> usize {
        self.records.len()
    }

    /// All places, also those not in use.
    pub(crate) fn places(&self) -> std::ops::Range<u32> {
        0..self.records.len() as u32
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, place: u32) -> &T {
        &self.records[place as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.records[place as usize]
    }
}
