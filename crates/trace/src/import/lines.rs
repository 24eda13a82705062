//! The lines of a log, which may be cut in its last one.

use std::io::{BufRead, Read};

use super::ImportError;

/// Longest line.
const LINE_MAX: u64 = 1 << 20;

/// Lines one by one. Memory: the longest one, at most 1 MiB.
pub(super) struct Lines<R> {
    log: R,
    /// The line's number, from 1.
    pub(super) number: u64,
    /// The line, without its end.
    pub(super) text: Vec<u8>,
    /// The last line has no end: whoever wrote it was killed, or the log was cut. It is left out, as half a number looks like
    /// a number.
    pub(super) cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(log: R) -> Lines<R> {
        Lines { log, number: 0, text: Vec::new(), cut: false }
    }

    /// Goes on to the next line; false after the last one.
    pub(super) fn advance(&mut self) -> Result<bool, ImportError> {
        self.text.clear();
        let got = (&mut self.log).take(LINE_MAX).read_until(b'\n', &mut self.text)?;
        if got == 0 {
            return Ok(false);
        }
        self.number += 1;
        if self.text.pop_if(|last| *last == b'\n').is_some() {
            self.text.pop_if(|last| *last == b'\r');
            return Ok(true);
        }
        if got as u64 == LINE_MAX {
            return Err(self.wrong("longer than 1 MiB"));
        }
        self.cut = true;
        Ok(false)
    }

    /// What is wrong with this line.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> ImportError {
        ImportError::Line { line: self.number.max(1), problem: problem.into() }
    }

    /// The line for people, if it is wrong.
    pub(super) fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.text);
        let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
        shown.push_str(if text.chars().nth(80).is_some() { "..." } else { "" });
        shown
    }
}
