//! Recorded file I/O requests: a compact file format (docs/trace-format.md), its [`Writer`] and [`Reader`], a
//! [`summary`] for people, [merging](merge), [splitting](Split) as volumes do, and the [`import`] of other programs' logs.
//!
//! A trace holds, in about the order of arrival, one [`Entry`] for each request that reached the scheduler. Paths are in a
//! dictionary. Entries come in blocks of columns, each with checksums, so that a file cut short by a crash is read up to
//! its last whole block, and a program in any language can read a block without looking at single entries.
//!
//! # Example
//! ```
//! use sluice_core::Op;
//! use sluice_trace::{Columns, Entry, Meta, Reader, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), &Meta::default())?;
//! let file = writer.file(b"results/step-1")?;
//! writer.push(Entry { time: 1_000, file, app: 0, target: 0, op: Op::Write, offset: 0, len: 65_536 })?;
//! let bytes = writer.finish(0)?;
//!
//! let mut reader = Reader::new(&bytes[..])?;
//! let mut block = Columns::default();
//! while reader.next_block(&mut block)? {
//!     for entry in block.iter() {
//!         assert_eq!(reader.paths().get(entry.file), b"results/step-1");
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod column;
mod entry;
mod error;
mod format;
pub mod import;
pub mod merge;
mod paths;
mod reader;
mod split;
pub mod summary;
mod writer;

pub use entry::{Columns, Entry, Extra, Sum, checksum};
pub use error::{Error, Problem};
pub use format::{BLOCK_ENTRIES, BLOCK_ENTRIES_MAX, Meta, PATH_BYTES_MAX};
pub use paths::Paths;
pub use reader::{End, Reader};
pub use split::{Split, joined};
pub use writer::Writer;
