//! What was learned as a trace: each run a file of its own with the path of its series.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use sluice_trace::{Columns, End, Entry, Error, Reader, Writer};

use super::Learner;
use super::store::{Key, Step};

impl Learner {
    /// Writes what is kept.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), Error> {
        for (key, run) in self.store.runs() {
            let file = writer.another_file(&key.path)?;
            run.iter().try_for_each(|step| writer.push(entry(file, key.target, step)))?;
        }
        Ok(())
    }

    /// Takes over what [`Learner::save`] wrote.
    ///
    /// # Errors
    /// If it cannot be read, or has lost its end; what was read before that place is kept.
    pub fn load<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<(), Error> {
        let mut runs: Vec<(Key, Vec<Step>)> = Vec::new();
        let (mut numbers, mut block, mut total) = (HashMap::new(), Columns::default(), 0);
        let result = loop {
            match reader.next_block(&mut block) {
                Ok(true) => {}
                Ok(false) if matches!(reader.end(), End::Complete { .. }) => break Ok(()),
                Ok(false) => break Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its end is missing").into()),
                Err(error) => break Err(error),
            }
            let left = self.limits.requests_max.saturating_sub(total);
            for entry in block.iter().take(left) {
                let at = *numbers.entry((entry.file, entry.target)).or_insert_with(|| {
                    let key = Key { path: reader.paths().get(entry.file).into(), target: entry.target };
                    runs.push((key, Vec::new()));
                    runs.len() - 1
                });
                runs[at].1.push(Step { time: entry.time, offset: entry.offset, len: entry.len, op: entry.op });
                total += 1;
            }
        };
        runs.into_iter().for_each(|(key, run)| self.store.keep(key, run.into()));
        self.store.take_unsaved();
        result
    }
}

pub(super) fn entry(file: u32, target: u32, step: &Step) -> Entry {
    Entry { time: step.time, file, app: 0, target, op: step.op, offset: step.offset, len: step.len }
}
