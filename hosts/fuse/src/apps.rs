//! Which application a request belongs to: the batch job of the calling process together with its user, or else its user.
//!
//! A job is recognised by an environment variable of the process ([`MountOptions::job_variables`]), as it was when the
//! process started its program. Anybody can set any variable, so a job's name counts only together with the user id that
//! the kernel gives for the request: `SLURM_JOB_ID=17` of two users are two applications, and nobody is served, weighted
//! or counted as another user's job. Within one user's processes the variable is believed.
//!
//! A process may name its job itself, which counts more ([`crate::announced`]): MPI programs under `sluice mpirun` do. Such a job has
//! the same number on every machine.
//!
//! Reading `/proc/PID/environ` is too slow for every request and may even block, because
//! it takes the memory lock of a process that can be waiting for this very file system. Therefore
//!
//! * each open file remembers the last caller, and a small table the last callers of all files; what they know is
//!   looked up anew after two seconds, so a process id used again, or a process that starts another program with
//!   another environment, is mistaken for its predecessor for at most that long;
//! * threads of their own read `/proc`, and nobody waits for them for long, nor behind another user ([`lookups`]).
//!
//! Users make names, as many as they like, so each has [`MOST_JOBS`] numbers for jobs: who makes more of them gives a new job
//! the number of that of theirs which has not been asked after for longest. What is kept by number (weights, counts) is the new
//! job's then; it is one of the same user. Only users together (some 60 that have all their numbers) can leave none for the
//! jobs of others, who are their users then.
//!
//! [`MountOptions::job_variables`]: crate::MountOptions::job_variables
//! [`lookups`]: crate::lookups

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use sluice_core::AppId;

use crate::announced::{self, Activity, Announced, Phases};
use crate::lookups::{Answerer, Lookups};

/// Seconds for which an answer is believed.
const FRESH_S: u64 = 2;
/// Slots of the table of callers; neighbours in process id do not collide.
const SLOTS: usize = 1024;
/// Counters of announcements.
const ERAS: usize = 1024;
/// Most applications told apart at a time; names are made by users, so there must be an end. Numbers below are places in a list.
const MOST_APPS: usize = 1 << 16;
/// Of these, those that jobs leave to users.
const FOR_USERS: usize = 1 << 12;
/// Most jobs of one user with places in the list at a time, and most with numbers of their own.
const MOST_JOBS: usize = 1 << 10;
/// Most bytes of an environment looked at.
const MOST_ENVIRON: u64 = 1 << 20;

/// Users who came after [`MOST_APPS`] others.
const OTHERS: AppId = AppId(0);
/// Before the name of a job that its processes have named.
const JOB_IS: &str = "job=";

/// The last caller of an open file.
#[derive(Default)]
pub(crate) struct LastCaller(Mutex<Caller>);

pub(crate) struct Apps {
    names: RwLock<Names>,
    callers: Box<[Mutex<Caller>]>,
    /// The job of a process, by its id.
    jobs: Lookups<u32, Option<String>>,
    announced: Arc<Announced>,
    /// Counts the announcements of a user, here and there of several ones: what was known of their callers before is looked up anew.
    /// Not of all: nobody may make everybody else's requests slower.
    eras: Box<[AtomicU32]>,
}

#[derive(Default)]
struct Names {
    list: Vec<String>,
    /// Those whose numbers are not places in the list.
    numbered: HashMap<AppId, String>,
    users: HashMap<u32, AppId>,
    /// Jobs by name.
    ids: HashMap<String, AppId>,
    /// Each user's jobs in the list, and those with numbers of their own.
    placed: HashMap<u32, Jobs>,
    own: HashMap<u32, Jobs>,
    /// Counts the questions after jobs.
    asked: u64,
}

/// A user's jobs, and which question after one was the last after each.
type Jobs = HashMap<AppId, u64>;

/// A number for a new job, and what number has lost its job to that, perhaps the same.
type Given = (AppId, Option<AppId>);

#[derive(Clone, Copy, Default)]
struct Caller {
    pid: u32,
    uid: u32,
    app: AppId,
    checked_s: u64,
    era: u32,
}

impl Caller {
    /// Whether this is what is known of the caller, and recent. The user counts: a thread can change it (file servers do).
    fn is(&self, pid: u32, uid: u32, era: u32) -> bool {
        self.pid == pid && pid != 0 && self.uid == uid && self.era == era && now_s() - self.checked_s < FRESH_S
    }
}

impl Apps {
    pub(crate) fn new(variables: &[String]) -> std::io::Result<Arc<Apps>> {
        let variables: Vec<_> = variables.iter().map(|name| format!("{name}=").into_bytes()).collect();
        let announced = Arc::new(Announced::default());
        let said = announced.clone();
        let job = move |pid: &u32| {
            said.job_of(*pid).map(|job| format!("{JOB_IS}{job}")).or_else(|| job_name(*pid, &variables))
        };
        Apps::reading(Box::new(job), announced)
    }

    /// With what tells the job of a process.
    fn reading(job: Answerer<u32, Option<String>>, announced: Arc<Announced>) -> std::io::Result<Arc<Apps>> {
        let names = Names { list: vec!["others".into()], ..Names::default() };
        let callers = (0..SLOTS).map(|_| Mutex::default()).collect();
        let eras = (0..ERAS).map(|_| AtomicU32::new(0)).collect();
        Ok(Arc::new(Apps { names: RwLock::new(names), callers, jobs: Lookups::new(job)?, announced, eras }))
    }

    fn era(&self, uid: u32) -> &AtomicU32 {
        &self.eras[uid as usize % ERAS]
    }

    /// A process names its job. False: that cannot be heard.
    pub(crate) fn announce(&self, pid: u32, uid: u32, job: &str) -> bool {
        // Without a number of its own it would not be recognised.
        let Some(app) = self.job(&format!("{JOB_IS}{job}"), uid) else { return false };
        let Some(is_news) = self.announced.job(pid, uid, job, app) else { return false };
        if is_news {
            self.era(uid).fetch_add(1, Ordering::Release);
        }
        true
    }

    /// A process that has named its job says what it does. False: that cannot be heard.
    pub(crate) fn phase(&self, pid: u32, text: &[u8]) -> bool {
        self.announced.phase(pid, text)
    }

    /// What programs do, as they say.
    pub(crate) fn activities(&self) -> Vec<Activity> {
        self.announced.activities()
    }

    /// What the processes of an application do, as they say.
    pub(crate) fn phases(&self, app: AppId) -> Option<Phases> {
        self.announced.phases(app)
    }

    /// The application of a user's job; none: there is no number for it. One that a process has named gets its own, unless
    /// another one has that here.
    fn job(&self, job: &str, uid: u32) -> Option<AppId> {
        let name = job_of_user(job, uid);
        let mut names = self.names.write();
        if let Some(app) = names.known(&name, uid) {
            return Some(app);
        }
        let said = job.strip_prefix(JOB_IS);
        let own = said.and_then(|said| names.give_own(announced::number(uid, said), &name, uid));
        let (app, lost) = own.or_else(|| names.give_place(&name, uid))?;
        // While nobody else can give numbers away.
        if let Some(lost) = lost {
            self.announced.forget(lost);
        }
        if let Some(said) = said {
            self.announced.renumber(uid, said, app);
        }
        Some(app)
    }

    /// What `status` shows for an application: `SLURM_JOB_ID=17 uid=1000`, `uid=1000`.
    pub(crate) fn name(&self, app: AppId) -> String {
        let names = self.names.read();
        let name = names.list.get(app.0 as usize).or_else(|| names.numbered.get(&app));
        name.cloned().unwrap_or_else(|| format!("application {}", app.0))
    }

    /// The caller's application, through what the open file remembers.
    pub(crate) fn of_caller(&self, last: &LastCaller, pid: u32, uid: u32) -> AppId {
        let era = self.era(uid).load(Ordering::Acquire);
        // Where several threads use one open file at the same time the table of callers serves.
        if let Some(known) = last.0.try_lock()
            && known.is(pid, uid, era)
        {
            return known.app;
        }
        let (app, sure) = self.of(pid, uid);
        if sure && let Some(mut known) = last.0.try_lock() {
            *known = Caller { pid, uid, app, checked_s: now_s(), era };
        }
        app
    }

    /// The application of a process, and whether that may be remembered.
    pub(crate) fn of(&self, pid: u32, uid: u32) -> (AppId, bool) {
        if pid == 0 {
            return (self.user(uid), false);
        }
        let slot = &self.callers[pid as usize % SLOTS];
        let (known, era) = (*slot.lock(), self.era(uid).load(Ordering::Acquire));
        if known.is(pid, uid, era) {
            return (known.app, true);
        }
        let Some(job) = self.jobs.ask(uid, pid) else { return (self.user(uid), false) };
        let app = job.and_then(|job| self.job(&job, uid)).unwrap_or_else(|| self.user(uid));
        *slot.lock() = Caller { pid, uid, app, checked_s: now_s(), era };
        (app, true)
    }

    fn user(&self, uid: u32) -> AppId {
        if let Some(&app) = self.names.read().users.get(&uid) {
            return app;
        }
        self.names.write().user(uid)
    }
}

impl Names {
    fn user(&mut self, uid: u32) -> AppId {
        if let Some(&app) = self.users.get(&uid) {
            return app;
        }
        if self.list.len() >= MOST_APPS {
            return OTHERS;
        }
        let app = AppId(self.list.len() as u32);
        self.list.push(format!("uid={uid}"));
        self.users.insert(uid, app);
        app
    }

    /// The number of a user's job, if it has one: it counts as asked after.
    fn known(&mut self, name: &str, uid: u32) -> Option<AppId> {
        let app = *self.ids.get(name)?;
        self.ask(app, uid);
        Some(app)
    }

    fn ask(&mut self, app: AppId, uid: u32) {
        self.asked += 1;
        let jobs = if is_place(app) { &mut self.placed } else { &mut self.own };
        jobs.entry(uid).or_default().insert(app, self.asked);
    }

    /// Gives a user's new job a place in the list, or that of another one of the user's. None: the list is full, and the user has
    /// no other.
    fn give_place(&mut self, name: &str, uid: u32) -> Option<Given> {
        let jobs = self.placed.get(&uid);
        let has_room = self.list.len() < MOST_APPS - FOR_USERS && jobs.is_none_or(|jobs| jobs.len() < MOST_JOBS);
        let (app, lost) = if has_room {
            let app = AppId(self.list.len() as u32);
            self.list.push(name.to_owned());
            (app, None)
        } else {
            let app = longest_ago(jobs?)?;
            let before = std::mem::replace(&mut self.list[app.0 as usize], name.to_owned());
            self.ids.remove(&before);
            (app, Some(app))
        };
        self.ids.insert(name.to_owned(), app);
        self.ask(app, uid);
        Some((app, lost))
    }

    /// Gives a user's new job the number of its own, in exchange for another one of the user's if there are too many. None: that
    /// number is taken, or there is nothing to exchange.
    fn give_own(&mut self, number: AppId, name: &str, uid: u32) -> Option<Given> {
        if is_place(number) || self.numbered.contains_key(&number) {
            return None;
        }
        let jobs = self.own.get(&uid);
        let has_room = self.numbered.len() < MOST_APPS && jobs.is_none_or(|jobs| jobs.len() < MOST_JOBS);
        let lost = if has_room { None } else { Some(longest_ago(jobs?)?) };
        if let Some(lost) = lost {
            self.own.entry(uid).or_default().remove(&lost);
            if let Some(before) = self.numbered.remove(&lost) {
                self.ids.remove(&before);
            }
        }
        self.numbered.insert(number, name.to_owned());
        self.ids.insert(name.to_owned(), number);
        self.ask(number, uid);
        Some((number, lost))
    }
}

/// Whether a number is a place in the list.
fn is_place(app: AppId) -> bool {
    (app.0 as usize) < MOST_APPS
}

/// Of jobs the one that has not been asked after for longest. O(jobs), which are few.
fn longest_ago(jobs: &Jobs) -> Option<AppId> {
    jobs.iter().min_by_key(|&(_, &asked)| asked).map(|(&app, _)| app)
}

/// The first of `variables` (each ending in `=`) that the process has, with its value.
fn job_name(pid: u32, variables: &[Vec<u8>]) -> Option<String> {
    if variables.is_empty() {
        return None;
    }
    let mut environ = Vec::new();
    File::open(format!("/proc/{pid}/environ")).ok()?.take(MOST_ENVIRON).read_to_end(&mut environ).ok()?;
    job_in(&environ, variables)
}

/// The name of a user's job. A job cannot take the name of another user's: the user id comes last and is not the job's to
/// choose, and no job's name has a space.
fn job_of_user(job: &str, uid: u32) -> String {
    format!("{job} uid={uid}")
}

fn job_in(environ: &[u8], variables: &[Vec<u8>]) -> Option<String> {
    let found = variables.iter().find_map(|name| {
        environ.split(|&b| b == 0).find(|entry| entry.starts_with(name) && entry.len() > name.len())
    })?;
    // Shown to people and kept for as long as the mount lives: short, and nothing that could steer a terminal.
    let text = String::from_utf8_lossy(&found[..found.len().min(96)]);
    Some(text.chars().map(|c| if c.is_control() || c.is_whitespace() { '?' } else { c }).collect())
}

fn now_s() -> u64 {
    // The coarse clock costs a fifth of the exact one.
    rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse).tv_sec as u64
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::*;

    fn variables() -> Vec<Vec<u8>> {
        vec![b"SLURM_JOB_ID=".to_vec(), b"PBS_JOBID=".to_vec()]
    }

    /// The application of a process: on a busy machine it is not known at once, as nobody waits long for it.
    fn known(apps: &Apps, pid: u32, uid: u32) -> AppId {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            match apps.of(pid, uid) {
                (app, true) => return app,
                _ => assert!(Instant::now() < until, "process {pid} of {uid} is never known"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_most_wanted_variable_names_the_job() {
        let environ = b"PATH=/bin\0PBS_JOBID=7.host\0SLURM_JOB_ID=42\0";
        assert_eq!(job_in(environ, &variables()).as_deref(), Some("SLURM_JOB_ID=42"));
        assert_eq!(job_in(b"PBS_JOBID=7\x1b[2J\0", &variables()).as_deref(), Some("PBS_JOBID=7?[2J"));
        // A value cannot look like another user's job.
        assert_eq!(job_in(b"PBS_JOBID=7 uid=0\0", &variables()).as_deref(), Some("PBS_JOBID=7?uid=0"));
        assert_eq!(job_in(b"SLURM_JOB_ID=\0XSLURM_JOB_ID=3\0", &variables()), None);
    }

    #[test]
    fn own_process_is_its_user_and_is_remembered() {
        let apps = Apps::new(&["SLUICE_NO_SUCH_JOB".into()]).unwrap();
        let pid = std::process::id();
        let last = LastCaller::default();
        known(&apps, pid, 12345);
        let app = apps.of_caller(&last, pid, 12345);
        assert_eq!(apps.name(app), "uid=12345");
        assert_eq!(last.0.lock().pid, pid);
        assert_eq!(apps.of_caller(&last, pid, 12345), app);
        // The same thread as another user is somebody else, at once.
        let other = apps.of_caller(&last, pid, 54321);
        assert_eq!(apps.name(other), "uid=54321");
        assert_eq!(apps.name(AppId(999)), "application 999");
    }

    #[test]
    fn a_batch_job_is_recognised_by_its_environment() {
        let apps = Apps::new(&["SLURM_JOB_ID".into()]).unwrap();
        let mut child = std::process::Command::new("cat")
            .env("SLURM_JOB_ID", "4711")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Until the program runs it has no environment; once it answers it has.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let app = known(&apps, child.id(), 1000);
        assert_eq!(apps.name(app), "SLURM_JOB_ID=4711 uid=1000");
        // Another user with the same variable is another application, even in the same process (set-user-ID programs).
        let other = known(&apps, child.id(), 1001);
        assert_eq!(apps.name(other), "SLURM_JOB_ID=4711 uid=1001");
        assert_ne!(app, other);
        drop(child.stdin.take());
        child.wait().unwrap();
        let (user, sure) = apps.of(0, 1000);
        assert_eq!((apps.name(user).as_str(), sure), ("uid=1000", false));
    }

    #[test]
    fn a_job_that_a_process_names_is_its_user_s_and_known_at_once() {
        let apps = Apps::new(&[]).unwrap();
        let (pid, last) = (std::process::id(), LastCaller::default());
        assert_eq!(apps.name(apps.of_caller(&last, pid, 1000)), "uid=1000");
        assert!(apps.announce(pid, 1000, "run-17"));
        known(&apps, pid, 1000);
        let app = apps.of_caller(&last, pid, 1000);
        assert_eq!((app, apps.name(app).as_str()), (announced::number(1000, "run-17"), "job=run-17 uid=1000"));
        // Another user in the same process does not take part in the job of this one.
        assert_ne!(apps.of_caller(&last, pid, 1001), app);
        assert!(apps.phase(pid, b"io") && apps.phases(app).is_some_and(|phases| phases.in_io == 1));
    }

    #[test]
    fn only_news_of_a_user_s_process_make_that_user_s_callers_be_looked_up_anew() {
        let apps = Apps::new(&[]).unwrap();
        let pid = std::process::id();
        let eras = || [1000, 2000].map(|uid| apps.era(uid).load(Ordering::Acquire));
        assert!(apps.announce(pid, 1000, "run-17"));
        assert_eq!(eras(), [1, 0]);
        assert!(apps.announce(pid, 1000, "run-17") && !apps.announce(0, 1000, "run-18"));
        assert_eq!(eras(), [1, 0]);
        assert!(apps.announce(pid, 1000, "run-18"));
        assert_eq!(eras(), [2, 0]);
    }

    #[test]
    fn a_user_whose_processes_cannot_be_looked_at_is_alone_with_that() {
        let stuck = Arc::new(Mutex::new(()));
        let held = stuck.lock();
        let waits = stuck.clone();
        let job = move |pid: &u32| {
            if *pid < 100 {
                drop(waits.lock());
            }
            Some(format!("SLURM_JOB_ID={pid}"))
        };
        let apps = Apps::reading(Box::new(job), Arc::default()).unwrap();
        for pid in 1..50 {
            let (app, sure) = apps.of(pid, 1000);
            assert_eq!((apps.name(app).as_str(), sure), ("uid=1000", false));
            let app = known(&apps, 100 + pid, 2000 + pid);
            assert_eq!(apps.name(app), format!("SLURM_JOB_ID={} uid={}", 100 + pid, 2000 + pid));
        }
        drop(held);
    }

    /// A job that the environment of a user's processes names.
    fn job_of(apps: &Apps, uid: u32, number: usize) -> AppId {
        apps.job(&format!("SLURM_JOB_ID={number}"), uid).unwrap()
    }

    #[test]
    fn a_user_s_many_jobs_take_numbers_from_each_other() {
        let apps = Apps::new(&[]).unwrap();
        let first = job_of(&apps, 1000, 0);
        for number in 1..=MOST_APPS {
            job_of(&apps, 1000, number);
            // This one is asked after all the time, and stays.
            assert_eq!(job_of(&apps, 1000, 0), first);
        }
        let names = |app| apps.name(app);
        assert_eq!(names(first), "SLURM_JOB_ID=0 uid=1000");
        let last = job_of(&apps, 1000, MOST_APPS);
        assert_eq!(names(last), format!("SLURM_JOB_ID={MOST_APPS} uid=1000"));
        // Whoever comes next is recognised.
        assert_eq!(names(job_of(&apps, 2000, 0)), "SLURM_JOB_ID=0 uid=2000");
        assert_eq!(names(apps.user(3000)), "uid=3000");
        let known = apps.names.read();
        assert_eq!((known.placed[&1000].len(), known.ids.len()), (MOST_JOBS, MOST_JOBS + 1));
        assert_eq!(known.list.len(), 1 + MOST_JOBS + 1 + 1, "others, jobs of two users, a user");
    }

    #[test]
    fn a_user_s_many_jobs_with_numbers_of_their_own_have_an_end() {
        let apps = Apps::new(&[]).unwrap();
        let job = |uid, number: usize| apps.job(&format!("{JOB_IS}{number}"), uid).unwrap();
        let first = job(1000, 0);
        (1..2 * MOST_JOBS).for_each(|number| _ = job(1000, number));
        assert_eq!(apps.name(first), format!("application {}", first.0), "nobody has that number now");
        let again = job(1000, 0);
        assert_eq!((again, apps.name(again).as_str()), (first, "job=0 uid=1000"), "it comes back with its own number");
        assert_eq!(apps.name(job(2000, 0)), "job=0 uid=2000");
        let known = apps.names.read();
        assert_eq!(known.own[&1000].len(), MOST_JOBS);
        assert_eq!(known.numbered.len() + known.list.len(), known.ids.len() + 1, "one is for others");
    }

    #[test]
    fn what_a_process_said_follows_its_job_to_another_number() {
        let apps = Apps::new(&[]).unwrap();
        let pid = std::process::id();
        assert!(apps.announce(pid, 1000, "run") && apps.phase(pid, b"batch 4096"));
        let before = announced::number(1000, "run");
        assert!(apps.phases(before).is_some_and(|phases| phases.in_batch == 1 && phases.batches == 1));
        (0..2 * MOST_JOBS).for_each(|number| _ = apps.job(&format!("{JOB_IS}{number}"), 1000));
        assert_eq!(apps.phases(before), None, "another job may get the number");
        // Somebody took the number meanwhile.
        apps.names.write().numbered.insert(before, "job=x uid=1000".into());
        let now = apps.job("job=run", 1000).unwrap();
        assert_ne!(now, before);
        assert!(apps.phases(now).is_some_and(|phases| phases.in_batch == 1 && phases.batches == 0));
        assert_eq!(apps.activities()[0].app, now);
    }

    #[test]
    fn where_users_together_have_taken_all_numbers_jobs_are_their_users() {
        let apps = Apps::reading(Box::new(|_: &u32| Some(String::from("SLURM_JOB_ID=7"))), Arc::default()).unwrap();
        let mut uid = 10_000;
        while apps.names.read().list.len() < MOST_APPS - FOR_USERS {
            (0..MOST_JOBS).for_each(|number| _ = apps.job(&format!("SLURM_JOB_ID={number}"), uid));
            uid += 1;
        }
        let app = known(&apps, std::process::id(), 1000);
        assert_eq!(apps.name(app), "uid=1000");
        assert_ne!(app, OTHERS);
        // There is an end of users, too.
        (0..MOST_APPS as u32).for_each(|user| _ = apps.user(100_000 + user));
        assert_eq!(apps.user(1), OTHERS);
        assert_eq!(apps.names.read().list.len(), MOST_APPS);
    }
}
