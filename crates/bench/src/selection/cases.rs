//! Random cases: a platform, a workload and a device's firmware, drawn from a number. Process counts of the two sets differ, and mixes
//! of programs: in one all read or all write, in the other one reads and one writes. Sizes of requests and parameters of firmware are
//! drawn from the same ranges, with other numbers: of the first most are in both.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sluice_adapt::selector::{Arm, Device};
use sluice_device::Op;
use sluice_device::profile::Profile;
use sluice_device::profiler::profile_of_model;
use sluice_sim::scenario::{Plan, Scenario};

use crate::random::SplitMix64;

/// What a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Set {
    /// Training.
    Train,
    /// Judging.
    HeldOut,
}

/// Servers, and how programs reach them.
struct System {
    servers: &'static [u64],
    stripes: &'static [u64],
    transfers: &'static [u64],
    nodes: u32,
    bandwidth: &'static str,
    latency: &'static str,
    threads: u32,
    /// Batches in flight above disks, and above flash.
    in_flight: [&'static [u32]; 2],
    /// The kernel's schedulers.
    kernels: &'static [&'static str],
    /// Percent of the cases in which servers have a page cache.
    cached: u64,
}

const K: u64 = 1 << 10;
/// The thesis's clusters: dNFSp with transfers of 8 KB and eight threads.
const DNFSP: System = System {
    servers: &[4],
    stripes: &[32 * K],
    transfers: &[8 * K],
    nodes: 16,
    bandwidth: "'1Gbit/s'",
    latency: "50us",
    threads: 8,
    in_flight: [&[8], &[8]],
    kernels: &["cfq", "cfq", "deadline"],
    cached: 60,
};
/// Programs on the machine that has the device.
const LOCAL: System = System {
    servers: &[1],
    stripes: &[1024 * K],
    transfers: &[128 * K, 1024 * K],
    nodes: 1,
    bandwidth: "0",
    latency: "0",
    threads: 0,
    in_flight: [&[4, 8, 16], &[16, 32]],
    kernels: &["none", "none", "deadline"],
    cached: 20,
};
const CLUSTER: System = System {
    servers: &[1, 2, 4],
    stripes: &[64 * K, 256 * K],
    transfers: &[64 * K, 256 * K, 1024 * K],
    nodes: 8,
    bandwidth: "'10Gbit/s'",
    latency: "20us",
    kernels: &["none", "deadline", "cfq"],
    cached: 30,
    ..LOCAL
};

/// Device model, and whether it has an arm to move and disks' firmware. Those judged by come first.
const PLATFORMS: [(&str, bool); 13] = [
    ("pastel", true),
    ("graphene", true),
    ("suno", true),
    ("edel", false),
    ("hdd-7200", true),
    ("taurus", true),
    ("ssd-sata", false),
    ("nvme", false),
    ("bali-hdd", true),
    ("grimoire", true),
    ("chimint", true),
    ("graphite", false),
    ("bali-ssd", false),
];
pub(crate) const JUDGED: u64 = 8;
/// Those of the thesis's experiments, which are mostly seen in its clusters.
const THESIS: u64 = 4;

const TRAIN_PROCESSES: [u64; 14] = [2, 4, 5, 7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64];
const HELD_OUT_PROCESSES: [u64; 5] = [3, 6, 12, 24, 48];
/// Pieces that the servers get, about.
const PIECES: u64 = 8_000;
/// Most pieces of a request.
const PIECES_OF_CALL: u64 = 32;

/// What a program does: pattern and files.
const KINDS: [(&str, &str); 5] = [
    ("contiguous", "shared"),
    ("contiguous", "per-process"),
    ("strided", "shared"),
    ("random", "shared"),
    ("random", "per-process"),
];

/// Names of what T1 to T5 are asked with; see `thesis` of [`Case`].
pub(crate) const THESIS_INPUTS: [&str; 7] =
    ["read_share", "files_log2", "file_mb_log2", "spatiality", "request_kib_log2", "ratio_log2", "memory_mb_log2"];

/// A case.
pub(crate) struct Case {
    pub(crate) platform: &'static str,
    pub(crate) device: Device,
    /// In words.
    pub(crate) what: String,
    /// What T1 to T5 know: [`THESIS_INPUTS`].
    pub(crate) thesis: [f32; THESIS_INPUTS.len()],
    /// Everything but seed and arm.
    before: String,
    after: String,
    /// `in_flight` is for algorithms that hold requests back.
    in_flight: u32,
}

struct Dice(SplitMix64);

impl Dice {
    fn below(&mut self, count: u64) -> u64 {
        self.0.next() % count.max(1)
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// A power of 2 between the two, not of an integer.
    fn power(&mut self, least: f64, most: f64) -> f64 {
        (least + (most - least) * self.below(1 << 20) as f64 / f64::from(1 << 20)).exp2()
    }
}

/// An application of a case.
struct Program {
    kind: usize,
    op: &'static str,
    processes: u64,
    copies: u64,
    request: u64,
    data: u64,
}

impl Program {
    fn reads(&self) -> f64 {
        match self.op {
            "read" => 1.0,
            "write" => 0.0,
            _ => 0.5,
        }
    }

    fn files(&self) -> u64 {
        self.copies * if KINDS[self.kind].1 == "shared" { 1 } else { self.processes }
    }

    fn bytes(&self) -> u64 {
        self.data * self.processes * self.copies
    }
}

/// The case with this number.
pub(crate) fn case(set: Set, number: u64) -> anyhow::Result<Case> {
    let salt: u64 = if set == Set::Train { 0x5e1e } else { 0x0ca5e };
    let mut dice = Dice(SplitMix64(number.wrapping_mul(0x1_0001) ^ salt << 32));
    // Each platform as often as the others.
    let count = if set == Set::Train { PLATFORMS.len() as u64 } else { JUDGED };
    let (platform, rotates) = PLATFORMS[(number % count) as usize];
    let system = match (number % count < THESIS, dice.below(10)) {
        (true, 0..6) | (false, 0) => &DNFSP,
        (true, 6..8) | (false, 1..6) => &LOCAL,
        _ => &CLUSTER,
    };
    let (servers, stripe, transfer) = (*dice.of(system.servers), *dice.of(system.stripes), *dice.of(system.transfers));
    let programs = programs(set, &mut dice, transfer.min(stripe));
    let memory = dice.percent(system.cached).then(|| dice.power(4.5, 9.0) as u64);
    let in_flight = *dice.of(system.in_flight[usize::from(!rotates)]);
    let window = if rotates { *dice.of(&["50ms", "100ms", "250ms"]) } else { "10ms" };
    let mut before = format!(
        "[clients]\nnodes = {}\ntransfer = {transfer}\njitter = '{}'\n[network]\nbandwidth = {}\nlatency = '{}'\n\
         [noise]\nrequest = 0.05\nrun = 0.02\n[servers]\ncount = {servers}\nstripe = {stripe}\ndevice = '{platform}'\n\
         window = '{window}'\nkernel = '{}'\nallocation = '{}'\nthreads = {}\n",
        system.nodes,
        dice.of(&["5us", "20us", "100us"]),
        system.bandwidth,
        system.latency,
        dice.of(system.kernels),
        dice.of(&["present", "groups"]),
        system.threads,
    );
    if let Some(memory) = memory {
        let _ = writeln!(before, "page_cache = 'on'\nmemory = '{memory}M'");
    }
    let mut what = format!("{servers} servers, transfers of {} KiB, ", transfer / K);
    if rotates {
        let (age, reads) = (dice.power(4.4, 10.9), dice.below(1_001) as f64 / 1e3);
        let _ = writeln!(before, "parameters = {{ queue_age_max_ms = {age:.1}, read_on_arrival = {reads:.3} }}");
        let _ = write!(what, "queue age {age:.0} ms, read on arrival {reads:.2}, ");
    }
    let mut after = String::new();
    for (at, program) in programs.iter().enumerate() {
        let (pattern, files) = KINDS[program.kind];
        let think = dice.of(&["0", "0", "0", "200us", "2ms"]);
        let _ = write!(
            after,
            "[[application]]\nname = 'a{at}'\nprocesses = {}\ncopies = {}\n[[application.phase]]\nop = '{}'\n\
             pattern = '{pattern}'\nfiles = '{files}'\nrequest = {}\ndata = {}\nthink = '{think}'\nthink_spread = 0.5\n",
            program.processes, program.copies, program.op, program.request, program.data
        );
        let _ = write!(
            what,
            "{}{} x {} processes, {pattern} {} of {} KiB, {files}, think {think}",
            if at > 0 { " + " } else { "" },
            program.copies,
            program.processes,
            program.op,
            program.request / K
        );
    }
    match memory {
        Some(memory) => _ = write!(what, ", cache {memory} MiB"),
        None => what.push_str(", no cache"),
    }
    let thesis = thesis(platform, transfer.min(stripe), &programs, memory.unwrap_or(0))?;
    let device = if rotates { Device::Disk } else { Device::Flash };
    Ok(Case { platform, device, what, thesis, before, after, in_flight })
}

fn programs(set: Set, dice: &mut Dice, piece: u64) -> Vec<Program> {
    // One program, copies of one, or different ones.
    let mode = *dice.of(&["single", "single", "single", "copies", "mixed"]);
    let apps = match (mode, set) {
        ("mixed", Set::HeldOut) => 2 + dice.below(2),
        ("mixed", Set::Train) => 2,
        _ => 1,
    };
    let copies = if mode == "copies" { 2 + dice.below(3) } else { 1 };
    let parts = apps * copies;
    let counts: &[u64] = if set == Set::Train { &TRAIN_PROCESSES } else { &HELD_OUT_PROCESSES };
    let counts: Vec<u64> = counts.iter().copied().filter(|count| count * parts <= 64 || *count < 4).collect();
    let (mut programs, mut writes) = (Vec::new(), dice.percent(50));
    for app in 0..apps {
        let kind = dice.below(KINDS.len() as u64) as usize;
        // Different programs that all read or all write are for training, those of which one reads and one writes for judging.
        writes ^= app > 0 && set == Set::HeldOut;
        let op = match KINDS[kind].0 {
            "random" if apps == 1 && dice.percent(30) => "mixed",
            _ if writes => "write",
            _ => "read",
        };
        let processes = *dice.of(&counts);
        let request = ((dice.power(0.0, 8.0) as u64) * 4 * K).min(PIECES_OF_CALL * piece);
        let pieces_of_call = request.div_ceil(piece);
        let calls = (PIECES / parts / pieces_of_call / processes).clamp(6, 2_000);
        programs.push(Program { kind, op, processes, copies, request, data: request * calls });
    }
    programs
}

/// The profile of a device model, measured once.
fn profile(name: &'static str) -> anyhow::Result<Profile> {
    static KNOWN: Mutex<BTreeMap<&'static str, Profile>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.contains_key(name) {
        known.insert(name, profile_of_model(name)?);
    }
    Ok(known[name].clone())
}

/// What the papers' trees are asked with; of several programs the mean by bytes.
fn thesis(
    platform: &'static str,
    piece: u64,
    programs: &[Program],
    memory_mb: u64,
) -> anyhow::Result<[f32; THESIS_INPUTS.len()]> {
    let all = programs.iter().map(Program::bytes).sum::<u64>() as f64;
    let mean = |of: &dyn Fn(&Program) -> f64| {
        programs.iter().map(|program| of(program) * program.bytes() as f64).sum::<f64>() / all
    };
    let files = programs.iter().map(Program::files).sum::<u64>() as f64;
    let reads = mean(&Program::reads);
    let spatiality = mean(&|program| match KINDS[program.kind].0 {
        "contiguous" => 0.0,
        "strided" => 1.0,
        _ => 2.0,
    });
    let request = mean(&|program| program.request as f64);
    let at_server = mean(&|program| program.request.min(piece) as f64) as u64;
    let profile = profile(platform)?;
    let ratio = reads * profile.ratio(Op::Read, at_server) + (1.0 - reads) * profile.ratio(Op::Write, at_server);
    let log2 = |value: f64| (value + 1e-3).log2() as f32;
    let inputs = [files, all / files / 1e6].map(log2).into_iter().chain([spatiality as f32]).chain([
        log2(request / K as f64),
        log2(ratio),
        log2(memory_mb as f64),
    ]);
    let mut thesis = [reads as f32; THESIS_INPUTS.len()];
    thesis[1..].iter_mut().zip(inputs).for_each(|(place, input)| *place = input);
    Ok(thesis)
}

impl Case {
    /// The scenario with an arm.
    pub(crate) fn scenario(&self, arm: &Arm, seed: u64) -> anyhow::Result<Scenario> {
        let policy = arm.to_string();
        let policy: Vec<&str> = policy.split(' ').filter(|word| !word.starts_with("anticipation=")).collect();
        let anticipation = if arm.anticipation { "8ms" } else { "0s" };
        // `noop` lets everything through.
        let in_flight = if arm.is_cheapest() { 0 } else { self.in_flight };
        let text = format!(
            "seed = {seed}\n{}policy = '{}'\nanticipation = '{anticipation}'\nin_flight = {in_flight}\n{}",
            self.before,
            policy.join(" "),
            self.after
        );
        let plan = Plan::parse(&text, "selection", Path::new(""), &[], &[])
            .map_err(|error| anyhow::anyhow!("{error}\n{text}"))?;
        Ok(plan.runs[0].scenario.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_case_and_the_sets_have_no_process_count_in_common() {
        assert!(!HELD_OUT_PROCESSES.iter().any(|count| TRAIN_PROCESSES.contains(count)));
        let arm = Arm::parse("sjf anticipation=on").unwrap();
        for set in [Set::Train, Set::HeldOut] {
            for number in 0..400 {
                let case = case(set, number).unwrap();
                let scenario = case.scenario(&arm, number).unwrap();
                let needs = scenario.needs();
                assert!(scenario.bytes() > 0 && needs.requests < 60_000, "{number}: {} {}", case.what, needs.requests);
                assert!(case.thesis.iter().all(|input| input.is_finite()), "{number}");
            }
        }
    }
}
