//! Where a file's bytes are: RAID-0 striping with a fixed stripe size over all targets. Each file has a target that it
//! begins on; the stripes after the first go to the targets that follow, and to target 0 after the last.

use crate::OpenFile;

/// Striping of a storage, or of one of its files. Copy, cheap to pass around. All operations take constant time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    targets: u32,
    /// The target of the first stripe.
    first: u32,
    stripe: u64,
}

/// A part of a logical byte range that lies in one stretch of one target's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which target.
    pub target: u32,
    /// Offset in the target's file.
    pub offset: u64,
    /// Offset in the logical file.
    pub logical: u64,
    /// Bytes; never 0.
    pub len: u64,
}

impl Layout {
    /// One target that holds everything.
    #[must_use]
    pub const fn single() -> Layout {
        Layout { targets: 1, first: 0, stripe: u64::MAX }
    }

    /// Round robin over `targets` targets in stripes of `stripe` bytes, beginning on target 0.
    ///
    /// # Panics
    /// If either is 0.
    #[must_use]
    pub const fn striped(targets: u32, stripe: u64) -> Layout {
        assert!(targets > 0 && stripe > 0);
        if targets == 1 { Layout::single() } else { Layout { targets, first: 0, stripe } }
    }

    /// The same for a file that begins on target `first`.
    ///
    /// # Panics
    /// If there is no such target.
    #[must_use]
    pub const fn starting_at(self, first: u32) -> Layout {
        assert!(first < self.targets);
        Layout { first, ..self }
    }

    /// The same for this file. One of a storage with more targets, which has no place here, gets some.
    #[must_use]
    pub fn of(self, file: &dyn OpenFile) -> Layout {
        let first = if self.targets == 1 { 0 } else { file.first_target() };
        self.starting_at(if first < self.targets { first } else { 0 })
    }

    /// Number of targets.
    #[must_use]
    pub const fn targets(&self) -> u32 {
        self.targets
    }

    /// The target of the first stripe.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// A target's number counted from the first one: which stripes of each row it has.
    #[must_use]
    pub const fn position(&self, target: u32) -> u32 {
        if target >= self.first { target - self.first } else { target + (self.targets - self.first) }
    }

    /// Stripe size in bytes, `None` if there is one target.
    #[must_use]
    pub const fn stripe(&self) -> Option<u64> {
        if self.targets == 1 { None } else { Some(self.stripe) }
    }

    /// Splits `offset..offset + len` by stripe, in logical order. Neighbouring pieces are on different targets.
    ///
    /// Ranges beyond `u64::MAX` are cut there.
    #[must_use]
    pub const fn split(&self, offset: u64, len: u64) -> Pieces {
        Pieces { layout: *self, at: offset, end: offset.saturating_add(len) }
    }

    /// Target and offset in the target's file of one logical byte.
    #[must_use]
    pub const fn locate(&self, logical: u64) -> (u32, u64) {
        if self.targets == 1 {
            return (0, logical);
        }
        let stripe = logical / self.stripe;
        let (row, position) = (stripe / self.targets as u64, (stripe % self.targets as u64) as u32);
        let before = self.targets - self.first;
        let target = if position < before { position + self.first } else { position - before };
        (target, row * self.stripe + logical % self.stripe)
    }

    /// Logical offset of a byte of a target's file; beyond them all, the largest.
    #[must_use]
    pub const fn logical(&self, target: u32, offset: u64) -> u64 {
        if self.targets == 1 {
            return offset;
        }
        let row = offset / self.stripe;
        let stripe = row.saturating_mul(self.targets as u64).saturating_add(self.position(target) as u64);
        stripe.saturating_mul(self.stripe).saturating_add(offset % self.stripe)
    }

    /// Size of `target`'s file when the logical file is `size` bytes long and has no holes at its end.
    #[must_use]
    pub const fn target_size(&self, target: u32, size: u64) -> u64 {
        if self.targets == 1 {
            return size;
        }
        let width = self.stripe * self.targets as u64;
        let full = size / width * self.stripe;
        let rest = size % width;
        let before = self.position(target) as u64 * self.stripe;
        let here = if rest <= before {
            0
        } else if rest - before >= self.stripe {
            self.stripe
        } else {
            rest - before
        };
        full + here
    }

    /// Logical size implied by one target's file being `size` bytes long: one past its last byte, 0 if it is empty.
    #[must_use]
    pub const fn logical_size(&self, target: u32, size: u64) -> u64 {
        if size == 0 { 0 } else { self.logical(target, size - 1).saturating_add(1) }
    }
}

/// Iterator over the [`Piece`]s of a logical range.
#[derive(Clone, Debug)]
pub struct Pieces {
    layout: Layout,
    at: u64,
    end: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let (target, offset) = self.layout.locate(self.at);
        let left = self.end - self.at;
        let len =
            if self.layout.targets == 1 { left } else { left.min(self.layout.stripe - offset % self.layout.stripe) };
        let piece = Piece { target, offset, logical: self.at, len };
        self.at += len;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Targets, the first one, and a stripe size below `stripe_max` bytes.
    fn layout(stripe_max: u64) -> impl Strategy<Value = Layout> {
        (1u32..9, any::<u32>(), 1..stripe_max)
            .prop_map(|(targets, first, stripe)| Layout::striped(targets, stripe).starting_at(first % targets))
    }

    /// Deals the bytes of a file of `size` bytes out one by one: target and offset of each, and what each target has then.
    fn dealt(layout: Layout, size: u64) -> (Vec<(u32, u64)>, Vec<u64>) {
        let mut sizes = vec![0; layout.targets() as usize];
        let (mut target, mut left) = (layout.first(), layout.stripe().unwrap_or(u64::MAX));
        let places = (0..size).map(|_| {
            if left == 0 {
                (target, left) = ((target + 1) % layout.targets(), layout.stripe().unwrap());
            }
            left -= 1;
            sizes[target as usize] += 1;
            (target, sizes[target as usize] - 1)
        });
        (places.collect(), sizes)
    }

    /// Somebody has made a target's file longer than any part of a file is.
    #[test]
    fn a_target_that_reaches_beyond_all_offsets_is_as_long_as_there_are() {
        for layout in [Layout::striped(4, 1 << 16), Layout::striped(3, 7).starting_at(2)] {
            for size in [i64::MAX as u64, u64::MAX] {
                assert_eq!(layout.logical_size(1, size), u64::MAX);
            }
        }
    }

    proptest! {
        #[test]
        fn locate_and_logical_are_inverse(layout in layout(100_000), at in 0u64..1 << 40) {
            let (target, offset) = layout.locate(at);
            prop_assert!(target < layout.targets());
            prop_assert_eq!(layout.logical(target, offset), at);
        }

        #[test]
        fn split_covers_the_range_once(layout in layout(5_000), at in 0u64..100_000, len in 0u64..50_000) {
            let mut next = at;
            for piece in layout.split(at, len) {
                prop_assert_eq!(piece.logical, next);
                prop_assert_eq!(layout.locate(piece.logical), (piece.target, piece.offset));
                prop_assert_eq!(layout.locate(piece.logical + piece.len - 1), (piece.target, piece.offset + piece.len - 1));
                next += piece.len;
            }
            prop_assert_eq!(next, at + len);
        }

        #[test]
        fn sizes_agree(layout in layout(5_000), size in 0u64..200_000) {
            let parts: Vec<u64> = (0..layout.targets()).map(|t| layout.target_size(t, size)).collect();
            prop_assert_eq!(parts.iter().sum::<u64>(), size);
            let back = (0..layout.targets()).map(|t| layout.logical_size(t, parts[t as usize])).max().unwrap();
            prop_assert_eq!(back, size);
        }

        #[test]
        fn bytes_are_where_dealing_them_out_puts_them(layout in layout(40), size in 0u64..1_000, from in 0u64..1_000) {
            let (places, sizes) = dealt(layout, size);
            for (at, &(target, offset)) in (0..).zip(&places) {
                prop_assert_eq!(layout.locate(at), (target, offset));
                prop_assert_eq!(layout.logical(target, offset), at);
            }
            for (target, &held) in (0..).zip(&sizes) {
                prop_assert_eq!(layout.target_size(target, size), held);
                let last = (0..).zip(&places).filter(|(_, place)| place.0 == target).last();
                prop_assert_eq!(layout.logical_size(target, held), last.map_or(0, |(at, _): (u64, _)| at + 1));
            }
            let bytes = layout.split(from, size.saturating_sub(from)).flat_map(|piece| {
                (0..piece.len).map(move |n| (piece.target, piece.offset + n))
            });
            prop_assert!(bytes.eq(places.iter().skip(from as usize).copied()));
        }

        #[test]
        fn positions_are_those_of_a_file_that_begins_on_target_0(layout in layout(1_000), at in 0u64..1 << 40) {
            let ((target, offset), plain) = (layout.locate(at), layout.starting_at(0).locate(at));
            prop_assert_eq!((layout.position(target), offset), plain);
        }
    }
}
