//! Selectors for whatever has a scheduler: driven by its windows, in a thread of their own, which sleeps while nothing happens.
//!
//! A [`Ground`] is what is chosen for: a volume or a bare scheduler.

#![forbid(unsafe_code)]

mod device;
mod files;
mod ground;
mod patterns;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sluice_adapt::selector::{
    Arm, Change, Device, Explanation, Kind, Load, Pattern, Prior, Record, Selector, Settings, arms,
};
use sluice_core::{EngineConfig, Time};
use sluice_runtime::calling_nobody;

pub use device::{DeviceStatus, Learn, Learning, Limits, SizeStatus, remembered_device, save as save_device};
pub use files::{export, kept, load, read, replace, save, set_aside, set_aside_in_part};
pub use ground::Ground;

use files::{Log, Place};
pub use patterns::Follower;
use patterns::Looker;

/// Length of the windows by which configurations are chosen, in nanoseconds, unless somebody wants another.
pub const WINDOW_NS: u64 = 100_000_000;
/// Engines close their windows within so long of each other.
const GATHER: Duration = Duration::from_millis(5);
/// How often what was learned is kept, if it has changed.
const SAVE_PERIOD: Duration = Duration::from_secs(30);

/// How to choose.
#[derive(Debug, Default)]
pub struct Options {
    /// Who chooses.
    pub kind: Kind,
    /// What the devices are.
    pub device: Device,
    /// The model that is asked, if the kind asks one.
    pub prior: Option<Box<dyn Prior>>,
    /// Where what was learned is kept; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// Where decisions are logged; `None`: nowhere.
    pub log: Option<PathBuf>,
    /// Begin with what was best before, or where nothing is known with what is likeliest for such devices, not with what is in
    /// force.
    pub likeliest_first: bool,
    /// The devices are emulated, as the log says.
    pub emulated: bool,
}

/// What is told of a selector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What it sees, expects, and has decided.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// Somebody has chosen by hand: nothing is decided until that is taken back.
    pub paused: bool,
    /// Windows by which was decided.
    pub windows: u64,
    /// What that took, in microseconds each, with changes of the engines.
    pub decision_us: f64,
    /// Share of the time since the selector began that was spent on it, of a core.
    pub overhead: f64,
    /// Where what was learned is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What a user should know of that: that it cannot be written, or that what was there could not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Where decisions are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// As it is `since` the last window; of changes those since the beginning, in which the first `begun` were made.
fn until_now(told: Explanation, since: Duration, begun: u64) -> Explanation {
    let changes = told.changes.saturating_sub(begun);
    // More digits are those of the arithmetic.
    let rounded = |seconds: f64| (seconds * 1e6).round() / 1e6;
    let later = |ago_s: f64| rounded(ago_s + since.as_secs_f64());
    let last_change = told.last_change.filter(|_| changes > 0);
    Explanation {
        changes,
        last_change: last_change.map(|change| Change { ago_s: later(change.ago_s), ..change }),
        pattern: told.pattern.map(|pattern| Pattern { ago_s: later(pattern.ago_s), ..pattern }),
        lasts_s: rounded(told.lasts_s),
        loaded_s: rounded(told.loaded_s),
        tried_s: rounded(told.tried_s),
        budget_s: rounded(told.budget_s),
        switch_s: rounded(told.switch_s),
        ..told
    }
}

/// As text for people and programs, which need not be that of a file name.
fn shown(path: &Option<PathBuf>) -> Option<String> {
    path.as_deref().map(|path| path.to_string_lossy().into_owned())
}

/// A selector at work. Dropping it ends the work, and keeps what was learned.
pub struct Selection {
    shared: Arc<Shared>,
    bell: SyncSender<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    ends: AtomicBool,
    /// Held while engines are changed: executors that ask are called by other threads meanwhile.
    chooser: Mutex<Chooser>,
}

struct Chooser {
    selector: Selector,
    /// The settings as the host had them.
    host: EngineConfig,
    paused: bool,
    /// End of the last window of each engine that was looked at.
    seen: Vec<Time>,
    /// Requests that had gone by the engines then.
    passed_by: u64,
    /// Looks for access patterns, from the first window on.
    looker: Option<Looker>,
    has_looked: bool,
    log: Option<Log>,
    place: Place,
    is_kept: bool,
    log_path: Option<PathBuf>,
    saves_from: Instant,
    began: Instant,
    /// Changes in which it began where it had ended before.
    begun: u64,
    /// When the selector saw its last window, or began.
    looked: Instant,
    took: Duration,
    windows: u64,
}

impl Selection {
    /// Chooses for `ground` from now on; `None` with [`Kind::Fixed`].
    ///
    /// # Errors
    /// If a model is to be asked and there is none, or the system refuses a thread.
    pub fn start<G: Ground>(ground: &Arc<G>, options: Options) -> anyhow::Result<Option<Selection>> {
        let Options { kind, device, prior, state, log, likeliest_first, emulated } = options;
        if kind == Kind::Fixed {
            return Ok(None);
        }
        let host = ground.limits();
        let all = arms(device, &host);
        let in_force = match all.first().filter(|_| likeliest_first) {
            Some(first) => first.clone(),
            None => Arm::in_force(ground.policy(), &host),
        };
        let mut selector = Selector::new(
            Settings { window_ns: host.window_ns, named_first: !likeliest_first, ..Settings::new(kind, device) },
            all,
            &in_force,
            prior,
        )?;
        let remember = |path: PathBuf| files::remembered(&path, |known| Ok(selector.remember(known)?));
        let place = state.map(remember).unwrap_or_default();
        if likeliest_first {
            selector.begin_where_it_ended();
        }
        let begun = selector.explain().changes;
        let begins = selector.take_record().map(|record| match emulated {
            true => Record { text: "emulated devices".to_owned(), ..record },
            false => record,
        });
        let chooser = Chooser {
            selector,
            host,
            paused: false,
            // Those that closed before are nobody's.
            seen: (0..ground.engines()).map(|at| ground.window(at).map_or(Time::ZERO, |last| last.end)).collect(),
            passed_by: ground.passed_by(),
            looker: None,
            has_looked: false,
            log: log.as_deref().map(|path| Log::new(path, begins.as_ref())),
            place,
            is_kept: true,
            log_path: log,
            saves_from: Instant::now() + SAVE_PERIOD,
            began: Instant::now(),
            begun,
            looked: Instant::now(),
            took: Duration::ZERO,
            windows: 0,
        };
        if likeliest_first {
            chooser.apply(&**ground, chooser.selector.arm());
        }
        let shared = Arc::new(Shared { ends: AtomicBool::new(false), chooser: Mutex::new(chooser) });
        let (bell, rings) = sync_channel(1);
        let (works, weak) = (shared.clone(), Arc::downgrade(ground));
        let thread = std::thread::Builder::new()
            .name("sluice-select".into())
            .spawn(move || work(&works, &weak, &rings))
            .context("no thread for the selector")?;
        let ring = bell.clone();
        // If it has rung already that is enough.
        ground.on_window(Some(Box::new(move || _ = ring.try_send(()))));
        Ok(Some(Selection { shared, bell, thread: Mutex::new(Some(thread)) }))
    }

    /// What it sees and does.
    #[must_use]
    pub fn status(&self) -> Status {
        let chooser = self.shared.chooser.lock();
        Status {
            explanation: until_now(chooser.selector.explain(), chooser.looked.elapsed(), chooser.begun),
            paused: chooser.paused,
            windows: chooser.windows,
            decision_us: chooser.took.as_secs_f64() * 1e6 / chooser.windows.max(1) as f64,
            overhead: chooser.took.as_secs_f64() / chooser.began.elapsed().as_secs_f64().max(1e-9),
            state: shown(&chooser.place.path),
            note: chooser.place.note.clone(),
            log: shown(&chooser.log_path),
        }
    }

    /// Decides nothing until [`Selection::resume`]: somebody chooses by hand, under the host's own limits. `change`: what he does.
    pub fn pause(&self, ground: &impl Ground, change: impl FnOnce()) {
        let mut chooser = self.shared.chooser.lock();
        chooser.paused = true;
        chooser.restore(ground);
        calling_nobody(change);
    }

    /// Goes on with the configuration that was in force before.
    pub fn resume(&self, ground: &impl Ground) {
        let mut chooser = self.shared.chooser.lock();
        if std::mem::take(&mut chooser.paused) {
            chooser.selector.interrupted();
            let arm = chooser.selector.arm().clone();
            chooser.apply(ground, &arm);
        }
    }

    /// Keeps what was learned now, and says where.
    ///
    /// # Errors
    /// If there is no place for it, or it cannot be written.
    pub fn save(&self) -> anyhow::Result<PathBuf> {
        let chooser = self.shared.chooser.lock();
        let path = chooser.place.path.clone().context("what is learned here is not kept: there is no place for it")?;
        save(chooser.selector.knowledge(), &path)?;
        Ok(path)
    }
}

impl Selection {
    /// The devices are something else than was thought, and `limits` are the host's settings for them: from now on other
    /// configurations are there to choose from. What was learned stays.
    pub fn set_device(&self, ground: &impl Ground, device: Device, limits: EngineConfig) {
        let mut chooser = self.shared.chooser.lock();
        chooser.log();
        chooser.host = limits;
        let all = arms(device, &chooser.host);
        chooser.selector.set_device(device, all);
        chooser.change_host(ground);
    }

    /// More is known of the devices: `limits` are the host's settings for them. Where these say for the first time what moving costs, there are
    /// configurations with anticipation to choose from.
    pub fn set_host(&self, ground: &impl Ground, limits: EngineConfig) {
        let mut chooser = self.shared.chooser.lock();
        let device = chooser.selector.knowledge().device;
        let (before, all) = (arms(device, &chooser.host), arms(device, &limits));
        chooser.host = limits;
        if all != before {
            chooser.log();
            chooser.selector.set_device(device, all);
        }
        chooser.change_host(ground);
    }

    /// Decides nothing any more, and keeps what was learned.
    pub fn end(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.shared.ends.store(true, Ordering::SeqCst);
        let _ = self.bell.try_send(());
        // It cannot have panicked without having said so.
        let _ = thread.join();
        let mut chooser = self.shared.chooser.lock();
        chooser.log();
        if chooser.selector.take_unsaved() || !chooser.is_kept {
            chooser.keep();
        }
    }
}

impl Drop for Selection {
    fn drop(&mut self) {
        self.end();
    }
}

/// Decides whenever windows have closed, until the end.
fn work<G: Ground>(shared: &Shared, ground: &Weak<G>, rings: &Receiver<()>) {
    decide(shared, ground, rings);
    if let Some(ground) = ground.upgrade() {
        calling_nobody(|| shared.chooser.lock().look_away(&*ground));
    }
}

fn decide<G: Ground>(shared: &Shared, ground: &Weak<G>, rings: &Receiver<()>) {
    while let Some(rang) = wait(rings, calling_nobody(|| shared.chooser.lock().is_to_save())) {
        if shared.ends.load(Ordering::SeqCst) {
            return;
        }
        if !rang {
            calling_nobody(|| shared.chooser.lock().save_if_due(Instant::now()));
            continue;
        }
        let Some(ground) = ground.upgrade() else { return };
        if ground.engines() > 1 {
            // Others follow at once. One that does not is seen the next time; windows that are shorter never stop.
            let until = Instant::now() + GATHER;
            while let Some(left) = until.checked_duration_since(Instant::now())
                && !shared.ends.load(Ordering::SeqCst)
            {
                if rings.recv_timeout(left).is_err() {
                    break;
                }
            }
            if shared.ends.load(Ordering::SeqCst) {
                return;
            }
        }
        calling_nobody(|| shared.chooser.lock().windows(&*ground));
    }
}

/// Waits until it rings, or, if something `is_to_save`, until it is time for that although it does not; whether it has. None: it never will.
fn wait(rings: &Receiver<()>, is_to_save: bool) -> Option<bool> {
    if !is_to_save {
        return rings.recv().ok().map(|()| true);
    }
    match rings.recv_timeout(SAVE_PERIOD) {
        Ok(()) => Some(true),
        Err(RecvTimeoutError::Timeout) => Some(false),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

impl Chooser {
    /// Whether something was learned that is not kept.
    fn is_to_save(&self) -> bool {
        self.selector.has_unsaved() || !self.is_kept
    }

    /// Keeps what was learned, if it is time for it.
    fn save_if_due(&mut self, now: Instant) {
        if now >= self.saves_from && self.is_to_save() {
            self.selector.take_unsaved();
            self.keep();
            self.saves_from = Instant::now() + SAVE_PERIOD;
        }
    }

    /// Looks at the windows that have closed.
    fn windows(&mut self, ground: &impl Ground) {
        let start = Instant::now();
        let mut load = Load::default();
        for (engine, seen) in self.seen.iter_mut().enumerate() {
            if let Some(window) = ground.window(engine).filter(|window| window.end > *seen) {
                *seen = window.end;
                load.add(&window);
            }
        }
        let passed_by = ground.passed_by();
        let by = passed_by - std::mem::replace(&mut self.passed_by, passed_by);
        // Of a window most of which no engine saw nothing can be said, but that requests are served as they come.
        if self.paused || load.engines == 0 || by > load.completed() {
            self.save_if_due(start);
            return self.look_away(ground);
        }
        self.look(ground, &load);
        self.looked = start;
        if let Some(arm) = self.selector.window(&load).cloned() {
            self.apply(ground, &arm);
        }
        self.log();
        // On a busy disk that takes a while, in which nothing is decided.
        if !self.selector.is_trying() {
            self.save_if_due(start);
        }
        self.windows += 1;
        self.took += start.elapsed();
    }

    /// Looks which pattern there is, if it is time for it.
    fn look(&mut self, ground: &impl Ground, load: &Load) {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.looker = Looker::new(ground);
        }
        let Some(looker) = &mut self.looker else { return };
        if let Some(pattern) = looker.window(ground, load.completed()) {
            self.selector.see(load.end, pattern);
        }
    }

    fn look_away(&mut self, ground: &impl Ground) {
        if let Some(looker) = &mut self.looker {
            looker.end(ground);
        }
    }

    /// The host's settings are others: of the window in which that happens nothing is learned.
    fn change_host(&mut self, ground: &impl Ground) {
        if self.paused {
            return self.restore(ground);
        }
        self.selector.interrupted();
        self.apply(ground, self.selector.arm());
    }

    /// The host's settings, as they are without an arm.
    fn restore(&self, ground: &impl Ground) {
        calling_nobody(|| {
            if let Err(error) = ground.set_limits(&self.host) {
                tracing::warn!("the settings of the host cannot be used: {error}");
            }
        });
    }

    fn apply(&self, ground: &impl Ground, arm: &Arm) {
        calling_nobody(|| {
            if let Err(error) = ground.set_limits(&arm.limits(&self.host)) {
                // The host's own settings with some changes: they were accepted before.
                tracing::warn!("{arm} cannot be used as it is: {error}");
            }
            ground.set_policy(&arm.policy);
        });
        tracing::debug!("{arm} was chosen");
    }

    fn log(&mut self) {
        let records: Vec<_> = std::iter::from_fn(|| self.selector.take_record()).collect();
        if let Some(log) = &mut self.log {
            log.write(&records);
        }
    }

    fn keep(&mut self) {
        self.is_kept = self.place.keep(|path| save(self.selector.knowledge(), path));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::mpsc::{Sender, channel};

    use sluice_adapt::selector::Why;
    use sluice_core::{
        AppId, Batch, ConfigError, FileId, Op, OpFeatures, Outcome, PolicyConfig, Request, TargetId, WindowFeatures,
    };
    use sluice_runtime::{Executor, Monitor, Scheduler, SchedulerConfig, Started};

    use super::*;

    #[test]
    fn times_are_rounded_and_counted_to_now_and_the_beginning_is_no_change() {
        let change = Change { ago_s: 0.5, from: "a".into(), to: "b".into(), why: Why::KnownWorkload };
        let told = Explanation {
            changes: 1,
            lasts_s: 22.900000000000325,
            last_change: Some(change.clone()),
            pattern: Some(Pattern::default()),
            ..Explanation::default()
        };
        let idle = Duration::from_secs(1_800);
        let (begun, changed) = (until_now(told.clone(), idle, 1), until_now(told, idle, 0));
        assert_eq!((begun.changes, begun.last_change), (0, None));
        assert_eq!((changed.changes, changed.last_change), (1, Some(Change { ago_s: 1_800.5, ..change })));
        assert_eq!((changed.pattern.unwrap().ago_s, changed.lasts_s), (1_800.0, 22.9));
    }

    /// Asks how it is with the selector whenever it is called.
    struct Asks(Arc<OnceLock<Selection>>, Mutex<Sender<bool>>);

    impl Executor for Asks {
        fn start(&self, batch: &Batch, started: &Started<'_>) {
            let _ = self.1.lock().send(self.0.get().is_some_and(|selection| selection.status().paused));
            batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
        }

        fn cancelled(&self, _: &Request, _: i32) {}
    }

    /// What was chosen before may have neither anticipation nor the host's depth.
    #[test]
    fn who_chooses_by_hand_has_the_hosts_settings() {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.engine.anticipation = Some(sluice_core::Anticipation::for_device(8_000_000, 100_000_000));
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let host = scheduler.limits();
        let selection = Selection::start(&scheduler, Options { kind: Kind::Bandit, ..Options::default() });
        let selection = selection.unwrap().unwrap();
        scheduler.set_limits(&EngineConfig { anticipation: None, in_flight_max: 1, ..host.clone() }).unwrap();
        selection.pause(&*scheduler, || scheduler.set_policy(&PolicyConfig::parse("hbrr").unwrap()));
        let now = scheduler.limits();
        assert_eq!((now.anticipation, now.in_flight_max), (host.anticipation, host.in_flight_max));
        let deeper = EngineConfig { in_flight_max: host.in_flight_max + 1, ..host };
        selection.set_host(&*scheduler, deeper.clone());
        assert_eq!(scheduler.limits().in_flight_max, deeper.in_flight_max, "also while somebody chooses by hand");
    }

    /// The system says that there is an arm to move, and only what is served, what that costs.
    #[test]
    fn anticipation_is_chosen_from_as_soon_as_it_is_known_what_moving_costs() {
        let config = SchedulerConfig::new(PolicyConfig::parse("hbrr").unwrap());
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let options = Options { kind: Kind::Bandit, device: Device::Disk, ..Options::default() };
        let selection = Selection::start(&scheduler, options).unwrap().unwrap();
        let told = || selection.shared.chooser.lock().selector.take_record().map(|record| record.why);
        let host = scheduler.limits();
        selection.set_host(&*scheduler, EngineConfig { in_flight_max: host.in_flight_max + 1, ..host.clone() });
        assert_eq!(told(), None, "there is nothing else to choose from");
        let anticipation = Some(sluice_core::Anticipation::for_device(8_000_000, 100_000_000));
        selection.set_host(&*scheduler, EngineConfig { anticipation, ..host });
        assert_eq!(told(), Some(sluice_adapt::selector::Why::NewDevice));
    }

    /// Engines of which a window closed before anybody chose.
    struct Used(Scheduler);

    impl Ground for Used {
        fn limits(&self) -> EngineConfig {
            self.0.limits()
        }
        fn policy(&self) -> PolicyConfig {
            self.0.policy()
        }
        fn set_policy(&self, policy: &PolicyConfig) {
            self.0.set_policy(policy);
        }
        fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
            self.0.set_limits(limits)
        }
        fn engines(&self) -> usize {
            2
        }
        fn window(&self, _: usize) -> Option<Arc<WindowFeatures>> {
            let served = OpFeatures { requests: 100, completed: 100, moved: 1 << 20, ..OpFeatures::default() };
            let (end, busy_ns) = (Time(5_000_000_000), 100_000_000);
            Some(Arc::new(WindowFeatures { end, busy_ns, ops: [served, OpFeatures::default()], ..Default::default() }))
        }
        fn on_window(&self, _: Option<Box<dyn Fn() + Send + Sync>>) {}
        fn now(&self) -> Time {
            Time::ZERO
        }
        fn set_monitor(&self, _: usize, _: Option<Box<dyn Monitor>>) -> Option<Box<dyn Monitor>> {
            None
        }
        fn passed_by(&self) -> u64 {
            0
        }
        fn stripe(&self) -> Option<u64> {
            None
        }
        fn scheduler(&self) -> &Scheduler {
            &self.0
        }
    }

    #[test]
    fn windows_from_before_it_began_say_nothing() {
        let config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        let ground = Arc::new(Used(Scheduler::start(config).unwrap()));
        let options = Options { kind: Kind::Bandit, ..Options::default() };
        let selection = Selection::start(&ground, options).unwrap().unwrap();
        let mut chooser = selection.shared.chooser.lock();
        chooser.windows(&*ground);
        assert_eq!((chooser.windows, chooser.selector.knowledge().clock_s), (0, 0.0));
    }

    /// Nobody uses it any more, or somebody chooses by hand: there may be hours until the next window that is looked at.
    #[test]
    fn what_was_learned_is_kept_though_nothing_is_decided() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let scheduler = Arc::new(Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap())).unwrap());
        let options = Options { kind: Kind::Bandit, state: Some(state.clone()), ..Options::default() };
        let selection = Selection::start(&scheduler, options).unwrap().unwrap();
        let mut chooser = selection.shared.chooser.lock();
        (chooser.is_kept, chooser.paused) = (false, true);
        chooser.windows(&*scheduler);
        assert!(!state.exists(), "not yet");
        chooser.saves_from = Instant::now();
        chooser.windows(&*scheduler);
        assert!(state.exists() && !chooser.is_to_save());
    }

    #[test]
    fn an_executor_may_ask_while_the_engines_are_changed() {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.engine.in_flight_max = 1;
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let selection = Arc::new(OnceLock::new());
        let (tell, told) = channel();
        let client = scheduler.attach(Arc::new(Asks(selection.clone(), Mutex::new(tell)))).unwrap();
        let options = Options { kind: Kind::Bandit, ..Options::default() };
        let started = Selection::start(&scheduler, options).unwrap().unwrap();
        let started = selection.get_or_init(|| started);
        let request = |cookie| {
            let (file, app, target) = (FileId(cookie), AppId(0), TargetId(0));
            Request { cookie, file, app, target, op: Op::Read, offset: 0, len: 4096 }
        };
        // As if the change had let them go.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.pause(&*scheduler, || (0..3).for_each(|cookie| client.submit(0, request(cookie)).unwrap()))
            });
            for _ in 0..3 {
                let paused = told.recv_timeout(Duration::from_secs(120));
                if paused.is_err() {
                    eprintln!("HANG: an executor waits for a lock that its thread holds");
                    std::process::exit(77);
                }
                assert_eq!(paused, Ok(true));
            }
        });
        scheduler.wait_empty();
    }
}
