//! The systems that the council works in: four that were chosen, and others drawn from the ranges of `scenarios/twins-windows.toml`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use sluice_adapt::council::Pattern;
use sluice_sim::scenario::{Plan, Scenario};

use super::experiments::SCENARIO;
use crate::random::SplitMix64;

/// When the load of some changes.
pub(super) const CHANGE_S: usize = 50;
/// Of those that are drawn; not chosen for what came of it.
const DRAW: u64 = 30;
/// Of those that were drawn afterwards, each before any of its systems was simulated: to be run when the bandits were done, when equal
/// votes were counted in bytes, and when that a load is another one depended on what is moved, too.
const DRAWS_LATER: [u64; 5] = [31, 32, 33, 34, 35];
/// Of each draw, so many are used.
pub(super) const DRAWN: usize = 24;

/// What an application does.
#[derive(Clone, Copy, Debug)]
struct Load {
    pattern: Pattern,
    op: &'static str,
    kib: u32,
    processes: u32,
}

/// A system.
#[derive(Debug)]
pub(super) struct System {
    pub(super) name: String,
    pub(super) servers: u32,
    pub(super) io_nodes: usize,
    load: Load,
    /// What begins beside it at [`CHANGE_S`].
    then: Option<Load>,
}

impl Load {
    fn name(&self) -> String {
        let Load { op, kib, processes, .. } = self;
        let pattern = match self.pattern {
            Pattern::OwnContiguous => "own",
            Pattern::SharedContiguous => "shared",
            Pattern::SharedStrided => "strided",
        };
        format!("{pattern} {op} {kib}K x{processes}")
    }

    fn draw(random: &mut SplitMix64) -> Load {
        Load {
            pattern: random.of(&[Pattern::OwnContiguous, Pattern::SharedContiguous, Pattern::SharedStrided]),
            op: random.of(&["read", "write"]),
            kib: random.of(&[32, 256]),
            processes: random.of(&[128, 256, 512]),
        }
    }

    fn toml(&self, name: &str, start_s: usize) -> String {
        let Load { op, kib, processes, .. } = self;
        let (files, pattern) = match self.pattern {
            Pattern::OwnContiguous => ("per-process", "contiguous"),
            Pattern::SharedContiguous => ("shared", "contiguous"),
            Pattern::SharedStrided => ("shared", "strided"),
        };
        format!(
            "[[application]]\nname = '{name}'\nprocesses = {processes}\nstart = '{start_s}s'\n[[application.phase]]\n\
             data = '256M'\nop = '{op}'\npattern = '{pattern}'\nfiles = '{files}'\nrequest = '{kib}K'\n"
        )
    }
}

impl System {
    fn of(servers: u32, io_nodes: usize, load: Load, then: Option<Load>) -> System {
        let then_name = then.map_or(String::new(), |then| format!(" + {}", then.name()));
        System { name: format!("{}{then_name}, {servers}/{io_nodes}", load.name()), servers, io_nodes, load, then }
    }

    /// The four that were judged from the beginning.
    pub(super) fn chosen() -> Vec<System> {
        use Pattern::{OwnContiguous, SharedContiguous, SharedStrided};
        let load = |pattern, op, kib| Load { pattern, op, kib, processes: 128 };
        vec![
            System::of(4, 8, load(SharedStrided, "read", 256), None),
            System::of(4, 8, load(SharedContiguous, "write", 256), None),
            System::of(4, 8, load(SharedStrided, "write", 256), None),
            System::of(4, 8, load(SharedStrided, "read", 32), Some(load(OwnContiguous, "write", 256))),
        ]
    }

    /// Others; more of them begin with the same ones. The load of every third changes.
    pub(super) fn drawn(count: usize) -> Vec<System> {
        let mut random = SplitMix64(DRAW);
        (0..count).map(|at| System::draw(&mut random, at)).collect()
    }

    /// Others than the chosen ones and the first that are drawn, in the same way, from one seed after the other.
    pub(super) fn drawn_later(count: usize) -> Vec<System> {
        let known = System::chosen().into_iter().chain(System::drawn(DRAWN));
        let mut names: BTreeSet<String> = known.map(|known| known.name).collect();
        let mut systems = Vec::with_capacity(count);
        for seed in DRAWS_LATER {
            let (mut random, mut at) = (SplitMix64(seed), 0);
            while at < DRAWN {
                let system = System::draw(&mut random, at);
                if names.insert(system.name.clone()) {
                    systems.push(system);
                    at += 1;
                }
            }
        }
        systems.truncate(count);
        systems
    }

    fn draw(random: &mut SplitMix64, at: usize) -> System {
        let (servers, io_nodes) = (random.of(&[2, 4, 8]), random.of(&[1, 2, 4, 8]));
        let load = Load::draw(random);
        let then = (at % 3 == 2).then(|| Load::draw(random));
        System::of(servers, io_nodes, load, then)
    }

    /// Whether its load changes.
    pub(super) fn changes(&self) -> bool {
        self.then.is_some()
    }

    /// What nodes recognise after so many seconds: the pattern of what most requests belong to.
    pub(super) fn pattern(&self, writes: bool, second: usize) -> Pattern {
        match self.then {
            Some(then) if second >= CHANGE_S && (then.op == "write") == writes && self.load.op != then.op => {
                then.pattern
            }
            _ => self.load.pattern,
        }
    }

    /// With arrival order at the beginning, and so many windows of the engines' statistics a second.
    pub(super) fn scenario(&self, seed: u64, windows: u64) -> anyhow::Result<Scenario> {
        let mut table: toml::Table = SCENARIO.parse().context("scenarios/twins-windows.toml")?;
        ["axis", "report", "scale", "application"].iter().for_each(|key| drop(table.remove(*key)));
        let mut text = table.to_string();
        text.push_str(&self.load.toml("first", 0));
        self.then.iter().for_each(|then| text.push_str(&then.toml("second", CHANGE_S)));
        let settings = [
            ("seed", seed.to_string()),
            ("io_nodes.count", self.io_nodes.to_string()),
            ("io_nodes.policy", "noop".to_owned()),
            ("io_nodes.window", format!("{}ms", 1_000 / windows)),
            ("servers.count", self.servers.to_string()),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value));
        Ok(Plan::parse(&text, &self.name, Path::new(""), &settings, &[])?.runs[0].scenario.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_later_was_not_drawn_before() {
        let known: Vec<String> =
            System::chosen().into_iter().chain(System::drawn(DRAWN)).map(|known| known.name).collect();
        let later = System::drawn_later(DRAWS_LATER.len() * DRAWN);
        assert!(later.iter().all(|system| !known.contains(&system.name)));
        let names: BTreeSet<&str> = later.iter().map(|system| system.name.as_str()).collect();
        assert_eq!(names.len(), DRAWS_LATER.len() * DRAWN);
        assert!(later.chunks(DRAWN).all(|draw| draw.iter().filter(|system| system.changes()).count() == 8));
        let again = System::drawn_later(12);
        assert!(again.iter().zip(&later).all(|(a, b)| a.name == b.name), "more of them begin with the same ones");
    }
}
