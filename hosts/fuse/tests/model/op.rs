//! Operations: what they are called, how they are written down, and how they are chosen.

use std::fmt;
use std::str::FromStr;

/// Names that operations use; the directory of the second half is always there.
pub const NAMES: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];
/// Handles that may be open at the same time.
pub const HANDLES: usize = 5;

/// Bits of [`Op::how`] when opening; the lowest two are the access mode.
pub const APPEND: u8 = 1 << 2;
pub const DIRECT: u8 = 1 << 3;
pub const TRUNCATE: u8 = 1 << 4;
pub const CREATE: u8 = 1 << 5;
pub const EXCLUSIVE: u8 = 1 << 6;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($(#[$doc])* $kind),* }
        const KINDS: &[(Kind, &str)] = &[$((Kind::$kind, $name)),*];
    };
}

// `first` and `second` are handles where not said otherwise.
kinds! {
    /// `first` becomes a handle of the name `second`, flags from `how`.
    Open "open",
    Close "close",
    Write "write",
    Read "read",
    /// To the size `at`.
    Truncate "truncate",
    /// The same by name.
    Cut "cut",
    /// `how` 1: keeps the size.
    Allocate "allocate",
    Punch "punch",
    /// `how` 1: keeps the size.
    Zero "zero",
    /// Writes through a mapping; `how` odd: and waits until that is written back.
    MapWrite "mapwrite",
    MapRead "mapread",
    /// From `first` to `second`, `how` thousand bytes after `at`.
    Copy "copy",
    /// Of names; `how` 1: not over another, 2: exchanges both.
    Rename "rename",
    /// Of names.
    Link "link",
    /// A name.
    Unlink "unlink",
    /// `how` odd: data only.
    Sync "sync",
    /// `how` even: data, odd: hole.
    Seek "seek",
    /// Both directories.
    List "list",
    /// A name and a handle.
    Stat "stat",
}

/// One operation. What does not fit (a handle that is not open) does nothing, so that any subset of a sequence is a
/// sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub kind: Kind,
    pub first: usize,
    pub second: usize,
    pub at: u64,
    pub len: usize,
    pub how: u8,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("?", |(_, name)| name);
        write!(f, "{name} {} {} {} {} {}", self.first, self.second, self.at, self.len, self.how)
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Op, String> {
        let bad = || format!("not an operation: {text:?}; expected: KIND FIRST SECOND AT LEN HOW");
        let mut words = text.split_whitespace();
        let name = words.next().ok_or_else(bad)?;
        let kind = KINDS.iter().find(|kind| kind.1 == name).ok_or_else(bad)?.0;
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(bad);
        let (first, second, at, len, how) = (number()?, number()?, number()?, number()?, number()?);
        let (first, second) = (first as usize % NAMES.len(), second as usize % NAMES.len());
        Ok(Op { kind, first, second, at, len: len as usize, how: how as u8 })
    }
}

/// A list, as it is printed and given back.
pub fn written(ops: &[Op]) -> String {
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join("; ")
}

pub fn parse(text: &str) -> Result<Vec<Op>, String> {
    text.split(';').filter(|op| !op.trim().is_empty()).map(str::parse).collect()
}

/// xorshift64*
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Seeds next to each other shall not begin alike.
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.below(1);
        random.below(1);
        random
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A place in a file: mostly near the start, often next to the end of a page or stripe, sometimes far away.
    fn place(&mut self) -> u64 {
        let near = match self.below(4) {
            0 => self.below(10_000),
            1 => (self.below(12) * 4096 + self.below(3)).saturating_sub(1),
            2 => (self.below(12) * 16_384 + self.below(5)).saturating_sub(2),
            _ => self.below(200_000),
        };
        let far = if self.one_in(25) { [1 << 30, (5 << 30) + 4096 * 3, 1 << 40][self.below(3) as usize] } else { 0 };
        near + far
    }

    fn length(&mut self) -> usize {
        (match self.below(6) {
            0 => 1 + self.below(20),
            1 => 4096 * (1 + self.below(4)),
            2 => 16_384 + self.below(5) - 2,
            3 => 1 + self.below(70_000),
            _ => 1 + self.below(6000),
        }) as usize
    }
}

/// How often each kind is chosen.
const WEIGHTS: &[(Kind, u64)] = &[
    (Kind::Open, 14),
    (Kind::Close, 4),
    (Kind::Write, 22),
    (Kind::Read, 18),
    (Kind::Truncate, 5),
    (Kind::Cut, 2),
    (Kind::Allocate, 2),
    (Kind::Punch, 3),
    (Kind::Zero, 2),
    (Kind::MapWrite, 6),
    (Kind::MapRead, 5),
    (Kind::Copy, 4),
    (Kind::Rename, 4),
    (Kind::Link, 2),
    (Kind::Unlink, 2),
    (Kind::Sync, 3),
    (Kind::Seek, 4),
    (Kind::List, 1),
    (Kind::Stat, 4),
];

pub fn sequence(seed: u64, count: usize) -> Vec<Op> {
    let mut random = Random::new(seed);
    let total: u64 = WEIGHTS.iter().map(|weight| weight.1).sum();
    (0..count)
        .map(|_| {
            let mut point = random.below(total);
            let mut kinds = WEIGHTS.iter();
            let kind = loop {
                let (kind, weight) = kinds.next().expect("the point is below the sum");
                match point.checked_sub(*weight) {
                    Some(rest) => point = rest,
                    None => break *kind,
                }
            };
            let names = matches!(kind, Kind::Rename | Kind::Link | Kind::Unlink | Kind::Cut);
            let how = if kind == Kind::Open {
                // Writable ones mostly, and not too many that cut off what is there.
                let mut how = [0, 1, 2, 2, 2][random.below(5) as usize];
                for (flag, one_in) in [(APPEND, 6), (DIRECT, 5), (TRUNCATE, 9), (EXCLUSIVE, 12)] {
                    how |= if random.one_in(one_in) { flag } else { 0 };
                }
                how | if random.one_in(6) { 0 } else { CREATE }
            } else {
                random.below(256) as u8
            };
            Op {
                kind,
                first: random.below(if names { NAMES.len() } else { HANDLES } as u64) as usize,
                second: random.below(if names || kind == Kind::Open { NAMES.len() } else { HANDLES } as u64) as usize,
                at: random.place(),
                len: random.length(),
                how,
            }
        })
        .collect()
}
