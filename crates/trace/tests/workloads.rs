//! Space on disk for what the papers' workloads look like, and merging.

use sluice_core::Op;
use sluice_trace::merge::{Align, Apart, merge};
use sluice_trace::{BLOCK_ENTRIES, Columns, End, Entry, Extra, Meta, Reader, Writer};

/// Entries of 4 applications of 16 processes; `place`: (process, its n-th request) to (file, offset).
fn workload(requests: u64, place: impl Fn(u64, u64) -> (u32, u64)) -> Vec<Entry> {
    let (processes, mut random, mut time) = (64, 0x9E37_79B9_7F4A_7C15_u64, 0);
    (0..requests)
        .map(|n| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Between arrivals up to 2 ms, to the nanosecond: nothing a compressor could guess.
            time += random % 2_000_000;
            let process = (n + (random >> 60)) % processes;
            let (file, offset) = place(process, n / processes);
            Entry {
                time,
                file,
                app: (process / 16) as u32,
                target: (random >> 40) as u32 % 4,
                op: Op::Write,
                offset,
                len: 32 << 10,
            }
        })
        .collect()
}

fn write(entries: &[Entry], meta: &Meta) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), meta).unwrap();
    for entry in entries {
        while writer.paths().len() <= entry.file as usize {
            let path = format!("run/data.{:05}", writer.paths().len());
            writer.file(path.as_bytes()).unwrap();
        }
        writer.push(*entry).unwrap();
    }
    writer.finish(0).unwrap()
}

fn read(bytes: &[u8]) -> (Vec<(Entry, Vec<u8>)>, End) {
    let (mut reader, mut block, mut all) = (Reader::new(bytes).unwrap(), Columns::default(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        all.extend(block.iter().map(|entry| (entry, reader.paths().get(entry.file).to_vec())));
    }
    (all, reader.end())
}

#[test]
fn an_entry_takes_at_most_16_bytes() {
    let unit = 32 << 10;
    let requests = 2 * BLOCK_ENTRIES as u64 + 1000;
    for (name, entries) in [
        ("strided", workload(requests, |process, n| ((process / 16) as u32, (n * 16 + process % 16) * unit))),
        ("contiguous", workload(requests, |process, n| ((process / 16) as u32, (process % 16 * 4096 + n) * unit))),
        ("file per process", workload(requests, |process, n| (process as u32, n * unit))),
    ] {
        let bytes = write(&entries, &Meta::default());
        let each = bytes.len() as f64 / entries.len() as f64;
        assert!(each <= 16.0, "{name}: {each} bytes an entry");
        let (all, end) = read(&bytes);
        assert_eq!(end, End::Complete { dropped: 0 });
        assert!(all.iter().map(|(entry, _)| entry).eq(entries.iter()), "{name}");
    }
}

#[test]
fn traces_merge_in_the_order_of_time_with_their_paths() {
    let one = |start: u64, name: &str, times: &[u64]| {
        let meta = Meta { start_unix_ns: start, ..Meta::default() };
        let mut writer = Writer::new(Vec::new(), &meta).unwrap();
        writer.file(b"unused").unwrap();
        let file = writer.file(name.as_bytes()).unwrap();
        for &time in times {
            writer.push(Entry { time, file, app: 0, target: 0, op: Op::Read, offset: time, len: 1 }).unwrap();
        }
        writer.finish(3).unwrap()
    };
    let (a, b) = (one(1_000, "a", &[0, 10, 20]), one(1_005, "b", &[0, 10]));
    for (align, expected) in [
        (Align::Clock, vec![(0, "a"), (5, "b"), (10, "a"), (15, "b"), (20, "a")]),
        (Align::Start, vec![(0, "a"), (0, "b"), (10, "a"), (10, "b"), (20, "a")]),
    ] {
        let mut readers = [Reader::new(&a[..]).unwrap(), Reader::new(&b[..]).unwrap()];
        let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
        assert_eq!(merge(&mut readers, align, Apart::Keep, &mut writer).unwrap(), 6);
        let (all, _) = read(&writer.finish(6).unwrap());
        let seen: Vec<_> = all.iter().map(|(entry, path)| (entry.time, std::str::from_utf8(path).unwrap())).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn different_files_of_one_path_stay_different_when_merged() {
    let of = |files: &[u32]| {
        let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
        (0..=*files.iter().max().unwrap()).for_each(|_| _ = writer.another_file(b"a").unwrap());
        for (time, &file) in (0..).zip(files) {
            writer.push(Entry { time, file, app: 0, target: 0, op: Op::Read, offset: 0, len: 1 }).unwrap();
        }
        writer.finish(0).unwrap()
    };
    let (a, b) = (of(&[0, 1, 0]), of(&[0, 0]));
    let mut readers = [Reader::new(&a[..]).unwrap(), Reader::new(&b[..]).unwrap()];
    let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
    merge(&mut readers, Align::Clock, Apart::Keep, &mut writer).unwrap();
    let bytes = writer.finish(0).unwrap();
    let (mut reader, mut block) = (Reader::new(&bytes[..]).unwrap(), Columns::default());
    assert!(reader.next_block(&mut block).unwrap());
    let files: Vec<u32> = (0..block.len()).map(|at| block.get(at).file).collect();
    assert_eq!((files, reader.paths().len()), (vec![0, 0, 1, 0, 0], 2));
}

#[test]
fn numbers_of_merged_traces_are_kept_apart_if_wanted() {
    let one = |numbers: &[(u32, u32)]| {
        let mut writer = Writer::new(Vec::new(), &Meta { processes: true, ..Meta::default() }).unwrap();
        let file = writer.file(b"f").unwrap();
        for (time, &(app, process)) in (0..).zip(numbers) {
            let entry = Entry { time, file, app, target: 0, op: Op::Read, offset: 0, len: 1 };
            writer.push_with(entry, Extra { process, sum: None }).unwrap();
        }
        writer.finish(0).unwrap()
    };
    let (a, b) = (one(&[(7, 0), (7, 5), (8, 0)]), one(&[(7, 5), (7, 0), (7, 5)]));
    for (apart, expected) in [
        (Apart::Keep, [(7, 0), (7, 5), (7, 5), (7, 0), (8, 0), (7, 5)]),
        (Apart::Applications, [(0, 0), (1, 5), (0, 5), (1, 0), (2, 0), (1, 5)]),
        (Apart::Processes, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 1)]),
    ] {
        let mut readers = [Reader::new(&a[..]).unwrap(), Reader::new(&b[..]).unwrap()];
        let mut writer = Writer::new(Vec::new(), &Meta { processes: true, ..Meta::default() }).unwrap();
        merge(&mut readers, Align::Clock, apart, &mut writer).unwrap();
        let bytes = writer.finish(0).unwrap();
        let (mut reader, mut block) = (Reader::new(&bytes[..]).unwrap(), Columns::default());
        assert!(reader.next_block(&mut block).unwrap());
        let seen: Vec<_> = (0..block.len()).map(|at| (block.get(at).app, block.process_of(at))).collect();
        assert_eq!(seen, expected, "{apart:?}");
    }
}

#[test]
fn a_logical_offset_is_found_from_its_place_on_a_target() {
    let meta = Meta { targets: 4, stripe: 64, ..Meta::default() };
    assert_eq!(meta.logical_offset(0, 10), 10);
    assert_eq!(meta.logical_offset(3, 10), 3 * 64 + 10);
    assert_eq!(meta.logical_offset(1, 64 + 1), 4 * 64 + 64 + 1);
    assert_eq!(Meta::default().logical_offset(0, 1 << 40), 1 << 40);
}
