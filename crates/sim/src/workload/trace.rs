//! Recorded requests, replayed.
//!
//! A CSV file with a header line and the columns `process, seconds, op, file, offset, bytes`: the process's number from 0,
//! the time since the beginning, `read` or `write`, the file's name, and the byte range. Lines of one process are in order
//! of time. Or a trace that `sluice trace` recorded: there, each application is a process.

use std::fmt;
use std::path::Path;

use sluice_core::Op;
use sluice_trace::{Columns, Reader};

use super::{Next, Progress};

/// A recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOp {
    /// When, in nanoseconds since the beginning.
    pub at_ns: u64,
    /// Read or write.
    pub op: Op,
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Recorded requests by process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Trace {
    files: Vec<String>,
    processes: Vec<Vec<TraceOp>>,
}

/// Why a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Counted from 1; 0 if it is about the whole file.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.reason),
            line => write!(f, "line {line}: {}", self.reason),
        }
    }
}

impl std::error::Error for TraceError {}

const HEADER: &str = "process,seconds,op,file,offset,bytes";
/// Far more than any simulation could hold; a slip in a column is found so.
const PROCESSES_MAX: usize = 10_000_000;
/// Where ranges end at the latest.
const RANGE_MAX: u64 = 1 << 61;

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// If the file cannot be read or a line makes no sense.
    pub fn load(path: &Path) -> Result<Trace, TraceError> {
        if path.extension().is_none_or(|extension| extension != "csv") {
            let recorded = Reader::open(path).and_then(|mut reader| Trace::recorded(&mut reader));
            return recorded.map_err(|error| TraceError { line: 0, reason: error.to_string() });
        }
        let text = std::fs::read_to_string(path).map_err(|error| TraceError { line: 0, reason: error.to_string() })?;
        Trace::parse(&text)
    }

    /// The same from a recording; its times count from the first request.
    fn recorded<R: std::io::Read>(reader: &mut Reader<R>) -> Result<Trace, sluice_trace::Error> {
        let mut trace = Trace::default();
        let mut apps = std::collections::HashMap::new();
        let mut block = Columns::default();
        let mut first = None;
        while reader.next_block(&mut block)? {
            for entry in block.iter() {
                let process = *apps.entry(entry.app).or_insert_with(|| {
                    trace.processes.push(Vec::new());
                    trace.processes.len() - 1
                });
                let at_ns = entry.time.saturating_sub(*first.get_or_insert(entry.time));
                let offset = reader.meta().logical_offset(entry.target, entry.offset);
                let (op, file, bytes) = (entry.op, entry.file, u64::from(entry.len));
                if offset.checked_add(bytes).is_none_or(|end| end > RANGE_MAX) {
                    let reason = format!("a request of {bytes} bytes at {offset} ends too far out");
                    return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, reason).into());
                }
                trace.processes[process].push(TraceOp { at_ns, op, file, offset, bytes });
            }
        }
        trace.files = reader.paths().iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        trace.processes.iter_mut().for_each(|ops| ops.sort_by_key(|op| op.at_ns));
        Ok(trace)
    }

    /// The same from the file's text.
    ///
    /// # Errors
    /// If a line makes no sense.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut lines = (1..).zip(text.lines());
        let header = lines.next().map(|(_, line)| line.replace(' ', "")).unwrap_or_default();
        if header != HEADER {
            return Err(TraceError { line: 1, reason: format!("must be the header: {HEADER}") });
        }
        let mut trace = Trace::default();
        let mut numbers = std::collections::HashMap::new();
        for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let wrong = |reason: &str| TraceError { line, reason: reason.to_owned() };
            let fields: Vec<&str> = text.split(',').map(str::trim).collect();
            let [process, seconds, op, file, offset, bytes] = fields[..] else {
                return Err(wrong(&format!("has {} columns, must have 6: {HEADER}", fields.len())));
            };
            let process: usize = process
                .parse()
                .ok()
                .filter(|p| *p < PROCESSES_MAX)
                .ok_or_else(|| wrong("process must be a number from 0"))?;
            let seconds: f64 = seconds.parse().map_err(|_| wrong("seconds must be a number"))?;
            if !(0.0..=1e9).contains(&seconds) {
                return Err(wrong("seconds must be from 0 to 1e9"));
            }
            let op = match op {
                "read" => Op::Read,
                "write" => Op::Write,
                _ => return Err(wrong("op must be read or write")),
            };
            let offset: u64 = offset.parse().map_err(|_| wrong("offset must be a number"))?;
            let bytes: u64 = bytes.parse().map_err(|_| wrong("bytes must be a number"))?;
            if offset.checked_add(bytes).is_none_or(|end| end > RANGE_MAX) {
                return Err(wrong("the range is too large"));
            }
            let file = *numbers.entry(file).or_insert_with(|| {
                trace.files.push(file.to_owned());
                trace.files.len() as u32 - 1
            });
            if trace.processes.len() <= process {
                trace.processes.resize(process + 1, Vec::new());
            }
            let ops = &mut trace.processes[process];
            let at_ns = (seconds * 1e9).round() as u64;
            if ops.last().is_some_and(|last| last.at_ns > at_ns) {
                return Err(wrong("this process's lines are not in order of time"));
            }
            ops.push(TraceOp { at_ns, op, file, offset, bytes });
        }
        Ok(trace)
    }

    /// Number of processes.
    #[must_use]
    pub fn processes(&self) -> u32 {
        self.processes.len() as u32
    }

    /// Number of files.
    #[must_use]
    pub fn files(&self) -> u32 {
        self.files.len() as u32
    }

    /// Bytes of the largest request.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.processes.iter().flatten().map(|op| op.bytes).max().unwrap_or(0)
    }

    /// Bytes of all requests.
    #[must_use]
    pub fn bytes(&self) -> u128 {
        self.processes.iter().flatten().map(|op| u128::from(op.bytes)).sum()
    }

    /// Where its files end at most.
    pub(crate) fn end(&self) -> u64 {
        self.processes.iter().flatten().map(|op| op.offset + op.bytes).max().unwrap_or(0)
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> u128 {
        self.processes.iter().map(|ops| ops.len() as u128).sum()
    }

    /// True if the process has issued all its requests.
    pub(crate) fn is_over(&self, rank: u32, progress: &Progress) -> bool {
        self.processes.get(rank as usize).is_none_or(|ops| progress.requests as usize >= ops.len())
    }

    pub(super) fn next(
        &self,
        rank: u32,
        progress: &mut Progress,
        recorded_times: bool,
        regions: &mut Vec<(u64, u64)>,
    ) -> Option<Next> {
        let ops = self.processes.get(rank as usize)?;
        let number = progress.requests as usize;
        let op = ops.get(number)?;
        let before = number.checked_sub(1).map_or(0, |last| ops[last].at_ns);
        regions.push((op.offset, op.bytes));
        progress.requests += 1;
        progress.bytes += op.bytes;
        let (think_ns, not_before_ns) = if recorded_times { (0, op.at_ns) } else { (op.at_ns - before, 0) };
        Some(Next { op: op.op, file: op.file, bytes: op.bytes, think_ns, not_before_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_trace_is_read_and_errors_name_the_line() {
        let trace =
            Trace::parse("process, seconds, op, file, offset, bytes\n0,0.5,read,a,0,10\n1,0,write,b,5,7\n").unwrap();
        assert_eq!((trace.processes(), trace.files(), trace.bytes()), (2, 2, 17));
        assert_eq!(trace.processes[1][0], TraceOp { at_ns: 0, op: Op::Write, file: 1, offset: 5, bytes: 7 });
        for (line, word) in [
            ("0,0,read,a,0", "columns"),
            ("x,0,read,a,0,1", "process"),
            ("0,-1,read,a,0,1", "seconds"),
            ("0,0,erase,a,0,1", "op"),
            ("0,0,read,a,-1,1", "offset"),
            ("0,0,read,a,18446744073709551615,1", "range"),
        ] {
            let error = Trace::parse(&format!("{HEADER}\n0,0,read,a,0,1\n{line}")).unwrap_err();
            assert!(error.line == 3 && error.reason.contains(word), "{error}");
        }
        assert!(Trace::parse("").unwrap_err().reason.contains(HEADER));
        assert!(Trace::parse(&format!("{HEADER}\n0,2,read,a,0,1\n0,1,read,a,0,1")).is_err());
    }

    #[test]
    fn a_recording_is_read_by_application() {
        let mut writer = sluice_trace::Writer::new(Vec::new(), &sluice_trace::Meta::default()).unwrap();
        let file = writer.file(b"data").unwrap();
        for (time, app, offset) in [(100, 7, 0), (150, 3, 8), (300, 7, 16)] {
            writer.push(sluice_trace::Entry { time, file, app, target: 0, op: Op::Read, offset, len: 8 }).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.slt");
        std::fs::write(&path, writer.finish(0).unwrap()).unwrap();
        let trace = Trace::load(&path).unwrap();
        assert_eq!((trace.processes(), trace.files(), trace.bytes()), (2, 1, 24));
        assert_eq!(trace.processes[0].iter().map(|op| op.at_ns).collect::<Vec<_>>(), [0, 200]);
        std::fs::write(&path, b"no trace").unwrap();
        assert!(Trace::load(&path).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC*", line in "[0-9a-z,.]{0,40}") {
            let _ = Trace::parse(&text);
            let _ = Trace::parse(&format!("{HEADER}\n{line}"));
        }
    }
}
