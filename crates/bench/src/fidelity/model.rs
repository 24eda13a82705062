//! A side of a situation as a scenario of the simulator.

use std::path::Path;

use anyhow::Context;
use sluice_sim::scenario::{Plan, Scenario};

use super::situations::{Host, Situation};

/// Bytes of the file that all share, and of each process's own.
pub(super) const SHARED_BYTES: u64 = 2 << 30;
pub(super) const OWN_BYTES: u64 = 128 << 20;
pub(super) const OWN_FILES: u64 = 16;
/// Stripe of files on several servers.
pub(super) const STRIPE: u64 = 64 << 10;
/// What the bed's device may have dirty, and the share of it at which write-back begins and that writers are kept at:
/// `mm/page-writeback.c` begins at `dirty_background_ratio / dirty_ratio` (10 / 20) of a device's limit, and with a strict
/// limit steers to the middle of both (`wb_position_ratio`).
pub(super) const DIRTY_BYTES: u64 = 64 << 20;
const BACKGROUND: f64 = 0.5;
const THROTTLED: f64 = 0.75;
/// Largest read-ahead window of the bed's device: what Linux gives a loop device over a FUSE file by itself, twice the 1,280 KB
/// that it takes at a time.
pub(super) const READ_AHEAD: u64 = 2560 << 10;
/// Largest command of the bed's device: what `sluice disk` sets as `max_sectors_kb`.
pub(super) const TRANSFER: u64 = 1024 << 10;
/// Commands of write-back that `blk-wbt.c` lets be under way while writers wait (`RWB_DEF_DEPTH`). BFQ switches it off.
const WRITE_BACK: u32 = 16;
/// Commands that the bed's device takes at a time.
pub(super) const QUEUE_DEPTH: u32 = 32;
/// Most batches of an algorithm at the device, and worker threads, as a mount over a hard disk has them.
pub(super) const IN_FLIGHT: u32 = 8;
pub(super) const WORKERS: u32 = 16;
/// What moving costs a hard disk of which nothing else is known, as a mount assumes.
pub(super) const ANTICIPATION_NS: u64 = 8_000_000;
/// Rate of each link of the network, with the headers of Ethernet, IP and TCP: of 1,514 bytes 1,448 are data.
pub(super) const LINK_BITS_PER_S: u64 = 400_000_000;
const DATA_SHARE: f64 = 1448.0 / 1514.0;
/// What a link lets pass at once.
pub(super) const LINK_BURST: u64 = 64 << 10;
/// Cores of the bed's machine.
const CORES: u32 = 2;
/// Machines on which the processes run if there is a network.
pub(super) const CLIENTS: u32 = 4;

/// Processor time of a request, in microseconds: between a twentieth and the whole of what a request takes on such a bed beside
/// the device's time (40 to 180 us, docs/disks.md), by how much of the way it goes. Not fitted.
fn request_us(situation: &Situation) -> u64 {
    match (situation.host, situation.direct) {
        (Host::Ext4, true) => 60,
        (Host::Ext4, false) => 5,
        (Host::Mount, true) => 120,
        (Host::Mount, false) => 60,
        (Host::Tcp, true) => 100,
        (Host::Tcp, false) => 50,
    }
}

/// The scenario.
///
/// # Errors
/// If the simulator refuses it.
pub(super) fn scenario(
    situation: &Situation,
    side: &str,
    device: &str,
    memory: u64,
    seed: u64,
) -> anyhow::Result<Scenario> {
    let networked = situation.host == Host::Tcp;
    let (policy, kernel) = match (situation.host, side) {
        (Host::Ext4, "mq-deadline") => ("noop", "deadline"),
        (Host::Ext4, "bfq") => ("noop", "cfq"),
        (Host::Ext4, _) => ("noop", "none"),
        (_, policy) => (policy, "none"),
    };
    let schedules = policy != "noop";
    let threads = match situation.host {
        Host::Ext4 => 0,
        // On a slow device a mount's workers execute what passes through, too; of a server's, each connection's thread.
        Host::Tcp if !schedules => 0,
        Host::Mount | Host::Tcp => WORKERS,
    };
    let share = |of: f64| DIRTY_BYTES as f64 * of / memory as f64;
    let own = situation.pattern == "own";
    let (pattern, files) = if own { ("contiguous", "per-process") } else { (situation.pattern.as_str(), "shared") };
    let data = if own { OWN_BYTES } else { SHARED_BYTES / u64::from(situation.processes) };
    let text = format!(
        "seed = {seed}\n\
         [clients]\nnodes = {clients}\n\
         [network]\nbandwidth = {bandwidth}\nlatency = '{latency}us'\nmessage_cost = '{message}us'\nburst = {LINK_BURST}\n\
         [servers]\ncount = {servers}\nstripe = {STRIPE}\nfirst = 'zero'\nallocation = 'present'\n\
         device = '{device}'\ndevice_queue = {QUEUE_DEPTH}\ndevice_transfer = {TRANSFER}\nkernel = '{kernel}'\n\
         page_cache = '{cache}'\nmemory = {memory}\ndirty_background = {background}\ndirty_limit = {limit}\nread_ahead = {READ_AHEAD}\nwrite_back = {write_back}\n\
         policy = '{policy}'\nin_flight = {in_flight}\nanticipation = '{anticipation}ns'\nthreads = {threads}\n\
         request_cost = '{request_us}us'\ncores = {CORES}\n\
         [[application]]\nprocesses = {processes}\nstart_spread = 0\n\
         [[application.phase]]\npattern = '{pattern}'\nfiles = '{files}'\nop = '{op}'\nrequest = {request}\ndata = {data}\n",
        clients = if networked { CLIENTS.min(situation.processes) } else { 1 },
        bandwidth = if networked {
            format!("'{}Kbit/s'", (LINK_BITS_PER_S as f64 * DATA_SHARE / 1e3) as u64)
        } else {
            "0".to_owned()
        },
        latency = if networked { 50 } else { 0 },
        message = if networked { 2 } else { 0 },
        servers = situation.servers,
        cache = if situation.direct { "off" } else { "on" },
        background = share(BACKGROUND),
        limit = share(THROTTLED),
        write_back = if kernel == "cfq" { 2 * QUEUE_DEPTH } else { WRITE_BACK },
        in_flight = if schedules { IN_FLIGHT } else { 0 },
        anticipation = if schedules { ANTICIPATION_NS } else { 0 },
        request_us = request_us(situation),
        processes = situation.processes,
        op = situation.op,
        request = situation.request,
    );
    let mut plan = Plan::parse(&text, &situation.name, Path::new(""), &[], &[])
        .with_context(|| format!("{} under {side}", situation.name))?;
    Ok(plan.runs.remove(0).scenario)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::situations::list;
    use super::*;

    #[test]
    fn every_side_of_every_situation_can_be_simulated() {
        for situation in list().unwrap() {
            for side in &situation.sides {
                let scenario = scenario(&situation, side, "hdd-7200", 4 << 30, 1).unwrap();
                let options = sluice_sim::Options { until_ns: 50_000_000, ..sluice_sim::Options::default() };
                let outcome = sluice_sim::simulate(&scenario, options, &AtomicBool::new(false)).unwrap();
                assert!(outcome.bytes > 0, "{} under {side}", situation.name);
            }
        }
    }
}
