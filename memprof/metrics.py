"""The figures of a recording that gates look at: one number a metric.

``peak`` and ``reserved`` are highest values, ``growth`` how much more is alive at
the end of each step, ``count`` how many blocks were born, ``device`` and
``outside`` what the driver says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memprof.limits import METRICS
from memprof.rows import CPU

if TYPE_CHECKING:
    from memprof.recording import Recording

__all__ = ["METRICS", "metric", "why_none"]


def metric(recording: Recording, name: str, device: object = None) -> int | None:
    """Return the value of a metric; None: it was not measured, see ``why_none``.

    Args:
        recording: what to ask.
        name: one of ``METRICS``.
        device: see ``Recording``.

    Raises:
        ValueError: there is no such metric or device.
    """
    if name not in METRICS:
        raise ValueError(f"no metric {name!r}; choose {', '.join(METRICS)}")
    number = recording._device(device)
    if name == "peak":
        return recording.peak(number if number != CPU else "cpu").requested
    if name == "reserved":
        if number == CPU:
            return None
        found = recording.peak(number, of="reserved").reserved
        # What another tool wrote may not speak of it.
        return None if not found and recording.info.get("imported") else found
    if name == "growth":
        return growth(recording, number)
    if name == "count":
        lives = recording.allocations("cpu" if number == CPU else number)
        return int((lives["born_event"] >= 0).sum())
    return _driver(recording, number, name)


def growth(recording: Recording, device: int) -> int | None:
    """Return by how many bytes a step the level at the ends of steps rose.

    The mean from the end of the first recorded step to that of the last; None:
    there are fewer than two steps.
    """
    steps = recording.steps
    if len(steps) < 2:
        return None
    samples = recording._sampled(device, 0)
    ends = np.searchsorted(samples.event, steps["end_event"], "right") - 1
    levels = samples.bytes[np.maximum(ends, 0), 0]
    return int(levels[-1] - levels[0]) // (len(steps) - 1)


def _driver(recording: Recording, device: int, name: str) -> int | None:
    """Return the most that the process held on DEVICE, with or without torch's."""
    totals: Any = getattr(recording, "totals", None)
    if totals is None or device == CPU:
        return None
    rows = totals(device)
    rows = rows[rows["process_bytes"] >= 0]
    if not len(rows):
        return None
    held = rows["process_bytes"].astype(np.int64)
    if name == "outside":
        samples = recording._sampled(device, 0)
        at = np.searchsorted(samples.event, rows["event"], "right") - 1
        held = held - samples.bytes[np.maximum(at, 0), 2]
    return int(held.max())


def why_none(recording: Recording, name: str, device: object = None) -> str:
    """Say why a metric was not measured."""
    if name == "growth":
        return "growth needs two recorded steps (call prof.step() once an iteration)"
    on_cpu = recording._device(device) == CPU
    if name == "reserved" and not on_cpu:
        return "reserved is not in the file that this was read from"
    if name == "reserved" or on_cpu:
        why = "keeps no cache" if name == "reserved" else "alone does not know the use"
        return f"{name} is of GPUs only: torch {why} of the CPU's memory"
    return (
        f"{name} was not measured: it needs the driver's totals, and this recording "
        "has none"
    )
