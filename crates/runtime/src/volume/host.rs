//! Who asks a volume for I/O.

use std::io;

/// Who asked for the I/O.
pub trait Host: Send + Sync + 'static {
    /// Belongs to one request and comes back with its result.
    type Ticket: Send + 'static;

    /// A request has ended. Called once for each, from any thread, perhaps inside the call that submitted it.
    ///
    /// It may submit again (on a full volume that waits for other requests). It should not take long: it is on the way of
    /// the device's next request.
    fn complete(&self, ticket: Self::Ticket, result: io::Result<Done<'_>>);

    /// In place of [`Host::complete`], for a request that moved something before an error stopped it. What was moved is a
    /// result of its own to who asks as with `read` and `write`; a cache that takes a short read for the end of the file, or
    /// all of what it wrote for written, must be told the error instead.
    fn complete_in_part(&self, ticket: Self::Ticket, done: Done<'_>, error: io::Error) {
        let _ = error;
        self.complete(ticket, Ok(done));
    }
}

/// Whoever uses nothing but the blocking calls ([`Volume::read_at`](crate::Volume::read_at) and the like), which end when their
/// request has: nothing is left to tell.
impl Host for () {
    type Ticket = ();
    fn complete(&self, (): (), _: io::Result<Done<'_>>) {}
}

/// A request's success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done<'a> {
    /// The bytes read; fewer than asked for at the end of the file, or [before an error](Host::complete_in_part).
    Read(&'a [u8]),
    /// Number of bytes written; fewer than given only [before an error](Host::complete_in_part).
    Written(usize),
}
