//! What `strace -f -ttt -y` writes, with or without `-T` and `-o` (tried with version 6.1).
//!
//! `read` and `write` do not say where in the file they are, so the positions of all descriptors are followed through
//! `open`, `lseek`, `dup`, `fork` and their like. What is at a place that cannot be known (a descriptor that was there before,
//! appending to a file of unknown size) is left out and counted. A request has the time at which its call began and the
//! bytes that the call moved; calls that fail are none.

mod files;
mod line;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::io::{BufRead, Write};

use sluice_core::Op;

use self::files::{Files, Known};
use self::line::{Call, Event};
use super::lines::Lines;
use super::{ImportError, Imported};
use crate::{Entry, Extra, Meta, Writer};

/// Requests that are held back for earlier ones, whose calls have not returned yet.
const HELD_MAX: usize = 1 << 20;

/// What a call is to the importer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Open,
    Close,
    CloseRange,
    Dup,
    Fcntl,
    Seek,
    LongSeek,
    Size,
    Truncate,
    /// Names are removed; or they, or the size of what has one, become others.
    Remove,
    Change,
    /// A size becomes another one, maybe.
    Allocate,
    /// At the descriptor's position.
    Move(Op),
    /// At an offset, the fourth argument; -1 stands for the position.
    MoveAt(Op),
    Copy,
    Send,
    Clone,
    Exec,
    /// Asynchronous requests, with a list of them.
    Submit,
    /// The same, of which the log has no list; returns how many.
    Untold,
}

fn kind(name: &[u8]) -> Option<Kind> {
    Some(match name {
        b"open" | b"openat" | b"openat2" | b"creat" => Kind::Open,
        b"close" => Kind::Close,
        b"close_range" => Kind::CloseRange,
        b"dup" | b"dup2" | b"dup3" => Kind::Dup,
        b"fcntl" | b"fcntl64" => Kind::Fcntl,
        b"lseek" => Kind::Seek,
        b"_llseek" => Kind::LongSeek,
        b"fstat" | b"fstat64" | b"newfstatat" | b"fstatat64" | b"statx" => Kind::Size,
        b"ftruncate" | b"ftruncate64" => Kind::Truncate,
        b"unlink" | b"unlinkat" => Kind::Remove,
        b"rename" | b"renameat" | b"renameat2" | b"truncate" | b"truncate64" => Kind::Change,
        b"fallocate" => Kind::Allocate,
        b"read" | b"readv" => Kind::Move(Op::Read),
        b"write" | b"writev" => Kind::Move(Op::Write),
        b"pread64" | b"pread" | b"preadv" | b"preadv2" => Kind::MoveAt(Op::Read),
        b"pwrite64" | b"pwrite" | b"pwritev" | b"pwritev2" => Kind::MoveAt(Op::Write),
        b"copy_file_range" | b"splice" => Kind::Copy,
        b"sendfile" | b"sendfile64" => Kind::Send,
        b"fork" | b"vfork" | b"clone" | b"clone3" => Kind::Clone,
        b"execve" | b"execveat" => Kind::Exec,
        b"io_submit" => Kind::Submit,
        b"io_uring_enter" => Kind::Untold,
        _ => return None,
    })
}

/// A call that has not returned.
struct Pending {
    name: Vec<u8>,
    time: u64,
    /// What is to be done when it returns.
    kind: Option<Kind>,
    /// What follows the parenthesis, as far as it is known.
    text: Vec<u8>,
}

struct Import<R, W: Write> {
    lines: Lines<R>,
    writer: Writer<W>,
    imported: Imported,
    /// When the first line was written.
    start: u64,
    files: Files,
    pending: HashMap<u32, Pending>,
    /// When those began.
    begun: BTreeSet<(u64, u32)>,
    /// In the order of time, then in that of the log.
    held: BinaryHeap<Reverse<(u64, u64)>>,
    entries: HashMap<u64, (Entry, u32)>,
    /// Of the last request.
    number: u64,
}

/// Imports what strace has written; `meta` describes the trace. `below`: only files below this directory, so that nothing is
/// said to be missing of others.
///
/// Each thread that strace tells apart is a process of application 0. Memory: some 100 bytes for each descriptor, and for
/// each request that came while an earlier one's call had not returned (a million at most).
///
/// # Errors
/// If it is not such a log, lacks times (`-ttt`) or paths (`-y`), or reading or writing fails. What was written is no whole
/// trace then.
pub fn strace<W: Write>(log: impl BufRead, meta: Meta, below: Option<&[u8]>, out: W) -> Result<Imported, ImportError> {
    let mut lines = Lines::new(log);
    let start = loop {
        if !lines.advance()? {
            return Err(lines.wrong("the log is empty"));
        }
        if let Some((_, time, _)) = line::line(&lines.text).map_err(|why| lines.wrong(why))? {
            break time;
        }
    };
    let meta = Meta { start_unix_ns: start, processes: true, ..meta };
    let mut import = Import {
        lines,
        writer: Writer::new(out, &meta)?,
        imported: Imported::default(),
        start,
        files: Files::below(below.map(|dir| super::normal_path(dir).into_owned())),
        pending: HashMap::new(),
        begun: BTreeSet::new(),
        held: BinaryHeap::new(),
        entries: HashMap::new(),
        number: 0,
    };
    loop {
        import.line()?;
        if !import.lines.advance()? {
            return import.finish();
        }
    }
}

impl<R: BufRead, W: Write> Import<R, W> {
    fn line(&mut self) -> Result<(), ImportError> {
        let text = std::mem::take(&mut self.lines.text);
        let done = self.event(&text);
        self.lines.text = text;
        done
    }

    fn wrong(&self, text: &[u8], problem: &str) -> ImportError {
        let shown: String = String::from_utf8_lossy(text).chars().take(100).flat_map(char::escape_debug).collect();
        self.lines.wrong(format!("{problem}: \"{shown}\""))
    }

    fn event(&mut self, text: &[u8]) -> Result<(), ImportError> {
        let Some((pid, time, event)) = line::line(text).map_err(|why| self.wrong(text, &why))? else {
            self.imported.others += 1;
            return Ok(());
        };
        if !matches!(event, Event::Superseded { .. }) {
            self.files.meet(pid);
        }
        let requests = self.number;
        match event {
            Event::Call { name, text: arguments, unfinished } => {
                if self.pending.contains_key(&pid) {
                    return Err(self.wrong(text, "another call before the one before it has returned"));
                }
                if unfinished {
                    let mut kind = kind(name);
                    match kind {
                        Some(Kind::Clone) => self.files.clones(pid, Call::shares(arguments)),
                        // Before it returns another thread may be given the number.
                        Some(Kind::Close) => {
                            self.files.close(pid, &Call::begun(arguments));
                            kind = None;
                        }
                        _ => {}
                    }
                    self.begun.insert((time, pid));
                    self.pending.insert(pid, Pending { name: name.to_vec(), time, kind, text: arguments.to_vec() });
                } else if let Some(kind) = kind(name) {
                    self.call(pid, time, kind, arguments)
                        .map_err(|why| why.unwrap_or_else(|why| self.wrong(text, &why)))?;
                }
            }
            Event::Resumed { name, text: rest } => {
                // What began before the log, or was begun by a thread that has become this one, has no beginning here.
                if let Some(mut pending) = self.pending.remove(&pid) {
                    self.begun.remove(&(pending.time, pid));
                    if pending.name != name {
                        return Err(self.wrong(text, "the end of another call than the one that began"));
                    }
                    if let Some(kind) = pending.kind {
                        pending.text.extend_from_slice(rest);
                        self.call(pid, pending.time, kind, &pending.text)
                            .map_err(|why| why.unwrap_or_else(|why| self.wrong(text, &why)))?;
                    }
                }
            }
            Event::Ended => self.ended(pid),
            Event::Superseded { by } => self.ended(by),
            Event::Other => {}
        }
        self.imported.others += u64::from(self.number == requests);
        self.let_go(time)
    }

    fn ended(&mut self, pid: u32) {
        if let Some(pending) = self.pending.remove(&pid) {
            self.begun.remove(&(pending.time, pid));
        }
        self.files.ended(pid);
    }

    /// A call that has returned.
    fn call(&mut self, pid: u32, time: u64, kind: Kind, text: &[u8]) -> Result<(), Result<ImportError, String>> {
        let bad = |what: &str| Err(Err(what.to_owned()));
        let Some(call) = Call::parse(text) else { return bad("not a call as strace writes it") };
        let Some(returned) = call.returned else { return Ok(()) };
        match kind {
            Kind::Open => self.files.open(pid, &call, returned),
            Kind::Close => self.files.close(pid, &call),
            Kind::CloseRange => self.files.close_range(pid, &call),
            Kind::Dup => self.files.dup(pid, &call, returned),
            Kind::Fcntl if call.has(1, "F_DUPFD") || call.has(1, "F_DUPFD_CLOEXEC") => {
                self.files.dup(pid, &call, returned)
            }
            Kind::Fcntl if call.has(1, "F_SETFL") => self.files.set_flags(pid, &call),
            Kind::Fcntl => {}
            Kind::Seek => self.files.seek(pid, &call, returned),
            Kind::LongSeek => {
                let Some(Some(at)) = call.pointed(3) else { return bad("not a call as strace writes it") };
                self.files.seek(pid, &call, at);
            }
            Kind::Size => self.files.size(&call),
            Kind::Truncate => self.files.truncate(&call),
            Kind::Allocate => self.files.allocates(&call),
            Kind::Remove | Kind::Change => self.files.changes(&call, kind == Kind::Remove),
            Kind::Clone => self.files.cloned(pid, u32::try_from(returned).unwrap_or(0), Call::shares(text)),
            Kind::Exec => self.files.executes(pid),
            Kind::Submit => return self.submitted(pid, time, &call, returned),
            Kind::Untold => self.imported.left_out = self.imported.left_out.saturating_add(returned),
            Kind::Move(op) => {
                // Where there are several buffers, the number of them.
                let buffers = call.arguments.get(1).is_some_and(|text| text.starts_with(b"["));
                if !buffers && call.number(2).is_some_and(|asked| returned > asked) {
                    return bad("more bytes than were asked for");
                }
                return self.request(pid, time, op, &call, (0, None), returned);
            }
            Kind::MoveAt(op) => {
                let Some(text) = call.arguments.get(3) else { return bad("not a call as strace writes it") };
                let at = match *text {
                    b"-1" => None,
                    text => match line::number(text) {
                        Some(at) => Some(at),
                        None => return bad("not a call as strace writes it"),
                    },
                };
                return self.request(pid, time, op, &call, (0, at), returned);
            }
            Kind::Copy | Kind::Send => {
                let copies = kind == Kind::Copy;
                let (from, to) = if copies { (0, 2) } else { (1, 0) };
                let Some(from_at) = call.pointed(if copies { 1 } else { 2 }) else {
                    return bad("not a call as strace writes it");
                };
                let to_at = if copies { call.pointed(3) } else { Some(None) };
                let Some(to_at) = to_at else { return bad("not a call as strace writes it") };
                self.request(pid, time, Op::Read, &call, (from, from_at), returned)?;
                return self.request(pid, time, Op::Write, &call, (to, to_at), returned);
            }
        }
        Ok(())
    }

    /// Asynchronous requests, of which the first so many were accepted. How many bytes they moved another call tells, which
    /// does not say of which request it speaks.
    fn submitted(
        &mut self,
        pid: u32,
        time: u64,
        call: &Call<'_>,
        count: u64,
    ) -> Result<(), Result<ImportError, String>> {
        let list = call.arguments.get(2).and_then(|text| line::elements(text)).unwrap_or_default();
        // strace leaves out what is behind the first ones of a long list.
        let listed =
            list.iter().filter(|text| text.starts_with(b"{")).take(usize::try_from(count).unwrap_or(usize::MAX));
        let mut seen = 0;
        for members in listed.filter_map(|text| line::elements(text)) {
            seen += 1;
            let value = |name: &[u8]| members.iter().find_map(|text| text.strip_prefix(name)?.strip_prefix(b"="));
            let op = match value(b"aio_lio_opcode") {
                Some(b"IOCB_CMD_PREAD" | b"IOCB_CMD_PREADV") => Op::Read,
                Some(b"IOCB_CMD_PWRITE" | b"IOCB_CMD_PWRITEV") => Op::Write,
                _ => continue,
            };
            let bytes = match value(b"aio_nbytes") {
                Some(bytes) => line::number(bytes),
                None => value(b"aio_buf").and_then(line::elements).map(|buffers| {
                    let buffers = buffers.iter().filter_map(|text| line::elements(text));
                    let len = |text: &&[u8]| line::number::<u64>(text.strip_prefix(b"iov_len=")?);
                    buffers.filter_map(|buffer| buffer.iter().find_map(len)).fold(0, u64::saturating_add)
                }),
            };
            let at = value(b"aio_offset").and_then(line::number);
            match (value(b"aio_fildes"), bytes, at) {
                (Some(file), Some(bytes), Some(at)) => {
                    self.request(pid, time, op, &Call::begun(file), (0, Some(at)), bytes)?;
                }
                _ => self.imported.left_out += 1,
            }
        }
        self.imported.left_out = self.imported.left_out.saturating_add(count.saturating_sub(seen));
        Ok(())
    }

    /// A request to the descriptor at a place among the arguments, at an offset or at its position.
    fn request(
        &mut self,
        pid: u32,
        time: u64,
        op: Op,
        call: &Call<'_>,
        (argument, at): (usize, Option<u64>),
        bytes: u64,
    ) -> Result<(), Result<ImportError, String>> {
        let Some((fd, path)) = call.descriptor(argument) else {
            return Err(Err("not a call as strace writes it".to_owned()));
        };
        let Some(path) = path else { return Err(Err("a descriptor without its path: run strace with -y".to_owned())) };
        let offset = match self.files.place(pid, fd, &path, op, at, bytes) {
            Known::NoFile => return Ok(()),
            _ if bytes == 0 => return Ok(()),
            Known::Nowhere => {
                self.imported.left_out += 1;
                return Ok(());
            }
            Known::At(offset) => offset,
        };
        let (Ok(len), Some(_)) = (u32::try_from(bytes), offset.checked_add(bytes)) else {
            return Err(Err("a request beyond all bounds".to_owned()));
        };
        let file = self.writer.file(&path).map_err(|error| Ok(error.into()))?;
        let time = time.saturating_sub(self.start);
        self.held.push(Reverse((time, self.number)));
        self.entries.insert(self.number, (Entry { time, file, app: 0, target: 0, op, offset, len }, pid));
        self.number += 1;
        Ok(())
    }

    /// Writes what no earlier request can come before any more. `now`: the time of this line.
    fn let_go(&mut self, now: u64) -> Result<(), ImportError> {
        let until = self.begun.first().map_or(now, |(time, _)| now.min(*time)).saturating_sub(self.start);
        while let Some(&Reverse((time, number))) = self.held.peek()
            && (time <= until || self.held.len() > HELD_MAX)
        {
            self.held.pop();
            if let Some((entry, process)) = self.entries.remove(&number) {
                self.writer.push_with(entry, Extra { process, sum: None })?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Imported, ImportError> {
        self.begun.clear();
        self.let_go(u64::MAX)?;
        self.imported.entries = self.writer.entries();
        let mut why = Vec::new();
        match (self.lines.cut, self.files.alive()) {
            (true, _) => why.push(format!("the log is cut in line {}", self.lines.number)),
            (false, 0) => {}
            (false, 1) => why.push("the log ends before its process does".to_owned()),
            (false, n) => why.push(format!("the log ends before {n} of its processes do")),
        }
        if self.imported.left_out > 0 {
            let n = self.imported.left_out;
            why.push(format!(
                "{n} {} missing, as the log does not tell where in the file",
                if n == 1 { "read or write is" } else { "reads and writes are" }
            ));
        }
        self.imported.incomplete = why.join("; ");
        self.writer.finish_incomplete(self.imported.left_out, &self.imported.incomplete)?;
        Ok(self.imported)
    }
}

#[cfg(test)]
mod tests;
