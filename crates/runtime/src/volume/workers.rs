//! Threads that execute jobs: started when needed up to a bound, asleep when idle.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::sync::{JoinHandle, Mutex, Thread, park, thread};

/// How often a thread that waits looks for what it would have left to another one, where the system refuses threads.
pub(super) const LOOK: Duration = Duration::from_millis(5);

crate::sync::thread_cell! {
    /// The set that this thread belongs to, by address.
    static MEMBER_OF: Cell<usize> = Cell::new(0);
}

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
    /// Of these, threads of the set.
    blocked_members: usize,
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
            blocked_members: 0,
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
        MEMBER_OF.with(|set| set.set(self.address()));
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

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `wait`, in which this thread waits for what other threads do, at most until the time that it is given (`None` if it
    /// did so in vain). Meanwhile another one may be there in its place. Where none can be started the jobs that wait now are
    /// done before, by `help`; and those that come, if this is the last thread that could do them.
    pub(super) fn blocking<R>(
        &self,
        spawn: impl Fn() -> Spawned,
        mut help: impl FnMut(J),
        until: Option<Instant>,
        wait: &mut impl FnMut(Option<Instant>) -> Option<R>,
    ) -> Option<R> {
        let member = usize::from(MEMBER_OF.with(Cell::get) == self.address());
        let mut state = self.state.lock();
        state.blocked += 1;
        state.blocked_members += member;
        let result = loop {
            if !state.jobs.is_empty() && state.idle.is_empty() {
                let before = state.threads;
                self.grow(&mut state, &spawn);
                while state.threads == before
                    && let Some(job) = state.jobs.pop_front()
                {
                    drop(state);
                    help(job);
                    state = self.state.lock();
                }
            }
            let is_last = |state: &State<J>| member > 0 && state.threads == state.blocked_members;
            if is_last(&state) {
                self.grow(&mut state, &spawn);
            }
            let look = is_last(&state).then(|| Instant::now() + LOOK);
            drop(state);
            let result = wait(until.into_iter().chain(look).min());
            state = self.state.lock();
            if result.is_some() || look.is_none() || until.is_some_and(|until| until <= Instant::now()) {
                break result;
            }
        };
        state.blocked -= 1;
        state.blocked_members -= member;
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

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    type Work = Box<dyn FnOnce() + Send>;

    #[test]
    fn the_only_thread_does_what_comes_while_it_waits_where_there_can_be_no_other() {
        let workers = Arc::new(Workers::<Work>::new(4));
        let refused = || Err(std::io::ErrorKind::WouldBlock.into());
        let serve = |workers: Arc<Workers<Work>>| move || std::iter::from_fn(|| workers.next()).for_each(|job| job());
        workers.start_one(|| crate::sync::spawn("test", serve(workers.clone()))).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let ((waits, waiting), (end, ended)) = (channel(), channel());
        let (blocked, is_done) = (workers.clone(), done.clone());
        let first = move || {
            let mut wait = |until: Option<Instant>| {
                let _ = waits.send(());
                while !is_done.load(Ordering::SeqCst) {
                    if until.is_some_and(|until| until <= Instant::now()) {
                        return None;
                    }
                    std::thread::yield_now();
                }
                Some(7)
            };
            end.send(blocked.blocking(refused, |job: Work| job(), None, &mut wait)).unwrap();
        };
        workers.push(Box::new(first), refused);
        waiting.recv().unwrap();
        workers.push(Box::new(move || done.store(true, Ordering::SeqCst)), refused);
        assert_eq!(ended.recv_timeout(Duration::from_secs(120)), Ok(Some(7)));
        workers.stop();
    }
}
