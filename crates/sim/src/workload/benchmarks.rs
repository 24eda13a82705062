//! Phases of benchmarks that the field uses, after their descriptions in X. Zhang's dissertation (2012; 3.4, 5.3.1) and,
//! for `olam`, in Bez et al. (2019, III).

use sluice_core::Op;

use super::{Barrier, OpMix, Pattern, Phase};

/// A benchmark that `application.benchmark` may name.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    /// What it is called.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// What a scenario says about a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) processes: u32,
    /// Bytes of all processes together.
    pub(crate) volume: u64,
    pub(crate) request: Option<u64>,
    pub(crate) op: Op,
}

pub(crate) static BENCHMARKS: &[Benchmark] = &[
    Benchmark { name: "mpi-io-test", help: "shared file, block i * P + p at call i, a barrier at each call; 16K" },
    Benchmark { name: "ior", help: "shared file, each process its own contiguous part; 32K" },
    Benchmark {
        name: "noncontig",
        help: "a column of a matrix for each process: pieces of 2K; 4M of all processes in a call",
    },
    Benchmark { name: "hpio", help: "regions of 32K with 1K between them, 4 in a call" },
    Benchmark { name: "mpi-tile-io", help: "tiles: pieces of 8K, 8 in a call" },
    Benchmark {
        name: "btio",
        help: "40 dumps of a distributed matrix in pieces of 6480 / sqrt(P) bytes, then it is read",
    },
    Benchmark {
        name: "s3asim",
        help: "sequence search: fragments are read by 1M, results of 100 to 10000 bytes appended",
    },
    Benchmark { name: "checkpoint", help: "five times: compute for 1 s, then each process writes a file; 1M" },
    Benchmark {
        name: "olam",
        help: "input for each process, then four times a log for each process and a shared file",
    },
];

/// The benchmarks.
#[must_use]
pub fn benchmarks() -> &'static [Benchmark] {
    BENCHMARKS
}

/// The phases of a known benchmark.
pub(crate) fn benchmark(name: &str, wanted: Wanted) -> Option<Vec<Phase>> {
    let op = OpMix::Only(wanted.op);
    let data = (wanted.volume / u64::from(wanted.processes)).max(1);
    let size = |default: u64| {
        let size = wanted.request.unwrap_or(default);
        (size, size)
    };
    let whole = Phase { op, data, barrier: Barrier::Phase, ..Phase::default() };
    let vector = |region| Pattern::Vector { region, spacing: 0 };
    Some(match name {
        "mpi-io-test" => {
            vec![Phase { pattern: Pattern::Strided, request: size(16 << 10), barrier: Barrier::Request, ..whole }]
        }
        "ior" => vec![Phase { request: size(32 << 10), ..whole }],
        "noncontig" => {
            let request = ((4 << 20) / u64::from(wanted.processes)).max(2048);
            vec![Phase { pattern: vector(2048), request: size(request), ..whole }]
        }
        "hpio" => {
            let pattern = Pattern::Vector { region: 32 << 10, spacing: 1 << 10 };
            vec![Phase { pattern, request: size(128 << 10), ..whole }]
        }
        "mpi-tile-io" => vec![Phase { pattern: vector(8 << 10), request: size(64 << 10), ..whole }],
        "btio" => btio(wanted, whole),
        "s3asim" => {
            let (read, write) = (OpMix::Only(Op::Read), OpMix::Only(Op::Write));
            let results =
                Phase { op: write, data: data / 2, pattern: Pattern::Append, request: (100, 10_000), ..whole.clone() };
            vec![
                Phase {
                    op: read,
                    data: data.div_ceil(2),
                    request: size(1 << 20),
                    file: "database".to_owned(),
                    ..whole
                },
                Phase { file: "results".to_owned(), ..results },
            ]
        }
        "checkpoint" => {
            let dump = Phase { per_process: true, data: data.div_ceil(5), request: size(1 << 20), ..whole };
            vec![Phase { op: OpMix::Only(Op::Write), compute_ns: 1_000_000_000, ..dump }; 5]
        }
        "olam" => olam(data, size(64 << 10), &whole),
        _ => return None,
    })
}

fn btio(wanted: Wanted, whole: Phase) -> Vec<Phase> {
    let region = 6480 / u64::from(wanted.processes).isqrt().max(1);
    let region = region.max(8);
    let request = wanted.request.unwrap_or(region * 16);
    let all = Phase { pattern: Pattern::Vector { region, spacing: 0 }, request: (request, request), ..whole };
    let dump = |number: u32| Phase {
        op: OpMix::Only(Op::Write),
        data: (all.data / 2).div_ceil(40),
        file: format!("dump {number}"),
        ..all.clone()
    };
    let mut phases: Vec<Phase> = (0..40).map(dump).collect();
    let read = |number: u32| Phase { op: OpMix::Only(Op::Read), ..dump(number) };
    phases.extend((0..40).map(read));
    phases
}

fn olam(data: u64, request: (u64, u64), whole: &Phase) -> Vec<Phase> {
    let (read, write) = (OpMix::Only(Op::Read), OpMix::Only(Op::Write));
    let input = Phase {
        op: read,
        per_process: true,
        data: data.div_ceil(4),
        request,
        file: "input".to_owned(),
        ..whole.clone()
    };
    let log = Phase {
        op: write,
        per_process: true,
        data: data.div_ceil(32),
        request: (4 << 10, 4 << 10),
        file: "log".to_owned(),
        think_ns: 2_000_000,
        think_spread: 500_000,
        barrier: Barrier::None,
        ..whole.clone()
    };
    let output = |number: u32| Phase {
        op: write,
        pattern: Pattern::Strided,
        data: data.div_ceil(8),
        request,
        file: format!("output {number}"),
        ..whole.clone()
    };
    std::iter::once(input).chain((0..4).flat_map(|number| [log.clone(), output(number)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_benchmark_moves_about_the_volume() {
        for row in BENCHMARKS {
            let wanted = Wanted { processes: 64, volume: 1 << 30, request: None, op: Op::Read };
            let phases = benchmark(row.name, wanted).unwrap();
            let bytes: u64 = phases.iter().map(|phase| phase.bytes(64)).sum();
            let share = bytes as f64 / wanted.volume as f64;
            assert!((0.85..1.15).contains(&share), "{}: {share}", row.name);
        }
        assert!(benchmark("nothing", Wanted { processes: 1, volume: 1, request: None, op: Op::Read }).is_none());
    }
}
