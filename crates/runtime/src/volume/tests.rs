use std::ffi::OsStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use sluice_storage::Creator;
use sluice_storage::null::NullStorage;
use sluice_storage::striped::{StripedOptions, StripedStorage};

use super::*;

/// Told of request 0, says so, waits for the test and writes over both targets then.
struct Writes {
    volume: OnceLock<Weak<Volume<Writes>>>,
    file: FileRef,
    begun: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    told: Mutex<Sender<u64>>,
}

impl Host for Writes {
    type Ticket = u64;

    fn complete(&self, ticket: u64, result: io::Result<Done<'_>>) {
        assert_eq!(result.unwrap(), Done::Written(if ticket == 2 { 8192 } else { 4096 }));
        if ticket == 0 {
            self.begun.lock().send(()).unwrap();
            self.go_on.lock().recv().unwrap();
            let volume = self.volume.get().and_then(Weak::upgrade).unwrap();
            volume.write(&self.file, AppId(0), 0, &[3; 8192], 2);
        }
        self.told.lock().send(ticket).unwrap();
    }
}

#[test]
fn an_operation_of_many_pieces_leaves_no_long_lists_behind() {
    const SLOTS: u32 = 4;
    let storage: Storage = NullStorage::new(Layout::striped(2, 512), 1 << 30).into();
    let file = storage.namespace.lookup(&storage.namespace.root(), OsStr::new("7")).unwrap();
    let file = storage.namespace.open(&file, libc::O_RDWR).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = VolumeConfig::default();
    config.engine.capacity = SLOTS;
    let volume = Volume::start(storage, Arc::new(()), config).unwrap();
    volume.start_recording_with(&dir.path().join("trace"), "", RecordOptions { checksums: true }).unwrap();
    for _ in 0..2 * SLOTS {
        volume.write_at(&file, AppId(0), 0, &[1; 100 << 10]).unwrap();
        volume.read_at(&file, AppId(0), 0, &mut [0; 100 << 10]).unwrap();
    }
    let kept = (0..SLOTS).map(|slot| volume.service.ops.slot(slot).state.lock().kept());
    assert!(kept.max().unwrap() <= ops::KEPT);
}

/// A place in an engine is what the only thread waits for, with the order of a file held, and who has it is in its queue.
#[test]
fn the_only_thread_makes_room_for_itself_where_there_can_be_no_other() {
    for files in [["f", "f"], ["f", "g"]] {
        let dir = tempfile::tempdir().unwrap();
        let dirs: Vec<_> = (0..2).map(|target| dir.path().join(format!("t{target}"))).collect();
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let options = StripedOptions {
            stripe: Some(4096),
            first: Some(sluice_storage::striped::FirstTarget::Zero),
            ..StripedOptions::default()
        };
        let storage: Storage = StripedStorage::create_or_open(&dirs, options).unwrap().into();
        let open = |name: &str| {
            let (tree, name) = (&storage.namespace, OsStr::new(name));
            tree.create(&tree.root(), name, 0o600, libc::O_RDWR, &Creator::process()).unwrap().1
        };
        let [one, other] = files.map(open);
        let ((begin, begun), (go, go_on), (tell, told)) = (channel(), channel(), channel());
        let (begin, go_on, tell) = (Mutex::new(begin), Mutex::new(go_on), Mutex::new(tell));
        let host = Arc::new(Writes { volume: OnceLock::new(), file: one.clone(), begun: begin, go_on, told: tell });
        let mut config = VolumeConfig { inline: false, ..VolumeConfig::new(PolicyConfig::parse("sjf").unwrap()) };
        // One operation has all places of an engine.
        (config.engine.capacity, config.request_bytes_max) = (2, 2048);
        let volume = Arc::new(Volume::start(storage.clone(), host.clone(), config).unwrap());
        host.volume.set(Arc::downgrade(&volume)).ok().unwrap();
        volume.service.refused.store(true, Ordering::SeqCst);
        // Who submits may be the one who tells, where the only thread has been as fast as it, and waits then.
        let first = {
            let (volume, one) = (volume.clone(), one.clone());
            std::thread::spawn(move || volume.write(&one, AppId(0), 0, &[1; 4096], 0))
        };
        begun.recv().unwrap();
        volume.write(&other, AppId(0), 4096, &[2; 4096], 1);
        go.send(()).unwrap();
        first.join().unwrap();
        let next = || told.recv_timeout(Duration::from_secs(120)).expect("the thread waits for itself");
        let mut tickets = [next(), next(), next()];
        tickets.sort_unstable();
        assert_eq!(tickets, [0, 1, 2]);
        volume.wait_idle(&one);
    }
}
