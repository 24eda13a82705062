//! Threads that execute jobs: started when needed up to a bound, asleep when idle.

use std::collections::VecDeque;

use crate::sync::{JoinHandle, Mutex, Thread, park, thread};

/// A bounded set of threads for jobs of type `J`. What a thread does with them is up to whoever starts it.
pub(super) struct Workers<J> {
    state: Mutex<State<J>>,
    threads_max: usize,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// Asleep; the last one to fall asleep is woken first, its caches are the warmest.
    idle: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    threads: usize,
    /// Threads that wait for something other threads must do; others may be started for them.
    blocked: usize,
    stopping: bool,
}

/// What starts a thread.
pub(super) type Spawned = std::io::Result<JoinHandle<()>>;

impl<J> Workers<J> {
    pub(super) fn new(threads_max: u32) -> Workers<J> {
        let state = State {
            jobs: VecDeque::new(),
            idle: Vec::new(),
            handles: Vec::new(),
            threads: 0,
            blocked: 0,
            stopping: false,
        };
        Workers { state: Mutex::new(state), threads_max: threads_max.max(1) as usize }
    }

    /// Hands a job to a thread. `spawn` starts one.
    pub(super) fn push(&self, job: J, spawn: impl FnOnce() -> Spawned) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if let Some(thread) = state.idle.pop() {
            drop(state);
            thread.unpark();
        } else {
            self.grow(&mut state, spawn);
        }
    }

    /// Starts a thread if there may be one more.
    fn grow(&self, state: &mut State<J>, spawn: impl FnOnce() -> Spawned) {
        if state.threads >= self.threads_max + state.blocked || state.stopping {
            return;
        }
        match spawn() {
            Ok(handle) => {
                state.threads += 1;
                // Those that have ended would keep their stacks.
                #[cfg(not(feature = "model"))]
                state.handles.retain(|handle| !handle.is_finished());
                state.handles.push(handle);
            }
            Err(error) => tracing::error!(%error, threads = state.threads, "cannot start another worker thread"),
        }
    }

    /// Starts the first thread, so that there will always be one.
    pub(super) fn start_one(&self, spawn: impl FnOnce() -> Spawned) -> std::io::Result<()> {
        let mut state = self.state.lock();
        state.handles.push(spawn()?);
        state.threads += 1;
        Ok(())
    }

    /// The next job for a worker; sleeps until there is one. `None`: the worker is to end.
    pub(super) fn next(&self) -> Option<J> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.stopping || state.threads > self.threads_max + state.blocked {
                state.threads -= 1;
                return None;
            }
            let me = thread::current();
            let id = me.id();
            state.idle.push(me);
            drop(state);
            park(None);
            state = self.state.lock();
            // After a spurious wake-up it is still listed.
            if let Some(at) = state.idle.iter().position(|thread| thread.id() == id) {
                state.idle.swap_remove(at);
            }
        }
    }

    /// Runs `wait`, in which this thread waits for what other threads do. Meanwhile another one may be there in its place;
    /// where none can be started, the jobs that wait now are done before, by `help`.
    pub(super) fn blocking<R>(
        &self,
        spawn: impl FnOnce() -> Spawned,
        help: Option<impl FnMut(J)>,
        wait: impl FnOnce() -> R,
    ) -> R {
        {
            let mut state = self.state.lock();
            state.blocked += 1;
            if !state.jobs.is_empty() && state.idle.is_empty() {
                let before = state.threads;
                self.grow(&mut state, spawn);
                if let Some(mut help) = help {
                    while state.threads == before
                        && let Some(job) = state.jobs.pop_front()
                    {
                        drop(state);
                        help(job);
                        state = self.state.lock();
                    }
                }
            }
        }
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
        let me = thread::current().id();
        // Whoever drops the last reference to a volume may be a worker.
        handles.into_iter().filter(|handle| handle.thread().id() != me).for_each(|handle| _ = handle.join());
    }
}
