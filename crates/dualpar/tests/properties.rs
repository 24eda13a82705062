//! Batches and the mode against naive models, the cache against servers that are lost, and neighbours that share memory.

use proptest::prelude::*;
use sluice_dualpar::group::{DATA, FileKey, Group, Kind, Outcome};
use sluice_dualpar::memcached::Cache;
use sluice_dualpar::mode::{Budget, Cycle, ModeControl, Settings, SlotBuilder};
use sluice_dualpar::plan::{
    CHUNK, LONGEST_WRITE, Range, merge, overlay, segments, stretches, whole_chunks, without, write_requests,
};
use sluice_dualpar::ring::Ring;
use sluice_dualpar::spans::{Layout, Spans};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

fn ranges(most: u64, longest: u64) -> impl Strategy<Value = Vec<Range>> {
    prop::collection::vec((0..most, 0..longest).prop_map(|(offset, len)| Range::new(offset, len)), 0..40)
}

fn bytes(ranges: &[Range]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|range| range.offset..range.end()).collect()
}

proptest! {
    #[test]
    fn merged_runs_are_what_was_asked_for_and_small_holes(asked in ranges(500, 30), hole in 0_u64..20) {
        let runs = merge(asked.clone(), hole);
        prop_assert!(runs.windows(2).all(|pair| pair[0].end() + hole < pair[1].offset));
        let (want, have) = (bytes(&asked), bytes(&runs));
        prop_assert!(want.is_subset(&have));
        for run in &runs {
            // No longer than it must be, and of the holes in it none is larger.
            let inside: Vec<u64> = want.range(run.offset..run.end()).copied().collect();
            prop_assert_eq!((inside[0], *inside.last().unwrap()), (run.offset, run.end() - 1));
            prop_assert!(inside.windows(2).all(|pair| pair[1] - pair[0] - 1 <= hole));
        }
    }

    #[test]
    fn segments_are_ascending_complete_and_within_stripes(asked in ranges(3000, 200), longest in 1_u64..150) {
        let runs = merge(asked, 0);
        let all = segments(&runs, longest);
        prop_assert!(all.iter().all(|segment| segment.len > 0 && segment.offset / longest == (segment.end() - 1) / longest));
        prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
        prop_assert_eq!(bytes(&all), bytes(&runs));
    }

    #[test]
    fn whole_chunks_are_those_of_which_nothing_is_missing(
        asked in prop::collection::vec((0_u64..160, 0_u64..24), 0..12), size in 1_u64..160, limit in 0_usize..40
    ) {
        // In eighths of a chunk.
        let unit = CHUNK / 8;
        let within = |(from, len): (u64, u64)| Range::new(from * unit, len.min(size.saturating_sub(from)) * unit);
        let runs = merge(asked.into_iter().map(within).collect(), 0);
        let has = |eighth: u64| runs.iter().any(|run| run.offset <= eighth * unit && (eighth + 1) * unit <= run.end());
        let whole = (0..size.div_ceil(8)).filter(|chunk| (chunk * 8..size.min(chunk * 8 + 8)).all(has));
        let chunks = whole_chunks(&runs, size * unit, limit);
        prop_assert_eq!(&chunks, &whole.take(limit).collect::<Vec<_>>());
        // And the rest of the runs is what is not in them.
        let left = without(&runs, &chunks);
        prop_assert!(left.iter().all(|range| range.len > 0));
        let eighths = |ranges: &[Range]| -> BTreeSet<u64> {
            ranges.iter().flat_map(|range| range.offset / unit..range.end() / unit).collect()
        };
        let kept: BTreeSet<u64> = eighths(&runs).into_iter().filter(|eighth| !chunks.contains(&(eighth / 8))).collect();
        prop_assert_eq!(eighths(&left), kept);
    }

    /// What a leader hands over is where whoever asked for it looks for it, and nothing else is.
    #[test]
    fn bytes_are_handed_over_where_they_are_looked_for(asked in ranges(400, 30), pieces in 1_usize..90) {
        let file: Vec<u8> = (0..500_u32).map(|at| (at * 7 % 251) as u8).collect();
        let (layout, mut spans) = (Layout::new(&asked), Spans::for_requests(&asked));
        let mut room = vec![0; spans.len() as usize];
        for from in (0..500).step_by(pieces) {
            let some = &file[from..500.min(from + pieces)];
            layout.give(from as u64, some, |at, part| room[at..at + part.len()].copy_from_slice(part));
        }
        prop_assert!(spans.fill_all(&room));
        for range in merge(asked, 0) {
            prop_assert_eq!(spans.read(&range).unwrap(), &file[range.offset as usize..range.end() as usize]);
        }
        prop_assert!(room.is_empty() || !spans.fill_all(&room[1..]));
    }

    #[test]
    fn writes_leave_what_they_left_one_by_one(writes in ranges(300, 40)) {
        let mut naive: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
        for (index, write) in writes.iter().enumerate() {
            naive.extend((0..write.len).map(|at| (write.offset + at, (index, at))));
        }
        let pieces = overlay(&writes);
        prop_assert!(pieces.windows(2).all(|pair| pair[0].range.end() <= pair[1].range.offset));
        let mut planned = BTreeMap::new();
        for piece in &pieces {
            planned.extend((0..piece.range.len).map(|at| (piece.range.offset + at, (piece.write, piece.skip + at))));
        }
        // Also: no byte that nobody wrote.
        prop_assert_eq!(planned, naive);
        prop_assert_eq!(stretches(&pieces).count(), merge(writes, 0).len());
        prop_assert_eq!(write_requests(&pieces).concat(), pieces);
    }

    #[test]
    fn writes_are_long_and_not_too_long(lens in prop::collection::vec(1..LONGEST_WRITE, 1..20), holes in prop::collection::vec(0_u64..2, 20)) {
        let mut at = 0;
        let writes: Vec<Range> = lens.iter().zip(holes).map(|(&len, hole)| {
            at += hole + len;
            Range::new(at - len, len)
        }).collect();
        let pieces = overlay(&writes);
        let requests = write_requests(&pieces);
        let of = |request: &[sluice_dualpar::plan::Piece]| Range::new(request[0].range.offset, request.iter().map(|piece| piece.range.len).sum());
        prop_assert!(requests.iter().all(|request| of(request).len <= LONGEST_WRITE));
        // Each ends where a hole is, or where the next piece would be too much.
        for pair in requests.windows(2) {
            let (one, next) = (of(pair[0]), pair[1][0].range);
            prop_assert!(one.end() < next.offset || one.len + next.len > LONGEST_WRITE);
        }
        prop_assert_eq!(requests.concat(), pieces);
    }

    #[test]
    fn spans_give_what_was_put_in(asked in ranges(400, 30), reads in ranges(420, 30)) {
        let file: Vec<u8> = (0..500_u32).map(|at| (at * 7 % 251) as u8).collect();
        let mut spans = Spans::for_requests(&asked);
        for from in (0..500).step_by(64) {
            spans.fill(from, &file[from as usize..500.min(from as usize + 64)]);
        }
        let want = bytes(&asked);
        prop_assert_eq!(spans.len() as usize, want.len());
        let mut used = BTreeSet::new();
        for read in reads {
            let covered = (read.offset..read.end()).all(|at| want.contains(&at));
            prop_assert_eq!(spans.covers(&read), covered);
            prop_assert_eq!(spans.touches(&read), (read.offset..read.end()).any(|at| want.contains(&at)));
            let got = spans.read(&read).map(<[u8]>::to_vec);
            prop_assert_eq!(got.is_some(), covered);
            if let Some(got) = got {
                prop_assert_eq!(&got[..], &file[read.offset as usize..read.end() as usize]);
                used.extend(read.offset..read.end());
            }
        }
        prop_assert!(spans.used() >= used.len() as u64 && spans.used() <= spans.len());
    }

    /// Whatever the program does with however many files, failed cycles cost no more than their share and the last one.
    #[test]
    fn losses_are_bounded(
        seed in any::<u64>(), forced in any::<bool>(), files in 1_usize..5, used in 0_u64..=70, cost in 1_000_u64..20_000_000, gap in 1_u64..50_000_000
    ) {
        let settings = Settings { forced, ..Settings::default() };
        let mut modes: Vec<ModeControl> = (0..files).map(|_| ModeControl::new(settings)).collect();
        let mut budget = Budget::default();
        let (mut now, mut random, mut lost) = (0_u64, seed | 1, 0);
        while now < 60_000_000_000 {
            now += gap;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mode = &mut modes[(random >> 33) as usize % files];
            if mode.may_start(now, &budget) {
                let cost = cost / 2 + random % cost;
                now += cost;
                lost += cost;
                mode.cycle(&Cycle { prefetched: 100_000, used: used * 1000, cost, computing: 0 }, now, &mut budget);
            } else {
                mode.slot(&busy_slot(1_000_000), now, &budget);
            }
        }
        // Where it is forced each file has a first cycle.
        let first = 2.0 + if forced { files as f64 } else { 1.0 };
        prop_assert!(lost as f64 <= now as f64 * settings.loss + first * cost as f64, "lost {lost} of {now}");
    }
}

/// 8 requests of 4 KB each, far from each other in the order of arrival, in which a program spends all its time.
fn busy_slot(each: u64) -> sluice_dualpar::mode::Slot {
    let mut builder = SlotBuilder::default();
    let each = each.max(8_000_000);
    (0..9)
        .find_map(|at| {
            builder.add(Range::new(at % 2 * 1_000_000 + at * 4096, 4096), 1_000_000, at * each, (at + 1) * each)
        })
        .expect("a slot of more than 50 ms")
}

#[test]
fn enters_and_leaves_as_the_dissertation_says() {
    let mut mode = ModeControl::new(Settings::default());
    let second = 1_000_000_000;
    let mut budget = Budget::default();
    let busy = busy_slot(0);
    assert!(busy.seek_distance > 3.0 * busy.request_distance);
    // Computing, or in order: never.
    for time in 1..10 {
        mode.slot(&sluice_dualpar::mode::Slot { io: busy.elapsed * 7 / 10, ..busy }, time * second, &budget);
        mode.slot(
            &sluice_dualpar::mode::Slot { seek_distance: busy.request_distance, size: 65536.0, ..busy },
            time * second,
            &budget,
        );
        assert!(!mode.is_on());
    }
    // Once could be chance.
    mode.slot(&busy, 10 * second, &budget);
    assert!(!mode.is_on());
    // Much memory makes copies of the process dear.
    mode.slot(&busy, 11 * second, &Budget { copy: 1e9, ..budget });
    assert!(!mode.is_on());
    mode.slot(&busy, 11 * second, &budget);
    assert!(mode.is_on() && mode.may_start(11 * second, &budget));
    // Cheap and used: the quota grows.
    let good = Cycle { prefetched: 65536, used: 65536, cost: 1_000_000, computing: 0 };
    let first = mode.quota();
    for _ in 0..10 {
        mode.cycle(&good, 12 * second, &mut budget);
    }
    assert!(mode.is_on() && mode.quota() == Settings::default().quota && first < mode.quota());
    // A program that computes most of the time does not profit from cycles.
    let mut computing = ModeControl::new(Settings::default());
    computing.slot(&busy, 10 * second, &budget);
    computing.slot(&busy, 10 * second, &budget);
    computing.cycle(&Cycle { computing: 10 * second, ..good }, 11 * second, &mut budget);
    assert!(!computing.is_on());
    // More than a fifth unused.
    mode.cycle(&Cycle { used: 52_000, ..good }, 13 * second, &mut budget);
    assert!(!mode.is_on() && mode.quota() == first);
    // Wrong four times in a row: never again.
    let wrong = Cycle { prefetched: 65536, used: 0, cost: 1_000_000, computing: 0 };
    let mut time = 100;
    for _ in 0..3 {
        (0..2).for_each(|_| mode.slot(&busy, time * second, &budget));
        assert!(mode.is_on());
        mode.cycle(&wrong, time * second, &mut budget);
        time *= 2;
    }
    (0..9).for_each(|_| mode.slot(&busy, time * second, &budget));
    assert!(!mode.is_on());
}

#[test]
fn a_lost_server_moves_only_its_keys() {
    let names = ["a:1", "b:1", "c:1", "d:1"];
    let (all, fewer) = (Ring::new(&names), Ring::new(&names[..3]));
    let keys: Vec<String> = (0..4000).map(|key| format!("sluice:{key:x}")).collect();
    let mut counts = [0; 4];
    for key in &keys {
        let server = all.server(key.as_bytes()).unwrap();
        counts[server] += 1;
        assert!(server == 3 || fewer.server(key.as_bytes()) == Some(server));
    }
    assert!(counts.iter().all(|&count| count > 400), "{counts:?}");
    assert_eq!(Ring::new::<&str>(&[]).server(b"x"), None);
}

/// Servers that are not there, that do not answer, and that talk nonsense: what they have is missing, soon.
#[test]
fn servers_that_fail_are_misses() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let silent = UnixListener::bind(at("silent")).unwrap();
    let noisy = UnixListener::bind(at("noisy")).unwrap();
    let speaker = std::thread::spawn(move || {
        let (mut stream, _) = noisy.accept().unwrap();
        let mut room = [0; 100];
        let _ = stream.read(&mut room);
        let _ = stream.write_all(b"VALUE key0 0 99999999999\r\n");
    });
    let before = Instant::now();
    for name in ["none", "silent", "noisy"] {
        let mut cache = Cache::new(&[at(name)]);
        for _ in 0..400 {
            cache.set("key0", &[1; 1000]);
            cache.get(&["key0".to_owned()], 65536, |_, _| panic!("nothing is there"));
            cache.flush();
        }
    }
    // A quarter of a second for each that is not answered would be 100 s.
    assert!(before.elapsed() < Duration::from_secs(50), "{:?}", before.elapsed());
    drop(silent);
    speaker.join().unwrap();
}

/// A cache that answers each connection's `get`: `answer` makes it of what was put there.
fn answering(path: &str, answer: impl Fn(&mut UnixStream, Vec<u8>) + Send + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut asked, mut room) = (stream.unwrap(), Vec::new(), [0; 4096]);
            let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|some| some == what);
            while !(find(&asked, b"\r\nget ").is_some() && asked.ends_with(b"\r\n")) {
                match stream.read(&mut room) {
                    Ok(len) if len > 0 => asked.extend(&room[..len]),
                    _ => break,
                }
            }
            // set KEY 0 60 LENGTH noreply
            let (Some(line), Some(end)) = (find(&asked, b"\r\n"), find(&asked, b"\r\nget ")) else { continue };
            answer(&mut stream, asked[line + 2..end].to_vec());
        }
    });
}

#[test]
fn answers_of_a_cache_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    answering(&at("endless"), |stream, _| while stream.write_all(b"SERVER_ERROR out of memory\r\n").is_ok() {});
    answering(&at("repeating"), |stream, stored| {
        let head = format!("VALUE key0 0 {}\r\n", stored.len()).into_bytes();
        let one = [&head[..], &stored, b"\r\n"].concat();
        while stream.write_all(&one).is_ok() {}
    });
    let (tell, told) = std::sync::mpsc::channel();
    let names = ["endless", "repeating"].map(at);
    std::thread::spawn(move || {
        for name in names {
            let mut cache = Cache::new(&[name]);
            cache.set("key0", &[1; 100]);
            cache.get(&["key0".to_owned(), "key1".to_owned()], 65536, |index, _| assert_eq!(index, 0));
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(60)).expect("a process listens to a server for ever");
}

#[test]
fn a_leader_that_panics_leaves_nobody_waiting() {
    const FILE: FileKey = FileKey { device: 1, inode: 2 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared");
    let first = Group::create(&path, 2).unwrap();
    let second = Group::attach(&path, 1).unwrap();
    for group in [&first, &second] {
        group.expect(Kind::Read, Some(FILE));
    }
    let (tell, told) = std::sync::mpsc::channel();
    for group in [first, second] {
        let tell = tell.clone();
        // Whoever leads both of them panics; the other one then leads itself.
        std::thread::spawn(move || {
            let work = || {
                group.join(Kind::Read, FILE, Duration::from_secs(60), |taken| {
                    assert!(taken.len() < 2, "as wanted: this test is about a panic");
                    Ok(())
                })
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            group.expect(Kind::Read, None);
            tell.send(outcome.ok()).unwrap();
        });
    }
    let mut outcomes = [(); 2].map(|()| told.recv_timeout(Duration::from_secs(50)).expect("one waits for ever"));
    outcomes.sort_by_key(Option::is_some);
    assert_eq!(outcomes, [None, Some((Outcome::Led(0), Ok(())))]);
}

#[test]
fn neighbours_are_served_together_and_nobody_waits_for_ever() {
    const FILE: FileKey = FileKey { device: 1, inode: 2 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared");
    let mut groups = vec![Group::create(&path, 3).unwrap()];
    groups.extend((1..3).map(|place| Group::attach(&path, place).unwrap()));
    assert!(Group::attach(&path, 3).is_err() && groups[0].is_complete());
    for (place, group) in groups.iter_mut().enumerate() {
        assert!(group.set_requests(&[Range::new(place as u64 * 10, 10)]));
        group.expect(Kind::Read, Some(FILE));
    }
    // All come; one of them serves all, with an error that all learn of.
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .iter_mut()
            .map(|group| {
                scope.spawn(move || {
                    let group = &*group;
                    group.join(Kind::Read, FILE, Duration::from_secs(60), |taken| {
                        let mut all: Vec<u64> = taken.iter().map(|&place| group.requests(place)[0].offset).collect();
                        all.sort_unstable();
                        assert_eq!(all, [0, 10, 20]);
                        Err(5)
                    })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(outcomes.iter().all(|(_, result)| *result == Err(5)));
    assert_eq!(outcomes.iter().filter(|(outcome, _)| *outcome == Outcome::Led(2)).count(), 1);
    // What is handed over to one who is not waiting for it has no place.
    // SAFETY: nobody else is here.
    unsafe { groups[0].hand_over(1, 0, &[1; 10]) };
    assert!(groups[1].handed_over().iter().all(|&byte| byte == 0));
    // The others do not come: nobody is waited for longer than that.
    let before = Instant::now();
    let (outcome, result) = groups[0].join(Kind::Read, FILE, Duration::from_millis(20), |taken| {
        assert_eq!(taken, [0]);
        Ok(())
    });
    assert_eq!((outcome, result), (Outcome::Led(0), Ok(())));
    assert!(before.elapsed() >= Duration::from_millis(20));
    // Nor at all if they do not want to come.
    groups[1..].iter().for_each(|group| group.expect(Kind::Read, None));
    assert_eq!(groups[0].join(Kind::Read, FILE, Duration::from_secs(600), |_| Ok(())).0, Outcome::Led(0));
}

/// Each process gets what it asked for, through memory that all share, also one that comes for the second time.
#[test]
fn whoever_leads_hands_over_to_the_others() {
    const FILE: FileKey = FileKey { device: 1, inode: 2 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared");
    let mut groups = vec![Group::create(&path, 3).unwrap()];
    groups.extend((1..3).map(|place| Group::attach(&path, place).unwrap()));
    for round in 1..3_u8 {
        for (place, group) in groups.iter_mut().enumerate() {
            assert!(group.set_requests(&[Range::new(place as u64 * 10, 10)]));
            group.expect(Kind::Read, Some(FILE));
        }
        std::thread::scope(|scope| {
            for group in &groups {
                scope.spawn(move || {
                    let serve = |taken: &[usize]| {
                        for &place in taken {
                            // SAFETY: by the thread that leads; the last two are beyond the room.
                            unsafe {
                                group.hand_over(place, 0, &[place as u8 * 10 + round; 10]);
                                group.hand_over(place, usize::MAX, &[9; 10]);
                                group.hand_over(place, DATA - 1, &[9; 2]);
                            }
                        }
                        Ok(())
                    };
                    assert_eq!(group.join(Kind::Read, FILE, Duration::from_secs(60), serve).1, Ok(()));
                    assert_eq!(group.handed_over()[..10], [group.mine() as u8 * 10 + round; 10]);
                    assert_eq!((group.handed_over().len(), group.handed_over()[DATA - 1]), (DATA, 0));
                });
            }
        });
    }
    assert!(Group::alone().unwrap().handed_over().is_empty());
}

#[test]
fn collected_writes_have_room_for_what_they_say() {
    let mut group = Group::alone().unwrap();
    let big = Range::new(5, 1 << 20);
    assert!(group.add_write(big, 0, |room| room.fill(7)));
    assert!(!group.add_write(Range::new(big.end(), 1), 1 << 20, |_| panic!("no room")));
    assert_eq!(group.writes(0).0, [big]);
    group.clear_writes();
    assert!(group.add_write(Range::new(0, 2), 0, |room| room.copy_from_slice(b"ab")));
    assert!(group.add_write(Range::new(2, 1), 2, |room| room.copy_from_slice(b"c")));
    assert_eq!((group.writes(0).0, &group.writes(0).1[..3]), (&[Range::new(0, 3)][..], &b"abc"[..]));
}
