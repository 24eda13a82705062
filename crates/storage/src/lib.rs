//! What executes scheduled requests.
//!
//! A [`Storage`] is a tree of files whose bytes live on one or more *targets* (data servers, disks). It has two halves:
//!
//! * a [`Namespace`] (look-up, create, rename, attributes...), which hosts call directly, and
//! * [`Data`], whose reads and writes only the runtime calls, one call for each batch that the engine dispatched, on one
//!   target and at offsets *within the target's file*.
//!
//! What changes how bytes are moved (an emulated device, a cache, faults for tests) wraps the data alone.
//!
//! [`Layout`] translates between a file's logical offsets and (target, offset in the target's file). Files begin on different
//! targets, so that small ones do not all meet on one: an open file tells which ([`OpenFile::first_target`]).
//!
//! | storage | what it is |
//! |---|---|
//! | [`posix`] | one directory |
//! | [`striped`] | RAID-0 over several directories |
//! | [`emulated`] | wraps another storage's data: one emulated device for each target |
//! | [`null`] | does nothing, at once: for measuring what is around it |

use std::any::Any;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

mod data;
pub mod emulated;
mod layout;
pub mod mounts;
mod namespace;
pub mod null;
pub mod posix;
mod segment;
pub mod striped;
mod transfer;

pub use data::Data;
pub use layout::{Layout, Piece, Pieces};
pub use namespace::{
    Attr, Creator, DirEntries, DirEntry, FileRef, Namespace, Node, NodeRef, OpenFile, SetAttr, SetTime, StatFs,
};
pub use segment::Segment;
pub use striped::fnv1a;
pub use transfer::{Direction, Started, Transfer, TransferDone};

/// A tree of files and what moves their bytes. Cheap to clone.
#[derive(Clone)]
pub struct Storage {
    /// Names and attributes.
    pub namespace: Arc<dyn Namespace>,
    /// Bytes.
    pub data: Arc<dyn Data>,
}

impl Storage {
    /// Both halves of one implementation.
    #[must_use]
    pub fn new<S: Namespace + Data + 'static>(whole: Arc<S>) -> Storage {
        Storage { namespace: whole.clone(), data: whole }
    }

    /// The same tree with its data wrapped.
    ///
    /// # Errors
    /// Those of `wrap`.
    pub fn wrapped<D: Data + 'static, E>(
        &self,
        wrap: impl FnOnce(Arc<dyn Data>) -> Result<D, E>,
    ) -> Result<Storage, E> {
        Ok(Storage { namespace: self.namespace.clone(), data: Arc::new(wrap(self.data.clone())?) })
    }
}

impl<S: Namespace + Data + 'static> From<S> for Storage {
    fn from(whole: S) -> Storage {
        Storage::new(Arc::new(whole))
    }
}

/// An implementation's own kind of node.
fn node_as<T: Node>(node: &NodeRef) -> io::Result<&T> {
    (&**node as &dyn Any).downcast_ref().ok_or_else(|| {
        tracing::error!(node = node.id(), "a node was given to a storage that it does not come from");
        Errno::XDEV.into()
    })
}

/// An implementation's own kind of open file.
fn file_as<T: OpenFile>(file: &FileRef) -> io::Result<&T> {
    (&**file as &dyn Any).downcast_ref().ok_or_else(|| {
        tracing::error!(file = file.id(), "an open file was given to a storage that it does not come from");
        Errno::INVAL.into()
    })
}

#[cfg(test)]
mod tests;
