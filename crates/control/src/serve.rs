//! A coordinator at work: connections, its state's file, its clock. Everything else is [`Coordinator`]'s.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use sluice_core::Time;
use sluice_runtime::{Clock, ClockKind};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Streaming};

use crate::bucket::{Bucket, Rate};
use crate::connect::{Address, MESSAGE_MAX, reason};
use crate::coordinator::{Coordinator, Limits, Refusal, SessionId, Status};
use crate::lines::{self, Peer};
use crate::record::Recorder;
use crate::role::Role;
use crate::state::{from_text, to_text};
use crate::wire::coordinator_client::CoordinatorClient;
use crate::wire::coordinator_server::{Coordinator as Service, CoordinatorServer};
use crate::wire::{FromNode, StatusReply, StatusRequest, ToNode};

/// Answers to a node that does not read them; further ones are lost, and repeated with the next.
const QUEUE: usize = 16;
/// Sessions that may be opened from one address: all nodes of a machine come back at once.
const OPENINGS: Rate = Rate { burst: 256, spacing_ns: 100_000_000 };
/// Addresses that are remembered for that, before those that have been quiet are forgotten.
const ADDRESSES: usize = 4096;
/// Connections beside those of sessions: who asks for the status, and who has yet to say what he wants.
const OTHERS: usize = 64;
/// How often what was learned is kept, if it has changed.
const SAVE_PERIOD: Duration = Duration::from_secs(2);
/// How long connections may take to end.
const END: Duration = Duration::from_secs(1);
/// Of the status of thousands of nodes.
const STATUS_MAX: usize = 64 << 20;

/// How to coordinate.
#[derive(Debug)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// What whoever connects must have; `None`: whoever reaches the port is let in.
    pub token: Option<String>,
    /// Where the state is kept: a directory that one coordinator at a time has; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// What nodes may ask for.
    pub limits: Limits,
    /// What is done for them.
    pub roles: Vec<Box<dyn Role>>,
    /// Where what nodes recognise patterns by is added (CSV), a line for each announcement; `None`: nowhere, and they do not tell it.
    pub record: Option<PathBuf>,
}

/// What tasks share.
struct Hub {
    coordinator: Coordinator,
    sessions: HashMap<SessionId, mpsc::Sender<Result<ToNode, tonic::Status>>>,
    sessions_max: usize,
    opened: u64,
    /// Sessions that each address may still open.
    openings: HashMap<IpAddr, Bucket>,
}

impl Hub {
    /// Whether this address may open another session.
    fn may_open(&mut self, address: IpAddr, now: Time) -> bool {
        if self.openings.len() >= ADDRESSES {
            self.openings.retain(|_, bucket| !bucket.is_full(OPENINGS, now));
        }
        self.openings.entry(address).or_insert_with(|| Bucket::new(OPENINGS, now)).take(OPENINGS, now)
    }

    /// Sends what there is to send.
    fn pump(&mut self, now: Time) {
        while let Some((session, message)) = self.coordinator.take_answer(now) {
            if let Some(out) = self.sessions.get(&session) {
                // What does not fit is lost, as if the network had lost it.
                let _ = out.try_send(Ok(message));
            }
        }
    }
}

struct Shared {
    hub: Mutex<Hub>,
    clock: Clock,
    token: Option<String>,
    recorder: Option<Mutex<Recorder>>,
    /// Something may be due earlier than was thought.
    sooner: Notify,
}

impl Shared {
    fn check<T>(&self, request: &Request<T>) -> Result<(), tonic::Status> {
        let Some(token) = &self.token else { return Ok(()) };
        let given = request.metadata().get("authorization").and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        // In the same time wherever they differ.
        if given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes()))) {
            return Ok(());
        }
        Err(tonic::Status::unauthenticated("the token is missing, or another one"))
    }

    /// Listens to a node until either side ends that; why it was ended here, if it was.
    async fn listen(
        &self,
        session: SessionId,
        mut incoming: Streaming<FromNode>,
        limits: Limits,
    ) -> Option<tonic::Status> {
        let mut name: Option<String> = None;
        let silence = Duration::from_nanos(limits.silence_ns);
        let mut bucket = Bucket::new(limits.rate(), self.clock.now());
        loop {
            let message = match tokio::time::timeout(silence, incoming.message()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None) | Err(_)) => return None,
                Err(_) => return Some(tonic::Status::deadline_exceeded("nothing was announced")),
            };
            if *name.get_or_insert_with(|| message.name.clone()) != message.name {
                return Some(tonic::Status::invalid_argument("a session is of one node"));
            }
            let now = self.clock.now();
            let mut hub = self.hub.lock();
            let due = hub.coordinator.next();
            // Whatever it says it is: a node that joins again and again is bounded by its session.
            if !bucket.take(limits.rate(), now) {
                hub.coordinator.refused();
                return Some(tonic::Status::resource_exhausted(Refusal::Flood.to_string()));
            }
            if let Err(why) = hub.coordinator.receive(now, session, &message) {
                drop(hub);
                tracing::warn!("the node {:?} is not listened to: {why}", message.name);
                let text = why.to_string();
                return Some(match why {
                    Refusal::Name | Refusal::Value(_) => tonic::Status::invalid_argument(text),
                    Refusal::Full(_) | Refusal::Flood => tonic::Status::resource_exhausted(text),
                });
            }
            hub.pump(now);
            if hub.coordinator.next() < due {
                self.sooner.notify_one();
            }
            drop(hub);
            if let Some(recorder) = &self.recorder {
                recorder.lock().write(now, &message);
            }
        }
    }

    /// Lets the coordinator do what is due, for ever.
    async fn tick(&self) {
        loop {
            let wait = {
                let mut hub = self.hub.lock();
                let now = self.clock.now();
                hub.coordinator.tick(now);
                hub.pump(now);
                hub.coordinator.next().since(now)
            };
            tokio::select! {
                () = tokio::time::sleep(Duration::from_nanos(wait)) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    fn status(&self) -> Status {
        self.hub.lock().coordinator.status(self.clock.now())
    }
}

struct Front(Arc<Shared>);

#[tonic::async_trait]
impl Service for Front {
    type SessionStream = ReceiverStream<Result<ToNode, tonic::Status>>;

    async fn session(
        &self,
        request: Request<Streaming<FromNode>>,
    ) -> Result<Response<Self::SessionStream>, tonic::Status> {
        self.0.check(&request)?;
        let (out, answers) = mpsc::channel(QUEUE);
        let peer = request.extensions().get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| tonic::Status::internal("a connection without an address"))?;
        let (id, limits) = {
            let mut hub = self.0.hub.lock();
            if !hub.may_open(peer.address.ip(), self.0.clock.now()) {
                return Err(tonic::Status::resource_exhausted("too many sessions were opened from this address"));
            }
            if hub.sessions.len() >= hub.sessions_max {
                return Err(tonic::Status::resource_exhausted("there are too many sessions"));
            }
            hub.opened += 1;
            let id = SessionId(hub.opened);
            // Nobody else keeps one: the stream ends when this is taken away.
            hub.sessions.insert(id, out);
            (id, hub.coordinator.limits())
        };
        let (shared, incoming, busy) = (self.0.clone(), request.into_inner(), peer.busy());
        tokio::spawn(async move {
            let _busy = busy;
            let why = shared.listen(id, incoming, limits).await;
            let out = shared.hub.lock().sessions.get(&id).cloned();
            if let (Some(why), Some(out)) = (why, out) {
                // Behind the answers that it has not read yet, if it reads at all.
                let _ = tokio::time::timeout(END, out.send(Err(why))).await;
            }
            shared.hub.lock().sessions.remove(&id);
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusReply>, tonic::Status> {
        self.0.check(&request)?;
        // Names and finite numbers.
        let status = serde_json::to_value(self.0.status()).unwrap_or_default();
        Ok(Response::new(StatusReply { json: status.to_string() }))
    }
}

/// The state's file, and the lock of its directory while this lives.
struct Store {
    path: PathBuf,
    _lock: File,
}

impl Store {
    fn open(dir: &Path) -> anyhow::Result<Store> {
        let shown = || dir.display().to_string();
        std::fs::create_dir_all(dir).with_context(shown)?;
        let lock = File::create(dir.join("lock")).with_context(shown)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{}: another coordinator has its state there", dir.display()))?;
        Ok(Store { path: dir.join("coordinator.state"), _lock: lock })
    }

    /// Gives the coordinator what was kept. What cannot be used gets another name, and whose it is starts with nothing.
    fn load(&self, coordinator: &mut Coordinator) -> anyhow::Result<()> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| self.path.display().to_string()),
        };
        let aside = match from_text(&text) {
            Err(why) => sluice_select::set_aside(&self.path, &anyhow::Error::new(why)),
            Ok(state) => match coordinator.load(&state) {
                Ok(()) => return Ok(()),
                Err(why) if why.in_part => sluice_select::set_aside_in_part(&self.path, &anyhow::Error::new(why)),
                Err(why) => sluice_select::set_aside(&self.path, &anyhow::Error::new(why)),
            },
        };
        aside.map(drop).context("the state cannot be used, and cannot be set aside")
    }
}

/// Looks at a coordinator at work.
#[derive(Clone)]
pub struct Watch(Arc<Shared>);

impl Watch {
    /// What it knows.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status()
    }
}

/// Coordinates until `stop` is ready. `ready` is called with the address when nodes can connect.
///
/// # Errors
/// If the address cannot be listened at, the state's directory cannot be used, or `ready` fails.
pub fn serve(
    options: Options,
    ready: impl FnOnce(SocketAddr, Watch) -> anyhow::Result<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let Options { listen, token, state, limits, roles, record } = options;
    let clock = Clock::new(ClockKind::Realtime);
    let now = clock.now();
    let recorder = record.as_deref().map(Recorder::open).transpose()?;
    let mut coordinator = Coordinator::new(limits, now.0, roles, now).recording(recorder.is_some());
    let store = state.as_deref().map(Store::open).transpose()?;
    if let Some(store) = &store {
        store.load(&mut coordinator)?;
        // The next one must know that there was this one, however it ends.
        keep(&store.path, &to_text(&coordinator.save()))?;
    }
    let sessions_max = limits.nodes_max.saturating_mul(2);
    let connections_max = lines::room(sessions_max.saturating_add(OTHERS));
    let hub = Hub { coordinator, sessions: HashMap::new(), sessions_max, opened: 0, openings: HashMap::new() };
    let shared = Arc::new(Shared {
        hub: Mutex::new(hub),
        clock,
        token,
        recorder: recorder.map(Mutex::new),
        sooner: Notify::new(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let result = runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("{listen} cannot be listened at"))?;
        ready(listener.local_addr().context("the address listened at")?, Watch(shared.clone()))?;
        work(
            &shared,
            lines::accept(listener, connections_max, Duration::from_nanos(limits.idle_ns)),
            store.as_ref(),
            stop,
        )
        .await
    });
    // Whatever is left of connections ends here.
    drop(runtime);
    if let Some(store) = &store {
        keep(&store.path, &to_text(&shared.hub.lock().coordinator.save()))?;
    }
    result
}

/// Ready at SIGINT or SIGTERM, which end nothing any more once this is waited for.
pub async fn interrupted() {
    let caught = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = caught else {
        tracing::warn!("signals cannot be caught: they end this process at once");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn keep(path: &Path, text: &str) -> anyhow::Result<()> {
    sluice_select::replace(path, text.as_bytes()).context("what was learned cannot be kept")
}

async fn work(
    shared: &Arc<Shared>,
    incoming: ReceiverStream<std::io::Result<lines::Line>>,
    store: Option<&Store>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let service = CoordinatorServer::new(Front(shared.clone())).max_decoding_message_size(MESSAGE_MAX);
    // A node has one session; whoever asks for the status one more.
    let server = Server::builder()
        .max_concurrent_streams(8)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)));
    let ends = Arc::new(Notify::new());
    let ended = ends.clone();
    let serving = server.serve_with_incoming_shutdown(service, incoming, async move { ended.notified().await });
    let mut serving: Pin<Box<dyn Future<Output = _>>> = Box::pin(serving);
    tokio::select! {
        result = &mut serving => return result.context("serving nodes failed"),
        () = shared.tick() => {}
        () = save(shared, store) => {}
        () = stop => {}
    }
    ends.notify_one();
    // Their streams end with that.
    shared.hub.lock().sessions.clear();
    let _ = tokio::time::timeout(END, serving).await;
    Ok(())
}

/// Keeps what was learned now and then, for ever.
async fn save(shared: &Shared, store: Option<&Store>) {
    let mut kept = String::new();
    loop {
        tokio::time::sleep(SAVE_PERIOD).await;
        let Some(store) = store else { continue };
        let text = to_text(&shared.hub.lock().coordinator.save());
        if text == kept {
            continue;
        }
        let (path, copy) = (store.path.clone(), text.clone());
        // Disks may take their time, nodes need not wait for them.
        match tokio::task::spawn_blocking(move || keep(&path, &copy)).await {
            Ok(Ok(())) => kept = text,
            Ok(Err(why)) => tracing::warn!("{why:#}"),
            Err(_) => return,
        }
    }
}

/// Asks a coordinator for its status: an object as `docs/status.md` explains it.
///
/// # Errors
/// If it cannot be reached, or wants another token.
pub fn status(address: &Address, patience: Duration) -> anyhow::Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let ask = async {
        let mut client = CoordinatorClient::new(address.connect().await?).max_decoding_message_size(STATUS_MAX);
        client.status(address.request(StatusRequest {})).await
    };
    let answer = runtime.block_on(async { tokio::time::timeout(patience, ask).await });
    // A name that is being looked up is not waited for.
    runtime.shutdown_background();
    let answer = answer.map_err(|_| anyhow::anyhow!("it does not answer")).and_then(|answer| {
        let reply = answer.map_err(|why| anyhow::anyhow!(reason(&why)))?;
        serde_json::from_str(&reply.into_inner().json).context("it answers something else")
    });
    answer.with_context(|| format!("the coordinator {}", address.text()))
}
