//! A device that takes a fixed time for everything, however long: for measuring what is around it, and for tests.

use serde::Deserialize;

use crate::parameter::check;
use crate::{Command, Device, Service};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "kind")]
    _kind: String,
    capacity_bytes: u64,
    latency_us: f64,
    queue_depth: u32,
}

struct Null {
    p: Parameters,
    /// Where the last command ended.
    at: u64,
}

/// The row in the table of kinds.
pub(crate) fn build(text: &str, _seed: u64) -> Result<Box<dyn Device>, String> {
    let p: Parameters = toml::from_str(text).map_err(|error| error.to_string())?;
    check(&[
        ("capacity_bytes", p.capacity_bytes as f64, 1e6, 1e18),
        ("latency_us", p.latency_us, 0.0, 1e9),
        ("queue_depth", p.queue_depth.into(), 1.0, 65_536.0),
    ])?;
    Ok(Box::new(Null { p, at: 0 }))
}

impl Device for Null {
    fn capacity_bytes(&self) -> u64 {
        self.p.capacity_bytes
    }

    fn lanes(&self) -> u32 {
        self.p.queue_depth
    }

    fn service(&mut self, _now_ns: u64, command: Command) -> Service {
        let address = command.address % self.p.capacity_bytes;
        let distance_bytes = self.at.abs_diff(address);
        self.at = address.saturating_add(command.len) % self.p.capacity_bytes;
        Service { total_ns: (self.p.latency_us * 1e3) as u64, distance_bytes, ..Service::default() }
    }
}
