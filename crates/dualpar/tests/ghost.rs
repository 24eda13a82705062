//! What ghosts do, and what of that anybody else can see: nothing.
//!
//! Without Rust's own test runner: its threads come and go beside a test, a process that gets threads may have no ghosts, and a
//! thread that allocates while another one forks leaves a locked allocator to the ghost.

use libtest_mimic::{Arguments, Trial};
use sluice_dualpar::ghost::{Cage, End, Recorder, Side, end, fork, is_ghost};
use sluice_dualpar::group::{FileKey, Group, Kind, Outcome};
use sluice_dualpar::memory::Memory;
use sluice_dualpar::mode::Settings;
use sluice_dualpar::plan::Range;
use sluice_dualpar::process::{Answer, Counters, Process, QUIET, Setup};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// More than any ghost takes that is not meant to be late, however busy the machine is.
const AMPLE: Duration = Duration::from_secs(60);

/// Runs `work` in a ghost that may take so long.
fn run(limit: Duration, work: impl FnOnce(&mut Recorder)) -> (End, Vec<Range>) {
    let mut recorder = Recorder::new().unwrap();
    let cage = Cage::new().unwrap();
    match fork(&recorder, &cage).unwrap() {
        Side::Ghost => {
            work(&mut recorder);
            end()
        }
        Side::Process(ghost) => {
            let end = ghost.wait(limit);
            (end, recorder.requests(1 << 40, 1 << 30))
        }
    }
}

fn tells_what_it_would_read() {
    let (end, requests) = run(AMPLE, |recorder| {
        for index in 0..10 {
            recorder.add(Range::new(index * 100, 10));
        }
    });
    assert_eq!(end, End::Paused);
    assert_eq!(requests.len(), 10);
}

fn opens_what_reading_does_not_change() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "four").unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
    let (end, requests) = run(AMPLE, |recorder| {
        for name in ["file", "link"] {
            let len = std::fs::read(dir.path().join(name)).map_or(0, |read| read.len());
            recorder.add(Range::new(100 * len as u64, len as u64));
        }
        let missing = std::fs::File::open(dir.path().join("missing")).map_err(|error| error.kind());
        assert!(missing.is_err_and(|kind| kind == std::io::ErrorKind::NotFound));
        recorder.add(Range::new(1000, 1));
    });
    assert_eq!((end, requests), (End::Paused, vec![Range::new(400, 4), Range::new(400, 4), Range::new(1000, 1)]));
    // A reader of a pipe would take what somebody writes, and wait until somebody does.
    let pipe = dir.path().join("pipe");
    let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a name.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for path in [pipe.as_path(), std::path::Path::new("/dev/tty"), std::path::Path::new("/dev/ptmx")] {
        if path.exists() {
            let (end, _) = run(AMPLE, |_| drop(std::fs::File::open(path)));
            assert_eq!(end, End::Stopped, "{}", path.display());
        }
    }
}

fn changes_no_file_and_no_offset() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"as it was").unwrap();
    file.seek(SeekFrom::Start(3)).unwrap();
    // SAFETY: a new mapping of an open file.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    // Through descriptors: harmless, so it goes on.
    let (ended, _) = run(AMPLE, |_| {
        let _ = file.write_all(b"changed");
        let _ = file.seek(SeekFrom::Start(0));
        println!("nobody reads this");
    });
    assert_eq!(ended, End::Paused);
    let attempts: [&dyn Fn(); 6] = [
        // SAFETY: mapped, but taken away in a ghost: that is what is tested.
        &|| unsafe { map.cast::<u8>().write_volatile(b'X') },
        &|| drop(std::fs::File::options().write(true).open(&path)),
        &|| drop(std::fs::write(dir.path().join("new"), "x")),
        &|| drop(std::fs::remove_file(&path)),
        &|| drop(std::fs::rename(&path, dir.path().join("other"))),
        &|| {
            // SAFETY: takes no pointers; the parent must survive it.
            unsafe { libc::kill(libc::getppid(), libc::SIGKILL) };
        },
    ];
    for (index, attempt) in attempts.iter().enumerate() {
        assert_eq!(run(AMPLE, |_| attempt()).0, End::Stopped, "attempt {index}");
    }
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "it was");
    assert_eq!(std::fs::read(&path).unwrap(), b"as it was");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

fn may_read_files_of_its_own() {
    let (ended, requests) = run(AMPLE, |recorder| {
        if std::fs::read("/proc/self/status").is_ok_and(|status| !status.is_empty()) {
            recorder.add(Range::new(1, 1));
        }
    });
    assert_eq!((ended, requests.len()), (End::Paused, 1));
}

fn ends_in_time_and_with_little_memory() {
    let before = Instant::now();
    assert_eq!(run(Duration::from_millis(50), |_| while Instant::now() >= before {}).0, End::Late);
    assert!(before.elapsed() < AMPLE);
    let greedy = |_: &mut Recorder| {
        let mut all = Vec::new();
        while let Ok(some) = std::panic::catch_unwind(|| vec![1_u8; 1 << 20]) {
            all.push(some);
        }
    };
    assert_eq!(run(AMPLE, greedy).0, End::Stopped);
    assert_eq!(run(AMPLE, |_| std::process::abort()).0, End::Stopped);
    let program = |_: &mut Recorder| drop(std::process::Command::new("true").status());
    assert_eq!(run(AMPLE, program).0, End::Stopped);
}

fn is_invisible_to_its_process() {
    static SIGNALS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    extern "C" fn count(_: libc::c_int) {
        SIGNALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    // SAFETY: the handler only counts.
    unsafe { libc::signal(libc::SIGCHLD, count as *const () as libc::sighandler_t) };
    let mut recorder = Recorder::new().unwrap();
    recorder.clear();
    let Side::Process(ghost) = fork(&recorder, &Cage::new().unwrap()).unwrap() else { end() };
    // SAFETY: no pointer that is used. Whoever waits for any child must not see the ghost, whether it runs or has ended.
    let found = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(found, -1);
    assert_eq!(ghost.wait(AMPLE), End::Paused);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// A program that reads a file in pieces of 100 bytes from its end on, by data-driven execution; `between` runs before each read,
/// not in ghosts. What it reads must be what the file has at that time.
fn read_backwards(mut between: impl FnMut(u64, &std::fs::File)) -> Counters {
    const PIECES: u64 = 200;
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&(0..PIECES * 100).map(|at| (at % 250) as u8).collect::<Vec<_>>(), 0).unwrap();
    let written = Instant::now();
    let setup = Setup {
        group: Group::alone().unwrap(),
        servers: Vec::new(),
        run: 1,
        settings: Settings { forced: true, ..Settings::default() },
        no_ghosts: None,
    };
    let mut process = Process::new(setup);
    let index = process.open(file.as_fd(), true, true, false).unwrap();
    while written.elapsed() < QUIET * 2 {}
    for piece in (0..PIECES).rev() {
        if !is_ghost() {
            between(piece, &file);
            process.message();
        }
        let mut room = [0; 100];
        let memory = [Range::new(room.as_mut_ptr() as u64, 100)];
        // SAFETY: the memory of `room`, for this call.
        let answer = process.read(index, &[Range::new(piece * 100, 100)], unsafe { Memory::new(&memory) });
        let mut real = [0; 100];
        file.read_exact_at(&mut real, piece * 100).unwrap_or_default();
        assert!(answer != Answer::Served || room == real, "piece {piece}");
        if answer == Answer::Pass {
            process.passed(index, &[Range::new(piece * 100, 100)], false);
        }
    }
    if is_ghost() {
        end();
    }
    process.close(index).1
}

/// What a run has done in which no ghost was late, as on a busy machine one may be: that costs time, and no more.
fn in_time(run: impl Fn() -> Counters) -> Counters {
    std::iter::repeat_with(run).take(50).find(|did| did.ghosts[End::Late as usize] == 0).expect("a ghost in time")
}

fn what_a_process_reads_is_read_for_it_at_once() {
    let did = in_time(|| read_backwards(|_, _| ()));
    assert_eq!((did.cycles, did.prefetched, did.used, did.requests), (1, 20_000, 20_000, 1), "{did}");
}

fn what_has_changed_is_not_used() {
    let change = |piece, file: &std::fs::File| {
        if piece == 150 {
            file.write_all_at(b"something else", 14_990).unwrap();
        }
    };
    let did = in_time(|| read_backwards(change));
    // Where the rest takes long enough there is another cycle.
    assert!(did.cycles >= 1 && did.stale == 1, "{did}");
}

/// Runs `work` in a process of its own, which has no other threads; a panic is 255.
fn beside(work: impl FnOnce() -> u8) -> libc::pid_t {
    // SAFETY: this program has one thread (see above).
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(255);
        // SAFETY: takes no pointers and does not return: the tests go on in the other process.
        unsafe { libc::_exit(code.into()) }
    }
    pid
}

/// What a process of [`beside`] has ended with.
fn ended(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: there is room for a status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Process `place` of three, each of which reads every third piece of a file. `begun` is as long as there are processes that have begun:
/// the first may have ended before the last looks, so that they are never seen together.
fn read_in_turn(group: Group, place: u64, file: &std::fs::File, mut begun: &std::fs::File) -> Counters {
    let settings = Settings { forced: true, ..Settings::default() };
    let mut process = Process::new(Setup { group, servers: Vec::new(), run: 1, settings, no_ghosts: None });
    let index = process.open(file.as_fd(), true, false, true).unwrap();
    begun.write_all(b".").unwrap();
    while begun.metadata().unwrap().len() < 3 {}
    for piece in 0..90 {
        let at = (piece * 3 + place) * 1000;
        let mut room = [0; 1000];
        let memory = [Range::new(room.as_mut_ptr() as u64, 1000)];
        // SAFETY: the memory of `room`, for this call.
        let answer = process.read(index, &[Range::new(at, 1000)], unsafe { Memory::new(&memory) });
        let right = || (at..).zip(room).all(|(at, byte)| byte == (at % 251) as u8);
        assert!(answer != Answer::Served || right(), "piece {piece} of process {place}");
    }
    if is_ghost() {
        end();
    }
    process.close(index).1
}

/// Without any cache: whoever comes first reads for all, and hands over to each what that one asked for.
fn neighbours_read_for_each_other() {
    let run = || {
        let dir = tempfile::tempdir().unwrap();
        let (path, name) = (dir.path().join("shared"), dir.path().join("file"));
        std::fs::write(&name, (0..270_000_u32).map(|at| (at % 251) as u8).collect::<Vec<_>>()).unwrap();
        let written = Instant::now();
        let group = Group::create(&path, 3).unwrap();
        while written.elapsed() < QUIET * 2 {}
        let file = std::fs::File::open(&name).unwrap();
        let begun = tempfile::tempfile().unwrap();
        // Whether another process has served one of its cycles.
        let was_served = |group, place| {
            let did = read_in_turn(group, place, &file, &begun);
            did.used > 0 && did.cycles > did.led
        };
        let others =
            [1, 2].map(|place| beside(|| u8::from(was_served(Group::attach(&path, place).unwrap(), place as u64))));
        let mine = was_served(group, 0);
        let others = others.map(|pid| ended(pid).expect("an end by itself"));
        assert!(others.iter().all(|code| (0..=1).contains(code)), "{others:?}");
        mine || others.contains(&1)
    };
    // On a busy machine they may miss each other.
    assert!((0..50).any(|_| run()));
}

/// Who is being served by a process that dies is alone then, and what that one has done to its place does not matter.
fn a_leader_that_dies_is_not_waited_for() {
    const FILE: FileKey = FileKey { device: 1, inode: 2 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared");
    let mut group = Group::create(&path, 3).unwrap();
    assert!(group.set_requests(&[Range::new(0, 10)]));
    // One who is waited for, as long as patience lasts.
    let third = Group::attach(&path, 2).unwrap();
    third.expect(Kind::Read, Some(FILE));
    let leader = beside(|| {
        let mut leader = Group::attach(&path, 1).unwrap();
        assert!(leader.set_requests(&[Range::new(10, 10)]));
        // Until the other one has come.
        loop {
            let _ = leader.join(Kind::Read, FILE, Duration::from_millis(1), |taken| {
                if taken == [1, 0] {
                    // SAFETY: this is the leader, and has one thread. The second takes no pointers.
                    unsafe {
                        leader.hand_over(0, 0, &[1; 5]);
                        libc::_exit(7)
                    }
                }
                Ok(())
            });
        }
    });
    let (outcome, _) = group.join(Kind::Read, FILE, Duration::from_secs(600), |_| panic!("the other one leads"));
    assert_eq!(outcome, Outcome::Alone);
    assert_eq!(ended(leader), Some(7));
}

fn a_process_reads_what_it_has_written_and_others_see_it_before_messages() {
    let file = tempfile::tempfile().unwrap();
    let setup = Setup {
        group: Group::alone().unwrap(),
        servers: Vec::new(),
        run: 1,
        settings: Settings { forced: true, ..Settings::default() },
        no_ghosts: Some("none are wanted".to_owned()),
    };
    let mut process = Process::new(setup);
    let index = process.open(file.as_fd(), true, true, true).unwrap();
    let write = |process: &mut Process, at: u64, bytes: &mut [u8]| {
        let memory = [Range::new(bytes.as_mut_ptr() as u64, bytes.len() as u64)];
        // SAFETY: the memory of `bytes`, for this call.
        process.write(index, &[Range::new(at, bytes.len() as u64)], unsafe { Memory::new(&memory) })
    };
    let len = || file.metadata().unwrap().len();
    assert_eq!(write(&mut process, 4, &mut b"efgh".to_vec()), Answer::Served);
    assert_eq!(write(&mut process, 0, &mut b"abcdEF".to_vec()), Answer::Served);
    assert_eq!(len(), 0);
    process.message();
    let mut whole = [0; 8];
    file.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(&whole, b"abcdEFgh");
    assert_eq!(write(&mut process, 8, &mut b"ij".to_vec()), Answer::Served);
    let mut room = [0; 2];
    let mut read = |process: &mut Process, at: u64| {
        let memory = [Range::new(room.as_mut_ptr() as u64, 2)];
        // SAFETY: the memory of `room`, for this call.
        process.read(index, &[Range::new(at, 2)], unsafe { Memory::new(&memory) })
    };
    assert_eq!((read(&mut process, 8), len()), (Answer::Pass, 10));
    // Where the file will be longer there are zeros.
    assert_eq!(write(&mut process, 30, &mut b"xyz".to_vec()), Answer::Served);
    assert_eq!((read(&mut process, 0), len()), (Answer::Pass, 10));
    assert_eq!((read(&mut process, 20), len()), (Answer::Pass, 33));
    assert_eq!(write(&mut process, 20, &mut [0; 1 << 19]), Answer::Pass);
    assert_eq!(write(&mut process, 10, &mut b"k".to_vec()), Answer::Served);
    let (result, did) = process.close(index);
    assert_eq!((result, len(), did.collected, did.written), (Ok(()), 33, 5, 4));
}

/// As MPICH does it for a call whose pieces have gaps: it reads a block, changes some of it, and writes all of it back.
fn a_collected_write_is_not_undone_by_who_has_its_block_locked() {
    let (file, begun) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    file.write_all_at(&[0; 4096], 0).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let sieving = beside(|| {
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: numbers only; all zeros is one of it.
        let mut block: libc::flock = unsafe { std::mem::zeroed() };
        (block.l_type, block.l_len) = (libc::F_WRLCK as _, 4096);
        // SAFETY: the file is open, the block is there.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const block) }, 0);
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        begun.write_all_at(b".", 0).unwrap();
        // Until somebody has written all the same, or could have many times.
        let (begin, mut now) = (std::time::Instant::now(), [0; 1]);
        while now == [0] && begin.elapsed() < Duration::from_millis(200) {
            file.read_exact_at(&mut now, 100).unwrap();
        }
        file.write_all_at(&bytes, 0).unwrap();
        0
    });
    while begun.metadata().unwrap().len() == 0 {}
    let settings = Settings { forced: true, ..Settings::default() };
    let group = Group::alone().unwrap();
    let no_ghosts = Some("none are wanted".to_owned());
    let mut process = Process::new(Setup { group, servers: Vec::new(), run: 1, settings, no_ghosts });
    let index = process.open(file.as_fd(), true, true, true).unwrap();
    let mut bytes = *b"mine";
    let memory = [Range::new(bytes.as_mut_ptr() as u64, 4)];
    // SAFETY: the memory of `bytes`, for this call.
    assert_eq!(process.write(index, &[Range::new(100, 4)], unsafe { Memory::new(&memory) }), Answer::Served);
    process.message();
    assert_eq!(ended(sieving), Some(0));
    let mut found = [0; 4];
    file.read_exact_at(&mut found, 100).unwrap();
    assert_eq!(&found, b"mine");
    assert_eq!(process.close(index).0, Ok(()));
}

fn a_collected_write_that_fails_is_told_when_the_file_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, b"x").unwrap();
    // Not open to be written, whatever is said: the write fails when it is carried out.
    let file = std::fs::File::open(&path).unwrap();
    let settings = Settings { forced: true, ..Settings::default() };
    let group = Group::alone().unwrap();
    let mut process = Process::new(Setup { group, servers: Vec::new(), run: 1, settings, no_ghosts: None });
    let index = process.open(file.as_fd(), true, true, false).unwrap();
    let mut bytes = *b"y";
    let memory = [Range::new(bytes.as_mut_ptr() as u64, 1)];
    // SAFETY: the memory of `bytes`, for this call.
    assert_eq!(process.write(index, &[Range::new(0, 1)], unsafe { Memory::new(&memory) }), Answer::Served);
    assert_eq!(process.close(index).0, Err(libc::EBADF));
}

/// A program may have as many descriptors as it is allowed, whatever we have beside.
fn leaves_the_program_its_descriptors() {
    let limit = || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: there is room for it.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        limit
    };
    // SAFETY: a limit is there.
    let set = |limit: libc::rlimit| assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let before = limit();
    if before.rlim_max < 1024 {
        return;
    }
    set(libc::rlimit { rlim_cur: 64, ..before });
    let file = tempfile::tempfile().unwrap();
    assert!(!sluice_dualpar::descriptors::may_stay(file.as_fd()), "one of 64");
    let ours: Vec<_> = (0..200).map(|_| sluice_dualpar::descriptors::duplicate(file.as_fd()).unwrap()).collect();
    assert!(ours.iter().all(|ours| ours.as_raw_fd() >= 64));
    assert_eq!(limit().rlim_cur, 64);
    // And a ghost has none of them.
    let (end, requests) = run(AMPLE, |recorder| {
        let mut byte = [0];
        let mut open = ours.iter().map(std::os::fd::OwnedFd::as_raw_fd).filter(|&descriptor| {
            // SAFETY: room for a byte.
            unsafe { libc::pread(descriptor, byte.as_mut_ptr().cast(), 1, 0) >= 0 }
        });
        if open.next().is_none() {
            recorder.add(Range::new(1, 1));
        }
    });
    set(before);
    assert_eq!((end, requests), (End::Paused, vec![Range::new(1, 1)]));
}

fn main() {
    let tests: [(&str, fn()); 14] = [
        ("leaves_the_program_its_descriptors", leaves_the_program_its_descriptors),
        ("tells_what_it_would_read", tells_what_it_would_read),
        ("opens_what_reading_does_not_change", opens_what_reading_does_not_change),
        ("changes_no_file_and_no_offset", changes_no_file_and_no_offset),
        ("may_read_files_of_its_own", may_read_files_of_its_own),
        ("ends_in_time_and_with_little_memory", ends_in_time_and_with_little_memory),
        ("is_invisible_to_its_process", is_invisible_to_its_process),
        ("what_a_process_reads_is_read_for_it_at_once", what_a_process_reads_is_read_for_it_at_once),
        ("what_has_changed_is_not_used", what_has_changed_is_not_used),
        ("neighbours_read_for_each_other", neighbours_read_for_each_other),
        ("a_leader_that_dies_is_not_waited_for", a_leader_that_dies_is_not_waited_for),
        (
            "a_process_reads_what_it_has_written_and_others_see_it_before_messages",
            a_process_reads_what_it_has_written_and_others_see_it_before_messages,
        ),
        (
            "a_collected_write_is_not_undone_by_who_has_its_block_locked",
            a_collected_write_is_not_undone_by_who_has_its_block_locked,
        ),
        (
            "a_collected_write_that_fails_is_told_when_the_file_is_closed",
            a_collected_write_that_fails_is_told_when_the_file_is_closed,
        ),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    // With one thread, tests run in this one.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.into()).exit();
}
