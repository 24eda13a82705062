"""The commands of `python -m sluicegate`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from sluicegate.trace import TraceError, read, write

PARTLY = 3
NO_END = "the trace has no end: it is still being written, or its recorder was killed"
"""Exit status where only a part of a trace or log could be used. Others: 0 for all of it, 1 for a failure."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


# What argparse calls it.
_positive.__name__ = "positive number"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    about = "Traces and results of Sluicegate."
    parser = argparse.ArgumentParser(prog="python -m sluicegate", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="measure how fast a trace is read into NumPy")
    bench.add_argument("trace", nargs="?", help="default: one of two million made-up requests")
    bench.add_argument("--seconds", type=float, default=3.0, help="how long to measure (default: 3)")
    bench.add_argument("--json", action="store_true", help="print JSON")
    convert = commands.add_parser("convert", help="write a trace as Parquet")
    convert.add_argument("trace")
    convert.add_argument("out")
    darshan = commands.add_parser("import-darshan", help="make a trace of a Darshan log with extended traces")
    darshan.add_argument("log")
    darshan.add_argument("out")
    darshan.add_argument("--quiet", action="store_true", help="say nothing of success")
    darshan.add_argument("--source", help="what the log is called (default: its path)")
    darshan.add_argument("--module", choices=["DXT_POSIX", "DXT_MPIIO"], help="which layer's accesses")
    compare = commands.add_parser("compare", help="print what prediction brings")
    compare.add_argument(
        "results", help="of `sluice-bench prediction --json`, or a runs.csv of `sluice simulate`"
    )
    plot = commands.add_parser("plot", help="draw what prediction brings")
    plot.add_argument("figure", choices=["table", "jitter"], help="by algorithm, or over the jitter")
    plot.add_argument(
        "results", help="of `sluice-bench prediction --json`, or a runs.csv of `sluice simulate`"
    )
    plot.add_argument("out", help="an SVG, PDF or PNG file")
    plot.add_argument("--predicted-from", default="same program", help="for table; default: same program")
    plot.add_argument("--jitter", type=float, help="for table, in percent; default: the most frequent one")
    train = commands.add_parser("train", help="train a model with simulated systems")
    train.add_argument(
        "model",
        choices=["council", "detector", "selection"],
        help="council: of patterns at I/O nodes; detector: at data servers; selection: of the best arm",
    )
    train.add_argument(
        "--bench", default="sluice-bench", help="the sluice-bench command (default: from PATH)"
    )
    train.add_argument(
        "--out", default="models", help="directory of the model and its card (default: models)"
    )
    train.add_argument(
        "--work", default="target/train", help="what was simulated is kept here, and used again"
    )
    train.add_argument(
        "--data",
        help="selection: train with the cases in this file, which somebody measured, and simulate nothing",
    )
    train.add_argument(
        "--real",
        action="append",
        default=[],
        metavar="FILE",
        help="council: train with these windows, too, which `sluice-bench forwarding --record` wrote; may be "
        "repeated",
    )
    train.add_argument(
        "--seeds",
        type=_positive,
        help="experiments, scenarios or cases to train with (default: 8000, 10000, 1300)",
    )
    train.add_argument(
        "--gluster",
        type=_positive,
        help="council: experiments with GlusterFS's I/O nodes to train with (default: half of --seeds)",
    )
    train.add_argument("--held-out", type=_positive, help="the same to judge by (default: 600, 300, 320)")
    train.add_argument("--trees", type=_positive, help="of a forest (default: 12, 16)")
    train.add_argument("--leaves", type=_positive, help="most leaves of a tree (default: 1000, 80)")
    train.add_argument("--seed", type=int, default=1, help="of the random numbers (default: 1)")
    windows = commands.add_parser(
        "windows", help="print where real windows of I/O nodes differ from simulated ones"
    )
    windows.add_argument("real", help="of `sluice-bench forwarding --record`")
    windows.add_argument("simulated", help="of `sluice-bench council --export`")
    windows.add_argument(
        "--model",
        default="models/council.json",
        help="the network that is misled (default: models/council.json)",
    )
    args = parser.parse_args(arguments)
    run, extra = _COMMANDS[args.command]
    # What ends us ends what we have begun, and takes away what is half done.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(args)
    except KeyboardInterrupt:
        print("sluicegate: interrupted", file=sys.stderr)
        return 130
    except ImportError as error:
        package = f"./python[{extra}]" if extra else "./python"
        print(f"sluicegate: {error}; in Sluicegate's sources: pip install '{package}'", file=sys.stderr)
    except (OSError, ValueError) as error:
        where = f"{args.trace}: " if isinstance(error, TraceError) else ""
        print(f"sluicegate: {where}{error}", file=sys.stderr)
    return 1


def _convert(args: argparse.Namespace) -> int:
    trace = read(args.trace, strict=False)
    missing = None
    if trace.damage:
        missing = f"{trace.damage}; what is before that place is good"
    elif not trace.complete:
        missing = NO_END
    if missing:
        print(f"sluicegate: {args.trace}: {missing}", file=sys.stderr)
    trace.to_parquet(args.out)
    print(f"{args.out}: {len(trace)} requests")
    return PARTLY if missing else 0


def _import(args: argparse.Namespace) -> int:
    from sluicegate.dxt import read_log

    trace = read_log(args.log, args.module)
    name = args.source or args.log
    trace.meta["source"] = name
    write(args.out, trace)
    if not args.quiet:
        print(f"{args.out}: {len(trace)} requests to {len(trace.paths)} files")
    if trace.incomplete:
        print(f"sluicegate: {name}: {trace.incomplete}", file=sys.stderr)
    return PARTLY if trace.incomplete else 0


def _bench(args: argparse.Namespace) -> int:
    from sluicegate.bench import measure

    figures = measure(args.trace, args.seconds)
    if args.json:
        print(json.dumps(figures))
    else:
        entries, rate = figures["entries"], figures["entries_per_s"] / 1e6
        print(f"{entries} requests into NumPy in {figures['seconds']:.3f} s: {rate:.1f} million a second")
    if not figures["complete"]:
        print(f"sluicegate: {args.trace}: {NO_END}", file=sys.stderr)
        return PARTLY
    return 0


def _plot(args: argparse.Namespace) -> int:
    from sluicegate import plot

    results = plot.read(args.results)
    if args.figure == "jitter":
        figure = plot.over_jitter(results)
    else:
        jitter = None if args.jitter is None else args.jitter / 100
        figure = plot.table(results, args.predicted_from, jitter)
    plot.save(figure, args.out)
    print(f"{args.out}: {len(results.cells)} results, {results.origin}")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from sluicegate import compare, plot

    print(compare.table(plot.read(args.results)))
    return 0


def _windows(args: argparse.Namespace) -> int:
    from sluicegate import council, windows

    sets = (council.read(args.real), council.read(args.simulated))
    print("\n".join(windows.compare(council.load(args.model), *sets)))
    return 0


def _train(args: argparse.Namespace) -> int:
    if args.data and args.model != "selection":
        raise ValueError("--data is for selection")
    if args.real and args.model != "council":
        raise ValueError("--real is for council")
    trainers = {"council": _train_council, "detector": _train_detector, "selection": _train_selection}
    return trainers[args.model](args)


def _train_council(args: argparse.Namespace) -> int:
    from sluicegate import council

    scores = council.train(
        council.Bench(args.bench),
        Path(args.out),
        Path(args.work),
        experiments=args.seeds or 8000,
        gluster=args.gluster or (args.seeds or 8000) // 2,
        unseen=args.held_out or 600,
        seed=args.seed,
        real=[Path(path) for path in args.real],
    )
    mean, least = scores["mean"], scores["min_experiment"]
    print(f"{args.out}/council.json: unseen experiments: {mean:.2%} of windows right, the worst {least:.1%}")
    return 0


def _train_detector(args: argparse.Namespace) -> int:
    from sluicegate import detector

    scores = detector.train(
        detector.Bench(args.bench),
        Path(args.out),
        Path(args.work),
        seeds=args.seeds or 10_000,
        held_out=args.held_out or 300,
        trees=args.trees or 12,
        leaves=args.leaves or 1000,
        seed=args.seed,
    )
    servers, files = scores["server_accuracy"], scores["file_accuracy"]
    print(
        f"{args.out}/detector.json: on platforms never seen right: {servers:.1%} servers, {files:.1%} files"
    )
    return 0


def _train_selection(args: argparse.Namespace) -> int:
    from sluicegate import selection

    usual = selection.Settings()
    settings = selection.Settings(
        trees=args.trees or usual.trees, leaves=args.leaves or usual.leaves, seed=args.seed
    )
    bench, out = selection.Bench(args.bench), Path(args.out)
    if args.data:
        lost = selection.train_with(Path(args.data), bench, out, settings)
        print(f"{out}/selection.json: mean regret {lost:.1%} by cross-validation")
        return 0
    scores = selection.train(
        bench,
        out,
        Path(args.work),
        cases=args.seeds or 1300,
        held_out=args.held_out or 320,
        settings=settings,
    )
    ours = next(row for row in scores["policies"] if row["name"] == "ours")
    print(f"{out}/selection.json: mean regret {ours['mean_regret']:.1%} on platforms never seen")
    for miss in scores["misses"]:
        print(f"MISSED {miss}")
    return 0


# What runs a command, and which extra has what it imports.
_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "bench": (_bench, ""),
    "compare": (_compare, ""),
    "convert": (_convert, "parquet"),
    "import-darshan": (_import, "darshan"),
    "plot": (_plot, "plot"),
    "train": (_train, "train"),
    "windows": (_windows, "train"),
}


if __name__ == "__main__":
    sys.exit(main())
