"""Files that are put in place together, once all of them are known to be good."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Give a directory to write to, whose files replace those of `out` at the end, cards (`*.md`) last.

    If an exception ends it, `out` stays as it was.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    # In `out`, or where that will be: what is renamed has to be on the same file system.
    with tempfile.TemporaryDirectory(dir=out if out.exists() else out.parent, prefix=".train-") as made:
        yield Path(made)
        files = [path for path in Path(made).rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path.suffix == ".md", path)):
            place = out / path.relative_to(made)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
