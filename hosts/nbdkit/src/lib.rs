//! A plugin for nbdkit: a disk with an SSD before it (`sluice_tier`), as a block device.
//!
//! ```text
//! nbdkit sluice disk=/dev/sdb ssd=/var/lib/sluice/sdb.tier [KEY=VALUE...]
//! ```
//!
//! The tier is made by `sluice tier create`. Keys beside those of the tier: `disk`, `ssd`; `status`, a file that is written
//! anew every second; `emulate`, a device model whose times the disk then has (for experiments).
// What `plugin!` makes is what nbdkit looks for.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nbdkit::{Error, ExtentHandle, ExtentType, Flags, FuaFlags, Result, Server, ThreadModel, plugin};
use sluice_tier::{Config, DataDevice, Device, FileDevice, Runner, Tier, User};

/// What the command line says, then what serves it.
#[derive(Default)]
struct Plugin {
    disk: Option<PathBuf>,
    ssd: Option<PathBuf>,
    emulate: Option<String>,
    status: Option<PathBuf>,
    config: Config,
    serving: Option<Serving>,
}

struct Serving {
    tier: Arc<Tier>,
    /// Ended before the tier.
    threads: Option<Threads>,
}

struct Threads {
    runner: Runner,
    /// Writes the status until its sender is dropped.
    status: Option<(Sender<()>, JoinHandle<()>)>,
}

static PLUGIN: Mutex<Option<Plugin>> = Mutex::new(None);

fn plugin() -> MutexGuard<'static, Option<Plugin>> {
    PLUGIN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::new(libc::EINVAL, what.to_string())
}

/// A connection.
struct Connection {
    tier: Arc<Tier>,
    user: User,
}

impl Connection {
    /// What was written is made durable if that was asked for.
    fn durable(&self, flags: Flags) -> Result<()> {
        if flags.contains(Flags::FUA) { self.flush() } else { Ok(()) }
    }
}

impl Plugin {
    fn open(&mut self) -> Result<()> {
        let path = self.disk.as_ref().ok_or_else(|| wrong("disk=PATH is missing"))?;
        let ssd = self.ssd.as_ref().ok_or_else(|| wrong("ssd=PATH is missing"))?;
        let disk: Arc<dyn Device> = match &self.emulate {
            None => Arc::new(FileDevice::open(path, true)?),
            Some(model) => Arc::new(DataDevice::emulated(path, model, 1)?),
        };
        let ssd = Arc::new(FileDevice::open(ssd, true)?);
        let mut config = self.config.clone();
        // As `sluice tier create` names it; earlier ones wrote where a link leads.
        if config.disk_name.is_none() {
            let (name, leads_to) = (sluice_tier::disk_name_of(path)?, path.canonicalize()?);
            let is_old = sluice_tier::made_for(&*ssd).is_ok_and(|made_for| Path::new(&made_for) == leads_to);
            config.disk_name = Some(if is_old { leads_to } else { name }.to_string_lossy().into_owned());
        }
        config.failure_mark = match config.failure_mark.take() {
            Some(mark) => Some(mark),
            None => sluice_tier::failure_mark_of(path)?,
        };
        let tier = Tier::open(disk, ssd, config).map_err(wrong)?;
        let found = tier.status().recovery;
        if found.dirty_bytes > 0 || found.torn || found.lost_bytes > 0 {
            eprintln!(
                "sluice: found {} bytes in the log that the disk does not have, in {:.0} ms{}{}",
                found.dirty_bytes,
                found.millis,
                if found.torn { "; its last record was not finished" } else { "" },
                if found.lost_bytes > 0 { "; some of it is DAMAGED, see `sluice tier check`" } else { "" },
            );
        }
        self.serving = Some(Serving { tier: Arc::new(tier), threads: None });
        Ok(())
    }
}

/// Writes the status every second, by renaming, so that whoever reads it never sees a part.
fn write_status(tier: &Tier, path: &Path, stop: &Receiver<()>) {
    let new = path.with_extension("new");
    let mut stopped = false;
    loop {
        if let Ok(text) = serde_json::to_string_pretty(&tier.status())
            && let Err(error) = std::fs::write(&new, text + "\n").and_then(|()| std::fs::rename(&new, path))
        {
            eprintln!("sluice: status={}: {error}", path.display());
        }
        if stopped {
            return;
        }
        // Once more at the end.
        stopped = stop.recv_timeout(Duration::from_secs(1)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    }
}

impl Server for Connection {
    fn name() -> &'static str {
        "sluice"
    }
    fn longname() -> Option<&'static str> {
        Some("Sluicegate: a disk with an SSD as its scheduler's longer memory")
    }
    fn version() -> Option<&'static str> {
        Some(env!("CARGO_PKG_VERSION"))
    }
    fn config_help() -> Option<&'static str> {
        Some(
            "disk=PATH     the disk: a file or block device\n\
             ssd=PATH      the tier, made by `sluice tier create`\n\
             status=FILE   written anew every second, as JSON\n\
             emulate=MODEL the disk has this device model's times (for experiments)\n\
             KEY=VALUE     settings of the tier: `sluice tier settings` lists them",
        )
    }
    fn magic_config_key() -> Option<&'static str> {
        Some("disk")
    }
    fn thread_model() -> Result<ThreadModel> {
        Ok(ThreadModel::Parallel)
    }
    fn config(key: &str, value: &str) -> Result<()> {
        let mut guard = plugin();
        let plugin = guard.get_or_insert_default();
        // Relative paths count from where nbdkit was started; it may go elsewhere.
        let path = || std::path::absolute(value);
        match key {
            "disk" => plugin.disk = Some(path()?),
            "ssd" => plugin.ssd = Some(path()?),
            "status" => plugin.status = Some(path()?),
            "emulate" => plugin.emulate = Some(value.to_owned()),
            _ => plugin.config.set(key, value).map_err(wrong)?,
        }
        Ok(())
    }
    fn config_complete() -> Result<()> {
        let complete = plugin().as_ref().is_some_and(|plugin| plugin.disk.is_some() && plugin.ssd.is_some());
        if complete { Ok(()) } else { Err(wrong("disk=PATH and ssd=PATH are needed")) }
    }
    fn get_ready() -> Result<()> {
        plugin().as_mut().ok_or_else(|| wrong("disk=PATH and ssd=PATH are needed"))?.open()
    }
    fn after_fork() -> Result<()> {
        // Threads do not survive a fork.
        if let Some(plugin) = plugin().as_mut()
            && let Some(serving) = &mut plugin.serving
        {
            let runner = Runner::start(serving.tier.clone())?;
            let status = plugin.status.clone().map(|path| {
                let (stop, stopped) = channel();
                let tier = serving.tier.clone();
                (stop, std::thread::spawn(move || write_status(&tier, &path, &stopped)))
            });
            serving.threads = Some(Threads { runner, status });
        }
        Ok(())
    }
    fn unload() {
        let Some(Serving { tier, threads }) = plugin().take().and_then(|plugin| plugin.serving) else { return };
        if let Some(Threads { runner, status }) = threads {
            drop(runner);
            if let Err(error) = tier.end() {
                eprintln!("sluice: ending: {error}; what was not written back is in the log");
            }
            if let Some((stop, thread)) = status {
                drop(stop);
                // It has said what there was to say.
                let _ = thread.join();
            }
        }
    }
    fn open(_readonly: bool) -> Result<Box<dyn Server>> {
        let guard = plugin();
        let serving = guard.as_ref().and_then(|plugin| plugin.serving.as_ref());
        let tier = serving.ok_or_else(|| wrong("not ready"))?.tier.clone();
        Ok(Box::new(Connection { user: tier.user(), tier }))
    }
    fn get_size(&self) -> Result<i64> {
        i64::try_from(self.tier.size()).map_err(wrong)
    }
    fn is_rotational(&self) -> Result<bool> {
        Ok(false)
    }
    fn can_write(&self) -> Result<bool> {
        Ok(true)
    }
    fn can_flush(&self) -> Result<bool> {
        Ok(true)
    }
    fn can_fua(&self) -> Result<FuaFlags> {
        Ok(FuaFlags::Native)
    }
    fn can_trim(&self) -> Result<bool> {
        Ok(true)
    }
    fn can_zero(&self) -> Result<bool> {
        Ok(true)
    }
    fn can_extents(&self) -> Result<bool> {
        Ok(true)
    }
    // All connections are one tier: a flush on one is a flush of what any other has acknowledged.
    fn can_multi_conn(&self) -> Result<bool> {
        Ok(true)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.tier.read(buf, offset)?)
    }
    fn write_at(&self, buf: &[u8], offset: u64, flags: Flags) -> Result<()> {
        self.tier.write(buf, offset, false)?;
        self.durable(flags)
    }
    fn flush(&self) -> Result<()> {
        Ok(self.tier.flush_for(&self.user)?)
    }
    fn trim(&self, count: u32, offset: u64, flags: Flags) -> Result<()> {
        self.tier.zero(offset, count.into(), true, false)?;
        self.durable(flags)
    }
    fn zero(&self, count: u32, offset: u64, flags: Flags) -> Result<()> {
        let may_trim = flags.contains(Flags::MAY_TRIM) && self.tier.trims();
        self.tier.zero(offset, count.into(), may_trim, false)?;
        self.durable(flags)
    }
    fn extents(&self, count: u32, offset: u64, _: Flags, handle: &mut ExtentHandle) -> Result<()> {
        for (from, len, data) in self.tier.extents(offset, count.into())? {
            handle.add(from, len, if data { ExtentType::Allocated } else { ExtentType::HoleZero })?;
        }
        Ok(())
    }
}

plugin!(Connection {
    after_fork,
    can_extents,
    can_flush,
    can_fua,
    can_multi_conn,
    can_trim,
    can_write,
    can_zero,
    config,
    config_complete,
    extents,
    flush,
    get_ready,
    is_rotational,
    thread_model,
    trim,
    unload,
    write_at,
    zero
});
