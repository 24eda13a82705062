//! Recorded requests, replayed.
//!
//! A CSV file with a header line and the columns `process, seconds, op, file, offset, bytes`: the process's number from 0,
//! the time since the beginning, `read` or `write`, the file's name, and the byte range. Lines of one process are in order
//! of time. Or a trace that `sluice trace` recorded or imported: there, each process (a rank, say) of each application is one,
//! or each application where the trace does not tell processes; and pieces of one request are put together.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use sluice_core::Op;
use sluice_trace::{Columns, End, Entry, Reader, joined};

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
/// When requests come at the latest, in nanoseconds since the beginning, so that no sum of times can overflow: 1e9 s.
const TIME_MAX: u64 = 1_000_000_000_000_000_000;

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
        let wrong = |reason: String| std::io::Error::new(std::io::ErrorKind::InvalidData, reason).into();
        // By application and process, so that neighbours run on the same machine.
        let mut all: BTreeMap<(u32, u32), Vec<Entry>> = BTreeMap::new();
        let mut block = Columns::default();
        while reader.next_block(&mut block)? {
            for (at, entry) in block.iter().enumerate() {
                let offset = reader.meta().logical_offset(entry.target, entry.offset);
                if offset.checked_add(entry.len.into()).is_none_or(|end| end > RANGE_MAX) {
                    return Err(wrong(format!("a request of {} bytes at {offset} ends too far out", entry.len)));
                }
                let entry = Entry { offset, ..entry };
                let entries = all.entry((entry.app, block.process_of(at))).or_default();
                let together = entries.last().filter(|_| reader.meta().pieces).and_then(|last| joined(last, &entry));
                match (entries.last_mut(), together) {
                    (Some(last), Some(together)) => *last = together,
                    _ => entries.push(entry),
                }
            }
        }
        if !matches!(reader.end(), End::Complete { .. }) {
            let hint = "`sluice trace convert` makes a whole trace of what is there";
            return Err(wrong(format!(
                "the trace has no end: it is still being written, or its recorder was killed ({hint})"
            )));
        }
        let times = || all.values().flatten().map(|entry| entry.time);
        let (first, last) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
        if last - first > TIME_MAX {
            let after = last - first;
            return Err(wrong(format!("a request comes {after} ns after the first: more than 1e9 s is too late")));
        }
        let as_op = |&Entry { time, op, file, offset, len, .. }: &Entry| {
            let (at_ns, bytes) = (time - first, len.into());
            TraceOp { at_ns, op, file, offset, bytes }
        };
        let processes = all.values().map(|entries| entries.iter().map(as_op).collect()).collect();
        let mut trace = Trace { processes, ..Trace::default() };
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
    use sluice_trace::{Extra, Meta, Writer};

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
    fn a_recording_is_read_by_application_and_process() {
        let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
        let file = writer.file(b"data").unwrap();
        for (time, app, offset) in [(100, 7, 0), (150, 3, 8), (300, 7, 16)] {
            writer.push(Entry { time, file, app, target: 0, op: Op::Read, offset, len: 8 }).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.slt");
        std::fs::write(&path, writer.finish(0).unwrap()).unwrap();
        let trace = Trace::load(&path).unwrap();
        assert_eq!((trace.processes(), trace.files(), trace.bytes()), (2, 1, 24));
        assert_eq!(trace.processes[1].iter().map(|op| op.at_ns).collect::<Vec<_>>(), [0, 200]);
        let whole = std::fs::read(&path).unwrap();
        for (bytes, says) in [(&b"no trace"[..], "not a trace"), (&whole[..whole.len() - 1], "has no end")] {
            std::fs::write(&path, bytes).unwrap();
            assert!(Trace::load(&path).unwrap_err().to_string().contains(says));
        }
        // Ranks are processes; pieces of a request of one are put together, also between those of others.
        let meta = Meta { targets: 2, stripe: 8, pieces: true, processes: true, ..Meta::default() };
        let mut writer = Writer::new(Vec::new(), &meta).unwrap();
        let file = writer.file(b"data").unwrap();
        for (time, process, target, offset) in
            [(9, 190, 0, 0), (9, 191, 1, 8), (9, 190, 1, 0), (12, 190, 0, 8), (12, 191, 0, 0)]
        {
            let entry = Entry { time, file, app: 7, target, op: Op::Read, offset, len: 8 };
            writer.push_with(entry, Extra { process, sum: None }).unwrap();
        }
        std::fs::write(&path, writer.finish(0).unwrap()).unwrap();
        let trace = Trace::load(&path).unwrap();
        let all: Vec<Vec<_>> =
            trace.processes.iter().map(|ops| ops.iter().map(|op| (op.at_ns, op.offset, op.bytes)).collect()).collect();
        assert_eq!(all, [vec![(0, 0, 16), (3, 16, 8)], vec![(0, 24, 8), (3, 0, 8)]]);
    }

    /// Recordings may say anything; sums of their times must not overflow.
    #[test]
    fn a_recording_that_lasts_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.slt");
        let load = |start: u64, end: u64| {
            let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
            let file = writer.file(b"data").unwrap();
            for time in [start, end] {
                writer.push(Entry { time, file, app: 7, target: 0, op: Op::Read, offset: 0, len: 8 }).unwrap();
            }
            std::fs::write(&path, writer.finish(0).unwrap()).unwrap();
            Trace::load(&path)
        };
        for (start, end) in [(0, u64::MAX), (5, 6 + TIME_MAX)] {
            let error = load(start, end).unwrap_err().to_string();
            assert!(error.contains("too late"), "{error}");
        }
        // It counts from the first one.
        assert_eq!(load(u64::MAX - TIME_MAX, u64::MAX).unwrap().processes[0][1].at_ns, TIME_MAX);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC*", line in "[0-9a-z,.]{0,40}") {
            let _ = Trace::parse(&text);
            let _ = Trace::parse(&format!("{HEADER}\n{line}"));
        }
    }
}
