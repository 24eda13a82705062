//! One column of a block: numbers that are near each other become few bytes.
//!
//! A number becomes its distance from the smallest one, or from the one before it; trailing zero bits that all distances
//! have are left out; what remains is cut into planes of one byte (first all lowest bytes, then all second ones...), as
//! many as the largest needs; and the planes are compressed together.

use std::io;

use crate::error::Problem;
use crate::format::{u32_at, u64_at};

/// Bytes of a column's descriptor.
pub(crate) const DESCRIPTOR: usize = 16;

/// All values are the base.
const CONSTANT: u8 = 0;
/// Distances from the base, which is the smallest value.
const REFERENCE: u8 = 1;
/// Distances from the value before, the base before the first; the sign is in the lowest bit ("zigzag").
const DELTA: u8 = 2;

/// What a column needs to be decoded, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) id: u8,
    encoding: u8,
    width: u8,
    shift: u8,
    pub(crate) stored: u32,
    base: u64,
}

impl Descriptor {
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Descriptor, Problem> {
        let descriptor = Descriptor {
            id: bytes[0],
            encoding: bytes[1],
            width: bytes[2],
            shift: bytes[3],
            stored: u32_at(bytes, 4),
            base: u64_at(bytes, 8),
        };
        let fits = match descriptor.encoding {
            CONSTANT => descriptor.width == 0 && descriptor.stored == 0,
            REFERENCE | DELTA => (1..=8).contains(&descriptor.width) && descriptor.shift < 64,
            _ => false,
        };
        if fits { Ok(descriptor) } else { Err(Problem::Columns) }
    }

    fn to_bytes(self) -> [u8; DESCRIPTOR] {
        let mut bytes = [0; DESCRIPTOR];
        (bytes[0], bytes[1], bytes[2], bytes[3]) = (self.id, self.encoding, self.width, self.shift);
        bytes[4..8].copy_from_slice(&self.stored.to_le_bytes());
        bytes[8..].copy_from_slice(&self.base.to_le_bytes());
        bytes
    }
}

/// Bytes that are tried before a large column is compressed.
const SAMPLE: usize = 4096;
/// Values that are looked at together.
const GROUP: usize = 512;

fn zigzag(distance: i64) -> u64 {
    ((distance << 1) ^ (distance >> 63)) as u64
}

fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

fn width_of(largest: u64) -> u8 {
    (64 - largest.leading_zeros()).div_ceil(8) as u8
}

/// Encodes columns; keeps its memory between them.
pub(crate) struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
    planes: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(level: i32) -> io::Result<Encoder> {
        Ok(Encoder { compressor: zstd::bulk::Compressor::new(level)?, planes: Vec::new() })
    }

    /// Appends a column's descriptor and bytes. There is at least one value.
    pub(crate) fn encode<T: Copy + PartialEq + Into<u64>>(
        &mut self,
        id: u8,
        values: &[T],
        descriptors: &mut Vec<u8>,
        data: &mut Vec<u8>,
    ) -> io::Result<()> {
        let Some(mut descriptor) = describe(id, values) else {
            let base = values.first().map_or(0, |&value| value.into());
            let constant = Descriptor { id, encoding: CONSTANT, width: 0, shift: 0, stored: 0, base };
            descriptors.extend_from_slice(&constant.to_bytes());
            return Ok(());
        };
        self.split(descriptor, values);
        let start = data.len();
        if self.is_noise(descriptor.width, values.len())? {
            data.extend_from_slice(&self.planes);
        } else {
            data.resize(start + zstd::zstd_safe::compress_bound(self.planes.len()), 0);
            let stored = self.compressor.compress_to_buffer(&self.planes, &mut data[start..])?;
            data.truncate(start + stored);
            if stored >= self.planes.len() {
                data.truncate(start);
                data.extend_from_slice(&self.planes);
            }
        }
        descriptor.stored = (data.len() - start) as u32;
        descriptors.extend_from_slice(&descriptor.to_bytes());
        Ok(())
    }

    /// Whether the lowest bytes, of which a sample is tried, are not to be compressed, and are most of the column: times of
    /// arrival mostly. Compressing those takes longer than all the rest, for little.
    fn is_noise(&mut self, width: u8, count: usize) -> io::Result<bool> {
        if width > 3 || count < SAMPLE {
            return Ok(false);
        }
        let packed = self.compressor.compress(&self.planes[..SAMPLE])?;
        Ok(packed.len() >= SAMPLE - SAMPLE / 32)
    }

    fn split<T: Copy + Into<u64>>(&mut self, descriptor: Descriptor, values: &[T]) {
        let (count, shift) = (values.len(), descriptor.shift);
        self.planes.clear();
        self.planes.resize(count * usize::from(descriptor.width), 0);
        let mut room = [0_u64; GROUP];
        let mut before = descriptor.base;
        for (at, group) in (0..).step_by(GROUP).zip(values.chunks(GROUP)) {
            let coded = &mut room[..group.len()];
            for (coded, &value) in coded.iter_mut().zip(group) {
                let value = value.into();
                *coded = match descriptor.encoding {
                    DELTA => zigzag((value.wrapping_sub(before) as i64) >> shift),
                    _ => (value - descriptor.base) >> shift,
                };
                before = value;
            }
            for plane in 0..usize::from(descriptor.width) {
                let bytes = &mut self.planes[plane * count + at..][..group.len()];
                bytes.iter_mut().zip(&*coded).for_each(|(byte, coded)| *byte = (coded >> (8 * plane)) as u8);
            }
        }
    }
}

/// How to encode these values, of which there is at least one; `None` if all are the same.
fn describe<T: Copy + PartialEq + Into<u64>>(id: u8, values: &[T]) -> Option<Descriptor> {
    let first = *values.first()?;
    // Group by group, as a loop without an exit is much faster.
    if values.chunks(GROUP).all(|group| group.iter().fold(true, |same, value| same & (*value == first))) {
        return None;
    }
    let first = first.into();
    let (mut min, mut max) = (first, first);
    let (mut bits, mut zigzags, mut before) = (0, 0, first);
    for &value in values {
        let value = value.into();
        (min, max) = (min.min(value), max.max(value));
        let distance = value.wrapping_sub(before);
        bits |= distance;
        zigzags |= zigzag(distance as i64);
        before = value;
    }
    // The distances from the smallest value have as many trailing zeros: they are sums of these.
    let shift = bits.trailing_zeros();
    let reference = width_of((max - min) >> shift);
    // The sign takes the place of one of the bits left out.
    let delta = width_of(zigzags >> shift);
    let (encoding, width, base) = if delta <= reference { (DELTA, delta, first) } else { (REFERENCE, reference, min) };
    Some(Descriptor { id, encoding, width, shift: shift as u8, stored: 0, base })
}

/// Decodes columns; keeps its memory between them.
pub(crate) struct Decoder {
    decompressor: zstd::bulk::Decompressor<'static>,
    planes: Vec<u8>,
    values: Vec<u64>,
}

impl Decoder {
    pub(crate) fn new() -> io::Result<Decoder> {
        Ok(Decoder { decompressor: zstd::bulk::Decompressor::new()?, planes: Vec::new(), values: Vec::new() })
    }

    /// The `count` values of a column, of which the caller knows that they are not too many.
    pub(crate) fn decode(&mut self, descriptor: Descriptor, stored: &[u8], count: usize) -> Result<&[u64], Problem> {
        self.values.clear();
        if descriptor.encoding == CONSTANT {
            self.values.resize(count, descriptor.base);
            return Ok(&self.values);
        }
        let raw = count * usize::from(descriptor.width);
        let planes = decompress(&mut self.decompressor, &mut self.planes, stored, raw)?;
        let mut each = planes.chunks_exact(count);
        let first = each.next().ok_or(Problem::Columns)?;
        self.values.extend(first.iter().map(|&byte| u64::from(byte)));
        for (plane, bytes) in each.enumerate() {
            let place = 8 * (plane + 1);
            self.values.iter_mut().zip(bytes).for_each(|(value, &byte)| *value |= u64::from(byte) << place);
        }
        let (base, shift) = (descriptor.base, descriptor.shift);
        if descriptor.encoding == DELTA {
            let mut sum = base;
            for value in &mut self.values {
                sum = sum.wrapping_add(unzigzag(*value) << shift);
                *value = sum;
            }
        } else {
            self.values.iter_mut().for_each(|value| *value = base.wrapping_add(*value << shift));
        }
        Ok(&self.values)
    }

    /// Compressed bytes to exactly `raw` ones; as many as that are not compressed.
    pub(crate) fn decompress<'a>(&'a mut self, stored: &'a [u8], raw: usize) -> Result<&'a [u8], Problem> {
        decompress(&mut self.decompressor, &mut self.planes, stored, raw)
    }
}

fn decompress<'a>(
    decompressor: &mut zstd::bulk::Decompressor<'static>,
    room: &'a mut Vec<u8>,
    stored: &'a [u8],
    raw: usize,
) -> Result<&'a [u8], Problem> {
    if stored.len() == raw {
        return Ok(stored);
    }
    room.resize(raw, 0);
    match decompressor.decompress_to_buffer(stored, &mut room[..]) {
        Ok(len) if len == raw => Ok(room),
        _ => Err(Problem::Compression),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(values: &[u64]) -> (Vec<u64>, usize) {
        let (mut descriptors, mut data) = (Vec::new(), Vec::new());
        Encoder::new(1).unwrap().encode(4, values, &mut descriptors, &mut data).unwrap();
        let descriptor = Descriptor::of_bytes(&descriptors).unwrap();
        assert_eq!((descriptor.id, descriptor.stored as usize), (4, data.len()));
        let mut decoder = Decoder::new().unwrap();
        (decoder.decode(descriptor, &data, values.len()).unwrap().to_vec(), data.len())
    }

    #[test]
    fn extremes_come_back() {
        for values in [
            &[0][..],
            &[u64::MAX],
            &[0, u64::MAX],
            &[u64::MAX, 0, 1],
            &[1 << 63, 0, 1 << 63],
            &[i64::MAX as u64, i64::MIN as u64],
            &[5, 5, 5],
        ] {
            assert_eq!(round_trip(values).0, values);
        }
    }

    #[test]
    fn regular_numbers_take_next_to_nothing() {
        let strided: Vec<u64> = (0..10_000).map(|n| (n % 100 * 64 + n / 100) << 15).collect();
        let (back, bytes) = round_trip(&strided);
        assert_eq!(back, strided);
        assert!(bytes < 500, "{bytes}");
        assert_eq!(round_trip(&[7; 1000]).1, 0);
    }

    proptest! {
        #[test]
        fn any_numbers_come_back(values in prop::collection::vec(any::<u64>(), 1..300), shift in 0..64, mask in any::<u64>()) {
            let values: Vec<u64> = values.iter().map(|value| (value & mask) << shift).collect();
            prop_assert_eq!(round_trip(&values).0, values);
        }
    }
}
