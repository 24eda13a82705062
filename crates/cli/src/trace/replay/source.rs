//! What to do: the requests of a trace.

use sluice_trace::{Columns, Entry, Meta, Sum, joined};

use super::super::Opened;

/// A request of an application.
pub(super) struct Whole {
    pub(super) entry: Entry,
    /// Offset, length and checksum of its pieces, where the trace has checksums.
    pub(super) sums: Vec<(u64, u32, Option<Sum>)>,
}

/// The requests of applications, put together of their pieces.
pub(super) struct Source {
    reader: Opened,
    meta: Meta,
    block: Columns,
    at: usize,
    ahead: Option<(Entry, Option<Sum>)>,
}

impl Source {
    pub(super) fn new(reader: Opened) -> Source {
        let meta = reader.meta().clone();
        Source { reader, meta, block: Columns::default(), at: 0, ahead: None }
    }

    /// The next entry with its offset in the whole file.
    fn entry(&mut self) -> anyhow::Result<Option<(Entry, Option<Sum>)>> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        if self.at == self.block.len() {
            self.at = 0;
            match self.reader.next_block(&mut self.block) {
                Ok(true) => {}
                // Damage was told when the trace was read the first time.
                Ok(false) | Err(sluice_trace::Error::Corrupt { .. }) => {
                    self.block.clear();
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let (entry, sum) = (self.block.get(self.at), self.block.sum_of(self.at));
        self.at += 1;
        Ok(Some((Entry { offset: self.meta.logical_offset(entry.target, entry.offset), ..entry }, sum)))
    }

    pub(super) fn next(&mut self) -> anyhow::Result<Option<Whole>> {
        let Some((mut whole, sum)) = self.entry()? else { return Ok(None) };
        let mut sums = Vec::new();
        if self.meta.checksums {
            sums.push((whole.offset, whole.len, sum));
        }
        while self.meta.pieces
            && let Some((next, sum)) = self.entry()?
        {
            let Some(together) = joined(&whole, &next) else {
                self.ahead = Some((next, sum));
                break;
            };
            whole = together;
            if self.meta.checksums {
                sums.push((next.offset, next.len, sum));
            }
        }
        Ok(Some(Whole { entry: whole, sums }))
    }
}
