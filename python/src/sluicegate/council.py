"""Trains the council's pattern networks: from simulated experiments to models and their card."""

from __future__ import annotations

import itertools
import json
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.program import Program, check_equal
from sluicegate.staged import staged

FORMAT = "sluice-net 1"
CLASSES = ["own-contiguous", "shared-contiguous", "shared-strided"]
# Version of the features (`features::VERSION`).
FEATURES = 1
# Columns before the inputs.
KNOWN = 10
PAPER = "paper_"
# Sets of experiments to train with, and to judge by: the paper's system, and GlusterFS's I/O nodes.
TRAIN, UNSEEN = ("train", "gluster"), ("unseen", "gluster-unseen")
# First seed to train with, and to judge by; the sets differ in more than seeds.
FIRST, FIRST_UNSEEN = 1_000, 20_000

Layer = tuple[np.ndarray, np.ndarray]


@dataclass
class Data:
    """Windows whose patterns are known."""

    inputs: np.ndarray
    paper: np.ndarray
    names: list[str]
    paper_names: list[str]
    label: np.ndarray
    seed: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.label)


def read(path: str | Path) -> Data:
    """Read a data set of `sluice-bench council --export`."""
    with Path(path).open() as lines:
        head = lines.readline().strip().split(",")
    missing = {"seed", "label", "requests"} - set(head[:KNOWN])
    if missing:
        raise ValueError(f"{path}: no data set of the council: it has no column {', '.join(sorted(missing))}")
    paper = [at for at in range(KNOWN, len(head)) if head[at].startswith(PAPER)]
    inputs = [at for at in range(KNOWN, len(head)) if at not in paper]
    columns = [head.index("seed"), head.index("label"), *paper, *inputs]
    try:
        numbers = np.loadtxt(path, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Data(
        inputs=numbers[:, 2 + len(paper) :],
        paper=numbers[:, 2 : 2 + len(paper)],
        names=[head[at] for at in inputs],
        paper_names=[head[at].removeprefix(PAPER) for at in paper],
        label=numbers[:, 1].astype(np.int64),
        seed=numbers[:, 0].astype(np.int64),
    )


def join(sets: Sequence[Data]) -> Data:
    """Return the rows of all sets; raises ValueError if their inputs differ."""
    first = sets[0]
    for other in sets[1:]:
        if (other.names, other.paper_names) != (first.names, first.paper_names):
            raise ValueError("data sets with other inputs: they come from another version of sluice-bench")
    rows = {
        key: np.concatenate([getattr(one, key) for one in sets])
        for key in ("inputs", "paper", "label", "seed")
    }
    return Data(names=first.names, paper_names=first.paper_names, **rows)


def joined(paths: Sequence[Path]) -> str:
    """Return the texts of data sets with the same inputs as one."""
    texts = [path.read_text().splitlines() for path in paths]
    return "\n".join([texts[0][0], *itertools.chain.from_iterable(lines[1:] for lines in texts)]) + "\n"


@dataclass
class Network:
    """A trained network, with what is done to its inputs before."""

    names: list[str]
    ranges: np.ndarray
    lambdas: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    layers: list[Layer]

    def scaled(self, inputs: np.ndarray) -> np.ndarray:
        """Return inputs as its first layer gets them (Yeo and Johnson 2000, then scaled and centred)."""
        scaled = yeo_johnson(inputs.clip(*self.ranges.T), self.lambdas)
        return np.asarray((scaled - self.means) / self.deviations)

    def shares(self, inputs: np.ndarray) -> np.ndarray:
        """Return the share of each class for each row."""
        return softmax(forward(self.layers, self.scaled(inputs))[-1])


def yeo_johnson(values: np.ndarray, lambdas: np.ndarray) -> np.ndarray:
    """Return the power transform of each column (Yeo and Johnson 2000, equation 2.1)."""

    def power(base: np.ndarray, exponent: float) -> np.ndarray:
        small = abs(exponent) < np.finfo(float).eps
        return np.log1p(base) if small else ((base + 1.0) ** exponent - 1.0) / exponent

    out = np.empty_like(values)
    for at, given in enumerate(lambdas):
        column, is_positive = values[:, at], values[:, at] >= 0
        out[is_positive, at] = power(column[is_positive], given)
        out[~is_positive, at] = -power(-column[~is_positive], 2.0 - given)
    return out


def softmax(outputs: np.ndarray) -> np.ndarray:
    """Return the shares of each row."""
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def forward(layers: Sequence[Layer], values: np.ndarray) -> list[np.ndarray]:
    """Return what each layer gives, the inputs first; all but the last are rectified."""
    given = [values]
    for number, (weights, bias) in enumerate(layers):
        values = values @ weights + bias
        if number + 1 < len(layers):
            values = np.maximum(values, 0.0)
        given.append(values)
    return given


def rmsprop(
    inputs: np.ndarray, label: np.ndarray, hidden: int, seed: int, batch: int = 32, epochs: int = 50
) -> list[Layer]:
    """Train a network as the paper does (V-A).

    One hidden layer, normal initialisation, RMSProp with rate 0.001 and momentum 0.9, cross-entropy.
    """
    random = np.random.default_rng(seed)
    sizes = [inputs.shape[1], hidden, len(CLASSES)]
    flat = [
        part
        for fan_in, fan_out in itertools.pairwise(sizes)
        for part in (random.normal(0.0, np.sqrt(2.0 / fan_in), (fan_in, fan_out)), np.zeros(fan_out))
    ]
    squares, speeds = [np.zeros_like(p) for p in flat], [np.zeros_like(p) for p in flat]
    for _ in range(epochs):
        order = random.permutation(len(inputs))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            given = forward([(flat[0], flat[1]), (flat[2], flat[3])], inputs[rows])
            error = softmax(given[2])
            error[np.arange(len(rows)), label[rows]] -= 1.0
            error /= len(rows)
            before = (error @ flat[2].T) * (given[1] > 0)
            slopes = [given[0].T @ before, before.sum(axis=0), given[1].T @ error, error.sum(axis=0)]
            for part, slope, square, speed in zip(flat, slopes, squares, speeds, strict=True):
                square *= 0.9
                square += 0.1 * slope * slope
                speed *= 0.9
                speed -= 0.001 * slope / (np.sqrt(square) + 1e-7)
                part += speed
    return [(flat[0], flat[1]), (flat[2], flat[3])]


def adam(inputs: np.ndarray, label: np.ndarray, hidden: Sequence[int], seed: int, epochs: int) -> list[Layer]:
    """Train a network with scikit-learn."""
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier(
        tuple(hidden),
        learning_rate_init=0.002,
        batch_size=256,
        max_iter=epochs,
        # It ends before only if it learns nothing more.
        n_iter_no_change=epochs,
        alpha=1e-4,
        random_state=seed,
    )
    import warnings

    with warnings.catch_warnings():
        # The number of epochs is meant.
        warnings.simplefilter("ignore")
        # 32 bits are enough, and faster.
        model.fit(inputs.astype(np.float32), label)
    wide = [[part.astype(np.float64) for part in parts] for parts in (model.coefs_, model.intercepts_)]
    return list(zip(*wide, strict=True))


def fit(names: list[str], inputs: np.ndarray, learn: Callable[[np.ndarray], list[Layer]]) -> Network:
    """Fit the scaling, and a network to what it gives."""
    from sklearn.preprocessing import PowerTransformer

    transform = PowerTransformer(method="yeo-johnson", standardize=True).fit(inputs)
    lambdas = np.asarray(transform.lambdas_)
    scaled = yeo_johnson(inputs, lambdas)
    deviations = scaled.std(axis=0)
    network = Network(
        names=names,
        ranges=np.stack([inputs.min(axis=0), inputs.max(axis=0)], axis=1),
        lambdas=lambdas,
        means=scaled.mean(axis=0),
        # One that is always the same says nothing.
        deviations=np.where(deviations > 0, deviations, 1.0),
        layers=[],
    )
    network.layers = learn(network.scaled(inputs))
    return network


def dumps(network: Network, trained: dict[str, Any]) -> str:
    """Return a network's file (`crates/adapt/src/net`)."""
    rest = {
        "kind": "council",
        "features": FEATURES,
        "inputs": network.names,
        "classes": CLASSES,
        "trained": trained,
        "ranges": network.ranges.tolist(),
        "lambdas": network.lambdas.tolist(),
        "means": network.means.tolist(),
        "deviations": network.deviations.tolist(),
    }
    lines = [f'"{key}": {json.dumps(value)},' for key, value in rest.items()]
    layers = [
        json.dumps({"weights": weights.T.tolist(), "bias": bias.tolist()}) for weights, bias in network.layers
    ]
    lines += ['"layers": [', ",\n".join(layers), "]", "}"]
    head, tail = f'{{\n"format": "{FORMAT}",\n', "\n".join(lines) + "\n"
    return f'{head}"crc32": "{zlib.crc32((head + tail).encode()):08x}",\n{tail}'


def load(path: str | Path) -> Network:
    """Read a network's file; raises ValueError if it is something else, or damaged."""
    text = Path(path).read_text()
    head, _, rest = text.partition('"crc32": "')
    crc, _, tail = rest.partition('",\n')
    if f'"format": "{FORMAT}"' not in head:
        raise ValueError(f"{path}: no network of a council of this version ({FORMAT})")
    if f"{zlib.crc32((head + tail).encode()):08x}" != crc:
        raise ValueError(f"{path}: damaged: its checksum is another")
    model = json.loads(text)
    arrays = {key: np.array(model[key]) for key in ("ranges", "lambdas", "means", "deviations")}
    layers = [(np.array(layer["weights"]).T, np.array(layer["bias"])) for layer in model["layers"]]
    return Network(names=model["inputs"], layers=layers, **arrays)


class Bench(Program):
    """Simulates experiments, and evaluates networks as production does."""

    benchmark = "council"

    def export(self, which: str, experiments: int, out: Path) -> None:
        """Simulate the experiments of a set for training."""
        seeds = ["--first", str(FIRST), "--experiments", str(experiments)]
        self.run("--set", which, *seeds, "--export", str(out))

    def shares(self, data: Path, models: Sequence[Path]) -> np.ndarray:
        """Return what both networks say of a data set's rows, computed in Rust: ours, then the paper's."""
        return self.rows(*_models(models), "--classify", str(data))

    def judge(self, which: str, models: Sequence[Path], experiments: int) -> dict[str, Any]:
        """Judge both networks by experiments of a set that they were not trained with."""
        seeds = ["--set", which, "--first", str(FIRST_UNSEEN), "--experiments", str(experiments)]
        text = self.run(*_models(models), "--only", "network", "--json", *seeds, may_miss=True)
        found: dict[str, Any] = json.loads(text)["network"]
        return found


def _models(models: Sequence[Path]) -> list[str]:
    return ["--model", str(models[0]), "--paper-model", str(models[1])]


def train(
    bench: Bench,
    out: Path,
    work: Path,
    *,
    experiments: int = 8000,
    gluster: int = 4000,
    unseen: int = 600,
    hidden: Sequence[int] = (48, 24),
    epochs: int = 40,
    seed: int = 1,
    real: Sequence[Path] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train both networks, write them and the card to `out`; returns the scores.

    What was simulated is kept in `work`, and used again. `experiments` are in the paper's system, `gluster`
    at I/O nodes of GlusterFS. `real`: data sets of real windows (`sluice-bench forwarding --record`), which
    are trained with as well.
    """
    work.mkdir(parents=True, exist_ok=True)
    paths = []
    for which, count in zip(TRAIN, (experiments, gluster), strict=True):
        path = work / f"council-{which}-{count}-f{FEATURES}.csv"
        paths.append(path)
        if path.exists():
            continue
        say(f"simulating {count} experiments: {path}")
        with tempfile.TemporaryDirectory(dir=work) as made:
            bench.export(which, count, Path(made) / "data.csv")
            (Path(made) / "data.csv").rename(path)
    recorded = [read(more) for more in real]
    data = join([*map(read, paths), *recorded])
    # Rust judges what Python was trained with from one file.
    path = work / "council-all.csv"
    path.write_text(joined([*paths, *real]))
    say(f"{len(data)} windows, {sum(map(len, recorded))} of them real")
    if set(data.label.tolist()) != set(range(len(CLASSES))):
        raise ValueError(f"{path} does not have all {len(CLASSES)} patterns: more experiments are needed")
    trained: dict[str, Any] = {
        "experiments": experiments,
        "gluster_experiments": gluster,
        "windows": len(data),
        "seed": seed,
        "command": "python -m sluicegate train council",
    }
    if recorded:
        trained["real_windows"] = sum(map(len, recorded))
    with staged(out) as made:
        ours = fit(data.names, data.inputs, lambda scaled: adam(scaled, data.label, hidden, seed, epochs))
        paper = fit(data.paper_names, data.paper, lambda scaled: rmsprop(scaled, data.label, 5, seed))
        models = [made / "council.json", made / "council-paper.json"]
        how = {"hidden": list(hidden), "epochs": epochs, "optimiser": "Adam 0.002, batch 256"}
        models[0].write_text(dumps(ours, {**trained, **how}))
        how = {"hidden": [5], "epochs": 50, "optimiser": "RMSProp 0.001, momentum 0.9, batch 32"}
        models[1].write_text(dumps(paper, {**trained, **how}))
        shares = np.hstack([ours.shares(data.inputs), paper.shares(data.paper)])
        check_equal("both networks", bench.shares(path, models), shares)
        say(f"Rust and Python agree on all {len(data)} rows")
        write_check(made / "council-check.csv", path, shares, seed)
        scores = [bench.judge(which, models, unseen) for which in UNSEEN]
        (made / "council.md").write_text(card(data, trained, hidden, scores))
    return scores[0]


def write_check(path: Path, data: Path, shares: np.ndarray, seed: int, rows: int = 200) -> None:
    """Write some rows and Python's shares for them: a test of Rust's compares them without Python."""
    count = len(shares)
    some = set(np.random.default_rng(seed).choice(count, size=min(rows, count), replace=False).tolist())
    with data.open() as lines:
        head = next(lines).strip().split(",")[KNOWN:]
        names = [f"{whose} {name}" for whose in ("ours", "paper") for name in CLASSES]
        text = [",".join([*head, *names])]
        for at, line in enumerate(lines):
            if at in some:
                inputs = line.strip().split(",")[KNOWN:]
                text.append(",".join([*inputs, *(repr(float(share)) for share in shares[at])]))
    path.write_text("\n".join(text) + "\n")


def card(data: Data, trained: dict[str, Any], hidden: Sequence[int], scores: Sequence[dict[str, Any]]) -> str:
    """Return the models' card; `scores`: of the sets of UNSEEN."""
    counts = np.bincount(data.label, minlength=len(CLASSES))
    classes = ", ".join(f"{name} {count}" for name, count in zip(CLASSES, counts, strict=True))
    shape = "-".join(str(width) for width in (len(data.names), *hidden, len(CLASSES)))
    paper = f"{len(data.paper_names)}-5-{len(CLASSES)}"
    lines = [
        "# The council's pattern networks",
        "",
        "Written by `python -m sluicegate train council`; see `docs/forwarding.md`.",
        "",
        "| | |",
        "|---|---|",
        f"| `council.json` | {shape}, ReLU, softmax |",
        f"| `council-paper.json` | {paper}, the network of Bez et al. (2019, V), "
        "trained with the same windows |",
        f"| data | {len(data)} windows of a second of I/O nodes, {trained['experiments']} simulated "
        f"experiments in the paper's system, {trained['gluster_experiments']} with GlusterFS's I/O nodes"
        f"{_beside(trained)}: {classes} |",
        f"| seeds | experiments from {FIRST} on, networks {trained['seed']} |",
        "| Rust and Python | the same shares on all rows |",
        "",
        "## Scores",
        "",
        "Share of an experiment's windows that are recognised, on experiments with other seeds, numbers of "
        "processes, sizes of requests and (a part of them) devices than training has of such systems; some "
        "numbers and sizes it has of the other kind: `sluice-bench council --only network --set SET`.",
        "",
        "| set | network | operation | experiments | windows | mean | minimum | below 95 % |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for which, found in zip(UNSEEN, scores, strict=True):
        for name in ("paper", "ours"):
            for it in found[name]:
                lines.append(
                    f"| {which} | {name} | {it['op']} | {it['experiments']} | {it['windows']} "
                    f"| {it['mean']:.2%} | {it['min']:.1%} | {it['below']} |"
                )
    bars = "; ".join(
        f"{which}: {'met' if found['met'] else '**missed**'}"
        for which, found in zip(UNSEEN, scores, strict=True)
    )
    lines += [
        "",
        "Bars, for reads and writes, of what nodes go by, for which the seconds before count, too: "
        f"mean 99.5 %, minimum 95 %. {bars}.",
    ]
    for which, found in zip(UNSEEN, scores, strict=True):
        for name in ("ours", "paper"):
            for it in found[name]:
                lines += [
                    "",
                    f"{which}, {name}, {it['op']}: what windows were (rows), what they were taken for:",
                    "",
                ]
                lines += ["| | " + " | ".join(CLASSES) + " |", "|---" * (len(CLASSES) + 1) + "|"]
                for pattern, row in zip(CLASSES, it["confusion"], strict=True):
                    lines.append(f"| {pattern} | " + " | ".join(str(count) for count in row) + " |")
        lines += ["", f"{which}: what ours missed most:", "", "| recognised | windows | experiment |"]
        lines.append("|---:|---:|---|")
        worst = sorted((miss for it in found["ours"] for miss in it["worst"]), key=lambda miss: miss["right"])
        for miss in worst:
            lines.append(f"| {miss['right']:.1%} | {miss['windows']} | {miss['experiment']} |")
    first = LIMITS_SIMULATED if "real_windows" not in trained else LIMITS_REAL
    lines += ["", "## Limits", "", first, *LIMITS, ""]
    return "\n".join(lines)


def _beside(trained: dict[str, Any]) -> str:
    real = trained.get("real_windows")
    return f" and {real} real ones (`sluice-bench forwarding --record`)" if real else ""


LIMITS_SIMULATED = (
    "* Windows are simulated ones, of one program with one pattern each. Real ones were not trained with."
)
LIMITS_REAL = "* Windows are of one program with one pattern each, most of them simulated."
LIMITS = [
    "* Random accesses, regions with gaps and logs are of no class; it calls them one of the three.",
    "* Of a window with reads and writes the paper's inputs are those of the operation with most bytes; "
    "ours are mostly of both.",
    "* Where an I/O node sees pieces of files as files (GlusterFS's `shard`), "
    "shared and own files look alike.",
    "* Inputs beyond what was trained with count as the largest or smallest that was.",
]
