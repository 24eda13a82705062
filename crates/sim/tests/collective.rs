//! Collective calls of MPI programs: in two phases, and by Resonant I/O.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use sluice_sim::scenario::{Plan, Setting};
use sluice_sim::{Options, Outcome, ResonantCounts, simulate};

static RUN: AtomicBool = AtomicBool::new(false);

/// Four segments of each process in a call, on four servers.
const DEMO: &str = r#"
    [clients]
    nodes = 4
    [servers]
    count = 4
    in_flight = 8
    page_cache = "on"
    memory = "64M"
    kernel = "cfq"
    [[application]]
    name = "demo"
    processes = 4
    [[application.phase]]
    pattern = "vector"
    region = "64K"
    request = "256K"
    data = "16M"
    barrier = "request"
"#;
/// Of these.
const CALLS: u64 = 64;

fn plan(settings: &[(&str, &str)]) -> Result<Plan, String> {
    let settings: Vec<Setting> = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Plan::parse(DEMO, "test", Path::new(""), &settings, &[]).map_err(|error| error.to_string())
}

fn outcome(settings: &[(&str, &str)]) -> Outcome {
    let plan = plan(settings).unwrap();
    let scenario = &plan.runs[0].scenario;
    let outcome = simulate(scenario, Options::default(), &RUN).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    assert_eq!(outcome.bytes, scenario.bytes(), "{settings:?}");
    outcome
}

fn with<'a>(way: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("application.mpi_io", way)], more].concat()
}

fn counts(outcome: &Outcome) -> ResonantCounts {
    outcome.apps[0].resonant.unwrap()
}

#[test]
fn every_way_moves_all_bytes_and_the_same_ones_each_time() {
    for way in ["collective", "resonant", "agents", "early", "timed"] {
        for op in ["read", "write"] {
            for (processes, nodes) in [("4", "4"), ("10", "3"), ("1", "1")] {
                let more =
                    [("application.phase.op", op), ("application.processes", processes), ("clients.nodes", nodes)];
                let first = outcome(&with(way, &more));
                assert_eq!(first.digest, outcome(&with(way, &more)).digest, "{way} {op} {processes}");
                assert_eq!(first.apps[0].resonant.is_some(), way != "collective");
            }
        }
    }
}

#[test]
fn calls_are_carried_out_as_told_where_that_can_be() {
    let all = |way: &str| ResonantCounts {
        agents: if way == "agents" { CALLS } else { 0 },
        early: if way == "early" { CALLS } else { 0 },
        timed: if way == "timed" { CALLS } else { 0 },
        ..ResonantCounts::default()
    };
    for way in ["agents", "early", "timed"] {
        assert_eq!(counts(&outcome(&with(way, &[]))), all(way), "{way}");
    }
    let library = ResonantCounts { library: CALLS, ..ResonantCounts::default() };
    // Writers have nothing to ask for early; with other segments servers have data of all processes in no order of ranks.
    assert_eq!(counts(&outcome(&with("early", &[("application.phase.op", "write")]))), library);
    assert_eq!(counts(&outcome(&with("timed", &[("application.phase.region", "32K")]))), library);
    // What several processes write at a place is left to the library.
    let random = [("application.phase.op", "write"), ("application.phase.pattern", "random")];
    let random = counts(&outcome(&with("agents", &random)));
    assert!(random.library > 0 && random.library + random.agents == CALLS, "{random:?}");
    // One at a time is what this is about.
    let error = plan(&with("agents", &[("application.phase.depth", "2")])).unwrap_err();
    assert!(error.contains("depth"), "{error}");
}

/// Where each server has data of one process, nothing is asked for twice, by whomever; with other segments agents ask for others'.
#[test]
fn only_what_an_agent_asked_for_itself_is_not_read_again() {
    let requests =
        |way: &str, region: &str| outcome(&with(way, &[("application.phase.region", region)])).server_requests;
    assert_eq!(requests("early", "64K"), requests("agents", "64K"));
    // Two of the four segments on a server are others', who read them, too.
    assert!(requests("early", "32K") > requests("agents", "32K"));
}

/// A process of each node has a part of the call, in whatever order they come.
#[test]
fn in_two_phases_each_node_asks_once() {
    let more = [
        ("application.processes", "8"),
        ("clients.nodes", "2"),
        ("application.phase.region", "1K"),
        ("application.phase.request", "4K"),
        ("application.phase.data", "256K"),
        ("application.start_spread", "50ms"),
    ];
    assert_eq!(outcome(&with("collective", &more)).server_requests, 2 * CALLS);
    let cyclic = [&more[..], &[("clients.placement", "cyclic")]].concat();
    assert_eq!(outcome(&with("collective", &cyclic)).server_requests, 2 * CALLS);
}

/// Parts of a file that are far apart and in the order of ranks: nothing between them is read.
#[test]
fn what_is_not_interleaved_is_not_rearranged() {
    let more = [
        ("application.processes", "8"),
        ("application.phase.data", "2M"),
        ("application.phase.pattern", "contiguous"),
        ("servers.page_cache", "off"),
        ("servers.kernel", "none"),
    ];
    let outcome = outcome(&with("collective", &more));
    assert_eq!(outcome.device.bytes, outcome.bytes);
}

/// Groups of as many processes as servers go one after the other: each turn takes a message at least.
#[test]
fn turns_are_taken() {
    let more = [
        ("application.processes", "16"),
        ("clients.nodes", "16"),
        ("application.phase.pattern", "strided"),
        ("application.phase.data", "1M"),
        ("network.latency", "20ms"),
    ];
    for op in ["read", "write"] {
        let more = [&more[..], &[("application.phase.op", op)]].concat();
        let timed = outcome(&with("timed", &more));
        assert_eq!(counts(&timed).timed, 4);
        // Four groups: three turns, and the last one's requests and answers.
        assert!(timed.makespan_ns >= 4 * (3 + 2) * 20_000_000, "{op}: {}", timed.makespan_ns);
        assert!(timed.makespan_ns > outcome(&with("collective", &more)).makespan_ns, "{op}");
    }
}

/// With nothing else known of disks and network than in programs: what is better is found, and used.
#[test]
fn what_serves_better_is_found() {
    let more = [("application.phase.request", "4M"), ("application.phase.data", "256M")];
    let (library, found) = (outcome(&with("collective", &more)), outcome(&with("resonant", &more)));
    let used = counts(&found);
    assert!(used.agents + used.early > CALLS / 2 && used.library > 0, "{used:?}");
    assert!(found.makespan_ns < library.makespan_ns, "{} {}", found.makespan_ns, library.makespan_ns);
}
