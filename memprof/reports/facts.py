"""The facts of a summary: one device's peak, and what it is made of.

Gathered once, written down by several reports; plain dicts, lists and numbers,
ready for JSON.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core
from memprof.moment import owner_module, with_rest
from memprof.options import check_whole
from memprof.reports.units import counted
from memprof.rows import NO_INDEX, Ints

if TYPE_CHECKING:
    from memprof.moment import Moment
    from memprof.recording import Recording

SCHEMA = 1
BY = ("category", "module", "op", "line", "owner")
"""The keys of the table's rows; a row has a line or, without a stack, an owner."""

PASSING = ("activation", "autograd_detail", "temporary", "input")
"""Categories that should not outlive the step that made them."""

NEARLY_EQUAL = 0.9
"""Rows whose bytes are at least that share of the largest one's may be joined."""

SPARK_COLUMNS = 11  # of one step
SHAPES = 3  # the largest


def gather(
    recording: Recording, device: object, limit: int, *, sparks: bool = True
) -> dict[str, Any]:
    """Collect what the block says; see ``Summary.to_dict``.

    SPARKS: with the columns of its sparklines, which take long for many steps.
    """
    check_whole(limit=limit)
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
    info = recording.info
    peak = recording.peak(device)
    held = fold(_holders(peak))
    shown = held[:limit]
    if len(held) > limit:
        shown = with_rest(shown, BY, peak.requested, len(peak.live()), len(held))
    facts = info["device_facts"].get(peak.device)
    facts = facts if isinstance(facts, dict) else {}
    return {
        "schema": SCHEMA,
        "run": run_name(info),
        "device": peak.device,
        "device_name": facts.get("name"),
        "device_total_bytes": facts.get("total_bytes"),
        "events": info["events"],
        "allocations": len(recording.allocations(device)),
        "dropped": info["dropped"],
        "kernels_lost": sum(info["kernels_lost"].values()),
        "defects": info["defects"],
        "finished": info["finished"],
        "damaged_bytes": info["damaged_bytes"],
        "steps": _steps(recording, peak),
        "sparks": _spark_columns(recording, peak) if sparks else [],
        "peak": {
            "requested_bytes": peak.requested,
            "active_bytes": peak.active,
            "reserved_bytes": _reserved(info, peak),
            "time_ns": peak.time_ns,
            "event": peak.event,
            "step": peak.step,
            "phase": peak.phase,
            "module": peak.module,
            "op": peak.op,
        },
        "categories": peak.categories,
        "unknown": {
            row["reason"]: row["bytes"]
            for row in peak.rows(("category", "reason"))
            if row["category"] == "unknown"
        },
        "shapes": _shapes(peak),
        "earlier": _earlier(peak),
        "labels": peak.labels if recording.rules else {},
        "rows": shown,
        "rows_total": len(held),
        "torch": _torch_peak(info, peak),
        "sources": _sources(info),
        "own_bytes": _own_bytes(info),
        "others": {
            name: recording.peak(name).requested
            for name in recording.devices
            if name != peak.device
        },
    }


def _reserved(info: dict[str, Any], peak: Moment) -> int | None:
    """Return what was reserved; None: nothing was, or nobody told."""
    if peak.device == "cpu" or (peak.reserved == 0 and info.get("imported")):
        return None
    return peak.reserved


def _shapes(peak: Moment) -> list[dict[str, Any]]:
    """Return the largest tensors of a moment, a row a shape; [] if none is known."""
    if not (peak.live()["shape"] != NO_INDEX).any():
        return []  # as ever without record_shapes: nothing to divide by
    rows = peak.rows("shape")
    return [row for row in rows if row["shape"]][:SHAPES]


def run_name(info: dict[str, Any]) -> str:
    """Return what ran: the script's name, without its folder."""
    argv = info.get("argv")
    if not isinstance(argv, list) or not argv or not isinstance(argv[0], str):
        return ""
    if argv[0] in ("-c", "-"):  # no file: the words of a command, standard input
        return f"python {argv[0]}"
    folder, name = os.path.split(argv[0])
    if name == "__main__.py":  # python -m package
        return f"python -m {os.path.basename(folder)}"
    return name or "python"


def _holders(peak: Moment) -> list[dict[str, Any]]:
    """Divide a moment by ``BY``.

    Returns:
        Rows in which ``owner`` stands only where there is no line: it would cut
        what one line made into a row for each parameter.
    """
    rows = peak.rows(("category", "module", "op", "line", "where"))
    for row in rows:
        where = row.pop("where")
        row["owner"] = "" if row["line"] else where
    return rows


def _earlier(peak: Moment) -> dict[str, Any] | None:
    """Return what is alive in a step though an earlier one made it.

    Returns:
        None if there is nothing of the kind, or no step. Else ``bytes`` and
        ``categories`` (those of ``PASSING``), the ``steps`` of birth in order
        (-1: before the recording), and ``rows`` by category and line.
    """
    if peak.step is None:
        return None
    lives = peak.live()
    chosen = np.isin(
        lives["category"], [_core.CATEGORIES.index(name) for name in PASSING]
    ) & (lives["born_step"] < peak.step)
    if not chosen.any():
        return None
    rows = peak._divided(peak._index()[chosen], ("category", "line"))
    categories: dict[str, int] = {}
    for row in rows:
        name = row["category"]
        categories[name] = categories.get(name, 0) + row["bytes"]
    return {
        "bytes": sum(categories.values()),
        "categories": categories,
        "steps": np.unique(lives["born_step"][chosen]).tolist(),
        "rows": rows[:12],
    }


def _own_bytes(info: dict[str, Any]) -> int | None:
    """Return the host memory that memprof itself held."""
    own = info.get("own")
    found = own.get("own_bytes") if isinstance(own, dict) else None
    return found if isinstance(found, int) else None


def _steps(recording: Recording, peak: Moment) -> list[dict[str, int]]:
    """Return each step's highest and last requested bytes."""
    samples = recording._sampled(peak._number, 0)
    column = samples.bytes[:, 0]
    steps = recording.steps
    first = np.searchsorted(samples.event, steps["begin_event"], "right") - 1
    first = np.maximum(first, 0)
    behind = np.searchsorted(samples.event, steps["end_event"], "right")
    behind = np.maximum(behind, first + 1)
    columns = {
        "number": steps["number"],
        "start_ns": steps["start_ns"],
        "end_ns": steps["end_ns"],
        "peak_bytes": _maxima(column, first, behind),
        "end_bytes": column[behind - 1],
    }
    values = zip(*(one.tolist() for one in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _spark_columns(recording: Recording, peak: Moment) -> list[list[int]]:
    """Cut each step (without steps: the run) into columns of equal time.

    Returns:
        Per step the highest requested bytes of each column, what was alive when
        the column began included.
    """
    samples = recording._sampled(peak._number, 0)
    time_ns = np.maximum.accumulate(samples.time_ns)
    steps = recording.steps
    start, end = steps["start_ns"], steps["end_ns"]
    if not len(steps):
        start, end = time_ns[:1], time_ns[-1:]
    return highest_columns(time_ns, samples.bytes[:, 0], start, end)


def highest_columns(
    time_ns: Ints, level: Ints, start: Ints, end: Ints
) -> list[list[int]]:
    """Cut n times into columns and return the highest level of each.

    For all at once: LEVEL is gone through for each call.

    Args:
        time_ns: when the level changed, rising.
        level: what it was from then on.
        start: of each time, int64 [n].
        end: of each, int64 [n].

    Returns:
        n lists of ``SPARK_COLUMNS``, of equal time.
    """
    # Parts of the length, not of the clock: that has more digits than a float.
    share = np.arange(SPARK_COLUMNS + 1) / SPARK_COLUMNS
    edges = start[:, None] + ((end - start)[:, None] * share).astype(np.int64)
    edges[:, -1] = end
    low = np.maximum(np.searchsorted(time_ns, edges[:, :-1], "right") - 1, 0)
    high = np.maximum(np.searchsorted(time_ns, edges[:, 1:], "right"), low + 1)
    highest: Any = _maxima(level, low.ravel(), high.ravel()).reshape(low.shape)
    columns: list[list[int]] = highest.tolist()
    return columns


def _maxima(level: Ints, low: Ints, high: Ints) -> Ints:
    """Return the maximum of each stretch LOW to HIGH, its end left out, none empty."""
    if not len(low):
        return np.zeros(0, np.int64)
    edges = np.stack([low, high], 1).ravel()
    # What lies from one stretch's end to the next one's beginning falls away. An
    # end may be that of all, which reduceat takes only where something follows.
    return np.maximum.reduceat(np.append(level, level[-1:]), edges)[::2]


def _torch_peak(info: dict[str, Any], peak: Moment) -> dict[str, Any]:
    """Set torch's own counters beside our peak, or say why that is no use.

    torch keeps two: the peak of what was asked for, which must be ours to the
    byte, and that of the rounded blocks, ``max_memory_allocated``.  Both last
    for the whole process, so they speak of our peak only if it set them.
    """
    found: dict[str, Any] = {
        "max_memory_allocated": None,
        "max_memory_requested": None,
        "rounding_bytes": None,
        "why_not": None,
    }
    if peak.device == "cpu":
        found["why_not"] = "torch keeps no such counter for the CPU"
        return found
    counters = info.get("torch_counters")
    counters = counters.get(peak.device) if isinstance(counters, dict) else None
    begin, end = ({}, {}) if not counters else (counters["begin"], counters["end"])
    allocated, requested = end.get("allocated_peak"), end.get("requested_peak")
    found["max_memory_allocated"] = allocated
    found["max_memory_requested"] = requested
    if allocated is None:
        found["why_not"] = "torch's counters were not read"
    elif requested == peak.requested:
        found["rounding_bytes"] = allocated - requested
    elif requested is None and allocated > begin.get("allocated_peak", 0):
        # An old torch: its peak rose while we recorded, so ours set it.
        found["rounding_bytes"] = allocated - peak.requested
    elif requested is None or requested == begin.get("requested_peak"):
        found["why_not"] = "torch's peak was before the recorded steps"
    elif requested < peak.requested:
        found["why_not"] = "torch's counter was reset while we recorded"
    elif info["dropped"]:
        found["why_not"] = f"{counted(info['dropped'], 'event')} were dropped"
    else:
        found["why_not"] = (
            f"torch counted {requested - peak.requested} bytes more that we did not see"
        )
    return found


def _sources(info: dict[str, Any]) -> dict[str, str]:
    """Return the sources of the recording, and why one was not live (else "")."""
    sources = info.get("sources")
    if not isinstance(sources, dict):
        return {}
    return {
        str(name): "" if fact.get("live") else _why_not(fact)
        for name, fact in sources.items()
        if isinstance(fact, dict)
    }


def _why_not(fact: dict[str, Any]) -> str:
    """Return why a source is not live, and the rung that is left of a ladder."""
    why = str(fact.get("why") or "not live")
    level = fact.get("level")
    return f"{why.removesuffix('.')} (level {level})" if level else why


# -- folding -------------------------------------------------------------------

_NUMBER = re.compile(r"(?<![^. ])\d+(?![^. ])")
_PARTS = re.compile(r"([. ])")


@lru_cache(maxsize=4096)
def _without_numbers(name: str) -> str:
    return _NUMBER.sub("*", name)


def fold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows that differ only in the numbers of repeated layers.

    ``layers.0.attn`` and ``layers.1.attn`` become ``layers.*.attn``; a number
    that is the same in all joined rows stays.  An owner's name folds in the same
    way.  Joined are only rows of nearly equal bytes: what stands out must not
    hide among its likes.  A name of which nothing but ``*`` would be left, as in
    an ``nn.Sequential``, stays as it is.
    """
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (
            row["category"],
            _folded(row["module"], row["module"]),
            row["op"],
            row["line"],
            _folded(row["owner"], owner_module(row["owner"])),
        )
        alike.setdefault(key, []).append(row)
    groups = [group for rows in alike.values() for group in _by_size(rows)]
    folded = [
        {
            "bytes": sum(row["bytes"] for row in group),
            "count": sum(row["count"] for row in group),
            "category": group[0]["category"],
            "module": _common([row["module"] for row in group]),
            "op": group[0]["op"],
            "line": group[0]["line"],
            "owner": _common([row["owner"] for row in group]),
            "modules": len({row["module"] for row in group}),
        }
        for group in groups
    ]
    folded.sort(
        key=lambda row: (
            -row["bytes"],
            -row["count"],
            *(str(row[key]) for key in BY),
        )
    )
    return folded


def _by_size(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Part rows where their bytes are no longer nearly those of the largest."""
    parts: list[list[dict[str, Any]]] = []
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        if parts and row["bytes"] >= NEARLY_EQUAL * parts[-1][0]["bytes"]:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


@lru_cache(maxsize=4096)
def _folded(name: str, module: str) -> str:
    """Fold the name of MODULE, or of what is in it, if a name is left then."""
    left = _without_numbers(module)
    if "*" in left and not any(map(str.isalpha, left)):
        return name
    return _without_numbers(name)


def _common(names: list[str]) -> str:
    """Write equal parts of dotted names, and ``*`` where they differ."""
    if len(set(names)) == 1:
        return names[0]
    columns = zip(*(_PARTS.split(name) for name in names), strict=True)
    return "".join(
        parts[0] if len(set(parts)) == 1 else "*" for parts in map(list, columns)
    )
