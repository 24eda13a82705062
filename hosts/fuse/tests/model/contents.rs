//! What a file must hold.

use std::collections::BTreeMap;

pub const PAGE: u64 = 4096;

/// A file of any size of which only few pages are not zero.
#[derive(Clone, Default)]
pub struct Contents {
    pub size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

/// The bytes `at..at + len` as parts of pages: page, place in the page, place in the range, length.
fn parts(at: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done;
        let part = (PAGE - here % PAGE).min(len - done);
        let place = (here / PAGE, (here % PAGE) as usize, done as usize, part as usize);
        done += part;
        (part > 0).then_some(place)
    })
}

impl Contents {
    pub fn write(&mut self, at: u64, data: &[u8]) {
        for (page, inside, from, len) in parts(at, data.len() as u64) {
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[inside..inside + len].copy_from_slice(&data[from..from + len]);
        }
        self.size = self.size.max(at + data.len() as u64);
    }

    /// At most `len` bytes; fewer at the end.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; (len as u64).min(self.size.saturating_sub(at)) as usize];
        for (page, inside, to, len) in parts(at, data.len() as u64) {
            if let Some(page) = self.pages.get(&page) {
                data[to..to + len].copy_from_slice(&page[inside..inside + len]);
            }
        }
        data
    }

    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(last) = self.pages.get_mut(&(size / PAGE)) {
                last[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// Zeros, without changing the size.
    pub fn zero(&mut self, at: u64, len: u64) {
        for (page, inside, _, len) in parts(at, len.min(self.size.saturating_sub(at))) {
            if let Some(page) = self.pages.get_mut(&page) {
                page[inside..inside + len].fill(0);
            }
        }
    }

    /// The first byte that is not zero in `from..to`.
    pub fn data(&self, from: u64, to: u64) -> Option<u64> {
        if from >= to {
            return None;
        }
        self.pages.range(from / PAGE..to.div_ceil(PAGE)).find_map(|(page, bytes)| {
            let start = page * PAGE;
            let places = from.max(start)..to.min(start + PAGE);
            places.into_iter().find(|at| bytes[(at - start) as usize] != 0)
        })
    }

    /// Where to look when everything is compared: whatever was ever written, and the end.
    pub fn places(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.pages.keys().map(|page| page * PAGE).collect();
        places.push((self.size / PAGE) * PAGE);
        places.dedup();
        places
    }
}

/// What an operation writes: another byte for each operation and almost each place.
pub fn pattern(how: u8, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ how | 1).collect()
}
