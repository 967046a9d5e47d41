"""Steps and phases: which stretches of a recording they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memprof import _core
from memprof.options import choices
from memprof.rows import CPU, PHASES_DTYPE, STEP_DTYPE, STEPS_DTYPE, Ints, Rows, as_rows

if TYPE_CHECKING:
    from memprof.recording import Recording

# Numbers of csrc/event.h that a question here depends on.
_ALLOC = 1
_FREE_COMPLETED = 3
_LAST_THREAD_KIND = 23  # optimizer_end
# alloc ... oom, and the begin of an op, module, region, optimizer.
_TELLS_PHASE = np.zeros(256, np.bool_)
_TELLS_PHASE[[1, 2, 3, 4, 5, 6, 7, 8, 16, 18, 20, 22]] = True


def step_rows(recording: Recording) -> Rows:
    """Return the tracker's rows of steps, without what was before the window.

    The tracker begins a row for what a recording finds alive, which is no
    step: it has ``recorded`` 0.  Without a window no row has 1.
    """
    rows: Rows = as_rows(recording._core.steps(), STEP_DTYPE)
    recorded = rows["recorded"] != 0
    return rows[recorded] if recorded.any() else rows


def find_steps(recording: Recording) -> Rows:
    """Return the rows of ``Recording.steps``."""
    raw = step_rows(recording)
    last = max(recording._core.events_count - 1, 0)
    is_open = raw["end_event"] < 0
    ends = np.where(is_open, last, raw["end_event"])
    # A device first seen within a step begins its row there.
    numbers, group = np.unique(raw["number"], return_inverse=True)
    rows = np.zeros(len(numbers), STEPS_DTYPE)
    rows["number"] = numbers
    rows["begin_event"] = np.iinfo(np.int64).max
    np.minimum.at(rows["begin_event"], group, raw["begin_event"])
    np.maximum.at(rows["end_event"], group, ends)
    rows.sort(order="begin_event")
    if len(rows) and _is_tail(recording, rows):
        rows = rows[:-1]
    clock = recording._times()
    rows["start_ns"] = clock[rows["begin_event"]]
    rows["end_ns"] = clock[np.minimum(rows["end_event"], last)]
    rows.flags.writeable = False
    return rows


def _is_tail(recording: Recording, steps: Rows) -> bool:
    """Return whether the last of STEPS is but the way out of the loop.

    ``prof.step()`` at the end of a loop begins a step that ``stop`` ends.
    It counts if anything was allocated in it, or if there is no other step
    and the program did anything at all.
    """
    begin, end = steps[["begin_event", "end_event"]][-1]
    info = recording.info
    if info.get("schedule") is not None and info.get("step_num") != steps[-1][0]:
        return False  # the schedule ended the window, at a prof.step()
    kind = recording.events()["kind"][begin : end + 1]
    if len(steps) > 1:
        return not bool((kind == _ALLOC).any())
    return not bool((kind <= _LAST_THREAD_KIND).any())


def find_step(recording: Recording, number: int) -> np.void:
    """Return the row of step NUMBER.

    Raises:
        ValueError: there is none; says which there are.
    """
    steps = recording.steps
    found = np.flatnonzero(steps["number"] == number)
    if not found.size:
        if not len(steps):
            raise ValueError(
                f"no step {number!r}: the recording has no steps "
                "(call prof.step() once an iteration)"
            )
        first, last = int(steps["number"].min()), int(steps["number"].max())
        there = f"{first}" if first == last else f"{first} to {last}"
        raise ValueError(f"no step {number!r} in this recording; steps: {there}")
    row: np.void = steps[found[0]]
    return row


def find_phases(recording: Recording) -> Rows:
    """Return the rows of ``Recording.phases``."""
    events = recording.events()
    kind = events["kind"]
    counted = _TELLS_PHASE[kind]
    counted &= (kind != _FREE_COMPLETED) | (events["device"] == CPU)
    index = np.flatnonzero(counted)
    # First runs of one thread and phase: there are far fewer than events.
    phase = events["phase"][index]
    thread = events["thread"][index]
    first = np.ones(len(index), np.bool_)
    first[1:] = (phase[1:] != phase[:-1]) | (thread[1:] != thread[:-1])
    index, phase, thread = index[first], phase[first], thread[first]
    busy = np.unique(thread[phase != 0])
    if busy.size:
        keep = np.isin(thread, busy)
        index, phase = index[keep], phase[keep]
    if not index.size:
        empty = np.empty(0, PHASES_DTYPE)
        empty.flags.writeable = False
        return empty
    starts = np.concatenate(([0], np.flatnonzero(phase[1:] != phase[:-1]) + 1))
    rows = np.zeros(len(starts), PHASES_DTYPE)
    rows["name"] = np.array(_core.PHASES)[phase[starts]]
    begin = index[starts]
    last = len(events) - 1
    clock = recording._times()
    rows["begin_event"] = begin
    rows["end_event"] = np.append(begin[1:] - 1, last)
    rows["start_ns"] = clock[begin]
    rows["end_ns"] = np.append(clock[begin[1:]], clock[last])
    rows.flags.writeable = False
    return rows


def stretches(
    recording: Recording, step: int | None, phase: str | None
) -> tuple[Ints, Ints]:
    """Return first and last event, int64 [n] each, of what is asked for.

    Args:
        recording: what to ask.
        step: only that step; None: all, and what is outside of steps.
        phase: only runs of that phase; None: all.

    Raises:
        ValueError: there is no such step or phase.
    """
    begin = np.array([-1], np.int64)
    end = np.array([recording._core.events_count], np.int64)
    if phase is not None:
        if phase not in _core.PHASES:
            raise ValueError(f"no phase {phase!r}; choose {choices(_core.PHASES)}")
        runs = recording.phases[recording.phases["name"] == phase]
        if not len(runs):
            seen = dict.fromkeys(recording.phases["name"].tolist())
            raise ValueError(
                f"nothing was recorded in phase {phase!r}; "
                f"phases here: {choices(seen) or 'none'}"
            )
        begin, end = runs["begin_event"], runs["end_event"]
    if step is not None:
        row = find_step(recording, step)
        begin = np.maximum(begin, row["begin_event"])
        end = np.minimum(end, row["end_event"])
        inside = begin <= end
        if not inside.any():
            raise ValueError(f"step {step} has nothing in phase {phase!r}")
        begin, end = begin[inside], end[inside]
    return begin, end
