//! A data server's device: its queue, and where files lie on it.

use std::collections::VecDeque;
use std::hash::Hasher;

use serde::Serialize;
use sluice_core::Op;
use sluice_device::{Command, Device, Pending, Service};

use super::cache::Cache;
use super::elevator::{Elevator, Next, Owner, Queued};
use super::orchestration::Starts;
use super::places::Places;
use super::tier::Tier;
use crate::random::Noise;
use crate::scenario::{Kernel, PageCache, Storage};

/// Commands that the device may choose from, if nothing else is said; more wait in the operating system's queue.
const QUEUE_MAX: usize = 1024;
/// The same behind a scheduler of the kernel: native command queueing.
const KERNEL_QUEUE_MAX: usize = 31;

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceOutcome {
    /// Commands served.
    pub commands: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Time at work, in nanoseconds (of all lanes together).
    pub busy_ns: u64,
    /// Of that, moving to the place.
    pub seek_ns: u64,
    /// Of that, waiting for the medium.
    pub rotation_ns: u64,
    /// Sum of distances between commands.
    pub distance_bytes: u64,
}

impl DeviceOutcome {
    /// Adds another device's.
    pub fn merge(&mut self, other: &DeviceOutcome) {
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.busy_ns += other.busy_ns;
        self.seek_ns += other.seek_ns;
        self.rotation_ns += other.rotation_ns;
        self.distance_bytes += other.distance_bytes;
    }

    /// Share of the busy time spent on positioning, 0 to 1.
    #[must_use]
    pub fn seek_share(&self) -> f64 {
        (self.seek_ns + self.rotation_ns) as f64 / self.busy_ns.max(1) as f64
    }
}

/// Keys are mixed by one multiplication: they are small numbers that no stranger chooses.
#[derive(Default)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }
    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A command that the device serves.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub(super) owner: Owner,
    /// Others whose commands were merged into it, with their bytes.
    pub(super) more: Vec<(Owner, u64)>,
    pub(super) context: u32,
    pub(super) command: Command,
    pub(super) service: Service,
    /// Whether the device had to move, if it is one that can.
    pub(super) positioned: Option<bool>,
}

impl Started {
    /// Whom it belongs to, with the bytes of each.
    pub(super) fn owners(&self) -> impl Iterator<Item = (Owner, u64)> + '_ {
        let others: u64 = self.more.iter().map(|(_, len)| len).sum();
        std::iter::once((self.owner, self.command.len - others)).chain(self.more.iter().copied())
    }
}

/// What is asked of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) owner: Owner,
    pub(super) context: u32,
    pub(super) op: Op,
    pub(super) file: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) struct Disk {
    device: Box<dyn Device>,
    rotates: bool,
    lanes: u32,
    busy: u32,
    /// What the device may choose from.
    pending: Vec<Pending>,
    /// `queued[i]` is whose command `pending[i]` is.
    queued: Vec<Queued>,
    /// How many commands the device may choose from.
    depth: usize,
    elevator: Elevator,
    /// When the elevator wants to be asked again.
    pub(super) wake_ns: u64,
    places: Places,
    /// Service times are multiplied by this.
    pub(super) slowness: u64,
    noise: Option<Noise>,
    pub(super) outcome: DeviceOutcome,
    /// Batches being executed, and those that wait for a thread.
    pub(super) executing: u32,
    pub(super) waiting: VecDeque<u32>,
    /// Numbers of threads that are free: the last one is taken next, which is the one that was freed last.
    pub(super) idle: Vec<u32>,
    pub(super) cache: Option<Box<Cache>>,
    /// An SSD before the device.
    pub(super) tier: Option<Box<Tier>>,
    /// Whoever wants to know where files lie.
    starts: Option<Starts>,
}

impl Disk {
    pub(super) fn new(
        device: Box<dyn Device>,
        storage: &Storage,
        noise: Option<Noise>,
        starts: Option<Starts>,
        tier: Option<Box<Tier>>,
    ) -> Disk {
        let places = Places::new(device.capacity_bytes(), storage.extent, storage.allocation, storage.file_distance);
        let cache = |cache: &PageCache| {
            let PageCache { memory, background, hard, read_ahead, write_back, sync_ns } = *cache;
            let cache = Cache::new(memory, background, hard, read_ahead, storage.device_transfer);
            Box::new(cache.synced(sync_ns).throttled(write_back))
        };
        let depth = match storage.device_queue {
            0 if storage.kernel == Kernel::None => QUEUE_MAX,
            0 => KERNEL_QUEUE_MAX,
            depth => depth as usize,
        };
        Disk {
            rotates: device.rotates(),
            lanes: device.lanes(),
            device,
            busy: 0,
            pending: Vec::new(),
            queued: Vec::new(),
            depth,
            elevator: Elevator::new(storage.kernel, storage.device_transfer, depth),
            wake_ns: u64::MAX,
            places,
            slowness: 1,
            noise,
            outcome: DeviceOutcome::default(),
            executing: 0,
            waiting: VecDeque::new(),
            idle: (0..storage.threads).rev().collect(),
            cache: storage.cache.as_ref().map(cache),
            tier,
            starts,
        }
    }

    /// Bytes of a file that ends at `end` from an offset on that lie in one piece.
    pub(super) fn contiguous(&mut self, file: u64, offset: u64, op: Op, end: u64) -> u64 {
        self.places.locate(file, offset, op, end).1
    }

    /// Queues a command.
    pub(super) fn push(&mut self, now: u64, wanted: &Wanted) {
        let op = match wanted.op {
            Op::Read => sluice_device::Op::Read,
            Op::Write => sluice_device::Op::Write,
        };
        // It was asked for just before, so that it is there already.
        let address = self.places.locate(wanted.file, wanted.offset, wanted.op, u64::MAX).0;
        if let Some(starts) = &self.starts {
            starts.note(wanted.file, wanted.offset, address);
        }
        let pending = Pending { command: Command { op, address, len: wanted.len }, arrived_ns: now };
        let Wanted { owner, context, .. } = *wanted;
        // What nobody waits for is what the cache writes back.
        let sync = wanted.op == Op::Read || matches!(owner, Owner::Batch(_));
        let queued = Queued { pending, owner, more: Vec::new(), context, sync };
        match &mut self.tier {
            Some(tier) => tier.arrives(now, queued),
            None => self.enter(queued),
        }
    }

    fn enter(&mut self, queued: Queued) {
        if self.elevator.is_none() && self.pending.len() < self.depth && self.elevator.is_empty() {
            self.give(queued);
        } else {
            self.elevator.add(queued);
        }
    }

    fn give(&mut self, queued: Queued) {
        self.pending.push(queued.pending);
        self.queued.push(queued);
    }

    /// Takes what the tier has for the device.
    fn take_from_tier(&mut self, now: u64) {
        let Some(tier) = &mut self.tier else { return };
        tier.turn(now);
        let (mut to_disk, mut direct) = (std::mem::take(&mut tier.to_disk), std::mem::take(&mut tier.direct));
        to_disk.drain(..).for_each(|queued| self.enter(queued));
        direct.drain(..).for_each(|queued| self.give(queued));
        // For use again.
        if let Some(tier) = &mut self.tier {
            (tier.to_disk, tier.direct) = (to_disk, direct);
        }
    }

    /// Gives the device what the elevator has for it.
    fn fill(&mut self, now: u64) {
        self.wake_ns = u64::MAX;
        while self.pending.len() + self.busy as usize <= self.depth.saturating_sub(1) {
            let held = self.pending.len() + self.busy as usize;
            match self.elevator.next(now, held) {
                Next::Give(queued) => self.give(queued),
                Next::Wait(until) => {
                    self.wake_ns = until;
                    return;
                }
                Next::Nothing => return,
            }
        }
    }

    /// Starts the next command, if one waits and the device can take it.
    pub(super) fn start(&mut self, now: u64) -> Option<Started> {
        self.take_from_tier(now);
        self.fill(now);
        if self.busy == self.lanes || self.pending.is_empty() {
            return None;
        }
        let picked = if self.pending.len() == 1 { 0 } else { self.device.pick(now, &self.pending) };
        let command = self.pending.remove(picked).command;
        let Queued { owner, more, context, .. } = self.queued.remove(picked);
        let mut service = self.device.service(now, command);
        service.total_ns *= self.slowness;
        if let Some(noise) = &mut self.noise {
            service.total_ns = noise.of(service.total_ns);
        }
        self.busy += 1;
        let outcome = &mut self.outcome;
        outcome.commands += 1;
        outcome.bytes += command.len;
        outcome.busy_ns += service.total_ns;
        outcome.seek_ns += service.seek_ns;
        outcome.rotation_ns += service.rotation_ns;
        outcome.distance_bytes += service.distance_bytes;
        let positioned = self.rotates.then_some(service.seek_ns + service.rotation_ns > 0);
        Some(Started { owner, more, context, command, service, positioned })
    }

    /// A command that was started is served.
    pub(super) fn served(&mut self, now: u64, started: &Started) {
        self.busy -= 1;
        self.elevator.completed(started.context);
        if let Some(tier) = &mut self.tier {
            tier.disk_served(now, started.command, started.owners().map(|(owner, _)| owner));
        }
    }

    /// Forgets all commands that wait; what the device serves, it serves.
    pub(super) fn forget(&mut self, threads: u32) {
        self.pending.clear();
        self.queued.clear();
        self.elevator.forget();
        self.waiting.clear();
        self.executing = 0;
        self.idle = (0..threads).rev().collect();
    }

    pub(super) fn lanes(&self) -> u32 {
        self.lanes
    }
}
