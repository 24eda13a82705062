//! Real processes that are killed (`kill -9`) while they write to a tier over real files.
//!
//! The kernel keeps what a killed process has written, so *everything* acknowledged must be there afterwards, flushed or not,
//! and of what was not acknowledged each sector is old or new.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use super::Random;
use crate::{Config, FileDevice, Geometry, Rule, Runner, Tier};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4096;
const THREADS: u64 = 2;
const GEOMETRY: Geometry =
    Geometry { queue_bytes: 4 << 20, segment_bytes: 256 << 10, area_bytes: 1 << 20, slot_bytes: 64 << 10 };

/// What a writer says: a write begins, and has been acknowledged.
const BEGINS: u8 = 0;
const ENDED: u8 = 1;
const MESSAGE: usize = 17;

fn open(dir: &Path, seed: u64) -> Result<Tier, String> {
    let device = |name: &str| FileDevice::open(dir.join(name), true).map(Arc::new).map_err(|error| error.to_string());
    let config = Config {
        rule: [Rule::Always, Rule::Ratio { start: 1.1, stop: 0.9 }][seed as usize % 2],
        ghost_requests: 16,
        bypass_bytes: 16 << 10,
        idle: std::time::Duration::from_millis(1),
        quiet: std::time::Duration::from_millis(1),
        prefetch_count: 1,
        ..Config::default()
    };
    Tier::open(device("disk")?, device("ssd")?, config).map_err(|error| error.to_string())
}

/// Makes the files.
///
/// # Errors
/// Those of making them.
pub fn create(dir: &Path) -> Result<(), String> {
    let told = |error: io::Error| error.to_string();
    let disk = FileDevice::create(dir.join("disk"), BLOCKS * BLOCK).map_err(told)?;
    let ssd = FileDevice::create(dir.join("ssd"), 6 << 20).map_err(told)?;
    Tier::create(&disk, "disk", &ssd, GEOMETRY).map_err(|error| error.to_string())
}

/// The writer: writes until it is killed, and says so on its standard error.
///
/// # Errors
/// Those of the tier, which none should have.
pub fn write_until_killed(dir: &Path, seed: u64) -> Result<(), String> {
    let tier = Arc::new(open(dir, seed)?);
    let _runner = Runner::start(tier.clone()).map_err(|error| error.to_string())?;
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tier, failed) = (&tier, &failed);
            scope.spawn(move || {
                let result = write_some(tier, thread, seed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
            });
        }
    });
    match failed.into_inner() {
        Ok(Some(Err(error))) => Err(error.to_string()),
        _ => Err("ended without being killed".to_owned()),
    }
}

fn write_some(tier: &Tier, thread: u64, seed: u64) -> io::Result<()> {
    let mut random = Random(seed.wrapping_mul(31).wrapping_add(thread));
    let mut version = seed << 32;
    loop {
        version += 1;
        // Each thread has every other stretch of 16 blocks.
        let stretch = random.below(BLOCKS / 16 / THREADS) * THREADS + thread;
        let first = stretch * 16 + random.below(16);
        let count = 1 + random.below(16 - first % 16);
        let message = |kind: u8| {
            let mut bytes = vec![kind];
            bytes.extend((first << 8 | count).to_le_bytes());
            bytes.extend(version.to_le_bytes());
            // One call, so that messages of two threads do not mix.
            io::stderr().lock().write_all(&bytes)
        };
        message(BEGINS)?;
        let data: Vec<u8> =
            (first..first + count).flat_map(|block| content(block, version).take(BLOCK as usize)).collect();
        tier.write(&data, first * BLOCK, random.one_in(16))?;
        message(ENDED)?;
        if random.one_in(32) {
            tier.flush()?;
        }
        if random.one_in(4) {
            tier.read(&mut [0; 4096], random.below(BLOCKS) * BLOCK)?;
        }
    }
}

/// Of a block and version, each sector says both.
fn content(block: u64, version: u64) -> impl Iterator<Item = u8> {
    [block, version].into_iter().flat_map(u64::to_le_bytes).cycle()
}

/// Starts writers (`command` is one, for a seed; `None`: that is enough), kills each after some of its writes, and compares.
/// Returns how many were killed.
///
/// # Errors
/// What is lost or wrong, with the seed.
pub fn run(dir: &Path, kills: u64, mut command: impl FnMut(u64) -> Option<Command>) -> Result<u64, String> {
    create(dir)?;
    // Of each block the version that was acknowledged, and those that may have replaced it.
    let mut model: HashMap<u64, (u64, Vec<u64>)> = HashMap::new();
    for seed in 1..=kills {
        let mut random = Random(seed);
        let Some(mut command) = command(seed) else { return Ok(seed - 1) };
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a writer: {error}"))?;
        let ended = watch(child, &mut model, 1 + random.below(400)).map_err(|error| format!("kill {seed}: {error}"))?;
        if ended == 0 {
            return Err(format!("kill {seed}: the writer wrote nothing"));
        }
        compare(dir, &mut model, seed).map_err(|error| format!("kill {seed}: {error}"))?;
    }
    Ok(kills)
}

/// Reads what a writer says; kills it when it has ended so many writes, and reads the rest.
fn watch(mut child: Child, model: &mut HashMap<u64, (u64, Vec<u64>)>, kill_after: u64) -> io::Result<u64> {
    let mut pipe = io::BufReader::new(child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let mut ended = 0;
    let mut message = [0; MESSAGE];
    loop {
        match pipe.read_exact(&mut message) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            result => result?,
        }
        let number = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
        let (place, version) = (number(1), number(9));
        for block in place >> 8..(place >> 8) + (place & 0xff) {
            let known = model.entry(block).or_default();
            if message[0] == ENDED {
                *known = (version, Vec::new());
            } else {
                known.1.push(version);
            }
        }
        ended += u64::from(message[0] == ENDED);
        if message[0] == ENDED && ended == kill_after {
            child.kill()?;
        }
    }
    child.kill()?;
    child.wait()?;
    Ok(ended)
}

fn compare(dir: &Path, model: &mut HashMap<u64, (u64, Vec<u64>)>, seed: u64) -> Result<(), String> {
    let tier = open(dir, seed)?;
    let mut found = vec![0; BLOCK as usize];
    for (&block, known) in model {
        tier.read(&mut found, block * BLOCK).map_err(|error| error.to_string())?;
        for (sector, bytes) in found.chunks(512).enumerate() {
            let version = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
            let right = known.0 == version || known.1.contains(&version);
            let whole = match version {
                0 => bytes.iter().all(|&byte| byte == 0),
                _ => bytes.iter().copied().eq(content(block, version).take(bytes.len())),
            };
            if !right || !whole {
                return Err(format!("block {block} sector {sector}: version {version:#x}, expected one of {known:x?}"));
            }
        }
        // Sectors of two versions stay that way until it is written again: any of them.
        let last = u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"));
        let mixed = found.chunks(512).any(|sector| sector[8..16] != last.to_le_bytes());
        if !mixed {
            *known = (last, Vec::new());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: &str = "SLUICE_TIER_WRITER";

    /// Not a test: what the other one starts.
    #[test]
    fn writer() {
        if let Some((dir, seed)) = std::env::var(DIR).ok().as_deref().and_then(|text| text.split_once(':')) {
            write_until_killed(Path::new(dir), seed.parse().unwrap()).unwrap();
        }
    }

    #[test]
    fn what_was_acknowledged_survives_kills() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        let killed = run(dir.path(), 8, |seed| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["crash::kill::tests::writer", "--exact", "--nocapture"]).env(DIR, format!("{path}:{seed}"));
            Some(command)
        });
        assert_eq!(killed, Ok(8));
    }
}
