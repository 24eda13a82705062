//! What a process has prefetched and not given up: exactly the bytes that its ghost asked for.

use crate::plan::{Range, merge};

/// Prefetched bytes of one file, in memory of the process. At most its quota.
#[derive(Debug, Default)]
pub struct Spans {
    /// Ascending, not touching each other; the data of each follows that of the one before.
    ranges: Vec<Range>,
    /// Where the data of each begins in `data`.
    at: Vec<usize>,
    data: Vec<u8>,
    /// Bytes of each that were read, at most its length: repetitions do not make up for what nobody reads.
    used: Vec<u64>,
}

impl Spans {
    /// Room for what `requests` ask for, zeroed, to be filled by [`Spans::fill`].
    #[must_use]
    pub fn for_requests(requests: &[Range]) -> Spans {
        let ranges = merge(requests.to_vec(), 0);
        let mut at = Vec::with_capacity(ranges.len());
        let mut len = 0;
        for range in &ranges {
            at.push(len);
            len += range.len as usize;
        }
        Spans { used: vec![0; ranges.len()], ranges, at, data: vec![0; len] }
    }

    /// What it has room for, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Prefetched bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Bytes that were read of them.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.iter().sum()
    }

    /// Takes what it wants of `bytes`, which are the file's from `offset` on. O(log n + what it takes).
    pub fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let given = Range::new(offset, bytes.len() as u64);
        let first = self.ranges.partition_point(|range| range.end() <= offset);
        for index in first..self.ranges.len() {
            let range = self.ranges[index];
            if !range.overlaps(&given) {
                break;
            }
            let from = range.offset.max(given.offset);
            let len = (range.end().min(given.end()) - from) as usize;
            let to = self.at[index] + (from - range.offset) as usize;
            let begin = (from - offset) as usize;
            self.data[to..to + len].copy_from_slice(&bytes[begin..begin + len]);
        }
    }

    /// Whether all bytes of `range` are here. O(log n).
    #[must_use]
    pub fn covers(&self, range: &Range) -> bool {
        range.len == 0 || self.find(range).is_some()
    }

    /// The bytes of `range`, which count as used, if all are here. O(log n).
    pub fn read(&mut self, range: &Range) -> Option<&[u8]> {
        if range.len == 0 {
            return Some(&[]);
        }
        let index = self.find(range)?;
        self.used[index] = (self.used[index] + range.len).min(self.ranges[index].len);
        let begin = self.at[index] + (range.offset - self.ranges[index].offset) as usize;
        Some(&self.data[begin..begin + range.len as usize])
    }

    fn find(&self, range: &Range) -> Option<usize> {
        let index = self.ranges.partition_point(|mine| mine.end() <= range.offset);
        let mine = self.ranges.get(index)?;
        (mine.offset <= range.offset && range.end() <= mine.end()).then_some(index)
    }

    /// Whether a byte of `range` is here.
    #[must_use]
    pub fn touches(&self, range: &Range) -> bool {
        let index = self.ranges.partition_point(|mine| mine.end() <= range.offset);
        self.ranges.get(index).is_some_and(|mine| mine.overlaps(range))
    }
}
