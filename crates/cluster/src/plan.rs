//! What a configuration comes to: which processes, with which graphs.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::config::{Config, Coordination, CoordinatorRole, Distribution, Scheduling};
use crate::graph::{Graph, Place};
use crate::links::Links;

/// Threads that read and write at a data server, unless its options say how many batches are in flight.
const IO_THREADS: u32 = 16;
/// Of a file that is not on one data server alone, unless it is said.
const SHARD_BYTES: u64 = 4 << 20;
/// The coordinator's secret, in the cluster's directory, where `cluster.toml` names no other file.
pub(crate) const TOKEN: &str = "token";
/// Libraries of GlusterFS are in `ARCHITECTURE/glusterfs/VERSION/xlator` below one of these.
const LIBRARIES: [&str; 3] = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];

/// What a process is.
#[derive(Clone, PartialEq, Debug)]
pub enum Role {
    /// `sluice coordinate`.
    Coordinator {
        /// Where it listens.
        listens: SocketAddr,
        /// The file with its secret.
        token_file: Option<PathBuf>,
        /// Further words of its command: what it does, and how.
        how: Vec<String>,
        /// Where it tells metrics.
        metrics: Option<SocketAddr>,
    },
    /// Has data, and listens.
    Server {
        /// Where its data are.
        brick: PathBuf,
        /// Where it listens.
        listens: SocketAddr,
    },
    /// Forwards requests to the data servers, and listens.
    Node {
        /// Where it listens.
        listens: SocketAddr,
    },
    /// Mounts.
    Client {
        /// Where.
        mount: PathBuf,
        /// Seconds for which the kernel keeps attributes and names; none: GlusterFS's default.
        timeout: Option<f64>,
    },
}

/// One process.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// `coordinator`, `server-0`, `node-1`, `client-0`: the name of all its files.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// What it does: a volfile; a coordinator has none.
    pub graph: String,
    /// Where it runs, if not here.
    pub host: Option<String>,
}

/// All processes, in the order in which they are started.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Of the cluster.
    pub name: String,
    /// Where graphs, logs and numbers of processes are.
    pub directory: PathBuf,
    /// The translator that the graphs name, if they do.
    pub translator: Option<PathBuf>,
    /// Of the machines, if they are not on loopback.
    pub links: Option<Links>,
    /// The coordinator, data servers, I/O nodes, clients.
    pub machines: Vec<Machine>,
}

impl Machine {
    /// Where it listens: for requests, and for who asks for metrics.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let told = |line: &str| line.trim().strip_prefix("option metrics ")?.parse().ok();
        let mut found: Vec<SocketAddr> = self.graph.lines().filter_map(told).collect();
        match &self.role {
            Role::Server { listens, .. } | Role::Node { listens } => found.insert(0, *listens),
            Role::Coordinator { listens, metrics, .. } => found.extend([*listens].into_iter().chain(*metrics)),
            Role::Client { .. } => {}
        }
        // Translators of one process tell theirs at one place.
        found.dedup();
        found
    }
}

impl Plan {
    /// What a configuration comes to. Touches nothing.
    ///
    /// # Errors
    /// If graphs need the translator and it is found nowhere.
    pub fn new(config: &Config) -> anyhow::Result<Plan> {
        let translator = if config.needs_translator() { Some(find_translator(config)?) } else { None };
        Ok(Plan::with(config, translator))
    }

    /// The same for what runs already: it does not matter where the translator is. Its graphs name none that exists; they are
    /// neither to be written nor to be started.
    #[must_use]
    pub fn of_running(config: &Config) -> Plan {
        Plan::with(config, None)
    }

    fn with(config: &Config, translator: Option<PathBuf>) -> Plan {
        let directory = config.directory();
        // A configuration was checked when it was read.
        let links = config.links.as_ref().and_then(|links| links.links(&config.name, &config.machines()).ok());
        let planner = Planner {
            config,
            directory: &directory,
            translator: translator.as_deref().unwrap_or(Path::new("/")),
            links: links.as_ref(),
        };
        let servers = (0..config.servers.count).map(|n| planner.server(n));
        let nodes = (0..config.nodes.count).map(|n| planner.node(n));
        let clients = (0..config.clients.count).map(|n| planner.client(n));
        let machines = planner.coordinator().into_iter().chain(servers).chain(nodes).chain(clients).collect();
        Plan { name: config.name.clone(), directory, translator, links, machines }
    }
}

fn find_translator(config: &Config) -> anyhow::Result<PathBuf> {
    if let Some(path) = &config.translator {
        anyhow::ensure!(path.is_file(), "translator: there is no {}", path.display());
        return Ok(path.clone());
    }
    installed().with_context(|| {
        format!(
            "the translator xlator/user/sluice.so is in no directory of GlusterFS in {}: `make install-gluster` puts it there, \
             or `translator` says where it is",
            LIBRARIES.join(", ")
        )
    })
}

/// The translator among GlusterFS's own, where `make install-gluster` puts it.
fn installed() -> Option<PathBuf> {
    let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let libraries = LIBRARIES.iter().map(PathBuf::from);
    // Debian has a directory for each architecture in between, others do not.
    let places = libraries.flat_map(|library| below(library.clone()).chain([library]));
    let versions = places.flat_map(|place| below(place.join("glusterfs")));
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.join("xlator/user/sluice.so")).filter(|path| path.is_file()).collect();
    found.sort();
    found.pop()
}

/// What a coordinator is told on its command line of what it is to do.
fn how(config: &Coordination) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(config.coexisting.then(|| "--coexisting".to_owned()));
    if config.roles != [CoordinatorRole::Council] {
        let roles: Vec<&str> = config.roles.iter().map(|role| role.name()).collect();
        words.push(format!("--role={}", roles.join(",")));
    }
    words.extend(config.bandit.map(|bandit| format!("--bandit={}", bandit.name())));
    words.extend(config.record.iter().map(|path| format!("--record={}", path.display())));
    words.extend(config.orchestrate.map(|how| format!("--orchestrate={}", how.name())));
    // It may have a space in it, which a unit's command cannot.
    words.extend(config.window.iter().map(|window| format!("--window={}", window.replace(char::is_whitespace, ""))));
    words
}

struct Planner<'a> {
    config: &'a Config,
    directory: &'a Path,
    translator: &'a Path,
    links: Option<&'a Links>,
}

impl Planner<'_> {
    /// Where a process listens, by its port.
    fn address(&self, port: u16) -> IpAddr {
        self.links.map_or(self.config.address, |links| links.address(u32::from(port - self.config.port)).into())
    }

    fn listens(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(port), port)
    }

    /// The file with the coordinator's secret: one of the cluster's own where machines have addresses that are not loopback's.
    fn token_file(&self, config: &Coordination) -> Option<PathBuf> {
        config.token_file.clone().or_else(|| self.links.map(|_| self.directory.join(TOKEN)))
    }

    fn brick(&self, n: u32) -> PathBuf {
        let given = self.config.servers.bricks.get(n as usize).cloned();
        given.unwrap_or_else(|| self.directory.join(format!("brick-{n}")))
    }

    fn port_of_server(&self, n: u32) -> u16 {
        self.config.port + n as u16
    }

    fn port_of_node(&self, n: u32) -> u16 {
        self.config.port + (self.config.servers.count + n) as u16
    }

    fn port_of_coordinator(&self) -> u16 {
        self.config.port + (self.config.servers.count + self.config.nodes.count) as u16
    }

    fn coordinator(&self) -> Option<Machine> {
        let config = self.config.coordinator.as_ref()?;
        let listens = self.listens(self.port_of_coordinator());
        let role = Role::Coordinator {
            listens,
            token_file: self.token_file(config),
            how: how(config),
            metrics: self.metrics(listens.port()),
        };
        Some(Machine { name: "coordinator".to_owned(), role, graph: String::new(), host: config.host.clone() })
    }

    /// Where a process that listens at this port tells metrics.
    fn metrics(&self, port: u16) -> Option<SocketAddr> {
        let first = self.config.metrics?;
        Some(SocketAddr::new(self.address(port), first + (port - self.config.port)))
    }

    /// What the translators of a machine that listens at this port are to be told of the coordinator, and of metrics.
    fn coordinated(&self, scheduling: &Scheduling, name: &str, port: u16) -> Scheduling {
        let mut scheduling = scheduling.clone();
        if let Some(metrics) = self.metrics(port) {
            scheduling.options.entry("metrics".to_owned()).or_insert(metrics.to_string());
        }
        if let Some(config) = &self.config.coordinator {
            let port = self.port_of_coordinator();
            let address = match &config.host {
                Some(host) => match host.parse::<IpAddr>() {
                    Ok(address) => SocketAddr::new(address, port).to_string(),
                    Err(_) => format!("{host}:{port}"),
                },
                None => self.listens(port).to_string(),
            };
            let token = self.token_file(config).map(|path| ("coordinator-token", path.display().to_string()));
            let told = [("coordinator", address), ("coordinator-name", name.to_owned())];
            for (key, value) in told.into_iter().chain(token) {
                scheduling.options.entry(key.to_owned()).or_insert(value);
            }
        }
        scheduling
    }

    fn shard_bytes(&self) -> u64 {
        let size = self.config.nodes.shard_size.as_deref().and_then(sluice_notation::parse_bytes);
        size.unwrap_or(SHARD_BYTES)
    }

    /// Tells a translator of pieces of files, where there are some.
    fn sharded(&self, scheduling: &mut Scheduling) {
        if self.config.nodes.distribution == Distribution::Shard {
            let size = || self.shard_bytes().to_string();
            scheduling.options.entry("shard-size".to_owned()).or_insert_with(size);
        }
    }

    /// The same of an I/O node: an orchestrator would take one without windows for a data server, so that one stays alone.
    fn coordinated_node(&self, name: &str, port: u16) -> Scheduling {
        let scheduling = &self.config.nodes.scheduling;
        let orchestrates = |config: &Coordination| config.roles.contains(&CoordinatorRole::Orchestrator);
        let mut scheduling_there = self.coordinated(scheduling, name, port);
        if scheduling.policy.as_deref() != Some("twins") && self.config.coordinator.as_ref().is_some_and(orchestrates) {
            for key in ["coordinator", "coordinator-name", "coordinator-token"] {
                scheduling_there.options.remove(key);
            }
        }
        scheduling_there
    }

    fn host(&self, hosts: &[String], n: u32, port: u16) -> String {
        hosts.get(n as usize).cloned().unwrap_or_else(|| self.address(port).to_string())
    }

    fn family(&self) -> &'static str {
        if self.config.address.is_ipv6() { "inet6" } else { "inet" }
    }

    /// What others reach as `served`.
    fn serve(&self, graph: &mut Graph, served: &str, port: u16) {
        let address = self.address(port).to_string();
        let port = port.to_string();
        let allow = format!("auth.addr.{served}.allow");
        // On one machine nobody else is let in; on several it is whoever reaches the port.
        let spread = !self.config.servers.hosts.is_empty() || !self.config.nodes.hosts.is_empty();
        let whom = match self.links {
            Some(links) => links.network().pattern(),
            None if self.config.address.is_loopback() && !spread => address.clone(),
            None => "*".to_owned(),
        };
        let mut options = vec![
            ("transport-type", "tcp"),
            ("transport.address-family", self.family()),
            ("transport.socket.listen-port", &port),
            (&allow, &whom),
        ];
        if !spread {
            options.push(("transport.socket.bind-address", &address));
        }
        graph.volume("server", "protocol/server", &options, &[served]);
    }

    fn reach(&self, graph: &mut Graph, name: &str, host: &str, port: u16, served: &str) {
        let port = port.to_string();
        let options = [
            ("transport-type", "tcp"),
            ("transport.address-family", self.family()),
            ("remote-host", host),
            ("remote-port", &port),
            ("remote-subvolume", served),
            // A server that is silent for so long is taken for dead.
            ("ping-timeout", "10"),
        ];
        graph.volume(name, "protocol/client", &options, &[]);
    }

    fn server(&self, n: u32) -> Machine {
        let config = &self.config.servers;
        let brick = self.brick(n);
        let data = brick.join("data");
        let served = format!("brick{n}");
        // As many as io-threads may have.
        let threads = config.scheduling.options.get("in-flight").and_then(|n| n.parse::<u32>().ok());
        let threads = threads.map_or(IO_THREADS, |n| if n == 0 { 64 } else { n.min(64) }).to_string();
        let mut graph = Graph::default();
        graph.volume("posix", "storage/posix", &[("directory", &data.display().to_string())], &[]);
        // Below the scheduler: its threads carry out what was chosen, and as many at a time as are chosen.
        graph.volume("threads", "performance/io-threads", &[("thread-count", &threads)], &["posix"]);
        let name = format!("server-{n}");
        let mut scheduling = self.coordinated(&config.scheduling, &name, self.port_of_server(n));
        self.sharded(&mut scheduling);
        let top = graph.sluice("sluice", &name, self.translator, &scheduling, None, "threads");
        graph.volume("access", "features/access-control", &[], &[&top]);
        graph.volume("locks", "features/locks", &[], &["access"]);
        graph.volume(&served, "debug/io-stats", &[("log-level", "WARNING")], &["locks"]);
        let port = self.port_of_server(n);
        self.serve(&mut graph, &served, port);
        Machine {
            name,
            role: Role::Server { brick, listens: self.listens(port) },
            graph: graph.into_text(),
            host: config.hosts.get(n as usize).cloned(),
        }
    }

    /// All data servers as one file system, and the name of its volume.
    fn distribution(&self, graph: &mut Graph, node: Option<u32>) -> String {
        let count = self.config.servers.count;
        let names: Vec<String> = (0..count)
            .map(|n| {
                let name = format!("to-server-{n}");
                let port = self.port_of_server(n);
                let host = self.host(&self.config.servers.hosts, n, port);
                self.reach(graph, &name, &host, port, &format!("brick{n}"));
                let Some(node) = node else { return name };
                let machine = format!("node-{node}");
                let mut scheduling = self.coordinated_node(&machine, self.port_of_node(node));
                self.sharded(&mut scheduling);
                let place = Place { node, target: n, targets: count };
                graph.sluice(&format!("sluice-{n}"), &machine, self.translator, &scheduling, Some(place), &name)
            })
            .collect();
        let below: Vec<&str> = names.iter().map(String::as_str).collect();
        let afr = |key: &str| names.iter().map(|name| format!("{key}-{name}")).collect::<Vec<_>>().join(",");
        match self.config.nodes.distribution {
            Distribution::Distribute => _ = graph.volume("distribute", "cluster/distribute", &[], &below),
            Distribution::Shard => {
                let size = self.shard_bytes().to_string();
                graph.volume("distribute", "cluster/distribute", &[], &below);
                graph.volume("shard", "features/shard", &[("shard-block-size", &size)], &["distribute"]);
                return "shard".to_owned();
            }
            Distribution::Replicate => {
                let pending = afr("pending");
                graph.volume("distribute", "cluster/replicate", &[("afr-pending-xattr", &pending)], &below);
            }
            Distribution::Disperse => {
                // As much redundancy as leaves data on more than half of them.
                let redundancy = ((count - 1) / 2).min(count / 3).max(1).to_string();
                graph.volume("distribute", "cluster/disperse", &[("redundancy", &redundancy)], &below);
            }
        }
        "distribute".to_owned()
    }

    fn node(&self, n: u32) -> Machine {
        let mut graph = Graph::default();
        let top = self.distribution(&mut graph, Some(n));
        graph.volume("forward", "performance/io-threads", &[("thread-count", &IO_THREADS.to_string())], &[&top]);
        let port = self.port_of_node(n);
        self.serve(&mut graph, "forward", port);
        Machine {
            name: format!("node-{n}"),
            role: Role::Node { listens: self.listens(port) },
            graph: graph.into_text(),
            host: self.config.nodes.hosts.get(n as usize).cloned(),
        }
    }

    fn client(&self, n: u32) -> Machine {
        let mut graph = Graph::default();
        let top = if self.config.nodes.count > 0 {
            let node = n % self.config.nodes.count;
            let port = self.port_of_node(node);
            self.reach(&mut graph, "to-node", &self.host(&self.config.nodes.hosts, node, port), port, "forward");
            "to-node".to_owned()
        } else {
            self.distribution(&mut graph, None)
        };
        let name = format!("client-{n}");
        if self.config.needs_translator() {
            let job = self.config.clients.job.as_ref().map(|job| job.replace("{machine}", &name));
            graph.job(self.translator, job.as_deref(), &top);
        }
        let given = self.config.clients.mounts.get(n as usize).cloned();
        Machine {
            name,
            role: Role::Client {
                mount: given.unwrap_or_else(|| self.directory.join(format!("client-{n}"))),
                timeout: self.config.clients.attribute_timeout,
            },
            graph: graph.into_text(),
            host: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        let translator = tempfile::NamedTempFile::with_suffix(".so").unwrap();
        let text = format!("translator = {:?}\n{text}", translator.path());
        Plan::new(&Config::parse(&text).unwrap()).unwrap()
    }

    #[test]
    fn every_process_has_a_graph_and_a_port_of_its_own() {
        let plan = plan(
            "name = 'a'\nport = 5000\n[servers]\ncount = 3\npolicy = 'hbrr'\n[nodes]\ncount = 2\npolicy = 'twins'\n\
             parameters = 'window=2ms'\nshard_size = '8M'\n[clients]\ncount = 3\njob = 'of-{machine}'\n",
        );
        let names: Vec<&str> = plan.machines.iter().map(|machine| machine.name.as_str()).collect();
        assert_eq!(names, ["server-0", "server-1", "server-2", "node-0", "node-1", "client-0", "client-1", "client-2"]);
        for (n, machine) in plan.machines.iter().enumerate() {
            let listens = format!("transport.socket.listen-port {}\n", 5000 + n);
            assert_eq!(machine.graph.contains(&listens), n < 5, "{}", machine.graph);
        }
        let node = &plan.machines[4].graph;
        assert!(node.contains("option policy-parameters \"window=2ms servers=3 node=1\"\n"), "{node}");
        assert!((0..3).all(|n| node.contains(&format!("option target {n}\n"))), "{node}");
        assert!(
            node.contains("option shard-size 8388608\n")
                && plan.machines[0].graph.contains("option shard-size 8388608\n")
        );
        let client = &plan.machines[6].graph;
        assert!(client.contains("option announce on\n  option job of-client-1\n  subvolumes to-node\n"), "{client}");
        // The third client asks the first node again.
        assert!(plan.machines[7].graph.contains("remote-port 5003\n"));
    }

    #[test]
    fn clients_hear_programs_wherever_anybody_schedules() {
        let graph = |text: &str| plan(text).machines.pop().unwrap().graph;
        let heard = "option announce on\n  subvolumes";
        assert!(graph("name = 'a'\n[servers]\npolicy = 'hbrr'\n[clients]\ncount = 1\n").contains(heard));
        assert!(
            graph("name = 'a'\n[servers]\n[nodes]\ncount = 1\npolicy = 'hbrr'\n[clients]\ncount = 1\n").contains(heard)
        );
        assert!(!graph("name = 'a'\n[servers]\n[nodes]\ncount = 1\n[clients]\ncount = 1\n").contains("announce"));
    }

    #[test]
    fn a_coordinator_comes_first_and_translators_know_it() {
        let plan = plan(
            "name = 'a'\nport = 5000\nmetrics = 9000\n[coordinator]\n[servers]\ncount = 2\n[nodes]\ncount = 2\npolicy = 'twins'\n",
        );
        let first = &plan.machines[0];
        assert!(matches!(first.role, Role::Coordinator { listens, .. } if listens.port() == 5004), "{first:?}");
        let words = first.command(&plan).join(" ");
        assert!(words.contains("coordinate --listen=127.0.0.1:5004 --state=/var/lib/sluice/clusters/a/coordinator"));
        let node = &plan.machines[4].graph;
        assert!(node.contains("option coordinator 127.0.0.1:5004\n"), "{node}");
        assert!(node.contains("option coordinator-name node-1\n"), "{node}");
        assert!(
            node.contains("option metrics 127.0.0.1:9003\n") && words.contains("--metrics=127.0.0.1:9004"),
            "{node}"
        );
        assert!(!plan.machines[1].graph.contains("coordinator"), "without an algorithm there is no translator");
    }

    #[test]
    fn a_coordinator_elsewhere_may_have_a_name_or_an_address() {
        for (host, address) in
            [("meta-1", "meta-1:24103"), ("10.0.0.5", "10.0.0.5:24103"), ("2001:db8::5", "[2001:db8::5]:24103")]
        {
            let plan = plan(&format!(
                "name = 'a'\naddress = '0.0.0.0'\n[coordinator]\nhost = '{host}'\ntoken_file = '/etc/sluice/token'\n\
                 [servers]\ncount = 1\n[nodes]\ncount = 2\npolicy = 'twins'\n"
            ));
            let words = plan.machines[0].command(&plan).join(" ");
            assert!(words.contains("--listen=0.0.0.0:24103"), "{words}");
            let node = &plan.machines[2].graph;
            assert!(node.contains(&format!("option coordinator {address}\n")), "{host}: {node}");
        }
    }

    #[test]
    fn an_orchestrator_is_told_how_and_knows_data_servers_only() {
        let plan = plan(
            "name = 'a'\nport = 5000\n[coordinator]\nroles = ['orchestrator', 'council']\nbandit = 'epsilon-greedy'\norchestrate = 'even'\nwindow = '1s'\n\
             [servers]\ncount = 1\npolicy = 'hbrr'\n[nodes]\ncount = 1\npolicy = 'hbrr'\n",
        );
        let words = plan.machines[0].command(&plan).join(" ");
        assert!(
            words.ends_with("--role=orchestrator,council --bandit=epsilon-greedy --orchestrate=even --window=1s"),
            "{words}"
        );
        assert!(plan.machines[1].graph.contains("option coordinator 127.0.0.1:5002\n"));
        assert!(!plan.machines[2].graph.contains("option coordinator"), "{}", plan.machines[2].graph);
    }

    #[test]
    fn with_links_every_machine_has_an_address_and_the_coordinator_a_secret() {
        let plan = plan(
            "name = 'a'\nport = 5000\nmetrics = 9000\n[links]\nrate = '1Gbit'\n[coordinator]\n[servers]\ncount = 2\n\
             [nodes]\ncount = 1\npolicy = 'twins'\n[clients]\ncount = 1\n",
        );
        let words = plan.machines[0].command(&plan).join(" ");
        assert!(words.contains("--listen=10.111.0.5:5003") && words.contains("--metrics=10.111.0.5:9003"), "{words}");
        assert!(words.contains("--token-file=/var/lib/sluice/clusters/a/token"), "{words}");
        let (server, node, client) = (&plan.machines[2].graph, &plan.machines[3].graph, &plan.machines[4].graph);
        assert!(server.contains("bind-address 10.111.0.3\n") && server.contains("allow 10.111.*\n"), "{server}");
        assert!(node.contains("remote-host 10.111.0.3\n") && node.contains("coordinator 10.111.0.5:5003\n"), "{node}");
        assert!(node.contains("coordinator-token /var/lib/sluice/clusters/a/token\n"), "{node}");
        assert!(client.contains("remote-host 10.111.0.4\n"), "{client}");
    }

    #[test]
    fn without_an_algorithm_there_is_no_translator_and_without_nodes_clients_ask_the_servers() {
        let config = Config::parse(
            "name = 'a'\n[servers]\ncount = 2\n[nodes]\ndistribution = 'replicate'\n[clients]\ncount = 1\n",
        );
        let plan = Plan::new(&config.unwrap()).unwrap();
        assert_eq!(plan.translator, None);
        assert!(plan.machines.iter().all(|machine| !machine.graph.contains("option policy")));
        let client = &plan.machines[2].graph;
        assert!(client.contains("cluster/replicate") && client.contains("remote-subvolume brick1\n"), "{client}");
    }
}
