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
/// Most applications told apart at a time; names are made by users, so there must be an end.
const MOST_APPS: usize = 1 << 16;
/// Most bytes of an environment looked at.
const MOST_ENVIRON: u64 = 1 << 20;

/// Everybody who came after [`MOST_APPS`] others.
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
    /// Counts announcements: what was known of callers before is looked up anew.
    era: AtomicU32,
}

#[derive(Default)]
struct Names {
    list: Vec<String>,
    ids: HashMap<String, AppId>,
    users: HashMap<u32, AppId>,
    /// Those whose numbers are not places in the list.
    numbered: HashMap<AppId, String>,
}

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
        let (names, era) = (RwLock::new(names), AtomicU32::new(0));
        Ok(Arc::new(Apps { names, callers, jobs: Lookups::new(job)?, announced, era }))
    }

    /// A process names its job. False: that cannot be heard.
    pub(crate) fn announce(&self, pid: u32, uid: u32, job: &str) -> bool {
        let app = self.job(job, uid);
        let is_heard = app != OTHERS && self.announced.job(pid, job, app);
        self.era.fetch_add(1, Ordering::Release);
        is_heard
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

    /// The application of a job that a process of the user has named: its own number, unless another one has that here.
    fn job(&self, job: &str, uid: u32) -> AppId {
        let name = job_of_user(&format!("{JOB_IS}{job}"), uid);
        let number = announced::number(uid, job);
        let mut names = self.names.write();
        if let Some(&app) = names.ids.get(&name) {
            return app;
        }
        if (number.0 as usize) < MOST_APPS || names.numbered.len() >= MOST_APPS || names.numbered.contains_key(&number)
        {
            drop(names);
            return self.named(name);
        }
        names.numbered.insert(number, name.clone());
        names.ids.insert(name, number);
        number
    }

    /// What `status` shows for an application: `SLURM_JOB_ID=17 uid=1000`, `uid=1000`.
    pub(crate) fn name(&self, app: AppId) -> String {
        let names = self.names.read();
        let name = names.list.get(app.0 as usize).or_else(|| names.numbered.get(&app));
        name.cloned().unwrap_or_else(|| format!("application {}", app.0))
    }

    /// The caller's application, through what the open file remembers.
    pub(crate) fn of_caller(&self, last: &LastCaller, pid: u32, uid: u32) -> AppId {
        let era = self.era.load(Ordering::Acquire);
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
        let (known, era) = (*slot.lock(), self.era.load(Ordering::Acquire));
        if known.is(pid, uid, era) {
            return (known.app, true);
        }
        let Some(job) = self.jobs.ask(uid, pid) else { return (self.user(uid), false) };
        let app = job.map_or_else(
            || self.user(uid),
            |job| match job.strip_prefix(JOB_IS) {
                Some(job) => self.job(job, uid),
                None => self.named(job_of_user(&job, uid)),
            },
        );
        *slot.lock() = Caller { pid, uid, app, checked_s: now_s(), era };
        (app, true)
    }

    fn user(&self, uid: u32) -> AppId {
        if let Some(&app) = self.names.read().users.get(&uid) {
            return app;
        }
        let app = self.named(format!("uid={uid}"));
        if app != OTHERS {
            self.names.write().users.insert(uid, app);
        }
        app
    }

    fn named(&self, name: String) -> AppId {
        let mut names = self.names.write();
        if let Some(&app) = names.ids.get(&name) {
            return app;
        }
        if names.list.len() >= MOST_APPS {
            return OTHERS;
        }
        let app = AppId(names.list.len() as u32);
        names.list.push(name.clone());
        names.ids.insert(name, app);
        app
    }
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

    #[test]
    fn the_number_of_applications_has_an_end() {
        let apps = Apps::new(&[]).unwrap();
        for i in 0..MOST_APPS {
            apps.named(format!("job {i}"));
        }
        assert_eq!(apps.named("one more".into()), OTHERS);
        assert_eq!(apps.names.read().list.len(), MOST_APPS);
    }
}
