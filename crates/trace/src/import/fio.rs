//! fio's logs of I/O patterns (`--write_iolog`), versions 2 and 3.
//!
//! A line is `FILE ACTION` or `FILE ACTION OFFSET LENGTH`, in version 3 with a time in microseconds before it (fio's
//! `iolog.c`: `log_io_u` writes `utime_since_now`, just before the request goes to the I/O engine). Version 2 has no times but
//! `wait`, the milliseconds since the job began at which it goes on (`read_iolog_get`; the HOWTO says something else): its
//! requests get that time, plus a nanosecond each to keep their order.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use sluice_core::Op;

use super::lines::Lines;
use super::{ImportError, Imported, normal_path};
use crate::{Entry, Meta, Writer};

/// fio appends to a log that is there, and jobs that share a log mix their lines: times go back then. So much they may where
/// threads of one job hand over requests.
const BACK_MAX_NS: u64 = 1_000_000_000;

/// What a line says.
enum Line<'a> {
    Request { path: &'a [u8], op: Op, offset: u64, len: u32 },
    Wait { ms: u64 },
    File { path: &'a [u8], opens: i64 },
    Other,
}

/// Imports a log of fio. `meta` describes the trace; whether it has times is added.
///
/// Of a log whose job was killed the whole lines are taken.
///
/// # Errors
/// If it is not such a log, or reading or writing fails. What was written is no whole trace then.
pub fn fio_iolog<W: Write>(log: impl BufRead, meta: Meta, out: W) -> Result<Imported, ImportError> {
    let mut lines = Lines::new(log);
    let head = lines.advance()?;
    let version = match lines.text.trim_ascii() {
        b"" => return Err(lines.wrong("the log is empty")),
        b"fio version 2 iolog" if head => 2,
        b"fio version 3 iolog" if head => 3,
        _ => return Err(lines.wrong("not fio's log: it begins with \"fio version 2 iolog\" or 3")),
    };
    let untimed = version == 2;
    let mut imported = Imported { untimed, ..Imported::default() };
    let mut writer = Writer::new(out, &Meta { untimed, ..meta })?;
    // How often each file that the log has announced is open.
    let mut files: HashMap<Vec<u8>, i64> = HashMap::new();
    let mut time = 0_u64;
    while lines.advance()? {
        let mut rest = lines.text.trim_ascii();
        if rest.is_empty() {
            continue;
        }
        if rest.starts_with(b"fio version ") {
            let why = "a second log begins here: fio appends to a log that is there, and jobs can share one. Give each job and \
                       run a log of its own; `sluice trace merge` makes one trace of their traces";
            return Err(lines.wrong(why));
        }
        if version == 3 {
            let (at, after) = first_word(rest);
            let us: u64 = parse(at, "a time in microseconds").map_err(|why| lines.wrong(why))?;
            let now = us.checked_mul(1000).ok_or_else(|| lines.wrong("a time beyond all times"))?;
            if now.saturating_add(BACK_MAX_NS) < time {
                return Err(lines.wrong("the time goes back: several jobs have written to this log, or it is damaged"));
            }
            (time, rest) = (now, after);
        }
        match parse_line(rest).map_err(|why| lines.wrong(why.unwrap_or_else(|| not_understood(&lines))))? {
            Line::Request { path, op, offset, len } => {
                if offset.checked_add(len.into()).is_none() {
                    return Err(lines.wrong("a request that ends beyond 2^64"));
                }
                let path = normal_path(path);
                if !files.is_empty() && !files.contains_key(&*path) {
                    let path = String::from_utf8_lossy(&path);
                    return Err(
                        lines.wrong(format!("a request to {path:?}, which was neither added nor opened before"))
                    );
                }
                let file = writer.file(&path)?;
                writer.push(Entry { time, file, app: 0, target: 0, op, offset, len })?;
                imported.entries += 1;
                time = time.saturating_add(u64::from(untimed));
                continue;
            }
            Line::Wait { ms } if untimed => time = time.max(ms.saturating_mul(1_000_000)),
            Line::File { path, opens } => *files.entry(normal_path(path).into_owned()).or_default() += opens,
            Line::Wait { .. } | Line::Other => {}
        }
        imported.others += 1;
    }
    let left_open = files.values().filter(|count| **count > 0).count();
    imported.incomplete = match (lines.cut, left_open) {
        (false, 0) => String::new(),
        (false, 1) => "the log ends before one of its files is closed: its job was killed, or still runs".to_owned(),
        (false, n) => format!("the log ends before {n} of its files are closed: its job was killed, or still runs"),
        (true, _) => format!("the log is cut in line {}: its job was killed, or still runs", lines.number),
    };
    writer.finish_incomplete(0, &imported.incomplete)?;
    Ok(imported)
}

fn not_understood<R: BufRead>(lines: &Lines<R>) -> String {
    format!("not \"FILE ACTION OFFSET LENGTH\": \"{}\"", lines.shown())
}

/// What a line says behind its time. File names may have blanks, so it is read from its end.
fn parse_line(text: &[u8]) -> Result<Line<'_>, Option<String>> {
    let (before, last) = last_word(text);
    let opens = match last {
        b"open" => 1,
        b"close" => -1,
        _ => 0,
    };
    if matches!(last, b"add" | b"open" | b"close" | b"unlink") && !before.is_empty() {
        return Ok(Line::File { path: before, opens });
    }
    let (before, offset) = last_word(before);
    let (path, action) = last_word(before);
    if path.is_empty() {
        return Err(None);
    }
    let op = match action {
        b"read" => Op::Read,
        b"write" => Op::Write,
        b"wait" => return Ok(Line::Wait { ms: parse(offset, "a time in milliseconds").map_err(Some)? }),
        b"sync" | b"datasync" | b"sync_file_range" | b"syncfs" | b"trim" => return Ok(Line::Other),
        _ => return Err(None),
    };
    let offset = parse(offset, "an offset").map_err(Some)?;
    let len = parse(last, "a length").map_err(Some)?;
    Ok(Line::Request { path, op, offset, len })
}

fn first_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

/// What is before the last word, and that.
fn last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let start = text.iter().rposition(u8::is_ascii_whitespace).map_or(0, |at| at + 1);
    (text[..start].trim_ascii_end(), &text[start..])
}

fn parse<T: std::str::FromStr>(word: &[u8], what: &str) -> Result<T, String> {
    let text = String::from_utf8_lossy(word);
    // `parse` would take a sign.
    let digits = word.iter().all(u8::is_ascii_digit);
    text.parse().ok().filter(|_| digits).ok_or_else(|| format!("{text:?} is not {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Reader};
    use proptest::prelude::*;

    type Entries = Vec<(Entry, Vec<u8>)>;

    fn import(log: &[u8]) -> Result<(Imported, Entries), ImportError> {
        let mut bytes = Vec::new();
        let imported = fio_iolog(log, Meta::default(), &mut bytes)?;
        let (mut reader, mut block, mut all) = (Reader::new(&bytes[..])?, Columns::default(), Vec::new());
        assert_eq!(reader.meta().untimed, imported.untimed);
        while reader.next_block(&mut block)? {
            all.extend(block.iter().map(|entry| (entry, reader.paths().get(entry.file).to_vec())));
        }
        assert_eq!((reader.incomplete(), all.len() as u64), (&*imported.incomplete, imported.entries));
        Ok((imported, all))
    }

    const LOG: &str = "fio version 3 iolog\n0 /d/f add\n0 /d/f open\n2 /d/f write 4096 8192\n5 /d/./x/../f read 0 4096\n\
                       7 /d/a b open\n8 /d/a b write 1 2\n8 /d/a b close\n9 /d/f close\n9 /d/f unlink\n";

    #[test]
    fn both_versions_are_read() {
        let (imported, all) = import(LOG.as_bytes()).unwrap();
        assert_eq!(imported, Imported { entries: 3, others: 6, ..Imported::default() });
        let entry = Entry { time: 2_000, file: 0, app: 0, target: 0, op: Op::Write, offset: 4096, len: 8192 };
        assert_eq!(all[0], (entry, b"/d/f".to_vec()));
        assert_eq!((all[1].0.time, all[1].0.op, all[1].0.file), (5_000, Op::Read, 0));
        assert_eq!((all[2].1.as_slice(), all[2].0.offset), (&b"/d/a b"[..], 1));
        let (imported, all) =
            import(b"fio version 2 iolog\nf add\nf read 0 10\nf wait 7 0\nf read 10 10\nf read 20 10\n").unwrap();
        assert_eq!((imported.entries, imported.untimed), (3, true));
        assert_eq!(all.iter().map(|(entry, _)| entry.time).collect::<Vec<_>>(), [0, 7_000_000, 7_000_001]);
    }

    #[test]
    fn mistakes_name_the_line() {
        let long = format!("fio version 3 iolog\n{}\n", "x".repeat(1 << 20));
        for (log, expected) in [
            (&b""[..], "line 1: the log is empty"),
            (b"hello\n", "line 1: not fio's log"),
            (b"fio version 3 iolog", "line 1: not fio's log"),
            (b"fio version 3 iolog\nx f read 0 1\n", "line 2: \"x\" is not a time"),
            (b"fio version 2 iolog\nf read 0 -1\n", "line 2: \"-1\" is not a length"),
            (b"fio version 2 iolog\nf read +0 1\n", "line 2: \"+0\" is not an offset"),
            (b"fio version 2 iolog\nf read 18446744073709551615 1\n", "line 2: a request that ends beyond"),
            (b"fio version 2 iolog\nf jump 0 1\n", "line 2: not \"FILE ACTION"),
            (b"fio version 2 iolog\nread 0 1\n", "line 2: not \"FILE ACTION"),
            (b"fio version 2 iolog\n\xff\xfe\n", "line 2: not \"FILE ACTION"),
            (b"fio version 3 iolog\nfio version 3 iolog\n", "line 2: a second log begins here"),
            (b"fio version 2 iolog\nf add\ng read 0 1\n", "line 3: a request to \"g\", which was neither"),
            (b"fio version 3 iolog\n9000000 f add\n5 f add\n", "line 3: the time goes back"),
            (long.as_bytes(), "line 2: longer than"),
        ] {
            let error = import(log).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    /// A log may end anywhere. What is imported of it then is a beginning, and only of the whole log not called incomplete.
    #[test]
    fn a_log_that_is_cut_anywhere_is_told_from_a_whole_one() {
        let (_, whole) = import(LOG.as_bytes()).unwrap();
        for cut in 0..LOG.len() {
            match import(&LOG.as_bytes()[..cut]) {
                Ok((imported, all)) => {
                    assert_eq!(all, whole[..all.len()], "{cut}");
                    // The unlinking is no request, and nothing before it tells that it comes.
                    let whole = all.len() == 3 && cut >= LOG.find("9 /d/f unlink").unwrap();
                    let between = all.is_empty() && cut <= LOG.find("0 /d/f open").unwrap();
                    assert!(!imported.incomplete.is_empty() || whole || between, "{cut}");
                }
                Err(error) => assert!(cut <= "fio version 3 iolog".len(), "{cut}: {error}"),
            }
        }
    }

    /// Lines that are nearly right.
    fn line() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            (0..100_000_u64).prop_map(|n| n.to_string()),
            any::<u64>().prop_map(|n| n.to_string()),
            Just("-1".to_owned()),
            Just("99999999999999999999999".to_owned()),
            Just("0x10".to_owned()),
            Just(String::new()),
        ];
        let action = prop::sample::select(vec![
            "read", "write", "wait", "sync", "trim", "add", "open", "close", "unlink", "READ",
        ]);
        let file = prop::sample::select(vec!["/d/f", "f", "../f", "\u{fc}", "a b", ""]);
        (prop::option::of(number.clone()), file, action, prop::option::of((number.clone(), number))).prop_map(
            |(time, file, action, range)| {
                let time = time.map_or(String::new(), |time| format!("{time} "));
                let range = range.map_or(String::new(), |(offset, len)| format!(" {offset} {len}"));
                format!("{time}{file} {action}{range}\n")
            },
        )
    }

    proptest! {
        #[test]
        fn logs_that_are_nearly_right_are_answered(version in 1..5_u8, lines in prop::collection::vec(line(), 0..12)) {
            let log = format!("fio version {version} iolog\n{}", lines.concat());
            match import(log.as_bytes()) {
                Ok((imported, all)) => {
                    prop_assert!(version == 2 || version == 3);
                    prop_assert_eq!((imported.entries + imported.others) as usize, lines.len());
                    prop_assert!(imported.entries as usize == all.len());
                    prop_assert!(all.is_sorted_by_key(|(entry, _)| entry.time) || version == 3);
                }
                Err(error) => prop_assert!(error.to_string().starts_with("line "), "{}", error),
            }
        }

        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[a-z0-9 \n]{0,200}") {
            let _ = import(&bytes);
            let _ = import(&[b"fio version 3 iolog\n", &bytes[..]].concat());
            let _ = import(format!("fio version 3 iolog\n{text}").as_bytes());
            let _ = import(format!("fio version 2 iolog\n{text}").as_bytes());
        }

        /// A log has no checksums: a changed digit is another digit. But nothing else is taken for a request.
        #[test]
        fn flipped_bits_are_refused_or_change_what_they_hit(at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let (_, whole) = import(LOG.as_bytes()).unwrap();
            let mut log = LOG.as_bytes().to_vec();
            let at = at.index(log.len());
            log[at] ^= 1 << bit;
            if let Ok((_, all)) = import(&log) {
                let differ = all.iter().zip(&whole).filter(|(a, b)| (a.0.time, a.0.op, &a.1) != (b.0.time, b.0.op, &b.1)).count();
                prop_assert!(all.len() <= whole.len() && (differ <= 1 || all.len() < whole.len()));
            }
        }
    }
}
