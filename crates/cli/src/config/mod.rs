//! What a mount is to be: the defaults, then the configuration file, then the command line.

mod anticipation;
mod file;
mod keys;
pub(crate) mod value;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_adapt::device::Estimate;
use sluice_adapt::selector::{Device, Kind, Model};
use sluice_core::{EngineConfig, PolicyConfig};
use sluice_fuse::MountOptions;
use sluice_runtime::{RecordOptions, VolumeConfig};
use sluice_storage::striped::FirstTarget;

pub(crate) use anticipation::Anticipate;
pub(crate) use file::read;
pub(crate) use keys::predict_hint;

use crate::{model, predict};

/// The algorithm of a mount that names none and has none chosen for it: the best all-rounder of those that `sluice demo` measures.
const DEFAULT_POLICY: &str = "hbrr";
/// In the place of an algorithm's name: it is chosen while the mount is in use.
pub(crate) const ADAPTIVE: &str = "adaptive";
/// Why that is given none.
pub(crate) const ADAPTIVE_HAS_NONE: &str = "adaptive has no parameters: whoever chooses sets those of the algorithm";
/// Who chooses the configuration of a mount that says neither who nor which.
pub(crate) const DEFAULT_SELECTOR: Kind = Kind::Bandit;
/// Batches in flight for each hard disk. A disk orders what it has by the position of its arm better than anybody else
/// can, so it gets some to choose from; what waits behind these is aggregated and ordered by the algorithm. With 2,
/// `sluice demo --in-flight 2` shows algorithms that do not aggregate far behind the disk's own queue; from 8 to 16 little
/// is left to aggregate.
const DISK_IN_FLIGHT: u32 = 8;

/// Characters of a node's name, at most.
const NODE_NAME: usize = 64;

/// What the storage's devices are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// As the emulated model or the system says.
    #[default]
    Auto,
    /// Hard disks.
    Disk,
    /// Anything without an arm that moves.
    Flash,
}

/// Where what is to be known of the device comes from, if no file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Profiling {
    /// From what it serves, where nobody says what it is and somebody chooses by it.
    #[default]
    Default,
    /// From what it serves, whatever an emulated model says.
    Auto,
    /// From nowhere.
    Off,
}

/// A disk with an SSD before it (docs/tier.md).
#[derive(Clone, Debug, Default)]
pub(crate) struct TierSettings {
    pub(crate) disk: Option<PathBuf>,
    pub(crate) ssd: Option<PathBuf>,
    /// What the only file of the mount is called; `None`: as the disk.
    pub(crate) file: Option<String>,
    pub(crate) config: sluice_tier::Config,
}

/// Everything that can be set about a mount.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) source: Option<PathBuf>,
    pub(crate) mountpoint: Option<PathBuf>,
    pub(crate) mount: MountOptions,
    /// Directories of a striped volume; empty for a plain directory.
    pub(crate) targets: Vec<PathBuf>,
    pub(crate) stripe: Option<u64>,
    pub(crate) first_target: Option<FirstTarget>,
    pub(crate) direct: bool,
    /// An SSD before a disk, which is then all that is mounted.
    pub(crate) tier: TierSettings,
    /// Model of the emulated devices.
    pub(crate) emulate: Option<String>,
    pub(crate) seed: u64,
    pub(crate) device: DeviceKind,
    pub(crate) profiling: Profiling,
    /// The algorithm, if somebody names one.
    pub(crate) policy: Option<String>,
    pub(crate) params: Vec<(String, String)>,
    /// Who chooses the algorithm and its like, if somebody says so: see [`Settings::selector`].
    pub(crate) selector: Option<Kind>,
    /// The file of the model that it asks; `None`: the shipped one.
    pub(crate) model: Option<PathBuf>,
    /// Where what the selector has learned is kept, and where its decisions are logged.
    pub(crate) learned: Option<PathBuf>,
    pub(crate) decisions: Option<PathBuf>,
    /// Length of the windows of the statistics; `None`: as the selector wants it.
    pub(crate) window_ns: Option<u64>,
    /// Batches in flight for each target; `None`: by the kind of device.
    pub(crate) in_flight: Option<u32>,
    pub(crate) anticipation: Anticipate,
    /// Whether syncs are put off a little so that several go together.
    pub(crate) group_commit: Anticipate,
    /// Everything else about the scheduler; its algorithm and limit in flight are the fields above.
    pub(crate) volume: VolumeConfig,
    /// Where to record every request from the start.
    pub(crate) record: Option<PathBuf>,
    pub(crate) recording: RecordOptions,
    /// What to predict from.
    pub(crate) predict: predict::Source,
    pub(crate) prediction: predict::Options,
    /// The coordinator that chooses, the file of its secret, and the mount's name there.
    pub(crate) coordinator: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) node: Option<String>,
    /// Where metrics are told.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) log: Option<PathBuf>,
    /// `None`: warnings at a terminal, else `info`.
    pub(crate) log_level: Option<tracing::Level>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            source: None,
            mountpoint: None,
            mount: MountOptions::default(),
            targets: Vec::new(),
            stripe: None,
            first_target: None,
            direct: false,
            tier: TierSettings::default(),
            emulate: None,
            seed: 1,
            device: DeviceKind::default(),
            profiling: Profiling::default(),
            policy: None,
            params: Vec::new(),
            selector: None,
            model: None,
            learned: None,
            decisions: None,
            window_ns: None,
            in_flight: None,
            anticipation: Anticipate::default(),
            group_commit: Anticipate::default(),
            volume: VolumeConfig::default(),
            record: None,
            recording: RecordOptions::default(),
            predict: predict::Source::default(),
            prediction: predict::Options::default(),
            coordinator: None,
            token_file: None,
            node: None,
            metrics: None,
            log: None,
            log_level: None,
        }
    }
}

impl Settings {
    /// Files that are opened while it is mounted are found from where this process is now, wherever it goes.
    ///
    /// # Errors
    /// If the current directory is not known, or a path is empty.
    pub(crate) fn stay_here(&mut self) -> std::io::Result<()> {
        let single = [
            &mut self.model,
            &mut self.learned,
            &mut self.decisions,
            &mut self.record,
            &mut self.log,
            &mut self.prediction.profile,
            &mut self.prediction.state,
        ];
        let traces = match &mut self.predict {
            predict::Source::Files(files) => files.as_mut_slice(),
            _ => &mut [],
        };
        for path in single.into_iter().flatten().chain(traces) {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }

    /// Sets one key by the text given to a command-line option.
    ///
    /// # Errors
    /// If the value cannot be used.
    pub(crate) fn set(&mut self, section: &str, key: &str, texts: &[String], option: &str) -> anyhow::Result<()> {
        let given = value::Given { texts: texts.to_vec(), base: Path::new("") };
        let key = keys::find(section, key).expect("options name keys of the table");
        (key.set)(self, &given)
            .map_err(|expected| anyhow::anyhow!("{option} {}: cannot be used; expected {expected}", texts.join(" ")))
    }

    /// The algorithm with its parameters.
    ///
    /// # Errors
    /// If there is no such algorithm, or it has no such parameter; if one is to be chosen, and something is said that only holds for
    /// one that is named.
    pub(crate) fn policy(&self) -> anyhow::Result<PolicyConfig> {
        if self.is_adaptive() {
            anyhow::ensure!(self.params.is_empty(), ADAPTIVE_HAS_NONE);
            anyhow::ensure!(
                self.selector != Some(Kind::Fixed),
                "policy {ADAPTIVE} and selector {}: the one says that an algorithm is chosen, the other that none is; keep one",
                Kind::Fixed
            );
        }
        policy(self.policy_name(), &self.params)
    }

    /// Somebody said that the algorithm is to be chosen.
    fn is_adaptive(&self) -> bool {
        self.policy.as_deref() == Some(ADAPTIVE)
    }

    /// The algorithm's name.
    fn policy_name(&self) -> &str {
        self.policy.as_deref().filter(|name| *name != ADAPTIVE).unwrap_or(DEFAULT_POLICY)
    }

    /// Nobody named an algorithm or its parameters.
    pub(crate) fn names_no_policy(&self) -> bool {
        self.is_adaptive() || (self.policy.is_none() && self.params.is_empty())
    }

    /// What is to be listened to, if anything.
    ///
    /// # Errors
    /// If a selector was named, too, or the address or the secret is no good.
    pub(crate) fn coordination(&self, mountpoint: &Path) -> anyhow::Result<Option<sluice_control::Options>> {
        let Some(address) = &self.coordinator else {
            anyhow::ensure!(self.token_file.is_none(), "coordinator.token_file: there is no coordinator.address");
            return Ok(None);
        };
        anyhow::ensure!(
            self.selector() == Kind::Fixed,
            "coordinator and selector ({}) would both choose the algorithm: keep one",
            self.selector()
        );
        let token = self.token_file.as_deref().map(sluice_control::read_token).transpose()?;
        let address = sluice_control::Address::new(address, token.as_deref())?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.node.clone().unwrap_or_else(|| node_name(&host, &crate::control::key(mountpoint)));
        anyhow::ensure!(
            name.chars().count() <= NODE_NAME,
            "coordinator.node: {name:?} is longer than {NODE_NAME} characters"
        );
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-:/".contains(c);
        Ok(Some(sluice_control::Options {
            address,
            name: name.chars().map(|c| if fits(c) { c } else { '_' }).collect(),
            positioning: self.prediction.profile.as_deref().map(sluice_predict::positioning).transpose()?,
            announced: None,
            own: None,
        }))
    }

    /// Who chooses: whoever was named. If nobody was, an algorithm that was named stays, and where none was one is chosen.
    pub(crate) fn selector(&self) -> Kind {
        let nobody_else = self.is_adaptive() || (self.names_no_policy() && self.coordinator.is_none());
        self.selector.unwrap_or(if nobody_else { DEFAULT_SELECTOR } else { Kind::Fixed })
    }

    /// The model that the selector asks, if it asks one.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, of another version, or made for something else.
    pub(crate) fn prior(&self) -> anyhow::Result<Option<Model>> {
        if !self.selector().asks_model() {
            return Ok(None);
        }
        let Some(path) = &self.model else { return Ok(Some(Model::shipped()?)) };
        Ok(Some(model::read(path)?))
    }

    /// What a selector knows of the devices. `disks`: they are hard disks.
    pub(crate) fn selected_device(&self, disks: bool) -> Device {
        match (disks, self.device, &self.emulate) {
            (true, ..) => Device::Disk,
            (false, DeviceKind::Auto, Some(_)) if self.profiling == Profiling::Auto => Device::Unknown,
            (false, DeviceKind::Flash, _) | (false, _, Some(_)) => Device::Flash,
            (false, ..) => Device::Unknown,
        }
    }

    /// Whether the device is learned from what it serves.
    pub(crate) fn learns_device(&self) -> bool {
        let is_open = self.prediction.profile.is_none() && self.emulate.is_none() && self.device == DeviceKind::Auto;
        match self.profiling {
            Profiling::Default => is_open && self.selector() != Kind::Fixed,
            Profiling::Auto => true,
            Profiling::Off => false,
        }
    }

    /// The settings of the engines for devices of which so much was learned, each engine's of so many targets.
    pub(crate) fn learned_limits(&self, config: &EngineConfig, targets: u32, learned: &Estimate) -> EngineConfig {
        let is_disk = match learned.device {
            Device::Unknown => return config.clone(),
            device => device == Device::Disk,
        };
        let mut limits = config.clone();
        if self.anticipation == Anticipate::Auto {
            limits.anticipation = anticipation::of_learned(learned).filter(|_| is_disk);
        }
        if self.in_flight.is_none() {
            limits.in_flight_max = if is_disk { DISK_IN_FLIGHT.saturating_mul(targets) } else { 0 };
        }
        limits
    }

    /// What moving costs the devices, if syncs may be put off for each other on them. `disks`: they are hard disks.
    ///
    /// # Errors
    /// If the device's profile or model cannot be read.
    pub(crate) fn group_commit(&self, disks: bool) -> anyhow::Result<Option<Duration>> {
        anticipation::of_syncs(self, disks)
    }

    /// The same for a device of which so much was learned; `None`: as before.
    pub(crate) fn learned_group_commit(&self, learned: &Estimate) -> Option<Option<Duration>> {
        if self.group_commit != Anticipate::Auto || learned.device == Device::Unknown {
            return None;
        }
        let known = anticipation::of_learned(learned).filter(|_| learned.device == Device::Disk);
        Some(known.map(|known| Duration::from_nanos(known.positioning_ns)))
    }

    /// The scheduler's configuration, for a storage with so many targets on such devices.
    ///
    /// # Errors
    /// As [`Settings::policy`], and if the device's profile or model cannot be read.
    pub(crate) fn volume_config(&self, targets: u32, disks: bool) -> anyhow::Result<VolumeConfig> {
        let policy = policy_for(self.policy_name(), &self.params, targets)?;
        let shared = match self.volume.engines {
            sluice_runtime::Engines::Auto => policy.info().shared_engine,
            sluice_runtime::Engines::PerTarget => false,
            sluice_runtime::Engines::Shared => true,
        };
        let each = self.in_flight.unwrap_or(if disks { DISK_IN_FLIGHT } else { 0 });
        let mut config = VolumeConfig { policy, ..self.volume.clone() };
        let is_watched = self.selector() != Kind::Fixed || self.coordinator.is_some();
        let usual = if !is_watched { config.engine.window_ns } else { sluice_select::WINDOW_NS };
        config.engine.window_ns = self.window_ns.unwrap_or(usual);
        config.engine.anticipation = anticipation::of(self)?;
        config.engine.in_flight_max = if shared { each.saturating_mul(targets) } else { each };
        Ok(config)
    }
}

/// How a selector chooses for such devices.
pub(crate) fn selection(kind: Kind, device: Device) -> sluice_select::Options {
    sluice_select::Options { kind, device, ..Default::default() }
}

/// The section of a key that a mount option sets by its name alone.
pub(crate) fn section_of(key: &str) -> Option<&'static str> {
    keys::KEYS.iter().find(|known| known.name == key).map(|known| known.section)
}

/// The names of all keys.
pub(crate) fn key_names() -> impl Iterator<Item = &'static str> {
    keys::KEYS.iter().map(|key| key.name)
}

/// An algorithm by name, with parameters; unknown names are answered with the nearest.
///
/// # Errors
/// If there is no such algorithm or parameter, or a value cannot be used.
pub(crate) fn policy(name: &str, params: &[(String, String)]) -> anyhow::Result<PolicyConfig> {
    let mut config = PolicyConfig::parse(name).map_err(|error| {
        // Wherever algorithms are named, this may be said instead.
        let known = error.known().into_iter().chain([ADAPTIVE]);
        anyhow::anyhow!("{error}, or {ADAPTIVE}{}", sluice_notation::hint(name, known))
    })?;
    for (key, value) in params {
        config = config.with(key, value).map_err(|error| {
            let base = key.split('.').next().unwrap_or(key);
            anyhow::anyhow!("{error}{}", sluice_notation::hint(base, error.known()))
        })?;
    }
    Ok(config)
}

/// As [`policy`], for a volume with so many targets: an algorithm that coordinates servers is told their number, unless the
/// user did.
///
/// # Errors
/// As [`policy`].
pub(crate) fn policy_for(name: &str, params: &[(String, String)], targets: u32) -> anyhow::Result<PolicyConfig> {
    const SERVERS: &str = "servers";
    let config = policy(name, params)?;
    let open = config.info().params.iter().any(|param| param.key == SERVERS) && !params.iter().any(|p| p.0 == SERVERS);
    // With more targets than the algorithm can tell apart its own default stays.
    let told = open.then(|| config.clone().with(SERVERS, &targets.to_string()).ok()).flatten();
    Ok(told.unwrap_or(config))
}

/// `KEY=VALUE` from the command line.
///
/// # Errors
/// If there is no `=`.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE, like wait_time=900us")),
    }
}

/// A mount's name among all nodes of a coordinator: of a long host's name the beginning, and a hash of all, so that neither the hosts nor
/// the mounts of one become the same node.
fn node_name(host: &str, key: &str) -> String {
    let room = NODE_NAME.saturating_sub(key.len() + 1);
    if host.chars().count() <= room {
        return format!("{host}:{key}");
    }
    let hash = sluice_storage::fnv1a(host.as_bytes()) as u32;
    let first: String = host.chars().take(room.saturating_sub(9)).collect();
    format!("{first}-{hash:08x}:{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_daemon_are_found_wherever_it_goes() {
        let mut settings = Settings::default();
        for (section, key) in
            [("scheduler", "learned"), ("log", "file"), ("prediction", "state"), ("prediction", "predict")]
        {
            settings.set(section, key, &["some.file".to_owned()], "a test").unwrap();
        }
        settings.set("trace", "record", &["/x/trace".to_owned()], "a test").unwrap();
        settings.stay_here().unwrap();
        let here = std::env::current_dir().unwrap().join("some.file");
        assert_eq!(settings.learned.as_ref(), Some(&here));
        assert_eq!(settings.log.as_ref(), Some(&here));
        assert_eq!(settings.prediction.state.as_ref(), Some(&here));
        assert_eq!(settings.predict, predict::Source::Files(vec![here]));
        assert_eq!(settings.record.as_deref(), Some(Path::new("/x/trace")));
    }

    #[test]
    fn the_default_algorithm_exists() {
        Settings::default().policy().unwrap();
    }

    #[test]
    fn who_names_an_algorithm_keeps_it_and_who_names_none_has_one_chosen() {
        let with = |set: fn(&mut Settings)| {
            let mut settings = Settings::default();
            set(&mut settings);
            settings.selector()
        };
        assert_eq!(with(|_| {}), DEFAULT_SELECTOR);
        assert_eq!(with(|s| s.policy = Some(DEFAULT_POLICY.to_owned())), Kind::Fixed, "also the default one");
        assert_eq!(with(|s| s.params = vec![("ranges".to_owned(), "4".to_owned())]), Kind::Fixed);
        assert_eq!(with(|s| s.selector = Some(Kind::Fixed)), Kind::Fixed);
        let both = |s: &mut Settings| (s.policy, s.selector) = (Some("sjf".to_owned()), Some(Kind::Bandit));
        assert_eq!(with(both), Kind::Bandit);
    }

    #[test]
    fn adaptive_stands_for_naming_none_and_takes_nothing_that_is_for_one() {
        let with = |set: fn(&mut Settings)| {
            let mut settings = Settings { policy: Some(ADAPTIVE.to_owned()), ..Settings::default() };
            set(&mut settings);
            settings
        };
        let plain = with(|_| {});
        assert!(plain.names_no_policy() && plain.selector() == DEFAULT_SELECTOR);
        assert_eq!(plain.policy().unwrap(), Settings::default().policy().unwrap());
        assert_eq!(plain.volume_config(2, true).unwrap().policy.name(), DEFAULT_POLICY);
        assert_eq!(with(|s| s.selector = Some(Kind::Tree)).selector(), Kind::Tree);
        let refused = |set| with(set).policy().unwrap_err().to_string();
        let params = refused(|s| s.params = vec![("ranges".to_owned(), "4".to_owned())]);
        assert!(params.contains("adaptive has no parameters"), "{params}");
        let fixed = refused(|s| s.selector = Some(Kind::Fixed));
        assert!(fixed.contains("policy adaptive and selector fixed"), "{fixed}");
        let coordinated = with(|s| s.coordinator = Some("localhost:1".to_owned()));
        let error = coordinated.coordination(Path::new("/mnt")).err().unwrap().to_string();
        assert!(error.contains("would both choose"), "{error}");
    }

    #[test]
    fn long_names_of_nodes_stay_different_and_those_that_were_said_are_not_cut() {
        let keys = ["a", "b"].map(|end| crate::control::key(Path::new(&format!("/mnt/{}{end}", "x".repeat(40)))));
        let hosts = ["1", "2"].map(|end| format!("{}{end}", "ü".repeat(60)));
        let names: Vec<String> =
            keys.iter().flat_map(|key| hosts.iter().map(move |host| node_name(host, key))).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(name.chars().count() == NODE_NAME && !names[..at].contains(name), "{names:?}");
        }
        assert_eq!(node_name("login-1", "scratch-0123456789abcdef"), "login-1:scratch-0123456789abcdef");
        let said = |node: String| {
            let coordinator = Some("localhost:1".to_owned());
            let settings =
                Settings { policy: Some("twins".to_owned()), coordinator, node: Some(node), ..Settings::default() };
            settings.coordination(Path::new("/mnt"))
        };
        assert!(said("n".repeat(64)).is_ok());
        let error = said("n".repeat(65)).err().unwrap().to_string();
        assert!(error.contains("coordinator.node"), "{error}");
    }

    #[test]
    fn unknown_algorithms_and_parameters_are_answered_with_the_nearest() {
        let error = policy("toagg", &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean \"to-agg\"?"), "{error}");
        let error = policy("adaptve", &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean \"adaptive\"?"), "{error}");
        let params = [("wait_tine".to_owned(), "1ms".to_owned())];
        let error = policy("mlf", &params).unwrap_err().to_string();
        assert!(error.contains("did you mean \"wait_time\"?"), "{error}");
    }

    #[test]
    fn hard_disks_get_few_batches_at_a_time() {
        let mut settings = Settings::default();
        assert_eq!(settings.volume_config(4, false).unwrap().engine.in_flight_max, 0);
        assert_eq!(settings.volume_config(4, true).unwrap().engine.in_flight_max, DISK_IN_FLIGHT);
        settings.volume.engines = sluice_runtime::Engines::Shared;
        assert_eq!(settings.volume_config(4, true).unwrap().engine.in_flight_max, 4 * DISK_IN_FLIGHT);
        settings.in_flight = Some(0);
        assert_eq!(settings.volume_config(4, true).unwrap().engine.in_flight_max, 0);
    }
}
