//! Traces into other files: one from several, or other formats.

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::ValueEnum;
use sluice_notation::counted;
use sluice_trace::merge::{Align, Apart};
use sluice_trace::{Entry, Meta, Writer, import};

use super::{Output, PARTLY, blocks, missing, open, tell_made};
use crate::input::{self, Named};
use crate::output;

/// Makes one trace of several, in the order of time
///
/// Traces without an end are taken as far as they go; the exit code is 3 then. Damaged ones are refused.
#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// The traces; one of them may be -, standard input
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// The new trace; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// How times relate: clock (each began when it says), start (all begin together)
    #[arg(long, value_name = "HOW", default_value = "clock", value_parser = align)]
    align: Align,
    /// What traces that use the same numbers are of: the same applications (keep), different ones (applications), or processes
    /// of one (processes), as logs of the jobs of one run of fio are
    #[arg(long, value_name = "WHAT", default_value = "keep", value_parser = apart)]
    each: Apart,
}

/// Converts a trace to CSV (.csv), Parquet (.parquet), or a trace anew (.slt)
///
/// A line of CSV, or a row of Parquet, is a request: time in nanoseconds since the trace began, path, operation, offset in the
/// file, length, application, data server, offset in the data server's part of the file; with checksums also the CRC-32 and
/// of how many bytes it is.
///
/// Parquet needs the Python package sluicegate with pyarrow: `pip install './python[parquet]'` in Sluicegate's sources. The
/// Python that has it is python3, or what the variable SLUICE_PYTHON names.
///
/// A trace anew is what makes a whole trace of one that a killed recorder left.
#[derive(clap::Args)]
pub(crate) struct ConvertArgs {
    /// The trace; - is standard input
    trace: PathBuf,
    /// The new file; its ending says the format. - is standard output
    pub(super) out: PathBuf,
    /// The format of the new file [default: as its ending says, and of standard output slt]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Of a trace anew: only files below this directory, with paths that begin there [default: all files]
    #[arg(long, value_name = "DIR")]
    below: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Parquet,
    Slt,
}

impl Format {
    /// As the ending says.
    fn of(path: &Path) -> anyhow::Result<Format> {
        match path.extension().and_then(OsStr::to_str) {
            Some("slt") => Ok(Format::Slt),
            Some("csv") => Ok(Format::Csv),
            Some("parquet") => Ok(Format::Parquet),
            _ if output::is_standard(path) => Ok(Format::Slt),
            _ => bail!("{}: the ending says the format: .csv, .parquet or .slt; or --format does", path.display()),
        }
    }
}

fn align(text: &str) -> Result<Align, String> {
    match text {
        "clock" => Ok(Align::Clock),
        "start" => Ok(Align::Start),
        _ => Err("expected clock or start".to_owned()),
    }
}

fn apart(text: &str) -> Result<Apart, String> {
    match text {
        "keep" => Ok(Apart::Keep),
        "applications" => Ok(Apart::Applications),
        "processes" => Ok(Apart::Processes),
        _ => Err("expected keep, applications or processes".to_owned()),
    }
}

pub(super) fn merge(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    input::check_standard(args.traces.iter().map(PathBuf::as_path))?;
    output::check_binary(&args.out)?;
    if let Some(path) = args.traces.iter().find(|path| is_same(path, &args.out)) {
        bail!("{} is one of the traces that are merged, and would be lost: --out needs another name", path.display());
    }
    for (at, path) in args.traces.iter().enumerate() {
        if let Some(first) = args.traces[..at].iter().find(|first| is_same(first, path)) {
            let (path, first) = (path.display(), first.display());
            bail!("{path} is the same file as {first}: every request of it would be there twice; name each once");
        }
    }
    let mut readers = args.traces.iter().map(|path| open(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let metas: Vec<Meta> = readers.iter().map(|reader| reader.meta().clone()).collect();
    let (targets, stripe) = (metas[0].targets, metas[0].stripe);
    if metas.iter().any(|meta| (meta.targets, meta.stripe) != (targets, stripe)) {
        bail!("the traces are of volumes with different stripes: their offsets mean different things");
    }
    let starts = || metas.iter().map(|meta| meta.start_unix_ns);
    if args.align == Align::Clock && starts().any(|start| start == 0) && starts().any(|start| start > 0) {
        let unknown = args.traces.iter().zip(&metas).filter(|(_, meta)| meta.start_unix_ns == 0);
        for (path, _) in unknown {
            let note = "does not tell when it began: it is taken to begin with the first of the others (--align)";
            output::tell(format_args!("{}: {note}", input::name(path)));
        }
    }
    let mut jobs: Vec<&str> = metas.iter().map(|meta| meta.job.as_str()).filter(|job| !job.is_empty()).collect();
    jobs.dedup();
    let meta = Meta {
        start_unix_ns: starts().filter(|start| *start > 0).min().unwrap_or_default(),
        targets,
        stripe,
        emulated: metas.iter().any(|meta| meta.emulated),
        checksums: metas.iter().any(|meta| meta.checksums),
        processes: args.each == Apart::Processes || metas.iter().any(|meta| meta.processes),
        job: jobs.join(", "),
        untimed: metas.iter().any(|meta| meta.untimed),
        // Ties in time go to the first: pieces of a request stay together.
        pieces: metas.iter().all(|meta| meta.pieces),
        source: metas.iter().map(|meta| meta.source.as_str()).collect::<Vec<_>>().join(", "),
        ..Meta::default()
    };
    let out = Output::create(&args.out)?;
    let mut writer = Writer::new(BufWriter::new(out.file()), &meta)?;
    let dropped = sluice_trace::merge::merge(&mut readers, args.align, args.each, &mut writer)
        .map_err(|error| first_damaged(&args.traces).unwrap_or(error.into()))?;
    let entries = writer.entries();
    let mut why = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for (path, reader) in args.traces.iter().zip(&readers) {
        let path = input::name(path);
        if !reader.incomplete().is_empty() {
            why.push(format!("{path}: {}", reader.incomplete()));
        }
        if let Some(missing) = missing(reader.end()) {
            code = ExitCode::from(PARTLY);
            output::tell(format_args!("{path}: {missing}; {} of it are taken", counted(reader.entries(), "request")));
            why.push(format!("{path}: {missing}"));
        }
    }
    writer.finish_incomplete(dropped, &why.join("; "))?;
    out.keep()?;
    let traces = counted(args.traces.len() as u64, "trace");
    tell_made(&args.out, format_args!("{} of {traces}", counted(entries, "request")));
    Ok(code)
}

/// Whether two paths lead to one file that is there.
fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// What is wrong with the first of these traces that cannot be read to its end.
fn first_damaged(traces: &[PathBuf]) -> Option<anyhow::Error> {
    // What came from standard input is gone.
    traces.iter().filter(|path| !input::is_standard(path)).find_map(|path| {
        let damage = open(path).and_then(|mut reader| {
            reader.for_each(|_, _| ()).with_context(|| path.display().to_string())?;
            Ok(())
        });
        let hint = "`sluice trace convert` makes a trace of what is good";
        damage.err().map(|error| anyhow::anyhow!("{error:#} ({hint})"))
    })
}

pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let format = args.format.map_or_else(|| Format::of(&args.out), Ok)?;
    match format {
        Format::Slt => {
            output::check_binary(&args.out)?;
            anew(&args.trace, &args.out, args.below.as_deref())
        }
        _ if args.below.is_some() => bail!("{}: --below makes a trace anew, of the ending .slt", args.out.display()),
        Format::Csv => csv(&args.trace, &args.out),
        Format::Parquet if output::is_standard(&args.out) => bail!("Parquet goes into a file, not to standard output"),
        Format::Parquet => {
            let trace = Named::of(&args.trace)?;
            python("parquet", &["convert".as_ref(), trace.as_ref(), args.out.as_ref()])
        }
    }
}

fn csv(trace: &Path, path: &Path) -> anyhow::Result<ExitCode> {
    let mut reader = open(trace)?;
    let meta = reader.meta().clone();
    let out = Output::create(path)?;
    let mut file = BufWriter::new(out.file());
    write!(file, "time_ns,path,op,offset,length,application,target,target_offset")?;
    write!(file, "{}", if meta.processes { ",process" } else { "" })?;
    writeln!(file, "{}", if meta.checksums { ",crc32,crc32_bytes" } else { "" })?;
    let mut entries = 0;
    let ended = blocks(trace, &mut reader, |paths, block| {
        for (at, entry) in block.iter().enumerate() {
            let logical = meta.logical_offset(entry.target, entry.offset);
            let op = ["read", "write"][entry.op.index()];
            let (len, app, target, offset) = (entry.len, entry.app, entry.target, entry.offset);
            write!(
                file,
                "{},{},{op},{logical},{len},{app},{target},{offset}",
                entry.time,
                field(&paths.text(entry.file))
            )?;
            if meta.processes {
                write!(file, ",{}", block.process_of(at))?;
            }
            match block.sum_of(at) {
                Some(sum) => writeln!(file, ",{},{}", sum.crc, sum.bytes)?,
                None => writeln!(file, "{}", if meta.checksums { ",,0" } else { "" })?,
            }
        }
        entries += block.len();
        Ok(())
    })?;
    file.flush()?;
    drop(file);
    out.keep()?;
    tell_made(path, counted(entries as u64, "request"));
    Ok(ended.code())
}

/// A text as a field of CSV (RFC 4180).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// The same trace with full blocks and an end: what a recorder that was killed left becomes a trace that says what is missing.
/// With a directory, only what is below it.
pub(super) fn anew(trace: &Path, path: &Path, below: Option<&Path>) -> anyhow::Result<ExitCode> {
    let below = below.map(|dir| import::normal_path(dir.as_os_str().as_bytes()).into_owned());
    let below = below.as_deref().map(|dir| Path::new(OsStr::from_bytes(dir)));
    let mut reader = open(trace)?;
    let meta = reader.meta().clone();
    let out = Output::create(path)?;
    // Begun when there is something for it: what has gone to standard output cannot be taken back.
    let begin = || Writer::new(BufWriter::new(out.file()), &meta);
    let mut begun = None;
    // The new number of each path, if it is taken over.
    let mut numbers: Vec<Option<u32>> = Vec::new();
    let mut left_out = 0_u64;
    let ended = blocks(trace, &mut reader, |paths, block| {
        let writer = match &mut begun {
            Some(writer) => writer,
            None if below.is_none() || paths.iter().any(|path| wanted(path, below).is_some()) => begun.insert(begin()?),
            None => {
                left_out += block.len() as u64;
                return Ok(());
            }
        };
        for path in paths.iter().skip(numbers.len()) {
            numbers.push(wanted(path, below).map(|path| writer.another_file(path)).transpose()?);
        }
        for (at, entry) in block.iter().enumerate() {
            match numbers[entry.file as usize] {
                Some(file) => writer.push_with(Entry { file, ..entry }, block.extra_of(at))?,
                None => left_out += 1,
            }
        }
        Ok(())
    })?;
    let entries = begun.as_ref().map_or(0, Writer::entries);
    if entries == 0 && left_out > 0 {
        let (dir, first) = (below.unwrap_or(Path::new("")).display(), reader.paths().text(0));
        let relative = if Path::new(&*first).is_absolute() { "" } else { " (paths of a mount begin at its root)" };
        bail!("no file is below {dir}: one is {first}{relative}");
    }
    let writer = begun.map_or_else(begin, Ok)?;
    writer.finish_incomplete(ended.dropped(), &ended.why(reader.incomplete()))?;
    out.keep()?;
    let others = if left_out > 0 { format!("; {left_out} to other files left out") } else { String::new() };
    tell_made(path, format_args!("{}{others}", counted(entries, "request")));
    Ok(ended.code())
}

/// A path as it is taken over, if it is.
fn wanted<'a>(path: &'a [u8], below: Option<&Path>) -> Option<&'a [u8]> {
    below.map_or(Some(path), |dir| inside(path, dir))
}

/// A path from a directory on, if it is below it.
fn inside<'a>(path: &'a [u8], dir: &Path) -> Option<&'a [u8]> {
    let rest = Path::new(OsStr::from_bytes(path)).strip_prefix(dir).ok()?;
    Some(rest.as_os_str().as_bytes()).filter(|rest| !rest.is_empty())
}

/// Does something with the Python package, for which it needs this extra; it has the same exit codes.
pub(super) fn python(extra: &str, args: &[&OsStr]) -> anyhow::Result<ExitCode> {
    let program = std::env::var_os("SLUICE_PYTHON").unwrap_or_else(|| "python3".into());
    let shown = program.to_string_lossy().into_owned();
    let there = Command::new(&program).args(["-c", "import sluicegate"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        bail!(
            "this needs the Python package sluicegate, which {shown} does not have; in Sluicegate's sources: \
             pip install './python[{extra}]'. Or name another Python in the variable SLUICE_PYTHON"
        );
    }
    let status = Command::new(&program).args(["-m", "sluicegate"]).args(args).status();
    let status = status.with_context(|| format!("starting {shown}"))?;
    match status.code() {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(code) if code == i32::from(PARTLY) => Ok(ExitCode::from(PARTLY)),
        // It has said why.
        Some(1) => Ok(ExitCode::FAILURE),
        _ => bail!("the Python package has failed ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_of_csv_are_quoted_where_they_must_be() {
        assert_eq!(field("a b"), "a b");
        assert_eq!(field("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }
}
