//! Nodes and a coordinator over real connections.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_adapt::orchestrator::{Settings, Slicing};
use sluice_control::serve::{self, serve};
use sluice_control::wire::coordinator_client::CoordinatorClient;
use sluice_control::wire::{self, FromNode};
use sluice_control::{Action, Address, Agent, Directive, Kind, Limits, NodeId, Options, Orchestrator, Role, Seen, To};
use sluice_core::{AppId, Batch, FileId, Op, Outcome, PolicyConfig, Request, TargetId, Time};
use sluice_runtime::{ClockKind, Executor, Scheduler, SchedulerConfig, Started};
use tokio::sync::oneshot;

const TOKEN: &str = "0123456789abcdef0123";
/// Longest time any test waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Wants the same of everybody, as soon as there is anybody, and says so once.
#[derive(Debug)]
struct Wants {
    policy: &'static str,
    window_ns: u64,
    due: Option<Time>,
    has_said: bool,
}

impl Wants {
    fn new(policy: &'static str, window_ns: u64) -> Wants {
        Wants { policy, window_ns, due: None, has_said: false }
    }
}

impl Role for Wants {
    fn kind(&self) -> wire::Role {
        wire::Role::Council
    }
    fn announced(&mut self, now: Time, _: NodeId, seen: &Seen) {
        assert_eq!((seen.kind, seen.servers), (Kind::Forwarder, 4));
        self.due = (!self.has_said).then_some(now);
    }
    fn left(&mut self, _: Time, _: NodeId) {}
    fn due(&self) -> Option<Time> {
        self.due
    }
    fn decide(&mut self, _: Time) -> Vec<Directive> {
        let action = Action::Policy { name: self.policy.to_owned(), window_ns: self.window_ns };
        self.has_said |= self.due.is_some();
        self.due.take().map(|_| Directive { to: To::Every(Kind::Forwarder), action }).into_iter().collect()
    }
    fn save(&self) -> serde_json::Value {
        self.window_ns.into()
    }
    fn load(&mut self, _: Time, saved: serde_json::Value) -> Result<(), String> {
        saved.as_u64().map(drop).ok_or_else(|| "no number".to_owned())
    }
    fn status(&self) -> serde_json::Value {
        self.policy.into()
    }
}

struct Coordinator {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Coordinator {
    fn start(listen: SocketAddr, state: &Path, role: impl Role + 'static) -> Coordinator {
        Coordinator::limited(listen, state, role, Limits::default())
    }

    fn limited(listen: SocketAddr, state: &Path, role: impl Role + 'static, limits: Limits) -> Coordinator {
        let options = serve::Options {
            listen,
            token: Some(TOKEN.to_owned()),
            state: Some(state.to_owned()),
            limits: Limits { idle_ns: 3_000_000_000, ..limits },
            roles: vec![Box::new(role)],
            record: Some(state.join("windows.csv")),
        };
        let ((stop, stopped), (told, address)) = (oneshot::channel::<()>(), channel());
        let ready = move |address, _| {
            told.send(address)?;
            Ok(())
        };
        let thread = std::thread::spawn(move || serve(options, ready, async { _ = stopped.await }));
        let address = address.recv_timeout(PATIENCE).expect("it listens");
        Coordinator { address, stop, thread }
    }

    fn end(self) {
        drop(self.stop);
        self.thread.join().unwrap().unwrap();
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn scheduler(policy: &str) -> Arc<Scheduler> {
    let policy = PolicyConfig::parse(policy).unwrap().with("servers", "4").unwrap().with("node", "3").unwrap();
    Arc::new(Scheduler::start(SchedulerConfig { clock: ClockKind::Realtime, ..SchedulerConfig::new(policy) }).unwrap())
}

/// As of a coordinator that is stopped: the kernel takes connections for it.
#[test]
fn who_takes_a_connection_and_does_not_answer_is_given_up() {
    let silent = std::net::TcpListener::bind(anywhere()).unwrap();
    let address = Address::new(&silent.local_addr().unwrap().to_string(), Some(TOKEN)).unwrap();
    let scheduler = scheduler("twins");
    let agent = Agent::start(&scheduler, Options::new(address, "node-3")).unwrap();
    eventually("it is given up", || agent.status().disconnections > 0);
    assert!(!agent.status().is_connected);
}

#[test]
fn decisions_reach_schedulers_and_the_next_coordinator_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let first = Coordinator::start(anywhere(), dir.path(), Wants::new("twins", 2_000_000));
    let address = Address::new(&first.address.to_string(), Some(TOKEN)).unwrap();
    let scheduler = scheduler("twins");
    let options = Options::new(address.clone(), "node-3");
    let agent = Agent::start(&scheduler, options).unwrap();
    let policy = || scheduler.policy();
    eventually("the decision is carried out", || policy().value("window") == Some(2_000_000));
    assert_eq!((policy().value("node"), policy().value("servers")), (Some(3), Some(4)), "the host's own stay");
    let status = || serve::status(&address, PATIENCE).unwrap();
    eventually("the coordinator knows it", || status()["nodes"][0]["is_current"] == true);
    let (node, incarnation) = (status()["nodes"][0].clone(), status()["incarnation"].as_u64());
    assert_eq!((node["name"].as_str(), node["window_us"].as_f64()), (Some("node-3"), Some(2000.0)), "{node}");
    // Both have the system's clock, as it was when they began.
    eventually("the offset is known", || agent.status().offset_error_us > 0.0);
    let clock = agent.status();
    assert!(clock.offset_us.abs() < 1e6 + clock.offset_error_us, "{clock:?}");
    assert!(policy().value("epoch").unwrap() < 8_000_000, "within a round of windows");
    let recorded = || std::fs::read_to_string(dir.path().join("windows.csv")).unwrap();
    // Names, then what a node sees that was told that somebody wants to know.
    eventually("what it sees is recorded", || {
        recorded().lines().nth(1).is_some_and(|line| line.contains(",node-3,read,twins,"))
    });
    assert!(recorded().starts_with("time_ns,node,op,scheduler,window_ns,requests,paper_files,"));
    let wrong = Address::new(&first.address.to_string(), Some("another-token-of-20")).unwrap();
    assert!(format!("{:#}", serve::status(&wrong, PATIENCE).unwrap_err()).contains("another token"));

    let listen = first.address;
    first.end();
    eventually("that nobody is there is noticed", || !agent.status().is_connected);
    assert_eq!(policy().value("window"), Some(2_000_000), "what is in force stays");
    // Whatever is in its place, it starts.
    std::fs::write(dir.path().join("coordinator.state"), "nonsense").unwrap();
    let second = Coordinator::start(listen, dir.path(), Wants::new("hbrr", 0));
    eventually("the node has found the next one", || policy().name() == "hbrr");
    assert!(status()["incarnation"].as_u64() > incarnation);
    let names = recorded().lines().filter(|line| line.starts_with("time_ns")).count();
    assert_eq!(names, 1, "the next coordinator goes on with the file");
    agent.end();
    eventually("it has said good-bye", || status()["left"] == 1);
    second.end();
    let aside = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!({ aside }.any(|name| name.to_string_lossy().contains("damaged")), "the damaged state is set aside");
}

/// A coordinator that ends waits a moment for connections, and not for sessions: they end properly.
#[test]
fn sessions_end_with_their_coordinator() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ends_properly = || {
        let dir = tempfile::tempdir().unwrap();
        let coordinator = Coordinator::start(anywhere(), dir.path(), Wants::new("hbrr", 0));
        let url = format!("http://{}", coordinator.address);
        let (_open, messages) = tokio::sync::mpsc::channel::<FromNode>(1);
        let mut answers = runtime.block_on(async {
            let mut client = CoordinatorClient::connect(url).await.unwrap();
            let mut request = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(messages));
            request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
            client.session(request).await.unwrap().into_inner()
        });
        let end = std::thread::spawn(move || coordinator.end());
        let last =
            runtime.block_on(async { tokio::time::timeout(PATIENCE, answers.message()).await.expect("it ends") });
        end.join().unwrap();
        matches!(last, Ok(None))
    };
    // A machine that stalls for that moment ends the connection first.
    assert!((0..20).any(|_| ends_properly()));
}

/// Is done with everything at once.
struct AtOnce;

impl Executor for AtOnce {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
    }
    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn data_servers_report_and_serve_one_program_at_a_time_until_the_coordinator_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let even = Settings { slicing: Slicing::Even, window_ns: 200_000_000, ..Settings::paper() };
    let coordinator = Coordinator::start(anywhere(), dir.path(), Orchestrator::new(even));
    let address = Address::new(&coordinator.address.to_string(), Some(TOKEN)).unwrap();
    let policy = PolicyConfig::parse("hbrr").unwrap();
    let config = SchedulerConfig { clock: ClockKind::Realtime, ..SchedulerConfig::new(policy) };
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let client = scheduler.attach(Arc::new(AtOnce)).unwrap();
    let agent = Agent::start(
        &scheduler,
        Options { positioning: Some((60_000, 1 << 30)), ..Options::new(address.clone(), "server-0") },
    )
    .unwrap();
    let slices = || {
        let gate = scheduler.snapshot().shards[0].gate.clone();
        gate.and_then(|gate| gate.plan).map_or(0, |plan| plan.slices.len())
    };
    let submit = || {
        for app in [7, 8] {
            let (file, app, target) = (FileId(app.into()), AppId(app), TargetId(0));
            let request = Request { cookie: 0, file, app, target, op: Op::Read, offset: 0, len: 4_096 };
            client.submit(0, request).unwrap();
        }
    };
    // A plan is for those who have requests: without any it would be over before it was looked at.
    eventually("it follows a plan, and says so", || {
        submit();
        slices() == 3 && agent.status().is_gated
    });
    assert_eq!(agent.status().seek_times, "profile");
    let mut status = serde_json::Value::Null;
    eventually("the coordinator tells the plan", || {
        submit();
        status = serve::status(&address, PATIENCE).unwrap();
        status["roles"]["orchestrator"]["plan"][0]["programs"][0] == "00000007"
    });
    let role = &status["roles"]["orchestrator"];
    assert_eq!((role["servers"].as_u64(), role["phase"].as_str()), (Some(1), Some("keep")), "{status}");
    assert!(status["reports"].as_u64() > Some(0), "{status}");
    coordinator.end();
    eventually("everything is served as it comes", || {
        submit();
        slices() == 0 && !agent.status().is_gated
    });
    agent.end();
    assert!(scheduler.locality(0).is_none(), "nobody measures any more");
}

#[test]
fn who_floods_or_talks_nonsense_is_not_listened_to() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(anywhere(), dir.path(), Wants::new("hbrr", 0));
    let announcement = wire::Announcement {
        kind: wire::Kind::Forwarder.into(),
        servers: 4,
        policy: "twins".into(),
        ..Default::default()
    };
    let message = |name: &str, sequence, said: &wire::Announcement| FromNode {
        name: name.to_owned(),
        incarnation: 1,
        sequence,
        sent_ns: 0,
        what: Some(wire::from_node::What::Announcement(said.clone())),
    };
    let flood: Vec<FromNode> = (1..200).map(|sequence| message("flood", sequence, &announcement)).collect();
    let lie = wire::Announcement { outstanding: f64::NAN, ..announcement.clone() };
    let many = vec![message("a", 1, &announcement), message("b", 1, &announcement)];
    let long = vec![message(&"x".repeat(100_000), 1, &announcement)];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (messages, code) in [
        (flood, tonic::Code::ResourceExhausted),
        (vec![message("lie", 1, &lie)], tonic::Code::InvalidArgument),
        (vec![message("no name", 1, &announcement)], tonic::Code::InvalidArgument),
        (many, tonic::Code::InvalidArgument),
        // It is not even read, so nobody is there to say why.
        (long, tonic::Code::Ok),
    ] {
        let url = format!("http://{}", coordinator.address);
        let told = runtime.block_on(async {
            let mut client = CoordinatorClient::connect(url).await.unwrap();
            let mut request = tonic::Request::new(tokio_stream::iter(messages));
            request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
            let mut answers = client.session(request).await.unwrap().into_inner();
            loop {
                match tokio::time::timeout(PATIENCE, answers.message()).await.expect("it ends") {
                    Ok(Some(_)) => {}
                    Ok(None) => return tonic::Code::Ok,
                    Err(why) => return why.code(),
                }
            }
        });
        assert_eq!(told, code);
    }
    coordinator.end();
}

#[test]
fn joining_anew_gives_no_more_messages_and_who_says_nothing_loses_his_place() {
    let dir = tempfile::tempdir().unwrap();
    // What is used up does not come back while this goes on, however long a busy machine takes for it.
    let limits = Limits { spacing_ns: 3_600_000_000_000, ..Limits::default() };
    let coordinator = Coordinator::limited(anywhere(), dir.path(), Wants::new("hbrr", 0), limits);
    let said = wire::Announcement {
        kind: wire::Kind::Forwarder.into(),
        servers: 4,
        policy: "twins".into(),
        ..Default::default()
    };
    // Each message is of a later life of the node, and of another session: that of a node of its own each, or of the same.
    let message = |name: String, incarnation| FromNode {
        name,
        incarnation,
        sequence: 1,
        sent_ns: 0,
        what: Some(wire::from_node::What::Announcement(said.clone())),
    };
    let anew: Vec<FromNode> = (1..200).map(|life| message("again".to_owned(), life)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("http://{}", coordinator.address);
    let session = async |client: &mut CoordinatorClient<_>, messages: Vec<FromNode>| {
        let mut request = tonic::Request::new(tokio_stream::iter(messages));
        request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
        let mut answers = client.session(request).await?.into_inner();
        let mut count = 0;
        while let Some(answer) = tokio::time::timeout(PATIENCE, answers.message()).await.expect("it ends")? {
            count += usize::from(answer.clock.is_some());
        }
        Ok::<usize, tonic::Status>(count)
    };
    runtime.block_on(async {
        let mut client = CoordinatorClient::connect(url).await.unwrap();
        let flood = session(&mut client, anew).await.unwrap_err();
        assert_eq!(flood.code(), tonic::Code::ResourceExhausted, "{flood}");
        // What the lives before have used up is missing to those that follow, over whichever session.
        let again = session(&mut client, vec![message("again".to_owned(), 1000), message("again".to_owned(), 1001)]);
        assert_eq!(again.await.unwrap_err().code(), tonic::Code::ResourceExhausted);
        let other = session(&mut client, vec![message("other".to_owned(), 1)]).await;
        assert_eq!(other.unwrap(), 1, "others are listened to");
        let mut opened = 0;
        let refused = loop {
            match session(&mut client, Vec::new()).await {
                Ok(_) => opened += 1,
                Err(why) => break why,
            }
            assert!(opened < 1000, "sessions without end from one address");
        };
        assert!(opened > 200 && refused.message().contains("from this address"), "{opened}: {refused}");
    });
    let mut idle = std::net::TcpStream::connect(coordinator.address).unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    let read = std::io::copy(&mut idle, &mut std::io::sink());
    assert!(read.is_ok_and(|bytes| bytes < 1000), "an idle connection is closed");
    coordinator.end();
}
