//! What a submitter does for others while it is at it.

mod common;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, ThreadId};

use common::{Results, create, storage};
use parking_lot::Mutex;
use sluice_core::{AppId, PolicyConfig};
use sluice_runtime::{Done, Host, Volume, VolumeConfig};
use sluice_storage::{Data, FileRef, Layout, Storage};

/// Writes take no time; reads take as long as the test wants. Counts the writes of one thread.
struct Instant {
    layout: Layout,
    reading: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    reader: Mutex<Option<ThreadId>>,
    by_reader: AtomicU64,
}

impl Data for Instant {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn describe(&self) -> String {
        "writes in no time".to_owned()
    }
    fn sync(&self, _: &FileRef, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn size_at_least(&self, _: &FileRef, end: u64) -> io::Result<u64> {
        Ok(end)
    }
    fn read(&self, _: &FileRef, _: usize, _: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        *self.reader.lock() = Some(thread::current().id());
        self.reading.lock().send(()).unwrap();
        self.go_on.lock().recv().unwrap();
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
    fn write(&self, _: &FileRef, _: usize, _: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if *self.reader.lock() == Some(thread::current().id()) {
            self.by_reader.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
}

#[test]
fn a_submitter_is_not_held_hostage_by_a_queue() {
    const QUEUED: u64 = 4_000;
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 1);
    let (one, other) = (create(&plain, "one"), create(&plain, "other"));
    let ((reading, is_reading), (let_go, go_on)) = (channel(), channel());
    let data = Arc::new(Instant {
        layout: plain.data.layout(),
        reading: Mutex::new(reading),
        go_on: Mutex::new(go_on),
        reader: Mutex::new(None),
        by_reader: AtomicU64::new(0),
    });
    let mut config = VolumeConfig::new(PolicyConfig::parse("to").unwrap());
    (config.engine.capacity, config.engine.in_flight_max) = (8_192, 1);
    let host = Arc::new(Results::default());
    let volume = Volume::start(Storage { data: data.clone(), ..plain.clone() }, host.clone(), config).unwrap();
    // It learns how fast writes are.
    (0..200).for_each(|_| _ = volume.write_at(&other, AppId(0), 0, &[1; 512]).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| volume.read_at(&one, AppId(0), 0, &mut [0; 512]).unwrap());
        is_reading.recv().unwrap();
        (0..QUEUED).for_each(|n| volume.write(&other, AppId(0), n * 4096, &[1; 512], n));
        let_go.send(()).unwrap();
    });
    assert_eq!(host.take(QUEUED as usize).len(), QUEUED as usize);
    let by_reader = data.by_reader.load(Ordering::Relaxed);
    assert!(by_reader <= QUEUED / 4, "a reader executed {by_reader} of {QUEUED} writes of others before it returned");
}

/// Reads, when it is told of request 1, what request 2 writes.
struct Reads {
    volume: OnceLock<Weak<Volume<Reads>>>,
    file: FileRef,
    told: Mutex<Sender<u64>>,
}

impl Host for Reads {
    type Ticket = u64;

    fn complete(&self, ticket: u64, _: io::Result<Done<'_>>) {
        if ticket == 1 {
            let volume = self.volume.get().and_then(Weak::upgrade).unwrap();
            volume.read_at(&self.file, AppId(0), 512, &mut [0; 512]).unwrap();
        }
        self.told.lock().send(ticket).unwrap();
    }
}

/// Reads take no time; the first write takes as long as the test wants.
struct Writes {
    layout: Layout,
    writing: Mutex<Sender<()>>,
    go_on: Mutex<Option<Receiver<()>>>,
}

impl Data for Writes {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn describe(&self) -> String {
        "reads in no time".to_owned()
    }
    fn sync(&self, _: &FileRef, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn size_at_least(&self, _: &FileRef, end: u64) -> io::Result<u64> {
        Ok(end)
    }
    fn read(&self, _: &FileRef, _: usize, _: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
    fn write(&self, _: &FileRef, _: usize, _: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(go_on) = { self.go_on.lock().take() } {
            self.writing.lock().send(()).unwrap();
            go_on.recv().unwrap();
        }
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
}

/// The end of request 1, a fast read, is reported when the slow write 2 comes, dispatched with it.
#[test]
fn what_is_next_is_given_away_before_an_end_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 1);
    let file = create(&plain, "f");
    let ((writing, is_writing), (let_go, go_on), (tell, told)) = (channel(), channel(), channel());
    let go_on = Mutex::new(Some(go_on));
    let data = Arc::new(Writes { layout: plain.data.layout(), writing: Mutex::new(writing), go_on });
    let mut config = VolumeConfig::new(PolicyConfig::parse("to").unwrap());
    config.engine.in_flight_max = 8;
    let host = Arc::new(Reads { volume: OnceLock::new(), file: file.clone(), told: Mutex::new(tell) });
    let volume = Arc::new(Volume::start(Storage { data, ..plain.clone() }, host.clone(), config).unwrap());
    let _ = host.volume.set(Arc::downgrade(&volume));
    (0..200).for_each(|_| _ = volume.read_at(&file, AppId(0), 0, &mut [0; 512]).unwrap());
    let (writer, to) = (volume.clone(), file.clone());
    thread::spawn(move || writer.write_at(&to, AppId(0), 0, &[1; 1024]).unwrap());
    is_writing.recv().unwrap();
    // Both wait for the write before them.
    volume.read(&file, AppId(0), 0, 512, 1);
    volume.write(&file, AppId(0), 512, &[1; 512], 2);
    let_go.send(()).unwrap();
    let mut ended: Vec<_> = (0..2).map_while(|_| told.recv_timeout(common::LIMIT).ok()).collect();
    ended.sort_unstable();
    if ended != [1, 2] {
        eprintln!("HANG: told of {ended:?}");
        std::process::exit(77);
    }
}
