//! What goes wrong, in whole simulations: faults that overlap, what survives a crash, an orchestrator that is gone.

mod common;

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use common::TWO_PROGRAMS;
use sluice_adapt::features::Answers;
use sluice_sim::scenario::{Plan, Setting};
use sluice_sim::{Options, Outcome, simulate};

static RUN: AtomicBool = AtomicBool::new(false);

/// Programs that begin a little later than what goes wrong.
static TEXT: LazyLock<String> = LazyLock::new(|| {
    TWO_PROGRAMS
        .replace("start = \"5ms\"", "start = \"15ms\"")
        .replace("name = \"a\"", "name = \"a\"\n    start = \"10ms\"")
});

fn outcome_with(text: &str, settings: &[(&str, &str)], options: Options) -> Outcome {
    let settings: Vec<Setting> = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let plan = Plan::parse(text, "test", Path::new(""), &settings, &[]).unwrap_or_else(|error| panic!("{error}"));
    simulate(&plan.runs[0].scenario, options, &RUN).unwrap_or_else(|error| panic!("{error}"))
}

fn outcome(text: &str, settings: &[(&str, &str)]) -> Outcome {
    outcome_with(text, settings, Options::default())
}

/// The table of a fault, with these lines.
fn event(lines: &str) -> String {
    format!("[[faults.event]]\nnode = 'server 0'\n{lines}\n")
}

#[test]
fn a_machine_that_crashes_again_while_it_is_away_stays_away() {
    let (long, short) = ("at = '0s'\nlasts = '10s'", "at = '1s'\nlasts = '1s'");
    for (first, second) in [(long, short), (short, long)] {
        let faults = format!("{}[faults]\ntimeout = '50ms'\n{}{}", *TEXT, event(first), event(second));
        let outcome = outcome(&faults, &[]);
        assert!(outcome.makespan_ns > 9_900_000_000, "{}", outcome.makespan_ns);
        assert_eq!(outcome.faults.unwrap().crashes, 2);
    }
}

/// The weaker one begins and ends while the stronger one lasts, and changes nothing.
#[test]
fn of_faults_that_overlap_the_worse_one_counts() {
    let kinds = [("slow", "factor = 20", "factor = 2"), ("device-errors", "share = 0.5", "share = 0.01")];
    for (kind, strong, weak) in kinds {
        let strong = event(&format!("kind = '{kind}'\n{strong}\nlasts = '1000s'"));
        let weak = event(&format!("kind = '{kind}'\n{weak}\nat = '30ms'\nlasts = '10ms'"));
        let digest = |faults: &str| outcome(&format!("{}[faults]\n{faults}", *TEXT), &[]).digest;
        let alone = digest(&strong);
        assert_eq!(digest(&format!("{strong}{weak}")), alone, "{kind}");
        assert_ne!(digest(&weak), alone, "{kind}");
    }
}

/// All servers lose their memory before anything is asked of them.
#[test]
fn servers_predict_after_a_crash() {
    let crashes: String =
        (0..4).map(|server| format!("[[faults.event]]\nnode = 'server {server}'\nlasts = '1ms'\n")).collect();
    let settings = [("servers.policy", "to-agg"), ("servers.predict", "2"), ("servers.max_wait", "0")];
    let outcome = outcome(&format!("{}[faults]\n{crashes}", *TEXT), &settings);
    let counts = outcome.predictions.unwrap();
    assert_eq!(outcome.faults.unwrap().crashes, 4);
    assert!(counts.linked * 2 > outcome.server_requests, "{counts:?} of {}", outcome.server_requests);
}

/// Eight processes that wait for their answers: what arrives finds at most seven others, also after requests were lost.
#[test]
fn requests_that_a_crash_has_taken_are_not_waited_for() {
    let text = "[servers]\nwindow = '100ms'\n[[application]]\nprocesses = 8\n[[application.phase]]\n\
                pattern = 'random'\nrequest = '16K'\ndata = '1M'\n[faults]\ntimeout = '300ms'\n";
    let text = format!("{text}{}", event("at = '200ms'\nlasts = '10ms'"));
    let outcome = outcome_with(&text, &[], Options { patterns: Some(Answers::Known), ..Options::default() });
    let depths: Vec<f64> = outcome.patterns.iter().filter_map(|seen| seen.window.depth).collect();
    assert!(depths.len() > 5, "{depths:?}");
    assert!(depths.iter().any(|depth| *depth > 4.0) && depths.iter().all(|depth| *depth <= 7.0), "{depths:?}");
}

/// A process has one thing to do at a time, so that hardly anything but what happens every window is left to happen.
#[test]
fn windows_close_until_the_end_though_the_orchestrator_is_gone() {
    let text = "[servers]\nwindow = '500ms'\norchestrator = 'on'\norchestrator_ends = '1s'\n[[application]]\n\
                [[application.phase]]\nrequest = '32K'\ndata = '32M'\nthink = '10ms'\n";
    let outcome = outcome_with(text, &[], Options { windows: true, ..Options::default() });
    assert!(outcome.makespan_ns > 10_000_000_000, "{}", outcome.makespan_ns);
    let end = outcome.windows.last().unwrap().features.end.0;
    assert!(end + 500_000_000 >= outcome.makespan_ns, "{end} of {}", outcome.makespan_ns);
}
