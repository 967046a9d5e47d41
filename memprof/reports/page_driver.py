"""What the driver says of a device, for the page: samples, and the books of the peak.

Samples are points: between two of them nothing is known, and the page draws dots.
Without samples there is the reason why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memprof.reports.columns import Column, column
from memprof.totals import total_of

if TYPE_CHECKING:
    from memprof.recording import Recording
    from memprof.reports.page_device import Device


def samples(recording: Recording, one: Device) -> tuple[list[Column], dict[str, Any]]:
    """Return the samples of a device and what is said of them.

    Returns:
        Columns ``use_us``, ``use_event`` (of the page, + 1), ``use_process`` and
        ``use_device`` (bytes; -1: that could not be had); none without samples.
        ``title`` and ``method`` of those, or ``why`` there are none.
    """
    rows = recording._total_rows()
    rows = rows[rows["device"] == one.number]
    known = (rows["process_bytes"] >= 0) | (rows["device_used_bytes"] >= 0)
    if not known.any():
        why = total_of(rows[-1]).why if len(rows) else _unsampled(recording)
        return [], {"why": why}
    first = total_of(rows[np.flatnonzero(known)[0]])
    rows = rows[known]
    us = np.maximum(rows["time_ns"] - int(recording._core.start_ns), 0) // 1000
    said: dict[str, Any] = {
        "title": "process" if (rows["process_bytes"] >= 0).any() else "all processes",
        "method": first.method,
        "device_method": first.device_method,
        "why": first.why,
    }
    return [
        column("use_us", np.maximum.accumulate(us), "f64"),
        column("use_event", one.rank(rows["event"]) + 1),
        column("use_process", rows["process_bytes"], "f64"),
        column("use_device", rows["device_used_bytes"], "f64"),
    ], said


def _unsampled(recording: Recording) -> str:
    """Say why nobody asked the driver, if the recording knows it."""
    sources = recording.info.get("sources")
    fact = sources.get("process totals") if isinstance(sources, dict) else None
    why = fact.get("why") if isinstance(fact, dict) else None
    return why if isinstance(why, str) else ""


def books(recording: Recording, one: Device) -> dict[str, Any] | None:
    """Return the books of the peak of a GPU; None: the driver was not asked."""
    if one.number < 0:
        return None
    found = recording.books(one.name, "peak")
    if found.level == "C":
        return None
    told = found.to_dict()
    return {
        **{key: told[key] for key in ("level", "level_text", "why", "total")},
        **{key: told[key] for key in ("method", "age_ns", "notes")},
        "own": found.sample is not None and found.sample.process_bytes is not None,
        "rows": [[row.name, row.bytes, row.note] for row in found.rows],
        "device_rows": [[row.name, row.bytes, row.note] for row in found.device_rows],
    }
