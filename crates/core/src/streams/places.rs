//! Where streams are: found by file and place in O(1), and those with nothing outstanding by how long they have been quiet.

use crate::list::{Links, List, NIL};

/// Lists by which streams are found.
const BUCKETS: usize = 1 << 13;
/// So many streams of a list are looked at: where more are in one place, they are those of programs that came together.
const LOOKED_AT: usize = 32;

/// One place in a file of each of the streams `0..number`.
#[derive(Debug)]
pub(super) struct Places {
    /// Streams are in cells of 2 to the power of this, which are at least as long as what is near.
    shift: u32,
    buckets: Vec<List>,
    links: Links,
    /// Of each stream: the bucket that it is in, or [`NIL`].
    bucket_of: Vec<u32>,
}

impl Places {
    pub(super) fn new(number: u32, near_bytes: u64) -> Places {
        Places {
            shift: Self::shift(near_bytes),
            buckets: vec![List::new(); BUCKETS],
            links: Links::new(number),
            bucket_of: vec![NIL; number as usize],
        }
    }

    fn shift(near_bytes: u64) -> u32 {
        near_bytes.checked_next_power_of_two().map_or(63, u64::trailing_zeros)
    }

    fn bucket(key: u64, cell: u64) -> usize {
        let mixed = (key ^ cell.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (mixed >> 32) as usize % BUCKETS
    }

    /// What is near is this far from now on. The streams have to be placed anew if this says so: O(streams).
    pub(super) fn set_near(&mut self, near_bytes: u64) -> bool {
        let shift = Self::shift(near_bytes);
        std::mem::replace(&mut self.shift, shift) != shift
    }

    /// A stream of this file is at `end` from now on.
    pub(super) fn place(&mut self, stream: u32, key: u64, end: u64) {
        let bucket = Self::bucket(key, end >> self.shift) as u32;
        let before = std::mem::replace(&mut self.bucket_of[stream as usize], bucket);
        if before != bucket {
            if before != NIL {
                self.buckets[before as usize].remove(&mut self.links, stream);
            }
            self.buckets[bucket as usize].push_front(&mut self.links, stream);
        }
    }

    /// The stream of a file that is nearest to `offset`, and near. `end`: where one is, if it is of this file.
    pub(super) fn nearest(
        &self,
        key: u64,
        offset: u64,
        near_bytes: u64,
        end: impl Fn(u32) -> Option<u64>,
    ) -> Option<u32> {
        let cell = offset >> self.shift;
        let cells = [Some(cell), cell.checked_sub(1), cell.checked_add(1)];
        let mut nearest = None;
        for cell in cells.into_iter().flatten() {
            let mut stream = self.buckets[Self::bucket(key, cell)].front().unwrap_or(NIL);
            for _ in 0..LOOKED_AT {
                if stream == NIL {
                    break;
                }
                if let Some(distance) = end(stream).map(|end| end.abs_diff(offset)).filter(|far| *far <= near_bytes) {
                    if distance == 0 {
                        return Some(stream);
                    }
                    if nearest.is_none_or(|(least, _)| distance < least) {
                        nearest = Some((distance, stream));
                    }
                }
                stream = self.links.next(stream);
            }
        }
        nearest.map(|(_, stream)| stream)
    }
}

/// Of the streams `0..number` those with nothing outstanding, by how long they have been quiet.
#[derive(Debug)]
pub(super) struct Quiet {
    list: List,
    links: Links,
}

impl Quiet {
    pub(super) fn new(number: u32) -> Quiet {
        let (mut list, mut links) = (List::new(), Links::new(number));
        (0..number).for_each(|stream| list.push_back(&mut links, stream));
        Quiet { list, links }
    }

    /// The stream that has been quiet for longest.
    pub(super) fn longest(&self) -> Option<u32> {
        self.list.front()
    }

    /// A stream has something outstanding from now on.
    pub(super) fn ends(&mut self, stream: u32) {
        self.list.remove(&mut self.links, stream);
    }

    /// A stream has nothing outstanding any more.
    pub(super) fn begins(&mut self, stream: u32) {
        self.list.push_back(&mut self.links, stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As by looking at all of them, whatever is near, and placed anew when that changes.
        #[test]
        fn finds_the_nearest_stream_of_the_file(
            near in prop::sample::select(vec![1, 3, 1000, 1 << 20, u64::MAX]),
            then in prop::sample::select(vec![1, 500, 1 << 19, u64::MAX]),
            moves in prop::collection::vec((0..24_u32, 0..3_u64, 0..5000_u64, any::<bool>()), 1..80),
        ) {
            let mut places = Places::new(24, near);
            let mut streams = [None; 24];
            let mut near_bytes = near;
            for (at, &(stream, key, place, far)) in moves.iter().enumerate() {
                let end = if far { u64::MAX - place } else { place };
                if at == moves.len() / 2 && places.set_near(then) {
                    near_bytes = then;
                    for (stream, (key, end)) in streams.iter().enumerate().filter_map(|(at, s)| Some((at, (*s)?))) {
                        places.place(stream as u32, key, end);
                    }
                }
                streams[stream as usize] = Some((key, end));
                places.place(stream, key, end);
                let offset = if far { u64::MAX - place / 2 } else { place * 2 };
                let of = |key: u64| move |(of, end): (u64, u64)| (of == key).then_some(end);
                let found = places.nearest(key, offset, near_bytes, |s| streams[s as usize].and_then(of(key)));
                let distances = streams.iter().filter_map(|s| s.and_then(of(key))).map(|end| end.abs_diff(offset));
                let found = found.map(|s| streams[s as usize].unwrap().1.abs_diff(offset));
                prop_assert_eq!(found, distances.filter(|far| *far <= near_bytes).min());
            }
        }

        /// The quietest is the one that became quiet first.
        #[test]
        fn the_quietest_is_the_one_that_has_been_quiet_for_longest(turns in prop::collection::vec(0..6_u32, 0..60)) {
            let mut quiet = Quiet::new(6);
            let mut expected: Vec<u32> = (0..6).collect();
            for stream in turns {
                match expected.iter().position(|&other| other == stream) {
                    Some(at) => { expected.remove(at); quiet.ends(stream); }
                    None => { expected.push(stream); quiet.begins(stream); }
                }
                prop_assert_eq!(quiet.longest(), expected.first().copied());
            }
        }
    }
}
