//! The mount's process is killed at bad moments. The dead mount is recovered by mounting again; what was promised to be
//! there is there.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use crate::beds::{DIRECTORY, STRIPED, place};
use crate::common::{Place, eventually, fuse_works, kill, lines, run, unmount};
use crate::succeeds;

fn mount(place: &Place, options: &[&str]) -> Pid {
    place.good(&[&["mount", "--daemon", "--log", "@log"], options, &["@mnt"]].concat());
    Pid::from_raw(place.status()["pid"].as_i64().unwrap() as i32).unwrap()
}

/// Starts a script in the mount. It writes a line into the file `done`, which is not in the mount, for each thing that it
/// was told to be done, and goes on until the mount fails.
fn start(place: &Place, script: &str) -> Child {
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash"]).arg(place.path("done")).current_dir(place.path("mnt"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn count(place: &Place) -> usize {
    if place.path("done").exists() { lines(&place.path("done")).len() } else { 0 }
}

/// Kills the mount's process once the script has done so much; how much it had done in the end.
fn kill_after(place: &Place, mount: Pid, mut script: Child, things: usize) -> usize {
    eventually("the script comes far enough", || count(place) >= things);
    kill(mount);
    assert!(!script.wait().unwrap().success(), "the script must notice that the mount has died");
    count(place)
}

fn synced_data_survives(options: &[&str], part: &Path) {
    if !fuse_works() {
        return;
    }
    let place = place();
    let pid = mount(&place, options);
    let file = File::create(place.path("mnt/log")).unwrap();
    let block = |n: u64| vec![n as u8 + 1; 4096];
    for n in 0..100 {
        file.write_all_at(&block(n), n * 4096).unwrap();
    }
    file.sync_all().unwrap();
    // More, which nobody promises; killed in the middle of it.
    let writer = std::thread::spawn(move || (100..).find(|n| file.write_all_at(&[0xEE; 4096], n * 4096).is_err()));
    let synced = fs::metadata(place.path("").join(part)).unwrap().len();
    eventually("the writer has begun", || fs::metadata(place.path("").join(part)).unwrap().len() > synced);
    kill(pid);
    writer.join().unwrap();

    mount(&place, options);
    let data = fs::read(place.path("mnt/log")).unwrap();
    for n in 0..100 {
        assert_eq!(data[n as usize * 4096..][..4096], block(n), "block {n}");
    }
    // Whatever of the rest is there is what was written, or was never written.
    assert!(data[100 * 4096..].iter().all(|&byte| byte == 0xEE || byte == 0));
    unmount(&place);
}

#[test]
fn what_was_synced_is_there() {
    let options = ["--policy", "mlf", "--cache", "none", "@source"];
    synced_data_survives(&options, Path::new("source/log"));
}

#[test]
fn what_was_synced_to_a_striped_volume_is_there() {
    synced_data_survives(&[&["--policy", "sjf", "--cache", "none"], STRIPED].concat(), Path::new("t0/log"));
}

const COMMIT: &str = "
    sqlite3 t.db 'PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t(n INT, x BLOB);'
    for n in $(seq 100000); do
        sqlite3 -bail t.db \"PRAGMA synchronous=FULL; INSERT INTO t VALUES($n, randomblob(3000));\" || exit 1
        echo $n >> $1
    done";

fn committed_transactions_survive(options: &[&str]) {
    if !fuse_works() {
        return;
    }
    let place = place();
    for kill in [3, 20] {
        let _ = fs::remove_file(place.path("done"));
        let pid = mount(&place, options);
        let committed = kill_after(&place, pid, start(&place, COMMIT), kill);
        mount(&place, options);
        let database = place.path("mnt/t.db");
        let ask = |question: &str| {
            let output = run(Command::new("sqlite3").arg(&database).arg(question));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(ask("PRAGMA integrity_check"), "ok");
        let found: usize = ask("SELECT count(*) FROM t").parse().unwrap();
        // One more may have been committed without anybody having been told.
        assert!((committed..=committed + 1).contains(&found), "{committed} committed, {found} found");
        assert_eq!(ask("SELECT max(n), count(DISTINCT x) FROM t"), format!("{found}|{found}"));
        assert_eq!(ask("DROP TABLE t"), "");
        unmount(&place);
    }
}

#[test]
fn what_sqlite_committed_is_there() {
    committed_transactions_survive(DIRECTORY);
}

#[test]
fn what_sqlite_committed_to_a_striped_volume_is_there() {
    committed_transactions_survive(STRIPED);
}

/// Makes, links, renames over others, cuts and removes; each line of `done` says how far it is.
const CHURN: &str = "
    set -e
    for n in $(seq 100000); do
        mkdir d$n
        head -c 100000 /dev/zero | tr '\\0' $((n % 10)) > d$n/new
        mv d$n/new d$n/file
        ln d$n/file d$n/link
        truncate -s 50000 d$n/file
        ln -s file d$n/soft
        mv d$n e$n
        echo $n >> $1
        if [ $n -gt 3 ]; then rm -r e$((n - 3)); fi
    done";

#[test]
fn a_striped_volume_is_whole_after_kills_among_changes_of_names() {
    if !fuse_works() {
        return;
    }
    let place = place();
    let check = ["check", "--target", "@t0", "--target", "@t1", "--target", "@t2"];
    // Odd numbers of steps, so that the kills come at different places.
    for kill in [1, 5, 8, 14, 23] {
        let _ = fs::remove_file(place.path("done"));
        let pid = mount(&place, STRIPED);
        let done = kill_after(&place, pid, start(&place, CHURN), kill);
        mount(&place, STRIPED);
        for n in done.saturating_sub(2).max(1)..=done {
            let path = |name: &str| place.path(&format!("mnt/e{n}/{name}"));
            let data = fs::read(path("link")).unwrap();
            assert!(data.len() == 50_000 && data.iter().all(|byte| *byte == b"0123456789"[n % 10]), "e{n}");
            assert_eq!(fs::read(path("soft")).unwrap(), data);
        }
        // What the kill interrupted is readable, too, and can be removed.
        succeeds(Command::new("cp").args(["-r", "mnt", "copy"]).current_dir(place.path("")));
        fs::remove_dir_all(place.path("copy")).unwrap();
        for entry in fs::read_dir(place.path("mnt")).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        unmount(&place);
        place.good(&[&check[..], &["--repair", "--discard"]].concat());
        assert!(place.good(&check).contains("All is well"));
    }
}
