"""Is it a memory timeline of torch's?  ``check_timeline(bytes) -> list[str]``.

Both shapes: ``[times, sizes]`` and the raw rows.  ``replayed`` makes the first of
the second by torch's own rule.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from unpack import is_int, strict_json, unpack

CATEGORIES = 8
PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4


def check_timeline(data: bytes) -> list[str]:
    """Return what is wrong with a ``.json``, ``.json.gz`` or ``.raw.json.gz``."""
    text, wrong = unpack(data)
    value, more = strict_json(text)
    wrong += more
    if more:
        return wrong
    if not isinstance(value, list):
        return [*wrong, "not a list"]
    if is_series(value):
        return wrong + check_series(*value)
    return wrong + check_raw(value)


def is_series(value: Any) -> bool:
    """Whether it is ``[times, sizes]``; else it is raw."""
    return (
        len(value) == 2
        and all(isinstance(part, list) for part in value)
        and (not value[0] or is_int(value[0][0]))
        and all(isinstance(row, list) for row in value[1])
    )


def check_series(times: list[Any], sizes: list[Any]) -> list[str]:
    """Check ``[times, sizes]``."""
    wrong = []
    if len(times) != len(sizes):
        wrong.append(f"{len(times)} times and {len(sizes)} sizes")
    if not all(is_int(time) and time >= 0 for time in times):
        wrong.append("a time is no whole number, or below 0")
    elif any(later < earlier for earlier, later in pairwise(times)):
        wrong.append("a time falls")
    # Of equal times only the first: what was there before the recording.
    elif any(a == b for a, b in pairwise(times[1:])):
        wrong.append("a microsecond has two samples")
    for row in sizes:
        if len(row) != CATEGORIES + 1 or not all(map(is_int, row)):
            wrong.append(f"not nine whole numbers: {row}")
        elif row[0] != 0:
            wrong.append(f"the first is not 0: {row}")
        elif min(row) < 0:
            wrong.append(f"less than nothing is alive: {row}")
    return wrong


def check_raw(rows: list[Any]) -> list[str]:
    """Check the raw rows."""
    wrong = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 4 or not all(map(is_int, row)):
            return [f"not four whole numbers: {row}"]
        time, action, size, category = row
        if not 0 <= category < CATEGORIES:
            wrong.append(f"no such category: {row}")
        if action not in (PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY):
            wrong.append(f"no such action: {row}")
        if (time == -1) != (action == PREEXISTING) or time < -1:
            wrong.append(f"a time that the action has not: {row}")
        if action in (PREEXISTING, CREATE) and size < 0:
            wrong.append(f"a birth of less than nothing: {row}")
        if action == DESTROY and size > 0:
            wrong.append(f"a death that adds: {row}")
    if wrong:
        return wrong
    keys = [(row[0], row[1]) for row in rows]
    if keys != sorted(keys):
        wrong.append("not in order of time and action")
    changes = [row for row in rows if row[1] == INCREMENT_VERSION]
    for before, after in zip(changes[::2], changes[1::2]):
        if before[2] + after[2] != 0:
            wrong.append(f"a change of category that does not add up: {before}")
    if len(changes) % 2:
        wrong.append("half a change of category")
    left = [0] * CATEGORIES
    for row in rows:
        left[row[3]] += row[2]
    if min(left) < 0:
        wrong.append(f"more died than was born: {left}")
    return wrong


def replayed(rows: list[list[int]]) -> list[Any]:
    """Return ``[times, sizes]`` of raw rows, by the rule of torch's exporter."""
    times: list[int] = []
    sizes: list[list[int]] = []
    earliest = -1
    for time, _, size, category in rows:
        if time != -1:
            time = int(time / 1000)
        if earliest == -1 or (0 < time < earliest):
            earliest = time
        if not times:
            times.append(time)
            sizes.append([0] * (CATEGORIES + 1))
        elif time != times[-1]:
            times.append(time)
            sizes.append(sizes[-1].copy())
        sizes[-1][category + 1] += size
    return [[earliest if time < 0 else time for time in times], sizes]
