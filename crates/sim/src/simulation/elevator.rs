//! The operating system's scheduler between a server and its device.
//!
//! * **none**: commands go to the device in order of arrival.
//! * **deadline**, after Linux's `deadline-iosched.c` (kernel 2.6.32; `mq-deadline` is the same idea): reads and writes each in
//!   order of address; 16 of a direction follow each other, then the oldest is looked at: it goes first if it waited for
//!   500 ms (reads) or 5 s (writes). Reads go before writes, but not more than twice while writes wait.
//! * **cfq**, after `cfq-iosched.c`: each context (a thread or process) has a queue of its own, in order of address, and the
//!   device for a slice of time: 100 ms if it waits for its requests, 40 ms for what is written back. When the queue of a
//!   context that reads in order is empty, the device idles for up to 8 ms until its next request comes, unless another
//!   context wants what lies within 4 MB (cooperating queues). BFQ is of the same kind, with slices counted in bytes.
//!
//! Contiguous commands of one direction (and context) are merged up to 512 KB.
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

const MERGED_MAX: u64 = 512 << 10;
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
#[derive(Debug, Default)]
struct Sorted {
    by_address: BTreeMap<(u64, u64), Queued>,
    /// Where a queued command ends: its key.
    ends: HashMap<u64, (u64, u64)>,
    arrivals: u64,
}

impl Sorted {
    /// Adds a command, merged with those that it continues or that continue it.
    fn add(&mut self, mut new: Queued) {
        loop {
            let fits = |key: &(u64, u64)| {
                let len = self.by_address.get(key).map_or(u64::MAX, |other| other.pending.command.len);
                len.saturating_add(new.pending.command.len) <= MERGED_MAX
            };
            let before = self.ends.get(&new.start()).copied().filter(fits);
            let key = before.or_else(|| self.from(new.end()).filter(|key| key.0 == new.end()).filter(fits));
            let Some(mut neighbour) = key.and_then(|key| self.take(key)) else { break };
            neighbour.absorb(new);
            new = neighbour;
        }
        self.insert(new);
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

#[derive(Debug, Default)]
pub(super) struct Deadline {
    reads: Sorted,
    writes: Sorted,
    writing: bool,
    batched: u32,
    starved: u32,
    at: u64,
}

impl Deadline {
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

#[derive(Debug, Default)]
struct Context {
    sorted: Sorted,
    /// Where its last command ended.
    at: u64,
    /// Its last command was near the one before. Of a new context that is assumed.
    in_order: bool,
    under_way: u32,
    sync: bool,
}

#[derive(Debug, Default)]
pub(super) struct Cfq {
    contexts: HashMap<u32, Context>,
    /// Those with commands, the active one excepted.
    turns: VecDeque<u32>,
    active: Option<u32>,
    slice_end_ns: u64,
    /// While the device idles for the active context.
    idle_until_ns: Option<u64>,
}

impl Cfq {
    fn add(&mut self, queued: Queued) {
        let (number, sync) = (queued.context, queued.sync);
        let new = || Context { in_order: true, ..Context::default() };
        let context = self.contexts.entry(number).or_insert_with(new);
        context.sync = sync;
        let was_empty = context.sorted.by_address.is_empty();
        context.sorted.add(queued);
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

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) enum Elevator {
    None(VecDeque<Queued>),
    Deadline(Box<Deadline>),
    Cfq(Box<Cfq>),
}

impl Elevator {
    pub(super) fn new(kernel: Kernel) -> Elevator {
        match kernel {
            Kernel::None => Elevator::None(VecDeque::new()),
            Kernel::Deadline => Elevator::Deadline(Box::default()),
            Kernel::Cfq => Elevator::Cfq(Box::default()),
        }
    }

    pub(super) fn add(&mut self, queued: Queued) {
        match self {
            Elevator::None(all) => all.push_back(queued),
            Elevator::Deadline(deadline) if queued.writes() => deadline.writes.add(queued),
            Elevator::Deadline(deadline) => deadline.reads.add(queued),
            Elevator::Cfq(cfq) => cfq.add(queued),
        }
    }

    pub(super) fn next(&mut self, now: u64) -> Next {
        let given = match self {
            Elevator::None(all) => all.pop_front(),
            Elevator::Deadline(deadline) => deadline.next(now),
            Elevator::Cfq(cfq) => return cfq.next(now),
        };
        given.map_or(Next::Nothing, Next::Give)
    }

    /// The device has served a command of that context.
    pub(super) fn completed(&mut self, context: u32) {
        if let Elevator::Cfq(cfq) = self {
            cfq.completed(context);
        }
    }

    /// Nothing waits in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Elevator::None(all) => all.is_empty(),
            Elevator::Deadline(deadline) => {
                deadline.reads.by_address.is_empty() && deadline.writes.by_address.is_empty()
            }
            Elevator::Cfq(cfq) => cfq.contexts.values().all(|context| context.sorted.by_address.is_empty()),
        }
    }

    /// Loses everything.
    pub(super) fn forget(&mut self) {
        *self = match self {
            Elevator::None(_) => Elevator::None(VecDeque::new()),
            Elevator::Deadline(_) => Elevator::Deadline(Box::default()),
            Elevator::Cfq(_) => Elevator::Cfq(Box::default()),
        };
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
            match elevator.next(now) {
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
        let mut elevator = Elevator::new(Kernel::Deadline);
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
        let mut elevator = Elevator::new(Kernel::Deadline);
        for number in [2, 0, 1, 3] {
            elevator.add(queued(number, Op::Write, u64::from(number) * 8192, 8192, 0, 0));
        }
        let Next::Give(all) = elevator.next(0) else { panic!("there is one") };
        assert_eq!((all.start(), all.end(), all.more.len()), (0, 4 * 8192, 3));
        assert!(elevator.is_empty());
    }

    /// Two contexts read in order: each keeps the device while it goes on, though its next request comes only later.
    #[test]
    fn cfq_waits_for_the_next_request_of_a_context() {
        let mut elevator = Elevator::new(Kernel::Cfq);
        let read = |context: u32, number: u64, now| {
            queued(0, Op::Read, (u64::from(context) << 30) + number * 4096, 4096, context, now)
        };
        elevator.add(read(0, 0, 0));
        elevator.add(read(1, 0, 0));
        let mut switches = 0;
        let (mut now, mut last, mut counts) = (0, 0, [1u64, 1]);
        for _ in 0..200 {
            match elevator.next(now) {
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
        let Next::Give(given) = elevator.next(now) else { panic!("there is one") };
        elevator.completed(given.context);
        let Next::Wait(until) = elevator.next(now) else { panic!("idles") };
        assert!(until <= now + SLICE_IDLE_NS);
        assert!(matches!(elevator.next(until), Next::Give(other) if other.context != given.context));
    }

    proptest! {
        /// Whatever comes in whatever order goes out once, with all its bytes.
        #[test]
        fn every_command_goes_out_once(
            kernel in prop_oneof![Just(Kernel::None), Just(Kernel::Deadline), Just(Kernel::Cfq)],
            commands in proptest::collection::vec((0u64..64, any::<bool>(), 0u32..4, any::<bool>()), 1..80),
        ) {
            let mut elevator = Elevator::new(kernel);
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
                if *take && let Next::Give(given) = elevator.next(now) {
                    note(given, &mut elevator);
                }
            }
            loop {
                match elevator.next(now) {
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
