//! What programs say that they do, as a host hears it.

use sluice_core::AppId;

/// What the processes of an application say that they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doing {
    /// Which.
    pub app: AppId,
    /// All of them compute; else some do I/O.
    pub computes: bool,
    /// Since the last of them said so, in nanoseconds.
    pub for_ns: u64,
}

/// Knows what programs say that they do. Asked once in a window at most, and only where somebody plans by it.
pub trait Announced: Send + Sync + std::fmt::Debug {
    /// Of each application that has said anything and is still there.
    fn doing(&self) -> Vec<Doing>;
}
