//! Whole simulations.

mod common;

use common::TWO_PROGRAMS as TEXT;
use sluice_core::policy::table;
use sluice_sim::scenario::{Place, Plan, Setting};
use sluice_sim::{Failure, Options, Outcome, Sweep, improvements, simulate, sweep};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

static RUN: AtomicBool = AtomicBool::new(false);

fn plan(text: &str, settings: &[(&str, &str)]) -> Plan {
    let settings: Vec<Setting> = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Plan::parse(text, "test", Path::new(""), &settings, &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn outcome(text: &str, settings: &[(&str, &str)]) -> Outcome {
    simulate(&plan(text, settings).runs[0].scenario, Options::default(), &RUN).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_algorithm_moves_all_bytes_with_and_without_io_nodes() {
    let bytes = plan(TEXT, &[]).runs[0].scenario.bytes();
    for info in table() {
        for io_nodes in ["0", "2"] {
            let settings = [
                ("servers.policy", info.name),
                ("io_nodes.count", io_nodes),
                ("io_nodes.policy", info.name),
                ("servers.max_wait", "20ms"),
            ];
            let outcome = outcome(TEXT, &settings);
            assert_eq!((outcome.bytes, outcome.device.bytes), (bytes, bytes), "{} {io_nodes}", info.name);
            assert_eq!(outcome.servers.requests, outcome.server_requests, "{} {io_nodes}", info.name);
            if !info.aggregates {
                assert_eq!(outcome.servers.batches, outcome.servers.requests, "{}", info.name);
            }
        }
    }
}

#[test]
fn every_workload_moves_its_bytes() {
    for benchmark in sluice_sim::workload::benchmarks() {
        let text = format!("[[application]]\nprocesses = 4\nbenchmark = '{}'\nvolume = '4M'", benchmark.name);
        let scenario = &plan(&text, &[("servers.count", "2")]).runs[0].scenario;
        let outcome = simulate(scenario, Options::default(), &RUN).unwrap();
        assert_eq!(outcome.bytes, scenario.bytes(), "{}", benchmark.name);
    }
}

/// Whatever it depends on is in the scenario.
#[test]
fn the_same_scenario_has_the_same_digest_everywhere() {
    let digest = |seed: &str| outcome(TEXT, &[("servers.policy", "aioli"), ("seed", seed)]).digest;
    assert_eq!(digest("1"), digest("1"));
    assert_ne!(digest("1"), digest("2"));
}

#[test]
fn a_sweep_does_not_depend_on_the_number_of_jobs() {
    let axis = "[[axis]]\nname = 'p'\nkey = 'servers.policy'\nvalues = ['noop', 'sjf', 'aioli']\n[report]\ncompare = 'p'\nbaseline = 'noop'";
    let plan = plan(&format!("{TEXT}\n{axis}"), &[]);
    let run = |jobs| {
        let how = Sweep { seeds: 2, jobs: NonZeroUsize::new(jobs), record: false, alone: true, windows: false };
        sweep(&plan, how, &RUN, |_| ()).unwrap()
    };
    let (one, three) = (run(1), run(3));
    assert_eq!(one, three);
    // The writer alone has the disks' caches for itself.
    let slow = one[0][0].apps[1].slow_down.unwrap();
    assert!(slow > 2.0, "{slow}");
    let improvements = improvements(&plan, &one);
    assert_eq!(improvements[0].unwrap().mean, 0.0);
    assert!(improvements[2].unwrap().mean != 0.0);
}

#[test]
fn aggregation_happens_where_it_can() {
    // Two requests of 32 KB fill a stripe of 64 KB; eight processes ask for neighbouring ones at the same time.
    let aggregated = outcome(TEXT, &[("servers.policy", "aioli")]).servers.aggregation;
    assert!(aggregated > 1.2, "{aggregated}");
}

#[test]
fn a_server_that_does_not_come_back_is_waited_for() {
    let crash =
        "[faults]\ntimeout = '50ms'\n[[faults.event]]\nkind = 'crash'\nnode = 'server 1'\nat = '20ms'\nlasts = '3s'";
    let outcome = outcome(&format!("{TEXT}\n{crash}"), &[]);
    assert!(outcome.makespan_ns > 3_000_000_000, "{}", outcome.makespan_ns);
    assert!(outcome.faults.unwrap().repeated > 0);
}

#[test]
fn memory_follows_what_is_under_way() {
    let under_way = |data: &str| {
        let settings = [("servers.policy", "hbrr"), ("application.phase.data", data)];
        let outcome = outcome(TEXT, &settings);
        (outcome.under_way_max, outcome.server_requests)
    };
    let (short, long) = (under_way("512K"), under_way("8M"));
    assert!(long.1 > 10 * short.1);
    // Eight processes with a request each, four with four.
    assert!(short.0 <= 24 && long.0 <= 24, "{short:?} {long:?}");
}

#[test]
fn it_stops_when_told() {
    let stop = AtomicBool::new(true);
    let scenario = &plan(TEXT, &[]).runs[0].scenario;
    assert_eq!(simulate(scenario, Options::default(), &stop).unwrap_err(), Failure::Interrupted);
}

/// With windows of a second, an I/O node sends to one of two servers for a second, then to the other; the nodes do so in
/// turns.
#[test]
fn twins_opens_one_window_at_a_time() {
    let text = "[clients]\nnodes = 2\n[servers]\ncount = 2\nstripe = '64K'\n[io_nodes]\ncount = 2\nmax_wait = '0'\n[[application]]\n\
                processes = 2\n[[application.phase]]\npattern = 'strided'\nrequest = '128K'\ndata = '512K'";
    let free = outcome(text, &[("io_nodes.policy", "to")]).makespan_ns;
    assert!(free < 500_000_000, "{free}");
    // Each of four calls of a process needs both servers, so a window opens for each: four in all, as the server whose
    // window closes a call is the first of the next.
    let windows = outcome(text, &[("io_nodes.policy", "twins window=1s alone_after=0")]);
    assert!((4_000_000_000..4_900_000_000).contains(&windows.makespan_ns), "{}", windows.makespan_ns);
    let skewed = "[faults]\n[[faults.event]]\nkind = 'skew'\nnode = 'io_node 0'\nby = '500ms'\nlasts = '1000s'";
    let skewed = outcome(&format!("{text}\n{skewed}"), &[("io_nodes.policy", "twins window=1s alone_after=0")]);
    assert_ne!(skewed.digest, windows.digest);
}

/// Two programs that read by turns from six servers, far from each other.
fn orchestrated(settings: &[(&str, &str)]) -> Outcome {
    let text = "[clients]\nnodes = 6\n[servers]\ncount = 6\nfile_distance = '10G'\nallocation = 'present'\nrequest_cost = '1ms'\n\
                kernel = 'cfq'\nthreads = 16\nparameters = { read_ahead_segments = 1, read_ahead_kib = 64 }\n[[application]]\n\
                copies = 2\nprocesses = 5\n[[application.phase]]\npattern = 'strided'\nrequest = '64K'\ndata = '48M'\n\
                barrier = 'request'";
    outcome(text, settings)
}

/// What the dissertation on IOrchestrator is about, and that ours keeps to plans that bring something.
#[test]
fn programs_served_one_at_a_time_are_faster() {
    let none = orchestrated(&[]);
    let paper = orchestrated(&[("servers.orchestrator", "paper")]);
    assert!(paper.makespan_ns * 3 < none.makespan_ns * 2, "{} against {}", paper.makespan_ns, none.makespan_ns);
    let what = paper.orchestration.unwrap();
    assert!(what.plans > 4 && what.programs_max == 2 && what.slices > 20 && what.cuts == 0, "{what:?}");
    let ours = orchestrated(&[("servers.orchestrator", "on")]);
    assert!(ours.makespan_ns < none.makespan_ns && ours.orchestration.unwrap().gain > Some(0.05));
}

/// Killed in the middle: servers are back to normal scheduling after one window.
#[test]
fn an_orchestrator_that_is_gone_holds_nobody_back() {
    let window_ns = 500_000_000;
    let killed = orchestrated(&[("servers.orchestrator", "paper"), ("servers.orchestrator_ends", "3s")]);
    let held_until = killed.orchestration.unwrap().last_held_ns;
    assert!((2_000_000_000..=3_000_000_000 + 2 * window_ns).contains(&held_until), "{held_until}");
    let whole = orchestrated(&[("servers.orchestrator", "paper")]);
    assert!(whole.orchestration.unwrap().last_held_ns > 3_000_000_000 + 2 * window_ns);
}

/// Whatever is lost, doubled, late, or crashes: every request is served once, in an order that is right.
#[test]
fn orchestration_lives_with_faults() {
    for seed in ["1", "2", "3", "4", "5", "6"] {
        let text = "[clients]\nnodes = 4\n[servers]\ncount = 3\norchestrator = 'even'\norchestrator_window = '20ms'\n[[application]]\n\
                    copies = 3\nprocesses = 3\n[[application.phase]]\npattern = 'random'\nrequest = '16K'\ndata = '512K'\n\
                    op = 'mixed'\nfile = '/shared'\n[faults]\ntimeout = '50ms'\nloss = 0.1\nduplicate = 0.1\ndelay = '30ms'\n\
                    [[faults.event]]\nnode = 'server 1'\nat = '60ms'\nlasts = '40ms'\n[[faults.event]]\nkind = 'skew'\n\
                    node = 'server 2'\nby = '7ms'\nat = '30ms'";
        let plan = plan(text, &[("seed", seed)]);
        let options = Options { check: true, ..Options::default() };
        let outcome =
            simulate(&plan.runs[0].scenario, options, &RUN).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(outcome.orchestration.unwrap().slices > 0);
    }
}

const TIERED: &str = r#"
    [clients]
    nodes = 2
    [servers]
    count = 2
    in_flight = 4
    tier_queue = "1M"
    tier_area = "512K"
    tier_slot = "64K"
    [faults]
    timeout = "2s"
    loss = 0.01
    duplicate = 0.02
    delay = "1ms"
    [[application]]
    name = "random"
    processes = 8
    [[application.phase]]
    op = "mixed"
    pattern = "random"
    request = "4K"
    data = "256K"
    depth = 2
    [[application.phase]]
    pattern = "random"
    request = "4K"
    data = "128K"
    [[application]]
    name = "stream"
    [[application.phase]]
    op = "write"
    request = "256K"
    data = "2M"
"#;

/// Every step is checked, too: order, waiting, what reads return.
#[test]
fn with_a_tier_every_algorithm_moves_all_bytes_and_does_the_same_again() {
    let mut logged = 0;
    for (number, info) in table().iter().enumerate() {
        for tier in ["paper", "on"] {
            let kernel = ["none", "deadline", "cfq"][number % 3];
            let settings = [
                ("servers.policy", info.name),
                ("servers.tier", tier),
                ("servers.kernel", kernel),
                ("servers.max_wait", "20ms"),
            ];
            let plan = plan(TIERED, &settings);
            let scenario = &plan.runs[0].scenario;
            let options = Options { check: true, ..Options::default() };
            let run =
                || simulate(scenario, options, &RUN).unwrap_or_else(|error| panic!("{} {tier}: {error}", info.name));
            let outcome = run();
            assert_eq!(outcome.bytes, scenario.bytes(), "{} {tier}", info.name);
            assert_eq!(outcome, run(), "{} {tier}", info.name);
            logged += outcome.tier.unwrap().logged_writes;
        }
    }
    assert!(logged > 1000, "{logged}");
}

/// What it is for: random writes end on the SSD, slots that are read again come from it, and a stream goes by.
#[test]
fn a_tier_takes_what_is_random() {
    let of = |phase: &str, tier: &str| {
        let text = format!(
            "[servers]\npage_cache = 'off'\ntier_queue = '64M'\ntier_area = '64M'\n[[application]]\nprocesses = 16\n[[application.phase]]\n{phase}"
        );
        outcome(&text, &[("servers.tier", tier)])
    };
    let times = |phase: &str, tier: &str| {
        let (off, on) = (of(phase, "off"), of(phase, tier));
        (on.throughput() / off.throughput(), on.tier.unwrap())
    };
    let writes = "op = 'write'\npattern = 'random'\nrequest = '4K'\ndata = '1M'";
    let (faster, tier) = times(writes, "on");
    assert!(faster > 10.0 && tier.logged_writes * 10 > tier.writes * 9, "{faster} {tier:?}");
    let (faster, tier) = times("pattern = 'random'\nrequest = '4K'\ndata = '2M'", "on");
    assert!(faster > 2.0 && tier.loads > 3 && tier.hit_rate() > 0.5, "{faster} {tier:?}");
    let stream = "op = 'write'\nfiles = 'per-process'\nrequest = '1M'\ndata = '16M'";
    let (faster, tier) = times(stream, "on");
    assert!(faster > 0.98 && tier.logged_writes == 0, "{faster} {tier:?}");
}

#[test]
fn a_tier_that_cannot_be_is_refused() {
    let error = |more: &str| {
        let text = format!("[servers]\ntier = 'on'\n{more}\n[[application]]\n[[application.phase]]");
        match Plan::parse(&text, "test", Path::new(""), &[], &[]) {
            Ok(plan) => simulate(&plan.runs[0].scenario, Options::default(), &RUN).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    assert!(error("tier_settings = 'rule'").contains("KEY=VALUE"));
    assert!(error("tier_settings = 'rulle=cost'").contains("rule"));
    assert!(error("tier_settings = 'unload=off'").contains("simulated"));
    assert!(error("tier_device = 'ssd-sat'").contains("ssd-sata"));
    assert!(error("tier_slot = 5000").contains("4096"));
    assert!(error("tier_queue = '1000G'").contains("bytes"));
    assert!(error("[[faults.event]]\nkind = 'crash'\nnode = 'server 0'").contains("crash"));
}

/// Everything in `scenarios/` can be read, and simulated: here one run of each, with little data.
#[test]
fn the_catalogue_works() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 3);
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "toml")) {
        let plan = Plan::load(file, &[], &[]).unwrap_or_else(|error| panic!("{error}"));
        assert!(!plan.title.is_empty(), "{}", file.display());
        let mut scenario = plan.runs[plan.runs.len() / 2].scenario.clone();
        scenario.applications.iter_mut().for_each(|app| app.processes = app.processes.min(1024));
        for phase in scenario.applications.iter_mut().flat_map(|app| &mut app.phases) {
            phase.data = phase.request.1;
        }
        let outcome = simulate(&scenario, Options::default(), &RUN).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.bytes, scenario.bytes(), "{}", file.display());
    }
}

/// The results of the catalogue do not hang on how much of the data is simulated: with twice as much, the same algorithms
/// gain, by about as much.
#[test]
fn results_are_stable_when_the_scale_doubles() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let improvements_at = |file: &str, scale: &str, only: &str| {
        let settings = [("scale".to_owned(), scale.to_owned())];
        let pairs = only.split(' ').map(|pair| pair.split_once('=').unwrap());
        let names = |values: &str| values.split(',').map(|value| value.replace('_', " ")).collect::<Vec<_>>();
        let only: Vec<_> = pairs.map(|(axis, values)| (axis.to_owned(), names(values))).collect();
        let plan = Plan::load(&directory.join(file), &settings, &only).unwrap_or_else(|error| panic!("{error}"));
        let how = Sweep { seeds: 1, jobs: None, record: false, alone: false, windows: false };
        let outcomes = sweep(&plan, how, &RUN, |_| ()).unwrap();
        improvements(&plan, &outcomes).iter().map(|e| e.unwrap().mean).collect::<Vec<f64>>()
    };
    let only = "processes=128,256 io_nodes=2,8 size=32K op=read,write pattern=shared-strided,own-contiguous \
                scheduler=fifo,direct,twins_1_ms,twins_8_ms";
    let only = only.split_whitespace().collect::<Vec<_>>().join(" ");
    let [once, twice] = ["1/32", "1/16"].map(|scale| improvements_at("twins-windows.toml", scale, &only));
    let apart: Vec<f64> = once.iter().zip(&twice).map(|(a, b)| (a - b).abs()).collect();
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    assert!(mean < 0.1, "{mean}: {once:.2?} against {twice:.2?}");
    let clear = once.iter().zip(&twice).filter(|(a, _)| a.abs() > 0.15);
    let (count, same) =
        clear.fold((0, 0), |(count, same), (a, b)| (count + 1, same + i32::from(a.signum() == b.signum())));
    assert!(count >= 5 && same * 10 >= count * 9, "{same} of {count} with the same sign: {once:.2?} {twice:.2?}");
}

/// One process on one disk: what it computes is what the makespan has more.
#[test]
fn computing_takes_its_time_which_may_vary() {
    let text =
        "[clients]\njitter = 0\n[[application]]\nstart_spread = 0\nrepeat = 20\n[[application.phase]]\ndata = '64K'";
    let makespan = |settings: &[(&str, &str)]| outcome(text, settings).makespan_ns;
    let compute = ("application.phase.compute", "10ms");
    let (none, exact) = (makespan(&[]), makespan(&[compute]));
    let added = exact - none;
    assert!((200_000_000..240_000_000).contains(&added), "{added} ns, with what the disk turns meanwhile");
    let varied = |seed: &str| makespan(&[compute, ("application.phase.compute_spread", "0.5"), ("seed", seed)]);
    let all: Vec<u64> = ["1", "2", "3", "4"].map(varied).to_vec();
    assert!(all.iter().any(|&other| other != all[0]), "{all:?}");
    assert!(all.iter().all(|&other| other.abs_diff(exact) < 100_000_000), "{all:?} around {exact}");
}

/// Small files are spread over the servers, whatever number of them there is.
#[test]
fn first_stripes_are_spread_over_the_servers() {
    let text = "[clients]\nnodes = 8\n[servers]\ncount = 32\ndevice = 'null'\n[[application]]\nprocesses = 3072\n\
                [[application.phase]]\nop = 'write'\nfiles = 'per-process'\nrequest = '64K'\ndata = '64K'";
    let by_server = |first: &str| {
        let scenario = &plan(text, &[("servers.first", first)]).runs[0].scenario;
        let outcome = simulate(scenario, Options { record: true, ..Options::default() }, &RUN).unwrap();
        let servers = outcome.record.unwrap().servers;
        servers.iter().map(|bins| bins.iter().map(|bin| bin.bytes).sum::<u64>() >> 16).collect::<Vec<_>>()
    };
    let spread = by_server("hash");
    assert!(spread.iter().all(|files| (87..=106).contains(files)), "{spread:?}");
    assert_eq!(by_server("zero")[..2], [3072, 0]);
}

const LINKS: &str = "[clients]\njitter = 0\ntransfer = '64M'\n[servers]\nstripe = '64M'\ndevice = 'null'\n[[application]]\nname = 'large'\n\
                     start_spread = 0\n[[application.phase]]\nop = 'write'\nrequest = '64M'\ndata = '256M'\n[[application]]\nname = 'small'\n\
                     start_spread = 0\n[[application.phase]]\nop = 'write'\nrequest = '4K'\ndata = '400K'";

#[test]
fn small_requests_do_not_wait_for_anothers_large_ones() {
    let longest = |sharing: &str| outcome(LINKS, &[("network.sharing", sharing)]).apps[1].latency.max_ns;
    let (fair, arrival) = (longest("fair"), longest("arrival"));
    assert!(fair < 3_000_000 && arrival > 500_000_000, "{fair} and {arrival}");
}

/// Many servers answer one client at once, and its port overflows.
#[test]
fn a_small_port_buffer_makes_an_incast_collapse() {
    let text =
        "[servers]\ncount = 32\ndevice = 'null'\n[[application]]\n[[application.phase]]\nrequest = '2M'\ndata = '32M'";
    let at = |buffer: &str| outcome(text, &[("network.port_buffer", buffer)]);
    let (none, small) = (at("0"), at("256K"));
    assert!(none.retransmitted == 0 && small.retransmitted > 10, "{}", small.retransmitted);
    assert!(small.makespan_ns > 4 * none.makespan_ns, "{} and {}", small.makespan_ns, none.makespan_ns);
}

/// The universal scalability law: four threads of which each slows the others by half, and each pair by a tenth.
#[test]
fn threads_get_into_each_others_way() {
    let text = "[clients]\njitter = 0\n[network]\nbandwidth = 0\nlatency = 0\nmessage_cost = 0\n[servers]\ndevice = 'null'\n\
                threads = 4\nrequest_cost = '100us'\nengine_cost = 0\n[[application]]\nprocesses = 16\nstart_spread = 0\n\
                [[application.phase]]\nrequest = '4K'\ndata = '400K'";
    let alone = outcome(text, &[]).makespan_ns as f64;
    let crowded = outcome(text, &[("servers.contention", "0.5"), ("servers.coherence", "0.1")]).makespan_ns as f64;
    assert!((3.6..3.8).contains(&(crowded / alone)), "{}", crowded / alone);
    // Sixteen processes on four machines: with requests of four machines inside, each takes 2.5 times as long.
    let peers = [("clients.nodes", "4"), ("servers.active", "peers"), ("servers.contention", "0.5")];
    let factor = outcome(text, &peers).makespan_ns as f64 / outcome(text, &peers[..1]).makespan_ns as f64;
    assert!((2.4..2.55).contains(&factor), "{factor}");
}

/// Sixteen threads on one machine read their parts of a file.
const BED: &str = "[clients]\njitter = '5us'\n[network]\nbandwidth = 0\nlatency = 0\nmessage_cost = 0\n[servers]\ndevice_queue = 1\n\
                   [[application]]\nprocesses = 16\nstart_spread = 0\n[[application.phase]]\nrequest = '32K'\ndata = '4M'";

/// As measured on Linux: order is worth much to who goes past the cache, and to who does not, little is left to gain.
#[test]
fn caches_and_kernel_schedulers_keep_their_order() {
    let seconds = |settings: &[(&str, &str)]| outcome(BED, settings).makespan_ns as f64 * 1e-9;
    let none = seconds(&[]);
    let deadline = seconds(&[("servers.kernel", "deadline")]);
    let cfq = seconds(&[("servers.kernel", "cfq")]);
    let buffered = seconds(&[("servers.page_cache", "on"), ("servers.kernel", "cfq")]);
    let all = [none, deadline, cfq, buffered];
    assert!(none > 1.15 * deadline && deadline > 1.2 * cfq && none > 5.0 * buffered, "{all:?}");
}

/// What fits under the threshold is written at the speed of memory, what does not, at that of the disk.
#[test]
fn writers_feel_the_disk_only_above_the_threshold() {
    let write = |data: &str| {
        let settings = [
            ("application.phase.op", "write"),
            ("application.phase.data", data),
            ("servers.page_cache", "on"),
            ("servers.memory", "64M"),
        ];
        let outcome = outcome(BED, &settings);
        (outcome.throughput() * 1e-6, outcome.cache.unwrap())
    };
    let ((fast, little), (slow, much)) = (write("256K"), write("16M"));
    assert!(fast > 500.0 && little.throttled == 0 && little.dirty == 1024, "{fast} {little:?}");
    assert!(slow < 150.0 && slow > 20.0 && much.throttled > 0, "{slow} {much:?}");
    assert_eq!(much.written_back + much.dirty, 65_536, "{much:?}");
}

#[test]
fn faults_are_for_servers_without_a_page_cache() {
    let text = format!("{BED}\n[faults]\nloss = 0.1");
    let settings = [("servers.page_cache".to_owned(), "on".to_owned())];
    let error = Plan::parse(&text, "test", Path::new(""), &settings, &[]).unwrap_err();
    assert!(error.to_string().contains("page cache"), "{error}");
}

/// Aggregates from the second window on, and counts the windows.
struct Later(usize);

impl sluice_sim::Selector for Later {
    fn window_closed(
        &mut self,
        place: sluice_sim::scenario::Place,
        features: &sluice_core::WindowFeatures,
        current: &sluice_core::PolicyConfig,
        _: &sluice_core::EngineConfig,
    ) -> Option<sluice_sim::Setup> {
        assert!(matches!(place, sluice_sim::scenario::Place::Server(_)) && features.ops[0].requests > 0);
        self.0 += 1;
        let policy = sluice_sim::scenario::parse_policy("to-agg").unwrap();
        (current.name() == "noop").then_some(sluice_sim::Setup { policy, limits: None })
    }
}

#[test]
fn a_selector_sees_every_window_and_changes_the_algorithm() {
    let text = "[servers]\ncount = 2\nwindow = '50ms'\nin_flight = 4\n[[application]]\nprocesses = 16\n[[application.phase]]\n\
                pattern = 'strided'\nrequest = '32K'\ndata = '2M'";
    let scenario = &plan(text, &[]).runs[0].scenario;
    let options = Options { windows: true, ..Options::default() };
    let mut later = Later(0);
    let outcome = sluice_sim::simulate_with(scenario, options, &mut later, &RUN).unwrap();
    assert_eq!((outcome.policy_changes, outcome.windows.len()), (2, later.0));
    assert!(outcome.servers.aggregation > 1.05 && later.0 > 4, "{} {}", outcome.servers.aggregation, later.0);
    assert_eq!(outcome.windows[0].policy, "noop");
    assert!(outcome.windows.iter().skip(2).all(|window| window.policy == "to-agg"));
    let csv = sluice_sim::windows_csv(&outcome.windows);
    let columns = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap())), "{csv}");
    assert_eq!(csv.lines().count(), later.0 + 1);
    let again = sluice_sim::simulate_with(scenario, options, &mut Later(0), &RUN).unwrap();
    assert_eq!(again.digest, outcome.digest);
}

/// Random reads over a file of 400 GB find the arm where a file of that size lies: seeks are those of the whole disk.
#[test]
fn random_reads_of_a_large_file_go_over_the_whole_disk() {
    let text = "[clients]\njitter = 0\n[network]\nbandwidth = 0\nlatency = 0\nmessage_cost = 0\n[[application]]\nrepeat = 1\n\
                [[application.phase]]\npattern = 'trace'\ntrace = 'TRACE'";
    let reads: String = (0..400u64)
        .map(|i| {
            format!(
                "0,0,read,file,{},8192\n",
                i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) % (50 << 20) * 8192
            )
        })
        .chain(["0,0,read,file,429496721408,8192\n".to_owned()])
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.csv");
    std::fs::write(&trace, format!("process,seconds,op,file,offset,bytes\n{reads}")).unwrap();
    let text = text.replace("TRACE", trace.to_str().unwrap());
    let seek_ms = |allocation: &str| {
        let outcome = outcome(&text, &[("servers.allocation", allocation)]);
        outcome.device.seek_ns as f64 * 1e-6 / outcome.device.commands as f64
    };
    let (groups, extents) = (seek_ms("groups"), seek_ms("extents"));
    // The model's average seek is 8.5 ms over a third of all cylinders; the file takes the outer 70 % of them.
    assert!((5.8..7.5).contains(&groups) && extents < 0.75 * groups, "{groups} {extents}");
}

/// Each rank of a recorded job goes on when its own request is done, not when that of another one is.
#[test]
fn ranks_of_a_recording_run_beside_each_other() {
    use sluice_trace::{Entry, Extra, Meta, Writer};
    let dir = tempfile::tempdir().unwrap();
    let text = |ranks: u32| {
        let meta = Meta { processes: true, ..Meta::default() };
        let mut writer = Writer::new(Vec::new(), &meta).unwrap();
        let file = writer.file(b"data").unwrap();
        for n in 0..400 {
            let entry = Entry {
                time: n * 1000,
                file,
                app: 42,
                target: 0,
                op: sluice_core::Op::Read,
                offset: n * 37 % 400 * 17 * 65_536,
                len: 65_536,
            };
            writer.push_with(entry, Extra { process: n as u32 % ranks, sum: None }).unwrap();
        }
        let path = dir.path().join(format!("{ranks}.slt"));
        std::fs::write(&path, writer.finish(0).unwrap()).unwrap();
        let trace = path.to_str().unwrap();
        format!("[servers]\ncount = 8\n[[application]]\n[[application.phase]]\npattern = 'trace'\ntrace = '{trace}'")
    };
    let (alone, together) = (outcome(&text(1), &[]), outcome(&text(16), &[]));
    assert_eq!((alone.apps[0].bytes, together.apps[0].bytes), (400 << 16, 400 << 16));
    assert!(together.makespan_ns * 3 < alone.makespan_ns, "{} {}", together.makespan_ns, alone.makespan_ns);
    let fewer = text(16).replace("[[application]]\n", "[[application]]\nprocesses = 3\n");
    let error = Plan::parse(&fewer, "test", Path::new(""), &[], &[]).unwrap_err().to_string();
    assert!(error.contains("the trace has 16 processes"), "{error}");
}

/// Times vary with the seed, around what they are without noise.
#[test]
fn noise_spreads_the_outcome_around_its_mean() {
    let quiet = "[servers]\ndevice = 'nvme'\n[[application]]\n[[application.phase]]\npattern = 'random'\nrequest = '8K'\ndata = '8M'";
    let text = format!("{quiet}\n[noise]\nrequest = 0.2\nrun = 0.1");
    let quiet = outcome(quiet, &[]).makespan_ns as f64;
    let seeds = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let noisy: Vec<f64> =
        seeds.iter().map(|seed| outcome(&text, &[("seed", seed)]).makespan_ns as f64 / quiet).collect();
    let mean = noisy.iter().sum::<f64>() / 8.0;
    assert!((0.9..1.1).contains(&mean) && noisy.iter().any(|one| (one - mean).abs() > 0.02), "{noisy:?}");
}

/// What firmware does is drawn from the seed, the same for all drives of a run.
#[test]
fn a_scenario_may_draw_parameters_of_its_devices() {
    let range = |seed: &str| {
        let settings =
            [("servers.device", "nvme"), ("servers.parameters.overhead_read_us", "[10, 3000]"), ("seed", seed)];
        outcome(TEXT, &settings).apps[0].makespan_ns
    };
    assert_eq!(range("1"), range("1"));
    assert!(range("1").abs_diff(range("2")) > 1_000_000);
    let settings = [("servers.parameters.colour".to_owned(), "3".to_owned())];
    let error = Plan::parse(TEXT, "test", Path::new(""), &settings, &[]).unwrap_err().to_string();
    assert!(error.contains("colour") && error.contains("overhead_read_us"), "{error}");
}

#[test]
fn predictions_come_from_recorded_runs() {
    let settings = [("servers.policy", "to-agg"), ("servers.predict", "2"), ("servers.max_wait", "0")];
    let with = outcome(TEXT, &settings);
    let counts = with.predictions.unwrap();
    assert!(counts.linked * 2 > with.server_requests, "{counts:?} of {}", with.server_requests);
    assert_eq!(with.digest, outcome(TEXT, &settings).digest);
    assert_eq!(outcome(TEXT, &settings[..1]).predictions, None);
}

/// Files begin on other servers when the seed is another one: what is predicted for a file is found all the same.
#[test]
fn files_of_one_stripe_are_predicted_wherever_they_begin() {
    let small = [("application.phase.data", "16K"), ("application.phase.request", "16K"), ("servers.stripe", "64K")];
    let text =
        TEXT.replace("files = \"per-process\"\n", "").replace("request = ", "files = \"per-process\"\nrequest = ");
    let settings = [&small[..], &[("servers.policy", "to-agg"), ("servers.predict", "2")]].concat();
    let with = outcome(&text, &settings);
    assert_eq!(with.predictions.unwrap().linked, with.server_requests);
}

#[test]
fn the_guide_has_every_key_and_benchmark() {
    let guide = include_str!("../../../docs/simulator.md");
    for key in sluice_sim::scenario::keys() {
        let row = format!("| `{}` | {} | {} |", key.path, key.value.replace('|', "\\|"), key.help.replace('|', "\\|"));
        assert!(guide.contains(&row), "docs/simulator.md lacks: {row}");
    }
    for benchmark in sluice_sim::workload::benchmarks() {
        assert!(guide.contains(&format!("| `{}` | {} |", benchmark.name, benchmark.help)), "{}", benchmark.name);
    }
}

#[test]
fn the_example_in_the_guide_works() {
    let guide = include_str!("../../../docs/simulator.md");
    let example = guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let plan = plan(example, &[("application.phase.data", "1M")]);
    assert_eq!(plan.runs.len(), 4);
    let how = Sweep { seeds: 1, jobs: None, record: true, alone: true, windows: true };
    let outcomes = sweep(&plan, how, &RUN, |_| ()).unwrap();
    let record = outcomes[0][0].record.as_ref().unwrap();
    let bytes: u64 = record.servers.iter().flatten().map(|bin| bin.bytes).sum();
    assert_eq!(bytes, plan.runs[0].scenario.bytes());
}

/// The same on every machine and in every build, optimised or not. After a wanted change of the engine, the models or the
/// simulator, put in the new digest.
#[test]
fn the_digest_is_that_of_any_machine() {
    let settings = [("servers.policy", "hbrr"), ("io_nodes.count", "2"), ("io_nodes.policy", "twins alone_after=0")];
    assert_eq!(format!("{:016x}", outcome(TEXT, &settings).digest), "ecffcbf95ebca4a0");
}

/// Half of the time of a run is enough for some of its bytes; what was not answered by then does not count.
#[test]
fn a_simulation_ends_when_its_time_is_up() {
    let text = "[[application]]\nprocesses = 3\nstart_spread = 0\n[[application.phase]]\npattern = 'random'\nrequest = '8K'\ndata = '1M'\n";
    let plan = Plan::parse(text, "until", Path::new(""), &[], &[]).unwrap();
    let scenario = &plan.runs[0].scenario;
    let whole = simulate(scenario, Options::default(), &RUN).unwrap();
    let until = |until_ns| simulate(scenario, Options { until_ns, ..Options::default() }, &RUN).unwrap();
    let half = until(whole.makespan_ns / 2);
    assert_eq!((half.makespan_ns, half.apps[0].makespan_ns), (whole.makespan_ns / 2, whole.makespan_ns / 2));
    let share = half.bytes as f64 / whole.bytes as f64;
    assert!((0.3..0.7).contains(&share), "{share}");
    // More time than it takes changes nothing.
    assert_eq!(until(whole.makespan_ns * 2), whole);
    let checked = Options { check: true, until_ns: 1, ..Options::default() };
    assert!(matches!(simulate(scenario, checked, &RUN), Err(sluice_sim::Failure::Setup(_))));
}

/// Whoever watches what data servers' requests are like changes nothing, and knows what they are.
#[test]
fn watching_patterns_changes_nothing_and_tells_the_truth() {
    use sluice_adapt::features::Answers;
    let settings = [("servers.window", "20ms"), ("application.a.phase.0.data", "2M")];
    let scenario = &plan(TEXT, &settings).runs[0].scenario;
    let watched = |answers| {
        let options = Options { patterns: Some(answers), ..Options::default() };
        simulate(scenario, options, &RUN).unwrap()
    };
    let (plain, outcome) = (simulate(scenario, Options::default(), &RUN).unwrap(), watched(Answers::Known));
    assert_eq!((plain.digest, plain.patterns.len()), (outcome.digest, 0));
    assert_eq!(outcome.digest, watched(Answers::After(100_000)).digest);
    assert!(outcome.patterns.len() > 8);
    let mut classes = [0; 5];
    for seen in &outcome.patterns {
        let sum: u64 = seen.truths.iter().flat_map(|(_, truth)| truth).sum();
        assert_eq!((seen.window.all.bytes, seen.window.evicted), (sum, 0));
        assert!(seen.window.idle.is_some_and(|idle| (0.0..=1.0).contains(&idle)));
        for (_, truth) in &seen.truths {
            classes.iter_mut().zip(truth).for_each(|(sum, bytes)| *sum += bytes);
        }
    }
    // Contiguous small and strided small, nothing else.
    assert!(classes[0] > 0 && classes[2] > 0 && classes[1] + classes[3] + classes[4] == 0, "{classes:?}");
}

/// Sequential readers, for which anticipation is worth a factor, and a server that has to find that out.
#[test]
fn a_server_that_chooses_finds_what_serves_streams_best() {
    let text = "[servers]\nin_flight = 8\n[[application]]\nprocesses = 8\n[[application.phase]]\nfiles = 'per-process'\n\
                data = '96M'";
    let run =
        |settings: &[(&str, &str)]| simulate(&plan(text, settings).runs[0].scenario, Options::default(), &RUN).unwrap();
    let (noop, chosen) = (run(&[]), run(&[("servers.selector", "bandit")]));
    assert!(chosen.makespan_ns * 3 < noop.makespan_ns, "{} and {}", chosen.makespan_ns, noop.makespan_ns);
    assert!(chosen.policy_changes > 1);
    assert_eq!(chosen.digest, run(&[("servers.selector", "bandit")]).digest);
    for kind in ["tree", "tree+bandit"] {
        let asked = run(&[("servers.selector", kind)]);
        assert!(asked.makespan_ns * 3 < noop.makespan_ns, "{kind}: {} and {}", asked.makespan_ns, noop.makespan_ns);
        assert_eq!(asked.digest, run(&[("servers.selector", kind)]).digest);
    }
}

/// MPI programs by each way of carrying out their calls: all bytes are moved, the same each time, and what is decided shows.
#[test]
fn mpi_programs_are_collective_and_data_driven() {
    let text = |way: &str, phase: &str| {
        format!(
            "[clients]\nnodes = 2\n[servers]\ncount = 3\n[[application]]\nprocesses = 8\nmpi_io = '{way}'\n\
             barrier_cost = '200us'\n[[application.phase]]\n{phase}"
        )
    };
    let columns = "pattern = 'vector'\nregion = 800\nrequest = 800\ndata = 160000\nbarrier = 'phase'\n";
    let run = |way: &str, phase: &str| {
        let out = outcome(&text(way, phase), &[]);
        assert_eq!(out.bytes, plan(&text(way, phase), &[]).runs[0].scenario.bytes(), "{way}");
        assert_eq!(out.digest, outcome(&text(way, phase), &[]).digest, "{way}");
        out
    };
    for op in ["read", "write", "mixed"] {
        let phase = format!("{columns}op = '{op}'");
        let plain = run("plain", &phase);
        let driven = run("dualpar", &phase);
        // One piece of each process in a call is not rearranged.
        let collective = run("collective", &phase.replace("request = 800", "request = 1600"));
        // Of one that reads and writes in turn the holes between what is read at a time are too large to be filled.
        let fewer = if op == "mixed" { 2 } else { 3 };
        assert!(plain.server_requests > fewer * driven.server_requests, "{op}: {}", driven.server_requests);
        assert!(op != "read" || driven.makespan_ns < plain.makespan_ns);
        assert!(op == "mixed" || collective.server_requests < plain.server_requests, "{op}");
        let counts = driven.apps[0].data_driven.unwrap();
        assert_eq!(plain.apps[0].data_driven, None);
        match op {
            "read" => assert!(counts.cycles > 0 && counts.used == counts.prefetched, "{counts:?}"),
            "write" => assert!(counts.collected == 1600 && counts.written == 400, "{counts:?}"),
            _ => {}
        }
    }
    // Where to read next stands in what was read: the guard ends it, and little is lost.
    let dependent = "pattern = 'random'\ndependent = true\nrequest = '64K'\ndata = '16M'";
    let (plain, driven) = (run("plain", dependent), run("dualpar", dependent));
    let counts = driven.apps[0].data_driven.unwrap();
    assert!((1..40).contains(&counts.cycles) && counts.used * 2 < counts.prefetched, "{counts:?}");
    let loss = driven.makespan_ns as f64 / plain.makespan_ns as f64 - 1.0;
    assert!(loss <= 0.02, "{loss}");
    // Depth is not for blocking calls.
    let error = Plan::parse(&text("dualpar", "depth = 2"), "test", Path::new(""), &[], &[]).unwrap_err();
    assert!(error.to_string().contains("depth"), "{error}");
}

/// As with GlusterFS's pieces of files: an I/O node knows where in the file a request is, and parts of a request overtake each other.
#[test]
fn io_nodes_see_gaps_between_pieces_and_parts_out_of_order() {
    let text = "[clients]\ntransfer = '64K'\n[servers]\ncount = 2\nstripe = '1M'\n[io_nodes]\ncount = 1\npolicy = 'hbrr'\n\
                window = '10ms'\n[[application]]\n[[application.phase]]\nrequest = '256K'\ndata = '16M'";
    // Of the requests that followed others: how many, the share that began where these ended, and MiB between them.
    let seen = |settings: &[(&str, &str)]| {
        let options = Options { windows: true, check: true, ..Options::default() };
        let outcome = simulate(&plan(text, settings).runs[0].scenario, options, &RUN).unwrap();
        assert_eq!(outcome.device.bytes, 16 << 20);
        let of_node = outcome.windows.iter().filter(|window| matches!(window.place, Place::IoNode(_)));
        let reads: Vec<_> = of_node.map(|window| window.features.ops[0]).collect();
        let sum = |of: fn(&sluice_core::OpFeatures) -> f64| reads.iter().map(of).sum::<f64>();
        let count = sum(|op| op.distances as f64);
        (count, sum(|op| op.contiguous * op.distances as f64) / count, sum(|op| op.distance_mean * op.distances as f64))
    };
    let (count, contiguous, between) = seen(&[]);
    assert!(count > 200.0 && contiguous == 1.0 && between == 0.0, "{count} {contiguous} {between}");
    let file = ("io_nodes.offsets", "file");
    let (_, contiguous, between) = seen(&[file]);
    let gaps = between / f64::from(1 << 20);
    assert!((10.0..=14.0).contains(&gaps) && gaps.fract() < 1e-6 && contiguous < 1.0, "{gaps} {contiguous}");
    let (_, contiguous, _) = seen(&[file, ("clients.disorder", "1ms")]);
    assert!((0.05..0.8).contains(&contiguous), "{contiguous}");
}
