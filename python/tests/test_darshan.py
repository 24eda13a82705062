"""Logs of Darshan: whole ones become their traces, damaged ones do not pass for whole ones.

The logs are made here, byte by byte as darshan-runtime writes them, or come with PyDarshan.
"""

import shutil
import struct
import sys
import zlib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sluicegate import dxt, read
from sluicegate.__main__ import main
from sluicegate.darshan_file import DarshanError, check
from sluicegate.trace import dumps

pytest.importorskip("darshan")


def dxt_record(number, rank, writes, reads, order="<", thread=False):
    head = struct.pack(order + "Qqq64sqq", number, rank, 0, b"node-1", len(writes), len(reads))
    kind = order + ("qqddQ" if thread else "qqdd")
    extra = (7,) if thread else ()
    return head + b"".join(struct.pack(kind, *access, access[2] + 0.01, *extra) for access in writes + reads)


def posix_record(number, reads, writes, order="<"):
    """Counters of a file for all ranks together; the first are opens, filenos, dups, reads, writes."""
    counters = [1, 0, 0, reads, writes] + [0] * 64
    return struct.pack(order + "Qq69q17d", number, -1, *counters, *[0.0] * 17)


def made(records=None, counters=None, names=None, minor=21, partial=0, order="<", streams=1, dxt_version=1):
    """Make a log of one job. Modules are POSIX (number 1) and DXT_POSIX."""
    thread = dxt_version == 2
    if records is None:
        records = [
            (7, 0, [(0, 10, 0.5), (10, 10, 0.7)], []),
            (9, 3, [], [(5, 1, 0.6)]),
            (7, 3, [], [(0, 20, 0.9)]),
        ]
    if counters is None:
        counters = [(7, 1, 2), (9, 1, 0)]
    names = names or {7: b"/scratch/run/../a", 9: b"/scratch//./b"}
    job = struct.pack(
        order + "5q1024s", 1000, 1_700_000_000, 1_700_000_010, 4, 0x1_0000_002A, b"lib_ver=3.4.0\n"
    )
    if minor >= 41:
        job = struct.pack(
            order + "7q1024s",
            1000,
            1_700_000_000,
            500,
            1_700_000_010,
            0,
            4,
            0x1_0000_002A,
            b"lib_ver=3.4.0\n",
        )
    job = (job + b"/bin/app\n/\text4").ljust(4095, b"\0")
    listing = b"".join(struct.pack(order + "Q", number) + name + b"\0" for number, name in names.items())
    traced = b"".join(dxt_record(*record, order=order, thread=thread) for record in records)
    counted = b"".join(posix_record(*counter, order=order) for counter in counters)
    count = 64 if minor >= 41 else 16
    place = 8 if minor < 20 else 9 if minor < 41 else 10
    at = (32 if count == 64 else 24) + 16 * (1 + count) + 4 * count

    def packed(data):
        cuts = [len(data) * n // streams for n in range(streams + 1)]
        return b"".join(zlib.compress(data[a:b]) for a, b in pairwise(cuts))

    parts, maps, versions = [packed(job)], [(0, 0)] * (1 + count), [0] * count
    at += len(parts[0])
    for number, data, version in ((0, listing, 0), (2, counted, 4), (1 + place, traced, dxt_version)):
        if data:
            parts.append(packed(data))
            maps[number] = (at, len(parts[-1]))
            at += len(parts[-1])
            if number:
                versions[number - 1] = version
    head = f"3.{minor:02}".encode().ljust(8, b"\0") + struct.pack(order + "qB", 6567223, 0)
    head += (
        bytes(7) + struct.pack(order + "Q", partial)
        if count == 64
        else bytes(3) + struct.pack(order + "I", partial)
    )
    head += b"".join(struct.pack(order + "QQ", *place) for place in maps)
    return head + struct.pack(f"{order}{count}I", *versions) + b"".join(parts)


@pytest.mark.parametrize(
    ("minor", "options"),
    [
        (10, {}),
        (21, {"streams": 3}),
        (41, {}),
        (10, {"order": ">"}),
    ],
)
def test_a_log_becomes_a_trace_with_its_job_ranks_and_plain_paths(tmp_path: Path, minor, options):
    log = tmp_path / "job.darshan"
    log.write_bytes(made(minor=minor, **options))
    assert main(["import-darshan", str(log), str(tmp_path / "job.slt")]) == 0
    trace = read(tmp_path / "job.slt")
    assert trace.time.tolist() == [500_000_000, 600_000_000, 700_000_000, 900_000_000]
    assert trace.process.tolist() == [0, 3, 0, 3]
    assert set(trace.app.tolist()) == {0x2A} and trace.meta["job"] == str(0x1_0000_002A)
    assert trace.meta["start_unix_ns"] == 1_700_000_000_000_000_000 + (500 if minor >= 41 else 0)
    assert [trace.path(file) for file in trace.file] == [
        "/scratch/a",
        "/scratch/b",
        "/scratch/a",
        "/scratch/a",
    ]
    assert trace.complete and trace.incomplete == "" and trace.dropped == 0


def test_accesses_with_threads_are_read_or_refused(tmp_path: Path, capsys):
    """PyDarshan 3.5.0 takes version 2 of extended traces, which tell the thread, for version 1."""
    log = tmp_path / "job.darshan"
    log.write_bytes(made(minor=41, dxt_version=2))
    if main(["import-darshan", str(log), str(tmp_path / "job.slt")]) == 0:
        assert read(tmp_path / "job.slt").length.tolist() == [10, 1, 10, 20]
    else:
        assert "too new" in capsys.readouterr().err


def test_what_a_log_lacks_is_told(tmp_path: Path, capsys):
    log, out = tmp_path / "job.darshan", tmp_path / "job.slt"
    for options, says, missing in [
        ({"counters": [(7, 4, 2), (9, 1, 0)]}, "tell of 3 more accesses", 3),
        # A file of which nothing is traced.
        ({"counters": [(7, 1, 2), (9, 1, 0), (11, 5, 6)]}, "tell of 11 more accesses", 11),
        ({"partial": 1 << 9}, "partial_flag", 0),
        ({"partial": 1 << 10, "minor": 41}, "partial_flag", 0),
        ({"records": [(7, 0, [(-1, 10, 0.5)], [])], "counters": [(7, 0, 1)]}, "1 accesses have no place", 1),
    ]:
        log.write_bytes(made(**options))
        assert main(["import-darshan", str(log), str(out)]) == 3
        assert says in capsys.readouterr().err
        trace = read(out)
        assert says in trace.incomplete and trace.dropped == missing and trace.complete
    # Of another module something may be missing, and a log need not have counters.
    for options in ({"partial": 1 << 1}, {"counters": []}):
        log.write_bytes(made(**options))
        assert main(["import-darshan", str(log), str(out)]) == 0
    capsys.readouterr()
    for options, says in [
        ({"records": []}, "no extended traces"),
        ({"minor": 42}, "format 3.42"),
    ]:
        log.write_bytes(made(**options))
        out.unlink(missing_ok=True)
        assert main(["import-darshan", str(log), str(out)]) == 1
        assert says in capsys.readouterr().err and not out.exists()


def damaged(data, random):
    """Return a copy that is damaged as files are: bits, bytes, blocks of zeros, cut, or made longer."""
    copy = bytearray(data)
    at = int(random.integers(len(copy)))
    kind = int(random.integers(6))
    if kind <= 2:
        copy[at] ^= 1 << int(random.integers(8))
    elif kind == 3:
        copy[at : at + 4] = random.bytes(len(copy[at : at + 4]))
    elif kind == 4:
        end = at + int(random.integers(1, 512))
        copy[at:end] = bytes(len(copy[at:end]))
    else:
        copy = copy[:at] if random.random() < 0.7 else copy + bytes(at)
    return bytes(copy)


def passes_for_whole(log: Path, expected: bytes) -> str | None:
    """Return what is wrong with how a damaged log is answered."""
    try:
        trace = dxt.read_log(log)
    except DarshanError as error:
        return None if str(error).startswith(str(log)) else f"no place: {error}"
    if trace.incomplete or dumps(trace) == expected:
        return None
    return f"{len(trace)} requests"


@pytest.mark.parametrize("minor", [21, 41])
def test_of_damaged_copies_none_passes_for_the_log(tmp_path: Path, minor):
    """Seeded: a failure comes again."""
    log = tmp_path / "job.darshan"
    data = made(minor=minor)
    log.write_bytes(data)
    expected = dumps(dxt.read_log(log))
    random = np.random.default_rng(minor)
    for turn in range(125):
        log.write_bytes(damaged(data, random))
        assert passes_for_whole(log, expected) is None, f"turn {turn}"
    # Every byte of the header: there is no checksum of that.
    for at in range(24 + 16 * 17 + 64 if minor < 41 else 0):
        log.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        assert passes_for_whole(log, expected) is None, f"byte {at}"


def test_of_damaged_copies_of_a_real_log_none_passes_for_it(tmp_path: Path):
    """Seeded: a failure comes again."""
    real = Path(find_spec("darshan").origin).parent / "examples/example_logs/dxt.darshan"
    if not real.exists():
        pytest.skip("this PyDarshan has no example logs")
    log = tmp_path / "job.darshan"
    shutil.copy(real, log)
    data = log.read_bytes()
    trace = dxt.read_log(log)
    assert (len(trace), trace.incomplete) == (7623, "")
    random = np.random.default_rng(1)
    for turn in range(200):
        log.write_bytes(damaged(data, random))
        assert passes_for_whole(log, dumps(trace)) is None, f"turn {turn}"
    for length in (20_000, len(data) - 1, 360, 100, 3):
        log.write_bytes(data[:length])
        assert main(["import-darshan", str(log), str(tmp_path / "out.slt")]) == 1, length


def test_what_is_compressed_otherwise_is_measured(tmp_path: Path):
    import bz2

    from sluicegate.darshan_file import _decompressed

    for method, pack in ((0, zlib.compress), (1, bz2.compress)):
        data = bytes(3_000_000)
        assert _decompressed(memoryview(pack(data) + pack(b"more")), method) == len(data) + 4
        with pytest.raises(DarshanError):
            _decompressed(memoryview(pack(data)[:-1]), method)
    assert _decompressed(memoryview(b"plain"), 2) == 5
    with pytest.raises(DarshanError, match="compressed parts are not"):
        _decompressed(memoryview(zlib.compress(b"x")), 2)
    (tmp_path / "short").write_bytes(made()[:100])
    with pytest.raises(DarshanError, match="cut in its header"):
        check(tmp_path / "short")


def test_a_crash_of_libdarshan_is_told(tmp_path: Path, capsys, monkeypatch):
    log, out = tmp_path / "job.darshan", tmp_path / "job.slt"
    log.write_bytes(made())
    crash = tmp_path / "python"
    for script, says in [
        ("kill -SEGV $$", "libdarshan has crashed (Segmentation fault)"),
        ("echo 'Error: no such thing' >&2; exit 1", "no such thing"),
        ("exit 2", "libdarshan cannot read the log"),
    ]:
        crash.write_text(f"#!/bin/sh\n{script}\n")
        crash.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(crash))
            assert main(["import-darshan", str(log), str(out)]) == 1
        assert says in capsys.readouterr().err and not out.exists()
