//! What selectors leave behind: knowledge and logs.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use sluice_adapt::selector::{BYTES_MAX, Device, Knowledge, Record, Why};

/// Size of a log that is given another name, so that a new one begins. With the one before there are two of them at most.
const LOG_BYTES: u64 = 8 << 20;
/// Windows without a decision are logged so many seconds apart.
const WINDOWS_S: f64 = 1.0;

/// Reads what was learned.
///
/// # Errors
/// If the file cannot be read, or is not what a selector has written.
pub fn load(path: &Path) -> anyhow::Result<Knowledge> {
    File::open(path).map_err(anyhow::Error::from).and_then(read).with_context(|| path.display().to_string())
}

/// Reads what was learned from what is no file.
///
/// # Errors
/// As [`load`].
pub fn read(input: impl Read) -> anyhow::Result<Knowledge> {
    let mut text = Vec::new();
    input.take(BYTES_MAX as u64 + 1024).read_to_end(&mut text)?;
    Ok(Knowledge::from_text(&text)?)
}

/// Keeps what was learned: in a new file that takes the place of the old one when it is whole.
///
/// # Errors
/// If it cannot be written.
pub fn save(knowledge: &Knowledge, path: &Path) -> anyhow::Result<()> {
    replace(path, knowledge.to_text().as_bytes())
}

/// As [`save`], but a new file is for whom the umask lets have it: somebody asked for it, to give it to others.
///
/// # Errors
/// If it cannot be written.
pub fn export(knowledge: &Knowledge, path: &Path) -> anyhow::Result<()> {
    put(path, knowledge.to_text().as_bytes(), 0o666)
}

/// Writes a file that takes the place of the old one when it is whole, and is for whom that was; a new one is its owner's. What is no
/// file, as a device, is written into.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    put(path, bytes, 0o600)
}

/// `mode`: of a new file, less the umask.
fn put(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    // A link goes on leading to where it does.
    let real = std::fs::canonicalize(path);
    let path = real.as_deref().unwrap_or(path);
    let old = std::fs::metadata(path).ok();
    if old.as_ref().is_some_and(|known| !known.is_file() && !known.is_dir()) {
        let file = OpenOptions::new().write(true).open(path);
        return file.and_then(|mut file| file.write_all(bytes)).with_context(shown);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(shown)?;
    let mode = Permissions::from_mode(mode);
    let file = tempfile::Builder::new().prefix(".sluice-").permissions(mode).tempfile_in(dir);
    let mut file = file.with_context(shown)?;
    file.write_all(bytes).with_context(shown)?;
    if let Some(old) = old.filter(std::fs::Metadata::is_file) {
        let mode = Permissions::from_mode(old.permissions().mode() & 0o777);
        file.as_file().set_permissions(mode).with_context(shown)?;
    }
    file.as_file().sync_data().with_context(shown)?;
    file.persist(path).with_context(shown)?;
    Ok(())
}

/// Where what is learned is kept.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// `None`: nowhere.
    pub path: Option<PathBuf>,
    /// What a user should know of it: that it cannot be written, or that what was there could not be used.
    pub note: Option<String>,
}

impl Place {
    /// This file, if it can be written; nothing is left there.
    pub(crate) fn of(path: &Path) -> Place {
        let there = path.ancestors().skip(1).find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
        let note = match tempfile::tempfile_in(there) {
            Ok(_) => None,
            Err(error) => Some(cannot_be_kept(&anyhow::Error::from(error).context(path.display().to_string()))),
        };
        Place { path: Some(path.to_owned()), note }
    }

    fn nowhere(note: String) -> Place {
        Place { path: None, note: Some(note) }
    }

    /// Keeps something there, if there is a place. Whether all is kept now.
    pub(crate) fn keep(&mut self, save: impl FnOnce(&Path) -> anyhow::Result<()>) -> bool {
        let Some(path) = &self.path else { return true };
        match save(path) {
            Ok(()) => {
                self.note.take_if(|note| note.starts_with(CANNOT_BE_KEPT));
                true
            }
            Err(error) => {
                let note = cannot_be_kept(&error);
                // Once is enough, as long as it is the same.
                if self.note.as_ref() != Some(&note) {
                    tracing::warn!("{note}");
                    self.note = Some(note);
                }
                false
            }
        }
    }
}

const CANNOT_BE_KEPT: &str = "what is learned cannot be kept";

fn cannot_be_kept(error: &anyhow::Error) -> String {
    // A new file has another name each time.
    format!("{CANNOT_BE_KEPT}: {}: {}", error, error.root_cause())
}

/// What was learned before by a selector for such devices, and where to keep what will be learned. What cannot be used gets another
/// name, so that it is not lost.
pub(crate) fn remembered(path: &Path, use_it: impl FnOnce(Knowledge) -> anyhow::Result<()>) -> Place {
    if matches!(std::fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound) {
        return Place::of(path);
    }
    let Err(error) = load(path).and_then(use_it) else { return Place::of(path) };
    if error.downcast_ref::<std::io::Error>().is_some() {
        return unreadable(&error);
    }
    aside(path, &error)
}

/// What was kept for such devices; `None` if there is nothing, or it could not be used and has another name now.
///
/// # Errors
/// If what is there is to be left alone: it cannot be read, though it may be whole, or cannot be given another name.
pub fn kept(path: &Path, device: Device) -> anyhow::Result<Option<Knowledge>> {
    let mut found = None;
    let place = remembered(path, |known| {
        found = Some(known.for_device(device)?);
        Ok(())
    });
    anyhow::ensure!(place.path.is_some(), "{}", place.note.unwrap_or_default());
    Ok(found)
}

/// It may be whole, and is left alone.
pub(crate) fn unreadable(error: &anyhow::Error) -> Place {
    let note = format!("what was learned before cannot be read: {error:#}; what is learned now is not kept");
    tracing::warn!("{note}");
    Place::nowhere(note)
}

/// Gives another name to what cannot be used, so that it is not lost. Where to keep what will be learned.
#[must_use = "nothing is to be written where there is no place"]
pub fn set_aside(path: &Path, error: &anyhow::Error) -> Option<PathBuf> {
    aside(path, error).path
}

/// The same of what can be used in part.
#[must_use = "nothing is to be written where there is no place"]
pub fn set_aside_in_part(path: &Path, error: &anyhow::Error) -> Option<PathBuf> {
    aside_with(path, error, "the rest is used").path
}

pub(crate) fn aside(path: &Path, error: &anyhow::Error) -> Place {
    aside_with(path, error, "all is learned anew")
}

fn aside_with(path: &Path, error: &anyhow::Error, follows: &str) -> Place {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let named = |more: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{seconds}{more}"));
        PathBuf::from(name)
    };
    let more = (1..100).map(|n| named(&format!("-{n}")));
    let aside = std::iter::once(named("")).chain(more).find(|name| !name.exists()).unwrap_or_else(|| named(""));
    let why = format!("what was learned before cannot be used: {error:#}");
    let place = match std::fs::rename(path, &aside) {
        Ok(()) => {
            let note = format!("{why}; the file is now {}, {follows}", aside.display());
            Place { path: Some(path.to_owned()), note: Some(note) }
        }
        Err(error) => Place::nowhere(format!("{why}; {error}: what is learned now is not kept")),
    };
    tracing::warn!("{}", place.note.as_deref().unwrap_or_default());
    place
}

/// A log of decisions: JSON lines. The file is made when there is something to tell but the beginning: mounts whose engines never
/// see a request leave none.
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    /// The last lines could not be written, or not whole.
    has_failed: bool,
    /// What is not written yet.
    lines: Vec<u8>,
    bytes: u64,
    /// When a window was logged last.
    window_s: f64,
    /// With what the selector begins, and each file of it; and when the last decision was.
    begins: Option<Record>,
    last_s: f64,
}

impl Log {
    /// `begins`: the line with which it is to begin.
    pub(crate) fn new(path: &Path, begins: Option<&Record>) -> Log {
        let (path, window_s, begins) = (path.to_owned(), f64::NEG_INFINITY, begins.cloned());
        let last_s = begins.as_ref().map_or(0.0, |record| record.t);
        Log { path, file: None, has_failed: false, lines: Vec::new(), bytes: 0, window_s, begins, last_s }
    }

    /// The line with which a file begins; after a failure there may be a part of it.
    fn beginning(&self) -> Vec<u8> {
        let begins = self.begins.as_ref().map(|record| Record { t: self.last_s, ..record.clone() });
        let line = begins.and_then(|record| serde_json::to_vec(&record).ok());
        let parted: &[u8] = if self.has_failed { b"\n" } else { b"" };
        line.map_or_else(Vec::new, |line| [parted, &line, b"\n"].concat())
    }

    pub(crate) fn write(&mut self, records: &[Record]) {
        for record in records {
            if record.why == Why::Window {
                if record.t < self.window_s + WINDOWS_S {
                    continue;
                }
                self.window_s = record.t;
            }
            if serde_json::to_writer(&mut self.lines, record).is_ok() {
                self.lines.push(b'\n');
            }
        }
        if !self.lines.is_empty() {
            // What could not be written is lost; what comes later may be written again, as on a disk that was full.
            let done = self.append();
            if let Err(error) = &done
                && !self.has_failed
            {
                tracing::warn!("decisions are not logged: {}: {error}", self.path.display());
            }
            self.has_failed = done.is_err();
            self.lines.clear();
        }
        self.last_s = records.last().map_or(self.last_s, |record| record.t);
    }

    fn append(&mut self) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let (mut file, bytes) = append(&self.path)?;
                let begins = self.beginning();
                file.write_all(&begins)?;
                self.bytes = bytes + begins.len() as u64;
                self.file.insert(file)
            }
        };
        if self.has_failed {
            // There may be a part of a line.
            file.write_all(b"\n")?;
        }
        file.write_all(&self.lines)?;
        self.bytes += self.lines.len() as u64;
        if self.bytes > LOG_BYTES { self.turn() } else { Ok(()) }
    }

    /// A new file; the old one is kept, and the one before that is not.
    fn turn(&mut self) -> std::io::Result<()> {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".1");
        match std::fs::rename(&self.path, old) {
            // Somebody has removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
        let (file, bytes) = append(&self.path)?;
        // It is the file from now on, also if there is no room for its first line: the next turn would put it in the place of the old one.
        let begins = self.beginning();
        self.bytes = bytes + begins.len() as u64;
        self.file.insert(file).write_all(&begins)
    }
}

fn append(path: &Path) -> std::io::Result<(File, u64)> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir)?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_adapt::selector::Device;

    fn record(t: f64, why: Why) -> Record {
        Record {
            t,
            why,
            context: None,
            arm: "noop".to_owned(),
            from: None,
            mb_s: 0.0,
            rate_mb_s: 0.0,
            expected_mb_s: None,
            best: None,
            regret: None,
            pattern: None,
            pattern_confidence: None,
            text: "x".repeat(1 << 10),
        }
    }

    #[test]
    fn a_log_has_every_decision_a_window_a_second_and_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/decisions");
        let mut log = Log::new(&path, Some(&record(0.0, Why::Begin)));
        log.write(&[]);
        assert!(!path.exists(), "nothing was decided");
        let four = [(0.0, Why::Window), (0.25, Why::Trial), (0.5, Why::Window), (1.0, Why::Window)];
        log.write(&four.map(|(t, why)| record(t, why)));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
        let many: Vec<Record> = (0..1024).map(|n| record(f64::from(n), Why::Better)).collect();
        (0..30).for_each(|_| log.write(&many));
        let sizes: Vec<u64> = std::fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect();
        assert!(sizes.len() == 2 && sizes.iter().all(|size| *size < LOG_BYTES + (2 << 20)), "{sizes:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().next().unwrap().contains("\"begin\""), "a new file begins like the first one");
    }

    #[test]
    fn what_a_link_leads_to_is_replaced_and_not_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn what_is_replaced_is_for_whom_it_was_and_what_is_exported_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (kept, out, usual) = (dir.path().join("kept"), dir.path().join("out"), dir.path().join("usual"));
        std::fs::write(&usual, "").unwrap();
        let known = Knowledge::new(Device::Disk);
        save(&known, &kept).unwrap();
        export(&known, &out).unwrap();
        assert_eq!((mode(&kept), mode(&out)), (0o600, mode(&usual)));
        for wanted in [0o640, 0o666] {
            std::fs::set_permissions(&kept, Permissions::from_mode(wanted)).unwrap();
            save(&known, &kept).unwrap();
            assert_eq!(mode(&kept), wanted);
        }
    }

    #[test]
    fn a_log_that_could_not_be_written_goes_on_later() {
        let dir = tempfile::tempdir().unwrap();
        let (path, way) = (dir.path().join("deep/decisions"), dir.path().join("deep"));
        std::fs::write(&way, "in the way").unwrap();
        let mut log = Log::new(&path, Some(&record(0.0, Why::Begin)));
        log.write(&[record(1.0, Why::Trial)]);
        std::fs::remove_file(&way).unwrap();
        log.write(&[record(2.0, Why::TrialLost)]);
        log.write(&[record(3.0, Why::Trial)]);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Record> =
            text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect();
        let seen: Vec<_> = lines.iter().map(|record| (record.t, record.why)).collect();
        assert_eq!(seen, [(1.0, Why::Begin), (2.0, Why::TrialLost), (3.0, Why::Trial)]);
    }

    #[test]
    fn what_cannot_be_used_is_set_aside_and_what_cannot_be_read_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known");
        let use_it = |known: Knowledge| {
            anyhow::ensure!(known.device == Device::Disk, "learned elsewhere");
            Ok(())
        };
        let place = remembered(&path, use_it);
        assert_eq!((place.path.as_ref(), place.note), (Some(&path), None), "nothing is there");
        save(&Knowledge::new(Device::Disk), &path).unwrap();
        let place = remembered(&path, use_it);
        assert_eq!((place.path.as_ref(), place.note), (Some(&path), None));
        assert!(path.exists());
        for bad in [Knowledge::new(Device::Flash).to_text(), "garbage".to_owned()] {
            std::fs::write(&path, bad).unwrap();
            let place = remembered(&path, use_it);
            assert_eq!(place.path.as_ref(), Some(&path));
            assert!(place.note.is_some_and(|note| note.contains("cannot be used") && note.contains(".damaged-")));
            assert!(!path.exists());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is lost, also within a second");
        std::fs::create_dir(&path).unwrap();
        let place = remembered(&path, use_it);
        assert!(place.path.is_none() && place.note.is_some_and(|note| note.contains("cannot be read")), "not a file");
        assert!(path.exists());
    }

    #[test]
    fn what_cannot_be_kept_is_told_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Place::of(&Path::new("/proc/nope").join("known")).note.is_some_and(|note| note.contains("cannot be kept"))
        );
        let path = dir.path().join("a/known");
        std::fs::write(dir.path().join("a"), "a file").unwrap();
        let mut place = Place::of(&path);
        let knowledge = Knowledge::new(Device::Disk);
        assert!(!place.keep(|path| save(&knowledge, path)));
        assert!(place.note.as_ref().is_some_and(|note| note.contains("cannot be kept") && note.contains("a/known")));
        std::fs::remove_file(dir.path().join("a")).unwrap();
        assert!(place.keep(|path| save(&knowledge, path)) && place.note.is_none() && path.exists());
    }
}
