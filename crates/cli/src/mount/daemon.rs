//! `sluice mount --daemon`: the program starts itself anew, detached, and waits for its word.
//!
//! The child's standard output is a pipe to the parent, for one line of JSON: the mount is usable, or why not. Its standard
//! error is the log file.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::serve;
use crate::config::Settings;
use crate::{control, output};

/// The child's only word.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// Usable; one line for people.
    Mounted(String),
    /// Not mounted, and why.
    Failed(String),
}

/// Starts the daemon and returns when its mount is usable.
///
/// # Errors
/// Whatever kept the child from mounting.
pub(super) fn start(settings: &Settings) -> anyhow::Result<ExitCode> {
    let log = log_path(settings)?;
    // A pipe or a device is left alone, and so is what was there.
    let is_new = std::fs::symlink_metadata(&log).is_err();
    let mut child = Command::new(std::env::current_exe().context("finding this program")?)
        .arg("--daemon-child")
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(serve::open_log(&log)?)
        .spawn()
        .context("starting the daemon")?;
    let mut line = String::new();
    let output = child.stdout.take().expect("it was asked for");
    BufReader::new(output).read_line(&mut line).context("listening to the daemon")?;
    match serde_json::from_str(&line) {
        Ok(Word::Mounted(summary)) => {
            output::say(&summary);
            output::say(format_args!("Log: {}. To end: sluice unmount {}", log.display(), shown_mountpoint(settings)));
            Ok(ExitCode::SUCCESS)
        }
        Ok(Word::Failed(error)) => {
            // It may still write until it has ended.
            let _ = child.wait();
            if is_new && std::fs::metadata(&log).is_ok_and(|log| log.len() == 0) {
                let _ = std::fs::remove_file(&log);
            }
            bail!(error)
        }
        Err(_) => bail!("{}; its log is {}", fate(&mut child), log.display()),
    }
}

fn fate(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => format!("the daemon ended without a word ({status})"),
        Err(error) => format!("the daemon is silent ({error})"),
    }
}

fn shown_mountpoint(settings: &Settings) -> String {
    settings.mountpoint.as_ref().map_or_else(String::new, |path| path.display().to_string())
}

/// The daemon itself.
pub(super) fn child(settings: impl FnOnce() -> anyhow::Result<Settings>) -> ExitCode {
    // Fails only for a process that leads its group already: then it has a session of its own.
    let _ = rustix::process::setsid();
    match settings().and_then(mount) {
        Ok(mounted) => {
            say(&Word::Mounted(mounted.summary.clone()));
            close_output();
            serve::until_the_end(mounted).unwrap_or_else(|error| {
                tracing::error!("{error:#}");
                ExitCode::FAILURE
            })
        }
        Err(error) => {
            say(&Word::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn mount(mut settings: Settings) -> anyhow::Result<serve::Mounted> {
    settings.stay_here().context("the current directory")?;
    serve::start_log(&settings, serve::Readers::File)?;
    let mounted = serve::mount(&settings)?;
    // No directory is kept from being unmounted by a daemon that was started in it.
    std::env::set_current_dir("/").context("changing to /")?;
    Ok(mounted)
}

fn say(word: &Word) {
    let line = serde_json::to_string(word).expect("a text");
    output::line(line);
}

/// Lets the pipe go, for whoever waits for its end.
fn close_output() {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null");
    if let Err(error) = null.and_then(|null| Ok(rustix::stdio::dup2_stdout(&null)?)) {
        tracing::warn!(%error, "standard output stays open");
    }
}

/// Where the daemon writes: the file asked for, or one of its own.
fn log_path(settings: &Settings) -> anyhow::Result<PathBuf> {
    if let Some(path) = &settings.log {
        return Ok(path.clone());
    }
    let mountpoint = settings.mountpoint.as_deref().context("no mountpoint")?;
    let home = |below: &str| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(below));
    let dir = match rustix::process::geteuid().is_root() {
        true => Some("/var/log/sluice".into()),
        false => std::env::var_os("XDG_STATE_HOME")
            .map(|dir| PathBuf::from(dir).join("sluice"))
            .or(home(".local/state/sluice")),
    };
    let dir = dir.context("no place for a log file: name one with --log")?;
    std::fs::create_dir_all(&dir).with_context(|| format!("{}: name another log file with --log", dir.display()))?;
    Ok(dir.join(control::key(&control::canonical(mountpoint)?)).with_extension("log"))
}
