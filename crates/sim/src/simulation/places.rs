//! Where files lie on a server's device.
//!
//! With block groups (after ext4): a file that is there before it is read lies in one piece, in the order in which files are
//! first used; what is new gets extents of a fixed size when it is first written, as if each were allocated at once, unless all files are said to be there. A file or
//! extent as large as a block group begins at one; smaller ones fill it up. Without them, everything gets extents when it is
//! first touched, as `sluice_storage::emulated` places them: then random reads of a large file find it short, as only what
//! they touch has a place.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use sluice_core::Op;

use super::disk::Mixer;
use crate::scenario::Allocation;

/// Bytes of a block group of ext4 with blocks of 4 KB.
const GROUP: u64 = 128 << 20;
const PAGE: u64 = 4096;
/// In place of an extent's number: the whole file.
const WHOLE: u64 = u64::MAX;

/// A part of a file that lies in one piece.
#[derive(Clone, Copy, Debug)]
struct Piece {
    file: u64,
    /// In the file.
    start: u64,
    end: u64,
    /// On the device.
    address: u64,
}

/// See the [module documentation](self).
pub(super) struct Places {
    of: HashMap<(u64, u64), u64, BuildHasherDefault<Mixer>>,
    /// Most requests stay in the piece of the one before.
    last: Piece,
    next: u64,
    extent: u64,
    capacity: u64,
    allocation: Allocation,
    /// Bytes left free behind each file that lies in one piece.
    distance: u64,
}

impl Places {
    pub(super) fn new(capacity: u64, extent: u64, allocation: Allocation, distance: u64) -> Places {
        let last = Piece { file: u64::MAX, start: 0, end: 0, address: 0 };
        Places { of: HashMap::default(), last, next: 0, extent: extent.min(capacity), capacity, allocation, distance }
    }

    /// Address of a byte of a file that ends at `end` (as far as is known), and how many follow in the same piece.
    pub(super) fn locate(&mut self, file: u64, offset: u64, op: Op, end: u64) -> (u64, u64) {
        if self.last.file != file || offset < self.last.start || offset >= self.last.end {
            self.last = self.find(file, offset, op, end);
        }
        let Piece { start, end, address, .. } = self.last;
        (address + (offset - start), end - offset)
    }

    fn find(&mut self, file: u64, offset: u64, op: Op, end: u64) -> Piece {
        if let Some(address) = self.of.get(&(file, WHOLE)).copied() {
            // What lies behind the end that was known goes on there.
            return Piece { file, start: 0, end: u64::MAX, address };
        }
        let number = offset / self.extent;
        let start = number * self.extent;
        let length = self.extent;
        let extent = |address| Piece { file, start, end: start.saturating_add(length), address };
        if let Some(address) = self.of.get(&(file, number)).copied() {
            return extent(address);
        }
        let may_be_there = match self.allocation {
            Allocation::Groups => op == Op::Read && !self.of.contains_key(&(file, 0)),
            Allocation::Present => true,
            Allocation::Extents => false,
        };
        let is_there = may_be_there && end <= self.capacity;
        if is_there {
            let address = self.allocate(end.max(1));
            self.next = self.next.saturating_add(self.distance);
            self.of.insert((file, WHOLE), address);
            return Piece { file, start: 0, end: u64::MAX, address };
        }
        let piece = extent(self.allocate(length));
        self.of.insert((file, number), piece.address);
        piece
    }

    fn allocate(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(PAGE).min(self.capacity);
        let left = GROUP - self.next % GROUP;
        if self.allocation != Allocation::Extents && bytes > left {
            self.next += left;
        }
        if self.next + bytes > self.capacity {
            self.next = 0;
        }
        let address = self.next;
        self.next += bytes;
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_lies_in_one_piece_whatever_is_read_first() {
        let mut places = Places::new(1 << 40, 64 << 20, Allocation::Groups, 0);
        let far = places.locate(1, 300 << 30, Op::Read, 400 << 30).0;
        let near = places.locate(1, 4096, Op::Read, 400 << 30).0;
        assert_eq!(far - near, (300 << 30) - 4096);
        let other = places.locate(2, 0, Op::Read, 1 << 20).0;
        assert!(
            other >= near + (400 << 30) - 4096 && other.is_multiple_of(GROUP)
                || other / GROUP == (other + (1 << 20) - 1) / GROUP
        );
    }

    #[test]
    fn what_is_new_gets_extents_when_it_is_written() {
        for allocation in [Allocation::Groups, Allocation::Extents] {
            let mut places = Places::new(1 << 40, 1 << 20, allocation, 0);
            let all: Vec<u64> = [(1, 5 << 20), (2, 0), (1, 0)]
                .iter()
                .map(|&(f, at)| places.locate(f, at, Op::Write, 1 << 30).0)
                .collect();
            assert_eq!(all, [0, 1 << 20, 2 << 20]);
            let (address, left) = places.locate(1, (5 << 20) + 4096, Op::Read, 1 << 30);
            assert_eq!((address, left), (4096, (1 << 20) - 4096));
        }
    }

    #[test]
    fn a_file_that_is_present_lies_in_one_piece_though_it_is_written_first() {
        let mut places = Places::new(1 << 40, 1 << 20, Allocation::Present, 0);
        let far = places.locate(1, 300 << 20, Op::Write, 400 << 20).0;
        let near = places.locate(1, 0, Op::Write, 400 << 20).0;
        assert_eq!(far - near, 300 << 20);
    }

    #[test]
    fn a_full_device_begins_anew() {
        let mut places = Places::new(10 << 20, 4 << 20, Allocation::Extents, 0);
        let all: Vec<u64> = (0..4).map(|at| places.locate(1, at << 22, Op::Write, 1 << 30).0).collect();
        assert_eq!(all, [0, 4 << 20, 0, 4 << 20]);
    }
}
