"""A part of a recording, as a recording.

What is alive at each event of the part is what was: its state goes before it. A
life of which the part has not everything keeps the category that it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof import info as infos
from memprof.instants import moment, step_of
from memprof.rows import Ints, as_rows
from memprof.spans import find_step

if TYPE_CHECKING:
    from memprof.recording import Recording

_STEP = 32  # csrc/event.h


def of_steps(recording: Recording, first: int, last: int) -> tuple[int, int]:
    """Return the events of the steps FIRST to LAST; the second is behind the last.

    Raises:
        ValueError: there is no such step.
    """
    begin = int(find_step(recording, first)["begin_event"])
    end = int(find_step(recording, last)["end_event"])
    if end < begin:
        raise ValueError(f"step {last} is before step {first}")
    # The mark that ends it begins the next one.
    closes = int(recording.events()["kind"][end]) == _STEP and end > begin
    return begin, end if closes else _behind(recording, end)


def of_time(
    recording: Recording, begin_ns: int | None, end_ns: int | None
) -> tuple[int, int]:
    """Return the events from BEGIN_NS to END_NS, both included; None: no bound.

    Raises:
        ValueError: there is no event in between.
    """
    times = recording._times()
    begin = 0 if begin_ns is None else int(np.searchsorted(times, begin_ns, "left"))
    end = len(times)
    if end_ns is not None:
        end = int(np.searchsorted(times, end_ns, "right"))
    if begin >= end:
        raise ValueError("no event lies in that time")
    return begin, end


def between(
    recording: Recording, begin: str | None, end: str | None, device: object
) -> tuple[int, int]:
    """Return the events from one moment to another, both included; None: no bound.

    Args:
        recording: whose.
        begin: a moment as of ``instants.moment``; of a step its beginning.
        end: likewise; of a step its end.
        device: whose ``"peak"``.

    Raises:
        ValueError: there is no such moment, or the second is before the first.
    """
    count = int(recording._core.events_count)
    first, behind = 0, count
    if begin is not None:
        first = _edge(recording, begin, device, 0)
    if end is not None:
        behind = _edge(recording, end, device, 1)
    if first >= behind and (begin, end) != (None, None):
        raise ValueError(f"no event lies from {begin or 'the start'} to {end or 'end'}")
    return first, behind


def _edge(recording: Recording, word: str, device: object, side: int) -> int:
    """Return the event at a moment's beginning (SIDE 0), or behind its end (1)."""
    step = step_of(word)
    if step is not None:
        return of_steps(recording, step, step)[side]
    found = moment(recording, word, recording._device(device))
    if side == 0 and found.event >= 0 and recording._time(found.event) < found.time_ns:
        return found.event + 1  # the first that is not earlier than the time
    event = max(found.event, 0)  # the state at the start goes with the first event
    return event if side == 0 else _behind(recording, event)


def around_peak(recording: Recording, device: object, count: int) -> tuple[int, int]:
    """Return the COUNT events before and after the peak, and its own.

    Raises:
        ValueError: there is no such device.
    """
    peak = max(recording.peak(device).event, 0)
    end = _behind(recording, peak + count)
    return max(peak - count, 0), end


def largest(
    recording: Recording, count: int, span: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return which lives are the COUNT largest of those alive in SPAN."""
    lives = recording.allocations("all")
    begin, end = span
    there = (lives["born_event"] < end) & (
        (lives["completed_event"] < 0) | (lives["completed_event"] >= begin)
    )
    chosen = np.flatnonzero(there)
    order = np.argsort(lives["size"][chosen], kind="stable")[::-1][:count]
    keep = np.zeros(len(lives), np.bool_)
    keep[chosen[order]] = True
    return keep


def _behind(recording: Recording, event: int) -> int:
    return min(event + 1, recording._core.events_count)


def cut(
    recording: Recording,
    span: tuple[int, int],
    keep: NDArray[np.bool_] | None = None,
) -> tuple[Recording, Ints]:
    """Return the events of SPAN as a recording.

    Args:
        recording: Of which.
        span: The first event, and the one behind the last.
        keep: For each life whether it is kept; None: all are.

    Returns:
        The recording, whose info has ``trimmed``, and where each event of SPAN is
        in it; -1: left out.
    """
    from memprof.recording import Recording

    kept = None if keep is None else keep.astype(np.uint8).data
    core, places = _core.cut(recording._core, *span, kept)
    info: dict[str, Any] = infos.parsed(recording._info_text())
    # Of the whole run, and so of no use for its part.
    info.pop("torch_counters", None)
    before = info.get("trimmed")
    trimmed = {
        "first_event": span[0],
        "last_event": span[1] - 1,
        "of_events": recording._core.events_count,
        "before": before if isinstance(before, dict) else None,
    }
    if keep is not None:
        left = recording.allocations("all")[~keep]
        trimmed["largest"] = int(keep.sum())
        trimmed["left_out"] = len(left)
    info["trimmed"] = trimmed
    core.info = infos.text(info)
    return Recording(core, recording._current), as_rows(places, np.int64)
