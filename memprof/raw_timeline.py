"""``.raw.json.gz`` of ``export_memory_timeline`` as a recording.

The file has a row for each change: when, what, how many bytes, which category.
It does not say which block: of those of one category and size any may have been
freed, and all of them give the same sums.
"""

from __future__ import annotations

import os
from array import array
from typing import Any

import numpy as np

from memprof import _core
from memprof.errors import MemprofError
from memprof.follow import source
from memprof.json_stream import Cut, Text, items
from memprof.kineto import MOST_BYTES, MOST_NS, Events

PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4
DEVICE = 0
CATEGORIES = 8  # torch's
TOLD = _core.ROLES.index("told parameter")
UNIT = 512


class Blocks:
    """Made-up addresses of blocks, by category and size."""

    def __init__(self) -> None:
        self._next = UNIT
        self._free: dict[int, list[int]] = {}
        self._live: dict[tuple[int, int], list[int]] = {}

    def take(self, size: int, category: int) -> int:
        """Return the address of a new block."""
        free = self._free.get(size)
        if free:
            address = free.pop()
        else:
            address = self._next
            self._next += max(-(-size // UNIT) * UNIT, UNIT)
        self._live.setdefault((category, size), []).append(address)
        return address

    def give(self, size: int, category: int) -> int | None:
        """Return the address of the latest such block, now free; None: there is
        none."""
        live = self._live.get((category, size))
        if not live:
            return None
        address = live.pop()
        self._free.setdefault(size, []).append(address)
        return address


def read(path: str | os.PathLike[str]) -> tuple[_core.Recording, dict[str, Any]]:
    """Read a raw timeline; see ``memprof.snapshots.read``.

    Raises:
        OSError: the file cannot be read.
        MemprofError: it is no raw timeline.
    """
    text = Text(path)
    numbers = array("q")  # four a row: a list of tuples would be five times as large
    damage = None
    try:
        for item in items(text, "", {}):
            numbers.extend(_row(item))
    except Cut as cut:
        damage = str(cut)
    except (TypeError, ValueError, OverflowError):
        raise MemprofError(
            f"{os.fspath(path)!r}: no raw timeline: its row {len(numbers) // 4} is not "
            "[time, action, bytes, category]"
        ) from None
    finally:
        text.close()
    rows = np.frombuffer(numbers, np.int64).reshape(-1, 4)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    known = rows[rows[:, 0] >= 0, 0]
    start = int(known[0]) if len(known) else 0
    out, blocks, unmatched = Events(start), Blocks(), 0
    for time, action, size, category in map(np.ndarray.tolist, rows):
        at = max(time, start)
        if size >= 0 and action != DESTROY:
            kind = "seed_block" if action == PREEXISTING else "alloc"
            address = blocks.take(size, category)
            out.add(kind, at, address, size, DEVICE)
            out.add("role", at, address, TOLD + category, DEVICE)
            continue
        gone = blocks.give(abs(size), category)
        if gone is None:
            unmatched += 1
        else:
            out.add("free_completed", at, gone, abs(size), DEVICE)
    core = _core.from_events(out.rows(), start_wall_ns=start)
    return core, _facts(unmatched, damage)


def _row(item: Any) -> tuple[int, int, int, int]:
    time, action, size, category = map(int, item)
    if not (1 <= action <= 4 and 0 <= category < CATEGORIES):
        raise ValueError(item)
    if abs(time) > MOST_NS or abs(size) > MOST_BYTES:
        raise OverflowError(item)
    return time, action, size, category


def _facts(unmatched: int, damage: str | None) -> dict[str, Any]:
    kind = "a raw memory timeline"
    lacks = [
        "the device: it is called cuda:0 here",
        "which block was freed: of equal ones the latest was taken",
        "stacks, ops, modules, steps and what was reserved",
        "what changed its category: it is freed and made anew",
    ]
    if unmatched:
        lacks.append(f"{unmatched} frees of blocks that the file does not make")
    gone = f"read from {kind}, which does not tell of them"
    return {
        "imported": {"from": kind, "lacks": lacks, "damage": damage},
        "sources": {
            "cuda allocator": source(),
            **{name: source(gone) for name in ("ops", "modules", "stacks")},
        },
    }
