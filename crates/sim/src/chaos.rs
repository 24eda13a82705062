//! Random experiments in which everything goes wrong, with every step checked.
//!
//! A seed stands for a scenario: machines, algorithms, overlapping reads and writes, messages lost, doubled and late,
//! crashes, slow and failing devices, wrong clocks. The same seed is the same experiment everywhere.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use sluice_core::policy::table;
use sluice_core::{Anticipation, EngineConfig, PolicyConfig, WindowFeatures};

use crate::random::Random;
use crate::scenario::{Place, Plan, parse_policy};
use crate::simulation::{BLOCK, Failure, FaultCounts, Options, Selector, Setup, simulate, simulate_with};
use crate::sweep::parallel;

/// An experiment that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChaosFailure {
    /// Gives the same experiment again.
    pub seed: u64,
    /// What happened.
    pub failure: Failure,
    /// The scenario.
    pub scenario: String,
}

/// What experiments went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChaosReport {
    /// Experiments.
    pub experiments: u64,
    /// Requests of processes.
    pub calls: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Times that an algorithm was changed meanwhile.
    pub policy_changes: u64,
    /// What went wrong in them.
    pub faults: FaultCounts,
    /// Of all outcomes.
    pub digest: u64,
}

fn one_of<'a>(random: &mut Random, choices: &[&'a str]) -> &'a str {
    choices[random.below(choices.len() as u64) as usize]
}

fn policy(random: &mut Random) -> String {
    let info = table()[random.below(table().len() as u64) as usize];
    match info.name {
        // Its default windows of a second are longer than most experiments.
        "sw" => "sw window=20ms".to_owned(),
        name => name.to_owned(),
    }
}

fn nodes(random: &mut Random, text: &mut String) {
    let max_wait = one_of(random, &["0", "5ms", "50ms", "500ms"]);
    let anticipation = one_of(random, &["0s", "0s", "1ms", "8ms"]);
    let (policy, in_flight) = (policy(random), random.below(5));
    let (requests, capacity) = (1 + random.below(32), 4 + random.below(60));
    let ordering = one_of(random, &["strict", "strict", "strict", "none"]);
    let window = 10 + random.below(200);
    let _ = writeln!(
        text,
        "policy = \"{policy}\"\nmax_wait = \"{max_wait}\"\nanticipation = \"{anticipation}\"\nin_flight = {in_flight}\nbatch_requests = {requests}\ncapacity = \
         {capacity}\nordering = \"{ordering}\"\nwindow = \"{window}ms\""
    );
}

fn phase(random: &mut Random, text: &mut String) {
    let op = one_of(random, &["read", "write", "mixed", "mixed"]);
    let pattern = one_of(random, &["contiguous", "strided", "random", "random", "random", "vector"]);
    let blocks = 1 + random.below(12);
    let request = blocks * BLOCK;
    let data = request * (1 + random.below(12));
    let barrier = one_of(random, &["none", "phase", "request"]);
    let (depth, think, file) = (1 + random.below(3), random.below(3000), one_of(random, &["data", "/common"]));
    let files = one_of(random, &["shared", "shared", "per-process"]);
    let region = if blocks.is_multiple_of(2) { request / 2 } else { request };
    let _ = writeln!(
        text,
        "[[application.phase]]\nop = \"{op}\"\npattern = \"{pattern}\"\nrequest = {request}\ndata = {data}\nregion = \
         {region}\nbarrier = \"{barrier}\"\ndepth = {depth}\nthink = \"{think}us\"\nfile = \"{file}\"\nfiles = \"{files}\""
    );
}

fn fault(random: &mut Random, text: &mut String, servers: u64, io_nodes: u64) {
    let mut kinds = vec!["crash", "slow", "device-errors", "skew"];
    let at_io_node = io_nodes > 0 && random.below(2) == 0;
    if at_io_node {
        kinds.retain(|kind| ["crash", "skew"].contains(kind));
    }
    let kind = one_of(random, &kinds);
    let node = match at_io_node {
        true => format!("io_node {}", random.below(io_nodes)),
        false => format!("server {}", random.below(servers)),
    };
    let (at, lasts) = (random.below(800), 1 + random.below(700));
    let (factor, share, by) = (2 + random.below(30), random.below(60), random.below(50_000));
    let _ = writeln!(
        text,
        "[[faults.event]]\nkind = \"{kind}\"\nnode = \"{node}\"\nat = \"{at}ms\"\nlasts = \"{lasts}ms\"\nfactor = \
         {factor}\nshare = 0.{share:02}\nby = \"{by}us\""
    );
}

/// The scenario that a seed stands for.
#[must_use]
pub fn chaos_scenario(seed: u64) -> String {
    let random = &mut Random::new(seed, 0xc4a0);
    let (servers, io_nodes, clients) = (1 + random.below(4), random.below(3), 1 + random.below(3));
    let mut text = format!("name = \"chaos-{seed}\"\nseed = {}\n", seed >> 1);
    let (stripe, transfer) = (BLOCK * (1 + random.below(16)), BLOCK * (1 + random.below(16)));
    let _ = writeln!(text, "[clients]\nnodes = {clients}\ntransfer = {transfer}\n[network]\nlatency = \"100us\"");
    let (buffer, noise) = (one_of(random, &["0", "64K", "256K"]), random.below(30));
    let _ = writeln!(text, "port_buffer = \"{buffer}\"\n[noise]\nrequest = 0.{noise:02}");
    let threads = random.below(4);
    let vectored = random.below(2) == 0;
    let _ = writeln!(text, "[servers]\ncount = {servers}\nstripe = {stripe}\nextent = \"1M\"\nthreads = {threads}");
    let kernel = one_of(random, &["none", "deadline", "cfq"]);
    let _ = writeln!(text, "vectored = {vectored}\nkernel = \"{kernel}\"");
    nodes(random, &mut text);
    if io_nodes > 0 {
        let _ = writeln!(text, "[io_nodes]\ncount = {io_nodes}");
        nodes(random, &mut text);
    }
    let (loss, double, delay) = (random.below(30), random.below(50), random.below(8000));
    let timeout = 100 + random.below(400);
    let _ = writeln!(
        text,
        "[faults]\ntimeout = \"{timeout}ms\"\nloss = 0.0{loss:02}\nduplicate = 0.0{double:02}\ndelay = \"{delay}us\""
    );
    for _ in 0..random.below(5) {
        fault(random, &mut text, servers, io_nodes);
    }
    for _ in 0..1 + random.below(3) {
        let (processes, start) = (1 + random.below(5), random.below(200));
        let _ = writeln!(text, "[[application]]\nprocesses = {processes}\nstart = \"{start}ms\"");
        for _ in 0..1 + random.below(3) {
            phase(random, &mut text);
        }
    }
    text
}

/// Changes algorithms at random: in every other experiment somebody does.
struct Whim(Random);

impl Selector for Whim {
    fn window_closed(
        &mut self,
        _: Place,
        _: &WindowFeatures,
        _: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Setup> {
        if self.0.below(3) == 0 {
            return None;
        }
        let policy = parse_policy(&policy(&mut self.0)).ok()?;
        let limits = (self.0.below(2) == 0).then(|| {
            let anticipation = (self.0.below(2) == 0).then(|| Anticipation::for_device(1_000_000, 100_000_000));
            EngineConfig { anticipation, in_flight_max: self.0.below(4) as u32, ..limits.clone() }
        });
        Some(Setup { policy, limits })
    }
}

/// Does the experiment of one seed. `forgetful`: see [`Options`].
///
/// # Errors
/// What went wrong, with the scenario.
pub fn chaos(seed: u64, forgetful: bool, stop: &AtomicBool) -> Result<ChaosReport, Box<ChaosFailure>> {
    let scenario = chaos_scenario(seed);
    let failed = |failure, scenario| Box::new(ChaosFailure { seed, failure, scenario });
    let plan = match Plan::parse(&scenario, "chaos", Path::new(""), &[], &[]) {
        Ok(plan) => plan,
        Err(error) => return Err(failed(Failure::Setup(error.to_string()), scenario)),
    };
    let options = Options { check: true, forgetful, ..Options::default() };
    let mut whim = Whim(Random::new(seed, 0x3a1d));
    let outcome = match seed % 2 {
        0 => simulate(&plan.runs[0].scenario, options, stop),
        _ => simulate_with(&plan.runs[0].scenario, options, &mut whim, stop),
    };
    match outcome {
        Ok(outcome) => Ok(ChaosReport {
            experiments: 1,
            calls: outcome.apps.iter().map(|app| app.calls).sum(),
            bytes: outcome.bytes,
            policy_changes: outcome.policy_changes,
            faults: outcome.faults.unwrap_or_default(),
            digest: outcome.digest,
        }),
        Err(failure) => Err(failed(failure, scenario)),
    }
}

/// Does the experiments of many seeds on several threads.
///
/// # Errors
/// The one with the lowest seed that went wrong.
pub fn chaos_many(
    first: u64,
    count: u64,
    jobs: Option<NonZeroUsize>,
    stop: &AtomicBool,
    progress: impl Fn() + Sync,
) -> Result<ChaosReport, Box<ChaosFailure>> {
    let failed = AtomicBool::new(false);
    let reports = parallel(count as usize, jobs, |number| {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let report = chaos(first.wrapping_add(number as u64), false, stop);
        failed.fetch_or(report.is_err(), Ordering::Relaxed);
        progress();
        Some(report)
    });
    let mut sum = ChaosReport::default();
    for report in reports.into_iter().flatten() {
        let ChaosReport { experiments, calls, bytes, policy_changes, faults, digest } = report?;
        sum.experiments += experiments;
        sum.calls += calls;
        sum.bytes += bytes;
        sum.policy_changes += policy_changes;
        sum.faults.add(&faults);
        sum.digest = sum.digest.rotate_left(7) ^ digest;
    }
    Ok(sum)
}
