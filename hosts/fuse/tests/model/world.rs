//! Carries operations out on a real directory and in memory, and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, RenameFlags};

use crate::contents::{Contents, PAGE, pattern};
use crate::memory::{Aligned, Mapping};
use crate::op::{APPEND, CREATE, DIRECT, EXCLUSIVE, HANDLES, Kind, NAMES, Op, TRUNCATE};

/// What is wrong.
type Verdict = Result<(), String>;

#[derive(Default)]
struct Node {
    contents: Contents,
    links: u64,
    ino: Option<u64>,
    /// Was written through a mapping and not synced since: holes are then not reported right (a documented limit).
    mapped: bool,
}

struct Handle {
    file: File,
    node: usize,
    how: u8,
}

impl Handle {
    fn readable(&self) -> bool {
        self.how & 3 != 1
    }

    fn writable(&self) -> bool {
        self.how & 3 != 0
    }
}

/// A directory that operations change, and what it must be.
pub struct World {
    pub dir: PathBuf,
    /// The same directory without the mount, where files lie there as they are in the mount.
    pub source: Option<PathBuf>,
    nodes: Vec<Node>,
    names: BTreeMap<usize, usize>,
    handles: [Option<Handle>; HANDLES],
    /// What was done, in words.
    pub told: Vec<String>,
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Not offered here, which is no fault.
fn not_offered(error: &io::Error) -> bool {
    matches!(errno(error), libc::EOPNOTSUPP | libc::ENODEV | libc::EFBIG)
}

/// Compares what a call says with what it must say.
fn agree<T: std::fmt::Debug>(what: &str, result: &io::Result<T>, error: Option<i32>) -> Verdict {
    match (result, error) {
        (Ok(_), None) => Ok(()),
        (Err(found), Some(error)) if errno(found) == error => Ok(()),
        (found, None) => Err(format!("{what} must succeed, but: {found:?}")),
        (found, Some(error)) => {
            Err(format!("{what} must fail with {}, but: {found:?}", io::Error::from_raw_os_error(error)))
        }
    }
}

/// The first difference between bytes.
fn same(what: &str, at: u64, found: &[u8], expected: &[u8]) -> Verdict {
    if found == expected {
        return Ok(());
    }
    if found.len() != expected.len() {
        return Err(format!("{what}: {} bytes at {at}, must be {}", found.len(), expected.len()));
    }
    let first = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let zeros = found.iter().zip(expected).all(|(a, b)| a == b || *a == 0);
    Err(format!(
        "{what}: {wrong} of {} bytes at {at} are wrong, the first at {}: {} instead of {}{}",
        found.len(),
        at + first as u64,
        found[first],
        expected[first],
        if zeros { "; all wrong ones are zero" } else { "" }
    ))
}

impl World {
    /// Makes the directory `dir`; `source` is where it lies without the mount.
    pub fn new(dir: &Path, source: Option<PathBuf>) -> World {
        fs::create_dir(dir).unwrap();
        fs::create_dir(dir.join("d")).unwrap();
        let (dir, handles) = (dir.to_owned(), Default::default());
        World { dir, source, nodes: Vec::new(), names: BTreeMap::new(), handles, told: Vec::new() }
    }

    fn path(&self, name: usize) -> PathBuf {
        self.dir.join(NAMES[name])
    }

    /// A handle that is open, and what it is of.
    fn open_handle(&self, at: usize) -> Option<&Handle> {
        self.handles.get(at)?.as_ref()
    }

    fn tell(&mut self, words: String) {
        self.told.push(words);
    }

    /// Carries one operation out.
    pub fn apply(&mut self, op: &Op) -> Verdict {
        match op.kind {
            Kind::Open => self.open(op),
            Kind::Close => {
                self.tell(format!("close(h{})", op.first));
                self.handles[op.first % HANDLES] = None;
                Ok(())
            }
            Kind::Rename => self.rename(op),
            Kind::Link => self.link(op),
            Kind::Unlink => self.unlink(op),
            Kind::Cut => self.cut(op),
            Kind::List => self.list(),
            Kind::Stat => self.stat(op),
            _ => self.with_handle(op),
        }
    }

    fn open(&mut self, op: &Op) -> Verdict {
        let slot = op.first % HANDLES;
        let mut how = op.how;
        if how & 3 == 3 {
            how = how & !3 | 2;
        }
        if how & 3 == 0 {
            how &= !(TRUNCATE | APPEND); // what O_TRUNC does then is not defined
        }
        if how & APPEND != 0 {
            how &= !DIRECT; // would have to be aligned
        }
        let mut flags = how as i32 & 3;
        for (bit, flag) in [
            (APPEND, libc::O_APPEND),
            (DIRECT, libc::O_DIRECT),
            (TRUNCATE, libc::O_TRUNC),
            (CREATE, libc::O_CREAT),
            (EXCLUSIVE, libc::O_CREAT | libc::O_EXCL),
        ] {
            flags |= if how & bit != 0 { flag } else { 0 };
        }
        let there = self.names.get(&op.second).copied();
        let expected = match there {
            Some(_) if how & EXCLUSIVE != 0 => Some(libc::EEXIST),
            None if flags & libc::O_CREAT == 0 => Some(libc::ENOENT),
            _ => None,
        };
        self.tell(format!("h{slot} = open({}, {flags:#o})", NAMES[op.second]));
        // The library's options know no such combinations: everything as flags, over the access mode it demands.
        let c_path = std::ffi::CString::new(self.path(op.second).into_os_string().into_encoded_bytes()).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
        let result = rustix::fs::open(&c_path, flags, mode).map(File::from).map_err(io::Error::from);
        agree("open", &result, expected)?;
        let Ok(file) = result else { return Ok(()) };
        let node = there.unwrap_or_else(|| {
            self.nodes.push(Node { links: 1, ..Node::default() });
            self.names.insert(op.second, self.nodes.len() - 1);
            self.nodes.len() - 1
        });
        if how & TRUNCATE != 0 {
            self.nodes[node].contents.resize(0);
        }
        self.handles[slot] = Some(Handle { file, node, how });
        self.look(slot)
    }

    /// The attributes of an open file.
    fn look(&mut self, slot: usize) -> Verdict {
        let Some(handle) = self.open_handle(slot) else { return Ok(()) };
        let meta = handle.file.metadata().map_err(|error| format!("fstat(h{slot}): {error}"))?;
        let node = handle.node;
        self.compare_attributes(&format!("fstat(h{slot})"), node, &meta)
    }

    fn compare_attributes(&mut self, what: &str, node: usize, meta: &fs::Metadata) -> Verdict {
        let node = &mut self.nodes[node];
        let ino = *node.ino.get_or_insert(meta.ino());
        if (meta.len(), meta.nlink(), meta.ino()) == (node.contents.size, node.links, ino) {
            return Ok(());
        }
        Err(format!(
            "{what}: size {}, links {}, inode {}; must be {}, {}, {ino}",
            meta.len(),
            meta.nlink(),
            meta.ino(),
            node.contents.size,
            node.links
        ))
    }

    fn with_handle(&mut self, op: &Op) -> Verdict {
        let slot = op.first % HANDLES;
        let Some(handle) = self.handles[slot].take() else { return Ok(()) };
        let result = self.on_file(op, slot, &handle);
        self.handles[slot] = Some(handle);
        result
    }

    fn on_file(&mut self, op: &Op, slot: usize, handle: &Handle) -> Verdict {
        let Handle { file, node, how } = handle;
        let size = self.nodes[*node].contents.size;
        let (mut at, mut len) = (op.at, op.len);
        if how & DIRECT != 0 && matches!(op.kind, Kind::Read | Kind::Write) {
            (at, len) = (at / PAGE * PAGE, len.div_ceil(PAGE as usize) * PAGE as usize);
        }
        let call = format!("{:?}(h{slot}, at {at}, {len}, {})", op.kind, op.how).to_lowercase();
        match op.kind {
            Kind::Write if handle.writable() => {
                if how & APPEND != 0 {
                    at = size;
                }
                let data = pattern(op.how, at, len);
                self.tell(format!("{call} of {} bytes", if how & APPEND != 0 { "appended" } else { "given" }));
                let written = file.write_at(Aligned::of(&data).bytes(), at).map_err(|e| format!("{call}: {e}"))?;
                if written != len {
                    return Err(format!("{call}: only {written} bytes written"));
                }
                self.nodes[*node].contents.write(at, &data);
            }
            Kind::Read if handle.readable() => {
                self.tell(call.clone());
                let mut buffer = Aligned::zeroed(len);
                let read = file.read_at(buffer.bytes_mut(), at).map_err(|e| format!("{call}: {e}"))?;
                return same(&call, at, &buffer.bytes()[..read], &self.nodes[*node].contents.read(at, len));
            }
            Kind::Truncate if handle.writable() => {
                self.tell(call.clone());
                file.set_len(at).map_err(|error| format!("{call}: {error}"))?;
                self.nodes[*node].contents.resize(at);
            }
            Kind::Allocate | Kind::Punch | Kind::Zero if handle.writable() => {
                let keep = op.how & 1 != 0 || op.kind == Kind::Punch;
                let mut flags = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                match op.kind {
                    Kind::Punch => flags |= FallocateFlags::PUNCH_HOLE,
                    Kind::Zero => flags |= FallocateFlags::ZERO_RANGE,
                    _ => (),
                }
                self.tell(call.clone());
                match rustix::fs::fallocate(file, flags, at, len as u64).map_err(io::Error::from) {
                    Err(error) if not_offered(&error) => return self.look(slot),
                    result => result.map_err(|error| format!("{call}: {error}"))?,
                }
                let contents = &mut self.nodes[*node].contents;
                if !keep && contents.size < at + len as u64 {
                    contents.resize(at + len as u64);
                }
                if op.kind != Kind::Allocate {
                    contents.zero(at, len as u64);
                }
            }
            Kind::MapWrite | Kind::MapRead if handle.readable() && size > 0 => {
                let write = op.kind == Kind::MapWrite;
                if write && !handle.writable() {
                    return Ok(());
                }
                at %= size;
                len = len.min((size - at) as usize);
                let call = format!("{:?}(h{slot}, at {at}, {len}, {})", op.kind, op.how).to_lowercase();
                self.tell(call.clone());
                let mut mapping = match Mapping::new(file, at, len, write) {
                    Err(error) if not_offered(&error) => return Ok(()),
                    result => result.map_err(|error| format!("{call}: {error}"))?,
                };
                let expected = self.nodes[*node].contents.read(at, len);
                same(&format!("{call}: before"), at, mapping.bytes(), &expected)?;
                if write {
                    let data = pattern(op.how, at, len);
                    mapping.bytes_mut().copy_from_slice(&data);
                    self.nodes[*node].contents.write(at, &data);
                    if op.how & 1 != 0 {
                        mapping.sync().map_err(|error| format!("{call}: {error}"))?;
                    }
                    self.nodes[*node].mapped = true;
                }
            }
            Kind::Copy if handle.readable() => return self.copy(op, handle),
            Kind::Sync => {
                self.tell(call.clone());
                let result = if op.how & 1 != 0 { file.sync_data() } else { file.sync_all() };
                result.map_err(|error| format!("{call}: {error}"))?;
                self.nodes[*node].mapped = false;
                return self.underneath(*node);
            }
            Kind::Seek => {
                self.tell(call.clone());
                return self.seek(op, &call, handle);
            }
            _ => return Ok(()),
        }
        let meta = file.metadata().map_err(|error| format!("after {call}: {error}"))?;
        self.compare_attributes(&format!("after {call}"), *node, &meta)
    }

    /// What was synced is in the source.
    fn underneath(&self, node: usize) -> Verdict {
        let Some(source) = &self.source else { return Ok(()) };
        let Some((name, _)) = self.names.iter().find(|(_, of)| **of == node) else { return Ok(()) };
        let path = source.join(NAMES[*name]);
        let file = File::open(&path).map_err(|error| format!("in the source, {}: {error}", NAMES[*name]))?;
        compare_file("in the source after fsync", &file, &self.nodes[node].contents)
    }

    fn copy(&mut self, op: &Op, from: &Handle) -> Verdict {
        let to = op.second % HANDLES;
        let target = if to == op.first % HANDLES { Some(from) } else { self.open_handle(to) };
        let Some(target) = target else { return Ok(()) };
        if !target.writable() || target.how & APPEND != 0 {
            return Ok(());
        }
        let (mut source_at, mut target_at) = (op.at, op.at + u64::from(op.how) * 1000);
        let overlap = from.node == target.node && target_at < source_at + op.len as u64;
        if overlap || (from.how | target.how) & DIRECT != 0 {
            return Ok(());
        }
        let node = target.node;
        let call = format!("copy_file_range(h{}, {source_at}, h{to}, {target_at}, {})", op.first, op.len);
        let expected = self.nodes[from.node].contents.read(source_at, op.len);
        let at = target_at;
        let result =
            rustix::fs::copy_file_range(&from.file, Some(&mut source_at), &target.file, Some(&mut target_at), op.len);
        self.tell(call.clone());
        let copied = match result.map_err(io::Error::from) {
            Err(error) if not_offered(&error) => return Ok(()),
            result => result.map_err(|error| format!("{call}: {error}"))?,
        };
        // Fewer are allowed, but not none.
        if copied > expected.len() || (copied == 0) != expected.is_empty() {
            return Err(format!("{call}: {copied} bytes copied of {}", expected.len()));
        }
        if copied > 0 {
            self.nodes[node].contents.write(at, &expected[..copied]);
        }
        self.look(to)
    }

    fn seek(&self, op: &Op, call: &str, handle: &Handle) -> Verdict {
        let node = &self.nodes[handle.node];
        let (size, hole) = (node.contents.size, op.how & 1 != 0);
        let whence = if hole { rustix::fs::SeekFrom::Hole(op.at) } else { rustix::fs::SeekFrom::Data(op.at) };
        let found = rustix::fs::seek(&handle.file, whence).map_err(io::Error::from);
        if node.mapped {
            return Ok(());
        }
        match found {
            Err(error) if errno(&error) == libc::ENXIO => match node.contents.data(op.at, size) {
                _ if op.at >= size => Ok(()),
                None if !hole => Ok(()),
                _ if hole => Err(format!("{call}: no hole, not even the end, which is {size}")),
                data => Err(format!("{call}: no data, but there is some at {data:?}")),
            },
            Err(error) => Err(format!("{call}: {error}")),
            Ok(found) if op.at >= size => Err(format!("{call}: {found}, but the file ends at {size}")),
            Ok(found) if found < op.at || found > size => Err(format!("{call}: {found}, outside of {}..{size}", op.at)),
            Ok(found) if hole && found < size && node.contents.data(found, found + 1).is_some() => {
                Err(format!("{call}: {found}, but there is data"))
            }
            Ok(found) => match node.contents.data(op.at, found) {
                Some(data) if !hole => Err(format!("{call}: {found}, passing over data at {data}")),
                _ => Ok(()),
            },
        }
    }

    fn cut(&mut self, op: &Op) -> Verdict {
        self.tell(format!("truncate({}, {})", NAMES[op.first], op.at));
        let node = self.names.get(&op.first).copied();
        let result = OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(self.path(op.first));
        let result = result.and_then(|file| file.set_len(op.at));
        agree("truncate", &result, if node.is_some() { None } else { Some(libc::ENOENT) })?;
        if let Some(node) = node {
            self.nodes[node].contents.resize(op.at);
        }
        Ok(())
    }

    fn rename(&mut self, op: &Op) -> Verdict {
        let (from, to) = (self.names.get(&op.first).copied(), self.names.get(&op.second).copied());
        let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE][op.how as usize % 3];
        self.tell(format!("rename({}, {}, {flags:?})", NAMES[op.first], NAMES[op.second]));
        let (a, b) = (self.path(op.first), self.path(op.second));
        let result = rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags);
        let expected = match (from, to) {
            (None, _) => Some(libc::ENOENT),
            (_, None) if flags == RenameFlags::EXCHANGE => Some(libc::ENOENT),
            (_, Some(_)) if flags == RenameFlags::NOREPLACE => Some(libc::EEXIST),
            _ => None,
        };
        // With both wrong either may be said.
        let both = from.is_none() && to.is_some() && flags == RenameFlags::NOREPLACE;
        if !(both && result == Err(rustix::io::Errno::EXIST)) {
            agree("rename", &result.map_err(io::Error::from), expected)?;
        }
        if let (None, Some(node)) = (expected, from) {
            // Two names of one file stay as they are.
            if to == from {
                return Ok(());
            }
            self.names.insert(op.second, node);
            if flags == RenameFlags::EXCHANGE {
                self.names.insert(op.first, to.expect("checked above"));
            } else {
                self.names.remove(&op.first);
                if let Some(replaced) = to {
                    self.nodes[replaced].links -= 1;
                }
            }
        }
        Ok(())
    }

    fn link(&mut self, op: &Op) -> Verdict {
        let (from, to) = (self.names.get(&op.first).copied(), self.names.get(&op.second).copied());
        self.tell(format!("link({}, {})", NAMES[op.first], NAMES[op.second]));
        let result = fs::hard_link(self.path(op.first), self.path(op.second));
        let expected = match (from, to) {
            (None, _) => Some(libc::ENOENT),
            (_, Some(_)) => Some(libc::EEXIST),
            _ => None,
        };
        agree("link", &result, expected)?;
        if let (None, Some(node)) = (expected, from) {
            self.names.insert(op.second, node);
            self.nodes[node].links += 1;
        }
        Ok(())
    }

    fn unlink(&mut self, op: &Op) -> Verdict {
        self.tell(format!("unlink({})", NAMES[op.first]));
        let result = fs::remove_file(self.path(op.first));
        let node = self.names.remove(&op.first);
        agree("unlink", &result, if node.is_some() { None } else { Some(libc::ENOENT) })?;
        if let Some(node) = node {
            self.nodes[node].links -= 1;
        }
        Ok(())
    }

    fn list(&mut self) -> Verdict {
        self.tell("list".into());
        let mut found = BTreeSet::new();
        for (dir, prefix) in [(self.dir.clone(), ""), (self.dir.join("d"), "d/")] {
            for entry in fs::read_dir(&dir).map_err(|error| format!("readdir: {error}"))? {
                let entry = entry.map_err(|error| format!("readdir: {error}"))?;
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                if !found.insert(name.clone()) {
                    return Err(format!("readdir: {name} comes twice"));
                }
            }
        }
        let mut expected: BTreeSet<String> = self.names.keys().map(|name| NAMES[*name].to_owned()).collect();
        expected.insert("d".into());
        if found == expected { Ok(()) } else { Err(format!("readdir: {found:?}, must be {expected:?}")) }
    }

    fn stat(&mut self, op: &Op) -> Verdict {
        let name = op.second;
        self.tell(format!("stat({}), fstat(h{})", NAMES[name], op.first % HANDLES));
        let result = fs::metadata(self.path(name));
        let node = self.names.get(&name).copied();
        agree("stat", &result, if node.is_some() { None } else { Some(libc::ENOENT) })?;
        if let (Some(node), Ok(meta)) = (node, result) {
            self.compare_attributes(&format!("stat({})", NAMES[name]), node, &meta)?;
        }
        self.look(op.first % HANDLES)
    }

    /// Everything, through handles of its own.
    pub fn compare_all(&mut self) -> Verdict {
        self.told.push("everything is compared".into());
        self.list()?;
        for (name, node) in self.names.clone() {
            let file = File::open(self.path(name)).map_err(|error| format!("{}: {error}", NAMES[name]))?;
            let meta = file.metadata().map_err(|error| error.to_string())?;
            self.compare_attributes(NAMES[name], node, &meta)?;
            compare_file(NAMES[name], &file, &self.nodes[node].contents)?;
        }
        for slot in 0..HANDLES {
            self.look(slot)?;
            if let Some(handle) = self.open_handle(slot).filter(|handle| handle.readable() && handle.how & DIRECT == 0)
            {
                compare_file(&format!("h{slot}"), &handle.file, &self.nodes[handle.node].contents)?;
            }
        }
        Ok(())
    }

    pub fn close_all(&mut self) {
        self.handles = Default::default();
    }

    /// Some file that is written to, for who breaks it on purpose: its name.
    pub fn some_name(&self, with_data: bool) -> Option<&'static str> {
        let fits = |node: usize| !with_data || self.nodes[node].contents.data(0, PAGE).is_some();
        self.names.iter().find(|(_, node)| fits(**node)).map(|(name, _)| NAMES[*name])
    }
}

/// All that was ever written of a file.
fn compare_file(what: &str, file: &File, contents: &Contents) -> Verdict {
    let size = file.metadata().map_err(|error| format!("{what}: {error}"))?.len();
    if size != contents.size {
        return Err(format!("{what}: size {size}, must be {}", contents.size));
    }
    let mut buffer = vec![0; PAGE as usize];
    for at in contents.places() {
        let read = file.read_at(&mut buffer, at).map_err(|error| format!("{what}, at {at}: {error}"))?;
        same(what, at, &buffer[..read], &contents.read(at, PAGE as usize))?;
    }
    Ok(())
}
