//! What forwarding nodes recognise patterns by, as a file: real windows for training and judging networks.
//!
//! CSV with names in the first line, which are those of `sluice-bench council --export` as far as a coordinator knows them: `time_ns`
//! (since 1970), `node`, `op`, `scheduler`, `window_ns`, `requests`, then the inputs of the paper's network (`paper_`) and of ours.
//! What the pattern was is known to whoever ran the programs.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use sluice_adapt::net::{INPUTS, PAPER_INPUTS};
use sluice_core::{Op, Time};

use crate::seen::Seen;
use crate::wire::FromNode;
use crate::wire::from_node::What;

/// A file that announcements are written to.
pub(crate) struct Recorder {
    to: File,
    has_failed: bool,
}

impl Recorder {
    /// A new file with its first line, or one to be gone on with.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Recorder> {
        let shown = || path.display().to_string();
        let mut to = OpenOptions::new().create(true).append(true).read(true).open(path).with_context(shown)?;
        let mut first = String::new();
        BufReader::new(&to).read_line(&mut first).with_context(shown)?;
        let paper: Vec<String> = PAPER_INPUTS.iter().map(|name| format!("paper_{name}")).collect();
        let names = format!("time_ns,node,op,scheduler,window_ns,requests,{},{}", paper.join(","), INPUTS.join(","));
        if first.is_empty() {
            writeln!(to, "{names}").with_context(shown)?;
        } else {
            ensure!(first.trim_end() == names, "{}: something else is in it; choose a new file", path.display());
        }
        Ok(Recorder { to, has_failed: false })
    }

    /// Writes what a message tells of that, if it does. It was found to make sense.
    pub(crate) fn write(&mut self, now: Time, message: &FromNode) {
        let Some(What::Announcement(said)) = &message.what else { return };
        let Ok(Seen { observed: Some(observed), in_force, .. }) = Seen::of(said) else { return };
        let Some(inputs) = &observed.inputs else { return };
        let op = if observed.op == Op::Read { "read" } else { "write" };
        let values: Vec<String> = observed.paper.iter().chain(inputs).map(f64::to_string).collect();
        let head = format!("{},{},{op},{},{}", now.0, message.name, in_force.policy, in_force.window_ns);
        let line = format!("{head},{},{}\n", observed.requests, values.join(","));
        // In one piece: a line is whole or not there, whenever this process ends.
        let before = self.to.metadata().map(|file| file.len());
        if let Err(why) = self.to.write_all(line.as_bytes()) {
            // The next one does not go on with half a line.
            _ = before.and_then(|length| self.to.set_len(length));
            if !std::mem::replace(&mut self.has_failed, true) {
                tracing::warn!("what nodes see cannot be recorded: {why}");
            }
        }
    }
}
