//! Whatever the bytes are: an error, or a prefix of what was written; never a panic, never other entries.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-trace --test hostile` tries harder.

use proptest::prelude::*;
use sluice_core::Op;
use sluice_trace::{Columns, End, Entry, Error, Extra, Meta, Reader, Sum, Writer};

fn entry() -> impl Strategy<Value = Entry> {
    let offset = prop_oneof![0..1_000_u64, (0..64_u32, any::<u64>()).prop_map(|(shift, n)| n >> shift >> 1)];
    let len = prop_oneof![Just(4096_u32), any::<u32>()];
    (any::<u64>(), 0..5_u32, any::<u32>(), 0..4_u32, any::<bool>(), offset, len).prop_map(
        |(time, file, app, target, write, offset, len)| {
            let op = if write { Op::Write } else { Op::Read };
            Entry { time, file, app, target, op, offset, len }
        },
    )
}

/// A trace of these entries with a block for each chunk.
fn written(chunks: &[Vec<Entry>], finish: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &Meta { targets: 4, ..Meta::default() }).unwrap();
    for n in 0..5 {
        writer.file(format!("dir/file-{n}").as_bytes()).unwrap();
    }
    for chunk in chunks {
        chunk.iter().for_each(|&entry| writer.push(entry).unwrap());
        writer.flush().unwrap();
    }
    if finish {
        writer.finish(7).unwrap();
    }
    bytes
}

/// What can be read, how it ended, and the error.
fn read(bytes: &[u8]) -> (Vec<Entry>, Result<End, Error>) {
    let mut all = Vec::new();
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (all, Err(error)),
    };
    let mut block = Columns::default();
    loop {
        match reader.next_block(&mut block) {
            Ok(true) => {
                for entry in block.iter() {
                    assert!((entry.file as usize) < reader.paths().len());
                    all.push(entry);
                }
            }
            Ok(false) => return (all, Ok(reader.end())),
            Err(error) => {
                assert!(block.is_empty());
                assert!(!error.to_string().is_empty());
                assert!(!reader.next_block(&mut block).unwrap(), "nothing follows an error");
                return (all, Err(error));
            }
        }
    }
}

fn chunks() -> impl Strategy<Value = Vec<Vec<Entry>>> {
    prop::collection::vec(prop::collection::vec(entry(), 1..30), 0..4)
}

proptest! {
    #[test]
    fn what_was_written_is_read(chunks in chunks(), finish in any::<bool>()) {
        let (all, end) = read(&written(&chunks, finish));
        prop_assert_eq!(all, chunks.concat());
        prop_assert_eq!(end.unwrap(), if finish { End::Complete { dropped: 7 } } else { End::CutShort { ignored: 0 } });
    }

    #[test]
    fn checksums_are_read_with_the_entries_that_have_them(
        entries in prop::collection::vec((entry(), prop::option::of((any::<u32>(), any::<u32>()))), 0..60),
    ) {
        let mut writer = Writer::new(Vec::new(), &Meta { checksums: true, ..Meta::default() }).unwrap();
        (0..5).for_each(|n| _ = writer.another_file(format!("{n}").as_bytes()).unwrap());
        let sum = |entry: &Entry, sum: Option<(u32, u32)>| {
            sum.map(|(crc, bytes)| Sum { crc, bytes: bytes.min(entry.len) }).filter(|sum| sum.bytes > 0)
        };
        for (at, &(entry, of)) in entries.iter().enumerate() {
            match sum(&entry, of) {
                None if at % 2 == 0 => writer.push_all(&[entry]).unwrap(),
                of => writer.push_summed(entry, of).unwrap(),
            }
        }
        let bytes = writer.finish(0).unwrap();
        let (mut reader, mut block, mut at) = (Reader::new(&bytes[..]).unwrap(), Columns::default(), 0);
        prop_assert!(reader.meta().checksums && bytes[10] == 1);
        while reader.next_block(&mut block).unwrap() {
            for (n, entry) in block.iter().enumerate() {
                prop_assert_eq!((entry, block.sum_of(n)), (entries[at].0, sum(&entry, entries[at].1)));
                at += 1;
            }
        }
        prop_assert_eq!(at, entries.len());
    }

    #[test]
    fn processes_and_what_is_missing_come_back(
        entries in prop::collection::vec((entry(), prop_oneof![Just(0), any::<u32>()], any::<bool>()), 0..60),
        why in "\\PC{0,60}",
        flush in 0..60_usize,
    ) {
        let mut writer = Writer::new(Vec::new(), &Meta { processes: true, checksums: true, ..Meta::default() }).unwrap();
        (0..5).for_each(|n| _ = writer.another_file(format!("{n}").as_bytes()).unwrap());
        let extra = |entry: &Entry, process, summed| {
            Extra { process, sum: (summed && entry.len > 0).then_some(Sum { crc: 7, bytes: 1 }) }
        };
        for (at, &(entry, process, summed)) in entries.iter().enumerate() {
            if at == flush {
                writer.flush().unwrap();
            }
            match extra(&entry, process, summed) {
                extra if extra == Extra::default() => writer.push_all(&[entry]).unwrap(),
                extra => writer.push_with(entry, extra).unwrap(),
            }
        }
        let bytes = writer.finish_incomplete(3, &why).unwrap();
        let (mut reader, mut block, mut at) = (Reader::new(&bytes[..]).unwrap(), Columns::default(), 0);
        prop_assert_eq!(bytes[10], 2);
        while reader.next_block(&mut block).unwrap() {
            for n in 0..block.len() {
                let (entry, process, summed) = entries[at];
                prop_assert_eq!((block.get(n), block.extra_of(n)), (entry, extra(&entry, process, summed)));
                at += 1;
            }
        }
        prop_assert_eq!((at, reader.incomplete(), reader.end()), (entries.len(), &*why, End::Complete { dropped: 3 }));
    }

    #[test]
    fn a_torn_tail_is_recognised_and_the_rest_is_read(chunks in chunks(), cut in any::<prop::sample::Index>(), zeros in 0..5000_usize) {
        let bytes = written(&chunks, true);
        let at = cut.index(bytes.len());
        let mut torn = bytes[..at].to_vec();
        let (all, end) = read(&torn);
        prop_assert_eq!(&chunks.concat()[..all.len()], &all[..]);
        match end {
            Ok(end) => {
                let cut_short = matches!(end, End::CutShort { .. });
                prop_assert!(cut_short);
            }
            Err(error) => prop_assert!(matches!(error, Error::NotATrace), "{}", error),
        }
        let whole = chunks.iter().scan(0, |sum, chunk| { *sum += chunk.len(); Some(*sum) });
        prop_assert!(all.is_empty() || whole.into_iter().any(|sum| sum == all.len()), "whole blocks only");
        // What a crash leaves on some file systems.
        torn.resize(at + zeros, 0);
        let (again, end) = read(&torn);
        prop_assert!(again.len() >= all.len(), "zeros may be what was cut off");
        prop_assert_eq!(&chunks.concat()[..again.len()], &again[..]);
        let fits = matches!(end, Ok(_) | Err(Error::NotATrace | Error::Corrupt { at: 0, .. }));
        prop_assert!(fits, "{:?}", end);
    }

    #[test]
    fn flipped_bits_give_an_error_or_a_prefix(
        chunks in chunks(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u32), 1..4),
    ) {
        let original = written(&chunks, true);
        let mut bytes = original.clone();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let (all, end) = read(&bytes);
        prop_assert_eq!(&chunks.concat()[..all.len()], &all[..]);
        let complete = matches!(end, Ok(End::Complete { .. }));
        prop_assert!(!complete || bytes == original, "damage goes unnoticed");
    }

    #[test]
    fn arbitrary_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300), head in 0..200_usize) {
        let _ = read(&bytes);
        let mut later = written(&[], false);
        later.truncate(head);
        later.extend_from_slice(&bytes);
        let _ = read(&later);
    }

    /// Blocks with right checksums and any contents: what the checksums cannot tell.
    #[test]
    fn forged_blocks_are_answered(
        kind in 0..6_u8,
        columns in 0..10_u8,
        count in prop_oneof![0..100_u32, any::<u32>()],
        payload in prop::collection::vec(any::<u8>(), 0..400),
        len in prop::option::of(any::<u32>()),
    ) {
        let mut bytes = written(&[], false);
        let mut header = vec![0; 20];
        header[..4].copy_from_slice(b"SLBK");
        (header[4], header[5]) = (kind, columns);
        header[8..12].copy_from_slice(&count.to_le_bytes());
        header[12..16].copy_from_slice(&len.unwrap_or(payload.len() as u32).to_le_bytes());
        header[16..].copy_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        bytes.extend_from_slice(&payload);
        let (all, _) = read(&bytes);
        prop_assert!(all.len() <= 1 << 20);
    }

    /// Columns with any descriptors over any data.
    #[test]
    fn forged_columns_are_answered(
        count in 1..50_u32,
        descriptors in prop::collection::vec((1..12_u8, 0..4_u8, 0..10_u8, 0..70_u8, 0..120_u32, any::<u64>()), 7..11),
        data in prop::collection::vec(any::<u8>(), 0..400),
        tidy in any::<bool>(),
    ) {
        let mut payload = Vec::new();
        let mut total = 0;
        for (n, &(id, encoding, width, shift, stored, base)) in descriptors.iter().enumerate() {
            let (id, stored) = if tidy { (n as u8 + 1, count * u32::from(width)) } else { (id, stored) };
            let stored = if encoding == 0 && tidy { 0 } else { stored };
            payload.extend_from_slice(&[id, encoding, width, shift]);
            payload.extend_from_slice(&stored.to_le_bytes());
            payload.extend_from_slice(&base.to_le_bytes());
            total += stored as usize;
        }
        payload.extend(data.iter().cycle().take(if tidy && !data.is_empty() { total } else { data.len() }));
        let mut bytes = written(&[vec![]], false);
        let mut header = vec![0; 20];
        header[..4].copy_from_slice(b"SLBK");
        header[5] = descriptors.len() as u8;
        header[8..12].copy_from_slice(&count.to_le_bytes());
        header[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[16..].copy_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        bytes.extend_from_slice(&payload);
        let (all, _) = read(&bytes);
        prop_assert!(all.iter().all(|entry| entry.offset.checked_add(entry.len.into()).is_some()));
    }
}

#[test]
fn other_files_and_later_versions_are_told_apart() {
    assert!(matches!(read(b"").1, Err(Error::NotATrace)));
    assert!(matches!(read(b"fio version 3 iolog\nand a long file of text\n").1, Err(Error::NotATrace)));
    let mut later = written(&[], true);
    later[8] = 2;
    let checksum = crc32fast::hash(&later[..20]);
    later[20..24].copy_from_slice(&checksum.to_le_bytes());
    assert!(matches!(read(&later).1, Err(Error::Version(2))));
    let mut longer = written(&[], true);
    longer.push(1);
    assert!(matches!(read(&longer).1, Err(Error::Corrupt { .. })));
}

#[test]
fn writers_refuse_what_readers_would() {
    let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
    let mut entry = Entry { time: 0, file: 0, app: 0, target: 0, op: Op::Read, offset: 0, len: 1 };
    assert!(writer.push(entry).is_err(), "no such path");
    writer.file(b"f").unwrap();
    entry.offset = u64::MAX;
    assert!(writer.push(entry).is_err(), "beyond 2^64");
    assert!(writer.file(&vec![b'x'; 1 << 17]).is_err(), "a path longer than any");
    // Of a reason that is too long the beginning is kept.
    let bytes = writer.finish_incomplete(0, &"\u{fc}".repeat(70_000)).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert!(!reader.next_block(&mut Columns::default()).unwrap());
    assert_eq!(reader.incomplete(), "\u{fc}".repeat(32_768));
}
