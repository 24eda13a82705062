//! Several traces as one, in the order of time.

use std::collections::HashMap;
use std::io::{Read, Write};

use crate::{Columns, End, Entry, Error, Extra, Paths, Reader, Writer};

/// How the times of traces relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Align {
    /// By the clock on the wall, as each trace says when it began.
    #[default]
    Clock,
    /// All begin together.
    Start,
}

/// What becomes of the numbers of applications and processes, which traces made at different places use again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Apart {
    /// They stay.
    #[default]
    Keep,
    /// The traces are of different applications: those of different traces get different numbers.
    Applications,
    /// The traces are of the processes of one application, which gets number 0: each application and process of each trace
    /// becomes a process of its own.
    Processes,
}

/// New numbers in the order in which they are asked for.
#[derive(Default)]
struct Numbers(HashMap<(usize, u32, u32), u32>);

impl Numbers {
    fn of(&mut self, key: (usize, u32, u32)) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }
}

struct Source<'a, R> {
    reader: &'a mut Reader<R>,
    block: Columns,
    at: usize,
    /// Added to its times.
    shift: u64,
    /// Of each of its paths, the number in the result.
    numbers: Vec<u32>,
    /// How often each has come: the same path may have several numbers, of different files.
    times: HashMap<Vec<u8>, usize>,
}

/// The numbers of each path in the result. The first file of a path in one trace is the first one in another.
#[derive(Default)]
struct Merged(HashMap<Vec<u8>, Vec<u32>>);

impl Merged {
    fn number<W: Write>(&mut self, writer: &mut Writer<W>, path: &[u8], time: usize) -> Result<u32, Error> {
        let numbers = self.0.entry(path.to_vec()).or_default();
        while numbers.len() <= time {
            numbers.push(writer.another_file(path)?);
        }
        Ok(numbers[time])
    }
}

impl<R: Read> Source<'_, R> {
    /// The next entry, in the result's terms, if there is one.
    fn peek(&mut self, mut number: impl FnMut(&[u8], usize) -> Result<u32, Error>) -> Result<Option<Entry>, Error> {
        if self.at == self.block.len() {
            self.at = 0;
            if !self.reader.next_block(&mut self.block)? {
                self.block.clear();
                return Ok(None);
            }
            let known: &Paths = self.reader.paths();
            for path in known.iter().skip(self.numbers.len()) {
                let time = self.times.entry(path.to_vec()).or_default();
                self.numbers.push(number(path, *time)?);
                *time += 1;
            }
        }
        let entry = self.block.get(self.at);
        let file = self.numbers[entry.file as usize];
        Ok(Some(Entry { file, time: entry.time.saturating_add(self.shift), ..entry }))
    }

    /// Goes on behind the entry seen last; returns what it has besides.
    fn take(&mut self) -> Extra {
        self.at += 1;
        self.block.extra_of(self.at - 1)
    }
}

/// Merges traces into `writer`; returns the entries lost by their recorders. Memory: a block of each.
///
/// A trace that was cut short is taken as far as it goes; each reader tells how its trace ended.
///
/// # Errors
/// If one cannot be read, or the result not written.
pub fn merge<R: Read, W: Write>(
    readers: &mut [Reader<R>],
    align: Align,
    apart: Apart,
    writer: &mut Writer<W>,
) -> Result<u64, Error> {
    let (mut numbers, mut merged) = (Numbers::default(), Merged::default());
    // Of those that do not tell when they began nothing better is known than that they begin with the others.
    let starts = readers.iter().map(|reader| reader.meta().start_unix_ns);
    let first = starts.filter(|start| *start > 0).min().unwrap_or_default();
    let mut sources: Vec<_> = readers
        .iter_mut()
        .map(|reader| {
            let shift = match align {
                Align::Clock => reader.meta().start_unix_ns.saturating_sub(first),
                Align::Start => 0,
            };
            Source { reader, block: Columns::default(), at: 0, shift, numbers: Vec::new(), times: HashMap::new() }
        })
        .collect();
    loop {
        let mut next: Option<(Entry, usize)> = None;
        for (number, source) in sources.iter_mut().enumerate() {
            if let Some(entry) = source.peek(|path, time| merged.number(writer, path, time))?
                && next.is_none_or(|(earliest, _)| entry.time < earliest.time)
            {
                next = Some((entry, number));
            }
        }
        let Some((mut entry, number)) = next else { break };
        let mut extra = sources[number].take();
        match apart {
            Apart::Keep => {}
            Apart::Applications => entry.app = numbers.of((number, entry.app, 0)),
            Apart::Processes => {
                extra.process = numbers.of((number, entry.app, extra.process));
                entry.app = 0;
            }
        }
        writer.push_with(entry, extra)?;
    }
    Ok(sources
        .iter()
        .map(|source| match source.reader.end() {
            End::Complete { dropped } => dropped,
            _ => 0,
        })
        .sum())
}
