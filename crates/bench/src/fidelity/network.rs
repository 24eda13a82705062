//! A network of the bench's own: each machine is a network namespace with one link to a switch, shaped in both directions by
//! the kernel's token bucket filter (`tc tbf`).
//!
//! Nothing of it is in the machine's own namespace, and nothing of it outlives [`Network`].

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sluice_cli::output;

use super::model::LINK_BURST;
use crate::bed::Runner;

/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";
/// What a link's queue holds.
const QUEUE: &str = "1mb";

pub(super) struct Network {
    runner: Runner,
    /// Common beginning of the namespaces' names.
    prefix: String,
    /// Namespaces that may be there.
    made: Vec<String>,
}

impl Network {
    /// Makes the switch and so many machines, with links of that many bits per second.
    ///
    /// # Errors
    /// What `ip` and `tc` say.
    pub(super) fn new(runner: &Runner, machines: u32, bits_per_s: u64) -> anyhow::Result<Network> {
        let prefix = format!("sluice-fidelity-{}", std::process::id());
        let mut network = Network { runner: runner.clone(), prefix, made: Vec::new() };
        let switch = network.make("switch")?;
        network.ip(&switch, "link add name br0 type bridge")?;
        network.ip(&switch, "link set br0 up")?;
        for machine in 0..machines {
            let name = network.make(&machine.to_string())?;
            network.ip(&switch, &format!("link add name port{machine} type veth peer name eth0 netns {name}"))?;
            network.ip(&switch, &format!("link set port{machine} master br0 up"))?;
            network.ip(&name, &format!("address add {}/16 dev eth0", address(machine)))?;
            network.ip(&name, "link set eth0 up")?;
            for (namespace, device) in [(&switch, format!("port{machine}")), (&name, "eth0".to_owned())] {
                let shape =
                    format!("qdisc add dev {device} root tbf rate {bits_per_s}bit burst {LINK_BURST} limit {QUEUE}");
                network.tool("tc", namespace, &shape)?;
            }
        }
        Ok(network)
    }

    fn make(&mut self, what: &str) -> anyhow::Result<String> {
        let name = format!("{}-{what}", self.prefix);
        self.made.push(name.clone());
        self.runner.finish(Command::new("ip").args(["netns", "add", &name]), false)?;
        Ok(name)
    }

    fn ip(&self, namespace: &str, words: &str) -> anyhow::Result<()> {
        self.tool("ip", namespace, words)
    }

    fn tool(&self, program: &str, namespace: &str, words: &str) -> anyhow::Result<()> {
        self.runner.finish(Command::new(program).args(["-n", namespace]).args(words.split(' ')), false)?;
        Ok(())
    }

    /// The namespace of a machine.
    pub(super) fn namespace(&self, machine: u32) -> String {
        format!("{}-{machine}", self.prefix)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.made {
            if Path::new(NAMES).join(name).exists()
                && let Err(error) = self.runner.finish(Command::new("ip").args(["netns", "delete", name]), false)
            {
                output::tell(format_args!("{error:#}\nthe namespace stays; try: ip netns delete {name}"));
            }
        }
    }
}

/// Address of a machine.
pub(super) fn address(machine: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits((10 << 24) + (77 << 16) + machine + 1)
}

/// Moves the calling thread, and what it starts from now on, into a namespace.
///
/// # Errors
/// If there is none of that name, or the system does not allow it.
pub(super) fn enter(namespace: &str) -> anyhow::Result<()> {
    let path = Path::new(NAMES).join(namespace);
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("network namespace {namespace}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    const BITS_PER_S: u64 = 80_000_000;
    const BYTES: usize = 1 << 20;

    /// Two machines reach each other at the links' rate, and nothing is left of them.
    #[test]
    fn machines_reach_each_other_at_the_rate_of_their_links() {
        let has = |program| Command::new(program).arg("-V").output().is_ok_and(|output| output.status.success());
        if !rustix::process::geteuid().is_root() || !has("ip") || !has("tc") {
            eprintln!("skipped: needs root, ip and tc");
            return;
        }
        let runner = Runner { stop: Arc::new(AtomicBool::new(false)) };
        let network = Network::new(&runner, 2, BITS_PER_S).unwrap();
        let names = [network.namespace(0), network.namespace(1)];
        let to = SocketAddr::from((address(1), 4078));
        let took = std::thread::scope(|scope| {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let name = &names[1];
            scope.spawn(move || {
                enter(name).unwrap();
                let listener = TcpListener::bind(to).unwrap();
                ready.send(()).unwrap();
                let mut bytes = Vec::new();
                let (mut stream, _) = listener.accept().unwrap();
                Read::by_ref(&mut stream).take(BYTES as u64).read_to_end(&mut bytes).unwrap();
                stream.write_all(&[u8::from(bytes.len() == BYTES)]).unwrap();
            });
            let name = &names[0];
            let sender = scope.spawn(move || {
                enter(name).unwrap();
                is_ready.recv().unwrap();
                let mut stream = TcpStream::connect(to).unwrap();
                let begin = Instant::now();
                stream.write_all(&vec![1; BYTES]).unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, [1]);
                begin.elapsed().as_secs_f64()
            });
            sender.join().unwrap()
        });
        // What fits into the bucket comes at once.
        let least = (BYTES as u64 - LINK_BURST) as f64 * 8.0 / BITS_PER_S as f64;
        assert!(took > 0.95 * least, "{took} s, {least} s at the rate");
        drop(network);
        assert!(names.iter().all(|name| !Path::new(NAMES).join(name).exists()));
    }
}
