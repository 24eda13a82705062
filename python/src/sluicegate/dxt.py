"""Traces from Darshan's logs with extended traces (DXT), read by PyDarshan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sluicegate.trace import PATH_MAX, READ, WRITE, Trace

_SECONDS_MAX = 2.0**33
MODULES = ("DXT_POSIX", "DXT_MPIIO")


class DarshanError(ValueError):
    """A log has no extended traces, or cannot be read."""


def read_log(path: str | os.PathLike[str], module: str | None = None) -> Trace:
    """Read a log: the POSIX layer's accesses, or, if there are none, MPI-IO's.

    All requests count as application 0, as a log is one job's.
    """
    import darshan

    name = os.fspath(path)
    try:
        report = darshan.DarshanReport(name, read_all=False)
    except (RuntimeError, OSError) as error:
        raise DarshanError(f"{name}: {error}") from error
    for wanted in [module] if module else MODULES:
        if wanted not in report.modules:
            continue
        report.mod_read_all_dxt_records(wanted, dtype="pandas")
        trace = from_records(report.records[wanted], report.name_records)
        trace.meta["source"] = name
        trace.meta["start_unix_ns"] = int(report.metadata["job"].get("start_time_sec", 0)) * 1_000_000_000
        return trace
    raise DarshanError(f"{name}: no extended traces; run the job with DXT_ENABLE_IO_TRACE=1")


def from_records(records: Iterable[Mapping[str, Any]], names: Mapping[int, str]) -> Trace:
    """Make a trace of PyDarshan's records: a mapping for each file and rank, its accesses as columns."""
    paths: dict[bytes, int] = {}
    parts: list[tuple[np.ndarray[Any, Any], ...]] = []
    for record in records:
        path = names.get(record["id"], f"record {record['id']}").encode("utf-8", "surrogateescape")[:PATH_MAX]
        for key, kind in (("read_segments", READ), ("write_segments", WRITE)):
            segments = record[key]
            if len(segments) == 0:
                continue
            offset = np.asarray(segments["offset"], dtype=np.int64)
            length = np.asarray(segments["length"], dtype=np.int64)
            start = np.asarray(segments["start_time"], dtype=np.float64)
            # Neither times beyond all jobs nor what is no time.
            good = (offset >= 0) & (length >= 0) & (length < 1 << 32) & (start < _SECONDS_MAX)
            number = np.full(int(good.sum()), paths.setdefault(path, len(paths)))
            arrival = np.rint(np.clip(start[good], 0, None) * 1e9).astype(np.uint64)
            parts.append((arrival, number, np.full(len(number), kind), offset[good], length[good]))
    trace = Trace(meta={"targets": 1, "stripe": 0}, paths=list(paths))
    if not parts:
        return trace
    time, file, op, offset, length = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(time, kind="stable")
    trace.time = time[order]
    trace.file = file[order].astype(np.uint32)
    trace.op = op[order].astype(np.uint8)
    trace.offset = offset[order].astype(np.uint64)
    trace.length = length[order].astype(np.uint32)
    trace.app = np.zeros(len(order), dtype=np.uint32)
    trace.target = np.zeros(len(order), dtype=np.uint32)
    return trace
