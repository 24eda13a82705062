//! Programs that other people wrote.

use std::path::Path;

use crate::{Program, shell};

pub const PROGRAMS: [(&str, Program); 5] =
    [("git", git), ("tar", tar), ("sqlite", sqlite), ("make", make), ("fio", fio)];

fn git(dir: &Path) {
    shell(dir, include_str!("scripts/git.sh"));
}

fn tar(dir: &Path) {
    shell(dir, include_str!("scripts/tar.sh"));
}

fn sqlite(dir: &Path) {
    shell(dir, include_str!("scripts/sqlite.sh"));
}

fn make(dir: &Path) {
    shell(dir, include_str!("scripts/make.sh"));
}

pub fn fio(dir: &Path) {
    shell(dir, include_str!("scripts/fio.sh"));
}
