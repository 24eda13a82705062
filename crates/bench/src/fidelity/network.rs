//! A network of the bench's own: each machine is a network namespace with one link to a switch, shaped in both directions by
//! the kernel's token bucket filter (`tc tbf`).
//!
//! Nothing of it is in the machine's own namespace, and nothing of it outlives [`Network`].

use std::fs::File;
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
    use std::os::fd::AsFd;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("network namespace {namespace}"))
}
