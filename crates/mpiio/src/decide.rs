//! How the collective calls on one file are carried out: decided by every process for itself, and the same on all of them, as all are
//! told the same. The shared objects ask through [`calls`](crate::calls), the simulator directly.

use crate::choose::{Chooser, Kind};
use crate::flat::Range;
use crate::layout::Layout;
use crate::plan::{Call, Strategy};

/// Ranges of all processes in a call, above which looking at them costs more than it brings.
const MAX_CALL_RANGES: i64 = 1 << 16;
/// Bytes of all processes in a call, below which it cannot bring anything.
const MIN_CALL_BYTES: i64 = 64 << 10;

/// Decisions for one file.
#[derive(Debug)]
pub struct Decisions {
    /// Which server has what of it.
    pub layout: Layout,
    /// What serves it best.
    pub chooser: Chooser,
    /// Of the call whose ranges are wanted.
    kind: Option<Kind>,
}

/// What all processes say of a call, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// It writes.
    pub write: bool,
    /// Bytes.
    pub bytes: i64,
    /// Ranges of the file.
    pub ranges: i64,
    /// Everybody could carry out its part, and what is read is there.
    pub can: bool,
}

/// A call that is not the library's.
#[derive(Debug)]
pub struct Planned {
    /// Who wants what.
    pub call: Call,
    /// How it is carried out.
    pub strategy: Strategy,
    /// It writes.
    pub write: bool,
}

impl Decisions {
    /// For a file with this layout.
    #[must_use]
    pub fn new(layout: Layout, chooser: Chooser) -> Decisions {
        Decisions { layout, chooser, kind: None }
    }

    /// Begins a call: whether its ranges are wanted; else it is the library's.
    pub fn begin(&mut self, Wanted { write, bytes, ranges, can }: Wanted) -> bool {
        self.kind = None;
        let least = if self.chooser.is_forced() { 1 } else { MIN_CALL_BYTES };
        if !can || bytes < least || ranges > MAX_CALL_RANGES || ranges == 0 {
            self.chooser.cannot();
            return false;
        }
        let kind = Kind { write, bytes: bytes.ilog2(), range: (bytes / ranges).max(1).ilog2() };
        if self.chooser.leaves(kind, bytes) {
            self.chooser.left(kind, bytes);
            return false;
        }
        self.kind = Some(kind);
        true
    }

    /// How the call that was begun is carried out, by the ranges of all processes. `None`: by the library. O(pieces log pieces).
    pub fn plan(&mut self, ranges: &[&[Range]]) -> Option<Planned> {
        let kind = self.kind.take()?;
        let Some(call) = Call::new(&self.layout, ranges, 4 * MAX_CALL_RANGES as usize) else {
            let bytes = ranges.iter().flat_map(|ranges| ranges.iter()).map(|range| range.len).sum();
            self.chooser.left(kind, bytes);
            self.chooser.cannot();
            return None;
        };
        let strategy = self.chooser.choose(&call, kind);
        (strategy != Strategy::Library).then_some(Planned { call, strategy, write: kind.write })
    }
}
