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

from memprof.moment import with_rest
from memprof.reports.units import counted

if TYPE_CHECKING:
    from memprof.moment import Moment
    from memprof.recording import Recording

SCHEMA = 1
BY = ("category", "module", "op", "line")
SPARK_COLUMNS = 11  # of one step


def gather(recording: Recording, device: object, limit: int) -> dict[str, Any]:
    """Collect what the block says; see ``Summary.to_dict``."""
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
    info = recording.info
    peak = recording.peak(device)
    held = fold(peak.rows(BY))
    shown = held[:limit]
    if len(held) > limit:
        shown = with_rest(shown, BY, peak.requested, len(peak.live()), len(held))
    facts = info["device_facts"].get(peak.device)
    facts = facts if isinstance(facts, dict) else {}
    return {
        "schema": SCHEMA,
        "run": _run_name(info),
        "device": peak.device,
        "device_name": facts.get("name"),
        "device_total_bytes": facts.get("total_bytes"),
        "events": info["events"],
        "allocations": len(recording.allocations(device)),
        "dropped": info["dropped"],
        "defects": info["defects"],
        "finished": info["finished"],
        "damaged_bytes": info["damaged_bytes"],
        "steps": _steps(recording, peak),
        "sparks": _spark_columns(recording, peak),
        "peak": {
            "requested_bytes": peak.requested,
            "active_bytes": peak.active,
            "reserved_bytes": peak.reserved if peak.device != "cpu" else None,
            "time_ns": peak.time_ns,
            "event": peak.event,
            "step": peak.step,
            "phase": peak.phase,
            "module": peak.module,
            "op": peak.op,
        },
        "categories": peak.categories,
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


def _run_name(info: dict[str, Any]) -> str:
    """Return what ran: the script's name, without its folder."""
    argv = info.get("argv")
    if not isinstance(argv, list) or not argv or not isinstance(argv[0], str):
        return ""
    return os.path.basename(argv[0])


def _own_bytes(info: dict[str, Any]) -> int | None:
    """Return the host memory that memprof itself held."""
    own = info.get("own")
    found = own.get("own_bytes") if isinstance(own, dict) else None
    return found if isinstance(found, int) else None


def _steps(recording: Recording, peak: Moment) -> list[dict[str, int]]:
    """Return each step's highest and last requested bytes."""
    samples = recording._sampled(peak._number, 0)
    column = samples.bytes[:, 0]
    found = []
    for step in recording.steps:
        first = np.searchsorted(samples.event, step["begin_event"], "right") - 1
        last = np.searchsorted(samples.event, step["end_event"], "right")
        inside = column[max(int(first), 0) : int(last)]
        found.append(
            {
                "number": int(step["number"]),
                "start_ns": int(step["start_ns"]),
                "end_ns": int(step["end_ns"]),
                "peak_bytes": int(inside.max()),
                "end_bytes": int(inside[-1]),
            }
        )
    return found


def _spark_columns(recording: Recording, peak: Moment) -> list[list[int]]:
    """Cut each step (without steps: the run) into columns of equal time.

    Returns:
        Per step the highest requested bytes of each column, what was alive when
        the column began included.
    """
    samples = recording._sampled(peak._number, 0)
    time_ns = np.maximum.accumulate(samples.time_ns)
    column = samples.bytes[:, 0]
    steps = recording.steps
    spans = [(int(step["start_ns"]), int(step["end_ns"])) for step in steps]
    if not spans:
        spans = [(int(time_ns[0]), int(time_ns[-1]))]
    drawn = []
    for start, end in spans:
        edges = np.linspace(start, end, SPARK_COLUMNS + 1).astype(np.int64)
        edges[-1] = end
        low = np.maximum(np.searchsorted(time_ns, edges[:-1], "right") - 1, 0)
        high = np.maximum(np.searchsorted(time_ns, edges[1:], "right"), low + 1)
        drawn.append(
            [
                int(column[first:last].max())
                for first, last in zip(low.tolist(), high.tolist(), strict=True)
            ]
        )
    return drawn


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
        str(name): "" if fact.get("live") else str(fact.get("why") or "not live")
        for name, fact in sources.items()
        if isinstance(fact, dict)
    }


# -- folding -------------------------------------------------------------------

_NUMBER = re.compile(r"(?<![^. ])\d+(?![^. ])")
_PARTS = re.compile(r"([. ])")


@lru_cache(maxsize=4096)
def _without_numbers(name: str) -> str:
    return _NUMBER.sub("*", name)


def fold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows that differ only in the numbers of repeated layers.

    ``layers.0.attn`` and ``layers.1.attn`` become ``layers.*.attn``; a number
    that is the same in all joined rows stays.  An owner's name in place of a
    line folds in the same way.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (
            row["category"],
            _without_numbers(row["module"]),
            row["op"],
            _fold_line(row["line"]),
        )
        groups.setdefault(key, []).append(row)
    folded = [
        {
            "bytes": sum(row["bytes"] for row in group),
            "count": sum(row["count"] for row in group),
            "category": group[0]["category"],
            "module": _common([row["module"] for row in group]),
            "op": group[0]["op"],
            "line": _common([row["line"] for row in group]),
            "modules": len({row["module"] for row in group}),
        }
        for group in groups.values()
    ]
    folded.sort(
        key=lambda row: (
            -row["bytes"],
            -row["count"],
            *(str(row[key]) for key in BY),
        )
    )
    return folded


def _fold_line(line: str) -> str:
    """Fold an owner's name; the line of a file stays as it is."""
    return line if ":" in line else _without_numbers(line)


def _common(names: list[str]) -> str:
    """Write equal parts of dotted names, and ``*`` where they differ."""
    if len(set(names)) == 1:
        return names[0]
    columns = zip(*(_PARTS.split(name) for name in names), strict=True)
    return "".join(
        parts[0] if len(set(parts)) == 1 else "*" for parts in map(list, columns)
    )
