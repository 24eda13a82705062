//! Histories: what is done to a tier, every crash of it, and what is done after that.

use std::ops::Range;
use std::sync::Arc;

use super::model::{CELL, Model};
use super::recorder::{Event, Image};
use super::{Fault, Random, Recorder, Tape};
use crate::{Config, Geometry, OpenError, Rule, Tier};

const DISK: u64 = 32 << 10;

/// How much is tried of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Operations before a crash.
    pub operations: usize,
    /// Crashes after which it goes on, and how often in a row.
    pub branches: usize,
    /// See `branches`.
    pub lives: usize,
    /// Devices fail, too.
    pub faults: bool,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Histories: lives of a tier from a start on.
    pub histories: u64,
    /// Crashes that were recovered from and compared with the model.
    pub crashes: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Write { range: Range<u64>, value: u8, fua: bool },
    Zero { range: Range<u64>, trim: bool, fua: bool },
    Flush,
    Read,
    Work,
    WriteBack,
    Detach,
    Fail { device: usize, fault: Fault },
}

/// Tries one seed: a history, every prefix of what it did to the devices, and from some of them on further ones.
///
/// # Errors
/// What was lost or wrong, with the seed.
pub fn run(seed: u64, plan: Plan) -> Result<Counts, String> {
    let mut random = Random(seed);
    let mut counts = Counts::default();
    let geometry = Geometry {
        queue_bytes: 4 * 8192,
        segment_bytes: *pick(&mut random, &[4096, 6144, 8192]),
        area_bytes: 3 * 4096,
        slot_bytes: 4096,
    };
    let tape = Tape::default();
    let disk = vec![0; DISK as usize];
    let ssd = Recorder::new(1, &tape, vec![0xee; 64 << 10]);
    Tier::create(&Recorder::new(0, &tape, disk.clone()), "disk", &ssd, geometry).map_err(|error| error.to_string())?;
    let told = |what: String| format!("seed {seed}: {what}");
    live(&mut random, plan, (disk, ssd.bytes()), &mut counts, plan.lives).map_err(told)?;
    Ok(counts)
}

fn pick<'a, T>(random: &mut Random, of: &'a [T]) -> &'a T {
    &of[random.below(of.len() as u64) as usize]
}

fn config(random: &mut Random) -> Config {
    Config {
        rule: *pick(
            random,
            &[Rule::Always, Rule::Ratio { start: 4.0, stop: 2.0 }, Rule::Ratio { start: 0.5, stop: 0.25 }, Rule::Never],
        ),
        ghost_requests: 3,
        bypass_bytes: *pick(random, &[1024, 4096, u64::MAX]),
        writeback_bytes: *pick(random, &[512, 4096]),
        fill_bytes: *pick(random, &[0, 1024, u64::MAX]),
        idle: std::time::Duration::ZERO,
        prefetch_count: 1,
        unload: random.one_in(2),
        ..Config::default()
    }
}

/// One life: open, do something, crash at every point.
fn live(
    random: &mut Random,
    plan: Plan,
    images: (Vec<u8>, Vec<u8>),
    counts: &mut Counts,
    lives: usize,
) -> Result<(), String> {
    counts.histories += 1;
    let tape = Tape::default();
    let disk = Arc::new(Recorder::new(0, &tape, images.0.clone()));
    let ssd = Arc::new(Recorder::new(1, &tape, images.1.clone()));
    let config = config(random);
    let open = || Tier::open(disk.clone(), ssd.clone(), config.clone());
    let mut tier = open().map_err(|error| format!("start: {error}"))?;
    let start = match read_all(&tier) {
        // What was lost stays so; there is nothing more to learn.
        Err(_) if plan.faults => return Ok(()),
        result => result.map_err(|error| format!("first read: {error}"))?,
    };
    let mut model = Model::new(&start);
    let mut done: Vec<(Operation, bool)> = Vec::new();
    let mut failing = false;
    for number in 0..plan.operations {
        let operation = draw(random, number as u8 + 1, plan.faults);
        tape.push(Event::Began(number));
        let result = perform(&tier, &operation, [&disk, &ssd]);
        let well = result.is_ok();
        failing |= matches!(operation, Operation::Fail { .. });
        if let (Err(error), false) = (&result, failing) {
            return Err(format!("{operation:?}: {error}"));
        }
        tape.push(Event::Ended(number));
        note(&mut model, &operation, well);
        if matches!(operation, Operation::Read)
            && let Ok(bytes) = read_all(&tier)
        {
            let compared = if failing { model.is_possible(&bytes) } else { model.is_newest(&bytes) };
            compared.map_err(|error| format!("in use, after {done:?}: {error}"))?;
        }
        let detach = matches!(operation, Operation::Detach) && !failing;
        done.push((operation, well));
        if detach {
            // Ended and started again in an orderly way. It ends before the next one has the devices.
            drop(tier);
            tier = open().map_err(|error| format!("start after an end: {error}"))?;
        }
    }
    drop(tier);
    let events = tape.take();
    crash_everywhere(random, plan, (images, &start), (&events, &done), counts, lives)
}

/// Every prefix of the events.
fn crash_everywhere(
    random: &mut Random,
    plan: Plan,
    ((disk, ssd), start): ((Vec<u8>, Vec<u8>), &[u8]),
    (events, done): (&[Event], &[(Operation, bool)]),
    counts: &mut Counts,
    lives: usize,
) -> Result<(), String> {
    let mut images = [Image::new(disk), Image::new(ssd)];
    let mut model = Model::new(start);
    let branches: Vec<u64> = (0..plan.branches).map(|_| random.below(events.len() as u64)).collect();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Write { device, offset, data } => images[*device].write(*offset, data),
            Event::Flush { device } => images[*device].flush(),
            Event::FlushFailed { device } => images[*device].fail_flush(random),
            Event::Began(number) => begin(&mut model, &done[*number].0),
            Event::Ended(number) => end(&mut model, &done[*number]),
        }
        let how = random.below(5);
        let crashed = [images[0].crashed(random, how), images[1].crashed(random, how)];
        counts.crashes += 1;
        let told = |error: String| {
            let last = done.iter().enumerate().map(|(number, one)| format!("\n  {number}: {one:?}"));
            format!("crash {how} after event {at} of {}: {error}{}", events.len(), last.collect::<String>())
        };
        recover(&crashed, &model, (at % 16 == 0, plan.faults)).map_err(told)?;
        if lives > 1 && branches.contains(&(at as u64)) {
            let [disk, ssd] = crashed;
            live(random, plan, (disk, ssd), counts, lives - 1).map_err(told)?;
        }
    }
    Ok(())
}

/// Starts on what a crash has left and compares. `thoroughly`: also that all of it can be written back; `lossy`: the SSD could
/// not be read at times, so that something may be said to be lost.
fn recover(images: &[Vec<u8>; 2], model: &Model, (thoroughly, lossy): (bool, bool)) -> Result<(), String> {
    let tape = Tape::default();
    let disk = Arc::new(Recorder::new(0, &tape, images[0].clone()));
    let ssd = Arc::new(Recorder::new(1, &tape, images[1].clone()));
    let config = Config { prefetch: false, ghost_requests: 1, ..Config::default() };
    let tier = Tier::open(disk.clone(), ssd, config).map_err(|error: OpenError| error.to_string())?;
    let (bytes, whole) = match read_all(&tier) {
        Ok(bytes) => (bytes, true),
        Err(_) if lossy => (read_what_can_be(&tier, model), false),
        Err(error) => return Err(error.to_string()),
    };
    model.is_possible(&bytes)?;
    if thoroughly && whole {
        tier.write_all_back().map_err(|error| error.to_string())?;
        if disk.bytes() != bytes {
            return Err("written back, the disk is not what was read before".to_owned());
        }
    }
    Ok(())
}

fn read_all(tier: &Tier) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; DISK as usize];
    tier.read(&mut bytes, 0)?;
    Ok(bytes)
}

/// What is said to be lost, rather than found to be old, is right.
fn read_what_can_be(tier: &Tier, model: &Model) -> Vec<u8> {
    let mut bytes = vec![0; DISK as usize];
    for (at, cell) in bytes.chunks_mut(CELL).enumerate() {
        let offset = (at * CELL) as u64;
        if tier.read(cell, offset).is_err() {
            cell.fill(model.any(offset));
        }
    }
    bytes
}

fn draw(random: &mut Random, value: u8, faults: bool) -> Operation {
    // Mostly in one part of the disk, so that much overlaps.
    let whole = DISK / CELL as u64;
    let within = if random.one_in(4) { whole } else { whole / 4 };
    let start = random.below(within);
    let most = if random.one_in(6) { 128 } else { 24 };
    let len = 1 + random.below(most.min(whole - start));
    let range = start * CELL as u64..(start + len) * CELL as u64;
    let fua = random.one_in(8);
    match random.below(if faults { 22 } else { 20 }) {
        0..=9 => Operation::Write { range, value, fua },
        10 => Operation::Zero { range, trim: random.one_in(2), fua },
        11 | 12 => Operation::Flush,
        13 | 14 => Operation::Read,
        15..=17 => Operation::Work,
        18 => Operation::WriteBack,
        19 => Operation::Detach,
        _ => {
            let one = |random: &mut Random| if random.one_in(2) { 1 + random.below(6) } else { 0 };
            let (after, whole) = (random.below(4), random.one_in(2));
            let fault = Fault { after, reads: one(random), writes: one(random), whole, flushes: one(random) };
            let fault = if random.one_in(3) { Fault::default() } else { fault };
            Operation::Fail { device: random.below(2) as usize, fault }
        }
    }
}

fn perform(tier: &Tier, operation: &Operation, devices: [&Recorder; 2]) -> std::io::Result<()> {
    match operation {
        Operation::Write { range, value, fua } => {
            tier.write(&vec![*value; (range.end - range.start) as usize], range.start, *fua)
        }
        Operation::Zero { range, trim, fua } => tier.zero(range.start, range.end - range.start, *trim, *fua),
        Operation::Flush => tier.flush(),
        // Small ones in different slots, so that some of them are worth prefetching; all is compared afterwards.
        Operation::Read => (0..6).try_for_each(|at| tier.read(&mut [0; 100], at % 3 * 4096 + 17)),
        Operation::Work => (0..3).try_for_each(|_| tier.work(true).map(|_| ())),
        Operation::WriteBack => tier.write_all_back(),
        Operation::Detach => tier.end(),
        Operation::Fail { device, fault } => {
            devices[*device].fail(*fault);
            Ok(())
        }
    }
}

fn begin(model: &mut Model, operation: &Operation) {
    match operation {
        Operation::Write { range, value, .. } => model.write(range, *value),
        Operation::Zero { range, .. } => model.write(range, 0),
        _ => {}
    }
}

fn end(model: &mut Model, (operation, well): &(Operation, bool)) {
    match operation {
        Operation::Flush | Operation::Detach if !well => model.fail_flush(),
        Operation::Write { range, .. } | Operation::Zero { range, .. } if !well => {
            model.fail_write(range);
            // Perhaps it was the flush.
            model.fail_flush();
        }
        _ if !well => {}
        Operation::Write { range, fua: true, .. } | Operation::Zero { range, fua: true, .. } => model.flush(range),
        Operation::Flush | Operation::Detach => model.flush(&(0..DISK)),
        _ => {}
    }
}

fn note(model: &mut Model, operation: &Operation, well: bool) {
    begin(model, operation);
    end(model, &(operation.clone(), well));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Range<u64> {
        // More of them: `sluice-bench tier`.
        0..std::env::var("SLUICE_TIER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(16)
    }

    #[test]
    fn nothing_durable_is_lost_at_any_crash() {
        let mut all = Counts::default();
        for seed in seeds() {
            let plan = Plan { operations: 30, branches: 2, lives: 3, faults: false };
            let counts = run(seed, plan).unwrap_or_else(|error| panic!("{error}"));
            all.histories += counts.histories;
            all.crashes += counts.crashes;
        }
        println!("{all:?}");
        assert!(all.crashes > 100 * all.histories / 2, "{all:?}");
    }

    #[test]
    fn nor_if_devices_fail_before() {
        for seed in seeds() {
            let plan = Plan { operations: 40, branches: 1, lives: 2, faults: true };
            run(seed, plan).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
