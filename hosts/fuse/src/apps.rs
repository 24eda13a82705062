//! Which application a request belongs to: the batch job of the calling process together with its user, or else its user.
//!
//! A job is recognised by an environment variable of the process ([`MountOptions::job_variables`]), as it was when the
//! process started its program. Anybody can set any variable, so a job's name counts only together with the user id that
//! the kernel gives for the request: `SLURM_JOB_ID=17` of two users are two applications, and nobody is served, weighted
//! or counted as another user's job. Within one user's processes the variable is believed.
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

use parking_lot::{Mutex, RwLock};
use sluice_core::AppId;

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

/// The last caller of an open file.
#[derive(Default)]
pub(crate) struct LastCaller(Mutex<Caller>);

pub(crate) struct Apps {
    names: RwLock<Names>,
    callers: Box<[Mutex<Caller>]>,
    /// The job of a process, by its id.
    jobs: Lookups<u32, Option<String>>,
}

#[derive(Default)]
struct Names {
    list: Vec<String>,
    ids: HashMap<String, AppId>,
    users: HashMap<u32, AppId>,
}

#[derive(Clone, Copy, Default)]
struct Caller {
    pid: u32,
    uid: u32,
    app: AppId,
    checked_s: u64,
}

impl Caller {
    /// Whether this is what is known of the caller, and recent. The user counts: a thread can change it (file servers do).
    fn is(&self, pid: u32, uid: u32) -> bool {
        self.pid == pid && pid != 0 && self.uid == uid && now_s() - self.checked_s < FRESH_S
    }
}

impl Apps {
    pub(crate) fn new(variables: &[String]) -> std::io::Result<Arc<Apps>> {
        let variables: Vec<_> = variables.iter().map(|name| format!("{name}=").into_bytes()).collect();
        Apps::reading(Box::new(move |pid| job_name(*pid, &variables)))
    }

    /// With what tells the job of a process.
    fn reading(job: Answerer<u32, Option<String>>) -> std::io::Result<Arc<Apps>> {
        let names = Names { list: vec!["others".into()], ..Names::default() };
        let callers = (0..SLOTS).map(|_| Mutex::default()).collect();
        Ok(Arc::new(Apps { names: RwLock::new(names), callers, jobs: Lookups::new(job)? }))
    }

    /// What `status` shows for an application: `SLURM_JOB_ID=17 uid=1000`, `uid=1000`.
    pub(crate) fn name(&self, app: AppId) -> String {
        self.names.read().list.get(app.0 as usize).cloned().unwrap_or_else(|| format!("application {}", app.0))
    }

    /// The caller's application, through what the open file remembers.
    pub(crate) fn of_caller(&self, last: &LastCaller, pid: u32, uid: u32) -> AppId {
        // Where several threads use one open file at the same time the table of callers serves.
        if let Some(known) = last.0.try_lock()
            && known.is(pid, uid)
        {
            return known.app;
        }
        let (app, sure) = self.of(pid, uid);
        if sure && let Some(mut known) = last.0.try_lock() {
            *known = Caller { pid, uid, app, checked_s: now_s() };
        }
        app
    }

    /// The application of a process, and whether that may be remembered.
    pub(crate) fn of(&self, pid: u32, uid: u32) -> (AppId, bool) {
        if pid == 0 {
            return (self.user(uid), false);
        }
        let slot = &self.callers[pid as usize % SLOTS];
        let known = *slot.lock();
        if known.is(pid, uid) {
            return (known.app, true);
        }
        let Some(job) = self.jobs.ask(uid, pid) else { return (self.user(uid), false) };
        let app = job.map_or_else(|| self.user(uid), |job| self.named(job_of_user(&job, uid)));
        *slot.lock() = Caller { pid, uid, app, checked_s: now_s() };
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

    use super::*;

    fn variables() -> Vec<Vec<u8>> {
        vec![b"SLURM_JOB_ID=".to_vec(), b"PBS_JOBID=".to_vec()]
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
        let (app, sure) = apps.of(child.id(), 1000);
        assert_eq!((apps.name(app).as_str(), sure), ("SLURM_JOB_ID=4711 uid=1000", true));
        // Another user with the same variable is another application, even in the same process (set-user-ID programs).
        let (other, sure) = apps.of(child.id(), 1001);
        assert_eq!((apps.name(other).as_str(), sure), ("SLURM_JOB_ID=4711 uid=1001", true));
        assert_ne!(app, other);
        drop(child.stdin.take());
        child.wait().unwrap();
        let (user, sure) = apps.of(0, 1000);
        assert_eq!((apps.name(user).as_str(), sure), ("uid=1000", false));
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
        let apps = Apps::reading(Box::new(job)).unwrap();
        let mut recognised = 0;
        for pid in 1..50 {
            let (app, sure) = apps.of(pid, 1000);
            assert_eq!((apps.name(app).as_str(), sure), ("uid=1000", false));
            // Each of a user of its own, as a busy machine may be late now and then.
            let (app, sure) = apps.of(100 + pid, 2000 + pid);
            recognised += u32::from(sure && apps.name(app) == format!("SLURM_JOB_ID={} uid={}", 100 + pid, 2000 + pid));
        }
        assert!(recognised > 40, "{recognised} of 49");
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
