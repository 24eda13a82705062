use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::null::NullStorage;
use crate::posix::{PosixOptions, PosixStorage};

type Ended = (u64, usize, io::Result<usize>);

struct Ends(Sender<Ended>);

impl TransferDone for Ends {
    fn done(&self, token: u64, segments: Vec<Segment>, result: io::Result<usize>) {
        self.0.send((token, segments.len(), result)).expect("the test listens");
    }
}

fn ends() -> (Arc<Ends>, Receiver<Ended>) {
    let (sender, receiver) = channel();
    (Arc::new(Ends(sender)), receiver)
}

fn transfer(file: &FileRef, offset: u64, len: usize, done: &Arc<Ends>, token: u64) -> Transfer {
    let memory = Box::leak(vec![0; len].into_boxed_slice());
    #[allow(unsafe_code)]
    // SAFETY: leaked for this transfer alone.
    let segment = unsafe { Segment::of_mut(memory) };
    Transfer::new((file.clone(), 0), Direction::Read, offset, vec![segment], (done.clone(), token))
}

#[test]
fn transfers_end_exactly_once() {
    let null = NullStorage::asynchronous(Layout::single(), 10_000).unwrap();
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    assert!(!null.never_waits(&file));
    let (done, ended) = ends();
    for token in 0..3 {
        assert!(matches!(null.start(transfer(&file, token * 4096, 4096, &done, token)), Started::Accepted));
    }
    drop(null);
    let ended: Vec<_> = ended.try_iter().map(|(token, segments, result)| (token, segments, result.unwrap())).collect();
    assert_eq!(ended, [(0, 1, 4096), (1, 1, 4096), (2, 1, 10_000 - 8192)], "also what was queued at the end");
}

#[test]
fn a_transfer_that_nobody_takes_comes_back_and_a_lost_one_fails() {
    let null = NullStorage::new(Layout::single(), 10_000);
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    let (done, ended) = ends();
    let Started::Unsupported(back) = null.start(transfer(&file, 0, 10, &done, 1)) else { panic!("no thread") };
    assert_eq!(back.take_back().len(), 1);
    assert!(ended.try_recv().is_err(), "taken back, so not told");
    drop(transfer(&file, 0, 10, &done, 2));
    let (token, _, result) = ended.try_recv().unwrap();
    assert_eq!((token, result.unwrap_err().raw_os_error()), (2, Some(libc::EIO)));
}

#[test]
fn what_belongs_to_another_storage_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let posix = PosixStorage::open(dir.path(), PosixOptions::default()).unwrap();
    let null = NullStorage::new(Layout::single(), 1);
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    let code = |error: io::Error| error.raw_os_error().unwrap();
    assert_eq!(code(posix.getattr(&null.root()).unwrap_err()), libc::EXDEV);
    assert_eq!(code(posix.lookup(&null.root(), "x".as_ref()).err().unwrap()), libc::EXDEV);
    assert_eq!(code(posix.sync(&file, true).unwrap_err()), libc::EINVAL);
    assert!(posix.descriptor(&file, 0).is_none());
}
