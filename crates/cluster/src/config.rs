//! `cluster.toml`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sluice_core::PolicyConfig;
use sluice_notation::{parse_bytes, parse_duration};

use crate::links::LinksConfig;

/// Processes of a role on one machine: more are a mistake.
const COUNT_MAX: u32 = 1024;

/// What a cluster is to be.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Letters, digits, `-` and `_`.
    pub name: String,
    /// Where graphs, logs, numbers of processes and, unless told otherwise, the data are. Default:
    /// `/var/lib/sluice/clusters/NAME`.
    pub directory: Option<PathBuf>,
    /// Where the processes listen.
    #[serde(default = "loopback")]
    pub address: IpAddr,
    /// The first of as many ports as there are data servers and I/O nodes.
    #[serde(default = "first_port")]
    pub port: u16,
    /// The first of as many ports for metrics, of each data server, each I/O node, and the coordinator; none: nothing is told.
    pub metrics: Option<u16>,
    /// The translator. Default: where `make install-gluster` puts it.
    pub translator: Option<PathBuf>,
    /// Each machine has a link of a stated rate; none: they talk over loopback.
    pub links: Option<LinksConfig>,
    /// A coordinator for data servers and I/O nodes; none: there is none.
    pub coordinator: Option<Coordination>,
    /// The data servers.
    pub servers: Servers,
    /// The I/O nodes.
    #[serde(default)]
    pub nodes: Nodes,
    /// The mounts.
    #[serde(default)]
    pub clients: Clients,
}

fn loopback() -> IpAddr {
    Ipv4Addr::LOCALHOST.into()
}

fn first_port() -> u16 {
    24100
}

fn one() -> u32 {
    1
}

/// The coordinator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coordination {
    /// Where its machine is, if not here.
    pub host: Option<String>,
    /// The file with the secret that all have: needed where it can be reached from other machines.
    pub token_file: Option<PathBuf>,
    /// Each I/O node has the window that is best for its own load.
    #[serde(default)]
    pub coexisting: bool,
    /// Which bandits find the best window. Default: as `sluice coordinate` has it.
    pub bandit: Option<Bandit>,
    /// A file (CSV) that it adds to what I/O nodes recognise patterns by. Default: none.
    pub record: Option<PathBuf>,
    /// What it does for its nodes.
    #[serde(default = "council")]
    pub roles: Vec<CoordinatorRole>,
    /// How the orchestrator decides. Default: as `sluice coordinate` does.
    pub orchestrate: Option<Orchestrate>,
    /// Time that the orchestrator divides among programs, as in `500ms`. Default: as `sluice coordinate` has it.
    pub window: Option<String>,
}

fn council() -> Vec<CoordinatorRole> {
    vec![CoordinatorRole::Council]
}

/// What a coordinator does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoordinatorRole {
    /// Which time window I/O nodes use.
    Council,
    /// Which programs data servers serve one at a time.
    Orchestrator,
}

impl CoordinatorRole {
    /// As `sluice coordinate --role` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CoordinatorRole::Council => "council",
            CoordinatorRole::Orchestrator => "orchestrator",
        }
    }
}

/// Which bandits a council has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bandit {
    /// Those that stop trying what can gain nothing.
    Confidence,
    /// The paper's.
    EpsilonGreedy,
}

impl Bandit {
    /// As `sluice coordinate --bandit` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bandit::Confidence => "confidence",
            Bandit::EpsilonGreedy => "epsilon-greedy",
        }
    }
}

/// How an orchestrator decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Orchestrate {
    /// By the paper's conditions, and what brings nothing is given up.
    Tried,
    /// By the conditions alone.
    Paper,
    /// Every program has the same.
    Even,
}

impl Orchestrate {
    /// As `sluice coordinate --orchestrate` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Orchestrate::Tried => "tried",
            Orchestrate::Paper => "paper",
            Orchestrate::Even => "even",
        }
    }
}

/// The data servers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Servers {
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// Directories that hold the data, one for each. Default: below the cluster's directory.
    #[serde(default)]
    pub bricks: Vec<PathBuf>,
    /// Where the machines are, if not on this one: for `sluice cluster write`.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Data are on emulated devices.
    pub emulate: Option<Emulation>,
    /// How their requests are scheduled.
    #[serde(flatten)]
    pub scheduling: Scheduling,
}

/// A device under a data server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulation {
    /// As `sluice disk create --model` takes it.
    pub model: String,
    /// Its size, as in `20G`.
    pub size: String,
    /// The kernel's I/O scheduler on it. Default: `none`.
    pub scheduler: Option<String>,
    /// A directory on an SSD, where each data server's disk has a file: as `sluice disk create --tier` takes it. Default: no tier.
    pub tier: Option<PathBuf>,
    /// Bytes of each such file, as in `8G`. Default: as `sluice disk create` has it.
    pub tier_size: Option<String>,
    /// Settings of the tiers, as in `rule=always`.
    #[serde(default)]
    pub tier_set: Vec<String>,
}

/// The I/O nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// How many; 0: clients ask the data servers themselves.
    #[serde(default)]
    pub count: u32,
    /// Where the machines are, if not on this one.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Where files are.
    #[serde(default)]
    pub distribution: Distribution,
    /// With `shard`: bytes of a piece. Default: 4M.
    pub shard_size: Option<String>,
    /// How their requests are scheduled.
    #[serde(flatten)]
    pub scheduling: Scheduling,
}

/// Which translators of GlusterFS put files on data servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// A file is on one data server.
    Distribute,
    /// Pieces of a file are on all of them.
    #[default]
    Shard,
    /// Every file is on all of them.
    Replicate,
    /// Files are coded over all of them; one of three or more may be lost.
    Disperse,
}

/// How requests are scheduled by a translator `sluice`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Scheduling {
    /// The algorithm; none: there is no translator `sluice`.
    pub policy: Option<String>,
    /// Its parameters, as in `window=1ms`.
    #[serde(default)]
    pub parameters: String,
    /// Further options of the translator.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// The mounts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// How many; they take turns in choosing an I/O node.
    #[serde(default)]
    pub count: u32,
    /// Mountpoints, one for each. Default: `client-N` below the cluster's directory.
    #[serde(default)]
    pub mounts: Vec<PathBuf>,
    /// Seconds for which the kernel may keep what it knows of files; what other clients change is seen later by so much. Default: 1.
    pub attribute_timeout: Option<f64>,
    /// What the translators behind them are told of whose requests they are, where programs do not say so themselves; `{machine}` is the
    /// client's name. Default: nothing.
    pub job: Option<String>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or something in it cannot be: with the reason.
    pub fn read(path: &Path) -> anyhow::Result<Config> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Config::parse(&text).with_context(|| format!("{}", path.display()))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// If something in it cannot be.
    pub fn parse(text: &str) -> anyhow::Result<Config> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        ensure!(
            !self.name.is_empty() && self.name.len() <= 40 && self.name.chars().all(is_name),
            "name: {:?} is none; up to 40 letters, digits, - and _",
            self.name
        );
        // Disks are NAME-server-N, and theirs have up to 32 letters.
        let most = 32 - "-server-".len() - self.servers.count.saturating_sub(1).to_string().len();
        ensure!(
            self.servers.emulate.is_none()
                || (self.name.len() <= most && self.name.starts_with(|c: char| c.is_ascii_alphanumeric())),
            "name: {:?} cannot be part of the names of emulated disks: up to {most} of these, and first a letter or digit",
            self.name
        );
        for (what, count, least) in
            [("servers", self.servers.count, 1), ("nodes", self.nodes.count, 0), ("clients", self.clients.count, 0)]
        {
            ensure!((least..=COUNT_MAX).contains(&count), "{what}.count: {count}; there may be {least} to {COUNT_MAX}");
        }
        let ports = self.servers.count + self.nodes.count + u32::from(self.coordinator.is_some());
        ensure!(
            u32::from(self.port) + ports <= 65_536 && self.port > 0,
            "port: {} and the {} that follow are not all ports",
            self.port,
            ports - 1
        );
        if let Some(metrics) = self.metrics.map(u32::from) {
            let own = u32::from(self.port)..u32::from(self.port) + ports;
            ensure!(
                metrics > 0 && metrics + ports <= 65_536 && (metrics + ports <= own.start || metrics >= own.end),
                "metrics: {metrics} and the {} that follow are not all ports, or those from `port` on",
                ports - 1
            );
        }
        if let Some(coordinator) = &self.coordinator {
            self.check_reach(coordinator)?;
            ensure!(
                self.address.is_loopback() || coordinator.token_file.is_some(),
                "coordinator.token_file: {} can be reached from other machines, so that a secret is needed",
                self.address
            );
            ensure!(
                !coordinator.roles.is_empty()
                    && (1..coordinator.roles.len()).all(|at| !coordinator.roles[..at].contains(&coordinator.roles[at])),
                "coordinator.roles: council, orchestrator or both, each once"
            );
            let orchestrates = coordinator.roles.contains(&CoordinatorRole::Orchestrator);
            ensure!(
                orchestrates || (coordinator.orchestrate.is_none() && coordinator.window.is_none()),
                "coordinator.orchestrate, window: they are the orchestrator's, and coordinator.roles has none"
            );
            ensure!(
                coordinator.roles.contains(&CoordinatorRole::Council)
                    || (coordinator.bandit.is_none() && !coordinator.coexisting),
                "coordinator.bandit, coexisting: they are the council's, and coordinator.roles has none"
            );
            if let Some(window) = &coordinator.window {
                let length =
                    parse_duration(window).with_context(|| format!("coordinator.window: {window:?} is no time"))?;
                ensure!(
                    (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&length),
                    "coordinator.window: {window}; from 100ms to 60s"
                );
            }
        }
        for (what, have, count) in [
            ("servers.bricks", self.servers.bricks.len(), self.servers.count),
            ("servers.hosts", self.servers.hosts.len(), self.servers.count),
            ("nodes.hosts", self.nodes.hosts.len(), self.nodes.count),
            ("clients.mounts", self.clients.mounts.len(), self.clients.count),
        ] {
            ensure!(have == 0 || have == count as usize, "{what}: {have} of them, and count is {count}");
        }
        for (what, paths) in [("servers.bricks", &self.servers.bricks), ("clients.mounts", &self.clients.mounts)] {
            if let Some((_, path)) = paths.iter().enumerate().find(|(at, path)| paths[..*at].contains(path)) {
                bail!("{what}: {path:?} is there twice");
            }
        }
        if let Some(emulate) = &self.servers.emulate {
            let (tier, size) = (&emulate.tier, &emulate.tier_size);
            ensure!(
                tier.is_some() || (size.is_none() && emulate.tier_set.is_empty()),
                "servers.emulate.tier: none, and tier_size or tier_set depend on it"
            );
            ensure!(
                tier.as_ref().is_none_or(|tier| tier.is_absolute()),
                "servers.emulate.tier: an absolute path is needed"
            );
            ensure!(
                size.as_ref().is_none_or(|size| parse_bytes(size).is_some()),
                "servers.emulate.tier_size: {size:?} is no size; as in \"8G\""
            );
        }
        if let Some(job) = &self.clients.job {
            let is_plain = |c: char| is_name(c) || ".:{}".contains(c);
            ensure!(
                !job.is_empty() && job.len() <= 255 && job.chars().all(is_plain),
                "clients.job: {job:?}; letters, digits and - _ . : with {{machine}} for the client's name"
            );
        }
        let timeout = self.clients.attribute_timeout.unwrap_or(1.0);
        ensure!((0.0..=86_400.0).contains(&timeout), "clients.attribute_timeout: {timeout}; from 0 to 86400 seconds");
        let paths = self.directory.iter().chain(&self.servers.bricks).chain(&self.clients.mounts);
        let its =
            self.coordinator.iter().flat_map(|coordinator| coordinator.token_file.iter().chain(&coordinator.record));
        for path in paths.chain(&self.translator).chain(its) {
            ensure!(
                is_plain(path),
                "{}: paths are absolute, without spaces, quotes and any of # \\ ` $ % ;",
                path.display()
            );
        }
        let its = self.coordinator.iter().filter_map(|coordinator| coordinator.host.as_ref());
        if let Some(host) =
            self.servers.hosts.iter().chain(&self.nodes.hosts).chain(its.clone()).find(|host| !is_plain_host(host))
        {
            bail!("{host:?} is no host");
        }
        self.servers.scheduling.check().context("servers")?;
        self.nodes.scheduling.check().context("nodes")?;
        if let Some(size) = &self.nodes.shard_size {
            let bytes = parse_bytes(size).with_context(|| format!("nodes.shard_size: {size:?} is no size"))?;
            ensure!((4 << 20..=4 << 40).contains(&bytes), "nodes.shard_size: {size}; from 4M to 4T");
        }
        if let Some(links) = &self.links {
            ensure!(
                self.address == loopback(),
                "address: with links each machine has one of its own, in links.network"
            );
            let away = [&self.servers.hosts, &self.nodes.hosts].into_iter().flatten().chain(its);
            ensure!(away.count() == 0, "links: they are of machines that run here, and there are hosts");
            links.links(&self.name, &self.machines())?;
        }
        let least = match self.nodes.distribution {
            Distribution::Disperse => 3,
            Distribution::Replicate => 2,
            Distribution::Distribute | Distribution::Shard => 1,
        };
        ensure!(
            self.servers.count >= least,
            "nodes.distribution: it needs {least} data servers, and servers.count is {}",
            self.servers.count
        );
        Ok(())
    }

    /// Machines elsewhere must reach the coordinator where it listens.
    fn check_reach(&self, coordinator: &Coordination) -> anyhow::Result<()> {
        let is_spread = !self.servers.hosts.is_empty() || !self.nodes.hosts.is_empty();
        if self.links.is_some() || (!is_spread && coordinator.host.is_none()) {
            return Ok(());
        }
        ensure!(
            !self.address.is_loopback(),
            "address: {}, where no other machine reaches the coordinator; as in \"0.0.0.0\" with coordinator.host, and \
             coordinator.token_file",
            self.address
        );
        // It is what the others are told.
        ensure!(
            coordinator.host.is_some() || !self.address.is_unspecified(),
            "coordinator.host: none, and {} is no address by which other machines reach the coordinator",
            self.address
        );
        Ok(())
    }

    /// Names of all machines: data servers, I/O nodes, the coordinator, clients. Ports and addresses go by their places here.
    pub(crate) fn machines(&self) -> Vec<String> {
        let several = |what: &'static str, count| (0..count).map(move |n| format!("{what}-{n}"));
        let coordinator = self.coordinator.iter().map(|_| "coordinator".to_owned());
        let listening =
            several("server", self.servers.count).chain(several("node", self.nodes.count)).chain(coordinator);
        listening.chain(several("client", self.clients.count)).collect()
    }

    /// Whether anybody schedules, or says of whose requests they are.
    #[must_use]
    pub fn needs_translator(&self) -> bool {
        let schedules = self.servers.scheduling.policy.is_some() || self.nodes.scheduling.policy.is_some();
        schedules || self.clients.job.is_some()
    }

    /// Where everything of the cluster is.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| Path::new("/var/lib/sluice/clusters").join(&self.name))
    }
}

/// In a graph nothing is quoted.
fn is_plain(path: &Path) -> bool {
    // GlusterFS carries out what is in backticks; systemd replaces % and $.
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"'#\\`$%;".contains(c);
    path.is_absolute() && path.to_str().is_some_and(|text| text.chars().all(plain))
}

fn is_plain_host(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c))
}

impl Scheduling {
    fn check(&self) -> anyhow::Result<()> {
        if let Some(name) = &self.policy {
            let text = format!("{name} {}", self.parameters);
            let mut policy = PolicyConfig::parse(name).map_err(anyhow::Error::msg).context("policy")?;
            for word in text.split_whitespace().skip(1) {
                let (key, value) = word
                    .split_once('=')
                    .with_context(|| format!("parameters: {word:?} is not of the form key=value"))?;
                policy = policy.with(key, value).map_err(anyhow::Error::msg).context("parameters")?;
            }
        } else {
            ensure!(self.parameters.is_empty() && self.options.is_empty(), "policy: none, and others depend on it");
        }
        for (key, value) in &self.options {
            let bad = |c: char| c.is_control() || "\"#\\`".contains(c);
            let plain = |text: &str| !text.contains(bad) && !text.is_empty();
            ensure!(
                plain(key) && plain(value) && !key.contains(' '),
                "options: {key:?} = {value:?} cannot be in a graph"
            );
            ensure!(
                !["policy", "policy-parameters", "scheduler"].contains(&key.as_str()),
                "options: {key} has a place of its own"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "name = 'a'\n[servers]\ncount = 2\n";

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = Config::parse(SMALL).unwrap();
        assert_eq!((config.port, config.nodes.count, config.servers.count), (24100, 0, 2));
        assert_eq!(config.directory(), Path::new("/var/lib/sluice/clusters/a"));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_place() {
        for (text, why) in [
            ("name = 'a b'\n[servers]", "name"),
            ("name = 'a'\n[servers]\ncount = 0", "servers.count"),
            ("name = 'a'\nport = 65535\n[servers]\ncount = 2", "port"),
            ("name = 'a'\n[servers]\ncount = 2\nbricks = ['/a']", "servers.bricks"),
            ("name = 'a'\n[servers]\nbricks = ['a b']", "absolute"),
            ("name = 'a'\n[servers]\ncount = 3\nbricks = ['/a', '/b', '/a']", "servers.bricks: \"/a\" is there twice"),
            ("name = 'a'\n[servers]\n[clients]\ncount = 2\nmounts = ['/m', '/m']", "clients.mounts: \"/m\""),
            ("name = 'a'\n[servers]\npolicy = 'best'", "policy"),
            ("name = 'a'\n[servers]\npolicy = 'hbrr'\nparameters = 'x=1'", "parameters"),
            ("name = 'a'\n[servers]\nparameters = 'x=1'", "policy: none"),
            ("name = 'a'\n[servers]\npolicy = 'hbrr'\noptions = { in-flight = \"1\\n2\" }", "options"),
            ("name = 'a'\n[servers]\n[nodes]\ncount = 1\ndistribution = 'disperse'", "3 data servers"),
            ("name = 'a'\n[servers]\n[nodes]\ncount = 1\nshard_size = '1K'", "shard_size"),
            (
                "name = 'a'\n[servers]\nemulate = { model = 'null', size = '1G', tier_size = '1G' }",
                "emulate.tier: none",
            ),
            ("name = 'a'\n[servers]\nemulate = { model = 'null', size = '1G', tier = 'ssd' }", "absolute"),
            (
                "name = 'a'\n[servers]\nemulate = { model = 'null', size = '1G', tier = '/ssd', tier_size = 'big' }",
                "emulate.tier_size",
            ),
            ("name = 'a'\n[servers]\n[clients]\ncounts = 1", "counts"),
            ("name = 'a'\n[servers]\n[clients]\njob = 'a b'", "clients.job"),
            ("name = 'a'\nport = 65535\n[coordinator]\n[servers]\ncount = 1", "port"),
            ("name = 'a'\nport = 5000\nmetrics = 5001\n[servers]\ncount = 2", "metrics"),
            ("name = 'a'\n[servers]\n[coordinator]\nroles = []", "coordinator.roles"),
            ("name = 'a'\n[servers]\n[coordinator]\nroles = ['council', 'council']", "coordinator.roles"),
            ("name = 'a'\n[servers]\n[coordinator]\nbandit = 'thompson'", "epsilon-greedy"),
            (
                "name = 'a'\n[servers]\n[coordinator]\nroles = ['orchestrator']\nbandit = 'confidence'",
                "coordinator.bandit",
            ),
            ("name = 'a'\n[servers]\n[coordinator]\nroles = ['orchestrator']\ncoexisting = true", "coexisting"),
            ("name = 'a'\n[servers]\n[coordinator]\nwindow = '1s'", "coordinator.orchestrate"),
            ("name = 'a'\n[servers]\n[coordinator]\nroles = ['orchestrator']\nwindow = '1h'", "coordinator.window"),
            ("name = 'a'\naddress = '0.0.0.0'\n[coordinator]\n[servers]\ncount = 1", "token_file"),
            ("name = 'a'\n[coordinator]\nhost = 'meta-1'\n[servers]", "address: 127.0.0.1"),
            ("name = 'a'\n[coordinator]\n[servers]\nhosts = ['b']", "address: 127.0.0.1"),
            (
                "name = 'a'\naddress = '0.0.0.0'\n[coordinator]\n[servers]\n[nodes]\ncount = 1\nhosts = ['b']",
                "coordinator.host",
            ),
            ("name = 'a'\naddress = '0.0.0.0'\n[coordinator]\nhost = 'meta-1'\n[servers]", "token_file"),
            ("name = 'a'\n[servers]\n[links]", "rate"),
            ("name = 'a'\n[servers]\n[links]\nrate = 'fast'", "links.rate"),
            ("name = 'a'\n[servers]\n[links]\nrate = '1Kbit'", "links.rate"),
            ("name = 'a'\n[servers]\n[links]\nrate = '1Gbit'\nlatency = '1h'", "links.latency"),
            ("name = 'a'\n[servers]\n[links]\nrate = '1Gbit'\nburst = '1K'", "links.burst"),
            ("name = 'a'\n[servers]\n[links]\nrate = '100Gbit'\nlatency = '1s'", "4G"),
            ("name = 'a'\n[servers]\n[links]\nrate = '1Gbit'\nnetwork = '10.0.0.1/8'", "links.network"),
            ("name = 'a'\n[servers]\n[links]\nrate = '1Gbit'\nnetwork = '9.0.0.0/8'", "links.network"),
            ("name = 'a'\n[servers]\ncount = 6\n[links]\nrate = '1Gbit'\nnetwork = '10.0.0.0/29'", "5 machines"),
            ("name = 'a'\naddress = '10.0.0.1'\n[servers]\n[links]\nrate = '1Gbit'", "address"),
            ("name = 'a'\n[servers]\nhosts = ['b']\n[links]\nrate = '1Gbit'", "hosts"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
