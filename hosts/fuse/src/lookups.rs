//! Questions about processes, answered by threads of their own: what `/proc` has to say may come late or never.
//!
//! Reading the environment of a process can be held up for as long as its user likes, who may have put memory there that a
//! program of theirs provides. Nobody can take a thread back that waits for that. So
//!
//! * an asker waits [`PATIENCE`] at most, and a user has few questions open at a time;
//! * there is a thread for each open question, and nobody queues behind somebody else's;
//! * who let an asker wait in vain is not asked about again until that question was answered and then for a while, which
//!   doubles from time to time; and with fewer questions at a time.
//!
//! So one user can hold up a few threads here, and the threads that serve the mount for a moment now and then. To stop the
//! look-ups for others takes [`THREADS_MAX`]` / `[`OPEN_MAX`] users at the same time.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest wait for an answer about a process.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);
/// Open questions of a user that has always been quick.
pub(crate) const OPEN_MAX: u32 = 4;
/// Threads, for all users together.
pub(crate) const THREADS_MAX: usize = 64;
/// Threads that stay without a question.
const IDLE_MAX: usize = 2;
/// How long a user is not asked about after the first time that it took too long; doubles each time.
const FIRST_PENALTY: Duration = Duration::from_millis(100);
/// Doublings; about 100 s are the end.
const DOUBLINGS_MAX: u32 = 10;
/// After so many times the penalty without trouble all is forgotten, and after so long in any case.
const FORGIVEN: (u32, Duration) = (100, Duration::from_secs(600));
/// Users remembered before those are looked for that need not be.
const USERS_KEPT: usize = 256;
/// They read a file into the heap.
const STACK: usize = 128 << 10;

/// Answers questions of type `Q` with an `A`, in whatever time that takes.
pub(crate) type Answerer<Q, A> = Box<dyn Fn(&Q) -> A + Send + Sync>;

pub(crate) struct Lookups<Q, A>(Arc<Shared<Q, A>>);

struct Shared<Q, A> {
    answerer: Answerer<Q, A>,
    state: Mutex<State<Q, A>>,
    more: Condvar,
}

struct State<Q, A> {
    queue: VecDeque<Question<Q, A>>,
    threads: usize,
    /// Of these, those that wait for a question.
    idle: usize,
    users: HashMap<u32, User>,
    closed: bool,
}

struct Question<Q, A> {
    question: Q,
    uid: u32,
    answer: SyncSender<A>,
    /// The asker has gone. Set and read under the lock.
    abandoned: Arc<AtomicBool>,
}

/// What is known of a user of whom somebody asked.
#[derive(Clone, Copy, Default)]
struct User {
    /// Questions without an answer, and those of them that nobody waits for any more.
    open: u32,
    late: u32,
    /// How often askers waited in vain, and until when there is no asking.
    strikes: u32,
    until: Option<Instant>,
}

impl User {
    fn penalty(&self) -> Duration {
        FIRST_PENALTY * (1 << (self.strikes.max(1) - 1))
    }

    fn is_forgiven(&self, now: Instant) -> bool {
        let after = (self.penalty() * FORGIVEN.0).min(FORGIVEN.1);
        self.until.is_none_or(|until| now > until + after)
    }

    fn may_be_asked(&mut self, now: Instant) -> bool {
        if self.is_forgiven(now) {
            (self.strikes, self.until) = (0, None);
        }
        let most = (OPEN_MAX >> self.strikes).max(1);
        self.late == 0 && self.open < most && self.until.is_none_or(|until| now >= until)
    }

    /// An asker has waited in vain. Several at the same time count once.
    fn strike(&mut self, now: Instant) {
        if self.late == 0 {
            self.strikes = (self.strikes + 1).min(DOUBLINGS_MAX + 1);
        }
        self.late += 1;
        self.punish(now);
    }

    fn punish(&mut self, now: Instant) {
        self.until = Some(now + self.penalty());
    }
}

impl<Q: Send + 'static, A: Send + 'static> Lookups<Q, A> {
    /// # Errors
    /// If there is not even a first thread.
    pub(crate) fn new(answerer: Answerer<Q, A>) -> io::Result<Lookups<Q, A>> {
        let state = State { queue: VecDeque::new(), threads: 1, idle: 0, users: HashMap::new(), closed: false };
        let shared = Arc::new(Shared { answerer, state: Mutex::new(state), more: Condvar::new() });
        shared.start()?;
        Ok(Lookups(shared))
    }

    /// The answer to a question about a process of this user; `None` if there is none in time, or no asking now.
    pub(crate) fn ask(&self, uid: u32, question: Q) -> Option<A> {
        let (answer, wait) = sync_channel(1);
        let abandoned = Arc::new(AtomicBool::new(false));
        let shared = &self.0;
        {
            let (mut state, now) = (shared.state.lock(), Instant::now());
            if state.users.len() >= USERS_KEPT {
                state.users.retain(|_, user| user.open > 0 || !user.is_forgiven(now));
            }
            if !state.users.entry(uid).or_default().may_be_asked(now) || !shared.have_thread(&mut state) {
                return None;
            }
            state.users.entry(uid).or_default().open += 1;
            state.queue.push_back(Question { question, uid, answer, abandoned: abandoned.clone() });
        }
        shared.more.notify_one();
        if let Ok(answer) = wait.recv_timeout(PATIENCE) {
            return Some(answer);
        }
        let mut state = shared.state.lock();
        // Answers are given under the lock: it may have come just now.
        let answer = wait.try_recv().ok();
        if answer.is_none() {
            abandoned.store(true, Ordering::Relaxed);
            state.users.entry(uid).or_default().strike(Instant::now());
        }
        answer
    }

    #[cfg(test)]
    fn threads(&self) -> usize {
        self.0.state.lock().threads
    }
}

impl<Q: Send + 'static, A: Send + 'static> Shared<Q, A> {
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let shared = self.clone();
        let builder = std::thread::Builder::new().name("sluice-apps".into()).stack_size(STACK);
        builder.spawn(move || shared.work()).map(drop)
    }

    /// Whether there is a thread for one more question.
    fn have_thread(self: &Arc<Self>, state: &mut State<Q, A>) -> bool {
        if state.idle > state.queue.len() {
            return true;
        }
        // One that was just started, or will be done at once, is as good. It takes at most one more than itself.
        if state.threads >= THREADS_MAX || self.start().is_err() {
            return false;
        }
        state.threads += 1;
        true
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(next) = state.queue.pop_front() else {
                // A few that wait are enough; more come when they are needed.
                if state.closed || state.idle >= IDLE_MAX {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                self.more.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let answer = (self.answerer)(&next.question);
            state = self.state.lock();
            let user = state.users.entry(next.uid).or_default();
            user.open -= 1;
            if next.abandoned.load(Ordering::Relaxed) {
                user.late -= 1;
                user.punish(Instant::now());
            } else {
                let _ = next.answer.send(answer);
            }
        }
    }
}

impl<Q, A> Drop for Lookups<Q, A> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate that is closed for users below 1,000, who are asked in vain.
    struct Gate(Mutex<(bool, u32)>, Condvar);

    fn gated() -> (Arc<Gate>, Lookups<u32, u32>) {
        let gate = Arc::new(Gate(Mutex::new((false, 0)), Condvar::new()));
        let own = gate.clone();
        let answerer = move |uid: &u32| {
            if *uid < 1_000 {
                let mut open = own.0.lock();
                open.1 += 1;
                own.1.wait_while(&mut open, |(open, _)| !*open);
            }
            *uid
        };
        (gate, Lookups::new(Box::new(answerer)).unwrap())
    }

    impl Gate {
        fn asked(&self) -> u32 {
            self.0.lock().1
        }

        fn open(&self) {
            self.0.lock().0 = true;
            self.1.notify_all();
        }
    }

    fn eventually(what: &str, came: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(120);
        while !came() {
            assert!(Instant::now() < until, "never: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_does_not_answer_holds_up_nobody_else_and_few_askers() {
        let (gate, lookups) = gated();
        std::thread::scope(|scope| {
            let askers: Vec<_> = (0..20).map(|_| scope.spawn(|| lookups.ask(7, 7))).collect();
            for asker in askers {
                assert_eq!(asker.join().unwrap(), None);
            }
        });
        // Threads of a busy machine come to the gate later than their askers left.
        let open = || lookups.0.state.lock().users[&7].open;
        eventually("who was let in is at the gate", || gate.asked() == open());
        assert!((1..=OPEN_MAX).contains(&open()));
        let (before, asked) = (Instant::now(), gate.asked());
        (0..1_000).for_each(|_| assert_eq!(lookups.ask(7, 7), None));
        assert_eq!(gate.asked(), asked, "nobody asks again");
        assert!(before.elapsed() < PATIENCE * 500, "and nobody waits");
        // A busy machine may be late now and then, and who was late is left alone for a while.
        (1_000..1_100).for_each(|uid| eventually("others are answered", || lookups.ask(uid, uid) == Some(uid)));
        eventually("few threads are left", || lookups.threads() <= 2 * OPEN_MAX as usize);
        gate.open();
        eventually("a user who answers again is asked again", || lookups.ask(7, 7).is_some());
    }

    #[test]
    fn there_is_an_end_of_threads_and_of_users() {
        let (gate, lookups) = gated();
        std::thread::scope(|scope| {
            for uid in 0..100 {
                let lookups = &lookups;
                scope.spawn(move || assert_eq!(lookups.ask(uid, uid), None));
            }
        });
        assert_eq!(lookups.threads(), THREADS_MAX);
        gate.open();
        eventually("threads end", || lookups.threads() <= IDLE_MAX);
        (10_000..20_000).for_each(|uid| _ = lookups.ask(uid, uid));
        assert!(lookups.0.state.lock().users.len() <= USERS_KEPT + 100);
    }

    #[test]
    fn the_penalty_doubles_and_is_forgiven() {
        let (mut user, start) = (User::default(), Instant::now());
        let mut now = start;
        for doublings in 0..20u32 {
            assert!(user.may_be_asked(now));
            user.open = 1;
            user.strike(now);
            assert!(!user.may_be_asked(now + user.penalty()), "not while a question is open");
            (user.open, user.late) = (0, 0);
            user.punish(now);
            let penalty = FIRST_PENALTY * (1 << doublings.min(DOUBLINGS_MAX));
            assert!(!user.may_be_asked(now + penalty - Duration::from_millis(1)));
            now += penalty;
        }
        assert!(user.may_be_asked(now));
        user.open = 1;
        assert!(!user.may_be_asked(now), "one at a time");
        assert!(user.may_be_asked(now + FORGIVEN.1 + Duration::from_millis(1)));
        assert_eq!(user.strikes, 0);
    }
}
