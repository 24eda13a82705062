//! Random changes of names and sizes with targets that refuse and processes that are killed in between, against a tree in
//! memory: what was told to be done is there, what failed is done or not, and nothing else has changed.

use super::*;

/// Numbers from a seed (Knuth's MMIX generator).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What a name stands for: a directory, or a file by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Dir,
    File(usize),
}

/// Paths of one or two names, and the bytes of each file there ever was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tree {
    names: BTreeMap<PathBuf, Object>,
    files: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Step {
    Create(PathBuf),
    Mkdir(PathBuf),
    Link(PathBuf, PathBuf),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    Rename(PathBuf, PathBuf, u32),
    Truncate(PathBuf, u64),
    Write(PathBuf, u64, usize, u8),
    Punch(PathBuf, u64, u64),
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

impl Tree {
    fn is_dir(&self, path: &std::path::Path) -> bool {
        path == std::path::Path::new("") || self.names.get(path) == Some(&Object::Dir)
    }

    fn is_free(&self, path: &std::path::Path) -> bool {
        !self.names.contains_key(path) && path.parent().is_some_and(|dir| self.is_dir(dir))
    }

    fn below(&self, path: &std::path::Path) -> Vec<PathBuf> {
        self.names.keys().filter(|name| name.starts_with(path) && *name != path).cloned().collect()
    }

    fn file(&self, path: &std::path::Path) -> Option<usize> {
        match self.names.get(path) {
            Some(Object::File(file)) => Some(*file),
            _ => None,
        }
    }

    /// What it is afterwards; `None` if that is refused.
    fn after(&self, step: &Step) -> Option<Tree> {
        let mut tree = self.clone();
        match step {
            Step::Create(at) if self.is_free(at) => {
                tree.files.push(Vec::new());
                tree.names.insert(at.clone(), Object::File(self.files.len()));
            }
            Step::Mkdir(at) if self.is_free(at) => _ = tree.names.insert(at.clone(), Object::Dir),
            Step::Link(from, to) if self.is_free(to) => {
                _ = tree.names.insert(to.clone(), Object::File(self.file(from)?));
            }
            Step::Unlink(at) => {
                self.file(at)?;
                tree.names.remove(at);
            }
            Step::Rmdir(at) if self.is_dir(at) && self.below(at).is_empty() => _ = tree.names.remove(at),
            Step::Rename(from, to, flags) => {
                let (source, target) = (*self.names.get(from)?, self.names.get(to).copied());
                let parents = self.is_dir(to.parent()?) && !to.starts_with(from);
                let same = from == to || source == target.unwrap_or(Object::Dir) && source != Object::Dir;
                match (*flags, target) {
                    _ if same && *flags != libc::RENAME_NOREPLACE => return Some(tree),
                    _ if !parents => return None,
                    (libc::RENAME_NOREPLACE, Some(_)) => return None,
                    (libc::RENAME_EXCHANGE, None) => return None,
                    (libc::RENAME_EXCHANGE, Some(_)) if from.starts_with(to) => return None,
                    (libc::RENAME_EXCHANGE, Some(_)) => {}
                    (_, Some(Object::Dir)) if source != Object::Dir || !self.below(to).is_empty() => return None,
                    (_, Some(Object::File(_))) if source == Object::Dir => return None,
                    _ => {}
                }
                let moved = |of: &PathBuf, from: &PathBuf, to: &PathBuf| {
                    let rest = of.strip_prefix(from).unwrap();
                    if rest == std::path::Path::new("") { to.clone() } else { to.join(rest) }
                };
                let under = |top: &PathBuf| -> Vec<PathBuf> {
                    self.names.keys().filter(|name| name.starts_with(top)).cloned().collect()
                };
                let (ours, theirs) = (under(from), under(to));
                ours.iter().chain(&theirs).for_each(|name| _ = tree.names.remove(name));
                ours.iter().for_each(|name| _ = tree.names.insert(moved(name, from, to), self.names[name]));
                if *flags == libc::RENAME_EXCHANGE {
                    theirs.iter().for_each(|name| _ = tree.names.insert(moved(name, to, from), self.names[name]));
                }
            }
            Step::Truncate(at, size) => tree.files[self.file(at)?].resize(*size as usize, 0),
            Step::Write(at, offset, len, byte) => {
                let file = &mut tree.files[self.file(at)?];
                let (from, to) = (*offset as usize, *offset as usize + len);
                file.resize(file.len().max(to), 0);
                file[from..to].fill(*byte);
            }
            Step::Punch(at, offset, len) => {
                let file = &mut tree.files[self.file(at)?];
                let size = file.len();
                file[size.min(*offset as usize)..size.min((offset + len) as usize)].fill(0);
            }
            _ => return None,
        }
        Some(tree)
    }

    /// What is seen of it.
    fn seen(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let bytes = |object: &Object| match object {
            Object::Dir => None,
            Object::File(file) => Some(self.files[*file].clone()),
        };
        self.names.iter().map(|(path, object)| (path.clone(), bytes(object))).collect()
    }
}

fn path(random: &mut Random) -> PathBuf {
    let name = |random: &mut Random| NAMES[random.below(6) as usize];
    let first = PathBuf::from(name(random));
    if random.below(2) == 0 { first } else { first.join(name(random)) }
}

fn step(random: &mut Random, number: u64) -> Step {
    let at = path(random);
    match random.below(16) {
        0..=2 => Step::Create(at),
        3 => Step::Mkdir(at),
        4 => Step::Link(at, path(random)),
        5 => Step::Unlink(at),
        6 => Step::Rmdir(at),
        7..=9 => {
            let flags = [0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE][random.below(4) as usize];
            Step::Rename(at, path(random), flags)
        }
        10 | 11 => Step::Truncate(at, random.below(200)),
        12 => Step::Punch(at, random.below(200), 1 + random.below(100)),
        _ => Step::Write(at, random.below(150), 1 + random.below(100) as usize, 1 + (number % 250) as u8),
    }
}

fn act(storage: &StripedStorage, step: &Step) -> io::Result<()> {
    let find = |path: &std::path::Path| {
        path.iter().try_fold(storage.root(), |dir, name| {
            let kind = storage.getattr(&dir)?.mode & libc::S_IFMT;
            if kind == libc::S_IFDIR { storage.lookup(&dir, name) } else { Err(Errno::NOTDIR.into()) }
        })
    };
    let parent = |path: &PathBuf| -> io::Result<(NodeRef, std::ffi::OsString)> {
        let dir = find(path.parent().unwrap())?;
        if storage.getattr(&dir)?.mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Errno::NOTDIR.into());
        }
        Ok((dir, path.file_name().unwrap().to_owned()))
    };
    let open = |path: &PathBuf| storage.open(&find(path)?, libc::O_RDWR);
    match step {
        Step::Create(at) => {
            let (dir, name) = parent(at)?;
            storage.create(&dir, &name, 0o600, libc::O_RDWR | libc::O_EXCL, &ME()).map(drop)
        }
        Step::Mkdir(at) => {
            let (dir, name) = parent(at)?;
            storage.mkdir(&dir, &name, 0o700, &ME()).map(drop)
        }
        Step::Link(from, to) => {
            let ((dir, name), node) = (parent(to)?, find(from)?);
            storage.link(&node, &dir, &name).map(drop)
        }
        Step::Unlink(at) => parent(at).and_then(|(dir, name)| storage.unlink(&dir, &name)),
        Step::Rmdir(at) => parent(at).and_then(|(dir, name)| storage.rmdir(&dir, &name)),
        Step::Rename(from, to, flags) => {
            let (from, to) = (parent(from)?, parent(to)?);
            storage.rename(&from.0, &from.1, &to.0, &to.1, *flags)
        }
        Step::Truncate(at, size) => {
            let set = SetAttr { size: Some(*size), ..SetAttr::default() };
            storage.setattr(&find(at)?, None, set).map(drop)
        }
        Step::Write(at, offset, len, byte) => {
            write(storage, &open(at)?, *offset, &vec![*byte; *len]);
            Ok(())
        }
        Step::Punch(at, offset, len) => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            storage.fallocate(&open(at)?, mode, *offset, *len, &ME())
        }
    }
}

fn seen(storage: &StripedStorage) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let is_file = |mode: u32| mode & libc::S_IFMT == libc::S_IFREG;
    contents(storage).into_iter().map(|(path, (mode, bytes))| (path, is_file(mode).then_some(bytes))).collect()
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let targets = 2 + random.below(2) as usize;
    let volume = Volume { number: random.below(100), ..Volume::new(targets) };
    let mut storage = volume.open(16).unwrap();
    let mut tree = Tree::default();
    for number in 0..120 {
        let step = step(&mut random, number);
        let after = tree.after(&step);
        let (trouble, at) = (random.below(5), random.below(8) as u32);
        // What moves bytes is not one change.
        let whole = !matches!(step, Step::Write(..) | Step::Punch(..));
        match trouble {
            0 if whole => fault::kill_after(at),
            1 if whole => fault::fail_after(at, 1 + random.below(2) as u32),
            _ => {}
        }
        let result = act(&storage, &step);
        fault::fail_after(0, 0);
        let killed = fault::disarm();
        if killed || random.below(12) == 0 {
            drop(storage);
            storage = volume.open(16).unwrap();
        }
        let context = || format!("seed {seed}, step {number}: {step:?} gave {result:?}, trouble {trouble} at {at}");
        // A rename that replaced something and was refused is finished before anything else.
        let waits = storage.tree.read().is_some();
        if waits {
            let _ = storage.unlink(&storage.root(), "not there".as_ref());
        }
        let now = seen(&storage);
        let (before, then) = (tree.seen(), after.as_ref().map(Tree::seen));
        let done = then.as_ref() == Some(&now);
        match &result {
            Ok(()) => assert!(done, "{}: {now:#?}\ninstead of {then:#?}", context()),
            Err(error) if trouble > 1 || error.raw_os_error() != Some(libc::EROFS) && !killed => {
                assert!(then.is_none() && now == before, "{}: {now:#?}\ninstead of {before:#?}", context());
            }
            // A truncation that a target refuses in the middle may be done in part: its error tells.
            Err(_) if !killed && matches!(step, Step::Truncate(..)) && !done && now != before => {
                let Step::Truncate(at, size) = &step else { unreachable!() };
                act(&storage, &Step::Truncate(at.clone(), *size)).unwrap();
                let file = after.as_ref().and_then(|tree| tree.file(at)).unwrap();
                let longer = |tree: &Tree| tree.files[file].len();
                assert_eq!(longer(after.as_ref().unwrap()), *size as usize);
                tree = Tree { files: tree.files.clone(), ..after.clone().unwrap() };
                tree.files[file] = seen(&storage)[at].clone().unwrap();
                continue;
            }
            Err(_) => assert!(done || now == before, "{}: {now:#?}\nis neither {before:#?}\nnor {then:#?}", context()),
        }
        if done {
            tree = after.unwrap();
        }
    }
    drop(storage);
    let report = check(&volume.dirs, Repair::Discard).unwrap();
    assert!(report.missing.is_empty() && report.mismatched.is_empty() && report.unplaced.is_empty(), "{report:?}");
    assert!(check(&volume.dirs, Repair::No).unwrap().clean(), "seed {seed}");
    assert_eq!(seen(&volume.open(16).unwrap()), tree.seen(), "seed {seed}");
}

/// `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-storage --lib chaos` goes on for longer.
#[test]
fn whatever_is_refused_or_cut_short_is_done_or_not_done() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, runs) = (number("SLUICE_SEED", 1_u64), number("SLUICE_RUNS", 20));
    (first..first + runs).for_each(run);
}
