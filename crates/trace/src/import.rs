//! Traces from the logs of other programs. What is kept of each, and what is lost: docs/trace-format.md.

mod fio;
mod lines;
mod strace;

use std::borrow::Cow;

pub use fio::fio_iolog;
pub use strace::strace;

use crate::Error;

/// What an import did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// Requests taken over.
    pub entries: u64,
    /// Lines that are no reads or writes of files (open, close, sync, trim...).
    pub others: u64,
    /// Reads and writes of files that are left out, as the log does not tell where in the file they were.
    pub left_out: u64,
    /// Why requests are missing; empty if the log is whole. The trace says it, too ([`Reader::incomplete`]).
    ///
    /// [`Reader::incomplete`]: crate::Reader::incomplete
    pub incomplete: String,
    /// The log has no times ([`Meta::untimed`](crate::Meta::untimed)).
    pub untimed: bool,
}

/// A log cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A line that is not understood.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The log cannot be read, or the trace not written.
    #[error(transparent)]
    Trace(#[from] Error),
}

impl From<std::io::Error> for ImportError {
    fn from(error: std::io::Error) -> ImportError {
        ImportError::Trace(error.into())
    }
}

/// A path without `.`, `..` and doubled slashes, as far as its names tell: what a symbolic link leads to is not known.
/// O(length).
#[must_use]
pub fn normal_path(path: &[u8]) -> Cow<'_, [u8]> {
    let absolute = path.starts_with(b"/");
    let mut kept: Vec<&[u8]> = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if kept.last().is_some_and(|last| *last != b"..") => _ = kept.pop(),
            // Nothing is above the root.
            b".." if absolute => {}
            name => kept.push(name),
        }
    }
    let mut normal = if absolute { b"/".to_vec() } else { Vec::new() };
    normal.extend_from_slice(&kept.join(&b'/'));
    if normal == path { Cow::Borrowed(path) } else { Cow::Owned(normal) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_leads_nowhere() {
        for (path, expected) in [
            ("/a/b", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("//a///b/", "/a/b"),
            ("/../../a", "/a"),
            ("./a/..", ""),
            ("a/../../b", "../b"),
            ("../../b", "../../b"),
            ("/", "/"),
            ("..a/.b/c..", "..a/.b/c.."),
        ] {
            assert_eq!(normal_path(path.as_bytes()).as_ref(), expected.as_bytes(), "{path}");
        }
    }
}
