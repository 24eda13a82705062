//! What goes wrong, in whole simulations: an orchestrator that is gone.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use sluice_sim::scenario::{Plan, Setting};
use sluice_sim::{Options, Outcome, simulate};

static RUN: AtomicBool = AtomicBool::new(false);

fn outcome_with(text: &str, settings: &[(&str, &str)], options: Options) -> Outcome {
    let settings: Vec<Setting> = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let plan = Plan::parse(text, "test", Path::new(""), &settings, &[]).unwrap_or_else(|error| panic!("{error}"));
    simulate(&plan.runs[0].scenario, options, &RUN).unwrap_or_else(|error| panic!("{error}"))
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
