//! `sluice completions`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::output;

/// Prints what a shell needs to complete the arguments of sluice
///
/// `make install` puts it where bash, zsh and fish look for it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints it.
///
/// # Errors
/// If the generated text is not UTF-8.
pub(crate) fn run(args: &Args, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sluice", &mut text);
    output::text(&String::from_utf8(text)?);
    Ok(ExitCode::SUCCESS)
}
