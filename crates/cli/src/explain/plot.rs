//! The picture of a timeline: what each configuration gave, what was lost, and which workload was there.

use std::collections::{BTreeMap, HashMap, HashSet};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use sluice_adapt::selector::{Record, Why};

use super::{RATE, workload};
use crate::chart::{self, Mark};

const SIZE: (u32, u32) = (1200, 640);
/// The colours of an algorithm alone and, where it has a part in that, with anticipation: a dark and a light one of about
/// the same hue. None is that of what was lost.
type Colours = (&'static str, RGBColor, Option<RGBColor>);
const COLOURS: [Colours; 10] = [
    ("noop", RGBColor(51, 34, 136), None),
    ("to", RGBColor(110, 60, 40), Some(RGBColor(190, 135, 105))),
    ("to-agg", chart::ORANGE, Some(RGBColor(255, 205, 150))),
    ("sjf", chart::GREEN, Some(RGBColor(125, 230, 190))),
    ("mlf", RGBColor(140, 60, 190), Some(RGBColor(200, 160, 250))),
    ("aioli", RGBColor(190, 20, 100), Some(RGBColor(255, 140, 185))),
    ("sw", RGBColor(100, 115, 0), Some(RGBColor(165, 190, 40))),
    ("twins", RGBColor(240, 228, 66), None),
    ("hbrr", chart::BLUE, Some(RGBColor(120, 195, 250))),
    ("wfq", RGBColor(0, 85, 90), Some(RGBColor(50, 180, 195))),
];
/// What the name of a configuration says when it anticipates.
const ANTICIPATES: &str = "anticipation=on";
/// Configurations that the legend explains, those that were there longest: disks have nine.
const NAMED_ARMS: usize = 9;
/// What is left of the plots: their labels, and as much before the legend.
const LEFT: u32 = 92;
/// Height of the strip of workloads, and of a line of its key.
const STRIP: u32 = 22;
const KEY: u32 = 20;
/// Workloads that the key explains, those that were there longest; the others have no name.
const EXPLAINED: usize = 8;
/// Narrower stretches of the strip have no name, in pixels.
const NAMED: f64 = 22.0;
/// The longest names in a picture, of configurations and of workloads, in characters.
const ARM_CHARS: usize = 40;
const WORKLOAD_CHARS: usize = 120;
/// What has no colour of its own.
const REST: RGBColor = RGBColor(160, 160, 160);

/// What was there between two times, in seconds.
struct Stretch<'a> {
    context: &'a str,
    from: f64,
    to: f64,
}

/// The times of a picture. What the first record says was there before it: a picture of less than a second reaches back
/// so far, or to 0, before which there is no time.
fn span(records: &[Record]) -> (f64, f64) {
    let (first, last) = records.first().zip(records.last()).map_or((0.0, 1.0), |(first, last)| (first.t, last.t));
    let begin = first.min(last - 1.0).max(0.0);
    // An axis has some length.
    (begin, last.max(begin + 0.001))
}

/// The workloads one after the other, from `begin` to `end`.
fn stretches(records: &[Record], begin: f64, end: f64) -> Vec<Stretch<'_>> {
    let mut all: Vec<Stretch<'_>> = Vec::new();
    let mut is_there = false;
    for (at, record) in records.iter().enumerate() {
        let context = record.context.as_deref();
        let goes_on = is_there && all.last().map(|last| last.context) == context;
        if let Some(last) = all.last_mut().filter(|_| is_there && !goes_on) {
            last.to = record.t;
        }
        if let Some(context) = context.filter(|_| !goes_on) {
            let from = if at == 0 { begin } else { record.t };
            all.push(Stretch { context, from, to: end });
        }
        is_there = context.is_some();
    }
    all
}

/// `A` to `Z`, then by number.
fn name(at: usize) -> String {
    u8::try_from(at).ok().filter(|at| *at < 26).map_or_else(|| (at + 1).to_string(), |at| char::from(b'A' + at).into())
}

/// In the order in which they are seen first.
pub(super) fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    all.filter(|one| seen.insert(*one)).collect()
}

/// A name that is no longer than so many characters, and can be drawn.
fn short(name: &str, most: usize) -> String {
    let whole: String = name.chars().filter(|c| !c.is_control()).take(most + 1).collect();
    if whole.chars().count() <= most { whole } else { whole.chars().take(most - 1).chain(['\u{2026}']).collect() }
}

/// The colour of a configuration, whatever else is in a picture: people look at several pictures side by side.
fn colour(arm: &str) -> RGBColor {
    let (name, rest) = arm.split_once(' ').unwrap_or((arm, ""));
    let Some(&(_, alone, anticipating)) = COLOURS.iter().find(|(known, ..)| *known == name) else {
        return made_up(arm);
    };
    let own = anticipating.filter(|_| rest.split(' ').any(|word| word == ANTICIPATES)).unwrap_or(alone);
    // Parameters are any; a configuration that has some is drawn beside the one without.
    if rest.is_empty() || rest == ANTICIPATES { own } else { halfway(own, made_up(rest)) }
}

/// A colour for a text that no table has, always the same.
fn made_up(text: &str) -> RGBColor {
    // FNV-1a, as the standard library's hash may be another one in its next version. Its upper bits hardly depend on the
    // last letters; after one more product they do.
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, add);
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Neither black nor white.
    let [red, green, blue, ..] = hash.to_be_bytes().map(|byte| 32 + byte % 184);
    RGBColor(red, green, blue)
}

fn halfway(one: RGBColor, other: RGBColor) -> RGBColor {
    RGBColor(one.0.midpoint(other.0), one.1.midpoint(other.1), one.2.midpoint(other.2))
}

/// The access pattern that was recognised most often in a workload: the last one may be that of the next.
fn pattern(records: &[Record], context: &str) -> String {
    let here = records.iter().filter(|record| record.context.as_deref() == Some(context));
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    here.filter_map(|record| record.pattern.as_deref()).for_each(|pattern| *counts.entry(pattern).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(pattern, _)| format!(" ({pattern})")).unwrap_or_default()
}

/// When trials began and ended, and the share that they lost.
fn trials(records: &[Record]) -> Vec<(f64, f64, f64)> {
    let (mut all, mut began) = (Vec::new(), None);
    for record in records {
        match (record.why, began.take()) {
            (Why::Trial, _) => began = Some(record.t),
            (Why::Window, since) => began = since,
            (Why::TrialLost, Some(since)) => all.extend(record.regret.map(|lost| (since, record.t, lost))),
            _ => {}
        }
    }
    all
}

/// A configuration from one time to another, in seconds, and the rate of the window that ended there.
struct Bar<'a> {
    from: f64,
    to: f64,
    arm: &'a str,
    rate: f64,
}

/// What was in force up to each record, and gave what that says of its window. A record reaches back to the one before, by `most` seconds.
fn bars(records: &[Record], begin: f64, most: f64) -> Vec<Bar<'_>> {
    let (mut all, mut before) = (Vec::new(), begin);
    for record in records {
        let (from, to, rate) = (before.max(record.t - most), record.t, record.rate_mb_s);
        if from < to {
            all.push(Bar { from, to, arm: record.from.as_deref().unwrap_or(&record.arm), rate });
        }
        before = to;
    }
    all
}

/// Those of `names` that were there longest, as many as can be explained: `most`, or one more if that is the only other. In the order
/// in which they are seen first. `times`: how long one was there, in pieces.
fn longest<'a>(names: &[&'a str], times: impl Iterator<Item = (&'a str, f64)>, most: usize) -> Vec<&'a str> {
    let mut seconds: HashMap<&str, f64> = HashMap::new();
    times.for_each(|(name, time)| *seconds.entry(name).or_default() += time);
    let of = |name: &str| seconds.get(name).copied().unwrap_or(0.0);
    let mut all = names.to_vec();
    all.sort_by(|a, b| of(b).total_cmp(&of(a)));
    all.truncate(if names.len() > most + 1 { most } else { most + 1 });
    names.iter().copied().filter(|name| all.contains(name)).collect()
}

/// Times with values, in pieces without a pause longer than `most`, nor one that is not known.
fn pieces(values: impl Iterator<Item = (f64, Option<f64>)>, most: f64) -> Vec<Vec<(f64, f64)>> {
    let (mut all, mut is_open): (Vec<Vec<(f64, f64)>>, bool) = (Vec::new(), false);
    for (t, value) in values {
        let Some(value) = value else {
            is_open = false;
            continue;
        };
        match all.last_mut().filter(|piece| is_open && piece.last().is_some_and(|(last, _)| t - last <= most)) {
            Some(piece) => piece.push((t, value)),
            None => all.push(vec![(t, value)]),
        }
        is_open = true;
    }
    all
}

fn inside<'a>(area: &chart::Area<'a>) -> chart::Area<'a> {
    area.margin(0, 0, LEFT, 0)
}

/// Draws it as SVG.
pub(super) fn draw(records: &[Record], emulated: bool) -> anyhow::Result<String> {
    let windows: Vec<&Record> = records.iter().filter(|record| record.why == Why::Window).collect();
    let (begin, end) = span(records);
    let stretches = stretches(records, begin, end);
    let seen = records.iter().flat_map(|record| record.from.as_deref().into_iter().chain([record.arm.as_str()]));
    let (arms, contexts) = (distinct(seen), distinct(stretches.iter().map(|one| one.context)));
    let explained =
        longest(&contexts, stretches.iter().map(|stretch| (stretch.context, stretch.to - stretch.from)), EXPLAINED);
    // A window reaches back to the one before, unless there was a pause between them.
    let mut gaps: Vec<f64> = windows.windows(2).map(|two| two[1].t - two[0].t).collect();
    gaps.sort_by(f64::total_cmp);
    let usual = gaps.get(gaps.len() / 2).map_or(end - begin, |gap| gap * 1.5);
    let bars = bars(records, begin, usual);
    let named = longest(&arms, bars.iter().map(|bar| (bar.arm, bar.to - bar.from)), NAMED_ARMS);
    let colour = |arm: &str| if named.contains(&arm) { colour(arm) } else { REST };
    let mut names: Vec<(String, Mark)> =
        named.iter().map(|arm| (short(arm, ARM_CHARS), Mark::Bar(colour(arm)))).collect();
    if arms.len() > named.len() {
        names.push((format!("{} more, for less time", arms.len() - named.len()), Mark::Bar(REST)));
    }
    let mut series: Vec<(&str, Mark)> = names.iter().map(|(name, mark)| (name.as_str(), *mark)).collect();
    if windows.iter().any(|window| window.expected_mb_s.is_some()) {
        series.push(("expected", Mark::Line(BLACK)));
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.margin(8, 4, 8, 12);
        let on = if emulated { " (emulated devices)" } else { "" };
        let area = area.titled(&format!("What was chosen, and what it gave{on}"), ("sans-serif", chart::TITLE))?;
        let (legend, area) = area.split_vertically(chart::legend_height(&inside(&area), &series)?);
        chart::legend(&inside(&legend), &series)?;
        let key = contexts.len().min(EXPLAINED + 1) as u32 * KEY;
        let (plots, below) = area.split_vertically(area.dim_in_pixel().1 - STRIP - key - 4);
        let (upper, lower) = plots.split_vertically(plots.dim_in_pixel().1 * 3 / 5);

        let top = records.iter().map(|record| record.rate_mb_s.max(record.expected_mb_s.unwrap_or(0.0)));
        let top = top.fold(1.0, f64::max) * 1.05;
        let mut plot = ChartBuilder::on(&upper)
            .margin_top(12)
            .x_label_area_size(10)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(begin..end, 0.0..top)?;
        plot.configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(RATE)
            .y_labels(6)
            .y_label_formatter(&|value| chart::number(*value))
            .label_style(("sans-serif", chart::TEXT))
            .light_line_style(WHITE)
            .draw()?;
        for bar in bars {
            plot.draw_series([Rectangle::new([(bar.from, 0.0), (bar.to, bar.rate)], colour(bar.arm).filled())])?;
        }
        for piece in pieces(windows.iter().map(|window| (window.t, window.expected_mb_s)), usual) {
            plot.draw_series(LineSeries::new(piece, BLACK.stroke_width(2)))?;
        }

        let mut plot = ChartBuilder::on(&lower)
            .margin_top(8)
            .x_label_area_size(46)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(begin..end, 0.0..100.0)?;
        plot.configure_mesh()
            .disable_x_mesh()
            .x_desc("seconds")
            .y_desc("lost, %")
            .x_labels(10)
            .y_labels(5)
            .x_label_formatter(&|value| chart::number(*value))
            .y_label_formatter(&|value| chart::number(*value))
            .label_style(("sans-serif", chart::TEXT))
            .light_line_style(WHITE)
            .draw()?;
        let trials = trials(records);
        let is_trial = |t: f64| trials.iter().any(|(from, to, _)| (*from..=*to).contains(&t));
        let lost = |window: &&Record| {
            (window.t, window.regret.filter(|_| !is_trial(window.t)).map(|regret| regret.clamp(0.0, 1.0) * 100.0))
        };
        for piece in pieces(windows.iter().map(lost), usual) {
            plot.draw_series(AreaSeries::new(piece, 0.0, chart::VERMILION.mix(0.6)))?;
        }
        // Between windows that are logged a trial may begin and end.
        for (from, to, lost) in trials {
            let bar =
                Rectangle::new([(from, 0.0), (to, lost.clamp(0.0, 1.0) * 100.0)], chart::VERMILION.mix(0.6).filled());
            plot.draw_series([bar])?;
        }

        let (strip, key) = below.split_vertically(STRIP + 4);
        let middle = (STRIP / 2) as i32;
        strip.draw_text("workload", &chart::text(Pos::new(HPos::Left, VPos::Center)), (0, middle))?;
        let width = f64::from(strip.dim_in_pixel().0 - LEFT);
        let x = |t: f64| f64::from(LEFT) + (t - begin) / (end - begin) * width;
        for (turn, stretch) in stretches.iter().enumerate() {
            let (from, to) = (x(stretch.from), x(stretch.to));
            let at = explained.iter().position(|context| *context == stretch.context);
            let grey = RGBColor(200, 200, 200).mix(if turn % 2 == 0 { 1.0 } else { 0.5 });
            strip.draw(&Rectangle::new([(from as i32, 0), (to as i32, STRIP as i32)], grey.filled()))?;
            if let Some(at) = at.filter(|_| to - from >= NAMED) {
                let style = chart::text(Pos::new(HPos::Center, VPos::Center));
                strip.draw_text(&name(at), &style, (((from + to) / 2.0) as i32, middle))?;
            }
        }
        let mut lines: Vec<String> = explained
            .iter()
            .enumerate()
            .map(|(at, context)| {
                let text = format!("{}: {}{}", name(at), workload(Some(*context)), pattern(records, context));
                short(&text, WORKLOAD_CHARS)
            })
            .collect();
        if contexts.len() > explained.len() {
            lines.push(format!("and {} more, for less time", contexts.len() - explained.len()));
        }
        for (at, text) in lines.iter().enumerate() {
            let style = chart::text(Pos::new(HPos::Left, VPos::Center));
            key.draw_text(text, &style, (LEFT as i32, (at as u32 * KEY + KEY / 2) as i32))?;
        }
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;
    use crate::chart::seen::Picture;

    /// A timeline of so many arms and workloads, full to the top, where a legend inside would be in the way.
    fn timeline(arms: &[&str], contexts: usize) -> Vec<Record> {
        let of = |at: usize| Record {
            context: Some(format!("r2.q{}.d1.f{}.a{}", at / 8 % 3, at / 2 % 4, at % 2)),
            ..record(at as f64, Why::Window, arms[at % arms.len()], 20.0 + at as f64 / 10.0)
        };
        (0..100).map(|at| Record { context: of(at * contexts / 100).context, ..of(at) }).collect()
    }

    #[test]
    fn all_of_it_can_be_read() {
        let all: Vec<String> = ["noop", "sjf", "hbrr", "aioli", "mlf"]
            .iter()
            .flat_map(|name| [name.to_string(), format!("{name} anticipation=on in_flight=16")])
            .take(9)
            .collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        for (arms, contexts) in [(1, 1), (3, 2), (9, 1), (9, 8), (9, 9), (9, 24)] {
            let picture = Picture::of(&draw(&timeline(&all[..arms], contexts), true).unwrap());
            picture.is_readable();
            picture.has_legend(&all[..arms]);
            let texts = picture.texts_but(&all);
            assert!(texts.contains(&RATE) && texts.contains(&"expected") && texts.contains(&"workload"), "{texts:?}");
            let key = texts.iter().filter(|text| text.ends_with("(strided small)")).count();
            assert_eq!(key, if contexts > 9 { 8 } else { contexts }, "{texts:?}");
            assert_eq!(texts.contains(&"and 16 more, for less time"), contexts == 24);
        }
    }

    #[test]
    fn a_configuration_has_the_same_colour_in_every_picture() {
        let of = |arms: &[&str]| Picture::of(&draw(&timeline(arms, 1), false).unwrap());
        let arms = ["sjf", "hbrr anticipation=on", "hbrr anticipation=on in_flight=4", "hbrr ranges=2", "not known"];
        let few = of(&arms);
        let many = of(&[&["noop", "hbrr"][..], &arms, &["aioli"]].concat());
        for (at, arm) in arms.iter().enumerate() {
            assert_eq!(few.colour_of(arm), many.colour_of(arm), "{arm}");
            assert!(arms[..at].iter().all(|other| few.colour_of(other) != few.colour_of(arm)), "{arm}");
        }
        assert_eq!(few.colour_of("sjf"), "#009E73");
    }

    #[test]
    fn every_algorithm_has_colours_that_are_told_apart() {
        for info in sluice_core::policy::table() {
            let known = COLOURS.iter().find(|(name, ..)| *name == info.name);
            let (_, _, anticipating) = known.unwrap_or_else(|| panic!("{} has no colour", info.name));
            let may_anticipate = !info.bypasses_queue && !info.shared_engine;
            assert_eq!(anticipating.is_some(), may_anticipate, "{}", info.name);
        }
        let arms = COLOURS.iter().flat_map(|&(_, alone, anticipating)| std::iter::once(alone).chain(anticipating));
        let all: Vec<RGBColor> = arms.chain([REST, WHITE, BLACK, chart::VERMILION]).collect();
        for (at, one) in all.iter().enumerate() {
            for other in &all[..at] {
                let parts = [(one.0, other.0), (one.1, other.1), (one.2, other.2)];
                let squares: u32 = parts.iter().map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum();
                assert!(squares > 64 * 64, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn a_short_log_fills_its_picture() {
        let windows = |times: &[f64]| times.iter().map(|t| record(*t, Why::Window, "noop", 20.0)).collect::<Vec<_>>();
        for (times, expected) in [
            (&[10.0, 70.0][..], (10.0, 70.0)),
            (&[10.0, 10.5], (9.5, 10.5)),
            (&[0.25, 0.5], (0.0, 0.5)),
            (&[3.0], (2.0, 3.0)),
            (&[0.0], (0.0, 0.001)),
        ] {
            let records = windows(times);
            let (begin, end) = span(&records);
            assert_eq!((begin, end), expected);
            let stretches = stretches(&records, begin, end);
            assert_eq!((stretches[0].from, stretches[0].to), expected);
            let bars = bars(&records, begin, 60.0);
            assert!(bars.last().map_or(times == [0.0], |bar| bar.to == end), "{times:?}");
        }
    }

    #[test]
    fn where_there_was_nothing_to_choose_from_there_is_no_workload() {
        let at = |t: f64, context: Option<&str>| Record {
            context: context.map(str::to_owned),
            ..record(t, Why::Window, "noop", 20.0)
        };
        let (one, two) = (Some("r2.q0.d1.f1.a0"), Some("w2.q0.d1.f1.a0"));
        let contexts = [None, one, one, None, None, one, two, two];
        let records: Vec<Record> = contexts.iter().enumerate().map(|(t, context)| at(t as f64, *context)).collect();
        let found: Vec<(&str, f64, f64)> =
            stretches(&records, 0.0, 9.0).iter().map(|stretch| (stretch.context, stretch.from, stretch.to)).collect();
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(found, [(one, 1.0, 3.0), (one, 5.0, 6.0), (two, 6.0, 9.0)]);
    }

    /// What no selector has, but a file may: the picture stays one that can be looked at.
    #[test]
    fn hundreds_of_long_names_are_bounded() {
        let names: Vec<String> = (0..300).map(|at| format!("arm {at} {}", "of a long name ".repeat(1_000))).collect();
        let records: Vec<Record> = names
            .iter()
            .enumerate()
            .flat_map(|(at, name)| {
                // The later ones are there for longer; a context that is none is shown as it is.
                let t = (at * at) as f64 / 100.0;
                let one = |t: f64| Record { context: Some(name.clone()), ..record(t, Why::Window, name, 20.0) };
                [one(t), one(t + 0.005 * at as f64)]
            })
            .collect();
        let svg = draw(&records, false).unwrap();
        assert!(svg.len() < 1 << 20, "{} bytes", svg.len());
        let picture = Picture::of(&svg);
        picture.is_readable();
        let texts = picture.texts_but(&[]);
        assert!(texts.contains(&"291 more, for less time"), "{texts:?}");
        assert!(texts.iter().any(|text| text.starts_with("arm 299 of a long")), "{texts:?}");
        assert!(!texts.iter().any(|text| text.starts_with("arm 0 ")), "{texts:?}");
    }

    #[test]
    fn arms_change_between_windows_that_are_logged() {
        let lost = Record { from: Some("aioli".to_owned()), ..record(1.8, Why::TrialLost, "noop", 5.0) };
        let records = [
            record(0.0, Why::Begin, "noop", 0.0),
            record(1.0, Why::Window, "noop", 20.0),
            record(1.2, Why::Trial, "aioli", 30.0),
            lost,
            record(2.0, Why::Window, "noop", 21.0),
            record(2.0, Why::Better, "sjf", 21.0),
        ];
        let drawn = |records: &[Record]| -> Vec<(f64, f64, String, f64)> {
            bars(records, 0.0, 1.5).into_iter().map(|bar| (bar.from, bar.to, bar.arm.to_owned(), bar.rate)).collect()
        };
        let of = |all: &[(f64, f64, &str, f64)]| -> Vec<_> {
            all.iter().map(|&(from, to, arm, rate)| (from, to, arm.to_owned(), rate)).collect()
        };
        let expected = of(&[
            (0.0, 1.0, "noop", 20.0),
            (1.0, 1.2, "noop", 30.0),
            (1.2, 1.8, "aioli", 5.0),
            (1.8, 2.0, "noop", 21.0),
        ]);
        assert_eq!(drawn(&records), expected);
        assert_eq!(drawn(&records[1..2]), of(&[(0.0, 1.0, "noop", 20.0)]), "the beginning is not there");
    }

    #[test]
    fn a_log_of_one_line_is_drawn() {
        assert!(draw(&[record(3.0, Why::Trial, "noop", 0.0)], false).unwrap().starts_with("<svg"));
    }
}
