//! The operating system's scheduler between a server and its device.
//!
//! * **none**: commands go to the device as they come.
//! * **deadline**, after Linux's `deadline-iosched.c` (kernel 2.6.32; `mq-deadline` is the same idea): reads and writes each in
//!   order of address; 16 of a direction follow each other, then the oldest is looked at: it goes first if it waited for
//!   500 ms (reads) or 5 s (writes). Reads go before writes, but not more than twice while writes wait.
//! * **cfq**, after `cfq-iosched.c`: each context (a thread or process) has a queue of its own, in order of address, and the
//!   device for a slice of time: 100 ms if it waits for its requests, 40 ms for what is written back. When the queue of a
//!   context that reads in order is empty, the device idles for up to 8 ms until its next request comes, unless another
//!   context wants what lies within 4 MB (cooperating queues). BFQ is of the same kind, with slices counted in bytes.
//!
//! The queue has *tags*, as many as the device takes commands, and with a scheduler twice as many, for what waits in both, up to
//! 256 (`blk-mq.c`); 64 at least, as drivers of devices that take one at a time have 32.
//! A context that finds none waits for one, and for each of its commands anew: so those of contexts that wait are mixed.
//!
//! Contiguous commands of one direction (and context) are merged up to what a command may have at most.
//!
//! Deviations: one priority for all; no think-time statistics but the last distance decide whether idling pays; slices do not
//! grow with few contexts; requests of several contexts are never merged.

use std::collections::{BTreeMap, HashMap, VecDeque};

use sluice_device::{Op, Pending};

use crate::scenario::Kernel;

/// Whom a command of a device belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// A batch that waits for it.
    Batch(u32),
    /// A transfer of the page cache.
    Pages(u32),
    /// The tier before the device: a read of which the SSD serves a part, or what it does in the background.
    Tier(u32),
}

/// A command with those it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) pending: Pending,
    pub(super) owner: Owner,
    /// Others whose commands were merged into it, with their bytes.
    pub(super) more: Vec<(Owner, u64)>,
    /// The thread or process that issued it.
    pub(super) context: u32,
    /// Somebody waits for it.
    pub(super) sync: bool,
}

impl Queued {
    fn start(&self) -> u64 {
        self.pending.command.address
    }

    fn end(&self) -> u64 {
        self.start() + self.pending.command.len
    }

    fn writes(&self) -> bool {
        self.pending.command.op != Op::Read
    }

    fn absorb(&mut self, other: Queued) {
        self.pending.command.address = self.start().min(other.start());
        let of_others: u64 = other.more.iter().map(|(_, len)| len).sum();
        self.more.push((other.owner, other.pending.command.len - of_others));
        self.more.extend(other.more);
        self.pending.command.len += other.pending.command.len;
        self.pending.arrived_ns = self.pending.arrived_ns.min(other.pending.arrived_ns);
    }
}

/// What a scheduler has for the device.
#[derive(Debug)]
pub(super) enum Next {
    Give(Queued),
    /// Nothing before that time.
    Wait(u64),
    Nothing,
}

const FIFO_BATCH: u32 = 16;
const WRITES_STARVED: u32 = 2;
const READ_EXPIRE_NS: u64 = 500_000_000;
const WRITE_EXPIRE_NS: u64 = 5_000_000_000;
const SLICE_SYNC_NS: u64 = 100_000_000;
const SLICE_ASYNC_NS: u64 = 40_000_000;
const SLICE_IDLE_NS: u64 = 8_000_000;
/// A context whose requests are farther apart does not read in order.
const SEEKY_BYTES: u64 = 1 << 20;
/// Contexts closer than this are served together.
const NEAR_BYTES: u64 = 4 << 20;

/// Commands in order of address; those of one address in order of arrival.
#[derive(Debug)]
struct Sorted {
    /// Most bytes of a command.
    most: u64,
    by_address: BTreeMap<(u64, u64), Queued>,
    /// Where a queued command ends: its key.
    ends: HashMap<u64, (u64, u64)>,
    arrivals: u64,
}

impl Sorted {
    fn new(most: u64) -> Sorted {
        Sorted { most, by_address: BTreeMap::new(), ends: HashMap::new(), arrivals: 0 }
    }

    /// Adds a command, merged with those that it continues or that continue it: with how many.
    fn add(&mut self, mut new: Queued) -> usize {
        let mut merged = 0;
        loop {
            let fits = |key: &(u64, u64)| {
                let len = self.by_address.get(key).map_or(u64::MAX, |other| other.pending.command.len);
                len.saturating_add(new.pending.command.len) <= self.most
            };
            let before = self.ends.get(&new.start()).copied().filter(fits);
            let key = before.or_else(|| self.from(new.end()).filter(|key| key.0 == new.end()).filter(fits));
            let Some(mut neighbour) = key.and_then(|key| self.take(key)) else {
                self.insert(new);
                return merged;
            };
            neighbour.absorb(new);
            (new, merged) = (neighbour, merged + 1);
        }
    }

    fn insert(&mut self, new: Queued) {
        self.arrivals += 1;
        let key = (new.start(), self.arrivals);
        self.ends.insert(new.end(), key);
        self.by_address.insert(key, new);
    }

    fn take(&mut self, key: (u64, u64)) -> Option<Queued> {
        let taken = self.by_address.remove(&key)?;
        if self.ends.get(&taken.end()) == Some(&key) {
            self.ends.remove(&taken.end());
        }
        Some(taken)
    }

    /// The next at or behind an address.
    fn from(&self, address: u64) -> Option<(u64, u64)> {
        self.by_address.range((address, 0)..).next().map(|(key, _)| *key)
    }

    fn first(&self) -> Option<(u64, u64)> {
        self.by_address.keys().next().copied()
    }

    /// The one that has waited longest. O(n).
    fn oldest(&self) -> Option<((u64, u64), u64)> {
        let all = self.by_address.iter().map(|(key, queued)| (*key, queued.pending.arrived_ns));
        all.min_by_key(|(key, arrived)| (*arrived, key.1))
    }
}

#[derive(Debug)]
pub(super) struct Deadline {
    reads: Sorted,
    writes: Sorted,
    writing: bool,
    batched: u32,
    starved: u32,
    at: u64,
}

impl Deadline {
    fn new(most: u64) -> Deadline {
        let sorted = || Sorted::new(most);
        Deadline { reads: sorted(), writes: sorted(), writing: false, batched: 0, starved: 0, at: 0 }
    }

    fn next(&mut self, now: u64) -> Option<Queued> {
        let side = |deadline: &Deadline, writes: bool| {
            if writes { deadline.writes.by_address.is_empty() } else { deadline.reads.by_address.is_empty() }
        };
        let current = if self.writing { &self.writes } else { &self.reads };
        let mut key = current.from(self.at).filter(|_| self.batched < FIFO_BATCH);
        if key.is_none() {
            let (no_reads, no_writes) = (side(self, false), side(self, true));
            if no_reads && no_writes {
                return None;
            }
            let starving = !no_writes && self.starved >= WRITES_STARVED;
            self.writing = no_reads || starving;
            self.starved = if self.writing { 0 } else { self.starved + u32::from(!no_writes) };
            self.batched = 0;
            let sorted = if self.writing { &self.writes } else { &self.reads };
            let expire = if self.writing { WRITE_EXPIRE_NS } else { READ_EXPIRE_NS };
            let expired = sorted.oldest().filter(|(_, arrived)| arrived + expire <= now).map(|(key, _)| key);
            key = expired.or_else(|| sorted.from(self.at)).or_else(|| sorted.first());
        }
        self.batched += 1;
        let sorted = if self.writing { &mut self.writes } else { &mut self.reads };
        let taken = sorted.take(key?)?;
        self.at = taken.end();
        Some(taken)
    }
}

#[derive(Debug)]
struct Context {
    sorted: Sorted,
    /// Where its last command ended.
    at: u64,
    /// Its last command was near the one before. Of a new context that is assumed.
    in_order: bool,
    under_way: u32,
    sync: bool,
}

#[derive(Debug)]
pub(super) struct Cfq {
    /// Most bytes of a command.
    most: u64,
    contexts: HashMap<u32, Context>,
    /// Those with commands, the active one excepted.
    turns: VecDeque<u32>,
    active: Option<u32>,
    slice_end_ns: u64,
    /// While the device idles for the active context.
    idle_until_ns: Option<u64>,
}

/// Contexts that wait for tags.
#[derive(Debug, Default)]
struct Waiting {
    by_context: HashMap<u32, VecDeque<Queued>>,
    turns: VecDeque<u32>,
}

impl Waiting {
    fn add(&mut self, queued: Queued) {
        let context = queued.context;
        let own = self.by_context.entry(context).or_default();
        if own.is_empty() {
            self.turns.push_back(context);
        }
        own.push_back(queued);
    }

    /// The next command of the context that has waited for longest, which waits anew for its next one.
    fn next(&mut self) -> Option<Queued> {
        let context = self.turns.pop_front()?;
        let own = self.by_context.get_mut(&context)?;
        let next = own.pop_front();
        if own.is_empty() {
            self.by_context.remove(&context);
        } else {
            self.turns.push_back(context);
        }
        next
    }
}

impl Cfq {
    fn new(most: u64) -> Cfq {
        Cfq {
            most,
            contexts: HashMap::new(),
            turns: VecDeque::new(),
            active: None,
            slice_end_ns: 0,
            idle_until_ns: None,
        }
    }

    fn add(&mut self, queued: Queued) -> usize {
        let (number, sync) = (queued.context, queued.sync);
        let sorted = || Sorted::new(self.most);
        let new = || Context { sorted: sorted(), at: 0, in_order: true, under_way: 0, sync };
        let context = self.contexts.entry(number).or_insert_with(new);
        context.sync = sync;
        let was_empty = context.sorted.by_address.is_empty();
        let merged = context.sorted.add(queued);
        if self.active == Some(number) {
            self.idle_until_ns = None;
        } else if was_empty {
            // What somebody waits for does not wait for the end of a slice of what nobody waits for.
            if sync && self.active.is_some_and(|active| !self.contexts[&active].sync) {
                self.slice_end_ns = 0;
                self.turns.push_front(number);
            } else {
                self.turns.push_back(number);
            }
        }
        merged
    }

    fn next(&mut self, now: u64) -> Next {
        loop {
            let near = self.active.and_then(|number| self.cooperator(number));
            if let Some(number) = self.active
                && let Some(context) = self.contexts.get_mut(&number)
            {
                let is_empty = context.sorted.by_address.is_empty();
                if now < self.slice_end_ns && !is_empty {
                    return give(context);
                }
                let idles = is_empty && context.sync && context.in_order && now < self.slice_end_ns;
                if idles && let Some(near) = near {
                    self.turns.retain(|other| *other != near);
                    self.idle_until_ns = None;
                    self.active = Some(near);
                    continue;
                }
                if idles {
                    // It computes or waits for its answer; until then nobody else moves the arm away.
                    if context.under_way > 0 {
                        return Next::Nothing;
                    }
                    let until = *self.idle_until_ns.get_or_insert(now + SLICE_IDLE_NS);
                    if now < until {
                        return Next::Wait(until);
                    }
                }
                self.idle_until_ns = None;
                self.active = None;
                if !is_empty {
                    self.turns.push_back(number);
                }
            }
            let Some(number) = self.turns.pop_front() else { return Next::Nothing };
            let slice = if self.contexts[&number].sync { SLICE_SYNC_NS } else { SLICE_ASYNC_NS };
            (self.active, self.slice_end_ns) = (Some(number), now + slice);
        }
    }

    /// Another context whose next command is near where the active one has read, if that has none: they read the same file in
    /// turns.
    fn cooperator(&self, active: u32) -> Option<u32> {
        let context = self.contexts.get(&active).filter(|context| context.sorted.by_address.is_empty())?;
        let at = context.at;
        let near = |number: &&u32| {
            let next = self.contexts.get(number).filter(|context| context.sync);
            let sorted = next.map(|context| &context.sorted);
            let from = at.saturating_sub(NEAR_BYTES);
            sorted.and_then(|sorted| sorted.from(from)).is_some_and(|key| key.0 <= at.saturating_add(NEAR_BYTES))
        };
        self.turns.iter().find(near).copied()
    }

    fn completed(&mut self, number: u32) {
        if let Some(context) = self.contexts.get_mut(&number) {
            // The device also serves to the end what a server had asked for before it failed.
            context.under_way = context.under_way.saturating_sub(1);
        }
    }
}

fn give(context: &mut Context) -> Next {
    let key = context.sorted.from(context.at).or_else(|| context.sorted.first());
    let Some(taken) = key.and_then(|key| context.sorted.take(key)) else { return Next::Nothing };
    context.in_order = context.at == 0 || taken.start().abs_diff(context.at) <= SEEKY_BYTES;
    context.at = taken.end();
    context.under_way += 1;
    Next::Give(taken)
}

#[derive(Debug)]
enum Scheduler {
    None,
    Deadline(Box<Deadline>),
    Cfq(Box<Cfq>),
}

impl Scheduler {
    fn new(kernel: Kernel, most: u64) -> Scheduler {
        match kernel {
            Kernel::None => Scheduler::None,
            Kernel::Deadline => Scheduler::Deadline(Box::new(Deadline::new(most))),
            Kernel::Cfq => Scheduler::Cfq(Box::new(Cfq::new(most))),
        }
    }

    /// With how many others it was merged.
    fn add(&mut self, queued: Queued) -> usize {
        match self {
            Scheduler::None => 0,
            Scheduler::Deadline(deadline) if queued.writes() => deadline.writes.add(queued),
            Scheduler::Deadline(deadline) => deadline.reads.add(queued),
            Scheduler::Cfq(cfq) => cfq.add(queued),
        }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Elevator {
    kernel: Kernel,
    /// Most bytes of a command that others may be merged into.
    most: u64,
    tags: usize,
    scheduler: Scheduler,
    /// Commands in the scheduler.
    inside: usize,
    waiting: Waiting,
}

impl Elevator {
    /// `most`: bytes of a command that others may be merged into. `depth`: commands that the device takes.
    pub(super) fn new(kernel: Kernel, most: u64, depth: usize) -> Elevator {
        Elevator {
            kernel,
            most,
            tags: if kernel == Kernel::None { depth } else { 2 * depth.clamp(32, 128) },
            scheduler: Scheduler::new(kernel, most),
            inside: 0,
            waiting: Waiting::default(),
        }
    }

    /// Whether commands go straight to the device.
    pub(super) fn is_none(&self) -> bool {
        self.kernel == Kernel::None
    }

    pub(super) fn add(&mut self, queued: Queued) {
        self.waiting.add(queued);
    }

    /// Lets in who waits for tags, while the device has so many commands.
    fn admit(&mut self, held: usize) {
        while self.inside + held < self.tags {
            let Some(queued) = self.waiting.next() else { return };
            self.inside += 1;
            self.inside -= self.scheduler.add(queued);
        }
    }

    /// What is next for the device, which has so many commands.
    pub(super) fn next(&mut self, now: u64, held: usize) -> Next {
        if self.is_none() {
            return self.waiting.next().map_or(Next::Nothing, Next::Give);
        }
        self.admit(held);
        let next = match &mut self.scheduler {
            Scheduler::None => Next::Nothing,
            Scheduler::Deadline(deadline) => deadline.next(now).map_or(Next::Nothing, Next::Give),
            Scheduler::Cfq(cfq) => cfq.next(now),
        };
        self.inside -= usize::from(matches!(next, Next::Give(_)));
        next
    }

    /// The device has served a command of that context.
    pub(super) fn completed(&mut self, context: u32) {
        if let Scheduler::Cfq(cfq) = &mut self.scheduler {
            cfq.completed(context);
        }
    }

    /// Nothing waits in it.
    pub(super) fn is_empty(&self) -> bool {
        self.inside == 0 && self.waiting.turns.is_empty()
    }

    /// Loses everything.
    pub(super) fn forget(&mut self) {
        (self.scheduler, self.inside) = (Scheduler::new(self.kernel, self.most), 0);
        self.waiting = Waiting::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_device::Command;

    fn queued(number: u32, op: Op, address: u64, len: u64, context: u32, arrived_ns: u64) -> Queued {
        let pending = Pending { command: Command { op, address, len }, arrived_ns };
        Queued { pending, owner: Owner::Batch(number), more: Vec::new(), context, sync: op == Op::Read }
    }

    fn addresses(elevator: &mut Elevator, mut now: u64) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            match elevator.next(now, 0) {
                Next::Give(queued) => {
                    all.push(queued.start());
                    elevator.completed(queued.context);
                }
                Next::Wait(until) => now = until,
                Next::Nothing => return all,
            }
        }
    }

    #[test]
    fn deadline_goes_by_address_until_one_is_too_old() {
        let mut elevator = Elevator::new(Kernel::Deadline, 512 << 10, 32);
        for (number, address) in [(0, 900), (1, 100), (2, 500)] {
            elevator.add(queued(number, Op::Read, address << 20, 4096, 0, 0));
        }
        elevator.add(queued(3, Op::Write, 1 << 20, 4096, 0, 0));
        assert_eq!(addresses(&mut elevator, 1000), [100, 500, 900, 1].map(|at: u64| at << 20), "reads first");
        for number in 0..40u64 {
            elevator.add(queued(number as u32, Op::Read, (number + 2000) << 20, 4096, 0, 1));
        }
        elevator.add(queued(99, Op::Read, 0, 4096, 0, 0));
        let order = addresses(&mut elevator, 600_000_000);
        assert!(order.iter().position(|at| *at == 0).unwrap() <= 16, "{order:?}");
    }

    #[test]
    fn neighbours_are_merged_and_nobody_is_forgotten() {
        let mut elevator = Elevator::new(Kernel::Deadline, 512 << 10, 32);
        for number in [2, 0, 1, 3] {
            elevator.add(queued(number, Op::Write, u64::from(number) * 8192, 8192, 0, 0));
        }
        let Next::Give(all) = elevator.next(0, 0) else { panic!("there is one") };
        assert_eq!((all.start(), all.end(), all.more.len()), (0, 4 * 8192, 3));
        assert!(elevator.is_empty());
    }

    /// As measured of 16 readers with windows of 2.5 MB under `none` on Linux: who waits for tags has them in turn, one by one.
    #[test]
    fn contexts_that_wait_for_tags_have_turns() {
        let give = |kernel, tags| {
            let mut elevator = Elevator::new(kernel, 4096, tags);
            for number in 0..9_u64 {
                elevator.add(queued(
                    0,
                    Op::Read,
                    (number % 3) * 8192 + ((number / 3) << 30),
                    4096,
                    (number / 3) as u32,
                    0,
                ));
            }
            (0..9)
                .map_while(|_| match elevator.next(0, 0) {
                    Next::Give(given) => Some(given.context),
                    _ => None,
                })
                .collect::<Vec<u32>>()
        };
        assert_eq!(give(Kernel::None, 4), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(give(Kernel::Deadline, 4), [0, 0, 0, 1, 1, 1, 2, 2, 2], "all have a tag, and go by address");
        // Of 40 that wait, 32 may be inside while the device has as many.
        let mut elevator = Elevator::new(Kernel::Deadline, 4096, 32);
        for context in 0..40_u32 {
            elevator.add(queued(context, Op::Read, u64::from(40 - context) << 20, 4096, context, 0));
        }
        assert!(matches!(elevator.next(0, 32), Next::Give(given) if given.context == 31), "the last that is inside");
        assert!(matches!(elevator.next(0, 32), Next::Give(given) if given.context == 30), "the next one by address");
    }

    /// Two contexts read in order: each keeps the device while it goes on, though its next request comes only later.
    #[test]
    fn cfq_waits_for_the_next_request_of_a_context() {
        let mut elevator = Elevator::new(Kernel::Cfq, 512 << 10, 32);
        let read = |context: u32, number: u64, now| {
            queued(0, Op::Read, (u64::from(context) << 30) + number * 4096, 4096, context, now)
        };
        elevator.add(read(0, 0, 0));
        elevator.add(read(1, 0, 0));
        let mut switches = 0;
        let (mut now, mut last, mut counts) = (0, 0, [1u64, 1]);
        for _ in 0..200 {
            match elevator.next(now, 0) {
                Next::Give(given) => {
                    switches += u32::from(given.context != last);
                    last = given.context;
                    now += 1_000_000;
                    elevator.completed(given.context);
                    now += 500_000;
                    elevator.add(read(last, counts[last as usize], now));
                    counts[last as usize] += 1;
                }
                Next::Wait(until) => now = until,
                Next::Nothing => break,
            }
        }
        assert!((2..=6).contains(&switches), "{switches}");
        // One that goes away is not waited for again and again.
        let Next::Give(given) = elevator.next(now, 0) else { panic!("there is one") };
        elevator.completed(given.context);
        let Next::Wait(until) = elevator.next(now, 0) else { panic!("idles") };
        assert!(until <= now + SLICE_IDLE_NS);
        assert!(matches!(elevator.next(until, 0), Next::Give(other) if other.context != given.context));
    }

    proptest! {
        /// Whatever comes in whatever order goes out once, with all its bytes.
        #[test]
        fn every_command_goes_out_once(
            kernel in prop_oneof![Just(Kernel::None), Just(Kernel::Deadline), Just(Kernel::Cfq)],
            commands in proptest::collection::vec((0u64..64, any::<bool>(), 0u32..4, any::<bool>()), 1..80),
        ) {
            let mut elevator = Elevator::new(kernel, 512 << 10, 32);
            let (mut out, mut bytes, mut now) = (Vec::new(), 0, 0);
            let mut note = |given: Queued, elevator: &mut Elevator| {
                out.extend(std::iter::once(given.owner).chain(given.more.iter().map(|(owner, _)| *owner)));
                bytes += given.pending.command.len;
                elevator.completed(given.context);
            };
            for (number, (block, write, context, take)) in (0..).zip(&commands) {
                let op = if *write { Op::Write } else { Op::Read };
                elevator.add(queued(number, op, block * 4096, 4096, *context, now));
                now += 1_000_000;
                if *take && let Next::Give(given) = elevator.next(now, 0) {
                    note(given, &mut elevator);
                }
            }
            loop {
                match elevator.next(now, 0) {
                    Next::Give(given) => note(given, &mut elevator),
                    Next::Wait(until) => now = until,
                    Next::Nothing => break,
                }
            }
            prop_assert!(elevator.is_empty());
            prop_assert_eq!(bytes, 4096 * commands.len() as u64);
            prop_assert_eq!(out.len(), commands.len());
            for number in 0..commands.len() as u32 {
                prop_assert!(out.contains(&Owner::Batch(number)));
            }
        }
    }
}
