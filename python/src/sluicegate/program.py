"""The command `sluice-bench`, which simulates, and evaluates models as production does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass
class Program:
    """One of the command's benchmarks."""

    command: str
    benchmark: ClassVar[str]

    def run(self, *arguments: str, may_miss: bool = False) -> str:
        """Run it and return what it prints; raises OSError if it fails or is not there.

        `may_miss`: a bar that is missed (status 1, after everything was printed) is no failure.
        """
        words: Sequence[str] = [self.command, self.benchmark, *arguments]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
        missed = may_miss and done.returncode == 1 and done.stdout
        if done.returncode != 0 and not missed:
            raise OSError(f"{' '.join(words)} failed with status {done.returncode}")
        return done.stdout

    def rows(self, *arguments: str) -> np.ndarray:
        """Run it and return the numbers that it prints, with commas between them."""
        text = self.run(*arguments)
        return np.array([[float(value) for value in line.split(",")] for line in text.splitlines()])

    def report(self, *arguments: str) -> dict[str, Any]:
        """Run it and return the object that it prints as JSON."""
        found: dict[str, Any] = json.loads(self.run("--json", *arguments))
        return found


def check_equal(
    what: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float = 1e-9, *, classes: bool = False
) -> int:
    """Compare what Rust says of rows with what Python says; returns how many there are.

    Raises ValueError if a number differs by more than a rounding error, or with `classes` the largest of a
    row is another.
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"{what}: Rust says rows and numbers {ours.shape}, Python {theirs.shape}")
    # What is not a number is equal to none.
    differ = ~(np.abs(ours - theirs) <= tolerance).all(axis=1)
    if classes:
        differ |= ours.argmax(axis=1) != theirs.argmax(axis=1)
    if differ.any():
        row = int(differ.argmax())
        raise ValueError(
            f"{what}: {differ.sum()} rows differ, the first is {row}: {ours[row]} and {theirs[row]}"
        )
    return len(ours)
