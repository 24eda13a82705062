//! The tier against a model: whatever comes in whatever order, all of it ends, once, and reads find the newest data.

use std::collections::HashMap;

use proptest::prelude::*;

use super::background::Work;
use super::*;
use crate::random::Random;
use sluice_tier::map::Extent;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1024;

/// Who wrote a block last: the block, and the number of the write.
type Data = (u64, u32);

/// Both devices' contents, and what is under way.
struct World {
    tier: Tier,
    now: u64,
    disk: Vec<u32>,
    ssd: HashMap<u64, Data>,
    /// At the device.
    queued: Vec<Queued>,
    /// What the background has read.
    buffer: HashMap<u64, u32>,
    newest: Vec<u32>,
    outstanding: HashMap<u32, Request>,
    ended: u32,
}

struct Request {
    op: Op,
    first: u64,
    blocks: u64,
    /// What has been read.
    found: HashMap<u64, u32>,
}

fn blocks(command: Command) -> Range<u64> {
    command.address / BLOCK..(command.address + command.len) / BLOCK
}

impl World {
    fn new(wanted: &Wanted) -> World {
        World {
            tier: Tier::new(wanted, BLOCKS * BLOCK, 1).unwrap(),
            now: 1,
            disk: vec![0; BLOCKS as usize],
            ssd: HashMap::new(),
            queued: Vec::new(),
            buffer: HashMap::new(),
            newest: vec![0; BLOCKS as usize],
            outstanding: HashMap::new(),
            ended: 0,
        }
    }

    fn on_ssd(&self, command: Command) -> Vec<Data> {
        (0..command.len / BLOCK).map(|block| self.ssd[&(command.address + block * BLOCK)]).collect()
    }

    /// Requests that overlap do not come at the same time: the engine sees to that.
    fn issue(&mut self, number: u32, op: Op, first: u64, blocks: u64) {
        let last = (first + blocks).min(BLOCKS);
        let meets = |other: &Request| other.first < last && first < other.first + other.blocks;
        if self.outstanding.values().any(meets) {
            return;
        }
        let blocks = last - first;
        self.outstanding.insert(number, Request { op, first, blocks, found: HashMap::new() });
        let command = Command { op, address: first * BLOCK, len: blocks * BLOCK };
        let pending = Pending { command, arrived_ns: self.now };
        let owner = Owner::Batch(number);
        self.tier.arrives(self.now, Queued { pending, owner, more: Vec::new(), context: 0, sync: true });
        if op == Op::Write {
            (first..last).for_each(|block| self.newest[block as usize] = number);
            return;
        }
        // What the SSD has is pinned from now on. The first step may be on its way there already.
        let mine = |at: &u32| self.tier.readings[*at].queued.owner == owner;
        let Some(reading) = self.tier.readings.places().find(mine) else { return };
        let begun = self.tier.ios.iter().position(|io| *io == Io::Reading(reading));
        let mut commands: Vec<Command> = begun.map(|at| self.tier.pending[at].command).into_iter().collect();
        let later = self.tier.readings[reading].steps.iter();
        commands.extend(later.filter_map(|step| if let Step::Ssd(command) = step { Some(*command) } else { None }));
        let data: Vec<Data> = commands.into_iter().flat_map(|command| self.on_ssd(command)).collect();
        self.outstanding.get_mut(&number).unwrap().found.extend(data);
    }

    fn of_reading(&self, reading: u32) -> u32 {
        match self.tier.readings[reading].queued.owner {
            Owner::Batch(number) => number,
            other => panic!("{other:?}"),
        }
    }

    /// One of the device's commands is served.
    fn serve_disk(&mut self, which: usize) {
        if self.queued.is_empty() {
            return;
        }
        let queued = self.queued.remove(which % self.queued.len());
        let command = queued.pending.command;
        let (owner, range) = (queued.owner, blocks(command));
        match (owner, command.op) {
            (_, Op::Flush) => {}
            (Owner::Batch(number), Op::Write) => range.for_each(|block| self.disk[block as usize] = number),
            (Owner::Tier(NONE), Op::Write) => {
                for block in range {
                    self.disk[block as usize] = self.buffer[&block];
                }
                self.buffer.clear();
            }
            (Owner::Tier(NONE), Op::Read) => {
                self.buffer = range.map(|block| (block, self.disk[block as usize])).collect();
            }
            (Owner::Batch(_) | Owner::Tier(_), _) => {
                let number = if let Owner::Tier(at) = owner { self.of_reading(at) } else { number_of(owner) };
                for block in range {
                    // What the log has newer is in between.
                    let found = self.disk[block as usize];
                    self.outstanding.get_mut(&number).unwrap().found.entry(block).or_insert(found);
                }
            }
            (Owner::Pages(_), _) => panic!("there is no page cache"),
        }
        self.tier.disk_served(self.now, command, std::iter::once(owner));
    }

    /// The SSD's next command is served.
    fn serve_ssd(&mut self) {
        let Some((number, end)) = self.tier.start_ssd(self.now) else { return };
        self.now = self.now.max(end);
        let (io, command) = self.tier.running[number];
        match io {
            Io::Record => {
                let segment = self.tier.used.back().unwrap().segment;
                for (append, entry) in &self.tier.record {
                    let by = number_of(append.queued.as_ref().unwrap().owner);
                    let start = self.tier.segment_start(segment) + u64::from(entry.at);
                    for block in 0..entry.len / BLOCK {
                        self.ssd.insert(start + block * BLOCK, (entry.offset / BLOCK + block, by));
                    }
                }
            }
            Io::Task if command.op == Op::Read => {
                let data = self.on_ssd(command);
                let Some(Task { work: Work::WriteBack { extents, .. }, .. }) = &self.tier.task else {
                    panic!("no write-back")
                };
                // Of an entry what is still the newest.
                let start = |extent: &Extent| self.tier.segment_start(extent.segment) + u64::from(extent.entry.at);
                let of_entry = extents.iter().filter(|(_, extent)| start(extent) == command.address);
                let parts: Vec<_> = of_entry.map(|(at, extent)| at / BLOCK..(at + extent.len) / BLOCK).collect();
                self.buffer.extend(data.into_iter().filter(|(block, _)| parts.iter().any(|part| part.contains(block))));
            }
            // A slot; other writes are of a sector.
            Io::Task if command.op == Op::Write && command.len >= BLOCK => {
                let first = *self.buffer.keys().min().unwrap();
                for (block, by) in self.buffer.drain() {
                    self.ssd.insert(command.address + (block - first) * BLOCK, (block, by));
                }
            }
            _ => {}
        }
        self.tier.ssd_served(self.now, number);
    }

    fn settle(&mut self) {
        self.tier.turn(self.now);
        self.queued.append(&mut self.tier.to_disk);
        self.queued.append(&mut self.tier.direct);
        while let Some((owner, len)) = self.tier.ended.pop_front() {
            self.end(number_of(owner), len);
        }
    }

    fn end(&mut self, number: u32, len: u64) {
        let request = self.outstanding.remove(&number).expect("it ends once");
        assert_eq!(len, request.blocks * BLOCK);
        self.ended += 1;
        if request.op == Op::Read {
            for block in request.first..request.first + request.blocks {
                assert_eq!(request.found[&block], self.newest[block as usize], "block {block} of read {number}");
            }
        }
    }
}

fn number_of(owner: Owner) -> u32 {
    match owner {
        Owner::Batch(number) => number,
        other => panic!("{other:?}"),
    }
}

/// What the device itself has served for a request ends it.
fn serve_disk(world: &mut World, which: usize) {
    let before: Vec<Owner> = world.queued.iter().map(|queued| queued.owner).collect();
    world.serve_disk(which);
    if let Some(Owner::Batch(number)) =
        before.into_iter().find(|owner| !world.queued.iter().any(|queued| queued.owner == *owner))
    {
        let len = world.outstanding[&number].blocks * BLOCK;
        world.end(number, len);
    }
    world.settle();
}

fn wanted(settings: &str, queue: u64, slots: u64) -> Wanted {
    let settings = settings.split_whitespace().filter_map(|word| word.split_once('='));
    Wanted {
        paper: false,
        settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        device: "ssd-sata".to_owned(),
        queue,
        segment: 64 << 10,
        area: slots * (64 << 10),
        slot: 64 << 10,
    }
}

const SETTINGS: [&str; 4] = [
    "rule=always idle=0s idle-bytes=1 prefetch-count=1",
    "rule=always fill=0 idle-bytes=1 prefetch-count=1 used-pause=0",
    "rule=paper ghost-requests=16 idle=1ms quiet=2ms prefetch-count=1",
    "rule=cost ghost-requests=32 bypass=16K idle=1ms quiet=2ms extents=40",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn everything_ends_once_and_reads_find_the_newest_data(seed: u64, settings in 0..SETTINGS.len(), segments in 4u64..12, slots in 0u64..5) {
        let mut random = Random::new(seed, 0);
        let mut world = World::new(&wanted(SETTINGS[settings], segments * (64 << 10), slots));
        let mut issued = 0;
        for number in 1..1500 {
            let before = world.outstanding.len() as u32 + world.ended;
            match random.below(8) {
                0..3 => {
                    let op = if random.below(2) == 0 { Op::Read } else { Op::Write };
                    // Half of them in a few slots.
                    let within = if random.below(2) == 0 { 64 } else { BLOCKS };
                    world.issue(number, op, random.below(within), 1 + random.below(8));
                }
                3..5 => serve_disk(&mut world, random.below(1 << 20) as usize),
                5..7 => world.serve_ssd(),
                _ => {
                    world.now += random.below(5_000_000);
                    world.tier.woken();
                }
            }
            world.settle();
            issued += world.outstanding.len() as u32 + world.ended - before;
        }
        // Nothing more comes: all ends, and the device gets everything.
        for _ in 0..20_000 {
            world.now += 2_000_000;
            world.tier.woken();
            world.settle();
            serve_disk(&mut world, 0);
            world.serve_ssd();
            world.settle();
        }
        prop_assert!(world.outstanding.is_empty());
        prop_assert_eq!(world.ended, issued);
        prop_assert_eq!(world.tier.outcome().dirty_bytes, 0);
        prop_assert_eq!(&world.disk, &world.newest);
        prop_assert!(world.tier.users == 0 && world.tier.readings.len() == 0 && world.tier.tickets.is_empty());
    }
}
