//! Phases in which different programs run at once: what each process asks for, as a trace that the simulator replays.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;

use crate::random::SplitMix64;

/// Where a group's requests go.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Each process has a file of its own, from beginning to end.
    Own,
    /// One file, blocks in turn.
    Strided,
    /// Blocks of one file, at random.
    Random,
}

/// Processes that do the same.
pub(super) struct Group {
    processes: u64,
    op: &'static str,
    order: Order,
    /// Bytes of a request.
    size: u64,
    /// Share of the phase's bytes: about what the group has of a disk that serves all groups for as long as each other.
    share: f64,
}

const fn group(processes: u64, op: &'static str, order: Order, size: u64, share: f64) -> Group {
    Group { processes, op, order, size, share }
}

/// What 16 processes do, in groups.
pub(super) const MIXES: [(&str, &[Group]); 6] = [
    (
        "streams of 64K beside random 64K reads",
        &[group(8, "read", Order::Own, 64 << 10, 0.93), group(8, "read", Order::Random, 64 << 10, 0.07)],
    ),
    (
        "streams of 64K beside own files, 256K writes",
        &[group(8, "read", Order::Own, 64 << 10, 0.5), group(8, "write", Order::Own, 256 << 10, 0.5)],
    ),
    (
        "random 4K reads beside own files, 64K writes",
        &[group(4, "read", Order::Random, 4 << 10, 0.005), group(12, "write", Order::Own, 64 << 10, 0.995)],
    ),
    (
        "shared file, strided 32K reads, beside own files, 256K writes",
        &[group(8, "read", Order::Strided, 32 << 10, 0.5), group(8, "write", Order::Own, 256 << 10, 0.5)],
    ),
    (
        "random 64K writes beside streams of 1M",
        &[group(8, "write", Order::Random, 64 << 10, 0.1), group(8, "read", Order::Own, 1 << 20, 0.9)],
    ),
    (
        "streams of 64K, strided 8K writes and random 4K reads",
        &[
            group(4, "read", Order::Own, 64 << 10, 0.6),
            group(4, "write", Order::Strided, 8 << 10, 0.397),
            group(8, "read", Order::Random, 4 << 10, 0.003),
        ],
    ),
];
/// Bytes of a file that is used at random: as all files of a phase are laid out with the room of the largest one, no more than streams need.
const RANDOM_BYTES: u64 = 256 << 20;

impl Group {
    /// Requests of each process, in a phase of so many bytes.
    fn requests(&self, bytes: u64) -> u64 {
        ((bytes as f64 * self.share / (self.processes * self.size) as f64) as u64).max(1)
    }
}

/// Bytes that are moved in a phase of about so many.
pub(super) fn bytes(mix: usize, about: u64) -> u64 {
    MIXES[mix].1.iter().map(|group| group.processes * group.size * group.requests(about)).sum()
}

/// Writes the trace of such a phase to a directory, if it is not there yet: the keys of the phase.
///
/// # Errors
/// If it cannot be written.
pub(super) fn keys(dir: &Path, mix: usize, about: u64) -> anyhow::Result<String> {
    let name = format!("mix{mix}-{about}.csv");
    let path = dir.join(&name);
    if !path.exists() {
        std::fs::write(&path, text(mix, about)).with_context(|| path.display().to_string())?;
    }
    Ok(format!("pattern = 'trace'\ntrace = '{name}'\nfile = 'mix{mix}'"))
}

/// All requests come as soon as the one before of the same process has ended.
fn text(mix: usize, about: u64) -> String {
    let mut text = "process,seconds,op,file,offset,bytes\n".to_owned();
    let mut random = SplitMix64(about ^ (mix as u64) << 56);
    let mut first = 0;
    for (number, group) in MIXES[mix].1.iter().enumerate() {
        let Group { processes, op, order, size, .. } = group;
        for process in 0..*processes {
            for at in 0..group.requests(about) {
                let (file, block) = match order {
                    Order::Own => (format!("own{}", first + process), at),
                    Order::Strided => (format!("shared{number}"), at * processes + process),
                    Order::Random => (format!("random{number}"), random.next() % (RANDOM_BYTES / size)),
                };
                let _ = writeln!(text, "{},0,{op},{file},{},{size}", first + process, block * size);
            }
        }
        first += processes;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_of_sixteen_processes_and_moves_what_it_says() {
        for (mix, (name, groups)) in MIXES.iter().enumerate() {
            assert_eq!(groups.iter().map(|group| group.processes).sum::<u64>(), 16, "{name}");
            assert!((groups.iter().map(|group| group.share).sum::<f64>() - 1.0).abs() < 1e-9, "{name}");
            let about = 100 << 20;
            let text = text(mix, about);
            let moved: u64 =
                text.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse::<u64>().unwrap()).sum();
            assert_eq!(moved, bytes(mix, about), "{name}");
            assert!((moved as f64 / about as f64 - 1.0).abs() < 0.1, "{name}: {moved}");
        }
    }
}
