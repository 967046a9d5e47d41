"""When to record: torch.profiler's schedule, with and without torch.

Where torch is loaded its own enum members are used, so that schedules of
memprof and torch work in either profiler; a plain ``Enum`` is equal only to
itself, so memprof itself goes by names.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from memprof.options import check_whole
from memprof.warn import warn

RECORDING = ("RECORD", "RECORD_AND_SAVE")
"""Names of the actions during which a window is open."""


class ProfilerAction(enum.Enum):
    """What a profile does in a step; names and values are torch's."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class ProfilerActivity(enum.Enum):
    """Whose memory to follow; names are torch's."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


def torch_enum(name: str) -> Any:
    """Return an enum of torch.profiler if torch is loaded, else ours.

    Args:
        name: ``"ProfilerAction"`` or ``"ProfilerActivity"``.
    """
    profiler = sys.modules.get("torch.profiler")
    ours = globals()[name]
    return ours if profiler is None else getattr(profiler, name, ours)


class Schedule(NamedTuple):
    """Which action each step has; made by ``schedule``."""

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __call__(self, step: int) -> Any:
        """Return the ``ProfilerAction`` of STEP, which counts from 0."""
        if step < 0:
            raise AssertionError(f"Step must be non-negative. Got {step}.")
        actions = torch_enum("ProfilerAction")
        if step < self.skip_first:
            return actions.NONE
        step -= self.skip_first
        if self.skip_first_wait != 0:
            step += self.wait
        cycle = self.wait + self.warmup + self.active
        if self.repeat > 0 and step >= self.repeat * cycle:
            return actions.NONE
        place = step % cycle
        if place < self.wait:
            return actions.NONE
        if place < self.wait + self.warmup:
            return actions.WARMUP
        return actions.RECORD if place < cycle - 1 else actions.RECORD_AND_SAVE

    def next_recorded(self, step: int) -> int | None:
        """Return the first step from STEP on that is recorded; None: none is."""
        led_in = self.wait if self.skip_first_wait != 0 else 0
        place = max(step - self.skip_first, 0) + led_in
        cycle = self.wait + self.warmup + self.active
        place += max(self.wait + self.warmup - place % cycle, 0)
        if self.repeat > 0 and place >= self.repeat * cycle:
            return None
        return place - led_in + self.skip_first


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Schedule:
    """Make the ``schedule`` argument of a profile; all numbers are steps.

    Args:
        wait: Steps of each cycle that are not recorded.
        warmup: Steps after those, not recorded either. memprof has nothing to
            warm up; they keep the first, untypical steps out of the recording.
        active: Steps that are recorded, after which ``on_trace_ready`` is called.
        repeat: How many cycles; 0 means until the profile stops.
        skip_first: Steps before the first cycle.
        skip_first_wait: Not 0 leaves out ``wait`` in the first cycle.

    Raises:
        TypeError: One is no whole number.
        AssertionError: ``active`` is below 1, or another number below 0.
    """
    check_whole(
        wait=wait,
        warmup=warmup,
        active=active,
        repeat=repeat,
        skip_first=skip_first,
        skip_first_wait=skip_first_wait,
    )
    if wait < 0 or warmup < 0 or active <= 0 or repeat < 0 or skip_first < 0:
        raise AssertionError(
            "Invalid profiler schedule arguments. "
            f"Got wait={wait} (need >= 0), warmup={warmup} (need >= 0), "
            f"active={active} (need > 0), repeat={repeat} (need >= 0), "
            f"skip_first={skip_first} (need >= 0)."
        )
    if warmup == 0:
        warn("Profiler won't be using warmup, this can skew profiler results")
    return Schedule(wait, warmup, active, repeat, skip_first, skip_first_wait)


def describe(function: Callable[[int], Any] | None) -> dict[str, int] | str | None:
    """Return the numbers of a schedule, ours or torch's; else its name."""
    if function is None:
        return None
    names = Schedule._fields
    if isinstance(function, Schedule):
        return function._asdict()
    cells = getattr(function, "__closure__", None) or ()
    code = getattr(function, "__code__", None)
    found: dict[str, int] = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            if name in names and isinstance(cell.cell_contents, int):
                found[name] = cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            pass
    if {"wait", "warmup", "active"} <= found.keys():
        return found
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def next_recorded(function: Callable[[int], Any] | None, step: int) -> int | None:
    """Return the first step from STEP on that a schedule records.

    Goes by the numbers of memprof's and torch's schedules; any other function is
    not asked for steps that may never come.

    Returns:
        None: there is no such step, or it cannot be known.
    """
    if function is None:
        return step
    numbers = describe(function)
    if not isinstance(numbers, dict):
        return None
    return Schedule(**numbers).next_recorded(step)
