//! What a host hands to the engine, and the handles it gets back.

use std::fmt;

/// A point in time: nanoseconds since an epoch that the driver chooses.
///
/// The engine never reads a clock; every call that needs the time takes it as an argument, so the same code runs in
/// real time, in virtual time and in tests that jump to the next wake-up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// The epoch.
    pub const ZERO: Time = Time(0);

    /// The time `ns` nanoseconds later, saturating at the end of time.
    #[must_use]
    pub const fn after(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to `self`, 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A file as the host names it. Requests with equal ids and equal [`TargetId`]s are scheduled as requests to the same file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileId(pub u64);

/// The application (job, program or user) a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AppId(pub u32);

/// The data server that holds the data; 0 where there is only one.
///
/// It belongs to the name of the file: equal [`FileId`]s on different targets are different files, whose requests are
/// neither ordered nor aggregated with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TargetId(pub u32);

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
}

impl Op {
    /// 0 for a read, 1 for a write.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One file I/O request. A request's cost is its length, fixed when it is submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Given back untouched with the request; the host's own reference.
    pub cookie: u64,
    /// The file, on its [`target`](Request::target).
    pub file: FileId,
    /// Who asks.
    pub app: AppId,
    /// Which data server holds the bytes.
    pub target: TargetId,
    /// Read or write.
    pub op: Op,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Number of bytes; may be 0.
    pub len: u32,
}

impl Request {
    /// The byte after the last one. The engine refuses requests for which this would overflow.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// Names a submitted request until it is completed or cancelled.
///
/// The generation makes a handle that outlived its request an error value ([`Stale`](crate::Stale)), never a match
/// with whatever request took the same slot later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl RequestId {
    /// The place of the request in the engine's table: below the engine's `capacity`, and its own until the request is
    /// completed or cancelled. For tables beside the engine.
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// The handle as one number, for hosts that can carry only an integer. See [`RequestId::from_bits`].
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The inverse of [`RequestId::to_bits`]. A number that never came from there gives a handle that is stale.
    #[must_use]
    pub const fn from_bits(bits: u64) -> RequestId {
        RequestId { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// How a dispatched request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Bytes read or written; may be less than asked for.
    pub bytes: u32,
    /// 0, or the error number (`errno`) that the storage reported.
    pub error: i32,
}

impl Outcome {
    /// A success that moved `bytes` bytes.
    #[must_use]
    pub const fn ok(bytes: u32) -> Outcome {
        Outcome { bytes, error: 0 }
    }

    /// A failure with this error number.
    #[must_use]
    pub const fn err(errno: i32) -> Outcome {
        Outcome { bytes: 0, error: errno }
    }
}
