//! `sluice check`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use sluice_notation::counted;
use sluice_storage::striped::{self, Finding, Repair, Report};

use crate::output;

/// Checks whether the targets of a striped volume that is not mounted fit together
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the volume; give all of them, in their order
    #[arg(short, long, value_name = "DIR", required = true)]
    target: Vec<PathBuf>,
    #[arg(hide = true, value_name = "DIR", value_parser = without_option)]
    _bare: Vec<PathBuf>,
    /// Remove what a killed process left behind and what is empty, and make anew what can be
    #[arg(long)]
    repair: bool,
    /// With --repair: remove what is not on the first target also where it has data
    #[arg(long, requires = "repair")]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Directories come one with each `--target`, as `mount` takes them.
fn without_option(directory: &str) -> Result<PathBuf, String> {
    Err(format!("give --target once for each directory: --target {directory}"))
}

/// Checks a volume.
///
/// # Errors
/// If the targets are not one volume, or it is in use.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let repair = match (args.repair, args.discard) {
        (false, _) => Repair::No,
        (true, false) => Repair::Safe,
        (true, true) => Repair::Discard,
    };
    let report = striped::check(&args.target, repair)?;
    if args.json {
        output::line(format_args!("{:#}", as_json(&report, &args.target)));
    } else {
        output::text(&describe(&report, &args.target));
    }
    Ok(if report.clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(report: &Report, targets: &[PathBuf]) -> String {
    let mut text = format!("{} on {}\n", counted(report.objects, "object"), counted(targets.len() as u64, "target"));
    let (empty, full): (Vec<Finding>, Vec<Finding>) =
        report.orphans.iter().cloned().partition(|finding| finding.bytes == 0);
    let kinds: [(&[Finding], &str, &str, &str); 5] = [
        (
            &empty,
            "not on the first target, and empty: left behind by a killed process",
            "removed",
            "--repair removes it",
        ),
        (
            &full,
            "has data, but is not on the first target: a removal was killed, or somebody took the first part away",
            "removed",
            "look at it; --repair --discard removes it",
        ),
        (
            &report.missing,
            "missing",
            "made anew",
            "a file's bytes are lost: restore its part or remove the file; others are made anew with --repair",
        ),
        (
            &report.mismatched,
            "of another kind than on the first target",
            "",
            "somebody changed the target itself: put right which of the two is wrong",
        ),
        (
            &report.unplaced,
            "its permissions do not tell whether the file begins here",
            "",
            "somebody changed them on the target itself: restore them from a copy (0700: begins here, 1600: elsewhere), or \
             remove the file",
        ),
    ];
    for (findings, what, mended, advice) in kinds {
        for finding in findings {
            let (target, path) = (targets[finding.target].display(), finding.path.display());
            let fate = if finding.repaired { mended } else { advice };
            text += &format!("{target}: {path}: {what}; {fate}\n");
        }
    }
    text += if report.clean() { "All is well.\n" } else { "Something is left to do.\n" };
    text
}

fn as_json(report: &Report, targets: &[PathBuf]) -> serde_json::Value {
    let findings = |findings: &[Finding]| -> Vec<_> {
        let row = |f: &Finding| json!({ "target": targets[f.target], "path": f.path, "repaired": f.repaired, "bytes": f.bytes });
        findings.iter().map(row).collect()
    };
    json!({
        "schema": output::SCHEMA, "clean": report.clean(), "objects": report.objects, "orphans": findings(&report.orphans),
        "missing": findings(&report.missing), "mismatched": findings(&report.mismatched),
        "unplaced": findings(&report.unplaced),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn directories_without_their_option_are_told_how() {
        #[derive(clap::Parser)]
        struct Checks {
            #[command(flatten)]
            _args: Args,
        }
        for args in [&["check", "d1", "d2", "d3"][..], &["check", "--target", "d1", "d2"]] {
            let error = Checks::try_parse_from(args).err().unwrap().to_string();
            assert!(error.contains("give --target once for each directory: --target d"), "{error}");
        }
    }

    #[test]
    fn each_finding_says_where_and_what_to_do() {
        let finding = |repaired| vec![Finding { target: 1, path: "a/b".into(), repaired, bytes: 0 }];
        let report = Report { objects: 7, orphans: finding(true), missing: finding(false), ..Report::default() };
        let targets = ["/t0".into(), "/t1".into()];
        let text = describe(&report, &targets);
        assert!(
            text.contains("/t1: a/b: not on the first target, and empty: left behind by a killed process; removed\n"),
            "{text}"
        );
        assert!(text.contains("/t1: a/b: missing; a file's bytes are lost"), "{text}");
        assert!(text.ends_with("Something is left to do.\n"), "{text}");
        assert_eq!(as_json(&report, &targets)["missing"][0]["target"], "/t1");
    }
}
