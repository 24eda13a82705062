//! What is run for real and simulated: a committed list, drawn from a seed.

use std::fmt::Write;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::random::SplitMix64;

/// The list. `sluice-bench fidelity --draw` prints it.
const LIST: &str = include_str!("situations.toml");
/// What it is drawn from, and divided into halves by.
pub(super) const SEED: u64 = 2;

/// Where a situation's requests go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Host {
    /// Files of ext4.
    Ext4,
    /// Files of a mount of Sluicegate over ext4.
    Mount,
    /// Server processes over TCP, each with an ext4 of its own.
    Tcp,
}

/// Same workload, several sides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Situation {
    pub(super) name: String,
    /// Not looked at while the simulator is worked on.
    pub(super) unseen: bool,
    pub(super) host: Host,
    /// Server processes; 1 without a network.
    pub(super) servers: u32,
    /// Past the page cache.
    pub(super) direct: bool,
    /// contiguous (each process a part of a shared file), strided, random, or own (a file for each).
    pub(super) pattern: String,
    /// read, write or mixed.
    pub(super) op: String,
    /// Bytes of a request.
    pub(super) request: u64,
    pub(super) processes: u32,
    /// Of ext4 the kernel's schedulers; else algorithms, with the kernel's `none` below.
    pub(super) sides: Vec<String>,
}

/// The committed list.
///
/// # Errors
/// If it is not TOML of this form.
pub(super) fn list() -> anyhow::Result<Vec<Situation>> {
    #[derive(Deserialize)]
    struct List {
        situation: Vec<Situation>,
    }
    let list: List = toml::from_str(LIST).context("crates/bench/src/fidelity/situations.toml")?;
    Ok(list.situation)
}

/// How many of a kind are drawn: host, servers, direct, count.
const KINDS: [(Host, u32, bool, usize); 7] = [
    (Host::Ext4, 1, true, 8),
    (Host::Ext4, 1, false, 8),
    (Host::Mount, 1, true, 4),
    (Host::Mount, 1, false, 2),
    (Host::Tcp, 1, true, 2),
    (Host::Tcp, 4, true, 4),
    (Host::Tcp, 4, false, 2),
];
const KERNEL: [&str; 3] = ["none", "mq-deadline", "bfq"];
const POLICIES: [&str; 5] = ["noop", "to-agg", "sjf", "hbrr", "aioli"];

/// Draws the list.
pub(super) fn draw(seed: u64) -> Vec<Situation> {
    let mut random = SplitMix64(seed);
    let mut all: Vec<Situation> = Vec::new();
    for (host, servers, direct, count) in KINDS {
        let first = all.len();
        while all.len() < first + count {
            let new = draw_one(&mut random, host, servers, direct);
            let same = |other: &Situation| other.name == new.name;
            if !all.iter().any(same) {
                all.push(new);
            }
        }
        // Half of each kind.
        for place in random.shuffled(count).into_iter().skip(count / 2) {
            all[first + place].unseen = true;
        }
    }
    all
}

fn draw_one(random: &mut SplitMix64, host: Host, servers: u32, direct: bool) -> Situation {
    let pattern = if host == Host::Tcp {
        one_of(random, &["contiguous", "strided", "random"])
    } else {
        one_of(random, &["contiguous", "strided", "random", "own"])
    };
    let is_random = pattern == "random";
    let op = if is_random { one_of(random, &["read", "write", "mixed"]) } else { one_of(random, &["read", "write"]) };
    let request =
        if is_random { one_of(random, &[8 << 10, 64 << 10]) } else { one_of(random, &[16 << 10, 64 << 10, 256 << 10]) };
    let processes = if pattern == "contiguous" { one_of(random, &[1, 4, 16]) } else { one_of(random, &[4, 16]) };
    let names: &[&str] = if host == Host::Ext4 { &KERNEL } else { &POLICIES };
    let mut sides: Vec<usize> = random.shuffled(names.len()).into_iter().take(2).collect();
    sides.sort_unstable();
    let where_ = match host {
        Host::Ext4 => "ext4".to_owned(),
        Host::Mount => "mount".to_owned(),
        Host::Tcp => format!("tcp{servers}"),
    };
    let how = if direct { "direct" } else { "buffered" };
    Situation {
        name: format!("{where_}-{how}-{pattern}-{op}-{}K-{processes}", request >> 10),
        unseen: false,
        host,
        servers,
        direct,
        pattern: pattern.to_owned(),
        op: op.to_owned(),
        request,
        processes,
        sides: sides.into_iter().map(|side| names[side].to_owned()).collect(),
    }
}

fn one_of<T: Copy>(random: &mut SplitMix64, values: &[T]) -> T {
    values[(random.next() % values.len() as u64) as usize]
}

/// As the list is committed.
pub(super) fn as_toml(situations: &[Situation]) -> anyhow::Result<String> {
    let mut text =
        format!("# Printed by `sluice-bench fidelity --draw`: drawn from seed {SEED}, as is which half is unseen.\n");
    for situation in situations {
        write!(text, "\n[[situation]]\n{}", toml::to_string(situation)?)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_list_is_what_the_seed_draws() {
        let drawn = draw(SEED);
        assert_eq!(list().unwrap(), drawn);
        assert_eq!(LIST, as_toml(&drawn).unwrap());
    }

    #[test]
    fn there_are_thirty_and_half_of_each_kind_is_unseen() {
        let list = list().unwrap();
        assert!(list.len() >= 30);
        assert_eq!(list.iter().filter(|one| one.unseen).count(), list.len() / 2);
        for (host, servers, direct, count) in KINDS {
            let of = list.iter().filter(|one| (one.host, one.servers, one.direct) == (host, servers, direct));
            assert_eq!(of.clone().count(), count);
            assert_eq!(of.filter(|one| one.unseen).count(), count / 2);
        }
        let mut names: Vec<&str> = list.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), list.len());
        assert!(list.iter().all(|one| one.sides.len() >= 2));
    }

    #[test]
    fn other_seeds_draw_other_lists() {
        assert_ne!(draw(SEED), draw(SEED + 1));
        assert_eq!(draw(7), draw(7));
    }
}
