//! Predictions from what repeats on a volume.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::Mutex;
use sluice_adapt::predictor::{Handle, LearnLimits, Learner, Settings, TimeToProcess, TracePredictor};
use sluice_core::{Request, Time};
use sluice_runtime::Observer;
use sluice_trace::{Entry, Error, Meta, Reader, Writer};

use super::{Active, FilePaths, Ground, Learned, Options, settings, start};

/// How often what was learned is kept, if it has changed.
const SAVE_PERIOD: Duration = Duration::from_secs(30);
/// After new predictions so many times as long as they took passes before the next: they take some 3 % of a core at most.
const REST: u32 = 30;

/// What a pupil tells of what it knows.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Learned>>);

impl Told {
    pub(super) fn learned(&self) -> Learned {
        self.0.lock().clone()
    }

    fn tell(&self, learner: &Learner, state: Option<&Path>) {
        let learned = learner.learned();
        *self.0.lock() = Learned {
            series: learned.series,
            repeating: learned.repeating,
            runs: learned.runs,
            requests: learned.requests,
            open_requests: learned.open_requests,
            bytes: learned.bytes,
            state: state.map(Path::to_owned),
        };
    }
}

/// What learning needs beside a thread.
pub(super) struct Ready(Settings, TimeToProcess);

impl Ready {
    /// # Errors
    /// If the device's profile cannot be read, or the state is no file.
    pub(super) fn new(volume: &impl Ground, options: &Options) -> anyhow::Result<Ready> {
        if let Some(path) = options.state.as_ref().filter(|path| path.is_dir()) {
            anyhow::bail!("{}: is a directory; what is learned is kept in a file", path.display());
        }
        let (settings, ttp) = settings(volume, options)?;
        Ok(Ready(settings, ttp))
    }
}

/// Predictions from what repeats on the volume itself, which nobody observes.
pub(super) fn learning(
    volume: &impl Ground,
    options: &Options,
    Ready(settings, ttp): Ready,
) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let (mut learner, state) = remembered(options.state.as_deref());
    let forecast = learner.forecast(settings);
    let (predictors, mut active) = start(volume, forecast, settings, ttp, "what repeats".to_owned(), true)?;
    learner.take_changed();
    let told = Told::default();
    told.tell(&learner, state.as_deref());
    let pupil = Pupil {
        learner,
        names: volume.paths(),
        handles: active.handles.clone(),
        settings,
        told: told.clone(),
        state,
        rests_until: None,
        saves_from: None,
        unsaved: false,
    };
    volume.observe(Box::new(pupil))?;
    active.learns = Some(told);
    Ok((predictors, active))
}

/// What was learned before, and where to keep what will be learned.
fn remembered(path: Option<&Path>) -> (Learner, Option<PathBuf>) {
    let mut learner = Learner::new(LearnLimits::default());
    let Some(path) = path else { return (learner, None) };
    let shown = path.display();
    let error = match Reader::open(path).and_then(|mut reader| learner.load(&mut reader)) {
        Ok(()) => return (learner, Some(path.to_owned())),
        Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return (learner, Some(path.to_owned()));
        }
        Err(error) => error,
    };
    let runs = learner.learned().runs;
    match set_aside(path, &error) {
        Ok(aside) => {
            let aside = aside.display();
            tracing::warn!(
                "what was learned before cannot be read: {shown}: {error}; the file is now {aside}, {runs} runs of it are \
                 used, the rest is learned anew"
            );
            (learner, Some(path.to_owned()))
        }
        Err(why) => {
            tracing::warn!(
                "what was learned before cannot be read: {shown}: {error}; {why:#}: what is learned now will not be kept"
            );
            (learner, None)
        }
    }
}

/// Gives a file that cannot be understood another name, so that it is not lost.
fn set_aside(path: &Path, error: &Error) -> anyhow::Result<PathBuf> {
    if let Error::Io(error) = error
        && error.kind() != std::io::ErrorKind::UnexpectedEof
    {
        anyhow::bail!("it may be whole, and is left alone");
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".damaged-{seconds}"));
    let aside = PathBuf::from(aside);
    std::fs::rename(path, &aside).with_context(|| format!("it cannot be renamed to {}", aside.display()))?;
    Ok(aside)
}

/// Watches a volume, and tells its predictors what it learns.
struct Pupil {
    learner: Learner,
    names: Arc<dyn FilePaths>,
    handles: Arc<Vec<Handle>>,
    settings: Settings,
    told: Told,
    state: Option<PathBuf>,
    /// Predictions are not made anew before this time.
    rests_until: Option<Instant>,
    /// What was learned is not saved again before this time.
    saves_from: Option<Instant>,
    /// The last attempt to save it failed.
    unsaved: bool,
}

impl Pupil {
    fn tell(&mut self) {
        let begin = Instant::now();
        if self.rests_until.is_none_or(|until| begin >= until) && self.learner.take_changed() {
            let forecast = self.learner.forecast(self.settings);
            self.handles.iter().for_each(|handle| handle.replace(forecast.clone()));
            let took = begin.elapsed();
            tracing::debug!(?took, learned = ?self.learner.learned(), "new predictions");
            self.rests_until = Some(Instant::now() + took * REST);
        }
        self.told.tell(&self.learner, self.state.as_deref());
    }

    /// Saves what was learned, if there is something new.
    fn save(&mut self) {
        if !(self.learner.take_unsaved() | self.unsaved) {
            return;
        }
        let begin = Instant::now();
        let saved = self.state.as_deref().map_or(Ok(()), |path| save(&self.learner, path));
        self.unsaved = saved.is_err();
        if let Err(error) = saved {
            tracing::warn!("what was learned cannot be kept: {error:#}");
        }
        self.saves_from = Some(Instant::now() + SAVE_PERIOD.max(begin.elapsed() * REST));
    }
}

impl Observer for Pupil {
    fn seen(&mut self, at: Time, request: &Request) {
        if let Some(path) = self.names.get(request.file) {
            let &Request { app, target, op, offset, len, .. } = request;
            // Tells apart files that had the same path one after the other, nearly always.
            let file = (request.file.0 ^ request.file.0 >> 32) as u32;
            self.learner.seen(&path, &Entry { time: at.0, file, app: app.0, target: target.0, op, offset, len });
        }
    }

    fn pause(&mut self, now: Time) {
        self.learner.settle(now.0);
        self.tell();
        if self.saves_from.is_none_or(|from| Instant::now() >= from) {
            self.save();
        }
    }

    fn end(&mut self, _: Time) {
        // Whatever is still in use has no run more to come. Nobody needs new predictions any more.
        self.learner.settle(u64::MAX);
        self.told.tell(&self.learner, self.state.as_deref());
        self.save();
    }
}

/// Keeps what was learned: in a new file that takes the place of the old one when it is whole.
fn save(learner: &Learner, path: &Path) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(shown)?;
    let file = tempfile::Builder::new().prefix(".sluice-").tempfile_in(dir).with_context(shown)?;
    let meta = Meta { source: "what repeats".to_owned(), ..Meta::default() };
    let mut writer = Writer::new(BufWriter::new(file.as_file()), &meta)?;
    learner.save(&mut writer)?;
    writer.finish(0)?;
    file.as_file().sync_data().with_context(shown)?;
    file.persist(path).with_context(shown)?;
    Ok(())
}
