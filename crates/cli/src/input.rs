//! Reading files, or standard input.

use std::io::{self, Read as _};
use std::path::Path;

/// The text of a file, or of standard input if the path is `-`.
///
/// # Errors
/// If it cannot be read, or is not UTF-8.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    if path != "-" {
        return std::fs::read_to_string(path);
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// What a path is called in messages.
pub(crate) fn name(path: &Path) -> String {
    if path == "-" { "standard input".to_owned() } else { path.display().to_string() }
}
