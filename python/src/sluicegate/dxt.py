"""Traces from Darshan's logs with extended traces (DXT), read by PyDarshan."""

from __future__ import annotations

import os
import pickle
import posixpath
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.darshan_file import DarshanError, LogFile, check
from sluicegate.trace import PATH_MAX, READ, WRITE, Trace

__all__ = ["MODULES", "DarshanError", "from_records", "read_log"]

_SECONDS_MAX = 2.0**33
MODULES = ("DXT_POSIX", "DXT_MPIIO")


def read_log(path: str | os.PathLike[str], module: str | None = None) -> Trace:
    """Read a log: the POSIX layer's accesses, or, if there are none, MPI-IO's.

    The job is the application (the last 32 bits of its number), a rank is a process. If the log tells of more
    accesses than it has, `incomplete` says so. libdarshan runs in a process of its own.

    Raises DarshanError if the log is damaged, has no extended traces, or libdarshan cannot read it.
    """
    if find_spec("darshan") is None:
        raise ImportError("No module named 'darshan'", name="darshan")
    name = os.fspath(path)
    try:
        log = check(name)
        wanted = [module] if module else MODULES
        found = next((wish for wish in wanted if wish in log.modules), None)
        if found is None:
            raise DarshanError("no extended traces; run the job with DXT_ENABLE_IO_TRACE=1")
        trace = _read_module(name, found, log)
    except DarshanError as error:
        raise DarshanError(f"{name}: {error}") from None
    trace.meta["source"] = name
    return trace


def _read_module(name: str, module: str, log: LogFile) -> Trace:
    read = _in_child(name, module)
    records, counted = read["records"], read["counted"]
    accesses = sum(record["read_count"] + record["write_count"] for record in records)
    if accesses != log.accesses(module, len(records)):
        raise DarshanError(
            "libdarshan does not read all of the extended traces: the log is damaged, or too new for it"
        )
    counters = "POSIX" if module == "DXT_POSIX" else "MPI-IO"
    if counters in log.modules and not counted:
        raise DarshanError(
            f"libdarshan does not read the counters ({counters}): the log is damaged, or too new for it"
        )
    trace = from_records(records, read["names"])
    missing = _missing(records, counted)
    why = [trace.incomplete] if trace.incomplete else []
    if log.modules[module].partial:
        why.append(f"Darshan has not recorded all of {module} (partial_flag)")
    if missing > 0:
        why.append(f"the counters ({counters}) tell of {missing} more accesses than the log has")
    trace.incomplete = "; ".join(why)
    trace.dropped += missing
    job = read["job"]
    trace.app = np.full(len(trace), int(job["jobid"]) & 0xFFFF_FFFF, dtype=np.uint32)
    trace.meta["job"] = str(job["jobid"])
    start = int(job["start_time_sec"]) * 1_000_000_000 + int(job.get("start_time_nsec", 0))
    trace.meta["start_unix_ns"] = min(max(start, 0), 2**64 - 1)
    return trace


def _in_child(name: str, module: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "read"
        # Not from the environment alone: this package may have been found in another way.
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "sluicegate._libdarshan", name, module, str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if done.returncode < 0:
            how = signal.strsignal(-done.returncode) or f"signal {-done.returncode}"
            raise DarshanError(f"libdarshan has crashed ({how}): the log is damaged, or too new for it")
        if done.returncode > 0:
            raise DarshanError(said[-1] if said else "libdarshan cannot read the log")
        read: dict[str, Any] = pickle.loads(out.read_bytes())
        return read


def _missing(records: Iterable[Mapping[str, Any]], counted: Mapping[int, list[int]]) -> int:
    """Return how many more accesses there were than are traced, by the counters of each file."""
    traced: dict[int, list[int]] = {}
    for record in records:
        sums = traced.setdefault(record["id"], [0, 0])
        sums[0] += record["read_count"]
        sums[1] += record["write_count"]
    none = [0, 0]
    return sum(
        max(0, count - there)
        for number, counts in counted.items()
        for count, there in zip(counts, traced.get(number, none), strict=True)
    )


def from_records(records: Iterable[Mapping[str, Any]], names: Mapping[int, str | bytes]) -> Trace:
    """Make a trace of PyDarshan's records: a mapping for each file and rank, its accesses as columns."""
    paths: dict[bytes, int] = {}
    parts: list[tuple[np.ndarray[Any, Any], ...]] = []
    senseless = 0
    for record in records:
        found = names.get(record["id"], f"record {record['id']}")
        raw = found if isinstance(found, bytes) else found.encode("utf-8", "surrogateescape")
        path = _normal(raw)[:PATH_MAX]
        for key, kind in (("read_segments", READ), ("write_segments", WRITE)):
            segments = record[key]
            if len(segments) == 0:
                continue
            offset = np.asarray(segments["offset"], dtype=np.int64)
            length = np.asarray(segments["length"], dtype=np.int64)
            start = np.asarray(segments["start_time"], dtype=np.float64)
            # Neither times beyond all jobs nor what is no time.
            good = (offset >= 0) & (length >= 0) & (length < 1 << 32) & (start < _SECONDS_MAX)
            senseless += int(len(good) - good.sum())
            number = np.full(int(good.sum()), paths.setdefault(path, len(paths)))
            rank = np.full(len(number), max(0, int(record.get("rank", 0))) & 0xFFFF_FFFF)
            arrival = np.rint(np.clip(start[good], 0, None) * 1e9).astype(np.uint64)
            parts.append((arrival, number, np.full(len(number), kind), offset[good], length[good], rank))
    trace = Trace(meta={"targets": 1, "stripe": 0, "processes": True}, paths=list(paths))
    trace.process = np.empty(0, dtype=np.uint32)
    if senseless:
        trace.dropped = senseless
        trace.incomplete = f"{senseless} accesses have no place, time or length that makes sense"
    if not parts:
        return trace
    time, file, op, offset, length, rank = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(time, kind="stable")
    trace.time = time[order]
    trace.file = file[order].astype(np.uint32)
    trace.op = op[order].astype(np.uint8)
    trace.offset = offset[order].astype(np.uint64)
    trace.length = length[order].astype(np.uint32)
    trace.app = np.zeros(len(order), dtype=np.uint32)
    trace.target = np.zeros(len(order), dtype=np.uint32)
    trace.process = rank[order].astype(np.uint32)
    return trace


def _normal(path: bytes) -> bytes:
    """Return a path without `.`, `..` and doubled slashes, as far as its names tell."""
    if b"/" not in path:
        return path
    normal = posixpath.normpath(path)
    # POSIX leaves two slashes at the beginning alone.
    return b"/" + normal.lstrip(b"/") if path.startswith(b"/") else normal
