//! RAID-0: chunks of the address space in turn on several equal members.
//!
//! A command is split into one command for each member that holds a part of it (the parts on one member follow each other
//! there, so they are one), and ends when the last of them does. The controller takes a fixed time for each command.
//!
//! A member that serves one command at a time makes later ones wait, and the time of a command includes that. The array
//! takes as many commands at once as its members together. [`Device::pick`] prefers commands for members that are free
//! and lets such a member choose among its own; a member never chooses again among commands that were given to it.

use serde::Deserialize;

use crate::parameter::{check, mix};
use crate::{Command, Device, Op, Pending, Service};

/// Members are looked at for each command.
const MEMBERS_MAX: u32 = 64;
/// Commands among which a member may choose.
const SEEN_MAX: usize = 64;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "kind")]
    _kind: String,
    members: u32,
    chunk_kib: u32,
    overhead_us: f64,
    member: toml::Table,
}

struct Member {
    device: Box<dyn Device>,
    /// When it has done what it was given, if it does one thing at a time.
    free_ns: u64,
}

struct Raid0 {
    members: Vec<Member>,
    chunk: u64,
    overhead_ns: u64,
    capacity: u64,
    /// Each member does one thing at a time.
    serial: bool,
    at: u64,
}

/// The row in the table of kinds.
pub(crate) fn build(text: &str, seed: u64) -> Result<Box<dyn Device>, String> {
    let p: Parameters = toml::from_str(text).map_err(|error| error.to_string())?;
    check(&[
        ("members", p.members.into(), 1.0, MEMBERS_MAX.into()),
        ("chunk_kib", p.chunk_kib.into(), 1.0, 1_048_576.0),
        ("overhead_us", p.overhead_us, 0.0, 1e6),
    ])?;
    if p.member.get("kind").and_then(toml::Value::as_str) == Some("raid0") {
        return Err("member: the members of an array cannot be arrays".to_owned());
    }
    let member = toml::to_string(&p.member).map_err(|error| format!("member: {error}"))?;
    let members: Vec<Member> = (0..u64::from(p.members))
        .map(|place| {
            let device = crate::models::build(&member, mix(seed ^ place << 32)).map_err(|e| format!("member: {e}"))?;
            Ok(Member { device, free_ns: 0 })
        })
        .collect::<Result<_, String>>()?;
    let chunk = u64::from(p.chunk_kib) << 10;
    let each = members[0].device.capacity_bytes() / chunk * chunk;
    if each == 0 {
        return Err(format!("chunk_kib is {}, more than a member holds", p.chunk_kib));
    }
    let capacity = each.checked_mul(u64::from(p.members)).ok_or("members: together they hold too much")?;
    let serial = members[0].device.lanes() == 1;
    Ok(Box::new(Raid0 { members, chunk, overhead_ns: (p.overhead_us * 1e3) as u64, capacity, serial, at: 0 }))
}

impl Raid0 {
    /// Bytes before `address` that lie on the member in this place.
    fn before(&self, place: u64, address: u64) -> u64 {
        let row = self.chunk * self.members.len() as u64;
        let in_row = address % row;
        address / row * self.chunk + in_row.saturating_sub(place * self.chunk).min(self.chunk)
    }

    /// The member that holds a byte, and where there.
    fn locate(&self, address: u64) -> (usize, u64) {
        let chunk = address / self.chunk;
        let members = self.members.len() as u64;
        let row = chunk / members;
        ((chunk - row * members) as usize, row * self.chunk + (address - chunk * self.chunk))
    }

    fn wrapped(&self, command: Command) -> (u64, u64) {
        let inside = command.address < self.capacity;
        let start = if inside { command.address } else { command.address % self.capacity };
        (start, start.saturating_add(command.len))
    }

    /// The member's part of a command.
    fn part(&self, place: usize, command: Command) -> Command {
        let (start, end) = self.wrapped(command);
        let (from, to) = (self.before(place as u64, start), self.before(place as u64, end));
        Command { op: command.op, address: from, len: to - from }
    }

    fn member_of(&self, command: Command) -> usize {
        self.locate(self.wrapped(command).0).0
    }

    fn give(&mut self, place: usize, now_ns: u64, part: Command) -> Service {
        let member = &mut self.members[place];
        let start = if self.serial { now_ns.max(member.free_ns) } else { now_ns };
        let service = member.device.service(start, part);
        let end = start.saturating_add(service.total_ns);
        member.free_ns = end;
        Service { total_ns: end - now_ns, ..service }
    }
}

impl Device for Raid0 {
    fn capacity_bytes(&self) -> u64 {
        self.capacity
    }

    fn lanes(&self) -> u32 {
        self.members.iter().map(|member| member.device.lanes()).sum()
    }

    fn rotates(&self) -> bool {
        self.members[0].device.rotates()
    }

    fn pick(&self, now_ns: u64, pending: &[Pending]) -> usize {
        if pending.len() == 1 || !self.serial {
            return 0;
        }
        let seen = &pending[..pending.len().min(SEEN_MAX)];
        let wait = |p: &Pending| self.members[self.member_of(p.command)].free_ns.saturating_sub(now_ns);
        let first = seen.iter().enumerate().min_by_key(|(_, p)| wait(p)).map_or(0, |(at, _)| at);
        let place = self.member_of(seen[first].command);
        let own = |(at, p): (usize, &Pending)| {
            let part = Pending { command: self.part(place, p.command), ..*p };
            (self.member_of(p.command) == place).then_some((at, part))
        };
        let (indices, parts): (Vec<usize>, Vec<Pending>) = seen.iter().enumerate().filter_map(own).unzip();
        let member = &self.members[place];
        indices[member.device.pick(now_ns.max(member.free_ns), &parts)]
    }

    fn drop_read_cache(&mut self) {
        self.members.iter_mut().for_each(|member| member.device.drop_read_cache());
    }

    fn service(&mut self, now_ns: u64, command: Command) -> Service {
        let start = now_ns.saturating_add(self.overhead_ns);
        let (address, end) = self.wrapped(command);
        let distance_bytes = self.at.abs_diff(address);
        if command.op != Op::Flush {
            self.at = end;
            let (place, inner) = self.locate(address);
            if address % self.chunk + command.len <= self.chunk {
                let service = self.give(place, start, Command { address: inner, ..command });
                let total_ns = service.total_ns.saturating_add(self.overhead_ns);
                return Service { total_ns, distance_bytes, ..service };
            }
        }
        let mut slowest = Service::default();
        for place in 0..self.members.len() {
            let part = match command.op {
                Op::Flush => command,
                _ => self.part(place, command),
            };
            if part.len == 0 && command.op != Op::Flush {
                continue;
            }
            let service = self.give(place, start, part);
            if service.total_ns >= slowest.total_ns {
                slowest = service;
            }
        }
        Service { total_ns: slowest.total_ns.saturating_add(self.overhead_ns), distance_bytes, ..slowest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ARRAY: &str = "kind = 'raid0'\nmembers = 3\nchunk_kib = 64\noverhead_us = 10.0\n[member]\n";

    fn array(member: &str) -> Box<dyn Device> {
        build(&format!("{ARRAY}{member}"), 1).unwrap()
    }

    fn null() -> Box<dyn Device> {
        array("kind = 'null'\ncapacity_bytes = 1_000_000_000\nlatency_us = 5.0\nqueue_depth = 1\n")
    }

    fn read(address: u64, len: u64) -> Command {
        Command { op: Op::Read, address, len }
    }

    #[test]
    fn members_work_at_the_same_time_and_each_one_at_a_time() {
        let mut array = null();
        assert_eq!(array.lanes(), 3);
        assert_eq!(array.service(0, read(0, 3 * 65_536)).total_ns, 15_000, "three members, at once");
        assert_eq!(array.service(15_000, read(0, 4096)).total_ns, 15_000);
        assert_eq!(array.service(15_000, read(4096, 4096)).total_ns, 20_000, "waits for the one before");
        assert_eq!(array.service(15_000, read(65_536, 4096)).total_ns, 15_000, "another member");
    }

    #[test]
    fn a_free_member_is_preferred() {
        let mut array = null();
        array.service(0, read(0, 4096));
        let pending = |address| Pending { command: read(address, 4096), arrived_ns: 0 };
        assert_eq!(array.pick(1, &[pending(8192), pending(65_536)]), 1);
    }

    #[test]
    fn two_disks_stream_twice_as_fast_as_one() {
        let disk = crate::models()[0].text;
        let rate = |mut device: Box<dyn Device>| {
            let now = (0..100).fold(0, |now, i| now + device.service(now, read(i << 20, 1 << 20)).total_ns);
            100.0 / now as f64
        };
        let table: toml::Table = disk.parse().unwrap();
        let text = format!("{ARRAY}{table}").replace("members = 3", "members = 2");
        let (one, two) = (rate(crate::parse("one", disk, 1).unwrap()), rate(build(&text, 1).unwrap()));
        assert!((1.8..2.05).contains(&(two / one)), "{}", two / one);
    }

    #[test]
    fn arrays_of_arrays_are_refused() {
        let text = format!("{ARRAY}kind = 'raid0'\n");
        assert!(build(&text, 0).err().unwrap().contains("cannot be arrays"));
        assert!(build(&format!("{ARRAY}kind = 'tape'\n"), 0).err().unwrap().contains("member: unknown kind"));
    }

    proptest! {
        /// The parts of a command add up to it, and those of neighbours touch.
        #[test]
        fn nothing_is_lost_between_members(start in 0u64..1 << 28, len in 1u64..1 << 22, more in 0u64..1 << 20) {
            let members = (0..3)
                .map(|_| Member { device: crate::model("hdd-7200", 0).unwrap(), free_ns: 0 }).collect();
            let array = Raid0 { members, chunk: 4096 * 5, overhead_ns: 0, capacity: 1 << 30, serial: true, at: 0 };
            let parts: Vec<_> = (0..3).map(|place| array.part(place, read(start, len))).collect();
            prop_assert_eq!(parts.iter().map(|part| part.len).sum::<u64>(), len);
            for (place, part) in parts.iter().enumerate() {
                let next = array.part(place, read(start + len, more));
                prop_assert_eq!(part.address + part.len, next.address);
            }
        }
    }
}
