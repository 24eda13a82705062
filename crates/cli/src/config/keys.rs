//! The table of keys: one row for each thing that the configuration file can set. `sluice.example.toml` explains them.

use super::value::{Expected, Given};
use super::{Anticipate, DeviceKind, Profiling, Settings};
use crate::predict::Source;
use sluice_adapt::selector::Kind;
use sluice_core::Ordering;
use sluice_fuse::CacheMode;
use sluice_runtime::{Engines, Workers};
use sluice_storage::striped::FirstTarget;
use std::path::Path;
use tracing::Level;

/// One row.
pub(super) struct Key {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    /// Takes the value over, or says what it expected.
    pub(super) set: fn(&mut Settings, &Given<'_>) -> Result<(), Expected>,
}

/// Which word may be meant by what looks like no name of a trace and is none; empty if nothing is to be said.
pub(crate) fn predict_hint(given: &str, base: &Path) -> String {
    word_hint(given, base, ["off", "learn"])
}

/// Which of these words may be meant by what looks like no name of a file and is none.
fn word_hint(given: &str, base: &Path, words: [&'static str; 2]) -> String {
    let is_path = given == "-" || given.contains(['.', '/']) || base.join(given).exists();
    if is_path { String::new() } else { sluice_notation::hint(given, words) }
}

/// The section whose keys are the parameters of the algorithm.
pub(super) const PARAMS: &str = "scheduler.params";

macro_rules! keys {
    ($($section:literal { $($name:literal => |$s:ident, $v:ident| $set:expr;)* })*) => {
        pub(super) static KEYS: &[Key] = &[$($(Key {
            section: $section,
            name: $name,
            set: |$s, $v| { $set; Ok(()) },
        },)*)*];
    };
}

const U32: u64 = u32::MAX as u64;

keys! {
    "mount" {
        "source" => |s, v| s.source = Some(v.path()?);
        "mountpoint" => |s, v| s.mountpoint = Some(v.path()?);
        "name" => |s, v| s.mount.name = v.text()?.to_owned();
        "read_only" => |s, v| s.mount.read_only = v.flag()?;
        "suid" => |s, v| s.mount.suid = v.flag()?;
        "dev" => |s, v| s.mount.dev = v.flag()?;
        "no_exec" => |s, v| s.mount.no_exec = v.flag()?;
        "no_atime" => |s, v| s.mount.no_atime = v.flag()?;
        "allow_other" => |s, v| s.mount.allow_other = v.flag()?;
        "cache" => |s, v| s.mount.cache = v.choice(&[
            ("none", CacheMode::None), ("auto", CacheMode::Auto), ("writeback", CacheMode::Writeback),
        ])?;
        "attr_timeout" => |s, v| s.mount.attr_timeout = v.duration()?;
        "entry_timeout" => |s, v| s.mount.entry_timeout = v.duration()?;
        "threads" => |s, v| s.mount.threads = match v.count(0, 1024)? {
            0 => sluice_fuse::MountOptions::default().threads,
            n => n as usize,
        };
        "sync_threads" => |s, v| s.mount.sync_threads = v.count(1, 1024)? as usize;
        "max_write" => |s, v| s.mount.max_write = v.bytes(4 << 10, 16 << 20)? as u32;
        "max_readahead" => |s, v| s.mount.max_readahead = v.bytes(0, 1 << 30)? as u32;
        "max_background" => |s, v| s.mount.max_background = v.count(1, u16::MAX.into())? as u16;
        "metrics" => |s, v| {
            let address = v.text()?.parse().map_err(|_| "an address and a port, like 127.0.0.1:9464".to_owned())?;
            s.metrics = Some(address);
        };
        "job_variables" => |s, v| s.mount.job_variables = v.names()?;
    }
    "volume" {
        "targets" => |s, v| s.targets = v.paths()?;
        "stripe" => |s, v| s.stripe = Some(v.bytes(1, 1 << 40)?);
        "first_target" => |s, v| s.first_target = Some(v.choice(&[
            ("hash", FirstTarget::Hash), ("zero", FirstTarget::Zero),
        ])?);
        "direct" => |s, v| s.direct = v.flag()?;
    }
    "device" {
        "emulate" => |s, v| s.emulate = Some(v.text()?.to_owned());
        "seed" => |s, v| s.seed = v.count(0, u64::MAX)?;
        "kind" => |s, v| s.device = v.choice(&[
            ("auto", DeviceKind::Auto), ("disk", DeviceKind::Disk), ("flash", DeviceKind::Flash),
        ])?;
    }
    "tier" {
        "disk" => |s, v| s.tier.disk = Some(v.path()?);
        "ssd" => |s, v| s.tier.ssd = Some(v.path()?);
        "file" => |s, v| s.tier.file = Some(v.text()?.to_owned());
        "settings" => |s, v| for text in &v.texts {
            let (key, value) = text.split_once('=').ok_or("a list of KEY=VALUE, as `sluice tier settings` shows them")?;
            s.tier.config.set(key, value).map_err(|error| format!("what `sluice tier settings` shows: {error}"))?;
        };
    }
    "scheduler" {
        "policy" => |s, v| s.policy = Some(v.text()?.to_owned());
        "selector" => |s, v| s.selector = match v.text() {
            Ok("auto") => None,
            _ => Some(v.choice(&Kind::NAMES).map_err(|expected| format!("auto, or {expected}"))?),
        };
        "model" => |s, v| s.model = Some(v.path()?);
        "learned" => |s, v| s.learned = Some(v.path()?);
        "decisions" => |s, v| s.decisions = Some(v.path()?);
        "in_flight" => |s, v| s.in_flight = match v.text() {
            Ok("auto") => None,
            _ => Some(v.count(0, U32).map_err(|expected| format!("auto, or {expected}"))? as u32),
        };
        "anticipation" => |s, v| s.anticipation = anticipate(v)?;
        "group_commit" => |s, v| s.group_commit = anticipate(v)?;
        "max_wait" => |s, v| s.volume.engine.max_wait_ns = v.duration()?.as_nanos() as u64;
        "ordering" => |s, v| s.volume.engine.ordering = v.choice(&[
            ("strict", Ordering::Strict), ("none", Ordering::None),
        ])?;
        "batch_bytes_max" => |s, v| s.volume.engine.batch_bytes_max = v.bytes(1, 1 << 40)?;
        "batch_requests_max" => |s, v| s.volume.engine.batch_requests_max = v.count(1, U32)? as u32;
        "request_bytes_max" => |s, v| s.volume.request_bytes_max = v.bytes(1, 1 << 30)? as u32;
        "capacity" => |s, v| s.volume.engine.capacity = v.count(1, 1 << 24)? as u32;
        "files_max" => |s, v| s.volume.engine.files_max = v.count(1, 1 << 24)? as u32;
        "buffer_bytes_max" => |s, v| s.volume.buffer_bytes_max = v.bytes(1 << 20, 1 << 40)?;
        "engines" => |s, v| s.volume.engines = v.choice(&[
            ("auto", Engines::Auto), ("per-target", Engines::PerTarget), ("shared", Engines::Shared),
        ])?;
        "workers" => |s, v| s.volume.workers = v.choice(&[
            ("auto", Workers::Auto), ("threads", Workers::Threads), ("io_uring", Workers::Ring),
        ])?;
        "workers_max" => |s, v| s.volume.threads_max = v.count(1, 1024)? as u32;
        "window" => |s, v| s.window_ns = match v.text() {
            Ok("auto") => None,
            _ => match v.duration().map_err(|expected| format!("auto, or {expected}"))?.as_nanos() as u64 {
                0 => return Err("auto, or a duration above 0".to_owned()),
                ns => Some(ns),
            },
        };
        "apps_max" => |s, v| s.volume.engine.apps_max = v.count(1, 65_536)? as u32;
    }
    "trace" {
        "record" => |s, v| s.record = Some(v.path()?);
        "checksums" => |s, v| s.recording.checksums = v.flag()?;
    }
    "prediction" {
        "predict" => |s, v| s.predict = match v.texts.as_slice() {
            [one] if one == "off" => Source::Off,
            [one] if one == "learn" => Source::Learn,
            [] => return Err("off, learn, or trace files".to_owned()),
            [one] if !predict_hint(one, v.base).is_empty() => {
                return Err(format!("off, learn, or trace files{}", predict_hint(one, v.base)));
            }
            _ => Source::Files(v.paths()?),
        };
        "margin" => |s, v| s.prediction.margin = Some(v.count(0, 100)? as f64 / 100.0);
        "profile" => |s, v| (s.profiling, s.prediction.profile) = match v.text() {
            Ok("auto") => (Profiling::Auto, None),
            Ok("off") => (Profiling::Off, None),
            Ok(other) if !word_hint(other, v.base, ["auto", "off"]).is_empty() => {
                return Err(format!("auto, off, or a profile's file{}", word_hint(other, v.base, ["auto", "off"])));
            }
            _ => (Profiling::Default, Some(v.path()?)),
        };
        "state" => |s, v| s.prediction.state = Some(v.path()?);
    }
    "coordinator" {
        "address" => |s, v| s.coordinator = Some(v.text()?.to_owned());
        "token_file" => |s, v| s.token_file = Some(v.path()?);
        "node" => |s, v| s.node = Some(v.text()?.to_owned());
    }
    "log" {
        "file" => |s, v| s.log = Some(v.path()?);
        "level" => |s, v| s.log_level = v.choice(&[
            ("auto", None), ("error", Some(Level::ERROR)), ("warn", Some(Level::WARN)), ("info", Some(Level::INFO)),
            ("debug", Some(Level::DEBUG)), ("trace", Some(Level::TRACE)),
        ])?;
    }
}

/// `auto`, `off`, or what moving costs a device.
fn anticipate(given: &Given<'_>) -> Result<Anticipate, Expected> {
    Ok(match given.text() {
        Ok("auto") => Anticipate::Auto,
        Ok("off") => Anticipate::Off,
        _ => Anticipate::Positioning(given.duration().map_err(|expected| format!("auto, off, or {expected}"))?),
    })
}

pub(super) fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// All sections, each once.
pub(super) fn sections() -> Vec<&'static str> {
    let mut all: Vec<&'static str> = KEYS.iter().map(|key| key.section).collect();
    all.dedup();
    all.push(PARAMS);
    all
}
