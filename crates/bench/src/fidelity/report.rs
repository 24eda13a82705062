//! What came out.

use anyhow::bail;
use serde_json::{Value, json};
use sluice_cli::output;

use super::situations::Situation;
use super::statistics::{error, largest, percentile, same_winner, spearman};
use crate::statistics::median;

const BAR_MEDIAN: f64 = 0.15;
const BAR_P90: f64 = 0.40;
const BAR_WINNER: f64 = 0.85;
/// Sides that differ less are as good as each other.
const TIE: f64 = 0.05;

/// A side of a situation.
pub(super) struct Cell {
    situation: String,
    unseen: bool,
    side: String,
    /// Bytes per second: the median, and smallest and largest.
    real: (f64, [f64; 2]),
    simulated: (f64, [f64; 2]),
}

impl Cell {
    /// # Errors
    /// If nothing was measured, or nothing was done.
    pub(super) fn new(
        situation: &Situation,
        side: &str,
        real: &[f64],
        mut simulated: Vec<f64>,
    ) -> anyhow::Result<Cell> {
        if real.is_empty() || real.iter().chain(&simulated).any(|value| !value.is_finite() || *value <= 0.0) {
            bail!("{}, {side}: a run in which nothing was done, or none; try more --seconds", situation.name);
        }
        Ok(Cell {
            situation: situation.name.clone(),
            unseen: situation.unseen,
            side: side.to_owned(),
            real: median(&mut real.to_vec()),
            simulated: median(&mut simulated),
        })
    }

    fn error(&self) -> f64 {
        error(self.simulated.0, self.real.0)
    }

    fn as_json(&self) -> Value {
        json!({
            "situation": self.situation,
            "unseen": self.unseen,
            "side": self.side,
            "real_bytes_per_s": self.real.0,
            "real_range": self.real.1,
            "simulated_bytes_per_s": self.simulated.0,
            "simulated_range": self.simulated.1,
            "error": self.error(),
        })
    }
}

/// Figures of some of the cells.
struct Summary {
    situations: usize,
    cells: usize,
    median: f64,
    p90: f64,
    max: f64,
    same_winner: f64,
    rank_correlation: f64,
}

impl Summary {
    fn of(cells: &[&Cell]) -> Summary {
        let errors: Vec<f64> = cells.iter().map(|cell| cell.error().abs()).collect();
        let contests = contests(cells);
        let same = contests.iter().filter(|sides| same_winner(&values(sides), TIE)).count();
        Summary {
            situations: contests.len(),
            cells: cells.len(),
            median: percentile(&errors, 0.5),
            p90: percentile(&errors, 0.9),
            max: percentile(&errors, 1.0),
            same_winner: same as f64 / contests.len() as f64,
            rank_correlation: spearman(&values(cells)),
        }
    }

    fn as_json(&self) -> Value {
        json!({
            "situations": self.situations,
            "sides": self.cells,
            "median_error": self.median,
            "p90_error": self.p90,
            "max_error": self.max,
            "same_winner": self.same_winner,
            "rank_correlation": self.rank_correlation,
        })
    }

    fn misses(&self, of: &str) -> Vec<String> {
        let percent = |value: f64| format!("{:.0} %", value * 100.0);
        let mut misses = Vec::new();
        if self.median > BAR_MEDIAN {
            misses.push(format!("{of}: median error {}, bar {}", percent(self.median), percent(BAR_MEDIAN)));
        }
        if self.p90 > BAR_P90 {
            misses.push(format!("{of}: 90th percentile of the error {}, bar {}", percent(self.p90), percent(BAR_P90)));
        }
        if self.same_winner < BAR_WINNER {
            misses.push(format!("{of}: same winner {}, bar {}", percent(self.same_winner), percent(BAR_WINNER)));
        }
        misses
    }
}

/// Real and simulated values.
fn values(cells: &[&Cell]) -> Vec<(f64, f64)> {
    cells.iter().map(|cell| (cell.real.0, cell.simulated.0)).collect()
}

/// The sides of each situation.
fn contests<'a>(cells: &[&'a Cell]) -> Vec<Vec<&'a Cell>> {
    let mut all: Vec<Vec<&Cell>> = Vec::new();
    for &cell in cells {
        match all.iter_mut().find(|sides| sides[0].situation == cell.situation) {
            Some(sides) => sides.push(cell),
            None => all.push(vec![cell]),
        }
    }
    all
}

pub(super) struct Report {
    device: String,
    seconds: u64,
    cells: Vec<Cell>,
}

impl Report {
    /// Cells in the order of their errors, the largest first.
    pub(super) fn new(device: &str, seconds: u64, mut cells: Vec<Cell>) -> Report {
        cells.sort_by(|a, b| b.error().abs().total_cmp(&a.error().abs()));
        Report { device: device.to_owned(), seconds, cells }
    }

    /// All cells, those of the seen half, those of the unseen.
    fn parts(&self) -> [Vec<&Cell>; 3] {
        let half = |unseen: bool| self.cells.iter().filter(|cell| cell.unseen == unseen).collect();
        [self.cells.iter().collect(), half(false), half(true)]
    }

    fn misses(&self) -> Vec<String> {
        let [all, _, unseen] = self.parts();
        let mut misses = Summary::of(&all).misses("all");
        if !unseen.is_empty() {
            misses.extend(Summary::of(&unseen).misses("unseen"));
        }
        misses
    }

    pub(super) fn as_json(&self) -> Value {
        let [all, seen, unseen] = self.parts();
        let mut json = Summary::of(&all).as_json();
        let half = |cells: &[&Cell]| if cells.is_empty() { Value::Null } else { Summary::of(cells).as_json() };
        let contest = |sides: &Vec<&Cell>| {
            // Of sides that are equal none wins.
            let winner = |of: fn(&Cell) -> f64| {
                let is_tie = sides.iter().all(|&cell| of(cell) == of(sides[0]));
                (!is_tie).then(|| &sides[largest(sides.iter().map(|&cell| of(cell)))].side)
            };
            json!({
                "situation": sides[0].situation,
                "real": winner(|cell| cell.real.0),
                "simulated": winner(|cell| cell.simulated.0),
                "same": same_winner(&values(sides), TIE),
            })
        };
        let more = json!({
            "emulated": true,
            "device": self.device,
            "seconds": self.seconds,
            "seen": half(&seen),
            "unseen": half(&unseen),
            "winners": contests(&all).iter().map(contest).collect::<Vec<_>>(),
            "cells": self.cells.iter().map(Cell::as_json).collect::<Vec<_>>(),
            "bars": {"median_error": BAR_MEDIAN, "p90_error": BAR_P90, "same_winner": BAR_WINNER, "tie": TIE},
            "misses": self.misses(),
        });
        if let (Value::Object(json), Value::Object(more)) = (&mut json, more) {
            json.extend(more);
        }
        json
    }

    pub(super) fn print(&self) {
        output::line(format_args!(
            "simulator against Linux on emulated {}, runs of {} s: MB/s, medians (smallest..largest)\n\
             error: simulated over real, or the other way round if that is larger (then negative), less 1\n",
            self.device, self.seconds
        ));
        output::line(format_args!(
            "{:<42}{:<12}{:>26}{:>26}{:>9}",
            "situation (* unseen)", "side", "real", "simulated", "error"
        ));
        for cell in &self.cells {
            let name = format!("{}{}", cell.situation, if cell.unseen { " *" } else { "" });
            let of = |(middle, [low, high]): (f64, [f64; 2])| {
                format!("{:.2} ({:.2}..{:.2})", middle / 1e6, low / 1e6, high / 1e6)
            };
            output::line(format_args!(
                "{name:<42}{:<12}{:>26}{:>26}{:>+7.1} %",
                cell.side,
                of(cell.real),
                of(cell.simulated),
                cell.error() * 100.0
            ));
        }
        let [all, seen, unseen] = self.parts();
        output::line("\nother winners");
        for sides in contests(&all).iter().filter(|sides| !same_winner(&values(sides), TIE)) {
            let real = largest(sides.iter().map(|cell| cell.real.0));
            let best = sides[largest(sides.iter().map(|cell| cell.simulated.0))].simulated.0;
            let simulated = sides.iter().filter(|cell| cell.simulated.0 == best).map(|cell| cell.side.as_str());
            output::line(format_args!(
                "  {}{}: real {}, simulated {}",
                sides[0].situation,
                if sides[0].unseen { " *" } else { "" },
                sides[real].side,
                simulated.collect::<Vec<_>>().join(" and ")
            ));
        }
        output::line(format_args!(
            "\n{:<8}{:>11}{:>7}{:>9}{:>9}{:>9}{:>13}{:>18}",
            "", "situations", "sides", "median", "p90", "max", "same winner", "rank correlation"
        ));
        for (name, cells) in [("all", &all), ("seen", &seen), ("unseen", &unseen)] {
            if cells.is_empty() {
                continue;
            }
            let of = Summary::of(cells);
            let correlation = Some(of.rank_correlation).filter(|value| !value.is_nan());
            output::line(format_args!(
                "{name:<8}{:>11}{:>7}{:>7.1} %{:>7.1} %{:>7.1} %{:>11.0} %{:>18}",
                of.situations,
                of.cells,
                of.median * 100.0,
                of.p90 * 100.0,
                of.max * 100.0,
                of.same_winner * 100.0,
                correlation.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
            ));
        }
        let misses = self.misses();
        let verdict = if misses.is_empty() { "reached" } else { "missed:" };
        output::line(format_args!(
            "\nbars: median {:.0} %, 90th percentile {:.0} %, same winner (or at most {:.0} % behind) {:.0} %: {verdict}",
            BAR_MEDIAN * 100.0,
            BAR_P90 * 100.0,
            TIE * 100.0,
            BAR_WINNER * 100.0
        ));
        misses.iter().for_each(|miss| output::line(format_args!("  {miss}")));
    }
}
