use super::*;
use crate::{Columns, Reader};
use proptest::prelude::*;

type Request = (u64, u32, Op, u64, u32, String);

fn import(log: &[u8]) -> Result<(Imported, Vec<Request>), ImportError> {
    let mut bytes = Vec::new();
    let imported = strace(log, Meta::default(), None, &mut bytes)?;
    let (mut reader, mut block, mut all) = (Reader::new(&bytes[..])?, Columns::default(), Vec::new());
    while reader.next_block(&mut block)? {
        for (at, entry) in block.iter().enumerate() {
            let path = reader.paths().text(entry.file).into_owned();
            all.push((entry.time / 1000, block.process_of(at), entry.op, entry.offset, entry.len, path));
        }
    }
    assert_eq!((reader.incomplete(), all.len() as u64), (&*imported.incomplete, imported.entries));
    assert!(reader.meta().processes && reader.meta().start_unix_ns >= 1_700_000_000_000_000_000);
    Ok((imported, all))
}

/// Lines of process 1 in a microsecond each, with its end.
fn of_one(calls: &[&str]) -> String {
    let lines = calls.iter().chain(&["+++ exited with 0 +++"]).enumerate();
    lines.map(|(n, call)| format!("1 1700000000.{n:06} {call}\n")).collect()
}

fn places(calls: &[&str]) -> Vec<(Op, u64, u32)> {
    let (imported, all) = import(of_one(calls).as_bytes()).unwrap();
    assert_eq!(imported.incomplete, "", "{calls:?}");
    all.iter().map(|(_, _, op, offset, len, _)| (*op, *offset, *len)).collect()
}

use Op::{Read as R, Write as W};

#[test]
fn positions_are_followed() {
    let open = r#"openat(AT_FDCWD</>, "a", O_RDWR|O_CREAT|O_TRUNC, 0644) = 3</a> <0.1>"#;
    let read = r#"read(3</a>, "x"..., 100) = 60 <0.1>"#;
    assert_eq!(places(&[open, read, read]), [(R, 0, 60), (R, 60, 60)]);
    assert_eq!(places(&[open, "lseek(3</a>, 10, SEEK_SET) = 10", read]), [(R, 10, 60)]);
    let write = r#"writev(4</a>, [{iov_base="ab", iov_len=2}, {iov_base="(", iov_len=1}], 2) = 3"#;
    assert_eq!(places(&[open, "dup(3</a>) = 4</a>", read, write]), [(R, 0, 60), (W, 60, 3)]);
    assert_eq!(places(&[open, "fcntl(3</a>, F_DUPFD_CLOEXEC, 4) = 4</a>", write, read]), [(W, 0, 3), (R, 3, 60)]);
    assert_eq!(places(&[open, "dup2(3</a>, 4) = 4</a>", "fcntl(4</a>, F_GETFL) = 0", write]), [(W, 0, 3)]);
    let at = r#"pwrite64(3</a>, "x", 1, 4096) = 1"#;
    assert_eq!(places(&[open, at, read]), [(W, 4096, 1), (R, 0, 60)]);
    assert_eq!(
        places(&[open, read, r#"preadv2(3</a>, [{iov_base="", iov_len=9}], 1, -1, 0) = 9"#]),
        [(R, 0, 60), (R, 60, 9)]
    );
    // Failures, ends of files, and what is no file are none.
    for none in [
        r#"read(3</a>, "", 100) = 0"#,
        "read(3</a>, 0x7f, 100) = -1 EIO (Input/output error)",
        r#"write(1</dev/pts/0<char 136:0>>, "x", 1) = 1"#,
        r#"read(5<pipe:[77]>, "x", 1) = 1"#,
        r#"read(5<socket:[77]>, "x", 1) = 1"#,
        r#"read(5</proc/meminfo>, "x", 1) = 1"#,
    ] {
        assert_eq!(places(&[open, none]), [], "{none}");
    }
    assert_eq!(places(&[open, "copy_file_range(3</a>, [4] => [9], 3</a>, NULL, 9, 0) = 5"]), [(R, 4, 5), (W, 0, 5)]);
    assert_eq!(places(&[open, "sendfile(9<socket:[1]>, 3</a>, NULL, 9) = 9", read]), [(R, 0, 9), (R, 9, 60)]);
    assert_eq!(places(&[open, "splice(3</a>, NULL, 9<pipe:[1]>, NULL, 9, 0) = 9", read]), [(R, 0, 9), (R, 9, 60)]);
    assert_eq!(places(&[open, "_llseek(3</a>, 0, 7, [7], SEEK_SET) = 0", read]), [(R, 7, 60)]);
}

#[test]
fn asynchronous_requests_are_taken_from_their_list() {
    let open = r#"openat(AT_FDCWD</>, "a", O_RDWR|O_CREAT|O_TRUNC, 0644) = 3</a> <0.1>"#;
    let one = r#"{aio_data=0, aio_lio_opcode=IOCB_CMD_PREAD, aio_fildes=3</a>, aio_buf="x\"}]"..., aio_nbytes=60, aio_offset=20}"#;
    let buffers = r#"[{iov_base="(\0"..., iov_len=100}, {iov_base="", iov_len=50}]"#;
    let vector =
        format!("{{aio_data=0, aio_lio_opcode=IOCB_CMD_PWRITEV, aio_fildes=3</a>, aio_buf={buffers}, aio_offset=11}}");
    let sync = "{aio_data=0, aio_lio_opcode=IOCB_CMD_FDSYNC, aio_fildes=3</a>}";
    let submit = |list: &str, count: u32| format!("io_submit(0x7f, 3, [{list}]) = {count} <0.1>");
    let all = submit(&format!("{vector}, {sync}, {one}"), 3);
    assert_eq!(places(&[open, &all]), [(W, 11, 150), (R, 20, 60)]);
    assert_eq!(places(&[open, &submit(&format!("{vector}, {one}"), 1)]), [(W, 11, 150)]);
    for (list, left_out) in [("0x7ffe12", 3), ("...", 3), (&format!("{one}, ..."), 2)] {
        let (imported, _) = import(of_one(&[open, &submit(list, 3)]).as_bytes()).unwrap();
        assert_eq!(imported.left_out, left_out, "{list}");
    }
}

#[test]
fn appending_goes_where_the_file_ends_if_that_is_known() {
    let write = r#"write(3</a>, "xyz", 3) = 3"#;
    let open = |flags: &str| format!(r#"openat(AT_FDCWD</>, "a", O_WRONLY|O_APPEND{flags}, 0644) = 3</a>"#);
    assert_eq!(places(&[&open("|O_CREAT|O_TRUNC"), write, write]), [(W, 0, 3), (W, 3, 3)]);
    assert_eq!(places(&[&open("|O_CREAT|O_EXCL"), write]), [(W, 0, 3)]);
    let size = "fstat(3</a>, {st_mode=S_IFREG|0644, st_size=500, ...}) = 0";
    assert_eq!(places(&[&open(""), size, write]), [(W, 500, 3)]);
    let size = r#"newfstatat(3</a>, "", {st_mode=S_IFREG|0644, st_size=500, ...}, AT_EMPTY_PATH) = 0"#;
    assert_eq!(places(&[&open(""), size, write]), [(W, 500, 3)]);
    assert_eq!(places(&[&open(""), "lseek(3</a>, 0, SEEK_END) = 70", write]), [(W, 70, 3)]);
    assert_eq!(places(&[&open(""), "ftruncate(3</a>, 8) = 0", write]), [(W, 8, 3)]);
    // That it appends may be said later, or have been said before the log began.
    let from_now = |flags: &str| format!("fcntl(3</a>, F_SETFL, O_WRONLY{flags}) = 0");
    let back = "lseek(3</a>, 0, SEEK_SET) = 0";
    let plain = r#"openat(AT_FDCWD</>, "a", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3</a>"#;
    assert_eq!(places(&[plain, write, back, &from_now("|O_APPEND"), write]), [(W, 0, 3), (W, 3, 3)]);
    assert_eq!(places(&[&open("|O_CREAT|O_TRUNC"), write, back, &from_now(""), write]), [(W, 0, 3), (W, 0, 3)]);
    let asked = "lseek(3</a>, 0, SEEK_CUR) = 0";
    let (imported, all) = import(of_one(&[asked, write]).as_bytes()).unwrap();
    assert_eq!((imported.left_out, all.len()), (1, 0), "it may append");
    assert_eq!(places(&[back, write]), [(W, 0, 3)]);
    let (imported, all) = import(of_one(&[&open("|O_CREAT"), write]).as_bytes()).unwrap();
    assert_eq!((imported.left_out, all.len()), (1, 0));
    assert!(imported.incomplete.contains("1 read or write is missing"), "{}", imported.incomplete);
}

#[test]
fn names_that_come_to_stand_for_other_files_tell_no_size() {
    let write = r#"write(3</d/a>, "xyz", 3) = 3"#;
    let open = |flags: &str| format!(r#"openat(AT_FDCWD</d>, "a", O_WRONLY|O_CREAT|O_APPEND{flags}, 0644) = 3</d/a>"#);
    let (new, again) = (open("|O_TRUNC"), open(""));
    let appended = |call: &str| import(of_one(&[&new, write, call, &again, write]).as_bytes()).unwrap().1.len();
    assert_eq!(appended("close(3</d/a>) = 0"), 2);
    for call in [
        r#"unlink("a") = 0"#,
        r#"unlinkat(5</d>, "a", 0) = 0"#,
        r#"rename("/d/a", "/d/b") = 0"#,
        r#"renameat(AT_FDCWD</d>, "b", 5</d>, "a") = 0"#,
        r#"rename("/d", "/e") = 0"#,
        r#"truncate("/d/a", 0) = 0"#,
        "fallocate(3</d/a>, FALLOC_FL_COLLAPSE_RANGE, 0, 4096) = 0",
        r#"renameat2(AT_FDCWD</d>, "a", AT_FDCWD</d>, "b", RENAME_EXCHANGE) = 0"#,
    ] {
        assert_eq!(appended(call), 1, "{call}");
    }
    for call in [
        r#"unlink("other") = 0"#,
        "fallocate(3</d/a>, 0, 0, 4096) = 0",
        "fallocate(3</d/a>, FALLOC_FL_KEEP_SIZE, 0, 4096) = 0",
    ] {
        assert_eq!(appended(call), 2, "{call}");
    }
    // Of other files nothing is forgotten where a file is renamed.
    let temporary = r#"openat(AT_FDCWD</d>, "t", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 4</d/t>"#;
    let calls = [&*new, write, temporary, r#"rename("t", "u") = 0"#, &*again, write];
    assert_eq!(import(of_one(&calls).as_bytes()).unwrap().1.len(), 2);
    assert_eq!(appended(r#"unlink("a") = -1 ENOENT (No such file or directory)"#), 2);
}

#[test]
fn calls_that_ended_unseen_or_as_another_process_are_read() {
    let open = r#"openat(AT_FDCWD</>, "a", O_RDWR|O_CREAT|O_TRUNC, 0644) = 3</a> <0.1>"#;
    let read = r#"read(3</a>, "x"..., 100) = 60 <0.1>"#;
    assert_eq!(
        places(&[open, "read(3</a>,  <unfinished ...>", "<... read resumed>) = ? <unavailable>", read]),
        [(R, 0, 60)]
    );
    let exec = r#"2 1700000000.000001 execve("/bin/x", ["x"], 0x7f /* 9 vars */ <pid changed to 1 ...>"#;
    let log = format!(
        "1 1700000000.000000 {open}\n{exec}\n1 1700000000.000002 +++ superseded by execve in pid 2 +++\n1 1700000000.000003 <... execve resumed>) = 0\n1 1700000000.000004 {read}\n"
    );
    assert!(import(log.as_bytes()).is_ok());
}

#[test]
fn what_is_not_known_is_left_out_and_told() {
    for calls in [
        &[r#"read(0</there/before>, "x", 1) = 1"#][..],
        &[r#"openat(AT_FDCWD</>, "a", O_RDONLY) = 3</a>"#, r#"read(3</b>, "x", 1) = 1"#],
        &[r#"openat(AT_FDCWD</>, "a", O_RDONLY) = 3</a>"#, "close(3</a>) = 0", r#"read(3</a>, "x", 1) = 1"#],
        &[
            r#"openat(AT_FDCWD</>, "a", O_RDONLY) = 3</a>"#,
            "close_range(3, 4294967295, 0) = 0",
            r#"read(3</a>, "x", 1) = 1"#,
        ],
        &["io_uring_enter(5<anon_inode:[io_uring]>, 1, 0, 0, NULL, 8) = 1"],
    ] {
        let (imported, all) = import(of_one(calls).as_bytes()).unwrap();
        assert_eq!((imported.left_out, all.len()), (1, 0), "{calls:?}");
    }
    let log = of_one(&[r#"read(0</there/before>, "x", 1) = 1"#, r#"pread64(0</theresa>, "x", 1, 7) = 1"#]);
    for (below, entries, left_out) in [("/there/./", 0, 1), ("/", 1, 1), ("/the", 0, 0), ("/theresa", 0, 0)] {
        let imported = strace(log.as_bytes(), Meta::default(), Some(below.as_bytes()), Vec::new()).unwrap();
        assert_eq!((imported.entries, imported.left_out), (entries, left_out), "{below}");
    }
    let seen_later = ["lseek(0</a>, 0, SEEK_CUR) = 5", r#"read(0</a>, "x", 1) = 1"#];
    assert_eq!(places(&seen_later), [(R, 5, 1)]);
}

/// A process that makes a child and a thread, with calls that others interrupt.
const FAMILY: &str = r#"10 1700000000.000000 openat(AT_FDCWD</d>, "f", O_RDONLY) = 3</d/f> <0.000010>
10 1700000000.000010 clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f) = 11 <0.000100>
11 1700000000.000020 read(3</d/f>, "a"..., 10) = 10 <0.000010>
10 1700000000.000030 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, exit_signal=0} <unfinished ...>
12 1700000000.000040 close(4</d/g> <unfinished ...>
10 1700000000.000050 <... clone3 resumed> => {parent_tid=[12]}, 88) = 12 <0.000020>
12 1700000000.000055 <... close resumed>) = 0 <0.000010>
12 1700000000.000060 pread64(3</d/f>,  <unfinished ...>
10 1700000000.000070 openat(AT_FDCWD</d>, "h", O_WRONLY|O_CREAT|O_EXCL, 0666) = 4</d/h> <0.000010>
11 1700000000.000080 read(3</d/f>, "b"..., 10) = 7 <0.000010>
10 1700000000.000090 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=11} ---
12 1700000000.000100 <... pread64 resumed>"c) = 3"..., 50, 1000) = 50 <0.000040>
12 1700000000.000110 write(4</d/h>, "x", 1) = 1 <0.000010>
12 1700000000.000120 exit(0) = ?
12 1700000000.000130 +++ exited with 0 +++
11 1700000000.000140 +++ killed by SIGKILL +++
10 1700000000.000150 write(4</d/h>, "yz", 2) = 2 <0.000010>
10 1700000000.000160 +++ exited with 0 +++
"#;

#[test]
fn a_thread_may_end_before_the_call_that_made_it_has_returned() {
    let log = "10 1700000000.000030 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, exit_signal=0} <unfinished ...>
12 1700000000.000040 exit(0) = ?
12 1700000000.000041 +++ exited with 0 +++
10 1700000000.000050 <... clone3 resumed> => {parent_tid=[12]}, 88) = 12 <0.000020>
10 1700000000.000160 +++ exited with 0 +++
";
    assert_eq!(import(log.as_bytes()).unwrap().0.incomplete, "");
    // Its number may be another one's later.
    let again = log.lines().take(4).chain(log.lines()).collect::<Vec<_>>().join("\n") + "\n";
    assert_eq!(import(again.as_bytes()).unwrap().0.incomplete, "");
}

fn of_family() -> Vec<Request> {
    let f = |name: &str| format!("/d/{name}");
    vec![
        (20, 11, R, 0, 10, f("f")),
        (60, 12, R, 1000, 50, f("f")),
        (80, 11, R, 10, 7, f("f")),
        (110, 12, W, 0, 1, f("h")),
        (150, 10, W, 1, 2, f("h")),
    ]
}

#[test]
fn threads_and_children_share_positions_and_calls_are_put_together() {
    let (imported, all) = import(FAMILY.as_bytes()).unwrap();
    assert_eq!(all, of_family());
    assert_eq!((imported.entries + imported.others, &*imported.incomplete), (FAMILY.lines().count() as u64, ""));
    // As strace writes it to a terminal, where its remarks are in between.
    let terminal: String = FAMILY.lines().map(|line| format!("[pid {:>5}] {}\n", &line[..2], &line[3..])).collect();
    let (_, all) = import(format!("strace: Process 11 attached\n{terminal}").as_bytes()).unwrap();
    assert_eq!(all, of_family());
}

#[test]
fn another_program_has_descriptors_of_its_own() {
    let log = r#"1 1700000000.000000 vfork( <unfinished ...>
2 1700000000.000001 openat(AT_FDCWD</>, "a", O_RDONLY) = 3</a>
2 1700000000.000002 execve("/bin/x", ["x"], 0x7f /* 9 vars */) = 0
1 1700000000.000003 <... vfork resumed>) = 2
2 1700000000.000004 read(3</a>, "x", 1) = 1
3 1700000000.000005 futex(0x1, FUTEX_WAIT <unfinished ...>
1 1700000000.000006 execve("/bin/y", ["y"], 0x7f /* 9 vars */ <unfinished ...>
3 1700000000.000007 <... futex resumed>) = ?
3 1700000000.000008 +++ superseded by execve in pid 1 +++
3 1700000000.000009 <... execve resumed>) = 0
3 1700000000.000010 +++ exited with 0 +++
2 1700000000.000011 read(0</dev/tty>,  <detached ...>
"#;
    let (imported, all) = import(log.as_bytes()).unwrap();
    assert_eq!((all.len(), all[0].3, &*imported.incomplete), (1, 0, ""));
}

#[test]
fn mistakes_name_the_line() {
    let open = "1 1700000000.5 openat(AT_FDCWD</>, \"a\", O_RDONLY) = 3</a>\n";
    for (log, expected) in [
        (String::new(), "line 1: the log is empty"),
        ("1 12:00:00 read(3</a>, \"\", 1) = 1\n".to_owned(), "line 1: no time since 1970 here: run strace with -ttt"),
        ("Hello\n".to_owned(), "line 1: no time"),
        (
            format!("{open}1 1700000000.5 read(3, \"x\", 1) = 1\n"),
            "line 2: a descriptor without its path: run strace with -y",
        ),
        (format!("{open}1 1700000000.5 read(3</a>, \"x\", 1) = 2\n"), "line 2: more bytes than were asked for"),
        (format!("{open}1 1700000000.5 read(3</a>, \"x\", 1)\n"), "line 2: not a call as strace writes it"),
        (format!("{open}1 1700000000.5 pread64(3</a>, \"x\", 1, y) = 1\n"), "line 2: not a call"),
        (
            format!("{open}1 1700000000.5 pread64(3</a>, \"x\", 1, 18446744073709551615) = 1\n"),
            "line 2: a request beyond",
        ),
        (format!("{open}1 1700000000.5 said the program\n"), "line 2: not strace's output"),
        (
            format!("{open}1 1700000000.5 read(3</a>,  <unfinished ...>\n1 1700000000.5 close(3</a>) = 0\n"),
            "line 3: another call before the one before it has returned",
        ),
        (
            format!("{open}1 1700000000.5 read(3</a>,  <unfinished ...>\n1 1700000000.5 <... pread64 resumed>) = 0\n"),
            "line 3: the end of another call",
        ),
    ] {
        let error = import(log.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// A log may end anywhere: what is imported of it is a beginning, and not called complete.
#[test]
fn a_log_that_is_cut_anywhere_is_told_from_a_whole_one() {
    for cut in 1..FAMILY.len() {
        match import(&FAMILY.as_bytes()[..cut]) {
            Ok((imported, all)) => {
                // Of calls that have not returned at the cut there are none.
                assert!(all.iter().all(|request| of_family().contains(request)), "{cut}");
                assert!(!imported.incomplete.is_empty(), "{cut}");
            }
            Err(error) => assert!(cut < FAMILY.find('\n').unwrap() + 1, "{cut}: {error}"),
        }
    }
}

proptest! {
    /// Logs have no checksums: a changed digit is another digit. Nothing panics, and nothing of other lines is lost.
    #[test]
    fn flipped_bits_are_answered(flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u32), 1..4)) {
        let mut log = FAMILY.as_bytes().to_vec();
        for (at, bit) in flips {
            let at = at.index(log.len());
            log[at] ^= 1 << bit;
        }
        match import(&log) {
            Ok((imported, all)) => prop_assert!(imported.entries as usize == all.len() && all.len() <= 8),
            Err(error) => prop_assert!(error.to_string().starts_with("line "), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "[a-z0-9<>()\\[\\]{}\"\\\\.,= \n]{0,300}") {
        let _ = import(&bytes);
        let _ = import(text.as_bytes());
        for call in [
            "io_submit", "read", "pread64", "openat", "lseek", "copy_file_range", "clone3", "fstat", "fcntl", "rename", "unlink",
            "truncate", "fallocate", "execve",
        ] {
            let _ = import(format!("1 1700000000.5 {call}(3</a>, {text}\n").as_bytes());
            let _ = import(&[format!("1 1700000000.5 {call}(").as_bytes(), &bytes, b"\n"].concat());
        }
    }
}
