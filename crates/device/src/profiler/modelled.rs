//! A device model as the target, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::convert::Infallible;

use super::{Burst, Options, Outcome, Target, profile};
use crate::profile::Profile;
use crate::{Command, Device, ModelError, Op, Pending};

/// Requests of the preparation.
const PREPARE_BYTES: u64 = 1 << 20;

/// The profile of the model that [`crate::model`] finds by this name or path, measured in virtual time at sizes from 4 KiB to
/// 1 MiB, one request at a time.
///
/// # Errors
/// As [`Modelled::of`]'s.
pub fn profile_of_model(name_or_path: &str) -> Result<Profile, ModelError> {
    let sizes = (12..=20).step_by(2).map(|bits| 1 << bits).collect();
    let options = Options { sizes: Some(sizes), in_flight_max: 1, ..Options::default() };
    let Ok(report) = profile(&mut Modelled::of(name_or_path, 0, options.file_bytes)?, &options);
    Ok(report.profile)
}

/// A model with a file at its beginning.
pub struct Modelled {
    device: Box<dyn Device>,
    now_ns: u64,
    file_bytes: u64,
}

impl Modelled {
    /// On this device, whose clock starts now.
    #[must_use]
    pub fn new(device: Box<dyn Device>, file_bytes: u64) -> Modelled {
        let file_bytes = file_bytes.min(device.capacity_bytes());
        Modelled { device, now_ns: 0, file_bytes }
    }

    /// On the model that [`crate::model`] finds by this name or path, to be measured.
    ///
    /// # Errors
    /// If there is no such model, or its reads or writes take no time: a burst that is to last some time would never end.
    pub fn of(name_or_path: &str, seed: u64, file_bytes: u64) -> Result<Modelled, ModelError> {
        // Another device than that which is measured, so that what is measured begins as it was built.
        let mut probe = Modelled::new(crate::model(name_or_path, seed)?, file_bytes);
        let takes_none = |op| probe.request(op, 0, PREPARE_BYTES) == 0;
        if [Op::Read, Op::Write].into_iter().any(takes_none) {
            return Err(ModelError::TakesNoTime { name: name_or_path.to_owned() });
        }
        Ok(Modelled::new(crate::model(name_or_path, seed)?, file_bytes))
    }

    /// The virtual time.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Does one request and waits for its end; returns what it took.
    pub fn request(&mut self, op: Op, address: u64, len: u64) -> u64 {
        let took = self.device.service(self.now_ns, Command { op, address, len }).total_ns;
        self.now_ns += took;
        took
    }

    fn one_at_a_time(&mut self, burst: &Burst) -> Vec<u64> {
        let (begin, mut latencies) = (self.now_ns, Vec::new());
        while burst.goes_on(latencies.len() as u64, self.now_ns - begin) {
            let offset = burst.offset(latencies.len() as u64);
            latencies.push(self.request(burst.test.op, offset, burst.size_bytes));
        }
        latencies
    }

    /// As many at a time as the burst wants and the device takes; the rest waits in the device's queue.
    fn several(&mut self, burst: &Burst) -> Vec<u64> {
        let (begin, mut latencies) = (self.now_ns, Vec::new());
        let mut pending: Vec<Pending> = Vec::new();
        // (end, arrival) of what is under way.
        let mut under_way: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        let mut number = 0;
        loop {
            while pending.len() + under_way.len() < burst.in_flight as usize
                && burst.goes_on(number, self.now_ns - begin)
            {
                let command = Command { op: burst.test.op, address: burst.offset(number), len: burst.size_bytes };
                pending.push(Pending { command, arrived_ns: self.now_ns });
                number += 1;
            }
            while !pending.is_empty() && under_way.len() < self.device.lanes() as usize {
                let picked = pending.remove(self.device.pick(self.now_ns, &pending));
                let took = self.device.service(self.now_ns, picked.command).total_ns;
                under_way.push(Reverse((self.now_ns + took, picked.arrived_ns)));
            }
            let Some(Reverse((end, arrived))) = under_way.pop() else { return latencies };
            self.now_ns = self.now_ns.max(end);
            latencies.push(end - arrived);
        }
    }
}

impl Target for Modelled {
    type Error = Infallible;

    fn prepare(&mut self) -> Result<u64, Infallible> {
        let begin = self.now_ns;
        let mut at = 0;
        while at < self.file_bytes {
            let len = PREPARE_BYTES.min(self.file_bytes - at);
            self.request(Op::Write, at, len);
            at += len;
        }
        self.request(Op::Flush, 0, 0);
        Ok(self.now_ns - begin)
    }

    fn run(&mut self, burst: &Burst) -> Result<Outcome, Infallible> {
        let begin = self.now_ns;
        let latencies_ns = if burst.in_flight <= 1 { self.one_at_a_time(burst) } else { self.several(burst) };
        Ok(Outcome { latencies_ns, elapsed_ns: self.now_ns - begin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_no_time_is_not_measured() {
        let refused = Modelled::of("null", 1, 1 << 30).err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("device model null takes no time: there is nothing to measure"));
        assert!(profile_of_model("null").is_err());
        for model in crate::models().iter().filter(|model| model.name != "null") {
            assert!(Modelled::of(model.name, 1, 1 << 30).is_ok(), "{}", model.name);
        }
    }
}
