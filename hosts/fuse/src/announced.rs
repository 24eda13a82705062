//! What programs say of themselves: which job they are part of, and what they are doing. `sluice mpirun` has MPI programs do so.
//!
//! A process sets extended attributes of any file of the mount, which are not stored: [`JOB`] names the job that it is part of from
//! now on, [`PHASE`] what it does; reading [`APP`] tells as which application it is served, so that it knows that it was heard.
//! They are `system.` attributes: the kernel asks no permission for them (a program may have no right to write any of its files), and
//! other file systems refuse them rather than store them.
//!
//! The process is the one that the kernel names, so nobody speaks for another one, and what is said ends with it. A job is one of
//! the caller's user, as everywhere ([`crate::apps`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sluice_core::AppId;

/// Names the caller's job: 1 to 96 bytes of printable text without spaces.
pub(crate) const JOB: &str = "system.sluice.job";
/// Says what the caller does: `io`, `compute`, `batch BYTES` or `batch end`.
pub(crate) const PHASE: &str = "system.sluice.phase";
/// Tells the name of the caller's application.
pub(crate) const APP: &str = "system.sluice.app";

/// Processes remembered before those that have ended are forgotten, and most at all.
const LOOK_AT: usize = 1 << 10;
const MOST: usize = 1 << 16;

/// What the processes of a program that announces itself are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Processes that have said that they compute (or nothing), that they have files open for input or output, and that they serve a
    /// sorted batch for others (data-driven execution).
    pub computing: u32,
    /// See `computing`.
    pub in_io: u32,
    /// See `computing`.
    pub in_batch: u32,
    /// Batches announced so far, and bytes in them.
    pub batches: u64,
    /// Bytes.
    pub batch_bytes: u64,
}

/// What a program is doing, as its processes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Whose requests it makes.
    pub app: AppId,
    /// All of its processes compute; else some have files open for input or output.
    pub computes: bool,
    /// Since the last of them said so.
    pub lasts: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Compute,
    Io,
    Batch,
}

struct Process {
    /// When it began, by which a process id used again is told from it.
    began: u64,
    uid: u32,
    job: String,
    /// None: the number that its job had is another job's, and it has no other one yet.
    app: Option<AppId>,
    phase: Phase,
    /// When it said that it computes, or that it does not any more; none: it has said neither.
    said: Option<Instant>,
}

#[derive(Default)]
struct State {
    processes: HashMap<u32, Process>,
    /// Batches of an application, and their bytes: also of processes that have ended.
    batches: HashMap<AppId, (u64, u64)>,
    /// Some process may be without a number.
    unnumbered: bool,
}

/// Processes that have said something.
#[derive(Default)]
pub(crate) struct Announced(Mutex<State>);

impl Announced {
    /// The thread `pid` of a user names the job of its process, whose application `app` gives the number of. Whether that is news;
    /// none: nobody can say which process that is, or too many have spoken.
    pub(crate) fn job(&self, pid: u32, uid: u32, job: &str, app: AppId) -> Option<bool> {
        let (process, began) = identity(pid)?;
        let mut state = self.0.lock();
        let count = state.processes.len();
        // Only before there are more: who speaks again and again must not make this happen each time.
        if count >= LOOK_AT && count.is_power_of_two() && !state.processes.contains_key(&process) {
            drop(state);
            state = self.forget_ended(|_| true);
        }
        let known = state.processes.get(&process);
        if known.is_none() && state.processes.len() >= MOST {
            return None;
        }
        let is_news = known.is_none_or(|known| (known.began, known.uid, known.job.as_str()) != (began, uid, job));
        let (job, app) = (job.to_owned(), Some(app));
        state.processes.insert(process, Process { began, uid, job, app, phase: Phase::Compute, said: None });
        Some(is_news)
    }

    /// Forgets those of these processes that have ended. They are looked at without the lock: who asks for a process's job needs that.
    fn forget_ended(&self, are_meant: impl Fn(&Process) -> bool) -> MutexGuard<'_, State> {
        let mut looked_at = Vec::new();
        for (&process, known) in &self.0.lock().processes {
            if are_meant(known) {
                looked_at.push((process, known.began));
            }
        }
        looked_at.retain(|&(process, began)| !is_alive(process, began));
        let mut state = self.0.lock();
        for (process, began) in looked_at {
            if state.processes.get(&process).is_some_and(|known| known.began == began) {
                state.processes.remove(&process);
            }
        }
        state
    }

    /// The job that had this number has it no more. O(processes), and rare: only who has named very many jobs takes numbers from them.
    pub(crate) fn forget(&self, app: AppId) {
        let mut state = self.0.lock();
        state.batches.remove(&app);
        let State { processes, unnumbered, .. } = &mut *state;
        for known in processes.values_mut().filter(|known| known.app == Some(app)) {
            known.app = None;
            *unnumbered = true;
        }
    }

    /// A job has been given a number: its processes may have had another one before.
    pub(crate) fn renumber(&self, uid: u32, job: &str, app: AppId) {
        let mut state = self.0.lock();
        if !state.unnumbered {
            return;
        }
        for known in state.processes.values_mut().filter(|known| known.app.is_none()) {
            if known.uid == uid && known.job == job {
                known.app = Some(app);
            }
        }
        state.unnumbered = state.processes.values().any(|known| known.app.is_none());
    }

    /// The thread `pid` says what its process does. False: that says nothing, or its process has named no job.
    pub(crate) fn phase(&self, pid: u32, text: &[u8]) -> bool {
        let Some((process, began)) = identity(pid) else { return false };
        let text = std::str::from_utf8(text).unwrap_or_default();
        let (phase, bytes) = match text.split_once(' ') {
            None if text == "io" => (Phase::Io, None),
            None if text == "compute" => (Phase::Compute, None),
            Some(("batch", "end")) => (Phase::Io, None),
            Some(("batch", bytes)) => match bytes.parse::<u64>() {
                Ok(bytes) => (Phase::Batch, Some(bytes)),
                Err(_) => return false,
            },
            _ => return false,
        };
        let mut state = self.0.lock();
        let Some(known) = state.processes.get_mut(&process).filter(|known| known.began == began) else { return false };
        if known.said.is_none() || (known.phase == Phase::Compute) != (phase == Phase::Compute) {
            known.said = Some(Instant::now());
        }
        known.phase = phase;
        let app = known.app;
        if let (Some(app), Some(bytes)) = (app, bytes) {
            let (batches, sum) = state.batches.entry(app).or_default();
            (*batches, *sum) = (*batches + 1, sum.saturating_add(bytes));
        }
        true
    }

    /// The job of the process of the thread `pid`, if that has named one. Reads `/proc` only if anybody has.
    pub(crate) fn job_of(&self, pid: u32) -> Option<String> {
        if self.0.lock().processes.is_empty() {
            return None;
        }
        let (process, began) = identity(pid)?;
        let state = self.0.lock();
        state.processes.get(&process).filter(|known| known.began == began).map(|known| known.job.clone())
    }

    /// What the programs do that have said anything and have not ended. O(processes), without a lock while those are looked at.
    pub(crate) fn activities(&self) -> Vec<Activity> {
        let state = self.forget_ended(|_| true);
        // Of each program whether it computes, and who said so last: those count that do what the program does.
        let mut programs: BTreeMap<AppId, (bool, Option<Instant>)> = BTreeMap::new();
        for known in state.processes.values() {
            let Some(app) = known.app else { continue };
            let computes = known.phase == Phase::Compute;
            let program = programs.entry(app).or_insert((computes, known.said));
            match (program.0, computes) {
                (true, false) => *program = (false, known.said),
                (false, true) => {}
                _ => program.1 = program.1.max(known.said),
            }
        }
        let now = Instant::now();
        let said = |(app, (computes, said)): (AppId, (bool, Option<Instant>))| {
            Some(Activity { app, computes, lasts: now.saturating_duration_since(said?) })
        };
        programs.into_iter().filter_map(said).collect()
    }

    /// What an application's processes do; none if none of them has said anything. O(processes).
    pub(crate) fn phases(&self, app: AppId) -> Option<Phases> {
        let state = self.forget_ended(|known| known.app == Some(app));
        let (batches, batch_bytes) = state.batches.get(&app).copied().unwrap_or_default();
        let has = |known: &Process, phase: Phase| known.app == Some(app) && known.phase == phase;
        let count = |phase| state.processes.values().filter(|known| has(known, phase)).count() as u32;
        let phases = Phases {
            computing: count(Phase::Compute),
            in_io: count(Phase::Io),
            in_batch: count(Phase::Batch),
            batches,
            batch_bytes,
        };
        (phases != Phases::default()).then_some(phases)
    }
}

/// The job's name in a value of [`JOB`]; none if that is no name.
pub(crate) fn name_in(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    let is_name = (1..=96).contains(&text.len()) && text.chars().all(|c| !c.is_control() && !c.is_whitespace());
    is_name.then_some(text)
}

/// Whether an attribute is one of these.
pub(crate) fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"system.sluice.")
}

/// The number of a user's job: what the translator for GlusterFS gives it (FNV-1a), so that it is the same program everywhere.
pub(crate) fn number(uid: u32, job: &str) -> AppId {
    let hash = sluice_storage::fnv1a(&[&uid.to_ne_bytes(), job.as_bytes()].concat());
    AppId((hash ^ hash >> 32) as u32)
}

/// The process of a thread, and when it began, in ticks since the system was started.
fn identity(pid: u32) -> Option<(u32, u64)> {
    if pid == 0 {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    Some((process, began(process)?))
}

fn began(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may have anything in it, the twentieth field.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn is_alive(process: u32, since: u64) -> bool {
    began(process) == Some(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_ends_with_it() {
        let announced = Announced::default();
        let (pid, app) = (std::process::id(), AppId(7));
        assert_eq!(announced.job_of(pid), None);
        assert!(!announced.phase(pid, b"io"), "of whom?");
        assert_eq!(announced.job(pid, 1000, "run-17", app), Some(true));
        // Another thread is the same process.
        let of_thread = || announced.job_of(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let said = std::thread::scope(|scope| scope.spawn(of_thread).join().unwrap());
        assert_eq!((said.as_deref(), announced.job_of(pid).as_deref()), (Some("run-17"), Some("run-17")));
        assert!(announced.phase(pid, b"io") && announced.phase(pid, b"batch 4096"));
        let phases = Phases { in_batch: 1, batches: 1, batch_bytes: 4096, ..Phases::default() };
        assert_eq!(announced.phases(app), Some(phases));
        assert!(announced.phase(pid, b"batch end"));
        assert_eq!(announced.phases(app), Some(Phases { in_batch: 0, in_io: 1, ..phases }));
        for nonsense in [&b"batch -1"[..], b"batch", b"sleep", b"io ", b"\xff"] {
            assert!(!announced.phase(pid, nonsense));
        }
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert_eq!(announced.job(child.id(), 1000, "other", AppId(8)), Some(true));
        assert_eq!(announced.phases(AppId(8)).map(|phases| phases.computing), Some(1));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(announced.phases(AppId(8)), None);
        assert_eq!(announced.job_of(child.id()), None);
        assert_eq!(announced.job(0, 1000, "x", app), None);
    }

    #[test]
    fn a_program_computes_when_all_of_its_processes_have_said_so() {
        let announced = Announced::default();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (own, other, app) = (std::process::id(), child.id(), AppId(7));
        for pid in [own, other] {
            assert_eq!(announced.job(pid, 1000, "run-17", app), Some(true));
        }
        assert_eq!(announced.activities(), [], "nobody has said what it does");
        let say = |pid, text: &[u8]| {
            assert!(announced.phase(pid, text));
            let [said] = announced.activities()[..] else { panic!("one program") };
            assert_eq!(said.app, app);
            said
        };
        assert!(!say(own, b"io").computes && !say(other, b"io").computes);
        assert!(!say(other, b"compute").computes, "one does, the other does not");
        let since = Instant::now();
        let all = say(own, b"compute");
        assert!(all.computes && all.lasts <= since.elapsed());
        let before = announced.activities()[0].lasts;
        let again = say(own, b"compute").lasts;
        assert!(again >= before, "it has done so all the time");
        assert!(!say(own, b"batch 4096").computes && !say(own, b"batch end").computes);
        // Another one that has not spoken yet is no reason to doubt, and what a process says ends with it.
        assert!(say(own, b"compute").computes && !say(other, b"io").computes);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(announced.activities()[0].computes);
        assert_eq!(announced.0.lock().processes.len(), 1);
    }

    #[test]
    fn ended_processes_are_looked_for_when_one_more_speaks_and_only_then() {
        let announced = Announced::default();
        let (own, count) = (std::process::id(), || announced.0.lock().processes.len());
        let speak = |pid, job| announced.job(pid, 1000, job, AppId(7));
        assert_eq!((speak(own, "run-17"), speak(own, "run-17")), (Some(true), Some(false)));
        for n in 1..LOOK_AT as u32 {
            // No process has such a number.
            let (job, app, phase) = (String::new(), None, Phase::Compute);
            let ended = Process { began: 0, uid: 1000, job, app, phase, said: None };
            announced.0.lock().processes.insert(u32::MAX - n, ended);
        }
        assert_eq!((speak(own, "run-17"), speak(own, "run-18"), count()), (Some(false), Some(true), LOOK_AT));
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert_eq!((speak(child.id(), "run-18"), count()), (Some(true), 2));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn names_are_short_and_plain_and_numbers_differ_by_user() {
        assert_eq!(name_in(b"run-17"), Some("run-17"));
        for nonsense in [&b""[..], b"a b", b"a\n", b"\xff", &[b'x'; 97]] {
            assert_eq!(name_in(nonsense), None);
        }
        assert_eq!(number(1000, "run-17"), number(1000, "run-17"));
        assert_ne!(number(1000, "run-17"), number(1001, "run-17"));
    }
}
