//! Tells the program which commit it is built from: `SLUICE_COMMIT` ("HASH DATE") if it is set, else what git says of these
//! sources, else nothing, as in a packaged source.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SLUICE_COMMIT");
    let commit = std::env::var("SLUICE_COMMIT").ok().or_else(from_git).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    match commit.split_once(' ') {
        Some((hash, date)) => {
            println!("cargo:rustc-env=SLUICE_VERSION={version} ({hash} {date})");
            println!("cargo:rustc-env=SLUICE_DATE={date}");
        }
        None => println!("cargo:rustc-env=SLUICE_VERSION={version}"),
    }
}

fn from_git() -> Option<String> {
    // Another repository may have these sources lying in it.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Every commit and checkout is noted there. What is not there would make Cargo build anew each time.
    for name in ["logs/HEAD", "HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["log", "-1", "--abbrev=12", "--format=%h %cs"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.is_empty()).then(|| text.trim().to_owned())
}
