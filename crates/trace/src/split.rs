//! How requests become pieces, and are put together again.

use crate::entry::Entry;

/// Pieces are put together up to so many bytes.
const TOGETHER_MAX: u32 = 64 << 20;

/// How a volume splits requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Bytes of the largest request that reaches the volume; what programs ask for beyond that comes as several.
    pub request_max: u32,
    /// Bytes of the largest piece. Requests are cut at multiples of it, counted from where a stripe, or the file, begins.
    pub piece_max: u32,
    /// Data servers.
    pub targets: u32,
    /// Bytes of a file on a data server before the next one's; 0 with one data server.
    pub stripe: u64,
}

impl Split {
    /// The pieces of a program's request, in the order of the file: data server (counted from the one that the file begins
    /// on), offset in its part of the file, length. The inverse of [`Meta::logical_offset`](crate::Meta::logical_offset).
    ///
    /// Ranges beyond `u64::MAX` are cut there.
    pub fn pieces(self, offset: u64, len: u32) -> impl Iterator<Item = (u32, u64, u32)> {
        let end = offset.saturating_add(len.into());
        let (mut at, mut request_end) = (offset, offset);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            if at >= request_end {
                request_end = at.saturating_add(self.request_max.max(1).into()).min(end);
            }
            let striped = self.targets > 1 && self.stripe > 0;
            let (target, local, within, left) = if striped {
                let (unit, within) = (at / self.stripe, at % self.stripe);
                let (row, target) = (unit / u64::from(self.targets), unit % u64::from(self.targets));
                (target as u32, row * self.stripe + within, within, self.stripe - within)
            } else {
                (0, at, at, u64::MAX)
            };
            let max = u64::from(self.piece_max.max(1));
            let len = left.min(request_end - at).min(max - within % max);
            at += len;
            Some((target, local, len as u32))
        })
    }
}

/// A piece joined to the pieces of the same request that came before it; `None` if it belongs to another one. Offsets are
/// those of the whole file ([`Meta::logical_offset`](crate::Meta::logical_offset)).
#[must_use]
pub fn joined(whole: &Entry, next: &Entry) -> Option<Entry> {
    let same = (next.time, next.file, next.op, next.app) == (whole.time, whole.file, whole.op, whole.app);
    let len = whole.len.checked_add(next.len).filter(|&len| same && len <= TOGETHER_MAX)?;
    (next.offset == whole.end()).then_some(Entry { len, ..*whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meta;
    use proptest::prelude::*;

    const PLAIN: Split = Split { request_max: u32::MAX, piece_max: 1 << 20, targets: 1, stripe: 0 };

    #[test]
    fn requests_are_split_as_a_volume_does() {
        let all = |split: Split, offset, len| split.pieces(offset, len).collect::<Vec<_>>();
        assert_eq!(all(PLAIN, 5, (2 << 20) + 1), [(0, 5, (1 << 20) - 5), (0, 1 << 20, 1 << 20), (0, 2 << 20, 6)]);
        assert_eq!(all(PLAIN, 7, 0), []);
        let striped = Split { piece_max: 40, targets: 3, stripe: 64, ..PLAIN };
        assert_eq!(all(striped, 60, 80), [(0, 60, 4), (1, 0, 40), (1, 40, 24), (2, 0, 12)]);
        assert_eq!(all(striped, 192, 10), [(0, 64, 10)]);
        // The host hands a large request on in parts.
        let parts = Split { request_max: 50, piece_max: 40, ..PLAIN };
        assert_eq!(all(parts, 0, 100), [(0, 0, 40), (0, 40, 10), (0, 50, 30), (0, 80, 20)]);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_request_and_join_again(
            offset in any::<u64>(),
            len in 0..20_000_u32,
            request_max in 1..300_000_u32,
            piece_max in 1..300_000_u32,
            targets in 1..9_u32,
            stripe in 1..300_000_u64,
        ) {
            let split = Split { request_max, piece_max: piece_max.max(100), targets, stripe };
            let meta = Meta { targets, stripe, ..Meta::default() };
            let mut whole: Option<Entry> = None;
            for (target, local, len) in split.pieces(offset, len) {
                prop_assert!(len > 0 && len <= split.piece_max && len <= request_max && target < targets);
                let op = sluice_core::Op::Read;
                let piece = Entry { time: 1, file: 2, app: 3, target, op, offset: meta.logical_offset(target, local), len };
                whole = match whole {
                    None => Some(piece),
                    Some(whole) => {
                        let together = joined(&whole, &piece);
                        prop_assert!(together.is_some(), "{:?} {:?}", whole, piece);
                        together
                    }
                };
            }
            let covered = whole.map_or(0, |whole| whole.len);
            prop_assert_eq!(u64::from(covered), offset.saturating_add(len.into()) - offset);
            prop_assert!(whole.is_none_or(|whole| whole.offset == offset));
        }
    }
}
