//! Random workloads on random devices, as scenarios of the simulator.
//!
//! Everything is drawn independently and uniformly from lists in which what is common stands more than once, from one seed:
//! the same seed and number give the same case on every machine.

use crate::random::SplitMix64;

/// Hard disks and arrays of them (7 of 10 cases), and flash.
const DISKS: &[&str] = &["hdd-7200", "hdd-7200", "graphene", "pastel", "bali-hdd", "suno", "chimint", "taurus"];
const FLASH: &[&str] = &["ssd-sata", "nvme", "edel", "graphite", "bali-ssd"];
/// Those that aggregate.
const POLICIES: &[&str] = &["to-agg", "sjf", "mlf", "aioli", "hbrr", "wfq aggregate=true"];
/// Requests at the data servers of all runs: between these.
const PIECES: [u64; 2] = [8 << 10, 32 << 10];
/// A process has so many requests at least.
const REQUESTS_MIN: u64 = 16;

const KIB: u64 = 1 << 10;

/// A case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// In a few words.
    pub(crate) what: String,
    /// As a scenario file.
    pub(crate) text: String,
}

/// Draws from lists.
struct Draw(SplitMix64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next()) * u128::from(bound)) >> 64) as u64
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    fn share(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A power of two from `least` to `most`, which are such.
    fn power(&mut self, least: u64, most: u64) -> u64 {
        least << self.below(u64::from((most / least).ilog2()) + 1)
    }
}

/// Case `number` of `seed`. `anticipates`: hard disks may idle for a stream, as those of mounts do.
pub(crate) fn case(seed: u64, number: u64, anticipates: bool) -> Case {
    let mut draw =
        Draw(SplitMix64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number.wrapping_mul(0xD134_2543_DE82_EF95)));
    let device = if draw.share(70) { draw.one_of(DISKS) } else { draw.one_of(FLASH) };
    let policy = draw.one_of(POLICIES);
    let servers = draw.one_of(&[1, 2, 4]);
    let stripe = draw.power(16 * KIB, 1024 * KIB);
    let transfer = draw.one_of(&[32 * KIB, 128 * KIB, 1024 * KIB]);
    let in_flight = draw.power(1, 32);
    let apps = draw.one_of(&[1, 1, 2, 4]);
    let processes = draw.power(1, 32);
    let depth = if draw.share(50) { 1 } else { 2 + draw.below(7) };
    let request = draw.power(4 * KIB, 256 * KIB);
    let op = draw.one_of(&["read", "write"]);
    let own = draw.share(25);
    let files = if own { "per-process" } else { "shared" };
    let pattern = draw.one_of(&["contiguous", "contiguous", "strided", "strided", "strided", "vector"]);
    // Regions of a quarter of a request, and gaps between them in half of the cases.
    let region = (request / 4).max(4 * KIB);
    let spacing = draw.one_of(&[0, region]);
    let barrier = draw.one_of(&["none", "none", "none", "phase", "request"]);
    let think_us = draw.one_of(&[0, 0, 0, 200, 2_000, 20_000]);
    let pieces = PIECES[0] + draw.below(PIECES[1] - PIECES[0]);

    let piece = request.min(stripe).min(transfer).min(if pattern == "vector" { region } else { request });
    let requests = (pieces / (request / piece) / (apps * processes)).max(REQUESTS_MIN);
    let data = requests * request;
    let (more, strides) = match pattern {
        "vector" => {
            (format!("region = {region}\nspacing = {spacing}\n"), format!(" {}K+{}K", region / KIB, spacing / KIB))
        }
        _ => (String::new(), String::new()),
    };
    let what = format!(
        "{device} {policy} {apps}x{processes}x{depth} {pattern}{strides} {}K {op} {files}, {servers}x{}K/{in_flight}, {}K, {barrier} {think_us}us",
        request / KIB,
        stripe / KIB,
        transfer / KIB
    );
    let anticipation = if anticipates && DISKS.contains(&device) { "8ms" } else { "0s" };
    let text = format!(
        r#"name = "sample-{seed}-{number}"
seed = {number}
[clients]
nodes = 8
transfer = {transfer}
[servers]
count = {servers}
stripe = {stripe}
device = "{device}"
policy = "{policy}"
threads = {in_flight}
in_flight = {in_flight}
anticipation = "{anticipation}"
[[application]]
name = "app"
copies = {apps}
processes = {processes}
[[application.phase]]
op = "{op}"
pattern = "{pattern}"
{more}files = "{files}"
request = {request}
data = {data}
depth = {depth}
barrier = "{barrier}"
think = "{think_us}us"
think_spread = 0.1
"#
    );
    Case { what, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sim::scenario::Plan;

    #[test]
    fn every_case_is_a_scenario_and_comes_again() {
        for number in 0..300 {
            let case = case(7, number, number % 2 == 0);
            let plan = Plan::parse(&case.text, &case.what, std::path::Path::new(""), &[], &[]);
            assert_eq!(plan.map(|plan| plan.runs.len()).unwrap_or_else(|error| panic!("{}: {error}", case.text)), 1);
            assert_eq!(super::case(7, number, number % 2 == 0).text, case.text);
        }
        assert_ne!(case(7, 1, true).text, case(8, 1, true).text);
    }
}
