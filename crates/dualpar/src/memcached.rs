//! The global cache: chunks of files in Memcached servers.
//!
//! Two commands of the text protocol (`set` with `noreply`, `get` of many keys), by hand: the client crates that are kept well
//! start threads (connection pools) or need a runtime, and neither may live in an MPI process that forks ghosts; nor do they
//! bound all their waiting.
//!
//! A server that does not answer in time, or answers nonsense, is not asked again for five seconds: what it had is missing, which
//! is never an error.

use crate::ring::Ring;
use std::io::{Error, ErrorKind, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest time that connecting, sending, or the answer to one command takes.
const TIMEOUT: Duration = Duration::from_millis(250);
/// A server that failed is left alone for this long.
const PAUSE: Duration = Duration::from_secs(5);
/// Seconds after which Memcached forgets what nobody came for.
const KEEP: u32 = 60;
/// Keys of one `get`.
const KEYS: usize = 64;
/// Longest line of an answer: keys have at most 250 bytes.
const LINE: usize = 512;
/// What is to be sent is sent when there is more than this, and is received in pieces of this size.
const BUFFER: usize = 128 << 10;

/// The servers of a program. Addresses are `HOST:PORT` or the path of a unix socket (it begins with `/`).
#[derive(Debug)]
pub struct Cache {
    ring: Ring,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    address: String,
    connection: Option<Connection>,
    not_before: Option<Instant>,
}

/// Never blocks beyond its deadline, whatever signals interrupt it, and never raises one (SIGPIPE would end the program).
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    /// What of `inbox` was taken.
    at: usize,
    deadline: Instant,
}

impl Cache {
    /// Of these servers; connections are made when they are needed.
    #[must_use]
    pub fn new(addresses: &[String]) -> Cache {
        let servers = addresses
            .iter()
            .map(|address| Server { address: address.clone(), connection: None, not_before: None })
            .collect();
        Cache { ring: Ring::new(addresses), servers }
    }

    /// Puts `value` there, if the server takes it. Whether it did nobody learns before a [`Cache::get`].
    pub fn set(&mut self, key: &str, value: &[u8]) {
        let Some(server) = self.ring.server(key.as_bytes()) else { return };
        self.servers[server].with(|connection| {
            write!(connection.outbox, "set {key} 0 {KEEP} {} noreply\r\n", value.len())?;
            connection.outbox.extend_from_slice(value);
            connection.outbox.extend_from_slice(b"\r\n");
            if connection.outbox.len() < BUFFER { Ok(()) } else { connection.send() }
        });
    }

    /// Asks for `keys` and hands what is there, at most `longest` bytes each, to `take` with the key's index.
    pub fn get(&mut self, keys: &[String], longest: usize, mut take: impl FnMut(usize, &[u8])) {
        for server in 0..self.servers.len() {
            let mine: Vec<usize> =
                (0..keys.len()).filter(|&key| self.ring.server(keys[key].as_bytes()) == Some(server)).collect();
            for some in mine.chunks(KEYS) {
                self.servers[server].with(|connection| connection.get(keys, some, longest, &mut take));
            }
        }
    }

    /// Sends what is still on its way to the servers.
    pub fn flush(&mut self) {
        for server in &mut self.servers {
            if server.connection.is_some() {
                server.with(|connection| connection.send());
            }
        }
    }
}

impl Server {
    fn with(&mut self, work: impl FnOnce(&mut Connection) -> Result<()>) {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        let done = match &mut self.connection {
            Some(connection) => {
                connection.deadline = Instant::now() + TIMEOUT;
                work(connection)
            }
            None => Connection::open(&self.address).and_then(|connection| work(self.connection.insert(connection))),
        };
        if done.is_err() {
            self.connection = None;
            self.not_before = Some(Instant::now() + PAUSE);
        }
    }
}

impl Connection {
    fn open(address: &str) -> Result<Connection> {
        let socket = if address.starts_with('/') { unix(address)? } else { tcp(address)? };
        let (outbox, inbox) = (Vec::with_capacity(BUFFER), Vec::new());
        Ok(Connection { socket, outbox, inbox, at: 0, deadline: Instant::now() + TIMEOUT })
    }

    fn send(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.outbox.len() {
            let rest = &self.outbox[sent..];
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the pointer and the length are those of `rest`, the descriptor is open.
            let done = unsafe { libc::send(self.socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), flags) };
            match usize::try_from(done) {
                Ok(done) => sent += done,
                Err(_) => self.wait(libc::POLLOUT)?,
            }
        }
        self.outbox.clear();
        Ok(())
    }

    /// Receives more.
    fn fill(&mut self) -> Result<()> {
        self.inbox.drain(..self.at);
        self.at = 0;
        let had = self.inbox.len();
        self.inbox.resize(had + BUFFER, 0);
        loop {
            let room = &mut self.inbox[had..];
            // SAFETY: as in `send`.
            let done = unsafe {
                libc::recv(self.socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
            };
            match usize::try_from(done) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(done) => {
                    self.inbox.truncate(had + done);
                    return Ok(());
                }
                Err(_) => self.wait(libc::POLLIN)?,
            }
        }
    }

    /// After a call that failed: waits until it may succeed.
    fn wait(&self, events: libc::c_short) -> Result<()> {
        let error = Error::last_os_error();
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
            return Err(error);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 };
        // SAFETY: one pollfd is there. Whatever it says, the caller tries again, until the deadline.
        unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as libc::c_int + 1) };
        Ok(())
    }

    fn get(
        &mut self,
        keys: &[String],
        wanted: &[usize],
        longest: usize,
        take: &mut impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.outbox.extend_from_slice(b"get");
        for &key in wanted {
            write!(self.outbox, " {}", keys[key])?;
        }
        self.outbox.extend_from_slice(b"\r\n");
        self.send()?;
        let mut values = 0;
        loop {
            let line = self.line()?;
            if line == "END" {
                return Ok(());
            }
            let mut words = line.split(' ');
            let (Some("VALUE"), Some(key), Some(_), Some(len)) =
                (words.next(), words.next(), words.next(), words.next().and_then(|len| len.parse::<usize>().ok()))
            else {
                // What a `set` was answered in spite of `noreply` (out of memory, too large) comes before the values. There may be much
                // of it, but not for ever.
                let is_late = line.starts_with("SERVER_ERROR") || line.starts_with("CLIENT_ERROR");
                if is_late && Instant::now() < self.deadline {
                    continue;
                }
                return Err(ErrorKind::InvalidData.into());
            };
            values += 1;
            let index = wanted.iter().find(|&&index| keys[index] == key).copied();
            let Some(index) = index.filter(|_| len <= longest && values <= wanted.len()) else {
                return Err(ErrorKind::InvalidData.into());
            };
            while self.inbox.len() - self.at < len + 2 {
                self.fill()?;
            }
            take(index, &self.inbox[self.at..self.at + len]);
            self.at += len + 2;
            // Values arrive: the server is well.
            self.deadline = Instant::now() + TIMEOUT;
        }
    }

    fn line(&mut self) -> Result<String> {
        loop {
            let rest = &self.inbox[self.at..];
            if let Some(len) = rest.iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(rest[..len].trim_ascii_end()).into_owned();
                self.at += len + 1;
                return Ok(line);
            }
            if rest.len() > LINE {
                return Err(ErrorKind::InvalidData.into());
            }
            self.fill()?;
        }
    }
}

fn tcp(address: &str) -> Result<OwnedFd> {
    let target = address.to_socket_addrs()?.next().ok_or(ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Connects without blocking: a server with a full queue counts as lost.
fn unix(path: &str) -> Result<OwnedFd> {
    // SAFETY: all zeroes is an address; the call takes no pointers.
    let (mut address, socket) = unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        (std::mem::zeroed::<libc::sockaddr_un>(), libc::socket(libc::AF_UNIX, kind, 0))
    };
    if socket < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    if path.len() >= address.sun_path.len() {
        return Err(ErrorKind::InvalidInput.into());
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, &from) in address.sun_path.iter_mut().zip(path.as_bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is one, with its size; the descriptor is open.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
        return Err(Error::last_os_error());
    }
    Ok(socket)
}
