//! Which target a file begins on.
//!
//! If every file began on target 0, small files would all be there and nowhere else. So the next file's place is the hash
//! of its number, counted from a random one each time the volume is opened: multiplicative hashing (D. E. Knuth, *The Art
//! of Computer Programming* 3, 6.4) spreads numbers that follow each other more evenly than chance would.
//!
//! # Where that is kept
//! In the permission bits of the file's pieces on the targets but the first, which are the volume's own: users see and
//! change those of target 0's piece alone. The piece that has the first stripe is [`BEGINS`], every other one [`FOLLOWS`];
//! where all follow, the file begins on target 0.
//!
//! * A piece is made with them in one call, and they never change. The pieces on the other targets are there before
//!   target 0's makes the file visible, so there is no moment at which a file can be written whose place is not settled.
//! * Looking a name up reads them anyway: nothing is asked for in addition. They need no file system with extended
//!   attributes, and no right to read those of a file that its owner may not read.
//! * Renames, hard links and restarts keep them, and so does what copies a target with its permissions (`cp -a`,
//!   `rsync -a`, `tar -p`), also where it leaves extended attributes out.
//!
//! The two differ in two bits, of which one is the sticky bit, which means nothing for files in Linux: what a copy leaves that
//! lost it, and what `chmod -x`, `chmod u=rwx` or `chmod 600` on a target make of them, is neither. Then the file gives `EIO`
//! instead of bytes from the wrong place, and [`check`](super::check) names it. (`chmod 700` makes one of the other. Where that
//! contradicts another target's piece it is noticed.)
//!
//! Volumes of format 1, and those told to ([`FirstTarget::Zero`]), begin every file on target 0 and have no such bits.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which target the files of a volume begin on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstTarget {
    /// Each on one of its own, chosen by a hash.
    Hash,
    /// All on target 0, as in volumes of earlier versions.
    Zero,
}

impl std::fmt::Display for FirstTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FirstTarget::Hash => "hash",
            FirstTarget::Zero => "zero",
        })
    }
}

/// Permissions of the piece that has the file's first stripe, on a target but the first.
pub(super) const BEGINS: u32 = 0o700;
/// Permissions of the other pieces there.
pub(super) const FOLLOWS: u32 = 0o1600;

/// Gives the files of a volume their places.
pub(super) struct Places {
    targets: u32,
    rule: FirstTarget,
    /// The next file's number.
    pub(super) number: AtomicU64,
}

impl Places {
    pub(super) fn new(targets: u32, rule: FirstTarget) -> Places {
        Places { targets, rule, number: AtomicU64::new(RandomState::new().hash_one(targets)) }
    }

    /// The target that a new file begins on.
    pub(super) fn next(&self) -> u32 {
        match self.rule {
            FirstTarget::Zero => 0,
            FirstTarget::Hash => hashed(self.number.fetch_add(1, Ordering::Relaxed), self.targets),
        }
    }

    /// Permissions of the piece of a file that begins on target `first`, on a target but the first.
    pub(super) fn mode(&self, target: usize, first: u32) -> u32 {
        match self.rule {
            FirstTarget::Zero => 0o600,
            FirstTarget::Hash if target == first as usize => BEGINS,
            FirstTarget::Hash => FOLLOWS,
        }
    }

    /// The target that a file begins on, from the permissions of its pieces on the targets but the first, in their order.
    /// `None` if they do not tell.
    pub(super) fn read(&self, modes: impl Iterator<Item = io::Result<u32>>) -> Option<u32> {
        if self.rule == FirstTarget::Zero {
            return Some(0);
        }
        let mut first = 0;
        for (target, mode) in (1..).zip(modes) {
            match mode {
                Ok(FOLLOWS) => {}
                Ok(BEGINS) if first == 0 => first = target,
                _ => return None,
            }
        }
        Some(first)
    }

    /// The targets, but the first, whose pieces have permissions of no piece or say that the file begins there.
    pub(super) fn suspects(&self, modes: impl Iterator<Item = io::Result<u32>>) -> Vec<usize> {
        (1..).zip(modes).filter(|(_, mode)| !matches!(mode, Ok(FOLLOWS))).map(|(target, _)| target).collect()
    }
}

/// One of `targets` targets for a number.
fn hashed(number: u64, targets: u32) -> u32 {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * u128::from(targets)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_place_is_read_back(targets in 1u32..9, first in any::<u32>(), rule in prop_oneof![
            Just(FirstTarget::Hash),
            Just(FirstTarget::Zero)
        ]) {
            let places = Places::new(targets, rule);
            let first = if rule == FirstTarget::Zero { 0 } else { first % targets };
            prop_assert_eq!(places.read((1..targets as usize).map(|target| Ok(places.mode(target, first)))), Some(first));
        }

        /// The files that follow each other, from any number on.
        #[test]
        fn files_are_dealt_out_evenly(targets in 2u32..9, start: u64) {
            let count = |files: u64| {
                let mut counts = vec![0_u64; targets as usize];
                (0..files).for_each(|file| counts[hashed(start.wrapping_add(file), targets) as usize] += 1);
                counts
            };
            let fair = 10_000 / u64::from(targets);
            prop_assert!(count(10_000).iter().all(|count| count.abs_diff(fair) * 100 <= fair));
            prop_assert!(targets != 2 || count(20).iter().all(|count| count.abs_diff(10) <= 1));
        }
    }

    #[test]
    fn what_was_changed_is_not_a_place() {
        let places = Places::new(3, FirstTarget::Hash);
        let read = |modes: [u32; 2]| places.read(modes.into_iter().map(Ok));
        assert_eq!(read([FOLLOWS, FOLLOWS]), Some(0));
        assert_eq!(read([FOLLOWS, BEGINS]), Some(2));
        assert_eq!(read([BEGINS, BEGINS]), None);
        for other in [0o600, 0o1700, 0o640, 0o1640, 0o755, 0] {
            assert_eq!(read([other, FOLLOWS]), None);
            assert_eq!(read([BEGINS, other]), None);
        }
        assert!((BEGINS ^ FOLLOWS).count_ones() == 2, "no single bit makes one of the other");
        assert_eq!(places.read([Ok(BEGINS), Err(rustix::io::Errno::IO.into())].into_iter()), None);
    }
}
