//! What is under way: calls of processes, what was sent for them, requests at nodes, batches.

use sluice_core::{Op, RequestId};

use crate::slab::NONE;

/// A range of a data server's file that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) file: u64,
    /// In the server's file.
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) app: u32,
    /// The access pattern that it is part of, as [`classes`](super::patterns::classes) numbers them.
    pub(super) class: u8,
    /// Number of the data server.
    pub(super) server: u32,
    pub(super) op: Op,
}

impl Content {
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Bytes of data on the way to the server.
    pub(super) fn outbound(&self) -> u64 {
        if self.op == Op::Write { self.len.into() } else { 0 }
    }

    /// Bytes of data on the way back.
    pub(super) fn inbound(&self) -> u64 {
        if self.op == Op::Read { self.len.into() } else { 0 }
    }
}

/// A request of a process.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) process: u32,
    /// Pieces not yet answered.
    pub(super) pieces: u32,
    pub(super) op: Op,
    pub(super) started_ns: u64,
    pub(super) done_ns: u64,
    pub(super) bytes: u64,
    /// For the checker: number of the write, or of the read.
    pub(super) version: u64,
    /// What it is a part of, if a process does it for others.
    pub(super) work: u32,
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Call(u32),
    /// A batch of an I/O node.
    Batch(u32),
}

/// What a sender remembers of a request until it is answered.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) content: Content,
    pub(super) parent: Parent,
    /// Machines.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Counts up at each sender; 0 once answered.
    pub(super) number: u64,
    /// Of the attempt whose answer is awaited.
    pub(super) attempt: u32,
    pub(super) attempts: u32,
    /// For the checker: what is written, by block.
    pub(super) versions: Vec<u64>,
}

/// Where a request is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// On the network or with the processor.
    Travelling,
    /// In the node: in the engine, before it, or being executed.
    Inside,
    /// Answered.
    Returning,
}

/// What the answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Ok,
    /// The device failed.
    Failed,
    /// The receiver has been started again since; this is its epoch now.
    Restarted(u32),
}

/// A request as its receiver knows it; also the message that carries it, and the answer.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) content: Content,
    pub(super) sent: u32,
    pub(super) number: u64,
    /// All lower numbers of this sender are answered.
    pub(super) low: u64,
    /// Machines.
    pub(super) from: u32,
    pub(super) to: u32,
    /// The receiver's, as far as the sender knows; then the receiver's when it came.
    pub(super) epoch: u32,
    pub(super) stage: Stage,
    pub(super) reply: Reply,
    /// Times that it was lost at a full port.
    pub(super) losses: u8,
    /// In the receiver's engine.
    pub(super) id: RequestId,
    /// The next part of its batch.
    pub(super) next: u32,
    /// For the checker: what is written or was read, by block.
    pub(super) versions: Vec<u64>,
}

impl Job {
    pub(super) fn new(sent: u32, of: &Sent) -> Job {
        Job {
            content: of.content,
            sent,
            number: of.number,
            low: 0,
            from: of.from,
            to: of.to,
            epoch: 0,
            stage: Stage::Travelling,
            reply: Reply::Ok,
            losses: 0,
            id: RequestId::from_bits(0),
            next: NONE,
            versions: Vec::new(),
        }
    }
}

/// A batch that a node's engine let out.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) node: u32,
    /// Of the node, when it was let out.
    pub(super) epoch: u32,
    pub(super) live: bool,
    /// First part; the others follow by `next`.
    pub(super) first: u32,
    /// Range of the server's file.
    pub(super) offset: u64,
    pub(super) end: u64,
    /// How far it is executed.
    pub(super) at: u64,
    /// The part that is executed.
    pub(super) part: u32,
    pub(super) failed: bool,
    /// The device had to move for it, if it is one that can.
    pub(super) positioned: Option<bool>,
    /// The server's thread that executes it.
    pub(super) thread: u32,
    /// Transfers of the page cache that it waits for.
    pub(super) waits: u32,
    /// Bytes that it moves to or from the page cache at present.
    pub(super) moving: u64,
    /// For the checker: what is written or was read, by block.
    pub(super) versions: Vec<u64>,
}
