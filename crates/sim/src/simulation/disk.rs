//! A data server's device: its queue, and where files lie on it.

use std::collections::VecDeque;

use serde::Serialize;
use sluice_core::Op;
use sluice_device::{Command, Device, Pending, Places, Service};

/// Commands that the device may choose from; more wait in the operating system's queue in order of arrival.
const QUEUE_MAX: usize = 1024;

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

/// A command that the device serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    pub(super) batch: u32,
    pub(super) command: Command,
    pub(super) service: Service,
}

pub(super) struct Disk {
    device: Box<dyn Device>,
    lanes: u32,
    busy: u32,
    pending: Vec<Pending>,
    /// `batches[i]` is whose command `pending[i]` is.
    batches: Vec<u32>,
    behind: VecDeque<(Pending, u32)>,
    places: Places,
    /// Service times are multiplied by this.
    pub(super) slowness: u64,
    pub(super) outcome: DeviceOutcome,
    /// Batches being executed, and those that wait for a thread.
    pub(super) executing: u32,
    pub(super) waiting: VecDeque<u32>,
}

impl Disk {
    pub(super) fn new(device: Box<dyn Device>, extent: u64) -> Disk {
        let places = Places::new(device.capacity_bytes(), extent);
        Disk {
            lanes: device.lanes(),
            device,
            busy: 0,
            pending: Vec::new(),
            batches: Vec::new(),
            behind: VecDeque::new(),
            places,
            slowness: 1,
            outcome: DeviceOutcome::default(),
            executing: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Bytes from an offset of a file to the end of its extent.
    pub(super) fn contiguous(&self, offset: u64) -> u64 {
        self.places.contiguous(offset)
    }

    /// Queues a command.
    pub(super) fn push(&mut self, now: u64, batch: u32, op: Op, file: u64, offset: u64, len: u64) {
        let op = match op {
            Op::Read => sluice_device::Op::Read,
            Op::Write => sluice_device::Op::Write,
        };
        let address = self.places.address(file, offset);
        let pending = Pending { command: Command { op, address, len }, arrived_ns: now };
        if self.pending.len() < QUEUE_MAX && self.behind.is_empty() {
            self.pending.push(pending);
            self.batches.push(batch);
        } else {
            self.behind.push_back((pending, batch));
        }
    }

    /// Starts the next command, if one waits and the device can take it.
    pub(super) fn start(&mut self, now: u64) -> Option<Started> {
        if self.busy == self.lanes || self.pending.is_empty() {
            return None;
        }
        let picked = if self.pending.len() == 1 { 0 } else { self.device.pick(now, &self.pending) };
        let command = self.pending.remove(picked).command;
        let batch = self.batches.remove(picked);
        if let Some((pending, batch)) = self.behind.pop_front() {
            self.pending.push(pending);
            self.batches.push(batch);
        }
        let mut service = self.device.service(now, command);
        service.total_ns *= self.slowness;
        self.busy += 1;
        let outcome = &mut self.outcome;
        outcome.commands += 1;
        outcome.bytes += command.len;
        outcome.busy_ns += service.total_ns;
        outcome.seek_ns += service.seek_ns;
        outcome.rotation_ns += service.rotation_ns;
        outcome.distance_bytes += service.distance_bytes;
        Some(Started { batch, command, service })
    }

    /// A command that was started is served.
    pub(super) fn served(&mut self) {
        self.busy -= 1;
    }

    /// Forgets all commands that wait; what the device serves, it serves.
    pub(super) fn forget(&mut self) {
        self.pending.clear();
        self.batches.clear();
        self.behind.clear();
        self.waiting.clear();
        self.executing = 0;
    }

    pub(super) fn lanes(&self) -> u32 {
        self.lanes
    }
}
