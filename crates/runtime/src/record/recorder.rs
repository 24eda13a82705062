//! The thread that fetches what submitters left.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rtrb::Consumer;
use sluice_core::{FileId, Time};
use sluice_trace::{Entry, Error, Sum, Writer};

use super::buffers::{Seen, fetch};
use super::{Observer, Tap};
use crate::clock::Clock;
use crate::names::FileNames;

/// How often it looks, if nobody calls for it.
const PERIOD: Duration = Duration::from_millis(250);
/// An entry is in the file at the latest so long after it was fetched.
const FLUSH: Duration = Duration::from_secs(1);
/// Files whose numbers in the trace are remembered.
const FILES_MAX: usize = 1 << 20;
/// Entries given to the writer together.
const BATCH: usize = 512;

/// Entries with checksums may come so long after their time, as a read is told when it ends, and still be in order.
const HOLD_NS: u64 = 1_000_000_000;
/// So many are held back, 48 MiB.
const HELD_MAX: usize = 1 << 20;

/// Where entries go.
pub(super) enum Sink {
    File(Box<TraceFile>),
    Observer(Box<dyn Observer>),
}

pub(super) struct Recorder {
    tap: Arc<Tap>,
    sink: Sink,
    clock: Clock,
    rings: Vec<Consumer<Seen>>,
}

impl Recorder {
    pub(super) fn new(tap: Arc<Tap>, sink: Sink, clock: Clock) -> Recorder {
        Recorder { tap, sink, clock, rings: Vec::new() }
    }

    /// Until `end` is set, and then once more.
    pub(super) fn run(&mut self, end: &AtomicBool) -> Result<(), Error> {
        while !end.load(Ordering::SeqCst) {
            std::thread::park_timeout(PERIOD);
            self.collect()?;
            match &mut self.sink {
                Sink::File(file) => file.flush_if_due()?,
                Sink::Observer(observer) => observer.pause(self.clock.now()),
            }
        }
        self.collect()
    }

    fn collect(&mut self) -> Result<(), Error> {
        self.tap.buffers.meet(&mut self.rings);
        let count = match &mut self.sink {
            Sink::Observer(observer) => fetch(&mut self.rings, |seen| {
                seen.iter().for_each(|seen| observer.seen(seen.at, &seen.request()));
                Ok(())
            }),
            Sink::File(file) => {
                file.files.notice_changes();
                let count = fetch(&mut self.rings, |seen| file.push(seen));
                file.write_batch()?;
                file.let_go(self.clock.now().since(file.begin).saturating_sub(HOLD_NS))?;
                count
            }
        };
        self.tap.entries.fetch_add(count? as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        match self.sink {
            Sink::Observer(mut observer) => observer.end(self.clock.now()),
            Sink::File(mut file) => {
                file.let_go(u64::MAX)?;
                let out = file.writer.finish(self.tap.buffers.dropped())?;
                out.into_inner().map_err(|error| error.into_error())?.sync_data()?;
            }
        }
        Ok(())
    }
}

/// A trace that is being written.
pub(super) struct TraceFile {
    writer: Writer<BufWriter<File>>,
    files: Files,
    begin: Time,
    flushed: Instant,
    batch: Vec<Entry>,
    /// Entries with checksums, until those of requests that came before and took longer are there.
    held: Option<Vec<(Entry, Option<Sum>)>>,
}

impl TraceFile {
    /// `sums`: the entries have checksums of their data.
    pub(super) fn new(
        writer: Writer<BufWriter<File>>,
        names: Option<Arc<FileNames>>,
        begin: Time,
        sums: bool,
    ) -> TraceFile {
        let files = Files { names, ..Files::default() };
        let (batch, held) = (Vec::with_capacity(BATCH), sums.then(Vec::new));
        TraceFile { writer, files, begin, flushed: Instant::now(), batch, held }
    }

    fn push(&mut self, seen: &[Seen]) -> Result<(), Error> {
        for seen in seen {
            if self.batch.len() == BATCH {
                self.write_batch()?;
            }
            let request = seen.request();
            let entry = Entry {
                time: seen.at.since(self.begin),
                file: self.files.number(request.file, &mut self.writer)?,
                app: request.app.0,
                target: request.target.0,
                op: request.op,
                offset: request.offset,
                len: request.len,
            };
            match &mut self.held {
                Some(held) => held.push((entry, seen.sum())),
                None => self.batch.push(entry),
            }
        }
        Ok(())
    }

    fn write_batch(&mut self) -> Result<(), Error> {
        let done = self.writer.push_all(&self.batch);
        self.batch.clear();
        done
    }

    /// Writes what was held back of before `until`, in the order of time.
    fn let_go(&mut self, until: u64) -> Result<(), Error> {
        let Some(held) = &mut self.held else { return Ok(()) };
        held.sort_by_key(|(entry, _)| entry.time);
        let due = held.partition_point(|(entry, _)| entry.time < until);
        let due = if until == u64::MAX { held.len() } else { due.max(held.len().saturating_sub(HELD_MAX)) };
        held.drain(..due).try_for_each(|(entry, sum)| self.writer.push_summed(entry, sum))
    }

    fn flush_if_due(&mut self) -> Result<(), Error> {
        if self.flushed.elapsed() >= FLUSH {
            self.writer.flush()?;
            self.flushed = Instant::now();
        }
        Ok(())
    }
}

/// Numbers of files in the trace.
#[derive(Default)]
struct Files {
    names: Option<Arc<FileNames>>,
    numbers: HashMap<FileId, u32>,
    /// The file of the entry before, which mostly is the next one's.
    latest: Option<(FileId, u32)>,
    changes: u64,
}

impl Files {
    /// Forgets the numbers if they may stand for other paths now.
    fn notice_changes(&mut self) {
        let changes = self.names.as_ref().map_or(0, |names| names.changes());
        if changes != self.changes {
            self.changes = changes;
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.numbers.clear();
        self.latest = None;
    }

    #[inline]
    fn number(&mut self, file: FileId, writer: &mut Writer<BufWriter<File>>) -> Result<u32, Error> {
        match self.latest {
            Some((latest, number)) if latest == file => Ok(number),
            _ => self.find(file, writer),
        }
    }

    fn find(&mut self, file: FileId, writer: &mut Writer<BufWriter<File>>) -> Result<u32, Error> {
        if let Some(&number) = self.numbers.get(&file) {
            self.latest = Some((file, number));
            return Ok(number);
        }
        if self.numbers.len() >= FILES_MAX {
            self.forget();
        }
        let path = self.names.as_ref().and_then(|names| names.get(file));
        let is_known = path.is_some() || self.names.is_none();
        let number = match path.map(|path| writer.file(&path)) {
            // One that is too long for a trace must not be the end of everybody's recording.
            None | Some(Err(Error::TooManyPaths(_))) => writer.file(format!("file {}", file.0).as_bytes())?,
            Some(number) => number?,
        };
        // One whose path is to be asked for anew has it soon.
        if is_known {
            self.numbers.insert(file, number);
            self.latest = Some((file, number));
        }
        Ok(number)
    }
}
