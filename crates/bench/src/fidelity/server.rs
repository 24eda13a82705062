//! A bare TCP server over one file of a directory, and its client: a bed for measuring the simulator, not a product. Requests go
//! through a volume of Sluicegate's runtime, under the algorithm asked for.
//!
//! A request is its operation (one byte: 0 reads, 1 writes), its offset (8 bytes) and its length (4), all little endian, and
//! for writes the data. The answer is an `errno` (4 bytes, 0: done), and for reads, if done, the data. A connection has one
//! request under way at a time, as a process has.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use sluice_core::{Anticipation, AppId, EngineConfig, Op};
use sluice_runtime::{Volume, VolumeConfig};
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{FileRef, Layout, Storage};

use super::load::{Aligned, Target};
use super::model::{ANTICIPATION_NS, IN_FLIGHT, WORKERS};
use super::network::{address, enter};

const PORT: u16 = 4077;
const HEADER: usize = 13;
/// Largest request.
const REQUEST_MAX: u32 = 16 << 20;
/// What a disk transfers in a second, as a mount assumes.
const DISK_BYTES_PER_S: u64 = 100_000_000;
const READY: &str = "ready";

/// A server of `fidelity`, which starts it.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// Directory with the file
    #[arg(long)]
    dir: PathBuf,
    /// Its name
    #[arg(long)]
    file: String,
    /// Network namespace
    #[arg(long)]
    namespace: String,
    /// Address in it
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long)]
    policy: String,
    /// Past the page cache
    #[arg(long)]
    direct: bool,
}

/// Serves until the standard input ends.
///
/// # Errors
/// If it cannot begin.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<ExitCode> {
    // Whoever started it may be killed.
    set_parent_process_death_signal(Some(Signal::KILL)).context("binding to the parent's life")?;
    enter(&args.namespace)?;
    let storage = PosixStorage::open(&args.dir, PosixOptions { direct: args.direct })
        .with_context(|| args.dir.display().to_string())?;
    let storage = Storage::from(storage);
    let policy = crate::policies(std::slice::from_ref(&args.policy), |_| true)?.remove(0);
    let schedules = args.policy != "noop";
    let engine = EngineConfig {
        in_flight_max: if schedules { IN_FLIGHT } else { 0 },
        anticipation: schedules.then(|| Anticipation::for_device(ANTICIPATION_NS, DISK_BYTES_PER_S)),
        ..EngineConfig::default()
    };
    let config = VolumeConfig { engine, threads_max: WORKERS, ..VolumeConfig::new(policy) };
    let volume = Arc::new(Volume::start(storage.clone(), Arc::new(()), config)?);
    let tree = &storage.namespace;
    let node = tree.lookup(&tree.root(), OsStr::new(&args.file)).with_context(|| args.file.clone())?;
    let file = tree.open(&node, libc::O_RDWR).with_context(|| args.file.clone())?;
    let listener = TcpListener::bind((args.address, PORT)).with_context(|| args.address.to_string())?;
    accept(listener, &volume, &file);
    println!("{READY}");
    // Nothing is ever written there.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(ExitCode::SUCCESS)
}

/// Serves each connection on a thread of its own.
fn accept(listener: TcpListener, volume: &Arc<Volume<()>>, file: &FileRef) {
    let (volume, file) = (volume.clone(), file.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (volume, file) = (volume.clone(), file.clone());
            std::thread::spawn(move || {
                if let Err(error) = answer(stream, &volume, &file)
                    && error.kind() != io::ErrorKind::UnexpectedEof
                {
                    eprintln!("a connection of the bed: {error}");
                }
            });
        }
    });
}

/// Answers requests until the connection ends.
fn answer(mut stream: TcpStream, volume: &Volume<()>, file: &FileRef) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut memory = Aligned::new(0);
    loop {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let (op, offset, len) = parse(&header)?;
        memory.grow(len as usize);
        let bytes = memory.bytes(len as usize);
        let result = match op {
            Op::Read => volume.read_at(file, AppId(0), offset, bytes),
            Op::Write => {
                stream.read_exact(bytes)?;
                volume.write_at(file, AppId(0), offset, bytes)
            }
        };
        let code = match result {
            Ok(done) if done == len as usize => 0,
            // The file ends before.
            Ok(_) => libc::ENODATA,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        stream.write_all(&code.to_le_bytes())?;
        if code == 0 && op == Op::Read {
            stream.write_all(bytes)?;
        }
    }
}

fn header(op: Op, offset: u64, len: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = u8::from(op == Op::Write);
    header[1..9].copy_from_slice(&offset.to_le_bytes());
    header[9..].copy_from_slice(&len.to_le_bytes());
    header
}

fn parse(header: &[u8; HEADER]) -> io::Result<(Op, u64, u32)> {
    let [op, rest @ ..] = header;
    let (offset, len) = rest.split_at(8);
    let bad = |_| io::Error::from(io::ErrorKind::InvalidData);
    let (offset, len) =
        (u64::from_le_bytes(offset.try_into().map_err(bad)?), u32::from_le_bytes(len.try_into().map_err(bad)?));
    let op = match op {
        0 => Op::Read,
        1 => Op::Write,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    if len > REQUEST_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok((op, offset, len)) }
}

/// Server processes, which end with it.
pub(super) struct Servers {
    children: Vec<(Child, Option<ChildStdin>)>,
}

/// What a server serves: the directory and the machine's namespace.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) namespace: String,
}

impl Servers {
    /// Starts a server on each of the first machines, and waits until they are ready.
    ///
    /// # Errors
    /// If one cannot start, or `stop` was set.
    pub(super) fn start(
        places: &[Place],
        file: &str,
        policy: &str,
        direct: bool,
        stop: &AtomicBool,
    ) -> anyhow::Result<Servers> {
        let program = std::env::current_exe().context("this program's own path")?;
        let mut servers = Servers { children: Vec::new() };
        for (place, machine) in places.iter().zip(0..) {
            let mut command = Command::new(&program);
            command.arg("fidelity-server").arg("--dir").arg(&place.dir).args(["--file", file, "--policy", policy]);
            command.args(["--namespace", &place.namespace, "--address", &address(machine).to_string()]);
            if direct {
                command.arg("--direct");
            }
            // Out of the reach of the terminal's signals: it ends when its input does.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a server")?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            servers.children.push((child, input));
            let mut line = String::new();
            BufReader::new(output.context("a server's output")?).read_line(&mut line)?;
            if line.trim() != READY {
                bail!("server {machine} of the bed did not start; what it said is above");
            }
            if stop.load(Ordering::Relaxed) {
                bail!(sluice_cli::interrupt::Interrupted);
            }
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (child, input) in &mut self.children {
            drop(input.take());
            let _ = child.wait();
        }
    }
}

/// A process's connections.
pub(super) struct Connections {
    layout: Layout,
    streams: Vec<TcpStream>,
}

impl Connections {
    /// Connects to so many servers, from the namespace in which the calling thread is.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new(servers: u32, stripe: u64) -> anyhow::Result<Connections> {
        Connections::to((0..servers).map(|server| SocketAddr::from((address(server), PORT))), stripe)
    }

    fn to(addresses: impl Iterator<Item = SocketAddr>, stripe: u64) -> anyhow::Result<Connections> {
        let connect = |to: SocketAddr| -> anyhow::Result<TcpStream> {
            let stream = TcpStream::connect(to).with_context(|| to.to_string())?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let streams: Vec<TcpStream> = addresses.map(connect).collect::<anyhow::Result<_>>()?;
        Ok(Connections { layout: Layout::striped(u32::try_from(streams.len())?, stripe), streams })
    }
}

impl Target for Connections {
    /// All pieces are asked for before any answer is waited for.
    fn transfer(&mut self, op: Op, _: u32, offset: u64, memory: &mut [u8]) -> io::Result<()> {
        let pieces = || self.layout.split(offset, memory.len() as u64);
        let part = |piece: &sluice_storage::Piece| {
            let start = (piece.logical - offset) as usize;
            start..start + piece.len as usize
        };
        for piece in pieces() {
            let mut stream = &self.streams[piece.target as usize];
            stream.write_all(&header(op, piece.offset, piece.len as u32))?;
            if op == Op::Write {
                stream.write_all(&memory[part(&piece)])?;
            }
        }
        for piece in pieces().collect::<Vec<_>>() {
            let mut stream = &self.streams[piece.target as usize];
            let mut code = [0; 4];
            stream.read_exact(&mut code)?;
            match i32::from_le_bytes(code) {
                0 if op == Op::Read => stream.read_exact(&mut memory[part(&piece)])?,
                0 => {}
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        }
        Ok(())
    }
}

/// Name of the file of which each server has a part.
pub(super) fn file_name(servers: u32) -> &'static str {
    if servers == 1 { "shared" } else { "part" }
}

/// Bytes of a server's file.
pub(super) fn file_bytes(servers: u32) -> u64 {
    super::model::SHARED_BYTES / u64::from(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written_and_others_refused() {
        for (op, offset, len) in [(Op::Read, 0, 4096), (Op::Write, u64::MAX - 7, REQUEST_MAX)] {
            assert_eq!(parse(&header(op, offset, len)).unwrap(), (op, offset, len));
        }
        assert!(parse(&header(Op::Read, 0, REQUEST_MAX + 1)).is_err());
        assert!(parse(&[7; HEADER]).is_err());
    }

    /// What is written over TCP to four servers is read back, and lies striped in their files.
    #[test]
    fn striped_bytes_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = Vec::new();
        for server in 0..4 {
            let own = dir.path().join(server.to_string());
            std::fs::create_dir(&own).unwrap();
            std::fs::write(own.join("part"), vec![0; 64 << 10]).unwrap();
            let storage = Storage::from(PosixStorage::open(&own, PosixOptions::default()).unwrap());
            let policy = crate::policies(&["hbrr".to_owned()], |_| true).unwrap().remove(0);
            let volume = Arc::new(Volume::start(storage.clone(), Arc::new(()), VolumeConfig::new(policy)).unwrap());
            let tree = &storage.namespace;
            let file = tree.open(&tree.lookup(&tree.root(), OsStr::new("part")).unwrap(), libc::O_RDWR).unwrap();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            addresses.push(listener.local_addr().unwrap());
            accept(listener, &volume, &file);
        }
        let mut target = Connections::to(addresses.into_iter(), 4096).unwrap();
        let mut data: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        let expected = data.clone();
        target.transfer(Op::Write, 0, 1000, &mut data).unwrap();
        data.fill(0);
        target.transfer(Op::Read, 0, 1000, &mut data).unwrap();
        assert_eq!(data, expected);
        let second = std::fs::read(dir.path().join("1").join("part")).unwrap();
        assert_eq!(second[..4096], expected[4096 - 1000..8192 - 1000]);
        // Behind the end of the files.
        let error = target.transfer(Op::Read, 0, 1 << 20, &mut data[..10]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODATA));
    }
}
