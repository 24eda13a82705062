//! End to end: the real `sluice` command, real mounts, and programs that other people wrote.
//!
//! | module | what it does to a mount |
//! |---|---|
//! | `programs` | git, tar, SQLite, make with a C compiler, fio |
//! | `semantics` | what programs expect of a file system beyond reading and writing |
//! | `beds` | runs both on a directory and on a striped volume, under every algorithm, and under pressure |
//! | `change` | changes the algorithm while fio verifies |
//! | `kill` | kills the mount's process, mounts again, and looks what is there |
//! | `crash` | does so again and again among many writers, who note what they were promised |
//!
//! One algorithm alone: `SLUICE_TEST_POLICY=mlf cargo test -p sluice-cli --test e2e`.

mod beds;
mod change;
#[path = "../../crates/cli/tests/common/mod.rs"]
mod common;
mod crash;
mod kill;
mod programs;
mod semantics;

use std::path::Path;
use std::process::Command;

use sluice_core::policy::{PolicyInfo, table};

/// Works in a directory of its own, and panics if something is wrong.
type Program = fn(&Path);

/// All algorithms, or the one asked for.
fn policies() -> Vec<&'static PolicyInfo> {
    let only = std::env::var("SLUICE_TEST_POLICY").ok();
    let chosen: Vec<_> =
        table().iter().copied().filter(|info| only.as_ref().is_none_or(|name| name == info.name)).collect();
    assert!(!chosen.is_empty(), "SLUICE_TEST_POLICY={only:?} is no algorithm");
    chosen
}

/// `bash` with one of the `scripts`, which can be run by hand, too.
fn bash(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-x", "-c", script]).env("LC_ALL", "C");
    command
}

/// Runs a script in `dir`; it must succeed.
fn shell(dir: &Path, script: &str) {
    succeeds(bash(script).current_dir(dir));
}

/// Runs a program; if it fails, shows its last words.
fn succeeds(command: &mut Command) {
    let output = common::run(command);
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let last: Vec<&str> = said.lines().rev().take(30).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        panic!("{} in {:?}:\n{}", output.status, command.get_current_dir(), last.join("\n"));
    }
}
