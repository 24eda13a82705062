"""Decision trees of scikit-learn as the files that Sluicegate reads (`crates/adapt/src/forest.rs`)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

FORMAT = "sluice-forest 1"


class Tree(Protocol):
    """A fitted tree of scikit-learn."""

    tree_: Any


class Model(Protocol):
    """A fitted forest of scikit-learn."""

    estimators_: list[Tree]
    classes_: np.ndarray
    feature_importances_: np.ndarray

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> Any:  # noqa: ANN401
        """Learn from rows."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the class of each row."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the votes of each row."""


@dataclass
class Purpose:
    """What a model decides, and from what."""

    kind: str
    features: int
    inputs: Sequence[str]
    classes: Sequence[str]


def tree_of(tree: Tree) -> dict[str, list[Any]]:
    """Return a fitted tree of scikit-learn as arrays with an entry for each node, in preorder."""
    nodes = tree.tree_
    is_leaf = nodes.children_left < 0
    votes = nodes.value[:, 0, :]
    return {
        "input": np.where(is_leaf, -1, nodes.feature).tolist(),
        "threshold": np.where(is_leaf, 0.0, nodes.threshold).tolist(),
        "left": np.where(is_leaf, 0, nodes.children_left).tolist(),
        "right": np.where(is_leaf, 0, nodes.children_right).tolist(),
        "votes": [[float(v) for v in votes[at]] if is_leaf[at] else [] for at in range(len(is_leaf))],
    }


def dumps(
    purpose: Purpose,
    trees: Sequence[Mapping[str, Any]],
    trained: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Return a model's file; `extra`: keys that not all models have."""
    rest = {
        "kind": purpose.kind,
        "features": purpose.features,
        "inputs": list(purpose.inputs),
        "classes": list(purpose.classes),
        **(extra or {}),
        "trained": dict(trained),
    }
    lines = [f'"{key}": {json.dumps(value)},' for key, value in rest.items()]
    lines.append('"trees": [')
    compact = [json.dumps(tree, separators=(",", ":")) for tree in trees]
    lines += [text + ("," if at + 1 < len(compact) else "") for at, text in enumerate(compact)]
    lines += ["]", "}"]
    head, tail = f'{{\n"format": "{FORMAT}",\n', "\n".join(lines) + "\n"
    return f'{head}"crc32": "{zlib.crc32((head + tail).encode()):08x}",\n{tail}'


def votes(trees: Sequence[Mapping[str, Any]], inputs: np.ndarray) -> np.ndarray:
    """Return what a model's file says of rows of inputs: the votes for each class.

    Computed from the file's arrays rather than by scikit-learn, and as Rust does: float32 inputs, float64
    thresholds, trees in order.
    """
    rows = np.asarray(inputs, dtype=np.float32).astype(np.float64)
    total: np.ndarray | None = None
    for tree in trees:
        feature, threshold = np.array(tree["input"]), np.array(tree["threshold"])
        left, right = np.array(tree["left"]), np.array(tree["right"])
        width = max(len(leaf) for leaf in tree["votes"])
        leaves = np.array([leaf or [0.0] * width for leaf in tree["votes"]])
        at = np.zeros(len(rows), dtype=np.int64)
        while (inner := feature[at] >= 0).any():
            here = at[inner]
            goes_left = rows[inner, feature[here]] <= threshold[here]
            at[inner] = np.where(goes_left, left[here], right[here])
        total = leaves[at] if total is None else total + leaves[at]
    if total is None:
        raise ValueError("a model without trees")
    return total / len(trees)


def save(
    path: str | Path,
    purpose: Purpose,
    trees: Sequence[Mapping[str, Any]],
    trained: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a model's file."""
    Path(path).write_text(dumps(purpose, trees, trained, extra))
