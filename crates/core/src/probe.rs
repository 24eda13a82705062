//! What the device below did with each batch, for whoever wants to get to know it.

use crate::request::{FileId, Op, Outcome, Request, TargetId, Time};

/// A batch that was served. The engine lists them in the order in which they ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServedBatch {
    /// Which one it is of all that have ended since the device is watched: where numbers are missing, there were others that are not
    /// told.
    pub number: u64,
    /// Read or write.
    pub op: Op,
    /// The file, and on which target.
    pub file: FileId,
    /// See `file`.
    pub target: TargetId,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes, all of which were moved.
    pub len: u64,
    /// When it was dispatched.
    pub start: Time,
    /// When the last of its requests was completed.
    pub end: Time,
    /// Batches that were in flight beside it when it was dispatched.
    pub beside_at_start: u32,
    /// And when it ended.
    pub beside_at_end: u32,
}

/// Follows batches from dispatch to completion. Everything is O(1) and allocates nothing.
#[derive(Debug)]
pub(crate) struct Probe {
    /// By number of the batch in flight: what is known of it, and the bytes moved so far; `None` of one that was dispatched before the
    /// device was watched, or in which something went wrong.
    open: Vec<Option<(ServedBatch, u64)>>,
    served: Vec<ServedBatch>,
    ended: u64,
}

impl Probe {
    pub(crate) fn new(capacity: u32) -> Probe {
        Probe { open: vec![None; capacity as usize], served: Vec::new(), ended: 0 }
    }

    pub(crate) fn dispatched(&mut self, now: Time, batch: u32, first: &Request, len: u64, beside: u32) {
        let served = ServedBatch {
            number: 0,
            op: first.op,
            file: first.file,
            target: first.target,
            offset: first.offset,
            len,
            start: now,
            end: now,
            beside_at_start: beside,
            beside_at_end: 0,
        };
        self.open[batch as usize] = Some((served, 0));
    }

    pub(crate) fn completed(&mut self, batch: u32, outcome: &Outcome) {
        let open = &mut self.open[batch as usize];
        match open {
            Some((_, moved)) if outcome.error == 0 => *moved += u64::from(outcome.bytes),
            // How long it takes to fail says nothing.
            _ => *open = None,
        }
    }

    /// The last request of a batch has ended.
    pub(crate) fn ended(&mut self, now: Time, batch: u32, beside: u32) {
        self.ended += 1;
        let Some((served, moved)) = self.open[batch as usize].take() else { return };
        // Where a file ends less is moved, and sooner.
        if moved == served.len && moved > 0 && self.served.len() < self.served.capacity() {
            self.served.push(ServedBatch { number: self.ended, end: now, beside_at_end: beside, ..served });
        }
    }

    pub(crate) fn has_served(&self) -> bool {
        !self.served.is_empty()
    }

    /// What was served since the last call; the list that is given takes what comes next, up to its capacity.
    pub(crate) fn take(&mut self, mut room: Vec<ServedBatch>) -> Vec<ServedBatch> {
        room.clear();
        std::mem::replace(&mut self.served, room)
    }
}
