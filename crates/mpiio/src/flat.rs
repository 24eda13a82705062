//! Derived datatypes as lists of byte ranges.
//!
//! A type is built from the types it is made of with the arguments of its constructor, as `MPI_Type_get_contents` tells them
//! (MPI 4.0, section 5.1). What is not understood, or has too many ranges, is `None`, never a guess.

use std::sync::Arc;

/// Ranges that a flattened type may have; above, flattening costs more than knowing the ranges brings.
pub const MAX_RANGES: usize = 1 << 20;

/// Ranges of one access.
const MAX_ACCESS_RANGES: i64 = 1 << 17;

/// Bytes from `offset` on; in a type relative to where the type is placed, in a file absolute.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// In bytes.
    pub offset: i64,
    /// In bytes, above 0.
    pub len: i64,
}

impl Range {
    /// The first byte behind it.
    pub fn end(self) -> i64 {
        self.offset + self.len
    }
}

/// How a type was constructed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combiner {
    /// `MPI_Type_dup`: no numbers.
    Dup,
    /// count
    Contiguous,
    /// count, blocklength, stride in elements
    Vector,
    /// count, blocklength; stride in bytes
    Hvector,
    /// count, blocklengths, displacements in elements
    Indexed,
    /// count, blocklengths; displacements in bytes
    Hindexed,
    /// count, blocklength, displacements in elements
    IndexedBlock,
    /// count, blocklength; displacements in bytes
    HindexedBlock,
    /// count, blocklengths; displacements in bytes
    Struct,
    /// dimensions, sizes, subsizes, starts, 1 if the first dimension is the fastest (Fortran)
    Subarray,
    /// processes, rank, dimensions, global sizes, distributions (0 none, 1 block, 2 cyclic), their arguments (-1: default),
    /// processes of each dimension, 1 if the first dimension is the fastest
    Darray,
    /// No numbers that MPI does not tell anyway.
    Resized,
}

/// A flattened type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flat {
    /// In the order of the type map, neighbours joined.
    ranges: Arc<[Range]>,
    /// Data bytes.
    size: i64,
    lower: i64,
    extent: i64,
}

/// Collects ranges of a type map.
#[derive(Default)]
struct Builder {
    ranges: Vec<Range>,
}

impl Builder {
    fn flat(self, extent: i64) -> Option<Flat> {
        let size = self.ranges.iter().try_fold(0i64, |sum, r| sum.checked_add(r.len))?;
        Some(Flat { ranges: self.ranges.into(), size, lower: 0, extent })
    }

    fn push(&mut self, range: Range) -> Option<()> {
        let is_full = self.ranges.len() == MAX_RANGES;
        match self.ranges.last_mut() {
            _ if range.len == 0 => {}
            Some(last) if last.end() == range.offset => last.len = last.len.checked_add(range.len)?,
            _ if is_full => return None,
            _ => self.ranges.push(range),
        }
        range.offset.checked_add(range.len)?;
        Some(())
    }

    /// `count` of `kid`, one behind the other by its extent, from `offset` on.
    fn place(&mut self, kid: &Flat, offset: i64, count: i64) -> Option<()> {
        if let [only] = *kid.ranges
            && only.len == kid.extent
        {
            let offset = offset.checked_add(only.offset)?;
            return self.push(Range { offset, len: only.len.checked_mul(count)? });
        }
        if kid.ranges.is_empty() {
            return Some(());
        }
        for index in 0..count {
            let base = offset.checked_add(index.checked_mul(kid.extent)?)?;
            for range in kid.ranges.iter() {
                self.push(Range { offset: base.checked_add(range.offset)?, len: range.len })?;
            }
        }
        Some(())
    }
}

/// What MPI says of a type. Constructors of structures round extents up to an alignment that only the library knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Data bytes.
    pub size: i64,
    /// Lower bound.
    pub lower: i64,
    /// From there to the upper bound.
    pub extent: i64,
    /// The first data byte.
    pub true_lower: i64,
    /// From there to behind the last one.
    pub true_extent: i64,
}

/// Numbers of a constructor, read in their order.
struct Numbers<'a>(std::slice::Iter<'a, i64>);

impl Numbers<'_> {
    fn next(&mut self) -> Option<i64> {
        self.0.next().copied()
    }

    /// A number that counts something.
    fn count(&mut self) -> Option<i64> {
        self.next().filter(|&n| n >= 0)
    }

    fn many(&mut self, n: usize) -> Option<Vec<i64>> {
        let taken: Vec<i64> = self.0.by_ref().take(n).copied().collect();
        (taken.len() == n).then_some(taken)
    }
}

impl Flat {
    /// A type without holes: `size` bytes.
    pub fn basic(size: i64) -> Option<Flat> {
        let mut builder = Builder::default();
        builder.push(Range { offset: 0, len: size }).filter(|()| size >= 0)?;
        builder.flat(size)
    }

    /// Its ranges, in the order of the type map.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Data bytes.
    pub fn size(&self) -> i64 {
        self.size
    }

    /// Lower bound and extent, in bytes.
    pub fn bounds(&self) -> (i64, i64) {
        (self.lower, self.extent)
    }

    /// The first byte and the one behind the last, of all ranges; `(0, 0)` without any.
    pub fn true_bounds(&self) -> (i64, i64) {
        let low = self.ranges.iter().map(|r| r.offset).min().unwrap_or(0);
        (low, self.ranges.iter().map(|r| r.end()).max().unwrap_or(0))
    }

    /// Whether offsets never go back, as those of a file type must not.
    pub fn is_ascending(&self) -> bool {
        self.ranges.windows(2).all(|pair| pair[0].end() <= pair[1].offset)
            && (self.ranges.is_empty() || {
                let (low, high) = self.true_bounds();
                low >= 0 && high - low <= self.extent
            })
    }

    /// The type that a constructor makes of `kids`, with its numbers in the order of [`Combiner`]: those of
    /// `MPI_Type_get_contents`, integers before addresses. `None` also where MPI tells something else of it. O(ranges).
    pub fn compose(combiner: Combiner, numbers: &[i64], kids: &[&Flat], told: Told) -> Option<Flat> {
        let made = Flat::made(combiner, numbers, kids)?;
        let flat = Flat { lower: told.lower, extent: told.extent, ..made };
        let (low, high) = flat.true_bounds();
        let is_same =
            flat.size == told.size && (flat.size == 0 || (low, high - low) == (told.true_lower, told.true_extent));
        is_same.then_some(flat)
    }

    /// As [`Flat::compose`]; bounds are for it to set.
    fn made(combiner: Combiner, numbers: &[i64], kids: &[&Flat]) -> Option<Flat> {
        let kid = *kids.first()?;
        let mut n = Numbers(numbers.iter());
        let mut builder = Builder::default();
        let mut block = |kid: &Flat, offset: i64, count: i64| builder.place(kid, offset, count);
        match combiner {
            Combiner::Dup | Combiner::Resized => return Some(kid.clone()),
            Combiner::Contiguous => block(kid, 0, n.count()?)?,
            Combiner::Vector | Combiner::Hvector => {
                let (count, len) = (n.count()?, n.count()?);
                let unit = if combiner == Combiner::Vector { kid.extent } else { 1 };
                let stride = n.next()?.checked_mul(unit)?;
                for index in 0..count {
                    block(kid, index.checked_mul(stride)?, len)?;
                    if len == 0 {
                        break;
                    }
                }
            }
            Combiner::Indexed | Combiner::Hindexed | Combiner::Struct => {
                let count = usize::try_from(n.count()?).ok()?;
                let (lens, places) = (n.many(count)?, n.many(count)?);
                let unit = if combiner == Combiner::Indexed { kid.extent } else { 1 };
                for (index, (&len, place)) in lens.iter().zip(places).enumerate() {
                    let kid = if combiner == Combiner::Struct { *kids.get(index)? } else { kid };
                    block(kid, place.checked_mul(unit)?, Some(len).filter(|&len| len >= 0)?)?;
                }
            }
            Combiner::IndexedBlock | Combiner::HindexedBlock => {
                let (count, len) = (usize::try_from(n.count()?).ok()?, n.count()?);
                let unit = if combiner == Combiner::IndexedBlock { kid.extent } else { 1 };
                for place in n.many(count)? {
                    block(kid, place.checked_mul(unit)?, len)?;
                }
            }
            Combiner::Subarray => {
                let dims = usize::try_from(n.count()?).ok()?;
                let (sizes, subsizes, starts) = (n.many(dims)?, n.many(dims)?, n.many(dims)?);
                let owned = subsizes.iter().zip(&starts).map(|(&len, &start)| vec![(start, len)]).collect();
                return array(kid, &sizes, owned, n.next()? == 1);
            }
            Combiner::Darray => {
                let (_, rank, dims) = (n.count()?, n.count()?, usize::try_from(n.count()?).ok()?);
                let (sizes, kinds) = (n.many(dims)?, n.many(dims)?);
                let (args, grid) = (n.many(dims)?, n.many(dims)?);
                // Processes are always in C's order.
                let mut left = rank;
                let mut place = vec![0; dims];
                for dim in (0..dims).rev() {
                    place[dim] = left.checked_rem(grid[dim])?;
                    left /= grid[dim];
                }
                let owned: Option<Vec<_>> =
                    (0..dims).map(|d| distributed(sizes[d], kinds[d], args[d], grid[d], place[d])).collect();
                return array(kid, &sizes, owned?, n.next()? == 1);
            }
        }
        builder.flat(0)
    }

    /// The ranges of bytes `from..from + len` of what the type holds, repeated for ever from `base` on: of a file view with
    /// this as file type and `base` as displacement, or of memory at `base`. O(ranges given + log of the type's).
    pub fn ranges_of(&self, base: i64, from: i64, len: i64) -> Option<Vec<Range>> {
        let mut found = Builder::default();
        if len == 0 {
            return Some(found.ranges);
        }
        if self.size <= 0 || from < 0 || len < 0 {
            return None;
        }
        if let [only] = *self.ranges
            && only.len == self.extent
        {
            let offset = base.checked_add(only.offset)?.checked_add(from)?;
            found.push(Range { offset, len })?;
            return Some(found.ranges);
        }
        // Before they are made: a call that is left to the library for their number is to cost nothing else.
        if (len / self.size + 1).saturating_mul(self.ranges.len() as i64) > MAX_ACCESS_RANGES {
            return None;
        }
        let mut base = base.checked_add((from / self.size).checked_mul(self.extent)?)?;
        let mut skip = from % self.size;
        let mut left = len;
        while left > 0 {
            for range in self.ranges.iter() {
                if skip >= range.len {
                    skip -= range.len;
                    continue;
                }
                let taken = (range.len - skip).min(left);
                found.push(Range { offset: base.checked_add(range.offset)?.checked_add(skip)?, len: taken })?;
                (skip, left) = (0, left - taken);
                if left == 0 {
                    break;
                }
            }
            base = base.checked_add(self.extent)?;
        }
        Some(found.ranges)
    }
}

/// What the process at `place` of `grid` has of a dimension: runs of (start, length).
fn distributed(size: i64, kind: i64, arg: i64, grid: i64, place: i64) -> Option<Vec<(i64, i64)>> {
    let block = match (kind, arg) {
        (0, _) => return Some(vec![(0, size)]),
        (1, -1) => size.checked_add(grid - 1)?.checked_div(grid)?,
        (2, -1) => 1,
        (1 | 2, block) if block > 0 => block,
        _ => return None,
    };
    let step = block.checked_mul(grid)?;
    let mut runs = Vec::new();
    let mut start = block.checked_mul(place)?;
    while start < size {
        if runs.len() == MAX_RANGES {
            return None;
        }
        runs.push((start, block.min(size - start)));
        start = start.checked_add(step)?;
        if kind == 1 {
            break;
        }
    }
    Some(runs)
}

/// The part of an array that has `owned` runs of each dimension; its extent is the whole array's.
fn array(kid: &Flat, sizes: &[i64], mut owned: Vec<Vec<(i64, i64)>>, first_is_fastest: bool) -> Option<Flat> {
    let mut sizes = sizes.to_vec();
    if first_is_fastest {
        sizes.reverse();
        owned.reverse();
    }
    // From the fastest dimension on: each is a sequence of what the ones before it make.
    let mut part = kid.clone();
    let mut whole = kid.extent;
    for (&size, runs) in sizes.iter().zip(&owned).rev() {
        let mut builder = Builder::default();
        let unit = Flat { extent: whole, ..part };
        for &(start, len) in runs {
            if start < 0 || len < 0 || start.checked_add(len)? > size {
                return None;
            }
            builder.place(&unit, start.checked_mul(whole)?, len)?;
        }
        whole = whole.checked_mul(size)?;
        part = builder.flat(whole)?;
    }
    Some(part)
}
