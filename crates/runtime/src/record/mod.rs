//! Recording: what is submitted goes to a trace file, off the way of the requests.
//!
//! A submitter leaves an entry in its thread's [buffer](buffers). A thread, the [recorder], fetches them four times a
//! second, or when there are some thousand entries, and writes. If it cannot keep up,
//! or the file cannot be written, entries are dropped and counted; no request ever waits for the recorder.

mod buffers;
mod recorder;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluice_core::{Request, Time};
use sluice_trace::{Meta, Writer};

use self::buffers::Buffers;
use self::recorder::{Recorder, Sink, TraceFile};
use crate::clock::{Clock, nanos};
use crate::names::FileNames;

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

/// What to record beside the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordOptions {
    /// Checksums of the data: costs some tenths of a nanosecond a byte, and entries are in the file a second later, as those
    /// of reads are known only when they end.
    pub checksums: bool,
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
    /// A request was submitted at this time, by the runtime's clock. In the order of time, nearly. A volume counts the target
    /// from the one that the file begins on.
    fn seen(&mut self, at: Time, request: &Request);

    /// So far for now; called several times a second, also if nothing was submitted.
    fn pause(&mut self, now: Time);

    /// The observation has ended.
    fn end(&mut self, now: Time);
}

/// Where submitters leave what they submit.
pub(crate) struct Tap {
    on: AtomicBool,
    /// What is recorded are entries with checksums of their data.
    sums: AtomicBool,
    buffers: Buffers,
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
        Tap {
            on: AtomicBool::new(false),
            sums: AtomicBool::new(false),
            buffers: Buffers::default(),
            entries: AtomicU64::new(0),
            thread: Mutex::default(),
            running: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What is submitted goes to [`Tap::record_summed`], once the data is known.
    #[inline]
    pub(crate) fn wants_sums(&self) -> bool {
        self.on() && self.sums.load(Ordering::Relaxed)
    }

    /// `sum`: the checksum of the first `bytes` of the data.
    pub(crate) fn record_summed(&self, at: Time, request: &Request, sum: u32, bytes: u32) {
        if self.wants_sums() && self.buffers.push_summed(at, request, sum, bytes) {
            self.wake();
        }
    }

    #[inline]
    pub(crate) fn record(&self, at: Time, request: &Request) {
        if self.buffers.push(at, request) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    /// Starts a recording. `replace`: in the place of what is in the file, too.
    pub(crate) fn record_to(
        self: &Arc<Tap>,
        path: &Path,
        replace: bool,
        meta: Meta,
        clock: Clock,
        names: Option<Arc<FileNames>>,
    ) -> Result<(), RecordError> {
        let sums = meta.checksums;
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos);
        let open = || {
            let create = if replace { Writer::create } else { Writer::create_new };
            let writer = create(path, &Meta { start_unix_ns: unix_ns, ..meta });
            let writer = writer.map_err(|error| RecordError::Trace { path: path.to_owned(), error })?;
            Ok(Sink::File(Box::new(TraceFile::new(writer, names.clone(), clock.now(), sums))))
        };
        self.start(path, clock, names.clone(), sums, open)
    }

    /// Starts an observation.
    pub(crate) fn observe(
        self: &Arc<Tap>,
        observer: Box<dyn Observer>,
        clock: Clock,
        names: Option<Arc<FileNames>>,
    ) -> Result<(), RecordError> {
        self.start(Path::new(""), clock, names, false, || Ok(Sink::Observer(observer)))
    }

    fn start(
        self: &Arc<Tap>,
        path: &Path,
        clock: Clock,
        names: Option<Arc<FileNames>>,
        sums: bool,
        open: impl FnOnce() -> Result<Sink, RecordError>,
    ) -> Result<(), RecordError> {
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            return Err(RecordError::Running(running.path.clone()));
        }
        let sink = open()?;
        let (end, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        self.buffers.clear();
        self.sums.store(sums, Ordering::SeqCst);
        self.entries.store(0, Ordering::Relaxed);
        let mut recorder = Recorder::new(self.clone(), sink, clock);
        let (tap, told, why) = (self.clone(), end.clone(), failed.clone());
        let thread = std::thread::Builder::new()
            .name("sluice-trace".into())
            .spawn(move || {
                let result = recorder.run(&told);
                if let Err(error) = &result {
                    tap.on.store(false, Ordering::SeqCst);
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
        let (dropped, failed) = (self.dropped(), failed.lock().take());
        self.buffers.clear();
        match result {
            Ok(()) => Ok(Recording { path, entries: self.entries(), dropped, failed }),
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
        self.buffers.dropped()
    }
}
