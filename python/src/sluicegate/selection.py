"""Trains the model that selectors ask: from simulated or measured cases to a model and its card."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate import forest
from sluicegate.program import Program, check_equal
from sluicegate.staged import staged

FORMAT = "sluice-selection 1"
# What an arm loses against the best one counts as no more than this logarithm: that it is bad is enough.
LOSS_MAX = 0.7
# Of 16 cases that judge each of the eight platforms has one in the half that nobody looked at.
HELD_OUT_MIN = 16
# What T1 to T5 are not told.
LEFT_OUT: dict[str, list[str]] = {
    "T1": [],
    "T2": ["memory_mb_log2"],
    "T3": ["memory_mb_log2", "file_mb_log2"],
    "T4": ["memory_mb_log2", "file_mb_log2", "files_log2"],
    "T5": ["memory_mb_log2", "ratio_log2"],
}
ANTICIPATES = " anticipation=on"


@dataclass
class Data:
    """Cases, and windows of each under the arms that were measured."""

    names: list[str]
    thesis_names: list[str]
    features: int
    arms: list[str]
    # A row for each window, and which case it is of.
    inputs: np.ndarray
    case: np.ndarray
    # A row for each case: logarithm of each arm's throughput over that of the best one.
    gains: np.ndarray
    best: list[list[str]]
    thesis: np.ndarray
    platform: np.ndarray
    cpu_s: float

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self.gains)

    def part(self, cases: np.ndarray) -> Data:
        """Return some of the cases (a mask)."""
        place = np.cumsum(cases) - 1
        rows = cases[self.case]
        return Data(
            self.names,
            self.thesis_names,
            self.features,
            self.arms,
            self.inputs[rows],
            place[self.case[rows]],
            self.gains[cases],
            [best for best, is_one in zip(self.best, cases, strict=True) if is_one],
            self.thesis[cases],
            self.platform[cases],
            self.cpu_s,
        )

    def targets(self) -> np.ndarray:
        """Return for each row what the model is to say."""
        return np.asarray(np.maximum(self.gains, -LOSS_MAX)[self.case])

    def weights(self) -> np.ndarray:
        """Return a weight for each row: all cases count the same."""
        return np.asarray(1.0 / np.bincount(self.case, minlength=len(self))[self.case])


def _times(case: dict[str, Any], arm: str) -> list[float] | None:
    """Return the times of an arm; of one with anticipation on flash, where there is none, those without."""
    arms: dict[str, dict[str, list[float]]] = case["arms"]
    if arm not in arms and case["device"] == "flash":
        arm = arm.removesuffix(ANTICIPATES)
    return arms[arm]["seconds"] if arm in arms else None


def _is_list(value: Any, kind: type) -> bool:  # noqa: ANN401
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def _are_numbers(value: Any) -> bool:  # noqa: ANN401
    """Tell whether they are numbers of 32 bits; infinity and what is not a number are none."""
    return isinstance(value, list) and all(isinstance(one, int | float) and abs(one) < 3e38 for one in value)


def _head(line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
    except ValueError as error:
        raise ValueError(f"no data of selections: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"no data of selections of this version ({FORMAT})")
    if not all(_is_list(head.get(key), str) for key in ("inputs", "thesis_inputs")):
        raise ValueError('"inputs" and "thesis_inputs" have to be lists of names')
    if not isinstance(head.get("features"), int):
        raise ValueError('"features" has to be the version of the inputs')
    return head


def _case(line: bytes, head: dict[str, Any]) -> dict[str, Any]:
    case, inputs = json.loads(line), len(head["inputs"])
    if not isinstance(case, dict) or not isinstance(case.get("case"), int):
        raise ValueError('no case: an object with its number as "case" is needed')
    for key, kind in [("device", str), ("arms", dict)]:
        if not isinstance(case.get(key), kind):
            raise ValueError(f'a case needs "{key}"')
    for arm, one in case["arms"].items():
        if not isinstance(one, dict) or not all(
            isinstance(one.get(key), list) for key in ("seconds", "windows")
        ):
            raise ValueError(f'arm {arm} needs lists of "seconds" and "windows"')
        if not _are_numbers(one["seconds"]) or not all(seconds > 0 for seconds in one["seconds"]):
            raise ValueError(f"the times of {arm} are no seconds")
        if not all(_are_numbers(window) and len(window) == inputs for window in one["windows"]):
            raise ValueError(f"windows of {arm} are not of {inputs} inputs")
    thesis = case.get("thesis") or []
    if not _are_numbers(thesis) or len(thesis) not in (0, len(head["thesis_inputs"])):
        raise ValueError(f'"thesis" has to be {len(head["thesis_inputs"])} numbers, or none')
    if not _is_list(case.get("best") or [], str) or not _are_numbers([case.get("cpu_s", 0.0)]):
        raise ValueError('"best" has to be a list of arms, "cpu_s" a number')
    return case


def read(path: str | Path) -> Data:
    """Read cases of `sluice-bench selection --export`, or of somebody else who measured them."""
    head: dict[str, Any] = {}
    cases = []
    with Path(path).open("rb") as lines:
        number = 1
        try:
            head = _head(lines.readline())
            for line in lines:
                number += 1
                cases.append(_case(line, head))
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
    if not cases:
        raise ValueError(f"{path}: there are no cases")
    # As they came depends on which simulation ended first.
    cases.sort(key=lambda case: case["case"])
    arms = sorted({arm for case in cases for arm in case["arms"]})
    inputs, owner, gains = [], [], []
    for number, case in enumerate(cases):
        times = [_times(case, arm) or [] for arm in arms]
        missing = [arm for arm, one in zip(arms, times, strict=True) if not one]
        if missing:
            raise ValueError(f"{path}: case {case['case']} has no times of {', '.join(missing)}")
        logs = np.array([np.log(one).mean() for one in times])
        gains.append(logs.min() - logs)
        for arm in sorted(case["arms"]):
            for window in case["arms"][arm]["windows"]:
                inputs.append(window)
                owner.append(number)
    if not inputs:
        raise ValueError(f"{path}: there are no windows")
    thesis = [case.get("thesis") or [0.0] * len(head["thesis_inputs"]) for case in cases]
    return Data(
        names=head["inputs"],
        thesis_names=head["thesis_inputs"],
        features=head["features"],
        arms=arms,
        inputs=np.array(inputs, dtype=np.float32),
        case=np.array(owner),
        gains=np.array(gains),
        best=[case.get("best") or [] for case in cases],
        thesis=np.array(thesis, dtype=np.float32).reshape(len(cases), -1),
        platform=np.array([case.get("platform", "") for case in cases]),
        cpu_s=float(sum(case.get("cpu_s", 0.0) for case in cases)),
    )


@dataclass
class Settings:
    """How models are made."""

    trees: int = 16
    leaves: int = 80
    samples: int = 5
    caution: float = 1.0
    seed: int = 1


def _round(tree: forest.Tree) -> None:
    """Make a fitted tree's numbers short, in place: the file stays small, and both evaluate the same."""
    nodes = tree.tree_
    nodes.value[...] = np.round(nodes.value, 3)
    inner = nodes.children_left >= 0
    nodes.threshold[inner] = np.round(nodes.threshold[inner], 4)


def fit(data: Data, settings: Settings) -> Any:  # noqa: ANN401
    """Fit a forest of regression trees: each arm's logarithmic throughput over that of the best."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(
        n_estimators=settings.trees,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.samples,
        max_features=0.4,
        random_state=settings.seed,
    )
    model.fit(data.inputs, data.targets(), sample_weight=data.weights())
    for tree in model.estimators_:
        _round(tree)
    return model


def numbers_of(tree: forest.Tree) -> dict[str, list[Any]]:
    """Return a fitted regression tree as arrays with an entry for each node, in preorder."""
    nodes = tree.tree_
    is_leaf = nodes.children_left < 0
    values = nodes.value[:, :, 0]
    return {
        "input": np.where(is_leaf, -1, nodes.feature).tolist(),
        "threshold": [0 if leaf else float(t) for leaf, t in zip(is_leaf, nodes.threshold, strict=True)],
        "left": np.where(is_leaf, 0, nodes.children_left).tolist(),
        "right": np.where(is_leaf, 0, nodes.children_right).tolist(),
        "votes": [[float(v) for v in values[at]] if is_leaf[at] else [] for at in range(len(is_leaf))],
    }


def labels(data: Data) -> np.ndarray:
    """Return an arm for each case to train T1 to T5 with.

    Of those that tie it is the one that is among the best most often.
    """
    count = {arm: sum(arm in best for best in data.best) for arm in data.arms}
    fastest = [data.arms[at] for at in data.gains.argmax(axis=1)]
    label = [
        max(best, key=lambda arm: count[arm]) if best else one
        for best, one in zip(data.best, fastest, strict=True)
    ]
    return np.array([data.arms.index(arm) for arm in label])


def fit_thesis(data: Data, asked: np.ndarray, seed: int) -> tuple[list[dict[str, list[Any]]], np.ndarray]:
    """Fit T1 to T5; returns them as arrays whose votes are for all arms, and what scikit-learn says.

    That is, for each row of `asked` and each of the trees, its votes for all arms.
    """
    from sklearn.tree import DecisionTreeClassifier

    exported = []
    said = np.zeros((len(asked), len(LEFT_OUT), len(data.arms)))
    for at, left_out in enumerate(LEFT_OUT.values()):
        told = np.array([name not in left_out for name in data.thesis_names])
        tree = DecisionTreeClassifier(max_leaf_nodes=40, min_samples_leaf=3, random_state=seed)
        tree.fit(data.thesis * told, labels(data))
        said[:, at, tree.classes_] = tree.predict_proba(asked * told)
        nodes = forest.tree_of(tree)
        classes = tree.classes_.tolist()
        for leaf in nodes["votes"]:
            if leaf:
                share = dict(zip(classes, leaf, strict=True))
                leaf[:] = [share.get(arm, 0.0) for arm in range(len(data.arms))]
        exported.append(nodes)
    return exported, said


def careful(model: Any, inputs: np.ndarray, caution: float) -> np.ndarray:  # noqa: ANN401
    """Return what a selector is told: the trees' mean less `caution` times their deviation."""
    each = np.stack([tree.predict(inputs) for tree in model.estimators_])
    mean = each.sum(axis=0) / len(each)
    deviation = np.sqrt(((each - mean) ** 2).sum(axis=0) / len(each))
    return np.asarray(mean - caution * deviation)


def regrets(data: Data, values: np.ndarray) -> np.ndarray:
    """Return for each row the share of the best arm's throughput that the arm of the highest value loses."""
    chosen = values.argmax(axis=1)
    return np.asarray(1.0 - np.exp(data.gains[data.case, chosen]))


def validated(data: Data, settings: Settings, parts: int = 5) -> float:
    """Return the mean regret by cross-validation over cases, of the choice at each window."""
    part = np.random.default_rng(settings.seed).integers(0, parts, len(data))
    lost = []
    for one in range(parts):
        held = part == one
        if held.any() and not held.all():
            model = fit(data.part(~held), settings)
            rest = data.part(held)
            if len(rest.inputs):
                lost.append(regrets(rest, careful(model, rest.inputs, settings.caution)))
    return float(np.concatenate(lost).mean()) if lost else float("nan")


def _ranges(data: Data) -> list[list[float]]:
    """Return within which inputs the model is believed: what it was trained with, and a little more."""
    least, most = data.inputs.min(axis=0).astype(float), data.inputs.max(axis=0).astype(float)
    slack = 0.05 * (most - least) + 0.5
    return [
        [float(np.round(low, 3)), float(np.round(high, 3))]
        for low, high in zip(least - slack, most + slack, strict=True)
    ]


def save(path: Path, data: Data, model: Any, settings: Settings, trained: dict[str, Any]) -> None:  # noqa: ANN401
    """Write a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    purpose = forest.Purpose("selection", data.features, data.names, data.arms)
    extra = {"leaves": "numbers", "ranges": _ranges(data), "caution": settings.caution}
    forest.save(path, purpose, [numbers_of(tree) for tree in model.estimators_], trained, extra)


def save_thesis(
    path: Path, data: Data, trees: Sequence[dict[str, list[Any]]], trained: dict[str, Any]
) -> None:
    """Write T1 to T5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    purpose = forest.Purpose("selection-thesis", data.features, data.thesis_names, data.arms)
    forest.save(path, purpose, trees, trained)


class Bench(Program):
    """Simulates cases, and evaluates what selectors ask."""

    benchmark = "selection"

    def export(self, held_out: bool, cases: int, out: Path) -> None:
        """Simulate the cases that `out` does not have yet."""
        name = "held-out" if held_out else "train"
        self.run("--set", name, "--cases", str(cases), "--export", str(out))

    def values(self, data: Path, model: Path) -> np.ndarray:
        """Return what Rust says of the windows in a file: means, and what selectors are told."""
        return self.rows("--classify", str(data), "--model", str(model))

    def votes(self, data: Path, model: Path) -> np.ndarray:
        """Return what Rust says that T1 to T5 say: five lines for each case."""
        return self.rows("--classify", str(data), "--model", str(model), "--trees")

    def judge(self, models: Path, data: Path, cases: int) -> dict[str, Any]:
        """Judge models by the half of the cases that nobody looked at."""
        return self.report("--cases", str(cases), "--models", str(models), "--data", str(data))


def check_model(bench: Bench, path: Path, exported: Path, model: Any, data: Data, caution: float) -> int:  # noqa: ANN401
    """Compare Rust with scikit-learn on all windows; returns how many there are."""
    theirs = np.hstack([model.predict(data.inputs), careful(model, data.inputs, caution)])
    return check_equal(exported.name, bench.values(path, exported), theirs)


def check_thesis(bench: Bench, path: Path, exported: Path, said: np.ndarray) -> None:
    """Compare Rust's T1 to T5 with what scikit-learn said of all cases, five rows for each."""
    check_equal(exported.name, bench.votes(path, exported), said.reshape(-1, said.shape[2]), 1e-12)


def write_check(path: Path, model: Any, data: Data, settings: Settings, rows: int = 200) -> None:  # noqa: ANN401
    """Write some rows and what scikit-learn says of them: a test of Rust's compares them without Python."""
    random = np.random.default_rng(settings.seed)
    some = np.sort(random.choice(len(data.inputs), size=min(rows, len(data.inputs)), replace=False))
    inputs = data.inputs[some]
    values = np.hstack([model.predict(inputs), careful(model, inputs, settings.caution)])
    head = [*data.names, *(f"mean {arm}" for arm in data.arms), *(f"told {arm}" for arm in data.arms)]
    lines = [",".join(head)]
    for row, value in zip(inputs, values, strict=True):
        lines.append(",".join([*(str(v) for v in row), *(repr(float(v)) for v in value)]))
    path.write_text("\n".join(lines) + "\n")


def _trained(data: Data, settings: Settings, without: str | None = None) -> dict[str, Any]:
    return {
        "cases": len(data),
        "windows": len(data.inputs),
        "without": without,
        "trees": settings.trees,
        "leaves_max": settings.leaves,
        "seed": settings.seed,
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m sluicegate train selection",
    }


def train_with(
    path: Path, bench: Bench, out: Path, settings: Settings, say: Callable[[str], None] = print
) -> float:
    """Train a site's own model with cases that somebody measured.

    Returns its mean regret by cross-validation.
    """
    data = read(path)
    lost = validated(data, settings)
    if not np.isfinite(lost):
        raise ValueError(
            f"{path}: {len(data)} cases are too few: some are kept to judge by, some to train with"
        )
    say(f"{len(data)} cases, {len(data.inputs)} windows: mean regret {lost:.1%} by cross-validation")
    with staged(out) as made:
        model, file = fit(data, settings), made / "selection.json"
        save(file, data, model, settings, {**_trained(data, settings), "mean_regret": lost})
        equal = check_model(bench, path, file, model, data, settings.caution)
    say(f"Rust and scikit-learn agree on all {equal} windows")
    return lost


def below(path: Path, cases: int, out: Path) -> None:
    """Write the cases with smaller numbers than `cases`: a run with more may have left others."""
    with path.open() as lines, out.open("w") as kept:
        kept.write(next(lines))
        kept.writelines(line for line in lines if json.loads(line)["case"] < cases)


def train(
    bench: Bench,
    out: Path,
    work: Path,
    *,
    cases: int,
    held_out: int,
    settings: Settings,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train the models, write them and the card to `out`; returns the scores.

    What was simulated is kept in `work`, and used again; what was interrupted goes on.
    """
    if held_out < HELD_OUT_MIN:
        raise ValueError(
            f"{held_out} cases are too few to judge by: every platform needs one, with {HELD_OUT_MIN} or more"
        )
    work.mkdir(parents=True, exist_ok=True)
    paths = [work / "selection-train.jsonl", work / "selection-held-out.jsonl"]
    for path, is_held_out, count in zip(paths, (False, True), (cases, held_out), strict=True):
        say(f"simulating what is missing of {count} cases: {path}")
        bench.export(is_held_out, count, path)
    with tempfile.TemporaryDirectory(dir=work) as some, staged(out) as made:
        path, judged = (Path(some) / path.name for path in paths)
        below(paths[0], cases, path)
        below(paths[1], held_out, judged)
        data = read(path)
        say(f"{len(data)} cases, {len(data.inputs)} windows, {data.cpu_s / 60:.0f} minutes of processor time")
        for platform in sorted(set(read(judged).platform.tolist())):
            rest = data.part(data.platform != platform)
            trained = _trained(rest, settings, platform)
            file = made / "selection" / f"without-{platform}.json"
            save(file, rest, fit(rest, settings), settings, trained)
            trees, said = fit_thesis(rest, data.thesis, settings.seed)
            file = file.with_name(f"without-{platform}-thesis.json")
            save_thesis(file, rest, trees, trained)
            check_thesis(bench, path, file, said)
        model, file = fit(data, settings), made / "selection.json"
        save(file, data, model, settings, _trained(data, settings))
        equal = check_model(bench, path, file, model, data, settings.caution)
        say(f"Rust and scikit-learn agree on all {equal} windows, and on T1 to T5")
        write_check(made / "selection-check.csv", model, data, settings)
        scores = bench.judge(made, judged, held_out)
        importance = sorted(
            zip(data.names, model.feature_importances_, strict=True), key=lambda pair: -pair[1]
        )
        size = file.stat().st_size
        (made / "selection.md").write_text(card(data, cases, settings, scores, equal, importance, size))
    return scores


def _percent(share: float) -> str:
    return f"{share:.1%}"


def card(
    data: Data,
    cases: int,
    settings: Settings,
    scores: dict[str, Any],
    equal: int,
    importance: list[tuple[str, float]],
    size: int,
) -> str:
    """Return the model's card."""
    minutes = (data.cpu_s + scores["simulated_cpu_s"]) / 60
    lines = [
        "# The model that selectors ask",
        "",
        "Written by `python -m sluicegate train selection`; see `docs/selection.md`.",
        "",
        "| | |",
        "|---|---|",
        f"| model | {settings.trees} regression trees of at most {settings.leaves} leaves "
        f"(scikit-learn), {size / 1024:.0f} KiB |",
        f"| what it says | of {len(data.arms)} arms the logarithm of the throughput over that of the best |",
        f"| data | {len(data)} simulated cases, {len(data.inputs)} windows under all arms |",
        f"| judged by | {scores['cases']} other cases |",
        f"| processor time | {minutes:.0f} minutes to simulate both |",
        f"| platforms | {', '.join(sorted(set(data.platform.tolist())))} |",
        f"| seeds | cases 0 to {cases - 1}, forest {settings.seed} |",
        f"| caution | {settings.caution} standard deviations of the trees |",
        f"| Rust and scikit-learn | the same on all {equal} windows |",
        "",
        "## Scores",
        "",
        "`sluice-bench selection`: process counts, and mixes of programs of which one reads and one writes, "
        "that were not trained with; sizes and firmware are drawn from the ranges of training. *Ours* and T1 "
        "to T5 are asked about a platform that they were trained without. A regret is the share of the "
        "fastest arm's throughput that is lost; what is not significant is none (in brackets: with that).",
        "",
    ]
    lines += [f"* **Missed**: {miss}" for miss in scores["misses"]]
    lines += [
        "",
        "| who | right | mean regret | 95 % | worst | above 5 % | of `noop` | worst against `noop` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in scores["policies"]:
        low, high = row["mean_regret_interval"]
        lines.append(
            f"| {row['name']} | {_percent(row['accuracy'])} | {_percent(row['mean_regret'])} "
            f"({_percent(row['mean_regret_all'])}) | {_percent(low)} to {_percent(high)} "
            f"| {_percent(row['worst_regret'])} | {_percent(row['above_bar'])} | {row['over_noop']:.2f} "
            f"| {_percent(row['vs_noop_worst'])} |"
        )
    lines += [
        "",
        "| platform | cases | left out: mean, worst | known: mean, worst | T3 | best fixed |",
        "|---|---|---|---|---|---|",
    ]
    for one in scores["platforms"]:
        known, t3 = one["known"], one["t3"]
        lines.append(
            f"| {one['name']} | {one['cases']} "
            f"| {_percent(one['mean_regret'])}, {_percent(one['worst_regret'])} "
            f"| {_percent(known['mean_regret'])}, {_percent(known['worst_regret'])} "
            f"| {_percent(t3['mean_regret']) if t3 else '-'} "
            f"| {one['best_fixed']} {_percent(one['best_fixed_mean_regret'])} |"
        )
    lines += ["", "## Inputs", "", "| input | importance |", "|---|---|"]
    lines += [f"| `{name}` | {share:.3f} |" for name, share in importance]
    lines += ["", "## T1 to T5", "", *THESIS, "", "## Limits", "", *LIMITS, ""]
    return "\n".join(lines)


THESIS = [
    "Decision trees of the papers' inputs, trained with these cases to name the best arm. Unlike ours they",
    "are told the truth: `read_share` is the operation (by bytes), `files_log2` the files accessed,",
    "`file_mb_log2` the bytes of each, `spatiality` 0 for contiguous, 1 for strided, 2 for random,",
    "`request_kib_log2` the programs' request size, `ratio_log2` the device's ratio of sequential to random",
    "throughput for that operation and the size of requests at the server, `memory_mb_log2` the server's",
    "cache. T2 is not told the memory, T3 nor the bytes of a file, T4 nor the number of files; T5 neither",
    "ratio nor memory.",
]
LIMITS = [
    "* Everything was simulated: the models of devices are those of `docs/devices.md`.",
    "* One workload at a time: a case has no phases. What a change costs is the selector's business.",
    "* Windows under each arm were trained with alike; a selector sees mostly those of the arm in force.",
    "* Of devices of which nothing is known, and of inputs beyond those of its training, it says nothing.",
    "* Arms that were not measured are unknown to it.",
]
