//! Mounting and unmounting with the real program.

mod common;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::chown;
use std::process::{Command, Stdio};

use common::{Foreground, Place, eventually, fuse_works, has_ended, is_root, kill, run, stderr, unmount};
use rustix::process::{Signal, kill_process};

#[test]
fn a_mount_in_the_foreground_says_how_to_end_it_and_ends_on_a_signal() {
    if !fuse_works() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new();
        let mut mount = Foreground::start(place.sluice(&["mount", "source", "mnt"]));
        assert!(mount.line().contains(&format!("Ctrl-C here, or: sluice unmount {}", place.text("mnt"))));
        fs::write(place.path("mnt/a"), b"through the mount").unwrap();
        assert_eq!(fs::read(place.path("source/a")).unwrap(), b"through the mount");
        mount.signal(signal);
        assert!(mount.end().success());
        assert!(!place.is_mounted());
        assert!(fs::read_dir(place.path("run")).unwrap().next().is_none(), "no socket is left");
    }
}

#[test]
fn what_nohup_ignores_stays_ignored_and_a_reader_that_leaves_is_no_failure() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let mut shell = Command::new("sh");
    let script = "trap '' HUP; \"$0\" mount source mnt | head -n 1; wait";
    shell
        .args(["-c", script, env!("CARGO_BIN_EXE_sluice")])
        .current_dir(place.path(""))
        .env("SLUICE_RUNTIME_DIR", place.path("run"));
    let mount = Foreground::start(shell);
    let pid = rustix::process::Pid::from_raw(place.status()["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    fs::write(place.path("mnt/a"), b"still there").unwrap();
    assert_eq!(place.status()["pid"].as_i64().unwrap() as i32, pid.as_raw_nonzero().get());
    kill_process(pid, Signal::TERM).unwrap();
    mount.end();
    assert!(!place.is_mounted());
}

#[test]
fn a_mount_in_use_waits_on_the_first_signal_leaves_on_the_second_and_breaks_off_on_the_third() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let mount = Foreground::start(place.sluice(&["mount", "source", "mnt"]));
    let mut file = File::create(place.path("mnt/a")).unwrap();
    mount.signal(Signal::INT);
    mount.hears("is in use");
    assert!(place.is_mounted());
    mount.signal(Signal::INT);
    mount.hears("out of sight");
    assert!(!place.is_mounted());
    file.write_all(b"still works").unwrap();
    assert_eq!(fs::read(place.path("source/a")).unwrap(), b"still works");
    mount.signal(Signal::INT);
    assert_eq!(mount.end().code(), Some(130));
    assert!(file.write_all(b"x").is_err());
}

#[test]
fn a_mount_in_use_ends_by_itself_when_it_is_free() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let mount = Foreground::start(place.sluice(&["mount", "source", "mnt"]));
    let file = File::create(place.path("mnt/a")).unwrap();
    mount.signal(Signal::TERM);
    mount.hears("is in use");
    drop(file);
    assert!(mount.end().success());
}

#[test]
fn a_daemon_is_usable_when_its_parent_returns_and_gone_when_unmount_returns() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    fs::write(place.path("mnt/a"), b"at once").unwrap();
    let pid = daemon.pid();
    let parent = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    assert_ne!(parent.split(' ').nth(3).unwrap(), std::process::id().to_string(), "detached");
    daemon.unmount();
    assert!(has_ended(pid), "the process has ended");
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("is mounted") && log.contains("is unmounted"), "{log}");
    assert!(!log.contains('\x1b'), "no colours in a file: {log}");
}

#[test]
fn a_daemons_errors_reach_its_parent() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let error = place.bad(&["mount", "--daemon", "--log", "@log", "source", "nowhere"]);
    assert!(error.contains("nowhere: the mountpoint does not exist; create the directory first"), "{error}");
    assert!(!place.path("log").exists(), "nothing was written");
    fs::write(place.path("log"), b"").unwrap();
    place.bad(&["mount", "--daemon", "--log", "@log", "source", "nowhere"]);
    assert!(place.path("log").exists(), "it was there before");
    let error = place.bad(&["mount", "--daemon", "--log", "no/where/log", "source", "mnt"]);
    assert!(error.contains("the log file no/where/log cannot be written"), "{error}");
}

#[test]
fn signals_end_a_daemon_too() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    eventually("unmounted", || !place.is_mounted());
}

#[test]
fn a_killed_daemons_mount_is_recovered() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    fs::write(place.path("mnt/kept"), b"before the crash").unwrap();
    let open = File::open(place.path("mnt/kept")).unwrap();
    kill(daemon.pid());
    let dead = || fs::metadata(place.path("mnt")).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
    eventually("the mount is dead", dead);
    assert!(place.bad(&["status", "@mnt"]).contains("has died"));

    let daemon = place.daemon(&[]);
    assert_eq!(fs::read(place.path("mnt/kept")).unwrap(), b"before the crash");
    assert!(open.metadata().is_err(), "files of the dead mount stay dead");
    drop(open);

    kill(daemon.pid());
    eventually("the mount is dead", dead);
    place.good(&["unmount", "@mnt"]);
    assert!(!place.is_mounted());
}

#[test]
fn unmount_says_who_is_in_the_way_and_can_be_lazy() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    assert!(place.bad(&["unmount", "@mnt"]).contains("no Sluicegate mount"));
    assert!(place.bad(&["unmount", "@mnt/no/where"]).contains("cannot be resolved"));
    let daemon = place.daemon(&[]);
    let pid = daemon.pid();
    let mut file = File::create(place.path("mnt/a")).unwrap();
    assert!(place.bad(&["unmount", "@mnt"]).contains("in use"));
    let said = place.good(&["unmount", "--lazy", "@mnt"]);
    let who = format!("is out of sight; process {} goes on until the last file", pid.as_raw_nonzero());
    assert!(said.contains(&who), "{said}");
    assert!(!place.is_mounted());
    assert!(place.good(&["status", "@mnt"]).contains("Note: out of sight; ends with the last open file"));
    file.write_all(b"works on").unwrap();
    drop(file);
    assert_eq!(fs::read(place.path("source/a")).unwrap(), b"works on");
}

#[test]
fn unmount_says_which_namespace_it_waits_for() {
    let has_namespaces = || Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|end| end.success());
    if !fuse_works() || !has_namespaces() {
        return;
    }
    let place = Place::new();
    let _daemon = place.daemon(&[]);
    let mut copy = Command::new("unshare");
    copy.args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"]);
    let mut copy = copy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Once it speaks it is in its own namespace.
    copy.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let mut unmount = place.sluice(&["unmount", "@mnt"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(unmount.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    let of = format!("of process {} (", copy.id());
    assert!(said.contains("waiting") && said.contains(&of), "{said}");
    drop(copy.stdin.take());
    assert!(copy.wait().unwrap().success() && unmount.wait().unwrap().success());
    assert!(!place.is_mounted());
}

#[test]
fn unmount_finds_a_mount_without_its_control_socket() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    fs::remove_dir_all(place.path("run")).unwrap();
    assert!(place.bad(&["status", "@mnt"]).contains("control socket is not found"));
    daemon.unmount();
}

#[test]
fn a_striped_volume_over_emulated_disks_says_so() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    for name in ["t0", "t1", "t2"] {
        place.make(name);
    }
    let volume = ["--target", "@t0", "--target", "@t1", "--target", "@t2", "--stripe", "4K"];
    let base = ["mount", "--daemon", "--log", "@log"];
    let said = place.good(&[&base[..], &["--emulate", "hdd-7200"], &volume, &["@mnt"]].concat());
    assert!(said.contains("emulated hdd-7200 over striped volume") && said.contains(" in flight"), "{said}");
    let data: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(place.path("mnt/data"), &data).unwrap();
    assert_eq!(fs::read(place.path("mnt/data")).unwrap(), data);
    let status = place.status();
    assert_eq!((status["targets"].as_u64(), status["emulated"].as_bool()), (Some(3), Some(true)));
    assert!(status["in_flight_max"].as_u64().unwrap() > 0, "hard disks get few requests at a time");
    assert!(place.good(&["status", "@mnt"]).contains("emulated devices"));
    let check = place.bad(&["check", "--target", "@t0", "--target", "@t1", "--target", "@t2"]);
    assert!(check.contains("in use by another process"), "{check}");
    unmount(&place);
    let sizes: Vec<u64> = ["t0", "t1", "t2"].map(|t| fs::metadata(place.path(t).join("data")).unwrap().len()).into();
    assert_eq!(sizes.iter().sum::<u64>(), 50_000);

    // Once more without emulation, and with the targets in another order.
    let error =
        place.bad(&["mount", "--target", "@t1", "--target", "@t0", "--target", "@t2", "--stripe", "4K", "@mnt"]);
    assert!(error.contains("give the targets in their order"), "{error}");
    place.good(&[&base[..], &volume, &["@mnt"]].concat());
    assert_eq!(fs::read(place.path("mnt/data")).unwrap(), data);
    unmount(&place);

    let all = ["check", "--target", "@t0", "--target", "@t1", "--target", "@t2"];
    assert!(place.good(&all).contains("All is well"));
    fs::write(place.path("t1/orphan"), b"").unwrap();
    let left = run(&mut place.sluice(&all));
    assert_eq!(left.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&left.stdout).contains("orphan: not on the first target, and empty"), "{left:?}");
    let json = place.good(&[&all[..], &["--repair", "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // What has data may be all that there is.
    fs::create_dir(place.path("t2/orphans")).unwrap();
    fs::write(place.path("t2/orphans/full"), b"precious").unwrap();
    let kept = run(place.sluice(&all).arg("--repair"));
    let text = String::from_utf8_lossy(&kept.stdout);
    assert!(kept.status.code() == Some(1) && text.contains("t2: orphans: has data"), "{kept:?}");
    assert_eq!(fs::read(place.path("t2/orphans/full")).unwrap(), b"precious");
    place.good(&[&all[..], &["--repair", "--discard"]].concat());
    assert!(!place.path("t2/orphans").exists());
    assert_eq!((json["clean"].as_bool(), json["orphans"][0]["repaired"].as_bool()), (Some(true), Some(true)));
    assert!(place.good(&all).contains("All is well"));
}

/// What each target holds of the files `0` to `19`, 40 KB each, of a volume mounted with these options. Unmounts it.
fn small_files(place: &Place, options: &[&str]) -> [u64; 2] {
    place.good(
        &[&["mount", "--daemon", "--log", "@log", "--target", "@t0", "--target", "@t1"], options, &["@mnt"]].concat(),
    );
    let data: Vec<u8> = (0..40_960u32).map(|i| (i % 251) as u8).collect();
    for file in 0..20 {
        fs::write(place.path(&format!("mnt/{file}")), &data).unwrap();
    }
    unmount(place);
    place.good(&["mount", "--daemon", "--log", "@log", "--target", "@t0", "--target", "@t1", "@mnt"]);
    assert!((0..20).all(|file| fs::read(place.path(&format!("mnt/{file}"))).unwrap() == data));
    unmount(place);
    let held =
        |target: &str| (0..20).map(|file| fs::metadata(place.path(&format!("{target}/{file}"))).unwrap().len()).sum();
    ["t0", "t1"].map(held)
}

#[test]
fn small_files_are_on_all_targets_alike_unless_they_are_to_be_on_the_first() {
    if !fuse_works() {
        return;
    }
    for (rule, options) in
        [("hash", &[][..]), ("hash", &["--first-target", "hash"]), ("zero", &["-o", "first_target=zero"])]
    {
        let place = Place::new();
        ["t0", "t1"].iter().for_each(|name| _ = place.make(name));
        let held = small_files(&place, options);
        match rule {
            "zero" => assert_eq!(held, [20 * 40_960, 0]),
            _ => assert!(held.iter().all(|held| held.abs_diff(10 * 40_960) <= 40_960), "{held:?}"),
        }
        let other = if rule == "zero" { "hash" } else { "zero" };
        let error = place.bad(&["mount", "--target", "@t0", "--target", "@t1", "--first-target", other, "@mnt"]);
        assert!(error.contains(&format!("by `{rule}`, not `{other}`")), "{error}");
        // Somebody sets permissions on a target.
        let part = place.path("t1/0");
        let mode = fs::metadata(&part).unwrap().permissions();
        fs::set_permissions(&part, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let check = ["check", "--target", "@t0", "--target", "@t1"];
        if rule == "zero" {
            assert!(place.good(&check).contains("All is well"));
            continue;
        }
        let found = run(place.sluice(&check).arg("--repair"));
        assert_eq!(found.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&found.stdout).contains("t1: 0: its permissions do not tell"), "{found:?}");
        place.good(&["mount", "--daemon", "--log", "@log", "--target", "@t0", "--target", "@t1", "@mnt"]);
        assert_eq!(fs::read(place.path("mnt/0")).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::read(place.path("mnt/1")).unwrap().len(), 40_960);
        unmount(&place);
        fs::set_permissions(&part, mode).unwrap();
        assert!(place.good(&check).contains("All is well"));
    }
    let place = Place::new();
    let error = place.bad(&["mount", "--first-target", "hash", "@source", "@mnt"]);
    assert!(error.contains("striped over several directories"), "{error}");
}

#[test]
fn ordinary_users_mount_through_fusermount() {
    if !fuse_works() || !is_root() {
        return eprintln!("SKIP: not root, cannot become another user: this test did NOT run");
    }
    let nobody = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
        command
    };
    let may = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !may(Command::new("fusermount3").arg("-V")) || !may(nobody("sh").args(["-c", "exec 3<>/dev/fuse"])) {
        return eprintln!("SKIP: no fusermount3, or /dev/fuse is closed to ordinary users: this test did NOT run");
    }
    if !may(nobody(env!("CARGO_BIN_EXE_sluice")).arg("--version")) {
        return eprintln!("SKIP: other users cannot run the program where it lies: this test did NOT run");
    }
    let place = Place::new();
    for name in ["source", "mnt"] {
        chown(place.path(name), Some(65534), Some(65534)).unwrap();
    }
    // Where the socket of an ordinary user is by default belongs to the test machine.
    chown(place.make("run"), Some(65534), Some(65534)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = nobody(env!("CARGO_BIN_EXE_sluice"));
        command.args(place.sluice(args).get_args()).env("SLUICE_RUNTIME_DIR", place.path("run")).current_dir("/");
        command
    };
    let mount = Foreground::start(as_nobody(&["mount", "--cache", "writeback", "@source", "@mnt"]));
    let at = place.text("mnt");
    // The time of a write stays what it was when the kernel has written the data and then, in its own name, sets the time.
    let script = format!(
        "import ctypes, os, time\nf = open('{at}/t', 'w')\nf.write('x')\nf.flush()\n\
         written = os.stat('{at}/t').st_mtime_ns\nwhile time.time_ns() < written + 100_000_000: pass\n\
         zero = ctypes.c_longlong(0)\nassert ctypes.CDLL(None).sync_file_range(f.fileno(), zero, zero, 7) == 0\n\
         assert os.stat('{0}/t').st_mtime_ns > written\nos.sync()\nprint(os.stat('{0}/t').st_mtime_ns - written)",
        place.text("source")
    );
    match run(nobody("python3").args(["-c", &script])) {
        output if output.status.success() => assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n"),
        output => eprintln!("SKIP: no python3 to write with: {}", stderr(&output)),
    }
    let script = format!("cd {at} && echo hi > f && cat f && umask 0777 && : > g");
    let output = run(nobody("sh").args(["-c", &script]));
    assert_eq!(output.stdout, b"hi\n", "{}", stderr(&output));
    assert!(fs::read_dir(place.path("mnt")).is_err(), "nobody else, not even root, without allow_other");
    assert!(run(&mut as_nobody(&["status", "@mnt"])).status.success());
    assert!(place.good(&["status", "@mnt"]).contains("uid=65534"), "root may ask");
    mount.signal(Signal::INT);
    assert!(mount.end().success());
    assert_eq!(fs::read(place.path("source/f")).unwrap(), b"hi\n");
}

/// The mount's line of the table: its own options and its type.
fn mount_line(place: &Place) -> (Vec<String>, String) {
    let at = place.path("mnt").canonicalize().unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == at.to_str()).expect("mounted");
    let (own, rest) = line.split_once(" - ").unwrap();
    let options = own.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect();
    (options, rest.split(' ').next().unwrap().to_owned())
}

#[test]
fn options_of_fstab_are_honoured_or_refused() {
    if !fuse_works() || !is_root() {
        return eprintln!("SKIP: not root, cannot set all options: this test did NOT run");
    }
    let place = Place::new();
    let has = |option: &str| mount_line(&place).0.iter().any(|own| own == option);
    // By default as for any FUSE mount.
    let daemon = place.daemon(&[]);
    assert_eq!(mount_line(&place).1, "fuse.sluice");
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let shown = format!("{} {} fuse.sluice ", place.path("source").display(), place.path("mnt").display());
    assert!(table.lines().any(|line| line.starts_with(&shown)), "{table}");
    assert!(
        has("rw") && has("nosuid") && has("nodev") && !has("noexec") && !has("noatime"),
        "{:?}",
        mount_line(&place)
    );
    daemon.unmount();

    let daemon = place.daemon(&["-o", "ro,noexec,suid,dev,noatime,nodiratime,nofail,x-systemd.automount"]);
    assert!(
        has("ro") && has("noexec") && has("noatime") && !has("nosuid") && !has("nodev"),
        "{:?}",
        mount_line(&place)
    );
    let error = fs::write(place.path("mnt/a"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    daemon.unmount();

    for (option, said) in [
        ("strictatime", "noatime changes none"),
        ("nodiratime", "noatime changes no time of access"),
        ("sync", "mount the file system below with sync"),
        ("dirsync", "mount the file system below with dirsync"),
        ("nonempty", "unknown option"),
        ("noexce", "did you mean \"noexec\"?"),
    ] {
        let error = place.bad(&["mount", "-o", option, "@source", "@mnt"]);
        assert!(error.contains(said) && !place.is_mounted(), "{option}: {error}");
    }
    let error = place.bad(&["mount", "--stripe", "64K", "@source", "@mnt"]);
    assert!(error.contains("striped over several directories"), "{error}");
}

#[test]
fn a_living_mount_becomes_read_only_and_back() {
    if !fuse_works() || !is_root() {
        return eprintln!("SKIP: not root, cannot remount: this test did NOT run");
    }
    let place = Place::new();
    assert!(place.bad(&["mount", "-o", "remount,ro", "@mnt"]).contains("no Sluicegate mount"));
    let daemon = place.daemon(&["-o", "noexec"]);
    let write = || fs::write(place.path("mnt/a"), b"x").map_err(|error| error.raw_os_error());
    write().unwrap();
    place.good(&["mount", "-o", "remount,ro", "@mnt"]);
    assert_eq!(write(), Err(Some(libc::EROFS)));
    assert_eq!(place.status()["read_only"], true);
    assert!(mount_line(&place).0.iter().any(|option| option == "noexec"), "the others stay");
    let mut others = Command::new("mount");
    others.args(["-i", "-o", "remount,bind,ro,noexec,nosymfollow"]).arg(place.path("mnt"));
    if others.status().is_ok_and(|status| status.success()) {
        place.good(&["mount", "-o", "remount,ro", "@mnt"]);
        assert!(
            mount_line(&place).0.iter().any(|option| option == "nosymfollow"),
            "also those that are not ours to give"
        );
    }
    for fixed in ["remount,cache=none", "remount,noatime"] {
        assert!(place.bad(&["mount", "-o", fixed, "@mnt"]).contains("mount anew"));
    }
    place.good(&["mount", "-o", "remount,rw,exec", "@mnt"]);
    write().unwrap();
    assert!(mount_line(&place).0.iter().all(|option| option != "noexec"));
    // The system's own program, which knows nothing of ours.
    let by_system = |options: &str| Command::new("mount").args(["-i", "-o", options]).arg(place.path("mnt")).status();
    if by_system("remount,ro").is_ok_and(|status| status.success()) {
        assert_eq!((write(), place.status()["read_only"].as_bool()), (Err(Some(libc::EROFS)), Some(true)));
        assert!(by_system("remount,rw").unwrap().success());
        write().unwrap();
    }
    daemon.unmount();
    // `mount` repeats what it finds in its table.
    let daemon = place.daemon(&["-o", "noatime"]);
    place.good(&["mount", "-o", "remount,nosuid,nodev,noatime,ro", "@mnt"]);
    assert_eq!(write(), Err(Some(libc::EROFS)));
    daemon.unmount();
}

/// As a service of systemd, with the journal on standard error.
#[test]
fn a_service_manager_hears_of_the_mount_and_may_take_it_out_of_sight() {
    use std::os::unix::fs::MetadataExt;
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    fs::write(place.path("source/a"), b"here").unwrap();
    let manager = std::os::unix::net::UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(common::LIMIT)).unwrap();
    let journal = File::create(place.path("journal")).unwrap();
    let (device, inode) = journal.metadata().map(|meta| (meta.dev(), meta.ino())).unwrap();
    let mut command = place.sluice(&["mount", "source", "mnt"]);
    command.env("NOTIFY_SOCKET", place.path("notify")).env("JOURNAL_STREAM", format!("{device}:{inode}"));
    let mut service = command.stdout(Stdio::null()).stderr(journal).spawn().unwrap();
    let mut heard = [0; 4096];
    let length = manager.recv(&mut heard).unwrap();
    let heard = String::from_utf8_lossy(&heard[..length]);
    assert!(heard.starts_with("READY=1\nSTATUS=") && heard.contains("is mounted"), "{heard}");
    let open = File::open(place.path("mnt/a")).unwrap();
    // What stopping does, with SendSIGHUP.
    for signal in [Signal::TERM, Signal::HUP] {
        kill_process(rustix::process::Pid::from_child(&service), signal).unwrap();
    }
    eventually("the mount is out of sight", || !place.is_mounted());
    assert_eq!(std::io::read_to_string(&open).unwrap(), "here");
    drop(open);
    let mut status = None;
    eventually("the service ends", || {
        status = service.try_wait().unwrap();
        status.is_some()
    });
    let log = fs::read_to_string(place.path("journal")).unwrap();
    assert!(status.unwrap().success(), "{log}");
    // The journal has times of its own.
    assert!(log.starts_with(" INFO ") && log.contains("is mounted"), "{log}");
}

#[test]
fn mount_calls_the_helper() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    for name in ["t0", "t1"] {
        place.make(name);
    }
    // As `mount -t fuse.sluice` would, if this were in /sbin.
    let helper = place.path("mount.fuse.sluice");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_sluice"), &helper).unwrap();
    let log = format!("log={}", place.text("log"));
    let mount = |source: &str, options: &str| {
        let mut command = Command::new(&helper);
        command.env("SLUICE_RUNTIME_DIR", place.path("run")).current_dir("/");
        run(command.args([source, &place.text("mnt"), "-o", &format!("{options},{log}"), "-t", "fuse.sluice"]))
    };
    let output = mount(&place.text("source"), "rw,noexec,cache=none,policy=sjf,_netdev");
    assert!(output.status.success(), "{}", stderr(&output));
    fs::write(place.path("mnt/a"), b"through").unwrap();
    assert_eq!(fs::read(place.path("source/a")).unwrap(), b"through");
    let status = place.status();
    assert_eq!((status["policy"]["name"].as_str(), status["cache"].as_str()), (Some("sjf"), Some("none")));
    unmount(&place);
    let output = mount(&format!("{}:{}", place.text("t0"), place.text("t1")), "stripe=4K");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(place.status()["targets"], 2);
    unmount(&place);
    let output = mount(&place.text("source"), "strictatime");
    assert!(!output.status.success() && stderr(&output).contains("strictatime"), "{}", stderr(&output));
}

#[test]
fn reading_with_noatime_changes_no_times() {
    if !fuse_works() || !is_root() {
        return eprintln!("SKIP: not root: this test did NOT run");
    }
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    fs::write(place.path("source/a"), b"x").unwrap();
    let old = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    let names = ["source/a", "source"];
    for name in names {
        rustix::fs::utimensat(rustix::fs::CWD, place.path(name), &times, rustix::fs::AtFlags::empty()).unwrap();
    }
    let accessed = |name: &str| fs::metadata(place.path(name)).unwrap().atime();
    let daemon = place.daemon(&["-o", "noatime,cache=none"]);
    let read = || {
        assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 1);
        assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"x");
    };
    read();
    assert_eq!(names.map(accessed), [1_000_000_000; 2]);
    daemon.unmount();
    let daemon = place.daemon(&["-o", "cache=none"]);
    read();
    let changes = names.map(accessed).iter().all(|&time| time > 1_000_000_000);
    let below = rustix::fs::statvfs(place.path("source")).unwrap().f_flag;
    assert!(changes || below.contains(rustix::fs::StatVfsMountFlags::NOATIME), "as the directory's own file system");
    daemon.unmount();
}

#[test]
fn users_cannot_flood_the_log() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--emulate", "hdd-7200"]);
    fs::write(place.path("mnt/a"), vec![1; 1 << 20]).unwrap();
    let file = File::options().read(true).write(true).open(place.path("mnt/a")).unwrap();
    for request in [0x5401, 0x8008_6601, 0xDEAD] {
        let mut word = 0u64;
        // SAFETY: no file system writes more than a word for a request that it does not know.
        let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), request, &raw mut word) };
        assert_eq!((result, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOTTY)));
    }
    drop(file);
    // Interrupted in the middle of what takes long.
    for _ in 0..5 {
        let script = "while :; do dd if=a of=/dev/null bs=4k iflag=direct; done";
        let mut children: Vec<_> = (0..4)
            .map(|_| {
                let mut command = Command::new("sh");
                command.args(["-c", script]).current_dir(place.path("mnt")).stderr(Stdio::null());
                std::os::unix::process::CommandExt::process_group(&mut command, 0);
                command.spawn().unwrap()
            })
            .collect();
        eventually("they read", || place.status()["in_flight"].as_u64().unwrap() > 0);
        for child in &mut children {
            let group = rustix::process::Pid::from_child(child);
            rustix::process::kill_process_group(group, Signal::TERM).unwrap();
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            child.wait().unwrap();
        }
    }
    daemon.unmount();
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    assert!(log.lines().count() < 10, "{log}");
}
