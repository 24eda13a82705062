//! A hard disk: moving arm, turning platters, zones.
//!
//! After C. Ruemmler and J. Wilkes, *An introduction to disk drive modeling*, IEEE Computer 27(3), 1994:
//!
//! * **Seek** over `d` of `D` cylinders: `a + b * sqrt(d)` while the arm still accelerates, here up to a third of the
//!   stroke (the average distance of random seeks), through the points (1, track-to-track) and (D/3, average); from there
//!   on linear to (D, full stroke). 0 within a cylinder.
//! * **Rotation**: the platters' angle is the time modulo a revolution, plus a phase from the seed; a command waits for
//!   its first byte to come round.
//! * **Transfer**: at the rate of its zone. Zones have equally many cylinders; the rate falls linearly from the outer
//!   (address 0) to the inner one, and with it the bytes on a track.
//! * **Overhead**: fixed for each command.
//!
//! **Streams.** A command that starts where the one before of the same kind ended needs neither seek nor rotation: the disk
//! reads ahead and writes behind, also while the host is quiet, as far as its buffer goes. It then takes as long as the
//! interface needs, or the medium if that has not kept up.
//!
//! **Queue** (native command queueing): of the oldest `queue_depth` commands the one with the shortest positioning time,
//! unless the oldest has waited too long.
//!
//! Deviations: skew between tracks and head switches are part of the sustained rates; there is one stream; the write cache
//! is not simulated, but lets each write pay only a share of its positioning time.

use serde::Deserialize;

use crate::{Command, Device, Op, Pending, Service};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "kind")]
    _kind: String,
    capacity_bytes: u64,
    surfaces: u32,
    zones: u32,
    rotation_rpm: f64,
    outer_rate_mb_s: f64,
    inner_rate_mb_s: f64,
    interface_rate_mb_s: f64,
    seek_track_to_track_ms: f64,
    seek_average_ms: f64,
    seek_full_stroke_ms: f64,
    overhead_us: f64,
    stream_buffer_kib: u32,
    write_positioning_share: f64,
    flush_ms: f64,
    queue_depth: u32,
    queue_age_max_ms: f64,
}

struct Zone {
    start: u64,
    first_cylinder: u64,
    track_bytes: u64,
    /// Of the medium, in bytes per nanosecond.
    rate: f64,
}

struct Hdd {
    p: Parameters,
    zones: Vec<Zone>,
    cylinders: u64,
    revolution_ns: f64,
    phase_ns: u64,
    /// Where the last command ended, what it did, and when.
    at: u64,
    last: Op,
    end_ns: u64,
    /// Bytes that the medium is ahead of the stream.
    ahead: u64,
}

/// The row in the table of kinds.
pub(crate) fn build(text: &str, seed: u64) -> Result<Box<dyn Device>, String> {
    let p: Parameters = toml::from_str(text).map_err(|error| error.to_string())?;
    for (name, value, min, max) in [
        ("capacity_bytes", p.capacity_bytes as f64, 1e9, 1e15),
        ("surfaces", p.surfaces.into(), 1.0, 64.0),
        ("zones", p.zones.into(), 1.0, 1000.0),
        ("rotation_rpm", p.rotation_rpm, 100.0, 100_000.0),
        ("outer_rate_mb_s", p.outer_rate_mb_s, 1.0, 1e4),
        ("inner_rate_mb_s", p.inner_rate_mb_s, 1.0, p.outer_rate_mb_s),
        ("interface_rate_mb_s", p.interface_rate_mb_s, 1.0, 1e5),
        ("seek_track_to_track_ms", p.seek_track_to_track_ms, 0.0, p.seek_average_ms),
        ("seek_average_ms", p.seek_average_ms, 0.0, p.seek_full_stroke_ms),
        ("seek_full_stroke_ms", p.seek_full_stroke_ms, 0.0, 1000.0),
        ("overhead_us", p.overhead_us, 0.0, 1e6),
        ("write_positioning_share", p.write_positioning_share, 0.0, 1.0),
        ("flush_ms", p.flush_ms, 0.0, 1e4),
        ("queue_depth", p.queue_depth.into(), 1.0, 65_536.0),
        ("queue_age_max_ms", p.queue_age_max_ms, 0.0, 1e6),
    ] {
        if !(min..=max).contains(&value) {
            return Err(format!("{name} is {value}, must be from {min} to {max}"));
        }
    }
    let revolution_ns = 60e9 / p.rotation_rpm;
    let rates: Vec<f64> = (0..p.zones)
        .map(|zone| {
            let inwards = if p.zones == 1 { 0.5 } else { f64::from(zone) / f64::from(p.zones - 1) };
            (p.outer_rate_mb_s + (p.inner_rate_mb_s - p.outer_rate_mb_s) * inwards) * 1e-3
        })
        .collect();
    let tracks: Vec<u64> = rates.iter().map(|rate| (rate * revolution_ns) as u64).collect();
    let surfaces = u64::from(p.surfaces);
    let per_zone = p.capacity_bytes.div_ceil(tracks.iter().sum::<u64>() * surfaces);
    let mut start = 0;
    let mut zones = Vec::new();
    for (zone, (&track_bytes, &rate)) in (0u64..).zip(tracks.iter().zip(&rates)) {
        zones.push(Zone { start, first_cylinder: zone * per_zone, track_bytes, rate });
        start += track_bytes * surfaces * per_zone;
    }
    // One step of splitmix64 spreads small seeds over the revolution.
    let mixed = (seed.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let phase_ns = (mixed ^ mixed >> 27) % revolution_ns as u64;
    let cylinders = per_zone * u64::from(p.zones);
    Ok(Box::new(Hdd { p, zones, cylinders, revolution_ns, phase_ns, at: 0, last: Op::Flush, end_ns: 0, ahead: 0 }))
}

impl Hdd {
    fn zone(&self, address: u64) -> &Zone {
        &self.zones[self.zones.partition_point(|zone| zone.start <= address) - 1]
    }

    fn cylinder(&self, address: u64) -> u64 {
        let zone = self.zone(address);
        zone.first_cylinder + (address - zone.start) / (zone.track_bytes * u64::from(self.p.surfaces))
    }

    fn seek_ns(&self, from: u64, to: u64) -> f64 {
        let distance = self.cylinder(from).abs_diff(self.cylinder(to)) as f64;
        let (shortest, average, full) =
            (self.p.seek_track_to_track_ms, self.p.seek_average_ms, self.p.seek_full_stroke_ms);
        let third = (self.cylinders as f64 / 3.0).max(2.0);
        let ms = if distance == 0.0 {
            0.0
        } else if distance <= third {
            shortest + (average - shortest) * (distance.sqrt() - 1.0) / (third.sqrt() - 1.0)
        } else {
            average + (full - average) * (distance - third) / (self.cylinders as f64 - third).max(1.0)
        };
        ms * 1e6
    }

    fn rotation_ns(&self, at_ns: f64, address: u64) -> f64 {
        let zone = self.zone(address);
        let wanted = ((address - zone.start) % zone.track_bytes) as f64 / zone.track_bytes as f64 * self.revolution_ns;
        (wanted - at_ns - self.phase_ns as f64).rem_euclid(self.revolution_ns)
    }

    fn continues(&self, command: Command) -> bool {
        command.op == self.last && command.op != Op::Flush && command.address == self.at
    }

    /// Seek and rotation of a command that starts at `now_ns`.
    fn positioning(&self, now_ns: u64, command: Command) -> (f64, f64) {
        if command.op == Op::Flush || self.continues(command) {
            return (0.0, 0.0);
        }
        let seek = self.seek_ns(self.at, command.address);
        let rotation = self.rotation_ns(now_ns as f64 + self.p.overhead_us * 1e3 + seek, command.address);
        let share = if command.op == Op::Write { self.p.write_positioning_share } else { 1.0 };
        (seek * share, rotation * share)
    }

    fn wrapped(&self, command: Command) -> Command {
        Command { address: command.address % self.p.capacity_bytes, ..command }
    }
}

impl Device for Hdd {
    fn capacity_bytes(&self) -> u64 {
        self.p.capacity_bytes
    }

    fn pick(&self, now_ns: u64, pending: &[Pending]) -> usize {
        let age_max_ns = (self.p.queue_age_max_ms * 1e6) as u64;
        if now_ns.saturating_sub(pending[0].arrived_ns) > age_max_ns {
            return 0;
        }
        let cost = |pending: &Pending| {
            let (seek, rotation) = self.positioning(now_ns, self.wrapped(pending.command));
            seek + rotation
        };
        let seen = pending.iter().take(self.p.queue_depth as usize).map(cost).enumerate();
        seen.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |best| best.0)
    }

    fn service(&mut self, now_ns: u64, command: Command) -> Service {
        let command = self.wrapped(command);
        let overhead = self.p.overhead_us * 1e3;
        if command.op == Op::Flush {
            return Service { total_ns: (overhead + self.p.flush_ms * 1e6) as u64, ..Service::default() };
        }
        let (seek, rotation) = self.positioning(now_ns, command);
        let rate = self.zone(command.address).rate;
        let medium = |bytes: u64| bytes as f64 / rate;
        let interface = command.len as f64 / (self.p.interface_rate_mb_s * 1e-3);
        let buffer = u64::from(self.p.stream_buffer_kib) << 10;
        let total = if self.continues(command) {
            // The medium has run on since the last command's end, and does while this one is under way.
            let quiet = now_ns.saturating_sub(self.end_ns) as f64 + overhead;
            let ahead = self.ahead.saturating_add((quiet * rate) as u64).min(buffer);
            let transfer = interface.max(medium(command.len.saturating_sub(ahead)));
            let ran = ahead.saturating_add((transfer * rate) as u64);
            self.ahead = ran.saturating_sub(command.len).min(buffer);
            overhead + transfer
        } else {
            self.ahead = 0;
            overhead + seek + rotation + interface.max(medium(command.len))
        };
        let service = Service {
            total_ns: total as u64,
            seek_ns: seek as u64,
            rotation_ns: rotation as u64,
            distance_bytes: self.at.abs_diff(command.address),
        };
        self.at = command.address.saturating_add(command.len) % self.p.capacity_bytes;
        self.last = command.op;
        self.end_ns = now_ns.saturating_add(service.total_ns);
        service
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn disk(seed: u64) -> Box<dyn Device> {
        crate::model("hdd-7200", seed).unwrap()
    }

    /// Mean time per 8 KB request of one synchronous client in a 1.2 GB file.
    fn mean_ns(op: Op, random: bool) -> f64 {
        let (mut disk, mut now, mut state) = (disk(7), 0, 1u64);
        let requests = 4000;
        for i in 0..requests {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = if random { (state >> 33) % 146_484 } else { i };
            now += disk.service(now, Command { op, address: block * 8192, len: 8192 }).total_ns;
        }
        now as f64 / requests as f64
    }

    #[test]
    fn sequential_against_random_is_as_measured_on_such_disks() {
        let ratio = |op| mean_ns(op, true) / mean_ns(op, false);
        let (read, write) = (ratio(Op::Read), ratio(Op::Write));
        assert!((35.0..45.0).contains(&read), "reads: {read}");
        assert!((15.0..22.0).contains(&write), "writes: {write}");
    }

    #[test]
    fn a_long_stream_runs_at_the_rate_of_its_zone() {
        for (address, rate) in [(0, 125e6), (499_000_000_000, 60e6)] {
            let (mut disk, mut now) = (disk(0), 0);
            for i in 0..100u64 {
                now += disk.service(now, Command { op: Op::Read, address: address + (i << 20), len: 1 << 20 }).total_ns;
            }
            let measured = 100.0 * f64::from(1 << 20) / (now as f64 * 1e-9);
            assert!((measured / rate - 1.0).abs() < 0.05, "{measured} instead of {rate}");
        }
    }

    #[test]
    fn seeks_have_the_given_times() {
        let text = crate::models()[0].text;
        let p: Parameters = toml::from_str(text).unwrap();
        let (mut disk, far) = (disk(0), p.capacity_bytes - 4096);
        disk.service(0, Command { op: Op::Read, address: 0, len: 0 });
        let full = disk.service(1 << 40, Command { op: Op::Read, address: far, len: 4096 });
        let ms = full.seek_ns as f64 / 1e6;
        assert!((ms - p.seek_full_stroke_ms).abs() < 0.5, "{ms}");
        assert_eq!(full.distance_bytes, far);
    }

    #[test]
    fn the_queue_prefers_the_near_but_forgets_nobody() {
        let mut disk = disk(3);
        disk.service(0, Command { op: Op::Read, address: 0, len: 4096 });
        let pending =
            |address, arrived_ns| Pending { command: Command { op: Op::Read, address, len: 4096 }, arrived_ns };
        let queue = [pending(400_000_000_000, 0), pending(4096, 0)];
        assert_eq!(disk.pick(1_000_000, &queue), 1, "the stream goes on");
        assert_eq!(disk.pick(300_000_000, &queue), 0, "too old to be passed over");
    }

    proptest! {
        #[test]
        fn longer_takes_no_less(seed: u64, address in 0u64..500_000_000_000, a in 0u64..1 << 24, b in 0u64..1 << 24, follow: bool, write: bool) {
            let op = if write { Op::Write } else { Op::Read };
            let time = |len| {
                let mut disk = disk(seed);
                let end = disk.service(0, Command { op, address, len: 65_536 }).total_ns;
                let next = if follow { address + 65_536 } else { address / 2 };
                disk.service(end + 1000, Command { op, address: next, len }).total_ns
            };
            prop_assert!(time(a.min(b)) <= time(a.max(b)));
        }

        #[test]
        fn same_seed_same_times(seed: u64, commands in proptest::collection::vec((0u64..500_000_000_000, 0u64..1 << 20), 1..20)) {
            let run = || {
                let (mut disk, mut now) = (disk(seed), 0);
                commands.iter().map(|&(address, len)| {
                    let service = disk.service(now, Command { op: Op::Read, address, len });
                    now += service.total_ns;
                    service
                }).collect::<Vec<_>>()
            };
            let services = run();
            for service in &services {
                prop_assert!(service.total_ns >= 110_000 + service.seek_ns + service.rotation_ns);
                prop_assert!(service.rotation_ns < 8_333_334 && service.seek_ns <= 18_000_000);
            }
            prop_assert_eq!(services, run());
        }
    }
}
