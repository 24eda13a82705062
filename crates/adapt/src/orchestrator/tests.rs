//! An orchestrator, servers that follow it, and a network that loses, delays, doubles and reorders what they say.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const WINDOW: u64 = 500 * MS;

fn value(mean: f64) -> Value {
    Value { last: mean, mean, count: 100 }
}

/// What servers see of a program.
#[derive(Clone, Copy)]
struct Seen {
    name: &'static str,
    /// By server, as multiples of this.
    distance: f64,
    uneven: bool,
    reuse: f64,
    bytes: u64,
    /// Its last request of a window was completed so long before its end.
    idle_ns: u64,
}

const STRONG: Seen =
    Seen { name: "strong", distance: 65_536.0, uneven: false, reuse: 2e6, bytes: 10_000_000, idle_ns: 0 };
const OTHER: Seen = Seen { name: "other", ..STRONG };
const WEAK: Seen = Seen { name: "weak", distance: 9e8, ..STRONG };
const UNEVEN: Seen = Seen { name: "uneven", uneven: true, ..STRONG };
const SLOW: Seen = Seen { name: "slow", reuse: 2e7, ..STRONG };

/// Reports of `servers` servers; `speed`: of all programs, while there is a plan.
fn reports(servers: u64, number: u64, now: u64, plan: u64, programs: &[Seen], speed: f64) -> Vec<Report> {
    let report = |server: u64| {
        let program = |seen: &Seen| ProgramReport {
            program: seen.name.to_owned(),
            requests: 100,
            bytes: if plan > 0 { (seen.bytes as f64 * speed) as u64 } else { seen.bytes },
            distance: value(if seen.uneven { seen.distance * (server + 1) as f64 } else { seen.distance }),
            seek_ns: 100_000,
            reuse: if plan > 0 { value(seen.reuse) } else { Value::default() },
            idle_ns: seen.idle_ns,
        };
        Report {
            server,
            number,
            window_ns: WINDOW,
            at: now,
            plan: Some(plan),
            distance: value(if plan > 0 { 1e6 } else { 1e9 }),
            seek_ns: 8_000_000,
            others: if plan > 0 { value(4e6) } else { Value::default() },
            programs: programs.iter().map(program).collect(),
            activities: Vec::new(),
        }
    };
    (0..servers).map(report).collect()
}

/// Runs for so many windows with perfect messages; the plans in force, by window.
fn run(orchestrator: &mut Orchestrator, from: u64, windows: u64, programs: &[Seen], speed: f64) -> Vec<Option<Plan>> {
    run_saying(orchestrator, from, windows, programs, speed, None)
}

/// The same, and a program says to each server that it computes, or does I/O, since so long before the end of the first window.
fn run_saying(
    orchestrator: &mut Orchestrator,
    from: u64,
    windows: u64,
    programs: &[Seen],
    speed: f64,
    said: Option<(Seen, bool, u64)>,
) -> Vec<Option<Plan>> {
    let mut plans = Vec::new();
    for number in from..from + windows {
        let now = (number + 1) * WINDOW;
        let plan = orchestrator.plan().filter(|plan| !plan.slices.is_empty()).map_or(0, |plan| plan.number);
        for report in reports(4, number + 1, now, plan, programs, speed) {
            let activity = said.map(|(program, computes, for_ns)| Activity {
                program: program.name.to_owned(),
                computes,
                for_ns: for_ns + (number - from) * WINDOW,
            });
            orchestrator.hear(now, &Report { activities: activity.into_iter().collect(), ..report });
        }
        for half in 0..2 {
            orchestrator.decide(now + WINDOW / 4 + half * WINDOW / 2);
        }
        plans.push(orchestrator.plan().cloned());
    }
    plans
}

fn objects(plan: &Plan) -> Vec<Vec<String>> {
    plan.slices.iter().map(|slice| slice.programs.clone()).collect()
}

#[test]
fn programs_that_meet_the_conditions_have_slices_inverse_to_their_reuse_distances() {
    let near = Seen { reuse: 1e6, ..OTHER };
    let mut orchestrator = Orchestrator::new(Settings::paper());
    let plans = run(&mut orchestrator, 0, 10, &[STRONG, near, WEAK, UNEVEN], 1.5);
    let plan = plans[9].as_ref().unwrap();
    assert_eq!(objects(plan), [vec!["other".to_owned()], vec!["strong".to_owned()], vec![]]);
    // 1/1 : 1/2 : 1/4 of reuse distances 1, 2 and 4 ms.
    let lens: Vec<u64> = plan.slices.iter().map(|slice| slice.len_ns / MS).collect();
    assert!(lens[0].abs_diff(285) <= 2 && lens[1].abs_diff(142) <= 2 && lens[2].abs_diff(71) <= 2, "{lens:?}");
    assert_eq!(plan.slices.iter().map(|slice| slice.len_ns).sum::<u64>(), WINDOW);
}

#[test]
fn whoever_comes_too_late_while_served_alone_loses_it() {
    let mut orchestrator = Orchestrator::new(Settings::paper());
    let plans = run(&mut orchestrator, 0, 12, &[STRONG, SLOW], 1.0);
    assert!(plans.iter().flatten().any(|plan| plan.slices.len() == 3), "it is tried");
    assert_eq!(objects(plans[11].as_ref().unwrap()), [vec!["strong".to_owned()], vec![]]);
}

#[test]
fn what_a_trial_measures_outweighs_when_requests_come() {
    let mut orchestrator = Orchestrator::new(Settings::default());
    // Long enough to be tried again, after two minutes.
    let plans = run(&mut orchestrator, 0, 600, &[STRONG, SLOW], 3.0);
    let all = [vec!["slow".to_owned()], vec!["strong".to_owned()], vec![]];
    assert!(plans.iter().flatten().filter(|plan| !plan.slices.is_empty()).all(|plan| objects(plan) == all));
    assert!(matches!(orchestrator.phase(), Phase::Keep { gain: Some(_) }), "{:?}", orchestrator.phase());
    let mut orchestrator = Orchestrator::new(Settings::default());
    run(&mut orchestrator, 0, 40, &[STRONG, SLOW], 1.0);
    assert!(!matches!(orchestrator.phase(), Phase::Keep { .. }), "{:?}", orchestrator.phase());
}

#[test]
fn one_program_alone_and_weak_ones_need_no_plan() {
    for programs in [&[STRONG][..], &[WEAK, UNEVEN], &[]] {
        let mut orchestrator = Orchestrator::new(Settings::paper());
        assert!(run(&mut orchestrator, 0, 12, programs, 2.0).iter().all(Option::is_none));
    }
}

#[test]
fn even_slices_are_for_everybody() {
    let mut orchestrator = Orchestrator::new(Settings { slicing: Slicing::Even, ..Settings::paper() });
    let plan = run(&mut orchestrator, 0, 6, &[STRONG, WEAK, UNEVEN], 1.0)[5].clone().unwrap();
    let lens: Vec<u64> = plan.slices.iter().map(|slice| slice.len_ns / MS).collect();
    assert!(plan.slices.len() == 4 && lens[0].abs_diff(166) <= 2 && lens[0].abs_diff(lens[2]) <= 2, "{lens:?}");
}

/// As where a local algorithm that anticipates does it all already.
#[test]
fn a_plan_that_brings_nothing_is_refused_until_programs_change() {
    let mut orchestrator = Orchestrator::new(Settings::default());
    let plans = run(&mut orchestrator, 0, 30, &[STRONG, OTHER], 1.02);
    assert!(plans.iter().any(Option::is_some) && plans[29].is_none());
    assert!(matches!(orchestrator.phase(), Phase::Refused { gain } if (gain - 0.02).abs() < 0.01));
    let plans = run(&mut orchestrator, 30, 20, &[STRONG, OTHER, THIRD], 1.5);
    assert!(plans[19].as_ref().is_some_and(|plan| plan.slices.len() == 4));
    assert!(matches!(orchestrator.phase(), Phase::Keep { gain: Some(gain) } if *gain > 0.4));
    // And the plan ends with the programs.
    assert_eq!(run(&mut orchestrator, 50, 10, &[STRONG], 1.5)[9], None);
}

#[test]
fn a_restart_goes_on_with_the_same_windows() {
    let mut before = Orchestrator::new(Settings::default());
    let old = run(&mut before, 0, 20, &[STRONG, OTHER], 1.5)[19].clone().unwrap();
    let saved = before.save();
    let mut after = Orchestrator::new(Settings::default());
    assert_eq!(after.load(0, serde_json::json!({"version": 9})), Err(StateError::Version(9)));
    assert!(matches!(after.load(0, serde_json::json!({"version": 1})), Err(StateError::Damaged(_))));
    after.load(20 * WINDOW, saved).unwrap();
    let plans = run(&mut after, 20, 12, &[STRONG, OTHER], 1.5);
    let new = plans[0].as_ref().unwrap();
    assert_eq!((new.epoch, objects(new)), (old.epoch, objects(&old)));
    assert!(new.number > old.number && plans.iter().all(Option::is_some), "it is not tried again");
}

/// The clock was set back by an hour meanwhile: windows that begin in the future would let nobody begin until then.
#[test]
fn a_restart_after_the_clock_was_set_back_goes_on_with_windows_that_have_begun() {
    let hour = 7200 * WINDOW;
    let mut before = Orchestrator::new(Settings::default());
    let old = run(&mut before, 7200, 20, &[STRONG, OTHER], 1.5)[19].clone().unwrap();
    assert!(old.epoch >= hour);
    let mut after = Orchestrator::new(Settings::default());
    after.load(20 * WINDOW + 1, before.save()).unwrap();
    let plans = run(&mut after, 20, 12, &[STRONG, OTHER], 1.5);
    let new = plans[0].as_ref().unwrap();
    assert!(
        new.epoch <= 20 * WINDOW + 1 && old.epoch.abs_diff(new.epoch).is_multiple_of(WINDOW),
        "{} {}",
        old.epoch,
        new.epoch
    );
    assert!(objects(new) == objects(&old) && plans.iter().all(Option::is_some), "it is not tried again");
}

/// The clock was set back by an hour, while the first plan is of two days before: what was refused is not refused for longer than it would be now.
#[test]
fn a_refusal_does_not_last_longer_because_the_clock_was_set_back() {
    let days = 2 * 24 * 7200;
    let mut before = Orchestrator::new(Settings::default());
    run(&mut before, 10, 30, &[STRONG, OTHER], 1.02);
    run(&mut before, days, 300, &[STRONG, OTHER], 1.02);
    assert!(matches!(before.phase(), Phase::Refused { .. }), "{:?}", before.phase());
    let mut after = Orchestrator::new(Settings::default());
    let back = days - 7200;
    after.load(back * WINDOW, before.save()).unwrap();
    let plans = run(&mut after, back, 1200, &[STRONG, OTHER], 1.5);
    assert!(plans.iter().any(Option::is_some), "{:?}", after.phase());
}

/// As of a server whose clock cannot be told well enough, so that it follows no plan and says so.
#[test]
fn a_trial_ends_though_nobody_follows_the_plan() {
    let mut orchestrator = Orchestrator::new(Settings::default());
    let is_tried = (0..20).any(|number| {
        run(&mut orchestrator, number, 1, &[STRONG, OTHER], 1.5);
        matches!(orchestrator.phase(), Phase::Trial { .. })
    });
    assert!(is_tried);
    for number in 20..60 {
        let now = (number + 1) * WINDOW;
        for report in reports(4, number + 1, now, 0, &[STRONG, OTHER], 1.0) {
            orchestrator.hear(now, &report);
        }
        orchestrator.decide(now + WINDOW / 4);
        if !matches!(orchestrator.phase(), Phase::Trial { .. }) {
            return;
        }
    }
    panic!("it is tried for ever: {:?}", orchestrator.phase());
}

#[test]
fn a_state_of_trials_is_no_standstill_for_one_that_tries_nothing() {
    let mut before = Orchestrator::new(Settings::default());
    run(&mut before, 0, 30, &[STRONG, OTHER], 1.02);
    assert!(matches!(before.phase(), Phase::Refused { .. }));
    let mut paper = Orchestrator::new(Settings::paper());
    paper.load(30 * WINDOW, before.save()).unwrap();
    assert!(matches!(paper.phase(), Phase::Keep { gain: None }), "{:?}", paper.phase());
    let mut again = Orchestrator::new(Settings::default());
    again.load(60 * WINDOW, paper.save()).unwrap();
    assert!(matches!(again.phase(), Phase::Watch), "{:?}", again.phase());
}

/// Who has not heard of any server yet does not know that nothing is served.
#[test]
fn a_restart_while_a_plan_is_tried_does_not_refuse_it() {
    let mut before = Orchestrator::new(Settings::default());
    let is_tried = (0..20).any(|number| {
        run(&mut before, number, 1, &[STRONG, OTHER], 1.5);
        matches!(before.phase(), Phase::Trial { .. })
    });
    assert!(is_tried);
    let mut after = Orchestrator::new(Settings::default());
    after.load(20 * WINDOW, before.save()).unwrap();
    after.decide(20 * WINDOW + 1);
    assert!(matches!(after.phase(), Phase::Trial { .. }), "{:?}", after.phase());
    // It goes on with what was measured before, and needs no more times without a plan.
    let plans = run(&mut after, 20, 20, &[STRONG, OTHER], 1.5);
    assert!(plans.iter().all(Option::is_some));
    assert!(
        matches!(after.phase(), Phase::Keep { gain: Some(gain) } if (gain - 0.5).abs() < 0.01),
        "{:?}",
        after.phase()
    );
}

/// How many windows pass before a plan is kept.
fn trial(settings: Settings, speed: f64) -> Option<u64> {
    let mut orchestrator = Orchestrator::new(settings);
    (1..40).find(|&number| {
        run(&mut orchestrator, number, 1, &[STRONG, OTHER], speed);
        matches!(orchestrator.phase(), Phase::Keep { .. })
    })
}

#[test]
fn a_trial_is_short_where_much_is_promised_and_kept() {
    let doubtful = Trial { promise_min: f64::INFINITY, ..Settings::default().trial.unwrap() };
    let patient = Settings { trial: Some(doubtful), ..Settings::default() };
    assert_eq!([trial(Settings::default(), 3.0), trial(patient.clone(), 3.0)], [Some(3), Some(6)]);
    assert_eq!([trial(Settings::default(), 1.2), trial(patient.clone(), 1.2)], [Some(6), Some(9)], "not beyond doubt");
    assert_eq!([trial(Settings::default(), 1.0), trial(patient, 1.0)], [None, None]);
}

#[test]
fn whoever_comes_and_goes_at_the_limit_of_the_conditions_is_not_tried_again_and_again() {
    let uneven = Seen { name: "other", ..UNEVEN };
    let mut orchestrator = Orchestrator::new(Settings::default());
    let mut trials = 0;
    for number in 0..80 {
        let was = orchestrator.plan().is_some();
        let other = if number / 8 % 2 == 0 { OTHER } else { uneven };
        run(&mut orchestrator, number, 1, &[STRONG, other], 0.8);
        trials += u64::from(!was && orchestrator.plan().is_some());
    }
    assert_eq!(trials, 1);
}

#[test]
fn whoever_had_a_slice_and_no_requests_leaves_it_to_the_others() {
    let mut orchestrator = Orchestrator::new(Settings::paper());
    run(&mut orchestrator, 0, 10, &[STRONG, OTHER, THIRD], 1.5);
    let plan = run(&mut orchestrator, 10, 2, &[STRONG, OTHER], 1.5)[1].clone().unwrap();
    let lens: Vec<u64> = plan.slices.iter().map(|slice| slice.len_ns / MS).collect();
    assert_eq!(objects(&plan)[2], ["third"]);
    assert!(lens[0] >= 240 && lens[1] >= 240 && lens[2] == 2, "{lens:?}");
    // And has it again when it goes on.
    let plan = run(&mut orchestrator, 12, 2, &[STRONG, OTHER, THIRD], 1.5)[1].clone().unwrap();
    assert!(plan.slices.iter().take(3).all(|slice| slice.len_ns >= 160 * MS), "{:?}", plan.slices);
}

const THIRD: Seen = Seen { name: "third", ..STRONG };

/// What the third of three programs has of a window, in milliseconds; `None`: no slice of its own.
fn share_of_third(plan: Option<&Plan>) -> Option<u64> {
    plan?.slices.iter().find(|slice| slice.programs == ["third"]).map(|slice| slice.len_ns / MS)
}

#[test]
fn whoever_says_that_it_computes_leaves_its_slice_at_once_and_has_it_again_when_it_says_that_it_does_not() {
    let mut orchestrator = Orchestrator::new(Settings::paper());
    run(&mut orchestrator, 0, 10, &[STRONG, OTHER, THIRD], 1.5);
    assert!(share_of_third(orchestrator.plan()) >= Some(160));
    // It had requests in this window, the last of them before it said so.
    let last = Seen { idle_ns: 300 * MS, ..THIRD };
    let plan = run_saying(&mut orchestrator, 10, 1, &[STRONG, OTHER, last], 1.5, Some((THIRD, true, 200 * MS)));
    assert_eq!(share_of_third(plan[0].as_ref()), Some(2));
    assert_eq!(orchestrator.computing().collect::<Vec<_>>(), ["third"]);
    run_saying(&mut orchestrator, 11, 3, &[STRONG, OTHER], 1.5, Some((THIRD, true, 700 * MS)));
    assert_eq!(share_of_third(orchestrator.plan()), Some(2));
    // Before any request of it.
    let plans = run_saying(&mut orchestrator, 14, 3, &[STRONG, OTHER], 1.5, Some((THIRD, false, 100 * MS)));
    assert!(share_of_third(plans[0].as_ref()) >= Some(160), "{plans:?}");
    assert_eq!(orchestrator.computing().count(), 0);
    assert_eq!(
        share_of_third(plans[2].as_ref()),
        Some(2),
        "who says so and sends nothing is as any other that is silent"
    );
}

#[test]
fn what_is_seen_outweighs_what_is_said() {
    let mut orchestrator = Orchestrator::new(Settings::paper());
    run(&mut orchestrator, 0, 10, &[STRONG, OTHER, THIRD], 1.5);
    let honest = orchestrator.plan().cloned().unwrap().slices;
    // It sends requests while it says that it computes, which it says anew each time.
    for number in 10..20 {
        run_saying(&mut orchestrator, number, 1, &[STRONG, OTHER, THIRD], 1.5, Some((THIRD, true, 400 * MS)));
        assert_eq!(orchestrator.plan().unwrap().slices, honest);
    }
    // One that has been believed has its slice again as soon as it sends something.
    run_saying(&mut orchestrator, 20, 2, &[STRONG, OTHER], 1.5, Some((THIRD, true, 0)));
    assert_eq!(share_of_third(orchestrator.plan()), Some(2));
    run_saying(&mut orchestrator, 22, 1, &[STRONG, OTHER, THIRD], 1.5, Some((THIRD, true, 2 * WINDOW)));
    assert!(share_of_third(orchestrator.plan()) >= Some(160));
    // Who was never seen has no slice, whatever it says.
    let unheard = Seen { name: "unheard", ..STRONG };
    for computes in [false, true] {
        run_saying(&mut orchestrator, 23, 2, &[STRONG, OTHER, THIRD], 1.5, Some((unheard, computes, 0)));
        let plan = orchestrator.plan().unwrap();
        assert!(plan.slices.len() == honest.len() && share_of_third(Some(plan)) >= Some(160), "{plan:?}");
    }
}

#[test]
fn a_plan_outlives_the_computing_of_its_programs_but_not_their_end() {
    let mut orchestrator = Orchestrator::new(Settings::default());
    run(&mut orchestrator, 0, 20, &[STRONG, OTHER, THIRD], 1.5);
    assert!(matches!(orchestrator.phase(), Phase::Keep { .. }));
    let plans = run_saying(&mut orchestrator, 20, 60, &[STRONG, OTHER], 1.5, Some((THIRD, true, 0)));
    assert!(plans.iter().skip(1).all(|plan| share_of_third(plan.as_ref()) == Some(2)), "{plans:?}");
    let plans = run_saying(&mut orchestrator, 80, 1, &[STRONG, OTHER], 1.5, Some((THIRD, false, 0)));
    assert!(share_of_third(plans[0].as_ref()) >= Some(160), "it is known, and nothing is tried again: {plans:?}");
    run(&mut orchestrator, 81, 10, &[STRONG, OTHER, THIRD], 1.5);
    run_saying(&mut orchestrator, 91, 6, &[STRONG, OTHER], 1.5, Some((THIRD, true, 0)));
    assert_eq!(share_of_third(orchestrator.plan()), Some(2));
    // Its processes have ended: nobody says anything of it any more.
    run(&mut orchestrator, 97, 1, &[STRONG, OTHER], 1.5);
    assert_eq!(share_of_third(orchestrator.plan()), None);
}

#[test]
fn who_computes_is_known_for_as_long_as_a_plan_is_kept_and_not_while_one_is_tried() {
    let mut orchestrator = Orchestrator::new(Settings::paper());
    run(&mut orchestrator, 0, 10, &[STRONG, OTHER], 1.5);
    let plans = run_saying(&mut orchestrator, 10, 300, &[STRONG], 1.5, Some((OTHER, true, 0)));
    assert!(plans[230].is_some() && plans[299].is_none());
    let mut orchestrator = Orchestrator::new(Settings::default());
    let is_tried = |phase: &Phase| matches!(phase, Phase::Trial { .. });
    let at = (0..20).find(|&number| {
        run(&mut orchestrator, number, 1, &[STRONG, OTHER], 1.2);
        is_tried(orchestrator.phase())
    });
    run_saying(&mut orchestrator, at.unwrap() + 1, 6, &[STRONG], 1.2, Some((OTHER, true, 0)));
    assert_eq!(orchestrator.phase(), &Phase::Idle);
    // Even slices are even.
    let mut orchestrator = Orchestrator::new(Settings { slicing: Slicing::Even, ..Settings::paper() });
    run(&mut orchestrator, 0, 6, &[STRONG, OTHER, THIRD], 1.0);
    let last = Seen { idle_ns: 300 * MS, ..THIRD };
    run_saying(&mut orchestrator, 6, 1, &[STRONG, OTHER, last], 1.0, Some((THIRD, true, 200 * MS)));
    assert!(share_of_third(orchestrator.plan()) >= Some(160));
}

/// What servers do at a time: the slice of the plan in force, as an engine has it.
#[derive(Default)]
struct Server {
    follower: Follower,
    current: Option<Plan>,
    next: Option<Plan>,
}

impl Server {
    fn heard(&mut self, now: u64, plan: Plan) {
        match self.follower.heard(now, plan) {
            Follow::Ignore => {}
            Follow::Clear => (self.current, self.next) = (None, None),
            Follow::Set(plan) => self.next = Some(plan),
        }
    }

    fn turn(&mut self, now: u64) -> Option<Vec<String>> {
        if self.next.as_ref().is_some_and(|next| next.from <= now) {
            self.current = self.next.take();
        }
        if self.next.is_none() && self.current.as_ref().is_some_and(|plan| plan.expires <= now) {
            self.current = None;
        }
        let plan = self.current.as_ref()?;
        let window: u64 = plan.slices.iter().map(|slice| slice.len_ns).sum();
        let mut phase = (now - plan.epoch) % window;
        let slice = plan.slices.iter().find(|slice| phase.checked_sub(slice.len_ns).map(|rest| phase = rest).is_none());
        slice.map(|slice| slice.programs.clone())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever happens to messages, a server that follows a plan does what the others do that follow the same one, and nobody
    /// follows one for longer than a window after the orchestrator has gone.
    #[test]
    fn servers_agree_and_are_free_after_a_window(seed: u64, loss in 0..600_u64, delay_ms in 0..700_u64, dies in 20..60_u64) {
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below.max(1)
        };
        let mut orchestrator = Orchestrator::new(Settings::paper());
        let mut servers: Vec<Server> = (0..3).map(|_| Server::default()).collect();
        // Plans and reports on their way, by arrival.
        let mut plans: BTreeMap<(u64, u64), (usize, Plan)> = BTreeMap::new();
        let mut heard: BTreeMap<(u64, u64), Report> = BTreeMap::new();
        let (mut sent, mut gated, mut last_plan) = (0, 0, 0);
        for step in 1..800_u64 {
            let now = step * 50 * MS;
            let alive = now < dies * WINDOW;
            if step % 10 == 0 {
                let plan = servers[0].follower.in_force(now);
                for report in reports(3, step, now, plan, &[STRONG, OTHER], 1.5) {
                    for _ in 0..1 + u64::from(random(10) == 0) {
                        sent += 1;
                        if random(1000) >= loss {
                            heard.insert((now + random(delay_ms * MS), sent), report.clone());
                        }
                    }
                }
            }
            if step % 5 == 0 && alive && let Some(plan) = orchestrator.decide(now) {
                last_plan = now;
                for server in 0..servers.len() {
                    for _ in 0..1 + u64::from(random(10) == 0) {
                        sent += 1;
                        if random(1000) >= loss {
                            plans.insert((now + random(delay_ms * MS), sent), (server, plan.clone()));
                        }
                    }
                }
            }
            while let Some(entry) = heard.first_entry().filter(|entry| entry.key().0 <= now) {
                orchestrator.hear(now, &entry.remove());
            }
            while let Some(entry) = plans.first_entry().filter(|entry| entry.key().0 <= now) {
                let (server, plan) = entry.remove();
                servers[server].heard(now, plan);
            }
            let turns: Vec<_> = servers.iter_mut().map(|server| (server.turn(now), server.current.as_ref().map(|p| (p.epoch, p.slices.clone())))).collect();
            for (turn, plan) in &turns {
                gated += u64::from(turn.is_some());
                let same = turns.iter().filter(|(_, other)| plan.is_some() && other == plan);
                prop_assert!(same.clone().all(|(other, _)| other == turn), "servers with one plan disagree at {now}");
            }
            if now > last_plan + WINDOW {
                prop_assert!(turns.iter().all(|(turn, _)| turn.is_none()), "still gated at {now}, last plan at {last_plan}");
            }
        }
        prop_assert!(gated > 0 || loss > 300 || delay_ms > 400, "there were plans");
    }
}
