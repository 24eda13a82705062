//! Recording: what is submitted goes to a trace file, off the way of the requests.
//!
//! A submitter puts an entry into a buffer that it shares with few other threads, or with none. A thread collects the
//! buffers four times a second, or when one is half full, and writes. If it cannot keep up, or the file cannot be written,
//! entries are dropped and counted; no request ever waits for the recorder.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sluice_core::{FileId, Request, Time};
use sluice_trace::{Entry, Meta, Writer};

use crate::clock::{Clock, nanos};
use crate::names::FileNames;

/// Entries in a buffer; more are dropped.
const BUFFER: usize = 16_384;
/// How often buffers are collected, if nobody calls for it.
const PERIOD: Duration = Duration::from_millis(250);
/// An entry is in the file at the latest so long after it was collected.
const FLUSH: Duration = Duration::from_secs(1);
/// Files whose numbers in the trace are remembered.
const FILES_MAX: usize = 1 << 20;

/// A recording could not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is one already.
    #[error("a recording is running already, to {}", .0.display())]
    Running(PathBuf),
    /// There is none.
    #[error("no recording is running")]
    None,
    /// The trace file cannot be written.
    #[error("the trace {} cannot be written: {error}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        error: sluice_trace::Error,
    },
    /// The system refused a thread.
    #[error("no thread for the recorder: {0}")]
    Thread(std::io::Error),
}

/// A recording at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// The trace file.
    pub path: PathBuf,
    /// Entries written or about to be.
    pub entries: u64,
    /// Entries lost because the recorder could not keep up.
    pub dropped: u64,
    /// Why nothing is written any more.
    pub failed: Option<String>,
}

/// Hears of what is submitted, some time later, on a thread of its own.
pub trait Observer: Send + 'static {
    /// A request was submitted at this time, by the runtime's clock. In the order of time, nearly.
    fn seen(&mut self, at: Time, request: &Request);

    /// So far for now; called several times a second, also if nothing was submitted.
    fn pause(&mut self, now: Time);

    /// The observation has ended.
    fn end(&mut self, now: Time);
}

struct Seen {
    at: Time,
    request: Request,
}

/// Where submitters leave what they submit.
pub(crate) struct Tap {
    on: AtomicBool,
    buffers: Box<[CachePadded<Mutex<Vec<Seen>>>]>,
    dropped: AtomicU64,
    entries: AtomicU64,
    /// Of the recorder in charge.
    thread: Mutex<Option<Thread>>,
    running: Mutex<Option<Running>>,
}

struct Running {
    path: PathBuf,
    end: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), sluice_trace::Error>>,
    failed: Arc<Mutex<Option<String>>>,
    names: Option<Arc<FileNames>>,
}

impl Tap {
    pub(crate) fn new() -> Tap {
        let count = 2 * std::thread::available_parallelism().map_or(2, usize::from).min(16);
        Tap {
            on: AtomicBool::new(false),
            buffers: (0..count).map(|_| CachePadded::new(Mutex::default())).collect(),
            dropped: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            thread: Mutex::default(),
            running: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, at: Time, request: &Request) {
        let mut buffer = self.buffers[thread_number() % self.buffers.len()].lock();
        if buffer.len() >= BUFFER {
            drop(buffer);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        buffer.push(Seen { at, request: *request });
        let half = buffer.len() == BUFFER / 2;
        drop(buffer);
        if half && let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    /// Starts a recording.
    pub(crate) fn record_to(
        self: &Arc<Tap>,
        path: &Path,
        meta: Meta,
        clock: Clock,
        names: Option<Arc<FileNames>>,
    ) -> Result<(), RecordError> {
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos);
        let open = || {
            let writer = Writer::create(path, &Meta { start_unix_ns: unix_ns, ..meta });
            let writer = writer.map_err(|error| RecordError::Trace { path: path.to_owned(), error })?;
            let files = Files { names: names.clone(), ..Files::default() };
            Ok(Sink::File { writer: Box::new(writer), files, flushed: Instant::now() })
        };
        self.start(path, clock, names.clone(), open)
    }

    /// Starts an observation.
    pub(crate) fn observe(
        self: &Arc<Tap>,
        observer: Box<dyn Observer>,
        clock: Clock,
        names: Option<Arc<FileNames>>,
    ) -> Result<(), RecordError> {
        self.start(Path::new(""), clock, names, || Ok(Sink::Observer(observer)))
    }

    fn start(
        self: &Arc<Tap>,
        path: &Path,
        clock: Clock,
        names: Option<Arc<FileNames>>,
        open: impl FnOnce() -> Result<Sink, RecordError>,
    ) -> Result<(), RecordError> {
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            return Err(RecordError::Running(running.path.clone()));
        }
        let (begin, sink) = (clock.now(), open()?);
        let (end, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        for buffer in &self.buffers {
            let mut buffer = buffer.lock();
            buffer.clear();
            buffer.reserve_exact(BUFFER);
        }
        self.dropped.store(0, Ordering::Relaxed);
        self.entries.store(0, Ordering::Relaxed);
        let spare = Vec::with_capacity(BUFFER);
        let mut recorder = Recorder { tap: self.clone(), sink, clock, begin, spare, batch: Vec::new() };
        let (told, why) = (end.clone(), failed.clone());
        let thread = std::thread::Builder::new()
            .name("sluice-trace".into())
            .spawn(move || {
                let result = recorder.run(&told);
                if let Err(error) = &result {
                    recorder.tap.on.store(false, Ordering::SeqCst);
                    tracing::warn!(%error, "recording has ended: the trace cannot be written");
                    *why.lock() = Some(error.to_string());
                }
                result.and_then(|()| recorder.finish())
            })
            .map_err(RecordError::Thread)?;
        *self.thread.lock() = Some(thread.thread().clone());
        if let Some(names) = &names {
            names.watch();
        }
        *running = Some(Running { path: path.to_owned(), end, thread, failed, names });
        self.on.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the recording. All that was submitted before is in the file then.
    pub(crate) fn stop(&self) -> Result<Recording, RecordError> {
        let mut running = self.running.lock();
        let Some(Running { path, end, thread, failed, names }) = running.take() else { return Err(RecordError::None) };
        self.on.store(false, Ordering::SeqCst);
        end.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        *self.thread.lock() = None;
        let result = thread
            .join()
            .unwrap_or_else(|_| Err(sluice_trace::Error::Io(std::io::Error::other("the recorder has panicked"))));
        if let Some(names) = names {
            names.unwatch();
        }
        self.buffers.iter().for_each(|buffer| *buffer.lock() = Vec::new());
        let failed = failed.lock().take();
        match result {
            Ok(()) => Ok(Recording { path, entries: self.entries(), dropped: self.dropped(), failed }),
            Err(error) => Err(RecordError::Trace { path, error }),
        }
    }

    pub(crate) fn recording(&self) -> Option<Recording> {
        let running = self.running.lock();
        running.as_ref().map(|running| Recording {
            path: running.path.clone(),
            entries: self.entries(),
            dropped: self.dropped(),
            failed: running.failed.lock().clone(),
        })
    }

    fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Where entries go.
enum Sink {
    File { writer: Box<Writer<BufWriter<File>>>, files: Files, flushed: Instant },
    Observer(Box<dyn Observer>),
}

/// The thread that collects.
struct Recorder {
    tap: Arc<Tap>,
    sink: Sink,
    clock: Clock,
    begin: Time,
    spare: Vec<Seen>,
    batch: Vec<Seen>,
}

impl Recorder {
    fn run(&mut self, end: &AtomicBool) -> Result<(), sluice_trace::Error> {
        while !end.load(Ordering::SeqCst) {
            std::thread::park_timeout(PERIOD);
            self.collect()?;
            match &mut self.sink {
                Sink::File { writer, flushed, .. } if flushed.elapsed() >= FLUSH => {
                    writer.flush()?;
                    *flushed = Instant::now();
                }
                Sink::File { .. } => {}
                Sink::Observer(observer) => observer.pause(self.clock.now()),
            }
        }
        self.collect()
    }

    fn collect(&mut self) -> Result<(), sluice_trace::Error> {
        for at in 0..self.tap.buffers.len() {
            let mut buffer = self.tap.buffers[at].lock();
            std::mem::swap(&mut *buffer, &mut self.spare);
            drop(buffer);
            self.batch.append(&mut self.spare);
        }
        // Each buffer is nearly in order, which this sort makes use of.
        self.batch.sort_by_key(|seen| seen.at);
        self.tap.entries.fetch_add(self.batch.len() as u64, Ordering::Relaxed);
        for seen in self.batch.drain(..) {
            let request = &seen.request;
            match &mut self.sink {
                Sink::Observer(observer) => observer.seen(seen.at, request),
                Sink::File { writer, files, .. } => {
                    let file = files.number(request.file, writer)?;
                    writer.push(Entry {
                        time: seen.at.since(self.begin),
                        file,
                        app: request.app.0,
                        target: request.target.0,
                        op: request.op,
                        offset: request.offset,
                        len: request.len,
                    })?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), sluice_trace::Error> {
        match self.sink {
            Sink::Observer(mut observer) => observer.end(self.clock.now()),
            Sink::File { writer, .. } => {
                let out = writer.finish(self.tap.dropped())?;
                out.into_inner().map_err(|error| error.into_error())?.sync_data()?;
            }
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
    fn number(&mut self, file: FileId, writer: &mut Writer<BufWriter<File>>) -> Result<u32, sluice_trace::Error> {
        let changes = self.names.as_ref().map_or(0, |names| names.changes());
        if changes != self.changes || self.numbers.len() >= FILES_MAX {
            self.changes = changes;
            self.numbers.clear();
            self.latest = None;
        }
        if let Some((_, number)) = self.latest.filter(|latest| latest.0 == file) {
            return Ok(number);
        }
        if let Some(&number) = self.numbers.get(&file) {
            self.latest = Some((file, number));
            return Ok(number);
        }
        let path = self.names.as_ref().and_then(|names| names.get(file));
        let number = match path {
            Some(path) => writer.file(&path)?,
            None => writer.file(format!("file {}", file.0).as_bytes())?,
        };
        self.numbers.insert(file, number);
        Ok(number)
    }
}

/// Numbers threads in the order in which they first ask.
fn thread_number() -> usize {
    use std::cell::Cell;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) as usize));
    NUMBER.get()
}
