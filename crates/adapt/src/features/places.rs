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

/// The key of a byte of a file, by which streams are found.
#[inline]
pub(super) fn key(file: u64, byte: u64) -> u64 {
    mix(file, byte)
}

/// What tells keys of a bucket apart; never 0.
#[inline]
fn tag_of(key: u64) -> u32 {
    key as u32 | 1
}

/// Which of two places takes what is called so: the one it has, a free one, or that of the older one. Without branches: nobody can
/// predict which one is older.
#[inline]
fn goes<T: PartialOrd>(tag: u32, tags: [u32; 2], at: [T; 2]) -> usize {
    let is_older = (tags[0] == 0) | ((tags[1] != 0) & (at[0] <= at[1]));
    usize::from((tags[0] != tag) & ((tags[1] == tag) | !is_older))
}

/// The place of a pair that is called so, if one is. Which one it is nobody can predict, so there is no branch for that, only
/// for whether there is one: the smaller difference is 0 then (an `or` of two comparisons becomes two branches).
#[inline]
fn found(tag: u32, tags: [u32; 2]) -> Option<usize> {
    let apart = [tags[0] ^ tag, tags[1] ^ tag];
    (apart[0].min(apart[1]) == 0).then_some(usize::from(apart[1] == 0))
}

/// A sequential stream: what would continue it begins at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Of the file and the end; 0: the place is free.
    tag: u32,
    /// The window in which it was continued last; 0: never.
    pub(super) window: u32,
    /// When its last request arrived.
    pub(super) at: Time,
    /// When that was answered; 0: not yet.
    pub(super) answered: Time,
}

impl Stream {
    /// One whose last request has just arrived.
    pub(super) fn new(at: Time, window: u32) -> Stream {
        Stream { at, window, ..Stream::default() }
    }
}

/// A request that continued nothing: what lies before it is still to come.
#[derive(Clone, Copy, Debug, Default)]
struct Beginning {
    /// Of the file and where it begins; 0: the place is free.
    tag: u32,
    /// When it arrived, in units of 1,024 ns, with whether it was answered in the place of the lowest bit. It starts over after 73 minutes,
    /// and the wrong one of a pair may give way then.
    at: u32,
}

/// What is looked up by the same byte, in one cache line: who goes on from there, and who began there.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    streams: [Stream; 2],
    beginnings: [Beginning; 2],
}

/// Streams by what would continue them, and requests that continued nothing by their beginnings, each in pairs of places.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    buckets: Box<[Bucket]>,
}

impl Streams {
    /// Room for about so many of each.
    pub(super) fn new(count: u32) -> Streams {
        let buckets = count.div_ceil(2).max(1).next_power_of_two() as usize;
        Streams { buckets: vec![Bucket::default(); buckets].into() }
    }

    #[inline]
    fn bucket(&mut self, key: u64) -> &mut Bucket {
        let at = (key >> 32) as usize & (self.buckets.len() - 1);
        &mut self.buckets[at]
    }

    #[inline]
    fn stream(&mut self, key: u64) -> Option<&mut Stream> {
        let streams = &mut self.bucket(key).streams;
        found(tag_of(key), streams.map(|stream| stream.tag)).map(|way| &mut streams[way])
    }

    #[inline]
    fn beginning(&mut self, key: u64) -> Option<&mut Beginning> {
        let beginnings = &mut self.bucket(key).beginnings;
        found(tag_of(key), beginnings.map(|beginning| beginning.tag)).map(|way| &mut beginnings[way])
    }

    /// The stream that a request continues that begins at the key; it leaves the table.
    #[inline]
    pub(super) fn take(&mut self, key: u64) -> Option<Stream> {
        let stream = self.stream(key)?;
        let taken = *stream;
        stream.tag = 0;
        Some(taken)
    }

    /// A stream that ends at the key now.
    #[inline]
    pub(super) fn put(&mut self, key: u64, stream: Stream) {
        let (tag, streams) = (tag_of(key), &mut self.bucket(key).streams);
        let way = goes(tag, streams.map(|stream| stream.tag), streams.map(|stream| stream.at));
        streams[way] = Stream { tag, ..stream };
    }

    /// The last request of the stream that ends at the key is answered.
    #[inline]
    pub(super) fn answered(&mut self, key: u64, now: Time) {
        if let Some(stream) = self.stream(key) {
            stream.answered = now;
        }
    }

    /// Whether the request that began at the key, and continued nothing, was answered, if there is one; it leaves the table.
    #[inline]
    pub(super) fn take_beginning(&mut self, key: u64) -> Option<bool> {
        let beginning = self.beginning(key)?;
        beginning.tag = 0;
        Some(beginning.at & 1 == 1)
    }

    /// A request that begins at the key and continues nothing has come.
    #[inline]
    pub(super) fn put_beginning(&mut self, key: u64, now: Time) {
        let (tag, beginnings) = (tag_of(key), &mut self.bucket(key).beginnings);
        let way = goes(tag, beginnings.map(|beginning| beginning.tag), beginnings.map(|beginning| beginning.at | 1));
        beginnings[way] = Beginning { tag, at: (now.0 >> 10) as u32 & !1 };
    }

    /// A request that began at the key and continued nothing is answered.
    #[inline]
    pub(super) fn answered_beginning(&mut self, key: u64) {
        if let Some(beginning) = self.beginning(key) {
            beginning.at |= 1;
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
