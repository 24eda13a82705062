//! Links of a stated rate: every machine in a network namespace of its own, behind a token bucket.
//!
//! ```text
//!     this machine        namespace sluice-NAME-switch        namespace sluice-NAME-server-0
//!     sl-NAME ──── veth ──── host ┐                 ┌ server-0 (tbf) ──── veth ──── eth0 (tbf)
//!                                 └─── bridge0 ─────┘
//! ```
//!
//! Each end of a machine's link sends at the stated rate (`tc-tbf(8)`), so that the link has it in both directions; this machine's
//! own has none. The bridge is in a namespace, too, where no firewall of this machine looks at what crosses it, and the end of a
//! namespace is the end of its links. What was made is recorded in the run directory before it is made, so that whoever is killed
//! in between leaves nothing that is not found again.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use sluice_notation::{parse_bytes, parse_duration, parse_rate, show_bytes};

/// Where `ip netns` keeps names of namespaces.
const NAMESPACES: &str = "/run/netns";
/// Addresses of machines, unless it is said.
const NETWORK: &str = "10.111.0.0/20";
/// Before the first machine: the network's own address, and this machine's.
const RESERVED: u32 = 2;
/// Of the token bucket, at least, unless it is said: what a sender hands over at once (GSO) is 64 KiB.
const BURST: u64 = 128 << 10;
/// The kernel has that many characters for the name of an interface.
const INTERFACE_MAX: usize = 15;

/// The links of machines, as `cluster.toml` says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinksConfig {
    /// Of each machine's link, in each direction, as in `1Gbit`: 1Mbit to 100Gbit.
    pub rate: String,
    /// How long a packet may wait for its turn before it is dropped, as in `50ms`: 1ms to 10s. The link adds no delay of its own.
    pub latency: Option<String>,
    /// Bytes that may go at once after a pause, as in `128K`: 4K to what 10 s of the rate are.
    pub burst: Option<String>,
    /// Addresses of the machines, as in `10.111.0.0/20`.
    pub network: Option<String>,
}

impl LinksConfig {
    /// What it means for machines with these names.
    pub(crate) fn links(&self, cluster: &str, machines: &[String]) -> anyhow::Result<Links> {
        let shape = self.shape()?;
        let network = Network::parse(self.network.as_deref().unwrap_or(NETWORK))?;
        let most = network.size() - RESERVED - 1;
        ensure!(
            machines.len() <= most as usize,
            "links.network: {network} has addresses for {most} machines, and there are {}",
            machines.len()
        );
        let machines = (0..).zip(machines).map(|(n, name)| (name.clone(), network.machine(n))).collect();
        Ok(Links { cluster: cluster.to_owned(), shape, network, machines })
    }

    fn shape(&self) -> anyhow::Result<Shape> {
        let rate =
            parse_rate(&self.rate).with_context(|| format!("links.rate: {:?} is no rate, as 1Gbit", self.rate))?;
        ensure!((125_000..=12_500_000_000).contains(&rate), "links.rate: {}; from 1Mbit to 100Gbit", self.rate);
        let latency = self.latency.as_deref().unwrap_or("50ms");
        let waits =
            parse_duration(latency).with_context(|| format!("links.latency: {latency:?} is no time, as 50ms"))?;
        ensure!(
            (Duration::from_millis(1)..=Duration::from_secs(10)).contains(&waits),
            "links.latency: {latency}; from 1ms to 10s"
        );
        let burst = match &self.burst {
            Some(text) => {
                let bytes = parse_bytes(text).with_context(|| format!("links.burst: {text:?} is no size, as 128K"))?;
                ensure!((4 << 10..=rate * 10).contains(&bytes), "links.burst: {text}; from 4K to 10 s of the rate");
                bytes
            }
            None => BURST.max(rate / 1_000),
        };
        // The kernel counts the bytes that wait in 32 bits.
        ensure!(
            waits.as_secs_f64() * rate as f64 + (burst as f64) < f64::from(u32::MAX),
            "links: what may wait at {} for {latency}, and a burst, have to be less than 4G",
            self.rate
        );
        Ok(Shape { rate, latency: waits, burst })
    }
}

/// A token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// Bytes a second.
    rate: u64,
    latency: Duration,
    /// Bytes.
    burst: u64,
}

impl Shape {
    /// A line for `tc -batch`.
    fn line(&self, device: &str) -> String {
        format!(
            "qdisc replace dev {device} root tbf rate {}bit burst {}b latency {}us\n",
            self.rate * 8,
            self.burst,
            self.latency.as_micros()
        )
    }
}

/// IPv4 addresses with the same beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Network {
    first: u32,
    prefix: u32,
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.prefix)
    }
}

impl Network {
    fn parse(text: &str) -> anyhow::Result<Network> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            let (address, prefix) = (address.parse::<Ipv4Addr>().ok()?, prefix.parse::<u32>().ok()?);
            let network = Network { first: address.into(), prefix };
            (address.is_private() && (8..=29).contains(&prefix) && network.first & !network.mask() == 0)
                .then_some(network)
        };
        parse().with_context(|| {
            format!("links.network: {text:?}; private addresses with a prefix of 8 to 29 bits, as in {NETWORK}")
        })
    }

    fn mask(self) -> u32 {
        u32::MAX << (32 - self.prefix)
    }

    fn size(self) -> u32 {
        !self.mask() + 1
    }

    /// What all its addresses look like, as GlusterFS matches them: by whole numbers.
    pub(crate) fn pattern(self) -> String {
        let [a, b, c, _] = Ipv4Addr::from(self.first).octets();
        match self.prefix {
            24.. => format!("{a}.{b}.{c}.*"),
            16.. => format!("{a}.{b}.*"),
            _ => format!("{a}.*"),
        }
    }

    /// This machine's address.
    fn own(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }

    fn machine(self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.first + RESERVED + n)
    }

    /// The interface by which this machine reaches some of these addresses already, of the kernel's table of routes.
    fn route(self, table: &str) -> Option<&str> {
        table.lines().skip(1).find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // In the byte order of the network, printed as if it were this machine's.
            let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok().map(u32::from_be);
            let (first, mask) = (number(1)?, number(7)?);
            let both = mask & self.mask();
            (mask != 0 && first & both == self.first & both).then(|| words[0])
        })
    }
}

/// The links of a cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct Links {
    cluster: String,
    shape: Shape,
    network: Network,
    machines: Vec<(String, Ipv4Addr)>,
}

/// What is known of links.
#[derive(Clone, Debug, Serialize)]
pub struct LinksStatus {
    /// Bytes a second, in each direction.
    pub rate: u64,
    /// Bytes that may go at once.
    pub burst: u64,
    /// Of the machines.
    pub network: String,
    /// By which this machine takes part.
    pub interface: String,
    /// All that there should be.
    pub namespaces: Vec<String>,
    /// Those that are not there.
    pub missing: Vec<String>,
}

impl LinksStatus {
    /// `links of 1000 Mbit/s (tbf), 10.111.0.0/20 behind sl-a`, and what is missing.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "links of {} Mbit/s, bursts of {} (tbf), {} behind {}",
            self.rate as f64 / 125e3,
            show_bytes(self.burst),
            self.network,
            self.interface
        );
        match self.missing.len() {
            0 => {}
            some if some == self.namespaces.len() => text.push_str("; not there"),
            _ => text.push_str(&format!("; not there: {}", self.missing.join(", "))),
        }
        text
    }
}

/// What was made, in the run directory.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    interface: String,
    network: String,
    namespaces: Vec<String>,
    /// All of it is there; else it was being made or removed.
    complete: bool,
    /// Of this start of the system, `/proc/sys/kernel/random/boot_id`: nothing is left of what was made before.
    #[serde(default)]
    boot: String,
}

/// Which start of the system this is.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

impl Record {
    fn path(directory: &Path) -> PathBuf {
        directory.join("links")
    }

    fn read(directory: &Path) -> anyhow::Result<Option<Record>> {
        let path = Record::path(directory);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let record: Record = toml::from_str(&text).with_context(|| {
                    format!(
                        "{} is damaged: remove the namespaces of the cluster (ip netns list; ip netns delete NAME), then this file",
                        path.display()
                    )
                })?;
                // Namespaces of that name may be another cluster's by now.
                Ok(Some(record).filter(|record| record.boot.is_empty() || record.boot == boot()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let path = Record::path(directory);
        let new = path.with_extension("new");
        let text = toml::to_string(self).context("what is recorded of links")?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).with_context(|| path.display().to_string())
    }
}

impl Links {
    /// Of a machine.
    pub(crate) fn address(&self, n: u32) -> Ipv4Addr {
        self.network.machine(n)
    }

    pub(crate) fn network(&self) -> Network {
        self.network
    }

    /// The namespace of a machine.
    pub(crate) fn namespace(&self, machine: &str) -> String {
        format!("sluice-{}-{machine}", self.cluster)
    }

    fn switch(&self) -> String {
        self.namespace("switch")
    }

    /// This machine's interface: with the cluster's name, or with its beginning and a number of the whole.
    fn interface(&self) -> String {
        let name = format!("sl-{}", self.cluster);
        if name.len() <= INTERFACE_MAX {
            return name;
        }
        // 20 bits have to do.
        let hash = sluice_storage::fnv1a(self.cluster.as_bytes());
        format!("{}-{:05x}", &name[..INTERFACE_MAX - 6], hash >> 44)
    }

    fn record(&self, complete: bool) -> Record {
        let machines = self.machines.iter().map(|(name, _)| self.namespace(name));
        Record {
            interface: self.interface(),
            network: self.network.to_string(),
            namespaces: [self.switch()].into_iter().chain(machines).collect(),
            complete,
            boot: boot(),
        }
    }

    /// What is there of them.
    #[must_use]
    pub fn status(&self) -> LinksStatus {
        let Record { interface, network, namespaces, .. } = self.record(true);
        let missing = namespaces.iter().filter(|name| !exists(name)).cloned().collect();
        LinksStatus { rate: self.shape.rate, burst: self.shape.burst, network, interface, namespaces, missing }
    }

    /// Whether they could be made here, or are there.
    ///
    /// # Errors
    /// If not, with the reason.
    pub fn check(&self, directory: &Path) -> anyhow::Result<String> {
        for program in ["ip", "tc"] {
            run(Command::new(program).arg("-Version"), "")?;
        }
        let status = self.status();
        if Record::read(directory)?.is_none() {
            self.is_free()?;
        }
        Ok(status.text())
    }

    /// Nobody else has what this cluster would have.
    fn is_free(&self) -> anyhow::Result<()> {
        if let Some(name) = self.record(true).namespaces.iter().find(|name| exists(name)) {
            bail!(
                "the namespace {name} is there, and not of what runs from this directory: end the cluster of that name, or remove \
                 it (ip netns delete {name})"
            );
        }
        let table = fs::read_to_string("/proc/net/route").context("/proc/net/route")?;
        if let Some(interface) = self.network.route(&table) {
            bail!("links.network: {} is reached by {interface} already; choose another one", self.network);
        }
        Ok(())
    }

    /// Makes what is missing, and sets rates. `is_used`: machines run, so that nothing may be made anew.
    pub(crate) fn up(&self, directory: &Path, is_used: bool) -> anyhow::Result<()> {
        let wanted = self.record(true);
        let made = Record::read(directory)?;
        let is_made = made.as_ref() == Some(&wanted)
            && wanted.namespaces.iter().all(|name| has_link(name))
            && Path::new("/sys/class/net").join(&wanted.interface).exists();
        if !is_made {
            ensure!(
                !is_used,
                "links are missing, or others than before, and machines run: sluice cluster down, then up"
            );
            down(directory)?;
            self.is_free()?;
            self.record(false).write(directory)?;
            self.make()?;
            wanted.write(directory)?;
        }
        self.set_rates()
    }

    fn make(&self) -> anyhow::Result<()> {
        let record = self.record(true);
        for name in &record.namespaces {
            run(Command::new("ip").args(["netns", "add", name]), "")?;
        }
        let switch = self.switch();
        // Nothing that crosses it changes its tables, and ports forward at once.
        let mut ports =
            "link add name bridge0 type bridge stp_state 0\nlink set dev lo up\nlink set dev bridge0 up\n".to_owned();
        let outside = std::process::id();
        let names = self.machines.iter().map(|(name, _)| (name.as_str(), "eth0", self.namespace(name)));
        for (name, peer, place) in names.chain([("host", record.interface.as_str(), outside.to_string())]) {
            ports.push_str(&format!(
                "link add name {name} type veth peer name {peer} netns {place}\n\
                 link set dev {name} master bridge0\nlink set dev {name} up\n"
            ));
        }
        ip(&switch, &ports)?;
        let prefix = self.network.prefix;
        for (name, address) in &self.machines {
            let lines = format!("link set dev lo up\naddress add {address}/{prefix} dev eth0\nlink set dev eth0 up\n");
            ip(&self.namespace(name), &lines)?;
        }
        let interface = &record.interface;
        let lines = format!(
            "link set dev {interface} alias \"cluster {}\"\naddress add {}/{prefix} dev {interface}\nlink set dev {interface} up\n",
            self.cluster,
            self.network.own()
        );
        run(Command::new("ip").args(["-batch", "-"]), &lines)
    }

    fn set_rates(&self) -> anyhow::Result<()> {
        let ports: String = self.machines.iter().map(|(name, _)| self.shape.line(name)).collect();
        let ends = self.machines.iter().map(|(name, _)| (self.namespace(name), self.shape.line("eth0")));
        for (namespace, lines) in [(self.switch(), ports)].into_iter().chain(ends) {
            run(Command::new("tc").args(["-n", &namespace, "-batch", "-"]), &lines)?;
        }
        Ok(())
    }
}

/// Removes what is recorded in a run directory, whatever is left of it; nothing, if nothing is.
pub(crate) fn down(directory: &Path) -> anyhow::Result<()> {
    let Some(mut record) = Record::read(directory)? else { return Ok(()) };
    record.complete = false;
    record.write(directory)?;
    // With a namespace its links end, but somewhat later.
    if Path::new("/sys/class/net").join(&record.interface).exists() {
        run(Command::new("ip").args(["link", "delete", "dev", &record.interface]), "")?;
    }
    for name in record.namespaces.iter().filter(|name| Path::new(NAMESPACES).join(name).exists()) {
        run(Command::new("ip").args(["netns", "delete", name]), "")?;
    }
    let path = Record::path(directory);
    fs::remove_file(&path).with_context(|| path.display().to_string())
}

/// Whether a run directory says that there are some.
pub(crate) fn are_recorded(directory: &Path) -> bool {
    !matches!(Record::read(directory), Ok(None))
}

/// Does something in a network namespace: processes that are started there stay there, with the files and mounts of this one.
///
/// # Errors
/// If there is no such namespace, or it cannot be entered.
pub(crate) fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let path = Path::new(NAMESPACES).join(namespace);
    let file = fs::File::open(&path).with_context(|| path.display().to_string())?;
    // A thread of its own, which nobody uses afterwards.
    let enter = || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("entering the namespace {namespace}"))?;
        Ok(work())
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Whether a name stands for a namespace: a file that nothing is mounted on does not.
fn exists(namespace: &str) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let names = Path::new(NAMESPACES);
    device(&names.join(namespace)).is_some_and(|own| Some(own) != device(names))
}

/// Whether it is there with more than its loopback.
fn has_link(namespace: &str) -> bool {
    let devices = inside(namespace, || fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default());
    devices.is_ok_and(|text| text.contains("eth0:") || text.contains("bridge0:"))
}

/// Carries lines out in a namespace.
fn ip(namespace: &str, lines: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(["-n", namespace, "-batch", "-"]), lines)
}

fn run(command: &mut Command, input: &str) -> anyhow::Result<()> {
    let words: Vec<String> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words = words.join(" ");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{words}: is iproute2 installed?"))?;
    let written = child.stdin.take().map(|mut to| to.write_all(input.as_bytes()));
    let output = child.wait_with_output().with_context(|| words.clone())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // `Command failed -:3` tells the line.
        let line = said.rsplit_once("-:").and_then(|(_, number)| number.trim().parse::<usize>().ok());
        let line = line.and_then(|number| input.lines().nth(number.checked_sub(1)?)).unwrap_or_default();
        bail!("{words}: {line}: {}", said.lines().next().unwrap_or("it failed and says nothing").trim());
    }
    written.transpose().with_context(|| words)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rate: &str) -> LinksConfig {
        LinksConfig { rate: rate.to_owned(), latency: None, burst: None, network: None }
    }

    #[test]
    fn every_machine_has_an_address_and_a_namespace_with_the_name_of_the_cluster() {
        let links = config("1Gbit").links("a", &["server-0".to_owned(), "client-0".to_owned()]).unwrap();
        assert_eq!(links.record(true).namespaces, ["sluice-a-switch", "sluice-a-server-0", "sluice-a-client-0"]);
        assert_eq!((links.interface().as_str(), links.address(1)), ("sl-a", Ipv4Addr::new(10, 111, 0, 3)));
        assert_eq!(
            links.shape.line("eth0"),
            "qdisc replace dev eth0 root tbf rate 1000000000bit burst 131072b latency 50000us\n"
        );
        let long = |name| config("1Gbit").links(name, &[]).unwrap().interface();
        let (one, other) = (long("a-cluster-of-its-own"), long("a-cluster-of-others"));
        assert!(one.len() == INTERFACE_MAX && one.starts_with("sl-a-clus-") && one != other, "{one} {other}");
    }

    #[test]
    fn a_network_that_is_in_use_is_seen_in_the_table_of_routes() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
                     eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\n\
                     tun7\t00006F0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\n";
        let network = |text| Network::parse(text).unwrap();
        assert_eq!(network("10.111.0.0/20").route(table), Some("tun7"));
        assert_eq!(network("10.0.0.0/8").route(table), Some("tun7"));
        assert_eq!(network("10.112.0.0/20").route(table), None);
    }

    #[test]
    fn a_record_comes_back_and_a_damaged_one_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), None);
        let record = config("1Gbit").links("a", &["server-0".to_owned()]).unwrap().record(false);
        record.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), Some(record));
        fs::write(Record::path(dir.path()), "interface = 3").unwrap();
        assert!(format!("{:#}", Record::read(dir.path()).unwrap_err()).contains("is damaged"));
    }
}
