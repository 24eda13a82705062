//! The thread behind a tier.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::maintain::Work;
use crate::pace::{LOOK_EVERY, LOOK_IDLE};
use crate::tier::Tier;

/// How long it waits after an error.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The thread `sluice-tier`, which writes back and prefetches. Dropping it ends the thread, after the piece of work under way.
pub struct Runner {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// Starts it.
    ///
    /// # Errors
    /// If no thread can be made.
    pub fn start(tier: Arc<Tier>) -> std::io::Result<Runner> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("sluice-tier".to_owned()).spawn(move || run(&tier, &stopped))?;
        Ok(Runner { stop: Some(stop), thread: Some(thread) })
    }
}

fn run(tier: &Tier, stopped: &Receiver<()>) {
    loop {
        let wait = match tier.work(false) {
            Ok(Work::Done) => Duration::ZERO,
            Ok(Work::Nothing) => LOOK_EVERY,
            Ok(Work::Idle) => LOOK_IDLE,
            // It was told.
            Err(_) => AFTER_ERROR,
        };
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}
