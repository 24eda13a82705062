//! Reading files, or standard input.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Deref;
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::Context as _;
use tempfile::TempPath;

/// Whether standard input is meant by a path.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == "-"
}

/// A file, or standard input if the path is `-`.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if is_standard(path) { Ok(io::stdin().as_fd().try_clone_to_owned()?.into()) } else { File::open(path) }
}

/// The text of a file, or of standard input if the path is `-`.
///
/// # Errors
/// If it cannot be read, or is not UTF-8.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// What a path is called in messages.
pub(crate) fn name(path: &Path) -> String {
    if is_standard(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// Fails if several of these are standard input, which can be read once.
///
/// # Errors
/// If so.
pub(crate) fn check_standard<'a>(paths: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    anyhow::ensure!(paths.into_iter().filter(|path| is_standard(path)).count() < 2, "standard input (-) is one file");
    Ok(())
}

/// A file with a name, for what is read twice or by other programs: of standard input a copy, which goes away with it.
pub(crate) enum Named<'a> {
    Given(&'a Path),
    Copied(TempPath),
}

impl Named<'_> {
    /// # Errors
    /// If standard input cannot be copied.
    pub(crate) fn of(path: &Path) -> anyhow::Result<Named<'_>> {
        if !is_standard(path) {
            return Ok(Named::Given(path));
        }
        let copy = || {
            let mut file = tempfile::Builder::new().prefix("standard-input-").tempfile()?;
            io::copy(&mut open(path)?, &mut file)?;
            io::Result::Ok(file.into_temp_path())
        };
        Ok(Named::Copied(copy().context("copying standard input into a temporary file")?))
    }
}

impl Deref for Named<'_> {
    type Target = Path;

    fn deref(&self) -> &Path {
        match self {
            Named::Given(path) => path,
            Named::Copied(path) => path,
        }
    }
}
