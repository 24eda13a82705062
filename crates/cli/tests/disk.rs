//! `sluice disk`: block devices are made, used, listed and removed, also after the worst.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Place, eventually, has_ended, is_root, kill, loop_devices_work};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A place whose disks are removed at the end of its test, whatever state they are in.
struct Disks(Place);

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = self.0.sluice(&["disk", "remove", "--all", "--force"]).output();
    }
}

impl Disks {
    fn new() -> Disks {
        Disks(Place::new())
    }

    fn good(&self, args: &[&str]) -> String {
        self.0.good(&[&["disk"], args].concat())
    }

    fn bad(&self, args: &[&str]) -> String {
        self.0.bad(&[&["disk"], args].concat())
    }

    fn list(&self) -> Vec<Value> {
        serde_json::from_str(&self.good(&["list", "--json"])).unwrap()
    }

    /// The only disk.
    fn only(&self) -> Value {
        let mut list = self.list();
        assert_eq!(list.len(), 1, "{list:?}");
        list.remove(0)
    }

    /// The process that serves a disk.
    fn emulation(&self, name: &str) -> Pid {
        let path = self.0.text(&format!("disks/{name}/emulation"));
        let status: Value = serde_json::from_str(&self.0.good(&["status", "--json", &path])).unwrap();
        assert_eq!(status["emulated"], self.only()["emulated"], "{status}");
        Pid::from_raw(status["pid"].as_i64().unwrap() as i32).unwrap()
    }

    fn kill_emulation(&self, name: &str) {
        kill(self.emulation(name));
        eventually("it is noticed", || self.list()[0]["state"] == "broken");
    }

    /// `sluice disk` with programs of this place before all others.
    fn with_programs(&self, args: &[&str]) -> Command {
        let mut command = self.0.sluice(&[&["disk"], args].concat());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.0.text("bin"))).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Puts a program there.
    fn program(&self, name: &str, script: &str) {
        let _ = fs::create_dir(self.0.path("bin"));
        let path = self.0.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// `create` in the middle of making a file system, for ever. By then there is all but the file system.
    fn in_the_middle(&self) -> Child {
        self.program("mkfs.ext4", "echo $$ > started; exec sleep 1000");
        let create = ["create", "d", "--model", "null", "--size", "16M", "--mkfs", "ext4", "--mount", "@mnt"];
        let child = self.with_programs(&create).spawn().unwrap();
        eventually("it is in the middle", || self.0.path("started").exists());
        let disk = self.only();
        assert_eq!(disk["state"], "creating");
        assert!(disk["device"].is_string(), "{disk}");
        child
    }

    /// Nothing is there that was not there before.
    fn nothing_is_left(&self) {
        assert_eq!(self.list(), [] as [Value; 0]);
        assert_eq!(fs::read_dir(self.0.path("disks")).map_or(0, Iterator::count), 0);
        let sockets = fs::read_dir(self.0.path("run")).into_iter().flatten().flatten();
        let sockets: Vec<_> = sockets
            .map(|file| file.file_name())
            .filter(|name| Path::new(name).extension().is_some_and(|of| of == "sock"))
            .collect();
        assert!(sockets.is_empty(), "{sockets:?}");
        let place = self.0.path("").canonicalize().unwrap();
        let place = place.to_str().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(place), "{mounts}");
        assert!(bound_files().iter().all(|file| !file.contains(place)), "{:?}", bound_files());
    }
}

/// What the loop devices of this machine are bound to.
fn bound_files() -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok()).collect()
}

/// An attribute of a device's queue.
fn queue(disk: &Value, key: &str) -> String {
    let device = Path::new(disk["device"].as_str().unwrap()).file_name().unwrap().to_owned();
    let path = Path::new("/sys/block").join(device).join("queue").join(key);
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("-V").output().is_ok();
    if !found {
        eprintln!("SKIP: no {program}: this test did NOT run");
    }
    found
}

/// A disk `d` with an ext4 mounted on `fs`; `None` where there can be none.
fn with_file_system() -> Option<Disks> {
    if !loop_devices_work() || !has("mkfs.ext4") {
        return None;
    }
    let disks = Disks::new();
    disks.good(&["create", "d", "--model", "null", "--size", "64M", "--mkfs", "ext4", "--mount", "@fs"]);
    Some(disks)
}

#[test]
fn a_file_system_is_made_used_and_removed() {
    if !loop_devices_work() || !has("mkfs.ext4") {
        return;
    }
    let disks = Disks::new();
    let said = disks.good(&["create", "d", "--model", "null", "--size", "64M", "--mkfs", "ext4", "--mount", "@fs"]);
    assert!(said.contains("emulated null") && said.contains("sluice disk remove d"), "{said}");
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n / 7) as u8).collect();
    let path = disks.0.path("fs/file");
    let mut file = File::create(&path).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);

    let disk = disks.only();
    assert_eq!(
        (&disk["emulated"], &disk["state"], &disk["filesystem"]),
        (&true.into(), &"ready".into(), &"ext4".into())
    );
    assert_eq!(disk["mount_points"][0], disks.0.path("").canonicalize().unwrap().join("fs").to_str().unwrap());
    let table = disks.good(&["list"]);
    assert!(table.contains("emulated null") && table.contains("64 MiB") && table.contains("ready"), "{table}");

    // The file is still open.
    let error = disks.bad(&["remove", "d"]);
    assert!(error.contains("is in use by disk"), "{error}");
    assert_eq!(disks.only()["state"], "ready", "a removal that is refused changes nothing");
    let error = disks.bad(&["create", "d", "--model", "null", "--size", "64M"]);
    assert!(error.contains("there is such a disk already"), "{error}");
    drop(file);
    let said = disks.good(&["remove", "d"]);
    assert!(said.contains("emulated null"), "{said}");
    assert!(!disks.0.path("fs").exists(), "the mount point was made, so it is removed");
    disks.nothing_is_left();
}

#[test]
fn queues_are_those_of_the_drives_and_given_back() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    let cases: &[(&str, &[&str], [&str; 3])] = &[
        ("hdd-7200", &[], ["1", "64", "mq-deadline"]),
        ("hdd-7200", &["--scheduler", "bfq", "--queue-depth", "4"], ["1", "8", "bfq"]),
        ("ssd-sata", &[], ["0", "32", "none"]),
        ("nvme", &["--scheduler", "none", "--queue-depth", "128"], ["0", "128", "none"]),
    ];
    let offered = fs::read_to_string("/sys/block/loop0/queue/scheduler").unwrap_or_default();
    for (model, options, [rotates, requests, scheduler]) in cases {
        if !offered.contains(scheduler) {
            eprintln!("SKIP: this kernel has no {scheduler}: a part of this test did NOT run");
            continue;
        }
        disks.good(&[&["create", "d", "--model", model, "--size", "16M"], *options].concat());
        let disk = disks.only();
        assert_eq!([queue(&disk, "rotational"), queue(&disk, "nr_requests")], [*rotates, *requests], "{model}");
        assert_eq!(disk["scheduler"], *scheduler);
        disks.good(&["remove", "d"]);
        // Another test may have the device by now, but none other makes disks that rotate.
        assert_eq!(queue(&disk, "rotational"), "0", "{model}");
    }
    disks.nothing_is_left();
}

#[test]
fn a_striped_disk_deals_its_bytes_out_to_the_drives() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    let options = ["--stripe", "2", "--stripe-size", "64K"];
    let said = disks.good(&[&["create", "d", "--model", "null", "--size", "16M"], &options[..]].concat());
    assert!(said.contains("2 x emulated null, striped by 64 KiB"), "{said}");
    let disk = disks.only();
    assert_eq!((disk["drives"].as_u64(), disk["stripe_bytes"].as_u64()), (Some(2), Some(65536)));
    let stripe = 64 << 10;
    let data: Vec<u8> = (0..4 * stripe).map(|at| b'a' + (at / stripe) as u8).collect();
    let mut device = OpenOptions::new().read(true).write(true).open(disk["device"].as_str().unwrap()).unwrap();
    assert_eq!(device.seek(SeekFrom::End(0)).unwrap(), 16 << 20);
    device.rewind().unwrap();
    device.write_all(&data).unwrap();
    device.sync_all().unwrap();
    drop(device);
    for (drive, stripes) in [("drive0", b"ac"), ("drive1", b"bd")] {
        let files = fs::read_dir(disks.0.path("disks/d").join(drive)).unwrap().flatten();
        let image: PathBuf = files.map(|file| file.path()).find(|p| p.extension() == Some("img".as_ref())).unwrap();
        let mut held = vec![0; 2 * stripe];
        File::open(image).unwrap().read_exact(&mut held).unwrap();
        assert!(held[..stripe].iter().all(|byte| *byte == stripes[0]), "{drive}");
        assert!(held[stripe..].iter().all(|byte| *byte == stripes[1]), "{drive}");
    }
    disks.good(&["remove", "d"]);
    disks.nothing_is_left();
}

#[test]
fn several_are_made_at_once_and_removed_together() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    let names = ["d0", "d1", "d2", "d3", "d4", "d5"];
    let children = names.map(|name| {
        let mut create = disks.0.sluice(&["disk", "create", name, "--model", "null", "--size", "16M"]);
        create.stdout(Stdio::null()).spawn().unwrap()
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let list = disks.list();
    assert!(list.iter().all(|disk| disk["state"] == "ready"), "{list:?}");
    let mut devices: Vec<&str> = list.iter().map(|disk| disk["device"].as_str().unwrap()).collect();
    devices.sort_unstable();
    devices.dedup();
    assert_eq!(devices.len(), names.len());
    assert_eq!(disks.good(&["remove", "--all"]).lines().count(), names.len());
    disks.nothing_is_left();
    assert!(disks.good(&["remove", "--all"]).contains("no emulated disks"));
}

#[test]
fn a_disk_whose_emulation_was_killed_is_broken_and_removed() {
    if !loop_devices_work() || !has("mkfs.ext4") {
        return;
    }
    let disks = Disks::new();
    let create = ["create", "d", "--model", "null", "--size", "64M", "--mkfs", "ext4", "--mount", "@mnt"];
    disks.good(&create);
    // With something to write back that cannot be.
    fs::write(disks.0.path("mnt/file"), vec![1; 1 << 20]).unwrap();
    disks.kill_emulation("d");
    let disk = disks.only();
    assert_eq!(disk["problem"], "the process that serves it has died");
    assert_eq!(disk["remedy"], "bring it back: sluice disk up d, or clear it away: sluice disk remove d");
    let table = disks.good(&["list"]);
    assert!(table.contains("broken") && table.contains("sluice disk remove d"), "{table}");
    disks.good(&["remove", "d"]);
    assert!(disks.0.path("mnt").exists(), "the mount point was there before");
    disks.nothing_is_left();

    // Or made anew.
    disks.good(&create);
    disks.kill_emulation("d");
    disks.good(&create);
    assert_eq!(disks.only()["state"], "ready");
    disks.good(&["remove", "d"]);
    disks.nothing_is_left();
}

#[test]
fn a_start_that_fails_leaves_no_disk_that_seems_to_run() {
    let Some(disks) = with_file_system() else { return };
    File::create(disks.0.path("fs/file")).unwrap().sync_all().unwrap();
    disks.kill_emulation("d");
    assert!(Command::new("umount").arg(disks.0.path("fs")).status().unwrap().success());
    // The last step fails.
    fs::remove_dir(disks.0.path("fs")).unwrap();
    fs::write(disks.0.path("fs"), b"").unwrap();
    assert!(disks.bad(&["up", "d"]).contains("making the mount point"));
    assert_eq!(disks.only()["problem"], "it was being brought back, which did not come to an end");
    fs::remove_file(disks.0.path("fs")).unwrap();
    disks.good(&["up", "d"]);
    assert_eq!(disks.only()["state"], "ready");
    assert!(disks.0.path("fs/file").exists());
}

#[test]
fn a_removal_that_is_refused_leaves_a_disk_as_it_was() {
    let Some(disks) = with_file_system() else { return };
    let before = disks.only();
    let user = File::open(before["device"].as_str().unwrap()).unwrap();
    assert!(disks.bad(&["remove", "d"]).contains("in use by"));
    assert_eq!(disks.only(), before, "it is mounted still");
    drop(user);
    disks.good(&["remove", "d"]);
    disks.nothing_is_left();
}

#[test]
fn a_creation_that_fails_leaves_nothing() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    disks.program("mkfs.ext4", "echo no luck; exit 3");
    let create = ["create", "d", "--model", "null", "--size", "16M", "--mkfs", "ext4", "--mount", "@fs"];
    let output = common::run(&mut disks.with_programs(&create));
    let said = common::stderr(&output);
    assert!(!output.status.success() && said.contains("no luck") && said.contains("nothing of it is left"), "{said}");
    disks.nothing_is_left();
    assert!(!disks.0.path("fs").exists());

    // The mount itself: what is on the device then is no file system.
    disks.program("mkfs.ext4", "true");
    let output = common::run(&mut disks.with_programs(&create));
    let said = common::stderr(&output);
    assert!(!output.status.success() && said.contains("mounting the ext4 of /dev/loop"), "{said}");
    disks.nothing_is_left();
    assert!(!disks.0.path("fs").exists());
}

#[test]
fn a_creation_that_is_interrupted_leaves_nothing() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    let child = disks.in_the_middle();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = common::stderr(&output);
    assert!(!output.status.success() && said.contains("interrupted by SIGINT"), "{said}");
    disks.nothing_is_left();
}

#[test]
fn a_creation_that_was_killed_is_cleared_away() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    for anew in [false, true] {
        let mut child = disks.in_the_middle();
        let error = disks.bad(&["remove", "d"]);
        assert!(error.contains("another sluice disk command is at work"), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
        let disk = disks.only();
        assert_eq!((disk["state"].as_str(), disk["remedy"].is_string()), (Some("broken"), true), "{disk}");
        fs::remove_file(disks.0.path("started")).unwrap();
        if anew {
            disks.good(&["create", "d", "--model", "null", "--size", "16M"]);
            assert_eq!(disks.only()["state"], "ready");
        }
        disks.good(&["remove", "d"]);
        disks.nothing_is_left();
    }
}

#[test]
fn by_force_a_disk_goes_under_its_users() {
    let Some(disks) = with_file_system() else { return };
    let mut file = File::create(disks.0.path("fs/file")).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    file.sync_all().unwrap();
    let emulation = disks.emulation("d");
    disks.good(&["remove", "d", "--force"]);
    assert_eq!(disks.list(), [] as [Value; 0]);
    let lost = file.write_all(&[2; 4096]).and_then(|()| file.sync_all());
    assert!(lost.is_err(), "the drive is gone");
    drop(file);
    eventually("the loop device goes with its last user", || {
        bound_files().iter().all(|file| !file.starts_with("/d-") || !file.contains(".img"))
    });
    eventually("the emulation has ended", || has_ended(emulation));
    disks.nothing_is_left();
}

#[test]
fn what_else_may_happen_to_parts_is_noticed() {
    if !loop_devices_work() {
        return;
    }
    let disks = Disks::new();
    disks.good(&["create", "d", "--model", "null", "--size", "16M"]);
    // As a restart of the machine does, which also unbinds the device.
    let device = disks.only()["device"].as_str().unwrap().to_owned();
    eventually("unbound", || Command::new("losetup").args(["-d", &device]).status().unwrap().success());
    eventually("noticed", || disks.only()["problem"] == "its block device was unbound");
    disks.0.good(&["unmount", &disks.0.text("disks/d/emulation")]);
    assert!(disks.only()["problem"].as_str().unwrap().starts_with("the mount of the process that serves it is gone"));
    disks.good(&["remove", "d"]);
    disks.nothing_is_left();
    // A state file that is none.
    fs::write(disks.0.path("disks/e.json"), "{").unwrap();
    let disk = disks.only();
    assert!(disk["state"] == "broken" && disk["problem"].as_str().unwrap().contains("e.json"), "{disk}");
    assert!(disks.bad(&["remove", "e"]).contains("is not understood"));
    fs::remove_file(disks.0.path("disks/e.json")).unwrap();
}

/// Random 4 KiB pieces of a file, written in a random order and synced; what the file then is.
fn scattered(path: &Path, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut data = vec![0; 2 << 20];
    let mut file = File::create(path).unwrap();
    file.write_all(&data).unwrap();
    for _ in 0..300 {
        let at = (random() as usize % (data.len() >> 12)) << 12;
        let piece: Vec<u8> = (0..4096).map(|_| random() as u8).collect();
        data[at..at + 4096].copy_from_slice(&piece);
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        file.write_all(&piece).unwrap();
    }
    file.sync_all().unwrap();
    data
}

/// Settings of a tier that takes every write, and writes nothing back before it must.
const KEEPING: [&str; 8] =
    ["--tier-size", "32M", "--tier-set", "rule=always", "--tier-set", "bypass=none", "--tier-set", "quiet=60min"];

#[test]
fn what_was_synced_before_a_tier_was_killed_is_there_again() {
    if !loop_devices_work() || !has("mkfs.ext4") {
        return;
    }
    let disks = Disks::new();
    let ssd = disks.0.make("ssd");
    let size = ["--model", "null", "--size", "64M", "--mkfs", "ext4", "--mount", "@fs", "--tier", "@ssd"];
    let create = [&["create", "d"], &size[..], &KEEPING].concat();
    let said = disks.good(&create);
    assert!(said.contains("emulated null with a tier on"), "{said}");
    assert!(ssd.join("d.tier").exists());
    let file = disks.0.path("fs/file");
    for round in 0..2 {
        let data = scattered(&file, round);
        // Not synced: it may be gone, and must not do any harm.
        fs::write(disks.0.path("fs/other"), vec![7; 1 << 20]).unwrap();
        let disk = disks.only();
        let status = &disk["tier"]["status"];
        assert_eq!((disk["emulated"].as_bool(), status["health"].as_str()), (Some(true), Some("well")), "{disk}");
        assert!(status["dirty_bytes"].as_u64().unwrap() >= 1 << 20, "the SSD alone has it: {status}");
        let shown = disks.0.good(&["status", &disks.0.text("disks/d/emulation")]);
        assert!(shown.contains("tier       well") && shown.contains("emulated"), "{shown}");
        disks.kill_emulation("d");
        let error = disks.bad(&create);
        assert!(error.contains("sluice disk up d"), "what is on it is not cleared away: {error}");
        let said = disks.good(&["up", "d"]);
        assert!(said.contains("emulated null with a tier on"), "{said}");
        assert!(disks.only()["tier"]["status"]["recovery"]["dirty_bytes"].as_u64().unwrap() >= 1 << 20);
        assert!(fs::read(&file).unwrap() == data, "round {round}: what was synced has changed");
    }
    assert!(disks.good(&["up", "--all"]).contains("runs already"));
    disks.good(&["remove", "d"]);
    assert_eq!(fs::read_dir(&ssd).unwrap().count(), 0);
    disks.nothing_is_left();
}

#[test]
fn a_real_disk_gets_what_its_tier_has() {
    if !loop_devices_work() || !has("mkfs.ext4") {
        return;
    }
    let disks = Disks::new();
    let disk = disks.0.path("disk");
    File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&disk).status().unwrap();
    assert!(made.success());
    // An SSD that is there already, and is given back empty.
    let ssd = disks.0.path("ssd");
    File::create(&ssd).unwrap().set_len(32 << 20).unwrap();
    let create = [&["create", "d", "--disk", "@disk", "--tier", "@ssd", "--mount", "@fs"], &KEEPING[..]].concat();
    let said = disks.good(&create);
    assert!(said.contains("/disk with a tier on") && !said.contains("emulated"), "{said}");
    let row = disks.only();
    assert_eq!((row["emulated"].as_bool(), row["model"].as_str()), (Some(false), None), "{row}");
    let error = disks.bad(&["create", "e", "--disk", "@disk", "--tier", "@mnt"]);
    assert!(error.contains("the disk d has a tier before it"), "{error}");
    let data = scattered(&disks.0.path("fs/file"), 3);
    disks.kill_emulation("d");
    assert_eq!(disks.only()["problem"], "the process that serves it has died");
    // Nor is the disk anybody else's now: its SSD has what it has not.
    let error = disks.bad(&["create", "e", "--disk", "@disk", "--tier", "@mnt"]);
    assert!(error.contains("the disk d has a tier before it"), "{error}");
    // The process that would write it back is dead, so this does.
    let said = disks.good(&["remove", "d"]);
    assert!(said.contains("written back to"), "{said}");
    disks.nothing_is_left();
    let error = disks.0.bad(&["tier", "check", "@ssd"]);
    assert!(error.contains("no tier on it"), "{error}");

    // Once more, with a process that lives to its end.
    disks.good(&create);
    assert!(fs::read(disks.0.path("fs/file")).unwrap() == data, "the disk has not got it");
    let more = scattered(&disks.0.path("fs/more"), 4);
    assert!(disks.good(&["remove", "d"]).contains("written back to"));
    disks.good(&create);
    assert!(fs::read(disks.0.path("fs/more")).unwrap() == more);
    disks.good(&["remove", "d"]);
    disks.nothing_is_left();
    let checked = Command::new("fsck.ext4").args(["-f", "-n"]).arg(&disk).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");

    // An SSD that is gone is not forgotten silently.
    disks.good(&create);
    disks.kill_emulation("d");
    fs::rename(&ssd, disks.0.path("away")).unwrap();
    let error = disks.bad(&["remove", "d"]);
    assert!(error.contains("bring it back"), "{error}");
    fs::rename(disks.0.path("away"), &ssd).unwrap();
    disks.good(&["remove", "d"]);
    disks.nothing_is_left();
}

#[test]
fn mistakes_are_explained_before_anything_is_made() {
    if !is_root() {
        eprintln!("SKIP: not root: this test did NOT run");
        return;
    }
    let disks = Disks::new();
    fs::write(disks.0.path("file"), b"").unwrap();
    let null = ["create", "d", "--model", "null"];
    let cases: &[(&[&str], &str)] = &[
        (&["create", "../d", "--model", "null"], "cannot be a disk's name"),
        (&["create", "d"], "--model"),
        (&["create", "d", "--model", "hdd-9000"], "models: hdd-7200"),
        (&[&null[..], &["--size", "20Q"]].concat(), "multiple of 4K from 1M to"),
        (&[&null[..], &["--size", "-1"]].concat(), "--size -1: cannot be used; expected a multiple of 4K from 1M to"),
        (&["create", "d", "--model", "hdd-7200", "--size", "1T"], "what the model holds"),
        (&[&null[..], &["--scheduler", "bfx"]].concat(), "no I/O scheduler \"bfx\""),
        (&[&null[..], &["--mount", "@mnt"]].concat(), "--mkfs"),
        (&[&null[..], &["--mkfs", "ntfs"]].concat(), "ext4, xfs"),
        (&[&null[..], &["--mkfs", "ext4", "--mount", "@file"]].concat(), "is not a directory"),
        (&[&null[..], &["--mkfs", "ext4", "--mount", "/proc"]].concat(), "something is mounted there already"),
        (&[&null[..], &["--stripe-size", "64K"]].concat(), "--stripe"),
        (&[&null[..], &["--stripe", "2", "--stripe-size", "1000"]].concat(), "multiple of 4K"),
        (&[&null[..], &["--queue-depth", "3"]].concat(), "3 is not in 4..=128"),
        (&[&null[..], &["--queue-depth", "129"]].concat(), "129 is not in 4..=128"),
        (&[&null[..], &["--dir", "@nowhere"]].concat(), "--dir"),
        (&[&null[..], &["--dir", "@file"]].concat(), "is not a directory"),
        (&[&null[..], &["--stripe", "2", "--tier", "@mnt"]].concat(), "leave --stripe out"),
        (&[&null[..], &["--tier", "@nowhere/ssd"]].concat(), "--tier"),
        (&[&null[..], &["--tier", "@mnt", "--tier-size", "1K"]].concat(), "expected 4M to 16T"),
        (
            &[&null[..], &["--tier", "@mnt", "--tier-size", "-1"]].concat(),
            "--tier-size -1: cannot be used; expected 4M",
        ),
        (&[&null[..], &["--tier", "@mnt", "--tier-set", "idel=1s"]].concat(), "did you mean \"idle\"?"),
        (&[&null[..], &["--tier-size", "1G"]].concat(), "--tier <SSD>"),
        (&["create", "d", "--disk", "@file"], "--tier <SSD>"),
        (&["create", "d", "--disk", "@mnt", "--tier", "@mnt"], "neither a file nor a block device"),
        (&["up", "d"], "there is no such disk"),
        (&["remove"], "--all"),
        (&["remove", "d"], "there is no such disk"),
    ];
    for (args, wanted) in cases {
        let error = disks.bad(args);
        assert!(error.contains(wanted), "sluice disk {args:?} says {error}");
    }
    disks.good(&["list"]);
    assert_eq!(disks.list(), [] as [Value; 0]);
    disks.nothing_is_left();
}
