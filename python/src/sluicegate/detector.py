"""Trains the detector of access patterns: from simulated scenarios to a model and its card."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate import forest
from sluicegate.program import Program, check_equal
from sluicegate.staged import staged

CLASSES = ["contiguous small", "contiguous large", "strided small", "strided large"]
# Version of the features (`features::VERSION`).
FEATURES = 1
# Columns before the inputs.
KNOWN = 17
THESIS = "thesis_"
# Rows of a scenario that are kept: they are alike, and more scenarios say more than more rows of one.
ROWS_MAX = 120
# First seed, of the scenarios to train with and of those to judge by: the sets differ in more than seeds.
FIRST = 1000


@dataclass
class Data:
    """Files in windows whose patterns are known."""

    inputs: np.ndarray
    thesis: np.ndarray
    names: list[str]
    thesis_names: list[str]
    label: np.ndarray
    seed: np.ndarray
    platform: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.label)

    def part(self, rows: np.ndarray) -> Data:
        """Return some of the rows."""
        arrays = (self.inputs, self.thesis, self.label, self.seed, self.platform)
        inputs, thesis, label, seed, platform = (array[rows] for array in arrays)
        return Data(inputs, thesis, self.names, self.thesis_names, label, seed, platform)

    def weights(self) -> np.ndarray:
        """Return a weight for each row: a scenario counts by the square root of its rows."""
        _, place, count = np.unique(self.seed, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / np.sqrt(count[place]))


def thin(whole: Path, out: Path, rows_max: int, seed: int) -> None:
    """Write at most so many rows of known patterns of each scenario of a data set, drawn at random.

    Rows of a scenario stand together.
    """
    random = np.random.default_rng(seed)
    with whole.open() as lines, out.open("w") as kept:
        head = next(lines)
        kept.write(head)
        label = head.strip().split(",").index("label")
        for _, group in itertools.groupby(lines, lambda line: line.partition(",")[0]):
            rows = [line for line in group if line.rstrip().split(",", label + 1)[label] != "-1"]
            some = np.sort(random.choice(len(rows), size=min(rows_max, len(rows)), replace=False))
            kept.writelines(rows[at] for at in some)


def read(path: str | Path) -> Data:
    """Read a data set of `sluice-bench detector --export`; rows of no known pattern are left out."""
    with Path(path).open() as lines:
        head = lines.readline().strip().split(",")
    places = {name: at for at, name in enumerate(head)}
    missing = {"seed", "platform", "label"} - places.keys()
    if missing:
        raise ValueError(f"{path}: no data set of detectors: it has no column {', '.join(sorted(missing))}")
    thesis = [at for at, name in enumerate(head) if name.startswith(THESIS)]
    inputs = [at for at in range(KNOWN, len(head)) if at not in thesis]
    columns = [places["label"], places["seed"], *inputs, *thesis]
    numbers = np.loadtxt(path, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    platform = np.loadtxt(path, delimiter=",", skiprows=1, usecols=places["platform"], dtype=str, ndmin=1)
    known = numbers[:, 0] >= 0
    numbers, platform = numbers[known], platform[known]
    values = numbers[:, 2:].astype(np.float32)
    return Data(
        inputs=values[:, : len(inputs)],
        thesis=values[:, len(inputs) :],
        names=[head[at] for at in inputs],
        thesis_names=[head[at].removeprefix(THESIS) for at in thesis],
        label=numbers[:, 0].astype(np.int64),
        seed=numbers[:, 1].astype(np.int64),
        platform=platform,
    )


def fit(data: Data, inputs: np.ndarray, trees: int, leaves: int, seed: int) -> forest.Model:
    """Fit a forest; `leaves`: most leaves of a tree."""
    from sklearn.ensemble import RandomForestClassifier

    model: forest.Model = RandomForestClassifier(
        n_estimators=trees,
        max_leaf_nodes=leaves,
        min_samples_leaf=4,
        max_features=0.4 if trees > 1 else None,
        bootstrap=trees > 1,
        class_weight="balanced",
        random_state=seed,
    )
    model.fit(inputs, data.label, sample_weight=data.weights())
    if list(model.classes_) != list(range(len(CLASSES))):
        raise ValueError(
            f"the data has only {len(model.classes_)} of {len(CLASSES)} patterns: more scenarios are needed"
        )
    return model


def left_out(data: Data, inputs: np.ndarray, trees: int, leaves: int, seed: int) -> dict[str, float]:
    """Return for each platform the share that a forest gets right that was trained with all others.

    At most 100,000 rows are used.
    """
    random = np.random.default_rng(seed)
    some = np.sort(random.choice(len(data), size=min(100_000, len(data)), replace=False))
    data, inputs = data.part(some), inputs[some]
    right = {}
    for platform in sorted(set(data.platform.tolist())):
        held = data.platform == platform
        model = fit(data.part(~held), inputs[~held], trees, leaves, seed)
        right[platform] = float((model.predict(inputs[held]) == data.label[held]).mean())
    return right


def thesis_leaves(data: Data, seed: int) -> int:
    """Return the number of leaves with which a tree of D and ΔT_S is best on unseen platforms."""
    scores = {leaves: left_out(data, data.thesis, 1, leaves, seed) for leaves in (8, 20, 50, 150)}
    return max(scores, key=lambda leaves: float(np.mean(list(scores[leaves].values()))))


def _seeds(count: int) -> list[str]:
    return ["--first", str(FIRST), "--seeds", str(count)]


class Bench(Program):
    """Simulates scenarios, and evaluates detectors."""

    benchmark = "detector"

    def export(self, seeds: int, out: Path) -> None:
        """Simulate the scenarios for training."""
        self.run("--set", "train", *_seeds(seeds), "--export", str(out))

    def votes(self, data: Path, model: Path) -> np.ndarray:
        """Return what the model says of a data set, computed in Rust."""
        return self.rows("--classify", str(data), "--model", str(model))

    def thesis_votes(self, data: Path, tree: Path) -> np.ndarray:
        """Return what the tree of D and ΔT_S says of a data set, computed in Rust."""
        return self.rows("--classify", str(data), "--thesis", "--thesis-model", str(tree))

    def judge(self, model: Path, thesis: Path, seeds: int) -> dict[str, Any]:
        """Judge a model, and a tree of D and ΔT_S, by scenarios that they were not trained with."""
        return self.report(*_seeds(seeds), "--model", str(model), "--thesis-model", str(thesis))


def train(
    bench: Bench,
    out: Path,
    work: Path,
    *,
    seeds: int = 10_000,
    held_out: int = 300,
    trees: int = 12,
    leaves: int = 1000,
    seed: int = 1,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train both models, write them and the card to `out`; returns the scores.

    What was simulated is kept in `work`, and used again.
    """
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"train-{seeds}-f{FEATURES}-s{seed}-r{ROWS_MAX}.csv"
    if not path.exists():
        say(f"simulating {seeds} scenarios: {path}")
        with tempfile.TemporaryDirectory(dir=work) as made:
            bench.export(seeds, Path(made) / "data.csv")
            thin(Path(made) / "data.csv", Path(made) / "thin.csv", ROWS_MAX, seed)
            (Path(made) / "thin.csv").rename(path)
    data = read(path)
    say(f"{len(data)} files in windows of {len(np.unique(data.seed))} scenarios")
    trained: dict[str, Any] = {
        "scenarios": seeds,
        "rows": len(data),
        "rows_of_scenario_max": ROWS_MAX,
        "seed": seed,
        "trees": trees,
        "leaves_max": leaves,
        "command": "python -m sluicegate train detector",
    }
    with staged(out) as made:
        others = left_out(data, data.inputs, trees, leaves, seed)
        for platform, share in others.items():
            say(f"  trained without {platform}: {share:.1%} of it right")
        model = fit(data, data.inputs, trees, leaves, seed)
        exported = [forest.tree_of(tree) for tree in model.estimators_]
        purpose = forest.Purpose("detector", FEATURES, data.names, CLASSES)
        large, small = made / "detector.json", made / "detector-thesis.json"
        forest.save(large, purpose, exported, trained)
        few = thesis_leaves(data, seed)
        thesis = fit(data, data.thesis, 1, few, seed)
        purpose = forest.Purpose("detector", FEATURES, data.thesis_names, CLASSES)
        tree = [forest.tree_of(thesis.estimators_[0])]
        forest.save(small, purpose, tree, {**trained, "trees": 1, "leaves_max": few})
        votes = [bench.votes(path, large), bench.thesis_votes(path, small)]
        equal = check_equal(large.name, votes[0], model.predict_proba(data.inputs), 1e-12, classes=True)
        check_equal(small.name, votes[1], thesis.predict_proba(data.thesis), 1e-12, classes=True)
        say(f"Rust and scikit-learn agree on all {equal} rows")
        write_check(made / "detector-check.csv", model, data, seed)
        scores = bench.judge(large, small, held_out)
        importance = sorted(
            zip(data.names, model.feature_importances_, strict=True), key=lambda pair: -pair[1]
        )
        (made / "detector.md").write_text(card(data, trained, others, scores, equal, importance))
    return scores


def write_check(path: Path, model: forest.Model, data: Data, seed: int, rows: int = 200) -> None:
    """Write some rows and scikit-learn's votes for them: a test of Rust's compares them without Python."""
    some = np.sort(np.random.default_rng(seed).choice(len(data), size=min(rows, len(data)), replace=False))
    inputs, votes = data.inputs[some], model.predict_proba(data.inputs[some])
    lines = [",".join([*data.names, *(f"votes {name}" for name in CLASSES)])]
    for row, vote in zip(inputs, votes, strict=True):
        lines.append(",".join([*(str(value) for value in row), *(repr(float(value)) for value in vote)]))
    path.write_text("\n".join(lines) + "\n")


def card(
    data: Data,
    trained: dict[str, Any],
    others: dict[str, float],
    scores: dict[str, Any],
    equal: int,
    importance: list[tuple[str, float]],
) -> str:
    """Return the model's card."""
    counts = np.bincount(data.label, minlength=len(CLASSES))
    classes = ", ".join(f"{name} {count}" for name, count in zip(CLASSES, counts, strict=True))
    lines = [
        "# The detector of access patterns",
        "",
        "Written by `python -m sluicegate train detector`; see `docs/patterns.md`.",
        "",
        "| | |",
        "|---|---|",
        f"| model | {trained['trees']} trees of at most {trained['leaves_max']} leaves (scikit-learn) |",
        f"| data | {len(data)} files in windows of {len(np.unique(data.seed))} simulated scenarios, at most "
        f"{ROWS_MAX} of each: {classes} |",
        f"| seeds | scenarios {FIRST} to {FIRST + trained['scenarios'] - 1}, forest {trained['seed']} |",
        f"| platforms | {', '.join(sorted(set(data.platform.tolist())))} |",
        f"| Rust and scikit-learn | the same class and votes on all {equal} rows |",
        "",
        "## Scores",
        "",
        f"On {scores['scenarios']} scenarios of other platforms and process counts, drawn otherwise from "
        f"seeds of the same numbers ({scores['windows']} windows of servers, {scores['files']} of files): "
        f"`sluice-bench detector --seeds {scores['scenarios']}`.",
        "",
        "| | servers | files | files, D and ΔT_S only |",
        "|---|---|---|---|",
        f"| all | {scores['server_accuracy']:.1%} | {scores['file_accuracy']:.1%} "
        f"| {scores['thesis_tree_accuracy']:.1%} |",
    ]
    lines += [_line(line) for line in scores["lines"]]
    lines += ["", "Files by what they were (rows) and what they were taken for:", ""]
    lines += ["| | " + " | ".join(CLASSES) + " |", "|---" * (len(CLASSES) + 1) + "|"]
    for name, row in zip(CLASSES, scores["confusion"], strict=True):
        lines.append(f"| {name} | " + " | ".join(str(count) for count in row) + " |")
    lines += [
        "",
        "Trained without one platform, with at most 100,000 rows, it gets right of that platform's files:",
        "",
    ]
    lines += ["| platform | files |", "|---|---|"]
    lines += [f"| {platform} | {share:.1%} |" for platform, share in others.items()]
    lines += ["", "## Inputs", "", "| input | importance (Gini) |", "|---|---|"]
    lines += [f"| `{name}` | {share:.3f} |" for name, share in importance]
    lines += ["", "## Limits", "", *LIMITS, ""]
    return "\n".join(lines)


def _line(line: dict[str, Any]) -> str:
    def share(score: dict[str, int]) -> str:
        return f"{score['right'] / score['of']:.1%}" if score["of"] else "-"

    return f"| {line['what']} | {share(line['server'])} | {share(line['file'])} | {share(line['thesis'])} |"


LIMITS = [
    "* Other seeds of the judging platforms were seen while features were chosen; those of the scores when "
    "the number of leaves was.",
    "* Requests between a stripe and all servers' stripes are of no class; it was not trained with any.",
    "* Random accesses, regions with gaps and appended logs are of no class; it calls them one of the four.",
    "* Parts of 4 to 16 MB of a shared file, gone through again and again by real processes, are sometimes "
    "taken for strided.",
    "* Large strided reads of many real processes are sometimes taken for contiguous ones.",
    "* Small reads of own files by real processes are sometimes taken for large ones.",
    "* One program with several small requests to a file under way looks like several that take turns in it.",
    "* Requests that were rearranged before the server (I/O nodes, client caches) are judged as they come.",
]
