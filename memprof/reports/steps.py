"""A recording's steps and phases over time: peak, reserved, growth, a small picture.

The parts tile the recording, so the net growths sum to what is alive at the end less
what was at the start. Many steps are shown as few: of several the peak is the highest,
and the growth the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core
from memprof.devices import device_name
from memprof.reports.diff import signed
from memprof.reports.facts import SPARK_COLUMNS, highest_columns, run_name
from memprof.reports.grid import grid
from memprof.reports.terminal import MIN_WIDTH
from memprof.reports.units import counted, size_text, sparks, text_of
from memprof.rows import CPU

if TYPE_CHECKING:
    from memprof.recording import Recording

_REQUESTED, _RESERVED = 0, 2


class _Levels:
    """The bytes of a device after every event, and their times."""

    def __init__(self, recording: Recording, device: int) -> None:
        samples = recording._sampled(device, 0)
        self.event = samples.event
        self.time_ns = np.maximum.accumulate(samples.time_ns)
        self.bytes = samples.bytes
        # What another tool wrote may not speak of it.
        told = bool(self.bytes[:, _RESERVED].any()) or not recording.info.get(
            "imported"
        )
        self.has_reserved = device != CPU and told

        runs = recording.phases
        self.runs = list(
            zip(
                runs["name"].tolist(),
                runs["begin_event"].tolist(),
                runs["end_event"].tolist(),
                strict=True,
            )
        )
        self.run_begin = np.ascontiguousarray(runs["begin_event"])
        self.run_end = np.ascontiguousarray(runs["end_event"])

    def at(self, event: int) -> int:
        """Return the requested bytes after EVENT."""
        found = int(np.searchsorted(self.event, event, "right")) - 1
        return int(self.bytes[max(found, 0), _REQUESTED])

    def highest(self, before: int, last: int, column: int = _REQUESTED) -> int:
        """Return the highest bytes from the state after BEFORE to that after LAST."""
        first = int(np.searchsorted(self.event, before, "right")) - 1
        end = int(np.searchsorted(self.event, last, "right"))
        first = max(first, 0)
        return int(self.bytes[first : max(end, first + 1), column].max())


def gather(recording: Recording, device: object = None) -> dict[str, Any]:
    """Return the facts of all steps.

    Args:
        recording: what to ask.
        device: see ``Recording``.

    Returns:
        ``parts``, in order: ``step`` (None: outside of steps), ``begin_ns`` (since
        the start), ``took_ns``, ``begin_bytes``, ``peak_bytes``, ``peak_phase``,
        ``end_bytes``, ``net_bytes``, ``reserved_bytes`` (highest; None: the CPU has
        none), ``phases`` (name -> ``peak_bytes``, ``net_bytes``, ``took_ns``) and
        ``columns`` (the highest bytes in eleven equal times); and of the whole
        ``begin_bytes``, ``peak_bytes``, ``end_bytes``.
    """
    number = recording._device(device)
    levels = _Levels(recording, number)
    count = int(recording._core.events_count)
    spans: list[tuple[int | None, int, int]] = []  # step, event before, last event
    at = -1
    for step in recording.steps:
        begin, end = int(step["begin_event"]), int(step["end_event"])
        # The mark that ends a step begins the next one.
        spans.append((None, at, begin - 1))
        spans.append((int(step["number"]), max(begin - 1, at), end))
        at = max(at, end)
    spans.append((None, at, count - 1))
    parts = []
    for step_number, before, last in spans:
        if step_number is None and last <= before:
            continue
        part = _part(recording, levels, step_number, before, last)
        if step_number is not None or _says_something(part):
            parts.append(part)
    if not parts:  # no steps, and nothing ever changed
        parts = [_part(recording, levels, None, -1, count - 1)]
    start = int(recording._core.start_ns)
    begin_ns = np.array([start + part["begin_ns"] for part in parts])
    end_ns = begin_ns + [part["took_ns"] for part in parts]
    drawn = highest_columns(
        levels.time_ns, levels.bytes[:, _REQUESTED], begin_ns, end_ns
    )
    for part, columns in zip(parts, drawn, strict=True):
        part["columns"] = columns
    return {
        "run": run_name(recording.info),
        "device": device_name(number),
        "events": count,
        "steps": len(recording.steps),
        "took_ns": _since(recording, count - 1),
        "begin_bytes": levels.at(-1),
        "peak_bytes": recording.peak(device_name(number)).requested,
        "end_bytes": levels.at(count - 1),
        "parts": parts,
    }


def _says_something(part: dict[str, Any]) -> bool:
    """Return whether the level ever was another one between two steps."""
    begin = part["begin_bytes"]
    return bool(part["net_bytes"] or part["peak_bytes"] != begin)


def _part(
    recording: Recording,
    levels: _Levels,
    step: int | None,
    before: int,
    last: int,
) -> dict[str, Any]:
    begin_ns, end_ns = (_since(recording, event) for event in (before, last))
    phases = _phases(recording, levels, before, last)
    first, end = levels.at(before), levels.at(last)
    reserved = levels.highest(before, last, _RESERVED) if levels.has_reserved else None
    peak = levels.highest(before, last)
    return {
        "step": step,
        "begin_ns": begin_ns,
        "took_ns": end_ns - begin_ns,
        "begin_bytes": first,
        "peak_bytes": peak,
        "peak_phase": next(
            (name for name, one in phases.items() if one["peak_bytes"] == peak), ""
        ),
        "end_bytes": end,
        "net_bytes": end - first,
        "reserved_bytes": reserved,
        "phases": phases,
    }


def _since(recording: Recording, event: int) -> int:
    """Return the ns from the start to an event.

    A mark's clock may be read a hair before the recording's own.
    """
    return max(recording._time(event) - int(recording._core.start_ns), 0)


def _phases(
    recording: Recording, levels: _Levels, before: int, last: int
) -> dict[str, dict[str, int]]:
    """Add up the runs of each phase; what no run covers is ``other``."""
    low = int(np.searchsorted(levels.run_end, before, "right"))
    high = int(np.searchsorted(levels.run_begin, last, "right"))
    found: dict[str, dict[str, int]] = {}

    def add(name: str, at: int, end: int) -> None:
        if end <= at:
            return
        one = found.setdefault(name, {"peak_bytes": 0, "net_bytes": 0, "took_ns": 0})
        one["peak_bytes"] = max(one["peak_bytes"], levels.highest(at, end))
        one["net_bytes"] += levels.at(end) - levels.at(at)
        one["took_ns"] += _since(recording, end) - _since(recording, at)

    at = before
    for name, begin, end in levels.runs[low:high]:
        end = min(end, last)
        add("other", at, min(begin - 1, last))
        at = max(at, begin - 1)
        add(name, at, end)
        at = max(at, end)
    add("other", at, last)
    order = [*_core.PHASES[1:], _core.PHASES[0]]
    return {name: found[name] for name in order if name in found}


def bundled(parts: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Join consecutive steps until there are at most LIMIT; 0: none is joined."""
    steps = [part for part in parts if part["step"] is not None]
    share = -(-len(steps) // limit) if limit else 1
    if share <= 1:
        return [{**part, "last_step": part["step"]} for part in parts]
    out: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    count = 0  # of the steps among those
    for part in parts:
        # What lies between steps goes with those before it.
        if part["step"] is not None or held:
            held.append(part)
        else:
            out.append({**part, "last_step": None})
        count += part["step"] is not None
        if count == share:
            out.append(_joined(held))
            held, count = [], 0
    if held:
        out.append(_joined(held))
    return out


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    steps = [part["step"] for part in parts if part["step"] is not None]
    peak = max(parts, key=lambda part: part["peak_bytes"])
    phases: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, one in part["phases"].items():
            sums = phases.setdefault(name, {"peak_bytes": 0})
            sums["peak_bytes"] = max(sums["peak_bytes"], one["peak_bytes"])
    reserved = [p["reserved_bytes"] for p in parts if p["reserved_bytes"] is not None]
    highest = [max(part["columns"]) for part in parts]
    share = -(-len(highest) // SPARK_COLUMNS)
    return {
        "step": steps[0],
        "last_step": steps[-1],
        "begin_ns": parts[0]["begin_ns"],
        "took_ns": sum(part["took_ns"] for part in parts),
        "peak_bytes": peak["peak_bytes"],
        "peak_phase": peak["peak_phase"],
        "net_bytes": sum(part["net_bytes"] for part in parts),
        "reserved_bytes": max(reserved, default=None),
        "phases": phases,
        "columns": [max(highest[i : i + share]) for i in range(0, len(highest), share)],
    }


def text(
    facts: dict[str, Any],
    width: int | None = None,
    *,
    limit: int = 20,
    exact: bool = False,
) -> str:
    """Write the steps, a line each.

    Args:
        facts: of ``gather``.
        width: columns, at least 80; None: as many as it takes.
        limit: lines for steps before several share one; 0: each has its own.
        exact: bytes instead of KiB, MiB and GiB.
    """
    parts = bundled(facts["parts"], limit)
    seen = dict.fromkeys(name for part in parts for name in part["phases"])
    names = [name for name in (*_core.PHASES[1:], _core.PHASES[0]) if name in seen]
    if names == ["other"]:
        names = []
    top = max((max(part["columns"]) for part in parts), default=0)

    def size(amount: int | None) -> str:
        if amount is None:
            return "-"
        return str(amount) if exact else size_text(amount)

    lines = [["step", "at", "took", "peak", "reserved", "net", *names, "level"]]
    for part in parts:
        phases = part["phases"]
        step = "-" if part["step"] is None else str(part["step"])
        if part["step"] != part["last_step"]:
            step += f"-{part['last_step']}"
        lines.append(
            [
                step,
                _time(part["begin_ns"]),
                _time(part["took_ns"]),
                size(part["peak_bytes"]),
                size(part["reserved_bytes"]),
                signed(part["net_bytes"], exact=exact),
                *(size(phases[n]["peak_bytes"]) if n in phases else "-" for n in names),
                sparks(part["columns"], top),
            ]
        )
    net = facts["end_bytes"] - facts["begin_bytes"]
    head = [
        *("memprof", "timeline", facts["run"], facts["device"]),
        counted(facts["steps"], "step"),
        _time(facts["took_ns"]),
    ]
    out = ["  ".join(part for part in head if part), ""]
    out += grid(lines, len(lines[0]) - 1, width and max(width, MIN_WIDTH))
    out.append(
        f"  = {signed(net, exact=exact)} net: {facts['begin_bytes']} > "
        f"{facts['end_bytes']} bytes; peak {facts['peak_bytes']} bytes"
    )
    if names:
        out.append(f"  {', '.join(names)}: the highest level in that phase")
    return text_of(out)


def _time(ns: int) -> str:
    if ns < 1_000_000:
        return f"{ns / 1e3:.0f} us"
    return f"{ns / 1e6:.1f} ms" if ns < 1_000_000_000 else f"{ns / 1e9:.2f} s"
