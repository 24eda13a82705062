//! What a process has prefetched and not given up: exactly the bytes that its ghost asked for.

use crate::plan::{Range, merge};

/// Where in a stretch of memory the bytes are that some requests ask for: ascending, each once.
#[derive(Debug, Default)]
pub struct Layout {
    /// Ascending, not touching each other; the data of each follows that of the one before.
    ranges: Vec<Range>,
    /// Where the data of each begins.
    at: Vec<usize>,
    len: usize,
}

impl Layout {
    /// Of what `requests` ask for. O(n log n).
    #[must_use]
    pub fn new(requests: &[Range]) -> Layout {
        let ranges = merge(requests.to_vec(), 0);
        let mut at = Vec::with_capacity(ranges.len());
        let mut len = 0;
        for range in &ranges {
            at.push(len);
            len += range.len as usize;
        }
        Layout { ranges, at, len }
    }

    /// Where it wants something of the `bytes` that are the file's from `offset` on, and what: `put` is given each part. O(log n +
    /// parts).
    pub fn give(&self, offset: u64, bytes: &[u8], mut put: impl FnMut(usize, &[u8])) {
        let given = Range::new(offset, bytes.len() as u64);
        let first = self.ranges.partition_point(|range| range.end() <= offset);
        let wanted = self.ranges[first..].iter().zip(&self.at[first..]);
        for (range, at) in wanted.take_while(|(range, _)| range.overlaps(&given)) {
            let from = range.offset.max(given.offset);
            let len = (range.end().min(given.end()) - from) as usize;
            put(at + (from - range.offset) as usize, &bytes[(from - offset) as usize..][..len]);
        }
    }
}

/// Prefetched bytes of one file, in memory of the process. At most its quota.
#[derive(Debug, Default)]
pub struct Spans {
    layout: Layout,
    data: Vec<u8>,
    /// Bytes of each range that were read, at most its length: repetitions do not make up for what nobody reads.
    used: Vec<u64>,
}

impl Spans {
    /// Room for what `requests` ask for, zeroed, to be filled by [`Spans::fill`].
    #[must_use]
    pub fn for_requests(requests: &[Range]) -> Spans {
        let layout = Layout::new(requests);
        Spans { used: vec![0; layout.ranges.len()], data: vec![0; layout.len], layout }
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
        let Spans { layout, data, .. } = self;
        layout.give(offset, bytes, |at, part| data[at..at + part.len()].copy_from_slice(part));
    }

    /// Takes all that it wants from `bytes`, which are laid out like its own. False if they are too few.
    pub fn fill_all(&mut self, bytes: &[u8]) -> bool {
        let there = bytes.get(..self.data.len());
        there.inspect(|bytes| self.data.copy_from_slice(bytes)).is_some()
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
        self.used[index] = (self.used[index] + range.len).min(self.layout.ranges[index].len);
        let begin = self.layout.at[index] + (range.offset - self.layout.ranges[index].offset) as usize;
        Some(&self.data[begin..begin + range.len as usize])
    }

    fn find(&self, range: &Range) -> Option<usize> {
        let index = self.layout.ranges.partition_point(|mine| mine.end() <= range.offset);
        let mine = self.layout.ranges.get(index)?;
        (mine.offset <= range.offset && range.end() <= mine.end()).then_some(index)
    }

    /// Whether a byte of `range` is here.
    #[must_use]
    pub fn touches(&self, range: &Range) -> bool {
        let index = self.layout.ranges.partition_point(|mine| mine.end() <= range.offset);
        self.layout.ranges.get(index).is_some_and(|mine| mine.overlaps(range))
    }
}
