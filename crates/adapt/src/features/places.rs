//! The tables of a watcher: fixed places, found by hash.

use std::hint::select_unpredictable;

use sluice_core::Time;

/// Mixes a number into a hash: a multiplication whose halves are folded (after wyhash, W. Yi).
#[inline]
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash ^ value) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

/// A hash of two numbers, in one such multiplication.
#[inline]
pub(super) fn mix_two(one: u64, other: u64) -> u64 {
    let product = u128::from(one ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(other ^ 0x8bb8_4b93_962e_acc9);
    (product >> 64) as u64 ^ product as u64
}

/// The key of a byte of a file, by which streams are found; never 0.
#[inline]
pub(super) fn key(file: u64, byte: u64) -> u64 {
    mix(file, byte) | 1
}

/// Which of two places a key takes: the one it has, a free one, or that of the older one. Without branches: nobody can predict
/// which one is older.
#[inline]
fn goes(key: u64, keys: [u64; 2], at: [Time; 2]) -> usize {
    let is_older = (keys[0] == 0) | ((keys[1] != 0) & (at[0] <= at[1]));
    usize::from((keys[0] != key) & ((keys[1] == key) | !is_older))
}

/// A sequential stream: what would continue it begins at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Hash of the file and the end; 0: the place is free.
    key: u64,
    /// When its last request arrived.
    pub(super) at: Time,
    /// When that was answered; 0: not yet.
    pub(super) answered: Time,
    /// The window in which it was continued last; 0: never.
    pub(super) window: u32,
}

impl Stream {
    /// One whose last request has just arrived.
    pub(super) fn new(at: Time, window: u32) -> Stream {
        Stream { at, window, ..Stream::default() }
    }
}

/// Places that share a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Pair([Stream; 2]);

/// Streams by what would continue them, in pairs of places.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pairs: Box<[Pair]>,
}

impl Streams {
    /// Room for about so many.
    pub(super) fn new(count: u32) -> Streams {
        let pairs = count.div_ceil(2).max(1).next_power_of_two() as usize;
        Streams { pairs: vec![Pair::default(); pairs].into() }
    }

    #[inline]
    fn pair(&mut self, key: u64) -> &mut [Stream; 2] {
        let at = (key >> 20) as usize & (self.pairs.len() - 1);
        &mut self.pairs[at].0
    }

    /// The place of a pair that has the key, if one has. Which one it is nobody can predict, so there is no branch for that, only
    /// for whether there is one: the smaller difference is 0 then (an `or` of two comparisons becomes two branches).
    #[inline]
    fn place(&mut self, key: u64) -> Option<&mut Stream> {
        let pair = self.pair(key);
        let apart = [pair[0].key ^ key, pair[1].key ^ key];
        (apart[0].min(apart[1]) == 0).then(|| &mut pair[usize::from(apart[1] == 0)])
    }

    /// The stream that a request continues that begins at the key; it leaves the table.
    #[inline]
    pub(super) fn take(&mut self, key: u64) -> Option<Stream> {
        let stream = self.place(key)?;
        let taken = *stream;
        stream.key = 0;
        Some(taken)
    }

    /// A stream that ends at the key now.
    #[inline]
    pub(super) fn put(&mut self, key: u64, stream: Stream) {
        let pair = self.pair(key);
        let way = goes(key, [pair[0].key, pair[1].key], [pair[0].at, pair[1].at]);
        pair[way] = Stream { key, ..stream };
    }

    /// The last request of the stream that ends at the key is answered.
    #[inline]
    pub(super) fn answered(&mut self, key: u64, now: Time) {
        if let Some(stream) = self.place(key) {
            stream.answered = now;
        }
    }
}

/// Counts different things by a bit for each of their hashes (linear counting, Whang et al. 1990).
#[derive(Clone, Debug)]
pub(super) struct Distinct {
    bits: [u64; Distinct::WORDS],
}

impl Distinct {
    /// Of some thousand things the count is right to a few per cent.
    const WORDS: usize = 64;

    pub(super) fn new() -> Distinct {
        Distinct { bits: [0; Distinct::WORDS] }
    }

    #[inline]
    pub(super) fn add(&mut self, hash: u64) {
        let at = (hash >> 20) as usize % (64 * Distinct::WORDS);
        self.bits[at / 64] |= 1 << (at % 64);
    }

    /// How many there were since the last time.
    pub(super) fn take(&mut self) -> u32 {
        let places = (64 * Distinct::WORDS) as f64;
        let taken: u32 = self.bits.iter().map(|word| word.count_ones()).sum();
        self.bits = [0; Distinct::WORDS];
        // If there is no place left there were more than can be said.
        let free = (places - f64::from(taken)).max(0.5);
        (places * (places / free).ln()).round() as u32
    }
}

/// When the last request to a stripe arrived in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    key: u64,
    at: Time,
    window: u32,
}

/// Stripes with requests in this window, one place each.
#[derive(Clone, Debug)]
pub(super) struct Stripes {
    seen: Box<[Seen]>,
}

impl Stripes {
    pub(super) fn new(count: u32) -> Stripes {
        Stripes { seen: vec![Seen::default(); count.max(1).next_power_of_two() as usize].into() }
    }

    /// A request to a stripe: since the one before in this window, if there was one.
    #[inline]
    pub(super) fn arrived(&mut self, file: u64, stripe: u64, now: Time, window: u32) -> (bool, u64) {
        let key = mix(file, !stripe) | 1;
        let seen = &mut self.seen[(key >> 20) as usize & (self.seen.len() - 1)];
        let is_within = (seen.key == key) & (seen.window == window);
        let since = select_unpredictable(is_within, now.since(seen.at), 0);
        *seen = Seen { key, at: now, window };
        (is_within, since)
    }
}
