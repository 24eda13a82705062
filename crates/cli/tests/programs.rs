//! Programs that other people wrote, on a mount, under every algorithm: git, tar, SQLite, make with a C compiler, fio.
//!
//! One algorithm alone: `SLUICE_TEST_POLICY=mlf cargo test -p sluice-cli --test programs`.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{Place, eventually, fuse_works, run, stderr, unmount};
use sluice_core::policy::table;

/// Runs a shell script in `dir`; it must succeed. What it says.
fn shell(dir: &Path, script: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]).current_dir(dir).env("LC_ALL", "C");
    // These tests may run under a make of their own.
    ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"].iter().for_each(|name| _ = bash.env_remove(name));
    let output = run(&mut bash);
    assert!(output.status.success(), "{script}\n{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn git(dir: &Path) {
    shell(
        dir,
        "git init -q repository && cd repository
         git config user.name Tester && git config user.email tester@example.invalid
         for n in $(seq 40); do mkdir -p d$((n % 5)); seq $((n * 50)) > d$((n % 5))/f$n; done
         git add . && git commit -qm first
         for n in 1 2 3; do seq $((n * 1000)) > d0/f5; git commit -qam change-$n; done
         git gc -q --aggressive --prune=now && git fsck --full --strict
         git checkout -q HEAD~2 && git checkout -q -
         test -z \"$(git status --porcelain)\" && git log --oneline | wc -l | grep -qx 4
         git clone -q . ../clone && diff -r --exclude=.git . ../clone",
    );
}

fn tar(dir: &Path) {
    shell(
        dir,
        "mkdir tree && cd tree && for n in $(seq 60); do mkdir -p a/$((n % 7)); head -c $((n * 977)) /dev/urandom > a/$((n % 7))/$n; done
         ln -s a/1 link && ln a/1/1 hard && chmod 640 a/2/2 && cd ..
         tar cf tree.tar tree && mkdir out && tar xf tree.tar -C out && diff -r tree out/tree
         tar df tree.tar && test \"$(stat -c %a out/tree/a/2/2)\" = 640 && test \"$(stat -c %h out/tree/hard)\" = 2",
    );
}

/// Write-ahead logging with two writers and a reader at a time.
fn sqlite(dir: &Path) {
    let said = shell(
        dir,
        "sqlite3 t.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(w INT, n INT, x BLOB);' | grep -qx wal
         writer() { for n in $(seq 12); do
             echo \"PRAGMA busy_timeout=30000; BEGIN IMMEDIATE; INSERT INTO t SELECT $1, $n, randomblob(500) FROM generate_series(1,20); COMMIT;\"
         done | sqlite3 t.db > /dev/null; }
         writer 1 & first=$!; writer 2 & second=$!
         for n in 1 2 3 4 5; do sqlite3 t.db 'PRAGMA busy_timeout=30000; SELECT count(*) FROM t' > /dev/null; done
         wait $first $second
         sqlite3 t.db 'PRAGMA wal_checkpoint(TRUNCATE); PRAGMA integrity_check; SELECT count(*), count(DISTINCT x) FROM t'",
    );
    assert_eq!(said.lines().skip(1).collect::<Vec<_>>(), ["ok", "480|480"], "{said}");
}

fn make(dir: &Path) {
    let said = shell(
        dir,
        "mkdir project && cd project
         for n in $(seq 20); do echo \"int f$n(int x) { return x + $n; }\" > f$n.c; done
         { for n in $(seq 20); do echo \"int f$n(int);\"; done; echo '#include <stdio.h>'; echo 'int main(void) { int x = 0;'
           for n in $(seq 20); do echo \"x = f$n(x);\"; done; echo 'printf(\"%d\\n\", x); return 0; }'; } > main.c
         printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n\\t$(CC) -o $@ $^\\n' > Makefile
         make -s -j2 CC=gcc && ./program && touch f3.c && make -s -j2 CC=gcc && ! make -q CC=gcc clean-nothing 2>/dev/null && make -q CC=gcc",
    );
    assert_eq!(said, "210\n");
}

/// Random writes at depth 32, then every block read back and its checksum compared.
fn fio(dir: &Path) {
    shell(
        dir,
        "fio --name=verify --directory=. --rw=randwrite --bs=4k --size=3M --ioengine=libaio --iodepth=32 --direct=1 \
             --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=7 --minimal > /dev/null
         fio --name=mixed --directory=. --rw=randrw --bsrange=512-128k --size=3M --ioengine=psync --numjobs=4 --thread \
             --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=7 --minimal > /dev/null",
    );
}

/// Works in a directory of its own, and panics if something is wrong.
type Program = fn(&Path);

const PROGRAMS: [(&str, Program); 5] = [("git", git), ("tar", tar), ("sqlite", sqlite), ("make", make), ("fio", fio)];

/// All programs under all algorithms on one mount.
fn all_programs(place: &Place) {
    let only = std::env::var("SLUICE_TEST_POLICY").ok();
    for info in table().iter().filter(|info| only.as_ref().is_none_or(|name| name == info.name)) {
        place.good(&["policy", "@mnt", info.name]);
        let dir = place.path("mnt").join(info.name);
        fs::create_dir(&dir).unwrap();
        for (name, program) in PROGRAMS {
            eprintln!("{name} under {}", info.name);
            program(&dir);
        }
        assert_eq!(place.status()["policy"]["name"], info.name);
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn programs_run_under_every_algorithm() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    all_programs(&place);
    daemon.unmount();
}

#[test]
fn programs_run_on_a_striped_volume_under_every_algorithm() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let targets = ["t0", "t1", "t2"].map(|name| place.make(name).to_str().unwrap().to_owned());
    let mut args = vec!["mount", "--daemon", "--log", "@log", "--stripe", "16K", "--max-wait", "50ms"];
    targets.iter().for_each(|target| args.extend(["--target", target]));
    args.push("@mnt");
    place.good(&args);
    all_programs(&place);
    unmount(&place);
    let mut check = vec!["check"];
    targets.iter().for_each(|target| check.extend(["--target", target]));
    place.good(&check);
}

#[test]
fn the_algorithm_changes_while_fio_verifies() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--in-flight", "2", "--cache", "none"]);
    let mut fio = Command::new("fio")
        .args(["--name=verify", "--rw=randwrite", "--bs=4k", "--size=8M", "--ioengine=libaio", "--iodepth=32"])
        .args(["--direct=1", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--randseed=7", "--minimal"])
        .arg(format!("--directory={}", place.text("mnt")))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut changes = 0;
    let status = loop {
        for info in table() {
            place.good(&["policy", "@mnt", info.name]);
            changes += 1;
        }
        if let Some(status) = fio.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success() && changes >= table().len());
    daemon.unmount();
}

#[test]
fn what_was_synced_is_there_after_a_kill() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--policy", "mlf", "--cache", "writeback"]);
    let (file, pid) = (fs::File::create(place.path("mnt/log")).unwrap(), daemon.pid());
    let block = |n: u64| vec![n as u8 + 1; 4096];
    for n in 0..100 {
        file.write_all_at(&block(n), n * 4096).unwrap();
    }
    file.sync_all().unwrap();
    // More, which nobody promises; killed in the middle of it.
    let writer = std::thread::spawn(move || (100..).find(|n| file.write_all_at(&[0xEE; 4096], n * 4096).is_err()));
    eventually("the writer has begun", || fs::metadata(place.path("source/log")).unwrap().len() >= 4096);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    writer.join().unwrap();
    // The dead mount is recovered by mounting again.
    let again = place.daemon(&[]);
    let data = fs::read(place.path("mnt/log")).unwrap();
    for n in 0..100 {
        assert_eq!(data[n as usize * 4096..][..4096], block(n), "block {n}");
    }
    again.unmount();
}

/// Kills the server of a striped volume while a program creates, writes, renames and removes files, at moments that
/// depend on how far it got. Afterwards the volume mounts, what was synced is there, and a check finds nothing wrong.
#[test]
fn a_striped_volume_survives_kills() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let targets = ["t0", "t1", "t2"].map(|name| place.make(name).to_str().unwrap().to_owned());
    let with_targets = |first: &[&str], last: &[&str]| -> Vec<String> {
        let targets = targets.iter().flat_map(|target| ["--target".to_owned(), target.clone()]);
        let own = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        own(first).into_iter().chain(targets).chain(own(last)).collect()
    };
    let run_with = |args: Vec<String>| place.good(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let synced = place.path("synced");
    fs::write(&synced, "").unwrap();
    for (round, after) in [3_usize, 8, 15].into_iter().enumerate() {
        run_with(with_targets(&["mount", "--daemon", "--log", "@log", "--stripe", "4K"], &["@mnt"]));
        let script = format!(
            "n=0; while :; do n=$((n + 1)); f=r{round}-$n
             head -c $((n * 3000)) /dev/zero | tr '\\0' x > $f.new && sync $f.new && mv $f.new $f && sync . && echo $f $((n * 3000)) >> {} || exit 1
             mkdir d$n && touch d$n/a && rm -r d$n || exit 1; done",
            synced.display()
        );
        let mut program = Command::new("bash")
            .args(["-ec", &script])
            .current_dir(place.path("mnt"))
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = place.status()["pid"].as_i64().unwrap();
        let goal = common::lines(&synced).len() + after;
        eventually("some files are synced", || common::lines(&synced).len() >= goal);
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert!(!program.wait().unwrap().success(), "the mount is gone");
    }
    run_with(with_targets(&["mount", "--daemon", "--log", "@log"], &["@mnt"]));
    for line in common::lines(&synced) {
        let (name, size) = line.split_once(' ').unwrap();
        let data = fs::read(place.path("mnt").join(name)).unwrap();
        assert_eq!(data.len().to_string(), size, "{name}");
        assert!(data.iter().all(|byte| *byte == b'x'), "{name}");
    }
    unmount(&place);
    run_with(with_targets(&["check"], &[]));
}
