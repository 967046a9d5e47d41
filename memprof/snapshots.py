"""Memory snapshots: the pickles of torch's MemoryViz, written and read.

``docs/formats/snapshot.md`` says what is in them. The work is the core's
(``csrc/export_snapshot.c``, ``csrc/import_snapshot.c``); nothing in a file is run.
"""

from __future__ import annotations

import os
from typing import Any

from memprof import _core, files
from memprof._version import __version__
from memprof.errors import MemprofError
from memprof.follow import source
from memprof.warn import warn

LARGE = 200_000_000
"""Bytes from which on the page is slow."""

TOO_LARGE = 1_000_000_000
"""Bytes from which on browsers fail."""


def export(
    core: _core.Recording, path: files.Path, info: str, *, force: bool = False
) -> None:
    """Write what CORE holds as a snapshot.

    Args:
        core: The core's recording.
        path: The file, whole or not at all.
        info: JSON that goes with it, for memprof's reader.
        force: Write it whatever its size.

    Raises:
        MemprofError: It would be too large for a browser; or PATH is no regular
            file, or an address is none that a page can show.
        OSError: It cannot be written.
    """
    files.check_folder(path)
    target = files.save_target(path)
    most = 0 if force else TOO_LARGE
    written = _core.export_snapshot(core, target, info, __version__, most)
    if written is None:
        raise MemprofError(
            f"{os.fspath(path)!r} would have more than 1 GB, which no browser opens: "
            "cut the recording first (memprof trim), or write it with force=True"
        )
    if written > LARGE:
        warn(
            f"{os.fspath(path)!r} has {written / 1e6:.0f} MB: the page will be slow; "
            "memprof trim cuts a recording"
        )


def read(path: files.Path) -> tuple[_core.Recording, dict[str, Any]]:
    """Read a snapshot: a recording of what it tells.

    Returns:
        The recording, and what its info says of the file.

    Raises:
        OSError: The file cannot be read.
        MemprofError: It is no snapshot, or holds what would run code.
    """
    core, facts = _core.load_snapshot(os.fspath(path))
    kind = "memprof's snapshot" if facts["ours"] else "a memory snapshot of torch"
    found: dict[str, Any] = {
        "imported": {
            "from": kind,
            "lacks": _lacks(facts),
            "damage": None if facts["whole"] else facts["error"],
            "older_blocks": facts["older"],
        }
    }
    if not facts["ours"]:
        gone = f"read from {kind}, which does not tell of them"
        found["sources"] = {
            "cuda allocator": source(),
            **{name: source(gone) for name in ("cpu allocator", "ops", "modules")},
            "stacks": source(None if facts["stacks"] else "the file has none"),
        }
    return core, found


def _lacks(facts: dict[str, Any]) -> list[str]:
    """Return sentences: what the file could not tell."""
    out = []
    if not facts["traces"]:
        out.append("no traces: only the state at one moment, and no time")
    elif not facts["times"] and facts["entries"]:
        out.append("no times: events are a microsecond apart")
    if not facts["segments"]:
        out.append("no segments: what was reserved is not known")
    if not facts["stacks"]:
        out.append("no stacks")
    if facts["ours"]:
        out.append(
            "ops that touched no memory, owners and regions, and the end of "
            "each time below a microsecond"
        )
    else:
        out.append("the CPU's memory, ops, modules and phases")
    if not facts["categories"]:
        out.append("no categories")
    if facts["unknown"]:
        out.append(f"{facts['unknown']} entries have an action that is not known")
    if facts["host"]:
        out.append("pinned host memory is in the file and was not read")
    if facts["guessed"] or facts["left_out"]:
        out.append(
            "a trace is cut, and the state is that of its end: "
            f"{facts['guessed']} blocks are taken to be older than the trace, "
            f"{facts['left_out']} younger ones were left out"
        )
    return out
