"""Reading and writing traces, as docs/trace-format.md describes them, column by column."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

READ = 0
WRITE = 1

_MAGIC = b"\x89SLTR\r\n\x1a"
_FILE_HEADER = 24
_BLOCK_HEADER = 24
_DESCRIPTOR = 16
_PAYLOAD_MAX = 64 << 20
_ENTRIES_MAX = 1 << 20
_BLOCK_ENTRIES = 1 << 16
PATH_MAX = 1 << 16
"""Longest path, in bytes."""
_PATH_BLOCK_MAX = 16 << 20
_PATH_BYTES_MAX = 256 << 20
_PATHS_MAX = 1 << 24
_CONSTANT, _REFERENCE, _DELTA = 0, 1, 2
_KIND_ENTRIES, _KIND_PATHS, _KIND_META, _KIND_END = 0, 1, 2, 3

Array64 = npt.NDArray[np.uint64]
Array32 = npt.NDArray[np.uint32]
Array8 = npt.NDArray[np.uint8]

# Number of each column, its name, and its type.
_COLUMNS: list[tuple[int, str, Any]] = [
    (1, "time", np.uint64),
    (2, "file", np.uint32),
    (3, "op", np.uint8),
    (4, "offset", np.uint64),
    (5, "length", np.uint32),
    (6, "app", np.uint32),
    (7, "target", np.uint32),
]
# Of version 1.1; a block has both or none.
_CHECKSUM, _UNSUMMED = 8, 9
# Of version 1.2.
_PROCESS = 10
_INCOMPLETE_MAX = 1 << 16


class TraceError(ValueError):
    """A file is not a trace, or is damaged."""


def _empty(kind: Any) -> Callable[[], npt.NDArray[Any]]:  # noqa: ANN401
    return lambda: np.empty(0, dtype=kind)


@dataclass
class Trace:
    """A trace: arrays of the same length, one element for each request."""

    meta: dict[str, Any] = field(default_factory=dict)
    """What was recorded: `start_unix_ns`, `program`, `targets`, `stripe`, `emulated`, `source`, ..."""
    paths: list[bytes] = field(default_factory=list)
    """Paths by their numbers."""
    time: Array64 = field(default_factory=_empty(np.uint64))
    """Arrival, in nanoseconds since the trace began."""
    file: Array32 = field(default_factory=_empty(np.uint32))
    """Number of the file's path."""
    op: Array8 = field(default_factory=_empty(np.uint8))
    """`READ` or `WRITE`."""
    offset: Array64 = field(default_factory=_empty(np.uint64))
    """First byte, in the target's part of the file."""
    length: Array32 = field(default_factory=_empty(np.uint32))
    """Bytes."""
    app: Array32 = field(default_factory=_empty(np.uint32))
    """The application."""
    target: Array32 = field(default_factory=_empty(np.uint32))
    """The data server; in a recording of a volume counted from the one that the file begins on."""
    checksum: Array32 | None = None
    """CRC-32 (that of zlib) of the first `checked` bytes of the data, if the trace has checksums."""
    checked: Array32 | None = None
    """Bytes that the checksum is of: fewer than `length` where the file ended before, or 0."""
    process: Array32 | None = None
    """The process of the application, a rank or a process id, if the trace tells it; 0 where nobody told."""
    complete: bool = True
    """False if the trace has no end: it is still being written, or its recorder was killed."""
    incomplete: str = ""
    """Why requests are missing although the trace has an end: what it was made of was cut or damaged, say."""
    damage: str | None = None
    """Where and how the file is damaged; what is before that place is here."""
    dropped: int = 0
    """Requests that the recorder lost because it could not keep up."""

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.time)

    def path(self, number: int) -> str:
        """Path of a file, with a sign in the place of what is no text."""
        return self.paths[number].decode("utf-8", "replace")

    def logical_offset(self) -> Array64:
        """Offsets in the files as applications see them, also on striped volumes."""
        targets, stripe = int(self.meta.get("targets", 1)), int(self.meta.get("stripe", 0))
        if targets <= 1 or stripe == 0:
            return self.offset
        unit, within = np.divmod(self.offset, np.uint64(stripe))
        return (unit * np.uint64(targets) + self.target) * np.uint64(stripe) + within

    def to_arrow(self) -> Any:  # noqa: ANN401 (pyarrow is optional)
        """Return the trace as a table of pyarrow, with the paths as a dictionary."""
        import pyarrow as pa

        names = [self.path(number) for number in range(len(self.paths))]
        indices = pa.array(self.file.astype(np.int32))
        columns = {
            "time_ns": pa.array(self.time),
            "path": pa.DictionaryArray.from_arrays(indices, pa.array(names, type=pa.string())),
            "op": pa.DictionaryArray.from_arrays(pa.array(self.op.astype(np.int8)), ["read", "write"]),
            "offset": pa.array(self.logical_offset()),
            "length": pa.array(self.length),
            "application": pa.array(self.app),
            "target": pa.array(self.target),
            "target_offset": pa.array(self.offset),
        }
        if self.process is not None:
            columns["process"] = pa.array(self.process)
        if self.checksum is not None and self.checked is not None:
            columns["crc32"] = pa.array(self.checksum, mask=self.checked == 0)
            columns["crc32_bytes"] = pa.array(self.checked)
        return pa.table(columns).replace_schema_metadata({"sluicegate": json.dumps(self.meta)})

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as Parquet."""
        import pyarrow.parquet as pq

        pq.write_table(self.to_arrow(), os.fspath(path), compression="zstd")


def read(path: str | os.PathLike[str], *, strict: bool = True) -> Trace:
    """Read a trace. What a killed recorder left is read up to its last whole block.

    Raises TraceError, with the place, if the file is not a trace or is damaged. A trace that is damaged after
    its head is read up to there if `strict` is false; `damage` says where.
    """
    return loads(Path(path).read_bytes(), strict=strict)


def loads(data: bytes, *, strict: bool = True) -> Trace:
    """Read a trace from memory."""
    if len(data) < _FILE_HEADER or data[:8] != _MAGIC:
        raise TraceError("this is not a trace of Sluicegate (it does not begin as one)")
    if zlib.crc32(data[:20]) != _u32(data, 20):
        raise TraceError("damaged at byte 0: the head's checksum is wrong")
    if (major := int.from_bytes(data[8:10], "little")) != 1:
        raise TraceError(f"the trace has format version {major}, this program reads version 1")
    return _Reader(data).read(strict)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.trace = Trace(complete=False)
        self.parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for _, name, _ in _COLUMNS}
        self.sums: list[tuple[Array32, Array32]] = []
        self.processes: list[Array32] = []
        self.entries = 0
        self.path_bytes = 0
        self.zstd = zstandard.ZstdDecompressor()

    def read(self, strict: bool) -> Trace:
        try:
            self.read_blocks()
        except TraceError as error:
            if strict:
                raise
            self.trace.damage = str(error)
        for _, name, kind in _COLUMNS:
            parts = self.parts[name]
            setattr(self.trace, name, np.concatenate(parts) if parts else np.empty(0, dtype=kind))
        if self.trace.meta.get("checksums") is True:
            nothing = [np.empty(0, dtype=np.uint32)]
            self.trace.checksum = np.concatenate([crc for crc, _ in self.sums] or nothing)
            self.trace.checked = np.concatenate([checked for _, checked in self.sums] or nothing)
        if self.trace.meta.get("processes") is True:
            self.trace.process = np.concatenate(self.processes or [np.empty(0, dtype=np.uint32)])
        return self.trace

    def read_blocks(self) -> None:
        at = _FILE_HEADER
        while (block := self.block(at)) is not None:
            kind, columns, count, payload = block
            try:
                if kind == _KIND_ENTRIES:
                    self.read_entries(columns, count, payload)
                elif kind == _KIND_PATHS:
                    self.read_paths(count, payload)
                elif kind == _KIND_META:
                    self.trace.meta = self.read_meta(payload)
                elif kind == _KIND_END:
                    self.read_end(payload)
            except TraceError as error:
                raise TraceError(f"damaged at byte {at}: {error}") from None
            at += _BLOCK_HEADER + len(payload)
            if kind == _KIND_END:
                if any(self.data[at:]):
                    raise TraceError(f"damaged at byte {at}: something follows the end of the trace")
                break

    def block(self, at: int) -> tuple[int, int, int, memoryview] | None:
        """Kind, columns, count and contents of the block at `at`; None at the end, or where it was cut."""
        header = self.data[at : at + _BLOCK_HEADER]
        if len(header) < _BLOCK_HEADER:
            return None
        if bytes(header[:4]) != b"SLBK" or zlib.crc32(header[:20]) != _u32(header, 20):
            if not any(self.data[at + _BLOCK_HEADER :]):
                return None
            raise TraceError(f"damaged at byte {at}: no block begins here")
        length = _u32(header, 12)
        if length > _PAYLOAD_MAX:
            raise TraceError(f"damaged at byte {at}: a block is larger than any may be")
        start = at + _BLOCK_HEADER
        payload = self.data[start : start + length]
        if len(payload) < length:
            return None
        if zlib.crc32(payload) != _u32(header, 16):
            if not any(self.data[start + length :]):
                return None
            raise TraceError(f"damaged at byte {at}: a block's checksum is wrong")
        return header[4], header[5], _u32(header, 8), payload

    def read_meta(self, payload: memoryview) -> dict[str, Any]:
        try:
            meta = json.loads(bytes(payload))
        except ValueError:
            meta = None
        if not isinstance(meta, dict):
            raise TraceError("the description of the recording cannot be read")
        return meta

    def read_end(self, payload: memoryview) -> None:
        if len(payload) < 16 or _u64(payload, 0) != self.entries:
            raise TraceError("entries are missing")
        self.trace.complete = True
        self.trace.dropped = _u64(payload, 8)
        self.trace.incomplete = bytes(payload[16:]).decode("utf-8", "replace")

    def read_paths(self, count: int, payload: memoryview) -> None:
        if len(payload) < 4 or (raw := _u32(payload, 0)) > _PATH_BLOCK_MAX:
            raise TraceError("a list of paths is larger than any may be")
        listing = memoryview(self.decompress(payload[4:], raw))
        paths, at = [], 0
        while at < len(listing):
            size = _u32(listing, at) if at + 4 <= len(listing) else PATH_MAX + 1
            if size > PATH_MAX or at + 4 + size > len(listing):
                raise TraceError("a list of paths does not add up")
            paths.append(bytes(listing[at + 4 : at + 4 + size]))
            at += 4 + size
        self.path_bytes += len(listing)
        if len(paths) != count or self.path_bytes > 2 * _PATH_BYTES_MAX:
            raise TraceError("a list of paths does not add up")
        self.trace.paths += paths
        if len(self.trace.paths) > _PATHS_MAX:
            raise TraceError("more paths than a trace may have")

    def read_entries(self, columns: int, count: int, payload: memoryview) -> None:
        if not 0 < count <= _ENTRIES_MAX:
            raise TraceError("a block is larger than any may be")
        at = columns * _DESCRIPTOR
        found: dict[int, Array64] = {}
        for number in range(columns):
            head = payload[number * _DESCRIPTOR : (number + 1) * _DESCRIPTOR]
            if len(head) < _DESCRIPTOR:
                raise TraceError("a block's columns do not add up")
            stored = payload[at : at + _u32(head, 4)]
            if len(stored) < _u32(head, 4) or head[0] in found:
                raise TraceError("a block's columns do not add up")
            at += len(stored)
            if 1 <= head[0] <= _PROCESS:
                found[head[0]] = self.column(head, stored, count)
        sums = (found.pop(_CHECKSUM, None), found.pop(_UNSUMMED, None))
        process = found.pop(_PROCESS, None)
        if at != len(payload) or len(found) != len(_COLUMNS) or (sums[0] is None) != (sums[1] is None):
            raise TraceError("a block's columns do not add up")
        limits = {
            "file": len(self.trace.paths),
            "op": 2,
            "length": 1 << 32,
            "app": 1 << 32,
            "target": 1 << 32,
        }
        for number, name, _ in _COLUMNS:
            if name in limits and int(found[number].max()) >= limits[name]:
                raise TraceError(f"a value is out of range: {name}")
        if bool(np.any(found[4] + found[5] < found[4])):
            raise TraceError("a value is out of range: a request beyond 2^64")
        if process is None:
            process = np.zeros(count, dtype=np.uint64)
        elif int(process.max()) >= 1 << 32:
            raise TraceError("a value is out of range: process")
        self.sums.append(self.read_sums(sums[0], sums[1], found[5]))
        for number, name, kind in _COLUMNS:
            self.parts[name].append(found[number].astype(kind, copy=False))
        self.processes.append(process.astype(np.uint32))
        self.entries += count

    def read_sums(
        self, crc: Array64 | None, unsummed: Array64 | None, length: Array64
    ) -> tuple[Array32, Array32]:
        if crc is None or unsummed is None:
            none = np.zeros(len(length), dtype=np.uint32)
            return none, none
        if int(crc.max()) >= 1 << 32 or bool(np.any(unsummed > length)):
            raise TraceError("a value is out of range: checksum")
        return crc.astype(np.uint32), (length - unsummed).astype(np.uint32)

    def column(self, head: memoryview, stored: memoryview, count: int) -> Array64:
        encoding, width, shift = head[1], head[2], np.uint64(head[3])
        base = np.uint64(_u64(head, 8))
        if encoding == _CONSTANT and width == 0 and not len(stored):
            return np.full(count, base, dtype=np.uint64)
        if encoding not in (_REFERENCE, _DELTA) or not 1 <= width <= 8 or shift > 63:
            raise TraceError("a block's columns do not add up")
        planes = np.frombuffer(self.decompress(stored, count * width), dtype=np.uint8).reshape(width, count)
        # In place wherever possible: what costs is going through memory.
        coded: Array64 = planes[0].astype(np.uint64)
        for number in range(1, width):
            coded |= planes[number].astype(np.uint64) << np.uint64(8 * number)
        if encoding == _DELTA:
            sign = (coded & np.uint64(1)) * np.uint64(2**64 - 1)
            coded >>= np.uint64(1)
            coded ^= sign
        if shift:
            coded <<= shift
        if encoding == _DELTA:
            np.cumsum(coded, dtype=np.uint64, out=coded)
        coded += base
        return coded

    def decompress(self, stored: memoryview, raw: int) -> bytes | memoryview:
        if len(stored) == raw:
            return stored
        try:
            if zstandard.frame_content_size(stored) != raw:
                raise TraceError("a column cannot be decompressed")
            return self.zstd.decompress(stored, max_output_size=raw)
        except zstandard.ZstdError:
            raise TraceError("a column cannot be decompressed") from None


def write(path: str | os.PathLike[str], trace: Trace) -> None:
    """Write a trace. A file appears under its name when it is whole."""
    data, whole = dumps(trace), Path(path)
    handle, part = tempfile.mkstemp(prefix=".sluice-", dir=whole.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # Temporary files are for their owner alone.
        Path(part).chmod(0o644)
        Path(part).replace(whole)
    except OSError:
        Path(part).unlink()
        raise


def dumps(trace: Trace) -> bytes:
    """Write a trace into memory."""
    sums = None if trace.checksum is None or trace.checked is None else (trace.checksum, trace.checked)
    minor = 2 if trace.process is not None else 1 if sums is not None else 0
    head = _MAGIC + (1).to_bytes(2, "little") + minor.to_bytes(2, "little") + bytes(8)
    parts = [head + zlib.crc32(head).to_bytes(4, "little")]
    meta = {"program": "sluicegate (Python)", **trace.meta}
    meta |= {"checksums": sums is not None, "processes": trace.process is not None}
    parts += _block(_KIND_META, 0, 0, json.dumps(meta).encode())
    compressor = zstandard.ZstdCompressor(level=3)
    parts += _path_blocks(trace.paths, compressor)
    if len(trace) and int(trace.file.max()) >= len(trace.paths):
        raise ValueError("a request names no path")
    for start in range(0, len(trace), _BLOCK_ENTRIES):
        here = slice(start, start + _BLOCK_ENTRIES)
        columns = [(number, getattr(trace, name)[here]) for number, name, _ in _COLUMNS]
        if sums is not None:
            columns += [(_CHECKSUM, sums[0][here]), (_UNSUMMED, trace.length[here] - sums[1][here])]
        if trace.process is not None:
            columns.append((_PROCESS, trace.process[here]))
        heads, bodies = [], []
        for number, values in columns:
            head, body = _encode(number, values.astype(np.uint64), compressor)
            heads.append(head)
            bodies.append(body)
        count = len(trace.time[here])
        parts += _block(_KIND_ENTRIES, len(columns), count, b"".join(heads + bodies))
    totals = len(trace).to_bytes(8, "little") + trace.dropped.to_bytes(8, "little")
    why = trace.incomplete.encode("utf-8", "replace")[:_INCOMPLETE_MAX]
    parts += _block(_KIND_END, 0, 0, totals + why)
    return b"".join(parts)


def _path_blocks(paths: Iterable[bytes], compressor: zstandard.ZstdCompressor) -> list[bytes]:
    parts: list[bytes] = []
    listing: list[bytes] = []
    count, room = 0, _PATH_BLOCK_MAX

    def close() -> None:
        raw = b"".join(listing)
        packed = compressor.compress(raw)
        stored = packed if len(packed) < len(raw) else raw
        parts.extend(_block(_KIND_PATHS, 0, count, len(raw).to_bytes(4, "little") + stored))

    for path in paths:
        if len(path) > PATH_MAX:
            raise ValueError("a path is longer than 64 KiB")
        if len(path) + 4 > room:
            close()
            listing, count, room = [], 0, _PATH_BLOCK_MAX
        listing.append(len(path).to_bytes(4, "little") + path)
        count, room = count + 1, room - len(path) - 4
    if count:
        close()
    return parts


def _encode(number: int, values: Array64, compressor: zstandard.ZstdCompressor) -> tuple[bytes, bytes]:
    """Descriptor and bytes of a column."""
    low, high = values.min(), values.max()
    if low == high:
        return _descriptor(number, _CONSTANT, 0, 0, 0, int(low)), b""
    with np.errstate(over="ignore"):
        steps = np.diff(values, prepend=values[:1])
        above = values - low
        reference_shift, delta_shift = _zeros(above), _zeros(steps)
        signed = (steps.view(np.int64) >> delta_shift).view(np.uint64)
        zigzag = (signed << np.uint64(1)) ^ (np.uint64(0) - (signed >> np.uint64(63)))
    above = above >> np.uint64(reference_shift)
    if _width(zigzag) <= _width(above):
        encoding, coded, shift, base = _DELTA, zigzag, delta_shift, values[0]
    else:
        encoding, coded, shift, base = _REFERENCE, above, reference_shift, low
    width = _width(coded)
    planes = np.ascontiguousarray(coded.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T).tobytes()
    packed = compressor.compress(planes)
    stored = packed if len(packed) < len(planes) else planes
    return _descriptor(number, encoding, width, shift, len(stored), int(base)), stored


def _descriptor(number: int, encoding: int, width: int, shift: int, stored: int, base: int) -> bytes:
    return bytes([number, encoding, width, shift]) + stored.to_bytes(4, "little") + base.to_bytes(8, "little")


def _zeros(values: Array64) -> int:
    """Trailing zero bits that all values have."""
    bits = int(np.bitwise_or.reduce(values))
    return (bits & -bits).bit_length() - 1


def _width(values: Array64) -> int:
    return (int(values.max()).bit_length() + 7) // 8


def _block(kind: int, columns: int, count: int, payload: bytes) -> list[bytes]:
    head = b"SLBK" + bytes([kind, columns, 0, 0])
    for number in (count, len(payload), zlib.crc32(payload)):
        head += number.to_bytes(4, "little")
    return [head + zlib.crc32(head).to_bytes(4, "little"), payload]


def _u32(data: bytes | memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes | memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
