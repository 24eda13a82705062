//! What signals do to a mount: the first asks it to end, the second takes it out of sight, the third gives up on it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use signal_hook::iterator::Signals;
use sluice_fuse::{MountError, MountHandle};

use crate::{interrupt, output};

/// How often a mount in use is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// Signals that have come and were not acted on yet.
pub(super) struct Caught(Receiver<i32>);

/// From now on keeps SIGINT and SIGTERM, and SIGHUP unless the caller (nohup) had it ignored, for [`Caught::unmount`].
/// Called before mounting: a signal must not end a process that has just mounted.
///
/// # Errors
/// If the system refuses.
pub(super) fn catch() -> anyhow::Result<Caught> {
    let mut signals = Signals::new(interrupt::wanted()).context("handling signals")?;
    let (sender, received) = channel();
    thread("sluice-signals", move || {
        signals.forever().map(|signal| sender.send(signal)).find(Result::is_err);
    })?;
    Ok(Caught(received))
}

impl Caught {
    /// Acts on signals from now on, and on those that came before.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn unmount(self, handle: &Arc<MountHandle>) -> anyhow::Result<()> {
        let handle = Arc::downgrade(handle);
        thread("sluice-unmount", move || {
            if let Ok(first) = self.0.recv() {
                end(&handle, first, &self.0);
            }
        })
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop).context("starting a thread")
}

/// Tries until the mount is over.
fn end(handle: &Weak<MountHandle>, first: i32, more: &Receiver<i32>) {
    let (mut signals, mut told) = (1, false);
    tracing::info!(signal = first, "unmounting");
    loop {
        let Some(handle) = handle.upgrade().filter(|handle| !handle.is_over()) else { return };
        let at = handle.mountpoint().display();
        let result = if signals == 1 { handle.unmount() } else { handle.unmount_lazily() };
        match result {
            Err(MountError::Busy { .. }) if signals == 1 => {
                if !told {
                    output::tell(format_args!(
                        "{at} is in use; it ends when it is free. Signal again to take it out of sight now"
                    ));
                    told = true;
                }
            }
            Err(error) => output::tell(format_args!("{error}")),
            Ok(()) if signals > 1 => {
                output::tell(format_args!("{at} is out of sight; open files work on. Signal again to break them off"));
                told = true;
            }
            Ok(()) => {}
        }
        drop(handle);
        // After a clean unmount only another signal matters; a mount in use is tried again.
        let wait = if signals == 1 { RETRY } else { Duration::MAX };
        match more.recv_timeout(wait) {
            Ok(signal) if signals >= 2 => std::process::exit(128 + signal),
            Ok(_) => signals += 1,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
