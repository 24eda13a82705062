//! What announcing to a coordinator costs: arrival order with one that is told and not asked, over arrival order without, in pairs.

use std::process::ExitCode;

use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;

use super::load::Pattern;
use super::{Args, Arm, Bed, Measured};

/// Logarithms of the ratios of the pairs of a situation.
#[derive(Debug)]
struct Pairs {
    pattern: Pattern,
    io_nodes: u32,
    ratios: Vec<f64>,
}

/// What is said of some pairs.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
struct Cost {
    pairs: usize,
    /// Share of the throughput that announcing takes; negative if chance was with it.
    overhead: f64,
    /// Two standard errors.
    error: f64,
}

impl Cost {
    fn of(ratios: &[f64]) -> Cost {
        let count = ratios.len() as f64;
        let mean = ratios.iter().sum::<f64>() / count;
        let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        let error = if ratios.len() > 1 { 2.0 * (squares / (count - 1.0) / count).sqrt() } else { f64::INFINITY };
        Cost { pairs: ratios.len(), overhead: -mean.exp_m1(), error }
    }
}

/// Measures pair by pair, each in random order.
///
/// # Errors
/// If a cluster cannot be started, a process fails, or it was interrupted: what was found before is printed.
pub(super) fn measure(bed: &Bed<'_>, args: &Args) -> anyhow::Result<ExitCode> {
    let (measured, ended) = bed.measure_all(&[Arm::Fifo, Arm::Announced])?;
    let pairs = |of: Measured| Pairs {
        pattern: of.pattern,
        io_nodes: of.io_nodes,
        ratios: of.rounds.iter().map(|rates| (rates[1] / rates[0]).ln()).collect(),
    };
    let all: Vec<Pairs> = measured.into_iter().map(pairs).collect();
    let ratios: Vec<f64> = all.iter().flat_map(|pairs| pairs.ratios.iter().copied()).collect();
    if ratios.is_empty() {
        ended?;
        anyhow::bail!("nothing was measured");
    }
    print(&all, Cost::of(&ratios), args)?;
    ended.map(|()| ExitCode::SUCCESS)
}

fn print(all: &[Pairs], total: Cost, args: &Args) -> anyhow::Result<()> {
    let rows = all.iter();
    if args.json {
        let row = |pairs: &Pairs| serde_json::json!({"pattern": pairs.pattern.name(), "io_nodes": pairs.io_nodes, "cost": Cost::of(&pairs.ratios)});
        return output::pretty_json(
            &serde_json::json!({"council_overhead": total.overhead, "error": total.error, "pairs": total.pairs, "rows": rows.map(row).collect::<Vec<_>>()}),
        );
    }
    let text = |cost: Cost| {
        format!("{:>6.1} % ± {:.1}  {}", cost.overhead * 100.0, cost.error * 100.0, counted(cost.pairs as u64, "pair"))
    };
    output::line(format_args!(
        "announcing to a coordinator, of arrival order's throughput (geometric means, two standard errors):\n"
    ));
    for pairs in rows {
        output::line(format_args!(
            "{:<16} {:<11}  {}",
            pairs.pattern.name(),
            counted(pairs.io_nodes as u64, "I/O node"),
            text(Cost::of(&pairs.ratios))
        ));
    }
    output::line(format_args!("{:<29}  {}", "all", text(total)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_geometric_mean_of_the_pairs_with_their_spread() {
        let cost = Cost::of(&[0.5_f64.ln(), 2.0_f64.ln()]);
        assert!(cost.overhead.abs() < 1e-12 && (cost.error - 2.0 * 2.0_f64.ln()).abs() < 1e-12, "{cost:?}");
        let cost = Cost::of(&[0.9_f64.ln(); 4]);
        assert!((cost.overhead - 0.1).abs() < 1e-12 && cost.error < 1e-12, "{cost:?}");
        assert!(Cost::of(&[0.0]).error.is_infinite());
    }
}
