//! What a disk must hold: of each cell of 64 bytes the value that is durable, and those that may have taken its place.

use std::ops::Range;

/// Bytes of a cell; it never lies in two sectors.
pub(super) const CELL: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Model(Vec<Cell>);

#[derive(Clone, Debug)]
struct Cell {
    durable: u8,
    /// Written when a flush failed, which may have lost it for good.
    doubtful: Vec<u8>,
    /// Some of these came after the last one of `later`.
    doubt: bool,
    later: Vec<u8>,
}

impl Model {
    /// Of a disk whose bytes, the same in each cell, are durable.
    pub(super) fn new(bytes: &[u8]) -> Model {
        Model(
            bytes
                .chunks(CELL)
                .map(|cell| Cell { durable: cell[0], doubtful: Vec::new(), doubt: false, later: Vec::new() })
                .collect(),
        )
    }

    /// A write begins: from now on it may be there.
    pub(super) fn write(&mut self, range: &Range<u64>, value: u8) {
        for cell in self.cells(range) {
            cell.later.push(value);
            cell.doubt = false;
        }
    }

    /// A flush has ended well.
    pub(super) fn flush(&mut self, range: &Range<u64>) {
        for cell in self.cells(range) {
            if let Some(&last) = cell.later.last() {
                cell.durable = last;
                cell.later.clear();
                if !cell.doubt {
                    cell.doubtful.clear();
                }
            }
        }
    }

    /// The write that began last has failed: a part of it may be there.
    pub(super) fn fail_write(&mut self, range: &Range<u64>) {
        for cell in self.cells(range) {
            cell.doubtful.extend(cell.later.pop());
            cell.doubt = true;
        }
    }

    /// A flush has failed, and that was said: a later one does not mean what was written before.
    pub(super) fn fail_flush(&mut self) {
        for cell in &mut self.0 {
            cell.doubtful.append(&mut cell.later);
        }
    }

    /// What is read while the disk is in use is the newest.
    pub(super) fn is_newest(&self, bytes: &[u8]) -> Result<(), String> {
        self.compare(bytes, |cell, value| value == *cell.later.last().unwrap_or(&cell.durable))
    }

    /// What is read after a crash is what was durable or came later.
    pub(super) fn is_possible(&self, bytes: &[u8]) -> Result<(), String> {
        self.compare(bytes, |cell, value| {
            cell.durable == value || cell.later.contains(&value) || cell.doubtful.contains(&value)
        })
    }

    /// A value that the cell at this byte may have.
    pub(super) fn any(&self, offset: u64) -> u8 {
        self.0[offset as usize / CELL].durable
    }

    fn compare(&self, bytes: &[u8], right: impl Fn(&Cell, u8) -> bool) -> Result<(), String> {
        for (at, (found, cell)) in bytes.chunks(CELL).zip(&self.0).enumerate() {
            let value = found[0];
            if found.iter().any(|&byte| byte != value) || !right(cell, value) {
                return Err(format!("byte {}: {value} where {cell:?} may be", at * CELL));
            }
        }
        Ok(())
    }

    fn cells(&mut self, range: &Range<u64>) -> &mut [Cell] {
        &mut self.0[range.start as usize / CELL..range.end as usize / CELL]
    }
}
