//! Batches: what the requests of all processes come to, sorted and merged (DualPar, section 3.3.4).
//!
//! Reads may cover small holes between requests, which is cheaper than two requests. Writes never do: the dissertation fills
//! holes by reading them first and writing them back, which would undo what another program writes there meanwhile.

use std::collections::{BTreeMap, HashSet};

/// Bytes of a file: `len` from `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Range {
    /// `len` bytes from `offset` on.
    #[must_use]
    pub const fn new(offset: u64, len: u64) -> Range {
        Range { offset, len }
    }

    /// One past the last byte; the largest number if that is beyond it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Whether a byte is in both.
    #[must_use]
    pub const fn overlaps(&self, other: &Range) -> bool {
        self.len > 0 && other.len > 0 && self.offset < other.end() && other.offset < self.end()
    }
}

/// Size of a chunk of the global cache: 64 KB, as in the dissertation (3.3.4).
pub const CHUNK: u64 = 64 << 10;
/// Segments of a list request (3.3.4, after list I/O in PVFS).
pub const LIST_SEGMENTS: usize = 64;
/// Bytes of one request to storage, and how many are waited for at a time: servers are busy only with several.
pub const LONGEST: u64 = 256 << 10;
/// See [`LONGEST`].
pub const IN_FLIGHT: usize = 8;
/// The same of small requests, of which it takes more to keep servers busy.
pub const SMALL_IN_FLIGHT: usize = 32;
/// Holes up to this are read along: they take about as long as another request, and nothing more than that comes over the network.
pub const HOLE: u64 = 16 << 10;
/// Chunks of a batch that may go through the cache: 256 MB.
pub const BATCH_CHUNKS: usize = 4096;
/// Chunks that the requests of one process and cycle may touch: 16 MB.
pub const CYCLE_CHUNKS: usize = 256;
/// Larger writes are not collected, bytes.
pub const COLLECTED_WRITE: u64 = 256 << 10;
/// Bytes of one write to storage, if it is of several pieces.
pub const LONGEST_WRITE: u64 = 1 << 20;

/// The runs that cover `ranges`, ascending: sorted, overlapping and adjacent ones merged, and those that at most `hole` bytes
/// lie between. O(n log n); empty ranges are left out.
#[must_use]
pub fn merge(mut ranges: Vec<Range>, hole: u64) -> Vec<Range> {
    ranges.retain(|range| range.len > 0);
    ranges.sort_unstable();
    let mut runs: Vec<Range> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(last) if range.offset <= last.end().saturating_add(hole) => {
                last.len = last.end().max(range.end()) - last.offset;
            }
            _ => runs.push(range),
        }
    }
    runs
}

/// Numbers of the chunks that `runs` (ascending, of a file of `size` bytes) have all of, ascending; no more than `limit`.
#[must_use]
pub fn whole_chunks(runs: &[Range], size: u64, limit: usize) -> Vec<u64> {
    let of = |run: &Range| {
        let end = if run.end() >= size { size.div_ceil(CHUNK) } else { run.end() / CHUNK };
        run.offset.div_ceil(CHUNK)..end
    };
    runs.iter().flat_map(of).take(limit).collect()
}

/// `runs` without the bytes of `chunks` (both ascending). O(n).
#[must_use]
pub fn without(runs: &[Range], chunks: &[u64]) -> Vec<Range> {
    let mut left = Vec::new();
    let mut next = 0;
    for run in runs {
        let mut at = run.offset;
        while let Some(begin) = chunks.get(next).map(|chunk| chunk * CHUNK).filter(|&begin| begin < run.end()) {
            if begin > at {
                left.push(Range::new(at, begin - at));
            }
            at = at.max(begin.saturating_add(CHUNK));
            if at > run.end() {
                // The next run may have the rest of it.
                break;
            }
            next += 1;
        }
        if at < run.end() {
            left.push(Range::new(at, run.end() - at));
        }
    }
    left
}

/// As many of `requests`, in their order, as touch no more than [`CYCLE_CHUNKS`]. O(n + chunks).
#[must_use]
pub fn bounded(mut requests: Vec<Range>) -> Vec<Range> {
    let mut chunks = HashSet::new();
    let fit = requests.iter().take_while(|range| {
        chunks.extend(range.offset / CHUNK..=(range.end() - 1) / CHUNK);
        chunks.len() <= CYCLE_CHUNKS
    });
    let fit = fit.count();
    requests.truncate(fit);
    requests
}

/// `runs` (ascending) as requests, each within as many bytes as `longest` (at least 1) from a multiple of it on, as servers have
/// their stripes.
#[must_use]
pub fn segments(runs: &[Range], longest: u64) -> Vec<Range> {
    let longest = longest.max(1);
    let mut segments = Vec::new();
    for run in runs {
        let mut at = run.offset;
        while at < run.end() {
            let len = (longest - at % longest).min(run.end() - at);
            segments.push(Range::new(at, len));
            at += len;
        }
    }
    segments
}

/// How many of so many requests of so many bytes together are under way at a time.
#[must_use]
pub fn in_flight(requests: usize, bytes: u64) -> usize {
    let mean = (bytes / requests.max(1) as u64).max(1);
    let as_much = (IN_FLIGHT as u64 * LONGEST / mean) as usize;
    as_much.clamp(IN_FLIGHT, SMALL_IN_FLIGHT)
}

/// A part of a collected write that goes to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it goes in the file.
    pub range: Range,
    /// Index of the write that it comes from.
    pub write: usize,
    /// What of that write's data is before it, in bytes.
    pub skip: u64,
}

/// What `writes`, in the order in which they were made, leave in the file: ascending, nothing twice, of bytes written more
/// than once the last; and no byte that nobody wrote. O(n log n).
#[must_use]
pub fn overlay(writes: &[Range]) -> Vec<Piece> {
    let mut pieces: BTreeMap<u64, Piece> = BTreeMap::new();
    for (index, write) in writes.iter().enumerate().filter(|(_, write)| write.len > 0) {
        // From the last piece that begins at or before the new one on, whatever it touches is cut.
        let from = pieces.range(..=write.offset).next_back().map_or(write.offset, |(&offset, _)| offset);
        let touched: Vec<Piece> = pieces.range(from..write.end()).map(|(_, &piece)| piece).collect();
        for piece in touched.iter().filter(|piece| piece.range.overlaps(write)) {
            pieces.remove(&piece.range.offset);
            if piece.range.offset < write.offset {
                let head = Range::new(piece.range.offset, write.offset - piece.range.offset);
                pieces.insert(head.offset, Piece { range: head, ..*piece });
            }
            if piece.range.end() > write.end() {
                let cut = write.end() - piece.range.offset;
                let tail = Range::new(write.end(), piece.range.len - cut);
                pieces.insert(tail.offset, Piece { range: tail, skip: piece.skip + cut, ..*piece });
            }
        }
        pieces.insert(write.offset, Piece { range: *write, write: index, skip: 0 });
    }
    pieces.into_values().collect()
}

/// `pieces` (ascending), those together that follow each other without a hole: each group is one stretch of the file.
pub fn stretches(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    pieces.chunk_by(|left, right| left.range.end() == right.range.offset)
}

/// `pieces` (ascending) as requests: pieces that follow each other without a hole, no longer than [`LONGEST_WRITE`] if they are
/// several.
#[must_use]
pub fn write_requests(pieces: &[Piece]) -> Vec<&[Piece]> {
    let mut requests = Vec::new();
    for mut stretch in stretches(pieces) {
        while let Some(first) = stretch.first() {
            let fits = |piece: &&Piece| piece.range.end() - first.range.offset <= LONGEST_WRITE;
            let (request, rest) = stretch.split_at(stretch.iter().take_while(fits).count().max(1));
            requests.push(request);
            stretch = rest;
        }
    }
    requests
}
