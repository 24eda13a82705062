//! Tells the program which commit it is built from: `SLUICE_COMMIT` ("HASH DATE") if it is set, else what git says of these
//! sources, else nothing, as in a packaged source. Only in releases: others would be built anew after each commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SLUICE_COMMIT");
    let is_debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = std::env::var("SLUICE_COMMIT").ok().or_else(|| if is_debug { None } else { from_git() });
    match commit.as_deref().and_then(|commit| commit.split_once(' ')) {
        Some((hash, date)) => {
            println!("cargo:rustc-env=SLUICE_VERSION={version} ({hash} {date})");
            println!("cargo:rustc-env=SLUICE_DATE={date}");
        }
        None if is_debug => println!("cargo:rustc-env=SLUICE_VERSION={version} (debug build)"),
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
