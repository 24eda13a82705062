//! What is known of the sizes of open files without asking every target.
//!
//! A file's *floor* is a size that it is known to have reached: raised by every write and every look at the targets,
//! lowered by truncations. Reads below it need no look. A truncation may run at the same time as a write or a look that
//! began before it and whose result is then out of date: such results are not taken.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

const SHARDS: usize = 32;

/// Of the files that are open or being truncated, by node id.
#[derive(Default)]
pub(super) struct Sizes([Mutex<HashMap<u64, Weak<Floor>>>; SHARDS]);

/// One file's floor.
#[derive(Default)]
pub(super) struct Floor {
    bytes: AtomicU64,
    /// Truncations begun and ended.
    turns: AtomicU64,
    /// Truncations under way. The lock is held to change any of the three.
    truncating: Mutex<u32>,
    /// Held to look at the pieces and give them other sizes.
    pub(super) resizing: Mutex<()>,
}

/// A truncation under way.
pub(super) struct Truncating<'a>(&'a Floor, u64);

impl Sizes {
    pub(super) fn of(&self, id: u64) -> Arc<Floor> {
        let mut shard = self.0[id as usize % SHARDS].lock();
        if let Some(known) = shard.get(&id).and_then(Weak::upgrade) {
            return known;
        }
        // Entries of closed files go when as many again were opened.
        if shard.len() == shard.capacity() {
            shard.retain(|_, floor| floor.strong_count() > 0);
        }
        let floor = Arc::default();
        shard.insert(id, Arc::downgrade(&floor));
        floor
    }
}

impl Floor {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// To be asked before what [`Floor::raise`] is then told.
    pub(super) fn turn(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// The file had at least this size some time since `turn`.
    pub(super) fn raise(&self, turn: u64, bytes: u64) {
        if bytes <= self.bytes() {
            return;
        }
        let truncating = self.truncating.lock();
        if *truncating == 0 && self.turn() == turn {
            self.bytes.fetch_max(bytes, Ordering::AcqRel);
        }
    }

    /// Looks at the size with `look`.
    pub(super) fn sample(&self, look: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
        let turn = self.turn();
        let size = look()?;
        self.raise(turn, size);
        Ok(size)
    }

    /// To be held while the file is given this size.
    pub(super) fn truncating(&self, size: u64) -> Truncating<'_> {
        *self.truncating.lock() += 1;
        self.lower(size);
        Truncating(self, size)
    }

    fn lower(&self, size: u64) {
        let _truncating = self.truncating.lock();
        self.turns.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_min(size, Ordering::AcqRel);
    }
}

impl Drop for Truncating<'_> {
    fn drop(&mut self) {
        self.0.lower(self.1);
        *self.0.truncating.lock() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_before_a_truncation_ended_is_not_believed() {
        let (sizes, first) = (Sizes::default(), Floor::default());
        first.raise(first.turn(), 100);
        assert_eq!(first.bytes(), 100);
        let before = first.turn();
        let truncating = first.truncating(10);
        assert_eq!(first.bytes(), 10);
        let within = first.turn();
        first.raise(within, 100);
        drop(truncating);
        first.raise(before, 100);
        first.raise(within, 100);
        assert_eq!(first.bytes(), 10);
        assert_eq!(first.sample(|| Ok(50)).unwrap(), 50);
        assert_eq!(first.bytes(), 50);

        let one = sizes.of(7);
        one.raise(one.turn(), 5);
        assert_eq!(sizes.of(7).bytes(), 5, "every handle of a file has the same");
        drop(one);
        assert_eq!(sizes.of(7).bytes(), 0);
        for id in 0..100_000 {
            sizes.of(id);
        }
        let kept: usize = sizes.0.iter().map(|shard| shard.lock().len()).sum();
        assert!(kept < 10_000, "{kept} closed files are remembered");
    }
}
