//! fio's logs of I/O patterns (`--write_iolog`), versions 2 and 3.
//!
//! A line is `FILE ACTION` or `FILE ACTION OFFSET LENGTH`, in version 3 with a time in milliseconds before it. Version 2 has
//! no times but `wait` (microseconds): its requests get the sum of the waits before them, plus a nanosecond each to keep
//! their order.

use std::io::{BufRead, Write};

use sluice_core::Op;

use crate::{Entry, Error, Writer};

/// Longest line.
const LINE_MAX: u64 = 64 << 10;

/// What an import did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// Requests taken over.
    pub entries: u64,
    /// Lines that are no reads or writes (open, close, sync, trim...).
    pub others: u64,
    /// The log has no times.
    pub untimed: bool,
}

/// A log cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A line that is not understood.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The log cannot be read, or the trace not written.
    #[error(transparent)]
    Trace(#[from] Error),
}

impl From<std::io::Error> for ImportError {
    fn from(error: std::io::Error) -> ImportError {
        ImportError::Trace(error.into())
    }
}

/// Imports a log of fio as requests of application `app`.
///
/// # Errors
/// If it is not such a log, or reading or writing fails.
pub fn fio_iolog<W: Write>(mut log: impl BufRead, app: u32, writer: &mut Writer<W>) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    let mut text = String::new();
    let (mut number, mut version, mut time) = (0_u64, 0, 0_u64);
    loop {
        text.clear();
        number += 1;
        let line = |problem: String| ImportError::Line { line: number, problem };
        match std::io::Read::take(&mut log, LINE_MAX).read_line(&mut text) {
            Ok(0) => break,
            Ok(_) if text.ends_with('\n') || (text.len() as u64) < LINE_MAX => {}
            Ok(_) => return Err(line("longer than 64 KiB".to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(line("not text".to_owned()));
            }
            Err(error) => return Err(error.into()),
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        if number == 1 {
            version = match words[..] {
                ["fio", "version", "2", "iolog"] => 2,
                ["fio", "version", "3", "iolog"] => 3,
                _ => return Err(line("not fio's log: it begins with \"fio version 2 iolog\" or 3".to_owned())),
            };
            imported.untimed = version == 2;
            continue;
        }
        let words = match (version, words.as_slice()) {
            (_, []) => continue,
            (3, [at, rest @ ..]) => {
                let ms: u64 = parse(at, "a time in milliseconds").map_err(line)?;
                time = ms.checked_mul(1_000_000).ok_or_else(|| line("a time beyond all times".to_owned()))?;
                rest
            }
            (_, all) => all,
        };
        let (path, op, offset, len) = match *words {
            [path, "read", offset, len] => (path, Op::Read, offset, len),
            [path, "write", offset, len] => (path, Op::Write, offset, len),
            [_, "wait", us, ..] if version == 2 => {
                let us: u64 = parse(us, "a time in microseconds").map_err(line)?;
                time = time.saturating_add(us.saturating_mul(1000));
                imported.others += 1;
                continue;
            }
            [_, "add" | "open" | "close" | "wait" | "sync" | "datasync" | "trim", ..] => {
                imported.others += 1;
                continue;
            }
            _ => return Err(line(format!("not \"FILE ACTION OFFSET LENGTH\": {:?}", text.trim_end()))),
        };
        let offset: u64 = parse(offset, "an offset").map_err(line)?;
        let len: u32 = parse(len, "a length").map_err(line)?;
        if offset.checked_add(len.into()).is_none() {
            return Err(line("a request that ends beyond 2^64".to_owned()));
        }
        let file = writer.file(path.as_bytes())?;
        writer.push(Entry { time, file, app, target: 0, op, offset, len })?;
        imported.entries += 1;
        time = time.saturating_add(u64::from(version == 2));
    }
    if number == 1 {
        return Err(ImportError::Line { line: 1, problem: "the log is empty".to_owned() });
    }
    Ok(imported)
}

fn parse<T: std::str::FromStr>(word: &str, what: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is not {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Meta, Reader};
    use proptest::prelude::*;

    type Entries = Vec<(Entry, Vec<u8>)>;

    fn import(log: &[u8]) -> Result<(Imported, Entries), ImportError> {
        let mut writer = Writer::new(Vec::new(), &Meta::default())?;
        let imported = fio_iolog(log, 3, &mut writer)?;
        let bytes = writer.finish(0)?;
        let (mut reader, mut block, mut all) = (Reader::new(&bytes[..])?, Columns::default(), Vec::new());
        while reader.next_block(&mut block)? {
            all.extend(block.iter().map(|entry| (entry, reader.paths().get(entry.file).to_vec())));
        }
        Ok((imported, all))
    }

    #[test]
    fn both_versions_are_read() {
        let (imported, all) = import(
            b"fio version 3 iolog\n0 /d/f add\n0 /d/f open\n2 /d/f write 4096 8192\n5 /d/f read 0 4096\n9 /d/f close\n",
        )
        .unwrap();
        assert_eq!(imported, Imported { entries: 2, others: 3, untimed: false });
        let entry = Entry { time: 2_000_000, file: 0, app: 3, target: 0, op: Op::Write, offset: 4096, len: 8192 };
        assert_eq!(all[0], (entry, b"/d/f".to_vec()));
        assert_eq!((all[1].0.time, all[1].0.op), (5_000_000, Op::Read));
        let (imported, all) =
            import(b"fio version 2 iolog\nf add\nf read 0 10\nf wait 7 0\nf read 10 10\nf read 20 10").unwrap();
        assert_eq!((imported.entries, imported.untimed), (3, true));
        assert_eq!(all.iter().map(|(entry, _)| entry.time).collect::<Vec<_>>(), [0, 7_001, 7_002]);
    }

    #[test]
    fn mistakes_name_the_line() {
        for (log, expected) in [
            (&b""[..], "line 1: the log is empty"),
            (b"hello\n", "line 1: not fio's log"),
            (b"fio version 3 iolog\nx f read 0 1\n", "line 2: \"x\" is not a time"),
            (b"fio version 2 iolog\nf read 0 -1\n", "line 2: \"-1\" is not a length"),
            (b"fio version 2 iolog\nf read 18446744073709551615 1\n", "line 2: a request that ends beyond"),
            (b"fio version 2 iolog\nf jump 0 1\n", "line 2: not \"FILE ACTION"),
            (b"fio version 2 iolog\n\xff\xfe\n", "line 2: not text"),
        ] {
            let error = import(log).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
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
        let action =
            prop::sample::select(vec!["read", "write", "wait", "sync", "trim", "add", "open", "close", "READ"]);
        let file = prop::sample::select(vec!["/d/f", "f", "../f", "\u{fc}", ""]);
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
            let _ = import(format!("fio version 3 iolog\n{text}").as_bytes());
            let _ = import(format!("fio version 2 iolog\n{text}").as_bytes());
        }
    }
}
