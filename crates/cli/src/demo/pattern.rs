//! What the demo's processes do, and the bytes they expect.

use serde::{Deserialize, Serialize};
use sluice_core::Op;

/// Processes of the demo.
pub(super) const PROCESSES: u32 = 4;
/// Threads of each.
pub(super) const THREADS: u32 = 8;

/// The access patterns by which applications interfere in the papers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// Each process reads a file of its own; its threads take turns record by record (1-D strided, 1 MiB).
    StridedRead,
    /// All processes write one shared file; each thread has a contiguous stretch of it (1 MiB at a time).
    ContiguousWrite,
    /// Each thread has a file of its own, as a process in file-per-process programs: half of them read, half write
    /// (256 KiB at a time).
    FilePerProcess,
}

pub(super) const PATTERNS: [Pattern; 3] = [Pattern::StridedRead, Pattern::ContiguousWrite, Pattern::FilePerProcess];

/// One access of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Pattern {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::StridedRead => "strided-read",
            Pattern::ContiguousWrite => "contiguous-write",
            Pattern::FilePerProcess => "file-per-process",
        }
    }

    /// Bytes of an access.
    fn unit(self) -> u64 {
        match self {
            Pattern::StridedRead | Pattern::ContiguousWrite => 1 << 20,
            Pattern::FilePerProcess => 256 << 10,
        }
    }

    /// Accesses of each thread at scale 1.
    fn accesses(self) -> u64 {
        match self {
            Pattern::StridedRead | Pattern::ContiguousWrite => 1,
            Pattern::FilePerProcess => 2,
        }
    }

    /// Name of the file that a thread works on.
    pub(super) fn file(self, process: u32, thread: u32) -> String {
        match self {
            Pattern::StridedRead => format!("{}-{process}", self.name()),
            Pattern::ContiguousWrite => self.name().to_owned(),
            Pattern::FilePerProcess => format!("{}-{process}-{thread}", self.name()),
        }
    }

    /// All files with their sizes.
    pub(super) fn files(self, scale: u64) -> Vec<(String, u64)> {
        let stretch = self.unit() * self.accesses() * scale;
        let mut files: Vec<(String, u64)> = Vec::new();
        for (process, thread) in (0..PROCESSES).flat_map(|p| (0..THREADS).map(move |t| (p, t))) {
            let name = self.file(process, thread);
            match files.iter_mut().find(|(known, _)| *known == name) {
                Some((_, size)) => *size += stretch,
                None => files.push((name, stretch)),
            }
        }
        files
    }

    /// What a thread does, in order.
    pub(super) fn accesses_of(self, process: u32, thread: u32, scale: u64) -> impl Iterator<Item = Access> {
        let (unit, count) = (self.unit(), self.accesses() * scale);
        let op = match self {
            Pattern::StridedRead => Op::Read,
            Pattern::ContiguousWrite => Op::Write,
            Pattern::FilePerProcess if process.is_multiple_of(2) => Op::Read,
            Pattern::FilePerProcess => Op::Write,
        };
        let client = u64::from(process * THREADS + thread);
        (0..count).map(move |n| {
            let offset = match self {
                Pattern::StridedRead => (n * u64::from(THREADS) + u64::from(thread)) * unit,
                Pattern::ContiguousWrite => (client * count + n) * unit,
                Pattern::FilePerProcess => n * unit,
            };
            Access { op, offset, len: unit as usize }
        })
    }

    /// Bytes of all threads.
    pub(super) fn bytes(self, scale: u64) -> u64 {
        self.unit() * self.accesses() * scale * u64::from(PROCESSES * THREADS)
    }

    /// Whether threads of this process write.
    pub(super) fn writes(self, process: u32) -> bool {
        self.accesses_of(process, 0, 1).any(|access| access.op == Op::Write)
    }
}

/// The word at `offset` (a multiple of 8) of a file: differs from place to place, file to file and writing to writing.
fn word(file: &str, offset: u64, writing: u64) -> u64 {
    let name =
        file.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut x = name ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ writing.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

/// Fills `buffer`, which is for `offset` of the file. `writing`: 0 for what the file held at first.
pub(super) fn fill(buffer: &mut [u8], file: &str, offset: u64, writing: u64) {
    for (at, bytes) in buffer.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(file, offset + 8 * at as u64, writing).to_le_bytes());
    }
}

/// The first offset at which `buffer` does not hold what [`fill`] puts there.
pub(super) fn mismatch(buffer: &[u8], file: &str, offset: u64, writing: u64) -> Option<u64> {
    let at = (0..)
        .zip(buffer.chunks_exact(8))
        .find(|(at, bytes)| *bytes != word(file, offset + 8 * at, writing).to_le_bytes())?;
    Some(offset + 8 * at.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_threads_cover_each_file_exactly_once() {
        for pattern in PATTERNS {
            for scale in [1, 3] {
                let sizes: HashMap<_, _> = pattern.files(scale).into_iter().collect();
                let mut covered: HashMap<String, Vec<(u64, u64)>> = HashMap::new();
                for (process, thread) in (0..PROCESSES).flat_map(|p| (0..THREADS).map(move |t| (p, t))) {
                    for access in pattern.accesses_of(process, thread, scale) {
                        let file = covered.entry(pattern.file(process, thread)).or_default();
                        file.push((access.offset, access.offset + access.len as u64));
                    }
                }
                for (name, mut ranges) in covered {
                    ranges.sort_unstable();
                    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{name}");
                    assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (0, sizes[&name]), "{name}");
                }
                assert_eq!(sizes.values().sum::<u64>(), pattern.bytes(scale));
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let mut buffer = vec![0; 4096];
        fill(&mut buffer, "f", 8192, 3);
        assert_eq!(mismatch(&buffer, "f", 8192, 3), None);
        buffer[1001] ^= 1;
        assert_eq!(mismatch(&buffer, "f", 8192, 3), Some(8192 + 1000));
        assert!(mismatch(&buffer, "f", 8192, 4).is_some());
    }
}
