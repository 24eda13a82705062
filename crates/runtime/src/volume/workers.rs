//! Threads that execute jobs: started when needed up to a bound, asleep when idle.

use std::collections::VecDeque;

use std::thread::{JoinHandle, Thread};

use parking_lot::Mutex;

use super::job::Job;

/// A bounded set of threads. `run` is given by whoever starts the threads.
pub(super) struct Workers {
    state: Mutex<State>,
    threads_max: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Asleep; the last one to fall asleep is woken first, its caches are the warmest.
    idle: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    threads: usize,
    /// Threads that wait for something other threads must do; others may be started for them.
    blocked: usize,
    stopping: bool,
}

impl Workers {
    pub(super) fn new(threads_max: u32) -> Workers {
        Workers { state: Mutex::default(), threads_max: threads_max.max(1) as usize }
    }

    /// Hands a job to a thread. `spawn` starts one.
    pub(super) fn push(&self, job: Job, spawn: impl FnOnce() -> std::io::Result<JoinHandle<()>>) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if let Some(thread) = state.idle.pop() {
            drop(state);
            thread.unpark();
        } else if state.threads < self.threads_max + state.blocked && !state.stopping {
            state.threads += 1;
            match spawn() {
                Ok(handle) => state.handles.push(handle),
                Err(error) => {
                    state.threads -= 1;
                    tracing::error!(%error, threads = state.threads, "cannot start another worker thread");
                }
            }
        }
    }

    /// Starts the first thread, so that there will always be one.
    pub(super) fn start_one(&self, spawn: impl FnOnce() -> std::io::Result<JoinHandle<()>>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        state.handles.push(spawn()?);
        state.threads += 1;
        Ok(())
    }

    /// The next job for a worker; sleeps until there is one. `None`: the worker is to end.
    pub(super) fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.stopping || state.threads > self.threads_max + state.blocked {
                state.threads -= 1;
                return None;
            }
            let me = std::thread::current();
            let id = me.id();
            state.idle.push(me);
            drop(state);
            std::thread::park();
            state = self.state.lock();
            // After a spurious wake-up it is still listed.
            if let Some(at) = state.idle.iter().position(|thread| thread.id() == id) {
                state.idle.swap_remove(at);
            }
        }
    }

    /// Runs `wait`, in which a worker waits for what other threads do; meanwhile another thread may be started in its
    /// place.
    pub(super) fn blocking<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.state.lock().blocked += 1;
        let result = wait();
        self.state.lock().blocked -= 1;
        result
    }

    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Ends the threads once no job is left.
    pub(super) fn stop(&self) {
        let (idle, handles) = {
            let mut state = self.state.lock();
            state.stopping = true;
            (std::mem::take(&mut state.idle), std::mem::take(&mut state.handles))
        };
        idle.iter().for_each(Thread::unpark);
        let me = std::thread::current().id();
        // Whoever drops the last reference to a volume may be a worker.
        handles.into_iter().filter(|handle| handle.thread().id() != me).for_each(|handle| _ = handle.join());
    }
}
