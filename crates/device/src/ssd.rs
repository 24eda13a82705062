//! A solid-state drive: flash dies on channels behind one controller. NVMe drives are the same with more of everything.
//!
//! After N. Agrawal et al., *Design tradeoffs for SSD performance*, USENIX ATC 2008, and F. Chen et al., *Essential roles
//! of exploiting internal parallelism of flash memory based solid state drives*, HPCA 2011:
//!
//! * **Mapping**: the address space is striped over the dies in units of `stripe_pages` pages; dies are numbered so that
//!   neighbours are on different channels. Small requests that follow each other meet the same die until the stripe
//!   ends, random ones rarely do.
//! * **Read**: a die takes `read_us` for a page, then its channel moves the bytes. A read that continues the one before
//!   starts fetching the next `read_ahead_kib`, which later reads then find in the controller's memory.
//! * **Write**: the channel moves the bytes, the die takes `program_us` for a page. A write is acknowledged once no die
//!   has more than `die_buffer_pages` of its pages still to program. A write that begins or ends within a page costs the
//!   whole page, unless it continues the one before (then the controller's buffer has put the page together).
//!   `write_allocation` says to which die: that of the address (small sequential writes then are slower than random ones),
//!   or all in turn as a log.
//! * **Garbage collection** in the mean field: not each page's place is simulated, but how much live data the collected
//!   blocks hold on average. Under uniform random writes with spare space `p` (of what is written to) each page written costs
//!   (all of it, or since the drive has no block left that was never written:) `(1 + p) / 2p` programs (R. Agarwal and M. Marrow, *A closed-form expression for write amplification in NAND flash*,
//!   GLOBECOM 2010 workshops); writes in runs as long as an erase block on each channel leave nothing alive,
//!   and in between it is linear. What counts is the mixture of the last `collection_window_mib` written. Copies and erasures
//!   pile up until they are worth `collection_pages` programs; then the die is busy with them.
//! * **Controller**: one command each `command_us` at most; `overhead_read_us`, `overhead_write_us` are the way through
//!   host and interface, during which nothing is occupied.
//!
//! Deviations: what was written in turn is read where its address says; commands take the dies in the order in which they
//! were given; reads do not overtake programs; there is one read stream; streams of writes (32 are told apart) fill erase
//! blocks of their own, and what is alive in a block is an average over what was written lately, not counted block by block;
//! a flush waits for all dies. `fill` is the share of the drive that holds data in the beginning: until the rest is written,
//! nothing is collected.

use std::collections::VecDeque;

use serde::Deserialize;

use crate::parameter::check;
use crate::{Command, Device, Op, Service};

/// Where writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Allocation {
    /// To the die that the address says.
    ByAddress,
    /// To the dies in turn, as a log.
    InTurn,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "kind")]
    _kind: String,
    capacity_bytes: u64,
    channels: u32,
    dies_per_channel: u32,
    page_kib: u32,
    stripe_pages: u32,
    read_us: f64,
    program_us: f64,
    erase_us: f64,
    block_pages: u32,
    write_allocation: Allocation,
    channel_rate_mb_s: f64,
    interface_rate_mb_s: f64,
    command_us: f64,
    overhead_read_us: f64,
    overhead_write_us: f64,
    flush_us: f64,
    read_ahead_kib: u32,
    die_buffer_pages: f64,
    over_provisioning: f64,
    collection_window_mib: f64,
    collection_pages: f64,
    queue_depth: u32,
    /// Share of the drive that holds data in the beginning.
    #[serde(default = "full")]
    fill: f64,
}

fn full() -> f64 {
    1.0
}

/// Streams of writes that are told apart: each fills blocks of its own.
const STREAMS_MAX: usize = 32;

/// A stream of writes.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// Where it goes on.
    next: u64,
    /// Bytes since it began.
    run_bytes: f64,
}

#[derive(Clone, Copy, Default)]
struct Die {
    free_ns: u64,
    /// Copies and erasures that wait, in nanoseconds of the die's time.
    debt_ns: f64,
}

struct Ssd {
    capacity: u64,
    lanes: u32,
    page: u64,
    stripe: u64,
    read_ns: u64,
    program_ns: f64,
    /// Nanoseconds for each byte.
    channel_ns: f64,
    interface_ns: f64,
    command_ns: u64,
    overhead_read_ns: u64,
    overhead_write_ns: u64,
    flush_ns: u64,
    read_ahead: u64,
    /// Programs that a die may be behind, in nanoseconds.
    behind_ns: u64,
    /// Erasing, in parts of programming, for each page programmed.
    erase_share: f64,
    /// What a random write costs beyond itself, in programs, and a copy in programs.
    extra_max: f64,
    copy_cost: f64,
    /// An erase block on every channel, in bytes.
    superblock: f64,
    window: f64,
    lump_ns: f64,

    dies: Vec<Die>,
    channels: Vec<u64>,
    command_free_ns: u64,
    interface_free_ns: u64,
    /// Where the last read ended.
    read_next: u64,
    /// Fetched ahead: (end of the part, when it is there), and where the last part ends.
    ahead: VecDeque<(u64, u64)>,
    ahead_to: u64,
    write_next: u64,
    /// Bytes that can still be written to blocks that hold nothing.
    fresh: f64,
    /// Streams of writes, the one that was used last first.
    streams: Vec<Stream>,
    allocation: Allocation,
    /// Where the next write goes, if they go to the dies in turn.
    log_at: u64,
    /// Share of live data in what is collected, relative to uniform random writes: 0 to 1.
    live: f64,
    at: u64,
}

/// The row in the table of kinds.
pub(crate) fn build(text: &str, _seed: u64) -> Result<Box<dyn Device>, String> {
    let p: Parameters = toml::from_str(text).map_err(|error| error.to_string())?;
    check(&[
        ("capacity_bytes", p.capacity_bytes as f64, 1e8, 1e15),
        ("channels", p.channels.into(), 1.0, 256.0),
        ("dies_per_channel", p.dies_per_channel.into(), 1.0, 256.0),
        ("page_kib", p.page_kib.into(), 1.0, 1024.0),
        ("stripe_pages", p.stripe_pages.into(), 1.0, 4096.0),
        ("read_us", p.read_us, 0.0, 1e6),
        ("program_us", p.program_us, 0.0, 1e6),
        ("erase_us", p.erase_us, 0.0, 1e6),
        ("block_pages", p.block_pages.into(), 1.0, 65_536.0),
        ("channel_rate_mb_s", p.channel_rate_mb_s, 1.0, 1e6),
        ("interface_rate_mb_s", p.interface_rate_mb_s, 1.0, 1e6),
        ("command_us", p.command_us, 0.0, 1e6),
        ("overhead_read_us", p.overhead_read_us, 0.0, 1e6),
        ("overhead_write_us", p.overhead_write_us, 0.0, 1e6),
        ("flush_us", p.flush_us, 0.0, 1e7),
        ("read_ahead_kib", p.read_ahead_kib.into(), 0.0, 65_536.0),
        ("die_buffer_pages", p.die_buffer_pages, 0.0, 65_536.0),
        ("over_provisioning", p.over_provisioning, 0.01, 10.0),
        ("collection_window_mib", p.collection_window_mib, 0.001, 1e6),
        ("collection_pages", p.collection_pages, 0.0, 65_536.0),
        ("queue_depth", p.queue_depth.into(), 1.0, 65_536.0),
        ("fill", p.fill, 0.0, 1.0),
    ])?;
    let page = u64::from(p.page_kib) << 10;
    let dies = p.channels * p.dies_per_channel;
    let ns = |us: f64| (us * 1e3) as u64;
    let program_ns = p.program_us * 1e3;
    Ok(Box::new(Ssd {
        capacity: p.capacity_bytes / page * page,
        lanes: p.queue_depth,
        page,
        stripe: page * u64::from(p.stripe_pages),
        read_ns: ns(p.read_us),
        program_ns,
        channel_ns: 1e3 / p.channel_rate_mb_s,
        interface_ns: 1e3 / p.interface_rate_mb_s,
        command_ns: ns(p.command_us),
        overhead_read_ns: ns(p.overhead_read_us),
        overhead_write_ns: ns(p.overhead_write_us),
        flush_ns: ns(p.flush_us),
        read_ahead: u64::from(p.read_ahead_kib) << 10,
        behind_ns: (p.die_buffer_pages * program_ns) as u64,
        erase_share: p.erase_us / (p.program_us.max(1e-3) * f64::from(p.block_pages)),
        extra_max: ((1.0 + p.over_provisioning) / (2.0 * p.over_provisioning) - 1.0).max(0.0),
        copy_cost: 1.0 + p.read_us / p.program_us.max(1e-3),
        superblock: f64::from(p.block_pages) * page as f64 * f64::from(p.channels),
        window: p.collection_window_mib * f64::from(1 << 20),
        lump_ns: p.collection_pages * program_ns,
        dies: vec![Die::default(); dies as usize],
        channels: vec![0; p.channels as usize],
        command_free_ns: 0,
        interface_free_ns: 0,
        read_next: 0,
        ahead: VecDeque::new(),
        ahead_to: 0,
        write_next: 0,
        fresh: p.capacity_bytes as f64 * (1.0 - p.fill),
        streams: Vec::with_capacity(STREAMS_MAX + 1),
        allocation: p.write_allocation,
        log_at: 0,
        live: 0.0,
        at: 0,
    }))
}

impl Ssd {
    fn die_of(&self, address: u64) -> usize {
        (address / self.stripe) as usize % self.dies.len()
    }

    /// The end of the stripe unit that `address` is in, at most `end`.
    fn unit_end(&self, address: u64, end: u64) -> u64 {
        (address - address % self.stripe).saturating_add(self.stripe).min(end)
    }

    /// Pages touched by a range.
    fn pages(&self, start: u64, end: u64) -> u64 {
        end.div_ceil(self.page) - start / self.page
    }

    /// When the controller has understood a command that comes now.
    fn accept(&mut self, now_ns: u64) -> u64 {
        self.command_free_ns = self.command_free_ns.max(now_ns).saturating_add(self.command_ns);
        self.command_free_ns
    }

    /// When the interface, free from `from_ns` on, has moved the bytes.
    fn interface(&mut self, from_ns: u64, bytes: u64) -> u64 {
        let move_ns = (bytes as f64 * self.interface_ns) as u64;
        self.interface_free_ns = self.interface_free_ns.max(from_ns).saturating_add(move_ns);
        self.interface_free_ns
    }

    /// Reads a part of a stripe unit; when the controller has it.
    fn fetch(&mut self, from_ns: u64, start: u64, end: u64) -> u64 {
        let place = self.die_of(start);
        let channel = place % self.channels.len();
        let begin = from_ns.max(self.dies[place].free_ns);
        let sensed = begin.saturating_add(self.pages(start, end) * self.read_ns);
        let move_ns = |bytes: u64| (bytes as f64 * self.channel_ns) as u64;
        let first = begin.saturating_add(self.read_ns).max(self.channels[channel]);
        let all = first.saturating_add(move_ns(end - start));
        let there = all.max(sensed.saturating_add(move_ns((end - start).min(self.page))));
        self.dies[place].free_ns = sensed;
        self.channels[channel] = all;
        there
    }

    fn read(&mut self, now_ns: u64, address: u64, len: u64) -> u64 {
        let start = self.accept(now_ns);
        let end = address.saturating_add(len);
        let follows = address == self.read_next && self.read_ahead > 0;
        if !follows {
            self.ahead.clear();
            self.ahead_to = address;
        }
        let horizon = if follows { end.saturating_add(self.read_ahead).next_multiple_of(self.page) } else { end };
        while self.ahead_to < horizon {
            let unit = self.unit_end(self.ahead_to, horizon);
            let there = self.fetch(start, self.ahead_to, unit);
            self.ahead.push_back((unit, there));
            self.ahead_to = unit;
        }
        let mut there = start;
        while let Some((part, ready)) = self.ahead.front().copied() {
            there = there.max(ready);
            if part > end {
                break;
            }
            self.ahead.pop_front();
            if part == end {
                break;
            }
        }
        self.read_next = end;
        let last = (len.min(self.page) as f64 * self.interface_ns) as u64;
        self.interface(start, len).max(there.saturating_add(last)).saturating_add(self.overhead_read_ns)
    }

    /// Takes note of a write for the garbage collection; copies for each page that it costs, on average.
    fn amplification(&mut self, address: u64, len: u64) -> f64 {
        let bytes = len as f64;
        // A gap that is short beside the run leaves little alive.
        let continues = |stream: &Stream| address.wrapping_sub(stream.next) as f64 <= stream.run_bytes / 4.0;
        let mut stream = match self.streams.iter().position(continues) {
            Some(place) => self.streams.remove(place),
            None => {
                self.streams.truncate(STREAMS_MAX - 1);
                Stream::default()
            }
        };
        stream.run_bytes += bytes;
        stream.next = address.saturating_add(len);
        let live = (1.0 - stream.run_bytes / self.superblock).max(0.0);
        self.streams.insert(0, stream);
        self.live += (live - self.live) * (bytes / self.window).min(1.0);
        if self.fresh > 0.0 {
            // Nothing is collected while there are blocks that were never written.
            self.fresh -= bytes;
            return 0.0;
        }
        self.extra_max * self.live
    }

    fn write(&mut self, now_ns: u64, address: u64, len: u64) -> u64 {
        let start = self.accept(now_ns);
        let end = address.saturating_add(len);
        let follows = address == self.write_next;
        let copies = self.amplification(address, len);
        let per_program = copies * self.copy_cost + (1.0 + copies) * self.erase_share;
        let mut done = self.interface(start, len);
        let (mut at, last) = match self.allocation {
            Allocation::ByAddress => (address, end),
            Allocation::InTurn => {
                // What does not continue begins on a page of its own.
                let begin = if follows { self.log_at } else { self.log_at.next_multiple_of(self.page) };
                self.log_at = begin + len;
                (begin, begin + len)
            }
        };
        while at < last {
            let unit = self.unit_end(at, last);
            let pages = if follows { (unit - at) as f64 / self.page as f64 } else { self.pages(at, unit) as f64 };
            let accepted = self.program(start, at, (unit - at, pages * self.program_ns), per_program);
            done = done.max(accepted);
            at = unit;
        }
        self.write_next = end;
        done.saturating_add(self.overhead_write_ns)
    }

    /// Programs a part of a stripe unit, `part` being its bytes and the time they take; when they are accepted.
    fn program(&mut self, from_ns: u64, address: u64, part: (u64, f64), per_program: f64) -> u64 {
        let place = self.die_of(address);
        let channel = place % self.channels.len();
        let arrive = self.channels[channel].max(from_ns).saturating_add((part.0 as f64 * self.channel_ns) as u64);
        self.channels[channel] = arrive;
        let die = &mut self.dies[place];
        let end = die.free_ns.max(arrive).saturating_add(part.1 as u64);
        die.free_ns = end;
        die.debt_ns += part.1 * per_program;
        if die.debt_ns > self.lump_ns {
            // Collecting delays what comes next, not what is programmed already.
            die.free_ns = end.saturating_add(die.debt_ns as u64);
            die.debt_ns = 0.0;
        }
        arrive.max(end.saturating_sub(self.behind_ns))
    }
}

impl Device for Ssd {
    fn capacity_bytes(&self) -> u64 {
        self.capacity
    }

    fn lanes(&self) -> u32 {
        self.lanes
    }

    fn service(&mut self, now_ns: u64, command: Command) -> Service {
        let (address, len) = (command.address % self.capacity, command.len.min(self.capacity));
        let end = match command.op {
            Op::Read => self.read(now_ns, address, len),
            Op::Write => self.write(now_ns, address, len),
            Op::Flush => {
                let start = self.accept(now_ns);
                let idle = self.dies.iter().map(|die| die.free_ns).max().unwrap_or(0);
                return Service { total_ns: start.max(idle) - now_ns + self.flush_ns, ..Service::default() };
            }
        };
        let distance_bytes = self.at.abs_diff(address);
        self.at = address.saturating_add(len) % self.capacity;
        Service { total_ns: end.saturating_sub(now_ns), distance_bytes, ..Service::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::mix;

    const PAGE: u64 = 8192;

    fn drive(name: &str) -> Box<dyn Device> {
        crate::model(name, 1).unwrap()
    }

    /// Mean time of so many requests, one after the other, in a file of 1 GB.
    fn mean_ns(drive: &mut dyn Device, op: Op, len: u64, random: bool) -> f64 {
        let (begin, requests) = (1 << 50, 20_000);
        let end = (0..requests).fold(begin, |now, i| {
            let block = if random { mix(i) } else { i } % ((1 << 30) / len);
            now + drive.service(now, Command { op, address: block * len, len }).total_ns
        });
        (end - begin) as f64 / requests as f64
    }

    #[test]
    fn many_random_reads_use_many_dies() {
        let mut drive = drive("nvme");
        assert!(drive.lanes() >= 64);
        let read = |i| Command { op: Op::Read, address: mix(i) % (1 << 30) / PAGE * PAGE, len: PAGE };
        let one = drive.service(0, read(0)).total_ns;
        let together = (1..65).map(|i| drive.service(1 << 40, read(i)).total_ns).max().unwrap();
        assert!(together < one * 6, "64 at once take {together} ns, one {one} ns");
    }

    #[test]
    fn a_sequential_stream_finds_what_was_fetched_ahead() {
        let (sequential, random) = (
            mean_ns(&mut *drive("ssd-sata"), Op::Read, PAGE, false),
            mean_ns(&mut *drive("ssd-sata"), Op::Read, PAGE, true),
        );
        assert!(random > 1.5 * sequential, "{random} and {sequential}");
    }

    #[test]
    fn random_writes_cost_copies_the_more_the_less_spare_space_there_is() {
        let text = crate::models().iter().find(|model| model.name == "ssd-sata").unwrap().text;
        let with = |spare: &str| {
            let text = text.replace("over_provisioning = 0.28", &format!("over_provisioning = {spare}"));
            let mut drive = crate::parse("x", &text, 1).unwrap();
            mean_ns(&mut *drive, Op::Write, 16 * PAGE, true)
        };
        let (little, much) = (with("0.07"), with("2.0"));
        assert!(little > 2.0 * much, "{little} and {much}");
        let sequential = mean_ns(&mut *drive("ssd-sata"), Op::Write, 16 * PAGE, false);
        assert!(sequential < 1.05 * much, "{sequential} and {much}");
    }

    /// Mean time of a write of 64 KB; `streams` writers by turns, each from a place of its own, write `total` bytes in all.
    fn interleaved_ns(parameters: &[(&str, f64)], streams: u64, total: u64) -> f64 {
        let parameters: Vec<_> = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let mut drive = crate::model_with("ssd-sata", &parameters, 1).unwrap();
        let (len, mut now) = (64 << 10, 0);
        for i in 0..total / len {
            let address = i % streams * (4 << 30) + i / streams * len;
            now += drive.service(now, Command { op: Op::Write, address, len }).total_ns;
        }
        now as f64 / (total / len) as f64
    }

    #[test]
    fn writers_in_order_stay_in_order_when_there_are_several() {
        let (one, sixteen) = (interleaved_ns(&[], 1, 2 << 30), interleaved_ns(&[], 16, 2 << 30));
        assert!(sixteen < 1.1 * one, "{sixteen} and {one}");
    }

    /// As MQSim's authors show (A. Tavakkol et al., FAST 2018, 5.1): what a drive does in the beginning says little of what it
    /// does when it is full, and random writes then cost copies.
    #[test]
    fn an_empty_drive_collects_nothing_until_it_is_full() {
        let random = |fill: f64, requests: u64| {
            let parameters = [("fill".to_owned(), fill), ("capacity_bytes".to_owned(), 1e9)];
            let mut drive = crate::model_with("ssd-sata", &parameters, 1).unwrap();
            let (mut now, mut times) = (0, Vec::new());
            for i in 0..requests {
                let command = Command { op: Op::Write, address: mix(i) % (900 << 20) / PAGE * PAGE, len: 65_536 };
                let time = drive.service(now, command).total_ns;
                now += time;
                times.push(time as f64);
            }
            let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
            (mean(&times[..4000]), mean(&times[times.len() - 4000..]))
        };
        let (begin, end) = random(0.0, 24_000);
        let (full, _) = random(1.0, 8000);
        assert!(end > 1.8 * begin && full > 1.5 * begin, "{begin} {end} {full}");
    }

    #[test]
    fn where_addresses_choose_the_die_small_sequential_writes_are_slower_than_random_ones() {
        let (sequential, random) =
            (mean_ns(&mut *drive("edel"), Op::Write, PAGE, false), mean_ns(&mut *drive("edel"), Op::Write, PAGE, true));
        assert!(sequential > 1.2 * random, "{sequential} and {random}");
    }

    #[test]
    fn a_flush_waits_for_what_is_being_programmed() {
        let mut drive = drive("ssd-sata");
        let write = drive.service(0, Command { op: Op::Write, address: 0, len: PAGE }).total_ns;
        let flush = drive.service(write, Command { op: Op::Flush, address: 0, len: 0 }).total_ns;
        assert!(write < 900_000 && flush > 800_000, "{write} and {flush}");
    }
}
