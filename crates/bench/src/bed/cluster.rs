//! Clusters of GlusterFS processes on this machine, by `sluice cluster`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;
use sluice_cli::output;

use super::{Runner, program};

/// Where a cluster is to be, as one says it on the command line.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// Where everything of the cluster is, and is removed afterwards
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The translator sluice.so [default: where make install-gluster puts it]
    #[arg(long, value_name = "FILE")]
    translator: Option<PathBuf>,
    /// Every machine of the cluster has a link of this rate, as 1Gbit, in a network namespace of its own [default: loopback]
    #[arg(long, value_name = "RATE")]
    links: Option<String>,
    /// The sluice command [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
}

impl ClusterArgs {
    /// How its machines are connected.
    pub(crate) fn network(&self) -> String {
        self.links.as_ref().map_or_else(|| "loopback".to_owned(), |rate| format!("links of {rate} (tbf)"))
    }
}

/// A cluster of this program's own. Goes away with it, and its emulated disks with it.
pub(crate) struct Cluster {
    runner: Runner,
    sluice: PathBuf,
    room: tempfile::TempDir,
    /// What all its configurations begin with.
    head: String,
    links: Option<String>,
}

impl Cluster {
    /// One whose name begins with `purpose`; its processes listen from `port` on. Starts nothing.
    ///
    /// # Errors
    /// Without root, room, or the program `sluice`.
    pub(crate) fn new(runner: &Runner, purpose: &str, args: &ClusterArgs, port: u16) -> anyhow::Result<Cluster> {
        ensure!(rustix::process::geteuid().is_root(), "it needs root: data servers keep attributes that are root's");
        // Configurations of clusters want absolute paths.
        let dir = std::path::absolute(&args.dir)?;
        let room = tempfile::Builder::new().prefix(&format!("sluice-{purpose}-")).tempdir_in(dir);
        let room = room.with_context(|| args.dir.display().to_string())?;
        let mut head = format!(
            "name = \"{purpose}-{}\"\ndirectory = {:?}\nport = {port}\n",
            std::process::id(),
            room.path().join("run")
        );
        if let Some(translator) = &args.translator {
            // Writing to a text cannot fail.
            _ = writeln!(head, "translator = {:?}", std::path::absolute(translator)?);
        }
        let sluice = program(args.sluice.as_deref())?;
        Ok(Cluster { runner: runner.clone(), sluice, room, head, links: args.links.clone() })
    }

    /// A directory that goes away with it.
    pub(crate) fn room(&self) -> &Path {
        self.room.path()
    }

    /// Where a client mounts.
    pub(crate) fn mount(&self, client: usize) -> PathBuf {
        self.room().join(format!("run/client-{client}"))
    }

    fn config(&self) -> PathBuf {
        self.room().join("cluster.toml")
    }

    fn sluice(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.sluice);
        command.args(["-q", "cluster"]).args(words).arg(self.config());
        self.runner.finish(&mut command, false).map(drop)
    }

    /// Starts it anew: `tables` is all of a configuration but what is of the cluster as a whole. Nothing of its files is in memory
    /// then, and its coordinator knows nothing.
    ///
    /// # Errors
    /// What `sluice cluster` says, or that it was told to stop.
    pub(crate) fn start(&self, tables: &str) -> anyhow::Result<()> {
        self.runner.go_on()?;
        if self.config().exists() {
            self.sluice(&["down"])?;
        }
        // What a coordinator has learned of another arm's run is no part of this one.
        match fs::remove_dir_all(self.room().join("run/coordinator")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("a coordinator's state");
            }
            _ => {}
        }
        let links = self.links.as_ref().map_or_else(String::new, |rate| format!("[links]\nrate = {rate:?}\n"));
        fs::write(self.config(), format!("{}{tables}{links}", self.head))?;
        self.sluice(&["up"])
    }

    /// Runs a subcommand of this program that loads it, and reads what that says.
    ///
    /// # Errors
    /// If it fails, or says what is no JSON.
    pub(crate) fn load(&self, args: &[String]) -> anyhow::Result<Value> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        let said = self.runner.run(command.args(args))?;
        match said.out.trim() {
            "" => Ok(Value::Null),
            text => serde_json::from_str(text).context("what the programs say"),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.config().exists()
            && let Err(error) = self.sluice(&["down", "--force", "--remove-disks"])
        {
            output::tell(format_args!("{error:#}\nparts of the cluster stay in {}", self.room().display()));
        }
    }
}
