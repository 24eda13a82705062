//! What came out.

use serde_json::{Map, Value, json};
use sluice_cli::output;
use sluice_notation::counted;

use super::workloads::Workload;
use crate::bed::Side;
use crate::statistics::median;

/// Least throughput of Sluicegate over that of the kernel's best scheduler.
const BAR: f64 = 0.95;

/// The same for all algorithms and workloads, but that direct I/O goes past both caches and the other through the mount's.
/// `rotates`: the emulated device has an arm to move.
pub(crate) fn settings(rotates: bool, direct: bool) -> [&'static str; 5] {
    let (cache, direct) =
        if direct { ("cache = \"none\"", "direct = true") } else { ("cache = \"auto\"", "direct = false") };
    [cache, "[volume]", direct, "[device]", if rotates { "kind = \"disk\"" } else { "kind = \"flash\"" }]
}

/// One run of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// In the workload's unit.
    pub(crate) value: f64,
    /// Millions of bytes in a second, if that is known.
    pub(crate) mb_s: Option<f64>,
    /// Of each group of jobs, if there are several.
    pub(crate) parts: Vec<(String, f64)>,
}

/// A workload: for each side, its runs, round by round.
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) runs: Vec<Vec<Run>>,
}

pub(crate) struct Report {
    disk: String,
    /// See [`settings`].
    rotates: bool,
    rounds: u32,
    seconds: u32,
    sides: Vec<Side>,
    rows: Vec<Row>,
}

impl Row {
    /// Median, smallest and largest of a side.
    fn middle(&self, side: usize) -> (f64, [f64; 2]) {
        median(&mut self.runs[side].iter().map(|run| run.value).collect::<Vec<_>>())
    }

    /// The medians of a side's groups of jobs.
    fn parts(&self, side: usize) -> Map<String, Value> {
        let names =
            self.runs[side].first().map(|run| run.parts.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        let of = |part: usize| median(&mut self.runs[side].iter().map(|run| run.parts[part].1).collect::<Vec<_>>()).0;
        names.into_iter().flatten().enumerate().map(|(part, name)| (name, json!(of(part)))).collect()
    }

    /// Of a side over another, in the same round: median, smallest and largest.
    fn ratio(&self, side: usize, other: usize) -> (f64, [f64; 2]) {
        let runs = self.runs[side].iter().zip(&self.runs[other]);
        // Where neither did anything they are equal.
        let ratio =
            |(side, other): (&Run, &Run)| if side.value == other.value { 1.0 } else { side.value / other.value };
        median(&mut runs.map(ratio).collect::<Vec<_>>())
    }
}

impl Report {
    /// Rows in the order of how much Sluicegate loses.
    pub(crate) fn new(
        disk: String,
        rotates: bool,
        rounds: u32,
        seconds: u32,
        sides: Vec<Side>,
        rows: Vec<Row>,
    ) -> Report {
        let mut report = Report { disk, rotates, rounds, seconds, sides, rows };
        let mut rows = std::mem::take(&mut report.rows);
        rows.sort_by(|a, b| report.best_ratio(a).1.total_cmp(&report.best_ratio(b).1));
        report.rows = rows;
        report
    }

    fn kernel(&self) -> impl Iterator<Item = usize> {
        (0..self.sides.len()).filter(|&side| self.sides[side].policy.is_none())
    }

    fn ours(&self) -> impl Iterator<Item = usize> {
        (0..self.sides.len()).filter(|&side| self.sides[side].policy.is_some())
    }

    /// Pairs of sides that differ by anticipation alone: with it, and without.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let without = self.ours().filter_map(|side| {
            let policy = self.sides[side].policy.as_ref()?.strip_suffix(Side::OFF)?;
            let with = Side { policy: Some(policy.to_owned()), ..self.sides[side].clone() };
            Some((self.sides.iter().position(|other| *other == with)?, side))
        });
        without.collect::<Vec<_>>().into_iter()
    }

    /// The kernel's best scheduler, by its median.
    fn rival(&self, row: &Row) -> usize {
        self.kernel().max_by(|&a, &b| row.middle(a).0.total_cmp(&row.middle(b).0)).unwrap_or_default()
    }

    /// The side of Sluicegate with the largest ratio to that, and the ratio.
    fn best_ratio(&self, row: &Row) -> (usize, f64) {
        let rival = self.rival(row);
        let ratios = self.ours().map(|side| (side, row.ratio(side, rival).0));
        ratios.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((rival, 1.0))
    }

    fn misses(&self) -> Vec<String> {
        let missed = self.rows.iter().filter(|row| self.best_ratio(row).1 < BAR);
        let text = |row: &Row| {
            let ((side, ratio), rival) = (self.best_ratio(row), self.rival(row));
            let (ours, best) = (self.sides[side].name(), self.sides[rival].name());
            format!("{}: {ratio:.2} of {best}'s at best ({ours}), bar {BAR}", row.workload.name)
        };
        missed.map(text).collect()
    }

    /// Of each of Sluicegate's sides, in how many rows it reaches the bar.
    fn reached(&self, side: usize) -> usize {
        self.rows.iter().filter(|row| row.ratio(side, self.rival(row)).0 >= BAR).count()
    }

    /// For machines.
    pub(crate) fn as_json(&self) -> Value {
        let of = |sides: &mut dyn Iterator<Item = usize>, value: &dyn Fn(usize) -> Value| -> Value {
            sides.map(|side| (self.sides[side].name(), value(side))).collect::<Map<_, _>>().into()
        };
        let row = |row: &Row| {
            let (rival, best) = (self.rival(row), self.best_ratio(row));
            let middle = |side| json!(row.middle(side).0);
            let mut fields = json!({
                "workload": row.workload.name,
                "about": row.workload.about,
                "direct": row.workload.direct,
                "unit": row.workload.unit.name(),
                "kernel": of(&mut self.kernel(), &middle),
                "sluice": of(&mut self.ours(), &middle),
                "ranges": of(&mut (0..self.sides.len()), &|side| json!(row.middle(side).1)),
                "best_kernel": self.sides[rival].name(),
                "ratios": of(&mut self.ours(), &|side| {
                    let (ratio, range) = row.ratio(side, rival);
                    json!({"ratio": ratio, "range": range})
                }),
                "best_sluice": self.sides[best.0].name(),
                "best_ratio": best.1,
            });
            for (with, without) in self.pairs() {
                let (ratio, range) = row.ratio(with, without);
                fields["anticipation"][self.sides[with].name()] = json!({"ratio": ratio, "range": range});
            }
            if !row.parts(rival).is_empty() {
                fields["parts"] = of(&mut (0..self.sides.len()), &|side| row.parts(side).into());
            }
            fields
        };
        json!({
            "emulated": true,
            "disk": self.disk,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "sluice_direct": settings(self.rotates, true),
            "sluice_buffered": settings(self.rotates, false),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "bar": BAR,
            "reached": of(&mut self.ours(), &|side| json!(self.reached(side))),
            "misses": self.misses(),
        })
    }

    pub(crate) fn print(&self) {
        let toml = |direct| settings(self.rotates, direct).join(" ");
        output::line(format_args!(
            "{}: medians of {} of {} s, all sides in turns\n\
             Sluicegate's mounts: {}\n\
             with O_DIRECT:       {}\n",
            self.disk,
            counted(self.rounds.into(), "round"),
            self.seconds,
            toml(false),
            toml(true)
        ));
        let wide = |side: &Side| side.name().chars().count().max(8);
        let names: String =
            self.sides.iter().map(|side| format!("  {:>width$}", side.name(), width = wide(side))).collect();
        output::line(format_args!("{:<32}{:<15}{names}", "workload", "unit"));
        for row in &self.rows {
            let values: String = (0..self.sides.len())
                .map(|side| format!("  {:>width$.1}", row.middle(side).0, width = wide(&self.sides[side])))
                .collect();
            output::line(format_args!("{:<32}{:<15}{values}", row.workload.name, row.workload.unit.name()));
            for part in row.parts(self.rival(row)).keys() {
                let values: String = (0..self.sides.len())
                    .map(|side| {
                        let value = row.parts(side)[part].as_f64().unwrap_or(0.0);
                        format!("  {value:>width$.1}", width = wide(&self.sides[side]))
                    })
                    .collect();
                output::line(format_args!("  {:<30}{:<15}{values}", format!("of it {part}"), ""));
            }
        }
        output::line("\nover the kernel's best scheduler, in the same round (median, smallest..largest)\n");
        output::line(format_args!("{:<32}{:<12}", "workload", "kernel's"));
        for row in &self.rows {
            let rival = self.rival(row);
            let ratios: String = self
                .ours()
                .map(|side| {
                    let (ratio, [low, high]) = row.ratio(side, rival);
                    format!("  {} {ratio:.2} ({low:.2}..{high:.2})", self.sides[side].name())
                })
                .collect();
            output::line(format_args!("{:<32}{:<12}{ratios}", row.workload.name, self.sides[rival].name()));
        }
        for (with, without) in self.pairs() {
            let name = self.sides[with].name();
            output::line(format_args!(
                "\n{name}: with anticipation over without, in the same round (median, smallest..largest)\n"
            ));
            let mut rows: Vec<_> = self.rows.iter().map(|row| (row.ratio(with, without), row.workload.name)).collect();
            rows.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
            for ((ratio, [low, high]), name) in rows {
                output::line(format_args!("{name:<32}  {ratio:.2} ({low:.2}..{high:.2})"));
            }
        }
        let misses = self.misses();
        let verdict = if misses.is_empty() { "reached in all rows" } else { "missed:" };
        output::line(format_args!("\nbar: {BAR} of the kernel's best by one of Sluicegate's sides; {verdict}"));
        misses.iter().for_each(|miss| output::line(format_args!("  {miss}")));
        for side in self.ours() {
            let (reached, all) = (self.reached(side), self.rows.len());
            output::line(format_args!("{} alone reaches it in {reached} of {all} rows", self.sides[side].name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::workloads::WORKLOADS;
    use super::*;

    fn side(scheduler: &str, policy: Option<&str>) -> Side {
        Side { scheduler: scheduler.to_owned(), policy: policy.map(str::to_owned) }
    }

    fn row(workload: usize, sides: [&[f64]; 4]) -> Row {
        let run = |&value: &f64| Run { value, mb_s: None, parts: Vec::new() };
        Row { workload: WORKLOADS[workload], runs: sides.iter().map(|runs| runs.iter().map(run).collect()).collect() }
    }

    fn report() -> Report {
        let sides =
            vec![side("none", None), side("bfq", None), side("none", Some("hbrr")), side("bfq", Some("to-agg"))];
        let won = row(0, [&[5.0, 1.0, 5.0], &[10.0, 1.0, 20.0], &[20.0, 2.0, 40.0], &[9.0, 0.9, 18.0]]);
        let lost = row(1, [&[8.0, 8.0, 8.0], &[4.0, 4.0, 4.0], &[2.0, 4.0, 2.0], &[4.0, 4.0, 8.0]]);
        Report::new("emulated x".to_owned(), true, 3, 1, sides, vec![won, lost])
    }

    #[test]
    fn losses_come_first_and_ratios_are_those_of_a_round() {
        let json = report().as_json();
        let rows = json["rows"].as_array().unwrap();
        assert_eq!((&rows[0]["workload"], &rows[1]["workload"]), (&json!("stream-2"), &json!("stream-1")));
        assert_eq!(rows[0]["best_kernel"], "none");
        assert_eq!(rows[0]["ratios"]["hbrr"], json!({"ratio": 0.25, "range": [0.25, 0.5]}));
        assert_eq!(rows[1]["ratios"]["hbrr"]["ratio"], 2.0);
        assert_eq!(json["misses"], json!(["stream-2: 0.50 of none's at best (to-agg on bfq), bar 0.95"]));
        assert_eq!(json["reached"], json!({"hbrr": 1, "to-agg on bfq": 0}));
    }

    #[test]
    fn anticipation_is_compared_with_the_same_side_without() {
        let sides =
            [side("none", None), side("none", Some("sjf/off")), side("bfq", Some("sjf")), side("none", Some("sjf"))];
        let row = row(0, [&[1.0; 3], &[4.0, 5.0, 1.0], &[9.0; 3], &[2.0, 5.0, 3.0]]);
        let json = Report::new("emulated x".to_owned(), true, 3, 1, sides.to_vec(), vec![row]).as_json();
        assert_eq!(json["rows"][0]["anticipation"], json!({"sjf": {"ratio": 1.0, "range": [0.5, 3.0]}}));
    }

    #[test]
    fn a_row_has_the_medians_of_both_kinds() {
        let json = report().as_json();
        assert_eq!(json["emulated"], true);
        assert_eq!(json["rows"][1]["kernel"], json!({"none": 5.0, "bfq": 10.0}));
        assert_eq!(json["rows"][1]["sluice"], json!({"hbrr": 20.0, "to-agg on bfq": 9.0}));
        assert_eq!(json["rows"][1]["ranges"]["bfq"], json!([1.0, 20.0]));
    }
}
