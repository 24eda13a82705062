//! The mount's process is killed again and again while threads write, sync and rename. What they were told to be synced is
//! noted here, outside of the mount, and looked for after mounting again.
//!
//! `SLUICE_KILLS=50` kills so often on each kind of mount (2 if not given); `SLUICE_SEED` chooses other moments.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Pid;

use crate::beds::{DIRECTORY, STRIPED_FREELY, place};
use crate::common::{self, Place, eventually, fuse_works, unmount};
use crate::policies;

const PAGE: usize = 4096;
const PAGES: u64 = 64;
const NAMES: u64 = 8;

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A writer that goes on until the mount fails it, and notes what it was told.
trait Writer: Send {
    /// One step; counts what was promised.
    fn step(&mut self, dir: &Path, random: &mut Random, promised: &AtomicUsize) -> io::Result<()>;
    /// Panics if something that was promised is not there; goes on from what is there.
    fn verify(&mut self, dir: &Path);
}

/// Overwrites pages of one file; each holds its version throughout.
struct Overwriter {
    name: &'static str,
    written: BTreeMap<u64, u64>,
    synced: BTreeMap<u64, u64>,
    version: u64,
}

impl Writer for Overwriter {
    fn step(&mut self, dir: &Path, random: &mut Random, promised: &AtomicUsize) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(self.name))?;
        for _ in 0..random.below(4) {
            let page = random.below(PAGES);
            self.version += 1;
            self.written.insert(page, self.version);
            file.write_all_at(&self.version.to_le_bytes().repeat(PAGE / 8), page * PAGE as u64)?;
        }
        file.sync_data()?;
        self.synced = self.written.clone();
        promised.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn verify(&mut self, dir: &Path) {
        if self.synced.is_empty() {
            return;
        }
        let file = File::open(dir.join(self.name)).unwrap();
        for (page, synced) in &self.synced {
            let mut data = vec![0; PAGE];
            file.read_exact_at(&mut data, page * PAGE as u64).unwrap();
            let found = u64::from_le_bytes(data[..8].try_into().unwrap());
            assert!(data == found.to_le_bytes().repeat(PAGE / 8), "{}: page {page} is a mixture", self.name);
            let written = self.written[page];
            assert!((*synced..=written).contains(&found), "{}: page {page} has {found}, synced {synced}", self.name);
            self.written.insert(*page, found);
        }
        self.written.retain(|page, _| self.synced.contains_key(page));
        self.synced = self.written.clone();
    }
}

/// Appends records of many sizes, across stripes.
struct Appender {
    name: &'static str,
    synced: u64,
    written: u64,
}

fn record(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] | 1).collect()
}

impl Writer for Appender {
    fn step(&mut self, dir: &Path, random: &mut Random, promised: &AtomicUsize) -> io::Result<()> {
        let file = OpenOptions::new().append(true).create(true).open(dir.join(self.name))?;
        for _ in 0..1 + random.below(3) {
            let data = record(self.written, 1 + random.below(40_000));
            self.written += data.len() as u64;
            io::Write::write_all(&mut &file, &data)?;
        }
        file.sync_all()?;
        self.synced = self.written;
        promised.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn verify(&mut self, dir: &Path) {
        let path = dir.join(self.name);
        if self.synced == 0 {
            let _ = fs::remove_file(path);
            self.written = 0;
            return;
        }
        let data = fs::read(&path).unwrap();
        let (synced, len) = (self.synced as usize, data.len() as u64);
        assert!((self.synced..=self.written).contains(&len), "{}: {len} bytes, {synced} synced", self.name);
        assert!(data[..synced] == record(0, self.synced), "{}: what was synced is not there", self.name);
        // The rest is what was written, or was never written.
        let rest = record(self.synced, len - self.synced);
        assert!(data[synced..].iter().zip(&rest).all(|(found, byte)| found == byte || *found == 0));
        OpenOptions::new().write(true).open(path).unwrap().set_len(self.synced).unwrap();
        self.written = self.synced;
    }
}

/// Replaces files as editors and databases do: a new one is written and synced, and then gets the name.
struct Replacer {
    dir: &'static str,
    promised: BTreeMap<u64, u64>,
    begun: BTreeMap<u64, u64>,
    version: u64,
}

impl Replacer {
    fn contents(version: u64) -> Vec<u8> {
        version.to_le_bytes().repeat(1000 + (version % 7) as usize * 2000)
    }
}

impl Writer for Replacer {
    fn step(&mut self, dir: &Path, random: &mut Random, promised: &AtomicUsize) -> io::Result<()> {
        let dir = dir.join(self.dir);
        let name = random.below(NAMES);
        self.version += 1;
        let new = dir.join(format!("new{}", self.version));
        let mut file = File::create_new(&new)?;
        io::Write::write_all(&mut file, &Replacer::contents(self.version))?;
        file.sync_all()?;
        self.begun.insert(name, self.version);
        fs::rename(&new, dir.join(format!("name{name}")))?;
        File::open(&dir)?.sync_all()?;
        self.promised.insert(name, self.version);
        promised.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn verify(&mut self, dir: &Path) {
        let dir = dir.join(self.dir);
        for (name, promised) in self.promised.clone() {
            let data = fs::read(dir.join(format!("name{name}"))).unwrap();
            let found = u64::from_le_bytes(data[..8].try_into().unwrap());
            assert!(data == Replacer::contents(found), "{}/name{name} is half made", self.dir);
            let allowed = [promised, self.begun[&name]];
            assert!(allowed.contains(&found), "{}/name{name} has {found}, may have {allowed:?}", self.dir);
            self.promised.insert(name, found);
        }
        self.begun = self.promised.clone();
        // No name leads nowhere; what the kill left unfinished can be removed.
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            entry.metadata().unwrap();
            let name = entry.file_name().into_string().unwrap();
            let data = fs::read(entry.path()).unwrap();
            if let Some(name) = name.strip_prefix("name").and_then(|number| number.parse::<u64>().ok()) {
                let whole =
                    data.len() >= 8 && data == Replacer::contents(u64::from_le_bytes(data[..8].try_into().unwrap()));
                assert!(whole, "name{name} is half made");
            } else {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

fn mount(place: &Place, options: &[&str]) -> Pid {
    place.good(&[&["mount", "--daemon", "--log", "@log"], options, &["@mnt"]].concat());
    Pid::from_raw(place.status()["pid"].as_i64().unwrap() as i32).unwrap()
}

fn killed_again_and_again(bed: &[&str]) {
    if !fuse_works() {
        return;
    }
    let (kills, seed) = (number("SLUICE_KILLS", 2), number("SLUICE_SEED", 1));
    println!("seed {seed}; run again with SLUICE_SEED={seed} SLUICE_KILLS={kills}");
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let place = place();
    let dir: PathBuf = place.path("mnt");
    let overwriter = |name| Overwriter { name, written: BTreeMap::new(), synced: BTreeMap::new(), version: 0 };
    let replacer = |dir| Replacer { dir, promised: BTreeMap::new(), begun: BTreeMap::new(), version: 0 };
    let mut writers: Vec<Box<dyn Writer>> = vec![
        Box::new(overwriter("pages")),
        Box::new(overwriter("others")),
        Box::new(Appender { name: "log", synced: 0, written: 0 }),
        Box::new(replacer("d1")),
        Box::new(replacer("d2")),
    ];
    mount(&place, bed);
    for name in ["d1", "d2"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    unmount(&place);
    let all = policies();
    for kill in 0..kills {
        let policy = all[(kill as usize * 3 + 1) % all.len()].name;
        let cache = ["none", "auto", "writeback"][kill as usize % 3];
        let options = [&["--policy", policy, "--cache", cache], bed].concat();
        let pid = mount(&place, &options);
        let (promised, wanted) = (AtomicUsize::new(0), 5 + random.below(60) as usize);
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let mut random = Random(random.below(u32::MAX.into()) + 1);
                let (dir, promised) = (&dir, &promised);
                // Ends with the mount.
                scope.spawn(move || while writer.step(dir, &mut random, promised).is_ok() {});
            }
            eventually("the writers come far enough", || promised.load(Ordering::Relaxed) >= wanted);
            // It ends after the mount does, and holds the targets until then.
            common::kill(pid);
        });
        eprintln!("kill {kill} under {policy}, cache {cache}, after {}", promised.load(Ordering::Relaxed));
        mount(&place, &options);
        writers.iter_mut().for_each(|writer| writer.verify(&dir));
        unmount(&place);
        if bed.contains(&"--target") {
            let check = ["check", "--target", "@t0", "--target", "@t1", "--target", "@t2"];
            place.good(&[&check[..], &["--repair", "--discard"]].concat());
            assert!(place.good(&check).contains("All is well"));
            // Nothing that was promised was repaired away.
            mount(&place, bed);
            writers.iter_mut().for_each(|writer| writer.verify(&dir));
            unmount(&place);
        }
    }
}

#[test]
fn a_directory_keeps_what_it_promised() {
    killed_again_and_again(DIRECTORY);
}

#[test]
fn a_striped_volume_keeps_what_it_promised() {
    killed_again_and_again(STRIPED_FREELY);
}
