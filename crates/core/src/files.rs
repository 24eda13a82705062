//! The table of files with outstanding requests, and of some that had them recently (policies remember things about a
//! queue for a while: where it was last read, how well it aggregated).
//!
//! Bounded: when it is full, the file that has been idle longest makes room; when none is idle, the engine is full.

use crate::id_map::IdMap;
use crate::list::{Links, List, NIL};
use crate::offset_tree::{Loose, Tree};
use crate::request::{FileId, Op};

/// The requests of one file with one operation, named by a small integer: `2 * file slot + operation`.
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
}

impl FileQueue {
    const EMPTY: FileQueue = FileQueue {
        queued: Tree::EMPTY,
        busy: Tree::EMPTY,
        loose: Loose::EMPTY,
        blocked: Tree::EMPTY,
        queued_bytes: 0,
        queued_count: 0,
    };
}

#[derive(Debug)]
pub(crate) struct File {
    id: FileId,
    outstanding: u32,
    queues: [FileQueue; 2],
}

#[derive(Debug)]
pub(crate) struct FileTable {
    files: Vec<File>,
    index: IdMap,
    /// Slots from here on were never used.
    fresh: u32,
    /// Files without requests, the longest idle in front.
    idle: List,
    links: Links,
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
            index: IdMap::new(files_max),
            fresh: 0,
            idle: List::new(),
            links: Links::new(files_max),
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

    pub(crate) fn id(&self, file: u32) -> FileId {
        self.files[file as usize].id
    }

    /// Finds or makes the record of `id` and counts one more outstanding request to it. `None`: no room.
    pub(crate) fn acquire(&mut self, id: FileId) -> Option<Acquired> {
        let files = &self.files;
        if let Some(slot) = self.index.find(id.0, |s| files[s as usize].id.0) {
            let file = &mut self.files[slot as usize];
            if file.outstanding == 0 {
                self.idle.remove(&mut self.links, slot);
            }
            file.outstanding += 1;
            return Some(Acquired::Known(slot));
        }
        let record = File { id, outstanding: 1, queues: [FileQueue::EMPTY; 2] };
        let slot = if (self.fresh as usize) < self.files.capacity() && self.fresh != NIL {
            self.files.push(record);
            self.fresh += 1;
            self.fresh - 1
        } else {
            let slot = self.idle.pop_front(&mut self.links)?;
            let old = self.files[slot as usize].id.0;
            let files = &self.files;
            self.index.remove(old, slot, |s| files[s as usize].id.0);
            self.files[slot as usize] = record;
            slot
        };
        self.index.insert(id.0, slot);
        Some(Acquired::New(slot))
    }

    /// One outstanding request less.
    pub(crate) fn release(&mut self, file: u32) {
        let record = &mut self.files[file as usize];
        record.outstanding -= 1;
        if record.outstanding == 0 {
            self.idle.push_back(&mut self.links, file);
        }
    }
}
