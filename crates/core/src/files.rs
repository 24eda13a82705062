//! The table of files with outstanding requests, and of some that had them recently (policies remember things about a
//! queue for a while: where it was last read, how well it aggregated).
//!
//! A file here is the part of a file on one target: hosts may use the same [`FileId`] on several, and the offsets there
//! have nothing to do with each other.
//!
//! Bounded: when it is full, the file that has been idle longest makes room; when none is idle, the engine is full.

use crate::id_map::IdMap;
use crate::list::{Links, List};
use crate::offset_tree::{Loose, Tree};
use crate::request::{FileId, Op, TargetId};
use crate::stats::Trail;

/// The requests of one file on one target with one operation, named by a small integer: `2 * file slot + operation`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub(crate) u32);

impl QueueId {
    pub(crate) const fn new(file: u32, op: Op) -> QueueId {
        QueueId(file * 2 + op as u32)
    }

    pub(crate) const fn file(self) -> u32 {
        self.0 / 2
    }

    pub(crate) const fn op(self) -> Op {
        if self.0.is_multiple_of(2) { Op::Read } else { Op::Write }
    }
}

/// The trees of one file queue. Each request is in at most one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileQueue {
    /// Requests that a policy may choose, if the policy works in offset order.
    pub(crate) queued: Tree,
    /// What the ordering check must see besides `queued`: dispatched requests, and queued ones of a policy that does
    /// not work in offset order. Those that no check has come near yet are in `loose`.
    pub(crate) busy: Tree,
    pub(crate) loose: Loose,
    /// Requests that wait for an earlier one to complete.
    pub(crate) blocked: Tree,
    pub(crate) queued_bytes: u64,
    pub(crate) queued_count: u32,
    /// For the statistics.
    pub(crate) trail: Trail,
}

impl FileQueue {
    const EMPTY: FileQueue = FileQueue {
        queued: Tree::EMPTY,
        busy: Tree::EMPTY,
        loose: Loose::EMPTY,
        blocked: Tree::EMPTY,
        queued_bytes: 0,
        queued_count: 0,
        trail: Trail::EMPTY,
    };
}

#[derive(Debug)]
pub(crate) struct File {
    id: (FileId, TargetId),
    outstanding: u32,
    /// The window in which it was counted last.
    window: u32,
    queues: [FileQueue; 2],
}

#[derive(Debug)]
pub(crate) struct FileTable {
    files: Vec<File>,
    files_max: u32,
    index: IdMap,
    /// Files without requests, the longest idle in front.
    idle: List,
    links: Links,
    /// Files with outstanding requests; those that had some in the running window, and its number.
    in_use: u32,
    used: u32,
    window: u32,
}

/// What [`FileTable::acquire`] did.
pub(crate) enum Acquired {
    /// The file was there.
    Known(u32),
    /// The file is new in this slot; whatever was remembered about the slot's queues is about another file.
    New(u32),
}

impl FileTable {
    pub(crate) fn new(files_max: u32) -> FileTable {
        FileTable {
            files: Vec::with_capacity(files_max as usize),
            files_max,
            index: IdMap::new(files_max),
            idle: List::new(),
            links: Links::new(files_max),
            in_use: 0,
            used: 0,
            window: 1,
        }
    }

    /// Both queues of the file that `queue` belongs to.
    pub(crate) fn queues_mut(&mut self, queue: QueueId) -> &mut [FileQueue; 2] {
        &mut self.files[queue.file() as usize].queues
    }

    pub(crate) fn queue(&self, queue: QueueId) -> &FileQueue {
        &self.files[queue.file() as usize].queues[queue.op().index()]
    }

    pub(crate) fn queue_mut(&mut self, queue: QueueId) -> &mut FileQueue {
        &mut self.files[queue.file() as usize].queues[queue.op().index()]
    }

    pub(crate) fn id(&self, file: u32) -> (FileId, TargetId) {
        self.files[file as usize].id
    }

    /// For the statistics: of both operations.
    pub(crate) fn trails_mut(&mut self, file: u32) -> [&mut Trail; 2] {
        self.files[file as usize].queues.each_mut().map(|queue| &mut queue.trail)
    }

    /// Finds or makes the record of `id` and counts one more outstanding request to it. `None`: no room.
    pub(crate) fn acquire(&mut self, id: (FileId, TargetId)) -> Option<Acquired> {
        let files = &self.files;
        if let Some(slot) = self.index.find(id, |s| files[s as usize].id) {
            let file = &mut self.files[slot as usize];
            file.outstanding += 1;
            if file.outstanding == 1 {
                self.idle.remove(&mut self.links, slot);
                self.in_use += 1;
                self.used += u32::from(file.window != self.window);
                file.window = self.window;
            }
            return Some(Acquired::Known(slot));
        }
        let record = File { id, outstanding: 1, window: self.window, queues: [FileQueue::EMPTY; 2] };
        let used = self.files.len() as u32;
        let slot = if used < self.files_max {
            self.files.push(record);
            used
        } else {
            let slot = self.idle.pop_front(&mut self.links)?;
            let old = self.files[slot as usize].id;
            let files = &self.files;
            self.index.remove(old, slot, |s| files[s as usize].id);
            self.files[slot as usize] = record;
            slot
        };
        self.index.insert(id, slot);
        (self.in_use, self.used) = (self.in_use + 1, self.used + 1);
        Some(Acquired::New(slot))
    }

    /// One outstanding request less.
    pub(crate) fn release(&mut self, file: u32) {
        let record = &mut self.files[file as usize];
        record.outstanding -= 1;
        if record.outstanding == 0 {
            record.window = self.window;
            self.in_use -= 1;
            self.idle.push_back(&mut self.links, file);
        }
    }

    /// A window ends. Returns how many files had outstanding requests at any time in it; one that made room for others and came
    /// back counts again. O(1).
    pub(crate) fn end_window(&mut self) -> u32 {
        self.window = self.window.wrapping_add(1).max(1);
        std::mem::replace(&mut self.used, self.in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A plain list of (file, outstanding requests), those without requests in the order of becoming so at the end.
        #[test]
        fn behaves_like_a_list_that_forgets_the_longest_idle(
            files_max in 1..5_u32,
            ops in prop::collection::vec((0..4_u64, 0..2_u32, any::<bool>(), prop::bool::weighted(0.1)), 0..200),
        ) {
            let mut table = FileTable::new(files_max);
            let mut model: Vec<((FileId, TargetId), u32)> = Vec::new();
            let mut used: Vec<(FileId, TargetId)> = Vec::new();
            for (file, target, submit, ends) in ops {
                if ends {
                    prop_assert_eq!(table.end_window() as usize, used.len());
                    used = model.iter().filter(|(_, outstanding)| *outstanding > 0).map(|(id, _)| *id).collect();
                }
                let file = (FileId(file), TargetId(target));
                let known = model.iter().position(|(id, _)| *id == file);
                if submit {
                    let expected = match known {
                        Some(_) => Some(false),
                        None if model.len() < files_max as usize => Some(true),
                        None => model.iter().position(|(_, n)| *n == 0).map(|idle| { model.remove(idle); true }),
                    };
                    let got = table.acquire(file);
                    match (&got, expected) {
                        (Some(Acquired::Known(_)), Some(false)) | (Some(Acquired::New(_)), Some(true)) | (None, None) => {}
                        _ => prop_assert!(false, "expected {expected:?} for {file:?} with {model:?}"),
                    }
                    if let Some(Acquired::Known(slot) | Acquired::New(slot)) = got {
                        prop_assert_eq!(table.id(slot), file);
                        match known {
                            Some(at) => model[at].1 += 1,
                            None => model.push((file, 1)),
                        }
                        // One that had made room for others is another one.
                        if matches!(got, Some(Acquired::New(_))) || !used.contains(&file) {
                            used.push(file);
                        }
                    }
                } else if let Some(at) = known.filter(|at| model[*at].1 > 0) {
                    let files = &table.files;
                    let slot = table.index.find(file, |s| files[s as usize].id).expect("it is known");
                    table.release(slot);
                    model[at].1 -= 1;
                    if model[at].1 == 0 {
                        let idle = model.remove(at);
                        model.push(idle);
                    }
                }
            }
        }
    }
}
