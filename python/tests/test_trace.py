"""Traces: what is written is read, damage is told, and the Rust program reads the same."""

import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

import sluicegate
from sluicegate import dxt
from sluicegate.__main__ import main
from sluicegate.trace import Trace, TraceError, dumps, loads


def example(count=100_000, seed=1):
    random = np.random.default_rng(seed)
    time = np.cumsum(random.integers(0, 1_000_000, count)).astype(np.uint64)
    return Trace(
        meta={"targets": 4, "stripe": 65536, "source": "test"},
        paths=[b"a", b"b/c", "ü".encode(), b"a"],
        time=time,
        file=random.integers(0, 4, count).astype(np.uint32),
        op=random.integers(0, 2, count).astype(np.uint8),
        offset=random.integers(0, 1 << 20, count).astype(np.uint64) << np.uint64(12),
        length=np.full(count, 4096, dtype=np.uint32),
        app=random.integers(0, 3, count).astype(np.uint32),
        target=random.integers(0, 4, count).astype(np.uint32),
        dropped=3,
    )


def same(one, other):
    columns = ["time", "file", "op", "offset", "length", "app", "target"]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


@pytest.mark.parametrize("count", [0, 1, 2, 65536, 100_000])
def test_what_is_written_is_read(count):
    trace = example(count)
    back = loads(dumps(trace))
    assert same(trace, back) and back.paths == trace.paths
    assert back.complete and back.dropped == 3
    assert back.meta["stripe"] == 65536
    assert len(back) == count


def test_extreme_numbers_come_back():
    extremes = np.array([0, 2**64 - 1, 1, 2**63, 2**63 - 1, 0], dtype=np.uint64)
    zeros = np.zeros(6, dtype=np.uint32)
    trace = Trace(paths=[b"x"], time=extremes, file=zeros, op=zeros, offset=extremes, length=zeros)
    trace.app = trace.target = np.array([0, 2**32 - 1] * 3, dtype=np.uint32)
    assert same(loads(dumps(trace)), trace)


def test_checksums_come_back_and_are_exported(tmp_path: Path):
    trace = example(1000)
    random = np.random.default_rng(3)
    trace.checked = random.choice([0, 100, 4096], 1000).astype(np.uint32)
    trace.checksum = np.where(trace.checked > 0, random.integers(0, 1 << 32, 1000), 0).astype(np.uint32)
    data = dumps(trace)
    back = loads(data)
    assert same(trace, back) and data[10] == 1 and back.meta["checksums"] is True
    assert np.array_equal(back.checksum, trace.checksum) and np.array_equal(back.checked, trace.checked)
    assert loads(dumps(example(10))).checksum is None
    pytest.importorskip("pyarrow")
    table = back.to_arrow()
    assert table["crc32"].null_count == int((trace.checked == 0).sum())
    assert table["crc32_bytes"].to_pylist() == trace.checked.tolist()


def test_processes_and_what_is_missing_come_back(tmp_path: Path):
    trace = example(70_000)
    trace.process = np.arange(70_000, dtype=np.uint32) % 192
    trace.incomplete = "the log is cut: 7 %, say ü"
    data = dumps(trace)
    back = loads(data)
    assert data[10] == 2 and back.meta["processes"] is True and back.complete
    assert np.array_equal(back.process, trace.process) and back.incomplete == trace.incomplete
    assert loads(dumps(example(10))).process is None
    empty = example(0)
    empty.process = np.empty(0, dtype=np.uint32)
    assert len(loads(dumps(empty)).process) == 0
    pytest.importorskip("pyarrow")
    assert back.to_arrow()["process"].to_pylist() == trace.process.tolist()


def test_a_torn_tail_is_left_out():
    trace = example()
    data = dumps(trace)
    back = loads(data[:-60])
    assert not back.complete and len(back) in (65536, 100_000)
    assert np.array_equal(back.offset, trace.offset[: len(back)])
    assert not loads(data[:-50] + bytes(1000)).complete


def test_damage_is_told_or_harmless():
    data = bytearray(dumps(example(1000)))
    original = bytes(data)
    random = np.random.default_rng(7)
    for _ in range(300):
        at, bit = int(random.integers(len(data))), int(random.integers(8))
        data[at] ^= 1 << bit
        try:
            back = loads(bytes(data))
            assert not back.complete, f"damage at {at} goes unnoticed"
        except TraceError as error:
            assert str(error)
        data[at] ^= 1 << bit
    assert bytes(data) == original


def test_what_is_before_a_damaged_place_can_be_had(tmp_path: Path, capsys):
    data = bytearray(dumps(example()))
    data[-200] ^= 1
    with pytest.raises(TraceError, match="damaged at byte"):
        loads(bytes(data))
    back = loads(bytes(data), strict=False)
    assert len(back) == 65536 and not back.complete and "damaged at byte" in back.damage
    pytest.importorskip("pyarrow")
    (tmp_path / "t.slt").write_bytes(data)
    assert main(["convert", str(tmp_path / "t.slt"), str(tmp_path / "t.parquet")]) == 3
    assert "damaged at byte" in capsys.readouterr().err
    (tmp_path / "t.slt").write_bytes(dumps(example())[:-60])
    assert main(["convert", str(tmp_path / "t.slt"), str(tmp_path / "t.parquet")]) == 3
    assert "has no end" in capsys.readouterr().err


def forged(random):
    """Make a block of entries with right checksums and any contents."""
    count, columns = int(random.integers(0, 40)), int(random.integers(0, 11))
    heads, bodies = b"", b""
    for number in range(columns):
        encoding, width, shift = (int(random.integers(0, high)) for high in (4, 10, 70))
        body = random.bytes(count * width if random.random() < 0.7 else int(random.integers(0, 60)))
        if encoding == 0 and random.random() < 0.8:
            width, body = 0, b""
        name = number + 1 if random.random() < 0.9 else int(random.integers(0, 12))
        heads += bytes([name, encoding, width, shift]) + len(body).to_bytes(4, "little") + random.bytes(8)
        bodies += body
    return columns, count, heads + bodies


def test_forged_blocks_are_answered():
    """Seeded: a failure comes again."""
    random = np.random.default_rng(11)
    start = dumps(example(0))[:-40]
    for turn in range(3000):
        columns, count, payload = forged(random)
        kind = int(random.integers(0, 5)) if turn % 3 == 0 else 0
        head = b"SLBK" + bytes([kind, columns, 0, 0])
        for number in (count, len(payload), zlib.crc32(payload)):
            head += number.to_bytes(4, "little")
        try:
            trace = loads(start + head + zlib.crc32(head).to_bytes(4, "little") + payload)
        except TraceError as error:
            assert str(error)
        else:
            assert len(trace) <= count and (trace.file < len(trace.paths)).all(), f"turn {turn}"


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89SLTR\r\n\x1a" + bytes(16)])
def test_other_files_are_told_apart(data):
    with pytest.raises(TraceError):
        loads(data)


def test_logical_offsets_of_a_striped_volume():
    trace = example(1)
    trace.target[0], trace.offset[0] = 3, 65536 + 5
    assert trace.logical_offset()[0] == (1 * 4 + 3) * 65536 + 5


def test_parquet(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    trace = example(1000)
    sluicegate.write(tmp_path / "t.slt", trace)
    assert main(["convert", str(tmp_path / "t.slt"), str(tmp_path / "t.parquet")]) == 0
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table.num_rows == 1000
    assert table["path"].to_pylist()[0] == trace.path(trace.file[0])
    assert table["target_offset"].to_pylist() == trace.offset.tolist()


def test_mistakes_end_with_a_message(tmp_path: Path, capsys):
    (tmp_path / "text").write_text("no trace")
    assert main(["convert", str(tmp_path / "text"), str(tmp_path / "out.parquet")]) == 1
    assert "not a trace" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "missing"), str(tmp_path / "out.parquet")]) == 1
    assert "missing" in capsys.readouterr().err


def test_records_of_darshan_become_a_trace():
    columns = ["offset", "length", "start_time", "end_time"]

    def segments(*rows):
        return {name: [row[at] for row in rows] for at, name in enumerate(columns)} if rows else []

    records = [
        {
            "id": 7,
            "rank": 0,
            "read_segments": segments(),
            "write_segments": segments((0, 10, 0.5, 0.6), (10, 10, 0.7, 0.8)),
        },
        {
            "id": 9,
            "rank": 1,
            "read_segments": segments((5, 1, 0.6, 0.61), (-1, 1, 0.1, 0.2)),
            "write_segments": segments(),
        },
        {"id": 7, "rank": 1, "read_segments": segments((0, 20, 0.9, 1.0)), "write_segments": segments()},
    ]
    trace = dxt.from_records(records, {7: "/scratch/a", 9: "/scratch/b"})
    assert trace.time.tolist() == [500_000_000, 600_000_000, 700_000_000, 900_000_000]
    assert [trace.path(file) for file in trace.file] == [
        "/scratch/a",
        "/scratch/b",
        "/scratch/a",
        "/scratch/a",
    ]
    assert trace.op.tolist() == [1, 0, 1, 0]
    assert trace.process.tolist() == [0, 1, 0, 1]
    assert same(loads(dumps(trace)), trace)
    assert len(loads(dumps(dxt.from_records([], {})))) == 0


def test_any_records_of_darshan_become_a_trace_that_can_be_written():
    """Seeded: a failure comes again."""
    random = np.random.default_rng(5)
    odd = [0, 1, -1, 4096, 2**31, 2**32, 2**63 - 1, -(2**63)]
    times = [0.0, -1.0, 1e-9, 0.5, 1e300, -1e300, float("nan"), float("inf"), 1e10, 2e10]
    for turn in range(500):
        records, names = [], {}
        for _ in range(int(random.integers(0, 4))):
            record = {"id": int(random.integers(0, 3)), "rank": 0}
            for key in ("read_segments", "write_segments"):
                count = int(random.integers(0, 5))
                record[key] = (
                    {
                        "offset": [int(random.choice(odd)) for _ in range(count)],
                        "length": [int(random.choice(odd)) for _ in range(count)],
                        "start_time": [float(random.choice(times)) for _ in range(count)],
                        "end_time": [0.0] * count,
                    }
                    if count
                    else {}
                )
            records.append(record)
            if random.random() < 0.7:
                names[record["id"]] = "/scratch/\udcff" + "x" * int(random.integers(0, 70_000))
        trace = dxt.from_records(records, names)
        assert same(loads(dumps(trace)), trace), f"turn {turn}"


def test_what_is_no_log_of_darshan_is_told(tmp_path: Path, capsys):
    pytest.importorskip("darshan")
    for content in (b"", b"hello", bytes(5000)):
        (tmp_path / "job.darshan").write_bytes(content)
        assert main(["import-darshan", str(tmp_path / "job.darshan"), str(tmp_path / "out.slt")]) == 1
        assert "job.darshan" in capsys.readouterr().err
    assert not (tmp_path / "out.slt").exists()


def test_the_speed_is_measured(tmp_path: Path, capsys):
    sluicegate.write(tmp_path / "t.slt", example(1000))
    assert main(["bench", str(tmp_path / "t.slt"), "--seconds", "0", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["entries"] == 1000 and figures["entries_per_s"] > 0


def test_the_rust_program_reads_the_same(tmp_path: Path):
    sluice = os.environ.get("SLUICE") or shutil.which("sluice")
    if not sluice:
        pytest.skip("name the sluice program in the variable SLUICE")
    trace = example(70_000)
    trace.process = np.arange(70_000, dtype=np.uint32) % 5
    trace.incomplete = "cut"
    sluicegate.write(tmp_path / "t.slt", trace)
    lines = subprocess.run(
        [sluice, "trace", "cat", "--json", tmp_path / "t.slt"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["time_ns"] for row in rows] == trace.time.tolist()
    assert [row["offset"] for row in rows] == trace.offset.tolist()
    assert [row["process"] for row in rows] == trace.process.tolist()
    subprocess.run([sluice, "trace", "convert", tmp_path / "t.slt", tmp_path / "again.slt"], check=True)
    again = sluicegate.read(tmp_path / "again.slt")
    assert same(again, trace) and np.array_equal(again.process, trace.process) and again.incomplete == "cut"
