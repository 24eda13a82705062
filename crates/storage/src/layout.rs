//! Where a file's bytes are: RAID-0 striping with a fixed stripe size over all targets, starting at target 0.

/// Striping of a storage. Copy, cheap to pass around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    targets: u32,
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
        Layout { targets: 1, stripe: u64::MAX }
    }

    /// Round robin over `targets` targets in stripes of `stripe` bytes.
    ///
    /// # Panics
    /// If either is 0.
    #[must_use]
    pub const fn striped(targets: u32, stripe: u64) -> Layout {
        assert!(targets > 0 && stripe > 0);
        if targets == 1 { Layout::single() } else { Layout { targets, stripe } }
    }

    /// Number of targets.
    #[must_use]
    pub const fn targets(&self) -> u32 {
        self.targets
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
        let row = stripe / self.targets as u64;
        ((stripe % self.targets as u64) as u32, row * self.stripe + logical % self.stripe)
    }

    /// Logical offset of a byte of a target's file.
    #[must_use]
    pub const fn logical(&self, target: u32, offset: u64) -> u64 {
        if self.targets == 1 {
            return offset;
        }
        let row = offset / self.stripe;
        (row * self.targets as u64 + target as u64) * self.stripe + offset % self.stripe
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
        let before = target as u64 * self.stripe;
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
        if size == 0 { 0 } else { self.logical(target, size - 1) + 1 }
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

    proptest! {
        #[test]
        fn locate_and_logical_are_inverse(targets in 1u32..9, stripe in 1u64..100_000, at in 0u64..1 << 40) {
            let layout = Layout::striped(targets, stripe);
            let (target, offset) = layout.locate(at);
            prop_assert!(target < targets);
            prop_assert_eq!(layout.logical(target, offset), at);
        }

        #[test]
        fn split_covers_the_range_once(targets in 1u32..9, stripe in 1u64..5_000, at in 0u64..100_000, len in 0u64..50_000) {
            let layout = Layout::striped(targets, stripe);
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
        fn sizes_agree(targets in 1u32..9, stripe in 1u64..5_000, size in 0u64..200_000) {
            let layout = Layout::striped(targets, stripe);
            let parts: Vec<u64> = (0..targets).map(|t| layout.target_size(t, size)).collect();
            prop_assert_eq!(parts.iter().sum::<u64>(), size);
            let back = (0..targets).map(|t| layout.logical_size(t, parts[t as usize])).max().unwrap();
            prop_assert_eq!(back, size);
        }
    }
}
