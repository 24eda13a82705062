//! Transfers that end by themselves.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use crate::{FileRef, Segment};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// Who is told of the end of transfers.
pub trait TransferDone: Send + Sync {
    /// The transfer with this token has ended; `result` as of [`Data::read`](crate::Data::read) and
    /// [`Data::write`](crate::Data::write). Comes exactly once for each transfer, from any thread, also from inside
    /// [`Data::start`](crate::Data::start). `segments` come back for reuse; nobody uses their memory any more.
    ///
    /// The call may last: hosts are told in it, and one that submits more than there is room for waits in there until other
    /// transfers have ended. So a storage must be able to end those meanwhile, on another thread than the one that is in here.
    fn done(&self, token: u64, segments: Vec<Segment>, result: io::Result<usize>);
}

/// What became of a transfer given to [`Data::start`](crate::Data::start).
#[must_use]
pub enum Started {
    /// The storage told, or will tell, the end to [`TransferDone`].
    Accepted,
    /// The storage cannot do it (now): the caller uses a thread and the calls that block.
    Unsupported(Transfer),
}

/// A read or write of one target's file.
///
/// Dropping one that has not ended ends it with `EIO`, so that nobody waits for ever.
pub struct Transfer {
    /// Of which file.
    pub file: FileRef,
    /// On which target.
    pub target: usize,
    /// Which way.
    pub direction: Direction,
    /// Offset in the target's file, in bytes.
    pub offset: u64,
    /// Memory, in the order of the file. Its maker guarantees that it is valid, and nobody else uses it, until the end.
    pub segments: Vec<Segment>,
    done: Option<(Arc<dyn TransferDone>, u64)>,
}

impl Transfer {
    /// A transfer whose end is told to `done` with `token`.
    #[must_use]
    pub fn new(
        (file, target): (FileRef, usize),
        direction: Direction,
        offset: u64,
        segments: Vec<Segment>,
        (done, token): (Arc<dyn TransferDone>, u64),
    ) -> Transfer {
        Transfer { file, target, direction, offset, segments, done: Some((done, token)) }
    }

    /// Bytes asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }

    /// True if no bytes are asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the transfer and tells so.
    pub fn end(mut self, result: io::Result<usize>) {
        self.tell(result);
    }

    /// Takes the transfer back: its end will not be told. For one that was [`Started::Unsupported`].
    #[must_use]
    pub fn take_back(mut self) -> Vec<Segment> {
        self.done = None;
        std::mem::take(&mut self.segments)
    }

    fn tell(&mut self, result: io::Result<usize>) {
        if let Some((done, token)) = self.done.take() {
            done.done(token, std::mem::take(&mut self.segments), result);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.tell(Err(Errno::IO.into()));
    }
}
