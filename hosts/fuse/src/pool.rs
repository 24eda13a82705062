//! Threads for operations that may wait: for a device (`fsync`), or for the kernel (cache invalidation). Those that serve
//! the kernel hand such an operation over together with its reply, and take the next request.
//!
//! Threads are started when all others are busy, up to a limit, and end after being idle for a while. More operations than
//! threads wait in order of arrival; the kernel bounds their number, because each has a caller that waits.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// An idle thread ends after this.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State>,
    /// A job came, or the pool closes.
    changed: Condvar,
    /// A thread ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Pool {
        let (state, changed, ended) = Default::default();
        Pool { shared: Arc::new(Shared { name, threads_max: threads_max.max(1), state, changed, ended }) }
    }

    /// Runs `job` soon on a thread of the pool; on this one if the system refuses the first thread, or the pool is closed.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        if state.closed {
            drop(state);
            return job();
        }
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= self.shared.threads_max {
            self.shared.changed.notify_one();
            return;
        }
        state.threads += 1;
        let shared = self.shared.clone();
        let started = std::thread::Builder::new().name(shared.name.into()).spawn(move || shared.serve());
        if started.is_err() {
            state.threads -= 1;
            if state.threads == 0 {
                let jobs = std::mem::take(&mut state.jobs);
                drop(state);
                jobs.into_iter().for_each(run);
            }
        }
    }

    /// Runs what is queued and waits until the last job has ended.
    pub(crate) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        self.shared.changed.notify_all();
        self.shared.ended.wait_while(&mut state, |state| state.threads > 0);
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                run(job);
                state = self.state.lock();
            } else if state.closed {
                break;
            } else {
                state.idle += 1;
                let late = self.changed.wait_for(&mut state, IDLE).timed_out();
                state.idle -= 1;
                if late && state.jobs.is_empty() {
                    break;
                }
            }
        }
        state.threads -= 1;
        self.ended.notify_all();
    }
}

/// A panic fails its own request (the reply answers when it is dropped) and leaves the thread alive for the next.
fn run(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a file system operation panicked; the caller gets an I/O error");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn as_many_jobs_at_a_time_as_there_may_be_threads() {
        let pool = Pool::new("test", 2);
        let (started, starts) = channel();
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for i in 0..5 {
            let (started, gate) = (started.clone(), gate.clone());
            pool.run(move || {
                started.send(i).unwrap();
                gate.lock().recv().unwrap();
            });
        }
        assert_eq!(starts.recv().unwrap() + starts.recv().unwrap(), 1, "the first two");
        assert!(starts.try_recv().is_err(), "the third waits for a thread");
        assert_eq!(pool.shared.state.lock().threads, 2);
        (0..5).for_each(|_| open.send(()).unwrap());
        pool.close();
        assert_eq!(starts.try_iter().count(), 3, "closing runs what is queued");
        pool.run(move || started.send(9).unwrap());
        assert_eq!(starts.recv().unwrap(), 9, "on the caller's thread");
    }

    #[test]
    fn a_panic_costs_one_job() {
        let pool = Pool::new("test", 1);
        let (done, wait) = channel();
        pool.run(|| panic!("on purpose: the test wants to see what happens"));
        pool.run(move || done.send(()).unwrap());
        wait.recv().unwrap();
        pool.close();
    }
}
