//! Kinds of workload: what is learned of one is used when its like comes again.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::load::Load;

/// Grows when a class changes its meaning: what was learned by others is not used then.
pub const CLASSES_VERSION: u32 = 6;

/// Borders of the classes.
const READ_SHARE: [f64; 2] = [0.1, 0.9];
const SIZE: [f64; 4] = [12_288.0, 49_152.0, 196_608.0, 786_432.0];
/// Mean distance from a request to the next one of its file, in lengths. How many begin where the one before ended says less: of a
/// file that processes use by turns these are a third or nearly all, depending on who orders them.
const NEAR: [f64; 1] = [128.0];
/// Between powers of two, as many as programs have processes, threads, files, or requests at a time.
const CONCURRENCY: [f64; 3] = [3.0, 11.0, 45.0];
const FILES: [f64; 3] = [1.5, 11.0, 90.0];
const APPS: [f64; 1] = [1.5];
/// A share stays in its class until it is so far beyond the border; anything else, until it is beyond by this factor.
const SHARE_MARGIN: f64 = 0.08;
const FACTOR: f64 = 1.3;
/// Far beyond: one jump back to the beginning of a file is a hundred lengths in the mean of a window.
const JUMPS: f64 = 2.0;

/// A class of workloads: those of one are alike in what they ask for, in all six respects. As text for programs, the classes by
/// number, `w2.q0.d1.f1.a0`, with `r`, `w` or `m` (both) at the beginning; see [`Context::describe`] for people.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Context {
    /// 0: writes, 1: both, 2: reads.
    ops: u8,
    size: u8,
    order: u8,
    depth: u8,
    files: u8,
    apps: u8,
}

/// The class of `value`, which is still that `before` while it is not far beyond the border.
fn class(value: f64, borders: &[f64], before: Option<u8>, widen: impl Fn(f64, bool) -> f64) -> u8 {
    if let Some(before) = before {
        let at = usize::from(before);
        let above = at == 0 || value >= widen(borders[at - 1], false);
        let below = at == borders.len() || value < widen(borders[at], true);
        if above && below {
            return before;
        }
    }
    borders.iter().filter(|border| value >= **border).count() as u8
}

impl Context {
    /// The class of a window. `before`: that of the window before it, which is kept near borders.
    #[must_use]
    pub fn of(load: &Load, before: Option<Context>) -> Context {
        let share = |border: f64, up: bool| if up { border + SHARE_MARGIN } else { border - SHARE_MARGIN };
        let by = |factor: f64| move |border: f64, up: bool| if up { border * factor } else { border / factor };
        let factor = by(FACTOR);
        Context {
            ops: class(load.mixed_read_share(), &READ_SHARE, before.map(|b| b.ops), share),
            size: class(load.waiting_size(), &SIZE, before.map(|b| b.size), factor),
            order: class(load.distance(), &NEAR, before.map(|b| b.order), by(JUMPS)),
            depth: class(load.concurrency(), &CONCURRENCY, before.map(|b| b.depth), factor),
            files: class(load.files_at_a_time(), &FILES, before.map(|b| b.files), factor),
            apps: class(load.apps_waiting().into(), &APPS, before.map(|b| b.apps), |border, _| border),
        }
    }

    /// Whether the two may be the same workload under different arms: these change the order in which processes go on, and so how
    /// contiguous requests are and how many wait, and perhaps whose requests are served; but not what each asks for. So where
    /// requests of several sizes come together (those of `load`, a window of this class), their mean size may become any between.
    /// Nor do they make several files of one: who has a file waits for it, served or not.
    #[must_use]
    pub fn may_be(&self, other: &Context, load: &Load) -> bool {
        let [least, most] = load.sizes().map(|size| class(size, &SIZE, None, |border, _| border));
        let is_between = (least..=most).contains(&other.size);
        let are_files = self.has_files() == other.has_files();
        self.ops == other.ops && (self.size == other.size || is_between) && self.apps == other.apps && are_files
    }

    /// Whether the two differ at most in the order of requests and in how many wait, and these may be the same programs that take turns in a file, in
    /// step and apart. Of streams more wait now and less then.
    pub(super) fn is_reordered(&self, other: &Context) -> bool {
        self.may_take_turns() && Context { order: other.order, depth: other.depth, ..*self } == *other
    }

    /// Whether it is of several files.
    pub(super) fn has_files(&self) -> bool {
        self.files > 0
    }

    /// Whether programs may be taking turns in a file: small requests, of one file.
    fn may_take_turns(&self) -> bool {
        const UP_TO_192K: u8 = 2;
        self.files == 0 && self.size <= UP_TO_192K
    }

    /// Whether programs may be taking turns in a file and have come apart: their requests are far from each other.
    pub(super) fn may_be_apart(&self) -> bool {
        self.may_take_turns() && self.order > 0
    }

    /// Whether programs may be taking turns in reading a file, in step: their requests are near each other.
    pub(super) fn may_read_in_step(&self) -> bool {
        const READS: u8 = 2;
        self.may_take_turns() && self.order == 0 && self.ops == READS
    }

    /// Whether the two ask for the same: they differ at most in the order of requests, in how many wait, and in whose files have
    /// their turn, which follow from how processes are served.
    pub(super) fn asks_the_same(&self, other: &Context) -> bool {
        let asks = |context: &Context| (context.ops, context.size, context.apps);
        asks(self) == asks(other)
    }

    /// Whether this may be what a window of `whole` looks like in which only some of its programs were served: those that read a stream while
    /// others, which read here and there or in more files, wait for their turn.
    pub(super) fn is_part_of(&self, whole: &Context) -> bool {
        let is_less = self != whole && self.order <= whole.order && self.files <= whole.files;
        // Programs that take turns in a file come into step: that is another matter.
        is_less && self.asks_the_same(whole) && self.depth == whole.depth && !whole.may_be_apart()
    }

    /// How different two are: 0 for the same, up to 2 for those of which one says something about the other.
    #[must_use]
    pub fn distance(&self, other: &Context) -> f64 {
        let off = |a: u8, b: u8, weight: f64| f64::from(a.abs_diff(b)) * weight;
        off(self.ops, other.ops, 1.2)
            + off(self.size, other.size, 0.6)
            + off(self.order, other.order, 1.0)
            + off(self.depth, other.depth, 0.5)
            + off(self.files, other.files, 0.4)
            + off(self.apps, other.apps, 0.4)
    }

    /// Reads what `Display` writes; `None` if it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Context> {
        let mut parts = text.split('.');
        let first = parts.next()?;
        let ops = match first.chars().next()? {
            'w' => 0,
            'm' => 1,
            'r' => 2,
            _ => return None,
        };
        let number = |text: &str, borders: &[f64]| {
            text.parse::<u8>().ok().filter(|class| usize::from(*class) <= borders.len() && text.len() == 1)
        };
        let mut next = |letter: char, borders: &[f64]| number(parts.next()?.strip_prefix(letter)?, borders);
        let context = Context {
            ops,
            size: number(&first[1..], &SIZE)?,
            order: next('q', &NEAR)?,
            depth: next('d', &CONCURRENCY)?,
            files: next('f', &FILES)?,
            apps: next('a', &APPS)?,
        };
        parts.next().is_none().then_some(context)
    }

    /// For people: `reads of 48K to 192K, contiguous or near, 3 to 11 at a time, 2 to 10 files, one application`.
    #[must_use]
    pub fn describe(&self) -> String {
        let ops = ["writes", "reads and writes", "reads"][usize::from(self.ops)];
        let size = ["up to 12K", "12K to 48K", "48K to 192K", "192K to 768K", "more than 768K"][usize::from(self.size)];
        let order = ["contiguous or near", "scattered"][usize::from(self.order)];
        let depth = ["up to 3", "3 to 11", "11 to 45", "more than 45"][usize::from(self.depth)];
        let files = ["one file", "2 to 10 files", "11 to 89 files", "90 files or more"][usize::from(self.files)];
        let apps = ["one application", "several applications"][usize::from(self.apps)];
        format!("{ops} of {size}, {order}, {depth} at a time, {files}, {apps}")
    }
}

impl TryFrom<String> for Context {
    type Error = String;
    fn try_from(text: String) -> Result<Context, String> {
        Context::parse(&text).ok_or_else(|| format!("{text:?} is no kind of workload"))
    }
}

impl From<Context> for String {
    fn from(context: Context) -> String {
        context.to_string()
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { ops, size, order, depth, files, apps } = self;
        let ops = ["w", "m", "r"][usize::from(*ops)];
        write!(f, "{ops}{size}.q{order}.d{depth}.f{files}.a{apps}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_core::{OpFeatures, Time, WindowFeatures};

    fn load(size: u64, depth: u64) -> Load {
        let read = OpFeatures { requests: 100, bytes: 100 * size, completed: 100, ..OpFeatures::default() };
        Load::of(&WindowFeatures {
            end: Time(1_000_000_000),
            busy_ns: 1_000_000_000,
            ops: [read, OpFeatures::default()],
            outstanding_mean: depth as f64,
            outstanding_bytes_mean: (depth * size) as f64,
            outstanding_reads_mean: depth as f64,
            files: 1,
            apps: 1,
            ..Default::default()
        })
    }

    #[test]
    fn near_a_border_a_workload_stays_what_it_was() {
        let small = Context::of(&load(40_000, 2), None);
        assert_eq!(Context::of(&load(55_000, 3), Some(small)), small, "beyond, but not far");
        assert_ne!(Context::of(&load(55_000, 3), None), small);
        assert_ne!(Context::of(&load(70_000, 2), Some(small)), small);
        assert_eq!(small.to_string(), "r1.q0.d0.f0.a0");
        assert_eq!(
            small.describe(),
            "reads of 12K to 48K, contiguous or near, up to 3 at a time, one file, one application"
        );
    }

    #[test]
    fn where_sizes_are_mixed_whose_requests_are_served_makes_no_other_workload() {
        let of = |small: u64, large: u64| {
            let requests = small + large;
            let read = OpFeatures {
                requests,
                bytes: small * 4096 + large * 65_536,
                size_min: if small > 0 { 4096 } else { 65_536 },
                size_max: if large > 0 { 65_536 } else { 4096 },
                completed: requests,
                ..OpFeatures::default()
            };
            Load::of(&WindowFeatures { ops: [read, OpFeatures::default()], ..Default::default() })
        };
        let mixed = Context::of(&of(30, 70), None);
        for (small, large, may) in [(95, 5, true), (5, 95, true), (100, 0, false)] {
            let load = of(small, large);
            assert_eq!(Context::of(&load, None).may_be(&mixed, &load), may, "{small} of 4K, {large} of 64K");
        }
    }

    fn any() -> impl Strategy<Value = Context> {
        (0..3_u8, 0..5_u8, 0..2_u8, 0..4_u8, 0..4_u8, 0..2_u8)
            .prop_map(|(ops, size, order, depth, files, apps)| Context { ops, size, order, depth, files, apps })
    }

    proptest! {
        #[test]
        fn contexts_are_read_as_they_are_written(context in any(), other in any(), text in "\\PC{0,16}") {
            prop_assert_eq!(Context::parse(&context.to_string()), Some(context));
            prop_assert!(!context.describe().is_empty());
            prop_assert_eq!(context.distance(&other) == 0.0, context == other);
            prop_assert_eq!(context.distance(&other), other.distance(&context));
            if let Some(read) = Context::parse(&text) {
                prop_assert_eq!(read.to_string(), text);
            }
        }
    }
}
