"""What ``memprof.load`` reads: files told apart by what is in them.

Our recordings, torch's memory snapshots and ours, traces of torch.profiler and
raw memory timelines. What is read becomes a recording like any other, whose info
says under ``imported`` where it is from and what the file could not tell.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

from memprof import _core, files
from memprof import info as infos
from memprof.errors import MemprofError

RECORDING, SNAPSHOT, TRACE, RAW = "recording", "snapshot", "trace", "raw timeline"

_NUMBER = rb"\s*-?\d[\d.eE+-]*\s*"
_RAW_ROW = re.compile(rb"\[\s*\[" + rb",".join([_NUMBER] * 4) + rb"\]")
_SUMS = re.compile(rb"\[\s*\[(" + _NUMBER + rb"[,\]]|\s*\]\s*,\s*\[)")
_OLD_PICKLE = re.compile(rb"\([dl]p?\d*\n|[}\]]q.")
READS = (
    "memprof reads its own recordings (.memprof), torch's memory snapshots "
    "(.pickle), traces of torch.profiler (.json, .json.gz) and raw memory "
    "timelines (.raw.json.gz)"
)


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return what kind of file PATH is, one of the constants above.

    What nothing else is taken for is a recording: its reader says what is wrong.

    Raises:
        OSError: it cannot be read.
        MemprofError: it holds sums from which no recording can be made, or is a
            snapshot in an old form of pickle.
    """
    head = _head(path)
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return SNAPSHOT
    if _OLD_PICKLE.match(head):
        raise MemprofError(
            f"{os.fspath(path)!r} is a pickle of protocol 0 or 1: load it with Python, "
            "if you trust it, and dump it with protocol 4"
        )
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"{":
        return TRACE
    if text[:1] != b"[":
        return RECORDING
    rest = text[1:].lstrip()
    if rest[:1] == b"{":
        return TRACE
    if _RAW_ROW.match(text) or rest[:1] == b"]":
        return RAW
    if _SUMS.match(text):
        raise MemprofError(
            f"{os.fspath(path)!r} is a memory timeline of sums: no allocations are "
            "in it, and no recording can be made of it; .raw.json.gz has them"
        )
    return RECORDING


def _head(path: str | os.PathLike[str], size: int = 4096) -> bytes:
    """Return the first bytes, decompressed."""
    # A pipe must not hang us; what it is, the readers say.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as problem:
        problem.strerror = f"{problem.strerror}{files.home_hint(os.fspath(path))}"
        raise
    try:
        if not os.path.isfile(path):
            return b""
        head = os.read(handle, size)
    finally:
        os.close(handle)
    if head[:2] != b"\x1f\x8b":
        return head
    try:
        return zlib.decompressobj(31).decompress(head, size)
    except zlib.error:
        return b""


def read(path: str | os.PathLike[str]) -> _core.Recording:
    """Read PATH, whatever it is.

    Raises:
        OSError: it cannot be read.
        MemprofError: it is nothing that we read, with the reason.
    """
    kind = kind_of(path)
    if kind == RECORDING:
        try:
            return _core.load(os.fspath(path))
        except MemprofError as problem:
            if "does not begin" not in str(problem):
                raise
            raise MemprofError(f"{problem}; {READS}") from None
    if kind == SNAPSHOT:
        from memprof.snapshots import read as reader
    elif kind == TRACE:
        from memprof.kineto import read as reader
    else:
        from memprof.raw_timeline import read as reader
    core, facts = reader(path)
    written = infos.parsed(core.info)
    facts["imported"]["file"] = os.path.basename(os.fspath(path))
    core.info = infos.text({**written, **facts})
    return core


def told(info: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the info of an imported recording says of its file."""
    found = info.get("imported")
    return found if isinstance(found, dict) else None
