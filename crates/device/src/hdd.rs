//! A hard disk: moving arm, turning platters, zones, caches.
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
//! * **Read-ahead**: after a read the disk reads on, also while the host is quiet, as far as a segment of its buffer
//!   goes. A read that continues so needs neither seek nor rotation, and takes as long as the interface needs, or the
//!   medium if that has not kept up. Of the last streams, as many as there are segments, what was read stays in the
//!   buffer; the oldest goes first.
//! * **Write cache**: writes are kept back, as many as there are entries, if they fit. When there is no room for another,
//!   the one that the arm reaches first is written, and only then the new one is accepted; a quiet host lets all be
//!   written. A write that continues a kept one makes the arm go there and write behind the stream.
//!
//! **Queue** (native command queueing): of the oldest `queue_depth` commands the one with the shortest positioning time,
//! unless the oldest has waited too long.
//!
//! **What firmware does is not in data sheets.** Two parameters stand for what differs between drives and is not published; the
//! range is what is known of drives, and a conclusion should hold over it (scenarios can draw them from their seed):
//!
//! | parameter | shipped | range | what is known |
//! |---|---|---|---|
//! | `read_on_arrival` | 0 | 0 to 1 | Ruemmler and Wilkes (1994) describe disks that begin to read as soon as the arm is on the track and keep what passes, and others that do not; which share is kept is not published |
//! | `queue_age_max_ms` | 200 | 20 to 2000 | SATA's command queueing leaves it to the drive how long a command is passed over; drives time out in fractions of a second to seconds |
//!
//! Deviations: the time to change tracks is part of the sustained rates; reads do not find what is in the
//! write cache; a write drops the read segments that it overlaps.

use serde::Deserialize;

use crate::parameter::{check, mix};
use crate::{Command, Device, Op, Pending, Service};

/// How much later, in revolutions, a track begins than the one before it: as long as changing tracks takes.
const SKEW: f64 = 0.13;

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
    overhead_read_us: f64,
    overhead_write_us: f64,
    read_ahead_kib: u32,
    read_ahead_segments: u32,
    write_cache_kib: u32,
    write_cache_entries: u32,
    write_back_after_ms: f64,
    queue_depth: u32,
    queue_age_max_ms: f64,
    /// Share of what passes the head before the first byte of a read comes round that the buffer keeps.
    #[serde(default)]
    read_on_arrival: f64,
}

struct Zone {
    start: u64,
    end: u64,
    first_cylinder: f64,
    /// In a byte.
    cylinders: f64,
    tracks: f64,
    /// Of the medium, in bytes per nanosecond.
    rate: f64,
}

/// A place under the arm.
#[derive(Clone, Copy, Default)]
struct Place {
    cylinder: f64,
    /// Of a revolution, in nanoseconds.
    angle_ns: f64,
    rate: f64,
}

/// A range that the buffer holds, read or to be written.
#[derive(Clone, Copy, Default)]
struct Segment {
    start: u64,
    end: u64,
    /// Where the host's last read in it ended.
    asked: u64,
    at: Place,
}

/// What the mechanism does by itself between commands.
#[derive(Clone, Copy, PartialEq)]
enum Ongoing {
    Nothing,
    /// Reads on behind the segment in this place.
    Reading(usize),
    /// Writes what the stream has left in the buffer.
    Writing,
}

struct Hdd {
    p: Parameters,
    zones: Vec<Zone>,
    seek: Seek,
    revolution_ns: f64,
    /// Revolutions in a nanosecond.
    turns: f64,
    /// Nanoseconds for each byte.
    interface_byte_ns: f64,
    phase_ns: f64,
    /// Where the arm is.
    arm: f64,
    /// When the mechanism has done what it began.
    free_ns: f64,
    ongoing: Ongoing,
    /// Up to when the ongoing work is accounted for.
    since_ns: f64,
    /// Read segments, and which goes next.
    segments: Vec<Segment>,
    next_segment: usize,
    /// Writes kept back.
    cache: Vec<Segment>,
    cached_bytes: u64,
    /// Of the write stream: where it ends, and how many bytes the medium is behind.
    stream_end: u64,
    behind: f64,
    /// Where and when the last command ended.
    at: u64,
    end_ns: f64,
}

/// Times of the arm, in nanoseconds over cylinders.
struct Seek {
    constant: f64,
    root: f64,
    third: f64,
    average: f64,
    slope: f64,
}

impl Seek {
    fn new(p: &Parameters, cylinders: f64) -> Seek {
        let (shortest, average) = (p.seek_track_to_track_ms * 1e6, p.seek_average_ms * 1e6);
        let third = (cylinders / 3.0).max(2.0);
        let root = (average - shortest) / (third.sqrt() - 1.0);
        let slope = (p.seek_full_stroke_ms * 1e6 - average) / (cylinders - third).max(1.0);
        Seek { constant: shortest - root, root, third, average, slope }
    }

    fn ns(&self, cylinders: f64) -> f64 {
        if cylinders == 0.0 {
            0.0
        } else if cylinders <= self.third {
            self.constant + self.root * cylinders.sqrt()
        } else {
            self.average + self.slope * (cylinders - self.third)
        }
    }
}

/// The row in the table of kinds.
pub(crate) fn build(text: &str, seed: u64) -> Result<Box<dyn Device>, String> {
    let p: Parameters = toml::from_str(text).map_err(|error| error.to_string())?;
    check(&[
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
        ("overhead_read_us", p.overhead_read_us, 0.0, 1e6),
        ("overhead_write_us", p.overhead_write_us, 0.0, 1e6),
        ("read_ahead_kib", p.read_ahead_kib.into(), 16.0, 1_048_576.0),
        ("read_ahead_segments", p.read_ahead_segments.into(), 1.0, 64.0),
        ("write_cache_kib", p.write_cache_kib.into(), 0.0, 1_048_576.0),
        ("write_cache_entries", p.write_cache_entries.into(), 0.0, 64.0),
        ("write_back_after_ms", p.write_back_after_ms, 0.0, 1e6),
        ("queue_depth", p.queue_depth.into(), 1.0, 65_536.0),
        ("queue_age_max_ms", p.queue_age_max_ms, 0.0, 1e6),
        ("read_on_arrival", p.read_on_arrival, 0.0, 1.0),
    ])?;
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
    for (zone, (&track, &rate)) in (0u64..).zip(tracks.iter().zip(&rates)) {
        let end = start + track * surfaces * per_zone;
        let cylinders = 1.0 / (track * surfaces) as f64;
        let first_cylinder = (zone * per_zone) as f64;
        zones.push(Zone { start, end, first_cylinder, cylinders, tracks: 1.0 / track as f64, rate });
        start = end;
    }
    let seek = Seek::new(&p, (per_zone * u64::from(p.zones)) as f64);
    let phase_ns = (mix(seed) % revolution_ns as u64) as f64;
    let segments = vec![Segment::default(); p.read_ahead_segments as usize];
    let interface_rate = p.interface_rate_mb_s;
    Ok(Box::new(Hdd {
        p,
        zones,
        seek,
        revolution_ns,
        turns: 1.0 / revolution_ns,
        interface_byte_ns: 1e3 / interface_rate,
        phase_ns,
        arm: 0.0,
        free_ns: 0.0,
        ongoing: Ongoing::Nothing,
        since_ns: 0.0,
        segments,
        next_segment: 0,
        cache: Vec::new(),
        cached_bytes: 0,
        stream_end: u64::MAX,
        behind: 0.0,
        at: 0,
        end_ns: 0.0,
    }))
}

/// Without what is behind the point; much faster than `floor` and `trunc` are on processors in general.
fn whole(value: f64) -> f64 {
    value as i64 as f64
}

impl Hdd {
    fn zone(&self, address: u64) -> &Zone {
        // Most files lie in one zone; addresses past the end (of a command that wraps) are in the last.
        let first = &self.zones[0];
        if address < first.end {
            return first;
        }
        let after = self.zones.partition_point(|zone| zone.start <= address);
        &self.zones[after - 1]
    }

    fn place(&self, address: u64) -> Place {
        let zone = self.zone(address);
        let inner = (address - zone.start) as f64;
        let cylinder = zone.first_cylinder + whole(inner * zone.cylinders);
        let tracks = inner * zone.tracks;
        let turns = tracks + whole(tracks) * SKEW;
        Place { cylinder, angle_ns: (turns - whole(turns)) * self.revolution_ns, rate: zone.rate }
    }

    /// Seek and rotation of an operation at `to` that begins at `at_ns`.
    fn positioning(&self, at_ns: f64, to: Place) -> (f64, f64) {
        let seek = self.seek.ns((to.cylinder - self.arm).abs());
        // Negative: the time since the place passed by.
        let turns = (to.angle_ns - self.revolution_ns - at_ns - seek - self.phase_ns) * self.turns;
        (seek, (turns - whole(turns) + 1.0) * self.revolution_ns)
    }

    /// The arm goes there and moves so many bytes, from when it is free; returns seek and rotation.
    fn work(&mut self, from_ns: f64, to: Place, bytes: f64) -> (f64, f64) {
        let begin = from_ns.max(self.free_ns);
        let (seek, rotation) = self.positioning(begin, to);
        self.free_ns = begin + seek + rotation + bytes / to.rate;
        self.arm = to.cylinder;
        (seek, rotation)
    }

    /// Brings what the mechanism does by itself up to this time.
    fn catch_up(&mut self, now_ns: f64) {
        let quiet = (now_ns - self.since_ns).max(0.0);
        match self.ongoing {
            Ongoing::Nothing => {}
            Ongoing::Reading(place) => {
                let ahead = u64::from(self.p.read_ahead_kib) << 10;
                let segment = &mut self.segments[place];
                let ran = (quiet * segment.at.rate) as u64;
                let limit = segment.asked.saturating_add(ahead).max(segment.end);
                segment.end = segment.end.saturating_add(ran).min(limit);
                // The buffer keeps as much of what was read as it reads ahead.
                segment.start = segment.start.max(segment.asked.saturating_sub(ahead));
                self.arm = segment.at.cylinder;
            }
            Ongoing::Writing => self.behind = (self.behind - quiet * self.zone(self.stream_end).rate).max(0.0),
        }
        self.since_ns = self.since_ns.max(now_ns);
    }

    /// The mechanism is needed elsewhere; it first writes what a write stream has left.
    fn interrupt(&mut self) {
        if self.ongoing == Ongoing::Writing {
            self.free_ns = self.free_ns.max(self.since_ns) + self.behind / self.zone(self.stream_end).rate;
        }
        self.behind = 0.0;
        self.stream_end = u64::MAX;
        self.ongoing = Ongoing::Nothing;
    }

    /// Writes the kept write that the arm reaches first; returns its seek and rotation.
    fn write_back(&mut self, from_ns: f64) -> (f64, f64) {
        let begin = from_ns.max(self.free_ns);
        let cost = |kept: &Segment| {
            let (seek, rotation) = self.positioning(begin, kept.at);
            seek + rotation
        };
        let costs = self.cache.iter().map(cost).enumerate();
        let Some((first, _)) = costs.min_by(|a, b| a.1.total_cmp(&b.1)) else { return (0.0, 0.0) };
        let kept = self.cache.swap_remove(first);
        let bytes = kept.end - kept.start;
        self.cached_bytes -= bytes;
        self.work(begin, kept.at, bytes as f64)
    }

    /// While the host was quiet, kept writes have gone to the medium.
    fn rest(&mut self, now_ns: f64) {
        let mut at = self.end_ns + self.p.write_back_after_ms * 1e6;
        if self.cache.is_empty() || at >= now_ns {
            return;
        }
        self.catch_up(at);
        self.interrupt();
        while !self.cache.is_empty() && at < now_ns {
            self.write_back(at);
            at = self.free_ns;
        }
    }

    fn interface_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * self.interface_byte_ns
    }

    fn read(&mut self, begin_ns: f64, address: u64, len: u64) -> Timing {
        self.catch_up(begin_ns);
        let end = address.saturating_add(len);
        let interface = self.interface_ns(len);
        let holds = |segment: &Segment| segment.start <= address && address <= segment.end && segment.end > 0;
        let Some(place) = self.segments.iter().position(holds) else {
            return self.read_anew(begin_ns, address, len);
        };
        let have = self.segments[place].end;
        if self.ongoing == Ongoing::Reading(place) {
            // The medium runs on while this read is under way.
            let rate = self.segments[place].at.rate;
            let missing = end.saturating_sub(have) as f64 / rate;
            let transfer = interface.max(missing);
            let at = self.place(end);
            let segment = &mut self.segments[place];
            (segment.asked, segment.at) = (segment.asked.max(end), at);
            self.catch_up(begin_ns + transfer);
            self.segments[place].end = self.segments[place].end.max(end);
            return Timing { total: transfer, ..Timing::default() };
        }
        if end <= have {
            return Timing { total: interface, ..Timing::default() };
        }
        self.interrupt();
        let at = self.place(have);
        let timing = self.move_bytes(begin_ns, at, end - have, interface);
        let segment = &mut self.segments[place];
        (segment.end, segment.asked, segment.at) = (end, end, at);
        self.ongoing = Ongoing::Reading(place);
        timing
    }

    /// Reads what no segment holds, into the oldest.
    fn read_anew(&mut self, begin_ns: f64, address: u64, len: u64) -> Timing {
        self.interrupt();
        let at = self.place(address);
        let timing = self.move_bytes(begin_ns, at, len, self.interface_ns(len));
        let place = self.next_segment;
        self.next_segment = (place + 1) % self.segments.len();
        let end = address.saturating_add(len);
        let start = address - self.passed(address, timing.rotation, at.rate);
        self.segments[place] = Segment { start, end, asked: end, at };
        self.ongoing = Ongoing::Reading(place);
        timing
    }

    /// Bytes in front of an address, on its track, that passed the head in that time and are kept.
    fn passed(&self, address: u64, rotation_ns: f64, rate: f64) -> u64 {
        let keeps = rotation_ns * rate * self.p.read_on_arrival;
        if keeps < 1.0 {
            return 0;
        }
        let zone = self.zone(address);
        let tracks = (address - zone.start) as f64 * zone.tracks;
        let on_track = (tracks - whole(tracks)) / zone.tracks;
        keeps.min(on_track).min(address as f64) as u64
    }

    /// Moves bytes between the medium and the host, which waits.
    fn move_bytes(&mut self, begin_ns: f64, at: Place, bytes: u64, interface: f64) -> Timing {
        let wait = (self.free_ns - begin_ns).max(0.0);
        let (seek, rotation) = self.work(begin_ns, at, 0.0);
        let transfer = interface.max(bytes as f64 / at.rate);
        self.free_ns += transfer;
        self.since_ns = self.free_ns;
        Timing { total: wait + seek + rotation + transfer, seek, rotation }
    }

    fn write(&mut self, begin_ns: f64, address: u64, len: u64) -> Timing {
        self.catch_up(begin_ns);
        let end = address.saturating_add(len);
        for segment in &mut self.segments {
            if segment.start < end && address < segment.end {
                *segment = Segment::default();
            }
        }
        if let Ongoing::Reading(place) = self.ongoing
            && self.segments[place].end == 0
        {
            self.ongoing = Ongoing::Nothing;
        }
        if self.ongoing == Ongoing::Writing && self.stream_end == address {
            return self.write_behind(begin_ns, end, len);
        }
        if let Some(kept) = self.cache.iter().position(|kept| kept.end == address) {
            let kept = self.cache.swap_remove(kept);
            let bytes = kept.end - kept.start;
            self.cached_bytes -= bytes;
            self.interrupt();
            self.work(begin_ns, kept.at, 0.0);
            (self.ongoing, self.since_ns, self.behind) = (Ongoing::Writing, self.free_ns, bytes as f64);
            return self.write_behind(begin_ns, end, len);
        }
        if self.p.write_cache_entries == 0 || len > u64::from(self.p.write_cache_kib) << 10 {
            return self.write_through(begin_ns, address, len);
        }
        self.keep(begin_ns, address, len)
    }

    /// The stream goes on: the buffer takes the bytes as far as it has room.
    fn write_behind(&mut self, begin_ns: f64, end: u64, len: u64) -> Timing {
        let rate = self.zone(end).rate;
        let room = (u64::from(self.p.write_cache_kib) << 10) as f64;
        // Before the arm has arrived nothing gets away: until then it writes what other streams have left in the buffer.
        let owed = (self.since_ns - begin_ns).max(0.0) * rate;
        let excess = (self.behind + owed + len as f64 - room).max(0.0) / rate;
        let transfer = self.interface_ns(len).max(excess);
        self.behind += len as f64;
        self.stream_end = end;
        self.catch_up(begin_ns + transfer);
        self.arm = self.place(end).cylinder;
        Timing { total: transfer, ..Timing::default() }
    }

    /// Keeps a write, once there is room.
    fn keep(&mut self, begin_ns: f64, address: u64, len: u64) -> Timing {
        let room = u64::from(self.p.write_cache_kib) << 10;
        let entries = self.p.write_cache_entries as usize;
        let full = |disk: &Hdd| disk.cache.len() >= entries || disk.cached_bytes + len > room;
        let mut timing = Timing::default();
        if self.ongoing == Ongoing::Writing {
            self.interrupt();
        }
        while full(self) && !self.cache.is_empty() {
            self.ongoing = Ongoing::Nothing;
            let (seek, rotation) = self.write_back(begin_ns);
            timing.seek += seek;
            timing.rotation += rotation;
            timing.total = (self.free_ns - begin_ns).max(0.0);
        }
        let end = address.saturating_add(len);
        self.cache.push(Segment { start: address, end, asked: 0, at: self.place(address) });
        self.cached_bytes += len;
        // The bytes come while the arm is at work.
        timing.total = timing.total.max(self.interface_ns(len));
        timing
    }

    /// Writes what the cache does not take. What it can hold of it is written behind.
    fn write_through(&mut self, begin_ns: f64, address: u64, len: u64) -> Timing {
        self.interrupt();
        let mut waited = Timing::default();
        while !self.cache.is_empty() {
            let (seek, rotation) = self.write_back(begin_ns);
            (waited.seek, waited.rotation) = (waited.seek + seek, waited.rotation + rotation);
        }
        let buffered = if self.p.write_cache_entries == 0 { 0 } else { u64::from(self.p.write_cache_kib) << 10 };
        let at = self.place(address);
        let own = self.move_bytes(begin_ns, at, len - buffered.min(len), self.interface_ns(len));
        let timing = Timing { seek: own.seek + waited.seek, rotation: own.rotation + waited.rotation, ..own };
        if buffered > 0 {
            self.ongoing = Ongoing::Writing;
            self.stream_end = address.saturating_add(len);
            self.behind = buffered as f64;
        }
        timing
    }

    /// Writes everything that is kept.
    fn flush(&mut self, begin_ns: f64) -> Timing {
        self.catch_up(begin_ns);
        self.interrupt();
        while !self.cache.is_empty() {
            self.write_back(begin_ns);
        }
        Timing { total: (self.free_ns - begin_ns).max(0.0), ..Timing::default() }
    }

    fn wrapped(&self, command: Command) -> Command {
        // Nearly always it is inside, and dividing is slow.
        let inside = command.address < self.p.capacity_bytes;
        let address = if inside { command.address } else { command.address % self.p.capacity_bytes };
        Command { address, ..command }
    }

    /// What the elevator goes by: how long until the medium could begin.
    fn distance_ns(&self, now_ns: f64, command: Command) -> f64 {
        let command = self.wrapped(command);
        let follows = match (command.op, self.ongoing) {
            (Op::Flush, _) => true,
            (Op::Read, Ongoing::Reading(place)) => {
                let segment = &self.segments[place];
                segment.start <= command.address && command.address <= segment.end
            }
            (Op::Write, Ongoing::Writing) => self.stream_end == command.address,
            _ => false,
        };
        if follows {
            return 0.0;
        }
        let overhead = self.overhead_ns(command.op);
        let (seek, rotation) = self.positioning(now_ns.max(self.free_ns) + overhead, self.place(command.address));
        seek + rotation
    }

    fn overhead_ns(&self, op: Op) -> f64 {
        match op {
            Op::Read => self.p.overhead_read_us * 1e3,
            Op::Write | Op::Flush => self.p.overhead_write_us * 1e3,
        }
    }
}

/// Where a command's time goes, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Timing {
    total: f64,
    seek: f64,
    rotation: f64,
}

impl Device for Hdd {
    fn capacity_bytes(&self) -> u64 {
        self.p.capacity_bytes
    }

    fn rotates(&self) -> bool {
        true
    }

    fn pick(&self, now_ns: u64, pending: &[Pending]) -> usize {
        let age_max_ns = (self.p.queue_age_max_ms * 1e6) as u64;
        if pending.len() == 1 || now_ns.saturating_sub(pending[0].arrived_ns) > age_max_ns {
            return 0;
        }
        let cost = |pending: &Pending| self.distance_ns(now_ns as f64, pending.command);
        let seen = pending.iter().take(self.p.queue_depth as usize).map(cost).enumerate();
        seen.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |best| best.0)
    }

    fn drop_read_cache(&mut self) {
        self.segments.fill(Segment::default());
        if let Ongoing::Reading(_) = self.ongoing {
            self.ongoing = Ongoing::Nothing;
        }
    }

    fn service(&mut self, now_ns: u64, command: Command) -> Service {
        let command = self.wrapped(command);
        let overhead = self.overhead_ns(command.op);
        let begin = now_ns as f64 + overhead;
        self.rest(now_ns as f64);
        let timing = match command.op {
            Op::Read => self.read(begin, command.address, command.len),
            Op::Write => self.write(begin, command.address, command.len),
            Op::Flush => self.flush(begin),
        };
        let service = Service {
            total_ns: (overhead + timing.total) as u64,
            seek_ns: timing.seek as u64,
            rotation_ns: timing.rotation as u64,
            distance_bytes: if command.op == Op::Flush { 0 } else { self.at.abs_diff(command.address) },
        };
        if command.op != Op::Flush {
            self.at = command.address.saturating_add(command.len);
        }
        self.end_ns = begin + timing.total;
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

    #[test]
    fn what_was_read_is_kept_until_it_is_dropped() {
        let mut disk = disk(1);
        let read = Command { op: Op::Read, address: 1 << 30, len: 65_536 };
        let first = disk.service(0, read).total_ns;
        let again = disk.service(1_000_000_000, read).total_ns;
        assert!(again < 1_000_000 && again < first / 5, "{again} {first}");
        disk.drop_read_cache();
        assert!(disk.service(2_000_000_000, read).total_ns > 1_000_000);
    }

    #[test]
    fn the_write_cache_takes_some_writes_at_once_and_a_flush_writes_them() {
        let mut disk = disk(5);
        let write = |i: u64| Command { op: Op::Write, address: i * 100_000_000_000, len: 8192 };
        let mut now = 0;
        for i in 0..4 {
            let service = disk.service(now, write(i));
            assert!(service.total_ns < 300_000 && service.seek_ns == 0, "{service:?}");
            now += service.total_ns;
        }
        let fifth = disk.service(now, write(2));
        assert!(fifth.total_ns > 300_000, "waits for room: {fifth:?}");
        now += fifth.total_ns;
        let flush = disk.service(now, Command { op: Op::Flush, address: 0, len: 0 }).total_ns;
        assert!(flush > 4_000_000, "{flush}");
        now += flush;
        assert!(disk.service(now, Command { op: Op::Flush, address: 0, len: 0 }).total_ns < 1_000_000, "nothing left");
    }

    /// Streams in turns, each as long as the buffer takes it: nothing is ever faster than the medium for long.
    #[test]
    fn streams_of_writes_in_turns_are_no_faster_than_the_medium() {
        let mut disk = disk(1);
        let (mut now, mut bytes) = (0, 0);
        for turn in 0..200_u64 {
            for part in 0..8 {
                let address = (turn % 16) * (128 << 20) + turn / 16 * (4 << 20) + part * (512 << 10);
                now += disk.service(now, Command { op: Op::Write, address, len: 512 << 10 }).total_ns;
                bytes += 512 << 10;
            }
        }
        let rate = bytes as f64 / (now as f64 * 1e-3);
        assert!((60.0..125.0).contains(&rate), "{rate} MB/s");
    }

    #[test]
    fn what_passes_before_a_read_may_be_kept() {
        let hits = |share: f64| {
            let mut disk = crate::model_with("hdd-7200", &[("read_on_arrival".to_owned(), share)], 1).unwrap();
            let (mut now, mut hits) = (0, 0);
            for i in 1..100u64 {
                let read = |address| Command { op: Op::Read, address, len: 4096 };
                let at = i * 1_000_003 * 4096 % 100_000_000_000;
                now += disk.service(now, read(at)).total_ns;
                let before = disk.service(now, read(at - 65_536));
                now += before.total_ns;
                hits += u32::from(before.seek_ns + before.rotation_ns == 0);
            }
            hits
        };
        assert_eq!(hits(0.0), 0);
        assert!((70..=98).contains(&hits(1.0)) && hits(1.0) > hits(0.2), "{} {}", hits(1.0), hits(0.2));
    }

    #[test]
    fn a_quiet_disk_writes_back() {
        let mut disk = disk(5);
        let mut now = 0;
        for i in 0..4u64 {
            let write = Command { op: Op::Write, address: i * 100_000_000_000, len: 8192 };
            now += disk.service(now, write).total_ns;
        }
        now += 1_000_000_000;
        assert!(disk.service(now, Command { op: Op::Flush, address: 0, len: 0 }).total_ns < 1_000_000);
    }

    #[test]
    fn what_was_read_ahead_is_there_also_for_a_stream_that_was_interrupted() {
        let mut disk = disk(2);
        let read = |address| Command { op: Op::Read, address, len: 65_536 };
        let mut now = disk.service(0, read(0)).total_ns;
        now += disk.service(now, read(65_536)).total_ns;
        // The host is quiet, the disk reads on; then somebody else reads elsewhere.
        now += 20_000_000;
        now += disk.service(now, read(400_000_000_000)).total_ns;
        let back = disk.service(now, read(131_072));
        assert!(back.seek_ns == 0 && back.total_ns < 500_000, "{back:?}");
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
