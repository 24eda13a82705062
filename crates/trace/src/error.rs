//! Why a trace cannot be read or written.

use std::io;

/// A trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file or stream below failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It does not begin as a trace does.
    #[error("this is not a trace of Sluicegate (it does not begin as one)")]
    NotATrace,
    /// Written by a later program.
    #[error("the trace has format version {0}, this program reads version 1: use a newer program")]
    Version(u16),
    /// A block is not what was written. What came before it was good.
    #[error("the trace is damaged at byte {at}: {problem}; what is before that place is good")]
    Corrupt {
        /// Where the block begins.
        at: u64,
        /// What is wrong with it.
        problem: Problem,
    },
    /// More paths, or longer ones, than a trace may hold.
    #[error("a trace cannot hold more paths: {0}")]
    TooManyPaths(&'static str),
}

/// What is wrong with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The header's checksum is wrong.
    #[error("no block begins here")]
    Header,
    /// The contents' checksum is wrong.
    #[error("a block's checksum is wrong")]
    Checksum,
    /// A length or number that no writer writes.
    #[error("a block is larger than any may be")]
    TooLarge,
    /// Columns are missing, doubled, or do not add up.
    #[error("a block's columns do not add up")]
    Columns,
    /// A column cannot be decompressed to its length.
    #[error("a column cannot be decompressed")]
    Compression,
    /// A value out of its range.
    #[error("a value is out of range: {0}")]
    Value(&'static str),
    /// The description of the recording cannot be read.
    #[error("the description of the recording cannot be read")]
    Meta,
    /// The number of entries is not the one that the end tells.
    #[error("entries are missing")]
    Count,
    /// Something follows the end.
    #[error("something follows the end of the trace")]
    Trailing,
}
