//! Keeps a scheduler in touch with a coordinator: a thread of its own, on which everything about the network happens.
//!
//! The scheduler's threads never wait for it: they ring a bell when a window has closed, and the thread looks at it; decisions
//! are commands to the scheduler like anybody else's.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sluice_adapt::council::Pattern;
use sluice_adapt::net::{Filter, Network, Observation};
use sluice_adapt::orchestrator::SeekTimes;
use sluice_core::{PolicyConfig, Time};
use sluice_select::{Follower, Ground};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::announced::Announced;
use crate::clock::epoch;
use crate::connect::{self, Address, MESSAGE_MAX};
use crate::node::{Node, Step};
use crate::orchestrated::Orchestrated;
use crate::role::Action;
use crate::seen::{InForce, Kind, Seen, is_name};
use crate::wire::coordinator_client::CoordinatorClient;
use crate::wire::{FromNode, ToNode};

/// Messages to a coordinator that does not read them: more than an announcement and a farewell are of no use.
const QUEUE: usize = 4;
/// How long the end of an agent waits for its farewell to go.
const FAREWELL: Duration = Duration::from_millis(200);
/// How long a coordinator that has taken a connection may take to open a session.
const ANSWER: Duration = Duration::from_secs(5);

/// Whom to listen to, and as what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The coordinator.
    pub address: Address,
    /// Names the node among all of the coordinator.
    pub name: String,
    /// What the profile of the device says: how much longer a request takes at a random place than behind the one before, in
    /// nanoseconds, and the bytes within which that was measured. `None`: it is taken for a usual hard disk.
    pub positioning: Option<(u64, u64)>,
    /// Who knows what programs say that they do; `None`: they say nothing here.
    pub announced: Option<Arc<dyn Announced>>,
    /// The host's own algorithm, where another one may be in force that a coordinator has chosen; `None`: it is in force.
    pub own: Option<PolicyConfig>,
}

impl Options {
    /// Of a device of which nothing is known.
    #[must_use]
    pub fn new(address: Address, name: &str) -> Options {
        Options { address, name: name.to_owned(), positioning: None, announced: None, own: None }
    }

    /// Whether an agent can be started with these, as far as that can be known before.
    ///
    /// # Errors
    /// If the name is none.
    pub fn check(&self) -> anyhow::Result<()> {
        let name = &self.name;
        anyhow::ensure!(is_name(name), "{name:?} is no name of a node: 1 to 64 letters, digits and . _ - : /");
        Ok(())
    }
}

/// What is told of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The coordinator's address.
    pub address: String,
    /// The node's name there.
    pub name: String,
    /// It answers.
    pub is_connected: bool,
    /// The coordinator's clock minus the scheduler's, in microseconds.
    pub offset_us: f64,
    /// By so much that is wrong at most; 0: nothing is known yet.
    pub offset_error_us: f64,
    /// It serves one program at a time, as the coordinator plans.
    #[serde(default)]
    pub is_gated: bool,
    /// What distances are judged by for that: `profile`, the device's, or `hard disk`, a usual one.
    #[serde(default)]
    pub seek_times: String,
    /// Announcements sent, decisions carried out, connections that failed or ended.
    pub announcements: u64,
    /// See `announcements`.
    pub decisions: u64,
    /// See `announcements`.
    pub disconnections: u64,
}

/// An agent at work. Dropping it ends the work; what was decided last stays in force.
pub struct Agent {
    status: Arc<Mutex<AgentStatus>>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Agent {
    /// Listens to a coordinator from now on, which may be there or not. Where the host's own algorithm ([`Options::own`]) is chosen, it
    /// has the host's parameters. A scheduler of which that one has data servers to take turns with (`twins`) is a forwarding
    /// node, any other a data server. What is told of closed windows ([`Ground::on_window`]) is this agent's from now on.
    ///
    /// # Errors
    /// If the name is none, or the system refuses a thread.
    pub fn start<G: Ground>(ground: &Arc<G>, options: Options) -> anyhow::Result<Agent> {
        options.check()?;
        let status = AgentStatus {
            address: options.address.text(),
            name: options.name.clone(),
            seek_times: if options.positioning.is_some() { "profile" } else { "hard disk" }.to_owned(),
            ..AgentStatus::default()
        };
        let status = Arc::new(Mutex::new(status));
        let (stop, stopped) = oneshot::channel();
        let (bell, rings) = mpsc::channel(1);
        ground.on_window(Some(Box::new(move || _ = bell.try_send(()))));
        let worker = Worker::new(&**ground, options, status.clone());
        let weak = Arc::downgrade(ground);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
        let thread = std::thread::Builder::new()
            .name("sluice-control".into())
            .spawn(move || {
                runtime.block_on(worker.run(&weak, rings, stopped));
                // A name that is being looked up is not waited for.
                runtime.shutdown_background();
            })
            .context("no thread for the coordinator's decisions")?;
        Ok(Agent { status, stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) })
    }

    /// What it does.
    #[must_use]
    pub fn status(&self) -> AgentStatus {
        self.status.lock().clone()
    }

    /// Says good-bye and ends.
    pub fn end(&self) {
        // Dropping the sender is the sign.
        drop(self.stop.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            // It cannot have panicked without having said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection that stands.
struct Session {
    out: mpsc::Sender<FromNode>,
    incoming: Streaming<ToNode>,
}

type Opening = Pin<Box<dyn Future<Output = Result<Session, tonic::Status>>>>;

/// What happened.
enum Happened {
    Stopped,
    WindowClosed,
    TimeHasCome,
    Opened(Result<Session, tonic::Status>),
    Heard(Result<Option<ToNode>, tonic::Status>),
}

struct Worker {
    address: Address,
    status: Arc<Mutex<AgentStatus>>,
    node: Node,
    /// The algorithm as the host has set it.
    base: PolicyConfig,
    kind: Kind,
    servers: u32,
    /// What was decided last, and the offset that it was carried out with; `None`: nothing, or the host has set something else since.
    last: Option<(Action, i64)>,
    /// What is in force, as far as is known, and since when.
    in_force: PolicyConfig,
    since: Time,
    seen: Seen,
    /// Ends of the last windows looked at.
    ends: Vec<Time>,
    /// Follows plans that serve one program at a time, and measures what they are made of.
    orchestrated: Orchestrated,
    /// Who recognises patterns, in forwarding nodes.
    recogniser: Option<Recogniser>,
    /// That nobody answers was told.
    has_complained: bool,
}

/// Follows the requests of a forwarding node and says which pattern they are.
struct Recogniser {
    network: Network,
    filter: Filter,
    /// One for each engine, while it is not in there.
    #[allow(clippy::vec_box)] // they go into engines and come out
    followers: Vec<Box<Follower>>,
}

impl Recogniser {
    /// `None` if the network that comes with this program cannot be used; the log says why.
    fn new(ground: &impl Ground) -> Option<Recogniser> {
        let network =
            Network::shipped().inspect_err(|error| tracing::warn!("patterns are not recognised: {error}")).ok()?;
        // Algorithms that know of data servers have one engine.
        let followers = (0..ground.engines().min(1)).map(|_| Follower::of_io_node(ground)).collect();
        let mut recogniser = Recogniser { network, filter: Filter::default(), followers };
        recogniser.follow(ground);
        Some(recogniser)
    }

    fn follow(&mut self, ground: &impl Ground) {
        for (engine, follower) in self.followers.drain(..).enumerate() {
            drop(ground.set_monitor(engine, Some(follower)));
        }
    }

    fn leave(&mut self, ground: &impl Ground) {
        self.followers.extend(ground.set_monitor(0, None).and_then(Follower::back));
    }

    /// The pattern of what was seen since the last time, and by what it is recognised.
    fn look(&mut self, ground: &impl Ground, seen: &Seen) -> (Option<Pattern>, Option<Observation>) {
        self.leave(ground);
        let observed = self.followers.first_mut().map(|follower| {
            let window = follower.close(ground.now());
            Observation::of_counts(&seen.ops, seen.files, seen.targets, Some(window))
        });
        self.follow(ground);
        let of_window = observed.as_ref().and_then(|observed| self.network.classify(observed));
        (self.filter.see(of_window).map(|verdict| verdict.pattern), observed)
    }
}

fn in_force(policy: &PolicyConfig) -> InForce {
    InForce { policy: policy.name().to_owned(), window_ns: policy.value("window").unwrap_or(0) }
}

impl Worker {
    fn new(ground: &impl Ground, options: Options, status: Arc<Mutex<AgentStatus>>) -> Worker {
        let now_in_force = ground.policy();
        let base = options.own.unwrap_or_else(|| now_in_force.clone());
        let servers = base.value("servers").and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        // Where an algorithm takes turns with data servers there are some.
        let kind = if servers > 0 { Kind::Forwarder } else { Kind::Server };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let incarnation = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        // Differs from node to node, and that is all that it is for.
        let seed =
            incarnation ^ u64::from(std::process::id()) << 40 ^ u64::from(crc32fast::hash(options.name.as_bytes()));
        Worker {
            node: Node::new(&options.name, incarnation, seed, ground.now()),
            seen: Seen::nothing(kind, servers, in_force(&now_in_force)),
            address: options.address,
            status,
            base,
            kind,
            servers,
            last: None,
            in_force: now_in_force,
            since: ground.now(),
            ends: vec![Time::ZERO; ground.engines()],
            orchestrated: Orchestrated::new(
                options.positioning.map_or_else(SeekTimes::hard_disk, |(ns, bytes)| SeekTimes::measured(ns, bytes)),
                options.announced,
            ),
            recogniser: (kind == Kind::Forwarder).then(|| Recogniser::new(ground)).flatten(),
            has_complained: false,
        }
    }

    async fn run<G: Ground>(
        mut self,
        ground: &Weak<G>,
        mut rings: mpsc::Receiver<()>,
        mut stop: oneshot::Receiver<()>,
    ) {
        let (mut session, mut opening): (Option<Session>, Option<Opening>) = (None, None);
        loop {
            let Some(held) = ground.upgrade() else { return };
            self.act(&*held, &mut session, &mut opening);
            // Also when a plan has ended, so that it is told.
            let next = self.node.next().into_iter().chain(self.orchestrated.ends()).min();
            let wait = next.map(|next| Duration::from_nanos(next.since(held.now())));
            // Nothing of the scheduler's is held while it waits.
            drop(held);
            let happened = tokio::select! {
                _ = &mut stop => Happened::Stopped,
                Some(()) = rings.recv() => Happened::WindowClosed,
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Happened::TimeHasCome,
                opened = async { opening.as_mut().expect("asked before").await }, if opening.is_some() => Happened::Opened(opened),
                heard = async { session.as_mut().expect("asked before").incoming.message().await }, if session.is_some() => {
                    Happened::Heard(heard)
                }
            };
            let Some(held) = ground.upgrade() else { return };
            let now = held.now();
            self.notice(&*held);
            match happened {
                Happened::Stopped => {
                    self.recogniser.iter_mut().for_each(|recogniser| recogniser.leave(&*held));
                    self.orchestrated.end(&*held);
                    let farewell = self.node.leave(now);
                    drop(held);
                    return leave(session, farewell).await;
                }
                Happened::WindowClosed => self.look(&*held),
                Happened::TimeHasCome => {}
                Happened::Opened(Ok(opened)) => {
                    (opening, session) = (None, Some(opened));
                    // What it saw while nobody asked is no second's work.
                    self.look(&*held);
                    self.seen = Seen::nothing(self.kind, self.servers, in_force(&held.policy()));
                    // Nor is what was measured a window's.
                    drop(self.orchestrated.report(&*held));
                    self.node.connected(now);
                }
                Happened::Opened(Err(why)) => {
                    opening = None;
                    self.lost(now, &why);
                }
                Happened::Heard(Ok(Some(message))) => self.heard(&*held, &message),
                Happened::Heard(Ok(None)) => {
                    session = None;
                    self.lost(now, &tonic::Status::unavailable("it has ended"));
                }
                Happened::Heard(Err(why)) => {
                    session = None;
                    self.lost(now, &why);
                }
            }
            self.tell(now);
        }
    }

    /// Does what is due.
    fn act(&mut self, ground: &impl Ground, session: &mut Option<Session>, opening: &mut Option<Opening>) {
        loop {
            let now = ground.now();
            match self.node.poll(now) {
                Step::Wait => return,
                Step::Connect => *opening = Some(Box::pin(open(self.address.clone()))),
                Step::Disconnect => {
                    *session = None;
                    self.complain("it answers nothing");
                }
                Step::Announce => {
                    self.look(ground);
                    let seen = &mut self.seen;
                    if let Some(recogniser) = &mut self.recogniser {
                        let (pattern, observed) = recogniser.look(ground, seen);
                        (seen.pattern, seen.observed) =
                            (pattern, observed.filter(|_| self.node.records()).map(Box::new));
                    }
                    let message = self.node.announcement(now, &self.seen);
                    // One that cannot go is one that was lost.
                    let sent = session.as_ref().is_some_and(|session| session.out.try_send(message).is_ok());
                    self.status.lock().announcements += u64::from(sent);
                    self.seen = Seen::nothing(self.kind, self.servers, in_force(&ground.policy()));
                }
                Step::Report => {
                    let Some(report) = self.orchestrated.report(ground) else { continue };
                    let message = self.node.report(now, &report);
                    if let Some(session) = session {
                        // As above: what does not fit is lost, and the next one says what is new.
                        let _ = session.out.try_send(message);
                    }
                }
            }
        }
    }

    /// What the host sets stays until something else is decided, and windows from before say nothing of it.
    fn notice(&mut self, ground: &impl Ground) {
        let policy = ground.policy();
        if policy == self.in_force {
            return;
        }
        self.last = None;
        self.since = ground.now();
        self.seen = Seen::nothing(self.kind, self.servers, in_force(&policy));
        self.in_force = policy;
    }

    /// Adds windows that have closed, if they began under what is in force.
    fn look(&mut self, ground: &impl Ground) {
        let mut beside = false;
        for (engine, end) in self.ends.iter_mut().enumerate() {
            if let Some(window) = ground.window(engine).filter(|window| window.end > *end) {
                *end = window.end;
                if window.start >= self.since {
                    self.seen.add(&window, std::mem::replace(&mut beside, true));
                }
            }
        }
    }

    fn heard(&mut self, ground: &impl Ground, message: &ToNode) {
        let actions = self.node.received(ground.now(), message);
        if self.node.is_connected() && std::mem::take(&mut self.has_complained) {
            tracing::info!("the coordinator {} answers again", self.address.text());
        }
        for action in actions {
            self.status.lock().decisions += 1;
            if let Action::Gate { window_ns, plan } = &action {
                self.orchestrated.follow(ground, self.node.offset(), *window_ns, plan.as_ref());
                continue;
            }
            self.carry_out(ground, &action);
            self.last = Some((action, self.offset_ns()));
        }
        if !self.node.reports() {
            self.orchestrated.end(ground);
        }
        self.keep_epoch(ground);
    }

    fn offset_ns(&self) -> i64 {
        self.node.offset().map_or(0, |estimate| estimate.offset_ns)
    }

    /// Clocks drift: windows are moved when they would be off by a part of their length.
    fn keep_epoch(&mut self, ground: &impl Ground) {
        let (Some((action, with)), Some(estimate)) = (self.last.clone(), self.node.offset()) else { return };
        let Action::Policy { window_ns, .. } = &action else { return };
        let off = estimate.offset_ns.abs_diff(with);
        if *window_ns > 0 && off > (window_ns / 16).max(estimate.error_ns) {
            self.carry_out(ground, &action);
            self.last = Some((action, estimate.offset_ns));
        }
    }

    fn carry_out(&mut self, ground: &impl Ground, action: &Action) {
        let Action::Policy { name, window_ns } = action else { return };
        match self.config(name, *window_ns) {
            Ok(config) => {
                tracing::debug!("the coordinator wants {config:?}");
                ground.set_policy(&config);
                self.since = ground.now();
                self.seen = Seen::nothing(self.kind, self.servers, in_force(&config));
                self.in_force = config;
            }
            Err(why) => tracing::warn!("the coordinator wants {name}, which cannot be: {why}"),
        }
    }

    fn config(&self, name: &str, window_ns: u64) -> Result<PolicyConfig, sluice_core::ConfigError> {
        let is_own = name == self.base.name();
        let mut config = if is_own { self.base.clone() } else { PolicyConfig::parse(name)? };
        let has = |config: &PolicyConfig, key| config.value(key).is_some();
        if window_ns > 0 {
            config = config.with("window", &format!("{window_ns}ns"))?;
        }
        if has(&config, "epoch") {
            let epoch = epoch(self.offset_ns(), window_ns, self.servers);
            config = config.with("epoch", &format!("{}ns", epoch.0))?;
        }
        Ok(config)
    }

    fn lost(&mut self, now: Time, why: &tonic::Status) {
        self.node.disconnected(now);
        self.complain(connect::reason(why));
    }

    /// Says once that nobody answers.
    fn complain(&mut self, why: impl std::fmt::Display) {
        self.status.lock().disconnections += 1;
        let address = self.address.text();
        if std::mem::replace(&mut self.has_complained, true) {
            tracing::debug!("the coordinator {address}: {why}");
        } else {
            tracing::warn!("the coordinator {address}: {why}; what is in force stays, and it is tried again");
        }
    }

    fn tell(&mut self, now: Time) {
        let mut status = self.status.lock();
        status.is_gated = self.orchestrated.is_gated(now);
        let offset = self.node.offset();
        status.is_connected = self.node.is_connected();
        status.offset_us = offset.map_or(0.0, |estimate| estimate.offset_ns as f64 / 1e3);
        status.offset_error_us = offset.map_or(0.0, |estimate| estimate.error_ns.max(1) as f64 / 1e3);
    }
}

async fn open(address: Address) -> Result<Session, tonic::Status> {
    let channel = address.connect().await?;
    let (out, messages) = mpsc::channel(QUEUE);
    let mut client = CoordinatorClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let request = address.request(ReceiverStream::new(messages));
    // Who takes a connection need not answer: the kernel does that for a process that is stopped.
    let answered = tokio::time::timeout(ANSWER, client.session(request)).await;
    let incoming = answered.map_err(|_| tonic::Status::deadline_exceeded("it does not answer"))??.into_inner();
    Ok(Session { out, incoming })
}

/// The farewell goes when the coordinator has ended the stream, or not at all.
async fn leave(session: Option<Session>, farewell: FromNode) {
    let Some(Session { out, mut incoming }) = session else { return };
    if out.try_send(farewell).is_ok() {
        drop(out);
        let ended = async { while let Ok(Some(_)) = incoming.message().await {} };
        // A coordinator that does not end it notices the silence.
        let _ = tokio::time::timeout(FAREWELL, ended).await;
    }
}

#[cfg(all(test, feature = "coordinator"))]
mod tests {
    use sluice_runtime::{Scheduler, SchedulerConfig};

    use super::*;

    fn worker(ground: &Scheduler, own: Option<PolicyConfig>) -> Worker {
        let options = Options { own, ..Options::new(Address::new("127.0.0.1:1", None).unwrap(), "node-3") };
        Worker::new(ground, options, Arc::default())
    }

    fn scheduler(policy: PolicyConfig) -> Scheduler {
        Scheduler::start(SchedulerConfig::new(policy)).unwrap()
    }

    fn twins() -> PolicyConfig {
        PolicyConfig::parse("twins").unwrap().with("servers", "4").unwrap()
    }

    /// What an earlier coordinator decided last may still be in force.
    #[test]
    fn what_a_node_is_goes_by_the_hosts_own_algorithm() {
        let ground = scheduler(PolicyConfig::parse("hbrr").unwrap());
        assert_eq!(worker(&ground, None).kind, Kind::Server);
        let mut worker = worker(&ground, Some(twins()));
        assert_eq!((worker.kind, worker.servers), (Kind::Forwarder, 4));
        assert_eq!(worker.seen.in_force.policy, "hbrr");
        worker.carry_out(&ground, &Action::Policy { name: "twins".to_owned(), window_ns: 2_000_000 });
        assert_eq!((ground.policy().value("servers"), ground.policy().value("window")), (Some(4), Some(2_000_000)));
    }

    #[test]
    fn what_the_host_sets_ends_what_was_decided() {
        let ground = scheduler(twins());
        let mut worker = worker(&ground, None);
        let action = Action::Policy { name: "twins".to_owned(), window_ns: 2_000_000 };
        worker.carry_out(&ground, &action);
        worker.last = Some((action, 0));
        let since = worker.since;
        worker.notice(&ground);
        assert!(worker.last.is_some() && worker.since == since, "nobody has set anything");
        ground.set_policy(&PolicyConfig::parse("hbrr").unwrap());
        worker.notice(&ground);
        assert!(worker.last.is_none() && worker.since >= since, "clocks that drift would bring it back");
        assert_eq!(worker.seen.in_force.policy, "hbrr");
    }
}
