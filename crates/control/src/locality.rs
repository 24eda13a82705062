//! What data servers report of locality, and the plans that come back, as messages.

use sluice_adapt::orchestrator::{Activity, ProgramReport, Report, Value};
use sluice_core::{AppId, GatePlan, GateSlice, LOCALITY_APPS, Time};

use crate::wire;

/// Windows are from the first to the second, in nanoseconds: shorter ones would be more messages than a node may send.
pub(crate) const WINDOW_NS: std::ops::RangeInclusive<u64> = 100_000_000..=60_000_000_000;
/// What no server sees: larger numbers are mistakes or lies.
const COUNT_MAX: u64 = 1 << 40;
const BYTES_MAX: u64 = 1 << 50;
const NS_MAX: u64 = 3_600_000_000_000;
const DISTANCE_MAX: f64 = 1e19;

/// How an application is named in reports and plans: the same on all data servers.
pub(crate) fn program(app: AppId) -> String {
    format!("{:08x}", app.0)
}

/// The application of a program's name.
pub(crate) fn app(program: &str) -> Option<AppId> {
    u32::from_str_radix(program, 16).ok().map(AppId)
}

/// A report as a message; who sent it, and when, is the message's.
pub(crate) fn to_wire(report: &Report) -> wire::Locality {
    let smoothed = |value: &Value| Some(wire::Smoothed { last: value.last, mean: value.mean, count: value.count });
    let program = |seen: &ProgramReport| {
        Some(wire::Program {
            app: app(&seen.program)?.0,
            requests: seen.requests,
            bytes: seen.bytes,
            distance: smoothed(&seen.distance),
            seek_ns: seen.seek_ns,
            reuse: smoothed(&seen.reuse),
            idle_ns: seen.idle_ns.min(NS_MAX),
        })
    };
    let activity = |said: &Activity| {
        let (app, for_ns) = (app(&said.program)?.0, said.for_ns.min(NS_MAX));
        Some(wire::Activity { app, computes: said.computes, for_ns })
    };
    let gated = match report.plan {
        None => wire::Gated::Unspecified,
        Some(0) => wire::Gated::Never,
        Some(_) => wire::Gated::Always,
    };
    wire::Locality {
        window_ns: report.window_ns.clamp(1, NS_MAX),
        gated: gated.into(),
        distance: smoothed(&report.distance),
        seek_ns: report.seek_ns,
        others: smoothed(&report.others),
        programs: report.programs.iter().take(LOCALITY_APPS).filter_map(program).collect(),
        activities: report.activities.iter().take(LOCALITY_APPS).filter_map(activity).collect(),
    }
}

/// A report of a message.
///
/// # Errors
/// If something in it cannot be: what.
pub(crate) fn of(said: &wire::Locality, server: u64, number: u64, now: Time) -> Result<Report, &'static str> {
    let check = |is_fine: bool, what: &'static str| if is_fine { Ok(()) } else { Err(what) };
    let value = |said: &Option<wire::Smoothed>, most: f64| {
        let Some(said) = said else { return Ok(Value::default()) };
        let fits = |value: f64| (0.0..=most).contains(&value);
        check(fits(said.last) && fits(said.mean) && said.count <= COUNT_MAX, "a smoothed value")?;
        Ok(Value { last: said.last, mean: said.mean, count: said.count })
    };
    check((1..=NS_MAX).contains(&said.window_ns), "window_ns")?;
    check(said.seek_ns <= NS_MAX, "seek_ns")?;
    check(said.programs.len() <= LOCALITY_APPS, "programs")?;
    let mut programs = Vec::with_capacity(said.programs.len());
    for seen in &said.programs {
        check(seen.requests <= COUNT_MAX && seen.bytes <= BYTES_MAX, "programs")?;
        check(seen.seek_ns <= NS_MAX && seen.idle_ns <= NS_MAX, "programs")?;
        programs.push(ProgramReport {
            program: program(AppId(seen.app)),
            requests: seen.requests,
            bytes: seen.bytes,
            distance: value(&seen.distance, DISTANCE_MAX)?,
            seek_ns: seen.seek_ns,
            reuse: value(&seen.reuse, NS_MAX as f64)?,
            idle_ns: seen.idle_ns,
        });
    }
    check(are_different(said.programs.iter().map(|seen| seen.app)), "programs")?;
    let fits = said.activities.len() <= LOCALITY_APPS && said.activities.iter().all(|said| said.for_ns <= NS_MAX);
    check(fits && are_different(said.activities.iter().map(|said| said.app)), "activities")?;
    let activity = |said: &wire::Activity| Activity {
        program: program(AppId(said.app)),
        computes: said.computes,
        for_ns: said.for_ns,
    };
    Ok(Report {
        server,
        number,
        window_ns: said.window_ns,
        at: now.0,
        plan: match wire::Gated::try_from(said.gated) {
            Ok(wire::Gated::Never) => Some(0),
            Ok(wire::Gated::Always) => Some(1),
            Ok(wire::Gated::Unspecified) | Err(_) => None,
        },
        distance: value(&said.distance, DISTANCE_MAX)?,
        seek_ns: said.seek_ns,
        others: value(&said.others, NS_MAX as f64)?,
        programs,
        activities: said.activities.iter().map(activity).collect(),
    })
}

fn are_different(apps: impl Iterator<Item = u32>) -> bool {
    let mut apps: Vec<u32> = apps.collect();
    apps.sort_unstable();
    apps.windows(2).all(|two| two[0] != two[1])
}

/// A plan as a message.
pub(crate) fn gate_to_wire(window_ns: u64, plan: Option<&GatePlan>) -> wire::Gate {
    let slice =
        |slice: &GateSlice| wire::Slice { apps: slice.apps.iter().map(|app| app.0).collect(), len_ns: slice.len_ns };
    let time = |time: fn(&GatePlan) -> Time| plan.map_or(0, |plan| time(plan).0);
    wire::Gate {
        window_ns,
        epoch_ns: time(|plan| plan.epoch),
        from_ns: time(|plan| plan.from),
        expires_ns: time(|plan| plan.expires),
        slices: plan.iter().flat_map(|plan| &plan.slices).map(slice).collect(),
        idle_ns: plan.and_then(|plan| plan.idle_ns),
    }
}

/// Window and plan of a message; `None` if no engine can follow that.
pub(crate) fn gate_of(said: &wire::Gate) -> Option<(u64, Option<GatePlan>)> {
    if !WINDOW_NS.contains(&said.window_ns) {
        return None;
    }
    if said.slices.is_empty() {
        return Some((said.window_ns, None));
    }
    let slice =
        |said: &wire::Slice| GateSlice { apps: said.apps.iter().map(|app| AppId(*app)).collect(), len_ns: said.len_ns };
    let plan = GatePlan {
        epoch: Time(said.epoch_ns),
        from: Time(said.from_ns),
        expires: Time(said.expires_ns),
        slices: said.slices.iter().map(slice).collect(),
        idle_ns: said.idle_ns,
    };
    plan.check().is_ok().then_some((said.window_ns, Some(plan)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let value = Value { last: 3.0, mean: 4.0, count: 5 };
        let seen = ProgramReport {
            program: program(AppId(0xfeed)),
            requests: 7,
            bytes: 8,
            distance: value,
            seek_ns: 9,
            reuse: value,
            idle_ns: 10,
        };
        let said = |app, computes| Activity { program: program(AppId(app)), computes, for_ns: 11 };
        Report {
            server: 1,
            number: 2,
            window_ns: 500,
            at: 77,
            plan: Some(0),
            distance: value,
            seek_ns: 6,
            others: Value::default(),
            programs: vec![seen],
            activities: vec![said(0xfeed, true), said(0xbee, false)],
        }
    }

    #[test]
    fn reports_and_plans_survive_the_way() {
        let report = report();
        assert_eq!(of(&to_wire(&report), 1, 2, Time(77)), Ok(report));
        let slice = |app: Option<u32>| GateSlice { apps: app.map(AppId).into_iter().collect(), len_ns: 1_000_000 };
        let plan = GatePlan {
            epoch: Time(1),
            from: Time(2),
            expires: Time(3),
            slices: vec![slice(Some(7)), slice(None)],
            idle_ns: Some(0),
        };
        let window_ns = 500_000_000;
        assert_eq!(gate_of(&gate_to_wire(window_ns, Some(&plan))), Some((window_ns, Some(plan.clone()))));
        assert_eq!(gate_of(&gate_to_wire(window_ns, None)), Some((window_ns, None)));
        assert_eq!(gate_of(&gate_to_wire(1, None)), None, "windows of a nanosecond");
        let bad = GatePlan { slices: vec![slice(Some(7)), slice(Some(8))], ..plan };
        assert_eq!(gate_of(&gate_to_wire(window_ns, Some(&bad))), None, "nobody serves the others");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |what: &str, change: &dyn Fn(&mut wire::Locality)| {
            let mut said = to_wire(&report());
            change(&mut said);
            assert_eq!(of(&said, 1, 2, Time(3)), Err(what));
        };
        refused("window_ns", &|said| said.window_ns = 0);
        refused("seek_ns", &|said| said.seek_ns = u64::MAX);
        refused("a smoothed value", &|said| said.distance.as_mut().unwrap().mean = f64::NAN);
        refused("a smoothed value", &|said| said.others = Some(wire::Smoothed { last: -1.0, mean: 0.0, count: 1 }));
        refused("programs", &|said| said.programs = vec![said.programs[0]; 2]);
        refused("programs", &|said| {
            said.programs = (0..=LOCALITY_APPS as u32).map(|app| wire::Program { app, ..said.programs[0] }).collect();
        });
        refused("programs", &|said| said.programs[0].bytes = u64::MAX);
        refused("programs", &|said| said.programs[0].idle_ns = u64::MAX);
        refused("activities", &|said| said.activities = vec![said.activities[0]; 2]);
        refused("activities", &|said| said.activities[1].for_ns = u64::MAX);
        refused("activities", &|said| {
            let many = 0..=LOCALITY_APPS as u32;
            said.activities = many.map(|app| wire::Activity { app, ..said.activities[0] }).collect();
        });
    }

    /// Of a node or coordinator that does not know what programs say.
    #[test]
    fn reports_of_and_for_earlier_versions_are_understood() {
        let mut said = to_wire(&report());
        said.activities.clear();
        said.programs[0].idle_ns = 0;
        let known = of(&said, 1, 2, Time(77)).unwrap();
        assert_eq!((known.activities.len(), known.programs[0].idle_ns), (0, 0));
        // Who has been silent or computing for longer than anything is counted is so all the same.
        let mut long = report();
        (long.programs[0].idle_ns, long.activities[0].for_ns, long.window_ns) = (u64::MAX, u64::MAX, u64::MAX);
        let known = of(&to_wire(&long), 1, 2, Time(77)).unwrap();
        assert_eq!((known.programs[0].idle_ns, known.activities[0].for_ns, known.window_ns), (NS_MAX, NS_MAX, NS_MAX));
    }
}
