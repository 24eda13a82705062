//! The open files of the processes that strace watched, and where in them they are.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use sluice_core::Op;

use super::line::{Call, unescaped};

/// An open file, which descriptors share.
struct Open {
    path: Rc<[u8]>,
    /// Where the next read or write is, if that is known.
    position: Cell<Option<u64>>,
    /// Writes go to the end of the file, if that is known.
    appends: Cell<Option<bool>>,
}

type Table = Rc<RefCell<HashMap<i32, Rc<Open>>>>;

/// Where a request is.
pub(super) enum Known {
    At(u64),
    /// It is not known.
    Nowhere,
    /// Not in a file that keeps what is written to it.
    NoFile,
}

/// The processes, their descriptors, and the sizes of files where they are known.
#[derive(Default)]
pub(super) struct Files {
    tables: HashMap<u32, Table>,
    sizes: Sizes,
    /// Processes that are making another one, and whether it shares their descriptors; the last one last.
    cloning: Vec<(u32, bool)>,
    /// Children of which the log has not told the number yet; and those of them that have ended.
    unannounced: HashSet<u32>,
    gone: HashSet<u32>,
    /// Files elsewhere do not count.
    below: Option<Vec<u8>>,
}

impl Files {
    pub(super) fn below(below: Option<Vec<u8>>) -> Files {
        Files { below, ..Files::default() }
    }

    /// A process does something. One that is new is a child of the one that is making another; the log tells its number later.
    pub(super) fn meet(&mut self, pid: u32) {
        if self.tables.contains_key(&pid) {
            return;
        }
        let parent = self.cloning.pop();
        if parent.is_some() {
            self.unannounced.insert(pid);
        }
        let table = parent.map_or_else(Table::default, |(parent, shares)| self.inherited(parent, shares));
        self.tables.insert(pid, table);
    }

    fn inherited(&self, parent: u32, shares: bool) -> Table {
        match self.tables.get(&parent) {
            Some(table) if shares => table.clone(),
            Some(table) => Rc::new(RefCell::new(table.borrow().clone())),
            None => Table::default(),
        }
    }

    /// A process begins to make another one.
    pub(super) fn clones(&mut self, pid: u32, shares: bool) {
        self.cloning.push((pid, shares));
    }

    /// It has made it.
    pub(super) fn cloned(&mut self, pid: u32, child: u32, shares: bool) {
        self.cloning.retain(|(parent, _)| *parent != pid);
        self.unannounced.remove(&child);
        // A thread may have ended before its parent's call has returned.
        if !self.gone.remove(&child) && !self.tables.contains_key(&child) {
            let table = self.inherited(pid, shares);
            self.tables.insert(child, table);
        }
    }

    /// Another program has descriptors of its own.
    pub(super) fn executes(&mut self, pid: u32) {
        let own = self.inherited(pid, false);
        self.tables.insert(pid, own);
    }

    pub(super) fn ended(&mut self, pid: u32) {
        self.cloning.retain(|(parent, _)| *parent != pid);
        self.tables.remove(&pid);
        if self.unannounced.remove(&pid) {
            self.gone.insert(pid);
        }
    }

    /// Processes that have not ended.
    pub(super) fn alive(&self) -> usize {
        self.tables.len()
    }

    fn get(&self, pid: u32, fd: i32) -> Option<Rc<Open>> {
        self.tables.get(&pid)?.borrow().get(&fd).cloned()
    }

    fn set(&self, pid: u32, fd: u64, open: Option<Rc<Open>>) {
        let (Some(table), Ok(fd)) = (self.tables.get(&pid), i32::try_from(fd)) else { return };
        match open {
            Some(open) => _ = table.borrow_mut().insert(fd, open),
            None => _ = table.borrow_mut().remove(&fd),
        }
    }

    pub(super) fn open(&mut self, pid: u32, call: &Call<'_>, fd: u64) {
        let Some(path) = call.opened.clone().filter(|path| is_file(path)) else { return self.set(pid, fd, None) };
        let has = |flag| (1..4).any(|at| call.has(at, flag));
        let creates = has("O_CREAT") && has("O_EXCL");
        // `creat` has no flags.
        if creates
            || has("O_TRUNC")
            || call.arguments.len() == 2 && !(has("O_RDONLY") || has("O_WRONLY") || has("O_RDWR"))
        {
            self.sizes.set(&path, 0);
        }
        let open = Open { path: path.into(), position: Cell::new(Some(0)), appends: Cell::new(Some(has("O_APPEND"))) };
        self.set(pid, fd, Some(Rc::new(open)));
    }

    pub(super) fn close(&self, pid: u32, call: &Call<'_>) {
        if let Some((fd, _)) = call.descriptor(0)
            && let Ok(fd) = u64::try_from(fd)
        {
            self.set(pid, fd, None);
        }
    }

    pub(super) fn close_range(&self, pid: u32, call: &Call<'_>) {
        if let (Some(first), Some(last)) = (call.number(0), call.number(1))
            && !call.has(2, "CLOSE_RANGE_CLOEXEC")
            && let Some(table) = self.tables.get(&pid)
        {
            table.borrow_mut().retain(|fd, _| !u64::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd)));
        }
    }

    pub(super) fn dup(&self, pid: u32, call: &Call<'_>, new: u64) {
        let open = call.descriptor(0).and_then(|(fd, _)| self.get(pid, fd));
        self.set(pid, new, open);
    }

    pub(super) fn seek(&mut self, pid: u32, call: &Call<'_>, at: u64) {
        let Some((fd, path)) = call.descriptor(0) else { return };
        let Some(path) = path.filter(|path| is_file(path)) else { return };
        // Whatever was not known of the descriptor, its position is now. Who asks for it may append; who goes elsewhere does not.
        let open = self.get(pid, fd).filter(|open| *open.path == *path);
        let open = open.unwrap_or_else(|| {
            let open = Rc::new(Open { path: path.clone().into(), position: Cell::new(None), appends: Cell::new(None) });
            self.set(pid, fd as u64, Some(open.clone()));
            open
        });
        open.position.set(Some(at));
        if open.appends.get().is_none() && !call.has(2, "SEEK_CUR") {
            open.appends.set(Some(false));
        }
        if call.has(2, "SEEK_END") && call.number(1) == Some(0) {
            self.sizes.set(&path, at);
        }
    }

    /// `F_SETFL`.
    pub(super) fn set_flags(&self, pid: u32, call: &Call<'_>) {
        if let Some(open) = call.descriptor(0).and_then(|(fd, _)| self.get(pid, fd)) {
            open.appends.set(Some(call.has(2, "O_APPEND")));
        }
    }

    pub(super) fn size(&mut self, call: &Call<'_>) {
        let size = call.member("st_size=").or_else(|| call.member("stx_size="));
        // Beside a directory's descriptor there is a name.
        let of_descriptor = call.arguments.get(1).is_some_and(|text| *text == b"\"\"" || text.starts_with(b"{"));
        if let (Some(size), true, Some((_, Some(path)))) = (size, of_descriptor, call.descriptor(0)) {
            self.sizes.set(&path, size);
        }
    }

    pub(super) fn truncate(&mut self, call: &Call<'_>) {
        if let (Some((_, Some(path))), Some(size)) = (call.descriptor(0), call.number(1)) {
            self.sizes.set(&path, size);
        }
    }

    pub(super) fn allocates(&mut self, call: &Call<'_>) {
        let Some((_, Some(path))) = call.descriptor(0) else { return };
        let end = call.number(2).zip(call.number(3)).and_then(|(at, bytes)| at.checked_add(bytes));
        match (call.has(1, "FALLOC_FL_KEEP_SIZE"), call.number(1), end) {
            (true, ..) => {}
            (false, Some(0), Some(end)) => {
                if let Some(size) = self.sizes.get_mut(&path) {
                    *size = end.max(*size);
                }
            }
            _ => self.sizes.forget(&path),
        }
    }

    /// Names come to stand for other files, or for none (`removes`), or a size changes in a way that the log does not tell.
    pub(super) fn changes(&mut self, call: &Call<'_>, removes: bool) {
        let name = |text: &&[u8]| unescaped(text.strip_prefix(b"\"")?.strip_suffix(b"\"")?);
        let names: Vec<Vec<u8>> = call.arguments.iter().filter_map(name).collect();
        let known: Vec<bool> = names.iter().map(|name| self.sizes.forget_named(last(name))).collect();
        // What is no file of those that are known may be a directory of them, or a link to one; but not what a file is renamed to.
        let matters = if call.has(4, "RENAME_EXCHANGE") { known.len() } else { 1 };
        if !removes && known.iter().take(matters).any(|is_known| !is_known) {
            self.sizes = Sizes::default();
        }
    }

    /// Where a request of a descriptor is, which moves its position unless it is at an offset.
    pub(super) fn place(&mut self, pid: u32, fd: i32, path: &[u8], op: Op, at: Option<u64>, bytes: u64) -> Known {
        let elsewhere =
            self.below.as_deref().is_some_and(|dir| !(path.starts_with(dir) && within(&path[dir.len()..], dir)));
        if !is_file(path) || elsewhere {
            return Known::NoFile;
        }
        // A file of another name was opened before the log began, or renamed since.
        let open = self.get(pid, fd).filter(|open| *open.path == *path);
        let appends = open.as_ref().filter(|_| op == Op::Write).map_or(Some(false), |open| open.appends.get());
        let size = self.sizes.get_mut(path);
        let position = open.as_ref().and_then(|open| open.position.get());
        let offset = match (appends, at) {
            (Some(true), _) => size.as_deref().copied(),
            (_, Some(at)) => Some(at),
            (Some(false), None) => position,
            // The same place, whether it appends or not.
            (None, None) => position.filter(|position| size.as_deref() == Some(position)),
        };
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        if let (None, Some(open)) = (at, &open) {
            open.position.set(end);
        }
        if let (Op::Write, Some(size), Some(end)) = (op, size, end) {
            *size = end.max(*size);
        }
        offset.map_or(Known::Nowhere, Known::At)
    }
}

/// The sizes of files where they are known, by their last name and by their whole path: names in calls are relative to anything.
#[derive(Default)]
struct Sizes(HashMap<Vec<u8>, HashMap<Vec<u8>, u64>>);

impl Sizes {
    fn set(&mut self, path: &[u8], size: u64) {
        self.0.entry(last(path).to_vec()).or_default().insert(path.to_vec(), size);
    }

    fn get_mut(&mut self, path: &[u8]) -> Option<&mut u64> {
        self.0.get_mut(last(path))?.get_mut(path)
    }

    fn forget(&mut self, path: &[u8]) {
        self.0.get_mut(last(path)).map(|files| files.remove(path));
    }

    /// Whether there was one.
    fn forget_named(&mut self, name: &[u8]) -> bool {
        self.0.remove(name).is_some()
    }
}

/// The last name of a path.
fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Whether the rest of a path behind that of a directory is one of a file in it.
fn within(rest: &[u8], dir: &[u8]) -> bool {
    rest.starts_with(b"/") || dir.ends_with(b"/")
}

/// Whether a path is that of a file that keeps what is written to it, as far as it tells: no socket, terminal, or file of
/// the kernel's.
fn is_file(path: &[u8]) -> bool {
    let below = |dir: &[u8]| path.starts_with(dir);
    below(b"/") && !(below(b"/dev/") && !below(b"/dev/shm/") || below(b"/proc/") || below(b"/sys/"))
}
