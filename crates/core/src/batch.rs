//! A dispatched batch ("virtual request"): requests whose byte ranges are exactly contiguous.

use crate::request::{FileId, Op, Request, RequestId, TargetId};

/// One request of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The handle to complete it with.
    pub id: RequestId,
    /// The request as submitted.
    pub request: Request,
}

/// What [`Engine::poll_dispatch`](crate::Engine::poll_dispatch) fills: one or more requests for the same file, target and
/// operation, in offset order, each beginning where the one before it ends.
///
/// A host that can execute a list (`readv`/`writev`) executes the batch as one operation; another executes its parts
/// in order. Every part is completed on its own. Reuse one `Batch`: its buffer is kept between calls, so nothing is
/// allocated once it has grown to `batch_requests_max`.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) parts: Vec<Part>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Batch {
        Batch { parts: Vec::new() }
    }

    /// An empty batch with room for `parts` requests.
    #[must_use]
    pub fn with_capacity(parts: usize) -> Batch {
        Batch { parts: Vec::with_capacity(parts) }
    }

    /// The requests, in offset order. Empty only before the first successful `poll_dispatch`.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.parts.len()
    }

    /// The file all parts belong to.
    ///
    /// # Panics
    /// On an empty batch, as do the other accessors of the common attributes.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.parts[0].request.file
    }

    /// The operation of all parts.
    #[must_use]
    pub fn op(&self) -> Op {
        self.parts[0].request.op
    }

    /// The data server of all parts.
    #[must_use]
    pub fn target(&self) -> TargetId {
        self.parts[0].request.target
    }

    /// First byte of the batch.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.parts[0].request.offset
    }

    /// Bytes of all parts together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|p| u64::from(p.request.len)).sum()
    }
}
