//! Connections of a coordinator: so many at a time, and none that only stands there.
//!
//! Whoever reaches the port can connect, with the token or without. A connection has a place and a descriptor, so their number has
//! a limit, and one over which nothing goes on for a while is closed.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Between two attempts to accept where the system has no room.
const PAUSE: Duration = Duration::from_millis(100);
/// Descriptors of everything else: files, the event loop, metrics.
const DESCRIPTORS: u64 = 64;

/// Of a connection: whose it is, and how many calls are going on over it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    busy: Arc<AtomicUsize>,
}

/// A call is going on while this lives.
pub(crate) struct Busy(Arc<AtomicUsize>);

impl Peer {
    pub(crate) fn busy(&self) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.busy.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection.
pub(crate) struct Line {
    stream: TcpStream,
    peer: Peer,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Line {
    /// Fails once there was no call for the time of its patience.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.peer.busy.load(Ordering::Relaxed) == 0 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing goes on over this connection"));
            }
            let again = Instant::now() + self.patience;
            self.timer.as_mut().reset(again);
        }
        Ok(())
    }
}

impl Connected for Line {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Lets this process have as many descriptors as it may, and says how many connections of those wanted that comes to.
pub(crate) fn room(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Best effort, as in mounts: with a low limit there are fewer connections at a time.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(DESCRIPTORS).max(1);
    let room = usize::try_from(descriptors).unwrap_or(usize::MAX).min(wanted).min(Semaphore::MAX_PERMITS);
    if room < wanted {
        tracing::warn!("the limit of open files (ulimit -n) leaves room for {room} connections instead of {wanted}");
    }
    room
}

/// Accepts connections, for ever: at most so many at a time, further ones are closed at once. One over which no call goes on for
/// `patience` is closed.
pub(crate) fn accept(listener: TcpListener, most: usize, patience: Duration) -> ReceiverStream<io::Result<Line>> {
    let (out, lines) = mpsc::channel(1);
    let places = Arc::new(Semaphore::new(most));
    tokio::spawn(async move {
        loop {
            // A server that has ended takes no more.
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = out.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(why) => {
                    tracing::warn!("a connection cannot be accepted: {why}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::debug!("{address}: there are {most} connections already");
                continue;
            };
            // Messages are small, and answers to clocks.
            let _ = stream.set_nodelay(true);
            let peer = Peer { address, busy: Arc::default() };
            let timer = Box::pin(tokio::time::sleep(patience));
            let line = Line { stream, peer, patience, timer, _place: place };
            if out.send(Ok(line)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(lines)
}
