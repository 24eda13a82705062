//! `sluice man`: the manual pages, made of what `--help` says.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::Page;

/// Writes the manual pages, one for each command
///
/// The directory is made if it is not there; then it has sluice.1, sluice-mount.1 and so on. `make install` does this.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write them
    #[arg(value_name = "DIR")]
    pub(super) dir: PathBuf,
}

/// Writes them.
///
/// # Errors
/// If the directory or a file cannot be made.
pub(crate) fn run(args: &Args, mut command: Command) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{} cannot be made", args.dir.display()))?;
    command = command.disable_help_subcommand(true);
    command.build();
    write(&command, "", &args.dir)?;
    Ok(ExitCode::SUCCESS)
}

fn write(command: &Command, path: &str, dir: &Path) -> anyhow::Result<()> {
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        write(child, format!("{path} {}", child.get_name()).trim_start(), dir)?;
    }
    let man = Man::new(command.clone()).source(concat!("Sluicegate ", env!("CARGO_PKG_VERSION"))).manual("Sluicegate");
    let man = man.date(crate::version::DATE.unwrap_or("undated"));
    let file = dir.join(man.get_filename());
    let text = page(&man, command, path).context("making a manual page")?;
    std::fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))
}

fn page(man: &Man, command: &Command, path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|child| !child.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(page) = Page::of(path) {
        text.write_all(beside_the_options(page).render().as_bytes())?;
    }
    Ok(text)
}

/// Sections as `man-pages(7)` names them.
fn beside_the_options(page: &Page) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (status, what) in page.statuses() {
        roff.control("TP", []).text([bold(status)]).text([roman(what)]);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, what) in page.variables() {
        roff.control("TP", []).text([bold(*name)]).text([roman(*what)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    for (line, what) in page.examples {
        roff.control("TP", []).text([bold(*line)]).text([roman(*what)]);
    }
    roff
}
