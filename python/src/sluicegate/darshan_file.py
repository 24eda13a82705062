"""Whether a Darshan log is whole, which libdarshan does not check.

A log is a header and compressed regions: the job, the names of files, and one for each module (Darshan's
`include/darshan-log-format.h`). Those follow each other up to the end of the file, and each of their streams
ends with a checksum of its contents. libdarshan stops decompressing when it has the bytes that it wants.
"""

from __future__ import annotations

import bz2
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

_MAGIC = 6567223
_ZLIB, _BZIP2, _PLAIN = 0, 1, 2
_STEP = 1 << 20
_DXT_RECORD = 104
"""Bytes of what stands before the accesses of a file and rank."""


class DarshanError(ValueError):
    """A log is damaged, has no extended traces, or cannot be read."""


@dataclass
class Module:
    """What the header says of a module, and the length of what it has."""

    version: int
    partial: bool
    """Darshan ran out of memory for it, or was told to leave something out."""
    size: int
    """Bytes, decompressed."""


@dataclass
class LogFile:
    """What a log has."""

    modules: dict[str, Module]
    """Those of extended traces and of the counters that they can be compared with."""

    def accesses(self, name: str, records: int) -> float:
        """Return the accesses that a module of extended traces has in so many records, by its length."""
        module = self.modules[name]
        with_thread = module.version >= (2 if name == "DXT_POSIX" else 3)
        return (module.size - records * _DXT_RECORD) / (40 if with_thread else 32)


def check(path: str | os.PathLike[str]) -> LogFile:
    """Look at all of a log. Memory: that of the file.

    Raises DarshanError if the file is no log, or not as it was written.
    """
    data = memoryview(Path(path).read_bytes())
    if len(data) < 24 or (order := _order(data)) is None:
        raise DarshanError("this is no log of Darshan 3 (it does not begin as one)")
    version = bytes(data[:8]).rstrip(b"\0")
    if version not in (b"3.00", b"3.10", b"3.20", b"3.21", b"3.41"):
        shown = version.decode("ascii", "backslashreplace")
        raise DarshanError(f"the log has format {shown}, which is newer than what is known here, or damaged")
    minor = int(version[2:])
    # Since 3.41 there may be 64 modules instead of 16, and the flags before the maps are wider.
    count = 64 if minor >= 41 else 16
    maps = 32 if count == 64 else 24
    versions = maps + 16 * (1 + count)
    end = versions + 4 * count
    if len(data) < end:
        raise DarshanError("the log is cut in its header")
    (partial,) = struct.unpack_from(order + ("Q" if count == 64 else "I"), data, 24 if count == 64 else 20)
    places = list(struct.iter_unpack(order + "QQ", data[maps:versions]))
    module_versions = struct.unpack_from(f"{order}{count}I", data, versions)
    sizes = _sizes(data, end, places, data[16])
    # What nobody wrote is 0, and what is partial is there.
    known = sum(1 << number for number, found in enumerate(module_versions) if found > 0)
    nothing = [found for found, place in zip(module_versions, places[1:], strict=True) if place == (0, 0)]
    if any(data[17 : 24 if count == 64 else 20]) or any(nothing) or partial & ~known:
        raise DarshanError("the header is damaged: it tells of modules that are not there")
    modules = {}
    for name, number in _numbers(minor).items():
        if size := sizes.get(1 + number):
            modules[name] = Module(module_versions[number], bool(partial >> number & 1), size)
    return LogFile(modules)


def _order(data: memoryview) -> str | None:
    """Return the order of bytes, which is that of the machine that wrote the log."""
    for order in "<>":
        if struct.unpack_from(order + "q", data, 8)[0] == _MAGIC:
            return order
    return None


def _numbers(minor: int) -> dict[str, int]:
    """Return the modules' numbers in logs of this version: some were inserted later."""
    dxt = 8 if minor < 20 else 9 if minor < 41 else 10
    return {"POSIX": 1, "MPI-IO": 2, "DXT_POSIX": dxt, "DXT_MPIIO": dxt + 1}


def _sizes(data: memoryview, start: int, places: list[tuple[int, int]], method: int) -> dict[int, int]:
    """Return the decompressed length of each region that there is; 0 is that of the names."""
    there = sorted((offset, length, number) for number, (offset, length) in enumerate(places) if length > 0)
    # What is before the first one is the job's.
    regions = [(start, (there[0][0] if there else len(data)) - start, -1), *there]
    at, sizes = start, {}
    for offset, length, number in regions:
        if offset != at or length <= 0 or offset + length > len(data):
            raise DarshanError(
                "the log is cut, or its header is damaged: a part of it is not where the header says"
            )
        sizes[number] = _decompressed(data[offset : offset + length], method)
        at = offset + length
    if at != len(data):
        raise DarshanError("the header is damaged: there is more in the log than it says")
    # Regions of modules without data.
    boundaries = {0, at, *(offset for offset, _, _ in regions)}
    if any(length == 0 and offset not in boundaries for offset, length in places):
        raise DarshanError("the header is damaged: a part of the log is not where it says")
    return sizes


def _decompressed(region: memoryview, method: int) -> int:
    """Return the length of a region's contents, in one stream or several, after all of their checksums."""
    if method == _PLAIN:
        # Of these nothing is known but that no compressed region looks like them.
        if bytes(region[:1]) in (b"\x78", b"B"):
            raise DarshanError("the header is damaged: it says that compressed parts are not")
        return len(region)
    if method not in (_ZLIB, _BZIP2):
        raise DarshanError("the header is damaged: there is no such compression")
    total = 0
    rest = bytes(region)
    try:
        while rest:
            stream = _Stream(method)
            total += stream.length(rest)
            rest = stream.unused
    except (zlib.error, OSError, EOFError):
        raise DarshanError("the log is damaged: a part of it cannot be decompressed") from None
    return total


class _Stream:
    """A stream of zlib or bzip2. Memory: a MiB and what is compressed."""

    def __init__(self, method: int) -> None:
        self.method = method
        self.unused = b""

    def length(self, data: bytes) -> int:
        total = 0
        if self.method == _ZLIB:
            inflate = zlib.decompressobj()
            while not inflate.eof:
                got = len(inflate.decompress(data, _STEP))
                data = inflate.unconsumed_tail
                if got == 0 and not data and not inflate.eof:
                    raise EOFError
                total += got
            self.unused = inflate.unused_data
            return total
        expand = bz2.BZ2Decompressor()
        while not expand.eof:
            got = len(expand.decompress(data, _STEP))
            data = b""
            if got == 0 and expand.needs_input:
                raise EOFError
            total += got
        self.unused = expand.unused_data
        return total
