"""What libdarshan reads of a log, in a process of its own: it may crash, and then only that one does.

`python -m sluicegate._libdarshan LOG MODULE OUT` leaves a pickled dictionary in OUT.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

# Of each module of extended traces, the one that counts the same, with its counters of reads and of writes.
_COUNTERS = {
    "DXT_POSIX": ("POSIX", [["POSIX_READS"], ["POSIX_WRITES"]]),
    "DXT_MPIIO": (
        "MPI-IO",
        [
            ["MPIIO_INDEP_READS", "MPIIO_COLL_READS", "MPIIO_SPLIT_READS", "MPIIO_NB_READS"],
            ["MPIIO_INDEP_WRITES", "MPIIO_COLL_WRITES", "MPIIO_SPLIT_WRITES", "MPIIO_NB_WRITES"],
        ],
    ),
}


def _names(backend: Any, log: Any) -> dict[int, bytes]:  # noqa: ANN401 (PyDarshan has no types)
    """Return the paths by their numbers, which PyDarshan would take for UTF-8."""
    ffi, lib = backend.ffi, backend.libdutil
    names, count = ffi.new("struct darshan_name_record **"), ffi.new("int *")
    lib.darshan_log_get_name_records(log["handle"], names, count)
    return {int(names[0][at].id): bytes(ffi.string(names[0][at].name)) for at in range(count[0])}


def _columns(segments: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [segment[key] for segment in segments] for key in ("offset", "length", "start_time")}


def _read(path: str, module: str) -> dict[str, Any]:
    from darshan.backend import cffi_backend as backend

    log = backend.log_open(path)
    if not log["handle"]:
        raise RuntimeError("the log cannot be opened")
    job = backend.log_get_job(log)
    # PyDarshan does not say that it has got nothing.
    if job["nprocs"] < 1:
        raise RuntimeError("what the log tells of its job cannot be read")
    names = _names(backend, log)
    records = []
    while (record := backend.log_get_dxt_record(log, module, dtype="dict")) is not None:
        for key in ("read_segments", "write_segments"):
            record[key] = _columns(record[key])
        records.append(record)
    counters, wanted = _COUNTERS[module]
    counted: dict[int, list[int]] = {}
    if counters in backend.log_get_modules(log):
        known = backend.counter_names(counters)
        columns = [[known.index(name) for name in group] for group in wanted]
        while (record := backend.log_get_generic_record(log, counters, dtype="numpy")) is not None:
            sums = counted.setdefault(int(record["id"]), [0, 0])
            for at, group in enumerate(columns):
                # What was not counted is -1.
                sums[at] += sum(max(0, int(record["counters"][column])) for column in group)
    return {"job": job, "names": names, "records": records, "counted": counted}


if __name__ == "__main__":
    try:
        found = _read(sys.argv[1], sys.argv[2])
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"libdarshan: {error}")
    Path(sys.argv[3]).write_bytes(pickle.dumps(found))
