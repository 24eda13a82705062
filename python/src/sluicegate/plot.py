"""Figures of what prediction brings, from the results of `sluice-bench prediction` and `sluice simulate`.

A result is the makespan with prediction over that without, less one: below 0 is better. Points are medians,
lines and bands go from the least of all repetitions (or seeds) to the largest.
"""

from __future__ import annotations

import csv
import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAME = "same program"
_MARKERS = "osD^vP*Xh<>"
# Okabe and Ito (2008): told apart by people who see few colours.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_LESS, _MORE, _SAME = ("#0072B2", "o", "less"), ("#D55E00", "s", "more"), ("0.45", "D", "the same")
_COST_BAR = 0.02
_RANGE = "from the least to the largest of all runs"
_GREY = f"grey: up to {_COST_BAR:.0%} more"
_NEITHER = (
    "neither the output of `sluice-bench prediction --json` nor `runs.csv` of `sluice simulate` with and "
    "without prediction"
)


@dataclass(frozen=True)
class Cell:
    """One situation, with prediction against without."""

    policy: str
    pattern: str
    op: str
    jitter: float
    """Of the time between requests, as a share of it."""
    predicted_from: str
    change: float
    """Of the makespan: its median."""
    low: float
    high: float
    aggregation: float
    """Mean requests in a batch with prediction over that without, less one: its median."""

    @property
    def percent(self) -> int:
        """The change as it is written: in whole percent."""
        return round(100 * self.change)

    @property
    def panel(self) -> str:
        """What is in one panel."""
        return f"{self.pattern}, {self.op}" if self.op else self.pattern


@dataclass(frozen=True)
class Results:
    """The cells of one file, and where they are from."""

    origin: str
    cells: list[Cell]


def read(path: str | Path) -> Results:
    """Read results: the output of `sluice-bench prediction --json`, or `runs.csv` of `sluice simulate --out`.

    Raises:
        ValueError: if it is neither.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    try:
        results = _bench(json.loads(text)) if text.lstrip().startswith("{") else _runs(text.splitlines())
    except KeyError as error:
        raise ValueError(f"{path}: {_NEITHER}: {error.args[0]} is missing") from error
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: {_NEITHER}: {error}") from error
    if not results.cells:
        raise ValueError(f"{path}: nothing that was run both with and without prediction")
    return results


def _bench(report: dict[str, Any]) -> Results:
    cells = [
        Cell(
            policy=cell["policy"],
            pattern=cell["pattern"],
            op=cell["op"],
            jitter=float(cell["jitter"]) / 100,
            predicted_from=cell["predicted_from"],
            change=float(cell["makespan_ratio"]) - 1,
            low=float(cell["makespan_ratio_range"][0]) - 1,
            high=float(cell["makespan_ratio_range"][1]) - 1,
            aggregation=float(cell["aggregation_ratio"]) - 1,
        )
        for cell in report["cells"]
    ]
    cells, again = _merged(cells)
    model, count, repetitions = report["model"], report["processes"], report["repetitions"]
    origin = f"emulated {model}, {count} processes, medians of {repetitions}"
    if again:
        several = "; ".join(again)
        origin += f"; measured {_range(again.values())} times, the median of which stands here: {several}"
    return Results(origin, cells)


def _merged(cells: list[Cell]) -> tuple[list[Cell], dict[str, int]]:
    """One cell for each situation; which ones several parts of the benchmark have measured, and how often."""
    same: dict[tuple[str, str, str, float, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        same[cell.policy, cell.pattern, cell.op, cell.jitter, cell.predicted_from].append(cell)
    merged = [
        replace(
            several[0],
            change=median(cell.change for cell in several),
            low=min(cell.low for cell in several),
            high=max(cell.high for cell in several),
            aggregation=median(cell.aggregation for cell in several),
        )
        for several in same.values()
    ]
    again = {
        f"{cell.policy}, {cell.panel}, jitter {cell.jitter:.0%}, {cell.predicted_from}": len(several)
        for cell, several in zip(merged, same.values(), strict=True)
        if len(several) > 1
    }
    return merged, again


_Run = tuple[float, float]
_Key = tuple[str, str, str, float]
_PREDICTING = re.compile(r"(.*), predicting")
_SHARE = re.compile(r"(\d+(?:\.\d+)?) ?%?")


def _runs(lines: Iterable[str]) -> Results:
    """Pairs of runs that differ in nothing but the axis `predicting`, or in "X" and "X, predicting".

    Every axis that varies tells situations apart: the pattern names those without a field of their own.
    """
    table = csv.DictReader(lines)
    columns = list(table.fieldnames or [])
    if "seed_number" not in columns:
        raise KeyError("the column seed_number")
    # Columns up to the seed are the scenario's name and the axes.
    axes = columns[: columns.index("seed_number")]
    rows = list(table)
    makespans: dict[tuple[_Key, bool], dict[str, _Run]] = defaultdict(dict)
    for number, (row, (key, predicting)) in enumerate(zip(rows, _situations(rows, axes), strict=True), 2):
        runs, seed = makespans[key, predicting], row["seed_number"]
        if seed in runs:
            raise ValueError(f"line {number}: the same situation and seed as in a line before")
        runs[seed] = (float(row["makespan_s"]), float(row["aggregation"]))
    cells = []
    seeds = set()
    for (key, predicting), without in makespans.items():
        those = makespans.get((key, True))
        if predicting or those is None:
            continue
        pairs = [(those[seed], without[seed]) for seed in without if seed in those]
        if not pairs:
            continue
        seeds.add(len(pairs))
        changes = [new[0] / old[0] - 1 for new, old in pairs]
        policy, pattern, op, jitter = key
        cells.append(
            Cell(
                policy=policy,
                pattern=pattern,
                op=op,
                jitter=jitter,
                predicted_from=SAME,
                change=median(changes),
                low=min(changes),
                high=max(changes),
                aggregation=median(new[1] / old[1] - 1 for new, old in pairs),
            )
        )
    origin = "simulated, one seed" if seeds == {1} else f"simulated, medians of {_range(seeds)} seeds"
    return Results(origin, cells)


def _situations(rows: list[dict[str, str]], axes: list[str]) -> Iterable[tuple[_Key, bool]]:
    """What each row was run under but for the seed, and whether with predictions."""
    others = [axis for axis in axes if len({row[axis] for row in rows}) > 1]
    shares = all(_SHARE.fullmatch(row["jitter"]) for row in rows) if "jitter" in axes else False
    known = {
        "policy" if "policy" in axes else "scheduler",
        "pattern",
        "op",
        "size",
        "processes",
        "predicting",
    }
    others = [axis for axis in others if axis not in known and not (axis == "jitter" and shares)]
    for row in rows:
        scheduler = _PREDICTING.fullmatch(row.get("scheduler") or "")
        values = {axis: row[axis] for axis in axes}
        if scheduler:
            values["scheduler"] = scheduler[1]
        processes = values.get("processes") and f"{values['processes']} processes"
        named = [f"{axis} {values[axis]}" for axis in others]
        words = [values.get("pattern"), values.get("size"), processes]
        pattern = ", ".join(filter(None, [" ".join(filter(None, words)), *named]))
        jitter = _SHARE.fullmatch(values["jitter"]) if shares else None
        policy = values.get("policy") or values.get("scheduler", "")
        key = (policy, pattern, values.get("op", ""), float(jitter[1]) / 100 if jitter else 0.0)
        yield key, scheduler is not None or values.get("predicting") == "yes"


def _range(counts: Iterable[int]) -> str:
    least, most = min(counts, default=0), max(counts, default=0)
    return str(most) if least == most else f"{least} to {most}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _figure(width: float, height: float) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    # The same input makes the same file; text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "sluicegate", "svg.fonttype": "none", "font.size": 9})
    return Figure(figsize=(width, height), layout="constrained")


def _describe(figure: Figure, title: str, below: str) -> None:
    """Write above and below the panels, in as many lines as it takes."""
    # At 9 points 13 letters of a wide font take an inch.
    title, below = (textwrap.fill(text, int(13 * figure.get_figwidth())) for text in (title, below))
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(below, fontsize=9)


def _percent(axes: Axes, *, along_x: bool) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis = axes.xaxis if along_x else axes.yaxis
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    # Of panels of two inches more would touch.
    axis.set_major_locator(MaxNLocator(5))


def usual_jitter(cells: Sequence[Cell]) -> float:
    """The jitter at which most cells were measured."""
    jitters = [cell.jitter for cell in cells]
    return max(dict.fromkeys(jitters), key=jitters.count)


def table(results: Results, predicted_from: str = SAME, jitter: float | None = None) -> Figure:
    """Change of the makespan by policy, a panel for each pattern and operation.

    Raises:
        ValueError: if nothing was measured like that.
    """
    cells = [cell for cell in results.cells if cell.predicted_from == predicted_from]
    if not cells:
        known = ", ".join(_unique(cell.predicted_from for cell in results.cells))
        raise ValueError(f"nothing was predicted from {predicted_from!r}; there is: {known}")
    jitter = usual_jitter(cells) if jitter is None else jitter
    cells = [cell for cell in cells if cell.jitter == jitter]
    if not cells:
        raise ValueError(f"nothing was measured with a jitter of {jitter:.0%}")
    panels = _unique(cell.panel for cell in cells)
    policies = _unique(cell.policy for cell in cells)
    columns = 3 if len(panels) % 3 == 0 else min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure = _figure(1.9 + 2.4 * columns, 1.05 + (0.5 + 0.28 * len(policies)) * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    kinds = {}
    for panel, place in zip(panels, axes.flat, strict=False):
        place.axvspan(0, _COST_BAR, color="0.92")
        place.axvline(0, color="0.4", linewidth=0.8)
        for cell in (cell for cell in cells if cell.panel == panel):
            at = policies.index(cell.policy)
            kind = _LESS if cell.percent < 0 else _MORE if cell.percent > 0 else _SAME
            color, marker, name = kind
            place.plot([cell.low, cell.high], [at, at], color=color, linewidth=1.5, alpha=0.5)
            (kinds[name],) = place.plot([cell.change], [at], marker, color=color, markersize=4)
        place.set_title(panel, fontsize=9)
        place.set_yticks(range(len(policies)), policies)
        _percent(place, along_x=True)
    axes[0, 0].set_ylim(len(policies) - 0.5, -0.5)
    for place in list(axes.flat)[len(panels) :]:
        place.set_visible(False)
    title = f"{results.origin}; predicted from: {predicted_from}; jitter {jitter:.0%}"
    _describe(
        figure,
        title,
        f"change of the makespan by prediction (less is better; lines: {_RANGE}; {_GREY})",
    )
    names = [name for _, _, name in (_LESS, _SAME, _MORE) if name in kinds]
    figure.legend([kinds[name] for name in names], names, loc="outside right center", fontsize=8)
    return figure


def over_jitter(results: Results) -> Figure:
    """Change of makespan and aggregation over the jitter, a column for each pattern and operation.

    Raises:
        ValueError: if nothing was measured with several.
    """
    cells = [cell for cell in results.cells if cell.predicted_from == SAME]
    jitters: dict[tuple[str, str], set[float]] = defaultdict(set)
    for cell in cells:
        jitters[cell.panel, cell.policy].add(cell.jitter)
    cells = [cell for cell in cells if len(jitters[cell.panel, cell.policy]) > 1]
    if not cells:
        raise ValueError("nothing was measured with several jitters")
    panels = _unique(cell.panel for cell in cells)
    policies = _unique(cell.policy for cell in cells)
    figure = _figure(max(6.0, 2.0 + 2.6 * len(panels)), 5.0)
    axes = figure.subplots(2, len(panels), sharex=True, squeeze=False)
    for column, panel in enumerate(panels):
        makespan, aggregation = axes[:, column]
        makespan.sharey(axes[0, 0])
        makespan.axhspan(0, _COST_BAR, color="0.92")
        for place in (makespan, aggregation):
            place.axhline(0, color="0.4", linewidth=0.8)
            _percent(place, along_x=True)
            _percent(place, along_x=False)
        for number, policy in enumerate(policies):
            line = [cell for cell in cells if (cell.panel, cell.policy) == (panel, policy)]
            line.sort(key=lambda cell: cell.jitter)
            at = [cell.jitter for cell in line]
            color = _COLORS[number % len(_COLORS)]
            again = ("-", "--", ":")[number // len(_COLORS) % 3]
            marker = _MARKERS[number % len(_MARKERS)]
            style = {"color": color, "linestyle": again, "marker": marker, "markersize": 4}
            low, high = [cell.low for cell in line], [cell.high for cell in line]
            makespan.fill_between(at, low, high, color=color, alpha=0.15)
            makespan.plot(at, [cell.change for cell in line], label=policy, **style)
            aggregation.plot(at, [cell.aggregation for cell in line], label=policy, **style)
        makespan.set_title(panel, fontsize=9)
    axes[0, 0].set_ylabel("change of the\nmakespan")
    axes[1, 0].set_ylabel("change of the\nrequests in a batch")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    title = f"{results.origin}; with prediction against without"
    _describe(figure, title, f"jitter, as a share of the time between steps (bands: {_RANGE}; {_GREY})")
    return figure


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure; the end of the name says in which format."""
    path = Path(path)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata)
