//! The requests themselves and every order in which they are kept. The engine changes it; policies look at it.

use crate::files::{Acquired, FileTable, QueueId};
use crate::list::{Links, List, NIL};
use crate::offset_tree::{Nodes, Tree};
use crate::request::{AppId, FileId, Request, RequestId, TargetId, Time};

/// A request's place in the table, valid while it is outstanding.
pub type Slot = u32;

/// Bounds on what is dispatched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchLimits {
    pub(crate) bytes: u64,
    pub(crate) requests: u32,
}

/// Contiguous requests of one file queue, found by [`Queues::extent_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The part with the lowest offset.
    pub first: Slot,
    /// Number of parts.
    pub parts: u32,
    /// Bytes of all parts.
    pub bytes: u64,
    /// The extent could not grow because it reached a bound.
    pub full: bool,
}

/// Where a request is in its life, with what is known of it there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No request is in the slot. `next`: the next free one.
    Free { next: Slot },
    /// Accepted, and on its way to one of the next two.
    Submitted,
    /// Waits until an earlier overlapping request is complete.
    Blocked(Blocked),
    /// May be dispatched since then. `place`: in the order in which requests became so; 0 as long as it has none.
    Queued { since: Time, place: u64 },
    /// Picked, but its batch is delayed for predicted neighbours. Could have been dispatched since then.
    Delayed { since: Time },
    /// Belongs to an object that a gate keeps closed. Could have been dispatched since then.
    Held { since: Time },
    /// Dispatched then, as a part of this batch.
    InFlight { since: Time, batch: u32 },
}

/// A request that ordering safety keeps back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked {
    /// The request it waits for.
    pub(crate) blocker: Slot,
    /// Its neighbours among those that wait for the same.
    pub(crate) prev: Slot,
    pub(crate) next: Slot,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) cookie: u64,
    pub(crate) arrived: Time,
    pub(crate) state: State,
    pub(crate) app: AppId,
    pub(crate) queue: QueueId,
    pub(crate) generation: u32,
    /// First of the requests that are blocked by this one: the last one that was attached.
    pub(crate) waiters: Slot,
}

impl Entry {
    /// What is known of a blocked request.
    pub(crate) fn blocked(&self) -> Option<&Blocked> {
        if let State::Blocked(blocked) = &self.state { Some(blocked) } else { None }
    }

    pub(crate) fn blocked_mut(&mut self) -> Option<&mut Blocked> {
        if let State::Blocked(blocked) = &mut self.state { Some(blocked) } else { None }
    }

    /// Since when a request that is queued, delayed or held could have been dispatched.
    pub(crate) fn eligible_since(&self) -> Option<Time> {
        match self.state {
            State::Queued { since, .. } | State::Delayed { since } | State::Held { since } => Some(since),
            _ => None,
        }
    }
}

/// All outstanding requests: the table that owns them, the file queues in offset order, and the order of arrival.
///
/// Policies receive it by shared reference in every call. Only the methods documented here are theirs to use.
#[derive(Debug)]
pub struct Queues {
    pub(crate) entries: Vec<Entry>,
    free: Slot,
    pub(crate) nodes: Nodes,
    pub(crate) files: FileTable,
    pub(crate) arrival: List,
    pub(crate) arrival_links: Links,
    pub(crate) limits: BatchLimits,
    pub(crate) queued: u32,
    pub(crate) blocked: u32,
    pub(crate) in_flight: u32,
    pub(crate) batches_in_flight: u32,
}

impl Queues {
    pub(crate) fn new(capacity: u32, files_max: u32, limits: BatchLimits) -> Queues {
        let blank = |slot: u32| Entry {
            cookie: 0,
            arrived: Time::ZERO,
            state: State::Free { next: if slot + 1 < capacity { slot + 1 } else { NIL } },
            app: AppId(0),
            queue: QueueId(0),
            generation: 1,
            waiters: NIL,
        };
        Queues {
            entries: (0..capacity).map(blank).collect(),
            free: 0,
            nodes: Nodes::new(capacity),
            files: FileTable::new(files_max),
            arrival: List::new(),
            arrival_links: Links::new(capacity),
            limits,
            queued: 0,
            blocked: 0,
            in_flight: 0,
            batches_in_flight: 0,
        }
    }

    // ---- for policies ----------------------------------------------------------------------------------------

    /// Number of request slots; slots are `0..capacity`.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Most bytes in a batch of more than one request.
    #[must_use]
    pub fn batch_bytes_max(&self) -> u64 {
        self.limits.bytes
    }

    /// Requests that may be dispatched.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.queued
    }

    /// Dispatched batches of which at least one part is not complete.
    #[must_use]
    pub fn batches_in_flight(&self) -> u32 {
        self.batches_in_flight
    }

    /// The request that has been dispatchable for longest.
    #[must_use]
    pub fn oldest(&self) -> Option<Slot> {
        self.arrival.front()
    }

    /// The file queue of a request.
    #[must_use]
    pub fn queue(&self, slot: Slot) -> QueueId {
        self.entries[slot as usize].queue
    }

    /// Its application.
    #[must_use]
    pub fn app(&self, slot: Slot) -> AppId {
        self.entries[slot as usize].app
    }

    /// Its data server.
    #[must_use]
    pub fn target(&self, slot: Slot) -> TargetId {
        self.target_of(self.queue(slot))
    }

    /// When it was submitted.
    #[must_use]
    pub fn arrived(&self, slot: Slot) -> Time {
        self.entries[slot as usize].arrived
    }

    /// Place of a queued request in the order in which requests became dispatchable; larger is later.
    #[must_use]
    pub fn place(&self, slot: Slot) -> u64 {
        if let State::Queued { place, .. } = self.entries[slot as usize].state { place } else { 0 }
    }

    /// Its first byte.
    #[must_use]
    pub fn offset(&self, slot: Slot) -> u64 {
        self.nodes.offset(slot)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self, slot: Slot) -> u32 {
        self.nodes.len(slot)
    }

    /// The byte after its last one.
    #[must_use]
    pub fn end(&self, slot: Slot) -> u64 {
        self.nodes.end(slot)
    }

    /// Dispatchable requests of a queue.
    #[must_use]
    pub fn count(&self, queue: QueueId) -> u32 {
        self.files.queue(queue).queued_count
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self, queue: QueueId) -> u64 {
        self.files.queue(queue).queued_bytes
    }

    /// The lowest-offset dispatchable request of a queue. Kept for policies that [aggregate](crate::policy::Policy::aggregates).
    #[must_use]
    pub fn head(&self, queue: QueueId) -> Option<Slot> {
        self.files.queue(queue).queued.first()
    }

    /// The first request of a queue, in offset order, that begins exactly at `offset`. O(log n).
    #[must_use]
    pub fn starting_at(&self, queue: QueueId, offset: u64) -> Option<Slot> {
        let slot = self.nodes.lower_bound(&self.files.queue(queue).queued, offset)?;
        (self.offset(slot) == offset).then_some(slot)
    }

    /// The first dispatchable request of a queue that begins at `offset` or behind it. O(log n).
    pub(crate) fn at_or_after(&self, queue: QueueId, offset: u64) -> Option<Slot> {
        self.nodes.lower_bound(&self.files.queue(queue).queued, offset)
    }

    /// The next request of the same queue in offset order.
    #[must_use]
    pub fn next(&self, slot: Slot) -> Option<Slot> {
        self.nodes.next(slot)
    }

    /// The previous request of the same queue in offset order.
    #[must_use]
    pub fn prev(&self, slot: Slot) -> Option<Slot> {
        self.nodes.prev(slot)
    }

    /// The longest extent of contiguous requests of one queue that starts with `first` and keeps within the engine's
    /// `batch_bytes_max` and `batch_requests_max`. The first part is always in. O(parts).
    ///
    /// Contiguous means: the next request in offset order begins exactly where the one before it ends.
    #[must_use]
    pub fn extent_from(&self, first: Slot) -> Extent {
        self.extent_while(first, self.limits.bytes, self.limits.requests, |_| true)
    }

    /// As [`Queues::extent_from`], with tighter bounds and only with parts that `accept` takes (the first is not asked).
    #[must_use]
    pub fn extent_while(
        &self,
        first: Slot,
        bytes_max: u64,
        requests_max: u32,
        accept: impl Fn(Slot) -> bool,
    ) -> Extent {
        let bytes_max = bytes_max.min(self.limits.bytes);
        let requests_max = requests_max.min(self.limits.requests);
        let mut extent = Extent { first, parts: 1, bytes: u64::from(self.len(first)), full: false };
        let mut last = first;
        while let Some(next) = self.next(last) {
            if self.offset(next) != self.end(last) || !accept(next) {
                break;
            }
            let bytes = extent.bytes + u64::from(self.len(next));
            if extent.parts >= requests_max || bytes > bytes_max {
                extent.full = true;
                break;
            }
            extent.bytes = bytes;
            extent.parts += 1;
            last = next;
        }
        extent
    }

    /// The extent around `slot`: as [`Queues::extent_from`], then grown towards lower offsets while the bounds allow.
    #[must_use]
    pub fn extent_around(&self, slot: Slot) -> Extent {
        let mut extent = self.extent_from(slot);
        while let Some(prev) = self.prev(extent.first) {
            if self.end(prev) != self.offset(extent.first) {
                break;
            }
            let bytes = extent.bytes + u64::from(self.len(prev));
            if extent.parts >= self.limits.requests || bytes > self.limits.bytes {
                extent.full = true;
                break;
            }
            extent = Extent { first: prev, parts: extent.parts + 1, bytes, full: extent.full };
        }
        extent
    }

    // ---- for the engine --------------------------------------------------------------------------------------

    /// Takes a free slot for `r`; `None` if there is no slot or no room for one more file. The flag says that the slot's
    /// file record was given to this file just now.
    pub(crate) fn allocate(&mut self, now: Time, r: &Request) -> Option<(Slot, bool)> {
        if self.free == NIL {
            return None;
        }
        let (file, new) = match self.files.acquire((r.file, r.target))? {
            Acquired::Known(file) => (file, false),
            Acquired::New(file) => (file, true),
        };
        let slot = self.free;
        let entry = &mut self.entries[slot as usize];
        self.free = if let State::Free { next } = entry.state { next } else { NIL };
        *entry = Entry {
            cookie: r.cookie,
            arrived: now,
            state: State::Submitted,
            app: r.app,
            queue: QueueId::new(file, r.op),
            generation: entry.generation,
            waiters: NIL,
        };
        self.nodes.set_range(slot, r.offset, r.len);
        Some((slot, new))
    }

    /// Gives a slot back; its handle is stale from now on.
    pub(crate) fn free(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot as usize];
        entry.state = State::Free { next: self.free };
        entry.generation = entry.generation.wrapping_add(1).max(1);
        let file = entry.queue.file();
        self.free = slot;
        self.files.release(file);
    }

    /// The slot behind a handle, unless the handle is stale.
    pub(crate) fn resolve(&self, id: RequestId) -> Option<Slot> {
        let entry = self.entries.get(id.slot as usize)?;
        (entry.generation == id.generation && !matches!(entry.state, State::Free { .. })).then_some(id.slot)
    }

    pub(crate) fn id(&self, slot: Slot) -> RequestId {
        RequestId { slot, generation: self.entries[slot as usize].generation }
    }

    pub(crate) fn request(&self, slot: Slot) -> Request {
        let entry = &self.entries[slot as usize];
        let (file, target) = self.files.id(entry.queue.file());
        Request {
            cookie: entry.cookie,
            file,
            app: entry.app,
            target,
            op: entry.queue.op(),
            offset: self.nodes.offset(slot),
            len: self.nodes.len(slot),
        }
    }

    /// The host's id of a queue's file.
    #[must_use]
    pub fn file_id(&self, queue: QueueId) -> FileId {
        self.files.id(queue.file()).0
    }

    /// The data server of a queue.
    #[must_use]
    pub fn target_of(&self, queue: QueueId) -> TargetId {
        self.files.id(queue.file()).1
    }

    pub(crate) fn tree_insert(&mut self, slot: Slot, tree: impl Fn(&mut crate::files::FileQueue) -> &mut Tree) {
        let queue = self.entries[slot as usize].queue;
        self.nodes.insert(tree(self.files.queue_mut(queue)), slot);
    }

    pub(crate) fn tree_remove(&mut self, slot: Slot, tree: impl Fn(&mut crate::files::FileQueue) -> &mut Tree) {
        let queue = self.entries[slot as usize].queue;
        self.nodes.remove(tree(self.files.queue_mut(queue)), slot);
    }
}
